//! One spelling for every JSON value (RFC 8785), so that equal content has equal digests and signatures.
//!
//! Integers beyond 2^53, which the RFC leaves out, keep all their digits: two different numbers must never share a
//! digest.

use serde::Serialize;
use serde_json::Value;

use crate::digest::Digest;

/// The canonical text of a value.
pub fn to_string(value: &Value) -> String {
    let mut out = String::new();
    write_value(value, &mut out);
    out
}

/// The canonical text of anything that serialises.
pub fn of<T: Serialize>(value: &T) -> Result<String, serde_json::Error> {
    serde_json::to_value(value).map(|value| to_string(&value))
}

/// The digest of the canonical text.
pub fn digest(value: &Value) -> Digest {
    Digest::of(to_string(value).as_bytes())
}

fn write_value(value: &Value, out: &mut String) {
    match value {
        Value::Null => out.push_str("null"),
        Value::Bool(true) => out.push_str("true"),
        Value::Bool(false) => out.push_str("false"),
        Value::Number(number) => write_number(number, out),
        Value::String(text) => write_text(text, out),
        Value::Array(items) => {
            out.push('[');
            for (index, item) in items.iter().enumerate() {
                if index > 0 {
                    out.push(',');
                }
                write_value(item, out);
            }
            out.push(']');
        }
        Value::Object(members) => {
            out.push('{');
            // The order of bytes and that of UTF-16 differ only beyond ASCII.
            if members.keys().all(|name| name.is_ascii()) && members.keys().is_sorted() {
                write_members(members.iter(), out);
            } else {
                let mut sorted: Vec<_> = members.iter().collect();
                sorted.sort_by(|(a, _), (b, _)| a.encode_utf16().cmp(b.encode_utf16()));
                write_members(sorted.into_iter(), out);
            }
            out.push('}');
        }
    }
}

fn write_members<'a>(members: impl Iterator<Item = (&'a String, &'a Value)>, out: &mut String) {
    for (index, (name, member)) in members.enumerate() {
        if index > 0 {
            out.push(',');
        }
        write_text(name, out);
        out.push(':');
        write_value(member, out);
    }
}

fn write_number(number: &serde_json::Number, out: &mut String) {
    match number.as_f64() {
        Some(float) if number.is_f64() => write_float(float, out),
        Some(_) | None => out.push_str(&number.to_string()),
    }
}

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

    proptest::proptest! {
        #[test]
        fn canonical_text_reads_back_as_the_same_text(text in "\\PC{0,40}", float in proptest::num::f64::NORMAL) {
            let value = serde_json::json!({ "t": text, "f": float });
            let once = to_string(&value);
            proptest::prop_assert_eq!(&once, &canonical(&once));
        }
    }
}
