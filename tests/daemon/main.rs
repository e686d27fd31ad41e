//! The daemon as its users meet it: the real program, its real socket, the real command line.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::print_stderr,
    unreachable_pub
)]

mod harness;
#[path = "../../bus/tests/all/mounts.rs"]
#[allow(dead_code, reason = "these tests use some of it")]
mod mounts;
#[path = "../harness/mod.rs"]
mod shared;

mod acts;
mod answers;
mod approvals;
mod askers;
mod backups;
mod bad_clients;
mod both;
mod breakers;
mod canary;
mod cancel;
mod checks;
mod commands;
mod crowds;
mod desktop;
mod disk;
mod erasure;
mod events;
mod grants;
mod health;
mod inbox;
mod keys;
mod kills;
mod notifications;
mod openapi;
mod operator;
mod policy;
mod previews;
mod receipts;
mod restoring;
mod roots;
mod runbook;
mod said;
mod seeding;
mod signals;
mod socket;
mod tools;
mod top;
mod upkeep;
mod verbs;
mod without_daemon;
