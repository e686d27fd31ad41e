//! Events: each consumer group reads and replays topics at its own pace, with and without a daemon.

use std::io::{BufRead, BufReader};
use std::process::Stdio;

use effectd_contracts::Timestamp;
use serde_json::Value;

use crate::harness::{Daemon, Place, Ran, Serving, write_note};

const EVENTS: usize = 100;

fn done(daemon: &Daemon, names: impl Iterator<Item = String>) {
    for name in names {
        daemon.post("/v1/actions?wait", &write_note(&name, &name, "e")).json(200);
    }
}

fn subjects(ran: &Ran) -> Vec<String> {
    assert_eq!(ran.code(), 0, "{}", ran.stderr());
    let text = ran.stdout();
    let events = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let mut events: Vec<Value> = events.collect();
    // Operations are events, too, under names that no tool has.
    events.retain(|event| !event["data"]["tool_id"].as_str().unwrap().starts_with("effectd."));
    for event in &events {
        assert_eq!(event["specversion"], "1.0", "{event}");
        assert_eq!(event["type"], "effectd.action.executed.v1", "{event}");
    }
    events.iter().map(|event| event["subject"].as_str().unwrap().to_owned()).collect()
}

/// Waits for the next millisecond: the store finds events by the millisecond.
fn next_millisecond() -> Timestamp {
    let last = Timestamp::now().as_millisecond();
    loop {
        let now = Timestamp::now();
        if now.as_millisecond() > last {
            return now;
        }
        std::hint::spin_loop();
    }
}

fn tail(place: &Place, more: &[&str]) -> Vec<String> {
    subjects(&place.effectd(&[&["events", "tail", "--once", "--yes"], more].concat(), None))
}

#[test]
fn groups_replay_by_offset_time_and_start_each_at_its_own_pace() {
    let place = Place::seeded();
    let daemon = place.serve(&[]);
    let names = |range: std::ops::Range<usize>| range.map(|n| format!("e-{n}"));
    let all: Vec<String> = names(0..EVENTS).collect();
    done(&daemon, names(0..EVENTS / 2));
    let between = next_millisecond().to_string();
    done(&daemon, names(EVENTS / 2..EVENTS));
    let whole = |place: &Place| {
        assert_eq!(tail(place, &["--group", "one"]), all);
        assert_eq!(tail(place, &["--group", "one"]), [""; 0], "it has read them");
        assert_eq!(tail(place, &["--group", "two"]), all, "the other has not");
        // Again from the start, an offset, a time.
        let seek = place.effectd(&["events", "seek", "one", "--to", "start", "--dry-run"], None);
        assert!(seek.stdout().contains("next offset") && seek.stdout().contains("-> 0"), "{}", seek.stderr());
        assert_eq!(tail(place, &["--group", "one"]), [""; 0], "nothing was moved");
        let seek = place.effectd(&["bus", "seek", "one", "--to", "start", "--yes"], None);
        assert!(seek.stdout().contains("receipt"), "{}", seek.stderr());
        assert_eq!(tail(place, &["--group", "one"]), all);
        // A group moves only when it is told to.
        let asked = place.effectd(&["events", "tail", "--once", "--group", "one", "--from", "97"], None);
        assert_eq!((asked.code(), asked.stdout().as_str()), (2, ""), "{}", asked.stderr());
        assert_eq!(tail(place, &["--group", "one"]), [""; 0], "nothing was moved");
        assert_eq!(tail(place, &["--group", "one", "--from", "97"]), all[97..]);
        assert_eq!(tail(place, &["--group", "one", "--from", &between]), all[EVENTS / 2..]);
        assert_eq!(tail(place, &["--group", "one", "--from", "1h"]), all);
        assert_eq!(tail(place, &["--group", "one", "--from", "end"]), [""; 0]);
        // Without a group no offset is stored.
        assert_eq!(tail(place, &["--from", "98"]), all[98..]);
        assert_eq!(tail(place, &["--from", &between]).len(), EVENTS / 2);
        assert_eq!(tail(place, &[]), all);
        let groups = place.effectd(&["events", "groups", "-o", "json"], None).json(0);
        let standing: Vec<_> =
            groups.as_array().unwrap().iter().map(|group| (&group["group"], &group["behind"])).collect();
        // Moving a group leaves an event, four times here, which the other group has not read.
        assert_eq!(standing, [(&"one".into(), &0.into()), (&"two".into(), &4.into())]);
    };
    whole(&place);
    for wrong in [&["events", "tail", "--from", "yesterday"][..], &["events", "seek", "one", "--to", "-"]] {
        let refused = place.effectd(wrong, None);
        assert_ne!(refused.code(), 0, "{wrong:?}");
        assert!(refused.stderr().contains("is not a position"), "{}", refused.stderr());
    }
    // Moving the pipeline's own group would repeat decisions.
    let own = ["events", "seek", "pipeline", "--to", "start", "--topic", "ACTION_DECISION"];
    let refused = place.effectd(&own, None);
    assert!(
        refused.code() != 0 && refused.stderr().contains("cannot be moved by hand"),
        "{}",
        refused.stderr()
    );
    for group in ["one", "two"] {
        daemon
            .ask("POST", &format!("/v1/store/topics/ACTION_EXECUTED/groups/{group}?to=start"), &[], "")
            .json(200);
    }
    daemon.kill();
    // The same without a daemon: offsets are in the store.
    whole(&place);
    let refused = place.effectd(&own, None);
    assert!(
        refused.code() != 0 && refused.stderr().contains("cannot be moved by hand"),
        "{}",
        refused.stderr()
    );
}

#[test]
fn events_have_one_shape_on_every_topic() {
    let place = Place::seeded();
    let daemon = place.serve(&[]);
    done(&daemon, (0..3).map(|n| format!("e-{n}")));
    let mut sources = std::collections::BTreeSet::new();
    for (topic, kind) in
        [("ACTION_EXECUTED", "effectd.action.executed.v1"), ("ACTION_DECISION", "effectd.action.decision.v1")]
    {
        let page = daemon.get(&format!("/v1/store/topics/{topic}")).json(200);
        let printed = place.effectd(&["bus", "tail", "--once", "--topic", topic], None);
        let printed: Vec<Value> =
            printed.stdout().lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!(page["events"].as_array().unwrap(), &printed, "{topic}");
        assert_eq!(printed.len(), 3, "{topic}");
        for (offset, event) in printed.iter().enumerate() {
            assert_eq!((&event["specversion"], &event["type"]), (&"1.0".into(), &kind.into()), "{event}");
            assert_eq!(
                (&event["offset"], &event["subject"]),
                (&offset.into(), &format!("e-{offset}").into())
            );
            assert!(event["id"].is_string() && event["time"].is_string(), "{event}");
            let sealed = topic == "ACTION_DECISION";
            assert_eq!((event.get("data").is_none(), event["sealed"] == true), (sealed, sealed), "{event}");
            sources.insert(event["source"].as_str().unwrap().to_owned());
        }
    }
    let source = sources.first().unwrap();
    assert!(sources.len() == 1 && source.starts_with("urn:uuid:"), "{sources:?}");
    // Another device has another name.
    let other = Place::seeded();
    let daemon = other.serve(&[]);
    done(&daemon, std::iter::once("e-0".to_owned()));
    let page = daemon.get("/v1/store/topics/ACTION_EXECUTED").json(200);
    assert_ne!(page["events"][0]["source"], source.as_str());
}

#[test]
fn an_unknown_topic_and_an_offset_beyond_the_end_are_errors() {
    let place = Place::seeded();
    let daemon = place.serve(&[]);
    done(&daemon, (0..3).map(|n| format!("e-{n}")));
    let answered = |path: &str, method: &str, (status, code): (u16, &str), said: &str| {
        let told = daemon.ask(method, path, &[], "").problem(status, code);
        assert!(told["detail"].as_str().unwrap().contains(said), "{told}");
    };
    let unknown = |path: &str, method: &str, said: &str| answered(path, method, (404, "not_found"), said);
    let refused = |path: &str, method: &str, said: &str| answered(path, method, (400, "query_invalid"), said);
    let topics = "/v1/store/topics";
    for path in ["action_execute", "ACTION_EXECUTE?wait_ms=60000", "action_executed/groups/one"] {
        unknown(&format!("{topics}/{path}"), "GET", "did you mean ACTION_EXECUTED?");
    }
    unknown(&format!("{topics}/nonsense/groups"), "GET", "there are ACTION_DECISION, ACTION_EXECUTED,");
    unknown(&format!("{topics}/ACTION_EXECUTE/groups/one?to=0"), "POST", "did you mean ACTION_EXECUTED?");
    // A name that no topic can have is a mistake of another kind.
    refused(&format!("{topics}/no%20name"), "GET", "must be letters");
    refused(&format!("{topics}/ACTION_EXECUTED?from=4&wait_ms=60000"), "GET", "which is 3");
    refused(&format!("{topics}/ACTION_EXECUTED/groups/one?to=4"), "POST", "beyond the end");
    refused("/v1/receipts?after=3&wait_ms=60000", "GET", "beyond the newest receipt, which is 2");
    assert_eq!(daemon.get("/v1/receipts?after=2").json(200)["follow"], 2);
    // The end itself is a place: the next event is there.
    assert_eq!(daemon.get(&format!("{topics}/ACTION_EXECUTED?from=3")).json(200)["next"], 3);
    // A topic that effectd writes is there before its first event.
    assert_eq!(daemon.get(&format!("{topics}/ARTIFACTS")).json(200)["end"], 0);
    for (arguments, said) in [
        (&["events", "tail", "--once", "--topic", "ACTON_EXECUTED"][..], "did you mean ACTION_EXECUTED?"),
        (&["events", "tail", "--once", "--from", "4"], "beyond the end"),
        (&["events", "seek", "one", "--to", "4", "--yes"], "beyond the end"),
        (&["events", "export", "ACTION_EXECUTED", "--from", "4"], "beyond the end"),
    ] {
        let refused = place.effectd(arguments, None);
        assert_eq!(refused.code(), 2, "{arguments:?}: {}", refused.stderr());
        assert!(refused.stderr().contains(said), "{}", refused.stderr());
    }
}

#[test]
fn a_killed_reader_misses_nothing_and_follows_over_a_restart() {
    let place = Place::seeded();
    let daemon = place.serve(&[]);
    done(&daemon, (0..3).map(|n| format!("e-{n}")));
    let follow = || {
        let mut reader =
            place.command(&["events", "tail", "--group", "learner"]).stderr(Stdio::null()).spawn().unwrap();
        let lines = BufReader::new(reader.stdout.take().unwrap()).lines();
        let (send, seen) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                let event: Value = serde_json::from_str(&line).unwrap();
                let _ = send.send(event["subject"].as_str().unwrap().to_owned());
            }
        });
        (reader, seen)
    };
    let (mut reader, seen) = follow();
    let next = || seen.recv_timeout(crate::harness::LONG).expect("the reader goes on");
    assert_eq!([next(), next(), next()], ["e-0", "e-1", "e-2"]);
    done(&daemon, std::iter::once("e-3".to_owned()));
    assert_eq!(next(), "e-3");
    daemon.kill();
    let daemon = place.serve(&[]);
    done(&daemon, std::iter::once("e-4".to_owned()));
    assert_eq!(next(), "e-4");
    reader.kill().unwrap();
    reader.wait().unwrap();
    // Events wait while nobody reads; events whose offset was not stored come again, in order and without a gap.
    done(&daemon, (5..8).map(|n| format!("e-{n}")));
    let rest = tail(&place, &["--group", "learner"]);
    let all: Vec<String> = (0..8).map(|n| format!("e-{n}")).collect();
    assert!(rest.len() >= 3 && all.ends_with(&rest), "{rest:?}");
    assert_eq!(tail(&place, &["--group", "learner"]), [""; 0]);
    // A reader that disconnects has not acknowledged.
    let broken = place.effectd_on(&["events", "tail", "--once", "--group", "deaf"], None, |command| {
        let (read, write) = std::io::pipe().unwrap();
        drop(read);
        command.stdout(write);
    });
    assert_eq!(broken.code(), 0, "{}", broken.stderr());
    assert_eq!(tail(&place, &["--group", "deaf"]), all);
    assert_eq!(daemon.stop(), 0);
}
