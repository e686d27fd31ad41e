//! Linear: issues and comments, by GraphQL.
//!
//! An issue and a comment get an id that effectd derives from the action, so that creating them twice creates them once, and a probe
//! finds them by it. All documents are fixed: a parameter is a variable and never part of one.

use effectd_contracts::{Exchange, ExchangeAnswer, Method, Timestamp, ToolCall};
use serde::Serialize;

use crate::Service;
use crate::exchange::{
    SKEW_S, check, connection_of, cut, exchange, fault, json_request, look_twice, mark, read, reads, refused,
    undone, unreadable, writes,
};
use crate::prelude::*;

pub(crate) const SERVICE: Service = Service {
    source: "linear",
    tools: &[&ListIssues, &GetIssue, &CreateIssue, &UpdateIssue, &AddComment, &Undo],
    guide: include_str!("guides/linear.md"),
};

const NAME: &str = "Linear";
const PATH: &str = "/graphql";
/// The most issues of one page.
const FIRST_MAX: u64 = 50;
/// The longest description in a result.
const DESCRIPTION_BYTES_MAX: usize = 65_536;
/// Bytes of a document of the child that effectd reads, to see whether it is one that only reads.
const READ_BYTES_MAX: usize = 65_536;

macro_rules! issue_fields {
    () => {
        "id identifier title priority url createdAt updatedAt archivedAt state { id name } assignee { id name } \
         team { id name } project { id name }"
    };
}

const LIST: &str = concat!(
    "query Issues($first: Int!, $after: String, $filter: IssueFilter) { issues(first: $first, after: $after, filter: $filter) { nodes { ",
    issue_fields!(),
    " } pageInfo { hasNextPage endCursor } } }"
);
const GET: &str =
    concat!("query Issue($id: String!) { issue(id: $id) { ", issue_fields!(), " description } }");
const FIND_ISSUE: &str = "query FindIssue($id: ID!) { issues(filter: { id: { eq: $id } }, includeArchived: true) { nodes { id } } }";
const FIND_COMMENT: &str = "query FindComment($id: ID!) { comments(filter: { id: { eq: $id } }, includeArchived: true) { nodes { id } } }";
const CREATE: &str = concat!(
    "mutation CreateIssue($input: IssueCreateInput!) { issueCreate(input: $input) { success issue { ",
    issue_fields!(),
    " } } }"
);
const UPDATE: &str = concat!(
    "mutation UpdateIssue($id: String!, $input: IssueUpdateInput!) { issueUpdate(id: $id, input: $input) { success issue { ",
    issue_fields!(),
    " } } }"
);
const COMMENT: &str = "mutation AddComment($input: CommentCreateInput!) { commentCreate(input: $input) { success comment { id url } } }";
const ARCHIVE: &str = "mutation ArchiveIssue($id: String!) { issueArchive(id: $id) { success } }";
const DELETE_COMMENT: &str = "mutation DeleteComment($id: String!) { commentDelete(id: $id) { success } }";

/// The codes by which Linear refuses before it does anything.
const REFUSALS: [&str; 11] = [
    "AUTHENTICATION_ERROR",
    "BAD_USER_INPUT",
    "FEATURE_NOT_ACCESSIBLE",
    "FORBIDDEN",
    "GRAPHQL_PARSE_FAILED",
    "GRAPHQL_VALIDATION_FAILED",
    "INPUT_ERROR",
    "INVALID_INPUT",
    "UNAUTHENTICATED",
    "USAGE_LIMIT_EXCEEDED",
    "USER_ERROR",
];

/// The documents that ask for no effect.
const READS: [&str; 4] = [LIST, GET, FIND_ISSUE, FIND_COMMENT];

fn asked(call: &ToolCall, document: &str, variables: &Value) -> Exchange {
    let body = json!({ "query": document, "variables": variables });
    json_request(&connection_of(&call.tool_id), Method::Post, PATH, &body)
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Asked {
    query: String,
    #[serde(rename = "variables")]
    _variables: serde_json::Map<String, Value>,
}

/// Whether an exchange is one of the documents that ask for no effect. A document has one operation, and variables cannot add another.
fn only_reads(exchange: &Exchange) -> bool {
    let is_ours = exchange.method == Method::Post && exchange.path == PATH && exchange.query.is_empty();
    let asked = effectd_contracts::json::parse::<Asked>(&exchange.body, READ_BYTES_MAX);
    is_ours && asked.is_ok_and(|asked| READS.contains(&asked.query.as_str()))
}

#[derive(Deserialize)]
struct Answer {
    data: Option<Value>,
    #[serde(default)]
    errors: Vec<Error>,
}

#[derive(Deserialize)]
struct Error {
    #[serde(default)]
    path: Option<Vec<Value>>,
    #[serde(default)]
    extensions: Extensions,
}

#[derive(Deserialize, Default)]
struct Extensions {
    #[serde(default)]
    code: String,
}

/// The data of an answer. Errors may come with any status, and one that is unknown, or beneath an effect, may come after it: then it
/// is not known whether it happened, which is no refusal.
fn data(answer: &ExchangeAnswer) -> Result<Value, Failure> {
    let status = refused(NAME, crate::exchange::reason(answer.status));
    let Answer { data, errors } = match (fault(NAME, answer), read(NAME, answer)) {
        (Some(fault), _) => return Err(fault),
        (None, Ok(answer)) => answer,
        (None, Err(_)) if answer.status >= 300 => return Err(status),
        (None, Err(unreadable)) => return Err(unreadable),
    };
    let data = data.filter(|data| !data.is_null());
    let Some(error) = errors.first() else {
        let is_success = (200..300).contains(&answer.status);
        return data.filter(|_| is_success).ok_or(if is_success { unreadable(NAME) } else { status });
    };
    let failure = refused(NAME, &error.extensions.code);
    let code = match error.extensions.code.as_str() {
        "RATELIMITED" => Code::ToolBusy,
        _ => {
            let is_refusal = |error: &Error| {
                let is_at_root = error.path.as_ref().is_none_or(|path| path.len() <= 1);
                is_at_root && REFUSALS.contains(&error.extensions.code.as_str())
            };
            let is_whole = data.is_none() && errors.iter().all(is_refusal);
            if is_whole { Code::ServiceRefused } else { Code::ToolFailed }
        }
    };
    Err(Failure { code, retryable: code.retryable(), ..failure })
}

/// The payload of a mutation that says that it succeeded.
fn payload(answer: &ExchangeAnswer, name: &str) -> Result<Value, Failure> {
    let mut data = data(answer)?;
    let payload = data[name].take();
    if payload["success"] == true { Ok(payload) } else { Err(unreadable(NAME)) }
}

#[derive(Deserialize, Serialize)]
struct Named {
    id: String,
    name: String,
}

#[derive(Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
struct Issue {
    id: String,
    identifier: String,
    title: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    description: Option<String>,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    description_cut: bool,
    priority: f64,
    url: String,
    created_at: String,
    updated_at: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    archived_at: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    state: Option<Named>,
    #[serde(skip_serializing_if = "Option::is_none")]
    assignee: Option<Named>,
    #[serde(skip_serializing_if = "Option::is_none")]
    team: Option<Named>,
    #[serde(skip_serializing_if = "Option::is_none")]
    project: Option<Named>,
}

fn issue(value: Value) -> Result<Value, Failure> {
    let mut issue: Issue = serde_json::from_value(value).map_err(|_| unreadable(NAME))?;
    if let Some(text) = issue.description.take() {
        let (text, is_cut) = cut(text, DESCRIPTION_BYTES_MAX);
        (issue.description, issue.description_cut) = (Some(text), is_cut);
    }
    serde_json::to_value(issue).map_err(|_| unreadable(NAME))
}

fn issue_schema() -> Value {
    let public = || json!({ "type": "string", "x-public": true });
    let named = || params::object(&["id", "name"], json!({ "id": text(), "name": text() }));
    params::object(
        &["id", "identifier"],
        json!({
            "id": public(), "identifier": public(), "title": text(), "description": text(), "descriptionCut": flag(),
            "priority": { "type": "number" }, "url": text(), "createdAt": text(), "updatedAt": text(), "archivedAt": text(),
            "state": named(), "assignee": named(), "team": named(), "project": named(),
        }),
    )
}

fn one(name: &str) -> Value {
    json!({ name: issue_schema(), "dry_run": flag() })
}

/// `linear.list_issues`.
#[derive(Debug, Clone, Copy)]
pub struct ListIssues;

#[derive(Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ListParams {
    /// Only issues of this team, by its id.
    #[schemars(length(min = 1, max = 128), extend("x-public" = true, "x-resource" = true))]
    team_id: Option<String>,
    /// Only issues of this project, by its id.
    #[schemars(length(min = 1, max = 128), extend("x-public" = true, "x-resource" = true))]
    project_id: Option<String>,
    /// How many; at most 50, and that if left out.
    #[schemars(range(min = 1), extend("x-public" = true))]
    first: Option<u64>,
    /// Continue after this cursor: the endCursor of the page before.
    #[schemars(length(min = 1, max = 512), extend("x-pii" = "required"))]
    after: Option<String>,
}

impl ListParams {
    fn exchange(&self, call: &ToolCall) -> Exchange {
        let mut filter = json!({});
        for (name, id) in [("team", &self.team_id), ("project", &self.project_id)] {
            if let Some(id) = id {
                filter[name] = json!({ "id": { "eq": id } });
            }
        }
        let first = self.first.unwrap_or(FIRST_MAX).min(FIRST_MAX);
        asked(call, LIST, &json!({ "first": first, "after": self.after, "filter": filter }))
    }
}

impl TypedTool for ListIssues {
    const ID: &'static str = "linear.list_issues";
    const DESCRIPTION: &'static str = "Lists issues of Linear, at most 50 at a time, of one team or project if you name it. Use it to \
        find an issue; endCursor is where the next page begins.";
    type Params = ListParams;

    fn spec(&self) -> ToolSpec {
        let issues = json!({ "type": "array", "items": issue_schema() });
        let result =
            json!({ "issues": issues, "hasNextPage": flag(), "endCursor": text(), "dry_run": flag() });
        reads::<Self>("linear.read", result)
    }

    fn example(&self) -> Value {
        json!({ "first": 20 })
    }

    fn only_reads(&self, exchange: &Exchange) -> bool {
        only_reads(exchange)
    }

    fn run(&self, workspace: &Workspace<'_>, call: &Call<'_, ListParams>) -> Result<ToolOutput, Failure> {
        let mut data = data(&exchange(workspace, &call.params.exchange(call))?)?;
        let found = data["issues"].take();
        let nodes = found["nodes"].as_array().ok_or_else(|| unreadable(NAME))?;
        let issues = nodes.iter().take(50).cloned().map(issue).collect::<Result<Vec<_>, _>>()?;
        let page = &found["pageInfo"];
        let mut result = json!({ "issues": issues, "hasNextPage": page["hasNextPage"] == true });
        if let Some(cursor) = page["endCursor"].as_str() {
            result["endCursor"] = json!(cursor);
        }
        Ok(ToolOutput::new(result, None))
    }

    fn dry_run(&self, _: &Workspace<'_>, _: &Call<'_, ListParams>) -> Result<ToolOutput, Failure> {
        Ok(params::dry(json!({})))
    }
}

/// `linear.get_issue`.
#[derive(Debug, Clone, Copy)]
pub struct GetIssue;

#[derive(Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct GetParams {
    /// The issue, by its id or its identifier such as ENG-123.
    #[schemars(length(min = 1, max = 128), extend("x-public" = true, "x-resource" = true))]
    issue_id: String,
}

impl TypedTool for GetIssue {
    const ID: &'static str = "linear.get_issue";
    const DESCRIPTION: &'static str =
        "Reads an issue of Linear with its description. Use it before you change or comment on an issue.";
    type Params = GetParams;

    fn spec(&self) -> ToolSpec {
        reads::<Self>("linear.read", one("issue"))
    }

    fn example(&self) -> Value {
        json!({ "issueId": "ENG-123" })
    }

    fn only_reads(&self, exchange: &Exchange) -> bool {
        only_reads(exchange)
    }

    fn run(&self, workspace: &Workspace<'_>, call: &Call<'_, GetParams>) -> Result<ToolOutput, Failure> {
        let mut data =
            data(&exchange(workspace, &asked(call, GET, &json!({ "id": call.params.issue_id })))?)?;
        Ok(ToolOutput::new(json!({ "issue": issue(data["issue"].take())? }), None))
    }

    fn dry_run(&self, _: &Workspace<'_>, _: &Call<'_, GetParams>) -> Result<ToolOutput, Failure> {
        Ok(params::dry(json!({})))
    }
}

/// `linear.create_issue`.
#[derive(Debug, Clone, Copy)]
pub struct CreateIssue;

#[derive(Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct CreateParams {
    /// The team that gets the issue, by its id.
    #[schemars(length(min = 1, max = 128), extend("x-public" = true, "x-resource" = true))]
    team_id: String,
    /// The title.
    #[schemars(length(min = 1, max = 512), extend("x-pii" = "required"))]
    title: String,
    /// The description, in Markdown.
    #[schemars(length(max = 65_536), extend("x-pii" = "required"))]
    description: Option<String>,
    /// Who gets it, by the id of the user.
    #[schemars(length(min = 1, max = 128), extend("x-public" = true, "x-resource" = true))]
    assignee_id: Option<String>,
    /// Its state, by the id of the workflow state.
    #[schemars(length(min = 1, max = 128), extend("x-public" = true, "x-resource" = true))]
    state_id: Option<String>,
    /// 0 is none, 1 is urgent, 2 is high, 3 is medium, 4 is low.
    #[schemars(range(min = 0, max = 4), extend("x-public" = true))]
    priority: Option<u8>,
    /// Its labels, by their ids.
    #[schemars(length(max = 50), extend("x-resource" = true))]
    label_ids: Option<Vec<String>>,
    /// Its project, by its id.
    #[schemars(length(min = 1, max = 128), extend("x-public" = true, "x-resource" = true))]
    project_id: Option<String>,
}

/// Parameters under Linear's own names, as the input of a mutation: those that are given, but for one.
fn input(params: &impl Serialize, without: &str) -> Value {
    let mut input = serde_json::to_value(params).unwrap_or_default();
    if let Some(fields) = input.as_object_mut() {
        fields.retain(|name, value| name != without && !value.is_null());
    }
    input
}

impl TypedTool for CreateIssue {
    const ID: &'static str = "linear.create_issue";
    const DESCRIPTION: &'static str =
        "Creates an issue in Linear. Use it once for each issue; an undo archives the issue.";
    type Params = CreateParams;

    fn spec(&self) -> ToolSpec {
        writes::<Self>("linear.write", Repeat::Probe, one("issue"))
    }

    fn example(&self) -> Value {
        json!({ "teamId": "0b1f5d5e-1111-4222-8333-0123456789ab", "title": "The export is empty" })
    }

    fn check(&self, params: &CreateParams) -> Result<(), Failure> {
        check(&json_request("", Method::Post, PATH, &input(params, "")))
    }

    fn exchange(&self, call: &Call<'_, CreateParams>) -> Option<Exchange> {
        let mut input = input(&call.params, "");
        input["id"] = json!(mark(call));
        Some(asked(call, CREATE, &json!({ "input": input })))
    }

    fn only_reads(&self, exchange: &Exchange) -> bool {
        only_reads(exchange)
    }

    fn run(&self, workspace: &Workspace<'_>, call: &Call<'_, CreateParams>) -> Result<ToolOutput, Failure> {
        let asked = TypedTool::exchange(self, call).ok_or_else(|| unreadable(NAME))?;
        let created = payload(&exchange(workspace, &asked)?, "issueCreate");
        let made = match created.map(|mut payload| payload["issue"].take()) {
            Ok(made) => issue(made)?,
            // An earlier run of the action may have made it, which shows only now.
            Err(failure) if failure.code == Code::ServiceRefused => {
                match read_back(workspace, call, mark(call)) {
                    Some(made) => issue(json!(made))?,
                    None => return Err(failure),
                }
            }
            Err(failure) => return Err(failure),
        };
        Ok(ToolOutput::new(json!({ "issue": made }), Some(1.0)))
    }

    fn dry_run(&self, _: &Workspace<'_>, _: &Call<'_, CreateParams>) -> Result<ToolOutput, Failure> {
        Ok(params::dry(json!({})))
    }

    fn probe(
        &self,
        workspace: &Workspace<'_>,
        call: &Call<'_, CreateParams>,
    ) -> Result<ProbeVerdict, Failure> {
        Ok(look_twice(|| found(workspace, call, mark(call), (FIND_ISSUE, "issues"))))
    }
}

/// Whether something of this id is there.
fn found(
    workspace: &Workspace<'_>,
    call: &ToolCall,
    id: &str,
    (document, name): (&str, &str),
) -> ProbeVerdict {
    let answer = exchange(workspace, &asked(call, document, &json!({ "id": id })));
    let data = answer.and_then(|answer| data(&answer));
    match data.ok().as_ref().and_then(|data| data[name]["nodes"].as_array()) {
        Some(nodes) if nodes.iter().any(|node| node["id"] == id) => ProbeVerdict::Done,
        Some(nodes) if nodes.is_empty() => ProbeVerdict::NotDone,
        Some(_) | None => ProbeVerdict::CannotSay,
    }
}

/// An issue as it is now.
fn read_back(workspace: &Workspace<'_>, call: &ToolCall, id: &str) -> Option<Issue> {
    let answer = exchange(workspace, &asked(call, GET, &json!({ "id": id }))).ok()?;
    serde_json::from_value(data(&answer).ok()?["issue"].take()).ok()
}

/// `linear.update_issue`.
#[derive(Debug, Clone, Copy)]
pub struct UpdateIssue;

#[derive(Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct UpdateParams {
    /// The issue, by its id or its identifier such as ENG-123.
    #[schemars(length(min = 1, max = 128), extend("x-public" = true, "x-resource" = true))]
    issue_id: String,
    /// The new title.
    #[schemars(length(min = 1, max = 512), extend("x-pii" = "required"))]
    title: Option<String>,
    /// The new description, in Markdown.
    #[schemars(length(max = 65_536), extend("x-pii" = "required"))]
    description: Option<String>,
    /// Who gets it, by the id of the user.
    #[schemars(length(min = 1, max = 128), extend("x-public" = true, "x-resource" = true))]
    assignee_id: Option<String>,
    /// Its state, by the id of the workflow state.
    #[schemars(length(min = 1, max = 128), extend("x-public" = true, "x-resource" = true))]
    state_id: Option<String>,
    /// 0 is none, 1 is urgent, 2 is high, 3 is medium, 4 is low.
    #[schemars(range(min = 0, max = 4), extend("x-public" = true))]
    priority: Option<u8>,
}

impl UpdateParams {
    fn input(&self) -> Value {
        input(self, "issueId")
    }

    /// Whether the issue is as the call wants it.
    fn is_met(&self, issue: &Issue) -> bool {
        let id = |named: &Option<Named>| named.as_ref().map(|named| named.id.clone());
        let is = |wanted: &Option<String>, now: Option<&str>| {
            wanted.as_deref().is_none_or(|text| Some(text) == now)
        };
        is(&self.title, Some(&issue.title))
            && is(&self.description, issue.description.as_deref())
            && is(&self.assignee_id, id(&issue.assignee).as_deref())
            && is(&self.state_id, id(&issue.state).as_deref())
            && self.priority.is_none_or(|wanted| f64::from(wanted) == issue.priority)
    }
}

impl TypedTool for UpdateIssue {
    const ID: &'static str = "linear.update_issue";
    const DESCRIPTION: &'static str = "Changes an issue of Linear: its title, description, assignee, state or priority. Use it with the \
        fields that change and no others.";
    type Params = UpdateParams;

    fn spec(&self) -> ToolSpec {
        writes::<Self>("linear.write", Repeat::Probe, one("issue"))
    }

    fn example(&self) -> Value {
        json!({ "issueId": "ENG-123", "priority": 2 })
    }

    fn check(&self, params: &UpdateParams) -> Result<(), Failure> {
        let input = params.input();
        if input.as_object().is_none_or(serde_json::Map::is_empty) {
            return Err(params::invalid("issueId", "name at least one field that changes"));
        }
        check(&json_request("", Method::Post, PATH, &input))
    }

    fn exchange(&self, call: &Call<'_, UpdateParams>) -> Option<Exchange> {
        let variables = json!({ "id": call.params.issue_id, "input": call.params.input() });
        Some(asked(call, UPDATE, &variables))
    }

    fn only_reads(&self, exchange: &Exchange) -> bool {
        only_reads(exchange)
    }

    fn run(&self, workspace: &Workspace<'_>, call: &Call<'_, UpdateParams>) -> Result<ToolOutput, Failure> {
        let asked = TypedTool::exchange(self, call).ok_or_else(|| unreadable(NAME))?;
        let mut payload = payload(&exchange(workspace, &asked)?, "issueUpdate")?;
        Ok(ToolOutput::new(json!({ "issue": issue(payload["issue"].take())? }), Some(1.0)))
    }

    fn dry_run(&self, _: &Workspace<'_>, _: &Call<'_, UpdateParams>) -> Result<ToolOutput, Failure> {
        Ok(params::dry(json!({})))
    }

    /// An issue that somebody else has given the same values needs no second update, either. One that was changed since the action was
    /// accepted may have had the update before: Linear also writes some values differently.
    fn probe(
        &self,
        workspace: &Workspace<'_>,
        call: &Call<'_, UpdateParams>,
    ) -> Result<ProbeVerdict, Failure> {
        let is_old = |issue: &Issue| {
            let since = call.mark.as_ref().map(|mark| mark.since.as_second() - SKEW_S);
            let changed = issue.updated_at.parse::<Timestamp>().ok().map(Timestamp::as_second);
            changed.zip(since).is_some_and(|(changed, since)| changed < since)
        };
        Ok(look_twice(|| match read_back(workspace, call, &call.params.issue_id) {
            Some(issue) if call.params.is_met(&issue) => ProbeVerdict::Done,
            Some(issue) if is_old(&issue) => ProbeVerdict::NotDone,
            Some(_) | None => ProbeVerdict::CannotSay,
        }))
    }
}

/// `linear.add_comment`.
#[derive(Debug, Clone, Copy)]
pub struct AddComment;

#[derive(Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct CommentParams {
    /// The issue, by its id or its identifier such as ENG-123.
    #[schemars(length(min = 1, max = 128), extend("x-public" = true, "x-resource" = true))]
    issue_id: String,
    /// The comment, in Markdown.
    #[schemars(length(min = 1, max = 65_536), extend("x-pii" = "required"))]
    body: String,
}

impl TypedTool for AddComment {
    const ID: &'static str = "linear.add_comment";
    const DESCRIPTION: &'static str = "Adds a comment to an issue of Linear. People are notified and read it. Use it to tell them something; \
        an undo deletes the comment.";
    type Params = CommentParams;

    fn spec(&self) -> ToolSpec {
        let comment = json!({ "id": { "type": "string", "x-public": true }, "url": text() });
        let comment = params::object(&["id"], comment);
        writes::<Self>("linear.write", Repeat::Probe, json!({ "comment": comment, "dry_run": flag() }))
    }

    fn example(&self) -> Value {
        json!({ "issueId": "ENG-123", "body": "The export works again." })
    }

    fn check(&self, params: &CommentParams) -> Result<(), Failure> {
        check(&json_request("", Method::Post, PATH, &input(params, "")))
    }

    fn exchange(&self, call: &Call<'_, CommentParams>) -> Option<Exchange> {
        let mut input = input(&call.params, "");
        input["id"] = json!(mark(call));
        Some(asked(call, COMMENT, &json!({ "input": input })))
    }

    fn only_reads(&self, exchange: &Exchange) -> bool {
        only_reads(exchange)
    }

    fn run(&self, workspace: &Workspace<'_>, call: &Call<'_, CommentParams>) -> Result<ToolOutput, Failure> {
        let asked = TypedTool::exchange(self, call).ok_or_else(|| unreadable(NAME))?;
        let comment = match payload(&exchange(workspace, &asked)?, "commentCreate") {
            Ok(mut payload) => payload["comment"].take(),
            // An earlier run of the action may have made it, which shows only now.
            Err(failure) if failure.code == Code::ServiceRefused => {
                match found(workspace, call, mark(call), (FIND_COMMENT, "comments")) {
                    ProbeVerdict::Done => json!({ "id": mark(call) }),
                    ProbeVerdict::NotDone | ProbeVerdict::CannotSay => return Err(failure),
                }
            }
            Err(failure) => return Err(failure),
        };
        let (id, url) = (comment["id"].as_str(), comment["url"].as_str());
        let id = id.ok_or_else(|| unreadable(NAME))?;
        Ok(ToolOutput::new(json!({ "comment": { "id": id, "url": url.unwrap_or_default() } }), Some(1.0)))
    }

    fn dry_run(&self, _: &Workspace<'_>, _: &Call<'_, CommentParams>) -> Result<ToolOutput, Failure> {
        Ok(params::dry(json!({})))
    }

    fn probe(
        &self,
        workspace: &Workspace<'_>,
        call: &Call<'_, CommentParams>,
    ) -> Result<ProbeVerdict, Failure> {
        Ok(look_twice(|| found(workspace, call, mark(call), (FIND_COMMENT, "comments"))))
    }
}

/// `linear.undo`: archives an issue that was created, and deletes a comment that was added.
#[derive(Debug, Clone, Copy)]
pub struct Undo;

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct UndoParams {
    /// The receipt of the action to undo.
    #[schemars(length(min = 1, max = 256), extend("x-public" = true, "x-resource" = true))]
    #[expect(dead_code, reason = "the pipeline looks the receipt up")]
    receipt_id: String,
}

impl TypedTool for Undo {
    const ID: &'static str = "linear.undo";
    const DESCRIPTION: &'static str = "Archives the issue that the action of a receipt created in Linear, or deletes the comment that it \
        added. People may have read it. Use it when it was wrong.";
    type Params = UndoParams;

    fn spec(&self) -> ToolSpec {
        let result = json!({
            "undone": { "type": "string", "x-public": true }, "already_gone": flag(), "may_have_been_read": flag(),
            "dry_run": flag(),
        });
        writes::<Self>("linear.write", Repeat::Probe, result)
    }

    fn example(&self) -> Value {
        json!({ "receipt_id": "rcpt-01996e5e-0000-7000-8000-000000000000" })
    }

    fn only_reads(&self, exchange: &Exchange) -> bool {
        only_reads(exchange)
    }

    fn exchange(&self, call: &Call<'_, UndoParams>) -> Option<Exchange> {
        let undoes = call.undoes.as_deref()?;
        let document = if undoes.tool_id.action() == "add_comment" { DELETE_COMMENT } else { ARCHIVE };
        Some(asked(call, document, &json!({ "id": undoes.mark.id })))
    }

    fn run(&self, workspace: &Workspace<'_>, call: &Call<'_, UndoParams>) -> Result<ToolOutput, Failure> {
        let undoes = undone(call)?;
        let asked = TypedTool::exchange(self, call).ok_or_else(|| unreadable(NAME))?;
        let is_comment = undoes.tool_id.as_str() == AddComment::ID;
        let name = if is_comment { "commentDelete" } else { "issueArchive" };
        let is_gone = || {
            is_comment
                && found(workspace, call, &undoes.mark.id, (FIND_COMMENT, "comments"))
                    == ProbeVerdict::NotDone
        };
        let gone = match payload(&exchange(workspace, &asked)?, name) {
            Ok(_) => false,
            Err(failure) if failure.code == Code::ServiceRefused && is_gone() => true,
            Err(failure) => return Err(failure),
        };
        let result = json!({ "undone": undoes.tool_id, "already_gone": gone, "may_have_been_read": true });
        Ok(ToolOutput::new(result, Some(1.0)))
    }

    fn dry_run(&self, _: &Workspace<'_>, call: &Call<'_, UndoParams>) -> Result<ToolOutput, Failure> {
        undone(call).map(|_| params::dry(json!({})))
    }

    fn probe(&self, workspace: &Workspace<'_>, call: &Call<'_, UndoParams>) -> Result<ProbeVerdict, Failure> {
        let undoes = undone(call)?;
        if undoes.tool_id.as_str() == AddComment::ID {
            let look = || match found(workspace, call, &undoes.mark.id, (FIND_COMMENT, "comments")) {
                ProbeVerdict::Done => ProbeVerdict::NotDone,
                ProbeVerdict::NotDone => ProbeVerdict::Done,
                ProbeVerdict::CannotSay => ProbeVerdict::CannotSay,
            };
            return Ok(look_twice(look));
        }
        let look =
            || match read_back(workspace, call, &undoes.mark.id).map(|issue| issue.archived_at.is_some()) {
                Some(true) => ProbeVerdict::Done,
                Some(false) => ProbeVerdict::NotDone,
                None => ProbeVerdict::CannotSay,
            };
        Ok(look_twice(look))
    }
}
