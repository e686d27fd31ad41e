//! Files that a tool may replace are held open while it runs: what is replaced goes when it is let go of, and the tool does not
//! wait for the file system to take it down.

use std::os::fd::OwnedFd;

/// Files that are held while a tool runs that may replace them. They are let go of in a thread that may wait.
#[derive(Debug)]
pub(crate) struct Grip(Vec<OwnedFd>);

impl Grip {
    /// Holds on to these.
    pub(crate) fn new(files: Vec<OwnedFd>) -> Self {
        Self(files)
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
