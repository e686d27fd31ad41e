//! `docs/limits.md` says what the code says, and `docs/deploy/README.md` lists every setting. `EFFECTD_BLESS=1` writes both.

use std::collections::BTreeMap;

use effectd::internal::settings::{KEYS, Takes};

use crate::tree::{agree, members, none, root, text};

const LIMITS: &str = "docs/limits.md";
const SETTINGS: &str = "docs/deploy/README.md";
const BEGIN: &str = "<!-- settings -->\n";
const END: &str = "<!-- end of settings -->";

/// One `pub const`.
#[derive(Debug, Clone, PartialEq)]
struct Limit {
    name: String,
    kind: String,
    value: String,
    why: String,
}

/// A value in the unit it is written in.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Amount {
    Number(f64),
    Millis(f64),
}

/// The constants of one file, by its text.
fn limits(source: &str) -> Vec<Limit> {
    let mut found = Vec::new();
    let mut why = String::new();
    let mut lines = source.lines();
    while let Some(line) = lines.next() {
        if let Some(doc) = line.strip_prefix("/// ") {
            why = if why.is_empty() { doc.to_owned() } else { format!("{why} {doc}") };
        } else if let Some(start) = line.strip_prefix("pub const ") {
            let mut whole = start.to_owned();
            while !whole.ends_with(';') {
                let more = lines.next().expect("a constant ends with a semicolon");
                whole = format!("{whole} {}", more.trim());
            }
            found.push(limit(&whole, std::mem::take(&mut why)));
        } else {
            why.clear();
        }
    }
    found
}

fn limit(constant: &str, why: String) -> Limit {
    let (name, rest) = constant.split_once(": ").expect("a constant has a type");
    let (kind, value) = rest.trim_end_matches(';').split_once('=').expect("a constant has a value");
    Limit { name: name.to_owned(), kind: kind.trim().to_owned(), value: value.trim().to_owned(), why }
}

/// Evaluates a value. `known` are the constants that it may name.
fn amount(value: &str, known: &BTreeMap<String, Limit>) -> Option<Amount> {
    let value = value.trim();
    for (maker, millis) in [("Duration::from_secs(", 1_000.0), ("Duration::from_millis(", 1.0)] {
        if let Some(inner) = value.strip_prefix(maker).and_then(|rest| rest.strip_suffix(')')) {
            let Amount::Number(number) = amount(inner, known)? else {
                return None;
            };
            return Some(Amount::Millis(number * millis));
        }
    }
    if let Some((left, right)) = value.split_once(" * ") {
        return match (amount(left, known)?, amount(right, known)?) {
            (Amount::Number(left), Amount::Number(right)) => Some(Amount::Number(left * right)),
            (Amount::Number(_) | Amount::Millis(_), _) => None,
        };
    }
    if let Ok(number) = value.replace('_', "").parse() {
        return Some(Amount::Number(number));
    }
    let name = value.split(" as ").next()?.rsplit("::").next()?;
    amount(&known.get(name)?.value, known)
}

/// The amount as a person says it; the unit comes from the name.
fn named_reading(name: &str, amount: Amount) -> String {
    let words: Vec<_> = name.split('_').collect();
    let has = |unit: &str| words.contains(&unit);
    match amount {
        Amount::Millis(millis) => time(millis),
        Amount::Number(number) if has("BYTES") => size(number),
        Amount::Number(number) if has("MS") => time(number),
        Amount::Number(number) if has("S") || has("SECONDS") => time(number * 1_000.0),
        Amount::Number(number) if has("MINUTE") => {
            format!("{:02}:{:02}", (number / 60.0).floor(), number % 60.0)
        }
        Amount::Number(number) if has("WATTS") => format!("{number} W"),
        // Versions and user ids are not quantities.
        Amount::Number(number) if has("ABI") || has("ID") => number.to_string(),
        Amount::Number(number) => grouped(number),
    }
}

fn size(bytes: f64) -> String {
    let (unit, name) = match bytes {
        bytes if bytes >= 1_048_576.0 => (1_048_576.0, "MiB"),
        bytes if bytes >= 1_024.0 => (1_024.0, "KiB"),
        _ => (1.0, "bytes"),
    };
    let rounded = (bytes / unit * 100.0).round() / 100.0;
    format!("{rounded} {name}")
}

fn time(millis: f64) -> String {
    let units = [(86_400_000.0, "d"), (3_600_000.0, "h"), (60_000.0, "min"), (1_000.0, "s")];
    let whole = units.iter().find(|(unit, _)| millis >= *unit && millis % unit == 0.0);
    whole.map_or_else(|| format!("{millis} ms"), |(unit, name)| format!("{} {name}", millis / unit))
}

fn grouped(number: f64) -> String {
    if number.fract() != 0.0 || number < 1_000.0 {
        return number.to_string();
    }
    let digits = number.to_string();
    let mut out = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// The constants of every crate, by the crate's name.
fn all() -> BTreeMap<String, Vec<Limit>> {
    let has_limits = |member: &String| root().join(member).join("src/limits.rs").exists();
    let members = members().into_iter().filter(has_limits);
    members.map(|member| (member.clone(), limits(&text(&format!("{member}/src/limits.rs"))))).collect()
}

/// The value of `crate::NAME` or of a settings key, as a person says it.
fn bound(all: &BTreeMap<String, Vec<Limit>>, name: &str) -> Option<String> {
    if let Some(key) = KEYS.iter().find(|key| key.name == name) {
        let words = name.replace('.', "_").to_uppercase();
        return Some(named_reading(&words, amount(&key.default(), &BTreeMap::new())?));
    }
    let (member, name) = name.split_once("::")?;
    let limit = all.get(member)?.iter().find(|limit| limit.name == name)?;
    let known: BTreeMap<_, _> = ["contracts", member]
        .iter()
        .filter_map(|member| all.get(*member))
        .flatten()
        .map(|limit| (limit.name.clone(), limit.clone()))
        .collect();
    Some(named_reading(name, amount(&limit.value, &known)?))
}

#[test]
fn limits_in_the_code_and_on_the_page_agree() {
    let all = all();
    let line = |line: &str| {
        let cells: Vec<_> = line.trim_matches('|').split('|').map(str::trim).collect();
        let [what, _, name, beyond] = cells[..] else {
            return line.to_owned();
        };
        let Some(name) = name.strip_prefix('`').and_then(|name| name.strip_suffix('`')) else {
            return line.to_owned();
        };
        let bound = bound(&all, name).unwrap_or_else(|| panic!("{LIMITS}: there is no amount `{name}`"));
        format!("| {what} | {bound} | `{name}` | {beyond} |")
    };
    let wanted: Vec<_> = text(LIMITS).lines().map(line).collect();
    agree(LIMITS, &format!("{}\n", wanted.join("\n")));
}

#[test]
fn settings_in_the_code_and_on_the_page_agree() {
    let page = text(SETTINGS);
    let (before, rest) = page.split_once(BEGIN).expect("the page has a list of settings");
    let (_, after) = rest.split_once(END).expect("the list has an end");
    let row = |key: &effectd::internal::settings::Key| {
        let reload = if key.takes == Takes::Reload { "yes" } else { "" };
        let default = key.default();
        // The page has the default of a release, which does not read this variable.
        let is_tested = key.name == "store.journal" && std::env::var("EFFECTD_TEST_JOURNAL").is_ok();
        let default = match default.as_str() {
            "" => "empty",
            "sled" if is_tested => "files",
            default => default,
        };
        let (name, about, takes) = (key.name, key.about, key.expected());
        format!("| `{name}` | {default} | {takes} | {reload} | {about} |\n")
    };
    let rows: String = KEYS.iter().map(row).collect();
    let head = "| key | default | takes | reload | what |\n|---|---|---|---|---|\n";
    agree(SETTINGS, &format!("{before}{BEGIN}{head}{rows}{END}{after}"));
}

#[test]
fn every_limit_is_an_amount_and_says_why() {
    let mut findings = Vec::new();
    for (member, limits) in all() {
        for limit in limits {
            if limit.why.len() < 20 {
                findings.push(format!("{member}: {}: say in its doc comment why this number", limit.name));
            }
            if matches!(limit.kind.as_str(), "&str" | "String") {
                findings.push(format!("{member}: {} is no limit; move it", limit.name));
            }
        }
    }
    none(&findings, "Limits that nobody can argue with:");
}

#[test]
fn values_are_read_as_the_compiler_reads_them() {
    let source = "/// Why this\n/// number.\npub const TIMEOUT_MS_MAX: u64 = 600_000;\n\
        /// As in [`TIMEOUT_MS_MAX`].\npub const CALL_TIME_MAX: Duration =\n    Duration::from_millis(a::TIMEOUT_MS_MAX);\n";
    let found = limits(source);
    assert_eq!(found[0].why, "Why this number.");
    assert_eq!(found[1].why, "As in [`TIMEOUT_MS_MAX`].");
    let known: BTreeMap<_, _> = found.iter().map(|limit| (limit.name.clone(), limit.clone())).collect();
    let read = |name: &str, value: &str| named_reading(name, amount(value, &known).unwrap());
    assert_eq!(read("CALL_TIME_MAX", &found[1].value), "10 min");
    assert_eq!(read("REQUEST_BYTES_MAX", "4 * 1_048_576"), "4 MiB");
    assert_eq!(read("CHUNK_BYTES_MAX", "24_576"), "24 KiB");
    assert_eq!(read("SKEW_S_DEFAULT", "300"), "5 min");
    assert_eq!(read("NIGHT_FROM_MINUTE_DEFAULT", "22 * 60"), "22:00");
    assert_eq!(read("LEASE_TTL_MIN", "Duration::from_millis(20)"), "20 ms");
    assert_eq!(read("INDEX_LAG_ENTRIES_MAX", "262_144"), "262,144");
    assert_eq!(read("CORE_WATTS", "15.0"), "15 W");
    assert_eq!(amount("something_else()", &known), None);
}
