//! The messages between stages: an [`Action`] in the state that it has proved, or the end of one. Casts only, in one direction.

use std::sync::Arc;

use effectd_bus::Fence;
use effectd_contracts::{Failure, Outcome, ReceiptId};

use crate::action::proofs::Ruling;
use crate::action::{Action, Claimed, Finished, Ticket};
use crate::registry::RegisteredTool;

/// A message that carries the ticket of an action.
pub(crate) trait Ticketed {
    fn ticket(&self) -> &Ticket;
}

impl<S> Ticketed for Action<S> {
    fn ticket(&self) -> &Ticket {
        &self.ticket
    }
}

/// To the executor. Only a claimed action can be one: see [`crate::action`].
pub type Execute = Action<Claimed>;

/// To the recorder: every action leaves the pipeline through it.
#[derive(Debug)]
pub enum Record {
    Ran(Box<Action<Finished>>),
    /// A stage refused the action.
    Refused(Box<Refusal>),
    /// The same was done before: the existing receipt is the answer.
    Before {
        action: Box<Action<()>>,
        receipt_id: ReceiptId,
    },
    /// The action ends without a receipt, since its id belongs to another action or nothing could be written.
    Unrecorded {
        action: Box<Action<()>>,
        failure: Failure,
    },
}

impl Record {
    pub(crate) fn before<S>(action: Action<S>, receipt_id: ReceiptId) -> Self {
        let action = Box::new(action.advance(|_| ()));
        Self::Before { action, receipt_id }
    }

    pub(crate) fn unrecorded<S>(action: Action<S>, failure: Failure) -> Self {
        let action = Box::new(action.advance(|_| ()));
        Self::Unrecorded { action, failure }
    }
}

impl Ticketed for Record {
    fn ticket(&self) -> &Ticket {
        match self {
            Record::Ran(action) => &action.ticket,
            Record::Refused(refusal) => &refusal.action.ticket,
            Record::Before { action, .. } | Record::Unrecorded { action, .. } => &action.ticket,
        }
    }
}

/// An action that ends without having run.
#[derive(Debug)]
pub struct Refusal {
    pub action: Action<()>,
    pub tool: Option<Arc<RegisteredTool>>,
    /// What the policy decided; `None` if a stage before the gate refused the action.
    pub ruling: Option<Ruling>,
    pub failure: Failure,
    /// The fence to commit under, if the action is claimed.
    pub fence: Option<Fence>,
    /// A dead letter is committed with the receipt.
    pub dead_letter: bool,
    /// The item because of which a batch is refused.
    pub item: Option<usize>,
}

impl Refusal {
    pub(crate) fn new<S>(action: Action<S>, failure: Failure) -> Self {
        Self {
            action: action.advance(|_| ()),
            tool: None,
            ruling: None,
            failure,
            fence: None,
            dead_letter: false,
            item: None,
        }
    }

    pub fn outcome(&self) -> Outcome {
        self.failure.code.outcome()
    }
}

impl From<Refusal> for Record {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(Box::new(refusal))
    }
}
