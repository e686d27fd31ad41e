//! Redaction and pruning.
//!
//! * [`personal`] finds e-mail addresses and phone numbers, which are removed from parameters *before the tool sees them*.
//! * [`storage`] removes secrets by their names *before something is stored or logged*.
//! * [`prune`] makes a result small enough to store, as valid JSON.

pub mod personal;
pub mod prune;
pub mod storage;

pub use prune::{prune_result, prune_to};
pub use storage::redact_secrets;
