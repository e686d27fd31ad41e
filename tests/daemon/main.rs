//! Tests of the daemon: the real program, its real socket, the real command line.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::print_stderr, unreachable_pub)]
#![allow(
    clippy::disallowed_types,
    clippy::disallowed_methods,
    reason = "tests start programs and use sockets"
)]

mod harness;
#[path = "../../bus/tests/all/mounts.rs"]
#[allow(dead_code, reason = "these tests use some of it")]
mod mounts;
#[path = "../harness/mod.rs"]
mod shared;

mod approvals;
mod approvals_inbox;
mod audit;
mod automations;
mod backups;
mod bad_clients;
mod breakers;
mod budgets;
mod cancel;
mod command_output;
mod commands;
mod connections;
mod connector_programs;
mod connector_session;
mod connectors;
mod console;
mod contexts;
mod dead_letters;
mod erasure;
mod events;
mod full_disk;
mod grants;
mod health;
mod http_page;
mod key_rotation;
mod killed_daemon;
mod killed_invocation;
mod logs;
mod many_users;
mod mcp;
mod mcp_bridge;
mod monitoring;
mod notifications;
mod oauth;
mod openapi;
mod operator;
mod planner_answers;
mod plans;
mod policy;
mod previews;
mod principals;
mod receipts;
mod requeue;
mod restore;
mod results;
mod runbook;
mod seeding;
mod services;
mod session_bus;
mod sessions;
mod signals;
mod slack;
mod socket;
mod space_roots;
mod store_admin;
mod stream;
mod tcp;
mod tls;
mod tokens;
mod tools;
mod top;
mod transports;
mod unit;
mod verbs;
mod webhooks;
mod which_state;
mod without_daemon;
