//! The query language for receipts: `tool:files.* status:error subject:agent://planner@* since:2h`.
//!
//! A filter is a list of conditions, separated by blanks, that must all hold. A condition is a name, a colon and patterns
//! separated by commas, of which one must match; `*` stands for any text. A leading minus negates a condition. Values with
//! blanks or commas need double quotes.

use std::time::Duration;

use crate::clock::Timestamp;
use crate::ids::{ActionId, OrgId, Principal, SessionId, SpaceId, SubjectId, ToolId};
use crate::limits::{FILTER_BYTES_MAX, FILTER_TERMS_MAX};
use crate::receipt::{Receipt, Status};
use crate::text::matches_pattern;

/// An invalid filter.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct FilterInvalid(String);

/// The field that a condition is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Field {
    Tool,
    Status,
    Outcome,
    Code,
    Subject,
    Space,
    Principal,
    Session,
    Org,
    Action,
    Receipt,
    Trace,
    Key,
}

impl Field {
    const ALL: [(&'static str, Field); 13] = [
        ("tool", Field::Tool),
        ("status", Field::Status),
        ("outcome", Field::Outcome),
        ("code", Field::Code),
        ("subject", Field::Subject),
        ("space", Field::Space),
        ("principal", Field::Principal),
        ("session", Field::Session),
        ("org", Field::Org),
        ("action", Field::Action),
        ("receipt", Field::Receipt),
        ("trace", Field::Trace),
        ("key", Field::Key),
    ];

    /// The field's value; a field without one matches no pattern.
    fn of(self, receipt: &Receipt) -> Option<&str> {
        match self {
            Field::Tool => Some(receipt.tool_id.as_str()),
            Field::Status => Some(receipt.status.as_str()),
            Field::Outcome => Some(receipt.outcome.as_str()),
            Field::Code => receipt.error.as_ref().map(|failure| failure.code.as_str()),
            Field::Subject => Some(receipt.subject_id.as_str()),
            Field::Space => Some(receipt.space_id.as_str()),
            Field::Principal => Some(receipt.principal.as_str()),
            Field::Session => receipt.session_id.as_ref().map(|session| session.as_str()),
            Field::Org => receipt.org.as_ref().map(|org| org.as_str()),
            Field::Action => Some(receipt.action_id.as_str()),
            Field::Receipt => Some(receipt.receipt_id.as_str()),
            Field::Trace => Some(receipt.trace_id.as_str()),
            Field::Key => receipt.idempotency_key.as_ref().map(|key| key.as_str()),
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Term {
    field: Field,
    not: bool,
    patterns: Vec<String>,
}

/// A filter of receipts. An empty one matches all.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Filter {
    terms: Vec<Term>,
    since: Option<Timestamp>,
    until: Option<Timestamp>,
}

impl Filter {
    /// Parses a filter. Times such as `2h` count back from `now`.
    pub fn parse(text: &str, now: Timestamp) -> Result<Self, FilterInvalid> {
        if text.len() > FILTER_BYTES_MAX {
            return Err(FilterInvalid(format!(
                "a filter of {} bytes; at most {FILTER_BYTES_MAX} are allowed",
                text.len()
            )));
        }
        let mut filter = Self::default();
        for (count, word) in words(text)?.into_iter().enumerate() {
            if count >= FILTER_TERMS_MAX {
                return Err(FilterInvalid(format!("more than {FILTER_TERMS_MAX} conditions")));
            }
            filter.add(&word, now)?;
        }
        Ok(filter)
    }

    fn add(&mut self, word: &[(char, bool)], now: Timestamp) -> Result<(), FilterInvalid> {
        let whole: String = word.iter().map(|(character, _)| character).collect();
        let names = || Field::ALL.map(|(name, _)| name).join(", ");
        let (Some((name, value)), Some(colon)) =
            (whole.split_once(':'), word.iter().position(|(character, _)| *character == ':'))
        else {
            return Err(FilterInvalid(format!(
                "{whole:?} is not a condition; write name:pattern, with one of {}, since, until",
                names()
            )));
        };
        let (not, name) = name.strip_prefix('-').map_or((false, name), |rest| (true, rest));
        if name == "since" || name == "until" {
            let time = Some(moment(value, now)?);
            if not {
                let message = format!("-{name} is not allowed; use the other of since and until");
                return Err(FilterInvalid(message));
            }
            match name {
                "since" => self.since = time,
                _ => self.until = time,
            }
            return Ok(());
        }
        let Some((_, field)) = Field::ALL.into_iter().find(|(known, _)| *known == name) else {
            return Err(FilterInvalid(format!(
                "unknown condition {name:?}; the conditions are {}, since, until",
                names()
            )));
        };
        let patterns = word[colon + 1..].split(|(character, quoted)| *character == ',' && !quoted);
        let patterns: Vec<String> =
            patterns.map(|pattern| pattern.iter().map(|(character, _)| character).collect()).collect();
        if patterns.iter().any(String::is_empty) {
            let message = format!("{whole:?} has no value after a colon or comma");
            return Err(FilterInvalid(message));
        }
        if field == Field::Status {
            check_status(&patterns)?;
        }
        self.terms.push(Term { field, not, patterns });
        Ok(())
    }

    /// Lets each action id that is given in full also match the action that `resolve` returns: a repeated request has the
    /// receipt of the earlier action.
    pub fn resolve_actions<E>(
        &mut self,
        resolve: impl Fn(&ActionId) -> Result<Option<ActionId>, E>,
    ) -> Result<(), E> {
        for term in self.terms.iter_mut().filter(|term| term.field == Field::Action) {
            let named = term.patterns.iter().filter_map(|text| ActionId::new(text.as_str()).ok());
            let resolved = named.map(|id| resolve(&id)).collect::<Result<Vec<_>, E>>()?;
            term.patterns.extend(resolved.into_iter().flatten().map(|id| id.to_string()));
        }
        Ok(())
    }

    /// Whether it matches all receipts.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Whether all conditions hold, except those about time: the store knows when a receipt was stored.
    pub fn matches(&self, receipt: &Receipt) -> bool {
        self.terms.iter().all(|term| {
            let value = term.field.of(receipt);
            let matches = value
                .is_some_and(|value| term.patterns.iter().any(|pattern| matches_pattern(pattern, value)));
            matches != term.not
        })
    }

    /// Stored at this time or later.
    pub fn since(&self) -> Option<Timestamp> {
        self.since
    }

    /// Stored before this time.
    pub fn until(&self) -> Option<Timestamp> {
        self.until
    }

    /// The only value that the conditions allow for a field, if there is one: an index can look it up.
    fn exactly(&self, field: Field) -> Option<&str> {
        self.terms.iter().find_map(|term| match term.patterns.as_slice() {
            [one] if term.field == field && !term.not && !one.contains('*') => Some(one.as_str()),
            _ => None,
        })
    }

    /// The only tool that matches, if there is one.
    pub fn tool(&self) -> Option<ToolId> {
        ToolId::new(self.exactly(Field::Tool)?).ok()
    }

    /// The only subject that matches, if there is one.
    pub fn subject(&self) -> Option<SubjectId> {
        SubjectId::new(self.exactly(Field::Subject)?).ok()
    }

    /// The only space that matches, if there is one.
    pub fn space(&self) -> Option<SpaceId> {
        SpaceId::new(self.exactly(Field::Space)?).ok()
    }

    /// The only principal that matches, if there is one.
    pub fn principal(&self) -> Option<Principal> {
        Principal::new(self.exactly(Field::Principal)?).ok()
    }

    /// The only session that matches, if there is one.
    pub fn session(&self) -> Option<SessionId> {
        SessionId::new(self.exactly(Field::Session)?).ok()
    }

    /// The only organisation that matches, if there is one.
    pub fn org(&self) -> Option<OrgId> {
        OrgId::new(self.exactly(Field::Org)?).ok()
    }

    /// What the ids of all tools that match have before their first dot, if that is known: `effectd` for `tool:effectd.*`.
    pub fn tool_group(&self) -> Option<&str> {
        self.terms.iter().find_map(|term| match term.patterns.as_slice() {
            [one] if term.field == Field::Tool && !term.not => {
                let before_star = one.split('*').next()?;
                before_star.split_once('.').map(|(group, _)| group)
            }
            _ => None,
        })
    }

    /// The only actions that match; empty if that is not known.
    pub fn actions(&self) -> Vec<ActionId> {
        let exact = |term: &&Term| {
            let has_star = term.patterns.iter().any(|pattern| pattern.contains('*'));
            term.field == Field::Action && !term.not && !has_star
        };
        let patterns = self.terms.iter().find(exact).map(|term| term.patterns.iter());
        patterns.into_iter().flatten().filter_map(|text| ActionId::new(text.as_str()).ok()).collect()
    }

    /// The only status that matches, if there is one.
    pub fn status(&self) -> Option<Status> {
        let text = self.exactly(Field::Status)?;
        Status::ALL.into_iter().find(|status| status.as_str() == text)
    }
}

fn check_status(patterns: &[String]) -> Result<(), FilterInvalid> {
    let known = |pattern: &String| {
        let mut all = Status::ALL.iter();
        all.any(|status| matches_pattern(pattern, status.as_str()))
    };
    match patterns.iter().find(|pattern| !known(pattern)) {
        None => Ok(()),
        Some(wrong) => Err(FilterInvalid(format!(
            "unknown status {wrong:?}; the statuses are {}",
            Status::ALL.map(Status::as_str).join(", ")
        ))),
    }
}

/// Parses a time: RFC 3339, or how long before `now`: `90s`, `15m`, `2h`, `7d`.
pub fn moment(text: &str, now: Timestamp) -> Result<Timestamp, FilterInvalid> {
    if let Ok(time) = text.parse::<Timestamp>() {
        return Ok(time);
    }
    let ago = span(text).and_then(|ago| now.checked_sub(ago).ok());
    ago.ok_or_else(|| {
        FilterInvalid(format!(
            "{text:?} is not a time; write 2026-01-01T00:00:00Z or an age: 90s, 15m, 2h, 7d"
        ))
    })
}

/// Parses the end of a span of time that begins now and is not empty: `90s`, `30m`, `2h`, `7d`.
pub fn end_of(text: &str, now: Timestamp) -> Result<Timestamp, FilterInvalid> {
    let end = span(text).filter(|span| !span.is_zero()).and_then(|span| now.checked_add(span).ok());
    end.ok_or_else(|| FilterInvalid(format!("{text:?} is not a span of time; write 90s, 30m, 2h or 7d")))
}

/// Parses a span of time: `90s`, `30m`, `2h`, `7d`.
pub fn span(text: &str) -> Option<Duration> {
    let unit = text.chars().last()?;
    let seconds = match unit {
        's' => 1,
        'm' => 60,
        'h' => 3_600,
        'd' => 86_400,
        _ => return None,
    };
    let number: u64 = text[..text.len() - unit.len_utf8()].parse().ok()?;
    Some(Duration::from_secs(number.checked_mul(seconds)?))
}

/// A span of time as [`span`] reads it, in the largest unit that has no fraction.
pub fn span_text(span: Duration) -> String {
    let seconds = span.as_secs();
    let units = [(86_400, 'd'), (3_600, 'h'), (60, 'm')];
    let whole = units.into_iter().find(|(unit, _)| seconds > 0 && seconds.is_multiple_of(*unit));
    let (unit, name) = whole.unwrap_or((1, 's'));
    format!("{}{name}", seconds / unit)
}

/// Splits a filter into conditions: characters without the quotes, each with whether it was in quotes.
fn words(text: &str) -> Result<Vec<Vec<(char, bool)>>, FilterInvalid> {
    let (mut words, mut word, mut quoted) = (Vec::new(), Vec::new(), false);
    for character in text.chars() {
        if character == '"' {
            quoted = !quoted;
        } else if character.is_whitespace() && !quoted {
            words.push(std::mem::take(&mut word));
        } else {
            word.push((character, quoted));
        }
    }
    if quoted {
        return Err(FilterInvalid("a quotation mark is not closed".to_owned()));
    }
    words.push(word);
    words.retain(|word| !word.is_empty());
    Ok(words)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn receipt() -> Receipt {
        serde_json::from_str(include_str!("../tests/golden/receipt.json")).unwrap()
    }

    fn now() -> Timestamp {
        Timestamp::from_second(1_800_000_000).unwrap()
    }

    fn parse(text: &str) -> Filter {
        Filter::parse(text, now()).unwrap()
    }

    #[test]
    fn an_action_is_found_by_the_receipt_that_it_resolves_to() {
        let receipt = receipt();
        let resolved = |text: &str| {
            let mut filter = parse(text);
            let known =
                |id: &ActionId| Ok::<_, ()>((id.as_str() == "repeat").then(|| receipt.action_id.clone()));
            filter.resolve_actions(known).unwrap();
            filter.matches(&receipt)
        };
        assert!(resolved("action:repeat") && resolved("action:other,repeat status:ok"));
        assert!(!resolved("-action:repeat") && !resolved("action:rep*") && !resolved("tool:repeat"));
        assert_eq!(parse("action:x").resolve_actions(|_| Err("no")), Err("no"));
    }

    #[test]
    fn receipts_are_found_by_what_they_say() {
        let fitting = [
            "",
            "tool:files.*",
            "tool:files.write_text status:ok",
            "subject:agent://planner@* space:shared:household",
            "tool:mail.*,files.* -status:error,skipped",
            "principal:user://alice outcome:executed",
            "-code:*",
            "action:*c9a11 trace:\"trace-123\"",
            "key:files.write_text|notes/w36.txt|*",
        ];
        for text in fitting {
            assert!(parse(text).matches(&receipt()), "{text}");
        }
        for text in [
            "tool:files",
            "tool:Files.*",
            "-tool:files.*",
            "status:error",
            "code:*",
            "subject:planner*",
            "tool:files.* status:quarantined",
            "action:\"0199f6a2,0199\"",
        ] {
            assert!(!parse(text).matches(&receipt()), "{text}");
        }
        let mut of_session = receipt();
        (of_session.session_id, of_session.org) = ("s-1".parse().ok(), "home".parse().ok());
        for (text, both) in
            [("session:s-1 org:home", true), ("session:s-* org:h*", true), ("session:s-2", false)]
        {
            assert_eq!(
                (parse(text).matches(&of_session), parse(text).matches(&receipt())),
                (both, false),
                "{text}"
            );
        }
    }

    #[test]
    fn what_an_index_can_be_asked_for_is_known() {
        let filter = parse(
            "tool:files.stat -status:ok subject:agent://p space:a,b since:2h until:2026-01-01T00:00:00Z",
        );
        assert_eq!(filter.tool(), ToolId::new("files.stat").ok());
        assert_eq!(filter.subject(), SubjectId::new("agent://p").ok());
        assert_eq!((filter.status(), filter.space()), (None, None));
        assert_eq!(parse("principal:user://a").principal(), Principal::new("user://a").ok());
        let of_org = parse("session:s-1 org:home");
        assert_eq!((of_org.session(), of_org.org()), (SessionId::new("s-1").ok(), OrgId::new("home").ok()));
        assert_eq!((parse("session:s-*").session(), parse("-org:home").org()), (None, None));
        for (text, group) in [
            ("tool:effectd.*", Some("effectd")),
            ("tool:effectd.set_*", Some("effectd")),
            ("tool:files.stat", Some("files")),
            ("tool:effectd*", None),
            ("tool:*.stat", None),
            ("-tool:effectd.*", None),
            ("tool:effectd.*,files.*", None),
        ] {
            assert_eq!(parse(text).tool_group(), group, "{text}");
        }
        let ids = |names: &[&str]| names.iter().map(|name| ActionId::new(*name).unwrap()).collect::<Vec<_>>();
        assert_eq!(parse("action:a,b status:ok").actions(), ids(&["a", "b"]));
        assert_eq!((parse("action:a,b*").actions(), parse("-action:a").actions()), (ids(&[]), ids(&[])));
        assert_eq!(parse("status:error").status(), Some(Status::Error));
        assert_eq!(filter.since(), Timestamp::from_second(1_800_000_000 - 7_200).ok());
        assert!(filter.until().is_some() && parse("").is_empty());
    }

    #[test]
    fn each_mistake_is_told_in_its_own_words() {
        for (text, expected) in [
            ("files.*", "is not a condition"),
            ("tol:x", "unknown condition \"tol\""),
            ("tool:", "has no value after a colon or comma"),
            ("tool:a,,b", "has no value after a colon or comma"),
            ("status:denied", "unknown status \"denied\""),
            ("since:yesterday", "is not a time"),
            ("since:99999999999999999999d", "is not a time"),
            ("-since:2h", "-since is not allowed"),
            ("tool:\"a", "not closed"),
        ] {
            let told = Filter::parse(text, now()).unwrap_err().to_string();
            assert!(told.contains(expected), "{text}: {told}");
        }
        assert!(Filter::parse(&"tool:a ".repeat(FILTER_TERMS_MAX + 1), now()).is_err());
        assert!(Filter::parse(&"x".repeat(FILTER_BYTES_MAX + 1), now()).is_err());
    }

    proptest::proptest! {
        #[test]
        fn garbage_never_panics(text in "\\PC{0,80}") {
            let _ = Filter::parse(&text, now()).map(|filter| filter.matches(&receipt()));
        }

        #[test]
        fn a_star_fits_everything_and_a_text_fits_itself(text in "[^*]{0,40}", more in "\\PC{0,20}") {
            proptest::prop_assert!(matches_pattern("*", &text) && matches_pattern(&text, &text));
            let pattern = format!("{text}*");
            let longer = format!("{text}{more}");
            proptest::prop_assert!(matches_pattern(&pattern, &longer));
        }
    }
}
