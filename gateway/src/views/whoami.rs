//! Who a caller is, in JSON.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Who sends a request, as the daemon knows the caller.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct WhoamiView {
    /// `user://…` at the socket, `account://<org>/<name>` or `session://<org>/<session>` with a token.
    pub principal: String,
    /// The kind of the token: `sandbox`, `user` or `service`. Left out at the socket.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// The token's organisation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub org: Option<String>,
    /// The session of a sandbox token.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session: Option<String>,
    /// When the token expires.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<String>,
    /// The id of the daemon's state, as in `/healthz`.
    pub state_id: String,
}
