//! The filters of templates. Each changes data, and calls nothing.

use jiff::Timestamp;
use jiff::civil::{Date, DateTime};
use jiff::tz::TimeZone;
use minijinja::{Environment, Error, ErrorKind, Value, filters};

/// Characters of a truncated text, unless the template says how many.
const TRUNCATED_CHARS: usize = 255;

pub(super) fn add(env: &mut Environment<'_>) {
    env.add_filter("date", date);
    env.add_filter("default", filters::default);
    env.add_filter("first", filters::first);
    env.add_filter("join", filters::join);
    env.add_filter("last", filters::last);
    env.add_filter("length", filters::length);
    env.add_filter("lower", filters::lower);
    env.add_filter("replace", filters::replace);
    env.add_filter("reverse", filters::reverse);
    env.add_filter("slugify", slugify);
    env.add_filter("sort", filters::sort);
    env.add_filter("tojson", |value: Value| tojson(&value));
    env.add_filter("trim", filters::trim);
    env.add_filter("truncate", truncate);
    env.add_filter("upper", filters::upper);
}

/// A value as JSON; nothing is `null`.
pub(super) fn tojson(value: &Value) -> Result<String, Error> {
    if value.is_undefined() {
        return Err(Error::from(ErrorKind::UndefinedError));
    }
    serde_json::to_string(value).map_err(|error| Error::new(ErrorKind::BadSerialization, error.to_string()))
}

/// The first characters of a text, with a mark if there are more.
fn truncate(text: &str, length: Option<usize>, end: Option<&str>) -> String {
    let (length, end) = (length.unwrap_or(TRUNCATED_CHARS), end.unwrap_or("…"));
    match text.char_indices().nth(length) {
        None => text.to_owned(),
        Some((at, _)) => format!("{}{end}", &text[..at]),
    }
}

/// A text for a name of a file or an address: lower-case letters and digits, and hyphens between the words.
fn slugify(text: &str) -> String {
    let lower = text.to_lowercase();
    let words = lower.split(|letter: char| !letter.is_alphanumeric()).filter(|word| !word.is_empty());
    words.collect::<Vec<_>>().join("-")
}

/// A time by a pattern of `strftime`, in UTC.
fn date(text: &str, format: Option<&str>) -> Result<String, Error> {
    let time = text
        .parse::<Timestamp>()
        .map(|time| time.to_zoned(TimeZone::UTC).datetime())
        .or_else(|_| text.parse::<DateTime>())
        .or_else(|_| text.parse::<Date>().map(DateTime::from));
    let invalid = |why: String| Error::new(ErrorKind::InvalidOperation, why);
    let time = time.map_err(|_| invalid(format!("{text:?} is no time, such as 2026-05-26T09:00:00Z")))?;
    jiff::fmt::strtime::format(format.unwrap_or("%Y-%m-%d"), time).map_err(|error| invalid(error.to_string()))
}
