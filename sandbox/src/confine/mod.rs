//! What a confined process may do: profiles as data, compiled into Landlock rules and seccomp filters.

pub(crate) mod profile;
pub(crate) mod rules;
pub(crate) mod seccomp;
pub(crate) mod syscalls;
