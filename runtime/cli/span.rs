//! Spans of time on the command line: `90s`, `30m`, `2h`, `7d`. A number alone counts seconds.

use std::time::Duration;

use effectd_contracts::filter;

pub(super) use effectd_contracts::filter::span_text;

/// How such a span is named in the help.
pub(super) const TIME: &str = "TIME";

pub(super) fn span(text: &str) -> Result<Duration, String> {
    let seconds = || text.parse().ok().map(Duration::from_secs);
    let none = || format!("{text:?} is not a span of time; write 90s, 30m, 2h or 7d");
    filter::span(text).or_else(seconds).ok_or_else(none)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_have_units_and_are_written_as_they_are_read() {
        for (text, seconds, written) in
            [("90s", 90, "90s"), ("30m", 1_800, "30m"), ("24h", 86_400, "1d"), ("5", 5, "5s"), ("0", 0, "0s")]
        {
            let read = span(text);
            assert_eq!(read, Ok(Duration::from_secs(seconds)), "{text}");
            assert_eq!(read.map(span_text), Ok(written.to_owned()), "{text}");
        }
        for wrong in ["", "soon", "-1s", "1.5h", "m", "99999999999999999999d"] {
            assert!(span(wrong).is_err_and(|why| why.contains("write 90s, 30m, 2h or 7d")), "{wrong}");
        }
    }
}
