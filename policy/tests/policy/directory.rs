//! Policy directories, also while somebody edits them or after somebody tampered with them.

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
use std::path::Path;

use effectd_policy::{Overlay, Policy, PolicyDir, PolicyError, Preset, Source};

/// A user that owns nothing here.
const NOBODY: u32 = 65_534;

fn myself() -> u32 {
    fs::metadata(tempfile::tempdir().unwrap().path()).unwrap().uid()
}

fn load(dir: &Path) -> Result<Source, PolicyError> {
    PolicyDir::load(dir, myself())
}

fn write_demo(dir: &Path) {
    for (name, text) in Preset::Household.files() {
        fs::write(dir.join(name), text).unwrap();
    }
}

#[test]
fn the_demo_on_disk_is_the_demo_in_the_program() {
    let dir = tempfile::tempdir().unwrap();
    write_demo(dir.path());
    fs::write(dir.path().join("README"), "not a policy").unwrap();
    fs::write(dir.path().join(".household.cedar.swp"), "not a policy").unwrap();
    fs::write(dir.path().join(".hidden.cedar"), "not a policy").unwrap();
    let source = load(dir.path()).unwrap();
    assert_eq!(source, Preset::Household.source());
    Policy::compile(&source, &Overlay::default()).unwrap();
    let before = PolicyDir::stamp(dir.path()).unwrap();
    assert_eq!(before, PolicyDir::stamp(dir.path()).unwrap());
    fs::write(dir.path().join("more.cedar"), "").unwrap();
    assert_ne!(before, PolicyDir::stamp(dir.path()).unwrap());
}

#[test]
fn what_is_missing_may_come_back() {
    let dir = tempfile::tempdir().unwrap();
    let error = load(dir.path()).unwrap_err();
    assert!(matches!(error, PolicyError::Missing { .. }) && error.retryable());
    let error = load(&dir.path().join("gone")).unwrap_err();
    assert!(matches!(error, PolicyError::Unreadable { .. }) && error.retryable());
    write_demo(dir.path());
}

#[track_caller]
fn refused(dir: &Path, end: &str) {
    let error = load(dir).unwrap_err();
    assert!(matches!(error, PolicyError::Unsafe { .. }) && !error.retryable(), "{error:?}");
    assert!(error.to_string().contains(end), "{error}");
}

#[test]
fn links_are_refused_wherever_they_lead() {
    let dir = tempfile::tempdir().unwrap();
    write_demo(dir.path());
    let (link, elsewhere) = (dir.path().join("a.cedar"), tempfile::tempdir().unwrap());
    fs::write(elsewhere.path().join("a.cedar"), "").unwrap();
    for target in ["a.cedar", "gone"] {
        symlink(elsewhere.path().join(target), &link).unwrap();
        refused(dir.path(), "a.cedar: this is a symbolic link");
        fs::remove_file(&link).unwrap();
    }
    load(dir.path()).unwrap();
    let policy = elsewhere.path().join("policy");
    symlink(dir.path(), &policy).unwrap();
    refused(&policy, "policy: this is a symbolic link");
}

#[test]
fn what_a_group_or_another_user_may_write_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    write_demo(dir.path());
    let file = dir.path().join("policy.toml");
    for path in [file.as_path(), dir.path()] {
        let mode = fs::metadata(path).unwrap().permissions();
        for more in [0o020, 0o002] {
            let wider = fs::Permissions::from_mode(mode.mode() | more);
            fs::set_permissions(path, wider).unwrap();
            refused(dir.path(), "`chmod go-w` it");
        }
        fs::set_permissions(path, mode).unwrap();
        load(dir.path()).unwrap();
    }
    if myself() != 0 {
        let line = "NOT RUN (needs root): files of another user\n";
        return std::io::stderr().write_all(line.as_bytes()).unwrap();
    }
    for path in [file.as_path(), dir.path()] {
        chown(path, Some(NOBODY), None).unwrap();
        refused(dir.path(), "uid 65534");
        PolicyDir::load(dir.path(), NOBODY).expect("root's files and the daemon's own");
        chown(path, Some(0), None).unwrap();
    }
    load(dir.path()).unwrap();
}

#[test]
fn only_ordinary_files_that_not_everyone_may_write_are_read() {
    let dir = tempfile::tempdir().unwrap();
    write_demo(dir.path());
    let path = dir.path().join("open.cedar");
    fs::write(&path, "").unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o666)).unwrap();
    refused(dir.path(), "open.cedar: others could change the policy here");
    fs::remove_file(&path).unwrap();
    fs::create_dir(dir.path().join("dir.cedar")).unwrap();
    assert!(matches!(load(dir.path()).unwrap_err(), PolicyError::Unsafe { .. }));
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o777)).unwrap();
    refused(dir.path(), "others could change the policy here");
}

#[test]
fn a_pipe_does_not_make_it_wait_for_ever() {
    let dir = tempfile::tempdir().unwrap();
    write_demo(dir.path());
    // There is no safe way to make a pipe in std; the program that does it is everywhere.
    let made = std::process::Command::new("mkfifo").arg(dir.path().join("pipe.cedar")).status().unwrap();
    assert!(made.success());
    assert!(matches!(load(dir.path()).unwrap_err(), PolicyError::Unsafe { .. }));
}

#[test]
fn sizes_and_encodings_are_told_with_file_and_line() {
    let dir = tempfile::tempdir().unwrap();
    write_demo(dir.path());
    let path = dir.path().join("big.cedar");
    fs::write(&path, vec![b' '; 1_048_576]).unwrap();
    let error = load(dir.path()).unwrap_err();
    assert_eq!(error.to_string(), "big.cedar: the size in bytes is 1048576; at most 524288 are allowed");
    fs::write(&path, b"// fine\n// fine\n// \xff\n").unwrap();
    assert_eq!(load(dir.path()).unwrap_err().to_string(), "big.cedar:3: this is not UTF-8 text");
    fs::remove_file(&path).unwrap();
    for n in 0..70 {
        fs::write(dir.path().join(format!("{n}.cedar")), "").unwrap();
    }
    assert!(load(dir.path()).unwrap_err().to_string().contains("the number of files is 65"));
}

#[test]
fn an_edit_during_a_read_gives_a_whole_policy_or_a_retry() {
    let dir = tempfile::tempdir().unwrap();
    write_demo(dir.path());
    let more = dir.path().join("more.cedar");
    let stop = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut round = 0;
            while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                round += 1;
                fs::write(&more, format!("// {round}\n")).unwrap();
                fs::remove_file(&more).unwrap();
            }
        });
        let mut whole = 0;
        for _ in 0..300 {
            match load(dir.path()) {
                Ok(source) => {
                    whole += 1;
                    assert!(source.rules.len() <= 2);
                }
                Err(error) => assert!(error.retryable(), "{error}"),
            }
        }
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
        eprintln!("{whole} of 300 readings saw a whole policy");
    });
}
