//! Two redactors and one pruner, each for its own place.
//!
//! * [`personal`] finds e-mail addresses and phone numbers, which parameters lose *before the tool* sees them.
//! * [`storage`] removes values of secret keys from everything *before it is stored or logged*.
//! * [`prune`] makes a result small enough to keep, and still valid JSON.

pub mod personal;
pub mod prune;
pub mod storage;

pub use prune::{prune_result, prune_to};
pub use storage::redact_secrets;
