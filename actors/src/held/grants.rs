//! Pre-approvals: kept in the Store, and used up by compare-and-swap. Whether one stands in is the policy's to say, see
//! [`effectd_policy::grant`].

use std::sync::Arc;

use effectd_bus::{Expect, FamilyName, Store, StoreError};
use effectd_contracts::{
    ActionId, Approval, ApprovalData, ApprovalNews, ApprovalVerdict, Code, Failure, GrantId, Phase,
    Principal, SpaceId, SubjectId, Timestamp, ToolId, TraceId,
};
use effectd_policy::{Decider, Grant, GrantAsk, GrantState, is_tool_pattern};
use serde::{Deserialize, Serialize};

use super::acts::{self, Act, Deed};
use super::ask::Ask;
use super::decide::DecideError;
use super::entries::{At, Step, read};
use super::hold::{session_of, written};
use super::tidy::authority;
use crate::action::{Action, Asked};
use crate::limits::{GRANT_REQUEST_WAIT_MAX, GRANT_REQUESTS_MAX, GRANTS_MAX, HELD_PAGE, REASON_BYTES_MAX};
use crate::parts::Parts;

const GRANTS: &str = "grants";
/// Which pre-approval an action has used, so that it uses one call of it, however often it is delivered.
const USES: &str = "grant-uses";

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewGrant {
    pub org: String,
    /// For which session; none is the whole organisation.
    pub session: Option<String>,
    /// For which tools: an id, `<source>.*`, or `*`.
    pub tool: String,
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

pub fn grant(store: &dyn Store, id: &GrantId) -> Result<Option<At<Grant>>, StoreError> {
    let entry = store.entry(&family(GRANTS)?, id.as_str())?;
    entry.as_ref().map(read).transpose()
}

/// Pre-approvals, the oldest first, after this one.
pub fn list(
    store: &dyn Store,
    after: Option<&str>,
    max: usize,
) -> Result<(Vec<Grant>, Option<String>), StoreError> {
    let page = store.entries(&family(GRANTS)?, "", after, max)?;
    let grants = page
        .entries
        .iter()
        .map(|entry| read::<Grant>(entry).map(|at| at.value));
    Ok((grants.collect::<Result<_, _>>()?, page.after))
}

fn all(store: &dyn Store) -> Result<Vec<At<Grant>>, StoreError> {
    let (mut after, mut grants) = (None::<String>, Vec::new());
    loop {
        let page = store.entries(&family(GRANTS)?, "", after.as_deref(), HELD_PAGE)?;
        for entry in &page.entries {
            grants.push(read(entry)?);
        }
        match page.after {
            Some(next) => after = Some(next),
            None => return Ok(grants),
        }
    }
}

/// Whether there is room for another.
pub(crate) fn room(store: &dyn Store) -> Result<(), StoreError> {
    let count = all(store)?.len();
    if count >= GRANTS_MAX {
        return Err(StoreError::TooLarge {
            what: "number of grants",
            size: count + 1,
            max: GRANTS_MAX,
        });
    }
    Ok(())
}

/// Writes a pre-approval, and tells that it was. What it answers is to be concluded when the step is on disk.
pub(crate) fn put(
    step: &mut Step,
    parts: &Parts,
    grant: &Grant,
    expect: Expect,
    what: ApprovalNews,
    by: &str,
) -> Result<Option<Act>, StoreError> {
    step.put(GRANTS, grant.grant_id.as_str(), expect, grant)?;
    tell(step, parts, grant, what, by)
}

fn tell(
    step: &mut Step,
    parts: &Parts,
    grant: &Grant,
    what: ApprovalNews,
    by: &str,
) -> Result<Option<Act>, StoreError> {
    let about = ActionId::new(format!("grant:{}", grant.grant_id))?;
    let space = SpaceId::new(format!("org:{}", grant.org))?;
    let data = ApprovalData {
        grant_id: Some(grant.grant_id.clone()),
        reason: grant.reason.clone(),
        expires_at: grant.expires_at,
        ..ApprovalData::new(what, &ToolId::new(grant.tool.clone())?, by)
    };
    step.news(data, &about, &space, (&TraceId::fresh(), parts.clock.now()));
    let deed = match what {
        ApprovalNews::GrantCreated => Deed::Made,
        ApprovalNews::GrantRevoked => Deed::Revoked,
        ApprovalNews::GrantEnded => Deed::Ended,
        // These are told in the receipts of the actions they are about, or change nothing yet.
        ApprovalNews::Requested
        | ApprovalNews::Joined
        | ApprovalNews::Reopened
        | ApprovalNews::Approved
        | ApprovalNews::Denied
        | ApprovalNews::Expired
        | ApprovalNews::GrantRequested
        | ApprovalNews::GrantUsed => return Ok(None),
    };
    let act = Act::new(parts, deed, grant, &Principal::new(by)?);
    act.put(step)?;
    Ok(Some(act))
}

pub(crate) fn used(store: &dyn Store, action: &ActionId) -> Result<Option<Approval>, StoreError> {
    let known = store.entry(&family(USES)?, action.as_str())?;
    let known = known.as_ref().map(read::<Use>).transpose()?;
    Ok(known.map(|known| known.value.record))
}

/// Uses one call of a pre-approval that stands in for a person here, if there is one. An action uses one call in all.
pub(crate) async fn consume(
    parts: &Arc<Parts>,
    action: &Action<Asked>,
    ask: &Ask,
) -> Result<Option<Approval>, StoreError> {
    let decision = &action.state.ruling().decision;
    if !decision.grant_allowed {
        return Ok(None);
    }
    let (ticket, request, store) = (&action.ticket, &action.request, &*parts.store);
    let policy = parts.policy();
    let Some(org) = policy.org_of(&request.space_id) else {
        return Ok(None);
    };
    let _turn = parts.held.take().await;
    if let Some(known) = used(store, &ticket.action_id)? {
        return Ok((known.digest == written(&ask.digest)).then_some(known));
    }
    let session = session_of(&ticket.decision(request));
    let wanted = GrantAsk {
        org,
        session: &session,
        tool: &request.tool_id,
        now: parts.clock.now(),
    };
    let mut candidates = all(store)?;
    candidates.retain(|grant| grant.value.covers(decision, &wanted));
    // The narrowest first, then what ends first.
    candidates.sort_by_key(|grant| {
        let grant = &grant.value;
        let end = grant.expires_at.map_or(i64::MAX, |end| end.as_second());
        (
            grant.session.is_none(),
            grant.tool.contains('*'),
            end,
            grant.grant_id.clone(),
        )
    });
    for At {
        value: mut grant,
        version,
    } in candidates
    {
        grant.calls_used = grant.calls_used.saturating_add(1);
        let record = Approval {
            approval_id: None,
            verdict: ApprovalVerdict::Grant,
            by: format!("grant:{}", grant.grant_id),
            at: wanted.now,
            asked_at: wanted.now,
            digest: written(&ask.digest),
            authority: authority(parts),
            reason: None,
            grant_id: Some(grant.grant_id.clone()),
            edited_request_digest: None,
        };
        let mut step = Step::default();
        let by = record.by.clone();
        put(
            &mut step,
            parts,
            &grant,
            Expect::Version(version),
            ApprovalNews::GrantUsed,
            &by,
        )?;
        let used = Use {
            record: record.clone(),
        };
        step.put(USES, ticket.action_id.as_str(), Expect::Absent, &used)?;
        match step.take(store).await {
            Ok(_) => return Ok(Some(record)),
            // Somebody else was faster: the next one.
            Err(StoreError::VersionMismatch { .. }) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(None)
}

/// An action that used a pre-approval has ended.
pub(crate) async fn ended(store: &dyn Store, action: &ActionId) -> Result<(), StoreError> {
    let mut step = Step::default();
    step.delete(USES, action.as_str(), Expect::Any)?;
    step.take(store).await.map(drop)
}

/// Whether asking for a pre-approval would put it in force at once: whoever asks could make it.
pub fn would_be_in_force(parts: &Parts, new: &NewGrant, by: &Decider) -> bool {
    may_make(parts, new, by).is_ok()
}

/// Asks for a pre-approval. It is in force at once only if whoever asks could make it.
pub async fn request(parts: &Arc<Parts>, new: NewGrant, by: &Decider) -> Result<Grant, DecideError> {
    let may = would_be_in_force(parts, &new, by);
    make(
        parts,
        new,
        by,
        if may {
            GrantState::Active
        } else {
            GrantState::Requested
        },
    )
    .await
}

pub async fn create(parts: &Arc<Parts>, new: NewGrant, by: &Decider) -> Result<Grant, DecideError> {
    may_make(parts, &new, by)?;
    make(parts, new, by, GrantState::Active).await
}

/// Puts a pre-approval in force that somebody asked for.
pub async fn activate(parts: &Arc<Parts>, id: &GrantId, by: &Decider) -> Result<Grant, DecideError> {
    let _turn = parts.held.take().await;
    let At {
        value: mut grant,
        version,
    } = grant(&*parts.store, id)?.ok_or(DecideError::Unknown)?;
    let new = NewGrant {
        org: grant.org.clone(),
        session: grant.session.clone(),
        tool: grant.tool.clone(),
        calls_max: grant.calls_max,
        expires_at: grant.expires_at,
        reason: grant.reason.clone(),
    };
    may_make(parts, &new, by)?;
    if grant.state == GrantState::Active || grant.is_over(parts.clock.now()) {
        return Err(invalid("this grant is in force or over already"));
    }
    grant.state = GrantState::Active;
    grant.activated_by = Some(by.principal.clone());
    let mut step = Step::default();
    let who = by.principal.as_str();
    let act = put(
        &mut step,
        parts,
        &grant,
        Expect::Version(version),
        ApprovalNews::GrantCreated,
        who,
    )?;
    step.take(&*parts.store).await?;
    acts::conclude(parts, act.as_ref()).await;
    Ok(grant)
}

/// Takes a pre-approval back. From now on it stands in for nobody.
pub async fn revoke(parts: &Arc<Parts>, id: &GrantId, by: &Decider) -> Result<Grant, DecideError> {
    let _turn = parts.held.take().await;
    let At {
        value: mut grant,
        version,
    } = grant(&*parts.store, id)?.ok_or(DecideError::Unknown)?;
    let own = grant.created_by == by.principal;
    if !own && !parts.policy().may_look(by) {
        return Err(DecideError::Unknown);
    }
    if grant.revoked_at.is_none() {
        grant.revoked_at = Some(parts.clock.now());
        let mut step = Step::default();
        let who = by.principal.as_str();
        let act = put(
            &mut step,
            parts,
            &grant,
            Expect::Version(version),
            ApprovalNews::GrantRevoked,
            who,
        )?;
        step.take(&*parts.store).await?;
        acts::conclude(parts, act.as_ref()).await;
    }
    Ok(grant)
}

fn invalid(message: impl Into<String>) -> DecideError {
    DecideError::Invalid(Failure::new(Code::Malformed, Phase::Hold, message))
}

/// A session of one tool is an approver's to grant, everything wider an administrator's.
fn may_make(parts: &Parts, new: &NewGrant, by: &Decider) -> Result<(), DecideError> {
    let policy = parts.policy();
    let subject = new
        .session
        .as_deref()
        .and_then(|session| session.strip_prefix("agent:"));
    let subject = subject.and_then(|subject| SubjectId::new(subject).ok());
    let may = match subject {
        Some(subject) if !new.tool.contains('*') => policy.may_decide(by, &subject),
        Some(_) | None => policy.may_administer(by),
    };
    may.map(drop).map_err(DecideError::Forbidden)
}

async fn make(
    parts: &Arc<Parts>,
    new: NewGrant,
    by: &Decider,
    state: GrantState,
) -> Result<Grant, DecideError> {
    if !is_tool_pattern(&new.tool) {
        return Err(invalid("the tools of a grant are an id, `<source>.*` or `*`"));
    }
    if new.calls_max == Some(0) {
        return Err(invalid("a grant is good for at least one call"));
    }
    let too_long = |reason: &String| reason.len() > REASON_BYTES_MAX || reason.chars().any(char::is_control);
    if new.reason.as_ref().is_some_and(too_long) {
        return Err(invalid(format!(
            "a reason is printable text of at most {} bytes",
            REASON_BYTES_MAX
        )));
    }
    if let Some(session) = &new.session {
        ActionId::new(session.clone()).map_err(|error| invalid(format!("the session: {error}")))?;
    }
    let _turn = parts.held.take().await;
    let store = &*parts.store;
    room(store)?;
    let asked = |grant: &&At<Grant>| {
        grant.value.state == GrantState::Requested && grant.value.created_by == by.principal
    };
    if state == GrantState::Requested && all(store)?.iter().filter(asked).count() >= GRANT_REQUESTS_MAX {
        let message = format!("{} grants that you asked for wait already", GRANT_REQUESTS_MAX);
        let failure = Failure::new(Code::PendingLimit, Phase::Hold, message);
        return Err(DecideError::Invalid(failure));
    }
    let NewGrant {
        org,
        session,
        tool,
        calls_max,
        expires_at,
        reason,
    } = new;
    let grant = Grant {
        grant_id: GrantId::fresh(),
        state,
        org,
        session,
        tool,
        calls_max,
        calls_used: 0,
        expires_at,
        revoked_at: None,
        created_at: parts.clock.now(),
        created_by: by.principal.clone(),
        activated_by: None,
        reason,
    };
    let what = match state {
        GrantState::Active => ApprovalNews::GrantCreated,
        GrantState::Requested => ApprovalNews::GrantRequested,
    };
    let mut step = Step::default();
    let act = put(
        &mut step,
        parts,
        &grant,
        Expect::Absent,
        what,
        by.principal.as_str(),
    )?;
    step.take(store).await?;
    acts::conclude(parts, act.as_ref()).await;
    Ok(grant)
}

/// Removes pre-approvals that are over, requests that nobody granted in time, and uses whose actions have ended. Says how
/// many grants went.
pub(crate) async fn sweep(parts: &Arc<Parts>) -> Result<usize, StoreError> {
    let (store, now) = (&*parts.store, parts.clock.now());
    let old = now.checked_sub(GRANT_REQUEST_WAIT_MAX).unwrap_or(now);
    let mut gone = 0;
    for At {
        value: grant,
        version,
    } in all(store)?
    {
        let waited = grant.state == GrantState::Requested && grant.created_at < old;
        if grant.is_over(now) || waited {
            let mut step = Step::default();
            step.delete(GRANTS, grant.grant_id.as_str(), Expect::Version(version))?;
            // What was taken back has its receipt already.
            let act = match grant.revoked_at {
                Some(_) => None,
                None => tell(&mut step, parts, &grant, ApprovalNews::GrantEnded, "clock")?,
            };
            match step.take(store).await {
                Ok(_) => {
                    gone += 1;
                    acts::conclude(parts, act.as_ref()).await;
                }
                Err(StoreError::VersionMismatch { .. }) => {}
                Err(error) => return Err(error),
            }
        }
    }
    let mut after = None::<String>;
    loop {
        let page = store.entries(&family(USES)?, "", after.as_deref(), HELD_PAGE)?;
        for entry in &page.entries {
            let over = read::<Use>(entry).map_or(true, |used| used.value.record.at < old);
            let action = ActionId::new(entry.key.clone())?;
            if over || store.receipt_of(&action)?.is_some() {
                ended(store, &action).await?;
            }
        }
        match page.after {
            Some(next) => after = Some(next),
            None => return Ok(gone),
        }
    }
}
