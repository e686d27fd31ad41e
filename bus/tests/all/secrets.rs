//! No sensitive field is ever on disk in clear, and a closed epoch cannot be read by anyone.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use effectd_bus::embedded::JournalKind;
use effectd_bus::testing::values::{
    claim, completion, event, family, group, put, resource, sealed_event, topic,
};
use effectd_bus::vault::{Kind, Vault};
use effectd_bus::{
    Admission, Body, Change, EmbeddedConfig, Expect, KvChange, NewBody, NewDeadLetter, Store, Swap, embedded,
};
use effectd_contracts::{Clock, ManualClock, Status, Timestamp};

use crate::child::{BOTH, Order, Worker};

/// One canary per sensitive field; the last one is planted in clear, to show that the scan finds what is there.
const CANARIES: [&str; 8] = [
    "canary-event-body",
    "canary-decision-body",
    "canary-intent",
    "canary-nack-detail",
    "canary-term-detail",
    "canary-letter-payload",
    "canary-hold-value",
    "canary-resource",
];
const CONTROL: &str = "canary-in-clear";

fn files(of: &Path, into: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(of).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() { files(&path, into) } else { into.push(path) }
    }
}

/// Every file with what is in it. An open store gives files their names while it runs: when one is gone between being
/// listed and being read, everything is listed again, so that what it became is read under its new name.
fn contents(state: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    for _ in 0..1_000 {
        let mut all = Vec::new();
        files(state, &mut all);
        let read = all.into_iter().map(|path| std::fs::read(&path).map(|bytes| (path, bytes)));
        match read.collect() {
            Ok(contents) => return contents,
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => panic!("cannot be read: {error}"),
        }
    }
    panic!("files come and go in {}, and never stay", state.display());
}

/// Which files hold the text, as it is, in UTF-16 or in hex.
fn found(state: &Path, text: &str) -> Vec<PathBuf> {
    let utf16: Vec<u8> = text.encode_utf16().flat_map(u16::to_le_bytes).collect();
    let hex = effectd_contracts::digest::hex(text.as_bytes()).into_bytes();
    let needles = [text.as_bytes().to_vec(), utf16, hex];
    let mut all = contents(state);
    all.retain(|(_, bytes)| {
        needles.iter().any(|needle| bytes.windows(needle.len()).any(|window| window == needle.as_slice()))
    });
    all.into_iter().map(|(path, _)| path).collect()
}

fn scan(state: &Path, when: &str) {
    for canary in CANARIES {
        assert_eq!(found(state, canary), Vec::<PathBuf>::new(), "{canary}, {when}");
    }
    assert!(!found(state, CONTROL).is_empty(), "the scan finds what is in clear, {when}");
}

fn open(state: &Path, journal: JournalKind, clock: &Arc<ManualClock>) -> effectd_bus::LocalStore {
    crate::watchdog::start();
    let config = EmbeddedConfig { journal, ..EmbeddedConfig::new(state) };
    embedded::open(config, clock.clone()).unwrap()
}

fn plant(store: &dyn Store) {
    let (t, g) = (topic("t"), group("g"));
    let mut control = event("control");
    control.body = NewBody::Clear(CONTROL.as_bytes().to_vec());
    let events = vec![sealed_event("1", "a", CANARIES[0].as_bytes()), event("2"), event("3"), control];
    store.publish(&t, events).wait().unwrap();
    let leased = store.lease(&t, &g, 9, Duration::from_secs(60)).wait().unwrap().deliveries;
    store.nack(leased[1].lease_id, Duration::ZERO, CANARIES[3]).wait().unwrap();
    store.term(leased[2].lease_id, "code", CANARIES[4]).wait().unwrap();
    let mut claim = claim("act", "k", "p");
    claim.intent = CANARIES[2].as_bytes().to_vec();
    claim.resources = vec![resource(CANARIES[7])];
    let admission = Admission {
        topic: topic("ACTION_DECISION"),
        group: g,
        ttl: Duration::from_secs(60),
        event: sealed_event("decision", "act", CANARIES[1].as_bytes()),
        claim,
    };
    store.admit(admission).wait().unwrap();
    let mut failed = completion(&other(), Status::Error, None);
    failed.letter = Some(NewDeadLetter {
        topic: topic("ACTION_DECISION"),
        code: "code".into(),
        detail: CANARIES[4].into(),
        attempts: 1,
        tries: Vec::new(),
        payload: CANARIES[5].as_bytes().to_vec(),
    });
    store.commit(failed).wait().unwrap();
    hold(store, CANARIES[6]);
}

fn other() -> effectd_bus::Claim {
    claim("other", "other", "p")
}

fn hold(store: &dyn Store, value: &str) {
    let change = KvChange::Put(NewBody::Sealed(value.as_bytes().to_vec()));
    let swap = Swap { family: family("holds"), key: "h".into(), expect: Expect::Any, change };
    store.change(Change { swaps: vec![swap], ..Change::default() }).wait().unwrap();
}

#[test]
fn no_sensitive_field_is_on_disk_in_clear() {
    BOTH.into_iter().for_each(nothing_in_clear);
}

fn nothing_in_clear(journal: JournalKind) {
    let state = tempfile::tempdir().unwrap();
    let clock = Arc::new(ManualClock::at(Timestamp::from_second(1_800_000_000).unwrap()));
    let store = open(state.path(), journal, &clock);
    plant(&store);
    scan(state.path(), "while it is open");
    store.close().unwrap();
    drop(store);
    scan(state.path(), "after it was closed");
    let store = open(state.path(), journal, &clock);
    clock.advance(Duration::from_secs(7_200));
    store.close_epochs(clock.now()).wait().unwrap();
    store.change(put("f", "k", Expect::Any, "v")).wait().unwrap();
    store.close().unwrap();
    scan(state.path(), "after it was sealed again");
    // The control: the scan found nothing although the values still exist.
    let store = open(state.path(), journal, &clock);
    let entry = store.entry(&family("holds"), "h").unwrap().unwrap();
    assert_eq!(entry.value, Body::Opened(CANARIES[6].as_bytes().to_vec()));
}

#[test]
fn nothing_sensitive_is_left_in_clear_by_a_crash() {
    BOTH.into_iter().for_each(nothing_left_by_a_crash);
}

fn nothing_left_by_a_crash(journal: JournalKind) {
    let state = tempfile::tempdir().unwrap();
    for round in 0..5 {
        let worker = Worker::start(state.path(), &Order { round, journal, ..Order::default() });
        while !worker.line().expect("the child is alive").starts_with("committed") {}
        worker.kill();
        // What the child seals: the bodies of its events and the requests of its decisions.
        for secret in ["xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx", "the request", "intent of "] {
            assert_eq!(found(state.path(), secret), Vec::<PathBuf>::new(), "{secret}");
        }
        assert!(!found(state.path(), "receipt-").is_empty(), "receipts are in clear");
    }
}

#[test]
fn a_closed_epoch_stays_sealed_even_with_the_device_key() {
    BOTH.into_iter().for_each(closed_for_good);
}

fn closed_for_good(journal: JournalKind) {
    let state = tempfile::tempdir().unwrap();
    let clock = Arc::new(ManualClock::at(Timestamp::from_second(1_800_000_000).unwrap()));
    let epoch = Vault::epoch_of(clock.now());
    let store = open(state.path(), journal, &clock);
    let (t, g) = (topic("t"), group("g"));
    store.publish(&t, vec![sealed_event("1", "a", b"the secret")]).wait().unwrap();
    hold(&store, "still held");
    let leased = store.lease(&t, &g, 9, Duration::from_secs(60)).wait().unwrap().deliveries;
    store.ack(leased[0].lease_id).wait().unwrap();
    let key_file = state.path().join(format!("keys/epochs/{epoch}.key"));
    let wrapped = std::fs::read(&key_file).unwrap();
    clock.advance(Duration::from_secs(7_200));
    let report = store.close_epochs(clock.now()).wait().unwrap();
    assert_eq!((report.closed.as_slice(), report.resealed), (&[epoch][..], 1));
    assert_eq!(store.read(&t, 0, 9).unwrap().events[0].body, Body::Shredded);
    store.close().unwrap();
    drop(store);

    // No file has the wrapped key any more, so the device key has nothing to unwrap.
    assert!(!key_file.exists());
    let mut all = Vec::new();
    files(state.path(), &mut all);
    let secret = &wrapped[37..];
    for path in &all {
        let bytes = std::fs::read(path).unwrap();
        assert!(!bytes.windows(secret.len()).any(|window| window == secret), "{path:?} still has the key");
    }
    let vault = Vault::open(state.path().join("keys"), false).unwrap();
    assert_eq!(vault.open_sealed(epoch, Kind::Event, "a", b"anything"), Ok(None));
    assert!(!vault.epochs().contains(&epoch));
    drop(vault);

    // Live data continues. The control: with the key file restored, the old bytes can be opened.
    let store = open(state.path(), journal, &clock);
    let entry = store.entry(&family("holds"), "h").unwrap().unwrap();
    assert_eq!(entry.value, Body::Opened(b"still held".to_vec()));
    assert_eq!(store.read(&t, 0, 9).unwrap().events[0].body, Body::Shredded);
    store.audit().wait().unwrap();
    store.close().unwrap();
    drop(store);
    std::fs::write(&key_file, &wrapped).unwrap();
    assert!(Vault::open(state.path().join("keys"), false).unwrap().epochs().contains(&epoch));
    // A key that is restored from a backup of the key directory is destroyed again on open.
    let store = open(state.path(), journal, &clock);
    assert!(!key_file.exists());
    assert_eq!(store.read(&t, 0, 9).unwrap().events[0].body, Body::Shredded);
}
