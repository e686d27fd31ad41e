//! effectd as its users meet it: the real program, the real store, the real sandbox.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::print_stderr,
    unreachable_pub
)]

mod harness;
#[path = "../harness/mod.rs"]
mod shared;

mod archives;
mod at_length;
mod bad_input;
mod bundles;
mod done_again;
mod embedder;
mod first_use;
mod held;
mod in_the_sandbox;
mod mutations;
mod one_receipt;
mod policy_commands;
mod previews;
mod receipts;
mod redaction;
mod refusals;
mod review;
mod store_commands;
mod telemetry;
mod terminal;
mod tools;
mod way_of_one_action;
