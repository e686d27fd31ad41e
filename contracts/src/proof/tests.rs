//! Ways to tamper with a log, each alone and at random.

#![allow(clippy::unwrap_used)]

use ed25519_dalek::{Signer, SigningKey};
use proptest::prelude::*;

use super::*;
use crate::digest::hex;
use crate::{EntryKind, IntentEntry, Receipt, ReceiptId, SpaceId, Timestamp};

/// A device's key, which signs as the runtime does.
struct DeviceKey(SigningKey);

impl DeviceKey {
    fn public_key(&self) -> [u8; 32] {
        self.0.verifying_key().to_bytes()
    }

    fn key_id(&self) -> String {
        key_id(&self.public_key())
    }

    fn sign(&self, value: &impl Serialize) -> Signature {
        Signature {
            algorithm: "ed25519".to_owned(),
            key_id: self.key_id(),
            value: hex(&self.0.sign(text_of(value).as_bytes()).to_bytes()),
        }
    }

    /// The key's entry in the log, signed by itself and by the key before it.
    fn entry(&self, before: Option<&DeviceKey>, previous: Option<String>) -> LogEntry {
        let mut entry = KeyEntry {
            entry: EntryKind::Key,
            at: moment(),
            key_id: self.key_id(),
            public_key: hex(&self.public_key()),
            previous,
            signatures: Vec::new(),
        };
        let signers = [Some(self), before].into_iter().flatten();
        entry.signatures = signers.map(|key| key.sign(&entry)).collect();
        LogEntry::Key(entry)
    }
}

/// A log as a device would have written it: keys, actions, a rotation in the middle, heads on the way.
struct Device {
    lines: Vec<LogLine>,
    tree: Frontier,
    open: u64,
    /// The `kept_from` of the next heads.
    kept_from: u64,
    heads: Vec<LogHead>,
}

fn moment() -> Timestamp {
    Timestamp::from_second(1_800_000_000).unwrap()
}

fn identity(seed: u8) -> DeviceKey {
    DeviceKey(SigningKey::from_bytes(&[seed; 32]))
}

impl Device {
    fn add(&mut self, entry: &LogEntry) {
        let hash = merkle::leaf(&entry.bytes());
        self.tree.push(hash);
        self.lines.push(LogLine {
            index: self.lines.len() as u64,
            hash,
            entry: Some(serde_json::from_slice(&entry.bytes()).unwrap()),
        });
    }

    fn head(&mut self, by: &DeviceKey) -> LogHead {
        let mut head = LogHead {
            entry: EntryKind::Head,
            at: moment(),
            size: self.tree.size(),
            root: self.tree.root(),
            open: self.open,
            kept_from: self.kept_from,
            signature: None,
        };
        head.signature = Some(by.sign(&head));
        self.heads.push(head.clone());
        head
    }

    fn intent(&mut self, action: &str) {
        let action = ActionId::new(action).unwrap();
        let entry = IntentEntry::new(action, &Digest::of(b"request"), SpaceId::new("shared:h").unwrap());
        self.open += 1;
        self.add(&LogEntry::Intent(entry));
    }

    fn receipt(&mut self, action: &str, by: &DeviceKey) {
        let golden = include_str!("../../tests/golden/receipt.json");
        let mut receipt: Receipt = serde_json::from_str(golden).unwrap();
        receipt.action_id = ActionId::new(action).unwrap();
        receipt.receipt_id = ReceiptId::new(format!("r-{action}")).unwrap();
        receipt.signature = None;
        receipt.signature = Some(by.sign(&receipt));
        self.open -= 1;
        self.add(&LogEntry::Receipt(Box::new(receipt)));
    }

    /// Actions before and after a rotation, the last of them still open.
    fn with(actions: usize) -> Self {
        let (old, new) = (identity(1), identity(2));
        let mut device =
            Device { lines: Vec::new(), tree: Frontier::default(), open: 0, kept_from: 0, heads: Vec::new() };
        device.add(&old.entry(None, None));
        for nth in 0..actions {
            let by = if nth < actions / 2 { &old } else { &new };
            if nth == actions / 2 {
                device.add(&new.entry(Some(&old), Some(old.key_id())));
            }
            device.intent(&format!("a{nth}"));
            if nth % 3 == 0 {
                let head = device.head(by);
                device.add(&LogEntry::Head(head));
            }
            if nth + 1 < actions {
                device.receipt(&format!("a{nth}"), by);
            }
        }
        device.head(&new);
        device
    }

    fn check(&self, lines: &[LogLine]) -> Report {
        let mut checker = self.checker();
        self.heads.iter().for_each(|head| checker.expect(head.clone()));
        lines.chunks(7).for_each(|page| checker.entries(page));
        checker.finish(Some(&identity(1).key_id()))
    }

    /// A check from the first entry on, against the last head.
    fn checker(&self) -> Checker {
        Checker::new(Frontier::default(), &[], self.heads.last().unwrap().clone())
    }
}

#[test]
fn an_honest_log_with_a_rotation_is_found_whole() {
    let device = Device::with(20);
    let report = device.check(&device.lines);
    assert_eq!(report.findings, []);
    assert!(report.ok);
    assert_eq!((report.receipts, report.intents, report.open), (19, 20, 1));
    assert_eq!(report.keys, [identity(1).key_id(), identity(2).key_id()]);
    assert!(report.heads > 5, "{}", report.heads);
    // The same check from the middle on, with the frontier of the entries before.
    let mut before = Frontier::default();
    device.lines[..15].iter().for_each(|line| before.push(line.hash));
    let keys: Vec<KeyEntry> = [0, 24]
        .map(|at| {
            let found = device.lines.iter().filter_map(|line| line.entry.as_ref());
            let keys: Vec<_> = found.filter(|entry| entry["entry"] == "key").collect();
            serde_json::from_value(keys[usize::from(at > 0)].clone()).unwrap()
        })
        .to_vec();
    let mut checker = Checker::new(before, &keys, device.heads.last().unwrap().clone());
    checker.entries(&device.lines[15..]);
    let report = checker.finish(None);
    assert_eq!(report.findings, []);
}

#[test]
fn retention_leaves_the_proofs_whole() {
    let mut device = Device::with(20);
    device.kept_from = 9;
    device.head(&identity(2));
    device.lines[3..9].iter_mut().for_each(|line| line.entry = None);
    let report = device.check(&device.lines);
    assert_eq!((report.findings.as_slice(), report.gone), (&[][..], 6));
    // The hash of an entry whose body retention dropped cannot be exchanged.
    device.lines[5].hash = merkle::leaf(b"something else");
    let report = device.check(&device.lines);
    assert!(!report.ok && report.findings[0].entry.is_some_and(|at| at <= 5), "{report:?}");
}

#[test]
fn a_body_is_missing_only_where_the_signed_head_says_so() {
    let mut device = Device::with(20);
    let (size, first) = (device.lines.len() as u64, device.heads.len() - 1);
    let cut = |device: &Device, gone: std::ops::Range<usize>| {
        let mut lines = device.lines.clone();
        lines[gone].iter_mut().for_each(|line| line.entry = None);
        device.check(&lines)
    };
    // Retention has dropped nothing, so a missing body is a finding: one, the first, all of them.
    for (gone, named) in [(5..6, 5), (0..1, 0), (0..device.lines.len(), 0)] {
        let report = cut(&device, gone);
        assert!(!report.ok && report.gone == 0, "{report:?}");
        assert_eq!(report.findings[0].entry, Some(named));
        assert!(report.findings[0].what.contains("has no body"), "{report:?}");
    }
    // A newer head excuses missing bodies before its `kept_from` and no others; an older head does not.
    device.kept_from = 9;
    device.head(&identity(2));
    for (gone, findings) in [(1..9, 0), (4..7, 0), (1..10, 1), (9..10, 1)] {
        let report = cut(&device, gone.clone());
        assert_eq!(report.findings_total, findings, "{gone:?}: {report:?}");
        assert_eq!(report.kept_from, 9);
    }
    let older = device.heads[first].clone();
    let mut checker = Checker::new(Frontier::default(), &[], older);
    let mut lines = device.lines.clone();
    lines[1..9].iter_mut().for_each(|line| line.entry = None);
    checker.entries(&lines);
    assert_eq!(checker.finish(None).findings_total, 8, "the older head promises them");
    // A head with a forged `kept_from` excuses nothing.
    let mut forged = device.heads.last().unwrap().clone();
    forged.kept_from = size;
    let mut checker = Checker::new(Frontier::default(), &[], forged);
    checker.entries(&device.lines);
    let report = checker.finish(None);
    assert!(report.findings[0].what.contains("not what was signed"), "{report:?}");
    // A device's `kept_from` must neither decrease nor exceed the size.
    for kept_from in [8, size + 2] {
        let mut device = Device::with(20);
        device.kept_from = 9;
        device.head(&identity(2));
        device.intent("more");
        device.kept_from = kept_from;
        device.head(&identity(2));
        let report = device.check(&device.lines);
        let what = &report.findings[0].what;
        assert!(what.contains("that can be 9 to"), "{report:?}");
    }
}

#[test]
fn a_known_head_is_compared_where_the_check_begins() {
    let device = Device::with(20);
    let known = &device.heads[2];
    let begin = usize::try_from(known.size).unwrap();
    let mut before = Frontier::default();
    device.lines[..begin].iter().for_each(|line| before.push(line.hash));
    let keys: Vec<KeyEntry> =
        device.lines.iter().filter_map(|line| serde_json::from_value(line.entry.clone()?).ok()).collect();
    for (root, findings) in [(known.root, 0), (Digest::of(b"another"), 2)] {
        let mut checker = Checker::new(before.clone(), &keys, device.heads.last().unwrap().clone());
        checker.known(LogHead { root, ..known.clone() });
        checker.entries(&device.lines[begin..]);
        let report = checker.finish(None);
        assert_eq!(report.findings_total, findings, "{report:?}");
    }
}

#[test]
fn keys_that_nobody_vouches_for_are_named() {
    let device = Device::with(6);
    let stranger = identity(7);
    let mut lines = device.lines.clone();
    let at = lines.iter().rposition(|line| line.entry.as_ref().unwrap()["entry"] == "key").unwrap();
    let key = stranger.entry(None, Some(identity(1).key_id()));
    lines[at].entry = Some(serde_json::from_slice(&key.bytes()).unwrap());
    lines[at].hash = merkle::leaf(&key.bytes());
    let report = device.check(&lines);
    let named = |report: &Report, words: &str| report.findings.iter().any(|found| found.what.contains(words));
    assert!(named(&report, "did not sign"), "{report:?}");
    let mut checker = device.checker();
    checker.entries(&device.lines);
    let report = checker.finish(Some("0000000000000000"));
    assert!(named(&report, "none of its keys is"), "{report:?}");
}

#[test]
fn a_receipt_signed_by_a_replaced_key_is_named() {
    let mut device = Device::with(6);
    device.intent("late");
    device.receipt("late", &identity(1));
    device.head(&identity(2));
    let report = device.check(&device.lines);
    let last = device.lines.len() as u64 - 1;
    assert_eq!(report.findings_total, 1, "{report:?}");
    assert_eq!(report.findings[0].entry, Some(last));
    assert!(report.findings[0].what.contains("replaced"));
}

#[test]
fn a_head_signed_by_a_replaced_key_is_named() {
    let mut device = Device::with(6);
    device.head(&identity(1));
    let report = device.check(&device.lines);
    let is_named = |what: &str| what.contains("head of size") && what.contains("replaced");
    assert!(!report.ok && report.findings.iter().all(|found| is_named(&found.what)), "{report:?}");
}

#[test]
fn an_intent_without_its_receipt_is_named() {
    let mut device = Device::with(6);
    // The device leaves the receipt out, and its head does not count the open intent.
    device.intent("hidden");
    device.open -= 1;
    device.head(&identity(2));
    let report = device.check(&device.lines);
    let named =
        report.findings.iter().any(|found| found.what.contains("the intent of hidden, has no receipt"));
    assert!(named, "{report:?}");
}

#[test]
fn a_proof_holds_for_its_receipt_alone() {
    let device = Device::with(9);
    let head = device.heads.last().unwrap().clone();
    struct Lines<'a>(&'a [LogLine]);
    impl merkle::Subtrees for Lines<'_> {
        type Error = std::convert::Infallible;
        fn subtree(&self, height: u32, index: u64) -> Result<Digest, Self::Error> {
            let size = 1_usize << height;
            let first = usize::try_from(index).unwrap() * size;
            let mut tree = Frontier::default();
            self.0[first..first + size].iter().for_each(|line| tree.push(line.hash));
            Ok(tree.root())
        }
    }
    let is_receipt = |line: &&LogLine| line.entry.as_ref().unwrap().get("entry").is_none();
    let line = device.lines.iter().find(is_receipt).unwrap();
    let keys = device.lines.iter().filter_map(|line| serde_json::from_value(line.entry.clone()?).ok());
    let proof = InclusionProof {
        proof: 1,
        index: line.index,
        entry: line.entry.clone().unwrap(),
        path: merkle::inclusion(&Lines(&device.lines), line.index, head.size).unwrap(),
        keys: keys.collect(),
        head,
    };
    assert_eq!(check_proof(&proof, Some(&identity(1).key_id())), []);
    let whole = hex(&identity(1).public_key());
    assert_eq!(check_proof(&proof, Some(&whole)), []);
    assert_eq!(check_proof(&proof, Some("00")).len(), 1);
    let mut other = proof.clone();
    other.entry["status"] = "error".into();
    assert_eq!(check_proof(&other, None).len(), 2);
    let mut other = proof.clone();
    other.index += 1;
    assert_eq!(check_proof(&other, None).len(), 1);
    let mut other = proof;
    other.head.size += 1;
    assert!(!check_proof(&other, None).is_empty());
}

/// A way to tamper with one entry. With `true`, hashes or indexes are made to fit.
#[derive(Debug, Clone, Copy)]
enum Tamper {
    Flip(bool),
    Delete(bool),
    Swap(bool),
    Truncate,
    Forge,
    Insert,
}

fn tampers() -> impl Strategy<Value = Tamper> {
    prop_oneof![
        any::<bool>().prop_map(Tamper::Flip),
        any::<bool>().prop_map(Tamper::Delete),
        any::<bool>().prop_map(Tamper::Swap),
        Just(Tamper::Truncate),
        Just(Tamper::Forge),
        Just(Tamper::Insert),
    ]
}

/// The same entry with one digit exchanged.
fn flipped(entry: &Value, nth: usize) -> Value {
    let text = entry.to_string();
    let letters: Vec<usize> =
        text.bytes().enumerate().filter(|(_, byte)| byte.is_ascii_digit()).map(|(at, _)| at).collect();
    let at = letters[nth % letters.len()];
    let mut bytes = text.into_bytes();
    bytes[at] = if bytes[at] == b'7' { b'3' } else { b'7' };
    serde_json::from_slice(&bytes)
        .unwrap_or_else(|_| serde_json::json!({ "entry": "intent", "broken": true }))
}

fn rehash(line: &mut LogLine) {
    let text = canonical::to_string(line.entry.as_ref().unwrap());
    line.hash = merkle::leaf(text.as_bytes());
}

fn tamper(lines: &mut Vec<LogLine>, how: Tamper, at: usize, nth: usize) {
    let renumber = |lines: &mut Vec<LogLine>| {
        lines.iter_mut().enumerate().for_each(|(index, line)| line.index = index as u64);
    };
    match how {
        Tamper::Flip(fit) => {
            let entry = lines[at].entry.clone().unwrap();
            lines[at].entry = Some(flipped(&entry, nth));
            if fit {
                rehash(&mut lines[at]);
            }
        }
        Tamper::Delete(fit) => {
            lines.remove(at);
            if fit {
                renumber(lines);
            }
        }
        Tamper::Swap(fit) => {
            lines.swap(at, at + 1);
            if fit {
                renumber(lines);
            }
        }
        Tamper::Truncate => lines.truncate(at),
        Tamper::Forge => {
            let entry = lines[at].entry.as_mut().unwrap();
            entry["space_id"] = "personal:mallory".into();
            rehash(&mut lines[at]);
        }
        Tamper::Insert => {
            let copy = lines[at].clone();
            lines.insert(at, copy);
            renumber(lines);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]
    #[test]
    fn every_tampering_with_a_log_is_found_and_located(
        how in tampers(), at in 1_usize..36, nth in any::<usize>(),
    ) {
        thread_local! { static DEVICE: Device = Device::with(16); }
        DEVICE.with(|device| {
            let mut lines = device.lines.clone();
            let at = at.min(lines.len() - 2);
            tamper(&mut lines, how, at, nth);
            prop_assume!(lines != device.lines);
            let report = device.check(&lines);
            prop_assert!(!report.ok);
            // The first finding is at most one entry after the tampered one, and not before the last head that precedes it.
            let first = report.findings.iter().filter_map(|found| found.entry).min();
            let first = usize::try_from(first.unwrap()).unwrap();
            // Removing an entry after the last head but one looks like cutting the log off at the end.
            prop_assert!(first <= at + 1 || first == lines.len(), "{how:?} at {at}: {:?}", report.findings);
            let heads = device.heads.iter().map(|head| usize::try_from(head.size).unwrap());
            let sure = heads.filter(|size| *size <= at).max().unwrap_or(0);
            prop_assert!(first >= sure, "{how:?} at {at}: {:?}", report.findings);
            let exact = matches!(
                how,
                Tamper::Flip(false) | Tamper::Delete(false) | Tamper::Swap(false) | Tamper::Truncate
            );
            // A forged entry with a signature is named itself, even if its hash fits.
            let signed = device.lines[at].entry.as_ref().unwrap().get("signature").is_some();
            if matches!(how, Tamper::Forge) && signed {
                let named = report.findings.iter().any(|found| found.entry == Some(at as u64));
                prop_assert!(named, "{at}: {:?}", report.findings);
            }
            if exact {
                prop_assert_eq!(first, at, "{:?}: {:?}", how, report.findings);
            }
            Ok(())
        })?;
    }
}
