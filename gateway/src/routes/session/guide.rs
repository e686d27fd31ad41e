//! What a session may ask for, as a list and as guides for its agent.

use std::fmt::Write;
use std::sync::Arc;
use std::time::Duration;

use effectd_actors::control::switches::Switches;
use effectd_actors::preview::{decision_in, example_in};
use effectd_actors::services::connections;
use effectd_actors::services::connectors;
use effectd_actors::services::sessions;
use effectd_actors::{Incoming, RegisteredTool};
use effectd_contracts::{Mode, Origin, Session, ToolId};
use serde_json::{Map, Value, json};

use crate::app::App;
use crate::problem::Problem;
use crate::views::session::AvailableView;

/// Where the agent of a session finds its guide.
const PATH: &str = "workspace/.proliferate/actions-guide.md";
const WRITING_TOOL: &str = "files.write_text";
const WRITING_WAIT_MAX: Duration = Duration::from_secs(10);

/// The actions that a session may ask for, and sources that it is connected with and that offer none now.
pub(super) fn catalogue(app: &App, session: &Session) -> Result<Vec<AvailableView>, Problem> {
    let registry = app.services().registry();
    let mut all = Vec::new();
    for tool in registry.iter() {
        all.extend(available(app, session, tool)?);
    }
    for (connection, _) in connections::all(app.store())? {
        let is_ours = connection.enabled && session.connections.contains(&connection.connection_id);
        if is_ours && !registry.iter().any(|tool| tool.spec().tool_id.source() == connection.source) {
            let source = connection.source.clone();
            let error = connectors::known(app.services(), connection)?.and_then(|known| known.listed?.error);
            all.push(AvailableView {
                integration: source,
                error: Some(error.unwrap_or_else(|| "the source offers no actions now".to_owned())),
                ..AvailableView::default()
            });
        }
    }
    Ok(all)
}

/// `None` for a tool that needs a connection that the session does not have.
fn available(app: &App, session: &Session, tool: &RegisteredTool) -> Result<Option<AvailableView>, Problem> {
    let (services, spec) = (app.services(), tool.spec());
    let Some(decision) = decision_in(services, session, tool, &example_in(session, tool)) else {
        return Ok(None);
    };
    let off = Switches::new(app.store()).tool_off(&spec.tool_id, services.clock.now())?;
    // Without a mode, a gate before it refused.
    let mode = decision.mode.unwrap_or(Mode::Deny);
    Ok(Some(AvailableView {
        integration: spec.tool_id.source().to_owned(),
        action: Some(spec.tool_id.action().to_owned()),
        source: Some(tool.source().to_string()),
        description: Some(spec.description.clone()),
        risk_level: Some(spec.level().as_str().to_owned()),
        mode: Some(mode.as_str().to_owned()),
        mode_source: decision.mode_source.map(|source| source.as_str().to_owned()),
        params: Some(spec.params_schema.clone()),
        drifted: tool.drifted(),
        error: off.map(|_| "an operator has disabled it".to_owned()),
    }))
}

/// The guide of one integration; `None` if the session has no such integration.
pub(super) fn of(app: &App, session: &Session, integration: &str) -> Result<Option<String>, Problem> {
    let mut text = String::new();
    let registry = app.services().registry();
    for tool in registry.iter().filter(|tool| tool.spec().tool_id.source() == integration) {
        if let Some(view) = available(app, session, tool)? {
            describe(&mut text, &view, &example_in(session, tool).params);
        }
    }
    let own = registry.iter().filter(|tool| tool.spec().tool_id.source() == integration);
    let own =
        own.filter_map(|tool| tool.guide()).next().map(|guide| format!("\n{guide}")).unwrap_or_default();
    let head = format!("# {integration}\n\n`effectd actions list` shows what the policy allows now.\n{own}");
    Ok((!text.is_empty()).then(|| head + &text))
}

fn describe(text: &mut String, view: &AvailableView, example: &Map<String, Value>) {
    let word = |word: &Option<String>| word.clone().unwrap_or_default();
    let (integration, action) = (&view.integration, word(&view.action));
    let (risk, mode) = (word(&view.risk_level), word(&view.mode));
    // Quoted: these are the words of the source, not effectd's. In Markdown, each of the two characters ends a line.
    let quoted = word(&view.description);
    let quoted: Vec<_> = quoted.split(['\n', '\r']).map(|line| format!("> {line}")).collect();
    let pretty = |value: &Value| serde_json::to_string_pretty(value).unwrap_or_default();
    let schema = pretty(view.params.as_ref().unwrap_or(&Value::Null));
    let example = pretty(&Value::Object(example.clone()));
    let quoted = quoted.join("\n");
    // A text takes everything that is written to it.
    let _ = write!(
        text,
        "\n## {action}\n\n{quoted}\n\nRisk: {risk}. Mode: {mode}.\n\n```sh\n\
         effectd actions run --integration {integration} --action {action} --params @params.json\n```\n\n\
         An example of `params.json`:\n\n```json\n{example}\n```\n\nIts schema:\n\n```json\n{schema}\n```\n"
    );
}

const COMMANDS: &str = "# Actions

This session acts through effectd. The policy of its organisation allows an action, asks a person, or denies it.

```sh
effectd actions list
effectd actions guide --integration files
effectd actions run --integration files --action write_text --params @params.json
effectd actions grant request --integration files --action write_text --max-calls 5
effectd actions grants list
```

`run` waits until the action has ended, also while a person is asked. `list` shows the present state; this list is of the session's
start:

| integration | action | risk | mode |
|---|---|---|---|
";

/// Writes the guide into the session's space, as an action of its agent like any other. Only if the policy permits it: nobody is asked
/// about a guide.
pub(in crate::routes) async fn write(app: &Arc<App>, id: &str) {
    let written = async {
        let pipeline = app.pipeline().ok()?;
        let session = sessions::session(app.store(), id).ok()??;
        let (seen, registry) = (session.clone(), app.services().registry());
        let tool = registry.get(&ToolId::new(WRITING_TOOL).ok()?)?;
        let all = app.blocking(move |app| catalogue(app, &seen)).await.ok()?;
        let mut text = COMMANDS.to_owned();
        for view in all {
            let cell = |word: Option<String>| word.unwrap_or_default();
            let (action, risk, mode) = (cell(view.action), cell(view.risk_level), cell(view.mode));
            let _ = writeln!(text, "| {} | {action} | {risk} | {mode} |", view.integration);
        }
        let params = json!({ "path": PATH, "text": text }).as_object().cloned()?;
        let params = sessions::with_space(&session.space_id, tool.spec(), params);
        let request = session.request(tool.spec().tool_id.clone(), params);
        let decision = decision_in(app.services(), &session, tool, &request)?;
        if decision.mode != Some(Mode::Allow) {
            return None;
        }
        let incoming = Incoming {
            request: Arc::new(request),
            principal: session.agent()?,
            origin: Origin::Session { session_id: session.session_id.clone() },
            contract: None,
            interactive: false,
        };
        // The session is there already; who creates it does not wait for long.
        tokio::time::timeout(WRITING_WAIT_MAX, pipeline.exec(incoming)).await.ok()
    };
    // Whether it was written, the receipt of the action says.
    if written.await.is_none() {
        tracing::debug!(session = id, "no guide is written for this session, or not yet");
    }
}
