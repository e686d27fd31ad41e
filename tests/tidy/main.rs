//! House rules about files, crates, folders and documents, one rule a test. Each
//! failure says what to do.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::disallowed_types, clippy::disallowed_methods)]

mod crates;
mod documents;
mod folders;
mod limits;
mod lines;
mod picture;
mod test_names;
mod tree;
