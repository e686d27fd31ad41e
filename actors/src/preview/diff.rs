//! Diffs of two texts for people: bounded, without secrets and personal data.

use std::time::Duration;

use effectd_contracts::{Clock, Monotonic, PathState, PreviewedPath};
use effectd_policy::inspect::safety::secret_spans;
use effectd_policy::redact::personal::redact_text;
use effectd_policy::redact::storage::{SECRET_PLACEHOLDER, is_secret_name};
use similar::{ChangeTag, TextDiff};

use crate::action::preview::{Diff, LeftOut};
use crate::limits::{
    PREVIEW_DIFF_BYTES_MAX, PREVIEW_DIFF_LINES_MAX, PREVIEW_DIFF_TIME_MAX, PREVIEW_DIFFS_TIME_MAX,
};
use crate::services::files::Inspected;

const CONTEXT_LINES: usize = 3;
const LINE_BYTES_MAX: usize = 512;

/// The bytes and the time that are left for the diffs of one preview. A byte of text counts as many bytes as it takes in JSON.
pub(super) struct Room<'c> {
    left: usize,
    clock: &'c dyn Clock,
    until: Monotonic,
}

impl<'c> Room<'c> {
    pub(super) fn new(clock: &'c dyn Clock) -> Self {
        Self {
            left: usize::try_from(PREVIEW_DIFF_BYTES_MAX).unwrap_or(usize::MAX),
            clock,
            until: clock.monotonic().plus(PREVIEW_DIFFS_TIME_MAX),
        }
    }

    fn time_left(&self) -> Duration {
        self.until.since(self.clock.monotonic())
    }

    /// Adds a line; `false` if there is no room.
    fn push(&mut self, diff: &mut Diff, line: &str) -> bool {
        let takes: usize = line.bytes().map(stored_bytes).sum();
        if takes > self.left {
            diff.cut = true;
            self.left = 0;
            return false;
        }
        self.left -= takes;
        diff.text.push_str(line);
        true
    }
}

/// The diff between the present content and the predicted one; `None` if they are equal. The error says why there is no diff.
pub(super) fn between(
    old: &Inspected,
    new: &PreviewedPath,
    room: &mut Room<'_>,
) -> Result<Option<Diff>, LeftOut> {
    if same_content(&old.seen.standing, &new.standing) {
        return Ok(None);
    }
    let old = match (&old.seen.standing, &old.content) {
        (PathState::Absent | PathState::Folder, _) => String::new(),
        (PathState::File(_), Some(content)) => text(content).ok_or(LeftOut::NotText)?,
        (PathState::File(_), None) => return Err(LeftOut::TooLong),
        (PathState::Other, _) => return Err(LeftOut::NotText),
    };
    let new = match (&new.standing, &new.text) {
        (PathState::Absent | PathState::Folder, _) => "",
        (PathState::File(_), Some(text)) => text,
        (PathState::File(_), None) if new.too_long => return Err(LeftOut::TooLong),
        (PathState::File(_), None) | (PathState::Other, _) => return Err(LeftOut::NotText),
    };
    let lines = |text: &str| text.matches('\n').count() + 1;
    if lines(&old) + lines(new) > PREVIEW_DIFF_LINES_MAX {
        return Err(LeftOut::TooLong);
    }
    if room.left == 0 {
        return Err(LeftOut::NoRoom);
    }
    if room.time_left().is_zero() {
        return Err(LeftOut::TookTooLong);
    }
    // Redact before comparing: a diff may show only a part of a secret, which would not be recognised.
    let (mut old, mut new) = (old, new.to_owned());
    let redacted = [&mut old, &mut new].map(redact) != [false, false];
    let mut diff = written(&old, &new, room);
    diff.redacted = redacted;
    Ok(Some(diff))
}

/// Whether the contents are the same, or neither has one.
fn same_content(old: &PathState, new: &PathState) -> bool {
    match (old, new) {
        (PathState::File(old), PathState::File(new)) => old.digest == new.digest,
        (PathState::File(_), _) | (_, PathState::File(_)) => false,
        (PathState::Absent | PathState::Folder | PathState::Other, _) => true,
    }
}

fn text(content: &[u8]) -> Option<String> {
    let text = std::str::from_utf8(content).ok()?;
    (!text.contains('\0')).then(|| text.to_owned())
}

fn written(old: &str, new: &str, room: &mut Room<'_>) -> Diff {
    // Only a line feed ends a line: other control characters that move the cursor are part of the line, and are shown.
    let old: Vec<&str> = old.split_inclusive('\n').collect();
    let new: Vec<&str> = new.split_inclusive('\n').collect();
    let diff = TextDiff::configure()
        .newline_terminated(true)
        .timeout(PREVIEW_DIFF_TIME_MAX.min(room.time_left()))
        .diff_slices(&old, &new);
    let mut out = Diff { text: String::new(), cut: false, redacted: false };
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
        if !room.push(&mut out, &head) {
            return out;
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
            if !room.push(&mut out, &format!("{sign}{line}{end}")) {
                return out;
            }
            out.cut |= !whole;
        }
    }
    out
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

/// Removes secrets and personal data. Returns whether there were any.
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

/// How the first line of a private key begins.
const KEY_BEGINS: &str = "-----BEGIN ";

/// Removes tokens of a known form. Returns whether there were any.
fn without_tokens(text: &mut String) -> bool {
    let spans = secret_spans(text);
    // The first line of a key stays, so that the lines after it are recognised.
    let spans = spans.into_iter().filter(|span| !text[span.clone()].contains(KEY_BEGINS));
    let spans: Vec<_> = spans.collect();
    for span in spans.iter().rev() {
        text.replace_range(span.clone(), SECRET_PLACEHOLDER);
    }
    !spans.is_empty()
}

/// The line without the values of secrets, if it has any: `password: x`, `{"user":"a","password":"b"}`.
fn secret(line: &str) -> Option<String> {
    let (mut safe, mut rest, mut found) = (String::new(), line, false);
    while let Some(at) = rest.find([':', '=']) {
        let (name, value) = (&rest[..at], &rest[at + 1..]);
        let quotes = ['"', '\'', '`'];
        let last = name.trim_end().trim_end_matches(quotes);
        let last = last.rsplit([' ', '\t', ',', ';', '{', '(', '"', '\'', '`', '&', '?']).next();
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
            // Up to the closing quote; without one, the rest of the line.
            Some(quote) => begins[1..].find(quote).map_or(begins.len(), |end| end + 2),
            // A value without quotes may contain blanks, so the rest of the line is removed.
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
    use effectd_contracts::{Digest, FileState, ManualClock, PathSnapshot, SystemClock};

    use super::*;

    fn file(text: &[u8]) -> PathState {
        PathState::File(FileState {
            digest: Digest::of(text).to_string(),
            bytes: text.len() as u64,
            mode: 0o644,
        })
    }

    fn tried(old: Option<&str>, new: Option<&str>, room: &mut Room<'_>) -> Result<Option<Diff>, LeftOut> {
        let standing = |text: Option<&str>| text.map_or(PathState::Absent, |text| file(text.as_bytes()));
        let inspected = Inspected {
            seen: PathSnapshot::new("workspace/x", standing(old)),
            content: old.map(|text| text.as_bytes().to_vec()),
        };
        let rehearsed = PreviewedPath {
            path: "workspace/x".to_owned(),
            standing: standing(new),
            text: new.map(str::to_owned),
            too_long: false,
        };
        between(&inspected, &rehearsed, room)
    }

    fn diff(old: Option<&str>, new: Option<&str>, bytes: usize) -> Option<Diff> {
        let mut room = Room::new(&SystemClock);
        room.left = bytes;
        let diff = tried(old, new, &mut room).unwrap_or_default();
        if let Some(diff) = &diff {
            assert!(serde_json::to_string(&diff.text).unwrap().len() <= bytes + 64);
        }
        diff
    }

    #[test]
    fn a_difference_is_what_people_know() {
        let shown = diff(Some("a\nb\nc\n"), Some("a\nB\nc\nd"), 1_000).unwrap();
        assert_eq!(shown.text, "@@ -1,3 +1,4 @@\n a\n-b\n+B\n c\n+d\n\\ no newline at the end\n");
        assert!(!shown.cut && !shown.redacted);
        assert_eq!(diff(None, Some("new\n"), 1_000).unwrap().text, "@@ -1,0 +1,1 @@\n+new\n");
        assert_eq!(diff(Some("old\n"), None, 1_000).unwrap().text, "@@ -1,1 +1,0 @@\n-old\n");
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
        // Two texts with nothing in common, and nearly as many lines as are compared.
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
        // The key's first line is far above the lines shown around the change.
        let shown = diff(Some(key), Some(&format!("{key}a new line\n")), 5_000).unwrap();
        assert!(shown.redacted && shown.text.contains("+a new line"), "{}", shown.text);
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
        assert_eq!(text, "{\"user\":\"bob\",\"password\":[redacted:secret],\"city\":\"Bern\"}");
        let mut harmless = "a: b, c = d\nhttp://example.org:80/x?y=1\n".to_owned();
        assert!(!redact(&mut harmless));
    }

    #[test]
    fn only_a_line_feed_ends_a_line_and_carriage_returns_are_kept() {
        let shown = diff(Some("a\nb\n"), Some("a\r\nb\r\n"), 1_000).unwrap();
        assert_eq!(shown.text, "@@ -1,2 +1,2 @@\n-a\n-b\n+a\r\n+b\r\n");
        let shown = diff(Some("a\n"), Some("a\rb\n"), 1_000).unwrap();
        assert_eq!(shown.text, "@@ -1,1 +1,1 @@\n-a\n+a\rb\n");
    }

    #[test]
    fn what_is_left_out_has_its_reason() {
        let clock = ManualClock::at(SystemClock.now());
        let mut room = Room::new(&clock);
        assert!(matches!(tried(None, Some("a\n"), &mut room), Ok(Some(_))));
        assert_eq!(tried(Some("a\0"), Some("b"), &mut room), Err(LeftOut::NotText));
        let many = "y\n".repeat(9_000);
        assert_eq!(tried(None, Some(&many), &mut room), Err(LeftOut::TooLong));
        // The first diff used up all the time.
        clock.advance(PREVIEW_DIFFS_TIME_MAX);
        assert_eq!(tried(None, Some("b\n"), &mut room), Err(LeftOut::TookTooLong));
        assert_eq!(tried(Some("b\n"), Some("b\n"), &mut room), Ok(None));
        let mut room = Room::new(&clock);
        room.left = 0;
        assert_eq!(tried(None, Some("b\n"), &mut room), Err(LeftOut::NoRoom));
    }
}
