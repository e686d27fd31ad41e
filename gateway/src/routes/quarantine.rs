//! Artifacts that operators take aside: listed, and not handed out.

use axum::body::Body;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use effectd_actors::quarantine;
use effectd_contracts::{Operation, json as strict};
use serde::Deserialize;

use super::{json, operations, operators};
use crate::extract::{App, Operator, Path, Query};
use crate::limits::{CHANGE_BYTES_MAX, UPKEEP_PAGE_MAX};
use crate::problem::{Kind, Problem};
use crate::views::artifacts::{QuarantineBody, QuarantineList, QuarantineView, ReleaseView};

/// What may stand behind `/v1/artifacts/quarantined?`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ListQuery {
    after: Option<String>,
}

/// Artifacts that are not handed out
#[utoipa::path(
    get,
    path = "/v1/artifacts/quarantined",
    tag = "artifacts",
    params(("after" = Option<String>, Query, description = "Go on after this id: the `next` of the page before")),
    responses(
        (status = 200, description = "A page of them, by id", body = QuarantineList),
        (status = 403, description = "For operators only", body = Problem, content_type = "application/problem+json"),
    )
)]
pub(crate) async fn list(
    State(desk): App,
    _: Operator,
    Query(query): Query<ListQuery>,
) -> Result<Response, Problem> {
    operators::with_parts(&desk, move |parts| {
        let page = quarantine::list(&*parts.store, query.after.as_deref(), UPKEEP_PAGE_MAX)?;
        Ok(QuarantineList::from(page))
    })
    .await
}

/// Take an artifact aside
///
/// It is not handed out any more, in whatever space it is kept, and an event says so.
#[utoipa::path(
    post,
    path = "/v1/artifacts/{id}/quarantine",
    tag = "artifacts",
    params(("id" = String, Path, description = "The artifact's id")),
    request_body(content = QuarantineBody, content_type = "application/json"),
    responses(
        (status = 200, description = "It is, and that is on disk", body = QuarantineView),
        (status = 400, description = "That is no artifact's id, or no reason", body = Problem, content_type = "application/problem+json"),
        (status = 403, description = "For operators only", body = Problem, content_type = "application/problem+json"),
    )
)]
pub(crate) async fn quarantine(
    State(desk): App,
    Operator(peer): Operator,
    Path(id): Path<String>,
    body: Body,
) -> Result<Response, Problem> {
    let body = desk.budget.read(body, desk.settings().body_time_max).await?;
    let told: QuarantineBody = if body.bytes.is_empty() {
        QuarantineBody::default()
    } else {
        strict::parse(&body.bytes, CHANGE_BYTES_MAX)
            .map_err(|error| Problem::of(Kind::ChangeInvalid, error.to_string()))?
    };
    let reason = told.reason.clone();
    let artifact_id = id.clone();
    operations::done(
        &desk,
        &peer,
        Operation::QuarantineArtifact { artifact_id, reason },
    )
    .await?;
    let aside = quarantine::one(&*desk.parts().store, &id);
    let aside = aside.map_err(|error| operators::refused(&error))?;
    let gone = || Problem::of(Kind::ArtifactUnknown, "somebody has released it since");
    Ok(json(
        StatusCode::OK,
        &QuarantineView::from(aside.ok_or_else(gone)?),
    ))
}

/// Hand an artifact out again
#[utoipa::path(
    post,
    path = "/v1/artifacts/{id}/release",
    tag = "artifacts",
    params(("id" = String, Path, description = "The artifact's id")),
    responses(
        (status = 200, description = "It is, and that is on disk", body = ReleaseView),
        (status = 400, description = "That is no artifact's id", body = Problem, content_type = "application/problem+json"),
        (status = 403, description = "For operators only", body = Problem, content_type = "application/problem+json"),
    )
)]
pub(crate) async fn release(
    State(desk): App,
    Operator(peer): Operator,
    Path(id): Path<String>,
) -> Result<Response, Problem> {
    let artifact_id = id.clone();
    let released = operations::done(&desk, &peer, Operation::ReleaseArtifact { artifact_id }).await?;
    let released = released.changed;
    Ok(json(
        StatusCode::OK,
        &ReleaseView {
            artifact_id: id,
            released,
        },
    ))
}
