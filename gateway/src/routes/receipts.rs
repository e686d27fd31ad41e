//! Receipts: one by its id, many by what they are about, and what comes next.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use effectd_actors::{Cursor, Order, ReceiptQuery, history, log};
use effectd_contracts::json as strict;
use effectd_contracts::{Filter, Receipt, ReceiptId, SpaceId, Status, SubjectId, Timestamp, ToolId, Topic};
use serde::Deserialize;

use super::{json, traced};
use crate::desk::{Desk, unavailable};
use crate::extract::{App, Path, Query};
use crate::headers::Handed;
use crate::limits::{CHANGE_BYTES_MAX, LIST_DEFAULT, LIST_MAX};
use crate::peer::Peer;
use crate::problem::{Kind, Problem};
use crate::server::Stage;
use crate::views::{Amending, ReceiptList};

/// One receipt
#[utoipa::path(
    get,
    path = "/v1/receipts/{id}",
    tag = "receipts",
    params(("id" = String, Path, description = "The receipt's id")),
    responses(
        (status = 200, description = "The receipt", body = ref("#/components/schemas/Receipt"), content_type = "application/json"),
        (status = 404, description = "No such receipt of yours", body = Problem, content_type = "application/problem+json"),
    )
)]
pub(crate) async fn show(State(desk): App, peer: Peer, Path(id): Path<String>) -> Result<Response, Problem> {
    let receipt = find(&desk, &peer, id)?;
    Ok(traced(
        Handed::of_receipt(&receipt),
        json(StatusCode::OK, &receipt),
    ))
}

/// The receipt of this id, if it is this peer's to see.
pub(crate) fn find(desk: &Desk, peer: &Peer, id: String) -> Result<Receipt, Problem> {
    let unknown = || Problem::of(Kind::ReceiptUnknown, "no receipt of this id was made for you");
    let id = ReceiptId::new(id).map_err(|_| unknown())?;
    let store = &desk.parts().store;
    let stored = store.receipt(&id).map_err(|error| unavailable(&error))?;
    let receipt = stored
        .ok_or_else(unknown)?
        .parse()
        .map_err(|error| unavailable(&error))?;
    if peer.may_see(&receipt) {
        Ok(receipt)
    } else {
        Err(unknown())
    }
}

/// What was known later about a receipt
#[utoipa::path(
    get,
    path = "/v1/receipts/{id}/amendments",
    tag = "receipts",
    params(("id" = String, Path, description = "The receipt's id")),
    responses(
        (status = 200, description = "In the order of time; the last one counts", body = Vec<serde_json::Value>),
        (status = 404, description = "No such receipt of yours", body = Problem, content_type = "application/problem+json"),
    )
)]
pub(crate) async fn amendments(
    State(desk): App,
    peer: Peer,
    Path(id): Path<String>,
) -> Result<Response, Problem> {
    let receipt = find(&desk, &peer, id)?;
    let found = log::amendments(&*desk.parts().store, &receipt.receipt_id);
    Ok(json(StatusCode::OK, &found.map_err(|error| unavailable(&error))?))
}

/// Say what is known later about a receipt
///
/// The receipt stays as it is; what is said here stands beside it in the log.
#[utoipa::path(
    post,
    path = "/v1/receipts/{id}/amendments",
    tag = "receipts",
    params(("id" = String, Path, description = "The receipt's id")),
    request_body(content = Amending, content_type = "application/json"),
    responses(
        (status = 200, description = "It is on disk, signed", body = ref("#/components/schemas/AmendmentEntry"), content_type = "application/json"),
        (status = 400, description = "It says nothing, or nothing that can be", body = Problem, content_type = "application/problem+json"),
        (status = 403, description = "For operators only", body = Problem, content_type = "application/problem+json"),
        (status = 404, description = "No such receipt", body = Problem, content_type = "application/problem+json"),
    )
)]
pub(crate) async fn amend(
    State(desk): App,
    peer: Peer,
    Path(id): Path<String>,
    body: Body,
) -> Result<Response, Problem> {
    if !peer.operator {
        let why = "what a receipt is worth is for root and the user that the daemon runs as to say";
        return Err(Problem::of(Kind::OperatorsOnly, why));
    }
    let receipt = find(&desk, &peer, id)?;
    let body = desk.budget.read(body, desk.settings().body_time_max).await?;
    let invalid = |why: String| Problem::of(Kind::ChangeInvalid, why);
    let told: Amending =
        strict::parse(&body.bytes, CHANGE_BYTES_MAX).map_err(|error| invalid(error.to_string()))?;
    let parts = desk.parts();
    let entry = told.entry(&receipt, peer.principal.clone(), parts.clock.now());
    let noted = log::amend(&*parts.store, &parts.identity, entry.map_err(invalid)?).await;
    Ok(json(StatusCode::OK, &noted.map_err(|error| unavailable(&error))?))
}

/// What may stand behind `/v1/receipts?`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ListQuery {
    q: Option<String>,
    tool: Option<ToolId>,
    subject: Option<SubjectId>,
    space: Option<SpaceId>,
    status: Option<Status>,
    since: Option<Timestamp>,
    until: Option<Timestamp>,
    order: Option<OrderWord>,
    after: Option<u64>,
    limit: Option<usize>,
    wait_ms: Option<u64>,
}

#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(rename_all = "snake_case")]
enum OrderWord {
    Oldest,
    Newest,
}

impl ListQuery {
    fn to_query(&self, filter: &Filter) -> ReceiptQuery {
        ReceiptQuery {
            tool_id: self.tool.clone().or_else(|| filter.tool()),
            subject_id: self.subject.clone().or_else(|| filter.subject()),
            space_id: self.space.clone().or_else(|| filter.space()),
            status: self.status.or_else(|| filter.status()),
            since: self.since.max(filter.since()),
            until: [self.until, filter.until()].into_iter().flatten().min(),
            order: match self.order {
                None | Some(OrderWord::Oldest) => Order::OldestFirst,
                Some(OrderWord::Newest) => Order::NewestFirst,
            },
            cursor: self.after.map(Cursor),
            limit: self.limit.unwrap_or(LIST_DEFAULT).clamp(1, LIST_MAX),
            ..ReceiptQuery::default()
        }
    }
}

/// Receipts, page by page, and those to come
///
/// Every condition that is given must hold. Operators see all receipts, others their own. To go on, pass `next` as `after`.
/// To follow what comes, pass `follow` as `after` with `order=oldest` and `wait_ms`: the answer comes when there is one, or
/// empty when the time is over.
#[utoipa::path(
    get,
    path = "/v1/receipts",
    tag = "receipts",
    params(
        ("q" = Option<String>, Query, description = "A filter: `tool:files.* status:error subject:agent://planner@* since:2h`"),
        ("tool" = Option<String>, Query, description = "Of this tool"),
        ("subject" = Option<String>, Query, description = "Of this subject"),
        ("space" = Option<String>, Query, description = "In this space"),
        ("status" = Option<String>, Query, description = "Of this status"),
        ("since" = Option<String>, Query, description = "Stored at this time (RFC 3339) or later"),
        ("until" = Option<String>, Query, description = "Stored before this time (RFC 3339)"),
        ("order" = Option<String>, Query, description = "`oldest` (the default) or `newest` first"),
        ("after" = Option<u64>, Query, description = "Where the page before ended"),
        ("limit" = Option<usize>, Query, description = "At most so many"),
        ("wait_ms" = Option<u64>, Query, description = "If there are none, wait so long for one"),
    ),
    responses(
        (status = 200, description = "Some of them; fewer than the limit is no sign that there are no more", body = ReceiptList),
        (status = 400, description = "The query makes no sense", body = Problem, content_type = "application/problem+json"),
        (status = 503, description = "Not now; Retry-After says when", body = Problem, content_type = "application/problem+json"),
    )
)]
pub(crate) async fn list(
    State(desk): App,
    peer: Peer,
    Query(asked): Query<ListQuery>,
) -> Result<Response, Problem> {
    let newest = matches!(asked.order, Some(OrderWord::Newest));
    if newest && asked.wait_ms.is_some() {
        let why = "what comes next comes in the order of time; wait_ms goes with order=oldest";
        return Err(Problem::of(Kind::QueryInvalid, why));
    }
    let wait = asked.wait_ms.map(|asked| desk.wait_time(Some(asked)));
    let now = desk.parts().clock.now();
    let filter = Filter::parse(asked.q.as_deref().unwrap_or_default(), now);
    let filter = filter.map_err(|error| Problem::of(Kind::QueryInvalid, error.to_string()))?;
    let list = look(&desk, &peer, &filter, asked.to_query(&filter), wait).await?;
    Ok(json(StatusCode::OK, &list))
}

async fn look(
    desk: &Arc<Desk>,
    peer: &Peer,
    filter: &Filter,
    mut query: ReceiptQuery,
    wait: Option<Duration>,
) -> Result<ReceiptList, Problem> {
    let end = wait.map(|wait| tokio::time::Instant::now() + wait);
    let store = desk.parts().store.clone();
    let mut stage = desk.stage.clone();
    loop {
        // Taken before the look: nothing that comes after it is missed.
        let mut news = store
            .watch(&Topic::ActionExecuted.into())
            .map_err(|error| unavailable(&error))?;
        let list = page(desk, peer, filter, &query).await?;
        let Some(end) = end.filter(|_| list.receipts.is_empty() && list.next.is_none()) else {
            return Ok(list);
        };
        tokio::select! {
            biased;
            _ = stage.wait_for(|stage| *stage != Stage::Open) => return Ok(list),
            changed = news.changed() => changed.map_err(|error| unavailable(&error))?,
            () = tokio::time::sleep_until(end) => return Ok(list),
        }
        query.cursor = list.follow.map(Cursor);
    }
}

/// One page. Reading and parsing hundreds of receipts would keep a worker from everybody else.
async fn page(
    desk: &Arc<Desk>,
    peer: &Peer,
    filter: &Filter,
    query: &ReceiptQuery,
) -> Result<ReceiptList, Problem> {
    let _turn = desk.turn().await?;
    let store = desk.parts().store.clone();
    let (peer, filter, query) = (peer.clone(), filter.clone(), query.clone());
    let read = tokio::task::spawn_blocking(move || {
        let filter = history::resolved(&*store, filter)?;
        let sees = |receipt: &Receipt| peer.may_see(receipt) && filter.matches(receipt);
        history::page(&*store, &query, sees).map(ReceiptList::from)
    });
    match read.await {
        Ok(list) => list.map_err(|error| unavailable(&error)),
        Err(error) => Err(Problem::of(Kind::Internal, error.to_string())),
    }
}
