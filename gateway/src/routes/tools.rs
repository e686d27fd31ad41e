//! The tools of this daemon: what each takes and does, and whether an operator has disabled it.

use axum::extract::State;
use effectd_actors::RegisteredTool;
use effectd_actors::control::switches::Switches;
use effectd_contracts::ToolId;
use serde_json::{Value, json};

use crate::app::{App, AppState};
use crate::extract::{Json, Path, Reply};
use crate::problem::{Kind, Problem, Problems};
use crate::views::tools::{tool_details, tool_summary};

/// A tool, with the capabilities that operators set and its quarantine.
fn view(
    app: &App,
    entry: &RegisteredTool,
    render: fn(&RegisteredTool, bool) -> Value,
) -> Result<Value, Problem> {
    let (switches, tool) = (Switches::new(app.store()), &entry.spec().tool_id);
    let mut view = render(entry, switches.tool_off(tool, app.services().clock.now())?.is_some());
    if let Some(caps) = switches.caps(tool)? {
        view["caps_set"] = json!(caps);
    }
    if let Some(news) = switches.quarantined(tool)? {
        view["quarantined"] = json!(news);
    }
    Ok(view)
}

/// All tools, by id
#[utoipa::path(get, path = "/v1/tools", tag = "tools",
    responses(
        (status = 200, description = "What each is for, how it is gated, confined and recovered, and whether it is off", body = Vec<Object>),
        Problems<503>,
    )
)]
pub(crate) async fn list(State(app): AppState) -> Reply<Vec<Value>> {
    let registry = app.services().registry();
    let views = registry.iter().map(|entry| view(&app, entry, tool_summary));
    Ok(Json(views.collect::<Result<_, Problem>>()?))
}

/// One tool, by its id or an alias
#[utoipa::path(get, path = "/v1/tools/{id}", tag = "tools",
    responses((status = 200, description = "Its description, schemas, an example, and whether it is off", body = Object), Problems<404>))]
pub(crate) async fn show(State(app): AppState, Path(id): Path<String>) -> Reply<Value> {
    let unknown = |why: String| Problem::of(Kind::ToolUnknown, why);
    let id = ToolId::new(id).map_err(|error| unknown(error.to_string()))?;
    let registry = app.services().registry();
    let entry = registry.find(&id).map_err(|error| unknown(error.to_string()))?;
    Ok(Json(view(&app, entry, tool_details)?))
}
