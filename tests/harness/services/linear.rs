//! Linear: issues and comments, by GraphQL at `POST /graphql`.

use std::collections::BTreeMap;
use std::time::SystemTime;

use effectd_contracts::Timestamp;
use serde_json::{Map, Value, json};

use super::graphql::{Document, Field, Selection};
use super::{Fake, Reply, Request, Vendor};

pub const TEAM: &str = "0b1f5d5e-0000-4000-8000-00000000000a";
pub const PROJECT: &str = "0b1f5d5e-0000-4000-8000-00000000000b";
pub const USER: &str = "0b1f5d5e-0000-4000-8000-00000000000c";
pub const STATE_DONE: &str = "0b1f5d5e-0000-4000-8000-00000000000d";
const STATE: &str = "0b1f5d5e-0000-4000-8000-00000000000e";
/// An issue that is there from the start: `ENG-1`.
pub const ISSUE: &str = "0b1f5d5e-0000-4000-8000-00000000000f";

const LONG_AGO: &str = "2026-01-01T00:00:00.000Z";

/// The fields of types, from Linear's own schema (github.com/linear/linear, `packages/sdk/src/schema.graphql`, MIT). Of some types, those
/// that a client can ask of this fake.
const TYPES: [(&str, &str); 13] = [
    (
        "Issue",
        "activitySummary addedToCycleAt addedToProjectAt addedToTeamAt agentSessions aiPromptProgresses \
        archivedAt asksExternalUserRequester asksRequester assignee attachments autoArchivedAt autoClosedAt \
        boardOrder botActor branchName canceledAt children comments completedAt createdAt creator \
        customerTicketCount cycle delegate description descriptionState documentContent documents dueDate \
        estimate externalUserCreator favorite formerAttachments formerNeeds history id identifier \
        incomingSuggestions inheritsSharedAccess integrationSourceType inverseRelations labelIds labels \
        lastAppliedTemplate needs number parent previousIdentifiers priority priorityLabel prioritySortOrder \
        project projectMilestone reactionData reactions recurringIssueTemplate relations releases \
        sharedAccess slaBreachesAt slaHighRiskAt slaMediumRiskAt slaStartedAt slaType snoozedBy \
        snoozedUntilAt sortOrder sourceComment startedAt startedTriageAt state stateHistory \
        subIssueSortOrder subscribers suggestions suggestionsGeneratedAt summary syncedWith team title \
        trashed triagedAt trusted updatedAt url",
    ),
    (
        "Comment",
        "agentSession agentSessions aiPromptProgresses archivedAt body bodyData botActor children createdAt \
        createdIssues documentContent documentContentId editedAt externalThread externalUser hideInLinear id \
        initiative initiativeId initiativeUpdate initiativeUpdateId isArtificialAgentSessionRoot issue \
        issueId onBehalfOf parent parentId post project projectId projectUpdate projectUpdateId quotedText \
        reactionData reactions resolvedAt resolvingComment resolvingCommentId resolvingUser \
        spawnedAgentSessions syncedWith threadSummary updatedAt url user",
    ),
    ("IssueConnection", "edges nodes pageInfo"),
    ("CommentConnection", "edges nodes pageInfo"),
    ("DeletePayload", "entityId lastSyncId success"),
    ("IssuePayload", "issue lastSyncId success"),
    ("IssueArchivePayload", "entity lastSyncId success"),
    ("CommentPayload", "comment lastSyncId success"),
    ("PageInfo", "endCursor hasNextPage hasPreviousPage startCursor"),
    ("Team", "id name key displayName description createdAt updatedAt archivedAt"),
    ("User", "id name displayName email active url createdAt updatedAt archivedAt"),
    (
        "WorkflowState",
        "archivedAt color createdAt description id inheritedFrom issues name position team type updatedAt",
    ),
    ("Project", "id name description state url createdAt updatedAt archivedAt"),
];

const CREATE: &str = "assigneeId completedAt createAsUser createdAt cycleId delegateId description descriptionData \
    displayIconUrl dueDate estimate id inheritsSharedAccess labelIds lastAppliedTemplateId parentId \
    preserveSortOrderOnCreate priority prioritySortOrder projectId projectMilestoneId referenceCommentId \
    releaseIds slaBreachesAt slaStartedAt slaType sortOrder sourceCommentId sourcePullRequestCommentId \
    stateId subIssueSortOrder subscriberIds teamId templateId title useDefaultTemplate";
const UPDATE: &str = "addedLabelIds addedReleaseIds assigneeId autoClosedByParentClosing cycleId delegateId description \
    descriptionData dueDate estimate inheritsSharedAccess labelIds lastAppliedTemplateId parentId \
    priority prioritySortOrder projectId projectMilestoneId releaseIds removedLabelIds removedReleaseIds \
    slaBreachesAt slaStartedAt slaType snoozedById snoozedUntilAt sortOrder stateId subIssueSortOrder \
    subscriberIds teamId title trashed trusted";
const COMMENT: &str = "body bodyData createAsUser createOnSyncedSlackThread createdAt displayIconUrl doNotSubscribeToIssue \
    documentContentId id initiativeId initiativeUpdateId issueId parentId postId projectId \
    projectUpdateId quotedText subscriberIds";

/// The type of what a field leads to.
fn type_of(of: &str, field: &str) -> Option<&'static str> {
    Some(match field {
        "nodes" if of == "CommentConnection" => "Comment",
        "nodes" => "Issue",
        "issue" | "entity" => "Issue",
        "issues" => "IssueConnection",
        "pageInfo" => "PageInfo",
        "comment" => "Comment",
        "team" => "Team",
        "state" => "WorkflowState",
        "project" => "Project",
        "assignee" | "user" | "creator" => "User",
        _ => return None,
    })
}

pub struct Linear {
    token: String,
    issues: BTreeMap<String, Value>,
    comments: BTreeMap<String, Value>,
}

impl Linear {
    pub fn start(token: &str) -> Fake<Self> {
        let mut linear = Self { token: token.to_owned(), issues: BTreeMap::new(), comments: BTreeMap::new() };
        let input = json!({ "id": ISSUE, "teamId": TEAM, "title": "The first issue", "projectId": PROJECT });
        linear.create(&input).unwrap();
        Fake::new(linear)
    }

    pub fn issues(&self) -> Vec<&Value> {
        self.issues.values().collect()
    }

    pub fn issue(&self, id: &str) -> Option<&Value> {
        self.issues.get(id)
    }

    pub fn comments(&self) -> Vec<&Value> {
        self.comments.values().collect()
    }

    /// Lets time pass, in which nobody changes an issue.
    pub fn rest(&mut self) {
        self.issues.values_mut().for_each(|issue| issue["updatedAt"] = json!(LONG_AGO));
    }

    fn find(&self, id: &Value) -> Result<String, Value> {
        let id = id.as_str().unwrap_or_default();
        let is_it = |known: &&Value| known["id"] == id || known["identifier"] == id;
        let found = self.issues.values().find(is_it).and_then(|issue| issue["id"].as_str());
        found
            .map(str::to_owned)
            .ok_or_else(|| error("Entity not found: Issue", "INPUT_ERROR", "invalid input"))
    }

    fn create(&mut self, input: &Value) -> Result<String, Value> {
        check_input(input, CREATE)?;
        if input["teamId"] != TEAM {
            return Err(error("Entity not found: Team", "INPUT_ERROR", "invalid input"));
        }
        if input["title"].as_str().is_none_or(str::is_empty) {
            return Err(error("title should not be empty", "INPUT_ERROR", "invalid input"));
        }
        let number = self.issues.len() + 1;
        let id = match input["id"].as_str() {
            Some(id) if is_uuid_v4(id) => id.to_owned(),
            Some(_) => return Err(error("id must be a UUID", "INPUT_ERROR", "invalid input")),
            None => format!("0b1f5d5e-0000-4000-9000-{number:012x}"),
        };
        if self.issues.contains_key(&id) {
            return Err(error("Entity already exists: Issue", "INPUT_ERROR", "invalid input"));
        }
        let issue = json!({
            "__typename": "Issue", "id": id, "identifier": format!("ENG-{number}"), "number": number, "title": input["title"],
            "description": input["description"], "priority": input["priority"].as_f64().unwrap_or(0.0),
            "priorityLabel": "No priority", "url": format!("https://linear.app/acme/issue/ENG-{number}"),
            "createdAt": LONG_AGO, "updatedAt": LONG_AGO, "archivedAt": null,
            "team": { "id": TEAM, "name": "Engineering", "key": "ENG" }, "state": state(input["stateId"].as_str()),
            "assignee": user(&input["assigneeId"]), "project": project(&input["projectId"]),
            "labelIds": input["labelIds"].as_array().cloned().unwrap_or_default(), "reactionData": {}, "reactions": [],
            "previousIdentifiers": [], "branchName": format!("eng-{number}"), "boardOrder": 0, "sortOrder": 0,
            "prioritySortOrder": 0, "customerTicketCount": 0, "inheritsSharedAccess": false, "trashed": null,
            "sharedAccess": { "__typename": "IssueSharedAccess", "isShared": false, "sharedWithCount": 0,
                "viewerHasOnlySharedAccess": false, "disallowedIssueFields": [], "sharedWithUsers": [] },
            "syncedWith": [],
        });
        self.issues.insert(id.clone(), issue);
        Ok(id)
    }

    fn update(&mut self, id: &Value, input: &Value) -> Result<String, Value> {
        check_input(input, UPDATE)?;
        let id = self.find(id)?;
        let issue = self.issues.get_mut(&id).unwrap();
        for (name, value) in input.as_object().into_iter().flatten() {
            match name.as_str() {
                "stateId" => issue["state"] = state(value.as_str()),
                "assigneeId" => issue["assignee"] = user(value),
                "projectId" => issue["project"] = project(value),
                _ => issue[name.as_str()] = value.clone(),
            }
        }
        issue["updatedAt"] = json!(Timestamp::try_from(SystemTime::now()).unwrap().to_string());
        Ok(id)
    }

    fn comment(&mut self, input: &Value) -> Result<String, Value> {
        check_input(input, COMMENT)?;
        let issue = self.find(&input["issueId"])?;
        let id = match input["id"].as_str() {
            Some(id) if is_uuid_v4(id) => id.to_owned(),
            Some(_) => return Err(error("id must be a UUID", "INPUT_ERROR", "invalid input")),
            None => format!("0b1f5d5e-0000-4000-a000-{:012x}", self.comments.len() + 1),
        };
        if self.comments.contains_key(&id) {
            return Err(error("Entity already exists: Comment", "INPUT_ERROR", "invalid input"));
        }
        let comment = json!({
            "__typename": "Comment", "id": id, "body": input["body"], "issueId": issue, "issue": self.issues[&issue],
            "url": format!("https://linear.app/acme/issue#comment-{id}"), "user": user(&json!(USER)),
            "createdAt": "2026-01-01T00:00:00.000Z", "updatedAt": "2026-01-01T00:00:00.000Z", "archivedAt": null,
            "reactionData": {}, "reactions": [], "syncedWith": [],
        });
        self.comments.insert(id.clone(), comment);
        Ok(id)
    }

    fn list(&self, arguments: &Value) -> Result<Value, Value> {
        let first = match &arguments["first"] {
            Value::Null => 50,
            number @ (Value::Bool(_)
            | Value::Number(_)
            | Value::String(_)
            | Value::Array(_)
            | Value::Object(_)) => number.as_u64().filter(|n| (1..=250).contains(n)).ok_or_else(|| {
                error("first should not be greater than 250", "INPUT_ERROR", "invalid input")
            })?,
        };
        let wants = |name: &str| arguments["filter"][name]["id"]["eq"].as_str().map(str::to_owned);
        let (team, project) = (wants("team"), wants("project"));
        let id = arguments["filter"]["id"]["eq"].as_str();
        let with_archived = arguments["includeArchived"] == true;
        let is_wanted = |issue: &&&Value| {
            team.as_ref().is_none_or(|team| issue["team"]["id"] == team.as_str())
                && project.as_ref().is_none_or(|project| issue["project"]["id"] == project.as_str())
                && id.is_none_or(|id| issue["id"] == id)
                && (with_archived || issue["archivedAt"].is_null())
        };
        let mut all: Vec<_> = self.issues.values().collect();
        all.sort_by_key(|issue| issue["number"].as_u64());
        let found: Vec<_> = all.iter().filter(is_wanted).map(|issue| (*issue).clone()).collect();
        let after = arguments["after"]
            .as_str()
            .map(|cursor| found.iter().position(|issue| issue["id"] == cursor).map(|at| at + 1));
        let from = match after {
            Some(None) => return Err(error("Invalid cursor", "INPUT_ERROR", "invalid input")),
            Some(Some(from)) => from,
            None => 0,
        };
        let page: Vec<_> = found.iter().skip(from).take(usize::try_from(first).unwrap()).cloned().collect();
        let has_more = from + page.len() < found.len();
        let end = page.last().map(|issue| issue["id"].clone());
        let start = page.first().map(|issue| issue["id"].clone());
        Ok(json!({
            "nodes": page,
            "pageInfo": { "hasNextPage": has_more, "endCursor": end, "hasPreviousPage": from > 0, "startCursor": start },
        }))
    }

    /// The value of a field at the root, and whether it had an effect.
    fn root(
        &mut self,
        kind: &str,
        field: &Field,
        arguments: &Value,
    ) -> Result<(&'static str, Value, bool), Value> {
        let payload = |name: &str, entity: Value| json!({ "success": true, "lastSyncId": 1, name: entity });
        Ok(match (kind, field.name.as_str()) {
            ("query", "issue") => ("Issue", self.issues[&self.find(&arguments["id"])?].clone(), false),
            ("query", "issues") => ("IssueConnection", self.list(arguments)?, false),
            ("query", "comment") => {
                let found = arguments["id"].as_str().and_then(|id| self.comments.get(id));
                let missing = || error("Entity not found: Comment", "INPUT_ERROR", "invalid input");
                ("Comment", found.cloned().ok_or_else(missing)?, false)
            }
            ("query", "comments") => {
                let id = &arguments["filter"]["id"]["eq"];
                let found: Vec<_> = self.comments.values().filter(|known| known["id"] == *id).collect();
                ("CommentConnection", json!({ "nodes": found, "pageInfo": {} }), false)
            }
            ("query", "viewer") => ("User", user(&json!(USER)), false),
            ("mutation", "issueCreate") => {
                let id = self.create(&arguments["input"])?;
                ("IssuePayload", payload("issue", self.issues[&id].clone()), true)
            }
            ("mutation", "issueUpdate") => {
                let id = self.update(&arguments["id"], &arguments["input"])?;
                ("IssuePayload", payload("issue", self.issues[&id].clone()), true)
            }
            ("mutation", "issueArchive") => {
                let id = self.find(&arguments["id"])?;
                self.issues.get_mut(&id).unwrap()["archivedAt"] = json!("2026-01-02T00:00:00.000Z");
                ("IssueArchivePayload", payload("entity", self.issues[&id].clone()), true)
            }
            ("mutation", "commentDelete") => {
                let gone = arguments["id"].as_str().and_then(|id| self.comments.remove(id));
                let missing = || error("Entity not found: Comment", "INPUT_ERROR", "invalid input");
                let id = gone.ok_or_else(missing)?["id"].clone();
                ("DeletePayload", json!({ "success": true, "lastSyncId": 1, "entityId": id }), true)
            }
            ("mutation", "commentCreate") => {
                let id = self.comment(&arguments["input"])?;
                ("CommentPayload", payload("comment", self.comments[&id].clone()), true)
            }
            _ => {
                let root = if kind == "query" { "Query" } else { "Mutation" };
                return Err(invalid(&format!("Cannot query field \"{}\" on type \"{root}\".", field.name)));
            }
        })
    }

    fn execute(&mut self, body: &Value) -> Result<(Value, bool), (u16, Value)> {
        let refused = |why: String| (400, invalid(&why));
        let document = Document::parse(body["query"].as_str().unwrap_or_default()).map_err(refused)?;
        let [(kind, declared, selected)] = &document.operations[..] else {
            return Err(refused("Must provide one operation.".to_owned()));
        };
        let empty = Map::new();
        let variables = body["variables"].as_object().unwrap_or(&empty);
        for (name, wanted) in declared {
            if wanted.ends_with('!') && variables.get(name).is_none_or(Value::is_null) {
                let why = format!("Variable \"${name}\" of required type \"{wanted}\" was not provided.");
                return Err(refused(why));
            }
        }
        let (mut data, mut is_effect) = (Map::new(), false);
        for field in document.fields(selected).map_err(refused)? {
            // What cannot be selected is refused before anything happens.
            let kind_of = match field.name.as_str() {
                "issue" => "Issue",
                "issues" => "IssueConnection",
                "comment" => "Comment",
                "comments" => "CommentConnection",
                "commentDelete" => "DeletePayload",
                "viewer" => "User",
                "commentCreate" => "CommentPayload",
                "issueArchive" => "IssueArchivePayload",
                _ => "IssuePayload",
            };
            check(&document, kind_of, &field.selected).map_err(refused)?;
            let (of, value, effect) =
                self.root(kind, field, &field.arguments(variables)).map_err(|error| {
                    let is_invalid = error["extensions"]["code"] == "GRAPHQL_VALIDATION_FAILED";
                    (if is_invalid { 400 } else { 200 }, error)
                })?;
            is_effect |= effect;
            data.insert(field.alias.clone(), project_fields(&document, of, &value, &field.selected));
        }
        Ok((Value::Object(data), is_effect))
    }
}

/// Refuses fields that a type does not have.
fn check(document: &Document, of: &str, selected: &[Selection]) -> Result<(), String> {
    let known = TYPES.iter().find(|(name, _)| *name == of).map_or("", |(_, fields)| fields);
    for field in document.fields(selected)? {
        if field.name != "__typename" && !known.split_whitespace().any(|known| known == field.name) {
            return Err(format!("Cannot query field \"{}\" on type \"{of}\".", field.name));
        }
        if let Some(of) = type_of(of, &field.name).filter(|_| !field.selected.is_empty()) {
            check(document, of, &field.selected)?;
        }
    }
    Ok(())
}

fn project_fields(document: &Document, of: &str, value: &Value, selected: &[Selection]) -> Value {
    if let Value::Array(all) = value {
        return all.iter().map(|one| project_fields(document, of, one, selected)).collect();
    }
    if selected.is_empty() || value.is_null() {
        return value.clone();
    }
    let mut found = Map::new();
    for field in document.fields(selected).unwrap() {
        let value = match field.name.as_str() {
            "__typename" => json!(of),
            name => project_fields(
                document,
                type_of(of, name).unwrap_or("Unknown"),
                &value[name],
                &field.selected,
            ),
        };
        found.insert(field.alias.clone(), value);
    }
    Value::Object(found)
}

fn is_uuid_v4(text: &str) -> bool {
    let parts: Vec<_> = text.split('-').map(str::len).collect();
    let byte = |at: usize| text.as_bytes().get(at).copied().unwrap_or_default();
    parts == [8, 4, 4, 4, 12]
        && text.bytes().all(|byte| byte == b'-' || byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte))
        && byte(14) == b'4'
        && b"89ab".contains(&byte(19))
}

fn check_input(input: &Value, known: &str) -> Result<(), Value> {
    let unknown = input
        .as_object()
        .into_iter()
        .flatten()
        .find(|(name, _)| !known.split_whitespace().any(|known| known == name.as_str()));
    match unknown {
        Some((name, _)) => Err(invalid(&format!("Field \"{name}\" is not defined by type."))),
        None => Ok(()),
    }
}

fn state(id: Option<&str>) -> Value {
    let id = id.unwrap_or(STATE);
    json!({ "id": id, "name": if id == STATE_DONE { "Done" } else { "Todo" }, "type": "unstarted" })
}

fn user(id: &Value) -> Value {
    if id.is_null() { Value::Null } else { json!({ "id": id, "name": "Alice", "displayName": "alice" }) }
}

fn project(id: &Value) -> Value {
    if id.is_null() { Value::Null } else { json!({ "id": id, "name": "Launch" }) }
}

fn error(message: &str, code: &str, kind: &str) -> Value {
    json!({
        "message": message, "locations": [{ "line": 1, "column": 1 }],
        "extensions": { "type": kind, "code": code, "userError": true, "userPresentableMessage": message },
    })
}

fn invalid(message: &str) -> Value {
    error(message, "GRAPHQL_VALIDATION_FAILED", "graphql error")
}

impl Vendor for Linear {
    fn answer(&mut self, request: &Request) -> (Reply, bool) {
        let refused =
            |status, error: Value| (Reply::json(status, json!({ "errors": [error] }).to_string()), false);
        if request.method != "POST" || request.path != "/graphql" || !request.is_json() {
            return (Reply::json(404, "{}".to_owned()), false);
        }
        let who = request.header("authorization");
        if who.starts_with("Bearer ") {
            let why = "It looks like you're trying to use an API key as a Bearer token.";
            return refused(400, error(why, "INPUT_ERROR", "invalid input"));
        }
        if who != self.token {
            let why = "Authentication required, not authenticated";
            return refused(401, error(why, "AUTHENTICATION_ERROR", "authentication error"));
        }
        let body: Value = serde_json::from_str(&request.body).unwrap_or_default();
        match self.execute(&body) {
            Ok((data, is_effect)) => (Reply::json(200, json!({ "data": data }).to_string()), is_effect),
            Err((200, error)) => {
                (Reply::json(200, json!({ "errors": [error], "data": null }).to_string()), false)
            }
            Err((status, error)) => refused(status, error),
        }
    }

    fn refusal(&self, code: &str) -> Reply {
        let error = error("canary-words of the service", code, "invalid input");
        Reply::json(200, json!({ "errors": [error], "data": null }).to_string())
    }

    fn state(&self) -> Value {
        json!({ "issues": self.issues, "comments": self.comments })
    }
}
