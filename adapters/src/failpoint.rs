//! A failpoint inside of tools, for the crash tests: between writing the new content and the rename into place.
//!
//! With the feature `failpoints`, which no release has, a file in the space makes tools stop there until the test kills them.
//! A file is the only way to reach a tool: it inherits no variable and no descriptor.

#[cfg(not(feature = "failpoints"))]
pub(crate) fn before_rename() {}

/// Stops here if a test asks for it.
#[cfg(feature = "failpoints")]
pub(crate) fn before_rename() {
    // The working folder of a confined child is the space.
    let asked = std::fs::read_to_string("control-stop-at").unwrap_or_default();
    if asked == "before_rename" {
        loop {
            std::thread::park();
        }
    }
}

#[cfg(not(test))]
pub(crate) const fn lacks(_: &str) -> bool {
    false
}

/// Whether to act like a file system without this kind of rename: every one that tests can mount has it.
#[cfg(test)]
pub(crate) fn lacks(way: &str) -> bool {
    LACKING.with_borrow(|lacking| lacking.contains(&way))
}

#[cfg(test)]
thread_local! {
    /// The kinds of rename that tools of this thread do without.
    pub(crate) static LACKING: std::cell::RefCell<Vec<&'static str>> = const { std::cell::RefCell::new(Vec::new()) };
}
