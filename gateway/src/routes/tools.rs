//! The tools of this daemon, as they stand now: what each takes and does, and whether it is switched off.

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use effectd_actors::Entry;
use effectd_actors::switches::Switches;
use effectd_contracts::ToolId;
use serde_json::{Value, json};

use crate::desk::{Desk, unavailable};
use crate::extract::{App, Path};
use crate::problem::{Kind, Problem};

/// What a listing tells of a tool.
pub fn summary(entry: &Entry, disabled: bool) -> Value {
    let spec = entry.spec();
    json!({
        "tool_id": spec.tool_id, "version": spec.version, "aliases": entry.aliases(), "source": entry.source(),
        "description": spec.description, "caps_required": spec.caps_required, "side_effects": spec.side_effects,
        "safety_class": spec.safety_class, "risk_level": spec.risk_level, "tier": spec.tier(),
        "sandbox_profile": spec.effective_profile(), "reversible": spec.reversible, "repeat": spec.repeat,
        "disabled": disabled,
    })
}

/// All there is to tell of a tool.
pub fn details(entry: &Entry, disabled: bool) -> Value {
    let lints: Vec<_> = entry.lints().iter().map(|lint| lint.meaning()).collect();
    json!({
        "spec": entry.spec(), "aliases": entry.aliases(), "source": entry.source(), "tier": entry.spec().tier(),
        "definition_hash": entry.definition_hash(), "lints": entry.lints(), "doubtful": lints, "example": entry.example(),
        "capability": entry.capability(), "action": entry.action_definition(), "package": entry.package(),
        "disabled": disabled,
    })
}

/// What is told of a tool, with what operators have switched.
fn told(desk: &Desk, entry: &Entry, tell: fn(&Entry, bool) -> Value) -> Result<Value, Problem> {
    let (switches, tool) = (Switches::new(&*desk.parts().store), &entry.spec().tool_id);
    let read = || Ok((switches.tool_disabled(tool)?, switches.caps(tool)?));
    let (disabled, caps) = read().map_err(|error| unavailable(&error))?;
    let mut told = tell(entry, disabled);
    if let Some(caps) = caps {
        told["caps_set"] = json!(caps);
    }
    if let Some(news) = switches.quarantined(tool).map_err(|error| unavailable(&error))? {
        told["quarantined"] = json!(news);
    }
    Ok(told)
}

/// All tools, by id
#[utoipa::path(
    get,
    path = "/v1/tools",
    tag = "tools",
    responses(
        (status = 200, description = "What each is for, how it is gated, confined and recovered, and whether it is off", body = Vec<Object>),
        (status = 503, description = "Not now; Retry-After says when", body = Problem, content_type = "application/problem+json"),
    )
)]
pub(crate) async fn list(State(desk): App) -> Result<Response, Problem> {
    let tools = desk.parts().registry.clone();
    let all = tools.iter().map(|entry| told(&desk, entry, summary));
    Ok(super::json(
        StatusCode::OK,
        &all.collect::<Result<Vec<_>, Problem>>()?,
    ))
}

/// One tool, by its id or an alias
#[utoipa::path(
    get,
    path = "/v1/tools/{id}",
    tag = "tools",
    params(("id" = String, Path, description = "The tool's id, or an alias")),
    responses(
        (status = 200, description = "Its description, schemas, an example, and whether it is off", body = Object),
        (status = 404, description = "No such tool", body = Problem, content_type = "application/problem+json"),
    )
)]
pub(crate) async fn show(State(desk): App, Path(id): Path<String>) -> Result<Response, Problem> {
    let unknown = |why: String| Problem::of(Kind::ToolUnknown, why);
    let id = ToolId::new(id).map_err(|error| unknown(error.to_string()))?;
    let tools = desk.parts().registry.clone();
    let entry = tools.find(&id).map_err(|error| unknown(error.to_string()))?;
    Ok(super::json(StatusCode::OK, &told(&desk, entry, details)?))
}
