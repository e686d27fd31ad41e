//! A state directory in use by this process: store, policy, sandbox and pipeline, and the routes over them.

mod door;
pub(crate) mod file_inspector;
pub(crate) mod in_process;
mod jobs;
pub(crate) mod policy_queries;
mod policy_reload;
pub(crate) mod runtime;
mod shadow;
