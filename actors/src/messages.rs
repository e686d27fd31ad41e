//! Every message between the stages. Casts only, in one direction.

use std::sync::Arc;

use effectd_bus::Fence;
use effectd_contracts::{Failure, Outcome, ReceiptId, SubjectId};

use crate::action::{Action, Asked, Claimed, Finished, Gated, Submitted, Ticket, Validated};
use crate::gate::Ruling;
use crate::registry::Entry;
use crate::rounds::OfSubject;

/// To the validator.
#[derive(Debug)]
pub struct Validate(pub Action<Submitted>);

/// To the gate.
#[derive(Debug)]
pub struct Judge(pub Action<Validated>);

/// To the stage for what a person must decide about.
#[derive(Debug)]
pub struct Consult(pub Action<Asked>);

/// To the idempotency stage.
#[derive(Debug)]
pub struct Settle(pub Action<Gated>);

/// To the executor. Only a claimed action can be one: see [`crate::action`].
#[derive(Debug)]
pub struct Execute(pub Action<Claimed>);

/// To the recorder: the only way out.
#[derive(Debug)]
pub enum Record {
    /// It ran.
    Ran(Box<Action<Finished>>),
    /// It was refused on its way, by whichever stage.
    Refused(Box<Refusal>),
    /// It was done before: the receipt that exists is the answer.
    Before {
        /// The action.
        action: Box<Action<()>>,
        /// The receipt.
        receipt_id: ReceiptId,
    },
    /// It ends without a receipt of its own, since its id belongs to another action or nothing could be written.
    Unrecorded {
        /// The action.
        action: Box<Action<()>>,
        /// Why.
        failure: Failure,
    },
}

impl Record {
    /// The standing of the action that ends.
    pub(crate) fn ticket(&self) -> &Ticket {
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
    /// Why.
    pub failure: Failure,
    /// How it ends.
    pub outcome: Outcome,
    /// The claim to commit under, if it holds one.
    pub fence: Option<Fence>,
    /// A dead letter goes with the receipt.
    pub dead_letter: bool,
}

/// All that is one action's.
macro_rules! of_subject {
    ($($message:ty),+) => {
        $(impl OfSubject for $message {
            fn subject(&self) -> &SubjectId {
                &self.0.request.subject_id
            }
        })+
    };
}
of_subject!(Validate, Judge, Consult, Settle, Execute);

impl OfSubject for Record {
    fn subject(&self) -> &SubjectId {
        let request = match self {
            Record::Ran(action) => &action.request,
            Record::Refused(refusal) => &refusal.action.request,
            Record::Before { action, .. } | Record::Unrecorded { action, .. } => &action.request,
        };
        &request.subject_id
    }
}
