//! Answers: who waits for which action. Callers wait for its receipt, parked actions for its end.

use std::collections::HashMap;
use std::sync::Arc;

use effectd_bus::{Store, StoreError};
use effectd_contracts::{ActionId, ApprovalId, Failure, Receipt, Redaction, Timestamp};
use parking_lot::Mutex;
use serde_json::Value;
use tokio::sync::oneshot;

use super::recent_receipts::{Known, RecentReceipts};

#[derive(Debug, Clone)]
pub enum Answer {
    /// The action has ended, and this is its receipt.
    Done(Done),
    /// The action waits for a person; its receipt follows when a person has decided, or the hold has expired.
    Held(Held),
    /// There is no receipt. Either the action was not accepted, and nothing is recorded under its id; or the runtime stopped
    /// first, which the failure then says, and the next start continues with the action.
    Refused(Failure),
}

/// What the caller of a held action gets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Held {
    pub approval_id: ApprovalId,
    /// Until when a person can decide.
    pub expires_at: Timestamp,
    pub reasons: Vec<String>,
    /// Whether other actions wait in the same hold.
    pub joined: bool,
    /// What redaction removes from the parameters before the tool sees them.
    pub redactions: Vec<Redaction>,
}

/// A receipt, and whether this request caused it.
#[derive(Debug, Clone)]
pub struct Done {
    pub receipt: Arc<Receipt>,
    /// Whether the receipt existed before this request: then nothing was done now.
    pub before: bool,
    /// The tool's whole result; `None` if the tool returned nothing, `result_gone` if the result is not kept any more. The
    /// pipeline has it only if the tool ran now; `results::fill` reads an earlier one.
    pub result: Result<Option<Arc<Value>>, Failure>,
}

impl Done {
    /// A receipt that existed before this request.
    pub fn before(receipt: Arc<Receipt>) -> Self {
        Self { receipt, before: true, result: Ok(None) }
    }
}

/// The receipt of an action, if it has ended, and the digest of its request.
pub(crate) fn ended(store: &dyn Store, action: &ActionId) -> Result<Option<Known>, StoreError> {
    let Some(stored) = store.receipt_of(action)? else {
        return Ok(None);
    };
    Ok(Some((Arc::new(stored.parse()?), stored.action_digest)))
}

struct Caller {
    sender: oneshot::Sender<Answer>,
    /// Whether the caller also wants to know that the action is held.
    or_held: bool,
}

type Waker = Box<dyn FnOnce() + Send>;

#[derive(Default)]
struct Waiting {
    callers: Vec<Caller>,
    parked: Vec<Waker>,
}

/// Everybody who waits, by action, and the receipts that answer repeated requests.
#[derive(Default)]
pub struct Answers {
    waiting: Mutex<HashMap<ActionId, Waiting>>,
    pub(crate) recent: RecentReceipts,
}

impl std::fmt::Debug for Answers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Answers({})", self.waiting.lock().len())
    }
}

impl Answers {
    /// Waits for an action's answer. Look for the receipt in the Store after this call, so that you miss none.
    pub fn wait_for(&self, action: &ActionId) -> oneshot::Receiver<Answer> {
        self.wait(action, false)
    }

    /// [`Answers::wait_for`] that also resolves when the action is held.
    pub(crate) fn wait_or_held(&self, action: &ActionId) -> oneshot::Receiver<Answer> {
        self.wait(action, true)
    }

    fn wait(&self, action: &ActionId, or_held: bool) -> oneshot::Receiver<Answer> {
        let (sender, receiver) = oneshot::channel();
        let mut all = self.waiting.lock();
        let waiting = all.entry(action.clone()).or_default();
        waiting.callers.retain(|caller| !caller.sender.is_closed());
        waiting.callers.push(Caller { sender, or_held });
        receiver
    }

    /// Answers the callers who want to know that the action is held; the others keep waiting.
    pub(crate) fn send_held(&self, action: &ActionId, held: &Held) {
        let mut all = self.waiting.lock();
        let Some(waiting) = all.get_mut(action) else {
            return;
        };
        let (answered, on): (Vec<_>, Vec<_>) =
            std::mem::take(&mut waiting.callers).into_iter().partition(|caller| caller.or_held);
        waiting.callers = on;
        drop(all);
        for caller in answered {
            drop(caller.sender.send(Answer::Held(held.clone())));
        }
    }

    /// Calls `wake` when the action has ended.
    pub(crate) fn park_behind(&self, action: &ActionId, wake: impl FnOnce() + Send + 'static) {
        self.waiting.lock().entry(action.clone()).or_default().parked.push(Box::new(wake));
    }

    pub(crate) fn send(&self, action: &ActionId, answer: &Answer) {
        let Some(waiting) = self.waiting.lock().remove(action) else {
            return;
        };
        for caller in waiting.callers {
            // A caller that has gone away needs no answer.
            drop(caller.sender.send(answer.clone()));
        }
        for wake in waiting.parked {
            wake();
        }
    }

    /// Wakes the actions that parked behind this one, without answering its callers.
    pub(crate) fn wake_parked(&self, action: &ActionId) {
        let parked = self.waiting.lock().get_mut(action).map(|waiting| std::mem::take(&mut waiting.parked));
        parked.into_iter().flatten().for_each(|wake| wake());
    }

    /// Answers callers whose action already has its receipt: a recorder may die between writing the receipt and answering.
    pub(crate) fn catch_up(&self, store: &dyn Store) {
        let waited_for: Vec<_> = self.waiting.lock().keys().cloned().collect();
        for action in waited_for {
            if let Ok(Some((receipt, _))) = ended(store, &action) {
                self.send(&action, &Answer::Done(Done::before(receipt)));
            }
        }
    }

    /// Drops everybody who waits: no answer will come any more.
    pub(crate) fn dismiss(&self) {
        let all = std::mem::take(&mut *self.waiting.lock());
        // Outside of the lock: the tickets of dropped actions give their deliveries back.
        drop(all);
    }

    /// Removes callers that have gone away.
    pub fn sweep(&self) {
        self.waiting.lock().retain(|_, waiting| {
            waiting.callers.retain(|caller| !caller.sender.is_closed());
            !waiting.callers.is_empty() || !waiting.parked.is_empty()
        });
    }
}
