//! `kill -9`, at random moments and at every named point between the steps of a write.

use std::time::Duration;

use effectd_bus::embedded::JournalKind;
use effectd_bus::failpoint::POINTS;

use crate::child::{Order, Worker};
use crate::witness::Witness;

const RANDOM_ROUNDS: u32 = 200;
const ROUNDS_PER_STORE: u32 = 8;
/// Things that a child may say before it has dropped a block.
const LINES_MAX: u32 = 5_000;

/// For which of a child's passes over a point it is killed there: some points are passed with every block, some with every
/// file of the index, some with every merge of files, one once.
fn passes(point: &str) -> [u32; 5] {
    match point {
        "journal.opening" => [1; 5],
        "index.after_merge" | "index.before_drop" => [1, 1, 2, 2, 3],
        point if point.starts_with("retain.") => [1, 1, 2, 2, 3],
        "journal.after_begin" | "journal.after_table" | "journal.forwarded" => [1, 1, 2, 2, 3],
        point if point.starts_with("index.") => [1, 2, 3, 4, 5],
        _ => [1, 2, 3, 11, 29],
    }
}

/// A generator with a fixed beginning, so that a failure can be run again.
struct Dice(u64);

impl Dice {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % bound
    }
}

#[test]
fn nothing_answered_is_lost_by_kills_at_random() {
    let mut dice = Dice(0x9e37_79b9_7f4a_7c15);
    let mut killed = 0;
    for store in 0..RANDOM_ROUNDS / ROUNDS_PER_STORE {
        let state = tempfile::tempdir().unwrap();
        let retains = store % 2 == 1;
        let mut witness = Witness::of(retains);
        for round in 0..ROUNDS_PER_STORE {
            let worker = Worker::start(
                state.path(),
                &Order {
                    round,
                    journal: if store % 3 == 2 { JournalKind::Sled } else { JournalKind::default() },
                    retains,
                    ..Order::default()
                },
            );
            let hear = |witness: &mut Witness| witness.hear(&worker.line().expect("the child is alive"));
            // A kill meets a store that is being truncated only if there was time for that.
            let before = witness.retained.0;
            for _ in 0..LINES_MAX {
                if !retains || witness.retained.0 > before {
                    break;
                }
                hear(&mut witness);
            }
            assert!(!retains || witness.retained.0 > before, "nothing was let go");
            (0..=dice.below(80)).for_each(|_| hear(&mut witness));
            let (rest, died_of_it) = worker.kill();
            killed += u32::from(died_of_it);
            rest.iter().for_each(|line| witness.hear(line));
            witness
                .check(state.path())
                .unwrap_or_else(|error| panic!("store {store}, round {round}: {error}"));
        }
        assert!(witness.heard() > 0);
        assert!(!retains || witness.retained.1 > 0, "store {store}: nothing was written forward");
    }
    assert!(killed >= 200, "only {killed} children died of a kill");
}

#[test]
fn nothing_answered_is_lost_at_any_named_point() {
    at_every_point(JournalKind::Files, &["journal.forwarded"]);
}

#[test]
fn nothing_answered_is_lost_at_any_named_point_in_sled() {
    at_every_point(JournalKind::Sled, &["journal.after_begin", "journal.after_table"]);
}

/// All points but those that only the other engine passes.
fn at_every_point(journal: JournalKind, others: &[&str]) {
    let passed = |point: &&str| !others.contains(point) && !point.starts_with("migrate.");
    for point in POINTS.into_iter().filter(passed) {
        let state = tempfile::tempdir().unwrap();
        let retains = point.starts_with("retain.") || point == "journal.forwarded";
        let mut witness = Witness::of(retains);
        let mut killed_there = 0;
        for (round, times) in (0..).zip(passes(point)) {
            let order = Order {
                round,
                // Far more than lead to any point: how many files of the index are written on the way depends on the machine.
                steps: Some(5_000),
                failpoint: Some(format!("{point}:{times}")),
                journal,
                retains,
                ..Order::default()
            };
            let worker = Worker::start(state.path(), &order);
            let mut is_there = false;
            while let Some(line) = worker.line() {
                is_there = line == "stopped";
                if is_there {
                    break;
                }
                witness.hear(&line);
            }
            let (rest, died_of_it) = worker.kill();
            killed_there += u32::from(is_there && died_of_it);
            rest.iter().for_each(|line| witness.hear(line));
            witness.check(state.path()).unwrap_or_else(|error| panic!("{point}, time {times}: {error}"));
        }
        assert_eq!(killed_there, 5, "children did not reach {point}");
    }
}

#[test]
fn a_child_that_is_not_killed_ends_well() {
    let state = tempfile::tempdir().unwrap();
    let mut witness = Witness::default();
    let worker = Worker::start(state.path(), &Order { steps: Some(50), ..Order::default() });
    let lines = worker.finish();
    assert!(lines.iter().any(|line| line == "closed"));
    lines.iter().for_each(|line| witness.hear(line));
    witness.check(state.path()).unwrap();
}

#[test]
fn a_journal_that_never_opens_is_told_and_does_not_hang() {
    let state = tempfile::tempdir().unwrap();
    let order = Order {
        failpoint: Some("journal.opening:1".into()),
        journal: JournalKind::Sled,
        open_max: Some(Duration::from_millis(50)),
        ..Order::default()
    };
    let lines = Worker::start(state.path(), &order).finish();
    let refused = lines.iter().find(|line| line.starts_with("refused "));
    let words = refused.unwrap_or_else(|| panic!("{lines:?}"));
    assert!(words.contains("opening the journal did not end within 50ms"), "{words}");
    assert!(words.contains("restore the last backup"), "{words}");
}
