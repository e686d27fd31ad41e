//! The bytes of every stored format. A change here breaks the stores that people have: make a new kind instead.

use std::fmt::Write as _;

use effectd_bus::codec::{Hash16, Location};
use effectd_bus::fingerprint::fingerprint;
use effectd_bus::journal::block::{self, Builder};
use effectd_bus::journal::record::{
    AcknowledgedRecord, Blob, ClaimRecord, DeadLetterRecord, Ending, EventRecord, ExpiredRecord,
    LeasedRecord, LostRecord, Payload, ReceiptRecord, Record,
};
use effectd_bus::state::checkpoint::Checkpoint;
use effectd_bus::state::{BlockChanges, Derived, State, When};
use effectd_bus::testing::values::{action, event, family, group, receipt_id, space, topic};
use effectd_bus::vault::{Kind, Vault};
use effectd_bus::{Exhausted, GroupOptions};
use effectd_contracts::digest::{hex, unhex};
use effectd_contracts::{Digest, Monotonic, Status, SubjectId, ToolId};

const GOLDEN: &str = include_str!("golden.txt");

fn clear(bytes: &[u8]) -> Payload {
    Payload { epoch: None, blob: Blob::Draft(bytes.to_vec()) }
}

fn sealed(bytes: &[u8]) -> Payload {
    Payload { epoch: Some(500_000), blob: Blob::Draft(bytes.to_vec()) }
}

fn published(offset: u64) -> Record {
    let event = event(&format!("e{offset}"));
    Record::Published {
        topic: topic("t"),
        offset,
        event: EventRecord {
            event_id: event.event_id,
            time_ms: 1_800_000_000_000,
            trace_id: event.trace_id,
            action_id: (offset == 1).then(|| action("a")),
            body: if offset == 1 { sealed(b"sealed") } else { clear(b"{}") },
        },
    }
}

fn settled(offset: u64, how: Ending) -> Record {
    Record::Acknowledged(AcknowledgedRecord { topic: topic("t"), group: group("g"), offset, how })
}

fn letter() -> DeadLetterRecord {
    DeadLetterRecord {
        letter: 0,
        topic: topic("t"),
        delivery: Some((group("g"), 2)),
        receipt_id: None,
        action_id: Some(action("a")),
        code: "malformed".into(),
        fingerprint: fingerprint(None, "malformed", "why"),
        attempts: 2,
        detail: sealed(b"why"),
        payload: sealed(b"body"),
        tries: None,
    }
}

fn receipt() -> ReceiptRecord {
    ReceiptRecord {
        ordinal: 0,
        receipt_id: receipt_id("r"),
        action_id: action("a"),
        action_digest: Digest::of(b"request"),
        tool_id: ToolId::new("files.write_text").unwrap(),
        subject_id: SubjectId::new("agent://planner").unwrap(),
        space_id: space("shared:test"),
        status: Status::Ok,
        key: Some(Hash16::of(&[b"key"])),
        params_digest: Digest::of(b"params"),
        time_ms: 1_800_000_000_000,
        body_hash: Hash16::of(&[b"{}"]),
        body: Blob::Draft(b"{}".to_vec()),
    }
}

fn claimed() -> ClaimRecord {
    ClaimRecord {
        action_id: action("a"),
        action_digest: Digest::of(b"request"),
        space: space("shared:test"),
        key: Some(Hash16::of(&[b"key"])),
        params_digest: Digest::of(b"params"),
        resources: vec![Hash16::of(&[b"file"])],
        fence: 0,
        intent: sealed(b"intent"),
    }
}

/// One record of every kind, in an order that follows.
fn records() -> Vec<(&'static str, Record)> {
    let options = GroupOptions { deliveries_max: 7, exhausted: Exhausted::HandOver };
    let leased = |grants| LeasedRecord { topic: topic("t"), group: group("g"), ttl_ms: 30_000, grants };
    let linked = Record::Linked { action: Hash16::of(&[b"b"]), action_digest: Digest::of(b"b"), ordinal: 0 };
    let completion =
        DeadLetterRecord { letter: 1, delivery: None, receipt_id: Some(receipt_id("r")), ..letter() };
    let put = |version, created, value| Record::EntryPut {
        family: family("holds"),
        key: "h".into(),
        version,
        created,
        value,
    };
    vec![
        ("published, clear", published(0)),
        ("published, sealed", published(1)),
        ("published, third", published(2)),
        ("configured", Record::Configured { topic: topic("t"), group: group("g"), options }),
        ("leased", Record::Leased(leased(vec![(0, 0), (1, 1), (2, 2)]))),
        ("settled, done", settled(0, Ending::Done)),
        ("settled, nacked", settled(1, Ending::Nacked { delay_ms: 5_000, detail: sealed(b"why") })),
        ("settled, deferred", settled(2, Ending::Deferred { delay_ms: 1_000 })),
        ("lettered, delivery", Record::DeadLettered(letter())),
        ("claimed", Record::Claimed(claimed())),
        ("taken over", Record::TakenOver { action: effectd_bus::index::schema::action_hash("a"), fence: 1 }),
        ("completed", Record::Completed(receipt())),
        ("lettered, completion", Record::DeadLettered(completion)),
        ("linked", linked),
        ("entry put", put(0, true, sealed(b"value"))),
        ("entry put, clear", put(1, false, clear(b"value"))),
        ("entry deleted", Record::EntryDeleted { family: family("holds"), key: "h".into() }),
        ("letter ended", Record::DeadLetterEnded { letter: 9, reopened: Some(Hash16::of(&[b"c"])) }),
        ("noted", Record::Noted { about: Hash16::of(&[b"key"]), body: Blob::Draft(b"{}".to_vec()) }),
        ("epoch closed", Record::EpochClosed { epoch: 500_000 }),
        ("sought", Record::Sought { topic: topic("t"), group: group("g"), offset: 1 }),
        (
            "lettered, with attempts",
            Record::DeadLettered(DeadLetterRecord { letter: 2, tries: Some(sealed(b"tries")), ..letter() }),
        ),
        (
            "letter moved",
            Record::DeadLetterMoved {
                at_ms: 1_700_000_000_000,
                letter: DeadLetterRecord { tries: Some(sealed(b"tries")), ..letter() },
            },
        ),
        (
            "letter moved, without attempts",
            Record::DeadLetterMoved { at_ms: 1_700_000_000_000, letter: letter() },
        ),
        ("claimed again", Record::Claimed(ClaimRecord { fence: 2, ..claimed() })),
        ("claim moved", Record::ClaimMoved { fence: 2, intent: sealed(b"intent") }),
        ("disturbed", Record::Invalidated { ordinal: 1, resources: vec![Hash16::of(&[b"folder"])] }),
        ("event moved", moved()),
        ("group removed", Record::GroupRemoved { topic: topic("t"), group: group("h") }),
        (
            "expired",
            Record::Expired(ExpiredRecord {
                receipts_begin: 1,
                epochs_before: 400_000,
                topics: vec![(topic("t"), 2, true)],
            }),
        ),
    ]
}

fn moved() -> Record {
    let Record::Published { topic, offset, event } = published(1) else { unreachable!() };
    Record::EventMoved { at_ms: 1_700_000_000_000, topic, offset, event }
}

fn formats() -> String {
    let mut text = String::new();
    let mut builder = Builder::new(1, 0, 1_800_000_000_000);
    let mut state = State::default();
    let mut changes = BlockChanges::default();
    let when =
        When { at_ms: 1_800_000_000_000, now_ms: 1_800_000_000_000, now: Monotonic::default(), replay: true };
    for (name, mut record) in records() {
        let mut bytes = Vec::new();
        record.clone().encode(&mut bytes);
        writeln!(text, "{name}: {}", hex(&bytes)).unwrap();
        let span = builder.push(&mut record);
        let derived = Derived::of(&record, builder.bytes());
        state.apply(Location { seq: 1, span }, &record, derived, when, &mut changes).unwrap();
    }
    state.end_block(1, 1_800_000_000_000, &mut changes);
    let (block, checksum) = builder.finish();
    writeln!(text, "block: {}", hex(&block)).unwrap();
    writeln!(text, "snapshot: {}", hex(&state.snapshot(1))).unwrap();
    let checkpoint = Checkpoint {
        first: 2,
        checksum,
        at_ms: 1_800_000_000_000,
        snapshot: state.snapshot(1),
        index: changes.index.clone(),
    };
    let bytes = checkpoint.encode();
    let read = Checkpoint::decode(&bytes).unwrap();
    // Deleted entries are not written.
    assert_eq!(read.encode(), bytes);
    assert!(read.index.len() < checkpoint.index.len());
    for at in 0..bytes.len() {
        let mut changed = bytes.clone();
        changed[at] ^= 2;
        assert!(Checkpoint::decode(&changed).is_err(), "byte {at}");
        assert!(Checkpoint::decode(&bytes[..at]).is_err(), "cut at {at}");
    }
    writeln!(text, "ground: {}", hex(&bytes)).unwrap();
    for (key, cell) in changes.index.cells() {
        writeln!(text, "index {}: {cell:?}", hex(key)).unwrap();
    }
    text
}

/// A format that is deliberately new is written by `EFFECTD_BLESS=1 cargo test -p effectd-bus`; then read what changed.
#[test]
fn every_stored_byte_is_as_it_was() {
    let now = formats();
    if std::env::var_os("EFFECTD_BLESS").is_some() {
        let file = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/all/golden.txt");
        std::fs::write(file, &now).unwrap();
        return;
    }
    for (line, golden) in now.lines().zip(GOLDEN.lines()) {
        assert_eq!(line, golden);
    }
    assert_eq!(now.lines().count(), GOLDEN.lines().count());
}

/// Only salvage writes it, so it is not among the records of one journal.
#[test]
fn the_record_of_lost_blocks_is_as_it_was() {
    let mut lost = Record::Lost(LostRecord {
        next_ordinal: 2,
        next_fence: 3,
        next_lease: 4,
        next_letter: 5,
        log_from: 6,
        leaves: vec![[7; 32]],
        acknowledged: vec![(topic("t"), group("g"), 8)],
        keys: vec![(Hash16([9; 16]), 10, [11; 32])],
    });
    let mut bytes = Vec::new();
    lost.encode(&mut bytes);
    let (leaf, key, digest) = ("07".repeat(32), "09".repeat(16), "0b".repeat(32));
    assert_eq!(hex(&bytes), format!("14020304050601{leaf}01017401670801{key}0a{digest}"));
}

#[test]
fn what_was_stored_is_read_back() {
    let line = GOLDEN.lines().find_map(|line| line.strip_prefix("block: ")).unwrap();
    let bytes = unhex(line).unwrap();
    let header = block::check(&bytes).unwrap();
    assert_eq!((header.seq, header.records, header.at_ms), (1, 30, 1_800_000_000_000));
    let read: Vec<Record> = block::records(&bytes).map(|record| record.unwrap().1).collect();
    let mut builder = Builder::new(1, 0, header.at_ms);
    let written: Vec<Record> = records()
        .into_iter()
        .map(|(_, mut record)| {
            builder.push(&mut record);
            record
        })
        .collect();
    assert_eq!(read, written);
}

#[test]
fn a_block_of_a_newer_format_is_refused_and_a_changed_one_found() {
    let line = GOLDEN.lines().find_map(|line| line.strip_prefix("block: ")).unwrap();
    let bytes = unhex(line).unwrap();
    let mut newer = bytes.clone();
    newer[4] += 1;
    assert_eq!(block::check(&newer), Err(block::BlockError::Newer(block::FORMAT + 1)));
    for at in 0..bytes.len() {
        let mut changed = bytes.clone();
        changed[at] ^= 0x10;
        assert!(block::check(&changed).is_err(), "byte {at}");
        assert!(block::check(&bytes[..at]).is_err(), "cut at {at}");
    }
}

#[test]
fn a_sealed_payload_of_the_first_format_opens() {
    let keys = tempfile::tempdir().unwrap();
    let line =
        |name: &str| unhex(GOLDEN_KEYS.lines().find_map(|line| line.strip_prefix(name)).unwrap()).unwrap();
    std::fs::create_dir(keys.path().join("epochs")).unwrap();
    std::fs::write(keys.path().join("device.key"), line("device: ")).unwrap();
    std::fs::write(keys.path().join("epochs/500000.key"), line("epoch 500000: ")).unwrap();
    let vault = Vault::open(keys.path().to_owned(), false).unwrap();
    let opened = vault.open_sealed(500_000, Kind::Intent, "action", &line("sealed: ")).unwrap();
    assert_eq!(opened.as_deref(), Some(&b"the first secret"[..]));
}

/// Keys and a payload sealed under them, created once. A later format adds another file; this one must open forever.
const GOLDEN_KEYS: &str = include_str!("golden_keys.txt");
