//! Sessions: a subject that acts in a space of an organisation, for a person who waits or unattended.
//!
//! Here is which records there are, and which actions belong to a session. [`crate::operator::sessions`] creates, ends and deletes them.

use effectd_bus::{FamilyName, Store, StoreError};
use effectd_contracts::{
    ActionRequest, Code, Failure, Origin, Phase, Session, SessionId, SpaceId, SubjectId, ToolSpec,
};
use effectd_policy::{Decider, OrgRole, Policy, PrincipalRole};
use serde_json::{Map, Value};

use crate::stored::{entries_from, page, read_json};

/// Sessions by id, sealed, since a title is a person's text. A deleted session is not in it.
pub(crate) const SESSIONS: &str = "sessions";

/// Whether this person may see, end and delete the session: who created it, admins of its organisation, and operators.
pub fn is_visible(session: &Session, policy: &Policy, by: &Decider, part: PrincipalRole) -> bool {
    session.created_by == by.principal
        || policy.role_in(by, session.org.as_str()) >= Some(OrgRole::Admin)
        || policy.may_operate_in(by, part, Some(session.org.as_str()))
}

/// Adds the space to parameters that leave it out, if the tool wants it.
pub fn with_space(space: &SpaceId, spec: &ToolSpec, mut params: Map<String, Value>) -> Map<String, Value> {
    if spec.params_schema.pointer("/properties/space_id").is_some() {
        params.entry("space_id").or_insert_with(|| space.as_str().into());
    }
    params
}

pub fn session(store: &dyn Store, id: &str) -> Result<Option<Session>, StoreError> {
    let Ok(id) = SessionId::new(id) else {
        return Ok(None);
    };
    let entry = store.entry(&FamilyName::new(SESSIONS)?, id.as_str())?;
    Ok(entry.as_ref().and_then(read_json))
}

/// One page of those that `sees` selects, the oldest first.
pub fn list(
    store: &dyn Store,
    after: Option<&str>,
    max: usize,
    sees: impl Fn(&Session) -> bool,
) -> Result<(Vec<Session>, Option<String>), StoreError> {
    let family = FamilyName::new(SESSIONS)?;
    page(entries_from(store, &family, ("", after), max), max, |entry| Ok(read_json(entry).filter(&sees)))
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
    let Origin::Session { session_id } = origin else { return Ok(None) };
    let found = session(store, session_id.as_str()).map_err(|error| unavailable(&error))?;
    let is_of = |session: &Session| {
        session.ended_at.is_none()
            && session.subject_id == request.subject_id
            && session.space_id == request.space_id
            && policy.org_of(&request.space_id) == Some(session.org.as_str())
    };
    found.filter(is_of).map(Some).ok_or_else(|| unknown(Phase::Accept))
}

/// Whether a decision belongs to a session that was deleted since it was made. A session whose record no key opens is not deleted.
pub(crate) fn is_deleted(store: &dyn Store, origin: &Origin) -> Result<bool, StoreError> {
    let Some(session_id) = origin.of_session() else { return Ok(false) };
    Ok(store.entry(&FamilyName::new(SESSIONS)?, session_id.as_str())?.is_none())
}

/// The session that a decision comes from; `None` if it comes from none with a record, `Some(None)` if that is deleted.
pub(crate) fn of_origin(store: &dyn Store, origin: &Origin) -> Result<Option<Option<Session>>, StoreError> {
    origin.of_session().map(|session_id| session(store, session_id.as_str())).transpose()
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
