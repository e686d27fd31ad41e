//! Backups: a state in use is copied, and a state restored from the copy is complete.

use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use serde_json::Value;

use crate::harness::{Place, Serving, until, write_note};
use crate::operator::{break_it, repair_it, slow_note};

fn done(place: &Place, arguments: &[&str]) -> Value {
    place.effectd(&[arguments, &["-o", "json"]].concat(), None).json(0)
}

/// The files in a folder that have these bytes.
pub fn find(directory: &Path, secret: &[u8]) -> Vec<std::path::PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(find(&path, secret));
        } else if path.is_file()
            && std::fs::read(&path).unwrap().windows(secret.len()).any(|bytes| bytes == secret)
        {
            found.push(path);
        }
    }
    found
}

#[test]
fn a_state_that_is_written_to_is_copied_and_restored_whole() {
    copied_and_restored("files");
}

#[test]
fn a_sled_state_in_use_is_copied_and_restored_whole() {
    copied_and_restored("sled");
}

fn copied_and_restored(journal: &str) {
    let place = Place::seeded_in(journal);
    let daemon = place.serve(&[]);
    let post = |n: usize| {
        let name = format!("b-{n}");
        let done = daemon.post("/v1/actions?wait=true", &write_note(&name, &name, "canary of the backup"));
        assert_eq!(done.status, 200);
    };
    (0..20).for_each(post);
    // A sealed value, and an artifact.
    break_it(&place);
    daemon.post("/v1/actions?wait=true", &slow_note("given-up")).problem(502, "timed_out");
    repair_it(&place);
    let kept = done(&place, &["tools", "try", "artifact.put", "path=workspace/b-0"]);
    let kept = kept["receipt"]["receipt_id"].as_str().unwrap().to_owned();
    let (stop, written) = (AtomicBool::new(false), AtomicUsize::new(20));
    let made = std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                post(written.load(Ordering::Relaxed));
                written.fetch_add(1, Ordering::Relaxed);
            }
        });
        until("somebody writes", || written.load(Ordering::Relaxed) > 20);
        let made = done(&place, &["backup", "copy", "--keys", "copy-keys"]);
        stop.store(true, Ordering::Relaxed);
        made
    });
    assert!(made["blocks"].as_u64() > Some(20), "{made}");
    assert!(!place.path("copy.partial").exists());
    // The copy does not contain the keys, and without them nothing sealed in it can be read.
    assert!(find(&place.path("copy"), b"canary of the backup").is_empty());
    assert!(!place.path("copy/keys").exists() && place.path("copy-keys").is_dir());
    let twice = place.effectd(&["backup", "copy"], None);
    assert_eq!(twice.code(), 2, "{}", twice.stderr());
    assert_eq!(daemon.stop(), 0);

    let restored = done(&place, &["restore", "copy", "--keys", "copy-keys", "--state", "elsewhere/.effectd"]);
    assert_eq!(restored["blocks"], made["blocks"], "{restored}");
    let format = std::fs::read_to_string(place.path("elsewhere/.effectd/journal/format")).unwrap();
    assert!(format.ends_with(&format!(" {journal}\n")), "{format}");
    let there = ["--state", "elsewhere/.effectd"];
    for check in [&["store", "check"][..], &["receipts", "verify"], &["receipts", "audit"]] {
        let ran = place.effectd(&[check, &there].concat(), None);
        assert_eq!(ran.code(), 0, "{check:?}: {}{}", ran.stdout(), ran.stderr());
    }
    // The copy has everything that was answered before it began, and the restored state works.
    for n in 0..20 {
        let shown = place.effectd(&[&["status", &format!("b-{n}")][..], &there].concat(), None);
        assert_eq!(shown.code(), 0, "b-{n}: {}", shown.stderr());
    }
    let artifact = place.effectd(&[&["artifacts", "get", &kept][..], &there].concat(), None);
    assert_eq!(artifact.stdout(), "canary of the backup", "{}", artifact.stderr());
    let resumed = place.effectd(&[&["resume", "--yes"][..], &there].concat(), None);
    assert_eq!(resumed.code(), 0, "{}", resumed.stderr());
    let requeued = place.effectd(&[&["dlq", "requeue", "0", "--yes"][..], &there].concat(), None);
    assert!(requeued.stdout().contains("requeued"), "{}", requeued.stderr());
    let waited = place.effectd(&[&["wait", "given-up"][..], &there].concat(), None);
    assert_eq!(waited.code(), 0, "{}{}", waited.stdout(), waited.stderr());
    let again = std::fs::read_to_string(place.path("elsewhere/workspace/given-up"));
    assert_eq!(again.unwrap(), "at last", "what was sealed was read with the keys");
    let mut request = write_note("b-new", "new", "x");
    request["params"]["path"] = "workspace/new".into();
    let went_on = place.effectd(&[&["run", "-"][..], &there].concat(), Some(&request.to_string()));
    assert_eq!(went_on.code(), 0, "{}", went_on.stderr());
    assert_eq!(place.effectd(&[&["receipts", "verify"][..], &there].concat(), None).code(), 0);
}

#[test]
fn a_damaged_or_unfinished_backup_is_refused() {
    let place = Place::seeded();
    let request = write_note("d-1", "d", "x").to_string();
    assert_eq!(place.effectd(&["run", "-"], Some(&request)).code(), 0);
    done(&place, &["backup", "copy/", "--keys", "copy-keys/"]);
    let refused = |what: &str| {
        let arguments = ["restore", "copy", "--keys", "copy-keys", "--state", "r"];
        let ran = place.effectd(&arguments, None);
        assert_eq!(ran.code(), 2, "{what}: {}", ran.stderr());
        assert!(!place.path("r").exists(), "{what}");
        ran.stderr()
    };
    let manifest = place.path("copy/manifest.json");
    let text = std::fs::read_to_string(&manifest).unwrap();
    // What a power failure leaves has no manifest.
    std::fs::remove_file(&manifest).unwrap();
    assert!(refused("unfinished").contains("is not a finished backup"));
    std::fs::write(&manifest, text.replace("\"policy/policy.toml\"", "\"../policy.toml\"")).unwrap();
    assert!(refused("escaping").contains("outside"));
    std::fs::write(&manifest, &text).unwrap();
    let segments = std::fs::read_dir(place.path("copy/journal/segments")).unwrap();
    let segment = segments.map(|entry| entry.unwrap().path()).next().unwrap();
    let whole = std::fs::read(&segment).unwrap();
    let mut flipped = whole.clone();
    flipped[whole.len() / 2] ^= 1;
    std::fs::write(&segment, &flipped).unwrap();
    assert!(refused("one bit").contains("damaged"));
    std::fs::write(&segment, &whole).unwrap();
    done(&place, &["restore", "copy", "--keys", "copy-keys", "--state", "r/"]);
    let again = place.effectd(&["restore", "copy", "--keys", "copy-keys", "--state", "r"], None);
    assert_eq!(again.code(), 2, "{}", again.stderr());
}

#[test]
fn a_backup_that_is_killed_leaves_nothing_that_looks_whole() {
    let place = Place::seeded();
    let daemon = place.serve(&[]);
    for n in 0..10 {
        let name = format!("k-{n}");
        let done = daemon.post("/v1/actions?wait=true", &write_note(&name, &name, "x"));
        assert_eq!(done.status, 200);
    }
    for nth in 0..4 {
        let (copy, keys) = (format!("copy-{nth}"), format!("keys-{nth}"));
        let mut child = place.command(&["backup", &copy, "--keys", &keys]).spawn().unwrap();
        let partial = place.path(&format!("{copy}.partial"));
        // Each time a little later on its way.
        let files = |path: &Path| std::fs::read_dir(path).map_or(0, Iterator::count);
        until("it has begun", || {
            files(&partial) >= nth || place.path(&copy).exists() || child.try_wait().unwrap().is_some()
        });
        child.kill().unwrap();
        child.wait().unwrap();
        let state = format!("restored-{nth}");
        let restore = ["restore", &copy, "--keys", &keys, "--state", &state];
        if place.path(&copy).exists() && place.path(&keys).exists() {
            assert_eq!(place.effectd(&restore, None).code(), 0, "what has its name is whole");
            continue;
        }
        assert_eq!(place.effectd(&restore, None).code(), 2);
        assert!(!place.path(&state).exists());
        // The next backup is not hindered by what was left.
        let again = ["backup", &format!("again-{nth}"), "--keys", &format!("again-keys-{nth}")];
        assert_eq!(place.effectd(&again, None).code(), 0);
    }
}

#[test]
fn keys_stay_apart_and_only_their_own_open_a_backup() {
    let place = Place::seeded();
    let run = |action: &str| {
        let request = write_note(action, action, "x").to_string();
        assert_eq!(place.effectd(&["run", "-"], Some(&request)).code(), 0);
    };
    run("a-1");
    std::os::unix::fs::symlink(".effectd", place.path("link")).unwrap();
    let refused = |arguments: &[&str], why: &str| {
        let ran = place.effectd(arguments, None);
        assert_eq!(ran.code(), 2, "{arguments:?}: {}", ran.stderr());
        assert!(ran.stderr().contains(why), "{arguments:?}: {}", ran.stderr());
    };
    refused(&["backup", "x", "--keys", "x"], "must not be in the backup");
    refused(&["backup", "x", "--keys", "x/keys"], "must not be in the backup");
    refused(&["backup", "x/copy", "--keys", "x"], "must not be in the backup");
    refused(&["backup", "link/x"], "inside the state directory");
    assert!(!place.path("x").exists() && !place.path("x.partial").exists());
    // Only files that a backup left are removed.
    std::fs::create_dir(place.path("y.partial")).unwrap();
    std::fs::write(place.path("y.partial/mine"), "mine").unwrap();
    refused(&["backup", "y"], "is not an interrupted backup");
    assert!(place.path("y.partial/mine").exists());
    std::fs::create_dir(place.path("one.partial")).unwrap();
    std::fs::write(place.path("one.partial/.draft"), "").unwrap();
    std::fs::write(place.path("one.partial/left"), "left").unwrap();
    done(&place, &["backup", "one", "--keys", "one-keys"]);
    assert!(!place.path("one/left").exists() && !place.path("one/.draft").exists());
    run("a-2");
    done(&place, &["backup", "two", "--keys", "two-keys"]);
    refused(&["restore", "one", "--keys", "two-keys", "--state", "r"], "only its own keys");
    assert!(!place.path("r").exists() && !place.path("r.partial").exists());
    done(&place, &["restore", "two", "--keys", "two-keys", "--state", "r"]);
    assert!(!place.path("r/.draft").exists());
}

#[test]
fn backups_and_checks_are_scheduled_and_their_failures_seen() {
    let place = Place::seeded();
    let (to, keys) = (place.path("to"), place.path("keys"));
    let set = |every: &str| {
        let settings = [
            format!("backup.every={every}"),
            format!("backup.to={}", to.display()),
            format!("backup.keys={}", keys.display()),
            "backup.keep=1".to_owned(),
            format!("check.every={every}"),
        ];
        settings.into_iter().flat_map(|setting| ["--set".to_owned(), setting]).collect::<Vec<_>>()
    };
    let serve = |every: &str| {
        let flags = set(every);
        place.serve(&flags.iter().map(String::as_str).collect::<Vec<_>>())
    };
    let daemon = serve("1s");
    daemon.post("/v1/actions?wait=true", &write_note("n-1", "n-1", "noted")).json(200);
    let job =
        |daemon: &crate::harness::Daemon, nth: usize| daemon.get("/readyz").json(200)["jobs"][nth].clone();
    // There is no directory for it.
    until("the backup fails", || job(&daemon, 0)["error"].is_string());
    let failed = job(&daemon, 0);
    assert_eq!(failed["error"], "there is no directory backup.to; create it", "{failed}");
    assert_eq!((&failed["job"], failed.get("done_at")), (&Value::from("backup"), None));
    let metric = |line: &str| daemon.get("/metrics").body.lines().any(|it| it == line);
    assert!(metric("effectd_job_failed{what=\"backup\"} 1"));
    let checked = place.effectd(&["check", "jobs"], None);
    assert_eq!(checked.code(), 2, "{}", checked.stdout());
    assert!(checked.stdout().contains("backup: there is no directory"), "{}", checked.stdout());
    let page = place.effectd(&["top", "--once", "--every-ms", "100"], None).stdout();
    assert!(page.contains("! scheduled jobs failed") && page.contains("\n  backup: there is no"), "{page}");
    until("the journal is checked", || job(&daemon, 1)["done_at"].is_string());
    assert_eq!(job(&daemon, 1).get("error"), None);
    for folder in [&to, &keys] {
        std::fs::create_dir(folder).unwrap();
    }
    let names = |folder: &Path| -> Vec<String> {
        let entries = std::fs::read_dir(folder).unwrap();
        let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        names.filter(|name| !name.ends_with(".partial")).collect()
    };
    until("a backup is made", || job(&daemon, 0)["done_at"].is_string());
    let first = names(&to);
    until("another one takes its place", || names(&to).len() == 1 && names(&to) != first);
    assert!(metric("effectd_job_failed{what=\"backup\"} 0"));
    assert_eq!(place.effectd(&["check", "jobs", "-o", "json"], None).json(0)["value"], 0);
    assert_eq!(daemon.stop(), 0);
    // A restart makes none before it is due.
    let daemon = serve("1h");
    let before = job(&daemon, 0);
    assert!(before["next_at"].as_str() > before["last_at"].as_str(), "{before}");
    assert_eq!(daemon.get("/healthz").json(200)["jobs"][0], before);
    assert_eq!(daemon.stop(), 0);
    let name = names(&to).pop().unwrap();
    assert!(names(&keys).contains(&name), "{name}");
    let (copy, copied_keys) = (to.join(&name), keys.join(&name));
    let restore = ["restore", copy.to_str().unwrap(), "--keys", copied_keys.to_str().unwrap()];
    done(&place, &[&restore[..], &["--state", "restored"]].concat());
}
