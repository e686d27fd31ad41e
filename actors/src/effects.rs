//! Effects on files: snapshots before and after a call, pre-images, undo, artifacts, results, and what a tool did not declare.

pub(crate) mod active_calls;
pub mod artifacts;
pub(crate) mod changes;
pub(crate) mod invalidation;
pub(crate) mod preconditions;
pub(crate) mod preimages;
pub mod quarantine;
pub(crate) mod repeats;
pub mod results;
pub(crate) mod rollback;
pub(crate) mod snapshot;
pub(crate) mod streams;
pub(crate) mod undeclared;
pub(crate) mod undo;

/// The path of a space's root.
const WHOLE_SPACE: &str = "workspace";

/// Whether `path` is `folder` or lies beneath it.
fn is_beneath(path: &str, folder: &str) -> bool {
    path.strip_prefix(folder).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}
