//! Makes text from planners and tools safe to show, in a terminal and in the console: no commands, nothing hidden, no change of direction.

use effectd_contracts::text::is_unprintable;
use unicode_width::UnicodeWidthChar;

/// The number of combining marks on one letter, as some scripts need; more would reach into other lines.
const MARKS_MAX: usize = 2;
const TAB: usize = 4;

/// One line of text, safe to show, in at most `columns_max` columns; `…` marks a cut.
///
/// A control character, such as a line break, is shown as its picture (`␛`), a hidden or direction-changing character as its
/// number (`‹U+202E›`), and a tab as spaces.
pub fn shown(text: &str, columns_max: usize) -> String {
    let mut out = String::new();
    let (mut columns, mut marks) = (0_usize, MARKS_MAX);
    // Where to cut if the text is too long: the last position that leaves a column for `…`.
    let mut cut = 0;
    for c in text.chars() {
        let piece = Piece::of(c, &mut marks);
        if columns + piece.columns > columns_max {
            out.truncate(cut);
            if columns_max > 0 {
                out.push('…');
            }
            return out;
        }
        columns += piece.columns;
        out.push_str(&piece.text);
        if columns < columns_max {
            cut = out.len();
        }
    }
    out
}

/// Each line of a text as [`shown`].
pub fn shown_text(text: &str) -> String {
    let lines = text.split('\n').map(|line| shown(line, usize::MAX));
    lines.collect::<Vec<_>>().join("\n")
}

/// The first `lines_max` lines of a text, each as [`shown`]. If there are more lines, the last one says how many.
pub fn shown_lines(text: &str, columns_max: usize, lines_max: usize) -> Vec<String> {
    let all = text.lines().count();
    let mut lines: Vec<String> = text.lines().take(lines_max).map(|line| shown(line, columns_max)).collect();
    if all > lines_max && lines.pop().is_some() {
        lines.push(shown(&format!("… {} more lines", all - lines_max + 1), columns_max));
    }
    lines
}

struct Piece {
    text: String,
    columns: usize,
}

impl Piece {
    fn of(c: char, marks: &mut usize) -> Self {
        let plain = |text: String| {
            let columns = text.chars().filter_map(UnicodeWidthChar::width).sum();
            Self { text, columns }
        };
        if c == '\t' {
            *marks = MARKS_MAX;
            return plain(" ".repeat(TAB));
        }
        if let Some(picture) = picture(c) {
            *marks = MARKS_MAX;
            return plain(picture.to_string());
        }
        if is_unprintable(c) {
            *marks = MARKS_MAX;
            return plain(number(c));
        }
        match c.width() {
            None => plain(number(c)),
            // A combining mark needs a letter before it, and a letter has at most `MARKS_MAX` of them.
            Some(0) if *marks == MARKS_MAX => plain(number(c)),
            Some(0) => {
                *marks += 1;
                plain(c.to_string())
            }
            Some(_) => {
                *marks = 0;
                plain(c.to_string())
            }
        }
    }
}

/// The picture of an ASCII control character.
fn picture(c: char) -> Option<char> {
    match c as u32 {
        code @ 0..=0x1f => char::from_u32(0x2400 + code),
        0x7f => Some('␡'),
        _ => None,
    }
}

fn number(c: char) -> String {
    format!("‹U+{:04X}›", c as u32)
}

#[cfg(test)]
mod tests {
    use unicode_width::UnicodeWidthStr;

    use super::*;

    #[test]
    fn ordinary_text_stays_as_it_is() {
        for text in ["", "plain", "Grüße, 世界", "é", "a b", "e\u{301}", "‹x›"] {
            assert_eq!(shown(text, 80), text);
        }
    }

    #[test]
    fn what_commands_hides_or_turns_is_seen() {
        for (text, safe) in [
            ("\x1b[2J", "␛[2J"),
            ("\x1b]0;title\x07", "␛]0;title␇"),
            ("\x1b]52;c;aGk=\x1b\\", "␛]52;c;aGk=␛\\"),
            ("a\rb\nc\0", "a␍b␊c␀"),
            ("\u{7f}\u{9b}31m", "␡‹U+009B›31m"),
            ("a\tb", "a    b"),
            ("ev\u{200b}il", "ev‹U+200B›il"),
            ("\u{202e}txt.exe", "‹U+202E›txt.exe"),
            ("\u{2066}x\u{2069}", "‹U+2066›x‹U+2069›"),
            ("\u{feff}", "‹U+FEFF›"),
            ("\u{e0041}", "‹U+E0041›"),
            ("a\u{2028}b", "a‹U+2028›b"),
            ("\u{301}x", "‹U+0301›x"),
            ("x\u{301}\u{302}\u{303}", "x\u{301}\u{302}‹U+0303›"),
        ] {
            assert_eq!(shown(text, 80), safe, "{text:?}");
        }
    }

    #[test]
    fn no_character_of_any_kind_passes_as_a_command() {
        for c in (0..=0x10_ffff_u32).filter_map(char::from_u32) {
            let text = shown(&format!("a{c}b"), 80);
            assert!(!text.chars().any(is_unprintable), "{c:?}");
            assert!(text.starts_with('a') && text.ends_with('b'), "{c:?}");
        }
    }

    #[test]
    fn a_line_keeps_to_its_columns() {
        for (text, columns, safe) in [
            ("abcdef", 6, "abcdef"),
            ("abcdefg", 6, "abcde…"),
            ("abcdefg", 1, "…"),
            ("abcdefg", 0, ""),
            ("世界世界", 5, "世界…"),
            ("世界世界", 4, "世…"),
            ("ab\u{202e}", 5, "ab…"),
        ] {
            assert_eq!(shown(text, columns), safe, "{text:?} in {columns}");
            assert!(shown(text, columns).width() <= columns);
        }
        let very_long = "\x1b\u{202e}世x".repeat(100_000);
        for columns in 0..40 {
            assert!(shown(&very_long, columns).width() <= columns);
        }
    }

    #[test]
    fn lines_are_counted_and_cut() {
        assert_eq!(shown_lines("a\nb\n", 9, 2), ["a", "b"]);
        assert_eq!(shown_lines("a\nb\nc", 20, 2), ["a", "… 2 more lines"]);
        assert!(shown_lines("a\nb", 9, 0).is_empty());
        assert!(shown_lines("", 9, 5).is_empty());
    }
}
