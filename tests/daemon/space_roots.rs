//! Roots of spaces: a space keeps its folder, even if others may write to the folder above it.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};

use nix::sys::signal::Signal;
use serde_json::Value;

use crate::harness::{Daemon, Place, Reply, Serving, Who, is_root, until, write_note};

/// A planner's user, who owns the space's root and the folder that it lies in.
const ALICE: u32 = 61_001;

/// A state whose one space has the root `alice/sp`.
fn place_of(who: Who) -> Place {
    let place = Place::of(who);
    assert_eq!(place.effectd(&["init"], None).code(), 0);
    place.for_every_machine();
    let (root, policy) = (place.path("alice/sp"), place.state().join("policy/policy.toml"));
    let text = fs::read_to_string(&policy).unwrap();
    let other = text.replace("./workspace", root.to_str().unwrap());
    assert_ne!(other, text);
    fs::write(policy, other).unwrap();
    folder(&place.path("alice"), ALICE, 0o755);
    folder(&root, ALICE, 0o777);
    place
}

fn folder(path: &Path, owner: u32, mode: u32) {
    fs::create_dir(path).unwrap();
    chown(path, Some(owner), Some(owner)).unwrap();
    set_mode(path, mode);
}

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

/// For a daemon with its own user, and for one that root runs.
fn for_each_daemon(name: &str, test: fn(&Place)) {
    if !is_root(name) {
        return;
    }
    for who in [Who::Nobody, Who::Myself] {
        test(&place_of(who));
    }
}

/// Alice does something in her own folder.
fn alice(place: &Place, program: &str, arguments: &[&str]) {
    let mut command = Command::new(program);
    command.args(arguments).current_dir(place.path("alice"));
    assert!(command.uid(ALICE).gid(ALICE).status().unwrap().success());
}

fn write(daemon: &Daemon, action: &str) -> Reply {
    daemon.post("/v1/actions?wait", &write_note(action, action, "text"))
}

fn read(daemon: &Daemon, action: &str, path: &str) -> Reply {
    let mut request = write_note(action, path, "");
    request["tool_id"] = "files.read_text".into();
    request["params"].as_object_mut().unwrap().remove("text");
    daemon.post("/v1/actions?wait", &request)
}

#[track_caller]
fn refused(reply: &Reply, why: &str) {
    let problem = reply.problem(503, "sandbox_unavailable");
    assert!(problem["detail"].as_str().unwrap().contains(why), "{problem}");
}

/// What the policy's folder and the keys' hold.
fn state_of(place: &Place) -> Vec<(String, Vec<u8>)> {
    let files = ["policy", "keys"].map(|part| fs::read_dir(place.state().join(part)).unwrap());
    let files = files.into_iter().flatten().map(|entry| entry.unwrap().path());
    let mut files: Vec<_> = files
        .filter(|path| path.is_file())
        .map(|path| (path.display().to_string(), fs::read(path).unwrap()))
        .collect();
    files.sort();
    files
}

#[test]
fn a_link_in_place_of_a_root_leads_nowhere() {
    for_each_daemon("a_link_in_place_of_a_root_leads_nowhere", |place| {
        let daemon = place.serve(&[]);
        write(&daemon, "l-1").json(200);
        let before = state_of(place);
        alice(place, "mv", &["sp", "aside"]);
        alice(place, "ln", &["-s", "../.effectd", "sp"]);
        for (number, path) in ["keys/device.key", "policy/policy.toml", "l-1"].iter().enumerate() {
            refused(&read(&daemon, &format!("l-read-{number}"), path), "has a symbolic link");
        }
        refused(&write(&daemon, "policy/more.cedar"), "has a symbolic link");
        assert_eq!(state_of(place), before);
        alice(place, "rm", &["sp"]);
        refused(&write(&daemon, "l-2"), "is gone");
        alice(place, "mv", &["aside", "sp"]);
        write(&daemon, "l-3").json(200);
        assert!(place.path("alice/sp/l-3").exists());
        assert_eq!(daemon.stop(), 0);
    });
}

#[test]
fn a_link_that_was_there_first_costs_its_space_alone() {
    for_each_daemon("a_link_that_was_there_first_costs_its_space_alone", |place| {
        alice(place, "mv", &["sp", "aside"]);
        alice(place, "ln", &["-s", "../.effectd", "sp"]);
        let daemon = place.serve(&[]);
        refused(&read(&daemon, "f-1", "keys/device.key"), "has a symbolic link");
        refused(&write(&daemon, "f-2"), "has a symbolic link");
        assert_eq!(daemon.get("/readyz").status, 200);
        alice(place, "rm", &["sp"]);
        alice(place, "mv", &["aside", "sp"]);
        write(&daemon, "f-3").json(200);
        assert_eq!(daemon.stop(), 0);
    });
}

#[test]
fn a_root_that_is_swapped_all_the_time_never_shows_the_state() {
    for_each_daemon("a_root_that_is_swapped_all_the_time_never_shows_the_state", |place| {
        let daemon = place.serve(&[]);
        write(&daemon, "s-1").json(200);
        let (root, aside) = (place.path("alice/sp"), place.path("alice/aside"));
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    fs::rename(&root, &aside).unwrap();
                    symlink("../.effectd", &root).unwrap();
                    fs::remove_file(&root).unwrap();
                    fs::rename(&aside, &root).unwrap();
                }
            });
            for number in 0..150 {
                let reply = read(&daemon, &format!("s-read-{number}"), "policy/policy.toml");
                let code = reply.json(reply.status)["code"].clone();
                let known = ["sandbox_unavailable", "file_not_found"];
                if !known.contains(&code.as_str().unwrap_or_default()) {
                    over.store(true, Ordering::Relaxed);
                    panic!("{reply:?}");
                }
            }
            over.store(true, Ordering::Relaxed);
        });
        write(&daemon, "s-2").json(200);
        assert_eq!(daemon.stop(), 0);
    });
}

#[test]
fn another_folder_is_refused_until_an_operator_reloads() {
    for_each_daemon("another_folder_is_refused_until_an_operator_reloads", |place| {
        let daemon = place.serve(&[]);
        write(&daemon, "o-1").json(200);
        alice(place, "mv", &["sp", "aside"]);
        alice(place, "mkdir", &["-m", "777", "sp"]);
        refused(&write(&daemon, "o-2"), "another folder than before");
        daemon.signal(Signal::SIGHUP);
        until("the policy is read anew", || place.log().contains("the policy was reloaded"));
        refused(&write(&daemon, "o-3"), "another folder than before");
        assert_eq!(daemon.stop(), 0);
        let daemon = place.serve(&[]);
        refused(&write(&daemon, "o-4"), "another folder than before");
        let checked = place.effectd(&["policy", "check"], None);
        assert!(checked.stderr().contains("root of shared:household"), "{}", checked.stderr());
        let asked = place.effectd(&["policy", "reload"], None);
        assert_eq!(asked.code(), 2);
        assert!(asked.stderr().contains(" -> "), "{}", asked.stderr());
        refused(&write(&daemon, "o-5"), "another folder than before");
        let done = place.effectd(&["policy", "reload", "--yes", "-o", "json"], None).json(0);
        let root: &Value = &done["roots"][0];
        assert_eq!(root["space_id"], "shared:household");
        assert_ne!(root["before"], root["after"]);
        let receipt = daemon.get(&format!("/v1/receipts/{}", done["receipt_id"].as_str().unwrap()));
        assert!(receipt.json(200).to_string().contains("roots"), "{receipt:?}");
        write(&daemon, "o-6").json(200);
        assert_eq!(daemon.stop(), 0);
        let daemon = place.serve(&[]);
        write(&daemon, "o-7").json(200);
        assert_eq!(daemon.stop(), 0);
        // Without a daemon it is recorded as well.
        alice(place, "mv", &["sp", "aside-2"]);
        alice(place, "mkdir", &["-m", "777", "sp"]);
        let done = place.effectd(&["policy", "reload", "--yes", "-o", "json"], None).json(0);
        assert_eq!(done["roots"][0]["before"], root["after"]);
        let shown =
            place.effectd(&["receipts", "show", done["receipt_id"].as_str().unwrap(), "-o", "json"], None);
        let receipt = shown.json(0);
        assert_eq!(receipt["tool_id"], "effectd.reload_policy");
        assert!(receipt.to_string().contains("roots"), "{receipt}");
        let daemon = place.serve(&[]);
        write(&daemon, "o-8").json(200);
        assert_eq!(daemon.stop(), 0);
    });
}

#[test]
fn a_root_that_others_could_replace_is_refused() {
    for_each_daemon("a_root_that_others_could_replace_is_refused", |place| {
        let daemon = place.serve(&[]);
        write(&daemon, "w-1").json(200);
        let (above, root) = (place.path("alice"), place.path("alice/sp"));
        set_mode(&above, 0o775);
        refused(&write(&daemon, "w-2"), "uid 61001 and mode 0775");
        for (command, code) in [("policy check", 69), ("doctor", 0)] {
            let ran = place.effectd(&command.split(' ').collect::<Vec<_>>(), None);
            assert_eq!(ran.code(), code, "{}{}", ran.stdout(), ran.stderr());
            let said = ran.stdout() + &ran.stderr();
            assert!(said.contains("chmod go-w"), "{command}: {said}");
        }
        set_mode(&above, 0o755);
        write(&daemon, "w-3").json(200);
        // Somebody else's folder, in which the daemon's own root lies.
        chown(&root, Some(0), Some(0)).unwrap();
        refused(&write(&daemon, "w-4"), "uid 61001 and mode 0755");
        chown(&above, Some(0), Some(0)).unwrap();
        write(&daemon, "w-5").json(200);
        // In a sticky folder of root, each name belongs to the owner of its file.
        set_mode(&above, 0o1777);
        write(&daemon, "w-6").json(200);
        set_mode(&above, 0o777);
        refused(&write(&daemon, "w-7"), "uid 0 and mode 0777");
        assert_eq!(daemon.stop(), 0);
    });
}

#[test]
fn a_root_is_not_made_where_others_may_write() {
    for_each_daemon("a_root_is_not_made_where_others_may_write", |place| {
        fs::remove_dir(place.path("alice/sp")).unwrap();
        let daemon = place.serve(&[]);
        refused(&write(&daemon, "m-1"), "uid 61001 and mode 0755");
        assert!(!place.path("alice/sp").exists());
        let daemons = fs::metadata(place.state()).unwrap().uid();
        chown(place.path("alice"), Some(daemons), None).unwrap();
        write(&daemon, "m-2").json(200);
        assert_eq!(daemon.stop(), 0);
    });
}

#[test]
fn a_state_that_is_moved_into_a_root_is_noticed() {
    for_each_daemon("a_state_that_is_moved_into_a_root_is_noticed", |place| {
        let socket = place.path("door.sock");
        let daemon = place.serve(&["--socket", socket.to_str().unwrap()]).at(socket);
        write(&daemon, "i-1").json(200);
        let inside = place.path("alice/sp/state");
        fs::rename(place.state(), &inside).unwrap();
        refused(&read(&daemon, "i-2", "state/policy/policy.toml"), "the state directory");
        fs::rename(&inside, place.state()).unwrap();
        write(&daemon, "i-3").json(200);
        assert_eq!(daemon.stop(), 0);
    });
}

#[test]
fn roots_that_share_files_are_not_both_used() {
    for_each_daemon("roots_that_share_files_are_not_both_used", |place| {
        let policy = place.state().join("policy/policy.toml");
        let text = fs::read_to_string(&policy).unwrap();
        // By a relative path into the other, which comparing strings would not find.
        let more = "[spaces.\"shared:zoo\"]\nroot = \"alice/sp/zoo\"\nband = \"GREEN\"\nvisible_to = [\"role:planner\"]\n\n[spaces";
        fs::write(&policy, text.replacen("[spaces", more, 1)).unwrap();
        folder(&place.path("alice/sp/zoo"), ALICE, 0o777);
        let daemon = place.serve(&[]);
        let checked = place.effectd(&["policy", "check", "-o", "json"], None).json(69);
        let unusable = checked["unusable"].as_array().unwrap();
        assert_eq!(unusable.len(), 1, "{checked}");
        assert!(unusable[0].as_str().unwrap().contains("shared:zoo"), "{checked}");
        assert_eq!(daemon.stop(), 0);
    });
}

#[test]
fn a_policy_that_a_group_may_write_is_refused() {
    let place = Place::seeded();
    let daemon = place.serve(&[]);
    let file = place.state().join("policy/policy.toml");
    let text = fs::read_to_string(&file).unwrap();
    fs::write(&file, format!("{text}# more\n")).unwrap();
    set_mode(&file, 0o664);
    let refused = place.effectd(&["policy", "reload", "--yes"], None);
    assert_eq!(refused.code(), 2, "{}", refused.stderr());
    assert!(refused.stderr().contains("chmod go-w"), "{}", refused.stderr());
    assert_eq!(daemon.stop(), 0);
    let started = place.effectd(&["serve", "--state", ".effectd"], None);
    assert_eq!(started.code(), 69, "{}", started.stderr());
    set_mode(&file, 0o644);
    assert_eq!(place.effectd(&["policy", "check"], None).code(), 0);
}
