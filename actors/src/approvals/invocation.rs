//! An invocation: an action, as the routes of its session show it. It is a view of the action's hold, intent or receipt, and its id is
//! the action's: nothing is stored that could disagree with them.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use effectd_bus::{Order, ReceiptPage, ReceiptQuery, Store, StoreError, StoredReceipt};
use effectd_contracts::connector::CONNECTOR_SOURCE;
use effectd_contracts::{
    ActionId, ConnectionId, DecisionData, DeniedReason, GrantId, InvocationBrief, InvocationStatus, Millis,
    Mode, ModeSource, OrgId, Outcome, Receipt, ReceiptId, RiskLevel, SessionId, SpaceId, Timestamp, ToolId,
};
use effectd_policy::Facts;
use serde::Serialize;
use serde_json::{Map, Value};

use super::hold::{Hold, session_of};
use super::suspend::decision_of;
use super::{expiry, repository, view};
use crate::action::decisions::published;
use crate::claims::pending::{each_intent, intent_of};
use crate::services::Services;

#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Invocation {
    pub id: ActionId,
    pub session_id: String,
    pub organization_id: Option<OrgId>,
    /// The connection that it uses.
    pub integration_id: Option<ConnectionId>,
    /// The source of the tool, and what the source calls it.
    pub integration: String,
    pub action: String,
    /// `None` if the policy was not asked, and the tool is unknown.
    pub risk_level: Option<RiskLevel>,
    pub mode: Option<Mode>,
    pub mode_source: Option<ModeSource>,
    /// Without secrets and personal data. As the receipt shows them once there is one.
    pub params: Map<String, Value>,
    pub status: InvocationStatus,
    pub error: Option<String>,
    pub denied_reason: Option<DeniedReason>,
    pub duration_ms: Option<Millis>,
    /// Who approved or denied it.
    pub approved_by: Option<String>,
    pub approved_at: Option<Timestamp>,
    pub completed_at: Option<Timestamp>,
    pub expires_at: Option<Timestamp>,
    pub created_at: Timestamp,
    pub receipt_id: Option<ReceiptId>,
    pub grant_id: Option<GrantId>,
}

/// The invocation of an action; `None` if there is no such action, or its request named no tool or was invalid.
pub async fn find(services: &Services, id: &ActionId) -> Result<Option<Invocation>, StoreError> {
    find_own(services, id, |_| true).await
}

/// [`find`] in one session. The search for an invocation of another session takes the same steps as the search for an unknown one, so
/// the time of the answer does not show that it exists.
pub async fn find_in(
    services: &Services,
    session: &str,
    id: &ActionId,
) -> Result<Option<Invocation>, StoreError> {
    find_own(services, id, |found| found.session_id == session).await
}

async fn find_own(
    services: &Services,
    id: &ActionId,
    is_own: impl Fn(&Invocation) -> bool,
) -> Result<Option<Invocation>, StoreError> {
    let store = &*services.store;
    let receipt = store.receipt_of(id)?;
    if let Some(receipt) = &receipt
        && let Some(found) = by_receipt(store, id, receipt)?.filter(&is_own)
    {
        return Ok(Some(found));
    }
    let has_begun = intent_of(store, id).await?.is_some();
    let unended = if receipt.is_none() { unended(services, id, has_begun)? } else { None };
    // Its receipt may have come meanwhile, and its hold be gone.
    let found = store.receipt_of(id)?.map_or(Ok(unended), |receipt| by_receipt(store, id, &receipt))?;
    Ok(found.filter(is_own))
}

fn by_receipt(
    store: &dyn Store,
    id: &ActionId,
    stored: &StoredReceipt,
) -> Result<Option<Invocation>, StoreError> {
    let receipt = stored.parse()?;
    // The receipt of another action, which answers this one, has that action's session: it is not for readers of this one.
    let session = if receipt.action_id == *id {
        receipt.session_id.as_ref().map(ToString::to_string)
    } else {
        let own = published(store, id)?.and_then(|published| published.event);
        own.map(|event| session_of(&event.data))
    };
    Ok(ended(id, &receipt, session))
}

/// The invocation of an action without a receipt.
fn unended(services: &Services, id: &ActionId, has_begun: bool) -> Result<Option<Invocation>, StoreError> {
    let store = &*services.store;
    if let Some(hold) = repository::hold_of(store, id)? {
        return Ok(held(services, id, &hold.value, has_begun));
    }
    let event = published(store, id)?.and_then(|published| published.event);
    Ok(event.and_then(|event| open(services, &event.data, Outcome::Executing, event.time)))
}

/// Which invocations are listed.
#[derive(Debug, Clone)]
pub struct Wanted {
    pub orgs: Vec<OrgId>,
    /// Only those of this session.
    pub session: Option<SessionId>,
    pub status: Option<InvocationBrief>,
    pub limit: usize,
    /// How many are left out, from the newest on.
    pub offset: usize,
}

/// A page of invocations: first those that have not ended, then the others, each the newest first; and how many there are in all, which
/// is counted for organisations only. Blocks.
pub fn list(services: &Services, wanted: &Wanted) -> Result<(Vec<Invocation>, Option<u64>), StoreError> {
    let (store, pending) = (&*services.store, InvocationBrief::Pending);
    let is_wanted = |status: InvocationBrief| wanted.status.is_none_or(|wanted| wanted == status);
    let (mut page, open) = if is_wanted(pending) { unended_page(services, wanted)? } else { (Vec::new(), 0) };
    let mut total = wanted.session.is_none().then_some(open as u64);
    if let Some(total) = &mut total {
        for status in InvocationBrief::ALL.into_iter().filter(|status| is_wanted(*status)) {
            for org in &wanted.orgs {
                *total += store.invocations(org, status)?;
            }
        }
    }
    let skip = wanted.offset.saturating_sub(open);
    if wanted.status != Some(pending) {
        add_ended(store, wanted, skip, &mut page)?;
    }
    Ok((page, total))
}

/// Receipts that are read at once.
const RECEIPTS_PAGE: usize = 100;
/// Most pages of receipts that one list reads of an organisation: requests that made no invocation have receipts, too, and one list must
/// not read them all.
const RECEIPT_PAGES_MAX: usize = 200;

/// Adds invocations by their receipts, the newest of all organisations first, until the page is full.
fn add_ended(
    store: &dyn Store,
    wanted: &Wanted,
    skip: usize,
    page: &mut Vec<Invocation>,
) -> Result<(), StoreError> {
    let room = wanted.limit.saturating_sub(page.len());
    if room == 0 {
        return Ok(());
    }
    let newest = newest_ended(wanted, skip + room, |query| store.receipts(query))?;
    for id in newest.values().rev().skip(skip) {
        // Retention may have dropped it since.
        let Some(stored) = store.receipt(id)? else { continue };
        page.extend(of_receipt(&stored.action_id, &stored.parse()?));
    }
    Ok(())
}

/// The receipts of the newest invocations of all organisations together, by their ordinals.
fn newest_ended(
    wanted: &Wanted,
    max: usize,
    read: impl Fn(&ReceiptQuery) -> Result<ReceiptPage, StoreError>,
) -> Result<BTreeMap<u64, ReceiptId>, StoreError> {
    let mut newest = BTreeMap::new();
    for org in &wanted.orgs {
        let mut query = ReceiptQuery {
            org: Some(org.clone()),
            session: wanted.session.clone(),
            invocation: wanted.status,
            order: Order::NewestFirst,
            limit: RECEIPTS_PAGE,
            ..ReceiptQuery::default()
        };
        for _ in 0..RECEIPT_PAGES_MAX {
            let found = read(&query)?;
            for stored in found.receipts {
                if stored.parse()?.outcome.project().invocation.is_some() {
                    newest.insert(stored.ordinal, stored.receipt_id);
                }
            }
            while newest.len() > max {
                newest.pop_first();
            }
            // Of an organisation whose others are older than all of these, no more is read.
            let oldest = newest.keys().next().copied().filter(|_| newest.len() == max);
            query.cursor = found.cursor.filter(|cursor| oldest.is_none_or(|oldest| cursor.0 > oldest));
            if query.cursor.is_none() {
                break;
            }
        }
    }
    Ok(newest)
}

/// A page of what waits for an approval and what runs, the newest first; and how much there is. Of what waits in an organisation, only
/// the page is opened.
fn unended_page(services: &Services, wanted: &Wanted) -> Result<(Vec<Invocation>, usize), StoreError> {
    let (store, policy) = (&*services.store, services.policy());
    let is_of_org = |space: &SpaceId| {
        policy.org_of(space).is_some_and(|org| wanted.orgs.iter().any(|wanted| wanted.as_str() == org))
    };
    let mut found = BTreeMap::new();
    if let Some(session) = &wanted.session {
        let open: BTreeSet<_> = repository::open_in(store, session.as_str())?.into_iter().collect();
        for id in open {
            let members = repository::hold(store, &id)?.into_iter().flat_map(|hold| hold.value.members);
            found.extend(members.map(|member| (member.action_id, member.accepted_at)));
        }
    } else {
        for space in wanted.orgs.iter().flat_map(|org| policy.spaces_of(org.as_str())) {
            found.extend(repository::held_in(store, space)?.into_iter().flat_map(|(_, actions)| actions));
        }
    }
    let mut begun = Vec::new();
    each_intent(store, |intent| {
        if is_of_org(&intent.space) {
            begun.push(intent.action_id);
        }
    })?;
    let mut running = BTreeMap::new();
    for id in begun {
        let is_of = |one: &Invocation| wanted.session.as_ref().is_none_or(|id| one.session_id == id.as_str());
        if let Some(one) = unended(services, &id, true)?.filter(is_of) {
            found.insert(id.clone(), one.created_at);
            running.insert(id, one);
        }
    }
    let mut open = Vec::new();
    for (id, at) in found {
        // It may have ended since.
        if store.receipt_of(&id)?.is_none() {
            open.push((Reverse(at), id));
        }
    }
    open.sort();
    let (mut page, size) = (Vec::new(), open.len());
    for (_, id) in open.into_iter().skip(wanted.offset).take(wanted.limit) {
        let one = running.remove(&id).map_or_else(|| unended(services, &id, false), |one| Ok(Some(one)));
        // One hold that cannot be read does not hide the others.
        if let Err(error @ StoreError::Damaged { .. }) = &one {
            tracing::error!(%error, action_id = %id, "a hold cannot be read");
            continue;
        }
        page.extend(one?);
    }
    Ok((page, size))
}

/// What an invocation says whose server has answered that the tool failed.
const TOOL_FAILED: &str = "the server has answered that the tool failed; its words are in the result";

/// The invocation of an action that this receipt answers; `None` as in [`find`].
pub fn of_receipt(id: &ActionId, receipt: &Receipt) -> Option<Invocation> {
    ended(id, receipt, receipt.session_id.as_ref().map(ToString::to_string))
}

fn ended(id: &ActionId, receipt: &Receipt, session: Option<String>) -> Option<Invocation> {
    let projected = receipt.outcome.project();
    let (source, action) = ToolId::split(receipt.tool_id.as_str());
    let decision = receipt.decision.as_ref();
    let facts = decision.and_then(|decision| Facts::from_record(decision).ok());
    let approval = receipt.approval.as_ref();
    let is_of_connector = source.starts_with(CONNECTOR_SOURCE);
    // The server has answered, so the action is done; whoever asked has not got what the tool is for.
    let has_failed = is_of_connector && receipt.outputs.get("isError") == Some(&Value::Bool(true));
    Some(Invocation {
        id: id.clone(),
        session_id: session.unwrap_or_else(|| format!("agent:{}", receipt.subject_id)),
        organization_id: receipt.org.clone(),
        integration: source.to_owned(),
        action: action.to_owned(),
        risk_level: facts.as_ref().map(|facts| facts.tool.risk_level),
        integration_id: facts.and_then(|facts| facts.connection_id).filter(|_| !is_of_connector),
        mode: decision.and_then(|decision| decision.mode),
        mode_source: decision.and_then(|decision| decision.mode_source),
        params: receipt.inputs.clone(),
        status: if has_failed { InvocationStatus::Failed } else { projected.invocation? },
        error: match &receipt.error {
            Some(failure) => Some(failure.message.clone()),
            None => has_failed.then(|| TOOL_FAILED.to_owned()),
        },
        denied_reason: projected.brief.and_then(|(_, reason)| reason),
        duration_ms: Some(receipt.timing.total_ms),
        approved_by: approval.map(|approval| approval.by.clone()),
        approved_at: approval.map(|approval| approval.at),
        completed_at: Some(receipt.timing.ended_at),
        expires_at: None,
        created_at: receipt.timing.started_at,
        receipt_id: Some(receipt.receipt_id.clone()),
        grant_id: approval.and_then(|approval| approval.grant_id.clone()),
    })
}

fn held(services: &Services, id: &ActionId, hold: &Hold, has_begun: bool) -> Option<Invocation> {
    let member = hold.member(id)?;
    let approval = hold.decided();
    // It is denied or expired; its receipt follows.
    let refused = approval.filter(|_| !has_begun && !hold.is_approved());
    let refused = refused.map(|approval| expiry::failure(hold, approval));
    let outcome = match (&refused, approval) {
        (Some(failure), _) => failure.code.outcome(),
        (None, _) if has_begun => Outcome::Executing,
        (None, Some(_)) => Outcome::Approved,
        (None, None) => Outcome::AwaitingApproval,
    };
    let decision = decision_of(&hold.decision, member);
    let is_of_connector = decision.request.tool_id.source().starts_with(CONNECTOR_SOURCE);
    Some(Invocation {
        error: refused.map(|failure| failure.message),
        integration_id: hold.prompt.facts.connection_id.clone().filter(|_| !is_of_connector),
        mode: hold.prompt.decision.mode,
        mode_source: hold.prompt.decision.mode_source,
        approved_by: approval.map(|approval| approval.by.clone()),
        approved_at: approval.map(|approval| approval.at),
        expires_at: Some(hold.expires_at),
        grant_id: approval.and_then(|approval| approval.grant_id.clone()),
        ..open(services, &decision, outcome, member.accepted_at)?
    })
}

/// An action without a receipt.
fn open(
    services: &Services,
    decision: &DecisionData,
    outcome: Outcome,
    created_at: Timestamp,
) -> Option<Invocation> {
    let (request, registry) = (&decision.request, services.registry());
    let (source, action) = ToolId::split(request.tool_id.as_str());
    let projected = outcome.project();
    Some(Invocation {
        id: request.action_id.clone(),
        session_id: session_of(decision),
        organization_id: services.org_of(&request.space_id),
        integration_id: None,
        integration: source.to_owned(),
        action: action.to_owned(),
        risk_level: registry.get(&request.tool_id).map(|tool| tool.spec().level()),
        mode: None,
        mode_source: None,
        params: view::shown(&registry, &services.policy(), request),
        status: projected.invocation?,
        error: None,
        denied_reason: projected.brief.and_then(|(_, reason)| reason),
        duration_ms: None,
        approved_by: None,
        approved_at: None,
        completed_at: None,
        expires_at: None,
        created_at,
        receipt_id: None,
        grant_id: None,
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::cell::Cell;

    use effectd_bus::Cursor;
    use effectd_contracts::Digest;

    use super::*;

    #[test]
    fn many_organisations_cost_little_more_than_one() {
        let body = include_bytes!("../../../contracts/tests/golden/receipt.json").to_vec();
        let receipt: Receipt = serde_json::from_slice(&body).unwrap();
        let stored = StoredReceipt {
            ordinal: 0,
            stored_at: Timestamp::UNIX_EPOCH,
            receipt_id: receipt.receipt_id,
            action_id: receipt.action_id,
            action_digest: Digest::of(b""),
            tool_id: receipt.tool_id,
            subject_id: receipt.subject_id,
            space_id: receipt.space_id,
            status: receipt.status,
            params_digest: Digest::of(b""),
            time: Timestamp::UNIX_EPOCH,
            body,
        };
        let orgs: Vec<_> = (0..10).map(|n| OrgId::new(format!("org-{n}")).unwrap()).collect();
        let wanted = Wanted { orgs, session: None, status: None, limit: 100, offset: 200 };
        let pages = Cell::new(0);
        // Each organisation has every tenth receipt.
        let read = |query: &ReceiptQuery| {
            pages.set(pages.get() + 1);
            let org = wanted.orgs.iter().position(|org| query.org.as_ref() == Some(org)).unwrap() as u64;
            let end = query.cursor.map_or(3_000, |Cursor(at)| at);
            let own = (0..end).rev().filter(|ordinal| ordinal % 10 == org).take(query.limit);
            let receipts: Vec<_> = own.map(|ordinal| StoredReceipt { ordinal, ..stored.clone() }).collect();
            let cursor = receipts.last().map(|last| Cursor(last.ordinal)).filter(|last| last.0 >= 10);
            Ok(ReceiptPage { receipts, cursor })
        };
        let newest = newest_ended(&wanted, 300, read).unwrap();
        assert!(newest.keys().copied().eq(2_700..3_000), "{newest:?}");
        assert!(pages.get() < 20, "three pages of each would be 30: {}", pages.get());
    }
}
