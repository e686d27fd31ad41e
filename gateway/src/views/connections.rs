//! New connections and values of secrets in JSON.

use effectd_actors::operator::connections::Tested;
use effectd_actors::services::connections::SecretValue;
use effectd_contracts::{HttpAccess, OrgId, Timestamp, WebhookTopic};
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
    /// How requests reach it, for a source `http.<name>`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<serde_json::Value>)]
    pub access: Option<HttpAccess>,
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
    /// The topics whose events are sent.
    #[schema(value_type = Vec<serde_json::Value>)]
    pub topics: Vec<WebhookTopic>,
    /// The name of the organisation's secret by which they are signed: `whsec_` and base64, or any text.
    pub signed_by: String,
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
}

impl From<Tested> for ConnectionTest {
    fn from(Tested { record, asked, seen, fault }: Tested) -> Self {
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
