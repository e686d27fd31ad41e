//! Operators' operations: previewed, or performed and recorded. The older routes, which do one operation each, use them, too.

use std::sync::Arc;

use axum::extract::{FromRequestParts, State};
use axum::http::request::Parts;
use effectd_actors::Services;
use effectd_actors::approvals::decide::reason_fault;
use effectd_actors::operator::operations::{Terms, recorded};
use effectd_actors::operator::service;
use effectd_bus::StoreError;
use effectd_contracts::connector::CONNECTOR_SOURCE;
use effectd_contracts::{Operation, Principal, filter};
use serde::Deserialize;
use serde_json::{Map, Value};

use super::dead_letters;
use crate::app::{App, AppState};
use crate::extract::{Json, Operator, Path, Payload, Query, Reader, Reply};
use crate::host::Host;
use crate::peer::Peer;
use crate::problem::{Kind, Problem, Problems};
use crate::views::dead_letters::{self as letter_views, LetterQuery};
use crate::views::operations::OperationView;

/// Whether anything is done.
#[derive(Debug, Default, Deserialize, utoipa::IntoParams)]
#[serde(default, deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct Preview {
    /// Change nothing, and answer what would change.
    pub(super) preview: bool,
}

/// Why something is done.
#[derive(Debug, Default, Deserialize, utoipa::IntoParams)]
#[serde(default, deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct Why {
    /// The operator's reason, for the receipt.
    pub(super) reason: Option<String>,
}

/// Whether something is changed, and why.
#[derive(Debug, Default, Deserialize, utoipa::IntoParams)]
#[serde(default, deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct ChangeQuery {
    /// Change nothing, and answer what would change.
    pub(super) preview: bool,
    /// The operator's reason, for the receipt.
    pub(super) reason: Option<String>,
}

/// Whether anything is done, why, and for how long.
#[derive(Debug, Default, Deserialize, utoipa::IntoParams)]
#[serde(default, deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct OperationQuery {
    /// Change nothing, and answer what would change.
    pub(super) preview: bool,
    /// The operator's reason, for the receipt.
    pub(super) reason: Option<String>,
    /// How long it lasts (`30m`); only for a pause, a disabled tool, a tripped breaker and a mode.
    pub(super) lasts: Option<String>,
}

impl OperationQuery {
    /// The terms of the operation, which begins now.
    pub(super) fn terms(self, app: &App, by: &Peer) -> Result<Terms, Problem> {
        let now = app.services().clock.now();
        let until = self.lasts.as_deref().map(|lasts| filter::end_of(lasts, now)).transpose();
        let until = until.map_err(|error| Problem::of(Kind::QueryInvalid, error.to_string()))?;
        let org = by.claims().map(|claims| claims.org.clone());
        Ok(Terms { reason: checked_reason(self.reason)?, until, org })
    }
}

/// The reason of a request, if it is fit for a receipt. A preview refuses what the change would refuse.
pub(super) fn checked_reason(reason: Option<String>) -> Result<Option<String>, Problem> {
    match reason.as_deref().and_then(reason_fault) {
        Some(fault) => Err(Problem::of(Kind::QueryInvalid, fault)),
        None => Ok(reason),
    }
}

/// Perform an operation on the daemon itself, or preview it
///
/// On tools, effects, breakers, dead letters, consumer groups and artifacts. The answer comes when the operation and its receipt,
/// which names the operator, are durable. An operation that changes nothing leaves no receipt.
#[utoipa::path(post, path = "/v1/operations", tag = "operations",
    params(OperationQuery),
    request_body(content = ref("#/components/schemas/Operation"), content_type = "application/json"),
    responses((status = 200, description = "What changed, or would", body = OperationView), Problems<400, 403, 404, 409>))]
pub(crate) async fn perform(
    State(app): AppState,
    by: Operator,
    Query(query): Query<OperationQuery>,
    body: Payload,
) -> Reply<OperationView> {
    let (operation, _share): (Operation, _) = app.json_body(body, Kind::QueryInvalid).await?;
    check_door(&app, &by.0, &operation).await?;
    if matches!(
        operation,
        Operation::SetCaps { .. } | Operation::ResetCaps { .. } | Operation::OverlayTool { .. }
    ) {
        by.check_administers(&app)?;
    }
    let preview = query.preview;
    let terms = query.terms(&app, &by.0)?;
    if preview {
        let would = move |services: &Services| {
            service::preview(services, &operation, &terms).map(OperationView::from)
        };
        return app.store_query(would).await;
    }
    let done = perform_on(&app, &by.0, operation, terms).await?;
    // Who operates need not act for the subject of a session: its token is for root and the daemon's user.
    Ok(Json(OperationView { token: done.token.filter(|_| by.0.operator), ..done }))
}

/// Refuses operations that have a route of their own because of their answers or, by a token, stay with the users of this machine, have a
/// route that keeps the token to its organisation, are on a topic that the peer may not read, or are on dead letters of others.
pub(super) async fn check_door(app: &Arc<App>, by: &Peer, operation: &Operation) -> Result<(), Problem> {
    if matches!(operation, Operation::CreateToken { .. } | Operation::RotateToken { .. }) {
        return Err(Problem::of(Kind::QueryInvalid, "use /v1/tokens for this"));
    }
    // The others that are local are refused for all: they have routes of their own.
    let is_local = matches!(
        operation,
        Operation::RotateDeviceKey {}
            | Operation::Retain {}
            | Operation::RevokeToken { .. }
            | Operation::MapSlackUser { .. }
            | Operation::AddPlugin { .. }
            | Operation::RemovePlugin { .. }
    );
    if is_local && by.claims().is_some() {
        let why = "no token may do this, whatever the roles of its account; use the daemon's socket";
        return Err(Problem::of(Kind::TokenForbidden, why));
    }
    let is_of_org = matches!(
        operation,
        Operation::CreateSession { .. }
            | Operation::EndSession { .. }
            | Operation::DeleteSession { .. }
            | Operation::CreateConnection { .. }
            | Operation::ReplaceConnection { .. }
            | Operation::EnableConnection { .. }
            | Operation::DisableConnection { .. }
            | Operation::DeleteConnection { .. }
            | Operation::HarvestConnector { .. }
            | Operation::ReviewConnector { .. }
            | Operation::CreateWebhook { .. }
            | Operation::EnableWebhook { .. }
            | Operation::DisableWebhook { .. }
            | Operation::DeleteWebhook { .. }
            | Operation::SaveAutomation { .. }
            | Operation::SetAutomation { .. }
            | Operation::DeleteAutomation { .. }
            | Operation::SetSecret { .. }
            | Operation::DeleteSecret { .. }
    );
    let is_of_connector = matches!(operation, Operation::OverlayTool { tool_id, .. } if tool_id.source().starts_with(CONNECTOR_SOURCE));
    if (is_of_org || is_of_connector) && by.claims().is_some() {
        let why = "with a token, use /v1/sessions, /v1/connections, /v1/connectors, /v1/webhooks, /v1/secrets and /api/v1/automations for this";
        return Err(Problem::of(Kind::QueryInvalid, why));
    }
    // As its own route does.
    if let Operation::SeekGroup { topic, .. } = operation {
        Reader::of(app, by.clone())?.check_topic(topic)?;
    }
    let mut letters = Vec::new();
    if let Operation::RequeueLetters { letters: named } | Operation::DropLetters { letters: named } =
        operation
    {
        letters.clone_from(named);
    } else if let Operation::SettleLetter { letter, .. } = operation {
        letters.push(*letter);
    }
    if by.claims().is_some() && !letters.is_empty() {
        let query = dead_letters::of(by, LetterQuery::default());
        app.store_query(move |services| letter_views::check(services, &query, &letters)).await?;
    }
    Ok(())
}

/// Performs an operation that the route has permitted, or previews it.
pub(super) async fn change(
    app: &Arc<App>,
    by: &Peer,
    operation: Operation,
    ChangeQuery { preview, reason }: ChangeQuery,
) -> Reply<OperationView> {
    let terms = Terms { reason: checked_reason(reason)?, ..Terms::default() };
    if preview {
        let would = move |services: &Services| {
            service::preview(services, &operation, &terms).map(OperationView::from)
        };
        return app.store_query(would).await;
    }
    perform_on(app, by, operation, terms).await.map(Json)
}

/// [`change`] that creates the thing of this id.
pub(super) async fn create(
    app: &Arc<App>,
    by: &Peer,
    (operation, id): (Operation, String),
    query: ChangeQuery,
) -> Reply<OperationView> {
    let id = (!query.preview).then_some(id);
    let Json(view) = change(app, by, operation, query).await?;
    Ok(Json(OperationView { id, ..view }))
}

/// A request to change the thing that its path names.
pub(crate) struct ChangeOf {
    pub(super) app: Arc<App>,
    pub(super) peer: Peer,
    pub(super) id: String,
    pub(super) query: ChangeQuery,
}

impl FromRequestParts<Arc<App>> for ChangeOf {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, app: &Arc<App>) -> Result<Self, Problem> {
        let peer = Peer::from_request_parts(parts, app).await?;
        let Path(id) = Path::from_request_parts(parts, app).await?;
        let Query(query) = Query::from_request_parts(parts, app).await?;
        Ok(Self { app: app.clone(), peer, id, query })
    }
}

impl ChangeOf {
    pub(super) async fn by(self, operation: Operation) -> Reply<OperationView> {
        change(&self.app, &self.peer, operation, self.query).await
    }
}

pub(super) async fn perform_to_end(
    app: &App,
    by: &Operator,
    operation: Operation,
) -> Result<OperationView, Problem> {
    perform_on(app, &by.0, operation, Terms::default()).await
}

async fn perform_on(
    app: &App,
    by: &Peer,
    operation: Operation,
    terms: Terms,
) -> Result<OperationView, Problem> {
    tracing::info!(principal = %by.principal, operation = operation.tool(), "an operator starts an operation");
    let perform = |services, by| service::perform(services, operation, terms, by);
    to_end(app, by, perform).await.map(OperationView::from)
}

/// Lets the host perform an operation, and records it. A refused operation, or one that changes nothing, leaves no receipt.
pub(super) async fn by_host<T: Send + 'static>(
    app: &App,
    by: &Operator,
    (operation, reason): (Operation, Option<String>),
    ask: impl FnOnce(&dyn Host) -> Result<(T, Option<Map<String, Value>>), Problem> + Send + 'static,
) -> Result<(T, Option<String>), Problem> {
    tracing::info!(principal = %by.0.principal, operation = operation.tool(), "an operator starts an operation");
    let host = app.host.clone();
    let (done, receipt_id) = to_end(app, &by.0, |services, by| async move {
        let work = async {
            let asked = tokio::task::spawn_blocking(move || ask(&*host)).await;
            match asked.map_err(|error| StoreError::unavailable_by("the work was cut short", error))? {
                Ok((done, details)) => Ok((Ok(done), details)),
                // The host refused before it changed anything.
                Err(problem) if problem.status < 500 => Ok((Err(problem), None)),
                Err(problem) => Err(StoreError::unavailable(problem.detail)),
            }
        };
        recorded(&services, &operation, (&by, reason), work).await
    })
    .await?;
    Ok((done?, receipt_id.map(|id| id.to_string())))
}

/// Runs work in a task of its own, so that it completes even if the client disconnects.
pub(super) async fn to_end<T: Send + 'static, F>(
    app: &App,
    by: &Peer,
    work: impl FnOnce(Arc<Services>, Principal) -> F,
) -> Result<T, Problem>
where
    F: Future<Output = Result<T, StoreError>> + Send + 'static,
{
    // Root and the daemon's user do not queue behind those whom they stop.
    let place = if by.operator { None } else { Some(app.blocking_place().await?) };
    let work = work(app.services().clone(), by.principal.clone());
    let work = async move {
        let _place = place;
        work.await
    };
    let done = tokio::spawn(work).await;
    let done = done.map_err(|error| Problem::of(Kind::Internal, error.to_string()))?;
    done.map_err(|error| Problem::for_operator(&error))
}
