//! The planner's choice as receipts and events hold it: without personal data and secrets.

use std::collections::BTreeSet;

use effectd_contracts::limits::ID_BYTES_MAX;
use effectd_contracts::{Choice, Feature, Redaction, RedactionKind};

use super::safety::secret_spans;
use super::walk::record;
use crate::redact::personal::{EMAIL_PLACEHOLDER, is_phone_name, redact_stored};
use crate::redact::storage::{SECRET_PLACEHOLDER, is_secret};

const CANDIDATES: &str = "choice.candidates";
const CONTEXT: &str = "choice.context";
/// Digits of the digest behind a redacted id.
const DIGEST_CHARS: usize = 8;
/// Room for `#`, the digest, and a number behind an id that would otherwise occur twice.
const SUFFIX_BYTES: usize = 1 + DIGEST_CHARS + 4;

/// Redacts the ids of candidates, and removes features of the context. Returns what was removed. Behind a redacted id is the
/// beginning of its keyed digest in hex: the ids of one choice stay different, and those of one candidate are equal in all
/// receipts.
pub fn redact_choice(choice: &mut Choice, digest: impl Fn(&str) -> String) -> Vec<Redaction> {
    let mut removed = Vec::new();
    let is_chosen = |id: &String| Some(id) == choice.chosen.as_ref();
    let chosen = choice.candidates.iter().position(|candidate| is_chosen(&candidate.id));
    let mut taken: BTreeSet<String> =
        choice.candidates.iter().map(|candidate| candidate.id.clone()).collect();
    for candidate in &mut choice.candidates {
        let Some(safe) = redacted(&candidate.id, CANDIDATES, &mut removed) else {
            continue;
        };
        let safe = format!("{safe}#{:.DIGEST_CHARS$}", digest(&candidate.id));
        let (mut id, mut number) = (safe.clone(), 2);
        // A planner can send what an earlier receipt shows.
        while !taken.insert(id.clone()) {
            id = format!("{safe}.{number}");
            number += 1;
        }
        candidate.id = id;
    }
    choice.chosen = chosen.map(|at| choice.candidates[at].id.clone());
    choice.context.retain(|name, feature| {
        let feature = &*feature;
        let (is_number, word) = match feature {
            Feature::Number(_) => (true, ""),
            Feature::Word(word) => (false, word.as_str()),
        };
        let is_phone = |number: f64| is_phone_name(name) && number.abs() >= 1e6;
        let kind = match feature {
            Feature::Number(_) | Feature::Word(_) if is_secret(name, is_number) => RedactionKind::Secret,
            Feature::Number(number) if is_phone(*number) => RedactionKind::Phone,
            Feature::Number(_) | Feature::Word(_) => {
                let mut texts = [name.as_str(), word].into_iter();
                return texts.all(|text| redacted(text, CONTEXT, &mut removed).is_none());
            }
        };
        record(&mut removed, CONTEXT.to_owned(), kind, 1);
        false
    });
    removed
}

/// The text without personal data and secrets; `None` if it has none.
fn redacted(text: &str, field: &str, removed: &mut Vec<Redaction>) -> Option<String> {
    if !secret_spans(text).is_empty() {
        record(removed, field.to_owned(), RedactionKind::Secret, 1);
        return Some(SECRET_PLACEHOLDER.to_owned());
    }
    let found = redact_stored(text)?;
    for (kind, count) in [(RedactionKind::Email, found.emails), (RedactionKind::Phone, found.phones)] {
        if count > 0 {
            record(removed, field.to_owned(), kind, count);
        }
    }
    let fits = found.text.len() + SUFFIX_BYTES <= ID_BYTES_MAX;
    Some(if fits { found.text } else { EMAIL_PLACEHOLDER.to_owned() })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use effectd_contracts::Digest;
    use serde_json::{Value, json};

    use super::*;

    /// The redacted id of a candidate.
    fn marked(shown: &str, id: &str) -> String {
        format!("{shown}#{}", &Digest::of(id.as_bytes()).hex()[..8])
    }

    fn redacted(choice: Value) -> (Value, Value) {
        let mut choice: Choice = serde_json::from_value(choice).unwrap();
        let digest = |id: &str| Digest::of(id.as_bytes()).hex();
        let removed = redact_choice(&mut choice, digest);
        (serde_json::to_value(choice).unwrap(), serde_json::to_value(removed).unwrap())
    }

    #[test]
    fn candidates_stay_apart_and_the_chosen_one_is_known() {
        let token = format!("ghp_{}", "a1B2".repeat(9));
        let (choice, removed) = redacted(json!({
            "candidates": [
                { "id": "mail bob@example.org" }, { "id": "mail jane@example.org", "propensity": 0.5 },
                { "id": "call +49 170 1234567" }, { "id": token }, { "id": "files.write_text" },
                { "id": marked("mail [redacted:email]", "mail jane@example.org") },
            ],
            "chosen": "mail jane@example.org",
        }));
        let jane = format!("{}.2", marked("mail [redacted:email]", "mail jane@example.org"));
        let ids: Vec<_> = choice["candidates"].as_array().unwrap().iter().map(|one| &one["id"]).collect();
        assert_eq!(
            ids,
            [
                marked("mail [redacted:email]", "mail bob@example.org").as_str(),
                jane.as_str(),
                marked("call [redacted:phone]", "call +49 170 1234567").as_str(),
                marked("[redacted:secret]", &token).as_str(),
                "files.write_text",
                jane.trim_end_matches(".2"),
            ]
        );
        assert_eq!(choice["chosen"], jane);
        let entry =
            |kind: &str, count: u32| json!({ "field": "choice.candidates", "kind": kind, "count": count });
        assert_eq!(removed, json!([entry("email", 2), entry("phone", 1), entry("secret", 1)]));
    }

    #[test]
    fn features_with_personal_data_or_secrets_are_left_out() {
        let (choice, removed) = redacted(json!({
            "candidates": [{ "id": "a" }], "chosen": "a",
            "context": {
                "caller": "415-555-0100", "415-555-0199": 1, "phone": 491701234567u64, "api_token": "hunter2",
                "prompt_tokens": 812, "hour": 9, "language": "en-GB", "run": "2026-11-17",
            },
        }));
        let kept = json!({ "prompt_tokens": 812.0, "hour": 9.0, "language": "en-GB", "run": "2026-11-17" });
        assert_eq!(choice["context"], kept, "{removed}");
        let entry =
            |kind: &str, count: u32| json!({ "field": "choice.context", "kind": kind, "count": count });
        // In the order of the names.
        assert_eq!(removed, json!([entry("phone", 3), entry("secret", 1)]));
    }
}
