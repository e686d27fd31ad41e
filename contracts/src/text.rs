//! Text from outside: which characters are printable, and patterns with `*`.
//!
//! An invisible character, or one that changes how its neighbours look, makes two names look alike.

/// The pattern of printable text in JSON Schemas. It names control characters only: the table of [`is_unprintable`] would be too
/// long.
pub const PRINTABLE: &str = "^[^\\u0000-\\u001f\\u007f-\\u009f]*$";
/// The pattern of identifiers: the same, not empty, and without a blank at either end.
pub const IDENTIFIER: &str = "^[^\\u0000-\\u0020\\u007f-\\u00a0]([^\\u0000-\\u001f\\u007f-\\u009f]*[^\\u0000-\\u0020\\u007f-\\u00a0])?$";

/// A text in lower case, letter by letter. What only some file systems take for one name, such as `ß` and `ss`, stays two.
pub fn without_case(text: &str) -> String {
    text.chars().flat_map(char::to_lowercase).collect()
}

/// Whether a character has no glyph of its own: controls (Cc), format characters (Cf), separators of lines and paragraphs
/// (Zl, Zp), private use (Co), noncharacters, and invisible fillers, joiners and variation selectors.
pub fn is_unprintable(c: char) -> bool {
    let code = u32::from(c);
    c.is_control()
        || code & 0xfffe == 0xfffe
        || matches!(code,
            0xad | 0x34f | 0x600..=0x605 | 0x61c | 0x6dd | 0x70f | 0x890..=0x891 | 0x8e2
            | 0x115f..=0x1160 | 0x17b4..=0x17b5 | 0x180b..=0x180f | 0x200b..=0x200f | 0x2028..=0x202e | 0x2060..=0x206f
            | 0x3164 | 0xe000..=0xf8ff | 0xfdd0..=0xfdef | 0xfe00..=0xfe0f | 0xfeff | 0xffa0 | 0xfff0..=0xfffb
            | 0x110bd | 0x110cd | 0x13430..=0x1343f | 0x1bca0..=0x1bca3 | 0x1d173..=0x1d17a | 0xe0000..=0xe0fff
            | 0xf0000..=0x10_ffff)
}

/// A number with its noun: `1 receipt`, `2 receipts`, `3 entries`.
pub fn counted(count: u64, noun: &str) -> String {
    match (count, noun.strip_suffix("ry")) {
        (1, _) => format!("1 {noun}"),
        (_, Some(stem)) => format!("{count} {stem}ries"),
        (_, None) => format!("{count} {noun}s"),
    }
}

/// Whether a text matches a pattern, in which `*` stands for any text, also none. Takes at most `pattern × text` steps.
pub fn matches_pattern(pattern: &str, text: &str) -> bool {
    let (pattern, text) = (pattern.as_bytes(), text.as_bytes());
    let (mut p, mut t) = (0, 0);
    // The position after the last star in the pattern, and the end of the text that this star has matched so far.
    let mut retry = None;
    while t < text.len() {
        if pattern.get(p) == Some(&b'*') {
            p += 1;
            retry = Some((p, t));
        } else if pattern.get(p) == Some(&text[t]) {
            p += 1;
            t += 1;
        } else if let Some((after_star, taken)) = retry {
            retry = Some((after_star, taken + 1));
            p = after_star;
            t = taken + 1;
        } else {
            return false;
        }
    }
    pattern[p..].iter().all(|byte| *byte == b'*')
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn letters_marks_signs_and_emoji_are_printable() {
        for c in "aZ09 -_:/@é\u{301}ß世\u{a0}…‹›😀".chars() {
            assert!(!is_unprintable(c), "{c:?}");
        }
    }

    #[test]
    fn one_is_counted_without_a_plural() {
        let said = [(1, "receipt"), (2, "receipt"), (0, "entry"), (1, "entry"), (3, "key")];
        let said = said.map(|(count, noun)| counted(count, noun));
        assert_eq!(said, ["1 receipt", "2 receipts", "0 entries", "1 entry", "3 keys"]);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(4_000))]
        #[test]
        fn the_table_covers_the_categories_it_names(text in "[\\p{Cc}\\p{Cf}\\p{Zl}\\p{Zp}\\p{Co}]") {
            prop_assert!(text.chars().all(is_unprintable), "{}", text.escape_unicode());
        }
    }
}
