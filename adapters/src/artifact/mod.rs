//! Tools for artifacts: sealed contents that belong to receipts, stored by their digest.

mod get;
mod put;

pub use get::Get;
pub use put::Put;
