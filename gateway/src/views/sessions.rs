//! Sessions and organisations in JSON.

use effectd_contracts::{ConnectionId, Session, SpaceId, SubjectId};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// A page of sessions.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SessionList {
    /// Oldest first.
    #[schema(schema_with = crate::schema::sessions)]
    pub sessions: Vec<Session>,
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
