//! Gets hold of an action that is to end without running, and tells whether it may have run before.
//!
//! An action that is refused on its way may have an open intent: it was begun, the process died, and meanwhile the policy,
//! the tool or the patience with it has changed. Whoever ends it then must hold its claim, and must not say that nothing
//! has happened.

use effectd_bus::{Claim, ClaimAnswer, Fence, StoreError};
use effectd_contracts::{ReceiptId, Repeat};

use crate::action::Action;
use crate::intent::Intent;
use crate::parts::Parts;

/// How an action stands that is to end.
#[derive(Debug)]
pub(crate) enum Seized {
    Held {
        fence: Fence,
        /// It was begun before, and may have had its effect.
        begun: bool,
    },
    Ended(ReceiptId),
    /// Its id belongs to another action.
    Conflict,
    /// Not now: its child lives.
    Alive,
    /// Not now: somebody else is ending it.
    Busy,
}

/// Gets hold of the action's claim, so that nobody else can end it.
pub(crate) async fn seize<S>(parts: &Parts, action: &Action<S>) -> Result<Seized, StoreError> {
    // Should the process die right after this, the next one finds an intent that says: nothing was to happen.
    let intent = Intent {
        tool_id: action.request.tool_id.clone(),
        tool_version: String::new(),
        repeat: Repeat::Never,
        dry_run: true,
        before: None,
        contents: Vec::new(),
    };
    let claim = Claim {
        action_id: action.ticket.action_id.clone(),
        action_digest: action.ticket.digest,
        asker: action.asker(),
        key: None,
        params_digest: parts.identity.keyed(&action.request.params_digest()),
        intent: intent.to_bytes(),
        resources: Vec::new(),
        depends: Vec::new(),
    };
    Ok(match parts.store.claim(claim).await? {
        ClaimAnswer::New { fence } => Seized::Held { fence, begun: false },
        ClaimAnswer::OwnIntent(_) if parts.running.has_child(&action.ticket.action_id) => Seized::Alive,
        ClaimAnswer::OwnIntent(open) => {
            let intent = open.intent.bytes().and_then(Intent::from_bytes);
            let begun = !intent.is_some_and(|intent| intent.dry_run);
            let fence = parts
                .store
                .take_over(&action.ticket.action_id, open.fence)
                .await?;
            Seized::Held { fence, begun }
        }
        ClaimAnswer::Done { receipt_id } => Seized::Ended(receipt_id),
        ClaimAnswer::Conflict { .. } => Seized::Conflict,
        ClaimAnswer::InFlight { .. } | ClaimAnswer::ResourceBusy { .. } => Seized::Busy,
    })
}
