//! Operators' operations in JSON.

use effectd_actors::operator::service::Performed;
use effectd_actors::services::connections::SecretValue;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::dead_letters::LetterNow;

/// What an operation changed, or would change.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
pub struct OperationView {
    /// Whether anything changed, or would.
    pub changed: bool,
    /// What, for people: a line each.
    pub says: Vec<String>,
    /// The receipt that names the operator; none if nothing changed.
    pub receipt_id: Option<String>,
    /// The id of what was created.
    pub id: Option<String>,
    /// The value of a new token, or of the token of a new session. It is shown this once.
    #[schema(value_type = Option<String>)]
    pub token: Option<SecretValue>,
    /// The outcome for each dead letter.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub letters: Vec<LetterNow>,
}

impl From<Performed> for OperationView {
    fn from(performed: Performed) -> Self {
        Self {
            changed: performed.changed,
            says: performed.summary,
            receipt_id: performed.receipt_id.map(|id| id.to_string()),
            id: None,
            token: performed.token,
            letters: performed.letters.into_iter().map(LetterNow::of).collect(),
        }
    }
}
