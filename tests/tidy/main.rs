//! Tidiness is a test: what the house rules say about files, crates and documents is checked here, one rule a test. Each
//! failure says what to do.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::disallowed_methods)]

mod crates;
mod documents;
mod limits;
mod lines;
mod tree;
