//! Connections and secrets in JSON. No answer has the value of a secret.

use effectd_actors::services::connections::{Connection, SecretName, SecretValue};
use effectd_contracts::OrgId;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// A connection of an organisation to a source of tools.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ConnectionView {
    pub connection_id: String,
    pub org: String,
    /// The source of the tools that use it.
    pub source: String,
    pub name: String,
    /// The hosts that it leads to.
    pub hosts: Vec<String>,
    /// The names of the secrets that it needs.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub secrets: Vec<String>,
    pub enabled: bool,
    pub created_by: String,
    pub created_at: String,
}

impl From<Connection> for ConnectionView {
    fn from(connection: Connection) -> Self {
        Self {
            connection_id: connection.connection_id.to_string(),
            org: connection.org.to_string(),
            source: connection.source,
            name: connection.name,
            hosts: connection.hosts,
            secrets: connection.secrets,
            enabled: connection.enabled,
            created_by: connection.created_by.to_string(),
            created_at: connection.created_at.to_string(),
        }
    }
}

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

/// A secret without its value.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SecretView {
    pub org: String,
    pub name: String,
    pub set_by: String,
    pub set_at: String,
}

impl From<SecretName> for SecretView {
    fn from(secret: SecretName) -> Self {
        let SecretName { org, name, set_by, set_at } = secret;
        Self { org, name, set_by: set_by.to_string(), set_at: set_at.to_string() }
    }
}

/// The value of a secret.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SecretBody {
    #[schema(value_type = String)]
    pub value: SecretValue,
}
