//! Tools for artifacts: contents that are kept beside receipts, sealed, under the digest of what they are.

mod get;
mod put;

pub use get::Get;
pub use put::Put;
