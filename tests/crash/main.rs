//! Crash tests: whatever is killed, one action has one receipt, and the receipt is true.
//!
//! This program is the parent that kills, the runtime that is killed, and, since it brings tools of its own, the
//! zygote and the confined children. Each tool leaves a witness file in the workspace, which the runtime does not write:
//! the number of its lines is how often the effect really happened.
//!
//! ```sh
//! cargo test --workspace --test crash                          # everything but the soak
//! cargo test --workspace --test crash -- matrix                # tests whose name has this in it
//! cargo test --workspace --test crash -- soak --seconds 60     # many actions in flight, killed at random
//! ```
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::print_stdout, clippy::print_stderr)]
#![allow(
    clippy::disallowed_types,
    clippy::disallowed_methods,
    reason = "tests start programs and use sockets"
)]

mod child;
mod declared_effects;
mod harness;
mod place;
mod plans;
mod tools;
mod undeclared_effects;

mod batches;
mod commands;
mod embedding;
mod every_tool;
mod exchanges;
mod faults;
mod intent_first;
mod interrupted_writes;
mod library;
mod long_outputs;
mod matrix;
mod measurements;
mod power_failure;
mod restarts;
mod retries;
mod settlement;
mod shutdown;
mod soak;

use std::process::ExitCode;

/// One test: its name and its function.
type Test = (&'static str, fn());

fn tests() -> Vec<Test> {
    [
        // It takes longest, so it begins first.
        declared_effects::TESTS,
        matrix::TESTS,
        every_tool::TESTS,
        power_failure::TESTS,
        settlement::TESTS,
        batches::TESTS,
        commands::TESTS,
        plans::TESTS,
        faults::TESTS,
        restarts::TESTS,
        retries::TESTS,
        measurements::TESTS,
        shutdown::TESTS,
        embedding::TESTS,
        library::TESTS,
        long_outputs::TESTS,
        interrupted_writes::TESTS,
        intent_first::TESTS,
        undeclared_effects::TESTS,
        exchanges::TESTS,
    ]
    .concat()
}

fn main() -> ExitCode {
    effectd::init(undeclared_effects::ALL);
    harness::quiet_panics();
    match std::env::args().nth(1).as_deref() {
        // The program `effectd` itself, with the tools of these tests.
        Some("run" | "serve" | "tools" | "artifacts") => effectd::cli::main(),
        Some("__child") => child::main(),
        Some("soak") => soak::main(),
        _ => harness::main(&tests()),
    }
}
