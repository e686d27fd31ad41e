//! Notifications: shown once, by a real session bus where there is one, and their delivery can be read.

use std::process::Command;

use serde_json::{Value, json};

use crate::harness::{Daemon, Place, Serving, serve_with, until};
use crate::session_bus::{Answers, Bus, Shown};

fn notice(action: &str, title: &str, body: &str) -> Value {
    json!({
        "action_id": action, "subject_id": "agent://planner@deviceA", "space_id": "shared:household",
        "tool_id": "notify.local",
        "params": { "title": title, "body": body, "urgency": "critical", "space_id": "shared:household" },
        "policy_ctx": { "actor": "alice", "device": "phone1" },
    })
}

fn listed(place: &Place) -> Vec<Value> {
    let listed = place.effectd(&["notifications", "list", "-o", "json"], None).json(0);
    listed.as_array().unwrap().clone()
}

/// The states of the deliveries, oldest first.
fn deliveries(place: &Place) -> Vec<String> {
    let word = |view: &Value| view["delivery"].as_str().unwrap().to_owned();
    listed(place).iter().map(word).collect()
}

fn in_session(place: &Place, bus: &Bus) -> Daemon {
    let environment = [("DBUS_SESSION_BUS_ADDRESS", bus.address.as_str())];
    serve_with(place, &[], &environment)
}

fn send(daemon: &Daemon, request: &Value) -> String {
    let told = daemon.post("/v1/actions?wait=60000", request).json(200);
    assert_eq!(told["receipt"]["outcome"], "executed", "{told}");
    assert_eq!(told["receipt"]["outputs"]["can_be_unsent"], false, "{told}");
    told["receipt"]["receipt_id"].as_str().unwrap().to_owned()
}

fn shown(title: &str, body: &str) -> Shown {
    let from = "— agent://planner@deviceA";
    Shown {
        program: "effectd".to_owned(),
        title: title.to_owned(),
        body: if body.is_empty() { from.to_owned() } else { format!("{body}\n{from}") },
        urgency: 2,
    }
}

#[test]
fn a_session_bus_shows_a_notification_once_despite_kills() {
    let place = Place::seeded();
    let bus = Bus::start(&place);
    let daemon = in_session(&place, &bus);
    // This bus has no notification service yet: the delivery waits, and says why.
    let first = send(&daemon, &notice("one", "Ready?", "<b>Washing</b> & drying"));
    let mut waits = Value::Null;
    // It is tried again and again; between two attempts it waits.
    until("it waits", || {
        let shown = place.effectd(&["notifications", "show", "-o", "json", &first], None);
        waits = shown.json(0);
        waits["delivery"] == "waiting" && waits["why"].is_string()
    });
    assert_eq!(waits["why"], "no program shows notifications on the session bus");
    assert_eq!((&waits["title"], &waits["body"]), (&json!("Ready?"), &json!("<b>Washing</b> & drying")));
    let desktop = bus.desktop(Answers::Each);
    assert_eq!(desktop.next(), shown("Ready?", "&lt;b&gt;Washing&lt;/b&gt; &amp; drying"));
    until("it is delivered", || deliveries(&place) == ["delivered"]);
    // A repeat is the same notification, and a dry run sends none.
    assert_eq!(send(&daemon, &notice("one", "Ready?", "<b>Washing</b> & drying")), first);
    let dry = place.effectd(&["tools", "try", "--dry-run", "-o", "json", "notify.local", "title=Dry"], None);
    assert_eq!(dry.json(0)["outcome"], "dry_run");
    // Delivered notifications are not delivered again; those sent without a desktop are delivered now.
    daemon.kill();
    let daemon = place.serve(&[]);
    send(&daemon, &notice("two", "Second", ""));
    until("it waits", || listed(&place)[1]["why"].is_string());
    daemon.kill();
    assert_eq!(deliveries(&place), ["delivered", "waiting"], "also without a daemon");
    let daemon = in_session(&place, &bus);
    assert_eq!(desktop.next(), shown("Second", ""));
    until("both are delivered", || deliveries(&place) == ["delivered", "delivered"]);
    assert_eq!(daemon.stop(), 0);
    assert!(desktop.is_quiet(), "something was shown twice, or was only tried out");
    // Its text is neither in a log nor in clear on disk.
    assert!(!place.log().contains("Ready?") && !place.log().contains("Washing"));
    let found = Command::new("grep").args(["-rlaF", "Washing"]).arg(place.state()).output();
    assert!(found.unwrap().stdout.is_empty());
    let undone = place.effectd(&["undo", &first], None);
    assert!(undone.code() == 1 && undone.stdout().contains("cannot be unsent"), "{}", undone.stdout());
}

#[test]
fn what_may_have_been_shown_is_not_shown_again() {
    let place = Place::seeded();
    let bus = Bus::start(&place);
    let desktop = bus.desktop(Answers::Never);
    let daemon = in_session(&place, &bus);
    send(&daemon, &notice("one", "Once", ""));
    assert_eq!(desktop.next(), shown("Once", ""));
    assert_eq!(deliveries(&place), ["sending"]);
    daemon.kill();
    drop(desktop);
    let desktop = bus.desktop(Answers::Each);
    let daemon = in_session(&place, &bus);
    until("it is settled", || deliveries(&place) == ["unknown"]);
    assert!(listed(&place)[0]["why"].as_str().unwrap().contains("may have been shown"));
    // Later ones are shown.
    send(&daemon, &notice("two", "Twice", ""));
    assert_eq!(desktop.next(), shown("Twice", ""));
    until("it is delivered", || deliveries(&place) == ["unknown", "delivered"]);
    assert!(desktop.is_quiet());
    assert_eq!(daemon.stop(), 0);
}

#[test]
fn notifications_work_without_a_daemon_and_the_oldest_expire() {
    let place = Place::seeded();
    let bus = Bus::start(&place);
    let desktop = bus.desktop(Answers::Each);
    let attempt = |title: &str| {
        let title = format!("title={title}");
        let arguments = ["tools", "try", "-o", "json", "notify.local", &title, "urgency=critical"];
        let ran = place.effectd_on(&arguments, None, |command| {
            command.env("DBUS_SESSION_BUS_ADDRESS", &bus.address);
            command.env("EFFECTD_NOTIFICATIONS_KEPT_MAX", "2");
            // It is delivered before the command ends, however long a machine stalls.
            command.env("EFFECTD_RUNTIME_STOP_GRACE_MS", "60000");
        });
        assert_eq!(ran.json(0)["outcome"], "executed");
    };
    assert!(listed(&place).is_empty());
    for title in ["a", "b", "c"] {
        attempt(title);
        assert_eq!(desktop.next(), shown(title, ""));
    }
    let titles: Vec<_> = listed(&place).iter().map(|view| view["title"].clone()).collect();
    assert_eq!(titles, ["b", "c"]);
    assert_eq!(deliveries(&place), ["delivered", "delivered"]);
    let table = place.effectd(&["notifications"], None);
    assert!(table.code() == 0 && table.stdout().starts_with("RECEIPT"), "{}", table.stdout());
    // With delivery turned off, it is only recorded.
    let off = place.effectd_on(&["tools", "try", "notify.local", "title=d"], None, |command| {
        command.env("DBUS_SESSION_BUS_ADDRESS", &bus.address);
        command.env("EFFECTD_NOTIFICATIONS_DESKTOP", "off");
    });
    assert_eq!(off.code(), 0, "{}", off.stderr());
    assert_eq!(deliveries(&place).last().unwrap(), "undelivered");
    assert!(desktop.is_quiet());
    let unknown = place.effectd(&["notifications", "show", "0199f6a2-5a4e-7c10-8d53-3f2b5f0c9a99"], None);
    assert_eq!(unknown.code(), 1, "{}", unknown.stderr());
}
