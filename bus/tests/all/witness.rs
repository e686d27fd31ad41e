//! The witness: what was answered, and whether the store still has it.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use effectd_bus::testing::values::{action, family, group, receipt_id, topic};
use effectd_bus::{Body, Store, StoreError, embedded};
use effectd_contracts::SystemClock;

use crate::child::config;

/// Everything that the store acknowledged as durable to any child.
#[derive(Default, Clone)]
pub(crate) struct Witness {
    published: BTreeMap<u64, String>,
    admitted: BTreeSet<String>,
    committed: BTreeSet<String>,
    acked: BTreeSet<u64>,
    nacked: BTreeMap<u64, u32>,
    swapped: BTreeMap<String, (u64, String)>,
    failed: BTreeSet<String>,
    /// Actions whose letter someone was about to requeue or purge.
    cleared: BTreeSet<String>,
    /// Blocks that were dropped, and live records that were relocated.
    pub(crate) retained: (u64, u64),
    /// Old blocks may have been dropped.
    retains: bool,
    /// Letters that are gone, and for requeued ones the offset and the action.
    gone: BTreeMap<u64, Option<(u64, String)>>,
}

impl Witness {
    /// Of a store whose old blocks are dropped, or not.
    pub(crate) fn of(retains: bool) -> Self {
        Witness { retains, ..Witness::default() }
    }

    pub(crate) fn hear(&mut self, line: &str) {
        let words: Vec<&str> = line.split(' ').collect();
        match words.as_slice() {
            ["published", id, offset] => {
                self.published.insert(offset.parse().unwrap(), (*id).to_owned());
            }
            ["admitted", id] => drop(self.admitted.insert((*id).to_owned())),
            ["committed", id] => drop(self.committed.insert((*id).to_owned())),
            ["acked", offset] => drop(self.acked.insert(offset.parse().unwrap())),
            ["nacked", offset, count] => {
                let count: u32 = count.parse().unwrap();
                let known = self.nacked.entry(offset.parse().unwrap()).or_default();
                *known = count.max(*known);
            }
            ["swapped", name, version, value] => {
                let version = version.parse().unwrap();
                self.swapped.insert((*name).to_owned(), (version, (*value).to_owned()));
            }
            ["retained", blocks, moved] => {
                self.retained.0 += blocks.parse::<u64>().unwrap();
                self.retained.1 += moved.parse::<u64>().unwrap();
            }
            ["failed", id] => drop(self.failed.insert((*id).to_owned())),
            ["requeuing" | "purging", id] => drop(self.cleared.insert((*id).to_owned())),
            ["purged", letter] => drop(self.gone.entry(letter.parse().unwrap()).or_default()),
            ["requeued", letter, offset, id] => {
                let to = (offset.parse().unwrap(), (*id).to_owned());
                self.gone.insert(letter.parse().unwrap(), Some(to));
            }
            _ => {}
        }
    }

    pub(crate) fn heard(&self) -> usize {
        self.published.len() + self.committed.len() + self.acked.len()
    }

    /// Opens the store and checks every promise about what was answered. Errors are what a lost disk may give; a
    /// promise that is broken panics.
    pub(crate) fn check(&self, state: &Path) -> Result<(), StoreError> {
        let store = embedded::open(config(state), Arc::new(SystemClock))?;
        // Checks every checksum, the chain, and that the store serves the state of the journal.
        store.audit().wait()?;
        self.events_are_there(&store)?;
        self.receipts_are_there(&store)?;
        self.letters_are_there(&store)?;
        self.groups_did_not_go_back(&store)?;
        for (name, (version, value)) in &self.swapped {
            let entry = store.entry(&family("counters"), name)?.unwrap();
            assert!(entry.version >= *version, "{name} went back");
            if entry.version == *version {
                assert_eq!(entry.value, Body::Clear(value.clone().into_bytes()));
            }
        }
        let letters = all_letters(&store)?;
        store.close()?;
        assert_eq!(mirrored(state), letters, "the files of dead letters");
        Ok(())
    }

    fn letters_are_there(&self, store: &dyn Store) -> Result<(), StoreError> {
        let letters = all_letters(store)?;
        for (letter, requeued) in &self.gone {
            assert!(letters.iter().all(|(number, _)| number != letter), "{letter} is back");
            if let Some((offset, id)) = requeued {
                let event = &store.read(&topic("ACTION_DECISION"), *offset, 1)?.events[0];
                assert_eq!(event.action_id, Some(action(id)), "what {letter} was requeued as");
            }
        }
        for id in &self.failed {
            let found = store.receipt(&receipt_id(&format!("receipt-{id}")))?.is_some();
            assert!(found || self.retains, "{id}");
            let is_letter = letters.iter().any(|(_, of)| of == id);
            assert!(is_letter || self.cleared.contains(id), "the letter of {id} is lost");
            // It leads to its receipt, or it was requeued and waits to be run again.
            let ended = store.receipt_of(&action(id))?.is_some();
            assert!(ended || !is_letter || (self.retains && !found), "{id}");
        }
        Ok(())
    }

    fn events_are_there(&self, store: &dyn Store) -> Result<(), StoreError> {
        let mut from = self.begin_of(store, "work")?;
        let begin = from;
        let mut stored = BTreeMap::new();
        loop {
            let page = store.read(&topic("work"), from, 1_000)?;
            for event in &page.events {
                assert!(event.body.bytes().is_some_and(|body| body.iter().all(|byte| *byte == b'x')));
                let unique = stored.insert(event.event_id.to_string(), event.offset).is_none();
                assert!(unique, "{} is there twice", event.event_id);
            }
            from = page.next;
            if from == page.end {
                break;
            }
        }
        for (offset, id) in &self.published {
            if *offset < begin {
                // What nobody has acknowledged is kept, wherever the topic begins; what was acknowledged may be.
                match store.read(&topic("work"), *offset, 1) {
                    Ok(page) => assert_eq!(page.events[0].event_id.as_str(), id),
                    // Below, all that is not acknowledged is leased: what is lost of it fails there.
                    Err(StoreError::Dropped { .. }) => assert!(self.retains, "{id}"),
                    Err(error) => return Err(error),
                }
                continue;
            }
            assert_eq!(stored.get(id), Some(offset), "event {id} was answered");
        }
        Ok(())
    }

    /// Where a topic begins; only where old blocks are dropped is that not its very start.
    fn begin_of(&self, store: &dyn Store, name: &str) -> Result<u64, StoreError> {
        match store.read(&topic(name), 0, 1) {
            Err(StoreError::Dropped { begins, .. }) if self.retains => Ok(begins),
            Ok(page) if page.begin > 0 && self.retains => Ok(page.begin),
            Ok(_) => Ok(0),
            Err(error) => Err(error),
        }
    }

    fn receipts_are_there(&self, store: &dyn Store) -> Result<(), StoreError> {
        let gone = self.receipts_let_go(store)?;
        for id in self.committed.difference(&gone) {
            let receipt =
                store.receipt_of(&action(id))?.unwrap_or_else(|| panic!("the receipt of {id} was answered"));
            assert_eq!(receipt.receipt_id, receipt_id(&format!("receipt-{id}")));
        }
        let mut executed = BTreeSet::new();
        let mut from = self.begin_of(store, "ACTION_EXECUTED")?;
        loop {
            let page = store.read(&topic("ACTION_EXECUTED"), from, 1_000)?;
            for event in &page.events {
                let id = event.event_id.as_str().strip_prefix("executed-").unwrap();
                assert!(
                    self.retains || store.receipt(&receipt_id(id))?.is_some(),
                    "an event without its receipt: {id}"
                );
                executed.insert(id.to_owned());
            }
            from = page.next;
            if from == page.end {
                break;
            }
        }
        assert!(self.retains || self.committed.iter().all(|id| executed.contains(&format!("receipt-{id}"))));
        let open = store.open_intents(None, 1_000).wait()?;
        for id in self.admitted.difference(&self.committed) {
            if gone.contains(id) {
                continue;
            }
            let settled = store.receipt_of(&action(id))?.is_some();
            let intent = open.iter().find(|intent| intent.action_id == action(id));
            assert!(
                settled || intent.is_some_and(|intent| intent.intent.bytes().is_some()),
                "intent of {id}"
            );
        }
        Ok(())
    }

    /// The actions whose receipts were dropped. A worker's receipts go in the order in which they came.
    fn receipts_let_go(&self, store: &dyn Store) -> Result<BTreeSet<String>, StoreError> {
        let mut gone = BTreeSet::new();
        if !self.retains {
            return Ok(gone);
        }
        let place = |id: &str| {
            let (worker, step) = id.rsplit_once('-').unwrap();
            (worker.to_owned(), step.parse::<u32>().unwrap())
        };
        // An admitted decision may have been committed although no child got the answer.
        let open = store.open_intents(None, 1_000).wait()?;
        let mut kept: BTreeMap<String, u32> = BTreeMap::new();
        for id in self.admitted.union(&self.committed) {
            let (worker, step) = place(id);
            if store.receipt_of(&action(id))?.is_some() {
                let first = kept.entry(worker).or_insert(step);
                *first = step.min(*first);
            } else if self.committed.contains(id) || !open.iter().any(|intent| intent.action_id == action(id))
            {
                gone.insert(id.clone());
            }
        }
        for id in &gone {
            let (worker, step) = place(id);
            let first = kept.get(&worker).copied().unwrap_or(u32::MAX);
            assert!(step < first, "{id} is lost, and older ones are there");
        }
        Ok(gone)
    }

    fn groups_did_not_go_back(&self, store: &dyn Store) -> Result<(), StoreError> {
        loop {
            let leased = store.lease(&topic("work"), &group("g"), 1_000, Duration::from_secs(60)).wait()?;
            if leased.deliveries.is_empty() {
                return Ok(());
            }
            for delivery in &leased.deliveries {
                assert!(!self.acked.contains(&delivery.offset), "{} was acked", delivery.offset);
                let known = self.nacked.get(&delivery.offset).copied().unwrap_or(0);
                assert!(delivery.delivery_count > known, "deliveries of {} were forgotten", delivery.offset);
            }
        }
    }
}

/// Number and action of every dead letter.
fn all_letters(store: &dyn Store) -> Result<Vec<(u64, String)>, StoreError> {
    let (mut letters, mut from) = (Vec::new(), 0);
    loop {
        let page = store.letters(None, from, 1_000)?;
        for letter in page.letters {
            letters.push((letter.letter, letter.action_id.unwrap().to_string()));
        }
        match page.next {
            Some(next) => from = next,
            None => return Ok(letters),
        }
    }
}

/// Number and action of every dead letter, as plain tools see them.
fn mirrored(state: &Path) -> Vec<(u64, String)> {
    let path = state.join("bus/dlq/ACTION_DECISION.jsonl");
    let Ok(text) = std::fs::read_to_string(path) else {
        return Vec::new();
    };
    let letter = |line: &str| {
        let value: serde_json::Value = serde_json::from_str(line).unwrap();
        let id = value["action_id"].as_str().unwrap().to_owned();
        (value["letter"].as_u64().unwrap(), id)
    };
    text.lines().map(letter).collect()
}
