//! Makes the text of a notification safe: its author may be anybody, and desktops interpret markup.

use effectd_contracts::text::is_unprintable;
use effectd_contracts::{Notice, SubjectId};

/// Title and body without control or hidden characters. Markup in the body is escaped (desktops interpret none in titles). The
/// body ends with the sender's name, so that nobody can pose as another sender.
pub(super) fn shown(notice: &Notice, by: &SubjectId) -> (String, String) {
    let title = printable(&notice.title, false);
    let mut body = escaped(printable(&notice.body, true).trim_end());
    if !body.is_empty() {
        body.push('\n');
    }
    body.push_str("— ");
    body.push_str(&escaped(&printable(by.as_str(), false)));
    (title, body)
}

fn printable(text: &str, lines: bool) -> String {
    let keep = |c: char| match c {
        '\n' if lines => Some('\n'),
        '\n' | '\t' => Some(' '),
        c if is_unprintable(c) => None,
        c => Some(c),
    };
    text.chars().filter_map(keep).collect()
}

fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            c => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use effectd_contracts::Urgency;

    use super::*;

    #[test]
    fn nothing_commands_hides_or_marks_up_and_the_sender_is_named() {
        let by: SubjectId = "agent://planner@deviceA".parse().unwrap();
        let shown = |title: &str, body: &str| {
            let notice = Notice { title: title.to_owned(), body: body.to_owned(), urgency: Urgency::Normal };
            super::shown(&notice, &by)
        };
        let (title, body) = shown("a\u{1b}[31m\tb\u{202e}c\0", "<b>x</b> & y\u{7}\r\nz\u{9b}\n\n");
        assert_eq!(title, "a[31m bc");
        assert_eq!(body, "&lt;b&gt;x&lt;/b&gt; &amp; y\nz\n— agent://planner@deviceA");
        assert_eq!(shown("t", "").1, "— agent://planner@deviceA");
        assert_eq!(shown("<i>", "").0, "<i>", "titles are no markup");
    }
}
