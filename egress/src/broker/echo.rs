//! Removes secrets from what a server sends back: some repeat the request in an error.
//!
//! This is a net below the rule that a tool gets no secret, not the rule itself: a server that wants to give a secret away can
//! write it in a way that nobody foresees.

use base64::Engine;
use base64::alphabet::{STANDARD, URL_SAFE};
use base64::engine::general_purpose::{GeneralPurpose, NO_PAD};
use memchr::memmem;
use zeroize::Zeroizing;

use crate::limits::STRIPPED_BYTES_MIN;
use crate::order::{Credential, Secret};

/// What stands for a secret.
const PLACEHOLDER: &[u8] = b"[redacted:secret]";

/// The spellings of the secrets of one exchange, the longest first.
pub(super) struct Strip(Vec<Zeroizing<Vec<u8>>>);

impl Strip {
    pub(super) fn new(credential: Option<&Credential>, secrets: &[Secret]) -> Self {
        let whole = credential.map(|credential| credential.value.as_str());
        // `Bearer …`: the word before it is no secret, and a server may repeat the rest alone.
        let alone = whole.and_then(|whole| whole.rsplit_once(' ').map(|(_, alone)| alone));
        let secrets = secrets.iter().map(Secret::as_str).chain(whole).chain(alone);
        let mut spellings = Vec::new();
        for secret in secrets.filter(|secret| secret.len() >= STRIPPED_BYTES_MIN) {
            spell(secret, &mut spellings);
        }
        spellings.sort_by(|one, other| other.len().cmp(&one.len()).then_with(|| one.cmp(other)));
        spellings.dedup();
        Self(spellings)
    }

    /// Whether a secret is in it.
    pub(super) fn is_in(&self, bytes: &[u8]) -> bool {
        self.0.iter().any(|spelling| memmem::find(bytes, spelling).is_some())
    }

    /// The text without the secrets; `None` if it has more than this many bytes then, which a server can bring about: what stands
    /// for a secret may be longer than the secret.
    pub(super) fn strip(&self, mut bytes: Vec<u8>, bytes_max: usize) -> Option<Vec<u8>> {
        for spelling in &self.0 {
            let found = memmem::find_iter(&bytes, spelling.as_slice()).count();
            if found == 0 {
                continue;
            }
            let length = bytes.len() - found * spelling.len() + found * PLACEHOLDER.len();
            if length > bytes_max {
                return None;
            }
            let mut stripped = Vec::with_capacity(length);
            let mut at = 0;
            for start in memmem::find_iter(&bytes, spelling.as_slice()) {
                stripped.extend_from_slice(&bytes[at..start]);
                stripped.extend_from_slice(PLACEHOLDER);
                at = start + spelling.len();
            }
            stripped.extend_from_slice(&bytes[at..]);
            bytes = stripped;
        }
        Some(bytes)
    }
}

/// Text that is wiped. It is made with all the room that it needs: a text that grows leaves copies behind.
type Wiped = Zeroizing<String>;

/// Adds the ways in which programs write this text.
fn spell(secret: &str, into: &mut Vec<Zeroizing<Vec<u8>>>) {
    let mut add = |text: Wiped| into.push(Zeroizing::new(text.as_bytes().to_vec()));
    let bytes = secret.as_bytes();
    add(Wiped::new(secret.to_owned()));
    // In JSON, with and without the escapes that writers need not use.
    let mut json = Zeroizing::new(Vec::with_capacity(6 * bytes.len() + 2));
    if serde_json::to_writer(&mut *json, secret).is_ok()
        && let Some(json) = json.get(1..json.len() - 1).and_then(|json| str::from_utf8(json).ok())
    {
        add(Wiped::new(json.to_owned()));
        let mut escaped = Wiped::new(String::with_capacity(2 * json.len()));
        for c in json.chars() {
            escaped.push_str(if c == '/' { "\\" } else { "" });
            escaped.push(c);
        }
        add(escaped);
    }
    for is_form in [false, true] {
        for is_upper in [false, true] {
            add(percent(bytes, is_form, is_upper));
        }
    }
    let digits = crate::order::digits(bytes);
    add(Wiped::new(digits.to_ascii_uppercase()));
    add(digits);
    // In base64 text looks different by where it begins, such as behind a user and a colon. What surrounds it decides the first and
    // the last digits, which are left.
    for alphabet in [STANDARD, URL_SAFE] {
        let engine = GeneralPurpose::new(&alphabet, NO_PAD);
        for shift in 0..3 {
            let shifted = Zeroizing::new([&[0; 3][..shift], bytes].concat());
            let encoded = Wiped::new(engine.encode(&shifted));
            let first = [0, 2, 3][shift];
            let last = shifted.len() / 3 * 4 + [0, 1, 2][shifted.len() % 3];
            if let Some(text) = encoded.get(first..last).filter(|text| text.len() >= STRIPPED_BYTES_MIN) {
                add(Wiped::new(text.to_owned()));
            }
        }
    }
}

/// Percent-encoded: all that is not always plain, or all that is not plain in a form, where a space is a plus.
fn percent(bytes: &[u8], is_form: bool, is_upper: bool) -> Wiped {
    let digits = if is_upper { b"0123456789ABCDEF" } else { b"0123456789abcdef" };
    let mut encoded = Wiped::new(String::with_capacity(3 * bytes.len()));
    for &byte in bytes {
        if byte.is_ascii_alphanumeric() || b"-_.~".contains(&byte) {
            encoded.push(char::from(byte));
        } else if is_form && byte == b' ' {
            encoded.push('+');
        } else {
            encoded.push('%');
            for half in [byte >> 4, byte & 15] {
                encoded.push(char::from(digits[usize::from(half)]));
            }
        }
    }
    encoded
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use base64::engine::general_purpose::{STANDARD as PADDED, URL_SAFE_NO_PAD};

    use super::*;

    const SECRET: &str = "Sk-7/\"Zq+\\é ?f9~x";

    fn strip() -> Strip {
        let value = Secret::from(format!("Bearer {SECRET}"));
        let credential = Credential { header: "authorization".to_owned(), value };
        Strip::new(Some(&credential), &[Secret::from(SECRET.to_owned()), Secret::from("ab".to_owned())])
    }

    #[test]
    fn a_secret_goes_in_every_spelling() {
        let json = serde_json::to_string(SECRET).unwrap();
        let basic = |user: &str| PADDED.encode(format!("{user}:{SECRET}"));
        let echoes = [
            SECRET.to_owned(),
            format!("Authorization: Bearer {SECRET}\r\n"),
            json.clone(),
            json.replace('/', "\\/"),
            percent(SECRET.as_bytes(), false, true).to_string(),
            percent(SECRET.as_bytes(), true, true).to_string(),
            percent(SECRET.as_bytes(), false, false).to_string(),
            PADDED.encode(SECRET),
            URL_SAFE_NO_PAD.encode(SECRET),
            basic("a"),
            basic("ab"),
            basic("abc"),
            PADDED.encode(format!("{SECRET}:x-oauth-basic")),
        ];
        for echo in echoes {
            let text = format!("<pre>{echo}</pre>{echo}");
            let stripped = String::from_utf8(strip().strip(text.into_bytes(), 4_096).unwrap()).unwrap();
            assert_eq!(stripped.matches("[redacted:secret]").count(), 2, "{echo}: {stripped}");
            assert!(!stripped.contains("Zq"), "{echo}: {stripped}");
        }
    }

    #[test]
    fn other_text_stays_and_short_secrets_do_not_tear_it() {
        let text = b"{\"ab\": \"cab Sk-7\"}".to_vec();
        assert_eq!(strip().strip(text.clone(), text.len()), Some(text.clone()));
        let none = Strip::new(None, &[]);
        assert_eq!(none.strip(text.clone(), text.len()), Some(text));
    }

    /// What stands for a secret may be longer than it: a server that repeats a short one makes its answer grow.
    #[test]
    fn an_answer_does_not_grow_beyond_its_bound() {
        let strip = Strip::new(None, &[Secret::from("abcd".to_owned())]);
        let body = b"abcd".repeat(1_000);
        assert_eq!(strip.strip(body.clone(), 16_999), None);
        assert_eq!(strip.strip(body, 17_000), Some(PLACEHOLDER.repeat(1_000)));
        assert!(strip.is_in(b"x-abcd") && !strip.is_in(b"x-abc"));
    }

    #[test]
    fn every_position_in_base64_is_found() {
        let secret = "0123456789abcdefghij";
        for length in 8..secret.len() {
            let strip = Strip::new(None, &[Secret::from(secret[..length].to_owned())]);
            for before in 0..5 {
                for after in 0..5 {
                    let text = format!("{}{}{}", "x".repeat(before), &secret[..length], "y".repeat(after));
                    let stripped = strip.strip(PADDED.encode(text).into_bytes(), 4_096).unwrap();
                    assert!(
                        memmem::find(&stripped, PLACEHOLDER).is_some(),
                        "{length} {before} {after}: {}",
                        String::from_utf8_lossy(&stripped)
                    );
                }
            }
        }
    }
}
