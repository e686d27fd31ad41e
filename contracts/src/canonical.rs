//! One spelling for every JSON value (RFC 8785), so that equal content has equal digests and signatures.
//!
//! Integers beyond 2^53, which the RFC leaves out, keep all their digits: two different numbers must never share a
//! digest.

use std::cmp::Ordering;
use std::fmt::Write as _;

use serde::Serialize;
use serde_json::{Map, Value};
use writer::{Page, Writer};

use crate::digest::Digest;

mod name;
mod writer;

/// Room that is made for a text before it is written: most are shorter.
const TEXT_BYTES_AT_ONCE: usize = 512;

/// The same for what gets a signature.
const OBJECT_BYTES_AT_ONCE: usize = 4 << 10;

/// The canonical text of a value.
pub fn to_string(value: &Value) -> String {
    // A value has text keys and plain data, for which writing has no failure.
    of(value).unwrap_or_default()
}

/// The canonical text of anything that serialises.
pub fn of<T: Serialize + ?Sized>(value: &T) -> Result<String, serde_json::Error> {
    let mut page = Page::with_room(TEXT_BYTES_AT_ONCE);
    value.serialize(Writer { page: &mut page })?;
    Ok(page.text)
}

/// The canonical text of an object that gets one more member when its text is known, such as a signature over it. Writing all
/// of it again would cost as much as the first time.
pub struct Object(Page);

impl Object {
    /// Of anything that serialises as an object, and has not that member yet.
    pub fn of<T: Serialize + ?Sized>(value: &T) -> Result<Self, serde_json::Error> {
        let mut page = Page::with_room(OBJECT_BYTES_AT_ONCE);
        value.serialize(Writer { page: &mut page })?;
        // A variant of an enum is an object, too, whose one member is not noted down.
        let noted = !page.members.is_empty() || page.text == "{}";
        if !page.text.starts_with('{') || !noted {
            return Err(serde::ser::Error::custom("only an object has members"));
        }
        Ok(Self(page))
    }

    /// Its text without that member.
    pub fn text(&self) -> &str {
        &self.0.text
    }

    /// Its text with it.
    pub fn with<T: Serialize + ?Sized>(self, name: &str, value: &T) -> Result<String, serde_json::Error> {
        let Object(mut page) = self;
        let before = page
            .members
            .partition_point(|member| page.compare(member, name) == Ordering::Less);
        let next = page.members.get(before).map(|member| member.begin);
        let mut more = String::with_capacity(TEXT_BYTES_AT_ONCE);
        if next.is_none() && before > 0 {
            more.push(',');
        }
        write_text(name, &mut more);
        more.push(':');
        more.push_str(&of(value)?);
        if next.is_some() {
            more.push(',');
        }
        page.text.insert_str(next.unwrap_or(page.text.len() - 1), &more);
        Ok(page.text)
    }
}

impl std::fmt::Debug for Object {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.text())
    }
}

/// The digest of the canonical text of a value, or of the members of one.
pub fn digest<T: Plain + ?Sized>(value: &T) -> Digest {
    Digest::of(of(value).unwrap_or_default().as_bytes())
}

/// What has text keys and plain data, so that writing it has no failure.
pub trait Plain: Serialize {}

impl Plain for Value {}
impl Plain for Map<String, Value> {}

/// ECMAScript's way to print a double: shortest digits that read back, plain between 1e-6 and 1e21.
fn write_float(float: f64, out: &mut String) {
    if float == 0.0 {
        out.push('0');
        return;
    }
    // serde_json breaks ties to even, as the RFC wants; the standard library does not.
    let Some(number) = serde_json::Number::from_f64(float) else {
        return;
    };
    let begin = out.len();
    // Writing to a text has no failure.
    let _ = write!(out, "{number}");
    if out[begin..].contains('e') {
        let digits = out.split_off(begin);
        return write_far(&digits, out);
    }
    // Without an exponent both write the same, but for whole numbers.
    if out.ends_with(".0") {
        out.truncate(out.len() - 2);
    }
}

/// A double far from one, as ECMAScript prints it, from the same digits with an exponent.
fn write_far(text: &str, out: &mut String) {
    if text.starts_with('-') {
        out.push('-');
    }
    let (digits, point) = digits_of(text.trim_start_matches('-'));
    let count = i32::try_from(digits.len()).unwrap_or(i32::MAX);
    let zeros = |n: i32| "0".repeat(usize::try_from(n).unwrap_or(0));
    if count <= point && point <= 21 {
        out.push_str(&digits);
        out.push_str(&zeros(point - count));
    } else if 0 < point && point <= 21 {
        let (whole, rest) = digits.split_at(usize::try_from(point).unwrap_or(0));
        out.push_str(whole);
        out.push('.');
        out.push_str(rest);
    } else if -6 < point && point <= 0 {
        out.push_str("0.");
        out.push_str(&zeros(-point));
        out.push_str(&digits);
    } else {
        let (first, rest) = digits.split_at(1);
        out.push_str(first);
        if !rest.is_empty() {
            out.push('.');
            out.push_str(rest);
        }
        out.push_str(if point < 1 { "e-" } else { "e+" });
        out.push_str(&(point - 1).abs().to_string());
    }
}

/// The digits of a positive double and where its point stands among them.
fn digits_of(text: &str) -> (String, i32) {
    let (mantissa, exponent) = text.split_once(['e', 'E']).unwrap_or((text, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let all = format!("{whole}{fraction}");
    let significant = all.trim_start_matches('0');
    let leading = i32::try_from(all.len() - significant.len()).unwrap_or(0);
    let point = i32::try_from(whole.len()).unwrap_or(0) + exponent - leading;
    (significant.trim_end_matches('0').to_owned(), point)
}

/// Bytes that are looked at together.
const PIECE_BYTES: usize = 16;

/// How many bytes from the beginning are written as they are.
fn plain_bytes(bytes: &[u8]) -> usize {
    let is_plain = |&byte: &u8| byte >= 0x20 && byte != b'"' && byte != b'\\';
    // Pieces are looked at whole, for which processors have instructions; most texts have nothing to stop at.
    let pieces = bytes.chunks_exact(PIECE_BYTES);
    let whole = pieces
        .take_while(|piece| piece.iter().fold(true, |all, byte| all & is_plain(byte)))
        .count();
    let begin = whole * PIECE_BYTES;
    begin + bytes[begin..].iter().take_while(|byte| is_plain(byte)).count()
}

fn write_text(text: &str, out: &mut String) {
    out.push('"');
    let mut rest = text;
    loop {
        // What needs an escape is ASCII, so a text can be cut there; most texts need none and go over whole.
        let (plain, from) = rest.split_at(plain_bytes(rest.as_bytes()));
        out.push_str(plain);
        let Some(byte) = from.bytes().next() else {
            break;
        };
        match byte {
            b'"' => out.push_str("\\\""),
            b'\\' => out.push_str("\\\\"),
            0x08 => out.push_str("\\b"),
            b'\t' => out.push_str("\\t"),
            b'\n' => out.push_str("\\n"),
            0x0c => out.push_str("\\f"),
            b'\r' => out.push_str("\\r"),
            other => out.push_str(&format!("\\u{other:04x}")),
        }
        rest = &from[1..];
    }
    out.push('"');
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn canonical(text: &str) -> String {
        to_string(&serde_json::from_str(text).unwrap())
    }

    #[test]
    fn members_are_sorted_by_utf16_and_blanks_are_gone() {
        assert_eq!(
            canonical(r#" { "b" : [ 1 , true , null ] , "a" : "x" } "#),
            r#"{"a":"x","b":[1,true,null]}"#
        );
        // U+1F600 is encoded as surrogates D83D DE00, which sort before U+FB33.
        assert_eq!(
            canonical("{\"\u{fb33}\":1,\"\u{1f600}\":2}"),
            "{\"\u{1f600}\":2,\"\u{fb33}\":1}"
        );
    }

    /// Sample doubles of RFC 8785, appendix B, by their bits.
    #[test]
    fn doubles_are_printed_as_ecmascript_prints_them() {
        let samples: [(u64, &str); 24] = [
            (0x0000000000000000, "0"),
            (0x8000000000000000, "0"),
            (0x0000000000000001, "5e-324"),
            (0x8000000000000001, "-5e-324"),
            (0x7fefffffffffffff, "1.7976931348623157e+308"),
            (0xffefffffffffffff, "-1.7976931348623157e+308"),
            (0x4340000000000000, "9007199254740992"),
            (0xc340000000000000, "-9007199254740992"),
            (0x4430000000000000, "295147905179352830000"),
            (0x44b52d02c7e14af5, "9.999999999999997e+22"),
            (0x44b52d02c7e14af6, "1e+23"),
            (0x44b52d02c7e14af7, "1.0000000000000001e+23"),
            (0x444b1ae4d6e2ef4e, "999999999999999700000"),
            (0x444b1ae4d6e2ef4f, "999999999999999900000"),
            (0x444b1ae4d6e2ef50, "1e+21"),
            (0x3eb0c6f7a0b5ed8c, "9.999999999999997e-7"),
            (0x3eb0c6f7a0b5ed8d, "0.000001"),
            (0x41b3de4355555553, "333333333.3333332"),
            (0x41b3de4355555554, "333333333.33333325"),
            (0x41b3de4355555555, "333333333.3333333"),
            (0x41b3de4355555556, "333333333.3333334"),
            (0x41b3de4355555557, "333333333.33333343"),
            (0xbecbf647612f3696, "-0.0000033333333333333333"),
            (0x43143ff3c1cb0959, "1424953923781206.2"),
        ];
        for (bits, text) in samples {
            let mut out = String::new();
            write_float(f64::from_bits(bits), &mut out);
            assert_eq!(out, text, "bits {bits:016x}");
        }
    }

    /// The whole examples of RFC 8785: literals, numbers and text (3.2.2), and the order of names (3.2.3).
    #[test]
    fn the_published_examples_come_out() {
        let example = r#"{
            "numbers": [333333333.33333329, 1E30, 4.50, 2e-3, 0.000000000000000000000000001],
            "string": "\u20ac$\u000F\u000aA'\u0042\u0022\u005c\\\"\/",
            "literals": [null, true, false]
        }"#;
        assert_eq!(
            canonical(example),
            "{\"literals\":[null,true,false],\"numbers\":[333333333.3333333,1e+30,4.5,0.002,1e-27],\
             \"string\":\"€$\\u000f\\nA'B\\\"\\\\\\\\\\\"/\"}"
        );
        let names = r#"{
            "\u20ac": "Euro Sign", "\r": "Carriage Return", "\ufb33": "Hebrew Letter Dalet With Dagesh", "1": "One",
            "\ud83d\ude00": "Emoji: Grinning Face", "\u0080": "Control",
            "\u00f6": "Latin Small Letter O With Diaeresis"
        }"#;
        let sorted = canonical(names);
        let order = [
            "Carriage Return",
            "One",
            "Control",
            "Latin Small Letter O With Diaeresis",
            "Euro Sign",
            "Emoji: Grinning Face",
            "Hebrew Letter Dalet With Dagesh",
        ];
        let places: Vec<_> = order.iter().map(|name| sorted.find(name).unwrap()).collect();
        assert!(places.is_sorted(), "{sorted}");
    }

    #[test]
    fn large_integers_keep_their_digits() {
        assert_eq!(canonical("18446744073709551615"), "18446744073709551615");
        assert_ne!(canonical("9007199254740993"), canonical("9007199254740992"));
    }

    #[derive(serde::Serialize)]
    #[serde(rename_all = "snake_case")]
    enum Kind {
        Unit,
        New(u8),
        Pair(i64, f32),
        Named { z: char, a: Option<()> },
    }

    #[derive(serde::Serialize)]
    struct Everything<'a> {
        zero: f64,
        nan: f64,
        none: Option<u8>,
        kinds: [Kind; 4],
        bytes: &'a [u8],
        by_number: std::collections::BTreeMap<u16, bool>,
        #[serde(flatten)]
        more: std::collections::BTreeMap<String, Value>,
        tuple: (i8, String, ()),
    }

    /// What is written at once is what a tree of it would be written as.
    #[test]
    fn what_is_serialised_is_written_as_its_value_is() {
        let everything = Everything {
            zero: -0.0,
            nan: f64::NAN,
            none: None,
            kinds: [
                Kind::Unit,
                Kind::New(7),
                Kind::Pair(-1, 0.5),
                Kind::Named { z: 'é', a: Some(()) },
            ],
            bytes: &[1, 2],
            by_number: [(10, true), (9, false)].into(),
            more: [
                ("\u{fb33}".to_owned(), Value::from("x\u{1}")),
                ("\u{1f600}".to_owned(), Value::Null),
                ("Zero".to_owned(), serde_json::json!({ "b": [], "a": {} })),
            ]
            .into(),
            tuple: (-3, "t\"".to_owned(), ()),
        };
        let text = of(&everything).unwrap();
        assert_eq!(text, to_string(&serde_json::to_value(&everything).unwrap()));
        assert_eq!(
            text,
            "{\"Zero\":{\"a\":{},\"b\":[]},\"by_number\":{\"10\":true,\"9\":false},\"bytes\":[1,2],\"kinds\":[\"unit\",\
             {\"new\":7},{\"pair\":[-1,0.5]},{\"named\":{\"a\":null,\"z\":\"é\"}}],\"nan\":null,\"none\":null,\
             \"tuple\":[-3,\"t\\\"\",null],\"zero\":0,\"\u{1f600}\":null,\"\u{fb33}\":\"x\\u0001\"}"
        );
        assert!(of(&std::collections::BTreeMap::from([(vec![1], 1)])).is_err());
    }

    #[derive(serde::Serialize)]
    struct Twice {
        name: u8,
        #[serde(flatten)]
        more: std::collections::BTreeMap<String, u8>,
        a: u8,
    }

    #[test]
    fn of_members_with_the_same_name_the_last_one_counts() {
        let twice = Twice {
            name: 1,
            more: [("name".to_owned(), 2)].into(),
            a: 3,
        };
        assert_eq!(of(&twice).unwrap(), r#"{"a":3,"name":2}"#);
        assert_eq!(
            of(&twice).unwrap(),
            to_string(&serde_json::to_value(&twice).unwrap())
        );
    }

    #[test]
    fn a_member_that_comes_later_is_where_it_would_have_been() {
        let later = serde_json::json!({ "b": [1, "x"], "a": 0.5 });
        let mut others = ["a", "m\"n", "m\u{1f600}", "m\u{fb33}", "z"]
            .map(|name| (name, serde_json::json!({ "n": name })));
        others.reverse();
        for name in ["", "B", "b", "m", "m\"o", "m\u{1f601}", "zz", "\u{fb34}"] {
            for count in 0..=others.len() {
                let mut members: Map<String, Value> = others[..count]
                    .iter()
                    .map(|(name, value)| ((*name).to_owned(), value.clone()))
                    .collect();
                let bare = Object::of(&members).unwrap();
                assert_eq!(bare.text(), of(&members).unwrap());
                members.insert(name.to_owned(), later.clone());
                assert_eq!(bare.with(name, &later).unwrap(), of(&members).unwrap());
            }
        }
        assert!(Object::of("text").is_err());
        let nested = Object::of(&serde_json::json!({ "inner": { "z": 1, "a": 2 } })).unwrap();
        assert_eq!(nested.with("a", &0).unwrap(), r#"{"a":0,"inner":{"a":2,"z":1}}"#);
        let variant = Ok::<_, ()>(serde_json::json!({ "z": 1 }));
        assert_eq!(super::of(&variant).unwrap(), r#"{"Ok":{"z":1}}"#);
        assert!(Object::of(&variant).is_err(), "its name is no member of a struct");
    }

    #[test]
    fn escapes_are_found_wherever_they_stand() {
        for at in 0..3 * PIECE_BYTES {
            for odd in ['"', '\\', '\u{1}', '\n', '\u{1f}'] {
                let text = format!(
                    "{}{odd}{}",
                    "é".repeat(at / 2) + &"x".repeat(at % 2),
                    "y".repeat(40 - at / 2)
                );
                assert_eq!(of(&text).unwrap(), serde_json::to_string(&text).unwrap());
            }
        }
    }

    proptest::proptest! {
        #[test]
        fn doubles_near_one_are_printed_as_those_far_from_it(float in proptest::num::f64::NORMAL | proptest::num::f64::SUBNORMAL) {
            let (mut text, mut far) = (String::new(), String::new());
            write_float(float, &mut text);
            write_far(&serde_json::to_string(&float).unwrap(), &mut far);
            proptest::prop_assert_eq!(text, far);
        }

        #[test]
        fn doubles_of_everyday_are_printed_as_those_far_from_one(whole in -2_000_000_000_i64..2_000_000_000, by in 0_i32..12) {
            let float = whole as f64 / 10_f64.powi(by);
            let (mut text, mut far) = (String::new(), String::new());
            write_float(float, &mut text);
            match whole {
                0 => far.push('0'),
                _ => write_far(&serde_json::to_string(&float).unwrap(), &mut far),
            }
            proptest::prop_assert_eq!(text, far);
        }

        #[test]
        fn canonical_text_reads_back_as_the_same_text(text in "\\PC{0,40}", float in proptest::num::f64::NORMAL) {
            let value = serde_json::json!({ "t": text, "f": float });
            let once = to_string(&value);
            proptest::prop_assert_eq!(&once, &canonical(&once));
        }
    }
}
