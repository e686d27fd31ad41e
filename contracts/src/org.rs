//! What organisations have: sessions, connections, and secrets by name.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::access::HttpAccess;
use crate::clock::Timestamp;
use crate::connector::Connector;
use crate::ids::{
    ActionId, ConnectionId, OrgId, Principal, SessionId, SpaceId, SubjectId, ToolId, WebhookId,
};
use crate::limits::SLACK_ID_BYTES_MAX;
use crate::request::ActionRequest;

/// A session: a subject that acts in a space of an organisation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Session {
    /// Its id.
    pub session_id: SessionId,
    /// The organisation of the space when the session was created.
    pub org: OrgId,
    /// The space.
    pub space_id: SpaceId,
    /// The subject.
    pub subject_id: SubjectId,
    /// Who created it.
    pub created_by: Principal,
    /// What it is about, for people; empty after an erasure of the subject.
    pub title: String,
    /// Whether nobody waits for its answers: then its approvals are open for longer.
    pub unattended: bool,
    /// The connections that it may use.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub connections: Vec<ConnectionId>,
    /// When it was created.
    pub created_at: Timestamp,
    /// Since when it takes no new action.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended_at: Option<Timestamp>,
}

impl Session {
    /// The principal of the session's agent, as its token says. `None` if the names are too long for one.
    pub fn agent(&self) -> Option<Principal> {
        Principal::new(format!("session://{}/{}", self.org, self.session_id)).ok()
    }

    /// A new action of the session. Nobody else chooses its id, so no other action has it.
    pub fn request(&self, tool_id: ToolId, params: Map<String, Value>) -> ActionRequest {
        let fresh = ActionId::fresh();
        let of_session = ActionId::new(format!("{}/{fresh}", self.session_id));
        let by = (self.subject_id.clone(), self.space_id.clone());
        ActionRequest::new(of_session.unwrap_or(fresh), by, (tool_id, params))
    }
}

/// A connection of an organisation to a source of tools.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Connection {
    /// Its id.
    pub connection_id: ConnectionId,
    /// The organisation.
    pub org: OrgId,
    /// The source of the tools that use it.
    pub source: String,
    /// Its name, for people.
    pub name: String,
    /// The hosts that it leads to.
    pub hosts: Vec<String>,
    /// The names of the organisation's secrets that it needs.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub secrets: Vec<String>,
    /// How exchanges reach it, if its tools are effectd's own requests or statements.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub access: Option<HttpAccess>,
    /// The MCP server that it leads to, if its tools are those of a server.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub connector: Option<Connector>,
    /// Whether it may be used.
    pub enabled: bool,
    /// Who created it.
    pub created_by: Principal,
    /// When it was created.
    pub created_at: Timestamp,
}

crate::wire_enum! {
    /// A topic whose events can be sent: those that learners read.
    pub enum WebhookTopic {
        /// Actions that have their receipt.
        Executed = "ACTION_EXECUTED",
        /// What became known about actions after their receipts.
        Amendments = "AMENDMENTS",
    }
}

/// A channel of Slack in which people decide about held actions.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SlackChannel {
    /// The id of the workspace: `T024BE7LD`.
    pub team: String,
    /// The id of the channel: `C024BE91L`.
    pub channel: String,
    /// Where these people find the console: `https://effectd.example.org`.
    pub console: String,
}

/// The person that a user of Slack is: an account, which decides with its own roles.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SlackUser {
    /// The organisation.
    pub org: OrgId,
    /// The id of the workspace that the user belongs to.
    pub team: String,
    /// The user's id: `U024BE7LH`.
    pub user: String,
    /// The account: `account://<org>/<name>`.
    pub account: Principal,
    /// Who said so.
    pub set_by: Principal,
    /// When.
    pub set_at: Timestamp,
}

/// Whether a text is an id as Slack makes them: capital letters and digits.
pub fn is_slack_id(text: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_uppercase() || byte.is_ascii_digit();
    (2..=SLACK_ID_BYTES_MAX).contains(&text.len()) && text.bytes().all(plain)
}

/// Events of an organisation, sent to a service over one of its connections.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Webhook {
    /// Its id.
    pub webhook_id: WebhookId,
    /// The organisation.
    pub org: OrgId,
    /// The connection, by the source of its tools.
    pub source: String,
    /// Where events are posted: the path of one of the connection's routes.
    pub path: String,
    /// The topics whose events are sent; none to Slack.
    pub topics: Vec<WebhookTopic>,
    /// The name of the organisation's secret by which they are signed; for Slack, that by which Slack signs what people answer.
    pub signed_by: String,
    /// The channel, if people are asked in Slack.
    pub slack: Option<SlackChannel>,
    /// Whether events are sent.
    pub enabled: bool,
    /// Who created it.
    pub created_by: Principal,
    /// When it was created.
    pub created_at: Timestamp,
}

/// A secret without its value.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SecretName {
    /// The organisation.
    pub org: OrgId,
    /// Its name.
    pub name: String,
    /// Who set its value.
    pub set_by: Principal,
    /// When its value was set.
    pub set_at: Timestamp,
}
