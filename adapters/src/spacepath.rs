//! Paths as requests write them: `workspace/…` in the space's root, `tmp/…` in the call's scratch folder.

use std::fmt;

use crate::limits::{PATH_BYTES_MAX, PATH_DEPTH_MAX};

/// A path that stays inside by its spelling alone: relative, without `..`, without empty or hidden tricks. That it also
/// stays inside on the disk, whatever links lie there, is the kernel's part when it is opened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SpacePath {
    base: Base,
    parts: Vec<String>,
}

/// Which of the two folders.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Base {
    /// The space's root.
    Workspace,
    /// The scratch folder, gone after the call.
    Scratch,
}

/// A path that no tool will take.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PathInvalid {
    /// Longer than a path can be, or too many folders.
    TooLong,
    /// Begins with neither `workspace/` nor `tmp/`.
    NoBase,
    /// Absolute, or with a `..` in it.
    Escapes,
    /// A NUL or another control character in it.
    Control,
    /// Names a folder where a file is meant: nothing behind the base, or a slash at the end.
    NoFile,
}

impl fmt::Display for PathInvalid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::TooLong => "the path is too long or too deep",
            Self::NoBase => "the path must begin with workspace/ or tmp/",
            Self::Escapes => "the path must be relative and without ..",
            Self::Control => "the path has a control character in it",
            Self::NoFile => "the path must name a file",
        })
    }
}

impl SpacePath {
    /// Reads a path from a request. `a//b/./c` is `a/b/c`.
    pub fn parse(text: &str) -> Result<Self, PathInvalid> {
        if text.len() > PATH_BYTES_MAX {
            return Err(PathInvalid::TooLong);
        }
        if text.chars().any(char::is_control) {
            return Err(PathInvalid::Control);
        }
        if text.starts_with('/') || text.split('/').any(|part| part == "..") {
            return Err(PathInvalid::Escapes);
        }
        let mut parts = text.split('/').filter(|part| !part.is_empty() && *part != ".");
        let base = match parts.next() {
            Some("workspace") => Base::Workspace,
            Some("tmp") => Base::Scratch,
            Some(_) | None => return Err(PathInvalid::NoBase),
        };
        let parts: Vec<_> = parts.map(str::to_owned).collect();
        if parts.is_empty() || text.ends_with('/') || text.ends_with("/.") {
            return Err(PathInvalid::NoFile);
        }
        if parts.len() > PATH_DEPTH_MAX || parts.iter().any(|part| part.len() > 255) {
            return Err(PathInvalid::TooLong);
        }
        Ok(Self { base, parts })
    }

    /// Which folder it lies beneath.
    pub fn base(&self) -> Base {
        self.base
    }

    /// The folders on the way to the file.
    pub fn folders(&self) -> &[String] {
        &self.parts[..self.parts.len() - 1]
    }

    /// The file's own name.
    pub fn file_name(&self) -> &str {
        &self.parts[self.parts.len() - 1]
    }
}

impl fmt::Display for SpacePath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.base {
            Base::Workspace => "workspace",
            Base::Scratch => "tmp",
        })?;
        self.parts.iter().try_for_each(|part| write!(f, "/{part}"))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn spellings_of_one_path_are_one_path() {
        for text in [
            "workspace/a/b.txt",
            "workspace//a/./b.txt",
            "./workspace/a//b.txt",
        ] {
            assert_eq!(SpacePath::parse(text).unwrap().to_string(), "workspace/a/b.txt");
        }
        assert_ne!(SpacePath::parse("workspace/A"), SpacePath::parse("workspace/a"));
    }

    #[test]
    fn what_would_leave_is_refused() {
        let cases = [
            ("/etc/passwd", PathInvalid::Escapes),
            ("workspace/../x", PathInvalid::Escapes),
            ("../x", PathInvalid::Escapes),
            ("workspace/..", PathInvalid::Escapes),
            ("notes/x", PathInvalid::NoBase),
            ("", PathInvalid::NoBase),
            ("workspace", PathInvalid::NoFile),
            ("workspace/", PathInvalid::NoFile),
            ("workspace/a/", PathInvalid::NoFile),
            ("workspace/a/.", PathInvalid::NoFile),
            ("workspace/a\0b", PathInvalid::Control),
            ("workspace/a\nb", PathInvalid::Control),
        ];
        for (text, error) in cases {
            assert_eq!(SpacePath::parse(text), Err(error), "{text:?}");
        }
        assert_eq!(
            SpacePath::parse(&format!("workspace/{}", "x".repeat(5_000))),
            Err(PathInvalid::TooLong)
        );
        assert_eq!(
            SpacePath::parse(&format!("workspace/{}", "x".repeat(256))),
            Err(PathInvalid::TooLong)
        );
        assert_eq!(
            SpacePath::parse(&format!("workspace{}", "/x".repeat(65))),
            Err(PathInvalid::TooLong)
        );
    }
}
