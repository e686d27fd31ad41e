//! Parses JSON from outside: bounded in bytes, depth and number of values, and unambiguous.
//!
//! Parsers disagree about a name that appears twice in an object and about integers that a double cannot hold. Both are
//! refused ([I-JSON](https://www.rfc-editor.org/rfc/rfc7493)), since the tool must get what the policy inspected. `1.0` is read
//! as `1`.

use std::fmt;

use serde::de::value::{MapDeserializer, SeqDeserializer};
use serde::de::{
    DeserializeOwned, DeserializeSeed, Error as _, IntoDeserializer, MapAccess, SeqAccess, Unexpected,
    Visitor,
};
use serde::{Deserialize, Deserializer};
use serde_json::{Map, Number, Value};

use crate::limits::{JSON_DEPTH_MAX, JSON_NODES_MAX};

/// The largest integer that is exact in every JSON parser.
pub const INTEGER_MAX: i64 = (1 << 53) - 1;

/// A document that is refused.
#[derive(Debug, thiserror::Error)]
pub enum JsonInvalid {
    /// More bytes than the bound.
    #[error("the document is {bytes} bytes long; at most {max} are allowed")]
    TooLarge {
        /// Its size.
        bytes: usize,
        /// The largest size that is allowed.
        max: usize,
    },
    /// Not JSON, or JSON beyond the bounds of depth and number.
    #[error("this is not acceptable JSON: {0}")]
    Syntax(#[source] serde_json::Error),
    /// A number that is not exact in every JSON parser.
    #[error("{place}: numbers beyond {INTEGER_MAX} (2^53 - 1) are not exact in JSON; write it as text")]
    Number {
        /// Its path.
        place: String,
    },
    /// Another value than an object.
    #[error("the document must be a JSON object, such as {{\"name\": \"value\"}}")]
    NotObject,
    /// JSON of another shape than expected; the text says where.
    #[error("{0}")]
    Shape(#[source] serde_path_to_error::Error<serde_json::Error>),
}

/// Parses a document from outside, which must be an object: by itself, serde reads an enum with a tag from an array, too.
pub fn parse<T: DeserializeOwned>(bytes: &[u8], bytes_max: usize) -> Result<T, JsonInvalid> {
    let value = parse_value(bytes, bytes_max)?;
    if !value.is_object() {
        return Err(JsonInvalid::NotObject);
    }
    serde_path_to_error::deserialize(Shaped(value)).map_err(JsonInvalid::Shape)
}

/// Parses any value from outside.
pub fn parse_value(bytes: &[u8], bytes_max: usize) -> Result<Value, JsonInvalid> {
    let value = read(bytes, bytes_max, REQUEST)?;
    match inexact(&value) {
        Some(place) => Err(JsonInvalid::Number { place }),
        None => Ok(value),
    }
}

/// Parses the reply of a tool, which may hold any number.
pub fn parse_reply<T: DeserializeOwned>(bytes: &[u8], bytes_max: usize) -> Result<T, JsonInvalid> {
    let value = read(bytes, bytes_max, REQUEST)?;
    serde_path_to_error::deserialize(value).map_err(JsonInvalid::Shape)
}

/// Parses what effectd wrote around documents from outside: an event, a line of a log or bundle, a head, a proof.
pub fn parse_stored<T: DeserializeOwned>(bytes: &[u8], bytes_max: usize) -> Result<T, JsonInvalid> {
    let value = read(bytes, bytes_max, STORED)?;
    serde_path_to_error::deserialize(value).map_err(JsonInvalid::Shape)
}

/// A value from which structs are read by name: by itself, serde reads the array `["a", "b"]` as a struct with two fields, too.
/// Enums with a tag inside are not covered: serde does not tell a deserializer about them.
struct Shaped(Value);

impl<'de> IntoDeserializer<'de, serde_json::Error> for Shaped {
    type Deserializer = Self;
    fn into_deserializer(self) -> Self {
        self
    }
}

impl<'de> Deserializer<'de> for Shaped {
    type Error = serde_json::Error;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Self::Error> {
        match self.0 {
            Value::Array(items) => {
                let mut items = SeqDeserializer::new(items.into_iter().map(Shaped));
                let read = visitor.visit_seq(&mut items)?;
                items.end().map(|()| read)
            }
            Value::Object(members) => {
                let members = members.into_iter().map(|(name, member)| (name, Shaped(member)));
                let mut members = MapDeserializer::new(members);
                let read = visitor.visit_map(&mut members)?;
                members.end().map(|()| read)
            }
            plain @ (Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_)) => {
                plain.deserialize_any(visitor)
            }
        }
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        _: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Self::Error> {
        if self.0.is_array() {
            return Err(Self::Error::invalid_type(Unexpected::Seq, &"an object"));
        }
        self.deserialize_any(visitor)
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Self::Error> {
        if self.0.is_null() { visitor.visit_none() } else { visitor.visit_some(self) }
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        visitor: V,
    ) -> Result<V::Value, Self::Error> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        name: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Self::Error> {
        self.0.deserialize_enum(name, variants, visitor)
    }

    serde::forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf unit unit_struct seq tuple
        tuple_struct map identifier ignored_any
    }
}

/// The bounds of a document.
#[derive(Clone, Copy)]
struct Bounds {
    depth_max: usize,
    nodes_max: usize,
}

const REQUEST: Bounds = Bounds { depth_max: JSON_DEPTH_MAX, nodes_max: JSON_NODES_MAX };

/// A receipt holds values of the request and of the reply, a level or two deeper in its line or proof.
const STORED: Bounds = Bounds { depth_max: JSON_DEPTH_MAX + 8, nodes_max: 4 * JSON_NODES_MAX };

fn read(bytes: &[u8], bytes_max: usize, bounds: Bounds) -> Result<Value, JsonInvalid> {
    if bytes.len() > bytes_max {
        return Err(JsonInvalid::TooLarge { bytes: bytes.len(), max: bytes_max });
    }
    let mut nodes = 0;
    let mut reader = serde_json::Deserializer::from_slice(bytes);
    let strict = Strict { bounds, depth: 0, nodes: &mut nodes };
    let value = strict.deserialize(&mut reader).map_err(JsonInvalid::Syntax)?;
    reader.end().map_err(JsonInvalid::Syntax)?;
    Ok(value)
}

/// Parses one value with everything in it, and counts the values.
struct Strict<'a> {
    bounds: Bounds,
    depth: usize,
    nodes: &'a mut usize,
}

impl Strict<'_> {
    fn deeper(&mut self) -> Strict<'_> {
        Strict { bounds: self.bounds, depth: self.depth + 1, nodes: self.nodes }
    }
}

impl<'de> DeserializeSeed<'de> for Strict<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        *self.nodes += 1;
        let Bounds { depth_max, nodes_max } = self.bounds;
        if *self.nodes > nodes_max {
            return Err(D::Error::custom(format!("more than {nodes_max} values")));
        }
        if self.depth > depth_max {
            return Err(D::Error::custom(format!("nested deeper than {depth_max} levels")));
        }
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Strict<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(Value::from(value))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(Value::from(value))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        let is_integer = value.fract() == 0.0 && value.abs() <= INTEGER_MAX as f64;
        Ok(if is_integer { Value::from(value as i64) } else { Value::from(value) })
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(Value::String(value.to_owned()))
    }

    fn visit_string<E>(self, value: String) -> Result<Value, E> {
        Ok(Value::String(value))
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_seq<A: SeqAccess<'de>>(mut self, mut items: A) -> Result<Value, A::Error> {
        let mut array = Vec::new();
        while let Some(item) = items.next_element_seed(self.deeper())? {
            array.push(item);
        }
        Ok(Value::Array(array))
    }

    fn visit_map<A: MapAccess<'de>>(mut self, mut members: A) -> Result<Value, A::Error> {
        let mut object = Map::new();
        while let Some(name) = members.next_key::<String>()? {
            let member = members.next_value_seed(self.deeper())?;
            if object.contains_key(&name) {
                return Err(A::Error::custom(format!("the name {name:?} appears twice in one object")));
            }
            object.insert(name, member);
        }
        Ok(Value::Object(object))
    }
}

/// The path of a number that is not exact in every JSON parser.
pub(crate) fn inexact(value: &Value) -> Option<String> {
    let below = |name: String, value| {
        let place = inexact(value)?;
        Some(if place.is_empty() { name } else { format!("{name}.{place}") })
    };
    match value {
        Value::Number(number) => (!is_exact(number)).then(String::new),
        Value::Array(items) => {
            let mut items = items.iter().enumerate();
            items.find_map(|(index, item)| below(index.to_string(), item))
        }
        Value::Object(members) => {
            let mut members = members.iter();
            members.find_map(|(name, member)| below(name.clone(), member))
        }
        Value::Null | Value::Bool(_) | Value::String(_) => None,
    }
}

/// Doubles beyond [`INTEGER_MAX`] are integers, too, and not exact.
fn is_exact(number: &Number) -> bool {
    match (number.as_i64(), number.as_u64()) {
        (Some(integer), _) => integer.unsigned_abs() <= INTEGER_MAX.unsigned_abs(),
        (None, Some(_)) => false,
        (None, None) => number.as_f64().is_some_and(|float| float.abs() <= INTEGER_MAX as f64),
    }
}

/// Replaces integers that are not exact in every JSON parser by text.
pub fn integers_as_text(value: &mut Value) {
    match value {
        Value::Number(number) if !number.is_f64() && !is_exact(number) => {
            *value = Value::String(number.to_string());
        }
        Value::Array(items) => items.iter_mut().for_each(integers_as_text),
        Value::Object(members) => members.values_mut().for_each(integers_as_text),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

/// For `#[serde(deserialize_with)]`: an object. serde_json reads `null` as an empty one.
pub(crate) fn object<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Map<String, Value>, D::Error> {
    Option::<Map<String, Value>>::deserialize(deserializer)?
        .ok_or_else(|| D::Error::invalid_type(Unexpected::Unit, &"a map"))
}

/// For `#[serde(deserialize_with)]`: `Some` for a field that is present, so that `null` and absence differ.
pub fn present<'de, D: Deserializer<'de>, T: Deserialize<'de>>(
    deserializer: D,
) -> Result<Option<T>, D::Error> {
    T::deserialize(deserializer).map(Some)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn refusal(text: &str) -> String {
        parse_value(text.as_bytes(), 1 << 20).unwrap_err().to_string()
    }

    #[test]
    fn duplicate_names_are_refused_at_any_depth() {
        assert!(refusal(r#"{"a":1,"a":2}"#).contains("appears twice"));
        assert!(refusal(r#"{"p":[{"path":"x","path":"y"}]}"#).contains("\"path\" appears twice"));
        let nested = parse_stored::<Value>(br#"{"entry":{"status":"error","status":"ok"}}"#, 100);
        assert!(nested.unwrap_err().to_string().contains("\"status\" appears twice"));
    }

    /// With its feature `raw_value`, serde_json would read the text in such an object in its place: names twice, any depth and number.
    #[test]
    fn a_name_that_serde_json_uses_is_only_a_name() {
        use std::collections::BTreeMap;
        let text = r#"{"p":{"$serde_json::private::RawValue":"{\"a\":1,\"a\":2}"}}"#;
        let read = parse::<BTreeMap<String, Value>>(text.as_bytes(), 100).unwrap();
        assert_eq!(crate::canonical::of(&read).unwrap(), text);
    }

    #[test]
    fn an_array_is_not_read_as_a_struct() {
        use crate::Operation;
        use crate::request::{Candidate, Rationale};
        use std::collections::BTreeMap;
        let named = parse::<Rationale>(br#"{"confidence":0.5,"reason":null}"#, 100).unwrap();
        assert_eq!(named.confidence, Some(0.5));
        let inside = parse::<BTreeMap<String, Vec<Candidate>>>(br#"{"c":[{"id":"a"},["b",0.5]]}"#, 100);
        assert_eq!(inside.unwrap_err().to_string(), "c[1]: invalid type: sequence, expected an object");
        assert!(matches!(parse::<Rationale>(b"[0.5,null]", 100), Err(JsonInvalid::NotObject)));
        assert!(parse::<Operation>(br#"{"do":"pause"}"#, 100).is_ok());
        assert!(matches!(parse::<Operation>(br#"["pause"]"#, 100), Err(JsonInvalid::NotObject)));
    }

    #[test]
    fn depth_and_number_of_values_are_bounded() {
        let nested = |depth: usize| format!("{}0{}", "[".repeat(depth), "]".repeat(depth));
        assert!(parse_value(nested(JSON_DEPTH_MAX).as_bytes(), 1 << 20).is_ok());
        assert!(refusal(&nested(JSON_DEPTH_MAX + 1)).contains("nested deeper"));
        // What was accepted is read again from the envelope that it is stored in.
        let stored = format!(r#"{{"data":{{"request":{}}}}}"#, nested(JSON_DEPTH_MAX));
        assert!(parse_stored::<Value>(stored.as_bytes(), 1 << 20).is_ok());
        assert!(refusal(&nested(500_000)).contains("deeper"));
        let wide = |values: usize| format!("[{}0]", "0,".repeat(values - 2));
        assert!(parse_value(wide(JSON_NODES_MAX).as_bytes(), 1 << 20).is_ok());
        assert!(refusal(&wide(JSON_NODES_MAX + 1)).contains("more than"));
    }

    #[test]
    fn numbers_are_those_that_every_reader_takes_for_the_same() {
        let read = |text: &str| parse_value(text.as_bytes(), 1_000);
        for text in [
            "9007199254740992",
            "-9007199254740992",
            "18446744073709551616",
            "18446744073709551617",
            "1152921504606846976.0",
            "1e300",
        ] {
            assert!(matches!(read(text), Err(JsonInvalid::Number { .. })), "{text}");
            let told = refusal(&format!(r#"{{"params":{{"a":[0,{text}]}}}}"#));
            assert!(told.starts_with("params.a.1: ") && told.ends_with("write it as text"), "{told}");
        }
        for (text, same) in [
            ("9007199254740991", "9007199254740991.0"),
            ("-9007199254740991", "-9007199254740991e0"),
            ("1", "1.0"),
            ("100", "1e2"),
            ("0", "-0.0"),
        ] {
            assert_eq!(read(text).unwrap(), read(same).unwrap());
        }
        assert_eq!(read("1.5").unwrap(), Value::from(1.5));
    }

    #[test]
    fn integers_of_replies_that_are_not_exact_become_text() {
        let reply =
            br#"{"a":[9007199254740991,9007199254740992,-9007199254740993,18446744073709551615],"b":1e300}"#;
        let mut value: Value = parse_reply(reply, 1_000).unwrap();
        integers_as_text(&mut value);
        assert_eq!(
            value,
            serde_json::json!({
                "a": [9_007_199_254_740_991_i64, "9007199254740992", "-9007199254740993", "18446744073709551615"],
                "b": 1e300,
            })
        );
    }

    #[test]
    fn size_and_trailing_text_are_refused() {
        assert!(matches!(parse_value(b"[1,2]", 4), Err(JsonInvalid::TooLarge { bytes: 5, max: 4 })));
        assert!(refusal("{} {}").contains("trailing"));
        assert!(refusal("{\"a\":1").contains("EOF"));
        assert!(parse_value(b"\"\xff\"", 10).is_err());
    }

    proptest::proptest! {
        #[test]
        fn garbage_never_panics(bytes in proptest::collection::vec(proptest::num::u8::ANY, 0..300)) {
            let _ = parse_value(&bytes, 256);
        }
    }
}
