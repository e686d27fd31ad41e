//! New connections and values of secrets in JSON.

use effectd_actors::services::connections::SecretValue;
use effectd_contracts::OrgId;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// A new connection.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ConnectionBody {
    #[schema(value_type = String)]
    pub org: OrgId,
    /// The source of the tools that use it: the part of their ids before the action.
    pub source: String,
    /// Its name, for people.
    pub name: String,
    /// The hosts that it leads to.
    pub hosts: Vec<String>,
    /// The names of the organisation's secrets that it needs.
    #[serde(default)]
    pub secrets: Vec<String>,
}

/// The value of a secret.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SecretBody {
    #[schema(value_type = String)]
    pub value: SecretValue,
}
