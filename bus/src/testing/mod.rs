//! The conformance suite: the guarantees of [`crate::Store`], one a case.
//!
//! An engine's test creates a [`Fixture`] for each of [`CASES`] and runs it. A case fails by panicking.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::missing_panics_doc,
    reason = "a test suite fails by panicking"
)]

mod askers;
mod claims;
mod dead_letters;
mod groups;
mod kv;
mod log;
mod receipts;
pub mod retention;
mod sealing;
mod topics;
pub mod values;

use std::sync::Arc;
use std::time::Duration;

use effectd_contracts::{ManualClock, Timestamp};

use crate::store::Store;

/// An engine under test, with its own store.
pub trait Fixture {
    /// Opens the store. Called again after the store was closed, it finds what was stored.
    fn open(&self, clock: Arc<ManualClock>) -> Arc<dyn Store>;
}

pub struct Bench<'a> {
    fixture: &'a dyn Fixture,
    /// Stands still until the case advances it.
    pub clock: Arc<ManualClock>,
    pub store: Arc<dyn Store>,
}

impl std::fmt::Debug for Bench<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Bench")
    }
}

impl<'a> Bench<'a> {
    pub fn new(fixture: &'a dyn Fixture) -> Self {
        let clock = Arc::new(ManualClock::at(Timestamp::from_second(1_800_000_000).unwrap()));
        let store = fixture.open(clock.clone());
        Bench { fixture, clock, store }
    }

    pub fn advance(&self, by: Duration) {
        self.clock.advance(by);
    }

    pub fn reopen(&mut self) {
        self.store.close().unwrap();
        self.store = self.fixture.open(self.clock.clone());
    }
}

/// One promise, by name.
pub type Case = (&'static str, fn(&mut Bench<'_>));

pub fn cases() -> Vec<Case> {
    [
        topics::CASES,
        groups::CASES,
        claims::CASES,
        askers::CASES,
        receipts::CASES,
        kv::CASES,
        dead_letters::CASES,
        log::CASES,
        sealing::CASES,
        retention::CASES,
    ]
    .concat()
}

pub fn run(mut fixture: impl FnMut() -> Box<dyn Fixture>) {
    for (name, case) in cases() {
        let fixture = fixture();
        let mut bench = Bench::new(fixture.as_ref());
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| case(&mut bench)));
        if let Err(panic) = outcome {
            #[expect(clippy::print_stderr, reason = "says which case it was")]
            {
                eprintln!("conformance case failed: {name}");
            }
            std::panic::resume_unwind(panic);
        }
    }
}
