//! The one language in which receipts are asked for: `tool:files.* status:error subject:agent://planner@* since:2h`.
//!
//! Conditions stand beside each other with blanks between, and all must hold. A condition is a name, a colon and one or
//! several patterns with commas between, of which one must fit; `*` stands for any text. A minus sign in front turns a
//! condition round. Values with blanks or commas are put in double quotes.

use crate::clock::Timestamp;
use crate::ids::{ActionId, SpaceId, SubjectId, ToolId};
use crate::limits::{FILTER_BYTES_MAX, FILTER_TERMS_MAX};
use crate::receipt::{Receipt, Status};

/// A filter that cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct FilterInvalid(String);

/// What a condition looks at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Field {
    Tool,
    Status,
    Outcome,
    Code,
    Subject,
    Space,
    Principal,
    Action,
    Receipt,
    Trace,
    Key,
}

impl Field {
    const ALL: [(&'static str, Field); 11] = [
        ("tool", Field::Tool),
        ("status", Field::Status),
        ("outcome", Field::Outcome),
        ("code", Field::Code),
        ("subject", Field::Subject),
        ("space", Field::Space),
        ("principal", Field::Principal),
        ("action", Field::Action),
        ("receipt", Field::Receipt),
        ("trace", Field::Trace),
        ("key", Field::Key),
    ];

    /// What a receipt has there; nothing matches nothing.
    fn of(self, receipt: &Receipt) -> Option<&str> {
        match self {
            Field::Tool => Some(receipt.tool_id.as_str()),
            Field::Status => Some(receipt.status.as_str()),
            Field::Outcome => Some(receipt.outcome.as_str()),
            Field::Code => receipt.error.as_ref().map(|failure| failure.code.as_str()),
            Field::Subject => Some(receipt.subject_id.as_str()),
            Field::Space => Some(receipt.space_id.as_str()),
            Field::Principal => Some(receipt.principal.as_str()),
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

/// Which receipts. An empty one is for all.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Filter {
    terms: Vec<Term>,
    since: Option<Timestamp>,
    until: Option<Timestamp>,
}

impl Filter {
    /// Reads a filter; times such as `2h` are counted back from `now`.
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

    fn add(&mut self, word: &[Piece], now: Timestamp) -> Result<(), FilterInvalid> {
        let whole: String = word.iter().map(|piece| piece.text).collect();
        let (not, rest) = whole
            .strip_prefix('-')
            .map_or((false, whole.as_str()), |rest| (true, rest));
        let names = || Field::ALL.map(|(name, _)| name).join(", ");
        let Some((name, value)) = rest.split_once(':') else {
            return Err(FilterInvalid(format!(
                "{whole:?} is no condition; write name:pattern, with one of {}, since, until",
                names()
            )));
        };
        if name == "since" || name == "until" {
            let time = Some(moment(value, now)?);
            if not {
                return Err(FilterInvalid(format!(
                    "-{name} means nothing; use the other of since and until"
                )));
            }
            *(if name == "since" {
                &mut self.since
            } else {
                &mut self.until
            }) = time;
            return Ok(());
        }
        let field = Field::ALL.iter().find(|(known, _)| *known == name);
        let Some((_, field)) = field else {
            return Err(FilterInvalid(format!(
                "there is no condition {name:?}; there are {}, since, until",
                names()
            )));
        };
        let skip = whole.len() - value.len();
        let patterns = patterns(word, skip);
        if patterns.iter().any(String::is_empty) {
            return Err(FilterInvalid(format!(
                "{whole:?} names nothing behind its colon or comma"
            )));
        }
        if *field == Field::Status {
            check_status(&patterns)?;
        }
        self.terms.push(Term {
            field: *field,
            not,
            patterns,
        });
        Ok(())
    }

    /// Lets each action id that is named in full also stand for the action that `resolve` answers: a repeat is answered with
    /// the receipt of the action before it.
    pub fn resolve_actions<E>(
        &mut self,
        resolve: impl Fn(&ActionId) -> Result<Option<ActionId>, E>,
    ) -> Result<(), E> {
        for term in self.terms.iter_mut().filter(|term| term.field == Field::Action) {
            let named = term
                .patterns
                .iter()
                .filter_map(|text| ActionId::new(text.as_str()).ok());
            let resolved = named.map(|id| resolve(&id)).collect::<Result<Vec<_>, E>>()?;
            term.patterns
                .extend(resolved.into_iter().flatten().map(|id| id.to_string()));
        }
        Ok(())
    }

    /// Whether it is for all.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Whether all conditions but those about time hold. Times are about when a receipt was stored, which the store knows.
    pub fn matches(&self, receipt: &Receipt) -> bool {
        self.terms.iter().all(|term| {
            let value = term.field.of(receipt);
            let fits = value.is_some_and(|value| term.patterns.iter().any(|pattern| fits(pattern, value)));
            fits != term.not
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

    /// The one text that a condition allows, by which an index can be asked.
    fn exactly(&self, field: Field) -> Option<&str> {
        self.terms.iter().find_map(|term| match term.patterns.as_slice() {
            [one] if term.field == field && !term.not && !one.contains('*') => Some(one.as_str()),
            _ => None,
        })
    }

    /// The only tool that fits, if there is one.
    pub fn tool(&self) -> Option<ToolId> {
        ToolId::new(self.exactly(Field::Tool)?).ok()
    }

    /// The only subject that fits, if there is one.
    pub fn subject(&self) -> Option<SubjectId> {
        SubjectId::new(self.exactly(Field::Subject)?).ok()
    }

    /// The only space that fits, if there is one.
    pub fn space(&self) -> Option<SpaceId> {
        SpaceId::new(self.exactly(Field::Space)?).ok()
    }

    /// The only status that fits, if there is one.
    pub fn status(&self) -> Option<Status> {
        let text = self.exactly(Field::Status)?;
        Status::ALL.into_iter().find(|status| status.as_str() == text)
    }
}

fn check_status(patterns: &[String]) -> Result<(), FilterInvalid> {
    let known = |pattern: &String| Status::ALL.iter().any(|status| fits(pattern, status.as_str()));
    match patterns.iter().find(|pattern| !known(pattern)) {
        None => Ok(()),
        Some(wrong) => Err(FilterInvalid(format!(
            "no receipt has the status {wrong:?}; there are {}",
            Status::ALL.map(Status::as_str).join(", ")
        ))),
    }
}

/// A moment: as RFC 3339 has it, or so long before now: `90s`, `15m`, `2h`, `7d`.
pub fn moment(text: &str, now: Timestamp) -> Result<Timestamp, FilterInvalid> {
    if let Ok(time) = text.parse::<Timestamp>() {
        return Ok(time);
    }
    let wrong = || {
        FilterInvalid(format!(
            "{text:?} is no time; say 2026-01-01T00:00:00Z, or how long ago: 90s, 15m, 2h, 7d"
        ))
    };
    let unit = text.chars().last().ok_or_else(wrong)?;
    let seconds = match unit {
        's' => 1,
        'm' => 60,
        'h' => 3_600,
        'd' => 86_400,
        _ => return Err(wrong()),
    };
    let number: u64 = text[..text.len() - unit.len_utf8()]
        .parse()
        .map_err(|_| wrong())?;
    let ago = std::time::Duration::from_secs(number.checked_mul(seconds).ok_or_else(wrong)?);
    now.checked_sub(ago).map_err(|_| wrong())
}

/// One character, and whether it stood in quotes.
#[derive(Debug, Clone, Copy)]
struct Piece {
    text: char,
    quoted: bool,
}

/// The conditions of a filter, each as its characters without the quotes.
fn words(text: &str) -> Result<Vec<Vec<Piece>>, FilterInvalid> {
    let (mut words, mut word, mut quoted) = (Vec::new(), Vec::new(), false);
    for character in text.chars() {
        if character == '"' {
            quoted = !quoted;
        } else if character.is_whitespace() && !quoted {
            words.push(std::mem::take(&mut word));
        } else {
            word.push(Piece {
                text: character,
                quoted,
            });
        }
    }
    if quoted {
        return Err(FilterInvalid("a quotation mark is not closed".to_owned()));
    }
    words.push(word);
    words.retain(|word| !word.is_empty());
    Ok(words)
}

/// What stands behind the colon, parted at commas that are not in quotes.
fn patterns(word: &[Piece], skip_bytes: usize) -> Vec<String> {
    let mut at = 0;
    let value = word.iter().skip_while(|piece| {
        let skip = at < skip_bytes;
        at += piece.text.len_utf8();
        skip
    });
    let mut patterns = vec![String::new()];
    for piece in value {
        if piece.text == ',' && !piece.quoted {
            patterns.push(String::new());
        } else if let Some(last) = patterns.last_mut() {
            last.push(piece.text);
        }
    }
    patterns
}

/// Whether a text fits a pattern in which `*` stands for any text. Takes time in the product of their lengths at most.
fn fits(pattern: &str, text: &str) -> bool {
    let (pattern, text) = (pattern.as_bytes(), text.as_bytes());
    let (mut at, mut read, mut star) = (0, 0, None);
    while read < text.len() {
        if pattern.get(at) == Some(&b'*') {
            star = Some((at, read));
            at += 1;
        } else if pattern.get(at) == Some(&text[read]) {
            at += 1;
            read += 1;
        } else if let Some((star_at, taken)) = star {
            star = Some((star_at, taken + 1));
            at = star_at + 1;
            read = taken + 1;
        } else {
            return false;
        }
    }
    pattern[at..].iter().all(|byte| *byte == b'*')
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
    }

    #[test]
    fn what_an_index_can_be_asked_for_is_known() {
        let filter = parse(
            "tool:files.stat -status:ok subject:agent://p space:a,b since:2h until:2026-01-01T00:00:00Z",
        );
        assert_eq!(filter.tool(), ToolId::new("files.stat").ok());
        assert_eq!(filter.subject(), SubjectId::new("agent://p").ok());
        assert_eq!((filter.status(), filter.space()), (None, None));
        assert_eq!(parse("status:error").status(), Some(Status::Error));
        assert_eq!(filter.since(), Timestamp::from_second(1_800_000_000 - 7_200).ok());
        assert!(filter.until().is_some() && parse("").is_empty());
    }

    #[test]
    fn each_mistake_is_told_in_its_own_words() {
        for (text, expected) in [
            ("files.*", "is no condition"),
            ("tol:x", "there is no condition \"tol\""),
            ("tool:", "names nothing"),
            ("tool:a,,b", "names nothing"),
            ("status:denied", "no receipt has the status \"denied\""),
            ("since:yesterday", "is no time"),
            ("since:99999999999999999999d", "is no time"),
            ("-since:2h", "means nothing"),
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
            proptest::prop_assert!(fits("*", &text) && fits(&text, &text));
            let pattern = format!("{text}*");
            let longer = format!("{text}{more}");
            proptest::prop_assert!(fits(&pattern, &longer));
        }
    }
}
