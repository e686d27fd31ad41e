//! One change by an operator: a page shows what it would do, the next request does it.

use std::sync::Arc;

use askama::Template;
use axum::Router;
use axum::extract::RawQuery;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Redirect};
use axum::routing::get;
use serde_json::{Map, Value, json};

use super::super::api::Api;
use super::super::page::{Form, Page, Shell, filters, page};
use crate::app::App;
use crate::client::percent_encoded;
use crate::problem::{Kind, Problem};
use crate::views::operations::OperationView;

pub(super) fn routes() -> Router<Arc<App>> {
    Router::new().route("/console/operations/change", get(show).post(perform))
}

/// The fields of an operation that a form may fill.
const FIELDS: [&str; 5] = ["tool_id", "key", "artifact_id", "id", "digest"];
/// The cause on whose page a change of dead letters begins and ends, and the action of a single letter: no operation takes them.
const CAUSE: &str = "cause";
const ACTION: &str = "action";
/// Operations that may end by themselves.
const ENDING: [&str; 3] = ["pause", "disable_tool", "trip_breaker"];

/// A change, as the routes know it.
struct Change {
    word: String,
    /// The fields that say what it is about, for the form.
    fields: Vec<(String, String)>,
    path: String,
    body: Value,
    /// The page that leads here.
    back: String,
}

impl Change {
    fn of(form: &Form) -> Result<Self, Problem> {
        let word =
            form.text("do").ok_or_else(|| Problem::of(Kind::QueryInvalid, "say in `do` what to change"))?;
        let given = FIELDS.iter().chain(&["letters", "letter", "done", CAUSE, ACTION]);
        let fields: Vec<(String, String)> =
            given.filter_map(|name| Some(((*name).to_owned(), form.text(name)?))).collect();
        let id = percent_encoded(&form.text("id").unwrap_or_default());
        let cause = form.text(CAUSE).map(|cause| format!("/letters/{}", percent_encoded(&cause)));
        let connector = format!("/connectors/{id}");
        let (path, back) = match word.as_str() {
            "review_connector" => (format!("/v1{connector}/review"), connector.as_str()),
            "harvest_connector" => (format!("/v1{connector}/harvest"), connector.as_str()),
            "end_session" => (format!("/v1/sessions/{id}/end"), "/access"),
            "disable_tool" | "enable_tool" => ("/v1/operations".to_owned(), "/tools"),
            _ => ("/v1/operations".to_owned(), cause.as_deref().unwrap_or_default()),
        };
        let back = format!("/console/operations{back}");
        let mut body = Map::new();
        if path == "/v1/operations" {
            body.insert("do".to_owned(), json!(word));
            for (name, value) in fields.iter().filter(|(name, _)| name != CAUSE && name != ACTION) {
                body.insert(name.clone(), operand(name, value)?);
            }
        } else if let Some(digest) = form.text("digest") {
            body.insert("digest".to_owned(), json!(digest));
        }
        Ok(Self { word, fields, path, body: Value::Object(body), back })
    }

    /// Asks the route, for what would change or for the change.
    async fn ask(&self, api: &Api, form: &Form, is_preview: bool) -> Result<OperationView, Problem> {
        let mut path = format!("{}?preview={is_preview}", self.path);
        let lasts = form.text("lasts").filter(|_| self.may_end());
        for (name, value) in [("reason", form.text("reason")), ("lasts", lasts)] {
            if let Some(value) = value {
                path.push_str(&format!("&{name}={}", percent_encoded(&value)));
            }
        }
        api.post(&path, &self.body).await
    }

    fn may_end(&self) -> bool {
        ENDING.contains(&self.word.as_str())
    }

    /// For people: `Requeue letters`.
    fn title(&self) -> String {
        let words = match (&*self.word, self.body["done"].as_bool()) {
            ("settle_letter", Some(true)) => "it happened".to_owned(),
            ("settle_letter", _) => "it did not happen".to_owned(),
            (word, _) => word.replace('_', " "),
        };
        let mut letters = words.chars();
        letters.next().map(|first| first.to_uppercase().chain(letters).collect()).unwrap_or_default()
    }
}

/// The value of a field of an operation.
fn operand(name: &str, value: &str) -> Result<Value, Problem> {
    let number = |text: &str| {
        let number = text.trim().parse::<u64>();
        number.map_err(|_| Problem::of(Kind::QueryInvalid, "a dead letter is named by its number"))
    };
    Ok(match name {
        "letters" => json!(value.split(',').map(number).collect::<Result<Vec<_>, _>>()?),
        "letter" => json!(number(value)?),
        "done" => json!(value == "true"),
        _ => json!(value),
    })
}

#[derive(Template)]
#[template(path = "change.html")]
struct ChangePage {
    shell: Shell,
    change: Change,
    title: String,
    /// What would change, or did.
    view: OperationView,
    is_done: bool,
    problem: Option<String>,
    reason: String,
    lasts: String,
}

impl ChangePage {
    fn of(api: &Api, change: Change, view: OperationView, form: &Form) -> Self {
        let title = change.title();
        Self {
            shell: Shell::new(title.clone(), "operations", api),
            title,
            change,
            view,
            is_done: false,
            problem: None,
            reason: form.text("reason").unwrap_or_default(),
            lasts: form.text("lasts").unwrap_or_default(),
        }
    }
}

async fn show(api: Api, RawQuery(query): RawQuery) -> Page {
    let form = Form::of(query.unwrap_or_default().as_bytes())?;
    let change = Change::of(&form)?;
    let view = change.ask(&api, &form, true).await?;
    Ok(page(StatusCode::OK, &ChangePage::of(&api, change, view, &form)))
}

async fn perform(api: Api, form: Form) -> Page {
    let change = Change::of(&form)?;
    let done = match change.ask(&api, &form, false).await {
        Ok(done) => done,
        // The form again, with what was typed.
        Err(problem) if problem.code == Kind::QueryInvalid.code() => {
            let shown = ChangePage::of(
                &api,
                change,
                OperationView { changed: true, ..OperationView::default() },
                &form,
            );
            return Ok(page(StatusCode::BAD_REQUEST, &ChangePage { problem: Some(problem.detail), ..shown }));
        }
        Err(problem) => return Err(problem.into()),
    };
    if done.changed && !done.letters.iter().any(|letter| letter.is_left()) {
        // The page of a cause says what became of the change.
        let told = [("receipt", done.receipt_id), (ACTION, form.text(ACTION))];
        let told = told.into_iter().filter(|_| form.text(CAUSE).is_some());
        let told = told.filter_map(|(name, id)| Some(format!("{name}={}", percent_encoded(&id?))));
        let told = told.collect::<Vec<_>>().join("&");
        let query = if told.is_empty() { String::new() } else { format!("?{told}") };
        return Ok(Redirect::to(&(change.back + &query)).into_response());
    }
    let shown = ChangePage::of(&api, change, done, &form);
    Ok(page(StatusCode::OK, &ChangePage { is_done: true, ..shown }))
}
