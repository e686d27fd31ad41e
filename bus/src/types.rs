//! The values that the Store takes and returns, by subject.

pub mod claims;
pub mod dead_letters;
pub mod events;
pub mod groups;
pub mod kv;
pub mod log;
pub mod receipts;
pub mod retention;
