//! The tools of services, against answers in memory: what they ask, and what they make of an answer.

use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::sync::Mutex;

use effectd_contracts::exchange::FrameReader;
use effectd_contracts::{
    EffectMark, Exchange, ExchangeAnswer, ExchangeReply, Failure, Method, ProbeVerdict, RiskTier, Timestamp,
    ToolCall, Undoes,
};
use serde_json::Map;

use super::*;
use crate::side_channel::ToolChannel;
use crate::workspace::Workspace;

const ID: &str = "0b1f5d5e-1111-4222-8333-0123456789ab";

/// Answers in their order, and writes down what is asked.
#[derive(Debug, Default)]
struct Line {
    asked: Mutex<Vec<Exchange>>,
    answers: Mutex<VecDeque<ExchangeAnswer>>,
    read: Mutex<Option<FrameReader>>,
}

impl ToolChannel for Line {
    fn send_piece(&self, _: u8, bytes: &[u8]) -> io::Result<()> {
        let mut reader = self.read.lock().unwrap().take().unwrap_or_else(FrameReader::of_exchanges);
        match reader.add(bytes).unwrap() {
            Some((lengths, rest)) => {
                self.asked.lock().unwrap().push(Exchange::from_frame(lengths, rest).unwrap());
            }
            None => *self.read.lock().unwrap() = Some(reader),
        }
        Ok(())
    }

    fn receive_piece(&self) -> io::Result<Vec<u8>> {
        let answer = self.answers.lock().unwrap().pop_front().ok_or(io::ErrorKind::UnexpectedEof)?;
        Ok(ExchangeReply::Answered(answer).to_frame().unwrap())
    }
}

fn answer(status: u16, body: &Value) -> ExchangeAnswer {
    ExchangeAnswer { status, headers: Vec::new(), body: body.to_string().into_bytes() }
}

fn call(tool: &dyn Tool, mode: CallMode, params: &Value) -> ToolCall {
    let call = TestSpace::new().call(tool, mode, params.clone());
    let since = Timestamp::from_second(1_700_000_000).unwrap();
    ToolCall { mark: Some(EffectMark { id: ID.to_owned(), since }), ..call }
}

/// What a call comes to with these answers, and what it asked.
fn answered(call: &ToolCall, answers: &[ExchangeAnswer]) -> (ToolReply, Vec<Exchange>) {
    let line = Line { answers: Mutex::new(answers.to_vec().into()), ..Line::default() };
    let folder = tempfile::tempdir().unwrap();
    let root = File::open(folder.path()).unwrap();
    let workspace = Workspace::new(root.as_fd(), root.as_fd()).with_side_channel(&line);
    let tool = find(&call.tool_id).unwrap();
    let reply = crate::answer(tool, &workspace, call);
    if let ToolReply::Done(output) = &reply {
        let schema = jsonschema::draft202012::new(&tool.spec().result_schema).unwrap();
        assert!(schema.is_valid(&output.result), "{}: {}", tool.id(), output.result);
    }
    let asked = line.asked.into_inner().unwrap();
    asked.iter().for_each(|asked| asked.check().unwrap());
    (reply, asked)
}

fn ran(
    tool: &dyn Tool,
    params: &Value,
    answers: &[ExchangeAnswer],
) -> (Result<Value, Failure>, Vec<Exchange>) {
    let (reply, asked) = answered(&call(tool, CallMode::Run, params), answers);
    match reply {
        ToolReply::Done(output) => (Ok(output.result), asked),
        ToolReply::Failed(failure) => (Err(failure), asked),
        other @ (ToolReply::Probed(_) | ToolReply::Previewed(_) | ToolReply::Verified(_)) => {
            panic!("{other:?}")
        }
    }
}

fn probed(tool: &dyn Tool, params: &Value, answers: &[ExchangeAnswer]) -> (ProbeVerdict, Vec<Exchange>) {
    let (reply, asked) = answered(&call(tool, CallMode::Probe, params), answers);
    match reply {
        ToolReply::Probed(verdict) => (verdict, asked),
        other @ (ToolReply::Done(_)
        | ToolReply::Failed(_)
        | ToolReply::Previewed(_)
        | ToolReply::Verified(_)) => panic!("{other:?}"),
    }
}

fn body(asked: &Exchange) -> Value {
    serde_json::from_slice(&asked.body).unwrap()
}

/// Each action with its risk, its required parameters and the optional ones.
#[test]
fn the_actions_are_those_of_the_tables() {
    let table = "
        linear.list_issues | read | | teamId projectId first after
        linear.get_issue | read | issueId |
        linear.create_issue | write | teamId title | description assigneeId stateId priority labelIds projectId
        linear.update_issue | write | issueId | title description assigneeId stateId priority
        linear.add_comment | write | issueId body |
        sentry.list_issues | read | organization_slug project_slug | query
        sentry.get_issue | read | issue_id |
        sentry.list_issue_events | read | issue_id |
        sentry.get_event | read | issue_id event_id |
        sentry.update_issue | write | issue_id | status assignedTo
        slack.send_message | write | channel text | thread_ts";
    let rows: Vec<Vec<&str>> =
        table.trim().lines().map(|line| line.split('|').map(str::trim).collect()).collect();
    for row in &rows {
        let [id, risk, required, optional] = row[..] else { panic!("{row:?}") };
        let tool = find(&id.parse().unwrap()).unwrap();
        let spec = tool.spec();
        assert_eq!(spec.level().as_str(), risk, "{id}");
        let set = |names: &str| names.split_whitespace().map(str::to_owned).collect::<BTreeSet<_>>();
        let named = |value: &Value| {
            value
                .as_array()
                .unwrap()
                .iter()
                .map(|name| name.as_str().unwrap().to_owned())
                .collect::<BTreeSet<_>>()
        };
        let all: BTreeSet<_> =
            spec.params_schema["properties"].as_object().unwrap().keys().cloned().collect();
        assert_eq!(named(&spec.params_schema["required"]), set(&format!("{required} space_id")), "{id}");
        assert_eq!(all, set(&format!("{required} {optional} space_id")), "{id}");
        assert_eq!((spec.idempotency_key_fields.as_ref(), spec.timeout_ms), (None, 30_000), "{id}");
        let guide = services().iter().find(|service| service.source == spec.tool_id.source()).unwrap().guide;
        assert!(guide.contains(&format!("--action {} ", spec.tool_id.action())), "{id}");
    }
    let ids: BTreeSet<_> =
        services().iter().flat_map(|service| service.tools).map(|tool| tool.id()).collect();
    let undo = ["linear.undo", "slack.undo"];
    assert_eq!(ids, rows.iter().map(|row| row[0]).chain(undo).collect());
    assert_eq!(find(&"slack.send_message".parse().unwrap()).unwrap().aliases(), ["slack.post_message"]);
}

#[test]
fn every_description_of_a_service_holds_its_rules() {
    for tool in services().iter().flat_map(|service| service.tools) {
        let spec = tool.spec();
        spec.check().unwrap();
        assert!(spec.description.contains("Use it") && spec.description.ends_with('.'), "{}", tool.id());
        for schema in [&spec.params_schema, &spec.result_schema] {
            jsonschema::draft202012::meta::validate(schema).unwrap();
            assert_eq!(schema["additionalProperties"], false, "{}", tool.id());
        }
        for (name, field) in spec.params_schema["properties"].as_object().unwrap() {
            let about = field["description"].as_str().unwrap_or_default();
            let is_short = (5..=120).contains(&about.len()) && about.ends_with('.');
            assert!(is_short || name == "space_id", "{}: {name}: {about:?}", tool.id());
        }
        let example = tool.example();
        assert!(jsonschema::draft202012::new(&spec.params_schema).unwrap().is_valid(&example), "{example}");
        tool.check(example.as_object().unwrap()).unwrap();
        if spec.level() == RiskLevel::Write {
            // Another call can make up for it.
            assert_eq!((spec.tier(), spec.compensation.is_none()), (RiskTier::R2, false), "{}", tool.id());
        }
    }
}

#[test]
fn pages_of_linear_have_at_most_fifty_issues() {
    let empty =
        answer(200, &json!({ "data": { "issues": { "nodes": [], "pageInfo": { "hasNextPage": false } } } }));
    for (first, asked) in
        [(json!({ "first": 500 }), 50), (json!({}), 50), (json!({ "first": 7, "teamId": ID }), 7)]
    {
        let (result, exchanges) = ran(&linear::ListIssues, &first, std::slice::from_ref(&empty));
        assert_eq!(result.unwrap()["issues"], json!([]));
        let [exchange] = &exchanges[..] else { panic!("{exchanges:?}") };
        assert_eq!((exchange.method, exchange.path.as_str()), (Method::Post, "/graphql"));
        let variables = body(exchange)["variables"].clone();
        assert_eq!(variables["first"], asked);
        assert_eq!(variables["filter"]["team"]["id"]["eq"].as_str(), first["teamId"].as_str());
        assert!(linear::ListIssues.only_reads(exchange));
    }
}

#[test]
fn only_the_fixed_queries_of_linear_count_as_reads() {
    let call = call(&linear::CreateIssue, CallMode::Run, &json!({ "teamId": ID, "title": "x" }));
    let create = Tool::exchange(&linear::CreateIssue, &call).unwrap().unwrap();
    let (_, asked) = probed(&linear::CreateIssue, &json!({ "teamId": ID, "title": "x" }), &[]);
    let [find] = &asked[..] else { panic!("{asked:?}") };
    let reads = |exchange: &Exchange| Tool::only_reads(&linear::CreateIssue, exchange);
    assert!(reads(find) && !reads(&create));
    let with = |text: String| Exchange { body: text.into_bytes(), ..find.clone() };
    let (query, mutation) = (body(find)["query"].to_string(), body(&create)["query"].to_string());
    for text in [
        format!(r#"{{"query":{query},"variables":{{}},"query":{mutation}}}"#),
        format!(r#"{{"query":{query},"variables":{{}},"operationName":"CreateIssue"}}"#),
        format!(r#"{{"query":{mutation},"variables":{{}}}}"#),
        format!(r#"[{{"query":{query},"variables":{{}}}}]"#),
        format!(r#"{{"query":{query}}}"#),
        "{".to_owned(),
    ] {
        assert!(!reads(&with(text.clone())), "{text}");
    }
    assert!(!reads(&Exchange { path: "/other".to_owned(), ..find.clone() }));
    assert!(!reads(&Exchange { method: Method::Put, ..find.clone() }));
    assert!(!Tool::only_reads(&slack::SendMessage, find));
}

#[test]
fn errors_of_linear_are_failures_with_a_short_code() {
    let failed = |status, answered: Value| {
        let params = json!({ "teamId": ID, "title": "canary" });
        let failure = ran(&linear::CreateIssue, &params, &[answer(status, &answered)]).0.unwrap_err();
        assert!(!failure.message.contains("canary"), "{failure}");
        (failure.code, failure.message)
    };
    let error = |code: &str, path: Value| json!({ "message": "canary is no title", "path": path, "extensions": { "code": code, "type": "canary" } });
    let refused = (Code::ServiceRefused, "Linear API Error: INPUT_ERROR".to_owned());
    let at_root = error("INPUT_ERROR", json!(["issueCreate"]));
    assert_eq!(failed(200, json!({ "errors": [at_root], "data": null })), refused);
    assert_eq!(failed(400, json!({ "errors": [error("INPUT_ERROR", Value::Null)] })), refused);
    // The issue may have been created, and only its team could not be told.
    let beneath = error("INPUT_ERROR", json!(["issueCreate", "issue", "team"]));
    assert_eq!(failed(200, json!({ "errors": [beneath], "data": null })).0, Code::ToolFailed);
    let partial =
        json!({ "errors": [error("X", json!(["a"]))], "data": { "issueCreate": { "success": true } } });
    assert_eq!(failed(200, partial).0, Code::ToolFailed);
    let inside = error("INTERNAL_SERVER_ERROR", json!(["issueCreate"]));
    assert_eq!(failed(200, json!({ "errors": [inside] })).0, Code::ToolFailed);
    // What nobody knows is no refusal.
    let unknown = error("LOCK_TIMEOUT", json!(["issueCreate"]));
    assert_eq!(failed(200, json!({ "errors": [unknown], "data": null })).0, Code::ToolFailed);
    assert_eq!(
        failed(200, json!({ "errors": [error("FORBIDDEN", Value::Null), unknown] })).0,
        Code::ToolFailed
    );
    assert_eq!(failed(400, json!({ "errors": [error("RATELIMITED", Value::Null)] })).0, Code::ToolBusy);
    assert_eq!(failed(429, json!({})).0, Code::ToolBusy);
    assert_eq!(failed(500, json!({})).0, Code::ToolFailed);
    let odd = error("canary\n", json!(["issueCreate"]));
    assert_eq!(failed(200, json!({ "errors": [odd] })).1, "Linear API Error: unknown");
    assert_eq!(failed(401, json!("no")), (Code::ServiceRefused, "Linear API Error: Unauthorized".to_owned()));
    for unreadable in [json!("It works"), json!({ "data": null }), json!({ "data": { "issueCreate": {} } })] {
        assert_eq!(failed(200, unreadable).0, Code::ToolFailed);
    }
}

#[test]
fn what_linear_creates_has_the_mark_and_is_found_by_it() {
    let params = json!({ "teamId": ID, "title": "Milk", "priority": 2, "labelIds": [ID] });
    let shown = Tool::exchange(&linear::CreateIssue, &call(&linear::CreateIssue, CallMode::Preview, &params));
    let input = body(&shown.unwrap().unwrap())["variables"]["input"].clone();
    let wanted = json!({ "id": ID, "teamId": ID, "title": "Milk", "priority": 2, "labelIds": [ID] });
    assert_eq!(input, wanted, "nothing that was left out is sent");
    let nodes = |nodes: Value| answer(200, &json!({ "data": { "issues": { "nodes": nodes } } }));
    for (answer, verdict) in [
        (nodes(json!([{ "id": ID }])), ProbeVerdict::Done),
        (nodes(json!([])), ProbeVerdict::NotDone),
        (nodes(json!([{ "id": "another" }])), ProbeVerdict::CannotSay),
        (answer(200, &json!({ "errors": [{}], "data": null })), ProbeVerdict::CannotSay),
        (answer(500, &json!({})), ProbeVerdict::CannotSay),
    ] {
        let (found, asked) = probed(&linear::CreateIssue, &params, &[answer.clone(), answer]);
        assert_eq!((found, body(&asked[0])["variables"]["id"].as_str()), (verdict, Some(ID)));
    }
    let late = [nodes(json!([])), nodes(json!([{ "id": ID }]))];
    assert_eq!(probed(&linear::CreateIssue, &params, &late).0, ProbeVerdict::Done);
}

fn issue_of_linear(title: &str, updated_at: &str) -> ExchangeAnswer {
    let issue = json!({ "id": ID, "identifier": "ENG-1", "title": title, "priority": 0, "url": "u", "createdAt": "c", "updatedAt": updated_at });
    answer(200, &json!({ "data": { "issue": issue } }))
}

#[test]
fn what_linear_has_already_is_done_and_what_is_gone_is_undone() {
    let exists = || {
        let error = json!({ "message": "already exists", "extensions": { "code": "INPUT_ERROR" } });
        answer(200, &json!({ "errors": [error], "data": null }))
    };
    let comments = |nodes: Value| answer(200, &json!({ "data": { "comments": { "nodes": nodes } } }));
    let create = json!({ "teamId": ID, "title": "Milk" });
    let (result, asked) = ran(&linear::CreateIssue, &create, &[exists(), issue_of_linear("Milk", "u")]);
    assert_eq!(result.unwrap()["issue"]["identifier"], "ENG-1");
    assert_eq!(body(&asked[1])["variables"], json!({ "id": ID }));
    let refused = ran(&linear::CreateIssue, &create, &[exists(), exists()]).0.unwrap_err();
    assert_eq!(refused.code, Code::ServiceRefused);
    let comment = json!({ "issueId": "ENG-1", "body": "x" });
    let (result, _) = ran(&linear::AddComment, &comment, &[exists(), comments(json!([{ "id": ID }]))]);
    assert_eq!(result.unwrap()["comment"]["id"], ID);
    let refused = ran(&linear::AddComment, &comment, &[exists(), comments(json!([]))]).0.unwrap_err();
    assert_eq!(refused.code, Code::ServiceRefused);
    let undo = call(&linear::Undo, CallMode::Run, &json!({ "receipt_id": "r" }));
    let undoes = Undoes {
        tool_id: "linear.add_comment".parse().unwrap(),
        mark: undo.mark.clone().unwrap(),
        inputs: Map::new(),
        outputs: Map::new(),
    };
    let undo = ToolCall { undoes: Some(Box::new(undoes)), ..undo };
    let (reply, _) = answered(&undo, &[exists(), comments(json!([]))]);
    assert!(matches!(&reply, ToolReply::Done(done) if done.result["already_gone"] == true), "{reply:?}");
    let (reply, _) = answered(&undo, &[exists(), comments(json!([{ "id": ID }]))]);
    assert!(
        matches!(&reply, ToolReply::Failed(failure) if failure.code == Code::ServiceRefused),
        "{reply:?}"
    );
}

#[test]
fn an_update_is_not_done_only_if_nothing_changed_since() {
    let params = json!({ "issueId": "ENG-1", "title": "Milk" });
    // The action is of 2023-11-14T22:13:20Z.
    for (title, updated_at, verdict) in [
        ("Milk", "2023-11-14T22:14:00.000Z", ProbeVerdict::Done),
        ("Bread", "2023-11-14T22:08:00.000Z", ProbeVerdict::NotDone),
        ("Bread", "2023-11-14T22:09:00.000Z", ProbeVerdict::CannotSay),
        ("Bread", "yesterday", ProbeVerdict::CannotSay),
    ] {
        let answer = issue_of_linear(title, updated_at);
        assert_eq!(
            probed(&linear::UpdateIssue, &params, &[answer.clone(), answer]).0,
            verdict,
            "{updated_at}"
        );
    }
}

#[test]
fn an_id_is_one_segment_of_a_path_of_sentry() {
    let found = json!({ "id": "7", "title": "x", "status": "resolved" });
    let (_, asked) = ran(&sentry::GetIssue, &json!({ "issue_id": "a/b?c" }), &[answer(200, &found)]);
    assert_eq!(asked[0].path, "/api/0/issues/a%2Fb%3Fc/");
    let params = json!({ "organization_slug": "a b", "project_slug": "ü", "query": "is:ignored" });
    let (_, asked) = ran(&sentry::ListIssues, &params, &[answer(200, &json!([found]))]);
    assert_eq!(asked[0].target(), "/api/0/projects/a%20b/%C3%BC/issues/?query=is%3Aignored");
    for id in ["..", ".", "../..", "%2e%2e"] {
        let params = json!({ "issue_id": id });
        let refused = Tool::check(&sentry::GetIssue, params.as_object().unwrap()).is_err();
        assert!(refused, "{id}");
    }
    let (_, asked) = ran(
        &sentry::UpdateIssue,
        &json!({ "issue_id": "7", "status": "resolved", "assignedTo": "user:3" }),
        &[answer(200, &found)],
    );
    assert_eq!((asked[0].method, asked[0].path.as_str()), (Method::Put, "/api/0/issues/7/"));
    assert_eq!(body(&asked[0]), json!({ "status": "resolved", "assignedTo": "user:3" }));
    for params in [json!({ "issue_id": "7", "status": "closed" }), json!({ "issue_id": "7" })] {
        assert!(Tool::check(&sentry::UpdateIssue, params.as_object().unwrap()).is_err(), "{params}");
    }
}

#[test]
fn sentry_refuses_by_the_text_of_its_status() {
    for (status, code, text) in [
        (404, Code::ServiceRefused, "Not Found"),
        (403, Code::ServiceRefused, "Forbidden"),
        (302, Code::ServiceRefused, "Redirect"),
        (429, Code::ToolBusy, "Too Many Requests"),
        (503, Code::ToolBusy, "Service Unavailable"),
        (500, Code::ToolFailed, "Internal Server Error"),
    ] {
        let told = answer(status, &json!({ "detail": "canary" }));
        let failure = ran(&sentry::GetIssue, &json!({ "issue_id": "7" }), &[told]).0.unwrap_err();
        assert_eq!((failure.code, failure.message), (code, format!("Sentry API Error: {text}")));
    }
    let params = |who: &str| json!({ "issue_id": "7", "status": "resolved", "assignedTo": who });
    let issue = |status: &str, email: Value| {
        let assigned = json!({ "type": "user", "id": "3", "name": "A", "email": email });
        answer(200, &json!({ "id": "7", "title": "x", "status": status, "assignedTo": assigned }))
    };
    let (email, nobody) = (json!("A@example.org"), json!({ "id": "7", "title": "x", "status": "resolved" }));
    for (who, answer, verdict) in [
        ("a@example.org", issue("resolved", email.clone()), ProbeVerdict::Done),
        ("a@example.org", issue("unresolved", email.clone()), ProbeVerdict::NotDone),
        ("b@example.org", issue("resolved", email.clone()), ProbeVerdict::NotDone),
        ("a@example.org", issue("resolved", Value::Null), ProbeVerdict::CannotSay),
        ("user:3", issue("resolved", Value::Null), ProbeVerdict::Done),
        ("team:3", issue("resolved", Value::Null), ProbeVerdict::NotDone),
        ("", issue("resolved", Value::Null), ProbeVerdict::NotDone),
        ("", answer(200, &nobody), ProbeVerdict::Done),
        // A name to log in with is not the one that is shown.
        ("alice", issue("resolved", email), ProbeVerdict::CannotSay),
        ("user:3", answer(404, &json!({})), ProbeVerdict::CannotSay),
    ] {
        let found = probed(&sentry::UpdateIssue, &params(who), &[answer.clone(), answer]).0;
        assert_eq!(found, verdict, "{who}");
    }
}

#[test]
fn slack_refuses_with_success_and_is_asked_for_the_mark() {
    let params = json!({ "channel": "C1", "text": "canary" });
    for (word, code, told) in [
        ("channel_not_found", Code::ServiceRefused, "channel_not_found"),
        ("missing_scope", Code::ServiceRefused, "missing_scope"),
        ("ratelimited", Code::ToolBusy, "ratelimited"),
        ("internal_error", Code::ToolFailed, "internal_error"),
        ("canary: no\r\n", Code::ServiceRefused, "unknown"),
    ] {
        let answer = answer(200, &json!({ "ok": false, "error": word }));
        let failure = ran(&slack::SendMessage, &params, &[answer]).0.unwrap_err();
        assert_eq!((failure.code, failure.message), (code, format!("Slack API Error: {told}")));
    }
    let sent = answer(200, &json!({ "ok": true, "channel": "C1", "ts": "1.2", "message": {} }));
    let (result, asked) = ran(&slack::SendMessage, &params, &[sent]);
    assert_eq!(result.unwrap(), json!({ "channel": "C1", "ts": "1.2" }));
    let metadata = json!({ "event_type": "effectd_action", "event_payload": { "id": ID } });
    assert_eq!(body(&asked[0]), json!({ "channel": "C1", "text": "canary", "metadata": metadata }));
    let page = |messages: Value, cursor: &str, has_more: bool| {
        let next = json!({ "next_cursor": cursor });
        answer(
            200,
            &json!({ "ok": true, "messages": messages, "has_more": has_more, "response_metadata": next }),
        )
    };
    let other = json!({ "ts": "9.1", "metadata": { "event_type": "effectd_action", "event_payload": { "id": "other" } } });
    let ours = json!({ "ts": "9.2", "metadata": metadata });
    for (answers, verdict) in [
        (vec![page(json!([other, ours]), "", false)], ProbeVerdict::Done),
        (vec![page(json!([other]), "next", true), page(json!([ours]), "", false)], ProbeVerdict::Done),
        (vec![page(json!([other]), "", false); 2], ProbeVerdict::NotDone),
        (vec![page(json!([]), "", false), page(json!([ours]), "", false)], ProbeVerdict::Done),
        (vec![page(json!([other]), "", true)], ProbeVerdict::CannotSay),
        (vec![answer(200, &json!({ "ok": false, "error": "missing_scope" }))], ProbeVerdict::CannotSay),
        (vec![page(json!([other]), "next", true); 8], ProbeVerdict::CannotSay),
    ] {
        let (found, asked) = probed(&slack::SendMessage, &params, &answers);
        assert_eq!((found, asked.len()), (verdict, answers.len()));
        assert_eq!(asked[0].query[1], ("oldest".to_owned(), "1699999700".to_owned()));
    }
}

/// The connection also allows what effectd itself asks, to keep its questions up to date.
#[test]
fn no_tool_of_slack_changes_a_message_or_whispers() {
    let known = json!({ "ok": true, "channel": "/api/chat.update", "ts": "1.2", "messages": [] });
    let params = json!({ "channel": "/api/chat.update", "text": "chat.postEphemeral", "thread_ts": "1.2" });
    let mut asked = ran(&slack::SendMessage, &params, &[answer(200, &known)]).1;
    asked.extend(probed(&slack::SendMessage, &params, &[answer(200, &known), answer(200, &known)]).1);
    let undo = call(&slack::Undo, CallMode::Run, &json!({ "receipt_id": "r" }));
    let (fields, mark) = (known.as_object().unwrap().clone(), undo.mark.clone().unwrap());
    let tool_id = "slack.send_message".parse().unwrap();
    let undoes = Some(Box::new(Undoes { tool_id, mark, inputs: fields.clone(), outputs: fields }));
    asked.extend(answered(&ToolCall { undoes, ..undo }, &[answer(200, &known)]).1);
    let paths: Vec<_> = asked.iter().map(|asked| asked.path.trim_start_matches("/api/")).collect();
    let replies = "conversations.replies";
    assert_eq!(paths, ["chat.postMessage", replies, replies, "chat.delete"]);
}

#[test]
fn an_undo_names_what_it_undoes_and_nothing_else() {
    let undo = |tool: &dyn Tool, of: &str, outputs: Value| {
        let call = call(tool, CallMode::Run, &json!({ "receipt_id": "r" }));
        let mark = call.mark.clone().unwrap();
        let inputs = json!({ "channel": "C1" }).as_object().unwrap().clone();
        let outputs = outputs.as_object().unwrap().clone();
        let undoes = Undoes { tool_id: of.parse().unwrap(), mark, inputs, outputs };
        ToolCall { undoes: Some(Box::new(undoes)), ..call }
    };
    let archive = undo(&linear::Undo, "linear.create_issue", json!({}));
    let done = answer(200, &json!({ "data": { "issueArchive": { "success": true } } }));
    let (reply, asked) = answered(&archive, &[done]);
    assert!(
        matches!(&reply, ToolReply::Done(done) if done.result["may_have_been_read"] == true),
        "{reply:?}"
    );
    assert!(body(&asked[0])["query"].as_str().unwrap().contains("issueArchive"));
    assert_eq!(body(&asked[0])["variables"], json!({ "id": ID }));
    let delete = undo(&linear::Undo, "linear.add_comment", json!({}));
    let shown = Tool::exchange(&linear::Undo, &delete).unwrap().unwrap();
    assert!(body(&shown)["query"].as_str().unwrap().contains("commentDelete"));

    let sent = undo(&slack::Undo, "slack.send_message", json!({ "channel": "C1", "ts": "1.2" }));
    let shown = Tool::exchange(&slack::Undo, &sent).unwrap().unwrap();
    assert_eq!(
        (shown.path.as_str(), body(&shown)),
        ("/api/chat.delete", json!({ "channel": "C1", "ts": "1.2" }))
    );
    // An undo that ran before its receipt was written finds nothing to delete.
    let gone = answer(200, &json!({ "ok": false, "error": "message_not_found" }));
    let (reply, _) = answered(&sent, &[gone]);
    assert!(matches!(&reply, ToolReply::Done(done) if done.result["already_gone"] == true), "{reply:?}");
    // The answer of the sending was lost, so its receipt has no ts.
    let lost = undo(&slack::Undo, "slack.send_message", json!({}));
    assert!(Tool::exchange(&slack::Undo, &lost).unwrap().is_none());
    let ours =
        json!({ "ts": "9.2", "metadata": { "event_type": "effectd_action", "event_payload": { "id": ID } } });
    let history = answer(200, &json!({ "ok": true, "messages": [ours] }));
    let (_, asked) = answered(&lost, &[history, answer(200, &json!({ "ok": true }))]);
    assert_eq!(body(&asked[1]), json!({ "channel": "C1", "ts": "9.2" }));
    let without = ToolCall { undoes: None, ..lost };
    assert!(
        matches!(answered(&without, &[]).0, ToolReply::Failed(failure) if failure.code == Code::UndoGone)
    );
}

#[test]
fn no_parameter_is_part_of_a_document() {
    let hostile = "\") { id } } mutation X { issueDelete(id: \"1";
    for (tool, params) in [
        (&linear::CreateIssue as &dyn Tool, json!({ "teamId": hostile, "title": hostile })),
        (&linear::UpdateIssue, json!({ "issueId": hostile, "title": hostile })),
        (&linear::AddComment, json!({ "issueId": hostile, "body": hostile })),
    ] {
        let asked = tool.exchange(&call(tool, CallMode::Preview, &params)).unwrap().unwrap();
        let sent: Map<String, Value> = serde_json::from_slice(&asked.body).unwrap();
        assert_eq!(sent.keys().collect::<Vec<_>>(), ["query", "variables"]);
        assert!(!sent["query"].as_str().unwrap().contains("issueDelete"), "{}", tool.id());
    }
}
