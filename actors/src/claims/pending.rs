//! Pending actions: decisions on the bus and intents, without a receipt.

use std::collections::BTreeSet;

use effectd_bus::limits::PAGE_ITEMS_MAX;
use effectd_bus::{Fence, OpenIntent, Store, StoreError};
use effectd_contracts::{ActionId, DecisionData, Event, SpaceId, SubjectId, ToolId, Topic, json, limits};
use serde::Serialize;

use crate::limits::OPEN_LOOKED_AT_MAX;
use crate::services::group;

/// Intents in one page.
const INTENTS: usize = 500;

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct OpenDecision {
    pub action_id: ActionId,
    pub tool_id: ToolId,
    pub subject_id: SubjectId,
    /// Whether the action has an intent: then its effect may have happened.
    pub begun: bool,
}

/// The decisions before an offset that have not ended, in spaces that `is_wanted` accepts, oldest first; reads at most
/// [`OPEN_LOOKED_AT_MAX`] decisions.
pub fn open_decisions(
    store: &dyn Store,
    (before, max): (u64, usize),
    is_wanted: impl Fn(&SpaceId) -> bool,
) -> Result<Vec<OpenDecision>, StoreError> {
    let (topic, group) = (Topic::ActionDecision.into(), group()?);
    let mut begun = BTreeSet::new();
    each_intent(store, |intent| {
        begun.insert(intent.action_id);
    })?;
    let groups = store.groups(&topic).wait()?;
    let found = groups.iter().find(|info| info.group == group);
    let mut at = found.map_or(0, |info| info.committed);
    let end = before.min(at.saturating_add(OPEN_LOOKED_AT_MAX));
    let mut open = Vec::new();
    while at < end && open.len() < max {
        let page = store.read(&topic, at, PAGE_ITEMS_MAX)?;
        if page.events.is_empty() {
            break;
        }
        for event in page.events {
            at += 1;
            let decision = event.body.bytes().and_then(|body| {
                json::parse_stored::<Event<DecisionData>>(body, 2 * limits::REQUEST_BYTES_MAX).ok()
            });
            let Some(decision) = decision else { continue };
            let request = decision.data.request;
            let is_left_out = at > end || open.len() == max || !is_wanted(&request.space_id);
            if is_left_out || store.receipt_of(&request.action_id)?.is_some() {
                continue;
            }
            open.push(OpenDecision {
                begun: begun.contains(&request.action_id),
                action_id: request.action_id,
                tool_id: request.tool_id,
                subject_id: request.subject_id,
            });
        }
    }
    Ok(open)
}

/// The newest fence of an open intent.
pub fn last_fence(store: &dyn Store) -> Result<Option<Fence>, StoreError> {
    let mut last = None;
    each_intent(store, |intent| last = last.max(Some(intent.fence)))?;
    Ok(last)
}

/// Blocks.
pub(crate) fn each_intent(store: &dyn Store, mut each: impl FnMut(OpenIntent)) -> Result<(), StoreError> {
    let mut after = None;
    loop {
        let page = store.open_intents(after, INTENTS).wait()?;
        let Some(last) = page.last() else { return Ok(()) };
        after = Some(last.fence);
        page.into_iter().for_each(&mut each);
    }
}

pub(crate) async fn intent_of(
    store: &dyn Store,
    action: &ActionId,
) -> Result<Option<OpenIntent>, StoreError> {
    let mut after = None;
    loop {
        let mut page = store.open_intents(after, INTENTS).await?;
        if let Some(at) = page.iter().position(|open| open.action_id == *action) {
            return Ok(Some(page.swap_remove(at)));
        }
        match page.last() {
            Some(last) => after = Some(last.fence),
            None => return Ok(None),
        }
    }
}
