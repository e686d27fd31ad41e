//! Verifies a log: every hash, every signature, the order, and that the head admits every intent without a receipt.
//!
//! [`Checker`] takes the entries in order and reports which of them are wrong, and why. It needs no store and a bounded amount
//! of memory, so a daemon, a command line and a learner with a bundle all verify in the same way. It finds entries that do not
//! match their hash, receipts and keys without a valid signature, entries that are missing, reordered or cut off at the end,
//! bodies that are missing although the head promises them, a tree other than the signed one, and intents without a receipt
//! that the head does not count. [`check_proof`] verifies a single receipt.
//!
//! A bundle (`effectd receipts export --bundle`) is verified as follows. The key must come from somewhere else than the bundle; with
//! `None`, a bundle that a stranger signed passes, too.
//!
//! ```no_run
//! use effectd_contracts::{BundleHead, LogLine, json::parse_stored, merkle::Frontier, proof::Checker};
//!
//! /// The longest line of a bundle: the largest receipt fits several times.
//! const LINE_BYTES_MAX: usize = 20 * 1_048_576;
//!
//! // The id of the device's key, or the whole key in hex.
//! let device_key = std::env::var("DEVICE_KEY")?;
//! let bundle = std::fs::read_to_string("week.jsonl")?;
//! let (first, rest) = bundle.split_once('\n').ok_or("an empty bundle")?;
//! let head: BundleHead = parse_stored(first.as_bytes(), LINE_BYTES_MAX)?;
//! assert_eq!(head.bundle, 1, "a bundle of another format");
//! let entries = rest.lines().map(|line| parse_stored(line.as_bytes(), LINE_BYTES_MAX));
//! let entries: Vec<LogLine> = entries.collect::<Result<_, _>>()?;
//! let before = Frontier::restore(head.from, head.frontier).ok_or("an invalid frontier")?;
//! let mut checker = Checker::new(before, &head.keys, head.head);
//! checker.entries(&entries);
//! let report = checker.finish(Some(&device_key));
//! assert!(report.ok, "{:?}", report.findings);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use std::collections::BTreeMap;

use ed25519_dalek::VerifyingKey;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::canonical;
use crate::digest::{Digest, unhex};
use crate::ids::ActionId;
use crate::limits::LOG_KEYS_MAX;
use crate::log::{InclusionProof, KeyEntry, LogEntry, LogHead, LogLine};
use crate::merkle::{self, Frontier};
use crate::signature::{Signature, SignatureInvalid, key_id, text_of, verify_by, verify_text};

/// Most findings that a report lists one by one; beyond it they are only counted.
const FINDINGS_MAX: usize = 1_000;
/// Most intents without a receipt at one time: far more than can be in flight.
const INTENTS_OPEN_MAX: usize = 1_000_000;
/// Most heads to compare at one time: one a minute for two months. The last head covers the entries of those beyond.
const HEADS_MAX: usize = 100_000;

/// One thing that is wrong.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finding {
    /// The first entry concerned; none if the whole log is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub entry: Option<u64>,
    /// What is wrong, for people.
    pub what: String,
}

/// The result of verifying a log.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Report {
    /// Whether nothing is wrong.
    pub ok: bool,
    /// The first entry that was verified.
    pub from: u64,
    /// The number of entries in the log.
    pub size: u64,
    /// The root of the tree over the entries.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub root: Option<Digest>,
    /// Receipts whose signatures were checked.
    pub receipts: u64,
    /// Intents.
    pub intents: u64,
    /// Intents without a receipt yet.
    pub open: u64,
    /// Entries whose bodies retention has dropped: their hashes are proved, their content cannot be checked.
    pub gone: u64,
    /// The first entry whose body is kept, by the head. No body may be missing from here on.
    pub kept_from: u64,
    /// Amendments whose signatures were checked.
    pub amendments: u64,
    /// Signed heads that the tree was compared with.
    pub heads: u64,
    /// The ids of the keys that signed, in order.
    pub keys: Vec<String>,
    /// The first 1,000 findings.
    pub findings: Vec<Finding>,
    /// The number of all findings.
    pub findings_total: u64,
}

/// The keys of a log, each signed by the one before it.
#[derive(Debug, Clone, Default)]
struct Chain(Vec<(String, VerifyingKey)>);

impl Chain {
    fn position(&self, id: &str) -> Option<usize> {
        self.0.iter().position(|(known, _)| known == id)
    }

    /// Adds a key, unless it is known already. Returns its position.
    fn admit(&mut self, entry: &KeyEntry) -> Result<usize, &'static str> {
        let public: Option<[u8; 32]> = unhex(&entry.public_key).and_then(|bytes| bytes.try_into().ok());
        let public = public.ok_or("an invalid key")?;
        if entry.key_id != key_id(&public) {
            return Err("a key with the id of another key");
        }
        let public = VerifyingKey::from_bytes(&public).map_err(|_| "an invalid key")?;
        if let Some(known) = self.position(&entry.key_id) {
            return Ok(known);
        }
        if self.0.len() >= LOG_KEYS_MAX {
            return Err("more keys than a log may have");
        }
        let unsigned = KeyEntry { signatures: Vec::new(), ..entry.clone() };
        let text = text_of(&unsigned);
        let signed_by = |key: &VerifyingKey| {
            entry.signatures.iter().any(|one| verify_text(&text, one, key.as_bytes()).is_ok())
        };
        if !signed_by(&public) {
            return Err("a key without its own signature");
        }
        let previous = self.0.last().cloned();
        self.0.push((entry.key_id.clone(), public));
        match previous {
            None if entry.previous.is_none() => Ok(0),
            Some((id, old)) if entry.previous.as_ref() == Some(&id) && signed_by(&old) => {
                Ok(self.0.len() - 1)
            }
            None | Some(_) => Err("a key that the one before it did not sign"),
        }
    }

    /// Whether this key is in the chain, by its id or as the whole key in hex.
    fn has(&self, trusted: &str) -> bool {
        let whole = unhex(trusted);
        self.0.iter().any(|(id, key)| id == trusted || whole.as_deref() == Some(&key.as_bytes()[..]))
    }

    /// The position of the key that signed this text.
    fn signed(&self, text: &str, signature: Option<&Signature>) -> Result<usize, SignatureInvalid> {
        let signature = signature.ok_or(SignatureInvalid::Missing)?;
        let at = self.position(&signature.key_id).ok_or(SignatureInvalid::OtherKey)?;
        verify_by(&self.0[at].1, text, signature).map(|()| at)
    }

    fn head(&self, head: &LogHead) -> Result<usize, SignatureInvalid> {
        let unsigned = LogHead { signature: None, ..head.clone() };
        self.signed(&text_of(&unsigned), head.signature.as_ref())
    }
}

/// The result of inspecting an entry on its own.
enum Inspected {
    Gone,
    Unreadable(String),
    Intent(ActionId),
    Key(KeyEntry),
    Head(LogHead),
    Signed {
        /// The action of a receipt; none for an amendment.
        action: Option<ActionId>,
        name: String,
        key: Result<usize, SignatureInvalid>,
    },
}

/// Verifies a log, entry by entry.
#[derive(Debug)]
pub struct Checker {
    tree: Frontier,
    chain: Chain,
    /// Keys known in advance, for logs whose key entries are missing.
    known_keys: Vec<KeyEntry>,
    /// The key in force at the current entry.
    in_force: usize,
    /// Intents without a receipt so far, with their indexes.
    open: BTreeMap<ActionId, u64>,
    /// Heads still to be compared, by their size.
    heads: BTreeMap<u64, LogHead>,
    /// The head that the whole log must match.
    head: LogHead,
    /// The highest `kept_from` of the heads so far.
    kept_from: u64,
    /// The number of entries that a signed head confirms.
    confirmed: u64,
    /// Whether the tree differs from a head, which is reported once.
    broken: bool,
    report: Report,
}

impl Checker {
    /// A check that starts after the entries in `before` and ends at `head`, with all keys of the log as far as they are known.
    pub fn new(before: Frontier, keys: &[KeyEntry], head: LogHead) -> Self {
        let mut checker = Checker {
            confirmed: before.size(),
            report: Report { from: before.size(), ..Report::default() },
            tree: before,
            chain: Chain::default(),
            known_keys: keys.to_vec(),
            in_force: 0,
            open: BTreeMap::new(),
            heads: BTreeMap::new(),
            head,
            kept_from: 0,
            broken: false,
        };
        if checker.report.from > 0 {
            checker.admit_known_keys();
        }
        checker
    }

    /// Admits the keys known in advance, since their own entries are missing.
    fn admit_known_keys(&mut self) {
        for key in std::mem::take(&mut self.known_keys) {
            if let Err(why) = self.chain.admit(&key) {
                self.find(None, format!("{why}: {}", key.key_id));
            }
        }
    }

    /// Adds a head to compare the tree with when the tree reaches the head's size.
    pub fn expect(&mut self, head: LogHead) {
        if self.heads.len() < HEADS_MAX && head.size > self.tree.size() {
            self.heads.insert(head.size, head);
        }
    }

    /// Adds a head that somebody kept: the log must begin with its entries. Its size must be at least that at which the check
    /// starts.
    pub fn known(&mut self, head: LogHead) {
        let size = head.size;
        self.heads.insert(size, head);
        if size == self.tree.size() {
            self.compare();
        }
    }

    /// Replaces the head that the whole log must match by a newer one of the same log.
    pub fn renew(&mut self, head: LogHead) {
        self.head = head;
    }

    /// Reports a line that cannot be read. It follows the entries in `pending`, which are still to be verified.
    pub fn fault(&mut self, pending: &[LogLine], what: String) {
        let at = self.tree.size() + pending.len() as u64;
        self.find(Some(at), what);
    }

    fn find(&mut self, entry: Option<u64>, what: String) {
        self.report.findings_total += 1;
        if self.report.findings.len() < FINDINGS_MAX {
            self.report.findings.push(Finding { entry, what });
        }
    }

    /// Verifies the next entries. Hashes and signatures are checked on all processors.
    pub fn entries(&mut self, lines: &[LogLine]) {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let share = lines.len().div_ceil(cores).max(1);
        let chain = &self.chain;
        let inspected: Vec<Vec<(bool, Inspected)>> = std::thread::scope(|scope| {
            let parts: Vec<_> = lines
                .chunks(share)
                .map(|part| scope.spawn(move || part.iter().map(|line| inspect(line, chain)).collect()))
                .collect();
            let joined = parts.into_iter().map(|part| part.join().unwrap_or_default());
            joined.collect()
        });
        for (line, (intact, inspected)) in lines.iter().zip(inspected.into_iter().flatten()) {
            self.entry(line, intact, inspected);
        }
    }

    fn entry(&mut self, line: &LogLine, intact: bool, inspected: Inspected) {
        let index = line.index;
        let at = Some(index);
        self.check_index(index);
        if !intact {
            self.find(at, format!("entry {index} does not match its hash: it was changed"));
        }
        match inspected {
            Inspected::Gone => self.gone(index),
            Inspected::Unreadable(why) => self.find(at, format!("entry {index} cannot be read: {why}")),
            Inspected::Intent(action) => {
                self.report.intents += 1;
                if self.open.len() < INTENTS_OPEN_MAX {
                    self.open.insert(action, index);
                } else {
                    let what =
                        format!("entry {index} exceeds the number of open intents that can be verified");
                    self.find(at, what);
                }
            }
            Inspected::Key(key) => match self.chain.admit(&key) {
                Ok(position) => self.in_force = position,
                Err(why) => {
                    self.in_force = self.chain.0.len().saturating_sub(1);
                    self.find(at, format!("entry {index} is {why}: {}", key.key_id));
                }
            },
            Inspected::Head(head) => {
                if let Err(why) = self.chain.head(&head) {
                    self.find(at, format!("entry {index} is a head, but {why}"));
                } else if head.size > index {
                    let what = format!("entry {index} is a head that covers later entries");
                    self.find(at, what);
                }
            }
            Inspected::Signed { action, name, key } => self.signed(line, action, &name, key),
        }
        self.tree.push(line.hash);
        self.compare();
    }

    /// An entry without its body, which retention may drop only before the head's `kept_from`.
    fn gone(&mut self, index: u64) {
        let kept_from = self.head.kept_from;
        if index < kept_from {
            self.report.gone += 1;
        } else {
            let what = format!(
                "entry {index} has no body, and the head says that bodies are kept from entry {kept_from} on: it was cut out"
            );
            self.find(Some(index), what);
        }
        self.admit_known_keys();
        // The missing body may be the receipt of any earlier intent.
        self.open.clear();
    }

    fn signed(
        &mut self,
        line: &LogLine,
        action: Option<ActionId>,
        name: &str,
        key: Result<usize, SignatureInvalid>,
    ) {
        // The key may be an earlier entry of the same call, which was not in the chain when this entry was inspected.
        let key = match (&key, &line.entry) {
            (Err(SignatureInvalid::OtherKey), Some(entry)) => {
                signature_of(entry, &canonical::to_string(entry), &self.chain)
            }
            (Ok(_) | Err(_), _) => key,
        };
        let index = line.index;
        let fault = match key {
            Ok(position) if position < self.in_force => {
                Some(format!("entry {index}, {name}, was signed by a key that had been replaced"))
            }
            Ok(_) => None,
            Err(why) => Some(format!("entry {index}, {name}: {why}")),
        };
        fault.into_iter().for_each(|what| self.find(Some(index), what));
        match action {
            Some(action) => {
                self.report.receipts += 1;
                self.open.remove(&action);
            }
            None => self.report.amendments += 1,
        }
    }

    /// Reports an entry that is not the next one.
    fn check_index(&mut self, index: u64) {
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

    /// Compares the tree with the head of exactly this size, if there is one.
    fn compare(&mut self) {
        let size = self.tree.size();
        let Some(head) = self.heads.remove(&size) else {
            return;
        };
        self.report.heads += 1;
        match self.chain.head(&head) {
            Ok(position) if position < self.in_force => {
                let what = format!("the head of size {size} was signed by a key that had been replaced");
                self.find(None, what);
            }
            Ok(_) => {}
            Err(why) => self.find(None, format!("the head of size {size}: {why}")),
        }
        if !(self.kept_from..=size).contains(&head.kept_from) {
            let what = format!(
                "the head of size {size} says that bodies are kept from entry {} on; by the earlier heads, that can be {} to {size}",
                head.kept_from, self.kept_from
            );
            self.find(None, what);
        }
        self.kept_from = self.kept_from.max(head.kept_from);
        if self.tree.root() == head.root {
            self.confirmed = size;
        } else if !self.broken {
            self.broken = true;
            let what = format!(
                "the tree of the first {size} entries is not the one that was signed: something among entries {} to {} was \
                 changed, exchanged or forged",
                self.confirmed,
                size.saturating_sub(1)
            );
            self.find(Some(self.confirmed), what);
        }
    }

    /// Ends the check: the log must match the head, and `trusted`, if given, must be one of its keys. With `None`, a log that a
    /// stranger signed passes, too.
    pub fn finish(mut self, trusted: Option<&str>) -> Report {
        let size = self.tree.size();
        let head = self.head.clone();
        if head.size == size {
            // Other heads of this size were compared when the tree reached it.
            self.known(head.clone());
        } else if head.size > size {
            let last = head.size - 1;
            let what = format!(
                "entries {size} to {last} are missing: the log was cut off, since the head covers them"
            );
            self.find(Some(size), what);
        } else {
            let what = format!("entry {} and all later ones are not covered by the head", head.size);
            self.find(Some(head.size), what);
        }
        for (size, missed) in std::mem::take(&mut self.heads) {
            let what = format!(
                "a head of {} covers {size} entries, more than there are: the log was cut off or started again",
                missed.at
            );
            self.find(Some(self.tree.size()), what);
        }
        self.check_intents(&head);
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

    /// Reports intents without a receipt, if there are more than the head says, or fewer in a complete log. Reports nothing if
    /// the log has other findings.
    fn check_intents(&mut self, head: &LogHead) {
        if self.report.findings_total > 0 {
            return;
        }
        let open = self.open.len() as u64;
        let complete = self.report.gone == 0 && self.report.from == 0;
        if open > head.open || (complete && open < head.open) {
            let named: Vec<_> = self.open.iter().map(|(action, at)| (*at, action.clone())).collect();
            let what =
                format!("{open} intents have no receipt, but the head says that {} have none", head.open);
            self.find(named.first().map(|(at, _)| *at), what);
            for (at, action) in named.into_iter().take(FINDINGS_MAX) {
                self.find(Some(at), format!("entry {at}, the intent of {action}, has no receipt"));
            }
        }
    }
}

/// Checks an entry on its own: whether it matches its hash, and what it is.
fn inspect(line: &LogLine, chain: &Chain) -> (bool, Inspected) {
    let Some(value) = &line.entry else {
        return (true, Inspected::Gone);
    };
    let text = canonical::to_string(value);
    let intact = merkle::leaf(text.as_bytes()) == line.hash;
    let inspected = match LogEntry::parse(value) {
        Err(error) => Inspected::Unreadable(error.to_string()),
        Ok(LogEntry::Intent(intent)) => Inspected::Intent(intent.action_id),
        Ok(LogEntry::Key(key)) => Inspected::Key(key),
        Ok(LogEntry::Head(head)) => Inspected::Head(head),
        Ok(LogEntry::Amendment(amendment)) => Inspected::Signed {
            action: None,
            name: format!("amendment {}", amendment.amendment_id),
            key: signature_of(value, &text, chain),
        },
        Ok(LogEntry::Receipt(receipt)) => Inspected::Signed {
            action: Some(receipt.action_id),
            name: format!("receipt {}", receipt.receipt_id),
            key: signature_of(value, &text, chain),
        },
    };
    (intact, inspected)
}

/// The position of the key that signed an entry: the signature covers the rest of the entry, whose canonical form is `text`. It is cut
/// out of the text, which is quicker than writing the rest again. No signed text holds its own signature, so the first is the entry's.
fn signature_of(entry: &Value, text: &str, chain: &Chain) -> Result<usize, SignatureInvalid> {
    let signature = entry.get("signature").ok_or(SignatureInvalid::Missing)?;
    let member = format!("\"signature\":{}", canonical::to_string(signature));
    let (before, after) = text.split_once(&member).ok_or(SignatureInvalid::Missing)?;
    // One comma goes with it.
    let unsigned = match after.strip_prefix(',') {
        Some(after) => [before, after].concat(),
        None => [before.strip_suffix(',').unwrap_or(before), after].concat(),
    };
    chain.signed(&unsigned, Signature::deserialize(signature).ok().as_ref())
}

/// Verifies that a receipt is in the log of a signed head. Returns what is wrong.
pub fn check_proof(proof: &InclusionProof, trusted: Option<&str>) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut find = |what: String| {
        findings.push(Finding { entry: Some(proof.index), what });
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
    let text = canonical::to_string(&proof.entry);
    if let Err(why) = signature_of(&proof.entry, &text, &chain) {
        find(format!("entry {}: {why}", proof.index));
    }
    let leaf = merkle::leaf(text.as_bytes());
    if !merkle::inclusion_holds(proof.index, proof.head.size, &leaf, &proof.path, &proof.head.root) {
        find(format!("entry {} is not in the log that was signed", proof.index));
    }
    findings
}

#[cfg(test)]
mod tests;
