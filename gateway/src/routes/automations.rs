//! Automations of organisations: members save them, each its own; admins and operators pause, archive and delete all.

use std::sync::Arc;

use axum::extract::State;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use effectd_actors::operator::automations::{self as saved, Saving};
use effectd_actors::services::automations;
use effectd_actors::{OrgRole, Services};
use effectd_automations::{Checked, Definition, Finding, Known, RunFacts, resolve};
use effectd_contracts::limits::REQUEST_BYTES_MAX;
use effectd_contracts::{Automation, AutomationId, AutomationStatus, Operation, SpaceId, json};
use serde::Deserialize;

use super::operations::{ChangeOf, ChangeQuery, checked_reason, to_end};
use crate::app::{App, AppState};
use crate::body::BodyBytes;
use crate::extract::{After, Json, Path, Payload, Query, Reply};
use crate::limits::LIST_DEFAULT;
use crate::peer::Peer;
use crate::problem::{Kind, Problem, Problems};
use crate::views::automations::{
    AutomationList, AutomationView, CheckedView, RenderBody, RenderView, RenderedView,
};
use crate::views::operations::OperationView;

/// The space of a preview that names none.
const PREVIEW_SPACE: &str = "shared:preview";

/// Where a new automation acts.
#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct SaveQuery {
    /// The space, which belongs to an organisation of the policy.
    space_id: String,
    /// Do not let it run yet.
    #[serde(default)]
    paused: bool,
    /// Change nothing, and answer what would change.
    #[serde(default)]
    preview: bool,
    /// Why, for the receipt.
    reason: Option<String>,
}

/// Automations
///
/// Operators see all, others those of organisations that they belong to. Oldest first.
#[utoipa::path(get, path = "/api/v1/automations", tag = "automations",
    params(After),
    responses((status = 200, description = "A page of them", body = AutomationList), Problems<503>))]
pub(crate) async fn list(
    State(app): AppState,
    peer: Peer,
    Query(After { after }): Query<After>,
) -> Reply<AutomationList> {
    let list = move |app: &App| {
        let sees = |known: &Automation| app.sees_org(&peer, known.org.as_str(), OrgRole::Member);
        let (found, next) = automations::list(app.store(), after.as_deref(), LIST_DEFAULT, sees)?;
        let automations = found.into_iter().map(|known| view(app, known)).collect();
        Ok(AutomationList { automations, next })
    };
    app.blocking(list).await.map(Json)
}

/// Save a new automation
///
/// A member of the space's organisation may. The body is the definition, which is kept byte for byte. The answer's `id` is the
/// automation's. It acts as who saved it.
#[utoipa::path(post, path = "/api/v1/automations", tag = "automations",
    params(SaveQuery),
    request_body(content = ref("#/components/schemas/Definition"), content_type = "application/json"),
    responses((status = 200, description = "It is saved, or would be", body = OperationView), Problems<400, 403, 404, 422>))]
pub(crate) async fn save(
    State(app): AppState,
    peer: Peer,
    Query(query): Query<SaveQuery>,
    body: Payload,
) -> Reply<OperationView> {
    let SaveQuery { space_id, paused, preview, reason } = query;
    let space_id =
        SpaceId::new(space_id).map_err(|error| Problem::of(Kind::QueryInvalid, error.to_string()))?;
    let org = app.services().policy().org_of(&space_id).unwrap_or_default().to_owned();
    app.check_org(&peer, &org, OrgRole::Member)?;
    let status = if paused { AutomationStatus::Paused } else { AutomationStatus::Active };
    let about = (AutomationId::fresh(), space_id, status);
    save_as(&app, &peer, about, ChangeQuery { preview, reason }, body).await
}

/// Save a new version of an automation
///
/// Only who saved the first one may, since the automation acts as this person. What runs already is not changed.
#[utoipa::path(put, path = "/api/v1/automations/{id}", tag = "automations",
    params(ChangeQuery),
    request_body(content = ref("#/components/schemas/Definition"), content_type = "application/json"),
    responses((status = 200, description = "It is saved, or would be", body = OperationView), Problems<400, 403, 404, 409, 422>))]
pub(crate) async fn replace(
    State(app): AppState,
    peer: Peer,
    Path(id): Path<String>,
    Query(query): Query<ChangeQuery>,
    body: Payload,
) -> Reply<OperationView> {
    let known = find(&app, &peer, &id)?;
    app.check_org(&peer, known.org.as_str(), OrgRole::Member)?;
    save_as(&app, &peer, (known.automation_id, known.space_id, known.status), query, body).await
}

async fn save_as(
    app: &Arc<App>,
    peer: &Peer,
    (automation_id, space_id, status): (AutomationId, SpaceId, AutomationStatus),
    ChangeQuery { preview, reason }: ChangeQuery,
    body: Payload,
) -> Reply<OperationView> {
    let BodyBytes { bytes, share: _share } = app.body(body).await?;
    let reason = checked_reason(reason)?;
    let new = Saving { automation_id, space_id, status, definition: bytes.into() };
    let (by, saving) = (peer.principal.clone(), new.clone());
    let would = move |app: &App| {
        let (_, warnings) = checked(&saving.definition, app)?;
        let replaces = automations::automation(app.store(), saving.automation_id.as_str())?;
        let (would, _) = saved::checked(app.services(), &saving, &by)?;
        let mut says: Vec<_> = saved::summary(&would, replaces.as_ref()).into_iter().collect();
        let changed = !says.is_empty();
        says.extend(warnings.iter().map(|one| format!("warning: {}: {}", one.pointer, one.message)));
        Ok(OperationView { changed, says, ..OperationView::default() })
    };
    let would = app.blocking(would).await?;
    if preview || !would.changed {
        return Ok(Json(would));
    }
    tracing::info!(principal = %peer.principal, operation = "effectd.save_automation", "an operator starts an operation");
    let done = to_end(app, peer, |services: Arc<Services>, by| async move {
        saved::save(&services, new, (&by, reason)).await
    });
    let (automation, receipt) = done.await?;
    let (id, receipt_id) = (Some(automation.automation_id.into()), receipt.map(|id| id.to_string()));
    Ok(Json(OperationView { changed: receipt_id.is_some(), id, receipt_id, ..would }))
}

/// A definition that can be saved, with what is doubtful about it.
fn checked(text: &[u8], app: &App) -> Result<(Definition, Vec<Finding>), Problem> {
    let Checked { definition, errors, warnings } =
        effectd_automations::check(text, &app.services().registry());
    match definition {
        Some(definition) if errors.is_empty() => Ok((definition, warnings)),
        Some(_) | None => Err(Problem::of(Kind::DefinitionInvalid, lines(&errors, ""))),
    }
}

/// Findings in one line, each with its pointer below `root`.
fn lines(findings: &[Finding], root: &str) -> String {
    let lines: Vec<_> =
        findings.iter().map(|one| format!("{root}{}: {}", one.pointer, one.message)).collect();
    lines.join("; ")
}

/// Check a definition
///
/// As saving does, with the tools that there are; nothing is saved.
#[utoipa::path(post, path = "/api/v1/automations/check", tag = "automations",
    request_body(content = serde_json::Value, content_type = "application/json"),
    responses((status = 200, description = "What is wrong with it", body = CheckedView), Problems<503>))]
pub(crate) async fn check(State(app): AppState, body: Payload) -> Reply<CheckedView> {
    let BodyBytes { bytes, share: _share } = app.body(body).await?;
    let check = move |app: &App| Ok(effectd_automations::check(&bytes, &app.services().registry()).into());
    app.blocking(check).await.map(Json)
}

/// Render the templates of a definition
///
/// As a run would, with these inputs and results of steps. Nothing is saved, and no action runs.
#[utoipa::path(post, path = "/api/v1/automations/render", tag = "automations",
    request_body(content = RenderBody, content_type = "application/json"),
    responses((status = 200, description = "What each step is", body = RenderView), Problems<400, 422, 429>))]
pub(crate) async fn render(State(app): AppState, peer: Peer, body: Payload) -> Reply<RenderView> {
    let _permit = app.preview_permit()?;
    let BodyBytes { bytes, share: _share } = app.body(body).await?;
    let invalid = |error: json::JsonInvalid| Problem::of(Kind::QueryInvalid, error.to_string());
    let RenderBody { definition, inputs, outputs, space_id } =
        json::parse(&bytes, REQUEST_BYTES_MAX).map_err(invalid)?;
    let space = space_id.unwrap_or_else(|| PREVIEW_SPACE.to_owned());
    let space = SpaceId::new(space).map_err(|error| Problem::of(Kind::QueryInvalid, error.to_string()))?;
    let (now, by) = (app.services().clock.now(), peer.principal.clone());
    let known = Known { last_fired_at: now, creator: by.clone(), space_default: space.clone() };
    let resolving = move |app: &App| {
        // Plain data with text keys, for which serde_json has no failure.
        let text = serde_json::to_vec(&definition).unwrap_or_default();
        let definition = checked(&text, app)?.0;
        let inputs = resolve(&definition, inputs, &known);
        let inputs =
            inputs.map_err(|findings| Problem::of(Kind::QueryInvalid, lines(&findings, "/inputs")))?;
        Ok((definition, inputs))
    };
    let (definition, inputs) = app.blocking(resolving).await?;
    let run = RunFacts {
        id: "preview".to_owned(),
        started_at: now,
        automation_id: AutomationId::fresh(),
        automation_name: definition.name.clone(),
        automation_version: 1,
        trigger_type: "manual".to_owned(),
        trigger_id: None,
        search_space_id: space,
        creator_id: by,
        attempt: 1,
    };
    let rendered =
        effectd_automations::preview(app.services(), &definition, &run, (&inputs, &outputs)).await?;
    Ok(Json(RenderView { steps: rendered.into_iter().map(RenderedView::of).collect() }))
}

/// One automation
#[utoipa::path(get, path = "/api/v1/automations/{id}", tag = "automations",
    responses((status = 200, description = "The automation", body = AutomationView), Problems<404>))]
pub(crate) async fn show(State(app): AppState, peer: Peer, Path(id): Path<String>) -> Reply<AutomationView> {
    app.blocking(move |app| Ok(view(app, find(app, &peer, &id)?))).await.map(Json)
}

/// The definition of an automation
///
/// Byte for byte as it was saved.
#[utoipa::path(get, path = "/api/v1/automations/{id}/definition", tag = "automations",
    responses((status = 200, description = "The definition", body = ref("#/components/schemas/Definition"), content_type = "application/json"), Problems<404>))]
pub(crate) async fn definition(
    State(app): AppState,
    peer: Peer,
    Path(id): Path<String>,
) -> Result<Response, Problem> {
    let read = move |app: &App| {
        let known = find(app, &peer, &id)?;
        let read = automations::definition(app.services(), &known);
        read.map_err(|error| Problem::of(Kind::Internal, format!("the definition cannot be read: {error}")))
    };
    let bytes = app.blocking(read).await?;
    Ok(([(header::CONTENT_TYPE, "application/json")], bytes).into_response())
}

/// Let an automation run again
#[utoipa::path(post, path = "/api/v1/automations/{id}/activate", tag = "automations",
    params(ChangeQuery),
    responses((status = 200, description = "It is active, or would be", body = OperationView), Problems<400, 403, 404>))]
pub(crate) async fn activate(change: ChangeOf) -> Reply<OperationView> {
    set(change, AutomationStatus::Active).await
}

/// Pause an automation
///
/// It does not run until it is activated.
#[utoipa::path(post, path = "/api/v1/automations/{id}/pause", tag = "automations",
    params(ChangeQuery),
    responses((status = 200, description = "It is paused, or would be", body = OperationView), Problems<400, 403, 404>))]
pub(crate) async fn pause(change: ChangeOf) -> Reply<OperationView> {
    set(change, AutomationStatus::Paused).await
}

/// Take an automation out of use
///
/// It can be activated again, or deleted.
#[utoipa::path(post, path = "/api/v1/automations/{id}/archive", tag = "automations",
    params(ChangeQuery),
    responses((status = 200, description = "It is archived, or would be", body = OperationView), Problems<400, 403, 404>))]
pub(crate) async fn archive(change: ChangeOf) -> Reply<OperationView> {
    set(change, AutomationStatus::Archived).await
}

/// Delete an archived automation
///
/// Its definition goes, too. Receipts stay.
#[utoipa::path(delete, path = "/api/v1/automations/{id}", tag = "automations",
    params(ChangeQuery),
    responses((status = 200, description = "It is deleted, or would be", body = OperationView), Problems<400, 403, 404, 409>))]
pub(crate) async fn delete(change: ChangeOf) -> Reply<OperationView> {
    let automation_id = managed(&change)?;
    change.by(Operation::DeleteAutomation { automation_id }).await
}

async fn set(change: ChangeOf, status: AutomationStatus) -> Reply<OperationView> {
    let automation_id = managed(&change)?;
    change.by(Operation::SetAutomation { automation_id, status }).await
}

/// The automation that a request names, if its peer created it or administers the organisation.
fn managed(ChangeOf { app, peer, id, .. }: &ChangeOf) -> Result<AutomationId, Problem> {
    let known = find(app, peer, id)?;
    let least = if known.created_by == peer.principal { OrgRole::Member } else { OrgRole::Admin };
    app.check_org(peer, known.org.as_str(), least)?;
    Ok(known.automation_id)
}

/// One that is unknown and one of others look the same.
fn find(app: &App, peer: &Peer, id: &str) -> Result<Automation, Problem> {
    let found = automations::automation(app.store(), id)?;
    let found = found.filter(|known| app.sees_org(peer, known.org.as_str(), OrgRole::Member));
    found.ok_or_else(|| Problem::of(Kind::NotFound, "you have no automation of this id"))
}

fn view(app: &App, known: Automation) -> AutomationView {
    let read = automations::definition(app.services(), &known);
    let read = read.inspect_err(|error| {
        tracing::error!(%error, automation = %known.automation_id, "a definition cannot be read");
    });
    let definition = read.ok().and_then(|bytes| serde_json::from_slice::<Definition>(&bytes).ok());
    AutomationView::of(known, definition)
}
