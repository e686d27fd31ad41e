//! Takes over the claim of an action that is to end without running, and says whether the action may have run before.
//!
//! A refused action may have an open intent: it was begun, the process died, and since then the policy, the tool or the number of
//! deliveries has changed. The worker that ends it must hold its claim, and must not record that nothing happened.

use effectd_bus::{Claim, ClaimAnswer, Fence, Store, StoreError};
use effectd_contracts::ReceiptId;

use super::intent::Intent;
use crate::services::running::{Alive, Running};

pub(crate) enum Takeover {
    Held {
        fence: Fence,
        /// The action was begun before, and may have had its effect.
        begun: bool,
        /// What it was begun with, if that is known.
        intent: Option<Box<Intent>>,
        /// If it was begun: until this is dropped, no other task starts a child of the action, and none takes it over.
        alive: Option<Alive>,
    },
    Ended(ReceiptId),
    /// The id belongs to another action.
    Conflict,
    /// Not now: a child of the action is alive.
    Alive,
    /// Not now: another task is working on it.
    Busy,
}

/// Takes the claim, so that no other task can end the action.
pub(crate) async fn take_over(
    store: &dyn Store,
    running: &Running,
    claim: Claim,
) -> Result<Takeover, StoreError> {
    let id = claim.action_id.clone();
    Ok(match store.claim(claim).await? {
        ClaimAnswer::New { fence } => Takeover::Held { fence, begun: false, intent: None, alive: None },
        ClaimAnswer::OwnIntent(open) => {
            let Some(alive) = running.enter(&id) else { return Ok(Takeover::Alive) };
            let intent = open.intent.bytes().and_then(Intent::from_bytes);
            let begun = !intent.as_ref().is_some_and(|intent| intent.dry_run);
            let fence = store.take_over(&id, open.fence).await?;
            Takeover::Held { fence, begun, intent: intent.map(Box::new), alive: Some(alive) }
        }
        ClaimAnswer::Done { receipt_id } => Takeover::Ended(receipt_id),
        ClaimAnswer::Conflict { .. } => Takeover::Conflict,
        ClaimAnswer::InFlight { .. } | ClaimAnswer::ResourceBusy { .. } => Takeover::Busy,
    })
}
