//! End-to-end tests: the real program, the real store, the real sandbox.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::print_stderr, unreachable_pub)]
#![allow(clippy::disallowed_types, clippy::disallowed_methods, reason = "tests start programs")]

mod harness;
#[path = "../../bus/tests/all/mounts.rs"]
#[allow(dead_code, reason = "these tests use some of it")]
mod mounts;
#[path = "../harness/mod.rs"]
mod shared;

mod approvals;
mod archives;
mod bad_input;
mod batches;
mod bundles;
mod commands;
mod embedding;
mod first_use;
mod idempotency;
mod long_contents;
mod mcp;
mod one_receipt;
mod origins;
mod output;
mod plans;
mod plugins;
mod policy_commands;
mod presets;
mod preview_invalidation;
mod previews;
mod quarantine;
mod receipts;
mod redaction;
mod refusals;
mod registry;
mod results;
mod same_work;
mod sandboxed_tools;
mod session_routes;
mod stages;
mod store_commands;
mod telemetry;
mod terminal;
mod tokens;
mod tools;
