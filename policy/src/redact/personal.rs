//! E-mail addresses and phone numbers in text.
//!
//! Scanners by hand instead of regular expressions: what makes a run of digits a phone number and not a date, a version
//! or an amount is easier to read, and to argue about, as code. When in doubt it is removed if it is written like a
//! number one can dial, and kept if it is only digits.

/// What stands in place of an e-mail address.
pub const EMAIL_PLACEHOLDER: &str = "[redacted:email]";
/// What stands in place of a phone number.
pub const PHONE_PLACEHOLDER: &str = "[redacted:phone]";
/// What stands in place of a face.
pub const FACE_PLACEHOLDER: &str = "[redacted:face]";

/// A text without its personal data.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Redacted {
    /// The text with placeholders.
    pub text: String,
    /// How many e-mail addresses were removed.
    pub emails: u32,
    /// How many phone numbers were removed.
    pub phones: u32,
}

/// Most rounds of removal. What stood beside a removed number can look like a number of its own, so the result is looked
/// at again; a text that is made to go on like this for long has nothing honest in it.
const ROUNDS_MAX: usize = 8;

/// Removes e-mail addresses, then phone numbers; `None` if there are none, which is the usual case.
pub fn redact_text(text: &str) -> Option<Redacted> {
    if is_own_id(text) {
        return None;
    }
    let mut redacted = redact_once(text)?;
    for _ in 1..ROUNDS_MAX {
        let Some(more) = redact_once(&redacted.text) else {
            return Some(redacted);
        };
        redacted = Redacted {
            text: more.text,
            emails: redacted.emails.saturating_add(more.emails),
            phones: redacted.phones.saturating_add(more.phones),
        };
    }
    if redact_once(&redacted.text).is_some() {
        redacted.text = PHONE_PLACEHOLDER.to_owned();
    }
    Some(redacted)
}

/// A text that is one of effectd's own ids and nothing else: the groups of digits in it are no phone numbers. Its shape is
/// that of a UUID of version 7, which begins with a time.
fn is_own_id(text: &str) -> bool {
    let shape = |(at, byte): (usize, u8)| match at {
        8 | 13 | 18 | 23 => byte == b'-',
        14 => byte == b'7',
        19 => b"89ab".contains(&byte),
        _ => byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte),
    };
    text.len() == 36 && text.bytes().enumerate().all(shape)
}

fn redact_once(text: &str) -> Option<Redacted> {
    let (without_emails, emails) = replace(text, next_email, EMAIL_PLACEHOLDER);
    let rest = without_emails.as_deref().unwrap_or(text);
    let (without_phones, phones) = replace(rest, next_phone, PHONE_PLACEHOLDER);
    let text = without_phones.or(without_emails)?;
    Some(Redacted { text, emails, phones })
}

type Span = (usize, usize);

fn replace(text: &str, next: fn(&str, usize) -> Option<Span>, placeholder: &str) -> (Option<String>, u32) {
    let mut out: Option<String> = None;
    let mut count = 0;
    let mut from = 0;
    while let Some((start, end)) = next(text, from) {
        let out = out.get_or_insert_with(|| String::with_capacity(text.len()));
        out.push_str(&text[from..start]);
        out.push_str(placeholder);
        count += 1;
        from = end;
    }
    if let Some(out) = &mut out {
        out.push_str(&text[from..]);
    }
    (out, count)
}

fn is_local_char(c: char) -> bool {
    c.is_alphanumeric() || ".!#$%&'*+/=?^_`{|}~-".contains(c)
}

fn is_domain_char(c: char) -> bool {
    c.is_alphanumeric() || c == '.' || c == '-'
}

/// Longest part on either side of the sign that is looked at; longer than any real one, and it keeps the scan linear.
const SIDE_CHARS_MAX: usize = 128;

/// The next e-mail address at or after `from`. An address may also be written with `%40`, as in URLs, or with the
/// full-width sign.
fn next_email(text: &str, from: usize) -> Option<Span> {
    let mut search = from;
    loop {
        let (at, sign) = next_at_sign(text, search)?;
        let after = at + sign;
        // The domain first: where there is none, nobody has to look back.
        if let Some(domain) = domain_bytes(&text[after..]) {
            let local = text[from..at].char_indices().rev().take(SIDE_CHARS_MAX);
            if let Some((start, _)) = local.take_while(|(_, c)| is_local_char(*c)).last() {
                return Some((from + start, after + domain));
            }
        }
        search = after;
    }
}

fn next_at_sign(text: &str, from: usize) -> Option<(usize, usize)> {
    let bytes = text.as_bytes();
    (from..bytes.len()).find_map(|at| match bytes[at] {
        b'@' => Some((at, 1)),
        b'%' if bytes[at..].starts_with(b"%40") => Some((at, 3)),
        0xEF if bytes[at..].starts_with("＠".as_bytes()) => Some((at, "＠".len())),
        _ => None,
    })
}

/// How long the domain is that the text begins with: at least two labels, and the last one is a word — `example.org`, not
/// `1.5` and not `deviceA`. Whatever follows a domain does not unmake it.
fn domain_bytes(text: &str) -> Option<usize> {
    let run = text
        .char_indices()
        .take(2 * SIDE_CHARS_MAX)
        .take_while(|(_, c)| is_domain_char(*c))
        .last();
    let run = &text[..run.map_or(0, |(at, c)| at + c.len_utf8())];
    let mut end = 0;
    let mut best = None;
    for (index, label) in run.split('.').enumerate() {
        let name = label.trim_end_matches('-');
        if name.is_empty() {
            break;
        }
        let start = if index == 0 { 0 } else { end + 1 };
        let word = name.chars().count() >= 2 && name.chars().all(char::is_alphabetic);
        if index > 0 && (word || name.starts_with("xn--")) {
            best = Some(start + name.len());
        }
        end = start + label.len();
    }
    best
}

/// Runs of digits between separators.
struct Groups {
    /// Start, end and the separator before, of each group.
    parts: Vec<(usize, usize, Option<u8>)>,
    /// `+` stands first.
    plus: bool,
    /// `(` stands first.
    bracket: bool,
    /// Where the whole run begins, with `+` or `(`.
    start: usize,
}

/// Longer runs than this are no phone number, however they are grouped.
const GROUPS_MAX: usize = 8;
const DIGITS_MAX: usize = 15;

/// The next phone number at or after `from`.
fn next_phone(text: &str, from: usize) -> Option<Span> {
    let bytes = text.as_bytes();
    let mut at = from;
    while at < bytes.len() {
        if !starts_number(bytes, at) {
            at += 1;
            continue;
        }
        let groups = read_groups(bytes, at);
        let run_end = groups.parts.last().map_or(at + 1, |part| part.1);
        if ends_number(text, run_end) {
            if let Some(end) = dialable(bytes, &groups) {
                return Some((groups.start, end));
            }
            // A date or an amount may stand right before a number: try again behind it.
            let behind = if groups.is_date() { 2 } else { 0 };
            at = groups.parts.get(behind).map_or(run_end, |part| part.1);
        } else {
            at = run_end;
        }
    }
    None
}

fn starts_number(bytes: &[u8], at: usize) -> bool {
    let digit_at = |at: usize| bytes.get(at).is_some_and(u8::is_ascii_digit);
    let opens = match bytes[at] {
        b'+' => digit_at(at + 1) || (bytes.get(at + 1) == Some(&b'(') && digit_at(at + 2)),
        b'(' => digit_at(at + 1) || (bytes.get(at + 1) == Some(&b'+') && digit_at(at + 2)),
        b'0'..=b'9' => true,
        _ => false,
    };
    let before = at.checked_sub(1).map(|before| bytes[before]);
    opens && !before.is_some_and(|b| b.is_ascii_alphanumeric() || b == b'_' || b >= 0x80)
}

/// A number ends where the text goes on with neither a letter nor a digit.
fn ends_number(text: &str, end: usize) -> bool {
    !text[end..]
        .chars()
        .next()
        .is_some_and(|c| c.is_alphanumeric() || c == '_')
}

fn read_groups(bytes: &[u8], start: usize) -> Groups {
    let mut at = start;
    let (mut plus, mut bracket) = (false, false);
    while let Some(sign @ (b'+' | b'(')) = bytes.get(at) {
        plus |= *sign == b'+';
        bracket |= *sign == b'(';
        at += 1;
    }
    let mut parts = Vec::new();
    let mut separator = None;
    loop {
        let first = at;
        while bytes.get(at).is_some_and(u8::is_ascii_digit) {
            at += 1;
        }
        if at == first {
            break;
        }
        parts.push((first, at, separator));
        separator = None;
        let gap = at;
        while let Some(sign @ (b' ' | b'-' | b'.' | b'/' | b'(' | b')')) = bytes.get(at) {
            separator = Some(separator.map_or(*sign, |kept| if kept == b' ' { *sign } else { kept }));
            at += 1;
        }
        if at == gap || at - gap > 3 || parts.len() > GROUPS_MAX {
            break;
        }
    }
    Groups {
        parts,
        plus,
        bracket,
        start,
    }
}

/// Where the number ends, if the run is one that one can dial.
fn dialable(bytes: &[u8], groups: &Groups) -> Option<usize> {
    let parts = &groups.parts;
    let lengths: Vec<usize> = parts.iter().map(|(start, end, _)| end - start).collect();
    let digits: usize = lengths.iter().sum();
    let end = parts.last()?.1;
    let first = &bytes[parts[0].0..parts[0].1];
    if digits > DIGITS_MAX || parts.len() > GROUPS_MAX {
        return None;
    }
    if groups.plus {
        return (digits >= 7).then_some(end);
    }
    let separators: Vec<u8> = parts.iter().filter_map(|part| part.2).collect();
    if groups.is_date() {
        return None;
    }
    let after_zeros = first.iter().position(|digit| *digit != b'0')?;
    let dotted = separators.contains(&b'.');
    let pairs = lengths.iter().all(|length| *length == 2);
    let trunk = after_zeros == 1 && first.len() >= 2;
    let international = after_zeros == 2 && digits >= 10;
    let shaped = match (parts.len(), dotted) {
        (1, _) => (10..=13).contains(&digits),
        (_, true) => pairs && digits >= 8,
        (_, false) => digits >= 7,
    };
    let national = (trunk || international) && shaped;
    let area_in_brackets = groups.bracket && parts.len() >= 2 && digits >= 7 && first.len() <= 5;
    let north_american =
        matches!(lengths.as_slice(), [3, 3, 4] | [1, 3, 3, 4]) && !separators.contains(&b'/');
    (national || area_in_brackets || north_american).then_some(end)
}

impl Groups {
    /// `2025-09-06`, `06.09.2025`, `6/9/2025`, each perhaps with something behind it.
    fn is_date(&self) -> bool {
        let [first, second, third, ..] = self.parts.as_slice() else {
            return false;
        };
        let same = second.2 == third.2 && second.2 != Some(b' ');
        let length = |part: &(usize, usize, Option<u8>)| part.1 - part.0;
        let shape = match (length(first), length(second), length(third)) {
            (4, month, day) | (day, month, 4) => month <= 2 && day <= 2,
            _ => false,
        };
        same && shape
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use proptest::prelude::*;

    fn redacted(text: &str) -> String {
        redact_text(text).map_or_else(|| text.to_owned(), |redacted| redacted.text)
    }

    #[test]
    fn addresses_go_and_things_with_an_at_sign_stay() {
        for (text, expected) in [
            ("write to bob@example.org.", "write to [redacted:email]."),
            ("<Bob.O'Neil+tag@mail.example.co.uk>", "<[redacted:email]>"),
            ("a@b.org,c@d.org", "[redacted:email],[redacted:email]"),
            ("?to=bob%40example.org&x=1", "[redacted:email]&x=1"),
            ("jürgen@bücher.example", "[redacted:email]"),
            ("bob＠example.org", "[redacted:email]"),
            ("bob@example.org..and so on", "[redacted:email]..and so on"),
            ("bob@example.org.5", "[redacted:email].5"),
            ("bob@example.org-", "[redacted:email]-"),
            ("a@xn--bcher-kva.xn--p1ai", "[redacted:email]"),
            ("agent://planner@deviceA", "agent://planner@deviceA"),
            (
                "user@localhost, a @ b.org, @handle, 3@1.5",
                "user@localhost, a @ b.org, @handle, 3@1.5",
            ),
            ("npm i left-pad@1.3.0", "npm i left-pad@1.3.0"),
        ] {
            assert_eq!(redacted(text), expected, "{text}");
        }
    }

    #[test]
    fn numbers_one_can_dial_go() {
        for text in [
            "+49 171 2345678",
            "+491712345678",
            "+1 (555) 123-4567",
            "0049 30 123456",
            "(030) 1234567",
            "0171 2345678",
            "0171/2345678",
            "01712345678",
            "555-123-4567",
            "555.123.4567",
            "1-800-555-0199",
            "(555) 123-4567",
            "06 12 34 56 78",
            "06.12.34.56.78",
        ] {
            assert_eq!(
                redacted(&format!("call {text}, now")),
                "call [redacted:phone], now",
                "{text}"
            );
        }
        assert_eq!(redacted("tel:+491712345678"), "tel:[redacted:phone]");
        assert_eq!(
            redacted("on 2025-09-06 0171 2345678"),
            "on 2025-09-06 [redacted:phone]"
        );
    }

    #[test]
    fn other_numbers_stay() {
        for text in [
            "2025-09-06T12:00:00Z",
            "06.09.2025 12:30",
            "01/02/2025",
            "1700000000",
            "3.14159265358979",
            "version 0.12.3456",
            "192.168.100.200",
            "10.0.0.1:8080",
            "550e8400-e29b-41d4-a716-446655440000",
            "12345678-1234-1234-1234-123456789012",
            "4111 1111 1111 1111",
            "1,234,567.89",
            "pages 100-2000",
            "0000000000",
            "sha256:0171234567890123456789012345678901234567890123456789",
            "w36_01712345678",
        ] {
            assert_eq!(redacted(text), text);
        }
    }

    proptest! {
        #[test]
        fn any_text_is_survived_and_a_second_pass_finds_nothing(text in "[ -~\u{a0}-\u{ff}@+0-9.()-]{0,200}") {
            let once = redacted(&text);
            prop_assert_eq!(redacted(&once), once.clone());
        }

        #[test]
        fn an_address_never_survives(before in "[a-z ]{0,20}", local in "[a-z][a-z0-9]{0,10}", after in "[ ,;]{1}[a-z ]{0,20}") {
            let address = format!("{local}@example.org");
            let text = format!("{before} {address}{after}");
            prop_assert!(!redacted(&text).contains(&address));
        }
    }

    /// Found by fuzzing: what was left beside a removed number was a number again.
    #[test]
    fn what_is_left_beside_a_number_is_looked_at_again() {
        let text = "11-\0/02)1/((0/2/0(1//022/0(1/((0/0";
        assert_eq!(redact_text(&redacted(text)), None);
    }

    #[test]
    fn trouble_in_bulk_keeps_its_length_in_bounds() {
        for piece in ["a@", "0 ", "+1(", "%40", "1-", "0171", "a.a@a.a@"] {
            let text = piece.repeat(300_000 / piece.len());
            // A scanner that looked back at every step would not come to an end here.
            let redacted = redact_text(&text).map_or(text.len(), |redacted| redacted.text.len());
            assert!(redacted <= 16 * text.len(), "{piece:?} grew to {redacted} bytes");
        }
    }

    #[test]
    fn own_ids_and_digests_are_left_alone() {
        let id = "01a1de17-5511-7234-ac5b-aa755d28bfda";
        assert_eq!(redact_text(id), None);
        assert!(
            !is_own_id("01a1de17-5511-4234-ac5b-aa755d28bfda"),
            "another version"
        );
        assert!(!is_own_id("+49 30 1234567"));
        let digest = "0123456789012345678901234567890123456789012345678901234567890123";
        assert_eq!(redact_text(digest), None);
        assert_eq!(
            redact_text("ab03012345678901cd49301234567ef0123456789a0301234567b0301234567c"),
            None
        );
    }
}
