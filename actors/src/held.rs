//! What waits for a person.
//!
//! An action that the policy asks a person about is put away, whole and sealed, as one entry of the Store; it gives its
//! delivery and its place back and owns no claim. What is decided about it is decided once, by a compare-and-swap on that
//! entry. A yes publishes the decision again in the same block, with the approval as evidence: the action passes every
//! stage anew under the policy of then, and the evidence answers exactly the question that was asked. A no, and the clock,
//! end it with a receipt.
//!
//! Whatever is decided and not yet carried out when a process dies is found by [`tidy::all`], at the next start.

pub(crate) mod acts;
pub mod ask;
pub mod decide;
pub mod edit;
pub mod entries;
pub mod grants;
pub mod hold;
pub mod look;
pub(crate) mod park;
pub(crate) mod stage;
pub(crate) mod tidy;

pub use decide::{Approve, DecideError, Decided, How};
pub use hold::{Held, Hold, HoldState};

use std::sync::Arc;

use tokio::sync::{Mutex, MutexGuard};

/// One at a time: people decide slowly, and whoever waits here need not try again. What is true is decided by the Store.
#[derive(Clone, Default)]
pub(crate) struct Turn(Arc<Mutex<()>>);

impl Turn {
    pub(crate) async fn take(&self) -> MutexGuard<'_, ()> {
        self.0.lock().await
    }
}
