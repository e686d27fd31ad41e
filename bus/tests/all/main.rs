//! The Store under test: what it promises, and what it does when the process, the disk or the machine fails.
//!
//! Real directories, real child processes, real `kill -9`, real mounts. Tests that need root say so by name when they
//! are run without it.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::disallowed_types, clippy::disallowed_methods)]
#![allow(clippy::print_stderr, reason = "tests say what they did not run, and what a failed round saw")]

mod child;
mod crash;
mod damage;
mod disk_full;
mod engines;
mod failing_disk;
mod golden;
mod lock;
mod model;
mod mounts;
mod power_loss;
mod rescue;
mod retention;
mod secrets;
mod watchdog;
mod witness;
