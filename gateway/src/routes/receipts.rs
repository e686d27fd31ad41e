//! Receipts: one by its id, pages of them by a filter, new ones as they come, and amendments.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::response::Response;
use effectd_actors::PrincipalRole;
use effectd_actors::execution::{history, log};
use effectd_bus::{Cursor, Order, ReceiptQuery};
use effectd_contracts::{
    AmendmentEntry, Filter, OrgId, Receipt, ReceiptId, SpaceId, Status, SubjectId, Timestamp, ToolId, Topic,
};
use serde::Deserialize;
use utoipa::ToSchema;

use super::traced;
use crate::app::{App, AppState};
use crate::extract::{Json, Operator, Path, Payload, Query, Reply, integer};
use crate::headers::AnswerTrace;
use crate::host::Stage;
use crate::limits::{LIST_DEFAULT, LIST_MAX};
use crate::peer::Peer;
use crate::problem::{Kind, Problem, Problems};
use crate::views::receipts::{Amending, ReceiptList};

/// One receipt
#[utoipa::path(get, path = "/v1/receipts/{id}", tag = "receipts",
    responses(
        (status = 200, description = "The receipt", body = ref("#/components/schemas/Receipt"), content_type = "application/json"),
        Problems<404>,
    )
)]
pub(crate) async fn show(
    State(app): AppState,
    peer: Peer,
    Path(id): Path<String>,
) -> Result<Response, Problem> {
    let receipt = find(&app, &peer, id)?;
    Ok(traced(AnswerTrace::of_receipt(&receipt), Json(receipt)))
}

/// Whether this peer may read a receipt: an operator, a learner, or who asked for the action. A token learns of its own organisation only.
fn reads(app: &App, peer: &Peer, receipt: &Receipt) -> bool {
    let (policy, org) = (app.services().policy(), receipt.org.as_ref().map(OrgId::as_str));
    peer.may_see(receipt) || policy.may_operate_in(&peer.decider(), PrincipalRole::Learner, org)
}

/// The receipt of this id, if this peer may read it.
pub(crate) fn find(app: &App, peer: &Peer, id: String) -> Result<Receipt, Problem> {
    let unknown = || Problem::of(Kind::ReceiptUnknown, "no receipt with this id is visible to you");
    let id = ReceiptId::new(id).map_err(|_| unknown())?;
    let receipt = app.store().receipt(&id)?.ok_or_else(unknown)?.parse()?;
    reads(app, peer, &receipt).then_some(receipt).ok_or_else(unknown)
}

/// The amendments to a receipt
#[utoipa::path(get, path = "/v1/receipts/{id}/amendments", tag = "receipts",
    responses((status = 200, description = "In the order of time; they add up, and the reward of the last one counts", body = Vec<serde_json::Value>), Problems<404>))]
pub(crate) async fn amendments(
    State(app): AppState,
    peer: Peer,
    Path(id): Path<String>,
) -> Reply<Vec<AmendmentEntry>> {
    let receipt = find(&app, &peer, id)?;
    Ok(Json(log::amendments(app.store(), &receipt.receipt_id)?))
}

/// Amend a receipt with what became known later
///
/// The receipt does not change; the amendment is an entry of its own in the log, and an event on the topic `AMENDMENTS`.
/// Amendments add up field by field.
#[utoipa::path(post, path = "/v1/receipts/{id}/amendments", tag = "receipts",
    request_body(content = Amending, content_type = "application/json"),
    responses(
        (status = 200, description = "It is on disk, signed", body = ref("#/components/schemas/AmendmentEntry"), content_type = "application/json"),
        Problems<400, 403, 404>,
    )
)]
pub(crate) async fn amend(
    State(app): AppState,
    Operator(peer): Operator,
    Path(id): Path<String>,
    body: Payload,
) -> Reply<AmendmentEntry> {
    let receipt = find(&app, &peer, id)?;
    let (amending, _share): (Amending, _) = app.json_body(body, Kind::ChangeInvalid).await?;
    let services = app.services();
    let build = |earlier: &[AmendmentEntry]| {
        let entry = amending.entry(&receipt, earlier, peer.principal.clone(), services.clock.now());
        entry.map_err(|why| Problem::of(Kind::ChangeInvalid, why))
    };
    Ok(Json(log::amend(&*services.store, &services.identity, &receipt, build).await?))
}

#[derive(Debug, Default, Deserialize)]
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
    #[serde(default, deserialize_with = "integer")]
    after: Option<u64>,
    #[serde(default, deserialize_with = "integer")]
    limit: Option<usize>,
    #[serde(default, deserialize_with = "integer")]
    wait_ms: Option<u64>,
    #[serde(default)]
    amendments: bool,
}

#[derive(Debug, Clone, Copy, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum OrderWord {
    Oldest,
    Newest,
}

impl ListQuery {
    pub(super) fn new(q: Option<String>, order: Option<OrderWord>, after: Option<u64>) -> Self {
        Self { q, order, after, ..Self::default() }
    }

    pub(super) fn filter(&self, now: Timestamp) -> Result<Filter, Problem> {
        let filter = Filter::parse(self.q.as_deref().unwrap_or_default(), now);
        filter.map_err(|error| Problem::of(Kind::QueryInvalid, error.to_string()))
    }

    pub(super) fn to_query(&self, filter: &Filter) -> ReceiptQuery {
        ReceiptQuery {
            tool_id: self.tool.clone().or_else(|| filter.tool()),
            subject_id: self.subject.clone().or_else(|| filter.subject()),
            space_id: self.space.clone().or_else(|| filter.space()),
            status: self.status.or_else(|| filter.status()),
            tool_group: filter.tool_group().map(str::to_owned),
            principal: filter.principal(),
            session: filter.session(),
            org: filter.org(),
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

/// Receipts, page by page, and new ones as they come
///
/// All given conditions must hold. Operators and learners see all receipts, with a token those of its organisation; others see their own.
/// For the next page, pass `next` as `after`.
/// To follow new receipts, pass `follow` as `after` with `order=oldest` and `wait_ms`: the answer comes when there is one, or
/// empty when the time is over.
#[utoipa::path(get, path = "/v1/receipts", tag = "receipts",
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
        ("limit" = Option<usize>, Query, description = "At most this many"),
        ("wait_ms" = Option<u64>, Query, description = "If there are none, wait this long for one"),
        ("amendments" = Option<bool>, Query, description = "`true`: with the amendments of these receipts"),
    ),
    responses(
        (status = 200, description = "A page of them; it may be shorter than the limit although there are more", body = ReceiptList),
        Problems<400, 503>,
    )
)]
pub(crate) async fn list(
    State(app): AppState,
    peer: Peer,
    Query(asked): Query<ListQuery>,
) -> Reply<ReceiptList> {
    let newest = matches!(asked.order, Some(OrderWord::Newest));
    if newest && asked.wait_ms.is_some() {
        let why = "wait_ms needs order=oldest";
        return Err(Problem::of(Kind::QueryInvalid, why));
    }
    let wait = asked.wait_ms.map(|asked| app.wait_time(Some(asked)));
    let _waiting = wait.map(|_| app.wait_slot(&peer)).transpose()?;
    let filter = asked.filter(app.services().clock.now())?;
    let query = (asked.to_query(&filter), asked.amendments);
    let list = read(&app, &peer, &filter, query, wait).await?;
    Ok(Json(list))
}

/// Reads a page; while it is empty, waits for new receipts.
async fn read(
    app: &Arc<App>,
    peer: &Peer,
    filter: &Filter,
    (mut query, amendments): (ReceiptQuery, bool),
    wait: Option<Duration>,
) -> Result<ReceiptList, Problem> {
    let mut end = std::pin::pin!(wait.map(tokio::time::sleep));
    let mut stage = app.stage.clone();
    loop {
        // Watch before reading the page, so that no later receipt is missed.
        let mut news = app.store().watch(&Topic::ActionExecuted.into())?;
        let list = page(app, peer, filter, (&query, amendments)).await?;
        let is_empty = list.receipts.is_empty() && list.next.is_none();
        let Some(end) = end.as_mut().as_pin_mut().filter(|_| is_empty) else {
            return Ok(list);
        };
        tokio::select! {
            biased;
            _ = stage.wait_for(|stage| *stage != Stage::Open) => return Ok(list),
            changed = news.changed() => changed?,
            () = end => return Ok(list),
        }
        query.cursor = list.follow.map(Cursor);
    }
}

async fn page(
    app: &Arc<App>,
    peer: &Peer,
    filter: &Filter,
    (query, amendments): (&ReceiptQuery, bool),
) -> Result<ReceiptList, Problem> {
    let (peer, filter, query) = (peer.clone(), filter.clone(), query.clone());
    app.blocking(move |app| Ok(visible(app, &peer, filter, query, amendments)?.into())).await
}

/// A page of the receipts that this peer may read.
pub(super) fn visible(
    app: &App,
    peer: &Peer,
    filter: Filter,
    mut query: ReceiptQuery,
    amendments: bool,
) -> Result<history::Page, Problem> {
    let filter = history::resolved(app.store(), filter)?;
    query.action_ids = filter.actions();
    // What the filter says otherwise about the two matches none of these receipts.
    if app.may_operate(peer, PrincipalRole::Learner) {
        query.org = peer.claims().map(|claims| claims.org.clone()).or(query.org);
    } else {
        query.principal = Some(peer.principal.clone());
    }
    let sees = |receipt: &Receipt| reads(app, peer, receipt) && filter.matches(receipt);
    Ok(history::page(app.store(), &query, amendments, sees)?)
}
