//! Listing receipts and following new ones.

use std::io::{BufRead, BufReader};
use std::process::Stdio;
use std::sync::mpsc;

use nix::sys::signal::Signal;
use serde_json::Value;

use crate::harness::{LONG, Place, Serving, from_stranger, write_note};
use crate::shared::{Terminal, program};

fn actions(list: &Value) -> Vec<&str> {
    let all = list.as_array().unwrap().iter();
    all.map(|receipt| receipt["action_id"].as_str().unwrap()).collect()
}

#[test]
fn receipts_are_listed_by_time_number_and_kind() {
    let place = Place::seeded();
    let daemon = place.serve(&[]);
    for number in 0..5 {
        let name = format!("l-{number}");
        daemon.post("/v1/actions?wait", &write_note(&name, &name, "l")).json(200);
    }
    daemon.post("/v1/actions?wait", &from_stranger("l-x"));
    let list = |more: &[&str]| {
        let ran = place.effectd(&[&["receipts", "list", "-o", "json"], more].concat(), None);
        ran.json(0)
    };
    assert_eq!(actions(&list(&[])), ["l-x", "l-4", "l-3", "l-2", "l-1", "l-0"]);
    assert_eq!(actions(&list(&["--limit", "2"])), ["l-x", "l-4"]);
    assert_eq!(actions(&list(&["--limit", "2", "--status", "ok"])), ["l-4", "l-3"]);
    assert_eq!(actions(&list(&["--since", "2999-01-01T00:00:00Z"])), [""; 0]);
    assert_eq!(actions(&list(&["--since", "1h", "--limit", "1"])), ["l-x"]);
    let one = list(&["--limit", "1"])[0].clone();
    let id = one["receipt_id"].as_str().unwrap();
    assert_eq!(place.effectd(&["receipts", "show", id, "-o", "json"], None).json(0), one);
    // The route itself, page by page.
    let first = daemon.get("/v1/receipts?limit=4").json(200);
    assert_eq!(actions(&first["receipts"]), ["l-0", "l-1", "l-2", "l-3"]);
    let rest = daemon.get(&format!("/v1/receipts?limit=4&after={}", first["next"])).json(200);
    assert_eq!(actions(&rest["receipts"]), ["l-4", "l-x"]);
    assert_eq!((&rest["next"], &rest["follow"]), (&Value::Null, &5.into()));
    // The index finds an action: the receipts before it do not count towards the page.
    let found = daemon.get("/v1/receipts?limit=1&q=action%3Al-3").json(200);
    assert_eq!((actions(&found["receipts"]), &found["next"]), (vec!["l-3"], &Value::Null));
    for wrong in ["since=yesterday", "status=good", "order=newest&wait_ms=5", "colour=red"] {
        daemon.get(&format!("/v1/receipts?{wrong}")).problem(400, "query_invalid");
    }
    assert_eq!(daemon.stop(), 0);
    // Without a daemon, from the store itself.
    assert_eq!(actions(&list(&["--limit", "2"])), ["l-x", "l-4"]);
    let table = place.effectd(&["receipts", "list", "--limit", "1"], None);
    assert!(table.stdout().starts_with("ENDED"), "{}", table.stdout());
    let watch = place.effectd(&["receipts", "list", "--watch"], None);
    assert_eq!(watch.code(), 2, "{}", watch.stderr());
    assert!(watch.stderr().contains("--watch needs a daemon"), "{}", watch.stderr());
}

#[test]
fn whoever_watches_sees_each_receipt_once_also_over_a_restart() {
    let place = Place::seeded();
    let daemon = place.serve(&[]);
    let done = |daemon: &crate::harness::Daemon, name: &str| {
        daemon.post("/v1/actions?wait", &write_note(name, name, "w")).json(200);
    };
    done(&daemon, "w-0");
    done(&daemon, "w-1");
    let mut watcher = place
        .command(&["receipts", "list", "--watch", "--limit", "1", "-o", "jsonl"])
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let output = BufReader::new(watcher.stdout.take().unwrap());
    let (send, seen) = mpsc::channel();
    std::thread::spawn(move || {
        for line in output.lines().map_while(Result::ok) {
            let receipt: Value = serde_json::from_str(&line).unwrap();
            let _ = send.send(receipt["action_id"].as_str().unwrap().to_owned());
        }
    });
    let next = || seen.recv_timeout(LONG).expect("the watcher goes on");
    assert_eq!(next(), "w-1");
    done(&daemon, "w-2");
    assert_eq!(next(), "w-2");
    daemon.kill();
    let daemon = place.serve(&[]);
    done(&daemon, "w-3");
    done(&daemon, "w-4");
    assert_eq!((next(), next()), ("w-3".to_owned(), "w-4".to_owned()));
    watcher.kill().unwrap();
    watcher.wait().unwrap();
    assert_eq!(daemon.stop(), 0);
}

#[test]
fn a_watched_list_shows_times_that_stay_true() {
    let place = Place::seeded();
    let daemon = place.serve(&[]);
    daemon.post("/v1/actions?wait", &write_note("w-0", "w-0", "w")).json(200);
    let terminal = Terminal::effectd(&place, &["receipts", "list", "--watch"], 120, 20);
    let screen = terminal.wait_for("w-0");
    let row = screen.lines().find(|line| line.contains("w-0")).unwrap();
    let digits: String = row.chars().map(|c| if c.is_ascii_digit() { '0' } else { c }).collect();
    assert!(digits.starts_with("00-00 00:00:00+00:00  executed "), "{screen}");
}

#[test]
fn long_work_shows_a_bar_at_a_terminal_and_nowhere_else() {
    let place = Place::seeded();
    let daemon = place.serve(&[]);
    daemon.post("/v1/actions?wait", &write_note("b", "b", "b")).json(200);
    // While the daemon hangs, the work takes as long as this test wants.
    daemon.signal(Signal::SIGSTOP);
    let verify = ["receipts", "verify"];
    let mut piped = place.command(&verify);
    let piped = piped.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let json = Terminal::effectd(&place, &["receipts", "verify", "-o", "json"], 80, 20);
    let dumb = Terminal::start(&place, &["env", "TERM=dumb", program(), "receipts", "verify"], 80, 20);
    let terminal = Terminal::effectd(&place, &verify, 80, 20);
    terminal.wait_for("verifying receipts");
    for quiet in [&json, &dumb] {
        assert_eq!(quiet.screen().trim(), "");
    }
    daemon.signal(Signal::SIGCONT);
    assert_eq!(terminal.ended(), "0");
    let screen = terminal.screen();
    assert!(screen.contains("whole:") && !screen.contains("verifying"), "{screen}");
    let ran = piped.wait_with_output().unwrap();
    assert!(ran.stdout.starts_with(b"whole:"), "{ran:?}");
    assert_eq!(String::from_utf8(ran.stderr).unwrap(), "");
}

#[test]
fn the_log_is_proved_exported_and_amended_through_the_daemon() {
    let place = Place::seeded();
    let daemon = place.serve(&[]);
    for number in 0..3 {
        let name = format!("p-{number}");
        daemon.post("/v1/actions?wait", &write_note(&name, &name, "p")).json(200);
    }
    let listed = place.effectd(&["receipts", "list", "action:p-1", "-o", "json"], None);
    let listed = listed.json(0);
    assert_eq!(actions(&listed), ["p-1"]);
    let id = listed[0]["receipt_id"].as_str().unwrap();
    let query = daemon.get("/v1/receipts?q=action%3Ap-*%20-action%3Ap-1").json(200);
    assert_eq!(actions(&query["receipts"]), ["p-0", "p-2"]);
    let wrong = daemon.get("/v1/receipts?q=stats%3Aok").json(400);
    assert!(wrong["detail"].as_str().unwrap().contains("unknown condition"), "{wrong}");
    let told = |arguments: &[&str]| {
        let ran = place.effectd(arguments, None);
        assert_eq!(ran.code(), 0, "{arguments:?}: {}", ran.stderr());
        assert!(!ran.stderr().contains("no daemon answers"), "{}", ran.stderr());
        ran.stdout()
    };
    told(&["receipts", "amend", id, "--success", "false", "--yes", "-o", "json"]);
    let amended = daemon.get(&format!("/v1/receipts/{id}/amendments")).json(200);
    assert_eq!(amended[0]["success"], false, "{amended}");
    let shown = told(&["receipts", "show", "p-1"]);
    assert!(shown.contains(id) && shown.contains("not a success"), "{shown}");
    let report: Value = serde_json::from_str(&told(&["receipts", "verify", "-o", "json"])).unwrap();
    assert_eq!(
        (&report["ok"], &report["receipts"], &report["amendments"]),
        (&true.into(), &3.into(), &1.into()),
        "{report}"
    );
    std::fs::write(place.path("proof.json"), told(&["receipts", "proof", id])).unwrap();
    told(&["receipts", "export", "--bundle", "bundle.jsonl"]);
    // One request for a page of receipts and all their amendments.
    let asked = || {
        let page = daemon.get("/metrics").body;
        page.lines().find(|line| line.contains("/amendments\",status=\"200\"")).map(str::to_owned)
    };
    let before = asked();
    assert!(before.is_some(), "amendments were read above");
    told(&["receipts", "export", "--dataset", "data"]);
    let table = told(&["receipts", "export", "--format", "csv"]);
    assert_eq!(asked(), before);
    assert_eq!(std::fs::read_to_string(place.path("data/frame.csv")).unwrap(), table);
    let judged = table.lines().find(|line| line.contains(id)).unwrap();
    assert!(judged.contains(",false,0,"), "{judged}");
    let page = daemon.get("/v1/receipts?amendments=true&limit=2").json(200);
    assert_eq!((page["amendments"].as_array().unwrap().len(), &page["amendments"]), (1, &amended));
    assert!(daemon.get("/v1/receipts").json(200).get("amendments").is_none());
    assert_eq!(daemon.stop(), 0);
    for file in ["proof.json", "bundle.jsonl"] {
        let ran = place.effectd(&["receipts", "verify", file], None);
        assert_eq!(ran.code(), 0, "{file}: {}", ran.stderr());
    }
}
