//! Decisions of waiting callers, which may not be on disk yet.

use std::collections::HashMap;
use std::sync::Arc;

use effectd_contracts::{ActionId, ActionRequest, Contract, DecisionData, Origin, Principal};
use parking_lot::Mutex;

#[derive(Debug, Clone)]
pub struct Incoming {
    pub request: Arc<ActionRequest>,
    /// Who asked, according to the operating system.
    pub principal: Principal,
    pub origin: Origin,
    /// What the plan requires beside the request.
    pub contract: Option<Contract>,
    /// Whether the caller waits at a terminal: then an approver is expected within minutes.
    pub interactive: bool,
}

impl Incoming {
    pub(crate) fn into_decision(self) -> DecisionData {
        DecisionData {
            contract: self.contract,
            interactive: self.interactive,
            ..DecisionData::new(Arc::unwrap_or_clone(self.request), self.principal, self.origin)
        }
    }
}

type Waiting = Arc<Mutex<HashMap<ActionId, Vec<Arc<Incoming>>>>>;

/// The decisions of all waiting callers, by action. Each is added when it has its slot.
#[derive(Default)]
pub(crate) struct Callers(Waiting);

/// One waiting caller. Dropping it removes its decision.
pub(crate) struct Caller {
    all: Waiting,
    incoming: Arc<Incoming>,
}

impl Callers {
    pub(crate) fn enter(&self, incoming: &Arc<Incoming>) -> Caller {
        let id = incoming.request.action_id.clone();
        self.0.lock().entry(id).or_default().push(incoming.clone());
        Caller { all: self.0.clone(), incoming: incoming.clone() }
    }

    /// A waiting caller's decision for this action, if it `fits`.
    pub(crate) fn find(&self, action: &ActionId, fits: impl Fn(&Incoming) -> bool) -> Option<Arc<Incoming>> {
        let all = self.0.lock();
        let found = all.get(action)?.iter().find(|incoming| fits(incoming));
        found.cloned()
    }
}

impl Drop for Caller {
    fn drop(&mut self) {
        let mut all = self.all.lock();
        let id = &self.incoming.request.action_id;
        if let Some(same) = all.get_mut(id) {
            same.retain(|other| !Arc::ptr_eq(other, &self.incoming));
            if same.is_empty() {
                all.remove(id);
            }
        }
    }
}
