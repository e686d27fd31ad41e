//! `docs/limits.md` says what every `limits.rs` says, and nothing else: name, value, who may change it, and why that number.
//!
//! The constants are the truth. The tables are made from them, and `EFFECTD_BLESS=1` writes them into the page.

use std::collections::BTreeMap;
use std::fs;

use crate::tree::{files_ending, members, root, text};

const PAGE: &str = "docs/limits.md";

/// What stands before the tables of each file, in the order of the page.
const BEGIN: &str = "<!-- limits of ";
const END: &str = "<!-- end -->";

/// What writes the tables anew.
const BLESS: &str = "EFFECTD_BLESS=1 cargo test --test tidy";

/// One `pub const`, or one line of `bounds!`.
#[derive(Debug, Clone, PartialEq)]
struct Limit {
    name: String,
    kind: String,
    value: String,
    why: String,
    /// The key of the configuration that a bound names itself.
    key: Option<String>,
}

/// How the comment of a limit that nobody can set says why.
const FIXED: &str = "Fixed: ";

/// What a value comes to, in the unit it is written in.
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
        let bound = line.starts_with("    ");
        let line = line.trim_start();
        if let Some(doc) = line.strip_prefix("/// ") {
            why = if why.is_empty() {
                doc.to_owned()
            } else {
                format!("{why} {doc}")
            };
        } else if let Some(start) = line.strip_prefix("pub const ") {
            let mut whole = start.to_owned();
            while !whole.ends_with(';') {
                let more = lines.next().expect("a constant ends with a semicolon");
                whole = format!("{whole} {}", more.trim());
            }
            found.push(limit(&whole, std::mem::take(&mut why)));
        } else if bound && line.ends_with(';') {
            found.push(bound_limit(line, std::mem::take(&mut why)));
        } else {
            why.clear();
        }
    }
    found
}

/// `NAME: kind = default, "key", least ..= most;`
fn bound_limit(line: &str, why: String) -> Limit {
    let parts: Vec<_> = line.trim_end_matches(';').split(", ").collect();
    let [constant, key, _range] = parts.as_slice() else {
        panic!("{line}: a bound is `NAME: kind = default, \"key\", least ..= most;`");
    };
    Limit {
        key: Some(key.trim_matches('"').to_owned()),
        ..limit(constant, why)
    }
}

fn limit(constant: &str, why: String) -> Limit {
    let (name, rest) = constant.split_once(": ").expect("a constant has a type");
    let (kind, value) = rest
        .trim_end_matches(';')
        .split_once('=')
        .expect("a constant has a value");
    // Links of rustdoc lead nowhere on the page.
    let why = why.replace("[`", "`").replace("`]", "`").replace('|', "\\|");
    Limit {
        name: name.to_owned(),
        kind: kind.trim().to_owned(),
        value: value.trim().to_owned(),
        why,
        key: None,
    }
}

/// What a value comes to. `known` are the constants that it may name.
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
fn reading(limit: &Limit, amount: Amount) -> String {
    match amount {
        // A bound of a time is written in milliseconds.
        Amount::Number(millis) if limit.kind == "Duration" => time(millis),
        Amount::Number(_) | Amount::Millis(_) => named_reading(&limit.name, amount),
    }
}

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
        // Names of versions and users are no quantities.
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
    let units = [
        (86_400_000.0, "d"),
        (3_600_000.0, "h"),
        (60_000.0, "min"),
        (1_000.0, "s"),
    ];
    let whole = units
        .iter()
        .find(|(unit, _)| millis >= *unit && millis % unit == 0.0);
    whole.map_or_else(
        || format!("{millis} ms"),
        |(unit, name)| format!("{} {name}", millis / unit),
    )
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

/// Every file of limits, with its constants.
fn all() -> Vec<(String, Vec<Limit>)> {
    let order = [
        "contracts",
        "policy",
        "bus",
        "sandbox",
        "adapters",
        "actors",
        "gateway",
        "runtime",
    ];
    let mut homes: Vec<_> = members()
        .iter()
        .map(|member| format!("{member}/src/limits.rs"))
        .collect();
    homes.push("runtime/limits.rs".to_owned());
    let mut files = files_ending("limits.rs");
    files.retain(|file| homes.contains(file));
    files.sort_by_key(|file| {
        order
            .iter()
            .position(|name| file.starts_with(name))
            .unwrap_or(order.len())
    });
    files
        .into_iter()
        .map(|file| (file.clone(), limits(&text(&file))))
        .collect()
}

/// What the sections of the configuration are called, where that is not the name of the crate.
const SECTIONS: [(&str, &str); 2] = [("actors", "pipeline"), ("bus", "store")];

/// How an operator changes a limit: by a key of the configuration, in the policy, or not at all.
fn set_by(file: &str, limit: &Limit) -> String {
    let folder = file.split('/').next().unwrap_or_default();
    let section = SECTIONS.iter().find(|(name, _)| *name == folder);
    let section = section.map_or(folder, |(_, section)| section);
    let path = format!("{section}::{}", limit.name);
    let key = effectd::settings::KEYS
        .iter()
        .find(|key| key.limit == Some(path.as_str()));
    match (key, &limit.key, limit.why.split_once(FIXED)) {
        (Some(key), ..) => format!("`{}`", key.name),
        (None, Some(key), _) => format!("`{key}`"),
        (None, None, Some((_, why))) => format!("fixed: {}", why.trim_end_matches('.')),
        (None, None, None) if limit.why.contains("unless the policy says otherwise") => {
            "the policy".to_owned()
        }
        (None, None, None) => panic!(
            "{file}: {}: make it a bound, or say `{FIXED}` and why",
            limit.name
        ),
    }
}

#[test]
fn every_key_of_a_limit_names_one_that_is_there() {
    let known: Vec<String> = all()
        .iter()
        .flat_map(|(file, limits)| {
            let folder = file.split('/').next().unwrap_or_default().to_owned();
            let section = SECTIONS.iter().find(|(name, _)| *name == folder);
            let section = section.map_or(folder, |(_, section)| (*section).to_owned());
            limits
                .iter()
                .map(move |limit| format!("{section}::{}", limit.name))
                .collect::<Vec<_>>()
        })
        .collect();
    let findings: Vec<_> = effectd::settings::KEYS
        .iter()
        .filter_map(|key| key.limit)
        .filter(|limit| !known.iter().any(|known| known == limit))
        .map(str::to_owned)
        .collect();
    crate::tree::none(&findings, "Keys whose default is no limit of the page:");
    let bounds: Vec<_> = effectd::settings::bounds().map(|bound| bound.key()).collect();
    let mut page: Vec<_> = all()
        .iter()
        .flat_map(|(_, limits)| limits.clone())
        .filter_map(|limit| limit.key)
        .collect();
    assert_eq!(
        page.len(),
        bounds.len(),
        "every bound is in the configuration, and every one is on the page"
    );
    page.retain(|key| !bounds.contains(&key.as_str()));
    crate::tree::none(&page, "Bounds that the configuration does not know:");
}

fn table(file: &str, limits: &[Limit], known: &BTreeMap<String, Limit>) -> String {
    let mut out =
        format!("{BEGIN}{file} -->\n| constant | value | that is | set by | why |\n|---|---|---|---|---|\n");
    for limit in limits {
        let amount = amount(&limit.value, known);
        let amount = amount.unwrap_or_else(|| {
            panic!(
                "{file}: {} = {} cannot be read; teach tests/tidy/limits.rs",
                limit.name, limit.value
            )
        });
        let read = reading(limit, amount);
        out.push_str(&format!(
            "| `{}` | `{}` | {read} | {} | {} |\n",
            limit.name,
            limit.value,
            set_by(file, limit),
            limit.why.split(FIXED).next().unwrap_or_default().trim_end()
        ));
    }
    out.push_str(END);
    out
}

#[test]
fn limits_in_the_code_and_on_the_page_agree() {
    let all = all();
    let contracts = all.iter().filter(|(file, _)| file.starts_with("contracts/"));
    let shared: Vec<_> = contracts.flat_map(|(_, limits)| limits.clone()).collect();
    let mut page = text(PAGE);
    let mut wrong = Vec::new();
    let bless = std::env::var_os("EFFECTD_BLESS").is_some();
    for (file, limits) in &all {
        // A value may name a constant of the contracts, or of its own file.
        let known = shared
            .iter()
            .chain(limits)
            .map(|limit| (limit.name.clone(), limit.clone()))
            .collect();
        let wanted = table(file, limits, &known);
        let begin = format!("{BEGIN}{file} -->");
        if bless && !page.contains(&begin) {
            let name = file.split('/').next().unwrap_or_default();
            page = format!("{page}\n## {name}\n\n{begin}\n{END}\n");
        }
        let (before, rest) = page
            .split_once(&begin)
            .unwrap_or_else(|| panic!("{PAGE} has no table of {file}; `{BLESS}` makes one"));
        let (_, after) = rest
            .split_once(END)
            .unwrap_or_else(|| panic!("{PAGE}: end the table of {file} with `{END}`"));
        if !page.contains(&wanted) {
            wrong.push(file.clone());
        }
        page = format!("{before}{wanted}{after}");
    }
    assert_eq!(
        page.matches(BEGIN).count(),
        all.len(),
        "{PAGE} has a table for a file that is gone; take it out"
    );
    if bless {
        fs::write(root().join(PAGE), page).unwrap();
        return;
    }
    assert!(
        wrong.is_empty(),
        "{PAGE} is behind {}; `{BLESS}` writes it anew, then read what changed",
        wrong.join(", ")
    );
}

#[test]
fn every_limit_is_an_amount_and_says_why() {
    let mut findings = Vec::new();
    for (file, limits) in all() {
        for limit in limits {
            if limit.why.len() < 20 {
                findings.push(format!(
                    "{file}: {}: say in its doc comment why this number",
                    limit.name
                ));
            }
            if matches!(limit.kind.as_str(), "&str" | "String") {
                findings.push(format!("{file}: {} is no limit; move it", limit.name));
            }
        }
    }
    crate::tree::none(&findings, "Limits that nobody can argue with:");
}

#[test]
fn values_are_read_as_the_compiler_reads_them() {
    let source = "/// Why this\n/// number.\npub const TIMEOUT_MS_MAX: u64 = 600_000;\n\
        /// As in [`TIMEOUT_MS_MAX`].\npub const CALL_TIME_MAX: Duration =\n    Duration::from_millis(a::TIMEOUT_MS_MAX);\n";
    let found = limits(source);
    let bound = limits("    /// Why.\n    WAIT_MAX: Duration = 5_000, \"door.wait_ms_max\", 1 ..= 60_000;\n");
    assert_eq!(bound[0].key.as_deref(), Some("door.wait_ms_max"));
    assert_eq!(
        reading(&bound[0], amount(&bound[0].value, &BTreeMap::new()).unwrap()),
        "5 s"
    );
    assert_eq!(found[0].why, "Why this number.");
    assert_eq!(found[1].why, "As in `TIMEOUT_MS_MAX`.");
    let known: BTreeMap<_, _> = found
        .iter()
        .map(|limit| (limit.name.clone(), limit.clone()))
        .collect();
    let read = |name: &str, value: &str| named_reading(name, amount(value, &known).unwrap());
    assert_eq!(read("CALL_TIME_MAX", &found[1].value), "10 min");
    assert_eq!(read("REQUEST_BYTES_MAX", "4 * 1_048_576"), "4 MiB");
    assert_eq!(read("CHUNK_BYTES_MAX", "24_576"), "24 KiB");
    assert_eq!(read("SKEW_S_DEFAULT", "300"), "5 min");
    assert_eq!(read("NIGHT_FROM_MINUTE_DEFAULT", "22 * 60"), "22:00");
    assert_eq!(read("LINK_LINGER", "Duration::from_millis(20)"), "20 ms");
    assert_eq!(read("INDEX_LAG_ENTRIES_MAX", "262_144"), "262,144");
    assert_eq!(read("CORE_WATTS", "15.0"), "15 W");
    assert_eq!(amount("something_else()", &known), None);
}
