//! What people were told, for operators: a notification may say anything.

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use effectd_actors::notifications;
use effectd_contracts::ReceiptId;
use serde::Deserialize;

use super::{json, operators};
use crate::desk::Desk;
use crate::extract::{App, Operator, Path, Query};
use crate::limits::UPKEEP_PAGE_MAX;
use crate::problem::{Kind, Problem};
use crate::views::notifications::{NotificationList, NotificationView};

/// What may stand behind `/v1/notifications?`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ListQuery {
    after: Option<String>,
}

/// What was sent until now is in the answer, whether or not anybody has begun to deliver it.
async fn caught_up(desk: &Desk) -> Result<(), Problem> {
    let parts = desk.parts();
    let caught_up =
        notifications::catch_up(&*parts.store, &*parts.clock, parts.settings.notifications_max).await;
    caught_up.map(drop).map_err(|error| operators::refused(&error))
}

/// What people were told
#[utoipa::path(
    get,
    path = "/v1/notifications",
    tag = "notifications",
    params(("after" = Option<String>, Query, description = "Go on after this receipt: the `next` of the page before")),
    responses(
        (status = 200, description = "A page of them, oldest first", body = NotificationList),
        (status = 403, description = "For operators only", body = Problem, content_type = "application/problem+json"),
    )
)]
pub(crate) async fn list(
    State(desk): App,
    _: Operator,
    Query(query): Query<ListQuery>,
) -> Result<Response, Problem> {
    caught_up(&desk).await?;
    operators::with_parts(&desk, move |parts| {
        let after = query.after.as_deref();
        let page = notifications::list(&*parts.store, &parts.blobs, after, UPKEEP_PAGE_MAX)?;
        Ok(NotificationList::from(page))
    })
    .await
}

/// One notification
#[utoipa::path(
    get,
    path = "/v1/notifications/{id}",
    tag = "notifications",
    params(("id" = String, Path, description = "The id of the receipt of the action that sent it")),
    responses(
        (status = 200, description = "What it says, and what became of it", body = NotificationView),
        (status = 403, description = "For operators only", body = Problem, content_type = "application/problem+json"),
        (status = 404, description = "That receipt sent none, or it is not remembered any more", body = Problem, content_type = "application/problem+json"),
    )
)]
pub(crate) async fn show(State(desk): App, _: Operator, Path(id): Path<String>) -> Result<Response, Problem> {
    let unknown = || {
        let why = "that receipt sent no notification, or none that is remembered; `effectd notifications` lists them";
        Problem::of(Kind::NotificationUnknown, why)
    };
    let id = ReceiptId::new(id).map_err(|_| unknown())?;
    caught_up(&desk).await?;
    let host = desk.host.clone();
    let found = operators::working(&desk, move || {
        let parts = host.parts();
        notifications::find(&*parts.store, &parts.blobs, &id).map_err(|error| operators::refused(&error))
    });
    let found = found.await?.ok_or_else(unknown)?;
    Ok(json(StatusCode::OK, &NotificationView::from(found)))
}
