//! Paths in requests: `workspace/…` in the space's root, `tmp/…` in the call's scratch folder.

use std::fmt;

use schemars::JsonSchema;
use serde::Deserialize;

use crate::limits::{NAME_BYTES_MAX, PATH_BYTES_MAX, PATH_DEPTH_MAX};

/// A path whose text cannot lead outside of its base: relative, without `..`, without deceptive characters. When a path
/// is opened, the kernel makes sure that no link on the disk leads outside.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(try_from = "String")]
#[schemars(with = "String", description = "A path in the space, such as workspace/src/main.rs.", extend("minLength" = 1, "maxLength" = PATH_BYTES_MAX, "x-public" = true, "x-resource" = true))]
pub struct SpacePath {
    base: Base,
    parts: Vec<String>,
}

/// The two folders in which paths begin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Base {
    Workspace,
    /// The scratch folder, which is removed after the call.
    Scratch,
}

/// Why a path is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PathInvalid {
    #[error("the path is too long or too deep")]
    TooLong,
    #[error("the path must begin with workspace/ or tmp/")]
    NoBase,
    #[error("the path must be relative and without ..")]
    Escapes,
    #[error("the path contains a control character")]
    Control,
    /// A folder: nothing after the base, or a slash at the end.
    #[error("the path must name a file")]
    NoFile,
    /// People would take the text for another path.
    #[error("the path contains a character that is invisible or looks like a slash or dot")]
    Deceptive,
    #[error("names like .effectd-….draft are reserved for unfinished files")]
    Reserved,
}

impl TryFrom<String> for SpacePath {
    type Error = PathInvalid;
    fn try_from(text: String) -> Result<Self, PathInvalid> {
        Self::parse(&text)
    }
}

impl SpacePath {
    /// Parses the path of a file. `a//b/./c` is `a/b/c`.
    pub fn parse(text: &str) -> Result<Self, PathInvalid> {
        let path = Self::parse_folder(text)?;
        if path.parts.is_empty() || text.ends_with('/') || text.ends_with("/.") {
            return Err(PathInvalid::NoFile);
        }
        Ok(path)
    }

    /// Parses the path of a file or folder; `workspace` alone is the space's root.
    pub fn parse_folder(text: &str) -> Result<Self, PathInvalid> {
        if text.len() > PATH_BYTES_MAX {
            return Err(PathInvalid::TooLong);
        }
        if text.chars().any(char::is_control) {
            return Err(PathInvalid::Control);
        }
        if text.chars().any(is_deceptive) {
            return Err(PathInvalid::Deceptive);
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
        if parts.len() > PATH_DEPTH_MAX || parts.iter().any(|part| part.len() > NAME_BYTES_MAX) {
            return Err(PathInvalid::TooLong);
        }
        if parts.iter().any(|part| is_draft(part)) {
            return Err(PathInvalid::Reserved);
        }
        Ok(Self { base, parts })
    }

    /// The path of an entry of this folder, by its name on the disk.
    pub fn child(&self, name: &str) -> Self {
        let mut path = self.clone();
        path.parts.push(name.to_owned());
        path
    }

    /// The folder that the path is in; `None` for the root.
    pub fn parent(&self) -> Option<Self> {
        let (_, parts) = self.parts.split_last()?;
        Some(Self { base: self.base, parts: parts.to_vec() })
    }

    /// The paths of the draft for this path and of the file that is set aside, in the action with this mark.
    pub fn drafts(&self, mark: &str) -> [Self; 2] {
        let mark = format!("{mark}\n{self}");
        let folder = self.parent().unwrap_or_else(|| self.clone());
        [draft_name(&mark), aside_name(&mark)].map(|name| folder.child(&name))
    }

    /// The path relative to its base; `.` for the base itself.
    pub fn relative(&self) -> String {
        if self.parts.is_empty() { ".".to_owned() } else { self.parts.join("/") }
    }

    pub fn base(&self) -> Base {
        self.base
    }

    /// The names of the folders above the path, below its base.
    pub fn folders(&self) -> &[String] {
        &self.parts[..self.parts.len().saturating_sub(1)]
    }

    /// The last name in the path; `.` for the base itself.
    pub fn file_name(&self) -> &str {
        self.parts.last().map_or(".", String::as_str)
    }
}

/// Characters that are invisible, change the direction of writing, or look like a slash or a dot.
fn is_deceptive(c: char) -> bool {
    matches!(c,
        '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}'
        | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}'
        | '\u{2044}' | '\u{2215}' | '\u{29f8}' | '\u{ff0f}' | '\u{2024}' | '\u{2025}' | '\u{fe52}' | '\u{ff0e}'
        | '\u{2028}' | '\u{2029}')
}

const DRAFT_HEAD: &str = ".effectd-";
const DRAFT_TAIL: &str = ".draft";
const ASIDE_TAIL: &str = ".aside";

/// Whether a name is that of a draft, or of a file that is set aside.
pub(crate) fn is_draft(name: &str) -> bool {
    name.starts_with(DRAFT_HEAD) && (name.ends_with(DRAFT_TAIL) || name.ends_with(ASIDE_TAIL))
}

/// The name of a draft. It depends only on the mark, so a repeated run finds the draft of the interrupted one.
pub(crate) fn draft_name(mark: &str) -> String {
    name_of(mark, DRAFT_TAIL)
}

/// The name of a file that is set aside. The file may be somebody else's: unlike a draft, it is never removed unchecked.
pub(crate) fn aside_name(mark: &str) -> String {
    name_of(mark, ASIDE_TAIL)
}

fn name_of(mark: &str, tail: &str) -> String {
    let digest = effectd_contracts::Digest::of(mark.as_bytes()).hex();
    format!("{DRAFT_HEAD}{}{tail}", &digest[..32])
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
        for text in ["workspace/a/b.txt", "workspace//a/./b.txt", "./workspace/a//b.txt"] {
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
            ("workspace/a\u{ff0f}..\u{ff0f}b", PathInvalid::Deceptive),
            ("workspace/\u{2024}\u{2024}/b", PathInvalid::Deceptive),
            ("workspace/\u{202e}txt.exe", PathInvalid::Deceptive),
            ("workspace/a\u{200b}", PathInvalid::Deceptive),
            ("workspace/.effectd-1.draft", PathInvalid::Reserved),
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
        assert_eq!(SpacePath::parse(&format!("workspace/{}", "x".repeat(5_000))), Err(PathInvalid::TooLong));
        assert_eq!(SpacePath::parse(&format!("workspace/{}", "x".repeat(256))), Err(PathInvalid::TooLong));
        assert_eq!(SpacePath::parse(&format!("workspace{}", "/x".repeat(65))), Err(PathInvalid::TooLong));
    }

    proptest::proptest! {
        #[test]
        fn whatever_comes_is_a_path_beneath_the_space_or_refused(
            text in "(workspace|tmp|[.]|/){0,2}[-a.x/ \u{0}\u{2024}\u{202e}\u{ff0f}]{0,80}",
            bytes in proptest::collection::vec(proptest::num::u8::ANY, 0..64),
        ) {
            crate::files::fuzz::path(text.as_bytes());
            crate::files::fuzz::path(&bytes);
        }
    }
}
