//! A point inside of a tool, for the crash tests: between the new content and the rename that puts it into place.
//!
//! With the feature `failpoints`, which no release has, a file in the space says whether tools stop there for good, so that
//! the test can kill them. A tool has no other way to be told: it inherits no variable and no descriptor.

#[cfg(not(feature = "failpoints"))]
pub(crate) fn before_rename() {}

/// Passes the point, or stops at it.
#[cfg(feature = "failpoints")]
pub(crate) fn before_rename() {
    // The folder in which a confined child begins is the space.
    let asked = std::fs::read_to_string("control-stop-at").unwrap_or_default();
    if asked == "before_rename" {
        loop {
            std::thread::park();
        }
    }
}

/// Whether the file system is to be taken for one that cannot rename in this way.
#[cfg(not(test))]
pub(crate) const fn lacks(_: &str) -> bool {
    false
}

/// Whether the file system is to be taken for one that cannot rename in this way: what can be mounted where tests run can.
#[cfg(test)]
pub(crate) fn lacks(way: &str) -> bool {
    LACKING.with_borrow(|lacking| lacking.contains(&way))
}

#[cfg(test)]
thread_local! {
    /// What is said to be lacking to the tools of this thread.
    pub(crate) static LACKING: std::cell::RefCell<Vec<&'static str>> = const { std::cell::RefCell::new(Vec::new()) };
}
