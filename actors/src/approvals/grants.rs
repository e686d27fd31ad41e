//! Grants: approvals in advance. A compare-and-swap counts each use. The policy decides whether a grant applies, see
//! [`effectd_policy::grant`].

use effectd_bus::{Expect, FamilyName, Store, StoreError};
use effectd_contracts::{
    ActionId, Approval, ApprovalChange, ApprovalData, ApprovalVerdict, COMMAND_TOOL, Code, Digest, Failure,
    GrantId, Phase, Principal, Session, SpaceId, Timestamp, ToolId, TraceId,
};
use effectd_policy::{
    Decider, Grant, GrantAsk, GrantState, NamedCommand, OrgRole, Policy, PrincipalRole, is_tool_pattern,
};
use serde::{Deserialize, Serialize};

use super::audit::{self, Deed, GrantAct};
use super::decide::{DecideError, check_reason};
use super::expiry::authority;
use super::hold::{approval, keyed_digest, session_of};
use super::question::Question;
use super::rejudge::{self, Under};
use super::repository::{Step, Versioned, read};
use super::view;
use crate::action::{Action, Asked};
use crate::limits::{GRANT_REQUEST_WAIT_MAX, GRANT_REQUESTS_MAX, GRANTS_MAX, HELD_PAGE};
use crate::services::sessions;
use crate::services::{Approvals, Services};
use crate::stored::{entries, entries_from, page};

const GRANTS: &str = "grants";
/// Which grant an action has used, so that it uses one call however often it is delivered.
const USES: &str = "grant-uses";

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewGrant {
    pub org: String,
    /// The session that it is for; `None` for the whole organisation.
    pub session: Option<String>,
    /// The tools that it is for: an id, `<source>.*`, `*.<action>`, or `*`.
    pub tool: String,
    /// The named command, for the tool `command.run`.
    pub command: Option<String>,
    pub calls_max: Option<u32>,
    pub expires_at: Option<Timestamp>,
    pub reason: Option<String>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
struct Use {
    record: Approval,
}

fn family(name: &str) -> Result<FamilyName, StoreError> {
    FamilyName::new(name)
}

pub fn grant(store: &dyn Store, id: &GrantId) -> Result<Option<Versioned<Grant>>, StoreError> {
    let entry = store.entry(&family(GRANTS)?, id.as_str())?;
    entry.as_ref().map(read).transpose()
}

/// One page of those that `sees` selects, the oldest first.
pub fn list(
    store: &dyn Store,
    after: Option<&str>,
    max: usize,
    sees: impl Fn(&Grant) -> bool,
) -> Result<(Vec<Grant>, Option<String>), StoreError> {
    let family = family(GRANTS)?;
    let entries = entries_from(store, &family, ("", after), max);
    page(entries, max, |entry| Ok(Some(read::<Grant>(entry)?.value).filter(&sees)))
}

/// The grants of an organisation, the oldest first.
pub fn in_org(store: &dyn Store, org: &str) -> Result<Vec<Grant>, StoreError> {
    let grants = all(store)?.into_iter().map(|grant| grant.value);
    Ok(grants.filter(|grant| grant.org == org).collect())
}

pub(crate) fn all(store: &dyn Store) -> Result<Vec<Versioned<Grant>>, StoreError> {
    entries(store, &family(GRANTS)?, HELD_PAGE).map(|entry| read(&entry?)).collect()
}

/// Fails if there are [`GRANTS_MAX`] grants already.
pub(crate) fn room(store: &dyn Store) -> Result<(), StoreError> {
    let count = all(store)?.len();
    if count >= GRANTS_MAX {
        return Err(StoreError::TooLarge { what: "number of grants", size: count + 1, max: GRANTS_MAX });
    }
    Ok(())
}

/// Adds a grant and its event to the step. The caller concludes the returned act once the step is on disk.
pub(crate) fn put(
    step: &mut Step,
    policy: &Policy,
    grant: &Grant,
    expect: Expect,
    what: ApprovalChange,
    by: &str,
    now: Timestamp,
) -> Result<Option<GrantAct>, StoreError> {
    step.put(GRANTS, grant.grant_id.as_str(), expect, grant)?;
    announce(step, policy, grant, what, by, now)
}

fn announce(
    step: &mut Step,
    policy: &Policy,
    grant: &Grant,
    what: ApprovalChange,
    by: &str,
    now: Timestamp,
) -> Result<Option<GrantAct>, StoreError> {
    let about = ActionId::new(format!("grant:{}", grant.grant_id))?;
    let space = SpaceId::new(format!("org:{}", grant.org))?;
    let data = ApprovalData {
        grant_id: Some(grant.grant_id.clone()),
        reason: grant.reason.clone(),
        expires_at: grant.expires_at,
        ..ApprovalData::new(what, &ToolId::new(grant.tool.clone())?, by)
    };
    step.news(data, &about, &space, (&TraceId::fresh(), now));
    let deed = match what {
        ApprovalChange::GrantCreated => Deed::Made,
        ApprovalChange::GrantRevoked => Deed::Revoked,
        ApprovalChange::GrantEnded => Deed::Ended,
        // These need no act: the receipts of the actions record them, or nothing is in force yet.
        ApprovalChange::Requested
        | ApprovalChange::Joined
        | ApprovalChange::Reopened
        | ApprovalChange::Approved
        | ApprovalChange::Denied
        | ApprovalChange::Expired
        | ApprovalChange::Released
        | ApprovalChange::Withdrawn
        | ApprovalChange::GrantRequested
        | ApprovalChange::GrantUsed => return Ok(None),
    };
    let act = GrantAct::new(policy, deed, grant, &Principal::new(by)?, now);
    act.put(step)?;
    Ok(Some(act))
}

pub(crate) fn used(store: &dyn Store, action: &ActionId) -> Result<Option<Approval>, StoreError> {
    let known = store.entry(&family(USES)?, action.as_str())?;
    let known = known.as_ref().map(read::<Use>).transpose()?;
    Ok(known.map(|known| known.value.record))
}

/// Uses one call of a grant that replaces the approval, if there is such a grant. One action never uses two calls.
pub(crate) async fn consume(
    approvals: &Approvals,
    policy: &Policy,
    action: &Action<Asked>,
    question: &Question,
) -> Result<Option<Approval>, StoreError> {
    let decision = &action.state.ruling().decision;
    if !decision.grant_allowed {
        return Ok(None);
    }
    let (ticket, request, store) = (&action.ticket, &action.request, &*approvals.store);
    let Some(org) = policy.org_of(&request.space_id) else {
        return Ok(None);
    };
    let _lock = approvals.changes.lock().await;
    if let Some(known) = used(store, &ticket.action_id)? {
        return Ok((known.digest == keyed_digest(&question.digest)).then_some(known));
    }
    let session = session_of(&ticket.decision(request));
    let wanted = GrantAsk { org, session: &session, tool: &request.tool_id, now: approvals.clock.now() };
    let mut candidates = all(store)?;
    candidates.retain(|grant| grant.value.covers(decision, &wanted));
    // The narrowest grant first, then the one that ends first.
    candidates.sort_by_key(|grant| {
        let grant = &grant.value;
        let end = grant.expires_at.map_or(i64::MAX, |end| end.as_second());
        (grant.session.is_none(), grant.tool.contains('*'), end, grant.grant_id.clone())
    });
    for Versioned { value: mut grant, version } in candidates {
        grant.calls_used = grant.calls_used.saturating_add(1);
        let by = format!("grant:{}", grant.grant_id);
        let times = (wanted.now, wanted.now);
        let record = Approval {
            grant_id: Some(grant.grant_id.clone()),
            ..approval(ApprovalVerdict::Grant, by, times, &question.digest, authority(policy, Some(org)))
        };
        let mut step = Step::default();
        let expect = Expect::Version(version);
        put(&mut step, policy, &grant, expect, ApprovalChange::GrantUsed, &record.by, wanted.now)?;
        let used = Use { record: record.clone() };
        step.put(USES, ticket.action_id.as_str(), Expect::Absent, &used)?;
        match step.commit(store).await {
            Ok(_) => {
                let (grant_id, calls_used) = (&grant.grant_id, grant.calls_used);
                tracing::info!(parent: &ticket.span, %grant_id, calls_used, "grant used");
                return Ok(Some(record));
            }
            // Another action used this grant first: try the next grant.
            Err(StoreError::VersionMismatch { .. }) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(None)
}

/// Removes the record of which grant an ended action used.
pub(crate) async fn ended(store: &dyn Store, action: &ActionId) -> Result<(), StoreError> {
    let mut step = Step::default();
    step.delete(USES, action.as_str(), Expect::Any)?;
    step.commit(store).await.map(drop)
}

/// Whether a grant is in force as soon as this decider requests it: the decider may also make it.
pub fn would_be_in_force(services: &Services, new: &NewGrant, by: &Decider) -> Result<bool, DecideError> {
    check(services, new, by)?;
    match may_make(services, &new.org, new.session.as_deref(), &new.tool, by) {
        Err(DecideError::Store(error)) => Err(error.into()),
        may => Ok(may.is_ok()),
    }
}

/// Requests a grant. It is in force at once only if the decider may also make it.
pub async fn request(services: &Services, new: NewGrant, by: &Decider) -> Result<Grant, DecideError> {
    let in_force = would_be_in_force(services, &new, by)?;
    let state = if in_force { GrantState::Active } else { GrantState::Requested };
    make(services, new, by, state).await
}

/// Requests a grant for the agent of a session. Who created the session requests it. It is in force at once only if it covers one tool in
/// this session, that person administers the organisation now, and the session has few grants: an agent widens nothing by itself, and
/// leaves room for the grants of others.
pub async fn request_in(services: &Services, session: &Session, new: NewGrant) -> Result<Grant, DecideError> {
    let by = Decider::local(session.created_by.clone(), false);
    check(services, &new, &by)?;
    let role = services.policy().org_role(&session.created_by, &new.org);
    let (is_narrow, now) = (new.session.is_some() && !new.tool.contains('*'), services.clock.now());
    let mut own = all(&*services.store)?;
    own.retain(|grant| grant.value.session == new.session && !grant.value.is_over(now));
    let in_force = is_narrow && role >= Some(OrgRole::Admin) && own.len() < GRANT_REQUESTS_MAX;
    let state = if in_force { GrantState::Active } else { GrantState::Requested };
    make(services, new, &by, state).await
}

/// The holds that a grant would release if this decider made it.
pub fn would_release(services: &Services, new: NewGrant, by: &Decider) -> Result<u64, DecideError> {
    let (policy, now) = (services.policy(), services.clock.now());
    let under = Under::grant(&policy, new_grant(&policy, now, new, by, GrantState::Active));
    Ok(rejudge::count(&*services.store, now, under)?.released)
}

pub async fn create(services: &Services, new: NewGrant, by: &Decider) -> Result<Grant, DecideError> {
    // First: whether the person may make it depends on the session, which may be one of others.
    check(services, &new, by)?;
    may_make(services, &new.org, new.session.as_deref(), &new.tool, by)?;
    make(services, new, by, GrantState::Active).await
}

/// Puts a requested grant in force.
pub async fn activate(services: &Services, id: &GrantId, by: &Decider) -> Result<Grant, DecideError> {
    let _lock = services.approvals.changes.lock().await;
    let Versioned { value: mut grant, version } = grant(&*services.store, id)?.ok_or(DecideError::Unknown)?;
    // Over the network, what is not there and what is not for the asker look the same.
    let sees = view::may_see(&services.policy(), by, &grant.created_by, Some(&grant.org));
    if by.kind.is_some() && !sees {
        return Err(DecideError::Unknown);
    }
    may_make(services, &grant.org, grant.session.as_deref(), &grant.tool, by)?;
    let now = services.clock.now();
    if grant.is_over(now) {
        return Err(DecideError::Expired(grant.revoked_at.or(grant.expires_at).unwrap_or(now)));
    }
    if grant.command_digest != digest_of(&services.policy(), grant.command.as_deref()) {
        return Err(invalid(
            "the policy has changed or removed this command since the grant was made or requested: make or request it again",
        ));
    }
    if grant.state == GrantState::Active {
        return Ok(grant);
    }
    grant.state = GrantState::Active;
    grant.activated_by = Some(by.principal.clone());
    let expect = Expect::Version(version);
    store_grant(services, &grant, expect, ApprovalChange::GrantCreated, &by.principal).await?;
    Ok(grant)
}

pub async fn revoke(services: &Services, id: &GrantId, by: &Decider) -> Result<Grant, DecideError> {
    let _lock = services.approvals.changes.lock().await;
    let Versioned { value: mut grant, version } = grant(&*services.store, id)?.ok_or(DecideError::Unknown)?;
    let own = grant.created_by == by.principal;
    if !own && !services.policy().may_view_approvals(by, Some(&grant.org)) {
        return Err(DecideError::Unknown);
    }
    if grant.revoked_at.is_none() {
        grant.revoked_at = Some(services.clock.now());
        let expect = Expect::Version(version);
        store_grant(services, &grant, expect, ApprovalChange::GrantRevoked, &by.principal).await?;
    }
    Ok(grant)
}

/// Revokes the grants of a session.
pub(crate) async fn revoke_of(services: &Services, session: &str, by: &Principal) -> Result<(), StoreError> {
    let _lock = services.approvals.changes.lock().await;
    for Versioned { value: mut grant, version } in all(&*services.store)? {
        if grant.session.as_deref() == Some(session) && grant.revoked_at.is_none() {
            grant.revoked_at = Some(services.clock.now());
            let expect = Expect::Version(version);
            store_grant(services, &grant, expect, ApprovalChange::GrantRevoked, by).await?;
        }
    }
    Ok(())
}

/// Stores a grant with its event, and writes the receipt of the change.
async fn store_grant(
    services: &Services,
    grant: &Grant,
    expect: Expect,
    what: ApprovalChange,
    by: &Principal,
) -> Result<(), StoreError> {
    let mut step = Step::default();
    let (policy, now) = (services.policy(), services.clock.now());
    let act = put(&mut step, &policy, grant, expect, what, by.as_str(), now)?;
    step.commit(&*services.store).await?;
    audit::conclude(services, act.as_ref()).await;
    Ok(())
}

fn invalid(message: impl Into<String>) -> DecideError {
    DecideError::Invalid(Failure::new(Code::Malformed, Phase::Hold, message))
}

/// An approver may grant one tool in one session; any wider grant takes an administrator.
fn may_make(
    services: &Services,
    org: &str,
    session: Option<&str>,
    tool: &str,
    by: &Decider,
) -> Result<(), DecideError> {
    let policy = services.policy();
    let subject = match session {
        Some(session) => sessions::subject_of(&*services.store, session)?,
        None => None,
    };
    let may = match subject {
        Some(subject) if !tool.contains('*') => policy.may_decide(by, &subject, Some(org)),
        Some(_) | None => policy.may_administer(by, Some(org)),
    };
    may.map(drop).map_err(DecideError::Forbidden)
}

/// Whether this person may know of a session: who sees it, the people of its organisation, approvers, and who acts for its subject.
fn knows(policy: &Policy, by: &Decider, session: &Session) -> bool {
    let org = session.org.as_str();
    sessions::is_visible(session, policy, by, PrincipalRole::Look)
        || policy.role_in(by, org).is_some()
        || policy.may_view_approvals(by, Some(org))
        || policy.speaks_for(&by.principal, &session.subject_id)
}

/// A session that is not there and one that this person may not know of get the same answer.
fn check(services: &Services, new: &NewGrant, by: &Decider) -> Result<(), DecideError> {
    let policy = services.policy();
    if !is_tool_pattern(&new.tool) {
        return Err(invalid("a grant's `tools` must be a tool id, `<source>.*`, `*.<action>` or `*`"));
    }
    match &new.command {
        None if new.tool == COMMAND_TOOL => {
            return Err(invalid(
                "a grant for command.run covers one named command: give its name from [commands] in the policy as `command` \
                 (--command NAME); a person approves each call of a command without a name",
            ));
        }
        Some(_) if new.tool != COMMAND_TOOL => {
            return Err(invalid(
                "`command` names a command of the tool command.run; leave it out for other tools",
            ));
        }
        Some(name) if !policy.commands().any(|command| command.name == *name) => {
            let message = format!("[commands] in the policy has no command {name:?}; give one of its names");
            return Err(invalid(message));
        }
        Some(_) | None => {}
    }
    if new.calls_max == Some(0) {
        return Err(invalid("a grant must allow at least one call"));
    }
    check_reason(new.reason.as_deref())?;
    if let Some(session) = &new.session {
        ActionId::new(session.clone()).map_err(|error| invalid(format!("the session: {error}")))?;
        let known = sessions::session(&*services.store, session)?;
        let known = known.filter(|known| known.org.as_str() == new.org && knows(&policy, by, known));
        if !sessions::is_implicit(session) && known.is_none() {
            return Err(invalid(format!("{} has no session {session:?}", new.org)));
        }
    }
    if new.org.is_empty() {
        return Err(invalid("name the organisation whose spaces the grant covers"));
    }
    let org = SpaceId::new(format!("org:{}", new.org));
    org.map(drop).map_err(|error| invalid(format!("the organisation: {error}")))
}

async fn make(
    services: &Services,
    new: NewGrant,
    by: &Decider,
    state: GrantState,
) -> Result<Grant, DecideError> {
    let _lock = services.approvals.changes.lock().await;
    check(services, &new, by)?;
    let store = &*services.store;
    room(store)?;
    let asked = |grant: &&Versioned<Grant>| {
        grant.value.state == GrantState::Requested && grant.value.created_by == by.principal
    };
    if state == GrantState::Requested && all(store)?.iter().filter(asked).count() >= GRANT_REQUESTS_MAX {
        let message = format!("{GRANT_REQUESTS_MAX} of your grant requests are already pending");
        let failure = Failure::new(Code::PendingLimit, Phase::Hold, message);
        return Err(DecideError::Invalid(failure));
    }
    let grant = new_grant(&services.policy(), services.clock.now(), new, by, state);
    let what = match state {
        GrantState::Active => ApprovalChange::GrantCreated,
        GrantState::Requested => ApprovalChange::GrantRequested,
    };
    store_grant(services, &grant, Expect::Absent, what, &by.principal).await?;
    Ok(grant)
}

/// The digest of a named command as the policy has it now.
fn digest_of(policy: &Policy, command: Option<&str>) -> Option<Digest> {
    let found = policy.commands().find(|found| Some(found.name.as_str()) == command);
    found.map(NamedCommand::digest)
}

pub(super) fn new_grant(
    policy: &Policy,
    now: Timestamp,
    new: NewGrant,
    by: &Decider,
    state: GrantState,
) -> Grant {
    Grant {
        command_digest: digest_of(policy, new.command.as_deref()),
        grant_id: GrantId::fresh(),
        state,
        org: new.org,
        session: new.session,
        tool: new.tool,
        command: new.command,
        calls_max: new.calls_max,
        calls_used: 0,
        expires_at: new.expires_at,
        revoked_at: None,
        created_at: now,
        created_by: by.principal.clone(),
        activated_by: None,
        reason: new.reason,
    }
}

/// Removes ended grants, expired requests for grants, and records of use whose actions have ended. Returns how many grants.
pub(crate) async fn sweep(services: &Services) -> Result<usize, StoreError> {
    let (store, now) = (&*services.store, services.clock.now());
    let old = now.checked_sub(GRANT_REQUEST_WAIT_MAX).unwrap_or(now);
    let mut gone = 0;
    for Versioned { value: grant, version } in all(store)? {
        let waited = grant.state == GrantState::Requested && grant.created_at < old;
        if grant.is_over(now) || waited {
            let mut step = Step::default();
            step.delete(GRANTS, grant.grant_id.as_str(), Expect::Version(version))?;
            // The revocation of this grant already has its receipt.
            let act = match grant.revoked_at {
                Some(_) => None,
                None => {
                    let (policy, what) = (services.policy(), ApprovalChange::GrantEnded);
                    announce(&mut step, &policy, &grant, what, "clock", now)?
                }
            };
            match step.commit(store).await {
                Ok(_) => {
                    gone += 1;
                    audit::conclude(services, act.as_ref()).await;
                }
                Err(StoreError::VersionMismatch { .. }) => {}
                Err(error) => return Err(error),
            }
        }
    }
    for entry in entries(store, &family(USES)?, HELD_PAGE) {
        let entry = entry?;
        let over = read::<Use>(&entry).map_or(true, |used| used.value.record.at < old);
        let action = ActionId::new(entry.key)?;
        if over || store.receipt_of(&action)?.is_some() {
            ended(store, &action).await?;
        }
    }
    Ok(gone)
}
