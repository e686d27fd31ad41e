//! Circuit breakers in JSON.

use effectd_actors::control::breakers::View;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// The state of one circuit breaker.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct BreakerView {
    /// Its key: a tool's id, or `<subject>/<key>` for the `qos.circuit_breaker_key` of a subject's requests.
    pub key: String,
    /// `closed`, `open`, `half_open` or `releasing`.
    pub state: String,
    /// Why it is open: `failures`, `error_share`, `probe` or `operator`.
    pub cause: Option<String>,
    /// When it lets a probe through; left out if it is not open, or only an operator closes it.
    pub retry_after_ms: Option<u64>,
    /// Calls within the window.
    pub calls: u32,
    /// Failed calls within the window.
    pub failures: u32,
}

impl From<View> for BreakerView {
    fn from(view: View) -> Self {
        Self {
            key: view.key,
            state: view.state.as_str().to_owned(),
            cause: view.cause.map(|cause| cause.as_str().to_owned()),
            retry_after_ms: view.retry_after_ms,
            calls: view.calls,
            failures: view.failures,
        }
    }
}
