//! Files that a tool may replace are held open while it runs: what is replaced goes when it is let go of, and the tool does not
//! wait for the file system to take it down.

use std::os::fd::OwnedFd;

use effectd_contracts::{SpaceId, Standing};

use crate::parts::Parts;
use crate::preimage::Prepared;

/// Files that are held while a tool runs that may replace them. They are let go of in a thread that may wait.
#[derive(Debug)]
pub(crate) struct Grip(Vec<OwnedFd>);

/// Holds on to what a tool may replace.
pub(crate) fn hold(parts: &Parts, space: &SpaceId, prepared: &Prepared) -> Grip {
    let before = prepared.before.iter().flatten();
    let files = before.filter(|seen| matches!(seen.standing, Standing::File(_)));
    let files: Vec<_> = files.map(|seen| seen.path.clone()).collect();
    match (parts.space_roots)(space) {
        Ok(root) if !files.is_empty() => Grip(parts.witness.hold(&root, &files)),
        Ok(_) | Err(_) => Grip(Vec::new()),
    }
}

impl Drop for Grip {
    fn drop(&mut self) {
        let files = std::mem::take(&mut self.0);
        match tokio::runtime::Handle::try_current() {
            Ok(handle) if !files.is_empty() => drop(handle.spawn_blocking(move || drop(files))),
            Ok(_) | Err(_) => drop(files),
        }
    }
}
