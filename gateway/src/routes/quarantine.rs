//! Quarantined artifacts, for operators: listed, but nobody can read them.

use axum::extract::State;
use effectd_actors::effects::quarantine;
use effectd_contracts::Operation;

use super::operations::perform_to_end;
use crate::app::AppState;
use crate::extract::{After, Json, Operator, Path, Payload, Query, Reply, Viewer};
use crate::limits::{CHANGE_BYTES_MAX, OPERATOR_PAGE_MAX};
use crate::problem::{Kind, Problem, Problems};
use crate::views::artifacts::{QuarantineBody, QuarantineList, QuarantineView, ReleaseView};

/// Quarantined artifacts
#[utoipa::path(get, path = "/v1/artifacts/quarantined", tag = "artifacts",
    params(After),
    responses((status = 200, description = "A page of them, by id", body = QuarantineList), Problems<403>))]
pub(crate) async fn list(
    State(app): AppState,
    _: Viewer,
    Query(After { after }): Query<After>,
) -> Reply<QuarantineList> {
    app.store_query(move |services| {
        let page = quarantine::list(&*services.store, after.as_deref(), OPERATOR_PAGE_MAX);
        page.map(QuarantineList::from)
    })
    .await
}

/// Quarantine an artifact
///
/// Nobody can read it any more, in any space, and an event says so.
#[utoipa::path(post, path = "/v1/artifacts/{id}/quarantine", tag = "artifacts",
    request_body(content = QuarantineBody, content_type = "application/json"),
    responses((status = 200, description = "It is quarantined, and that is durable", body = QuarantineView), Problems<400, 403>))]
pub(crate) async fn quarantine(
    State(app): AppState,
    by: Operator,
    Path(id): Path<String>,
    body: Payload,
) -> Reply<QuarantineView> {
    let body = app.optional_json_body(body, CHANGE_BYTES_MAX, Kind::ChangeInvalid);
    let (QuarantineBody { reason }, _share) = body.await?;
    let artifact_id = id.clone();
    perform_to_end(&app, &by, Operation::QuarantineArtifact { artifact_id, reason }).await?;
    let quarantined = quarantine::one(app.store(), &id);
    let quarantined = quarantined.map_err(|error| Problem::for_operator(&error))?;
    let gone = || Problem::of(Kind::ArtifactUnknown, "somebody has released it since");
    Ok(Json(quarantined.ok_or_else(gone)?.into()))
}

/// Release an artifact from quarantine
#[utoipa::path(post, path = "/v1/artifacts/{id}/release", tag = "artifacts",
    responses((status = 200, description = "It can be read again, and that is durable", body = ReleaseView), Problems<400, 403>))]
pub(crate) async fn release(
    State(app): AppState,
    by: Operator,
    Path(artifact_id): Path<String>,
) -> Reply<ReleaseView> {
    let operation = Operation::ReleaseArtifact { artifact_id: artifact_id.clone() };
    let released = perform_to_end(&app, &by, operation).await?.changed;
    Ok(Json(ReleaseView { artifact_id, released }))
}
