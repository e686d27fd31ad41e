//! The policy through its public API: files in, decisions out.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::print_stderr)]
#![allow(clippy::disallowed_types, clippy::disallowed_methods, reason = "tests write policies")]

mod harness;

mod authority;
mod bad_input;
mod bands;
mod corpus;
mod demo;
mod directory;
mod explaining;
mod gates;
mod inspection;
mod modes;
mod overlays;
mod presets_and_lists;
mod replaying;
mod schemas;
mod tightening;
