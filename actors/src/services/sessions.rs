//! Sessions: a subject that acts in a space of an organisation, for a person who waits or unattended.
//!
//! Here are the records, and which actions belong to a session. [`crate::operator::sessions`] creates, ends and deletes them.

use effectd_bus::{FamilyName, Store, StoreError};
use effectd_contracts::{
    ActionRequest, Code, ConnectionId, Failure, OrgId, Origin, Phase, Principal, SessionId, SpaceId,
    SubjectId, Timestamp,
};
use effectd_policy::{Decider, OrgRole, Policy, PrincipalRole};
use serde::{Deserialize, Serialize};

use crate::stored::read_json;

/// Sessions by id. A deleted session is not in it.
pub(crate) const SESSIONS: &str = "sessions";

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Session {
    pub session_id: SessionId,
    /// The organisation of the space when the session was created.
    pub org: OrgId,
    pub space_id: SpaceId,
    pub subject_id: SubjectId,
    pub created_by: Principal,
    /// For people.
    pub title: String,
    /// Whether nobody waits for its answers: then its approvals are open for longer.
    pub unattended: bool,
    /// The connections that it may use.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub connections: Vec<ConnectionId>,
    pub created_at: Timestamp,
    /// Since when it takes no new action.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended_at: Option<Timestamp>,
}

impl Session {
    /// Whether this person may see, end and delete the session: who created it, admins of its organisation, and operators.
    pub fn is_visible_to(&self, policy: &Policy, by: &Decider, part: PrincipalRole) -> bool {
        self.created_by == by.principal
            || policy.org_role(&by.principal, self.org.as_str()) >= Some(OrgRole::Admin)
            || policy.may_operate(by, part)
    }
}

pub fn session(store: &dyn Store, id: &str) -> Result<Option<Session>, StoreError> {
    let Ok(id) = SessionId::new(id) else {
        return Ok(None);
    };
    let entry = store.entry(&FamilyName::new(SESSIONS)?, id.as_str())?;
    Ok(entry.as_ref().and_then(read_json))
}

/// One page of them, the oldest first.
pub fn list(
    store: &dyn Store,
    after: Option<&str>,
    max: usize,
) -> Result<(Vec<Session>, Option<String>), StoreError> {
    let page = store.entries(&FamilyName::new(SESSIONS)?, "", after, max)?;
    Ok((page.entries.iter().filter_map(read_json).collect(), page.after))
}

/// Whether the name is that of a session without a record: `agent:<subject>`, `run:<id>`, `batch:<id>`.
pub fn is_implicit(session: &str) -> bool {
    session.contains(':')
}

/// The subject that acts in a session; `None` for a run, a batch and an unknown session.
pub(crate) fn subject_of(store: &dyn Store, session: &str) -> Result<Option<SubjectId>, StoreError> {
    if let Some(subject) = session.strip_prefix("agent:") {
        return Ok(SubjectId::new(subject).ok());
    }
    Ok(self::session(store, session)?.map(|session| session.subject_id))
}

/// The session of a new request, if it comes from one. Refuses a session that is unknown or has ended, and a request for another
/// subject, space or organisation than the session's: all with one code, so that nobody learns which sessions exist.
pub(crate) fn admit(
    store: &dyn Store,
    policy: &Policy,
    origin: &Origin,
    request: &ActionRequest,
) -> Result<Option<Session>, Failure> {
    let found = of_origin(store, origin).map_err(|error| unavailable(&error))?;
    let is_of = |session: &Session| {
        session.ended_at.is_none()
            && session.subject_id == request.subject_id
            && session.space_id == request.space_id
            && policy.org_of(&request.space_id) == Some(session.org.as_str())
    };
    match found {
        None => Ok(None),
        Some(session) => session.filter(is_of).map(Some).ok_or_else(|| unknown(Phase::Accept)),
    }
}

/// Whether a decision belongs to a session that was deleted since it was made.
pub(crate) fn is_deleted(store: &dyn Store, origin: &Origin) -> Result<bool, StoreError> {
    Ok(of_origin(store, origin)?.is_some_and(|session| session.is_none()))
}

/// `None` for a decision that comes from no session with a record.
fn of_origin(store: &dyn Store, origin: &Origin) -> Result<Option<Option<Session>>, StoreError> {
    match origin {
        Origin::Session { session_id } => session(store, session_id.as_str()).map(Some),
        Origin::Arbiter | Origin::Plan | Origin::Run { .. } | Origin::Batch { .. } => Ok(None),
    }
}

/// The refusal of an action whose session it cannot belong to.
pub fn unknown(phase: Phase) -> Failure {
    let message = "there is no such session, or it has ended, or it is for another subject or space; \
                   `effectd sessions list` shows yours";
    Failure::new(Code::SessionUnknown, phase, message)
}

fn unavailable(error: &StoreError) -> Failure {
    Failure::new(Code::StoreUnavailable, Phase::Accept, error.to_string())
}
