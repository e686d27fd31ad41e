//! Unified diffs: parsing one, applying it, inverting it.
//!
//! A hunk applies at its line number, or else at the only other position with exactly its lines; never where the lines are
//! merely similar. Everything here is a function of texts, so a fuzzer can run it.

use serde::Deserialize;

use crate::limits::{PATCH_FILES_MAX, PATCH_HUNKS_MAX};
use crate::spacepath::{PathInvalid, SpacePath};

#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct Patch {
    /// In the order of the patch; no file twice.
    pub files: Vec<FilePatch>,
}

/// What a patch does to one file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FilePatch {
    pub path: SpacePath,
    /// The file must not exist yet.
    pub creates: bool,
    hunks: Vec<Hunk>,
}

/// The old and the new lines of a passage, each with its newline.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Hunk {
    old_start: usize,
    new_start: usize,
    old: Vec<String>,
    new: Vec<String>,
}

/// Why a patch is invalid, or does not apply. Lines and hunks count from 1.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PatchProblem {
    #[error("line {number} of the patch must be {wanted}")]
    Line { number: usize, wanted: &'static str },
    #[error("line {number} of the patch: {why}")]
    Path { number: usize, why: PathInvalid },
    #[error("a patch may not {0}")]
    Unsupported(&'static str),
    #[error("a patch has at most {PATCH_FILES_MAX} files and {PATCH_HUNKS_MAX} hunks")]
    TooMany,
    #[error("the patch changes nothing")]
    Empty,
    #[error("the patch names a file twice")]
    Twice,
    #[error("the lines of hunk {hunk} are not in the file, or are there more than once")]
    DoesNotApply { hunk: usize },
}

struct Lines<'t> {
    lines: std::iter::Peekable<std::iter::Enumerate<std::str::SplitInclusive<'t, char>>>,
}

impl<'t> Lines<'t> {
    fn next(&mut self) -> Option<(usize, &'t str)> {
        self.lines.next().map(|(index, line)| (index + 1, line))
    }

    fn peek(&mut self) -> Option<(usize, &'t str)> {
        self.lines.peek().map(|(index, line)| (*index + 1, *line))
    }
}

impl TryFrom<String> for Patch {
    type Error = PatchProblem;
    fn try_from(text: String) -> Result<Self, PatchProblem> {
        Self::parse(&text)
    }
}

impl Patch {
    /// Parses a unified diff, as `diff -u` and `git diff` write them. Paths are beneath the space's root, with or without
    /// `workspace/` or git's `a/` and `b/` before them.
    pub fn parse(text: &str) -> Result<Self, PatchProblem> {
        let mut lines = Lines { lines: text.split_inclusive('\n').enumerate().peekable() };
        let mut files: Vec<FilePatch> = Vec::new();
        let mut hunks_left = PATCH_HUNKS_MAX;
        while let Some((number, line)) = lines.next() {
            if let Some(old) = line.strip_prefix("--- ") {
                if files.len() >= PATCH_FILES_MAX {
                    return Err(PatchProblem::TooMany);
                }
                let file = read_file(number, old, &mut lines, &mut hunks_left)?;
                if files.iter().any(|known| known.path == file.path) {
                    return Err(PatchProblem::Twice);
                }
                files.push(file);
            } else {
                refuse_unsupported(number, line)?;
            }
        }
        if files.is_empty() {
            return Err(PatchProblem::Empty);
        }
        Ok(Self { files })
    }
}

/// Refuses git's headers for unsupported changes. Between files, a patch may also have blank lines and comments.
fn refuse_unsupported(number: usize, line: &str) -> Result<(), PatchProblem> {
    const ASKS: [(&str, &str); 6] = [
        ("rename ", "rename files; use files.move"),
        ("copy ", "copy files; use files.copy"),
        ("deleted file", "delete files; use files.delete"),
        ("Binary files", "change binary files"),
        ("GIT binary patch", "change binary files"),
        ("old mode", "change permissions"),
    ];
    if let Some((_, what)) = ASKS.iter().find(|(head, _)| line.starts_with(head)) {
        return Err(PatchProblem::Unsupported(what));
    }
    if line.starts_with("@@") || line.starts_with("+++ ") {
        let wanted = "a `--- ` line before this one";
        return Err(PatchProblem::Line { number, wanted });
    }
    Ok(())
}

fn read_file(
    number: usize,
    old: &str,
    lines: &mut Lines<'_>,
    hunks_left: &mut usize,
) -> Result<FilePatch, PatchProblem> {
    let wanted = "a `+++ ` line";
    let (new_number, new) = lines.next().ok_or(PatchProblem::Line { number, wanted })?;
    let new = new.strip_prefix("+++ ").ok_or(PatchProblem::Line { number: new_number, wanted })?;
    let (old, new) = (name(old), name(new));
    if new == "/dev/null" {
        return Err(PatchProblem::Unsupported("delete files; use files.delete"));
    }
    let path = space_path(new, "b/").map_err(|why| PatchProblem::Path { number: new_number, why })?;
    let creates = old == "/dev/null";
    if !creates && space_path(old, "a/").map_err(|why| PatchProblem::Path { number, why })? != path {
        return Err(PatchProblem::Unsupported("rename files; use files.move"));
    }
    let mut hunks = Vec::new();
    while let Some((at, head)) = lines.peek().filter(|(_, line)| line.starts_with("@@ ")) {
        if *hunks_left == 0 {
            return Err(PatchProblem::TooMany);
        }
        *hunks_left -= 1;
        lines.next();
        hunks.push(read_hunk(at, head, lines)?);
    }
    if hunks.iter().all(|hunk| hunk.old == hunk.new) {
        return Err(PatchProblem::Empty);
    }
    if creates && hunks.iter().any(|hunk| !hunk.old.is_empty()) {
        let wanted = "a hunk that only adds lines, since the file is new";
        return Err(PatchProblem::Line { number, wanted });
    }
    Ok(FilePatch { path, creates, hunks })
}

/// The name, without the newline and the time that `diff -u` adds.
fn name(text: &str) -> &str {
    let line = text.trim_end_matches(['\n', '\r']);
    line.split('\t').next().unwrap_or(line)
}

fn space_path(name: &str, prefix: &str) -> Result<SpacePath, PathInvalid> {
    if name.starts_with("workspace/") {
        return SpacePath::parse(name);
    }
    if name.starts_with('/') {
        return Err(PathInvalid::Escapes);
    }
    let beneath = name.strip_prefix(prefix).unwrap_or(name);
    if beneath.starts_with("workspace/") {
        return SpacePath::parse(beneath);
    }
    SpacePath::parse(&format!("workspace/{beneath}"))
}

fn read_hunk(number: usize, head: &str, lines: &mut Lines<'_>) -> Result<Hunk, PatchProblem> {
    let wanted = "`@@ -line,count +line,count @@`";
    let (old, new) = ranges(head).ok_or(PatchProblem::Line { number, wanted })?;
    let ((old_start, mut old_left), (new_start, mut new_left)) = (old, new);
    let mut hunk = Hunk { old_start, new_start, old: Vec::new(), new: Vec::new() };
    while old_left > 0 || new_left > 0 {
        let wanted = "a line of the hunk, which ends before its header says";
        let (at, line) = lines.next().ok_or(PatchProblem::Line { number, wanted })?;
        let (kind, text) = match line.as_bytes().first() {
            Some(b'\n') => (b' ', line),
            Some(kind @ (b' ' | b'-' | b'+')) => (*kind, &line[1..]),
            Some(_) | None => return Err(PatchProblem::Line { number: at, wanted }),
        };
        let mut text = text.to_owned();
        if !text.ends_with('\n') {
            text.push('\n');
        }
        if let Some((_, mark)) = lines.peek()
            && mark.starts_with('\\')
        {
            lines.next();
            text.pop();
        }
        let wanted = "a line within the count of the hunk's header";
        let full = PatchProblem::Line { number: at, wanted };
        if kind != b'+' {
            old_left = old_left.checked_sub(1).ok_or(full.clone())?;
            hunk.old.push(text.clone());
        }
        if kind != b'-' {
            new_left = new_left.checked_sub(1).ok_or(full)?;
            hunk.new.push(text);
        }
    }
    Ok(hunk)
}

type Range = (usize, usize);

/// `@@ -12,3 +14,5 @@ whatever`.
fn ranges(head: &str) -> Option<(Range, Range)> {
    let mut words = head.strip_prefix("@@ ")?.split(' ');
    let mut range = |sign: char| {
        let text = words.next()?.trim_end().strip_prefix(sign)?;
        let (start, count) = text.split_once(',').unwrap_or((text, "1"));
        let digits =
            |text: &str| (!text.is_empty() && text.bytes().all(|b| b.is_ascii_digit())).then_some(());
        digits(start).and(digits(count))?;
        Some((start.parse().ok()?, count.parse().ok()?))
    };
    let (old, new) = (range('-')?, range('+')?);
    (words.next()?.trim_end() == "@@").then_some((old, new))
}

impl FilePatch {
    /// Applies all hunks, or none.
    pub fn apply(&self, text: &str) -> Result<String, PatchProblem> {
        let lines: Vec<_> = text.split_inclusive('\n').collect();
        let mut result = String::with_capacity(text.len());
        let mut next = 0;
        // How far from its stated line the previous hunk applied.
        let mut drift: isize = 0;
        for (index, hunk) in self.hunks.iter().enumerate() {
            let fault = PatchProblem::DoesNotApply { hunk: index + 1 };
            let stated = if hunk.old.is_empty() { hunk.old_start } else { hunk.old_start.saturating_sub(1) };
            let expected = stated.checked_add_signed(drift).unwrap_or(0);
            let at = place(&lines, next, expected, &hunk.old).ok_or(fault)?;
            drift = isize::try_from(at).unwrap_or(0) - isize::try_from(stated).unwrap_or(0);
            lines[next..at].iter().for_each(|line| result.push_str(line));
            // An added line would join a last line without a newline.
            if hunk.old.is_empty() && !result.is_empty() && !result.ends_with('\n') {
                return Err(PatchProblem::DoesNotApply { hunk: index + 1 });
            }
            hunk.new.iter().for_each(|line| result.push_str(line));
            next = at + hunk.old.len();
        }
        lines[next..].iter().for_each(|line| result.push_str(line));
        Ok(result)
    }

    /// The reverse patch.
    pub fn inverted(&self) -> Self {
        let hunks = self.hunks.iter().map(|hunk| Hunk {
            old_start: hunk.new_start,
            new_start: hunk.old_start,
            old: hunk.new.clone(),
            new: hunk.old.clone(),
        });
        Self { path: self.path.clone(), creates: false, hunks: hunks.collect() }
    }
}

/// The position of the hunk's lines: the expected one, or the only one from `from` on.
fn place(lines: &[&str], from: usize, expected: usize, old: &[String]) -> Option<usize> {
    let is_at = |at: usize| {
        let end = at.checked_add(old.len())?;
        let found = lines.get(at..end)?;
        found.iter().zip(old).all(|(line, old)| *line == old).then_some(at)
    };
    if old.is_empty() {
        return (from..=lines.len()).contains(&expected).then_some(expected);
    }
    if expected >= from && is_at(expected).is_some() {
        return Some(expected);
    }
    let mut places = (from..lines.len()).filter_map(is_at);
    let only = places.next()?;
    places.next().is_none().then_some(only)
}

#[cfg(test)]
mod tests;
