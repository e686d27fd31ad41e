//! The daemon's log, and the spans that it sends to a collector.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::sync::mpsc;

use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::any_value::Value as Any;
use opentelemetry_proto::tonic::trace::v1::Span;
use serde_json::{Value, json};

use crate::harness::{LONG, Place, Serving, from_stranger, serve_with, until, write_note};

const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
const PARENT: &str = "b7ad6b7169203331";

/// The lines of the log; a panic's message is none.
fn lines(place: &Place) -> Vec<Value> {
    let log = place.log();
    log.lines().filter(|line| line.starts_with('{')).map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn an_action_has_one_line_at_info() {
    let place = Place::seeded();
    let daemon = place.serve(&[]);
    let traced = |mut request: Value| {
        request["trace_id"] = json!(TRACE);
        request
    };
    let done = daemon.post("/v1/actions?wait", &traced(write_note("l-1", "l.txt", "l"))).json(200);
    daemon.post("/v1/actions?wait", &traced(from_stranger("l-2"))).problem(403, "policy_denied");
    for change in [
        &["policy", "set-mode", "--org", "home", "--tool", "files.copy", "deny"][..],
        &["breaker", "trip", "files.copy"],
    ] {
        assert_eq!(place.effectd(&[change, &["--yes"]].concat(), None).code(), 0, "{change:?}");
    }
    assert_eq!(daemon.stop(), 0);
    let lines = lines(&place);
    let ours: Vec<_> = lines.iter().filter(|line| line["trace_id"] == TRACE).collect();
    assert_eq!(ours.len(), 2, "{ours:#?}");
    for (line, action, outcome, code) in
        [(ours[0], "l-1", "executed", Value::Null), (ours[1], "l-2", "denied_policy", json!("policy_denied"))]
    {
        let told = ["message", "action_id", "outcome", "code", "tool_id"].map(|field| line[field].clone());
        let expected =
            [json!("action ended"), json!(action), json!(outcome), code, json!("files.write_text")];
        assert_eq!(told, expected, "{line}");
        assert!(line["total_ms"].is_f64() && line["receipt_id"].is_string(), "{line}");
    }
    assert_eq!(ours[0]["receipt_id"], done["receipt"]["receipt_id"]);
    for line in &lines {
        assert!(line["target"].as_str().is_some_and(|target| target.starts_with("effectd")), "{line}");
        let text = line.to_string();
        assert!(!text.contains("Some(") && !text.contains(" { "), "{text}");
    }
}

#[test]
fn lines_of_an_action_that_lost_its_worker_have_its_trace() {
    for (point, fault, told) in [
        ("validator.begin:1", "panic", "a worker panicked and is replaced"),
        ("validator.begin:1", "stall", "a worker stalled"),
        ("intake.after_lease:1", "panic", "the action is tried again"),
    ] {
        let place = Place::seeded();
        let armed = [
            ("EFFECTD_FAILPOINT", point),
            ("EFFECTD_FAILPOINT_FAULT", fault),
            // A level at which most spans are off.
            ("EFFECTD_LOG", "warn"),
        ];
        let daemon = serve_with(&place, &["--set", "pipeline.lease_ttl_ms=1000"], &armed);
        let mut request = write_note("lost", "lost.txt", "l");
        request["trace_id"] = json!(TRACE);
        daemon.post("/v1/actions", &request).json(202);
        until(told, || place.log().contains(told) && place.log().contains("the action is tried again"));
        daemon.kill();
        // What the supervisor says is about an actor.
        let is_action = |line: &&Value| {
            let target = line["target"].as_str().unwrap();
            target.starts_with("effectd_actors") && target != "effectd_actors::supervisor"
        };
        for line in lines(&place).iter().filter(is_action) {
            assert_eq!((&line["trace_id"], &line["action_id"]), (&json!(TRACE), &json!("lost")), "{line}");
        }
    }
}

#[test]
fn the_change_of_a_breaker_names_the_action_behind_it() {
    let place = Place::seeded();
    let daemon = place.serve(&["--set", "control.breaker_failures_max=1", "--set", "log.level=warn"]);
    let mut count = 0;
    // A call that is quicker than its deadline opens nothing.
    until("the breaker opens", || {
        count += 1;
        let mut request = write_note(&format!("b-{count}"), &format!("b-{count}"), "b");
        request["trace_id"] = json!(TRACE);
        request["qos"] = json!({ "timeout_ms": 1, "circuit_breaker_key": "own" });
        daemon.post("/v1/actions?wait", &request);
        place.log().contains("a breaker opened")
    });
    let lines = lines(&place);
    let opened = lines.iter().find(|line| line["message"] == "a breaker opened").unwrap();
    assert_eq!((&opened["trace_id"], &opened["cause"]), (&json!(TRACE), &json!("failures")), "{opened}");
}

/// A collector of spans.
struct Collector(mpsc::Receiver<ExportTraceServiceRequest>);

impl Collector {
    fn start(at: SocketAddr) -> Self {
        let listener = TcpListener::bind(at).unwrap();
        let (send, received) = mpsc::channel();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = BufReader::new(stream.unwrap());
                let mut head = String::new();
                while !head.ends_with("\r\n\r\n") {
                    assert!(stream.read_line(&mut head).unwrap() > 0, "{head}");
                }
                assert!(head.starts_with("POST /v1/traces HTTP/1.1\r\n"), "{head}");
                assert!(head.contains("content-type: application/json\r\n"), "{head}");
                let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")).unwrap();
                let mut body = vec![0; length.parse().unwrap()];
                stream.read_exact(&mut body).unwrap();
                let answer = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\n{}";
                stream.get_mut().write_all(answer).unwrap();
                if send.send(serde_json::from_slice(&body).unwrap()).is_err() {
                    return;
                }
            }
        });
        Self(received)
    }

    /// The span of this action, once it has come.
    fn span_of(&self, action: &str) -> Span {
        loop {
            let request = self.0.recv_timeout(LONG).unwrap();
            let [resource] = request.resource_spans.try_into().unwrap();
            let name = &resource.resource.as_ref().unwrap().attributes[0];
            assert_eq!((name.key.as_str(), text(name.value.as_ref())), ("service.name", Some("effectd")));
            let spans = resource.scope_spans.into_iter().flat_map(|scope| scope.spans);
            let mut found = spans.filter(|span| attribute(span, "action_id").as_deref() == Some(action));
            if let Some(span) = found.next() {
                return span;
            }
        }
    }
}

fn text(value: Option<&opentelemetry_proto::tonic::common::v1::AnyValue>) -> Option<&str> {
    match value?.value.as_ref()? {
        Any::StringValue(text) => Some(text),
        Any::IntValue(_)
        | Any::BoolValue(_)
        | Any::DoubleValue(_)
        | Any::ArrayValue(_)
        | Any::KvlistValue(_)
        | Any::BytesValue(_)
        | Any::StringValueStrindex(_) => None,
    }
}

fn attribute(span: &Span, name: &str) -> Option<String> {
    let found = span.attributes.iter().find(|attribute| attribute.key == name)?;
    text(found.value.as_ref()).map(str::to_owned)
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn spans_reach_a_collector_and_no_action_waits_for_it() {
    let place = Place::seeded();
    // Nobody listens there yet, and no other test takes a port of this address meanwhile.
    let address = TcpListener::bind("127.83.17.5:0").unwrap().local_addr().unwrap();
    let otlp = format!("log.otlp=http://{address}");
    let daemon = place.serve(&["--set", &otlp, "--set", "log.level=warn"]);
    for action in ["s-1", "s-2", "s-3"] {
        daemon.post("/v1/actions?wait", &write_note(action, action, "s")).json(200);
    }
    until("the loss is told", || place.log().contains("the collector does not take all spans"));
    let collector = Collector::start(address);
    let (parent, note) = (format!("00-{TRACE}-{PARENT}-01"), write_note("s-4", "s-4", "s").to_string());
    let done = daemon.ask("POST", "/v1/actions?wait", &[("traceparent", parent.as_str())], &note).json(200);
    let span = collector.span_of("s-4");
    assert_eq!((span.name.as_str(), span.kind), ("action.exec", 1));
    assert_eq!((hex(&span.trace_id), hex(&span.parent_span_id)), (TRACE.to_owned(), PARENT.to_owned()));
    let own = format!("00-{TRACE}-{}-01", hex(&span.span_id));
    assert_eq!(done["receipt"]["trace_context"]["traceparent"], own);
    assert!(0 < span.start_time_unix_nano && span.start_time_unix_nano < span.end_time_unix_nano);
    for (name, value) in [
        ("tool_id", "files.write_text"),
        ("source_id", "files"),
        ("space_id", "shared:household"),
        ("organization_id", "home"),
        ("mode", "allow"),
        ("mode_source", "org_default"),
        ("status", "executed"),
        ("outcome", "executed"),
        ("gen_ai.operation.name", "execute_tool"),
        ("gen_ai.tool.name", "files.write_text"),
    ] {
        assert_eq!(attribute(&span, name).as_deref(), Some(value), "{span:?}");
    }
    assert!(span.attributes.iter().any(|it| {
        it.key == "retry" && it.value.as_ref().and_then(|it| it.value.clone()) == Some(Any::IntValue(0))
    }));
    assert!(span.attributes.iter().any(|it| {
        let value = it.value.as_ref().and_then(|it| it.value.clone());
        it.key == "duration_ms" && matches!(value, Some(Any::DoubleValue(took)) if took > 0.0)
    }));
    assert_eq!(span.status.unwrap().code, 0);
    daemon.post("/v1/actions?wait", &from_stranger("s-5")).problem(403, "policy_denied");
    let status = collector.span_of("s-5").status.unwrap();
    assert_eq!((status.code, status.message.as_str()), (2, "policy_denied"));
    assert_eq!(daemon.stop(), 0);
    let lines = lines(&place);
    let told = |message: &str| lines.iter().filter(|line| line["message"] == message).count();
    assert_eq!(told("the collector does not take all spans; the others are lost"), 1, "{lines:#?}");
    assert_eq!(told("the collector takes all spans again"), 1, "{lines:#?}");
    let lost = lines.iter().find(|line| line["message"] == "the collector takes all spans again").unwrap();
    assert!((1..=3).contains(&lost["lost"].as_u64().unwrap()), "{lost}");
}
