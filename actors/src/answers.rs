//! Who waits for which action: callers at a door, and parked actions that want what another is doing.

use std::collections::HashMap;
use std::sync::Arc;

use effectd_bus::{Store, StoreError};
use effectd_contracts::{ActionId, Failure, Receipt};
use parking_lot::{Mutex, MutexGuard};
use serde_json::Value;
use tokio::sync::oneshot;

use crate::held::Held;
use crate::recent::Known;

/// What an asker gets.
#[derive(Debug, Clone)]
pub enum Answer {
    /// The action has ended, and this is its receipt.
    Done(Done),
    /// The action waits for a person; its receipt comes when somebody has decided, or nobody has in time.
    Held(Held),
    /// There is no receipt. Either the action was not taken, and nothing was recorded under its id; or, as the failure then
    /// says, the runtime stopped before its end, and the next start goes on with it.
    Refused(Failure),
}

/// A receipt, and how it came about.
#[derive(Debug, Clone)]
pub struct Done {
    /// The receipt.
    pub receipt: Arc<Receipt>,
    /// It existed before this request: nothing was done now.
    pub before: bool,
    /// What the tool answered, in full, for whoever waited while it ran. It is told once and kept nowhere.
    pub result: Option<Arc<Value>>,
}

impl Done {
    /// A receipt that was there before it was asked for.
    pub fn before(receipt: Arc<Receipt>) -> Self {
        Self {
            receipt,
            before: true,
            result: None,
        }
    }
}

/// The receipt of an action that has ended, and the digest of the request that it is of.
pub(crate) fn ended(store: &dyn Store, action: &ActionId) -> Result<Option<Known>, StoreError> {
    let Some(stored) = store.receipt_of(action)? else {
        return Ok(None);
    };
    Ok(Some((Arc::new(stored.parse()?), stored.action_digest)))
}

struct Caller {
    sender: oneshot::Sender<Answer>,
    /// Wants to be told, too, that a person must decide first.
    or_held: bool,
}

type Waker = Box<dyn FnOnce() + Send>;

#[derive(Default)]
struct Waiting {
    callers: Vec<Caller>,
    parked: Vec<Waker>,
}

/// Everybody who waits, by action. Bounded by the permits of those who wait.
#[derive(Clone, Default)]
pub struct Answers(Arc<Mutex<HashMap<ActionId, Waiting>>>);

impl std::fmt::Debug for Answers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Answers({})", self.lock().len())
    }
}

impl Answers {
    fn lock(&self) -> MutexGuard<'_, HashMap<ActionId, Waiting>> {
        self.0.lock()
    }

    /// Waits for an action's answer. Ask for the receipt in the Store after this, and nothing can be missed.
    pub fn wait_for(&self, action: &ActionId) -> oneshot::Receiver<Answer> {
        self.wait(action, false)
    }

    /// The same, or until it waits for a person.
    pub(crate) fn wait_or_held(&self, action: &ActionId) -> oneshot::Receiver<Answer> {
        self.wait(action, true)
    }

    fn wait(&self, action: &ActionId, or_held: bool) -> oneshot::Receiver<Answer> {
        let (sender, receiver) = oneshot::channel();
        let mut all = self.lock();
        let waiting = all.entry(action.clone()).or_default();
        waiting.callers.retain(|caller| !caller.sender.is_closed());
        waiting.callers.push(Caller { sender, or_held });
        receiver
    }

    /// Tells those who want to know that the action waits for a person; the others wait on.
    pub(crate) fn tell_held(&self, action: &ActionId, held: &Held) {
        let mut all = self.lock();
        let Some(waiting) = all.get_mut(action) else {
            return;
        };
        let (told, on): (Vec<_>, Vec<_>) = std::mem::take(&mut waiting.callers)
            .into_iter()
            .partition(|caller| caller.or_held);
        waiting.callers = on;
        drop(all);
        for caller in told {
            drop(caller.sender.send(Answer::Held(held.clone())));
        }
    }

    /// Runs `wake` when the action has ended.
    pub(crate) fn park_behind(&self, action: &ActionId, wake: impl FnOnce() + Send + 'static) {
        self.lock()
            .entry(action.clone())
            .or_default()
            .parked
            .push(Box::new(wake));
    }

    pub(crate) fn tell(&self, action: &ActionId, answer: &Answer) {
        let Some(waiting) = self.lock().remove(action) else {
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

    /// Wakes those who parked behind the action, without answering its callers.
    pub(crate) fn wake_parked(&self, action: &ActionId) {
        let parked = self
            .lock()
            .get_mut(action)
            .map(|waiting| std::mem::take(&mut waiting.parked));
        parked.into_iter().flatten().for_each(|wake| wake());
    }

    /// Tells those who wait for an action that has its receipt already: a recorder may die between writing and telling.
    pub(crate) fn catch_up(&self, store: &dyn Store) {
        let waited_for: Vec<_> = self.lock().keys().cloned().collect();
        for action in waited_for {
            if let Ok(Some((receipt, _))) = ended(store, &action) {
                self.tell(&action, &Answer::Done(Done::before(receipt)));
            }
        }
    }

    /// Sends everybody away: nothing will be told any more.
    pub(crate) fn dismiss(&self) {
        let all = std::mem::take(&mut *self.lock());
        // Parked actions are dropped outside of the lock: their tickets give their deliveries back.
        drop(all);
    }

    /// Forgets callers that have gone away.
    pub fn sweep(&self) {
        self.lock().retain(|_, waiting| {
            waiting.callers.retain(|caller| !caller.sender.is_closed());
            !waiting.callers.is_empty() || !waiting.parked.is_empty()
        });
    }
}
