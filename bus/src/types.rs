//! The plain values that the Store takes and gives, by subject.

pub mod claims;
pub mod events;
pub mod families;
pub mod groups;
pub mod letters;
pub mod log;
pub mod receipts;
pub mod retention;
