//! `kill -9`, at random moments and at every named point between the steps of a write.

use effectd_bus::failpoint::POINTS;

use crate::child::{Order, Worker};
use crate::witness::Witness;

const RANDOM_ROUNDS: u32 = 160;
const ROUNDS_PER_STORE: u32 = 8;
const TIMES_PER_POINT: [u32; 5] = [1, 2, 3, 11, 29];

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
fn nothing_answered_is_lost_when_the_process_is_killed_at_random() {
    let mut dice = Dice(0x9e37_79b9_7f4a_7c15);
    for store in 0..RANDOM_ROUNDS / ROUNDS_PER_STORE {
        let state = tempfile::tempdir().unwrap();
        let mut witness = Witness::default();
        for round in 0..ROUNDS_PER_STORE {
            let worker = Worker::start(
                state.path(),
                &Order {
                    round,
                    ..Order::default()
                },
            );
            let lines = 1 + dice.below(80);
            for _ in 0..lines {
                witness.hear(&worker.line().expect("the child is alive"));
            }
            worker.kill().iter().for_each(|line| witness.hear(line));
            witness
                .check(state.path())
                .unwrap_or_else(|error| panic!("store {store}, round {round}: {error}"));
        }
        assert!(witness.heard() > 0);
    }
}

#[test]
fn nothing_answered_is_lost_at_any_named_point() {
    for point in POINTS {
        let state = tempfile::tempdir().unwrap();
        let mut witness = Witness::default();
        let mut visited = 0;
        for (round, times) in (0..).zip(TIMES_PER_POINT) {
            let order = Order {
                round,
                steps: Some(60),
                failpoint: Some(format!("{point}:{times}")),
                no_sync: false,
            };
            let worker = Worker::start(state.path(), &order);
            while let Some(line) = worker.line() {
                if line == "stopped" {
                    visited += 1;
                    break;
                }
                witness.hear(&line);
            }
            worker.kill().iter().for_each(|line| witness.hear(line));
            witness
                .check(state.path())
                .unwrap_or_else(|error| panic!("{point}, time {times}: {error}"));
        }
        assert!(visited > 0, "{point} was never reached");
    }
}

#[test]
fn a_child_that_is_not_killed_ends_well() {
    let state = tempfile::tempdir().unwrap();
    let mut witness = Witness::default();
    let worker = Worker::start(
        state.path(),
        &Order {
            steps: Some(50),
            ..Order::default()
        },
    );
    let lines = worker.finish();
    assert!(lines.iter().any(|line| line == "closed"));
    lines.iter().for_each(|line| witness.hear(line));
    witness.check(state.path()).unwrap();
}
