//! Desktop notifications. Tools cannot reach a desktop from inside the sandbox, and nothing else of effectd speaks to one.
//!
//! `broker.rs` follows the receipts of `notify.local`. With the cargo feature `desktop`, `deliver.rs` hands each notification to the
//! session bus through `session.rs`, and `words.rs` makes its text safe to show; without it, notifications are remembered only.

mod broker;
#[cfg(feature = "desktop")]
mod deliver;
#[cfg(feature = "desktop")]
mod session;
#[cfg(feature = "desktop")]
mod words;

pub(crate) use broker::Broker;
