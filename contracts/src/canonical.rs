//! One spelling for every JSON value (RFC 8785), so that equal content has equal digests and signatures.
//!
//! Integers beyond 2^53, which the RFC leaves out, keep all their digits: two different numbers must never share a
//! digest.

use serde::Serialize;
use serde_json::{Map, Value};
use writer::Writer;

use crate::digest::Digest;

mod writer;

/// Room that is made for a text before it is written: most are shorter.
const TEXT_BYTES_AT_ONCE: usize = 512;

/// The canonical text of a value.
pub fn to_string(value: &Value) -> String {
    // A value has text keys and plain data, for which writing has no failure.
    of(value).unwrap_or_default()
}

/// The canonical text of anything that serialises.
pub fn of<T: Serialize + ?Sized>(value: &T) -> Result<String, serde_json::Error> {
    let mut out = String::with_capacity(TEXT_BYTES_AT_ONCE);
    value.serialize(Writer { out: &mut out })?;
    Ok(out)
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
    if float < 0.0 {
        out.push('-');
    }
    let (digits, point) = shortest_digits(float.abs());
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

/// The shortest digits of a positive double and where its point stands among them. serde_json breaks ties to even, as
/// the RFC wants; the standard library does not.
fn shortest_digits(float: f64) -> (String, i32) {
    let text = serde_json::Number::from_f64(float)
        .map(|number| number.to_string())
        .unwrap_or_default();
    let (mantissa, exponent) = text.split_once(['e', 'E']).unwrap_or((&text, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let all = format!("{whole}{fraction}");
    let significant = all.trim_start_matches('0');
    let leading = i32::try_from(all.len() - significant.len()).unwrap_or(0);
    let point = i32::try_from(whole.len()).unwrap_or(0) + exponent - leading;
    (significant.trim_end_matches('0').to_owned(), point)
}

fn write_text(text: &str, out: &mut String) {
    out.push('"');
    // What needs an escape is ASCII, so a text can be cut there; most texts need none and go over whole.
    let mut plain = 0;
    for (at, byte) in text.bytes().enumerate() {
        let escape: &str = match byte {
            b'"' => "\\\"",
            b'\\' => "\\\\",
            0x08 => "\\b",
            b'\t' => "\\t",
            b'\n' => "\\n",
            0x0c => "\\f",
            b'\r' => "\\r",
            0..0x20 => {
                out.push_str(&text[plain..at]);
                out.push_str(&format!("\\u{byte:04x}"));
                plain = at + 1;
                continue;
            }
            _ => continue,
        };
        out.push_str(&text[plain..at]);
        out.push_str(escape);
        plain = at + 1;
    }
    out.push_str(&text[plain..]);
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

    proptest::proptest! {
        #[test]
        fn canonical_text_reads_back_as_the_same_text(text in "\\PC{0,40}", float in proptest::num::f64::NORMAL) {
            let value = serde_json::json!({ "t": text, "f": float });
            let once = to_string(&value);
            proptest::prop_assert_eq!(&once, &canonical(&once));
        }
    }
}
