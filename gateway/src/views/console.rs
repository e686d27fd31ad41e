//! The console in JSON: a link to it.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// A one-time link to the console.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ConsoleLink {
    /// Whoever opens it first is signed in as `principal`.
    pub url: String,
    pub principal: String,
    pub expires_at: String,
}
