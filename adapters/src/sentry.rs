//! Sentry: issues of projects and their events, by REST beneath `/api/0`.

use effectd_contracts::exchange::segment;
use effectd_contracts::{Exchange, ExchangeAnswer, Method, ToolCall};
use serde::Serialize;
use serde_json::Map;

use crate::Service;
use crate::exchange::{
    check, connection_of, cut, exchange, fault, json_request, look_twice, read, reads, reason, refused,
    unreadable, writes,
};
use crate::prelude::*;

pub(crate) const SERVICE: Service = Service {
    source: "sentry",
    tools: &[&ListIssues, &GetIssue, &ListIssueEvents, &GetEvent, &UpdateIssue],
    guide: include_str!("guides/sentry.md"),
};

const NAME: &str = "Sentry";
/// The most entries of a list in a result.
const LIST_MAX: usize = 100;
/// The longest text of an issue or an event in a result.
const TEXT_BYTES_MAX: usize = 8_192;
/// The largest stack trace, with its surroundings, in a result.
const ENTRIES_BYTES_MAX: usize = 262_144;

/// The path to these segments, each encoded, whatever it has. `None` for one that no path can have: `..`.
fn path(segments: &[&str]) -> Option<String> {
    let encoded: Option<Vec<_>> = segments.iter().map(|one| segment(one)).collect();
    Some(format!("/api/0/{}/", encoded?.join("/")))
}

fn get(connection: &str, segments: &[&str]) -> Option<Exchange> {
    Some(Exchange::get(connection, path(segments)?))
}

/// Refuses ids from which no path can be made.
fn checked(exchange: Option<Exchange>, name: &str) -> Result<(), Failure> {
    let exchange = exchange.ok_or_else(|| params::invalid(name, "it is no id of Sentry"))?;
    check(&exchange)
}

/// A whole answer with a status of success; any other is a failure with the text of its status.
fn answered(workspace: &Workspace<'_>, asked: Option<Exchange>) -> Result<ExchangeAnswer, Failure> {
    let answer = exchange(workspace, &asked.ok_or_else(|| unreadable(NAME))?)?;
    match fault(NAME, &answer) {
        Some(fault) => Err(fault),
        None if (200..300).contains(&answer.status) => Ok(answer),
        None => Err(refused(NAME, reason(answer.status))),
    }
}

#[derive(Deserialize, Serialize)]
#[serde(rename_all(serialize = "snake_case", deserialize = "camelCase"))]
struct Issue {
    id: String,
    #[serde(default)]
    short_id: String,
    title: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    culprit: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    permalink: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    level: Option<String>,
    status: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    count: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    user_count: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    first_seen: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    last_seen: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    assigned_to: Option<Assigned>,
}

#[derive(Deserialize, Serialize)]
struct Assigned {
    #[serde(rename = "type", default)]
    kind: String,
    #[serde(default)]
    id: String,
    #[serde(default)]
    name: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    email: Option<String>,
}

impl Assigned {
    /// Whether this is whom a call names, as `user:<id>`, as `team:<id>` or by e-mail address. `None` if nobody can tell: by a name,
    /// which is not the one that Sentry shows.
    fn is(&self, named: &str) -> Option<bool> {
        let Self { kind, id, email, .. } = self;
        if named.is_empty() {
            Some(false)
        } else if named.starts_with("user:") || named.starts_with("team:") {
            Some(named == format!("{kind}:{id}"))
        } else {
            let email = email.as_ref().filter(|_| named.contains('@'));
            email.map(|email| named.to_lowercase() == email.to_lowercase())
        }
    }
}

fn issue_schema() -> Value {
    let public = || json!({ "type": "string", "x-public": true });
    let who = json!({ "type": text(), "id": text(), "name": text(), "email": text() });
    params::object(
        &["id", "title", "status"],
        json!({
            "id": public(), "short_id": public(), "title": text(), "culprit": text(), "permalink": text(), "level": text(),
            "status": public(), "count": text(), "user_count": { "type": "integer", "minimum": 0 }, "first_seen": text(),
            "last_seen": text(), "assigned_to": params::object(&[], who),
        }),
    )
}

fn issue(mut issue: Issue) -> Value {
    issue.title = cut(issue.title, TEXT_BYTES_MAX).0;
    // Plain data with text keys, for which serde_json has no failure.
    serde_json::to_value(issue).unwrap_or_default()
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Event {
    #[serde(rename = "eventID")]
    event_id: String,
    #[serde(rename = "groupID", default)]
    issue_id: Option<String>,
    #[serde(default)]
    title: String,
    #[serde(default)]
    message: String,
    #[serde(default)]
    platform: Option<String>,
    #[serde(default)]
    date_created: Option<String>,
    #[serde(default)]
    tags: Vec<Value>,
    #[serde(default)]
    entries: Option<Value>,
}

fn event_schema() -> Value {
    let public = || json!({ "type": "string", "x-public": true });
    params::object(
        &["event_id"],
        json!({
            "event_id": public(), "issue_id": public(), "title": text(), "message": text(), "platform": text(),
            "date_created": text(), "tags": { "type": "array" }, "entries": {}, "entries_left_out": flag(),
        }),
    )
}

fn event(event: Event) -> Value {
    let Event { event_id, issue_id, title, message, platform, date_created, tags, entries } = event;
    let tags: Vec<_> = tags.into_iter().take(LIST_MAX).collect();
    let mut shown = json!({
        "event_id": event_id, "title": cut(title, TEXT_BYTES_MAX).0, "message": cut(message, TEXT_BYTES_MAX).0, "tags": tags,
    });
    for (name, value) in [("issue_id", issue_id), ("platform", platform), ("date_created", date_created)] {
        if let Some(value) = value {
            shown[name] = json!(value);
        }
    }
    match entries {
        Some(entries) if entries.to_string().len() > ENTRIES_BYTES_MAX => {
            shown["entries_left_out"] = json!(true)
        }
        Some(entries) => shown["entries"] = entries,
        None => {}
    }
    shown
}

/// `sentry.list_issues`.
#[derive(Debug, Clone, Copy)]
pub struct ListIssues;

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ListParams {
    /// The organisation, by its slug.
    #[schemars(length(min = 1, max = 128), extend("x-public" = true, "x-resource" = true))]
    organization_slug: String,
    /// The project, by its slug.
    #[schemars(length(min = 1, max = 128), extend("x-public" = true, "x-resource" = true))]
    project_slug: String,
    /// What to search for, in Sentry's words; is:unresolved if left out.
    #[schemars(length(max = 1_024), extend("x-pii" = "required"))]
    query: Option<String>,
}

impl ListParams {
    fn exchange(&self, connection: &str) -> Option<Exchange> {
        let asked = get(connection, &["projects", &self.organization_slug, &self.project_slug, "issues"])?;
        let query = self.query.iter().map(|query| ("query".to_owned(), query.clone())).collect();
        Some(Exchange { query, ..asked })
    }
}

impl TypedTool for ListIssues {
    const ID: &'static str = "sentry.list_issues";
    const DESCRIPTION: &'static str =
        "Lists issues of a project in Sentry, at most 100. Use it to find out which errors there are.";
    type Params = ListParams;

    fn spec(&self) -> ToolSpec {
        let issues = json!({ "type": "array", "items": issue_schema() });
        reads::<Self>("sentry.read", json!({ "issues": issues, "dry_run": flag() }))
    }

    fn example(&self) -> Value {
        json!({ "organization_slug": "acme", "project_slug": "web", "query": "is:unresolved level:error" })
    }

    fn check(&self, params: &ListParams) -> Result<(), Failure> {
        checked(params.exchange(""), "project_slug")
    }

    fn run(&self, workspace: &Workspace<'_>, call: &Call<'_, ListParams>) -> Result<ToolOutput, Failure> {
        let answer = answered(workspace, call.params.exchange(&connection_of(&call.tool_id)))?;
        let found: Vec<Issue> = read(NAME, &answer)?;
        let issues: Vec<_> = found.into_iter().take(LIST_MAX).map(issue).collect();
        Ok(ToolOutput::new(json!({ "issues": issues }), None))
    }

    fn dry_run(&self, _: &Workspace<'_>, _: &Call<'_, ListParams>) -> Result<ToolOutput, Failure> {
        Ok(params::dry(json!({})))
    }
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct IssueParams {
    /// The issue, by its number: the id that list_issues returns.
    #[schemars(length(min = 1, max = 128), extend("x-public" = true, "x-resource" = true))]
    issue_id: String,
}

/// `sentry.get_issue`.
#[derive(Debug, Clone, Copy)]
pub struct GetIssue;

impl TypedTool for GetIssue {
    const ID: &'static str = "sentry.get_issue";
    const DESCRIPTION: &'static str = "Reads an issue of Sentry: its title, status, counts and assignee. Use it before you change an issue.";
    type Params = IssueParams;

    fn spec(&self) -> ToolSpec {
        reads::<Self>("sentry.read", json!({ "issue": issue_schema(), "dry_run": flag() }))
    }

    fn example(&self) -> Value {
        json!({ "issue_id": "4509876543" })
    }

    fn check(&self, params: &IssueParams) -> Result<(), Failure> {
        checked(get("", &["issues", &params.issue_id]), "issue_id")
    }

    fn run(&self, workspace: &Workspace<'_>, call: &Call<'_, IssueParams>) -> Result<ToolOutput, Failure> {
        Ok(ToolOutput::new(
            json!({ "issue": issue(read_back(workspace, call, &call.params.issue_id)?) }),
            None,
        ))
    }

    fn dry_run(&self, _: &Workspace<'_>, _: &Call<'_, IssueParams>) -> Result<ToolOutput, Failure> {
        Ok(params::dry(json!({})))
    }
}

/// An issue as it is now.
fn read_back(workspace: &Workspace<'_>, call: &ToolCall, id: &str) -> Result<Issue, Failure> {
    read(NAME, &answered(workspace, get(&connection_of(&call.tool_id), &["issues", id]))?)
}

/// `sentry.list_issue_events`.
#[derive(Debug, Clone, Copy)]
pub struct ListIssueEvents;

impl TypedTool for ListIssueEvents {
    const ID: &'static str = "sentry.list_issue_events";
    const DESCRIPTION: &'static str = "Lists the latest events of an issue in Sentry, at most 100. Use it to see when and where an error happens.";
    type Params = IssueParams;

    fn spec(&self) -> ToolSpec {
        let events = json!({ "type": "array", "items": event_schema() });
        reads::<Self>("sentry.read", json!({ "events": events, "dry_run": flag() }))
    }

    fn example(&self) -> Value {
        json!({ "issue_id": "4509876543" })
    }

    fn check(&self, params: &IssueParams) -> Result<(), Failure> {
        checked(get("", &["issues", &params.issue_id, "events"]), "issue_id")
    }

    fn run(&self, workspace: &Workspace<'_>, call: &Call<'_, IssueParams>) -> Result<ToolOutput, Failure> {
        let asked = get(&connection_of(&call.tool_id), &["issues", &call.params.issue_id, "events"]);
        let found: Vec<Event> = read(NAME, &answered(workspace, asked)?)?;
        // Stack traces belong to one event: get_event has them.
        let plain = |one| event(Event { entries: None, ..one });
        let events: Vec<_> = found.into_iter().take(LIST_MAX).map(plain).collect();
        Ok(ToolOutput::new(json!({ "events": events }), None))
    }

    fn dry_run(&self, _: &Workspace<'_>, _: &Call<'_, IssueParams>) -> Result<ToolOutput, Failure> {
        Ok(params::dry(json!({})))
    }
}

/// `sentry.get_event`.
#[derive(Debug, Clone, Copy)]
pub struct GetEvent;

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct EventParams {
    /// The issue, by its number: the id that list_issues returns.
    #[schemars(length(min = 1, max = 128), extend("x-public" = true, "x-resource" = true))]
    issue_id: String,
    /// The event, by its id, or latest, oldest or recommended.
    #[schemars(length(min = 1, max = 128), extend("x-public" = true, "x-resource" = true))]
    event_id: String,
}

impl EventParams {
    fn exchange(&self, connection: &str) -> Option<Exchange> {
        get(connection, &["issues", &self.issue_id, "events", &self.event_id])
    }
}

impl TypedTool for GetEvent {
    const ID: &'static str = "sentry.get_event";
    const DESCRIPTION: &'static str =
        "Reads an event of an issue in Sentry with its stack trace. Use it to find the cause of an error.";
    type Params = EventParams;

    fn spec(&self) -> ToolSpec {
        reads::<Self>("sentry.read", json!({ "event": event_schema(), "dry_run": flag() }))
    }

    fn example(&self) -> Value {
        json!({ "issue_id": "4509876543", "event_id": "latest" })
    }

    fn check(&self, params: &EventParams) -> Result<(), Failure> {
        checked(params.exchange(""), "event_id")
    }

    fn run(&self, workspace: &Workspace<'_>, call: &Call<'_, EventParams>) -> Result<ToolOutput, Failure> {
        let answer = answered(workspace, call.params.exchange(&connection_of(&call.tool_id)))?;
        Ok(ToolOutput::new(json!({ "event": event(read(NAME, &answer)?) }), None))
    }

    fn dry_run(&self, _: &Workspace<'_>, _: &Call<'_, EventParams>) -> Result<ToolOutput, Failure> {
        Ok(params::dry(json!({})))
    }
}

/// `sentry.update_issue`.
#[derive(Debug, Clone, Copy)]
pub struct UpdateIssue;

#[derive(Deserialize, Serialize, JsonSchema, Clone, Copy, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum Status {
    Resolved,
    Ignored,
    Unresolved,
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct UpdateParams {
    /// The issue, by its number: the id that list_issues returns.
    #[schemars(length(min = 1, max = 128), extend("x-public" = true, "x-resource" = true))]
    issue_id: String,
    /// Its new status.
    #[schemars(extend("x-public" = true))]
    status: Option<Status>,
    /// Who gets it: a name, an e-mail address, user:ID or team:ID; nobody if empty.
    #[serde(rename = "assignedTo")]
    #[schemars(length(max = 256), extend("x-pii" = "required"))]
    assigned_to: Option<String>,
}

impl UpdateParams {
    fn exchange(&self, connection: &str) -> Option<Exchange> {
        let mut body = Map::new();
        if let Some(status) = self.status {
            body.insert("status".to_owned(), json!(status));
        }
        if let Some(who) = &self.assigned_to {
            body.insert("assignedTo".to_owned(), json!(who));
        }
        let path = path(&["issues", &self.issue_id])?;
        Some(json_request(connection, Method::Put, &path, &Value::Object(body)))
    }

    /// Whether the issue is as the call wants it; `None` if nobody can tell.
    fn is_met(&self, issue: &Issue) -> Option<bool> {
        if self.status.is_some_and(|status| json!(status) != issue.status) {
            return Some(false);
        }
        match (&self.assigned_to, &issue.assigned_to) {
            (None, _) => Some(true),
            (Some(named), None) => Some(named.is_empty()),
            (Some(named), Some(assigned)) => assigned.is(named),
        }
    }
}

impl TypedTool for UpdateIssue {
    const ID: &'static str = "sentry.update_issue";
    const DESCRIPTION: &'static str = "Changes the status or the assignee of an issue in Sentry. Use it when an error is fixed, or somebody \
        takes it on.";
    type Params = UpdateParams;

    fn spec(&self) -> ToolSpec {
        let result = json!({ "issue": issue_schema(), "dry_run": flag() });
        writes::<Self>("sentry.write", Repeat::Probe, result)
    }

    fn example(&self) -> Value {
        json!({ "issue_id": "4509876543", "status": "resolved" })
    }

    fn check(&self, params: &UpdateParams) -> Result<(), Failure> {
        if params.status.is_none() && params.assigned_to.is_none() {
            return Err(params::invalid("issue_id", "name the status or the assignee that changes"));
        }
        checked(params.exchange(""), "issue_id")
    }

    fn exchange(&self, call: &Call<'_, UpdateParams>) -> Option<Exchange> {
        call.params.exchange(&connection_of(&call.tool_id))
    }

    fn run(&self, workspace: &Workspace<'_>, call: &Call<'_, UpdateParams>) -> Result<ToolOutput, Failure> {
        let answer = answered(workspace, TypedTool::exchange(self, call))?;
        let changed: Issue = read(NAME, &answer)?;
        let holds = call.params.is_met(&changed) != Some(false);
        Ok(params::verified(json!({ "issue": issue(changed) }), holds))
    }

    fn dry_run(&self, _: &Workspace<'_>, _: &Call<'_, UpdateParams>) -> Result<ToolOutput, Failure> {
        Ok(params::dry(json!({})))
    }

    /// An issue that somebody else has given the same values needs no second update, either.
    fn probe(
        &self,
        workspace: &Workspace<'_>,
        call: &Call<'_, UpdateParams>,
    ) -> Result<ProbeVerdict, Failure> {
        let is_met = || call.params.is_met(&read_back(workspace, call, &call.params.issue_id).ok()?);
        Ok(look_twice(|| match is_met() {
            Some(true) => ProbeVerdict::Done,
            Some(false) => ProbeVerdict::NotDone,
            None => ProbeVerdict::CannotSay,
        }))
    }
}
