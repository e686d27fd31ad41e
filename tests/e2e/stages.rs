//! The stages of one request, as its trace shows them, and the supervision tree.

use serde_json::Value;

use crate::harness::{Place, Running, write_note};

fn stages(place: &Place, request: &Value) -> Vec<String> {
    let ran = place.effectd(&["run", "-", "--trace", "--log", "json"], Some(&request.to_string()));
    let lines: Vec<Value> = ran.stderr().lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
    let hops = lines.iter().filter(|line| line["message"] == "hop");
    hops.inspect(|line| assert_eq!(line["trace_id"], request["trace_id"], "{line}"))
        .map(|line| line["stage"].as_str().unwrap().to_owned())
        .collect()
}

#[test]
fn a_permitted_action_passes_all_five_stages_in_order() {
    let place = Place::new();
    let request = write_note("a", "workspace/x.txt", "hello");
    assert_eq!(stages(&place, &request), ["validator", "gate", "idempotency", "executor", "recorder"]);
    let other = write_note("b", "workspace/x.txt", "hello");
    assert_eq!(stages(&place, &other), ["validator", "gate", "idempotency", "recorder"], "done before");
}

#[test]
fn a_refusal_goes_straight_to_the_recorder() {
    let place = Place::new();
    let mut denied = write_note("a", "workspace/x.txt", "hello");
    denied["subject_id"] = "agent://stranger".into();
    assert_eq!(stages(&place, &denied), ["validator", "gate", "recorder"]);
    let mut unknown = write_note("b", "workspace/x.txt", "hello");
    unknown["tool_id"] = "no.such_tool".into();
    assert_eq!(stages(&place, &unknown), ["validator", "recorder"]);
}

#[test]
fn the_span_carries_what_operators_look_for() {
    let place = Place::new();
    let request = write_note("a", "workspace/x.txt", "hello");
    let ran = place.effectd(&["run", "-", "--trace", "--log", "json"], Some(&request.to_string()));
    let line = ran.stderr().lines().find(|line| line.contains("\"action ended\"")).unwrap().to_owned();
    let span = serde_json::from_str::<Value>(&line).unwrap();
    for (field, value) in
        [("tool_id", "files.write_text"), ("space_id", "shared:household"), ("sandbox_profile", "default")]
    {
        assert_eq!(span[field], value, "{span}");
    }
    assert_eq!(span["caps"], "files.write,workspace:shared:write");
    assert_eq!(span["retry"], 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn six_stages_and_two_actors_live_under_the_supervisor() {
    let place = Place::new();
    let runtime = place.runtime().await;
    let tree = runtime.pipeline().tree().await;
    let names: Vec<_> = tree.iter().map(|node| node.name).collect();
    assert!(tree[..6].iter().all(|stage| stage.workers > 0), "{tree:?}");
    assert_eq!(
        names,
        ["validator", "gate", "hold", "idempotency", "executor", "recorder", "intake", "sweeper"]
    );
    runtime.stop().await;
}
