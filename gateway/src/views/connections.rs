//! New connections and values of secrets in JSON.

use effectd_actors::operator::connections::Tested;
use effectd_actors::services::connections::SecretValue;
use effectd_contracts::{Connector, HttpAccess, OrgId, SlackChannel, Timestamp, WebhookTopic};
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
    /// How requests reach it, for a source `http.<name>` or `db:<uuid>`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<serde_json::Value>)]
    pub access: Option<HttpAccess>,
    /// The MCP server that it leads to. Its source is then made from the connection's id, whatever `source` says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<serde_json::Value>)]
    pub connector: Option<Connector>,
}

/// A new webhook.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct WebhookBody {
    #[schema(value_type = String)]
    pub org: OrgId,
    /// The connection, by the source of its tools.
    pub source: String,
    /// Where events are posted: the path of one of the connection's routes, without a placeholder.
    pub path: String,
    /// The topics whose events are sent; none to Slack.
    #[schema(value_type = Vec<serde_json::Value>)]
    pub topics: Vec<WebhookTopic>,
    /// The name of the organisation's secret by which they are signed: `whsec_` and base64, or any text. For Slack, that by which Slack
    /// signs what people answer.
    pub signed_by: String,
    /// The channel, if people are asked in Slack.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<serde_json::Value>)]
    pub slack: Option<SlackChannel>,
}

/// What a test of a connection found.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct ConnectionTest {
    pub host: String,
    /// The address that was dialled; absent if none was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<String>,
    /// What kind of address it is: `public`, `loopback`, `private`, `shared`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address_class: Option<String>,
    /// The names that the server's certificate is for; none over HTTP in clear.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub certificate_names: Vec<String>,
    /// When the certificate expires.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub certificate_expires_at: Option<Timestamp>,
    /// What was asked. Absent if no route can be asked as it stands: then a connection was made, and nothing was sent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub asked: Option<String>,
    /// The status of the answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<u16>,
    pub took_ms: f64,
    /// Why it cannot be reached; absent if it can.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fault: Option<String>,
    /// The version of a database.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// The role that asks a database.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub role: Option<String>,
    /// What that role may do that no query needs.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
}

impl From<Tested> for ConnectionTest {
    fn from(Tested { record, asked, seen, fault, database }: Tested) -> Self {
        let (version, role, warnings) =
            database.map(|seen| (Some(seen.version), Some(seen.role), seen.warnings)).unwrap_or_default();
        let class = seen.as_ref().map(|seen| seen.class.as_str().to_owned());
        let certificate = seen.and_then(|seen| seen.certificate);
        Self {
            host: record.host,
            address: record.address,
            address_class: class,
            certificate_expires_at: certificate.as_ref().map(|certificate| certificate.not_after),
            certificate_names: certificate.map(|certificate| certificate.names).unwrap_or_default(),
            asked,
            status: record.status,
            took_ms: record.ms.as_f64(),
            fault,
            version,
            role,
            warnings,
        }
    }
}

/// The value of a secret.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SecretBody {
    #[schema(value_type = String)]
    pub value: SecretValue,
}
