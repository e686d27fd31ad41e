//! The projections of outcomes, compared with the documented table.
#![allow(clippy::unwrap_used, clippy::wildcard_enum_match_arm)]

use effectd_contracts::Outcome;
use serde_json::{Value, json};

/// outcome | receipt | plan | invocation | brief | who refused | HTTP | step | run
const TABLE: &str = "
executed          | ok          | succeeded | completed | executed | -       | 200 | succeeded | succeeded
cached_hit        | ok          | succeeded | completed | executed | -       | 200 | succeeded | succeeded
dry_run           | skipped     | succeeded | completed | executed | -       | 200 | succeeded | succeeded
paused            | skipped     | succeeded | completed | executed | -       | 200 | succeeded | succeeded
not_started       | skipped     | rejected  | denied    | denied   | policy  | 200 | skipped   | running
awaiting_approval | -           | queued    | pending   | pending  | -       | 202 | waiting   | running
approved          | -           | -         | approved  | pending  | -       | 200 | waiting   | running
executing         | -           | -         | executing | pending  | -       | 200 | waiting   | running
denied_policy     | error       | rejected  | denied    | denied   | policy  | 403 | failed    | failed
quarantined       | quarantined | rejected  | denied    | denied   | policy  | 403 | failed    | failed
denied_human      | error       | rejected  | denied    | denied   | human   | 200 | failed    | failed
expired           | error       | rejected  | expired   | expired  | expired | 410 | failed    | failed
invalid           | error       | rejected  | -         | -        | -       | 400 | failed    | failed
not_found         | error       | rejected  | -         | -        | -       | 404 | failed    | failed
throttled         | -           | rejected  | -         | -        | -       | 429 | retried   | running
reverted          | error       | reverted  | failed    | failed   | -       | 502 | failed    | failed
failed            | error       | failed    | failed    | failed   | -       | 502 | failed    | failed
timed_out         | error       | failed    | failed    | failed   | -       | 502 | failed    | timed_out
breaker_open      | error       | failed    | failed    | failed   | -       | 502 | failed    | failed
indeterminate     | error       | failed    | failed    | failed   | -       | 502 | failed    | failed
cancelled         | skipped     | rejected  | denied    | denied   | human   | 409 | cancelled | cancelled
";

fn word<T: serde::Serialize>(value: T) -> String {
    match serde_json::to_value(value).unwrap() {
        Value::Null => "-".to_owned(),
        Value::String(text) => text,
        other => other.to_string(),
    }
}

#[test]
fn every_outcome_projects_as_the_table_says() {
    let rows: Vec<Vec<String>> = TABLE
        .lines()
        .filter(|line| !line.is_empty())
        .map(|line| line.split('|').map(|cell| cell.trim().to_owned()).collect())
        .collect();
    let projected: Vec<Vec<String>> = Outcome::ALL
        .iter()
        .map(|outcome| {
            let p = outcome.project();
            let (brief, reason) = p.brief.map_or((None, None), |(brief, reason)| (Some(brief), reason));
            vec![
                word(outcome),
                word(p.receipt),
                word(p.plan),
                word(p.invocation),
                word(brief),
                word(reason),
                p.http.to_string(),
                word(p.step),
                word(p.run),
            ]
        })
        .collect();
    assert_eq!(projected, rows);
}

#[test]
fn only_what_was_done_counts_as_success() {
    for outcome in Outcome::ALL {
        assert_eq!(outcome.is_success(), outcome == Outcome::Executed);
    }
}

#[test]
fn an_unknown_word_is_a_clear_error() {
    let error = serde_json::from_value::<Outcome>(json!("sort_of_done")).unwrap_err().to_string();
    assert!(error.contains("unknown variant `sort_of_done`") && error.contains("`executed`"), "{error}");
}
