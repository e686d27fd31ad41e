//! Gaps in logs and bundles: only what retention dropped and a signed head states may be missing.

use std::sync::Arc;
use std::time::Duration;

use effectd::contracts::{ManualClock, Timestamp};
use effectd::internal::{Config, Runtime};
use effectd_actors::operator::retention;
use effectd_bus::RetentionMode;
use serde_json::{Value, json};

use crate::harness::{Place, note, program};
use crate::receipts::{both_find, lines, place_with, python};

#[test]
fn bodies_cut_out_and_names_that_stand_twice_are_found() {
    let place = place_with(3);
    let export = place.effectd(&["receipts", "export", "--bundle", "log.jsonl"], None);
    assert_eq!(export.code(), 0, "{}", export.stderr());
    let bundle = std::fs::read_to_string(place.path("log.jsonl")).unwrap();
    let honest: Vec<String> = bundle.lines().map(str::to_owned).collect();
    let blank = |line: &String| {
        let mut line: Value = serde_json::from_str(line).unwrap();
        line.as_object_mut().unwrap().remove("entry");
        line.to_string()
    };
    for cut in [1..2, 4..5, 1..honest.len()] {
        let mut lines = honest.clone();
        lines[cut.clone()].iter_mut().for_each(|line| *line = blank(line));
        both_find(&place, &lines, &format!("entry {} has no body", cut.start - 1));
    }
    // Without the key nobody can state that retention dropped them.
    let mut lines = honest.clone();
    let mut first: Value = serde_json::from_str(&lines[0]).unwrap();
    first["head"]["kept_from"] = first["head"]["size"].clone();
    lines[0] = first.to_string();
    lines[1..].iter_mut().for_each(|line| *line = blank(line));
    both_find(&place, &lines, "it is not what was signed");

    let receipt = honest.iter().position(|line| line.contains("receipt_id")).unwrap();
    let twice = [
        ("\"status\":\"ok\"", "\"status\":\"error\",\"status\":\"ok\""),
        ("\"exec_ms\":", "\"exec_ms\":0,\"exec_ms\":"),
        ("\"index\":", "\"index\":0,\"index\":"),
    ];
    for (once, both) in twice {
        let mut lines = honest.clone();
        assert!(lines[receipt].contains(once), "{once}");
        lines[receipt] = lines[receipt].replacen(once, both, 1);
        both_find(&place, &lines, "appears twice");
    }
    let mut lines = honest.clone();
    let inside = r#""status":{"$serde_json::private::RawValue":"\"ok\""}"#;
    lines[receipt] = lines[receipt].replacen("\"status\":\"ok\"", inside, 1);
    both_find(&place, &lines, "does not match its hash");
    let mut lines = honest;
    lines[0] = lines[0].replacen("\"kept_from\":", "\"kept_from\":9,\"kept_from\":", 1);
    std::fs::write(place.path("twice.jsonl"), lines.join("\n") + "\n").unwrap();
    let head = place.effectd(&["receipts", "head"], None).stdout();
    let head = head.replacen("\"size\":", "\"size\":0,\"size\":", 1);
    std::fs::write(place.path("head.json"), head).unwrap();
    let listed = first_ok(&place);
    let proof = place.effectd(&["receipts", "proof", &listed], None).stdout();
    let proof = proof.replacen("\"status\":\"ok\"", "\"status\":\"error\",\"status\":\"ok\"", 1);
    std::fs::write(place.path("proof.json"), proof).unwrap();
    for arguments in [&["twice.jsonl"][..], &["--head", "head.json"], &["proof.json"]] {
        let refused = place.effectd(&[&["receipts", "verify"], arguments].concat(), None);
        assert_eq!(refused.code(), 2, "{arguments:?}: {}", refused.stdout());
        assert!(refused.stderr().contains("appears twice"), "{}", refused.stderr());
    }
    assert_eq!(python(&place.path("twice.jsonl")).0, 1);
}

fn first_ok(place: &Place) -> String {
    let listed = lines(&place.effectd(&["receipts", "list", "status:ok", "-o", "jsonl"], None));
    listed[0]["receipt_id"].as_str().unwrap().to_owned()
}

/// A runtime whose clock is that far in the past.
async fn days_ago(place: &Place, days: u64) -> Runtime {
    let then = Timestamp::now().checked_sub(Duration::from_secs(days * 86_400)).unwrap();
    let mut config = Config::embedded(place.state()).unwrap();
    config.zygote_exe = program().into();
    config.clock = Arc::new(ManualClock::at(then));
    Runtime::start(config).await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn only_what_the_head_says_is_missing_from_a_log() {
    let place = Place::new();
    let runtime = days_ago(&place, 200).await;
    for nth in 0..3 {
        runtime.exec(note(&format!("n-{nth}"), &format!("workspace/n-{nth}"), "text")).await;
        // What the sweeper does once an hour.
        retention::run(runtime.pipeline().services()).await.unwrap();
    }
    assert!(runtime.stop().await);
    let verify = |arguments: &[&str]| place.effectd(&[&["receipts", "verify"], arguments].concat(), None);
    let export = |name: &str| {
        let export = place.effectd(&["receipts", "export", "--bundle", name], None);
        assert_eq!(export.code(), 0, "{}", export.stderr());
    };
    let young = verify(&["-o", "json"]).json(0);
    assert_eq!((&young["gone"], &young["kept_from"]), (&json!(0), &json!(0)), "{young}");
    assert!(!verify(&[]).stdout().contains("retention"));
    let head = place.effectd(&["receipts", "head"], None).stdout();
    std::fs::write(place.path("head.json"), head).unwrap();
    export("young.jsonl");

    // 180 days later, step by step as a crash may leave it: expired; said by a signed head; dropped.
    let runtime = days_ago(&place, 10).await;
    runtime.exec(note("late", "workspace/late", "text")).await;
    let services = runtime.pipeline().services().clone();
    let expired = services.store.retain(&services.settings.retention, RetentionMode::Apply).unwrap();
    assert_eq!(expired.receipts, 3);
    drop(services);
    assert!(runtime.stop().await);
    for (name, gone) in [("said.jsonl", false), ("dropped.jsonl", true)] {
        if gone {
            let runtime = days_ago(&place, 10).await;
            retention::run(runtime.pipeline().services()).await.unwrap();
            assert!(runtime.stop().await);
        }
        export(name);
        for arguments in [&[][..], &[name]] {
            let report = verify(&[arguments, &["--head", "head.json", "-o", "json"]].concat()).json(0);
            let kept_from = report["kept_from"].as_u64().unwrap();
            assert!(kept_from >= 7, "a key, three intents, three receipts: {report}");
            assert_eq!(report["gone"], json!(if gone { kept_from } else { 0 }), "{report}");
        }
        let (code, told) = python(&place.path(name));
        assert_eq!(code, 0, "{told}");
    }
    let told = verify(&[]).stdout();
    assert!(told.contains("without their bodies: retention keeps those from entry"), "{told}");
    // A head that covers more than is there is not excused by a later retention.
    let read = |name: &str| std::fs::read_to_string(place.path(name)).unwrap();
    let (young, dropped) = (read("young.jsonl"), read("dropped.jsonl"));
    let size = young.lines().count();
    let mixed: Vec<String> =
        young.lines().take(1).chain(dropped.lines().take(size).skip(1)).map(str::to_owned).collect();
    both_find(&place, &mixed, "entry 0 has no body");
    // The key named by the first entry is kept beside the log, and its signatures verify.
    let check = place.effectd(&["store", "check"], None);
    assert_eq!(check.code(), 0, "{}", check.stderr());
    // A bundle of the end alone says nothing about a head from before.
    let from = verify(&["-o", "json"]).json(0)["size"].to_string();
    let end = ["receipts", "export", "--bundle", "end.jsonl", "--from", &from];
    assert_eq!(place.effectd(&end, None).code(), 0);
    let refused = verify(&["end.jsonl", "--head", "head.json"]);
    assert_eq!(refused.code(), 2, "{}", refused.stderr());
    assert!(refused.stderr().contains("export one with --from"), "{}", refused.stderr());
}
