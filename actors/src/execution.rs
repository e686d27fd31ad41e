//! Execution: one claimed action from its first attempt to its signed receipt.

pub(crate) mod attempt;
pub(crate) mod call;
pub(crate) mod egress;
pub mod history;
pub mod log;
mod plugin;
pub(crate) mod receipt_builder;
pub(crate) mod recording;
pub mod reserved;
pub mod retry;
pub(crate) mod settlement;
pub(crate) mod stdio;
pub(crate) mod steps;
mod transaction;
pub(crate) mod upstream;
mod view;
