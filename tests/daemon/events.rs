//! Events: each consumer group reads and replays topics at its own pace, with and without a daemon.

use std::io::{BufRead, BufReader};
use std::process::Stdio;

use effectd_contracts::Timestamp;
use serde_json::Value;

use crate::harness::{Daemon, Place, Ran, Serving, program, root, until, write_note};

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
        let groups =
            place.effectd(&["events", "groups", "--topic", "ACTION_EXECUTED", "-o", "json"], None).json(0);
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

/// `bus tail` for the group `desk` with this shell command.
fn exec(place: &Place, more: &[&str], hook: &str) -> Ran {
    let tail = ["bus", "tail", "--group", "desk"];
    place.effectd(&[&tail[..], more, &["--exec", "sh", "-c", hook]].concat(), None)
}

fn written(place: &Place, name: &str) -> Vec<String> {
    let text = std::fs::read_to_string(place.path(name)).unwrap_or_default();
    text.lines().map(str::to_owned).collect()
}

#[test]
fn a_command_gets_each_event_until_it_succeeds() {
    let place = Place::seeded();
    let daemon = place.serve(&[]);
    done(&daemon, (0..3).map(|n| format!("e-{n}")));
    let ids: Vec<String> = {
        let events = place.effectd(&["bus", "replay"], None).stdout();
        let id = |line| serde_json::from_str::<Value>(line).unwrap()["id"].as_str().unwrap().to_owned();
        events.lines().map(id).collect()
    };
    // The first attempt fails. A command that calls effectd is not disturbed by its own environment.
    let hook = "[ $EFFECTD_EVENT_ATTEMPT -gt 1 ] || exit 3; cat >> events; echo $EFFECTD_EVENT_ID >> ids; \
                echo $EFFECTD_EVENT_TOPIC $EFFECTD_EVENT_GROUP $EFFECTD_EVENT_TYPE $EFFECTD_EVENT_OFFSET >> words; ";
    let hook = &format!("{hook} '{}' bus topics > topics", program());
    let ran = exec(&place, &["--once"], hook);
    assert_eq!(ran.code(), 0, "{}", ran.stderr());
    let failed = format!("attempt 1 of 8 for event {} failed: exit status: 3", ids[0]);
    assert!(ran.stderr().contains(&failed), "{}", ran.stderr());
    assert_eq!(written(&place, "ids"), ids);
    assert_eq!(written(&place, "words")[2], "ACTION_EXECUTED desk effectd.action.executed.v1 2");
    let events = place.effectd(&["bus", "replay"], None).stdout();
    assert_eq!(std::fs::read_to_string(place.path("events")).unwrap(), events);
    // Each event counts once.
    assert_eq!(exec(&place, &["--once"], hook).code(), 0);
    assert_eq!(written(&place, "ids").len(), 3);
    // What never succeeds, or takes too long, is skipped and named.
    done(&daemon, ["e-3".to_owned()].into_iter());
    let ran = exec(&place, &["--once", "--attempts", "1", "--timeout", "1"], "sleep 600");
    assert_eq!(ran.code(), 1, "{}", ran.stderr());
    for said in
        ["it took more than 1 s", "is skipped", "bus replay --topic ACTION_EXECUTED --from 3 --until 4"]
    {
        assert!(ran.stderr().contains(said), "{}", ran.stderr());
    }
    let groups = ["bus", "groups", "--topic", "ACTION_EXECUTED", "-o", "json"];
    let groups = place.effectd(&groups, None).json(0);
    assert_eq!((&groups[0]["group"], &groups[0]["behind"]), (&"desk".into(), &0.into()), "{groups}");
    // A group, a program and a daemon are needed.
    let no_group = place.effectd(&["bus", "tail", "--exec", "true"], None);
    assert!(no_group.code() == 2 && no_group.stderr().contains("--group"), "{}", no_group.stderr());
    done(&daemon, ["e-4".to_owned()].into_iter());
    let missing = place.effectd(&["bus", "tail", "--once", "--group", "desk", "--exec", "./none"], None);
    assert!(missing.code() == 2 && missing.stderr().contains("./none cannot be started"));
    // The learner that needs only the socket sees what the command line replays.
    let socket = place.socket();
    let mut learner = std::process::Command::new("python3");
    learner.arg(root().join("examples/learner.py")).arg("--from-bus").arg(&socket);
    let told = Ran(learner.output().unwrap());
    assert!(told.stdout().starts_with("files.write_text n=5 successes=5 "), "{}", told.stderr());
    assert_eq!(daemon.stop(), 0);
    let alone = exec(&place, &["--once"], hook);
    assert!(alone.code() == 75 && alone.stderr().contains("no daemon answers"), "{}", alone.stderr());
}

#[test]
fn a_killed_command_loop_repeats_and_a_stopped_one_does_not() {
    let place = Place::seeded();
    let daemon = place.serve(&[]);
    done(&daemon, (0..3).map(|n| format!("e-{n}")));
    // Killed before the command has ended: the event comes again.
    let killed = exec(&place, &[], "echo $EFFECTD_EVENT_OFFSET >> seen; kill -9 $PPID");
    assert_eq!(killed.code(), -1, "{}", killed.stderr());
    assert_eq!(written(&place, "seen"), ["0"]);
    // Stopped while the command runs: it ends, its event counts, and the next one is not begun.
    let stopped = exec(&place, &[], "kill -TERM $PPID; echo $EFFECTD_EVENT_OFFSET >> seen");
    assert_eq!(stopped.code(), 0, "{}", stopped.stderr());
    assert_eq!(written(&place, "seen"), ["0", "0"]);
    // Stopped between attempts: the event stays.
    let stopped = exec(&place, &[], "echo $EFFECTD_EVENT_OFFSET >> seen; kill -TERM $PPID; exit 1");
    assert_eq!(stopped.code(), 0, "{}", stopped.stderr());
    assert_eq!(written(&place, "seen"), ["0", "0", "1"]);
    // It goes on over a restart of the daemon, and while it waits it stops at once.
    let hook = "echo $EFFECTD_EVENT_OFFSET >> seen";
    let tail = ["bus", "tail", "--group", "desk", "--exec", "sh", "-c", hook];
    let mut tail = place.command(&tail).stderr(Stdio::null()).spawn().unwrap();
    until("it reads the rest", || written(&place, "seen").len() == 5);
    daemon.kill();
    let daemon = place.serve(&[]);
    done(&daemon, ["e-3".to_owned()].into_iter());
    until("it reads the new one", || written(&place, "seen").len() == 6);
    let pid = nix::unistd::Pid::from_raw(i32::try_from(tail.id()).unwrap());
    nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGTERM).unwrap();
    assert_eq!(tail.wait().unwrap().code(), Some(0));
    assert_eq!(written(&place, "seen"), ["0", "0", "1", "1", "2", "3"]);
    assert_eq!(daemon.stop(), 0);
}
