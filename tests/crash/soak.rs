//! Soak test: many actions in flight, killed at random again and again. Not part of the default run; `main.rs` has the command.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use effectd::contracts::Outcome;
use serde_json::Value;

use crate::harness::side_by_side;
use crate::place::{Order, Place, request};
use crate::tools::{NEVER, PROBE, SAFE};

const ACTIONS: usize = 60;
/// Kills in one round. A decision becomes a dead letter after five deliveries, so more kills would end good decisions.
const KILLS: usize = 4;

/// A generator whose seed is printed, so that a failure can be repeated.
struct Dice(u64);

impl Dice {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % bound
    }
}

#[derive(Default)]
struct Tally {
    rounds: usize,
    kills: usize,
    actions: usize,
    ok: usize,
    unknown: usize,
    told: usize,
}

pub(crate) fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().collect();
    let after = |name: &str| {
        let at = arguments.iter().position(|argument| argument == name)?;
        arguments.get(at + 1)?.parse::<u64>().ok()
    };
    let seconds = after("--seconds").unwrap_or(60);
    let seed = after("--seed").unwrap_or(0x9e37_79b9_7f4a_7c15);
    let end = Instant::now() + Duration::from_secs(seconds);
    let lanes: Vec<u64> = (0..crate::harness::SIDE_BY_SIDE as u64).collect();
    let tallies = side_by_side(&lanes, |lane| {
        let mut tally = Tally::default();
        let mut dice = Dice(seed ^ (lane + 1).wrapping_mul(0x2545_f491_4f6c_dd1d));
        while Instant::now() < end {
            round(&mut dice, &mut tally);
        }
        tally
    });
    let sum = |of: fn(&Tally) -> usize| tallies.iter().map(of).sum::<usize>();
    println!(
        "soak: {seconds} s, seed {seed}: {} rounds, {} kills, {} actions, each with one receipt: {} ok, {} outcome unknown; \
         {} answers were given before a kill, and all of them held",
        sum(|t| t.rounds),
        sum(|t| t.kills),
        sum(|t| t.actions),
        sum(|t| t.ok),
        sum(|t| t.unknown),
        sum(|t| t.told),
    );
    ExitCode::SUCCESS
}

fn round(dice: &mut Dice, tally: &mut Tally) {
    let place = Place::new();
    let requests: Vec<Value> =
        (0..ACTIONS).map(|n| request(&format!("a-{n}"), [SAFE, PROBE, NEVER][n % 3])).collect();
    let mut told: Vec<Value> = Vec::new();
    for _ in 0..KILLS {
        let order = Order {
            mode: if dice.below(2) == 0 { "exec" } else { "submit" },
            requests: requests.clone(),
            stop_at: None,
        };
        let process = place.start(&order);
        let mut said = Vec::new();
        for _ in 0..1 + dice.below(2 * ACTIONS as u64) {
            match process.line() {
                Some(line) => said.push(line),
                None => break,
            }
        }
        said.extend(process.kill());
        let answers = said.iter().filter_map(|line| line.strip_prefix("answer "));
        told.extend(answers.map(|text| serde_json::from_str::<Value>(text).unwrap()));
        tally.kills += 1;
    }
    let ended = place.run("exec", &requests);
    let report = ended.report;
    report.all_settled();
    assert_eq!(report.receipts.len(), ACTIONS);
    for answer in &told {
        let id = answer["action_id"].as_str().unwrap();
        let receipt = serde_json::to_value(report.the_receipt(id)).unwrap();
        assert_eq!(&receipt, answer, "what was told is not what is on disk");
    }
    for request in &requests {
        let (id, tool) = (request["action_id"].as_str().unwrap(), request["tool_id"].as_str().unwrap());
        let receipt = report.the_receipt(id);
        let (ok, effects) = (receipt.outcome == Outcome::Executed, place.effects(id));
        let unknown = receipt.outcome == Outcome::Indeterminate;
        assert!(ok || unknown, "{receipt:#?}");
        assert_eq!(report.letters_of(id).len(), usize::from(unknown), "{receipt:#?}");
        match tool {
            SAFE => assert!(ok && (1..=1 + KILLS).contains(&effects), "{effects}: {receipt:#?}"),
            PROBE => assert!(ok && effects == 1, "{effects}: {receipt:#?}"),
            _ => assert!(effects <= 1 && (unknown || effects == 1), "{effects}: {receipt:#?}"),
        }
        tally.ok += usize::from(ok);
        tally.unknown += usize::from(unknown);
    }
    tally.told += told.len();
    tally.actions += ACTIONS;
    tally.rounds += 1;
}
