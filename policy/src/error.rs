//! Errors of a policy. Each names the file and, where there is one, the line.

use std::fmt;
use std::path::PathBuf;

use crate::limits::FAULTS_MAX;
use crate::source::{SourceFile, line_of};

/// A place in a policy file.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Location {
    /// The file's name inside the policy directory.
    pub file: String,
    /// The line, from 1.
    pub line: u32,
    /// The character within the line, from 1, where it is known.
    pub column: Option<u32>,
}

impl Location {
    pub fn new(file: impl Into<String>, line: u32) -> Self {
        Self { file: file.into(), line, column: None }
    }

    /// The place of a byte offset.
    pub(crate) fn in_file(file: &SourceFile, offset: usize) -> Self {
        let before = file.text.get(..offset).unwrap_or(&file.text);
        let within = before.rsplit('\n').next().unwrap_or_default().chars().count();
        let column = u32::try_from(within + 1).ok();
        Self { column, ..Self::new(&file.name, line_of(&file.text, offset)) }
    }
}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.file, self.line)
    }
}

/// An example that the policy fails.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("example {name:?} expects {expected:?}, but the policy says {actual:?}: {why}")]
pub struct ExampleFailed {
    pub name: String,
    pub expected: String,
    pub actual: String,
    pub why: String,
}

/// Why a policy is refused. The policy in force does not change.
#[derive(Debug, thiserror::Error)]
pub enum PolicyError {
    /// The directory or a file in it cannot be read.
    #[error("{}: {source}", path.display())]
    Unreadable {
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
    /// The directory changed while it was read, so the policy could be half of an edit.
    #[error("{}: changed while it was being read", path.display())]
    Changing { path: PathBuf },
    /// There is no `policy.toml`.
    #[error("{}: there is no policy.toml", path.display())]
    Missing { path: PathBuf },
    /// A symlink, or users other than root and the daemon's could change the policy.
    #[error("{}: {why}", path.display())]
    Unsafe { path: PathBuf, why: String },
    #[error("{file}: {what} is {actual}; at most {max} are allowed")]
    TooLarge { file: String, what: &'static str, actual: usize, max: usize },
    /// Not UTF-8.
    #[error("{at}: this is not UTF-8 text")]
    NotText {
        /// The first line that is not UTF-8.
        at: Location,
    },
    #[error("{at}: {message}")]
    Syntax { at: Location, message: String },
    /// The file is well-formed, but its content is invalid.
    #[error("{at}: {message}")]
    Invalid { at: Location, message: String },
    /// The policy fails one of its own examples.
    #[error("{at}: {failed}")]
    Example { at: Location, failed: Box<ExampleFailed> },
    /// An invalid overlay.
    #[error("overlay: {0}")]
    Overlay(String),
    /// Several faults, one a line; of more than [`FAULTS_MAX`], the first and how many more there are.
    #[error("{}", lines(.0))]
    Many(Vec<PolicyError>),
}

fn lines(faults: &[PolicyError]) -> String {
    let mut lines: Vec<_> = faults.iter().take(FAULTS_MAX).map(ToString::to_string).collect();
    if let Some(more) = faults.len().checked_sub(FAULTS_MAX).filter(|more| *more > 0) {
        lines.push(format!("and {more} more"));
    }
    lines.join("\n")
}

/// The faults of a policy, in the order in which they are found. A later fault never hides an earlier one.
#[derive(Debug, Default)]
pub(crate) struct Faults(Vec<PolicyError>);

impl Faults {
    /// The value; `None` for a fault, which is kept.
    pub(crate) fn keep<T>(&mut self, found: Result<T, PolicyError>) -> Option<T> {
        match found {
            Ok(value) => return Some(value),
            Err(PolicyError::Many(faults)) => self.0.extend(faults),
            Err(fault) => self.0.push(fault),
        }
        None
    }

    /// Fails if there is a fault.
    pub(crate) fn result(mut self) -> Result<(), PolicyError> {
        match (self.0.pop(), self.0.is_empty()) {
            (None, _) => Ok(()),
            (Some(only), true) => Err(only),
            (Some(last), false) => {
                self.0.push(last);
                Err(PolicyError::Many(self.0))
            }
        }
    }
}

impl PolicyError {
    /// The faults that have a place in a file, each with its message; at most [`FAULTS_MAX`].
    pub fn located(&self) -> Vec<(&Location, String)> {
        let all = if let Self::Many(faults) = self { faults } else { std::slice::from_ref(self) };
        let located = all.iter().filter_map(|fault| match fault {
            Self::Syntax { at, message } | Self::Invalid { at, message } => Some((at, message.clone())),
            Self::Example { at, failed } => Some((at, failed.to_string())),
            Self::NotText { at } => Some((at, "this is not UTF-8 text".to_owned())),
            Self::Unreadable { .. }
            | Self::Changing { .. }
            | Self::Missing { .. }
            | Self::Unsafe { .. }
            | Self::TooLarge { .. }
            | Self::Overlay(_)
            | Self::Many(_) => None,
        });
        located.take(FAULTS_MAX).collect()
    }

    /// Whether a retry may succeed although nobody edits the directory.
    pub fn retryable(&self) -> bool {
        match self {
            Self::Unreadable { .. } | Self::Changing { .. } | Self::Missing { .. } => true,
            Self::Unsafe { .. }
            | Self::TooLarge { .. }
            | Self::NotText { .. }
            | Self::Syntax { .. }
            | Self::Invalid { .. }
            | Self::Example { .. }
            | Self::Overlay(_)
            | Self::Many(_) => false,
        }
    }

    pub(crate) fn invalid(at: Location, message: impl Into<String>) -> Self {
        Self::Invalid { at, message: message.into() }
    }
}
