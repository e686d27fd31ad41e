//! What a certificate says, for people: its names and when it ends. rustls has judged it by then; nothing here decides.

use std::net::IpAddr;

use effectd_contracts::Timestamp;

use crate::limits::CERTIFICATE_NAMES_MAX;
use crate::order::Certificate;

const INTEGER: u8 = 0x02;
const OCTETS: u8 = 0x04;
const OBJECT: u8 = 0x06;
const UTC_TIME: u8 = 0x17;
const LONG_TIME: u8 = 0x18;
const SEQUENCE: u8 = 0x30;
const VERSION: u8 = 0xa0;
const EXTENSIONS: u8 = 0xa3;
const DNS_NAME: u8 = 0x82;
const IP_ADDRESS: u8 = 0x87;
/// The extension with the names: 2.5.29.17.
const SUBJECT_NAMES: &[u8] = &[0x55, 0x1d, 0x11];

/// Reads a certificate. It comes from whoever answers: what is not as it should be is `None`.
pub(super) fn read(der: &[u8]) -> Option<Certificate> {
    let mut body = Values(Values(der).inner(SEQUENCE)?).nested(SEQUENCE)?;
    body.skip_if(VERSION);
    body.inner(INTEGER)?;
    // The algorithm and the issuer, then the time between two others, then the subject and its key.
    body.inner(SEQUENCE)?;
    body.inner(SEQUENCE)?;
    let mut validity = body.nested(SEQUENCE)?;
    let (not_before, not_after) = (time(validity.next()?)?, time(validity.next()?)?);
    Some(Certificate { names: names(body).unwrap_or_default(), not_before, not_after })
}

fn names(mut body: Values<'_>) -> Option<Vec<String>> {
    let mut extensions = loop {
        let (tag, value) = body.next()?;
        if tag == EXTENSIONS {
            break Values(value).nested(SEQUENCE)?;
        }
    };
    loop {
        let mut extension = extensions.nested(SEQUENCE)?;
        if extension.inner(OBJECT)? != SUBJECT_NAMES {
            continue;
        }
        // Between both may stand whether it is critical.
        let octets = std::iter::from_fn(|| extension.next()).find(|(tag, _)| *tag == OCTETS);
        let mut all = Values(octets?.1).nested(SEQUENCE)?;
        let named = std::iter::from_fn(|| all.next()).filter_map(|(tag, value)| name(tag, value));
        return Some(named.take(CERTIFICATE_NAMES_MAX).collect());
    }
}

fn name(tag: u8, value: &[u8]) -> Option<String> {
    let is_plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"-._*".contains(byte);
    match tag {
        DNS_NAME if value.len() <= 253 && value.iter().all(is_plain) => {
            String::from_utf8(value.to_vec()).ok()
        }
        IP_ADDRESS => {
            let v4 = <[u8; 4]>::try_from(value).map(IpAddr::from);
            v4.or_else(|_| <[u8; 16]>::try_from(value).map(IpAddr::from)).ok().map(|it| it.to_string())
        }
        _ => None,
    }
}

/// `YYMMDDHHMMSSZ`, or the same with four digits of the year.
fn time((tag, value): (u8, &[u8])) -> Option<Timestamp> {
    let digits = value.strip_suffix(b"Z").filter(|digits| digits.iter().all(u8::is_ascii_digit))?;
    let digits = str::from_utf8(digits).ok()?;
    let (century, rest) = match (tag, digits.len()) {
        (UTC_TIME, 12) if digits < "5" => ("20", digits),
        (UTC_TIME, 12) => ("19", digits),
        (LONG_TIME, 14) => digits.split_at(2),
        _ => return None,
    };
    let part = |at: usize| &rest[at..at + 2];
    let text = format!("{century}{}-{}-{}T{}:{}:{}Z", part(0), part(2), part(4), part(6), part(8), part(10));
    // "Never": later than a timestamp can be.
    if digits == "99991231235959" { Some(Timestamp::MAX) } else { text.parse().ok() }
}

/// Values of DER, one after the other.
#[derive(Clone, Copy)]
struct Values<'a>(&'a [u8]);

impl<'a> Values<'a> {
    /// The next tag and its content.
    fn next(&mut self) -> Option<(u8, &'a [u8])> {
        let (&[tag, short], rest) = self.0.split_first_chunk()?;
        let (length, rest) = match short {
            0..=0x7f => (usize::from(short), rest),
            0x81..=0x84 => {
                let (digits, rest) = rest.split_at_checked(usize::from(short & 0x7f))?;
                (digits.iter().fold(0, |length, digit| length << 8 | usize::from(*digit)), rest)
            }
            _ => return None,
        };
        let (content, rest) = rest.split_at_checked(length)?;
        self.0 = rest;
        Some((tag, content))
    }

    /// The content of the next value, if it has this tag.
    fn inner(&mut self, tag: u8) -> Option<&'a [u8]> {
        self.next().and_then(|(found, content)| (found == tag).then_some(content))
    }

    fn nested(&mut self, tag: u8) -> Option<Self> {
        self.inner(tag).map(Self)
    }

    fn skip_if(&mut self, tag: u8) {
        if self.0.first() == Some(&tag) {
            self.next();
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use rcgen::{CertificateParams, KeyPair, date_time_ymd};

    use super::*;

    fn certificate(names: &[&str], until: i32) -> Vec<u8> {
        let mut params =
            CertificateParams::new(names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>()).unwrap();
        params.not_before = date_time_ymd(2024, 2, 29);
        params.not_after = date_time_ymd(until, 12, 31);
        params.self_signed(&KeyPair::generate().unwrap()).unwrap().der().to_vec()
    }

    #[test]
    fn names_and_times_are_read() {
        for (until, end) in [(2030, "2030-12-31T00:00:00Z"), (2077, "2077-12-31T00:00:00Z")] {
            let read = read(&certificate(&["api.test", "*.b.test", "10.0.0.1", "fd00::1"], until)).unwrap();
            assert_eq!(read.names, ["api.test", "*.b.test", "10.0.0.1", "fd00::1"]);
            assert_eq!(read.not_before.to_string(), "2024-02-29T00:00:00Z");
            assert_eq!(read.not_after.to_string(), end);
        }
        assert!(read(&certificate(&[], 2030)).unwrap().names.is_empty());
        let many: Vec<_> = (0..100).map(|at| format!("n{at}.test")).collect();
        let many: Vec<_> = many.iter().map(String::as_str).collect();
        assert_eq!(read(&certificate(&many, 2030)).unwrap().names.len(), CERTIFICATE_NAMES_MAX);
    }

    /// Each byte is changed in many ways, the end is cut off at each place, and there is noise: all of it comes from strangers.
    #[test]
    fn no_certificate_makes_it_panic() {
        let der = certificate(&["api.test", "10.0.0.1"], 2030);
        for at in 0..der.len() {
            let _whatever = read(&der[..at]);
            for change in [0x00, 0x01, 0x7f, 0x80, 0x81, 0x84, 0x85, 0xff, der[at] ^ 1, der[at] ^ 0x20] {
                let mut changed = der.clone();
                changed[at] = change;
                let names = read(&changed).map(|read| read.names).unwrap_or_default();
                assert!(names.iter().all(|name| name.is_ascii() && !name.contains(char::is_control)));
            }
        }
        let mut state = 7_u64;
        for length in 0..2_000 {
            let noise: Vec<u8> = (0..length % 200)
                .map(|_| {
                    state =
                        state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                    (state >> 33) as u8
                })
                .collect();
            let _whatever = read(&noise);
            let wrapped = [&der[..length % der.len()], &noise].concat();
            let _whatever = read(&wrapped);
        }
        let deep = [0x30, 0x84, 0xff, 0xff, 0xff, 0xff].repeat(1_000);
        assert!(read(&deep).is_none() && read(&[0x30, 0x80]).is_none() && read(&[]).is_none());
    }

    #[test]
    fn times_that_are_none_are_refused() {
        for (tag, text) in [
            (UTC_TIME, "991332000000Z"),
            (UTC_TIME, "240229000000"),
            (UTC_TIME, "2402290000Z"),
            (UTC_TIME, "2402300a0000Z"),
            (LONG_TIME, "240229000000Z"),
            (LONG_TIME, "20240230000000Z"),
            (LONG_TIME, "2024022900000\u{664}Z"),
            (INTEGER, "240229000000Z"),
            (LONG_TIME, ""),
        ] {
            assert_eq!(time((tag, text.as_bytes())), None, "{text}");
        }
        assert_eq!(time((UTC_TIME, b"491231235959Z")).unwrap().to_string(), "2049-12-31T23:59:59Z");
        assert_eq!(time((UTC_TIME, b"500101000000Z")).unwrap().to_string(), "1950-01-01T00:00:00Z");
        assert!(time((LONG_TIME, b"99991231235959Z")).is_some_and(|end| end.to_string().starts_with("9999")));
    }
}
