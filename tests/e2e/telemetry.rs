//! Telemetry: what logs and traces contain, and what they never contain.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, OnceLock};

use effectd::contracts::TraceParent;
use serde_json::{Value, json};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::layer::{Context, Layer, SubscriberExt};
use tracing_subscriber::registry::LookupSpan;

use crate::harness::{Place, Ran, Running, note, write_note};

const CANARY: &str = "canary-51d0c7e9";
const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";

/// Everything that a tracing subscriber gets in this process, at every level.
#[derive(Clone, Default)]
struct Everything(Arc<Mutex<Vec<BTreeMap<String, String>>>>);

#[derive(Default)]
struct Fields(BTreeMap<String, String>);

impl Visit for Fields {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.0.insert(field.name().to_owned(), value.to_owned());
    }

    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        self.0.insert(field.name().to_owned(), format!("{value:?}"));
    }
}

impl<S: Subscriber + for<'a> LookupSpan<'a>> Layer<S> for Everything {
    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        let mut fields = Fields::default();
        attributes.record(&mut fields);
        fields.0.insert("name".to_owned(), attributes.metadata().name().to_owned());
        context.span(id).unwrap().extensions_mut().insert(fields);
    }

    fn on_record(&self, id: &Id, values: &Record<'_>, context: Context<'_, S>) {
        let span = context.span(id).unwrap();
        values.record(span.extensions_mut().get_mut::<Fields>().unwrap());
    }

    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let mut fields = Fields::default();
        event.record(&mut fields);
        self.0.lock().unwrap().push(fields.0);
    }

    fn on_close(&self, id: Id, context: Context<'_, S>) {
        let span = context.span(&id).unwrap();
        let fields = span.extensions_mut().remove::<Fields>().unwrap();
        self.0.lock().unwrap().push(fields.0);
    }
}

/// The one subscriber of this process.
fn everything() -> &'static Everything {
    static ALL: OnceLock<Everything> = OnceLock::new();
    ALL.get_or_init(|| {
        let all = Everything::default();
        tracing::subscriber::set_global_default(tracing_subscriber::registry().with(all.clone())).unwrap();
        all
    })
}

fn logged(place: &Place, request: &Value, environment: &[(&str, &str)]) -> (Ran, Vec<Value>) {
    let ran = place.effectd_on(
        &["run", "-", "-o", "json", "--log", "json"],
        Some(&request.to_string()),
        |command| {
            command.env("EFFECTD_LOG", "trace").envs(environment.iter().copied());
        },
    );
    let told = ran.stderr();
    let lines = told
        .lines()
        .filter(|line| line.starts_with('{'))
        .map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{line}: {error}")));
    let lines = lines.collect();
    (ran, lines)
}

#[tokio::test(flavor = "multi_thread")]
async fn the_span_of_an_action_has_our_names_and_those_of_the_field() {
    let told = everything();
    let place = Place::new();
    let runtime = place.runtime().await;
    let mut request = note("spanned", "workspace/spanned", CANARY);
    request.trace_id = None;
    request.traceparent = Some(TraceParent::new(&format!("00-{TRACE}-b7ad6b7169203331-01")).unwrap());
    let done = runtime.exec(request).await;
    let mut refused = note("spanned-refused", "workspace/refused", CANARY);
    refused.subject_id = "agent://stranger".parse().unwrap();
    runtime.exec(refused).await;
    runtime.stop().await;
    let effectd_actors::Answer::Done(done) = done else { panic!("{done:?}") };
    let context = done.receipt.trace_context.as_ref().unwrap();
    let all = told.0.lock().unwrap().clone();
    let span = |action: &str| {
        let ours = |fields: &&BTreeMap<String, String>| {
            fields.get("name").is_some_and(|name| name == "action.exec") && fields["action_id"] == action
        };
        all.iter().find(ours).unwrap_or_else(|| panic!("no span of {action}"))
    };
    let permitted = span("spanned");
    let expected = [
        ("trace_id", TRACE),
        ("span_id", context.traceparent.span()),
        ("parent_span_id", "b7ad6b7169203331"),
        ("tool_id", "files.write_text"),
        ("space_id", "shared:household"),
        ("retry", "0"),
        ("outcome", "executed"),
        ("caps", "files.write,workspace:shared:write"),
        ("sandbox_profile", "default"),
        ("gen_ai.operation.name", "execute_tool"),
        ("gen_ai.tool.name", "files.write_text"),
        ("gen_ai.tool.call.id", "spanned"),
    ];
    for (name, value) in expected {
        assert_eq!(permitted.get(name).map(String::as_str), Some(value), "{name}: {permitted:?}");
    }
    assert_eq!(permitted.get("error.type"), None);
    assert_eq!(span("spanned-refused")["error.type"], "policy_denied");
    // Fields that are not public appear as digests, as in the receipt.
    let arguments: Value = serde_json::from_str(&permitted["gen_ai.tool.call.arguments"]).unwrap();
    assert_eq!(arguments, json!(done.receipt.inputs));
    assert_eq!(arguments["hmac_sha256_text"].as_str().map(str::len), Some(64), "{arguments}");
    assert!(all.len() > 20, "{}", all.len());
    for fields in &all {
        assert!(!format!("{fields:?}").contains(CANARY), "{fields:?}");
    }
    assert!(tracing::enabled!(Level::TRACE), "it was told everything");
}

/// Requests that end in every way possible without a misbehaving tool, each with a secret in its text.
fn endings() -> Vec<(Value, i32)> {
    let text = format!("my {CANARY} text");
    let with = |action: &str, change: &dyn Fn(&mut Value)| {
        let mut request = write_note(action, &format!("workspace/{action}"), &text);
        change(&mut request);
        request
    };
    vec![
        (with("fine", &|_| ()), 0),
        (with("dry", &|request| request["dry_run"] = json!(true)), 0),
        (with("denied", &|request| request["subject_id"] = json!("agent://stranger")), 3),
        (with("unknown", &|request| request["tool_id"] = json!("no.such")), 2),
        (with("unfit", &|request| request["params"]["text"] = json!([text])), 2),
        (with("surplus", &|request| request["params"]["more"] = json!(text)), 2),
        (with("outside", &|request| request["params"]["path"] = json!("../outside")), 2),
    ]
}

#[test]
fn no_line_of_the_log_tells_a_secret_and_each_has_its_trace() {
    let place = Place::new();
    for (request, code) in endings() {
        let (ran, lines) = logged(&place, &request, &[]);
        assert_eq!(ran.code(), code, "{request}: {}", ran.stderr());
        assert!(!ran.stderr().contains(CANARY), "{request}: {}", ran.stderr());
        // This is the only request: from its first stage on, every line of effectd is about it, but for those of upkeep.
        let is_ours = |line: &&Value| {
            let target = line["target"].as_str().unwrap_or_default();
            let is_upkeep = ["::sweeper", "::retention"].iter().any(|part| target.ends_with(part));
            target.starts_with("effectd") && !is_upkeep
        };
        let about: Vec<_> =
            lines.iter().filter(is_ours).skip_while(|line| line["message"] != "hop").collect();
        let named = about.iter().filter(|line| line["action_id"] == request["action_id"]);
        assert!(named.count() >= 3, "{request}: {}", ran.stderr());
        for line in about {
            assert_eq!(line["trace_id"], request["trace_id"], "{line}");
        }
    }
}

#[test]
fn an_action_joins_the_trace_its_program_was_started_in() {
    let place = Place::new();
    let mut request = write_note("under", "workspace/under", "x");
    request.as_object_mut().unwrap().remove("trace_id");
    let parent = format!("00-{TRACE}-b7ad6b7169203331-01");
    let environment = [("TRACEPARENT", parent.as_str()), ("TRACESTATE", "congo=t61")];
    let (ran, lines) = logged(&place, &request, &environment);
    let receipt = ran.json(0);
    assert_eq!(receipt["trace_id"], TRACE);
    let context = &receipt["trace_context"];
    assert_eq!(
        (&context["parent_id"], &context["tracestate"]),
        (&json!("b7ad6b7169203331"), &json!("congo=t61")),
        "{receipt}"
    );
    let told = lines.iter().find(|line| line["message"] == "action ended").unwrap();
    assert_eq!(told["parent_span_id"], "b7ad6b7169203331", "{told}");
    let events = place.effectd(&["store", "export", "ACTION_EXECUTED"], None);
    let event: Value = serde_json::from_str(events.stdout().trim()).unwrap();
    assert_eq!(
        (&event["traceparent"], &event["tracestate"]),
        (&context["traceparent"], &context["tracestate"]),
        "{event}"
    );
    // The receipt is still one that verifies.
    assert_eq!(place.effectd(&["receipts", "verify"], None).code(), 0);
}
