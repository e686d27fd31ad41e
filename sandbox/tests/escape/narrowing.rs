//! A child that has its request can do no more than the request needs.

use std::fs;
use std::path::{Path, PathBuf};

use effectd_sandbox::{Call, Narrowing, SpaceRoot, View};
use serde_json::{Value, json};

use crate::ground::{DEFAULT, EXEC, HIGH, Promise, Scene, replied};

const HERE: i32 = libc::AT_FDCWD;

fn tries(scene: &Scene, call: Call) -> Vec<i64> {
    let answer = replied(&scene.run(call));
    answer.as_array().unwrap().iter().map(|errno| errno.as_i64().unwrap()).collect()
}

/// Read `inside`, write `inside`, create in the root, read, write and create in `notes`, create in the scratch folder.
fn attempts() -> Value {
    let create = libc::O_WRONLY | libc::O_CREAT;
    json!([
        [libc::SYS_openat, HERE, "inside", libc::O_RDONLY, 0],
        [libc::SYS_openat, HERE, "inside", libc::O_WRONLY, 0],
        [libc::SYS_openat, HERE, "new", create, 0o644],
        [libc::SYS_openat, HERE, "notes/old", libc::O_RDONLY, 0],
        [libc::SYS_openat, HERE, "notes/old", libc::O_WRONLY, 0],
        [libc::SYS_openat, HERE, "notes/new", create, 0o644],
        [libc::SYS_openat, { "fd": "tmp" }, "new", create, 0o644],
    ])
}

pub(crate) fn promises() -> Vec<Promise> {
    vec![
        Promise {
            name: "a_narrowed_child_can_do_no_more_than_declared",
            keep: |scene| {
                fs::create_dir(scene.workspace.join("notes")).unwrap();
                fs::write(scene.workspace.join("notes/old"), "").unwrap();
                let no = i64::from(libc::EACCES);
                let list = |paths: &[&str]| Some(paths.iter().map(PathBuf::from).collect::<Vec<_>>());
                let cases = [
                    (Narrowing::default(), [0, 0, 0, 0, 0, 0, 0]),
                    (Narrowing::read_only(), [0, no, no, 0, no, no, 0]),
                    (
                        Narrowing { writable: list(&["notes"]), ..Narrowing::default() },
                        [0, no, no, 0, 0, 0, 0],
                    ),
                    (
                        Narrowing { writable: list(&["notes/fresh"]), ..Narrowing::default() },
                        [0, no, no, 0, 0, 0, 0],
                    ),
                    (
                        Narrowing { writable: list(&["inside"]), ..Narrowing::default() },
                        [0, 0, no, 0, no, no, 0],
                    ),
                    (
                        Narrowing { readable: list(&["notes"]), ..Narrowing::read_only() },
                        [no, no, no, 0, no, no, 0],
                    ),
                    (Narrowing { tmp: false, ..Narrowing::read_only() }, [0, no, no, 0, no, no, no]),
                ];
                for (narrowing, expected) in cases {
                    for profile in [DEFAULT, EXEC] {
                        let call =
                            Call { narrowing: narrowing.clone(), ..scene.call(profile, "raw", attempts()) };
                        assert_eq!(tries(scene, call), expected, "{profile} {narrowing:?}");
                        for made in ["new", "notes/new"] {
                            let _absent = fs::remove_file(scene.workspace.join(made));
                        }
                    }
                }
                // Programs still find their libraries when only a part of the space is readable.
                let narrowing = Narrowing { readable: list(&["notes"]), ..Narrowing::read_only() };
                let call = Call { narrowing, ..scene.call(EXEC, "execute", json!("/bin/ls")) };
                assert_eq!(replied(&scene.run(call)), json!(2), "ls runs, and may not list the space itself");
                // High isolation: what is not declared is not writable.
                let call = Call { narrowing: Narrowing::default(), ..scene.call(HIGH, "raw", attempts()) };
                assert_eq!(tries(scene, call), [0, no, no, 0, no, no, 0]);
                let forced = scene.call(DEFAULT, "raw", attempts());
                let forced = Call { narrowing: Narrowing::default(), high_isolation: true, ..forced };
                let answer = scene.run(forced);
                assert_eq!(answer.isolation.profile, "high_isolation");
                assert_eq!(replied(&answer), json!([0, no, no, 0, no, no, 0]));
            },
        },
        Promise {
            name: "a_view_changes_nothing_but_what_it_names",
            keep: |scene| {
                for folder in ["notes", "build"] {
                    fs::create_dir(scene.workspace.join(folder)).unwrap();
                }
                fs::write(scene.workspace.join("notes/old"), "").unwrap();
                let root = SpaceRoot::open(&scene.workspace).unwrap();
                let cache = SpaceRoot::open(&scene.outside).unwrap();
                let mut view = View::new(1 << 30, 60_000);
                view.add_writable(&root, Path::new("notes")).unwrap();
                view.add_cache(&root, Path::new("build"), &cache).unwrap();
                let missing = view.add_writable(&root, Path::new("missing")).unwrap_err().to_string();
                assert!(missing.contains("create missing"), "{missing}");
                let create = libc::O_WRONLY | libc::O_CREAT;
                let denied = json!([
                    [libc::SYS_openat, HERE, "inside", libc::O_WRONLY, 0],
                    [libc::SYS_openat, HERE, "new", create, 0o644],
                    [libc::SYS_fchmodat, HERE, "inside", 0o777, 0],
                    [libc::SYS_utimensat, HERE, "inside", 0, 0],
                    [libc::SYS_renameat, HERE, "inside", HERE, "notes/inside"],
                    [libc::SYS_linkat, HERE, "inside", HERE, "notes/inside", 0],
                    [libc::SYS_unlinkat, HERE, "inside", 0],
                    [libc::SYS_unlinkat, HERE, "notes", libc::AT_REMOVEDIR],
                ]);
                let allowed = json!([
                    [libc::SYS_openat, HERE, "inside", libc::O_RDONLY, 0],
                    [libc::SYS_openat, HERE, "notes/old", libc::O_WRONLY, 0],
                    [libc::SYS_fchmodat, HERE, "notes/old", 0o600, 0],
                    [libc::SYS_openat, HERE, "notes/new", create, 0o644],
                    [libc::SYS_openat, HERE, "build/made", create, 0o644],
                    [libc::SYS_openat, { "fd": "tmp" }, "new", create, 0o644],
                ]);
                let call = |view: &View, attempts: &Value| Call {
                    narrowing: Narrowing::default(),
                    view: Some(view.clone()),
                    ..scene.call(EXEC, "raw", attempts.clone())
                };
                let [read_only, other_mount] = [libc::EROFS, libc::EXDEV].map(i64::from);
                assert_eq!(
                    tries(scene, call(&view, &denied)),
                    [
                        read_only,
                        read_only,
                        read_only,
                        read_only,
                        other_mount,
                        other_mount,
                        read_only,
                        read_only
                    ]
                );
                assert_eq!(tries(scene, call(&view, &allowed)), [0; 6]);
                assert!(scene.outside.join("made").exists() && !scene.workspace.join("build/made").exists());
                // A folder that was replaced is writable neither for a zygote that has mounted the old one, nor for one that
                // would mount it now.
                let writing_notes = |cpu_ms| {
                    let mut view = View::new(1 << 30, cpu_ms);
                    view.add_writable(&root, Path::new("notes")).unwrap();
                    view
                };
                let unused = writing_notes(50_000);
                fs::remove_dir_all(scene.workspace.join("notes")).unwrap();
                fs::create_dir(scene.workspace.join("notes")).unwrap();
                let write = json!([[libc::SYS_openat, HERE, "notes/new", create, 0o644]]);
                assert_eq!(tries(scene, call(&view, &write)), [read_only]);
                let stale = scene.try_run(call(&unused, &write)).unwrap_err();
                assert_eq!(stale.code().as_str(), "sandbox_unavailable");
                assert!(stale.to_string().contains("Stale file handle"), "{stale}");
                assert!(!scene.workspace.join("notes/new").exists());
                assert_eq!(tries(scene, call(&writing_notes(50_000), &write)), [0]);
                assert!(scene.workspace.join("notes/new").exists());
            },
        },
        Promise {
            name: "a_narrowing_cannot_widen",
            keep: |scene| {
                for path in ["..", "../outside", "/etc", "notes/../.."] {
                    let narrowing =
                        Narrowing { writable: Some(vec![PathBuf::from(path)]), ..Narrowing::default() };
                    let answer = scene.run(Call { narrowing, ..scene.call(DEFAULT, "echo", json!(1)) });
                    let refused = matches!(
                        answer.ending,
                        effectd_sandbox::Ending::Killed {
                            started: false,
                            code: effectd_contracts::Code::SandboxFailed,
                            ..
                        }
                    );
                    assert!(refused, "{path}: {answer:?}");
                }
            },
        },
    ]
}
