//! A point inside of a tool, for the crash tests: between the new content and the rename that puts it into place.
//!
//! With the feature `failpoints`, which no release has, a file in the space says whether tools stop there for good, so that
//! the test can kill them. A tool has no other way to be told: it inherits no variable and no descriptor.

/// Passes the point.
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
