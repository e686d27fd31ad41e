//! Actions: their receipts, by the filter language of the command line, and one action whole: its timeline, its gates, what it changed, and
//! what this daemon found when it verified the receipt.

use std::sync::Arc;

use askama::Template;
use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Redirect};
use axum::routing::{get, post};
use effectd_contracts::batch::{ItemResult, Marker, is_batch};
use effectd_contracts::proof::check_proof;
use effectd_contracts::toolcall::undo_at_service;
use effectd_contracts::{
    ActionId, AmendmentEntry, Effects, EgressRecord, Gate, GateResult, InclusionProof, Outcome, Receipt,
    Timestamp, UNDO_TOOL,
};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::api::Api;
use super::page::{Form, Page, Query, Shell, filters, page};
use crate::app::{App, AppState};
use crate::client::percent_encoded;
use crate::extract::Path;
use crate::problem::{Kind, Problem};
use crate::text::shown_text;
use crate::views::actions::ActionView;
use crate::views::batches::BatchView;
use crate::views::policy::Explanation;
use crate::views::receipt_text::{self, Ending, duration, words};
use crate::views::receipts::ReceiptList;

/// Rows of one page.
const ROWS: usize = 50;
/// The pages of the store that are looked through for one of ours: a filter may select few receipts.
const PAGES_MAX: usize = 20;
/// The units of a timeline's width.
const WIDTH: f64 = 1_000.0;
/// The narrowest bar that is seen.
const BAR_MIN: f64 = 4.0;
/// Inputs that are not public are in a receipt as digests with this prefix.
const DIGEST: &str = "hmac_sha256_";
/// Values are cut to this many columns.
const VALUE_COLUMNS: usize = 2_000;
/// How long the page waits for an undo to end.
const UNDO_WAIT_MS: u64 = 10_000;

/// Filters that people ask for every day.
const VIEWS: [(&str, &str); 6] = [
    ("All", ""),
    ("Last hour", "since:1h"),
    ("Not done", "-status:ok"),
    ("Denied", "outcome:denied_policy,denied_human,expired"),
    ("Undone", "tool:files.undo"),
    ("By operators", "tool:effectd.*"),
];

/// What the script offers while somebody types a filter, beside the tools.
const WORDS: &str = "tool: status:ok status:error status:skipped status:quarantined outcome:executed outcome:denied_policy outcome:denied_human outcome:failed outcome:timed_out outcome:expired outcome:cached_hit outcome:dry_run \
    outcome:indeterminate code: subject: space: principal: session: org: action: receipt: since:1h since:24h since:7d until:";

pub(super) fn routes() -> Router<Arc<App>> {
    Router::new()
        .route("/console/actions", get(list))
        .route("/console/actions/{id}", get(show))
        .route("/console/actions/{id}/proof", get(proof))
        .route("/console/actions/{id}/undo", post(undo))
}

/// How an ending looks.
pub(super) const fn class(ending: Ending) -> &'static str {
    match ending {
        Ending::Good => "ok",
        Ending::Waiting => "waiting",
        Ending::Bad => "bad",
    }
}

/// How long ago this was, in its largest unit.
fn ago(at: Timestamp, now: Timestamp) -> String {
    let seconds = now.duration_since(at).as_secs().max(0);
    match seconds {
        0..60 => format!("{seconds} s ago"),
        60..3_600 => format!("{} min ago", seconds / 60),
        3_600..86_400 => format!("{} h ago", seconds / 3_600),
        _ => format!("{} d ago", seconds / 86_400),
    }
}

/// The address of the actions that a filter selects.
pub(super) fn filtered(filter: &str) -> String {
    format!("/console/actions?q={}", percent_encoded(filter))
}

/// An action in a list.
pub(super) struct Row {
    pub(super) receipt: Receipt,
    pub(super) ago: String,
}

impl Row {
    pub(super) fn of(receipt: Receipt, now: Timestamp) -> Self {
        Self { ago: ago(receipt.timing.ended_at, now), receipt }
    }

    pub(super) fn class(&self) -> &'static str {
        class(Ending::of(self.receipt.outcome))
    }

    pub(super) fn words(&self) -> &'static str {
        words(self.receipt.outcome)
    }

    fn about(&self) -> String {
        about(&self.receipt)
    }

    fn took(&self) -> String {
        duration(self.receipt.timing.total_ms.less(self.receipt.held()).as_f64())
    }
}

/// The first public parameter: mostly the path.
pub(super) fn about(receipt: &Receipt) -> String {
    let mut public =
        receipt.inputs.iter().filter(|(name, _)| !name.starts_with(DIGEST) && *name != "space_id");
    public.next().map(|(_, value)| value_text(value)).unwrap_or_default()
}

fn value_text(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

#[derive(Template)]
#[template(path = "actions.html")]
struct ActionsPage {
    shell: Shell,
    q: String,
    /// Filters that are one click away: the name, the address, and whether it is this page.
    views: Vec<(&'static str, String, bool)>,
    /// What completes a filter.
    words: Vec<String>,
    rows: Vec<Row>,
    /// Why the filter is none.
    fault: Option<String>,
    is_first: bool,
    /// Where there are older ones.
    older: Option<String>,
}

impl ActionsPage {
    fn newest(&self) -> String {
        filtered(&self.q)
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct ListQuery {
    q: String,
    after: Option<u64>,
}

async fn list(State(app): AppState, api: Api, Query(ListQuery { q, after }): Query<ListQuery>) -> Page {
    let now = app.services().clock.now();
    let mut at = after;
    let (mut rows, mut fault) = (Vec::new(), None);
    for _ in 0..PAGES_MAX {
        let mut path =
            format!("/v1/receipts?order=newest&limit={}&q={}", ROWS - rows.len(), percent_encoded(&q));
        if let Some(at) = at {
            path.push_str(&format!("&after={at}"));
        }
        let found: ReceiptList = match api.get(&path).await {
            Ok(found) => found,
            Err(problem) if problem.code == Kind::QueryInvalid.code() => {
                (fault, at) = (Some(problem.detail), None);
                break;
            }
            Err(problem) => return Err(problem.into()),
        };
        rows.extend(found.receipts.into_iter().map(|receipt| Row::of(receipt, now)));
        at = found.next;
        if at.is_none() || rows.len() >= ROWS {
            break;
        }
    }
    let views = VIEWS.map(|(name, filter)| (name, filtered(filter), filter == q));
    let tools: Vec<Value> = api.get("/v1/tools").await?;
    let tools = tools.iter().filter_map(|tool| Some(format!("tool:{}", tool["tool_id"].as_str()?)));
    let status = if fault.is_some() { StatusCode::BAD_REQUEST } else { StatusCode::OK };
    let shown = ActionsPage {
        shell: Shell::new("Actions", "actions", &api),
        views: views.into(),
        words: WORDS.split(' ').map(str::to_owned).chain(tools).collect(),
        rows,
        fault,
        is_first: after.is_none(),
        older: at.map(|at| format!("{}&after={at}", filtered(&q))),
        q,
    };
    Ok(page(status, &shown))
}

/// One phase as a bar, in units of the whole width.
struct Bar {
    class: &'static str,
    name: String,
    from: f64,
    width: f64,
    took: String,
}

fn bars(receipt: &Receipt) -> Vec<Bar> {
    let phases = receipt_text::phases(receipt);
    let total = phases.last().map_or(1.0, |last| last.to);
    let bar = |phase: receipt_text::Phase| {
        let width = ((phase.to - phase.from) / total * WIDTH).max(BAR_MIN);
        let class = match phase.name.split(' ').next() {
            Some("attempt") if phase.name.contains('(') => "bad",
            Some("attempt") => "run",
            Some("awaiting" | "queued" | "paused") => "wait",
            _ => "work",
        };
        Bar {
            class,
            from: (phase.from / total * WIDTH).min(WIDTH - width),
            width,
            took: duration(phase.to - phase.from),
            name: phase.name,
        }
    };
    phases.into_iter().map(bar).collect()
}

/// What this daemon found when it verified a receipt.
struct Verified {
    proof: InclusionProof,
    key: String,
    findings: Vec<String>,
}

impl From<InclusionProof> for Verified {
    fn from(proof: InclusionProof) -> Self {
        let findings = check_proof(&proof, None).into_iter().map(|finding| finding.what).collect();
        let key = proof.entry.pointer("/signature/key_id").and_then(Value::as_str).unwrap_or_default();
        Self { key: key.to_owned(), findings, proof }
    }
}

#[derive(Template)]
#[template(path = "action.html")]
struct ActionPage {
    shell: Shell,
    receipt: Receipt,
    class: &'static str,
    words: &'static str,
    ago: String,
    bars: Vec<Bar>,
    total: String,
    gates: Vec<(&'static str, &'static str, &'static str)>,
    explanation: Result<Explanation, String>,
    changes: Vec<(String, String)>,
    /// Why there is no list of changes.
    unlisted: &'static str,
    /// Whether it can be undone, and this person acts for its subject.
    is_undoable: bool,
    /// The action of an undo from this page: sent twice, it is done once.
    undo_id: ActionId,
    inputs: Vec<(String, String)>,
    outputs: Vec<(String, String)>,
    /// What has become of the items of a batch.
    items: Vec<ItemResult>,
    redacted: String,
    approved: String,
    tier: String,
    verified: Option<Verified>,
    amendments: Vec<AmendmentEntry>,
}

impl ActionPage {
    fn marker(&self, marker: &Marker) -> &'static str {
        match marker {
            Marker::Committed => "ok",
            Marker::RolledBack | Marker::NotStarted => "quiet",
            Marker::RollbackFailed => "bad",
        }
    }

    fn sent(&self, record: &EgressRecord) -> String {
        shown_text(&receipt_text::sent(record))
    }

    fn megabytes(&self, bytes: &u64) -> String {
        format!("{:.1} MB", *bytes as f64 / 1e6)
    }
}

/// The receipt of this id, or that of the action of this id.
async fn find(api: &Api, id: &str) -> Result<Receipt, Problem> {
    let id = percent_encoded(id);
    let found: Result<Receipt, Problem> = api.get(&format!("/v1/receipts/{id}")).await;
    let Err(unknown) = found else { return found };
    let action: Result<ActionView, Problem> = api.get(&format!("/v1/actions/{id}?timeout_ms=0")).await;
    action.ok().and_then(|action| action.receipt).map(|receipt| *receipt).ok_or(unknown)
}

async fn show(State(app): AppState, api: Api, Path(id): Path<String>) -> Page {
    let receipt = find(&api, &id).await?;
    let path = format!("/v1/receipts/{}", percent_encoded(receipt.receipt_id.as_str()));
    let amendments = api.get(&format!("{path}/amendments")).await?;
    let explanation: Result<Explanation, Problem> = api.get(&format!("{path}/explanation")).await;
    let proof: Result<InclusionProof, Problem> = api.get(&format!("{path}/proof")).await;
    let verified = match proof {
        Ok(proof) => Some(proof.into()),
        // Retention may have dropped it from the log.
        Err(problem) if problem.status == 404 => None,
        Err(problem) => return Err(problem.into()),
    };
    let (changes, unlisted, is_undoable) = match &receipt.effects {
        Effects::None => (Vec::new(), "Nothing: it changes nothing, or never began.", false),
        Effects::Unobserved => {
            let is_done = receipt.outcome == Outcome::Executed;
            let may_undo = app.services().policy().speaks_for(&api.peer.principal, &receipt.subject_id);
            (Vec::new(), "Not observed.", is_done && may_undo && undo_at_service(&receipt.tool_id).is_some())
        }
        Effects::Possible => (Vec::new(), "Unknown: it failed, but may have had its effect.", false),
        Effects::Observed(observed) => {
            let lines = observed.changes.iter();
            let lines = lines.map(|change| (change.path.clone(), receipt_text::change(change))).collect();
            let more = if observed.incomplete { "Perhaps there is more that cannot be listed." } else { "" };
            let nothing = if observed.changes.is_empty() { "Nothing." } else { more };
            let may_undo = app.services().policy().speaks_for(&api.peer.principal, &receipt.subject_id);
            (lines, nothing, may_undo && observed.undoable && !observed.changes.is_empty())
        }
    };
    let items = if is_batch(&receipt.tool_id) {
        let path = format!("/v1/batches/{}", percent_encoded(receipt.action_id.as_str()));
        let batch: Result<BatchView, Problem> = api.get(&path).await;
        batch.ok().and_then(|batch| batch.result).map(|result| result.items).unwrap_or_default()
    } else {
        Vec::new()
    };
    let shown = ActionPage {
        shell: Shell::new(receipt.tool_id.to_string(), "actions", &api),
        class: class(Ending::of(receipt.outcome)),
        words: words(receipt.outcome),
        ago: ago(receipt.timing.ended_at, app.services().clock.now()),
        bars: bars(&receipt),
        total: duration(receipt.timing.total_ms.as_f64()),
        gates: Gate::ALL.map(|gate| gate_of(gate, receipt.policy.get(gate))).into(),
        explanation: explanation
            .map(|told| Explanation { text: shown_text(&told.text), ..told })
            .map_err(|problem| problem.detail),
        changes,
        unlisted,
        is_undoable,
        undo_id: ActionId::fresh(),
        inputs: fields(&receipt.inputs),
        outputs: if items.is_empty() { fields(&receipt.outputs) } else { Vec::new() },
        items,
        redacted: receipt_text::redacted(&receipt.redactions),
        approved: receipt_text::approved(&receipt),
        tier: receipt.decision.as_ref().map(|decision| format!("{:?}", decision.tier)).unwrap_or_default(),
        verified,
        amendments,
        receipt,
    };
    Ok(page(StatusCode::OK, &shown))
}

fn gate_of(gate: Gate, result: GateResult) -> (&'static str, &'static str, &'static str) {
    let class = match result {
        GateResult::Ok => "ok",
        GateResult::Applied | GateResult::Quarantine => "waiting",
        GateResult::Deny => "bad",
        GateResult::NotApplicable => "quiet",
    };
    (gate.as_str(), result.as_str(), class)
}

/// Each value, and of digests only that they are some.
fn fields(fields: &Map<String, Value>) -> Vec<(String, String)> {
    let one = |(name, value): (&String, &Value)| match name.strip_prefix(DIGEST) {
        Some(name) => (name.to_owned(), "not public: the receipt has a keyed digest of it".to_owned()),
        None => (name.clone(), crate::text::shown(&value_text(value), VALUE_COLUMNS)),
    };
    fields.iter().filter(|(_, value)| **value != json!([])).map(one).collect()
}

/// The proof as a file, for somebody without this store.
async fn proof(api: Api, Path(id): Path<String>) -> Page {
    let proof: InclusionProof = api.get(&format!("/v1/receipts/{}/proof", percent_encoded(&id))).await?;
    let text =
        serde_json::to_string(&proof).map_err(|error| Problem::of(Kind::Internal, error.to_string()))?;
    let headers = [
        (header::CONTENT_TYPE, "application/json"),
        (header::CONTENT_DISPOSITION, "attachment; filename=\"receipt-proof.json\""),
    ];
    Ok((headers, text).into_response())
}

/// Undoes an action by an action of its own: the person asks for it, and every gate judges it.
async fn undo(api: Api, Path(id): Path<String>, form: Form) -> Page {
    let receipt = find(&api, &id).await?;
    let request = json!({
        "action_id": form.get("action_id"), "subject_id": receipt.subject_id, "space_id": receipt.space_id,
        "tool_id": undo_at_service(&receipt.tool_id).as_deref().unwrap_or(UNDO_TOOL), "params": { "receipt_id": receipt.receipt_id, "space_id": receipt.space_id },
    });
    let asked = api.post(&format!("/v1/actions?wait={UNDO_WAIT_MS}"), &request).await;
    let (receipt, approval) = match asked {
        Ok(ActionView { receipt, approval, .. }) => (receipt, approval),
        Err(Problem { receipt: Some(receipt), .. }) => (Some(receipt), None),
        Err(problem) => return Err(problem.into()),
    };
    let to = match (receipt, approval) {
        (Some(receipt), _) => format!("/console/actions/{}", percent_encoded(receipt.receipt_id.as_str())),
        (None, Some(held)) => format!("/console/approvals/{}", percent_encoded(&held.approval_id)),
        // It has not ended yet: its receipt will be the newest.
        (None, None) => filtered("tool:files.undo"),
    };
    Ok(Redirect::to(&to).into_response())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn receipt() -> Receipt {
        serde_json::from_str(include_str!("../../../contracts/tests/golden/receipt.json")).unwrap()
    }

    #[test]
    fn bars_stay_within_their_picture() {
        let found = bars(&receipt());
        assert_eq!(found.len(), 4);
        for bar in &found {
            assert!(bar.from >= 0.0 && bar.width >= BAR_MIN && bar.from + bar.width <= WIDTH + 0.001);
        }
        assert_eq!(found[2].class, "run");
        let mut failed = receipt();
        failed.attempts[0].code = Some(effectd_contracts::Code::TimedOut);
        assert_eq!(bars(&failed)[2].class, "bad");
    }

    #[test]
    fn an_age_has_one_unit() {
        let now = Timestamp::from_second(1_800_000_000).unwrap();
        let then = |seconds: i64| ago(Timestamp::from_second(1_800_000_000 - seconds).unwrap(), now);
        assert_eq!(
            [then(-5), then(59), then(60), then(7_300)],
            ["0 s ago", "59 s ago", "1 min ago", "2 h ago"]
        );
        assert_eq!(then(200_000), "2 d ago");
    }

    #[test]
    fn every_word_of_the_completion_is_a_filter() {
        let now = Timestamp::from_second(1_800_000_000).unwrap();
        let views = VIEWS.iter().map(|(_, filter)| (*filter).to_owned());
        let words = WORDS.split(' ').map(|word| match word.strip_suffix(':') {
            Some("until") => "until:1h".to_owned(),
            Some(name) => format!("{name}:x"),
            None => word.to_owned(),
        });
        for filter in views.chain(words) {
            effectd_contracts::Filter::parse(&filter, now).unwrap();
        }
    }
}
