//! Sessions and organisations in JSON.

use effectd_actors::services::sessions::Session;
use effectd_contracts::{ConnectionId, SpaceId, SubjectId};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// A session: a subject that acts in a space of an organisation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SessionView {
    pub session_id: String,
    pub org: String,
    pub space_id: String,
    pub subject_id: String,
    pub created_by: String,
    /// What it is about, for people.
    pub title: String,
    /// Whether nobody waits for its answers: then its approvals are open for longer.
    pub unattended: bool,
    /// The connections that it may use.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub connections: Vec<String>,
    pub created_at: String,
    /// Since when it takes no new action.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended_at: Option<String>,
}

impl From<Session> for SessionView {
    fn from(session: Session) -> Self {
        Self {
            session_id: session.session_id.to_string(),
            org: session.org.to_string(),
            space_id: session.space_id.to_string(),
            subject_id: session.subject_id.to_string(),
            created_by: session.created_by.to_string(),
            title: session.title,
            unattended: session.unattended,
            connections: session.connections.iter().map(ToString::to_string).collect(),
            created_at: session.created_at.to_string(),
            ended_at: session.ended_at.map(|at| at.to_string()),
        }
    }
}

/// A page of sessions.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SessionList {
    /// Oldest first.
    pub sessions: Vec<SessionView>,
    /// The `after` of the next page.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
}

/// A new session.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SessionBody {
    /// The space, which says the organisation.
    #[schema(value_type = String)]
    pub space_id: SpaceId,
    /// The subject that acts in it.
    #[schema(value_type = String)]
    pub subject_id: SubjectId,
    /// What it is about, for people.
    pub title: String,
    /// Whether nobody waits for its answers: then its approvals are open for longer.
    #[serde(default)]
    pub unattended: bool,
    /// The connections that it may use.
    #[serde(default)]
    #[schema(value_type = Vec<String>)]
    pub connections: Vec<ConnectionId>,
}

/// An organisation, as the policy's files have it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct OrgView {
    pub org: String,
    pub spaces: Vec<String>,
    pub members: Vec<MemberView>,
}

/// A member of an organisation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct MemberView {
    /// The principal, or a pattern of principals.
    pub principal: String,
    /// `member`, `admin` or `owner`.
    pub role: String,
}
