//! What can be wrong with a policy. Every error names the file and the line, since a person has to find it.

use std::fmt;
use std::path::PathBuf;

/// A place in a policy file.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Location {
    /// The file's name inside the policy directory.
    pub file: String,
    /// The line, from one.
    pub line: u32,
}

impl Location {
    pub fn new(file: impl Into<String>, line: u32) -> Self {
        Self {
            file: file.into(),
            line,
        }
    }
}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.file, self.line)
    }
}

/// An example that a policy does not live up to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExampleFailed {
    pub name: String,
    pub expected: String,
    pub actual: String,
    pub why: String,
}

impl fmt::Display for ExampleFailed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            name,
            expected,
            actual,
            why,
        } = self;
        write!(
            f,
            "example {name:?} expects {expected:?}, but the policy says {actual:?}: {why}"
        )
    }
}

/// Why a policy is not taken. The one in force stays in force.
#[derive(Debug, thiserror::Error)]
pub enum PolicyError {
    /// The directory or a file in it cannot be read.
    #[error("{}: {source}", path.display())]
    Unreadable {
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
    /// The directory was being changed while it was read; half of an edit is not a policy.
    #[error("{}: changed while it was being read", path.display())]
    Changing { path: PathBuf },
    /// There is no `policy.toml`.
    #[error("{}: there is no policy.toml", path.display())]
    Missing { path: PathBuf },
    /// Others could change the policy.
    #[error("{}: {why}", path.display())]
    Unsafe { path: PathBuf, why: String },
    #[error("{file}: {what} is {actual}; at most {max} are allowed")]
    TooLarge {
        file: String,
        what: &'static str,
        actual: usize,
        max: usize,
    },
    /// Not UTF-8.
    #[error("{at}: this is not UTF-8 text")]
    NotText {
        /// The first line that is not.
        at: Location,
    },
    #[error("{at}: {message}")]
    Syntax { at: Location, message: String },
    /// The file can be understood, and makes no sense.
    #[error("{at}: {message}")]
    Invalid { at: Location, message: String },
    /// The policy does not do what its own example says.
    #[error("{at}: {failed}")]
    Example {
        at: Location,
        failed: Box<ExampleFailed>,
    },
    /// A change by the command line that cannot be laid over any policy.
    #[error("overlay: {0}")]
    Overlay(String),
}

impl PolicyError {
    /// Whether reading the same directory again may succeed without anyone editing it.
    pub fn retryable(&self) -> bool {
        match self {
            Self::Unreadable { .. } | Self::Changing { .. } | Self::Missing { .. } => true,
            Self::Unsafe { .. }
            | Self::TooLarge { .. }
            | Self::NotText { .. }
            | Self::Syntax { .. }
            | Self::Invalid { .. }
            | Self::Example { .. }
            | Self::Overlay(_) => false,
        }
    }

    /// Where in the files the fault is, if it is in one.
    pub fn location(&self) -> Option<&Location> {
        match self {
            Self::NotText { at }
            | Self::Syntax { at, .. }
            | Self::Invalid { at, .. }
            | Self::Example { at, .. } => Some(at),
            Self::Unreadable { .. }
            | Self::Changing { .. }
            | Self::Missing { .. }
            | Self::Unsafe { .. }
            | Self::TooLarge { .. }
            | Self::Overlay(_) => None,
        }
    }

    pub(crate) fn invalid(at: Location, message: impl Into<String>) -> Self {
        Self::Invalid {
            at,
            message: message.into(),
        }
    }
}
