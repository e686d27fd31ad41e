//! Automations: plans of steps that run by themselves.
//!
//! A definition is a document, and the whole program: what a run does follows from it and from the run's inputs. This crate opens
//! no socket and writes no file.

pub mod limits;

pub mod definition;

mod actions;
pub mod check;
pub mod templates;

mod context;
mod inputs;
mod preview;

pub use check::{Checked, Finding, check};
pub use context::RunFacts;
pub use definition::Definition;
pub use inputs::{Known, resolve};
pub use preview::preview;
