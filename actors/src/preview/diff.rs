//! What is different between two texts, as people read it: bounded, and without secrets and personal data.

use effectd_contracts::{Rehearsed, Standing};
use effectd_policy::redact::personal::redact_text;
use effectd_policy::redact::storage::{SECRET_PLACEHOLDER, is_secret_name};
use serde::{Deserialize, Serialize};
use similar::{ChangeTag, TextDiff};

use crate::limits::{PREVIEW_DIFF_LINES_MAX, PREVIEW_DIFF_TIME_MAX};
use crate::preimage::Looked;

/// Lines around a change that are shown with it.
const CONTEXT_LINES: usize = 3;
/// Longest line of a diff.
const LINE_BYTES_MAX: usize = 512;

/// What is different in a text: lines that begin with `+`, `-` or a space, or with `@@` where others are left out.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Diff {
    /// The lines.
    pub text: String,
    /// There is more than is shown.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub cut: bool,
    /// Something in it was a secret or personal, and is not shown.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub redacted: bool,
}

/// What is different between what stands there and what would; `None` if one of the two is no text, or too long.
pub(super) fn between(old: &Looked, new: &Rehearsed, left: &mut usize) -> Option<Diff> {
    let old = match (&old.seen.standing, &old.content) {
        (Standing::Absent | Standing::Folder, _) => String::new(),
        (Standing::File(_), Some(content)) => text(content)?,
        (Standing::File(_), None) | (Standing::Other, _) => return None,
    };
    let new = match (&new.standing, &new.text) {
        (Standing::Absent | Standing::Folder, _) => "",
        (Standing::File(_), Some(text)) => text,
        (Standing::File(_), None) | (Standing::Other, _) => return None,
    };
    if old == new || old.lines().count() + new.lines().count() > PREVIEW_DIFF_LINES_MAX {
        return None;
    }
    let mut diff = written(&old, new, left);
    diff.redacted = redact(&mut diff.text);
    Some(diff)
}

fn text(content: &[u8]) -> Option<String> {
    let text = std::str::from_utf8(content).ok()?;
    (!text.contains('\0')).then(|| text.to_owned())
}

fn written(old: &str, new: &str, left: &mut usize) -> Diff {
    let diff = TextDiff::configure()
        .timeout(PREVIEW_DIFF_TIME_MAX)
        .diff_lines(old, new);
    let mut out = Room {
        diff: Diff {
            text: String::new(),
            cut: false,
            redacted: false,
        },
        left,
    };
    for group in diff.grouped_ops(CONTEXT_LINES) {
        let (Some(first), Some(last)) = (group.first(), group.last()) else {
            continue;
        };
        let (from, to) = (first.old_range().start, first.new_range().start);
        let head = format!(
            "@@ -{},{} +{},{} @@\n",
            from + 1,
            last.old_range().end - from,
            to + 1,
            last.new_range().end - to
        );
        if !out.push(&head) {
            return out.diff;
        }
        for change in group.iter().flat_map(|op| diff.iter_changes(op)) {
            let sign = match change.tag() {
                ChangeTag::Delete => '-',
                ChangeTag::Insert => '+',
                ChangeTag::Equal => ' ',
            };
            let line = cut_at(change.value().trim_end_matches('\n'), LINE_BYTES_MAX);
            let whole = line.len() == change.value().trim_end_matches('\n').len();
            let end = match (whole, change.missing_newline()) {
                (false, _) => "…\n",
                (true, true) => "\n\\ no newline at the end\n",
                (true, false) => "\n",
            };
            if !out.push(&format!("{sign}{line}{end}")) {
                return out.diff;
            }
            out.diff.cut |= !whole;
        }
    }
    out.diff
}

/// A text that has this much room. What it takes is counted as it is stored, where some characters are longer.
struct Room<'a> {
    diff: Diff,
    left: &'a mut usize,
}

impl Room<'_> {
    /// Says whether there was room.
    fn push(&mut self, line: &str) -> bool {
        let takes: usize = line.bytes().map(stored_bytes).sum();
        if takes > *self.left {
            self.diff.cut = true;
            *self.left = 0;
            return false;
        }
        *self.left -= takes;
        self.diff.text.push_str(line);
        true
    }
}

/// What a byte of text takes in JSON.
fn stored_bytes(byte: u8) -> usize {
    match byte {
        b'\n' | b'\t' | b'"' | b'\\' => 2,
        0..=0x1f => 6,
        _ => 1,
    }
}

fn cut_at(line: &str, bytes_max: usize) -> &str {
    if line.len() <= bytes_max {
        return line;
    }
    let end = (0..=bytes_max).rev().find(|at| line.is_char_boundary(*at));
    &line[..end.unwrap_or(0)]
}

/// Removes what nobody needs to see for their decision, line by line. Says whether there was something.
pub(crate) fn redact(text: &mut String) -> bool {
    let (mut removed, mut in_key) = (false, false);
    let lines = text.split_inclusive('\n').map(|line| {
        let (body, end) = line.strip_suffix('\n').map_or((line, ""), |body| (body, "\n"));
        in_key |= body.contains("PRIVATE KEY-----") && body.contains("-----BEGIN");
        let safe = match (in_key, secret(body)) {
            (true, _) => {
                in_key = !body.contains("-----END");
                Some(format!("{}{SECRET_PLACEHOLDER}", sign_of(body)))
            }
            (false, Some(safe)) => Some(safe),
            (false, None) => redact_text(body).map(|redacted| redacted.text),
        };
        removed |= safe.is_some();
        format!("{}{end}", safe.as_deref().unwrap_or(body))
    });
    *text = lines.collect();
    removed
}

fn sign_of(line: &str) -> &str {
    line.get(..1).unwrap_or_default()
}

/// A line that gives a secret its value, without the value.
fn secret(line: &str) -> Option<String> {
    let at = line.find([':', '='])?;
    let (name, value) = line.split_at(at);
    let last = name
        .trim_start_matches(['+', '-', ' '])
        .split_whitespace()
        .next_back()?;
    let empty = value[1..].trim().is_empty();
    (!empty && is_secret_name(last)).then(|| format!("{name}{} {SECRET_PLACEHOLDER}", &value[..1]))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use effectd_contracts::{FileState, Seen};

    use super::*;

    fn file(text: &[u8]) -> Standing {
        Standing::File(FileState {
            digest: String::new(),
            bytes: text.len() as u64,
            mode: 0o644,
        })
    }

    fn diff(old: Option<&str>, new: Option<&str>, room: usize) -> Option<Diff> {
        let standing = |text: Option<&str>| text.map_or(Standing::Absent, |text| file(text.as_bytes()));
        let looked = Looked {
            seen: Seen {
                path: "workspace/x".to_owned(),
                standing: standing(old),
            },
            content: old.map(|text| text.as_bytes().to_vec()),
        };
        let rehearsed = Rehearsed {
            path: "workspace/x".to_owned(),
            standing: standing(new),
            text: new.map(str::to_owned),
        };
        let mut left = room;
        let diff = between(&looked, &rehearsed, &mut left);
        if let Some(diff) = &diff {
            assert!(serde_json::to_string(&diff.text).unwrap().len() <= room + 64);
        }
        diff
    }

    #[test]
    fn a_difference_is_what_people_know() {
        let shown = diff(Some("a\nb\nc\n"), Some("a\nB\nc\nd"), 1_000).unwrap();
        assert_eq!(
            shown.text,
            "@@ -1,3 +1,4 @@\n a\n-b\n+B\n c\n+d\n\\ no newline at the end\n"
        );
        assert!(!shown.cut && !shown.redacted);
        assert_eq!(
            diff(None, Some("new\n"), 1_000).unwrap().text,
            "@@ -1,0 +1,1 @@\n+new\n"
        );
        assert_eq!(
            diff(Some("old\n"), None, 1_000).unwrap().text,
            "@@ -1,1 +1,0 @@\n-old\n"
        );
        assert_eq!(diff(Some("same"), Some("same"), 1_000), None);
    }

    #[test]
    fn a_difference_has_a_bound_and_says_so() {
        let long = "\u{1}line\n".repeat(2_000);
        let shown = diff(None, Some(&long), 500).unwrap();
        assert!(shown.cut && shown.text.len() < 500);
        let wide = "x".repeat(10_000);
        let shown = diff(None, Some(&wide), 5_000).unwrap();
        assert!(shown.cut && shown.text.contains('…'), "{}", shown.text);
        assert_eq!(diff(None, Some(&"y\n".repeat(9_000)), 5_000), None);
        // Nothing in common, and as many lines as are looked at.
        let (old, new): (String, String) = (0..3_900).map(|n| (format!("{n}\n"), format!("-{n}\n"))).unzip();
        assert!(diff(Some(&old), Some(&new), 5_000).unwrap().cut);
    }

    #[test]
    fn secrets_and_personal_data_are_not_shown() {
        let new = "api_key = abc123\nmail bob@example.com\nplain: text\n-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\nend\n";
        let shown = diff(None, Some(new), 5_000).unwrap();
        assert!(shown.redacted);
        for hidden in ["abc123", "bob@example.com", "AAAA"] {
            assert!(!shown.text.contains(hidden), "{}", shown.text);
        }
        for kept in ["+api_key = [redacted:secret]", "+plain: text", "+end"] {
            assert!(shown.text.contains(kept), "{}", shown.text);
        }
    }
}
