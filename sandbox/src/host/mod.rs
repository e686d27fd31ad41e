//! The runtime's side: pools of ready children, the threads that own their zygotes, and one session for each call.

pub(crate) mod cache;
pub(crate) mod cgroup;
pub(crate) mod denials;
pub(crate) mod isolation;
pub(crate) mod outcome;
pub(crate) mod pool;
pub(crate) mod reap;
pub(crate) mod session;
pub(crate) mod setup_error;
pub(crate) mod zygote_owner;
