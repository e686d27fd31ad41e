//! Approvals: actions that wait for a person.
//!
//! An action that needs an approval is suspended: it is stored whole and sealed, as one hold. It gives back its delivery and its
//! slot, and owns no claim. A compare-and-swap on the hold lets only one decision succeed. An approval publishes the action's
//! decision again in the same block, with the approval as evidence: the action passes every stage again under the policy of that
//! time, and the evidence counts only for the question that was asked. A denial or the expiry ends the action with a receipt.
//!
//! If a process dies after a hold was decided, [`expiry::all`] carries out that decision at the next start.

pub(crate) mod audit;
pub mod decide;
pub mod edit;
pub(crate) mod expiry;
pub mod grants;
pub mod hold;
pub mod invocation;
pub mod live;
pub mod question;
pub mod rejudge;
pub mod repository;
pub mod slack;
pub(crate) mod suspend;
pub mod view;

pub use crate::services::answers::Held;
pub use decide::{Approve, DecideError, Decided, How};
pub use hold::{Hold, HoldState};
