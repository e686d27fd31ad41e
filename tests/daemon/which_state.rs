//! Which daemon a command speaks to: the one that serves the state that it names, or none.

use std::path::PathBuf;

use serde_json::Value;

use crate::harness::{Daemon, Place, Ran, Serving, serve_with, write_note};

/// The id in a state directory.
fn id_in(place: &Place, state: &str) -> String {
    std::fs::read_to_string(place.path(state).join("id")).unwrap().trim().to_owned()
}

fn is_disabled(daemon: &Daemon) -> bool {
    daemon.get("/v1/tools/files.copy").json(200)["disabled"] == true
}

#[test]
fn a_command_changes_the_state_that_it_names() {
    let place = Place::seeded();
    let socket = place.path("live.sock");
    let live = socket.to_str().unwrap();
    // Any free port.
    let listen = "127.0.0.1:0";
    let config = format!(
        "[telemetry]\nlisten = \"{listen}\"\n[gateway]\n# Shared.\nsocket = \"{live}\" # with planners\nbacklog_max = 5000\nlisten = \"{listen}\"\n"
    );
    std::fs::write(place.state().join("config.toml"), &config).unwrap();
    let daemon = place.serve(&[]).at(PathBuf::from(live));
    let done = |ran: &Ran| assert_eq!(ran.code(), 0, "{}", ran.stderr());
    done(&place.effectd(&["tools", "disable", "files.copy", "--yes"], None));
    assert!(is_disabled(&daemon));
    done(&place.effectd(&["backup", "copy", "--keys", "keys"], None));
    let restored = place.effectd(&["restore", "copy", "--keys", "keys", "--state", "restored"], None);
    done(&restored);
    // The restored state is another one: it has its own id and not the original's addresses.
    let listened = ["gateway.listen", "telemetry.listen"].map(|name| format!("{name} was {listen}"));
    for cleared in listened.into_iter().chain([format!("gateway.socket was {live}")]) {
        assert!(restored.stderr().contains(&cleared), "{}", restored.stderr());
    }
    let kept = std::fs::read_to_string(place.path("restored/config.toml")).unwrap();
    assert_eq!(kept, config.replace(live, "").replace(listen, ""));
    assert_eq!(std::fs::read_to_string(place.path("copy/config.toml")).unwrap(), config);
    let told = daemon.get("/healthz").json(200)["state_id"].as_str().unwrap().to_owned();
    assert_eq!(told, id_in(&place, ".effectd"));
    let other = id_in(&place, "restored");
    assert_ne!(told, other);
    assert!(!place.path("copy/id").exists() && !place.path("keys/id").exists());

    // `--state` beats the environment, and the configuration of the state in this folder.
    let enable = ["tools", "enable", "files.copy", "--yes", "--state", "restored"];
    let with_socket = |arguments: &[&str]| {
        place.effectd_on(arguments, None, |command| {
            command.env("EFFECTD_SOCKET", live);
        })
    };
    for (nth, ran) in [with_socket(&enable), place.effectd(&enable, None)].iter().enumerate() {
        done(ran);
        assert!(ran.stderr().contains("working on the store in restored directly"), "{}", ran.stderr());
        assert_eq!(ran.stderr().contains("nothing to change"), nth == 1, "{}", ran.stderr());
        assert!(is_disabled(&daemon));
    }

    // Where the named state and the named socket belong to two states, nothing is done.
    let refused = |ran: &Ran| {
        assert_eq!((ran.code(), ran.stdout().as_str()), (2, ""), "{}", ran.stderr());
        let said = ran.stderr();
        assert!([live, &told, &other, "restored"].iter().all(|name| said.contains(name)), "{said}");
    };
    refused(&place.effectd(&[&enable[..], &["--socket", live]].concat(), None));
    let both = place.effectd_on(&enable[..4], None, |command| {
        command.env("EFFECTD_SOCKET", live).env("EFFECTD_STATE", "restored");
    });
    refused(&both);
    // The environment's socket counts where `--state` names the environment's state.
    let same = place.effectd_on(&[&enable[..5], &["./restored"]].concat(), None, |command| {
        command.env("EFFECTD_SOCKET", live).env("EFFECTD_STATE", "restored");
    });
    refused(&same);
    std::fs::write(place.path("restored/config.toml"), &config).unwrap();
    refused(&place.effectd(&enable, None));
    let note = write_note("which-1", "which.txt", "x").to_string();
    refused(&place.effectd(&["run", "-", "--state", "restored"], Some(&note)));
    refused(&place.effectd(&["submit", "-", "--state", "restored"], Some(&note)));
    let check = place.effectd(&["check", "dlq", "--state", "restored"], None);
    assert_eq!(check.code(), 3, "{}", check.stdout());
    assert!(check.stdout().contains(&other), "{}", check.stdout());
    assert!(is_disabled(&daemon));
    assert_eq!(daemon.get("/v1/actions/which-1").status, 404);

    // Who names no state speaks to the daemon at the socket.
    let elsewhere = Place::new();
    let reached = elsewhere.effectd(&["tools", "show", "files.copy", "-o", "json", "--socket", live], None);
    assert_eq!(reached.json(0)["disabled"], true);
    // A state keeps its id.
    assert_eq!(daemon.stop(), 0);
    let daemon = place.serve(&[]).at(socket);
    let again: Value = daemon.get("/healthz").json(200);
    assert_eq!(again["state_id"], told.as_str());
    done(&place.effectd(&["tools", "enable", "files.copy", "--yes", "--state", ".effectd"], None));
    assert!(!is_disabled(&daemon));
}

#[test]
fn serve_takes_the_socket_of_the_environment_for_its_state() {
    let place = Place::seeded();
    let socket = place.path("other.sock");
    let other = ("EFFECTD_SOCKET", socket.to_str().unwrap());
    let daemon = serve_with(&place, &[], &[other]);
    let found = daemon.get("/healthz").json(200);
    assert_eq!(found["state_id"], id_in(&place, ".effectd").as_str());
    assert!(!socket.exists());
    assert_eq!(daemon.stop(), 0);
    let state = place.state();
    let same = ("EFFECTD_STATE", state.to_str().unwrap());
    let daemon = serve_with(&place, &[], &[other, same]).at(socket);
    assert_eq!(daemon.get("/healthz").json(200)["state_id"], found["state_id"]);
    assert_eq!(daemon.stop(), 0);
}
