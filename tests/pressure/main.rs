//! What happens when too much comes at once, or a tool keeps failing: the real runtime, the real sandbox, the real disk.
//!
//! Like the crash tests, this program is runtime, zygote and confined children in one, since it brings tools of its own.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::print_stdout,
    clippy::print_stderr,
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
mod floods;
mod order;
mod rates;

use std::process::ExitCode;

/// One test: a sentence, and what proves it.
type Test = (&'static str, fn());

fn main() -> ExitCode {
    effectd::init_with(tools::ALL);
    harness::main(&[breakers::TESTS, rates::TESTS, floods::TESTS, order::TESTS].concat())
}
