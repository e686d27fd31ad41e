//! Finds e-mail addresses and phone numbers in text.
//!
//! The scanners are code instead of regular expressions, since what distinguishes a phone number from a date, a version or an
//! amount is easier to read that way. A phone number has the form of one that people dial and stands alone: digits inside an
//! id, a hash, a fraction or a version are not phone numbers.

use serde_json::{Map, Value};

use super::storage::words;

pub const EMAIL_PLACEHOLDER: &str = "[redacted:email]";
pub const PHONE_PLACEHOLDER: &str = "[redacted:phone]";
pub const FACE_PLACEHOLDER: &str = "[redacted:face]";

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Redacted {
    pub text: String,
    pub emails: u32,
    pub phones: u32,
}

/// Most rounds of removal. The text beside a removed number can look like another number, so the result is scanned again. Only
/// a hostile text needs more rounds; a placeholder replaces all of it.
const ROUNDS_MAX: usize = 8;

/// Removes e-mail addresses, then phone numbers; `None` if there are none.
pub fn redact_text(text: &str) -> Option<Redacted> {
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

/// Like [`redact_text`] for a path: each part is scanned alone, since digits after a slash count as part of an id in text, and
/// the whole for phone numbers that contain a slash.
pub fn redact_path(path: &str) -> Option<Redacted> {
    let (joined, mut phones) = replace(path, next_phone_with_slash, PHONE_PLACEHOLDER);
    let (mut text, mut emails) = (String::with_capacity(path.len()), 0);
    for part in joined.as_deref().unwrap_or(path).split_inclusive(['/', '\\']) {
        let redacted = redact_text(part);
        text.push_str(redacted.as_ref().map_or(part, |redacted| &redacted.text));
        emails += redacted.as_ref().map_or(0, |redacted| redacted.emails);
        phones += redacted.map_or(0, |redacted| redacted.phones);
    }
    (emails + phones > 0).then_some(Redacted { text, emails, phones })
}

/// Like [`redact_text`] for a text that may be or name a path. As a path first: in text, the folder before an address is part of
/// the address.
pub fn redact_stored(text: &str) -> Option<Redacted> {
    let as_path = redact_path(text);
    match (redact_text(as_path.as_ref().map_or(text, |found| &found.text)), as_path) {
        (Some(found), Some(before)) => Some(Redacted {
            text: found.text,
            emails: found.emails.saturating_add(before.emails),
            phones: found.phones.saturating_add(before.phones),
        }),
        (found, before) => found.or(before),
    }
}

/// Removes e-mail addresses and phone numbers from a value that is stored: from texts, names, and numbers under the name of a phone.
pub fn redact_values(value: &mut Value) {
    redact_under("", value);
}

fn redact_under(name: &str, value: &mut Value) {
    match value {
        Value::String(text) => {
            if let Some(found) = redact_stored(text) {
                *text = found.text;
            }
        }
        Value::Number(number) if is_phone_name(name) && number.to_string().len() >= PHONE_DIGITS_MIN => {
            *value = Value::String(PHONE_PLACEHOLDER.to_owned());
        }
        Value::Array(items) => items.iter_mut().for_each(|item| redact_under(name, item)),
        Value::Object(members) => {
            for (name, mut member) in std::mem::take(members) {
                redact_under(&name, &mut member);
                let name = redact_stored(&name).map_or(name, |found| found.text);
                insert_apart(members, name, member);
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

/// A shorter number under the name of a phone is a count or an extension.
pub(crate) const PHONE_DIGITS_MIN: usize = 7;

/// Whether the value under this name is a phone number.
pub(crate) fn is_phone_name(name: &str) -> bool {
    const WORDS: [&str; 7] = ["phone", "telephone", "cellphone", "mobile", "tel", "fax", "msisdn"];
    words(name).iter().any(|word| WORDS.contains(&word.as_str()))
}

/// Inserts a member whose name may be taken: two names can be the same without their personal data.
pub(crate) fn insert_apart(members: &mut Map<String, Value>, name: String, member: Value) {
    let (mut free, mut number) = (name.clone(), 2);
    while members.contains_key(&free) {
        free = format!("{name}#{number}");
        number += 1;
    }
    members.insert(free, member);
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

/// Characters that are scanned before the `@`, and half of those after it: no real address is longer, and the scan stays
/// linear.
const SIDE_CHARS_MAX: usize = 128;

/// The next e-mail address at or after `from`, also with `%40`, as in URLs, or with the full-width sign.
fn next_email(text: &str, from: usize) -> Option<Span> {
    let mut search = from;
    loop {
        let (at, sign) = next_at_sign(text, search)?;
        let after = at + sign;
        // The domain is checked first, since most `@` signs have none after them.
        if let Some(domain) = domain_bytes(&text[after..]) {
            let local = text[from..at].char_indices().rev().take(SIDE_CHARS_MAX);
            if let Some((start, _)) = local.take_while(|(_, c)| is_local_char(*c)).last()
                && !(sign == 1 && is_login(&text[from..at], start, &text[after + domain..]))
            {
                return Some((from + start, after + domain));
            }
        }
        search = after;
    }
}

/// Schemes of URLs that may begin with a login.
const LOGIN_SCHEMES: &str = "ssh git http https postgres postgresql mysql redis amqp ftp ftps sftp";

/// Whether the name before the `@` logs in to a host or is part of a program: `git@host:path`, `ssh://user@host`,
/// `postgres://user:password@host`, `this@Outer.method()`.
fn is_login(before: &str, start: usize, after: &str) -> bool {
    let name = before[start..].rsplit(|c: char| !c.is_alphanumeric() && !"-_.+".contains(c)).next();
    let url = before.char_indices().rev().take(SIDE_CHARS_MAX);
    let url = url.take_while(|(_, c)| is_local_char(*c) || *c == ':').last();
    let url = url.and_then(|(start, _)| before[start..].rsplit_once("://"));
    let is_scheme = |text: &str| {
        let word = text.rsplit(|c: char| !c.is_alphanumeric()).next();
        LOGIN_SCHEMES.split(' ').any(|scheme| word == Some(scheme))
    };
    matches!(name, Some("git" | "this" | "super"))
        || after.starts_with("()")
        || url.is_some_and(|(scheme, user)| is_scheme(scheme) && !user.contains(['/', '?', '#']))
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

/// Last labels of systemd units: `getty@tty1.service`.
const UNITS: [&str; 8] = ["service", "socket", "timer", "target", "mount", "slice", "scope", "device"];

/// The length of the domain at the beginning of the text: at least two labels, the last one a word. `example.org` is one;
/// `1.5`, `deviceA`, the version `v1.0.0-beta.rc`, the picture `2x.png` and the unit `tty1.service` are not.
fn domain_bytes(text: &str) -> Option<usize> {
    let run = text.char_indices().take(2 * SIDE_CHARS_MAX).take_while(|(_, c)| is_domain_char(*c)).last();
    let run = &text[..run.map_or(0, |(at, c)| at + c.len_utf8())];
    let is_number = |label: &str| !label.is_empty() && label.bytes().all(|b| b.is_ascii_digit());
    let is_version = |label: &str| is_number(label.trim_start_matches('v').trim_end_matches('x'));
    let is_scale = run.split('.').next().and_then(|label| label.strip_suffix('x')).is_some_and(is_number);
    if is_scale || run.split('.').take(2).all(is_version) {
        return None;
    }
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
    best.filter(|end| !run[..*end].rsplit('.').next().is_some_and(|last| UNITS.contains(&last)))
}

/// A run of digit groups with separators between them.
struct Groups {
    /// The start, the end and the preceding separator of each group.
    parts: Vec<(usize, usize, Option<u8>)>,
    /// Whether it begins with `+`.
    plus: bool,
    /// Whether it begins with `(`.
    bracket: bool,
    /// Where the run begins, with `+` or `(`.
    start: usize,
}

/// Most groups of a phone number.
const GROUPS_MAX: usize = 8;
const DIGITS_MAX: usize = 15;

/// The next phone number at or after `from`.
fn next_phone(text: &str, from: usize) -> Option<Span> {
    let bytes = text.as_bytes();
    let mut at = from;
    while at < bytes.len() {
        if !starts_number(text, at) {
            at += 1;
            continue;
        }
        let groups = read_groups(bytes, at);
        let run_end = groups.parts.last().map_or(at + 1, |part| part.1);
        if !groups.ends(text, run_end) || groups.in_fours() || groups.in_bytes(text) {
            at = run_end;
            continue;
        }
        if !groups.is_fraction(text) && groups.is_dialable(bytes) {
            // A number in brackets is not one with its area code in brackets.
            let in_brackets = bytes[groups.start] == b'(' && !groups.is_closed(bytes);
            return Some((groups.start + usize::from(in_brackets), run_end));
        }
        // A date or an amount may come right before a phone number: continue after the date or amount.
        let last = if groups.is_date() { 2 } else { 0 };
        at = groups.parts.get(last).map_or(run_end, |part| part.1);
    }
    None
}

/// The next phone number with a slash in it.
fn next_phone_with_slash(text: &str, mut from: usize) -> Option<Span> {
    loop {
        let (start, end) = next_phone(text, from)?;
        if text[start..end].contains('/') {
            return Some((start, end));
        }
        from = end;
    }
}

/// The two characters before a position, the nearer one first.
fn before(text: &str, at: usize) -> (Option<char>, Option<char>) {
    let mut back = text[..at].chars().rev();
    (back.next(), back.next())
}

/// Whether a number can begin here: at a sign or digit that does not continue a word, an id, a path, a fraction or a time.
fn starts_number(text: &str, at: usize) -> bool {
    let bytes = text.as_bytes();
    let digit_at = |at: usize| bytes.get(at).is_some_and(u8::is_ascii_digit);
    let opens = match bytes[at] {
        b'+' => digit_at(at + 1) || (bytes.get(at + 1) == Some(&b'(') && digit_at(at + 2)),
        b'(' => digit_at(at + 1) || (bytes.get(at + 1) == Some(&b'+') && digit_at(at + 2)),
        b'0'..=b'9' => true,
        _ => false,
    };
    opens
        && match before(text, at) {
            (Some(c), _) if c.is_alphanumeric() || c == '_' => false,
            (Some('-' | '/' | '\\' | '#'), Some(c)) => !(c.is_alphanumeric() || c == '_'),
            (Some('.' | ':'), Some(c)) => !c.is_ascii_digit(),
            _ => true,
        }
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
    Groups { parts, plus, bracket, start }
}

impl Groups {
    /// Whether the number can end here: not where a word, an id, a fraction or a time continues, and not inside an id with
    /// colons, such as `arn:aws:iam::086441151436:root`.
    fn ends(&self, text: &str, end: usize) -> bool {
        let in_colons = !self.plus && self.parts.len() == 1 && text[..self.start].ends_with(':');
        let mut ahead = text[end..].chars();
        match (ahead.next(), ahead.next()) {
            (Some(c), _) if c.is_alphanumeric() || c == '_' => false,
            (Some('-'), Some(c)) => !(c.is_alphanumeric() || c == '_'),
            (Some('.'), Some(c)) => !c.is_ascii_digit(),
            (Some(':'), Some(c)) => !(c.is_ascii_digit() || (in_colons && c.is_alphanumeric())),
            _ => true,
        }
    }

    fn is_dialable(&self, bytes: &[u8]) -> bool {
        let parts = &self.parts;
        let group = |nth: usize| &bytes[parts[nth].0..parts[nth].1];
        let lengths: Vec<usize> = parts.iter().map(|(start, end, _)| end - start).collect();
        let separators: Vec<u8> = parts.iter().filter_map(|part| part.2).collect();
        let digits: usize = lengths.iter().sum();
        let count = parts.len();
        let is_binary = (0..count).all(|nth| group(nth).iter().all(|digit| matches!(digit, b'0' | b'1')));
        if count == 0 || count > GROUPS_MAX || digits > DIGITS_MAX || is_binary {
            return false;
        }
        let is_dotted = separators.contains(&b'.');
        if self.plus {
            // `+(1410065408`: a sum or a form.
            if self.bracket && bytes[self.start] == b'+' && !self.is_closed(bytes) {
                return false;
            }
            let is_amount = is_dotted && (count == 2 || lengths[1..].iter().all(|length| *length == 3));
            // The largest and smallest integers of 32 bits, and dates after the year 9999.
            let is_bound = count == 1 && matches!(group(0), b"2147483647" | b"2147483648" | b"4294967295");
            let is_late = separators == *b"--" && matches!(*lengths, [5 | 6, 2, 2]);
            let is_other = is_amount || is_bound || is_late;
            return group(0)[0] != b'0' && !is_other && digits >= if count == 1 { 10 } else { 8 };
        }
        // Case numbers such as `4711/2024` join the year with dashes or slashes.
        let is_joined = count > 1 && separators.iter().all(|sign| matches!(sign, b'-' | b'/'));
        let is_year = |nth: usize| matches!(group(nth), [b'1', b'9', _, _] | [b'2', b'0', _, _]);
        if self.is_date() || (is_joined && (1..count).any(is_year)) {
            return false;
        }
        let is_area = (2..=5).contains(&lengths[0]);
        if self.is_closed(bytes) && count >= 2 && (7..=13).contains(&digits) && is_area {
            return true;
        }
        let is_dashed = count > 1 && separators.iter().all(|sign| *sign == b'-');
        let is_shaped = match (count, group(0).iter().position(|digit| *digit != b'0')) {
            // The digits in their order stand for an alphabet, and groups of three that begin with 0 for small numbers.
            (1, Some(1)) => (10..=12).contains(&digits) && group(0) != b"0123456789",
            (1, Some(2)) => digits >= 11 && !group(0).chunks(3).all(|three| three[0] == b'0'),
            (_, Some(1)) if lengths.iter().all(|length| *length == 2) => digits == 10,
            (_, Some(_)) if is_dotted => false,
            // ISSNs, American postal codes, and ranges with leading zeros.
            (2, Some(1)) if is_dashed && matches!(*lengths, [4 | 5, 4]) => false,
            (2.., Some(1)) if (1..count).all(|nth| lengths[nth] == lengths[0] && group(nth)[0] == b'0') => {
                false
            }
            (_, Some(1)) if separators.contains(&b'(') => false,
            (3.., Some(1)) if is_dashed => lengths[0] >= 2 && (9..=11).contains(&digits),
            (_, Some(1)) => lengths[0] >= 2 && (7..=13).contains(&digits),
            (_, Some(2)) => {
                let least = if group(0) == b"001" { 13 } else { 11 };
                (3..=5).contains(&lengths[0]) && digits >= least && (!is_dashed || digits < DIGITS_MAX)
            }
            _ => false,
        };
        is_shaped || self.is_north_american(bytes, &lengths, &separators)
    }

    /// `555-123-4567`, `1-800-555-0199`: an area code never begins with 0 or 1. With blanks only, it could be columns of a
    /// table, so the next group must not begin with 0 or 1 either.
    fn is_north_american(&self, bytes: &[u8], lengths: &[usize], separators: &[u8]) -> bool {
        let area = match lengths {
            [3, 3, 4] => 0,
            [1, 3, 3, 4] if bytes[self.parts[0].0] == b'1' => 1,
            _ => return false,
        };
        let is_real = |nth: usize| matches!(bytes[self.parts[nth].0], b'2'..=b'9');
        let [.., second, third] = separators else {
            return false;
        };
        second == third && *second != b'/' && is_real(area) && (*second != b' ' || is_real(area + 1))
    }

    /// Whether the digits follow a decimal comma: `386,062956473987`.
    fn is_fraction(&self, text: &str) -> bool {
        let (comma, digit) = before(text, self.start);
        self.parts.len() == 1 && comma == Some(',') && digit.is_some_and(|c| c.is_ascii_digit())
    }

    /// Whether the first group alone is in brackets: `(030) 1234567`, unlike the point of a map `(159.6706, -69.9917)`.
    fn is_closed(&self, bytes: &[u8]) -> bool {
        self.bracket && bytes.get(self.parts[0].1) == Some(&b')')
    }

    /// Whether it is the number of a card or an account, in groups of four.
    fn in_fours(&self) -> bool {
        let count = self.parts.len();
        count >= 4 && self.parts[..count - 1].iter().all(|(start, end, _)| end - start == 4)
    }

    /// Whether it is part of a row of bytes: more pairs of digits than a phone number has, or a hexadecimal pair beside them.
    fn in_bytes(&self, text: &str) -> bool {
        let is_byte = |word: &str| {
            word.len() == 2
                && word.bytes().all(|b| b.is_ascii_hexdigit())
                && word.bytes().any(|b| b.is_ascii_digit())
        };
        let end = self.parts.last().map_or(self.start, |part| part.1);
        let before = text[..self.start].strip_suffix(' ').and_then(|text| text.rsplit(' ').next());
        let after = text[end..].strip_prefix(' ').and_then(|text| text.split(' ').next());
        self.parts.iter().all(|(start, end, _)| end - start == 2)
            && (self.parts.len() > 5 || before.is_some_and(is_byte) || after.is_some_and(is_byte))
    }

    /// Whether it begins with a date: `2025-09-06`, `06.09.2025`, `6/9/2025`.
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

    #[test]
    fn what_is_stored_keeps_its_folders() {
        let stored = |text: &str| redact_stored(text).map_or_else(|| text.to_owned(), |found| found.text);
        for (text, safe) in [
            ("workspace/bob@example.org", "workspace/[redacted:email]"),
            ("workspace/415-555-0100/a.txt", "workspace/[redacted:phone]/a.txt"),
            ("\"workspace/415-555-0100\" does not exist", "\"workspace/[redacted:phone]\" does not exist"),
            ("ask bob@example.org, 415-555-0100", "ask [redacted:email], [redacted:phone]"),
            ("workspace/2026-11-17/a.txt", "workspace/2026-11-17/a.txt"),
        ] {
            assert_eq!(stored(text), safe);
        }
        let found = redact_stored("a/bob@example.org and 415-555-0100").unwrap();
        assert_eq!((found.emails, found.phones), (1, 1));
    }

    #[test]
    fn stored_values_have_no_personal_names_and_numbers() {
        let mut value = serde_json::json!({
            "bob@example.org": 1, "jane@example.org": 2, "phone": 4155550100u64, "mobile": [4155550100u64, 12],
            "bytes": 4155550100u64, "list": [{ "tel_home": 4155550100u64 }],
        });
        redact_values(&mut value);
        let expected = serde_json::json!({
            "[redacted:email]": 1, "[redacted:email]#2": 2, "phone": PHONE_PLACEHOLDER,
            "mobile": [PHONE_PLACEHOLDER, 12], "bytes": 4155550100u64, "list": [{ "tel_home": PHONE_PLACEHOLDER }],
        });
        assert_eq!(value, expected);
    }

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
            ("user@localhost, a @ b.org, @handle, 3@1.5", "user@localhost, a @ b.org, @handle, 3@1.5"),
            ("npm i left-pad@1.3.0", "npm i left-pad@1.3.0"),
            ("x@1.0.0-beta.rc bob@163.com", "x@1.0.0-beta.rc [redacted:email]"),
            ("mailto:bob@example.org?x=git@github.com", "mailto:[redacted:email]?x=git@github.com"),
            ("https://x.example/?to=bob@example.org", "https:[redacted:email]"),
            ("https://bob%40example.org@git.example.org/x", "https:[redacted:email]@git.example.org/x"),
            ("git+ssh://me@b.example jane.git@b.example", "git+ssh://me@b.example [redacted:email]"),
        ] {
            assert_eq!(redacted(text), expected, "{text}");
        }
    }

    #[test]
    fn logins_units_and_pictures_are_no_addresses() {
        for text in [
            "git@github.com:org/repo.git",
            "\turl=git@github.com:org/repo.git",
            "ssh://git@git.example.org:2222/org/repo.git",
            "postgres://app:hunter2@db.example.org:5432/app",
            "https://bob@example.org/x?y=1",
            "Started user@1000.service and getty@tty1.service.",
            "url(icon@2x.png) icon@1.5x.png",
            "this@MainActivity.context, x@self.weight()",
            "tools@v0.1.13-pre.alpha",
        ] {
            assert_eq!(redacted(text), text);
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
            assert_eq!(redacted(&format!("call {text}, now")), "call [redacted:phone], now", "{text}");
        }
        assert_eq!(redacted("tel:+491712345678"), "tel:[redacted:phone]");
        assert_eq!(
            redacted("Bob (0171 2345678) (+49 171 2345678)"),
            "Bob ([redacted:phone]) ([redacted:phone])"
        );
        assert_eq!(redacted("on 2025-09-06 0171 2345678"), "on 2025-09-06 [redacted:phone]");
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
            "Boston, MA 02111-1307 USA",
            "0123456789",
            "arn:aws:iam::086441151436:root",
            "(159.6706, -69.9917),",
            "(4294967286,+(1410065408,+2));",
            "010  011  010  110  011  010  000",
            "01 02 03 04 05 06 07",
            "f9 e4 03 63 11 16 84 e7",
            "0200 (128), 0644 0755 0600",
            "+10000-12-31",
            "\"001002003004\"",
            "+2147483647",
            "001-233-22333",
            "8B 05 04 00 00 00",
            "12:30 and 01712345678:30",
            "id = \"20261117-0230-1234\"",
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

    /// Found by fuzzing: the text left beside a removed number was a number again.
    #[test]
    fn what_is_left_beside_a_number_is_looked_at_again() {
        let text = "11-\0/02)1/((0/2/0(1//022/0(1/((0/0";
        assert_eq!(redact_text(&redacted(text)), None);
    }

    #[test]
    fn trouble_in_bulk_keeps_its_length_in_bounds() {
        for piece in ["a@", "0 ", "+1(", "%40", "1-", "0171", "a.a@a.a@"] {
            let text = piece.repeat(300_000 / piece.len());
            // A scanner that looked back at every step would not finish here.
            let redacted = redact_text(&text).map_or(text.len(), |redacted| redacted.text.len());
            assert!(redacted <= 16 * text.len(), "{piece:?} grew to {redacted} bytes");
        }
    }

    #[test]
    fn own_ids_and_digests_are_left_alone() {
        let id = "01a1de17-5511-7234-ac5b-aa755d28bfda";
        assert_eq!(redact_text(id), None);
        let digest = "0123456789012345678901234567890123456789012345678901234567890123";
        assert_eq!(redact_text(digest), None);
        assert_eq!(redact_text("ab03012345678901cd49301234567ef0123456789a0301234567b0301234567c"), None);
    }

    /// Numbers without a pattern, the same ones on every run.
    struct Random(u64);

    impl Random {
        fn next(&mut self) -> u64 {
            self.0 ^= self.0 << 13;
            self.0 ^= self.0 >> 7;
            self.0 ^= self.0 << 17;
            self.0
        }

        fn below(&mut self, most: u64) -> u64 {
            self.next() % most
        }

        fn hex(&mut self, digits: usize) -> String {
            (0..digits).map(|_| format!("{:x}", self.below(16))).collect()
        }

        fn uuid(&mut self, time: Option<u64>, version: char) -> String {
            let begin = time.map_or_else(|| self.hex(12), |time| format!("{time:012x}"));
            let variant = ['8', '9', 'a', 'b'][self.below(4) as usize];
            format!(
                "{}-{}-{version}{}-{variant}{}-{}",
                &begin[..8],
                &begin[8..],
                self.hex(3),
                self.hex(3),
                self.hex(12)
            )
        }

        /// One text of every kind that has digits but no phone number.
        fn ordinary(&mut self) -> Vec<String> {
            let time = 1_700_000_000_000 + self.below(200_000_000_000);
            let (a, b, c) = (self.below(10_000), self.below(10_000), self.below(10_000_000));
            let fraction = self.below(1_000_000_000_000);
            let (month, day, hour) = (1 + self.below(12), 1 + self.below(28), self.below(24));
            let uuid = self.uuid(None, '4');
            // As if every hexadecimal digit were a decimal one, which is the worst case.
            let digits_only = uuid.replace(|c: char| c.is_ascii_alphabetic(), "0");
            vec![
                self.uuid(Some(time), '7'),
                format!("workspace/{uuid}.txt"),
                uuid,
                digits_only,
                format!("{a}.{fraction:012}"),
                format!("-0.{fraction:012}"),
                format!("+{a}.{fraction:012}"),
                format!("{a},{fraction:012}"),
                format!("{a}.{c},{b}.{fraction:012};0.{c:07}"),
                format!("{c}.{b:04}e-{a}"),
                time.to_string(),
                format!("2026-{month:02}-{day:02}T{hour:02}:{:02}:00.{fraction:012}Z", b % 60),
                format!("2026-{month:02}-{day:02} {hour:02}:{:02}:{:02}.{c:07}+02:00", a % 60, b % 60),
                format!("{day:02}.{month:02}.2026 {hour:02}:{:02}", a % 60),
                format!("2026{month:02}{day:02}{hour:02}{:02}{:02}", a % 60, b % 60),
                format!("v{}.{}.{}", a % 20, b % 100, c),
                format!("0.{}.{c}-rc.{}", a % 100, b % 10),
                format!("10.{}.{}.{}", a % 256, b % 256, c % 256),
                format!("{:03}.{:03}.{:03}.{:03}", a % 256, b % 256, c % 256, day),
                format!("2001:0db8:{:04x}::{a:04}:{b:04}", c % 65_536),
                self.hex(40),
                format!("sha256:{}", self.hex(64)),
                format!("{a:04}-2026-{c:07}"),
                format!("{a:04}-{b:04}-{c:07}"),
                format!("INV-{a:04}-{c:07}"),
                format!("row_{c:010}"),
                format!("{c:07}/{a:04}-{b:04}"),
                format!("pages {a:04}-{b:04}"),
                format!("{a:05}-0{b:04}"),
                format!("4{:03} {b:04} {a:04} {b:04}", a % 1_000),
                format!("DE{:02} {a:04} {b:04} {a:04} {b:04} {:02}", a % 100, b % 100),
                format!("978-0-{:03}-{:05}-{}", a % 1_000, c % 100_000, b % 10),
                format!(
                    "{:02x}-{:02}-{:02}-{:02}-{:02}-a{:x}",
                    a % 256,
                    b % 100,
                    c % 100,
                    a % 100,
                    day,
                    b % 16
                ),
                format!("pkg@{}.{}.{}-beta.rc", a % 9, b % 99, c),
            ]
        }
    }

    #[test]
    fn ordinary_numbers_are_no_phone_numbers() {
        let mut random = Random(0x9e37_79b9_7f4a_7c15);
        for _ in 0..3_000 {
            for text in random.ordinary() {
                for text in [text.clone(), format!("a,{text},b"), format!("see {text}.")] {
                    assert_eq!(redacted(&text), text);
                }
                for name in [format!("workspace/{text}"), format!("a/{text}.txt"), format!("{text}/b")] {
                    assert_eq!(redact_path(&name), None, "{name}");
                }
            }
        }
    }

    #[test]
    fn a_path_is_redacted_part_by_part() {
        for (path, expected) in [
            ("notes/0170 1234567.txt", "notes/[redacted:phone].txt"),
            ("notes/0170/1234567", "notes/0170/1234567"),
            ("0170/1234567/x", "[redacted:phone]/x"),
            ("a/bob@example.org/01701234567/b", "a/[redacted:email]/[redacted:phone]/b"),
            ("node_modules/@scope.name/x.js", "node_modules/@scope.name/x.js"),
        ] {
            let redacted = redact_path(path).map_or_else(|| path.to_owned(), |redacted| redacted.text);
            assert_eq!(redacted, expected);
        }
        assert_eq!(redact_text("see https://host.example/tickets/01701234567"), None);
    }

    #[test]
    fn phone_numbers_of_many_countries_are_found() {
        for text in [
            "+49 170 1234567",
            "+49 (0)170 1234567",
            "+49-170-1234567",
            "+49.170.1234567",
            "0049-170-1234567",
            "004917012345678",
            "(030) 123-4567",
            "030-1234567",
            "030/123 45 67",
            "0170/1234567",
            "0170 123 4567",
            "0170-1234567",
            "04221-12345",
            "+1 415-555-0100",
            "+1 415 555 0100",
            "(415) 555-0100",
            "415-555-0100",
            "415 555 0100",
            "+14155550100",
            "+44 20 7946 0958",
            "020 7946 0958",
            "07700 900123",
            "0044 7911 123456",
            "+33 1 23 45 67 89",
            "01 23 45 67 89",
            "+81-3-1234-5678",
            "03-1234-5678",
            "090-1234-5678",
            "+55 (11) 91234-5678",
            "(11) 91234-5678",
            "+420 123 456 789",
            "+86 138 0013 8000",
        ] {
            for (before, after) in [("", ""), ("Bob,", ",42"), ("call ", "."), ("tel:", "\n"), ("<", ">")] {
                let name = format!("{before}{text}{after}");
                assert!(redact_path(&name).is_some(), "{name}");
                assert!(text.contains('/') || redact_path(&format!("a/{name}")).is_some(), "{name}");
                assert_eq!(
                    redacted(&format!("{before}{text}{after}")),
                    format!("{before}[redacted:phone]{after}"),
                );
            }
        }
    }
}
