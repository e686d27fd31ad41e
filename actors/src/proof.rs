//! Checking a log: by its own store, through the daemon, or from a bundle far away from both.
//!
//! The checker is given entries in order and says what is wrong with which. It needs no store and keeps a bounded amount in
//! memory, so that any log can be checked. What it finds: an entry that is not what its hash says, a receipt or key that
//! nobody signed, entries that are missing, out of order or cut off at the end, a body that was cut out though the head says
//! that it is kept, a tree that is not the one that was signed, and intents without a receipt.

use std::collections::BTreeMap;

use effectd_contracts::digest::unhex;
use effectd_contracts::merkle::{self, Frontier};
use effectd_contracts::{
    ActionId, Digest, InclusionProof, KeyEntry, LogEntry, LogHead, LogLine, Signature, canonical,
};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::identity::{SignatureInvalid, key_id, text_of, verify_text};
use crate::limits::{FINDINGS_MAX, HEADS_MAX, KEYS_MAX, OPEN_MAX};

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finding {
    /// The first entry that it is about; none if it is about the whole.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub entry: Option<u64>,
    pub what: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Report {
    pub ok: bool,
    /// The first entry that was looked at.
    pub from: u64,
    /// How many entries the log has.
    pub size: u64,
    /// The root that comes out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub root: Option<Digest>,
    /// Receipts whose signatures were checked.
    pub receipts: u64,
    pub intents: u64,
    /// Intents without a receipt yet, by the head's own count.
    pub open: u64,
    /// Entries whose bodies retention has dropped: their place is proved, their content is not there to be checked.
    pub gone: u64,
    /// The first entry whose body is kept, by the head: none from here on may be missing.
    pub kept_from: u64,
    pub amendments: u64,
    /// Signed heads that the log was compared with.
    pub heads: u64,
    /// The keys that signed, in order.
    pub keys: Vec<String>,
    /// What is wrong; the first [`FINDINGS_MAX`].
    pub findings: Vec<Finding>,
    /// How many things are wrong in all.
    pub findings_total: u64,
}

/// The keys of a log, each signed by the one before it.
#[derive(Debug, Clone, Default)]
struct Chain(Vec<(String, [u8; 32])>);

impl Chain {
    fn position(&self, id: &str) -> Option<usize> {
        self.0.iter().position(|(known, _)| known == id)
    }

    /// Takes a key on, or finds it again; its place among the keys.
    fn admit(&mut self, entry: &KeyEntry) -> Result<usize, &'static str> {
        let public: Option<[u8; 32]> = unhex(&entry.public_key).and_then(|bytes| bytes.try_into().ok());
        let public = public.ok_or("a key that is none")?;
        if entry.key_id != key_id(&public) {
            return Err("a key under another key's name");
        }
        if let Some(known) = self.position(&entry.key_id) {
            return Ok(known);
        }
        if self.0.len() >= KEYS_MAX {
            return Err("a key more than a log may have");
        }
        let bare = KeyEntry {
            signatures: Vec::new(),
            ..entry.clone()
        };
        let text = text_of(&bare);
        let by = |key: &[u8; 32]| {
            entry
                .signatures
                .iter()
                .any(|one| verify_text(&text, one, key).is_ok())
        };
        if !by(&public) {
            return Err("a key that does not sign for itself");
        }
        let before = self.0.last().cloned();
        self.0.push((entry.key_id.clone(), public));
        match before {
            None if entry.previous.is_none() => Ok(0),
            Some((id, old)) if entry.previous.as_ref() == Some(&id) && by(&old) => Ok(self.0.len() - 1),
            None | Some(_) => Err("a key that the one before it did not sign"),
        }
    }

    /// Whether this key is among them, by its name or as a whole.
    fn has(&self, trusted: &str) -> bool {
        let whole = unhex(trusted);
        self.0
            .iter()
            .any(|(id, key)| id == trusted || whole.as_deref() == Some(&key[..]))
    }

    /// Whether one of the keys signed this; which.
    fn signed(&self, text: &str, signature: Option<&Signature>) -> Result<usize, SignatureInvalid> {
        let signature = signature.ok_or(SignatureInvalid::Missing)?;
        let at = self
            .position(&signature.key_id)
            .ok_or(SignatureInvalid::OtherKey)?;
        verify_text(text, signature, &self.0[at].1).map(|()| at)
    }

    fn head(&self, head: &LogHead) -> Result<usize, SignatureInvalid> {
        let bare = LogHead {
            signature: None,
            ..head.clone()
        };
        self.signed(&text_of(&bare), head.signature.as_ref())
    }
}

enum Looked {
    Gone,
    Unreadable(String),
    Intent(ActionId),
    Key(KeyEntry),
    Head(LogHead),
    Signed {
        /// Whose receipt it is; none for an amendment.
        action: Option<ActionId>,
        name: String,
        key: Result<usize, SignatureInvalid>,
    },
}

#[derive(Debug)]
pub struct Checker {
    tree: Frontier,
    chain: Chain,
    /// Keys that were told beforehand, for when their own entries are not there.
    told: Vec<KeyEntry>,
    /// The key that signs where the check has come to.
    in_force: usize,
    /// Intents without a receipt so far, and where they stand.
    open: BTreeMap<ActionId, u64>,
    /// Heads to come, by the size that they speak of.
    heads: BTreeMap<u64, LogHead>,
    /// The head that everything is checked against.
    head: LogHead,
    /// What the heads so far say is kept.
    kept_from: u64,
    /// How far the log is known to be what was signed.
    sure: u64,
    /// The tree can no longer come out right; said once.
    broken: bool,
    report: Report,
}

impl Checker {
    /// A check that begins behind these entries, with keys that were told beforehand; at its end, the log must be as the head
    /// says.
    pub fn new(before: Frontier, keys: &[KeyEntry], head: LogHead) -> Self {
        let mut checker = Checker {
            sure: before.size(),
            report: Report {
                from: before.size(),
                ..Report::default()
            },
            tree: before,
            chain: Chain::default(),
            told: keys.to_vec(),
            in_force: 0,
            open: BTreeMap::new(),
            heads: BTreeMap::new(),
            head,
            kept_from: 0,
            broken: false,
        };
        if checker.report.from > 0 {
            checker.take_told();
        }
        checker
    }

    /// Takes on the keys that were told beforehand: the entries in which they were noted are not among those to come.
    fn take_told(&mut self) {
        for key in std::mem::take(&mut self.told) {
            if let Err(why) = self.chain.admit(&key) {
                self.find(None, format!("{why}: {}", key.key_id));
            }
        }
    }

    /// A head that the log must come out as when it gets there.
    pub fn expect(&mut self, head: LogHead) {
        if self.heads.len() < HEADS_MAX && head.size > self.tree.size() {
            self.heads.insert(head.size, head);
        }
    }

    /// A head that somebody has kept, which speaks of no fewer entries than the check begins behind: the log must begin with
    /// what it speaks of.
    pub fn known(&mut self, head: LogHead) {
        let size = head.size;
        self.heads.insert(size, head);
        if size == self.tree.size() {
            self.compare();
        }
    }

    /// A newer head of the same log takes the place of the one that everything is checked against.
    pub fn renew(&mut self, head: LogHead) {
        self.head = head;
    }

    /// Something that cannot even be read as an entry, behind these entries that are still to come.
    pub fn fault(&mut self, before: &[LogLine], what: String) {
        let at = self.tree.size() + before.len() as u64;
        self.find(Some(at), what);
    }

    fn find(&mut self, entry: Option<u64>, what: String) {
        self.report.findings_total += 1;
        if self.report.findings.len() < FINDINGS_MAX {
            self.report.findings.push(Finding { entry, what });
        }
    }

    /// The next entries. What can be looked at alone is, on all processors.
    pub fn entries(&mut self, lines: &[LogLine]) {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let share = lines.len().div_ceil(cores).max(1);
        let chain = &self.chain;
        let looked: Vec<Vec<(bool, Looked)>> = std::thread::scope(|scope| {
            let parts: Vec<_> = lines
                .chunks(share)
                .map(|part| scope.spawn(move || part.iter().map(|line| look(line, chain)).collect()))
                .collect();
            let joined = parts.into_iter().map(|part| part.join().unwrap_or_default());
            joined.collect()
        });
        for (line, (whole, looked)) in lines.iter().zip(looked.into_iter().flatten()) {
            self.entry(line, whole, looked);
        }
    }

    fn entry(&mut self, line: &LogLine, whole: bool, looked: Looked) {
        self.place(line.index);
        let at = Some(line.index);
        if !whole {
            self.find(
                at,
                format!("entry {} is not what its hash says: it was changed", line.index),
            );
        }
        match looked {
            Looked::Gone => {
                let kept_from = self.head.kept_from;
                if line.index < kept_from {
                    self.report.gone += 1;
                } else {
                    let what = format!(
                        "entry {} has no body, and the head says that bodies are kept from entry {kept_from} on: it was cut out",
                        line.index
                    );
                    self.find(at, what);
                }
                self.take_told();
                // What was let go may be the receipt of any intent before it.
                self.open.clear();
            }
            Looked::Unreadable(why) => self.find(at, format!("entry {} cannot be read: {why}", line.index)),
            Looked::Intent(action) => {
                self.report.intents += 1;
                if self.open.len() < OPEN_MAX {
                    self.open.insert(action, line.index);
                } else {
                    self.find(
                        at,
                        format!("entry {} is an intent more than can be open", line.index),
                    );
                }
            }
            Looked::Key(key) => match self.chain.admit(&key) {
                Ok(position) => self.in_force = position,
                Err(why) => {
                    self.in_force = self.chain.0.len().saturating_sub(1);
                    self.find(at, format!("entry {} is {why}: {}", line.index, key.key_id));
                }
            },
            Looked::Head(head) => {
                if let Err(why) = self.chain.head(&head) {
                    self.find(at, format!("entry {} is a head, but {why}", line.index));
                } else if head.size > line.index {
                    self.find(at, format!("entry {} speaks of entries behind it", line.index));
                }
            }
            Looked::Signed { action, name, key } => self.signed(line, action, &name, key),
        }
        self.tree.push(line.hash);
        self.compare();
    }

    fn signed(
        &mut self,
        line: &LogLine,
        action: Option<ActionId>,
        name: &str,
        key: Result<usize, SignatureInvalid>,
    ) {
        // The key may have come on the same page.
        let key = match (&key, &line.entry) {
            (Err(SignatureInvalid::OtherKey), Some(entry)) => signature_of(entry, &self.chain),
            (Ok(_) | Err(_), _) => key,
        };
        let at = Some(line.index);
        match key {
            Ok(position) if position < self.in_force => {
                let what = format!(
                    "entry {}, {name}, was signed by a key that had been replaced",
                    line.index
                );
                self.find(at, what);
            }
            Ok(_) => {}
            Err(why) => self.find(at, format!("entry {}, {name}: {why}", line.index)),
        }
        match action {
            Some(action) => {
                self.report.receipts += 1;
                self.open.remove(&action);
            }
            None => self.report.amendments += 1,
        }
    }

    /// Whether the entry is the next one.
    fn place(&mut self, index: u64) {
        let expected = self.tree.size();
        if index == expected || self.broken {
            return;
        }
        self.broken = true;
        let what = match index.checked_sub(expected) {
            Some(1) => format!("entry {expected} is missing"),
            Some(_) => format!("entries {expected} to {} are missing", index - 1),
            None => format!("entry {index} stands where entry {expected} should: the order was changed"),
        };
        self.find(Some(expected), what);
    }

    /// Compares the tree with a head that speaks of just this size.
    fn compare(&mut self) {
        let size = self.tree.size();
        let Some(head) = self.heads.remove(&size) else {
            return;
        };
        self.report.heads += 1;
        if let Err(why) = self.chain.head(&head) {
            self.find(None, format!("the head of {size} entries: {why}"));
        }
        if !(self.kept_from..=size).contains(&head.kept_from) {
            let what = format!(
                "the head of {size} entries says that bodies are kept from entry {} on; after the heads before it, that can be {} to {size}",
                head.kept_from, self.kept_from
            );
            self.find(None, what);
        }
        self.kept_from = self.kept_from.max(head.kept_from);
        if self.tree.root() == head.root {
            self.sure = size;
        } else if !self.broken {
            self.broken = true;
            let what = format!(
                "the tree of the first {size} entries is not the one that was signed: something among entries {} to {} was \
                 changed, exchanged or forged",
                self.sure,
                size.saturating_sub(1)
            );
            self.find(Some(self.sure), what);
        }
    }

    /// The end: the log must be as the head says. `trusted` names a key that must be among those that signed.
    pub fn finish(mut self, trusted: Option<&str>) -> Report {
        let size = self.tree.size();
        let head = self.head.clone();
        if head.size == size {
            // Anything else that speaks of this size was compared when it was reached.
            self.known(head.clone());
        } else if head.size > size {
            let last = head.size - 1;
            let what = format!(
                "entries {size} to {last} are missing: the log was cut off, for the head speaks of them"
            );
            self.find(Some(size), what);
        } else {
            let what = format!("entry {} and what follows are not covered by the head", head.size);
            self.find(Some(head.size), what);
        }
        for (size, missed) in std::mem::take(&mut self.heads) {
            let what = format!(
                "a head of {} speaks of {size} entries, more than there are: the log was cut off or begun anew",
                missed.at
            );
            self.find(Some(self.tree.size()), what);
        }
        self.complete(&head);
        if let Some(trusted) = trusted
            && !self.chain.has(trusted)
        {
            self.find(None, format!("none of its keys is {trusted}"));
        }
        let mut report = self.report;
        report.ok = report.findings_total == 0;
        report.size = size;
        report.root = Some(self.tree.root());
        report.kept_from = head.kept_from;
        report.open = self.open.len() as u64;
        report.keys = self.chain.0.into_iter().map(|(id, _)| id).collect();
        report
    }

    /// Every intent has its receipt, but for those that the head itself says are open. Of a log that is not whole, it cannot
    /// be told.
    fn complete(&mut self, head: &LogHead) {
        if self.report.findings_total > 0 {
            return;
        }
        let open = self.open.len() as u64;
        let known = self.report.gone == 0 && self.report.from == 0;
        if open > head.open || (known && open < head.open) {
            let named: Vec<_> = self
                .open
                .iter()
                .map(|(action, at)| (*at, action.clone()))
                .collect();
            let what = format!(
                "{open} intents have no receipt, but the head says that {} have none",
                head.open
            );
            self.find(named.first().map(|(at, _)| *at), what);
            for (at, action) in named.into_iter().take(FINDINGS_MAX) {
                self.find(
                    Some(at),
                    format!("entry {at}, the intent of {action}, has no receipt"),
                );
            }
        }
    }
}

/// Looks at an entry for itself; whether its hash fits, and what it is.
fn look(line: &LogLine, chain: &Chain) -> (bool, Looked) {
    let Some(value) = &line.entry else {
        return (true, Looked::Gone);
    };
    let whole = merkle::leaf(canonical::to_string(value).as_bytes()) == line.hash;
    let looked = match LogEntry::parse(value) {
        Err(error) => Looked::Unreadable(error.to_string()),
        Ok(LogEntry::Intent(intent)) => Looked::Intent(intent.action_id),
        Ok(LogEntry::Key(key)) => Looked::Key(key),
        Ok(LogEntry::Head(head)) => Looked::Head(head),
        Ok(LogEntry::Amendment(amendment)) => Looked::Signed {
            action: None,
            name: format!("amendment {}", amendment.amendment_id),
            key: signature_of(value, chain),
        },
        Ok(LogEntry::Receipt(receipt)) => Looked::Signed {
            action: Some(receipt.action_id),
            name: format!("receipt {}", receipt.receipt_id),
            key: signature_of(value, chain),
        },
    };
    (whole, looked)
}

/// Which key signed an entry, over everything in it but the signature.
fn signature_of(entry: &Value, chain: &Chain) -> Result<usize, SignatureInvalid> {
    let mut bare = entry.clone();
    let taken = bare
        .as_object_mut()
        .and_then(|members| members.remove("signature"));
    let signature: Option<Signature> = taken.and_then(|taken| serde_json::from_value(taken).ok());
    chain.signed(&canonical::to_string(&bare), signature.as_ref())
}

/// Whether a receipt is in the log under a head, by its proof alone; what is wrong if not.
pub fn check_proof(proof: &InclusionProof, trusted: Option<&str>) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut find = |what: String| {
        findings.push(Finding {
            entry: Some(proof.index),
            what,
        });
    };
    let mut chain = Chain::default();
    for key in &proof.keys {
        if let Err(why) = chain.admit(key) {
            find(format!("{why}: {}", key.key_id));
        }
    }
    if let Some(trusted) = trusted.filter(|trusted| !chain.has(trusted)) {
        find(format!("none of the keys is {trusted}"));
    }
    if let Err(why) = chain.head(&proof.head) {
        find(format!("the head: {why}"));
    }
    if let Err(why) = signature_of(&proof.entry, &chain) {
        find(format!("entry {}: {why}", proof.index));
    }
    let leaf = merkle::leaf(canonical::to_string(&proof.entry).as_bytes());
    if !merkle::inclusion_holds(proof.index, proof.head.size, &leaf, &proof.path, &proof.head.root) {
        find(format!("entry {} is not in the log that was signed", proof.index));
    }
    findings
}

#[cfg(test)]
mod tests;
