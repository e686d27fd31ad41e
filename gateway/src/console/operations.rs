//! Operations: whether all is well at a glance, dead letters by cause, tools, the policy, and who has access. Every change is shown before it
//! is made, and asks for a reason.

mod access;
mod change;
mod connectors;

use std::collections::HashMap;
use std::sync::Arc;

use askama::Template;
use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::routing::get;
use effectd_actors::PrincipalRole;
use effectd_actors::metrics::{HOLDS_OPEN, IN_FLIGHT, STAGE_BUSY, STAGE_QUEUE};
use effectd_bus::stats::{DISK_FREE_BYTES, DISK_SIZE_BYTES, QUARANTINED};
use effectd_contracts::text::counted;
use effectd_contracts::{Code, Receipt, Timestamp};
use prometheus::proto::MetricFamily;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::actions::{Row, filtered};
use super::api::Api;
use super::page::{Page, Query, Shell, filters, page};
use crate::app::{App, AppState};
use crate::client::percent_encoded;
use crate::extract::Path;
use crate::limits::LIST_MAX;
use crate::metrics::BACKLOG;
use crate::problem::Problem;
use crate::views::artifacts::QuarantineList;
use crate::views::budgets::BudgetList;
use crate::views::dead_letters::{CauseView, LetterList, LetterView};
use crate::views::policy::PolicyView;
use crate::views::receipt_text::{Ending, duration};
use crate::views::receipts::ReceiptList;
use crate::views::{BreakerView, Health};

/// Columns of the picture of the last hour.
const COLUMNS: usize = 60;
/// The height of a full column.
const HEIGHT: f64 = 40.0;
/// Operators' changes that the overview lists.
const RECENT: usize = 6;
/// Subjects whose budgets the overview lists: those with the least left.
const BUDGETS: usize = 8;
/// Pages of dead letters that are looked through for one of a cause.
const PAGES_MAX: usize = 20;
/// Letters that a step after the first requeues.
const STEPS: [usize; 2] = [10, 100];

pub(super) fn routes() -> Router<Arc<App>> {
    Router::new()
        .route("/console/operations", get(overview))
        .route("/console/operations/letters/{cause}", get(letters))
        .route("/console/operations/tools", get(tools))
        .merge(access::routes())
        .merge(change::routes())
        .merge(connectors::routes())
}

fn operates(app: &App, api: &Api) -> bool {
    app.may_operate(&api.peer, PrincipalRole::Operate)
}

/// An answer that not everybody may have.
async fn permitted<T: DeserializeOwned>(api: &Api, path: &str) -> Result<Option<T>, Problem> {
    match api.get(path).await {
        Ok(answer) => Ok(Some(answer)),
        Err(problem) if problem.status == 403 => Ok(None),
        Err(problem) => Err(problem),
    }
}

/// The gauges of the daemon.
struct Figures(Vec<MetricFamily>);

impl Figures {
    /// All series of this name, with their only label.
    fn series(&self, name: &str) -> impl Iterator<Item = (&str, u64)> {
        let family = self.0.iter().find(|family| family.name() == name);
        family.into_iter().flat_map(MetricFamily::get_metric).map(|metric| {
            let label = metric.get_label().first().map_or("", |label| label.value());
            (label, metric.get_gauge().get_value() as u64)
        })
    }

    fn sum(&self, name: &str) -> u64 {
        self.series(name).map(|(_, value)| value).sum()
    }

    /// What waits in each stage, and its busy workers.
    fn stages(&self) -> Vec<(String, u64, u64)> {
        let busy: HashMap<_, _> = self.series(STAGE_BUSY).collect();
        let stage = |(stage, waiting): (&str, u64)| {
            (stage.to_owned(), waiting, busy.get(stage).copied().unwrap_or_default())
        };
        self.series(STAGE_QUEUE).map(stage).collect()
    }
}

/// What ended in the last hour, or the last part of it that one page of receipts has.
struct Hour {
    ended: usize,
    /// Whether more ended before these.
    is_cut: bool,
    /// Of these, not done.
    bad: usize,
    per_minute: String,
    /// The percentiles of the time that an action took, without its wait for a person.
    p50: String,
    p95: String,
    p99: String,
    /// One for each minute that it covers.
    columns: Vec<Column>,
    most: usize,
}

struct Column {
    x: usize,
    /// The heights of its bars, of which the bad one is below.
    bad: f64,
    good: f64,
    says: String,
}

impl Hour {
    fn of(list: &ReceiptList, now: Timestamp) -> Self {
        let seconds = |receipt: &Receipt| now.duration_since(receipt.timing.ended_at).as_secs_f64().max(0.0);
        let (mut counts, mut bad_all) = ([(0_usize, 0_usize); COLUMNS], 0);
        let mut took = Vec::with_capacity(list.receipts.len());
        for receipt in &list.receipts {
            let column = ((seconds(receipt) / 60.0) as usize).min(COLUMNS - 1);
            let is_bad = Ending::of(receipt.outcome) == Ending::Bad;
            let (good, bad) = &mut counts[COLUMNS - 1 - column];
            *(if is_bad { bad } else { good }) += 1;
            bad_all += usize::from(is_bad);
            took.push(receipt.timing.total_ms.less(receipt.held()).as_f64());
        }
        took.sort_by(f64::total_cmp);
        let at = |part: f64| {
            let place = ((took.len() as f64 * part).ceil() as usize).saturating_sub(1);
            took.get(place).map_or_else(|| "–".to_owned(), |ms| duration(*ms))
        };
        let is_cut = list.next.is_some();
        let hour = COLUMNS as f64 * 60.0;
        let oldest = list.receipts.iter().map(seconds).fold(1.0, f64::max).min(hour);
        let covered = if is_cut { oldest } else { hour };
        let minutes = ((covered / 60.0) as usize + 1).min(COLUMNS);
        let most = counts.iter().map(|(good, bad)| good + bad).max().unwrap_or(0).max(1);
        let column = |(x, (good, bad)): (usize, (usize, usize))| {
            let height = |count: usize| {
                if count == 0 { 0.0 } else { (count as f64 / most as f64 * HEIGHT).max(1.5) }
            };
            let ago = COLUMNS - 1 - x;
            Column {
                x,
                bad: height(bad),
                good: height(good),
                says: format!("{ago} min ago: {} ended, {bad} not done", good + bad),
            }
        };
        Self {
            ended: took.len(),
            bad: bad_all,
            is_cut,
            per_minute: format!("{:.1}", took.len() as f64 / covered * 60.0),
            p50: at(0.5),
            p95: at(0.95),
            p99: at(0.99),
            columns: counts.into_iter().enumerate().skip(COLUMNS - minutes).map(column).collect(),
            most,
        }
    }

    /// Columns before those that it covers.
    fn unknown(&self) -> usize {
        COLUMNS - self.columns.len()
    }

    /// `60 minutes`
    fn span(&self) -> String {
        counted(self.columns.len() as u64, "minute")
    }
}

/// What only those may know who may look.
struct Looked {
    in_flight: u64,
    backlog: u64,
    held: u64,
    quarantined: u64,
    /// Free percent of the state's disk.
    disk: Option<u64>,
    stages: Vec<(String, u64, u64)>,
    breakers: Vec<BreakerView>,
    causes: Vec<CauseView>,
    letters: u64,
    artifacts: QuarantineList,
    budgets: BudgetList,
    policy: PolicyView,
}

impl Looked {
    async fn read(app: &App, api: &Api) -> Result<Option<Self>, Problem> {
        let (causes, artifacts) =
            (permitted(api, "/v1/dlq/causes"), permitted(api, "/v1/artifacts/quarantined"));
        let (breakers, policy) = (permitted(api, "/v1/breakers"), permitted(api, "/v1/policy"));
        let budgets = permitted(api, "/v1/budgets");
        let (causes, artifacts, breakers, policy, budgets) =
            tokio::try_join!(causes, artifacts, breakers, policy, budgets)?;
        let (Some(causes), Some(artifacts), Some(breakers), Some(policy), Some(budgets)) =
            (causes, artifacts, breakers, policy, budgets)
        else {
            return Ok(None);
        };
        let causes: Vec<CauseView> = causes;
        let figures = Figures(app.host.metrics().gather());
        let (free, size) = (figures.sum(DISK_FREE_BYTES), figures.sum(DISK_SIZE_BYTES));
        Ok(Some(Self {
            in_flight: figures.sum(IN_FLIGHT),
            backlog: figures.sum(BACKLOG),
            held: figures.sum(HOLDS_OPEN),
            quarantined: figures.sum(QUARANTINED),
            disk: (100 * free).checked_div(size),
            stages: figures.stages(),
            letters: causes.iter().filter(|cause| !cause.is_quarantined()).map(|cause| cause.count).sum(),
            breakers,
            causes,
            artifacts,
            budgets,
            policy,
        }))
    }
}

#[derive(Template)]
#[template(path = "operations.html")]
struct OverviewPage {
    shell: Shell,
    part: &'static str,
    operates: bool,
    health: Health,
    /// Whether nobody needs to do anything, and what needs it.
    alarms: Vec<String>,
    hour: Hour,
    looked: Option<Looked>,
    /// Changes by operators.
    recent: Vec<Row>,
}

async fn overview(State(app): AppState, api: Api) -> Page {
    let now = app.services().clock.now();
    let health: Health = api.get("/healthz").await?;
    let ready: Result<Health, Problem> = api.get("/readyz").await;
    let hour = format!("/v1/receipts?order=newest&limit={LIST_MAX}&q=since:1h%20-tool:effectd.*");
    let recent = format!("/v1/receipts?order=newest&limit={RECENT}&q=tool:effectd.*");
    let (hour, recent): (ReceiptList, ReceiptList) = tokio::try_join!(api.get(&hour), api.get(&recent))?;
    let looked = Looked::read(&app, &api).await?;
    let mut alarms = Vec::new();
    if let Err(problem) = ready {
        alarms.push(format!("It takes no new work: {}", problem.detail));
    }
    alarms.extend(health.store_damage.as_ref().map(|damage| format!("The store is damaged: {damage}")));
    alarms.extend(health.failed_jobs().into_iter().map(|failed| format!("A scheduled job failed: {failed}")));
    if let Some(looked) = &looked {
        alarms.extend(
            looked.policy.faults.iter().map(|fault| format!("The policy's files are not in force: {fault}")),
        );
        let open = looked.breakers.iter().filter(|breaker| breaker.state == "open");
        alarms.extend(open.map(|breaker| format!("The breaker of {} is open", breaker.key)));
        alarms.extend(looked.policy.unusable.iter().map(|space| format!("A space cannot be used: {space}")));
        let waiting = [
            (looked.letters, "dead letter", "requeued or dropped"),
            (looked.quarantined, "quarantined action", "reviewed"),
        ];
        let waiting = waiting.into_iter().filter(|(count, ..)| *count > 0);
        alarms.extend(waiting.map(|(count, what, done)| format!("To be {done}: {}", counted(count, what))));
        let full = looked.disk.filter(|free| *free < 10);
        alarms.extend(full.map(|free| format!("{free} percent of the disk are free")));
    } else if health.policy_files_faulty {
        alarms.push("The policy's files have a fault, so an earlier policy decides.".to_owned());
    }
    let shown = OverviewPage {
        shell: Shell::new("Operations", "operations", &api),
        part: "overview",
        operates: operates(&app, &api),
        alarms,
        hour: Hour::of(&hour, now),
        looked,
        recent: recent.receipts.into_iter().map(|receipt| Row::of(receipt, now)).collect(),
        health,
    };
    Ok(page(StatusCode::OK, &shown))
}

#[derive(Template)]
#[template(path = "letters.html")]
struct LettersPage {
    shell: Shell,
    operates: bool,
    cause: String,
    is_quarantined: bool,
    is_unknown: bool,
    letters: Vec<LetterView>,
    /// The address of what follows.
    more: Option<String>,
    /// Links that requeue some letters, with what they say.
    steps: Vec<(String, String)>,
    query: LettersQuery,
}

/// Where the page begins, and the change that was made from it.
#[derive(Deserialize)]
struct LettersQuery {
    from: Option<u64>,
    receipt: Option<String>,
    /// The action of the only letter that was requeued.
    action: Option<String>,
}

impl LettersQuery {
    /// Where it is seen how that action ended.
    fn outcome(&self) -> Option<String> {
        self.action.as_ref().map(|action| filtered(&format!("action:\"{}\"", action.replace('"', ""))))
    }
}

async fn letters(
    State(app): AppState,
    api: Api,
    Path(cause): Path<String>,
    Query(query): Query<LettersQuery>,
) -> Page {
    let path = format!("/v1/dlq?cause={}&from=", percent_encoded(&cause));
    let mut list: LetterList = api.get(&format!("{path}{}", query.from.unwrap_or_default())).await?;
    // A page may have none although there are more.
    for _ in 1..PAGES_MAX {
        let Some(from) = list.next.filter(|_| list.letters.is_empty()) else { break };
        list = api.get(&format!("{path}{from}")).await?;
    }
    let is_quarantined = list.letters.iter().any(LetterView::is_quarantined);
    let is_unknown = list.letters.iter().any(|letter| letter.code == Code::OutcomeUnknown.as_str());
    let counts = [1].into_iter().chain(STEPS).filter(|count| {
        let is_first = *count == 1;
        is_first || list.letters.len() > count / 10
    });
    let steps = counts.map(|count| {
        let first: Vec<String> =
            list.letters.iter().take(count).map(|letter| letter.letter.to_string()).collect();
        let says = match first.len() {
            1 => "Requeue one, to see whether it works now".to_owned(),
            some => format!("Requeue {some}"),
        };
        let change =
            format!("/console/operations/change?do=requeue_letters&cause={}", percent_encoded(&cause));
        let action =
            list.letters.first().filter(|_| count == 1).and_then(|letter| letter.action_id.as_deref());
        let action = action.map(|action| format!("&action={}", percent_encoded(action))).unwrap_or_default();
        (format!("{change}&letters={}{action}", first.join(",")), says)
    });
    let steps =
        if list.letters.is_empty() || is_quarantined || is_unknown { Vec::new() } else { steps.collect() };
    let shown = LettersPage {
        shell: Shell::new("Dead letters", "operations", &api),
        operates: operates(&app, &api),
        is_quarantined,
        is_unknown,
        more: list
            .next
            .map(|from| format!("/console/operations/letters/{}?from={from}", percent_encoded(&cause))),
        steps,
        query,
        cause,
        letters: list.letters,
    };
    Ok(page(StatusCode::OK, &shown))
}

/// A tool, as the page shows it.
#[derive(Deserialize)]
struct ToolRow {
    tool_id: String,
    description: String,
    tier: String,
    source: String,
    side_effects: Vec<String>,
    sandbox_profile: String,
    caps_required: Vec<String>,
    /// By operators.
    caps_set: Option<Vec<String>>,
    disabled: bool,
    quarantined: Option<Value>,
    drifted: bool,
}

impl ToolRow {
    fn needs(&self) -> String {
        self.caps_set.as_ref().unwrap_or(&self.caps_required).join(", ")
    }
}

#[derive(Template)]
#[template(path = "tools.html")]
struct ToolsPage {
    shell: Shell,
    part: &'static str,
    operates: bool,
    tools: Vec<ToolRow>,
}

async fn tools(State(app): AppState, api: Api) -> Page {
    let shown = ToolsPage {
        shell: Shell::new("Tools", "operations", &api),
        part: "tools",
        operates: operates(&app, &api),
        tools: api.get("/v1/tools").await?,
    };
    Ok(page(StatusCode::OK, &shown))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn an_hour_counts_each_receipt_in_its_minute() {
        let one: Receipt =
            serde_json::from_str(include_str!("../../../contracts/tests/golden/receipt.json")).unwrap();
        let now = one.timing.ended_at;
        let mut receipts = vec![one; 4];
        receipts[1].timing.ended_at = Timestamp::from_second(now.as_second() - 90).unwrap();
        receipts[2].outcome = effectd_contracts::Outcome::Failed;
        receipts[3].timing.ended_at = Timestamp::from_second(now.as_second() - 9_000).unwrap();
        let list = ReceiptList { receipts, next: None, follow: None, amendments: Vec::new() };
        let hour = Hour::of(&list, now);
        assert_eq!((hour.ended, hour.bad, hour.most, hour.span()), (4, 1, 2, "60 minutes".to_owned()));
        assert_eq!((hour.is_cut, hour.per_minute.as_str()), (false, "0.1"));
        let says: Vec<&str> = hour.columns.iter().map(|column| column.says.as_str()).collect();
        assert_eq!(says[59], "0 min ago: 2 ended, 1 not done");
        assert_eq!(says[58], "1 min ago: 1 ended, 0 not done");
        assert_eq!(says[0], "59 min ago: 1 ended, 0 not done");
        assert!(hour.columns.iter().all(|column| column.good + column.bad <= HEIGHT));
        let none = ReceiptList { receipts: Vec::new(), next: None, follow: None, amendments: Vec::new() };
        assert_eq!(Hour::of(&none, now).p99, "–");
        // A page that is full covers as much time as its oldest receipt says.
        let mut fast = vec![list.receipts[0].clone(); 500];
        fast[0].timing.ended_at = now.checked_sub(std::time::Duration::from_secs(3)).unwrap();
        let fast = ReceiptList { receipts: fast, next: Some(1), follow: None, amendments: Vec::new() };
        let hour = Hour::of(&fast, now);
        assert_eq!((hour.per_minute.as_str(), hour.span().as_str()), ("10000.0", "1 minute"));
        assert!(hour.is_cut && hour.columns[0].says.starts_with("0 min ago: 500 ended"));
    }
}
