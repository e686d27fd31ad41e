//! Who a caller is, in JSON.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Who sends a request, as the daemon knows the caller.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct WhoamiView {
    /// `user://…` at the socket, `account://<org>/<name>` or `session://<org>/<session>` with a token.
    pub principal: String,
    /// The kind of the token: `sandbox`, `user` or `service`. Left out at the socket.
    pub kind: Option<String>,
    /// The token's organisation.
    pub org: Option<String>,
    /// The session of a sandbox token.
    pub session: Option<String>,
    /// When the token expires.
    pub expires_at: Option<String>,
    /// The id of the daemon's state, as in `/healthz`.
    pub state_id: String,
}
