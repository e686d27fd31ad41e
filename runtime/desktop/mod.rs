//! Desktop notifications: the only part of effectd that speaks to a desktop, since tools in the sandbox cannot.
//!
//! `worker.rs` follows the receipts of `notify.local`. With the cargo feature `desktop`, `deliver.rs` sends each notification to the
//! session bus through `session.rs`, and `text.rs` makes its text safe to show. Without the feature, notifications are only stored.

#[cfg(feature = "desktop")]
mod deliver;
#[cfg(feature = "desktop")]
mod session;
#[cfg(feature = "desktop")]
mod text;
mod worker;

pub(crate) use worker::NotificationWorker;
