//! The fakes of Linear, Sentry and Slack that the tests use, for the vendors' own clients.
//!
//! ```sh
//! cargo run --example fakes
//! ```
//!
//! It prints one line of JSON with the address and the token of each, and ends when its standard input is closed.
#![allow(clippy::unwrap_used, clippy::disallowed_types, clippy::disallowed_methods, unreachable_pub)]
#![expect(clippy::print_stdout, reason = "this is what the example is for")]

#[path = "../tests/harness/service.rs"]
#[allow(dead_code, reason = "tests use the rest")]
mod service;
#[path = "../tests/harness/services/mod.rs"]
mod services;

use effectd::contracts::Preset;
use serde_json::json;
use services::{Linear, Sentry, Slack};

fn main() {
    let tokens = ["lin_api_fake", "sntryu_fake", "xoxb-fake"];
    let (linear, sentry, slack) =
        (Linear::start(tokens[0]), Sentry::start(tokens[1]), Slack::start(tokens[2]));
    let at = |port: u16| format!("http://127.0.0.1:{port}");
    let addresses = json!({
        "linear": {
            "url": format!("{}/graphql", at(linear.port())), "control": at(linear.port()), "token": tokens[0],
            "team": services::TEAM, "project": services::PROJECT, "user": services::USER, "state": services::STATE_DONE,
            "issue": services::ISSUE,
        },
        "sentry": {
            "url": at(sentry.port()), "control": at(sentry.port()), "token": tokens[1],
            "organization": services::ORGANIZATION, "project": "web", "issue": services::GROUP, "event": services::EVENT,
            "short_id": services::SHORT_ID, "routes": Preset::of("sentry").unwrap().routes,
        },
        "slack": {
            "url": format!("{}/api/", at(slack.port())), "control": at(slack.port()), "token": tokens[2],
            "channel": services::CHANNEL, "channel_name": services::CHANNEL_NAME,
        },
    });
    println!("{addresses}");
    std::io::copy(&mut std::io::stdin(), &mut std::io::sink()).unwrap();
}
