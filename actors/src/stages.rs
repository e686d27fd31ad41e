//! The stages of the pipeline: each file holds one stage's decision.

pub(crate) mod approval;
pub(crate) mod executor;
pub(crate) mod gate;
pub(crate) mod idempotency;
pub(crate) mod intake;
mod plan;
pub(crate) mod recorder;
pub(crate) mod sweeper;
pub(crate) mod validator;
