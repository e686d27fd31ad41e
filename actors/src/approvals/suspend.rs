//! Suspends an action until a person decides: in a hold of its own, in the hold of an equal request, or in a reopened hold.

use effectd_bus::{Expect, LeaseId, Store, StoreError};
use effectd_contracts::{
    ActionId, ActionRequest, ApprovalChange, ApprovalData, ApprovalId, Clock, DecisionData, Preset,
    ReceiptId, Timestamp,
};
use tokio::sync::MutexGuard;

use super::hold::{Hold, HoldState, Member, Prompt, session_of};
use super::question::Question;
use super::repository::{self, Step, Versioned};
use crate::action::preview::Preview;
use crate::action::{Action, Asked};
use crate::control::items_of;
use crate::limits::HELD_MEMBERS_MAX;
use crate::services::Approvals;
use crate::settings::Settings;

#[derive(Debug)]
pub(crate) enum Suspended {
    Waits(Box<Hold>),
    /// The action was withdrawn meanwhile.
    Ended(ReceiptId),
    /// The session has too many holds.
    Full,
}

/// Locks the approvals if the action is in no hold: while the lock is held, it does not get into one. `None` if it is in a hold.
pub(crate) async fn unheld<'a>(
    approvals: &'a Approvals,
    action: &ActionId,
) -> Result<Option<MutexGuard<'a, ()>>, StoreError> {
    let lock = approvals.changes.lock().await;
    Ok(repository::hold_of(&*approvals.store, action)?.is_none().then_some(lock))
}

pub(crate) fn new_hold(
    settings: &Settings,
    now: Timestamp,
    action: &Action<Asked>,
    question: &Question,
    preview: Box<Preview>,
) -> Hold {
    let (ticket, asked) = (&action.ticket, &action.state);
    let decision = ticket.decision(&action.request);
    let time = if ticket.interactive { settings.held_interactive_max } else { settings.held_unattended_max };
    Hold {
        approval_id: ApprovalId::fresh(),
        state: HoldState::Pending,
        digest: question.digest,
        round: 1,
        because: None,
        session: session_of(&decision),
        decision,
        edited: false,
        members: vec![Member {
            action_id: ticket.action_id.clone(),
            digest: ticket.digest,
            trace_id: ticket.trace_id.clone(),
            origin: ticket.origin.clone(),
            accepted_at: ticket.accepted_at,
        }],
        asked_at: now,
        // If the clock cannot hold that time, the hold expires at once.
        expires_at: now.checked_add(time).unwrap_or(now),
        prompt: Prompt {
            decision: asked.ruling().decision.clone(),
            facts: asked.ruling().facts.clone(),
            tool_version: asked.tool().spec().version.clone(),
            stands: question.stands.clone(),
            preview: Some(preview),
            redactions: asked.ruling().redactions.clone(),
            hidden: asked.ruling().hidden.clone(),
        },
    }
}

/// Whether the session has too many holds: checked first, so that no preview is made in vain.
pub(crate) fn is_full(
    store: &dyn Store,
    settings: &Settings,
    action: &Action<Asked>,
    question: &Question,
) -> Result<bool, StoreError> {
    let session = session_of(&action.ticket.decision(&action.request));
    let full = has_no_room(repository::open_of(store, &session)?, settings, &action.request);
    // A full session can still join an open hold.
    Ok(full && repository::asked(store, &question.digest, &session)?.is_none())
}

/// Whether the request is one too many beside this many open ones: a batch counts as its items, and fits if nothing else is open.
fn has_no_room(open: usize, settings: &Settings, request: &ActionRequest) -> bool {
    let most = settings.held_per_session_max;
    open >= most || open > 0 && open + items_of(request) as usize > most
}

/// Stores a new hold or joins the hold of an equal request, and ends the delivery in the same step.
pub(crate) async fn suspend(
    approvals: &Approvals,
    settings: &Settings,
    mut new: Hold,
    lease: Option<LeaseId>,
) -> Result<Suspended, StoreError> {
    let _lock = approvals.changes.lock().await;
    let store = &*approvals.store;
    let Some(member) = new.members.first().cloned() else {
        return Err(StoreError::Invalid("an approval belongs to an action".to_owned()));
    };
    // Another copy of this action may have been suspended first.
    if let Some(known) = repository::hold_of(store, &member.action_id)?
        && known.value.state == HoldState::Pending
    {
        if let Some(lease) = lease {
            store.ack(lease).await?;
        }
        return Ok(Suspended::Waits(Box::new(known.value)));
    }
    if let Some(ended) = store.receipt_of(&member.action_id)? {
        return Ok(Suspended::Ended(ended.receipt_id));
    }
    let open = repository::asked(store, &new.digest, &new.session)?;
    let open = open.filter(|open| {
        open.value.is_open(approvals.clock.now()) && open.value.members.len() < HELD_MEMBERS_MAX
    });
    let mut step = Step::default();
    step.lease(lease);
    let (what, hold) = match open {
        Some(Versioned { value: mut hold, version }) => {
            hold.members.push(member.clone());
            step.hold(&hold, Expect::Version(version))?;
            (ApprovalChange::Joined, hold)
        }
        None => {
            let open = repository::open_of(store, &new.session)?;
            if has_no_room(open, settings, &new.decision.request) {
                return Ok(Suspended::Full);
            }
            new.round = 1;
            step.hold(&new, Expect::Absent)?;
            step.open(store, &new)?;
            (ApprovalChange::Requested, new)
        }
    };
    step.add_member(&member.action_id, &hold, Expect::Any)?;
    let by = hold.decision.principal.as_str();
    announce(&mut step, &*approvals.clock, &hold, (what, &member), by, None);
    step.commit(store).await?;
    Ok(Suspended::Waits(Box::new(hold)))
}

/// Asks again, since what was approved is not what would happen now. All members keep waiting.
pub(crate) async fn reopen(
    approvals: &Approvals,
    old: &Versioned<Hold>,
    mut new: Hold,
    why: &str,
    lease: Option<LeaseId>,
) -> Result<Hold, StoreError> {
    let _lock = approvals.changes.lock().await;
    let store = &*approvals.store;
    new.members.clone_from(&old.value.members);
    new.round = old.value.round.saturating_add(1);
    new.edited = old.value.edited;
    new.because = Some(why.to_owned());
    let mut step = Step::default();
    step.lease(lease);
    step.remove(old)?;
    step.hold(&new, Expect::Absent)?;
    step.open(store, &new)?;
    for member in &new.members {
        step.add_member(&member.action_id, &new, Expect::Any)?;
    }
    if let Some(lead) = new.lead() {
        let by = new.decision.principal.as_str();
        announce(&mut step, &*approvals.clock, &new, (ApprovalChange::Reopened, lead), by, None);
    }
    step.commit(store).await?;
    Ok(new)
}

/// Removes a withdrawn action from its hold. If it was the first member, the next one takes its place.
pub(crate) async fn leave(approvals: &Approvals, action: &ActionId) -> Result<(), StoreError> {
    let _lock = approvals.changes.lock().await;
    let store = &*approvals.store;
    let Some(Versioned { value: mut hold, version }) = repository::hold_of(store, action)? else {
        return Ok(());
    };
    if hold.decided().is_some() {
        // The decided hold is being carried out, which finds the receipt of this action.
        return Ok(());
    }
    let mut step = Step::default();
    step.remove_member(action)?;
    if let [last] = hold.members.as_slice()
        && last.action_id == *action
    {
        let by = hold.decision.principal.as_str();
        announce(&mut step, &*approvals.clock, &hold, (ApprovalChange::Withdrawn, last), by, None);
    }
    hold.members.retain(|member| member.action_id != *action);
    if !hold.members.is_empty() {
        lead_on(&mut hold);
        step.hold(&hold, Expect::Version(version))?;
    } else {
        step.close(store, &hold)?;
        step.remove(&Versioned { value: hold, version })?;
    }
    step.commit(store).await.map(drop)
}

/// Makes the first member that is left the lead.
pub(super) fn lead_on(hold: &mut Hold) {
    let Some(lead) = hold.members.first() else { return };
    let is_other = lead.action_id != hold.decision.request.action_id;
    hold.decision = decision_of(&hold.decision, lead);
    // A request to a service has the mark of its action, and no other request than the one that was shown leaves.
    let source = hold.decision.request.tool_id.source();
    if is_other
        && Preset::of(source).is_some()
        && let Some(Preview::Request(_)) = hold.prompt.preview.as_deref()
    {
        let why = "the first of these requests was withdrawn".to_owned();
        hold.prompt.preview = Some(Box::new(Preview::Unavailable(why)));
    }
    if is_other && let Some(Preview::Shown(shown)) = hold.prompt.preview.as_deref_mut() {
        shown.requests.clear();
    }
}

/// The decision with another member's request.
pub(super) fn decision_of(decision: &DecisionData, member: &Member) -> DecisionData {
    let mut decision = DecisionData { origin: member.origin.clone(), ..decision.clone() };
    let request = &mut decision.request;
    request.action_id = member.action_id.clone();
    request.trace_id = Some(member.trace_id.clone());
    request.traceparent = None;
    request.tracestate = None;
    decision
}

/// Adds the event about a hold, under the action of one member.
pub(crate) fn announce(
    step: &mut Step,
    clock: &dyn Clock,
    hold: &Hold,
    (what, member): (ApprovalChange, &Member),
    by: &str,
    reason: Option<String>,
) {
    let request = &hold.decision.request;
    let ids = hold.members.iter().map(|member| member.action_id.clone());
    let data = ApprovalData {
        approval_id: Some(hold.approval_id.clone()),
        action_ids: ids.collect(),
        subject_id: Some(request.subject_id.clone()),
        expires_at: Some(hold.expires_at),
        reason,
        ..ApprovalData::new(what, &request.tool_id, by)
    };
    let at = (&member.trace_id, clock.now());
    step.news(data, &member.action_id, &request.space_id, at);
}

#[cfg(test)]
pub(super) mod tests {
    #![allow(clippy::unwrap_used)]
    use std::sync::Arc;
    use std::time::Duration;

    use effectd_bus::{Completion, NewReceipt, memory};
    use effectd_contracts::{ActionRequest, Digest, ManualClock, Method, Origin, Status, TraceId};
    use effectd_policy::{Facts, Overlay, Policy, Preset as Rules, Source, evaluate};
    use serde_json::{Map, json};
    use tokio::time::timeout;

    use super::*;
    use crate::action::preview::RequestShown;

    pub(crate) fn hold(action: &ActionId) -> Hold {
        let at = Timestamp::UNIX_EPOCH;
        let tool = json!({
            "id": "files.delete", "caps": [], "side_effects": ["filesystem_delete"], "safety_class": "LOW",
            "risk_level": "danger", "tier": "R4",
        });
        let facts = json!({
            "principal": "user://a", "subject": "agent://a", "space": "shared:code", "now": at, "tool": tool,
        });
        let facts: Facts = serde_json::from_value(facts).unwrap();
        let [(_, text), (name, rules)] = Rules::Coding.files();
        let source = Source::new(text, [(name.to_owned(), rules.to_owned())]);
        let policy = Policy::compile(&source, &Overlay::default()).unwrap();
        let place = (facts.subject.clone(), facts.space.clone());
        let request = ActionRequest::new(action.clone(), place, (facts.tool.id.clone(), Map::new()));
        let digest = Digest::of(b"question");
        Hold {
            approval_id: ApprovalId::fresh(),
            state: HoldState::Pending,
            digest,
            round: 1,
            because: None,
            decision: DecisionData::new(request, facts.principal.clone(), Origin::Arbiter),
            edited: false,
            members: vec![Member {
                action_id: action.clone(),
                digest,
                trace_id: TraceId::fresh(),
                origin: Origin::Arbiter,
                accepted_at: at,
            }],
            session: "s".to_owned(),
            asked_at: at,
            expires_at: at.checked_add(Duration::from_secs(60)).unwrap(),
            prompt: Prompt {
                decision: evaluate(&facts, &policy),
                facts,
                tool_version: "1.0.0".to_owned(),
                stands: Vec::new(),
                preview: None,
                redactions: Vec::new(),
                hidden: Vec::new(),
            },
        }
    }

    fn approvals() -> (Approvals, Arc<dyn Store>) {
        let clock = Arc::new(ManualClock::at(Timestamp::UNIX_EPOCH));
        let store: Arc<dyn Store> = Arc::new(memory::open(clock.clone()).unwrap());
        (Approvals { store: store.clone(), clock, changes: tokio::sync::Mutex::default() }, store)
    }

    #[tokio::test]
    async fn the_second_of_two_requests_does_not_keep_the_first_mark() {
        let [first, second] = ["a", "b"].map(|id| ActionId::new(id).unwrap());
        let request = RequestShown {
            method: Method::Post,
            url: "https://api.linear.app/graphql".to_owned(),
            headers: Vec::new(),
            body: None,
            body_bytes: 0,
            digest: Digest::of(b"with the mark"),
        };
        for (tool, is_kept) in [("linear.create_issue", false), ("http.crm.request", true)] {
            let (approvals, store) = approvals();
            let asked = |action: &ActionId| {
                let mut hold = hold(action);
                hold.decision.request.tool_id = tool.parse().unwrap();
                hold.prompt.preview = Some(Box::new(Preview::Request(request.clone())));
                hold
            };
            let settings = Settings::default();
            for action in [&first, &second] {
                let suspended = suspend(&approvals, &settings, asked(action), None).await.unwrap();
                assert!(matches!(suspended, Suspended::Waits(_)), "{suspended:?}");
            }
            let preview = || {
                let hold = repository::hold_of(&*store, &second).unwrap().unwrap().value;
                (hold.decision.request.action_id, hold.prompt.preview)
            };
            assert!(
                matches!(preview(), (lead, Some(shown)) if lead == first && matches!(*shown, Preview::Request(_)))
            );
            leave(&approvals, &first).await.unwrap();
            let (lead, shown) = preview();
            assert_eq!((lead, matches!(*shown.unwrap(), Preview::Request(_))), (second.clone(), is_kept));
        }
    }

    #[test]
    fn a_batch_fits_beside_what_waits_or_waits_alone() {
        let settings = Settings { held_per_session_max: 10, ..Settings::default() };
        let mut batch = hold(&ActionId::new("b").unwrap()).decision.request;
        let item = json!({ "tool_id": "files.delete", "params": {} });
        batch.tool_id = effectd_contracts::BATCH_TOOL.parse().unwrap();
        for (items, open, is_full) in [(9, 1, false), (10, 1, true), (64, 0, false), (1, 10, true)] {
            batch.params.insert("items".to_owned(), json!(vec![item.clone(); items]));
            assert_eq!(has_no_room(open, &settings, &batch), is_full, "{items} beside {open}");
        }
    }

    #[tokio::test]
    async fn nobody_is_asked_about_an_action_that_has_ended() {
        let (approvals, store) = approvals();
        let (action, settings) = (ActionId::new("a").unwrap(), Settings::default());
        let (hold, receipt_id) = (hold(&action), ReceiptId::fresh());
        let request = &hold.decision.request;
        let receipt = NewReceipt {
            receipt_id: receipt_id.clone(),
            action_id: action.clone(),
            action_digest: hold.digest,
            tool_id: request.tool_id.clone(),
            subject_id: request.subject_id.clone(),
            space_id: request.space_id.clone(),
            status: Status::Error,
            key: None,
            params_digest: hold.digest,
            time: hold.asked_at,
            body: b"{}".to_vec(),
        };
        let ended = Completion {
            receipt,
            events: Vec::new(),
            fence: None,
            leases: Vec::new(),
            letter: None,
            retire: Vec::new(),
            disturbed: Vec::new(),
            appeared: Vec::new(),
            depends: Vec::new(),
            links: Vec::new(),
        };
        store.commit(ended).await.unwrap();
        let suspended = suspend(&approvals, &settings, hold, None).await.unwrap();
        assert!(matches!(&suspended, Suspended::Ended(id) if *id == receipt_id), "{suspended:?}");
        assert!(repository::hold_of(&*store, &action).unwrap().is_none());
        assert_eq!(repository::open_of(&*store, "s").unwrap(), 0);
    }

    #[tokio::test]
    async fn nobody_is_asked_about_an_action_while_it_is_given_up() {
        let (approvals, store) = approvals();
        let (action, settings) = (ActionId::new("a").unwrap(), Settings::default());
        let lock = unheld(&approvals, &action).await.unwrap();
        assert!(lock.is_some());
        let mut asked = std::pin::pin!(suspend(&approvals, &settings, hold(&action), None));
        assert!(timeout(Duration::ZERO, &mut asked).await.is_err());
        assert!(repository::hold_of(&*store, &action).unwrap().is_none());
        drop(lock);
        assert!(matches!(asked.await, Ok(Suspended::Waits(_))));
        assert!(unheld(&approvals, &action).await.unwrap().is_none());
    }
}
