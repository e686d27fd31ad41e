//! What operators do: recorded operations, dead letters, retention, erasure, withdrawal, review, notifications.

pub mod automations;
pub mod connections;
pub mod connectors;
pub mod dead_letters;
pub mod erasure;
pub mod notifications;
pub mod operations;
pub(crate) mod overlays;
mod plugins;
pub mod replay;
pub mod retention;
pub(crate) mod review;
pub mod service;
pub mod sessions;
pub(crate) mod slack;
pub mod store_admin;
pub mod tokens;
pub(crate) mod webhooks;
pub mod withdraw;
