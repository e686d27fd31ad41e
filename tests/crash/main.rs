//! Whatever dies, one action has one receipt, and the receipt tells the truth.
//!
//! This program is everything at once: the parent that kills, the runtime that is killed, and, since it brings tools of its
//! own, the zygote and the confined children. Each tool leaves a witness in the workspace, outside of everything that the
//! runtime writes: the number of its lines is how often the effect really happened.
//!
//! ```sh
//! cargo test --workspace --test crash                          # everything but the soak
//! cargo test --workspace --test crash -- matrix                # tests whose name has this in it
//! cargo test --workspace --test crash -- soak --seconds 60     # many actions in flight, killed at random
//! ```
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::print_stdout,
    clippy::print_stderr
)]

mod child;
mod harness;
mod honest;
mod liars;
mod place;
mod tools;

mod at_length;
mod drafts;
mod embedding;
mod faults;
mod figures;
mod intent;
mod matrix;
mod power;
mod registered;
mod restarts;
mod retries;
mod settlement;
mod shutdown;
mod soak;

use std::process::ExitCode;

/// One test: a sentence, and what proves it.
type Test = (&'static str, fn());

fn tests() -> Vec<Test> {
    [
        matrix::TESTS,
        registered::TESTS,
        power::TESTS,
        settlement::TESTS,
        faults::TESTS,
        restarts::TESTS,
        retries::TESTS,
        figures::TESTS,
        shutdown::TESTS,
        embedding::TESTS,
        at_length::TESTS,
        drafts::TESTS,
        intent::TESTS,
        liars::TESTS,
        honest::TESTS,
    ]
    .concat()
}

fn main() -> ExitCode {
    effectd::init_with(liars::ALL);
    harness::quiet_panics();
    match std::env::args().nth(1).as_deref() {
        // The program `effectd` itself, with the tools of these tests.
        Some("run" | "serve" | "tools" | "artifacts") => effectd::cli::main(),
        Some("__child") => child::main(),
        Some("soak") => soak::main(),
        _ => harness::main(&tests()),
    }
}
