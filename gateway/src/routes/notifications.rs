//! Notifications that tools have sent. Only operators see them, since the text may be anything.

use axum::extract::State;
use effectd_actors::Services;
use effectd_actors::operator::notifications::{self, WithText};
use effectd_contracts::ReceiptId;

use crate::app::{App, AppState};
use crate::extract::{After, Json, Operator, Path, Query, Reply};
use crate::limits::OPERATOR_PAGE_MAX;
use crate::peer::Peer;
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
    Operator(by): Operator,
    Query(After { after }): Query<After>,
) -> Reply<NotificationList> {
    catch_up(&app).await?;
    app.store_query(move |services| {
        let (store, blobs) = (&*services.store, &services.files.blobs);
        let mut page = notifications::list(store, blobs, after.as_deref(), OPERATOR_PAGE_MAX)?;
        page.notifications.retain(|one| is_seen(services, &by, one));
        Ok(page.into())
    })
    .await
}

/// Whether this operator sees a notification: a token sees those of its organisation.
fn is_seen(services: &Services, by: &Peer, one: &WithText) -> bool {
    by.decider().reaches(services.policy().org_of(&one.notification.space_id))
}

/// One notification
#[utoipa::path(get, path = "/v1/notifications/{id}", tag = "notifications",
    responses((status = 200, description = "The notification and its delivery", body = NotificationView), Problems<403, 404>))]
pub(crate) async fn show(
    State(app): AppState,
    Operator(by): Operator,
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
    let found = found.await?.0.filter(|one| is_seen(app.services(), &by, one));
    Ok(Json(found.ok_or_else(unknown)?.into()))
}
