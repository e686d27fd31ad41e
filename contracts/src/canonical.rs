//! Canonical JSON ([RFC 8785](https://www.rfc-editor.org/rfc/rfc8785)): one text for each value, so that equal content has equal
//! digests and signatures.
//!
//! Its numbers are doubles. [`crate::json`] refuses integers that a double cannot hold, so different numbers have different
//! digests.

use serde::Serialize;
use serde_json::{Map, Value};

use crate::digest::Digest;

/// The canonical text of a value.
pub fn to_string(value: &Value) -> String {
    let mut text = String::new();
    value.write(&mut text);
    text
}

/// The canonical text of anything that serialises. NaN and infinities become `null`.
pub fn of<T: Serialize + ?Sized>(value: &T) -> Result<String, serde_json::Error> {
    Ok(to_string(&serde_json::to_value(value)?))
}

/// The digest of the canonical text of a value or an object.
pub fn digest<T: Canonical>(value: &T) -> Digest {
    let mut text = String::new();
    value.write(&mut text);
    Digest::of(text.as_bytes())
}

/// A value that has a canonical text.
pub trait Canonical {
    /// Appends the canonical text.
    fn write(&self, text: &mut String);
}

impl Canonical for Value {
    fn write(&self, text: &mut String) {
        match self {
            Value::Null => text.push_str("null"),
            Value::Bool(value) => text.push_str(if *value { "true" } else { "false" }),
            // Every number of serde_json has a double, unless its feature `arbitrary_precision` is on.
            Value::Number(number) => {
                text.push_str(ryu_js::Buffer::new().format(number.as_f64().unwrap_or_default()));
            }
            Value::String(value) => write_text(value, text),
            Value::Array(items) => {
                text.push('[');
                for (n, item) in items.iter().enumerate() {
                    text.push_str(if n == 0 { "" } else { "," });
                    item.write(text);
                }
                text.push(']');
            }
            Value::Object(members) => members.write(text),
        }
    }
}

impl Canonical for Map<String, Value> {
    fn write(&self, text: &mut String) {
        let mut members: Vec<_> = self.iter().collect();
        members.sort_by(|(a, _), (b, _)| a.encode_utf16().cmp(b.encode_utf16()));
        text.push('{');
        for (n, (name, value)) in members.into_iter().enumerate() {
            text.push_str(if n == 0 { "" } else { "," });
            write_text(name, text);
            text.push(':');
            value.write(text);
        }
        text.push('}');
    }
}

/// Text is escaped by serde_json as RFC 8785 demands. Writing text as JSON cannot fail.
fn write_text(value: &str, text: &mut String) {
    text.push_str(&serde_json::to_string(value).unwrap_or_default());
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use proptest::num::f64::{NORMAL, SUBNORMAL, ZERO};
    use proptest::prelude::*;

    use super::*;
    use crate::json;

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
        assert_eq!(canonical("{\"\u{fb33}\":1,\"\u{1f600}\":2}"), "{\"\u{1f600}\":2,\"\u{fb33}\":1}");
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
            assert_eq!(of(&f64::from_bits(bits)).unwrap(), text, "bits {bits:016x}");
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

    #[test]
    fn what_is_serialised_is_written_as_its_value_is() {
        let everything = Everything {
            zero: -0.0,
            nan: f64::NAN,
            none: None,
            kinds: [Kind::Unit, Kind::New(7), Kind::Pair(-1, 0.5), Kind::Named { z: 'é', a: Some(()) }],
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
        let twice = Twice { name: 1, more: [("name".to_owned(), 2)].into(), a: 3 };
        assert_eq!(of(&twice).unwrap(), r#"{"a":3,"name":2}"#);
        assert_eq!(of(&twice).unwrap(), to_string(&serde_json::to_value(&twice).unwrap()));
    }

    fn any_value() -> impl Strategy<Value = Value> {
        let integer = json::INTEGER_MAX;
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            (-integer..=integer).prop_map(Value::from),
            (NORMAL | SUBNORMAL | ZERO).prop_map(Value::from),
            any::<String>().prop_map(Value::from),
        ];
        leaf.prop_recursive(4, 64, 8, |inner| {
            prop_oneof![
                proptest::collection::vec(inner.clone(), 0..8).prop_map(Value::from),
                proptest::collection::hash_map(any::<String>(), inner, 0..8)
                    .prop_map(|members| Value::Object(members.into_iter().collect())),
            ]
        })
    }

    proptest! {
        #[test]
        fn another_implementation_writes_the_same_text(value in any_value()) {
            let text = to_string(&value);
            prop_assert_eq!(&text, &serde_json_canonicalizer::to_string(&value).unwrap());
            prop_assert_eq!(&text, &canonical(&text));
            prop_assert_eq!(Digest::of(text.as_bytes()), digest(&value));
        }
    }
}
