//! Pressure tests: floods, rates, order and breakers, with the real runtime, sandbox and disk.
//!
//! Like the crash tests, this program is the runtime, the zygote and the confined children, since it brings tools of its own.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::print_stdout,
    clippy::print_stderr,
    clippy::disallowed_types,
    clippy::disallowed_methods,
    dead_code,
    reason = "shares the tools and the small harness of the crash tests, and uses a part of them"
)]

#[path = "../crash/child.rs"]
mod child;
#[path = "../crash/harness.rs"]
mod harness;
#[path = "../crash/place.rs"]
mod place;
#[path = "../crash/tools.rs"]
mod tools;

mod breakers;
mod fair_order;
mod floods;
mod rates;

use std::process::ExitCode;

/// One test: its name and its function.
type Test = (&'static str, fn());

fn main() -> ExitCode {
    effectd::init(tools::ALL);
    harness::main(&[breakers::TESTS, rates::TESTS, floods::TESTS, fair_order::TESTS].concat())
}
