//! Fingerprints of failures: a short hash of the cause that does not depend on who, when, where or how much.
//!
//! Ten thousand dead letters often have a handful of causes. Two failures have the same fingerprint when they have the same
//! tool and code, and their details differ only in ids, numbers, paths, addresses and quoted values.

use crate::codec::Hash16;
use crate::limits::FINGERPRINT_WORDS_MAX;

/// The fingerprint of a failure, of a tool if that is known. Stored with the dead letter.
pub fn fingerprint(tool: Option<&str>, code: &str, detail: &str) -> Hash16 {
    let words = essence(detail);
    let mut parts = vec![b"effectd fingerprint 1".as_slice(), code.as_bytes(), words.as_bytes()];
    parts.extend(tool.map(str::as_bytes));
    Hash16::of(&parts)
}

/// The words of a text, with each variable part replaced by a sign for its kind.
pub fn essence(detail: &str) -> String {
    let mut out: Vec<String> = Vec::new();
    for word in unquoted(detail).split_whitespace().take(FINGERPRINT_WORDS_MAX) {
        let word = shape(word);
        // Consecutive equal words count as one.
        if !word.is_empty() && out.last() != Some(&word) {
            out.push(word);
        }
    }
    out.join(" ")
}

/// The text with each quotation replaced by a sign. An unclosed quote is an apostrophe.
fn unquoted(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find(['"', '`', '\'']) {
        let (before, quoted) = rest.split_at(at);
        let mut characters = quoted.chars();
        let quote = characters.next().unwrap_or('"');
        let inside = characters.as_str();
        let opens = before.chars().next_back().is_none_or(|before| !before.is_alphanumeric());
        out.push_str(before);
        match inside.find(quote).filter(|_| opens) {
            Some(end) => {
                out.push_str(" \" ");
                rest = &inside[end + quote.len_utf8()..];
            }
            None => {
                out.push(' ');
                rest = inside;
            }
        }
    }
    out.push_str(rest);
    out
}

/// A word in lower case, or a sign for its kind.
fn shape(word: &str) -> String {
    let word = word.trim_matches(|c: char| !c.is_alphanumeric() && !matches!(c, '"' | '/' | '~' | '.'));
    let word = word.trim_end_matches('.');
    if word.contains("://") || word.contains('/') || word.contains('\\') || word.starts_with('~') {
        "/".to_owned()
    } else if word.contains('@') {
        "@".to_owned()
    } else if word.contains(|c: char| c.is_numeric()) || is_code(word) {
        "#".to_owned()
    } else if word.contains('.') && word.len() > 1 {
        // A file or a host.
        "/".to_owned()
    } else {
        word.to_lowercase()
    }
}

/// Whether a word without digits is an id: long hexadecimal, or joined from parts like `act:home:x`.
fn is_code(word: &str) -> bool {
    let is_hex = word.len() >= 8 && word.chars().all(|c| c.is_ascii_hexdigit());
    is_hex || word.contains([':', '_', '=']) && word.len() > 1
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn what_varies_does_not_count() {
        let same = [
            "write of 17 bytes to /srv/a/b.txt failed: No space left (os error 28)",
            "write of 4096 bytes to notes/week.txt failed: No space left (os error 28)",
            "Write of 1 bytes to ~/x failed: no space left (os error 28).",
        ];
        let prints: BTreeSet<Hash16> = same.iter().map(|text| fingerprint(None, "io", text)).collect();
        assert_eq!(prints.len(), 1, "{:?}", same.map(essence));
        let other = [
            fingerprint(None, "timed_out", same[0]),
            fingerprint(None, "io", "permission denied"),
            fingerprint(Some("files.copy"), "io", same[0]),
            fingerprint(Some("files.write_text"), "io", same[0]),
        ];
        assert_eq!(prints.iter().chain(&other).collect::<BTreeSet<_>>().len(), 5);
        assert_eq!(
            essence(
                "action 0198c5e2-7d30-7000-8000-00000000abcd of agent://mia: the tool said \"it's late\" at 10:31"
            ),
            "action # of / the tool said \" at #"
        );
        assert_eq!(essence("it doesn't fit"), "it doesn t fit");
        assert_eq!(essence(""), "");
    }

    #[test]
    fn seven_causes_of_10_000_failures_have_seven_fingerprints() {
        let mut prints = BTreeSet::new();
        for n in 0..10_000_u64 {
            let id = n.wrapping_mul(0x9e37_79b9_7f4a_7c15);
            let (code, detail) = match n % 7 {
                0 => ("timed_out", format!("no answer within {n} ms")),
                1 => ("path_denied", format!("/srv/data/{id:x}/notes-{n}.txt lies outside the space")),
                2 => {
                    ("internal", format!("delivered {} times, and each time the work on it died", 2 + n % 9))
                }
                3 => {
                    ("outcome_unknown", format!("the child {n} of action {id:016x} died before it answered"))
                }
                4 => ("timed_out", format!("host db-{n}.example.org:{} did not connect", n % 65_536)),
                5 => ("result_invalid", format!("field \"f{n}\" of '{id}' is no text")),
                _ => ("memory_limit", format!("{n} MiB of {} MiB used", n + 1)),
            };
            prints.insert(fingerprint(None, code, &detail));
        }
        assert_eq!(prints.len(), 7);
    }

    #[test]
    fn the_bytes_of_a_fingerprint_stay_what_they_are() {
        let print = fingerprint(None, "timed_out", "no answer within 30 s");
        assert_eq!(effectd_contracts::digest::hex(&print.0), GOLDEN);
    }

    const GOLDEN: &str = "e1839aecb7a73bf95afa0a724e989f4d";
}
