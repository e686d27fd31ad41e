//! An action and the proof of how far it has come.
//!
//! `Action<S>` goes through the states [`Submitted`] → [`Validated`] → [`Gated`] → [`Claimed`] → [`Finished`], by way of
//! [`Asked`] if a person must decide. A state's proof has private fields, so no other crate can make one; inside this crate only
//! the stage that earns a proof makes it, which `tests/tidy` checks. So the executor cannot get an action that has not passed the
//! gate.
//!
//! ```
//! use effectd_actors::{Action, Claimed, messages::Execute};
//! fn hand_over(action: Action<Claimed>) -> Execute {
//!     action
//! }
//! ```
//!
//! The same with an action that is merely validated does not compile:
//!
//! ```compile_fail,E0308
//! use effectd_actors::{Action, Validated, messages::Execute};
//! fn hand_over(action: Action<Validated>) -> Execute {
//!     action
//! }
//! ```
//!
//! Nor can the proof be forged:
//!
//! ```compile_fail,E0451
//! use effectd_actors::Gated;
//! fn forge(passed: Gated) -> Gated {
//!     Gated { dry_run: None, ..passed }
//! }
//! ```

pub mod decisions;
pub mod plan;
pub mod preview;
pub mod proofs;
pub mod ticket;

use std::sync::Arc;

use effectd_bus::{Asker, Claim};
use effectd_contracts::{ActionRequest, Repeat};

use crate::claims::intent::Intent;
use crate::services::signer::Identity;

pub use proofs::{Asked, Claimed, Finished, Gated, Validated};
pub use ticket::Ticket;

/// An action in the state `S`.
#[derive(Debug)]
pub struct Action<S> {
    /// Who asks, how the action came in, and what it holds. Boxed, since stages move the action many times.
    pub ticket: Box<Ticket>,
    pub request: Arc<ActionRequest>,
    pub(crate) state: S,
}

/// Accepted; no stage has checked it yet.
#[derive(Debug)]
pub struct Submitted(());

impl Action<Submitted> {
    pub(crate) fn new(ticket: Ticket, request: Arc<ActionRequest>) -> Self {
        Self { ticket: Box::new(ticket), request, state: Submitted(()) }
    }
}

impl<S> Action<S> {
    /// The same action, one state further.
    pub(crate) fn advance<T>(self, earn: impl FnOnce(S) -> T) -> Action<T> {
        Action { ticket: self.ticket, request: self.request, state: earn(self.state) }
    }

    /// The asker: the Store looks up this action's idempotency key only among the keys of the same asker.
    pub(crate) fn asker(&self) -> Asker {
        Asker {
            space: self.request.space_id.clone(),
            subject: self.request.subject_id.clone(),
            principal: self.ticket.principal.clone(),
        }
    }

    /// The claim under which an action ends without running. Its intent is that of a dry run: if the process dies right after
    /// writing it, no effect is suspected.
    pub(crate) fn claim_to_end(&self, identity: &Identity) -> Claim {
        let intent = Intent {
            tool_id: self.request.tool_id.clone(),
            tool_version: String::new(),
            repeat: Repeat::Never,
            dry_run: true,
            transaction: false,
            before: None,
            contents: Vec::new(),
            items: Vec::new(),
        };
        Claim {
            action_id: self.ticket.action_id.clone(),
            action_digest: self.ticket.digest,
            asker: self.asker(),
            key: None,
            params_digest: identity.keyed(&self.request.params_digest()),
            intent: intent.to_bytes(),
            resources: Vec::new(),
            depends: Vec::new(),
            stale: None,
        }
    }

    /// Traces how far the action has come within a stage.
    pub(crate) fn step(&self, stage: &'static str) {
        tracing::trace!(parent: &self.ticket.span, stage, "step");
    }
}
