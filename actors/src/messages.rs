//! What stages hand to each other: an [`Action`] in the state that it has proved, or its end. Casts only, in one direction.

use std::sync::Arc;

use effectd_bus::Fence;
use effectd_contracts::{Failure, Outcome, ReceiptId};

use crate::action::{Action, Claimed, Finished, Ticket};
use crate::gate::Ruling;
use crate::registry::Entry;
use crate::stage::Ticketed;

/// To the executor. Only a claimed action can be one: see [`crate::action`].
pub type Execute = Action<Claimed>;

/// To the recorder: the only way out.
#[derive(Debug)]
pub enum Record {
    Ran(Box<Action<Finished>>),
    /// It was refused on its way, by whichever stage.
    Refused(Box<Refusal>),
    /// It was done before: the receipt that exists is the answer.
    Before {
        action: Box<Action<()>>,
        receipt_id: ReceiptId,
    },
    /// It ends without a receipt of its own, since its id belongs to another action or nothing could be written.
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
    /// The action, as far as it came; its state does not matter any more.
    pub action: Action<()>,
    /// The tool, if there is one.
    pub tool: Option<Arc<Entry>>,
    /// What the policy said, if it was asked.
    pub ruling: Option<Ruling>,
    pub failure: Failure,
    /// The claim to commit under, if it holds one.
    pub fence: Option<Fence>,
    /// A dead letter goes with the receipt.
    pub dead_letter: bool,
}

impl Refusal {
    /// Neither tool nor ruling, claim nor dead letter.
    pub(crate) fn new<S>(action: Action<S>, failure: Failure) -> Self {
        Self {
            action: action.advance(|_| ()),
            tool: None,
            ruling: None,
            failure,
            fence: None,
            dead_letter: false,
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
