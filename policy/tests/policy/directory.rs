//! Reading a policy directory from disk, also one that someone is editing or has tampered with.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use effectd_policy::{Overlay, Policy, PolicyDir, PolicyError, demo};

fn write_demo(dir: &Path) {
    for (name, text) in demo::DEMO_FILES {
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
    let source = PolicyDir::load(dir.path()).unwrap();
    assert_eq!(source, demo::source());
    Policy::compile(&source, &Overlay::default()).unwrap();
    let before = PolicyDir::stamp(dir.path()).unwrap();
    assert_eq!(before, PolicyDir::stamp(dir.path()).unwrap());
    fs::write(dir.path().join("more.cedar"), "").unwrap();
    assert_ne!(before, PolicyDir::stamp(dir.path()).unwrap());
}

#[test]
fn what_is_missing_may_come_back() {
    let dir = tempfile::tempdir().unwrap();
    let error = PolicyDir::load(dir.path()).unwrap_err();
    assert!(matches!(error, PolicyError::Missing { .. }) && error.retryable());
    let error = PolicyDir::load(dir.path().join("gone")).unwrap_err();
    assert!(matches!(error, PolicyError::Unreadable { .. }) && error.retryable());
    write_demo(dir.path());
    // A link to nowhere is what a vanished file looks like between listing and opening.
    std::os::unix::fs::symlink(dir.path().join("gone"), dir.path().join("a.cedar")).unwrap();
    let error = PolicyDir::load(dir.path()).unwrap_err();
    assert!(
        error.to_string().contains("a.cedar: No such file") && error.retryable(),
        "{error}"
    );
}

#[test]
fn only_ordinary_files_that_not_everyone_may_write_are_read() {
    let dir = tempfile::tempdir().unwrap();
    write_demo(dir.path());
    let path = dir.path().join("open.cedar");
    fs::write(&path, "").unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o666)).unwrap();
    let error = PolicyDir::load(dir.path()).unwrap_err();
    assert!(
        error
            .to_string()
            .ends_with("open.cedar: everyone may write to this file")
            && !error.retryable()
    );
    fs::remove_file(&path).unwrap();
    fs::create_dir(dir.path().join("dir.cedar")).unwrap();
    assert!(matches!(
        PolicyDir::load(dir.path()).unwrap_err(),
        PolicyError::Unsafe { .. }
    ));
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o777)).unwrap();
    let error = PolicyDir::load(dir.path()).unwrap_err();
    assert!(
        error
            .to_string()
            .ends_with("everyone may add rules to this directory"),
        "{error}"
    );
}

#[test]
fn a_pipe_does_not_make_it_wait_for_ever() {
    let dir = tempfile::tempdir().unwrap();
    write_demo(dir.path());
    // There is no safe way to make a pipe in std; the program that does it is everywhere.
    let made = std::process::Command::new("mkfifo")
        .arg(dir.path().join("pipe.cedar"))
        .status()
        .unwrap();
    assert!(made.success());
    assert!(matches!(
        PolicyDir::load(dir.path()).unwrap_err(),
        PolicyError::Unsafe { .. }
    ));
}

#[test]
fn sizes_and_encodings_are_told_with_file_and_line() {
    let dir = tempfile::tempdir().unwrap();
    write_demo(dir.path());
    let path = dir.path().join("big.cedar");
    fs::write(&path, vec![b' '; 1_048_576]).unwrap();
    let error = PolicyDir::load(dir.path()).unwrap_err();
    assert_eq!(
        error.to_string(),
        "big.cedar: the size in bytes is 1048576; at most 524288 are allowed"
    );
    fs::write(&path, b"// fine\n// fine\n// \xff\n").unwrap();
    assert_eq!(
        PolicyDir::load(dir.path()).unwrap_err().to_string(),
        "big.cedar:3: this is not UTF-8 text"
    );
    fs::remove_file(&path).unwrap();
    for n in 0..70 {
        fs::write(dir.path().join(format!("{n}.cedar")), "").unwrap();
    }
    assert!(
        PolicyDir::load(dir.path())
            .unwrap_err()
            .to_string()
            .contains("the number of files is 65")
    );
}

#[test]
fn editing_while_it_is_read_is_a_whole_policy_or_a_retryable_error() {
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
            match PolicyDir::load(dir.path()) {
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
