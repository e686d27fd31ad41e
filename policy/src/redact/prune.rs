//! Prunes a result to a size that can be stored. The outcome is valid JSON that says that it was pruned.
//!
//! Small members stay whole and large ones share the rest equally, so that one huge field does not displace all others.

use serde_json::{Map, Value, json};

use crate::limits::{STORED_RESULT_BYTES_MAX, VALUE_DEPTH_MAX};

/// The member that marks a pruned document.
pub const TRUNCATED_MARKER: &str = "_truncated";
/// The member with the size before pruning, in bytes of JSON.
pub const ORIGINAL_SIZE_MARKER: &str = "_originalSize";
/// The member that holds a pruned document that is not an object.
pub const WRAPPED_VALUE: &str = "value";

/// Prunes to the size of stored results.
pub fn prune_result(value: Value) -> Value {
    prune_to(value, STORED_RESULT_BYTES_MAX)
}

/// Prunes to `bytes_max` bytes of compact JSON. A document that fits is unchanged; any other becomes an object with
/// [`TRUNCATED_MARKER`] and [`ORIGINAL_SIZE_MARKER`]. Below about 60 bytes there is room for the markers only.
pub fn prune_to(value: Value, bytes_max: usize) -> Value {
    let size = Size::of(&value, 0);
    if size.bytes <= bytes_max && !size.too_deep {
        return value;
    }
    let mut members = match value {
        Value::Object(members) => members,
        Value::Array(_) | Value::String(_) | Value::Null | Value::Bool(_) | Value::Number(_) => {
            Map::from_iter([(WRAPPED_VALUE.to_owned(), value)])
        }
    };
    members.remove(TRUNCATED_MARKER);
    members.remove(ORIGINAL_SIZE_MARKER);
    let mut markers = Map::new();
    markers.insert(TRUNCATED_MARKER.to_owned(), json!(true));
    markers.insert(ORIGINAL_SIZE_MARKER.to_owned(), json!(size.bytes));
    let markers_bytes = Size::of(&Value::Object(markers.clone()), 0).bytes;
    let body = Value::Object(members);
    let body_size = Size::of(&body, 0);
    // Markers and body share one pair of braces, which makes room for the comma between them.
    let room = bytes_max.saturating_sub(markers_bytes);
    if let Some(Value::Object(kept)) = shrink(body, &body_size, room) {
        markers.extend(kept);
    }
    Value::Object(markers)
}

/// The size of each value, computed once, so that pruning takes linear time.
struct Size {
    bytes: usize,
    too_deep: bool,
    children: Vec<Size>,
}

impl Size {
    fn of(value: &Value, depth: usize) -> Size {
        if depth > VALUE_DEPTH_MAX {
            return Size { bytes: 4, too_deep: true, children: Vec::new() };
        }
        let children: Vec<Size> = match value {
            Value::Array(items) => items.iter().map(|item| Size::of(item, depth + 1)).collect(),
            Value::Object(members) => members.values().map(|member| Size::of(member, depth + 1)).collect(),
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => Vec::new(),
        };
        let inner: usize = children.iter().map(|child| child.bytes).sum();
        let commas = children.len().saturating_sub(1);
        let bytes = match value {
            Value::Null => 4,
            Value::Bool(truth) => 5 - usize::from(*truth),
            Value::Number(number) => number.to_string().len(),
            Value::String(text) => text_bytes(text),
            Value::Array(_) => 2 + commas + inner,
            Value::Object(members) => {
                2 + commas + inner + members.keys().map(|name| text_bytes(name) + 1).sum::<usize>()
            }
        };
        Size { bytes, too_deep: children.iter().any(|child| child.too_deep), children }
    }
}

fn char_bytes(c: char) -> usize {
    match c {
        '"' | '\\' | '\n' | '\r' | '\t' | '\u{8}' | '\u{c}' => 2,
        c if u32::from(c) < 0x20 => 6,
        c => c.len_utf8(),
    }
}

fn text_bytes(text: &str) -> usize {
    2 + text.chars().map(char_bytes).sum::<usize>()
}

/// The value in at most `room` bytes; `None` if no part of it fits.
fn shrink(value: Value, size: &Size, room: usize) -> Option<Value> {
    if size.bytes <= room && !size.too_deep {
        return Some(value);
    }
    match value {
        Value::String(text) => shrink_text(&text, room),
        Value::Array(items) => {
            let overheads = vec![0; items.len()];
            let shares = share(&overheads, &size.children, room)?;
            let kept = items.into_iter().zip(&size.children).zip(shares);
            Some(Value::Array(kept.filter_map(|((item, size), share)| shrink(item, size, share)).collect()))
        }
        Value::Object(members) => {
            let overheads: Vec<usize> = members.keys().map(|name| text_bytes(name) + 1).collect();
            let shares = share(&overheads, &size.children, room)?;
            let kept = members.into_iter().zip(&size.children).zip(shares);
            let kept =
                kept.filter_map(|(((name, member), size), share)| Some((name, shrink(member, size, share)?)));
            Some(Value::Object(kept.collect()))
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => {
            (size.bytes <= room && !size.too_deep).then_some(value)
        }
    }
}

fn shrink_text(text: &str, room: usize) -> Option<Value> {
    const ELLIPSIS: char = '…';
    let mut left = room.checked_sub(2 + ELLIPSIS.len_utf8())?;
    let mut kept = String::new();
    for c in text.chars() {
        match left.checked_sub(char_bytes(c)) {
            Some(rest) => left = rest,
            None => break,
        }
        kept.push(c);
    }
    kept.push(ELLIPSIS);
    Some(Value::String(kept))
}

/// The bytes for each child: as many children as fit, from the front; small ones get their size, large ones equal shares of
/// the rest. `None` if there is no room for the brackets.
fn share(overheads: &[usize], sizes: &[Size], room: usize) -> Option<Vec<usize>> {
    /// The least room for a child that does not fit whole: a shorter part is useless.
    const WORTH: usize = 16;
    let room = room.checked_sub(2)?;
    let mut fixed = 0;
    let mut least = 0;
    let mut count = 0;
    for (overhead, size) in overheads.iter().zip(sizes) {
        let next_fixed = fixed + overhead + usize::from(count > 0);
        let next_least = least + size.bytes.min(WORTH);
        if next_fixed + next_least > room {
            break;
        }
        (fixed, least, count) = (next_fixed, next_least, count + 1);
    }
    let mut left = room - fixed;
    let mut by_size: Vec<usize> = (0..count).collect();
    by_size.sort_by_key(|index| sizes[*index].bytes);
    let mut shares = vec![0; sizes.len()];
    for (position, index) in by_size.iter().enumerate() {
        let fair = left / (count - position);
        shares[*index] = sizes[*index].bytes.min(fair);
        left -= shares[*index];
    }
    Some(shares)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use proptest::prelude::*;

    fn check(value: &Value, max: usize) -> Value {
        let original = serde_json::to_string(value).unwrap();
        let pruned = prune_to(value.clone(), max);
        let text = serde_json::to_string(&pruned).unwrap();
        assert!(text.len() <= max, "{} > {max}: {text}", text.len());
        if original.len() <= max {
            assert_eq!(&pruned, value);
        } else {
            assert_eq!(pruned[TRUNCATED_MARKER], json!(true));
            assert_eq!(pruned[ORIGINAL_SIZE_MARKER], json!(original.len()));
        }
        pruned
    }

    #[test]
    fn a_huge_field_does_not_push_the_small_ones_out() {
        let value =
            json!({"log": "x".repeat(5_000_000), "bytes_written": 5, "path": "a/b", "rows": vec![1; 50_000]});
        let pruned = check(&value, STORED_RESULT_BYTES_MAX);
        assert_eq!((&pruned["bytes_written"], &pruned["path"]), (&json!(5), &json!("a/b")));
        assert!(pruned["log"].as_str().unwrap().len() > 4_000);
        assert!(pruned["rows"].as_array().unwrap().len() > 2_000);
    }

    #[test]
    fn top_level_arrays_and_strings_are_wrapped() {
        let array = check(&json!(vec!["entry"; 9_000]), STORED_RESULT_BYTES_MAX);
        assert!(array[WRAPPED_VALUE].as_array().unwrap().len() > 1_000);
        let text = check(&json!("é\n\u{1}".repeat(9_000)), STORED_RESULT_BYTES_MAX);
        assert!(text[WRAPPED_VALUE].as_str().unwrap().ends_with('…'));
    }

    #[test]
    fn endless_names_and_hopeless_bounds_leave_the_markers() {
        let value = json!({"k".repeat(20_000): 1});
        assert_eq!(check(&value, 10_240).as_object().unwrap().len(), 2);
        assert_eq!(check(&json!(vec![0; 500]), 60).as_object().unwrap().len(), 2);
        assert_eq!(check(&json!(vec![0; 500]), 80).as_object().unwrap().len(), 3);
    }

    #[test]
    fn what_is_nested_too_deep_is_left_out_and_marked() {
        let mut value = json!("bottom");
        for _ in 0..120 {
            value = json!([value]);
        }
        let pruned = prune_to(value, 10_240);
        assert_eq!(pruned[TRUNCATED_MARKER], json!(true));
        assert!(!pruned.to_string().contains("bottom"));
    }

    /// Random documents of megabytes: the same ones on every run, so that a failure can be reproduced.
    #[test]
    fn megabytes_of_any_shape_come_out_small() {
        let mut seed = 0x9e37_79b9_7f4a_7c15_u64;
        let mut random = move |below: u64| {
            seed ^= seed << 13;
            seed ^= seed >> 7;
            seed ^= seed << 17;
            seed % below
        };
        for megabytes in [1_usize, 2, 5] {
            let mut left = megabytes * 1_000_000;
            let value = grow(&mut random, &mut left, 0);
            let original = serde_json::to_string(&value).unwrap().len();
            assert!(original > megabytes * 500_000, "{original}");
            check(&value, STORED_RESULT_BYTES_MAX);
        }
    }

    fn grow(random: &mut impl FnMut(u64) -> u64, left: &mut usize, depth: usize) -> Value {
        let mut children = Vec::new();
        while *left > 0 && (depth == 0 || children.len() < 40) {
            let size = usize::try_from(random(3_000)).unwrap().min(*left);
            *left -= size;
            children.push(match random(4) {
                0 if depth < 20 => grow(random, left, depth + 1),
                1 => json!("é\n\"x".repeat(size / 6)),
                2 => json!(vec![random(1_000_000); size / 7]),
                _ => json!({ "k".repeat(size % 50 + 1): "v".repeat(size) }),
            });
        }
        match random(2) {
            0 => Value::Array(children),
            _ => children.into_iter().enumerate().map(|(n, child)| (format!("k{n}"), child)).collect(),
        }
    }

    fn any_json() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            any::<f64>().prop_map(Value::from),
            proptest::collection::vec(any::<char>(), 0..60)
                .prop_map(|c| Value::from(c.into_iter().collect::<String>())),
        ];
        leaf.prop_recursive(6, 400, 24, |inner| {
            prop_oneof![
                proptest::collection::vec(inner.clone(), 0..24).prop_map(Value::from),
                proptest::collection::vec(("[a-z_\"\n]{0,12}", inner), 0..24)
                    .prop_map(|members| Value::Object(members.into_iter().collect())),
            ]
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(400))]
        #[test]
        fn any_document_comes_out_valid_small_and_marked(value in any_json(), max in 64_usize..4_000) {
            check(&value, max);
        }

        #[test]
        fn the_computed_size_is_the_real_size(value in any_json()) {
            prop_assert_eq!(Size::of(&value, 0).bytes, serde_json::to_string(&value).unwrap().len());
        }
    }
}
