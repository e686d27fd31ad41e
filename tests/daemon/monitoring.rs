//! Checks for monitoring: exit codes and formats; listing and replaying topics.

use effectd_actors::limits::HELD_PAGE;
use serde_json::{Value, json};

use crate::approvals::{asking, held};
use crate::harness::{Place, Serving, until, write_note};
use crate::seeding::{self, Left};

#[test]
fn checks_exit_with_monitoring_codes_in_every_format() {
    let place = asking();
    let left = (0..3).map(|n| Left {
        request: write_note(seeding::action(n).as_str(), &format!("c-{n}"), "x"),
        code: "tool_busy".to_owned(),
        detail: "the printer is on fire".to_owned(),
    });
    let aside = Left {
        request: write_note(seeding::action(3).as_str(), "c-3", "x"),
        code: "safety_quarantined".to_owned(),
        detail: "a key".to_owned(),
    };
    seeding::leave(&place, left.chain([aside]));
    let check = |arguments: &[&str]| {
        let ran = place.effectd(&[&["check"], arguments].concat(), None);
        (ran.code(), ran.stdout())
    };
    // No daemon runs.
    let (code, told) = check(&["dlq", "--format", "nagios"]);
    assert_eq!(code, 3, "{told}");
    assert!(told.starts_with("EFFECTD DLQ UNKNOWN - no daemon answers"), "{told}");
    let daemon = place.serve(&[]);
    held(&daemon, "h-1", "h.txt", "h");
    assert_eq!(place.effectd(&["breaker", "trip", "files.copy", "--yes"], None).code(), 0);
    for (what, warn, critical, code) in [
        ("dlq", "4", "9", 0),
        ("dlq", "3", "9", 1),
        ("dlq", "1", "3", 2),
        ("held", "2", "3", 0),
        ("held", "1", "3", 1),
        ("breakers", "2", "3", 0),
        ("breakers", "1", "1", 2),
        ("lag", "1000", "2000", 0),
        // How full a disk is depends on the machine; the thresholds are tested beside the code.
        ("disk", "100", "100", 2),
    ] {
        let (found, told) = check(&[what, "--warn", warn, "--critical", critical]);
        assert_eq!(found, code, "{what} {warn} {critical}: {told}");
    }
    // The daemon looks at its disk: the state may lie elsewhere, and be closed to who asks.
    let socket = place.socket();
    let disk = ["check", "disk", "--warn", "0", "--critical", "0", "--socket", socket.to_str().unwrap()];
    let elsewhere = place.effectd_on(&disk, None, |command| {
        command.current_dir("/");
    });
    assert_eq!(elsewhere.code(), 0, "{}", elsewhere.stdout());
    let thresholds = ["--warn", "2", "--critical", "9"];
    let (_, nagios) = check(&[&["dlq", "--format", "nagios"], &thresholds[..]].concat());
    assert_eq!(nagios, "EFFECTD DLQ WARNING - 3 dead letters | dlq=3;2;9;0\n");
    let (_, text) = check(&[&["dlq"], &thresholds[..]].concat());
    assert_eq!(text, "dlq WARNING: 3 dead letters (warn 2, critical 9)\n");
    let (_, one) = check(&["held", "--warn", "2", "--critical", "3"]);
    assert_eq!(one, "held OK: 1 approval is pending (warn 2, critical 3)\n");
    let (_, prometheus) = check(&[&["dlq", "--format", "prometheus"], &thresholds[..]].concat());
    assert!(prometheus.contains("effectd_check_status{check=\"dlq\"} 1\n"), "{prometheus}");
    assert!(prometheus.contains("effectd_check_value{check=\"dlq\"} 3\n"), "{prometheus}");
    let (_, value) = check(&[&["dlq", "--format", "json"], &thresholds[..]].concat());
    let value: Value = serde_json::from_str(&value).unwrap();
    assert_eq!((&value["status"], &value["value"]), (&json!("warning"), &json!(3)));
    // The daemon's metrics count them, too: from the start on, and when they go.
    drop(daemon);
    let daemon = place.serve(&[]);
    let letters = |failed: u32, quarantined: u32| {
        let page = daemon.get("/metrics").body;
        assert!(page.contains(&format!("effectd_dead_letters {failed}\n")), "{page}");
        assert!(page.contains(&format!("effectd_quarantined_actions {quarantined}\n")), "{page}");
    };
    letters(3, 1);
    assert_eq!(place.effectd(&["dlq", "drop", "0", "--yes"], None).code(), 0);
    letters(2, 1);
    assert_eq!(place.effectd(&["quarantine", "shred", "3", "--yes"], None).code(), 0);
    letters(2, 0);
}

#[test]
fn damage_that_a_read_meets_is_seen_by_monitoring() {
    use std::os::unix::fs::FileExt;
    let place = Place::seeded_in("files");
    let daemon = place.serve(&[]);
    let receipt = |action: &str| {
        let view = daemon.post("/v1/actions?wait=true", &write_note(action, action, "x")).json(200);
        view["receipt"]["receipt_id"].as_str().unwrap().to_owned()
    };
    let (first, second) = (receipt("d-1"), receipt("d-2"));
    let show = |id: &str| daemon.get(&format!("/v1/receipts/{id}")).status;
    let check = || place.effectd(&["check", "store"], None);
    // The store keeps the block that was read last.
    assert_eq!((show(&first), show(&second), check().code()), (200, 200, 0));
    assert!(daemon.get("/readyz").json(200)["store_damage"].is_null());
    let blocks = place.state().join("journal/segments/00000000000000000001.blocks");
    let bytes = std::fs::read(&blocks).unwrap();
    let at = bytes.windows(first.len()).position(|part| part == first.as_bytes()).unwrap();
    let file = std::fs::OpenOptions::new().write(true).open(&blocks).unwrap();
    file.write_all_at(b"?", at as u64).unwrap();
    // Other blocks can be read.
    until("a read meets the damage", || show(&second) == 200 && show(&first) != 200);
    let damage = daemon.get("/readyz").json(200)["store_damage"].clone();
    assert!(damage.as_str().unwrap().contains("of the journal"), "{damage}");
    assert!(daemon.get("/metrics").body.contains("effectd_store_damaged 1\n"));
    let checked = check();
    assert!(checked.code() == 2 && checked.stdout().contains("of the journal"), "{}", checked.stdout());
    let top = place.effectd(&["top", "--once", "-o", "json", "--every-ms", "100"], None).json(0);
    assert_eq!(top["store_damage"], damage);
}

#[test]
fn a_bundle_has_the_end_of_the_log_that_one_gives() {
    let place = Place::seeded();
    let log: String = (0..1_200).map(|n| format!("line {n}\n")).collect();
    std::fs::write(place.path("effectd.log"), &log).unwrap();
    let secret = ["support-bundle", "-", "--set", "gateway.socket=alices.sock", "--set", "sandbox.uid=54321"];
    for (file, stdin) in [("effectd.log", None), ("-", Some(log.as_str()))] {
        let bundle = place.effectd(&[&secret[..], &["--log-file", file]].concat(), stdin).json(0);
        let lines = bundle["log"].as_array().unwrap();
        assert_eq!((lines.len(), &lines[0], &lines[999]), (1_000, &json!("line 200"), &json!("line 1199")));
        // Values that name a path or a user stay out.
        assert!(!bundle.to_string().contains("alices"), "{bundle}");
        assert!(!bundle["settings"].to_string().contains("54321"), "{bundle}");
        let socket = json!({ "key": "gateway.socket", "value": "withheld", "origin": "flag" });
        assert!(bundle["settings"].as_array().unwrap().contains(&socket), "{}", bundle["settings"]);
    }
    let missing = place.effectd(&["support-bundle", "-", "--log-file", "nowhere.log"], None);
    assert_eq!(missing.code(), 2, "{}", missing.stderr());
    assert!(missing.stderr().contains("--log-file nowhere.log"), "{}", missing.stderr());
}

#[test]
fn letters_of_more_causes_than_are_told_are_all_counted() {
    const CAUSES: usize = 1_010;
    let place = Place::seeded();
    let letter = |n: usize| Left {
        request: write_note(seeding::action(n).as_str(), &format!("c-{n}"), "x"),
        code: format!("cause_{n}"),
        detail: "no matter".to_owned(),
    };
    seeding::leave(&place, (0..CAUSES).map(letter));
    let daemon = place.serve(&[]);
    let all = place.effectd(&["dlq", "causes", "-o", "json"], None).json(0);
    let all = all.as_array().unwrap();
    assert_eq!(all.len(), 1_001);
    let others = all.last().unwrap();
    assert_eq!((&others["code"], &others["count"]), (&json!("other_causes"), &json!(10)));
    let checked = place.effectd(&["check", "dlq", "--format", "json"], None).json(2);
    assert_eq!(checked["value"], CAUSES, "{checked}");
    assert_eq!(daemon.get("/v1/store").json(200)["dead_letters"], CAUSES);
    assert!(daemon.get("/metrics").body.contains(&format!("effectd_dead_letters {CAUSES}\n")));
}

#[test]
fn topics_are_told_replayed_and_exported_without_moving_anybody() {
    let place = Place::seeded();
    let daemon = place.serve(&[]);
    for n in 0..5 {
        let name = format!("b-{n}");
        assert_eq!(daemon.post("/v1/actions?wait=true", &write_note(&name, &name, "x")).status, 200);
    }
    let bus = |arguments: &[&str]| place.effectd(&[&["bus"], arguments].concat(), None);
    assert_eq!(bus(&["tail", "--group", "g", "--once"]).stdout().lines().count(), 5);
    let topics = bus(&["topics", "-o", "json"]).json(0);
    let topics: Vec<_> =
        topics.as_array().unwrap().iter().map(|topic| (&topic["topic"], &topic["end"])).collect();
    assert_eq!(topics, [(&json!("ACTION_DECISION"), &json!(5)), (&json!("ACTION_EXECUTED"), &json!(5))]);
    let part = bus(&["replay", "--from", "1", "--until", "3"]).stdout();
    let part: Vec<Value> = part.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!((&part[0]["subject"], &part[1]["subject"], part.len()), (&json!("b-1"), &json!("b-2"), 2));
    // Sealed values are not shown.
    let decisions = bus(&["export", "ACTION_DECISION"]).stdout();
    assert_eq!(decisions.lines().count(), 5);
    assert!(
        decisions.lines().all(|line| !line.contains("\"data\":") && line.contains("\"sealed\":true")),
        "{decisions}"
    );
    // Those of all topics, or of one.
    let groups = bus(&["groups", "-o", "json"]).json(0);
    let named = |row: &Value| (row["topic"].clone(), row["group"].clone());
    let all: Vec<_> = groups.as_array().unwrap().iter().map(named).collect();
    assert!(all.contains(&(json!("ACTION_DECISION"), json!("pipeline"))), "{groups}");
    let groups = bus(&["groups", "--topic", "ACTION_EXECUTED", "-o", "json"]).json(0);
    assert_eq!(
        groups,
        json!([{ "topic": "ACTION_EXECUTED", "group": "g", "offset": 5, "behind": 0, "end": 5 }])
    );
    assert!(all.contains(&named(&groups[0])), "{all:?}");
    // The move leaves an event, too.
    assert_eq!(bus(&["seek", "g", "--to", "start", "--yes"]).code(), 0);
    let lag = place.effectd(&["check", "lag", "--warn", "1"], None);
    let worst = "lag WARNING: 6 events behind: the group g of ACTION_EXECUTED (";
    assert!(lag.code() == 1 && lag.stdout().starts_with(worst), "{}", lag.stdout());
    let shown = place.effectd(&["config", "show", "store.", "-o", "json"], None).json(0);
    assert!(shown.as_array().unwrap().len() > 5, "{shown}");
    let set = ["config", "show", "gateway.backlog_max", "-o", "json", "--set", "gateway.backlog_max=7"];
    assert_eq!(place.effectd(&set, None).json(0)[0]["value"], "7");
}

#[test]
fn a_decision_that_cannot_be_taken_is_told_as_a_dead_letter_too() {
    let place = Place::seeded();
    let daemon = place.serve(&[]);
    assert_eq!(daemon.post("/v1/actions?wait=true", &write_note("d", "d", "x")).status, 200);
    assert_eq!(daemon.stop(), 0);
    seeding::publish_nonsense(&place);
    let daemon = place.serve(&[]);
    crate::harness::until("it is set aside", || {
        let told = daemon.get("/v1/store/topics/DEAD_LETTERS");
        told.body.contains("\"malformed\"") && told.body.contains("decision:1")
    });
    let causes = place.effectd(&["dlq", "causes", "-o", "json"], None).json(0);
    assert_eq!((&causes[0]["code"], &causes[0]["count"]), (&json!("malformed"), &json!(1)));
}

#[test]
fn questions_beyond_one_page_are_all_counted() {
    let place = asking();
    let daemon = place.serve(&[
        "--set",
        "approvals.per_session_max=1000",
        "--set",
        "control.session_actions_max=1000",
    ]);
    for n in 0..HELD_PAGE + 3 {
        held(&daemon, &format!("h-{n}"), &format!("h-{n}.txt"), "h");
    }
    let first = daemon.get("/v1/approvals").json(200);
    assert_eq!(first["approvals"].as_array().unwrap().len(), HELD_PAGE);
    let all = (HELD_PAGE + 3).to_string();
    let checked = place
        .effectd(&["check", "held", "--warn", &all, "--critical", "1000", "--format", "json"], None)
        .json(1);
    assert_eq!(checked["value"], HELD_PAGE + 3, "{checked}");
    let seen = place.effectd(&["top", "-o", "json", "--every-ms", "100"], None).json(0);
    assert_eq!(seen["held"].as_array().unwrap().len(), HELD_PAGE + 3);
    assert!(seen["held"][HELD_PAGE + 2]["expires_at"].is_string());
    let bundle = place.effectd(&["support-bundle", "-"], None).json(0);
    assert_eq!(bundle["questions_open"], HELD_PAGE + 3);
}
