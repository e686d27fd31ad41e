//! The projections of outcomes, compared with the documented table.
#![allow(clippy::unwrap_used, clippy::wildcard_enum_match_arm)]

use effectd_contracts::{Code, Failure, Outcome, Phase};
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

/// code | whether a retry may help | outcome | status of the receipt
const CODES: &str = "
malformed               | no  | invalid       | error
params_invalid          | no  | invalid       | error
unknown_tool            | no  | not_found     | error
session_unknown         | no  | not_found     | error
action_conflict         | no  | invalid       | error
policy_denied           | no  | denied_policy | error
safety_quarantined      | no  | quarantined   | quarantined
human_denied            | no  | denied_human  | error
approval_expired        | no  | expired       | error
network_not_whitelisted | no  | denied_policy | error
scope_denied            | no  | denied_policy | error
tool_disabled           | no  | denied_policy | error
tool_drifted            | no  | denied_policy | error
plugin_code_disabled    | no  | denied_policy | error
rate_limited            | yes | throttled     | -
pending_limit           | yes | throttled     | -
overloaded              | yes | throttled     | -
shutting_down           | yes | throttled     | -
breaker_open            | yes | breaker_open  | error
idempotency_conflict    | no  | invalid       | error
timed_out               | yes | timed_out     | error
cpu_limit               | no  | failed        | error
memory_limit            | no  | failed        | error
output_limit            | no  | failed        | error
process_limit           | no  | failed        | error
file_limit              | no  | failed        | error
path_denied             | no  | failed        | error
permission_denied       | no  | failed        | error
file_not_found          | no  | failed        | error
file_exists             | no  | failed        | error
not_a_file              | no  | failed        | error
not_a_folder            | no  | failed        | error
not_text                | no  | failed        | error
archive_invalid         | no  | failed        | error
state_changed           | no  | failed        | error
disk_full               | yes | failed        | error
undo_gone               | no  | failed        | error
network_denied          | no  | failed        | error
syscall_denied          | no  | failed        | error
sandbox_unavailable     | no  | failed        | error
sandbox_failed          | yes | failed        | error
tool_failed             | no  | failed        | error
tool_busy               | yes | failed        | error
interpreter_missing     | no  | failed        | error
connection_missing      | no  | failed        | error
secret_missing          | no  | failed        | error
egress_refused          | no  | denied_policy | error
egress_failed           | yes | failed        | error
service_refused         | no  | failed        | error
result_invalid          | no  | failed        | error
result_gone             | no  | failed        | error
effects_undeclared      | no  | failed        | error
verification_failed     | no  | failed        | error
rollback_failed         | no  | failed        | error
outcome_unknown         | no  | indeterminate | error
not_started             | no  | not_started   | skipped
batch_rolled_back       | no  | reverted      | error
batch_incomplete        | no  | failed        | error
cancelled               | no  | cancelled     | skipped
store_unavailable       | yes | failed        | error
internal                | yes | failed        | error
";

fn rows(table: &str) -> Vec<Vec<String>> {
    let lines = table.lines().filter(|line| !line.is_empty());
    lines.map(|line| line.split('|').map(|cell| cell.trim().to_owned()).collect()).collect()
}

fn word<T: serde::Serialize>(value: T) -> String {
    match serde_json::to_value(value).unwrap() {
        Value::Null => "-".to_owned(),
        Value::String(text) => text,
        other => other.to_string(),
    }
}

#[test]
fn every_outcome_projects_as_the_table_says() {
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
    assert_eq!(projected, rows(TABLE));
}

#[test]
fn every_code_has_the_retry_and_the_status_of_the_table() {
    let found = Code::ALL.iter().map(|code| {
        let failure = Failure::new(*code, Phase::Dispatch, "why");
        let (retry, outcome) = (if failure.retryable { "yes" } else { "no" }, code.outcome());
        vec![word(code), retry.to_owned(), word(outcome), word(outcome.project().receipt)]
    });
    assert_eq!(found.collect::<Vec<_>>(), rows(CODES));
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
