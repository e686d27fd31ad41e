//! What is different between two texts, as people read it: bounded, and without secrets and personal data.

use effectd_contracts::{Rehearsed, Standing};
use effectd_policy::inspect::safety::secret_spans;
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
    // By the very characters that a line ends with for the diff, too.
    let lines = |text: &str| text.matches(['\n', '\r']).count() + 1;
    if old == new || lines(&old) + lines(new) > PREVIEW_DIFF_LINES_MAX {
        return None;
    }
    // Before the two are compared: of a difference only a piece is left, by which a secret may not be known any more.
    let (mut old, mut new) = (old, new.to_owned());
    let redacted = [&mut old, &mut new].map(redact) != [false, false];
    let mut diff = written(&old, &new, left);
    diff.redacted = redacted;
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

/// Removes what nobody needs to see for their decision. Says whether there was something.
pub(crate) fn redact(text: &mut String) -> bool {
    let mut removed = without_tokens(text);
    let mut in_key = false;
    let lines = text.split_inclusive('\n').map(|line| {
        let (body, end) = line.strip_suffix('\n').map_or((line, ""), |body| (body, "\n"));
        in_key |= body.contains(KEY_BEGINS);
        let safe = if in_key {
            in_key = !body.contains("-----END");
            Some(SECRET_PLACEHOLDER.to_owned())
        } else {
            secret(body).or_else(|| redact_text(body).map(|redacted| redacted.text))
        };
        removed |= safe.is_some();
        format!("{}{end}", safe.as_deref().unwrap_or(body))
    });
    *text = lines.collect();
    removed
}

/// Where the lines of a private key begin.
const KEY_BEGINS: &str = "-----BEGIN ";

/// Removes what is known by its look, wherever it stands.
fn without_tokens(text: &mut String) -> bool {
    let spans = secret_spans(text);
    // The beginning of a key is left where it is: the lines after it go with it.
    let spans = spans
        .into_iter()
        .filter(|span| !text[span.clone()].contains(KEY_BEGINS));
    let spans: Vec<_> = spans.collect();
    for span in spans.iter().rev() {
        text.replace_range(span.clone(), SECRET_PLACEHOLDER);
    }
    !spans.is_empty()
}

/// A line that gives secrets their values, without the values: `password: x`, `{"user":"a","password":"b"}`.
fn secret(line: &str) -> Option<String> {
    let (mut safe, mut rest, mut found) = (String::new(), line, false);
    while let Some(at) = rest.find([':', '=']) {
        let (name, value) = (&rest[..at], &rest[at + 1..]);
        let quotes = ['"', '\'', '`'];
        let last = name.trim_end().trim_end_matches(quotes);
        let last = last
            .rsplit([' ', '\t', ',', ';', '{', '(', '"', '\'', '`', '&', '?'])
            .next();
        safe.push_str(&rest[..=at]);
        rest = value;
        let begins = value.trim_start();
        if begins.is_empty() || begins.starts_with(SECRET_PLACEHOLDER) || !last.is_some_and(is_secret_name) {
            continue;
        }
        found = true;
        let blank = value.len() - begins.len();
        let quote = begins.chars().next().filter(|first| quotes.contains(first));
        let end = match quote {
            // As far as the quote goes; one that does not end takes the line with it.
            Some(quote) => begins[1..].find(quote).map_or(begins.len(), |end| end + 2),
            // Without quotes a value may have blanks in it, so the line is over.
            None => begins.len(),
        };
        safe.push_str(&value[..blank]);
        safe.push_str(SECRET_PLACEHOLDER);
        rest = &begins[end..];
    }
    safe.push_str(rest);
    found.then_some(safe)
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

    #[test]
    fn secrets_are_known_by_their_look_wherever_they_stand() {
        let key = "-----BEGIN RSA PRIVATE KEY-----\nAAAABBBBCCCC\nDDDDEEEEFFFF\nGGGGHHHHIIII\nJJJJKKKKLLLL\n-----END RSA PRIVATE KEY-----\n";
        // The key's first line is far above what is shown around the change.
        let shown = diff(Some(key), Some(&format!("{key}a new line\n")), 5_000).unwrap();
        assert!(
            shown.redacted && shown.text.contains("+a new line"),
            "{}",
            shown.text
        );
        assert!(!shown.text.contains("KKKK"), "{}", shown.text);
        let tokens = [
            "AKIAABCDEFGHIJKLMNOP",
            "ghp_abcdefghijklmnopqrstuvwxyz0123456789",
            "sk-abcdefghijklmnopqrstuvwxyz",
            "eyJhbGciOiJIUzI1.eyJzdWIiOiIxMjM0.SflKxwRJSMeKKF2QT4",
            "https://bob:hunter22hunter@example.org/x",
            "{\"user\":\"bob\",\"password\":\"hun\",\"city\":\"Bern\"}",
        ];
        for token in tokens {
            let shown = diff(None, Some(&format!("{}{token} more\n", "x ".repeat(240))), 5_000).unwrap();
            assert!(shown.redacted, "{token}");
            for hidden in ["AKIA", "wxyz", "SflKx", "hunter", "\"hun\""] {
                assert!(!shown.text.contains(hidden), "{}", shown.text);
            }
        }
        let mut text = tokens[5].to_owned();
        assert!(redact(&mut text));
        assert_eq!(
            text,
            "{\"user\":\"bob\",\"password\":[redacted:secret],\"city\":\"Bern\"}"
        );
        let mut harmless = "a: b, c = d\nhttp://example.org:80/x?y=1\n".to_owned();
        assert!(!redact(&mut harmless));
    }

    #[test]
    fn lines_are_counted_as_the_difference_counts_them() {
        assert_eq!(diff(None, Some(&"y\r".repeat(9_000)), 5_000), None);
    }
}
