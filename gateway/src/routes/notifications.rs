//! Notifications that tools have sent. Only operators see them, since the text may be anything.

use axum::extract::State;
use effectd_actors::operator::notifications;
use effectd_contracts::ReceiptId;

use crate::app::{App, AppState};
use crate::extract::{After, Json, Operator, Path, Query, Reply};
use crate::limits::OPERATOR_PAGE_MAX;
use crate::problem::{Kind, Problem, Problems};
use crate::views::notifications::{NotificationList, NotificationView};

/// Adds the notifications that were sent so far, even if no delivery has begun.
async fn catch_up(app: &App) -> Result<(), Problem> {
    let services = app.services();
    let caught_up =
        notifications::catch_up(&*services.store, &*services.clock, services.settings.notifications_max)
            .await;
    caught_up.map(drop).map_err(|error| Problem::for_operator(&error))
}

/// Notifications that tools have sent
#[utoipa::path(get, path = "/v1/notifications", tag = "notifications",
    params(After),
    responses((status = 200, description = "A page of them, oldest first", body = NotificationList), Problems<403>))]
pub(crate) async fn list(
    State(app): AppState,
    _: Operator,
    Query(After { after }): Query<After>,
) -> Reply<NotificationList> {
    catch_up(&app).await?;
    app.store_query(move |services| {
        let page =
            notifications::list(&*services.store, &services.files.blobs, after.as_deref(), OPERATOR_PAGE_MAX);
        page.map(NotificationList::from)
    })
    .await
}

/// One notification
#[utoipa::path(get, path = "/v1/notifications/{id}", tag = "notifications",
    responses((status = 200, description = "The notification and its delivery", body = NotificationView), Problems<403, 404>))]
pub(crate) async fn show(
    State(app): AppState,
    _: Operator,
    Path(id): Path<String>,
) -> Reply<NotificationView> {
    let unknown = || {
        let why = "there is no stored notification for this receipt; `effectd notifications` lists them";
        Problem::of(Kind::NotificationUnknown, why)
    };
    let id = ReceiptId::new(id).map_err(|_| unknown())?;
    catch_up(&app).await?;
    let found =
        app.store_query(move |services| notifications::find(&*services.store, &services.files.blobs, &id));
    let Json(found) = found.await?;
    Ok(Json(found.ok_or_else(unknown)?.into()))
}
