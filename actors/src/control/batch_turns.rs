//! The turns of items: an item of a batch may be claimed early, but it runs only when those before it have ended.
//!
//! The batch says how far it is. An item that comes from the bus after a restart waits here for its batch, which comes from there, too.

use std::collections::HashMap;

use effectd_bus::ResourceName;
use effectd_contracts::Digest;
use parking_lot::Mutex;
use tokio::sync::watch;

/// Which steps of a batch may run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Allowed {
    /// None yet: the batch is not there.
    #[default]
    Nothing,
    /// Items up to this one.
    Items(u32),
    /// No further item.
    Stopped,
    /// What undoes items from this one on.
    Undo(u32),
}

/// What a step does now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Turn {
    Go,
    Wait,
    /// It never runs.
    Stop,
}

impl Allowed {
    pub(crate) fn turn(self, index: u32, undo: bool) -> Turn {
        match (self, undo) {
            (Self::Items(last), false) if index <= last => Turn::Go,
            (Self::Undo(first), true) if index >= first => Turn::Go,
            (Self::Stopped | Self::Undo(_), false) => Turn::Stop,
            (Self::Nothing | Self::Items(_), _) | (Self::Stopped | Self::Undo(_), true) => Turn::Wait,
        }
    }
}

/// The batches that are there, or that an item waits for.
#[derive(Default)]
pub(crate) struct BatchTurns(Mutex<HashMap<String, Batch>>);

#[derive(Default)]
struct Batch {
    allowed: watch::Sender<Allowed>,
    /// What the batch has claimed for all its items.
    claimed: Vec<ResourceName>,
    /// What was judged of each item when the batch was permitted.
    judged: Vec<Digest>,
}

impl BatchTurns {
    pub(crate) fn begin(&self, batch: &str, claimed: &[ResourceName], judged: &[Digest]) {
        let mut all = self.0.lock();
        let batch = all.entry(batch.to_owned()).or_default();
        (batch.claimed, batch.judged) = (claimed.to_vec(), judged.to_vec());
    }

    /// Whether an item is judged now as it was when its batch was permitted.
    pub(crate) fn is_judged_so(&self, batch: &str, index: u32, now: Digest) -> bool {
        let all = self.0.lock();
        all.get(batch).and_then(|batch| batch.judged.get(index as usize)) == Some(&now)
    }

    pub(crate) fn allow(&self, batch: &str, allowed: Allowed) {
        if let Some(batch) = self.0.lock().get(batch) {
            batch.allowed.send_replace(allowed);
        }
    }

    pub(crate) fn watch(&self, batch: &str) -> watch::Receiver<Allowed> {
        self.0.lock().entry(batch.to_owned()).or_default().allowed.subscribe()
    }

    /// The resources that an item has to claim itself: those that its batch has not claimed.
    pub(crate) fn left_to_claim(&self, batch: &str, resources: &[ResourceName]) -> Vec<ResourceName> {
        let all = self.0.lock();
        let claimed = all.get(batch).map(|batch| &batch.claimed[..]).unwrap_or_default();
        resources.iter().filter(|name| !claimed.contains(name)).cloned().collect()
    }

    pub(crate) fn end(&self, batch: &str) {
        self.0.lock().remove(batch);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn items_run_up_and_are_undone_down() {
        use Turn::{Go, Stop, Wait};
        let turns =
            |allowed: Allowed| [0, 1, 2].map(|index| (allowed.turn(index, false), allowed.turn(index, true)));
        assert_eq!(turns(Allowed::Nothing), [(Wait, Wait); 3]);
        assert_eq!(turns(Allowed::Items(1)), [(Go, Wait), (Go, Wait), (Wait, Wait)]);
        assert_eq!(turns(Allowed::Stopped), [(Stop, Wait); 3]);
        assert_eq!(turns(Allowed::Undo(1)), [(Stop, Wait), (Stop, Go), (Stop, Go)]);
    }

    #[test]
    fn an_item_claims_what_its_batch_has_not() {
        let names = |names: &[&str]| -> Vec<ResourceName> {
            names.iter().map(|name| ResourceName::new(*name).unwrap()).collect()
        };
        let (turns, item) = (BatchTurns::default(), names(&["file:s/a", "file:s/b"]));
        assert_eq!(turns.left_to_claim("b", &item), item);
        turns.begin("b", &names(&["file:s/a"]), &[Digest::of(b"judged")]);
        assert!(
            turns.is_judged_so("b", 0, Digest::of(b"judged"))
                && !turns.is_judged_so("b", 1, Digest::of(b"judged"))
        );
        assert_eq!(turns.left_to_claim("b", &item), names(&["file:s/b"]));
        turns.end("b");
        assert_eq!(turns.left_to_claim("b", &item), item);
    }
}
