//! The disk: it fills up in the middle of a write, or several writers use it at a time.
#![expect(clippy::disallowed_types, reason = "mounts a small disk")]

use std::io::Write;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};

use effectd_contracts::{Code, Digest, FileState, PathState, Restore};
use serde_json::json;

use super::recovery::snapshot;
use super::{prepare, samples};
use crate::files;
use crate::tests::space::{TestSpace, Undoing};
use crate::workspace::{Existing, FileProblem};

/// A disk of one megabyte and few inodes. `new` returns `None` where the test may not mount one.
struct SmallDisk {
    place: Option<TestSpace>,
    path: std::path::PathBuf,
}

impl SmallDisk {
    fn new(test: &str) -> Option<Self> {
        if !nix::unistd::geteuid().is_root() {
            // Written to stderr directly: libtest would capture the output of `eprintln!`.
            let _ = writeln!(std::io::stderr(), "NOT RUN (needs root): {test}");
            return None;
        }
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().to_owned();
        let mounted = Command::new("mount")
            .args(["-t", "tmpfs", "-o", "size=1m,nr_inodes=64", "tmpfs"])
            .arg(&path)
            .output()
            .unwrap();
        assert!(mounted.status.success(), "{}", String::from_utf8_lossy(&mounted.stderr));
        let place = Some(TestSpace::in_folder(folder));
        Some(Self { place, path })
    }

    fn place(&self) -> &TestSpace {
        self.place.as_ref().unwrap()
    }

    /// Fills the disk: new names still fit, new content does not.
    fn fill(&self) {
        let piece = vec![0; 4_096];
        let mut file = std::fs::File::create(self.path.join("ballast")).unwrap();
        while file.write_all(&piece).is_ok() {}
    }
}

impl SmallDisk {
    /// Uses up all inodes, so that no new name fits.
    fn use_up_names(&self) {
        std::fs::create_dir(self.path.join("names")).unwrap();
        let mut number = 0;
        while std::fs::File::create(self.path.join(format!("names/{number}"))).is_ok() {
            number += 1;
        }
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("--lazy").arg(&self.path).output();
        self.place.take();
    }
}

#[test]
fn a_disk_that_is_full_in_the_middle_leaves_the_space_as_it_was() {
    let test = "a_disk_that_is_full_in_the_middle_leaves_the_space_as_it_was";
    for (tool, params) in samples() {
        let writes = !matches!(tool.id(), "files.move" | "files.delete" | "files.make_dir");
        if !writes {
            continue;
        }
        let Some(disk) = SmallDisk::new(test) else { return };
        let place = disk.place();
        prepare(place);
        disk.fill();
        let before = snapshot(place);
        let failure = place.run(tool, params.clone()).unwrap_err();
        assert_eq!(failure.code, Code::DiskFull, "{} {params}: {failure}", tool.id());
        assert!(failure.retryable);
        assert_eq!(snapshot(place), before, "{} {params}", tool.id());
        // Emptied and not removed: a child of another test that has yet to exec may hold it open.
        std::fs::write(disk.path.join("ballast"), "").unwrap();
        place.run(tool, params).unwrap();
    }
}

/// New folders and drafts need inodes; a rename and a removal do not.
#[test]
fn a_disk_without_room_for_names_leaves_the_space_as_it_was() {
    let test = "a_disk_without_room_for_names_leaves_the_space_as_it_was";
    for (tool, params) in samples() {
        let Some(disk) = SmallDisk::new(test) else { return };
        let place = disk.place();
        prepare(place);
        disk.use_up_names();
        let before = snapshot(place);
        let renames = tool.id() == "files.move" && params["to_path"] == "workspace/private";
        if renames || tool.id() == "files.delete" {
            place.run(tool, params).unwrap();
            continue;
        }
        let failure = place.run(tool, params.clone()).unwrap_err();
        assert_eq!(failure.code, Code::DiskFull, "{} {params}: {failure}", tool.id());
        assert_eq!(snapshot(place), before, "{} {params}", tool.id());
        std::fs::remove_dir_all(disk.path.join("names")).unwrap();
        place.run(tool, params).unwrap();
    }
}

#[test]
fn a_reader_beside_many_writers_sees_one_whole_text_or_another() {
    let place = TestSpace::new();
    let texts = ["a".repeat(100_000), "b".repeat(50_000), "c".repeat(10)];
    place.put("x", texts[0].as_bytes());
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for (number, text) in texts.iter().enumerate() {
            let (place, over) = (&place, &over);
            scope.spawn(move || {
                let path = crate::SpacePath::parse("workspace/x").unwrap();
                for _ in 0..40 {
                    let mark = format!("writer {number}");
                    place
                        .workspace()
                        .write_atomically(&path, text.as_bytes(), Existing::Replace, &mark)
                        .unwrap();
                }
                over.store(true, Ordering::Relaxed);
            });
        }
        let mut looks = 0;
        while !over.load(Ordering::Relaxed) || looks == 0 {
            looks += 1;
            match place.workspace().read(&crate::SpacePath::parse("workspace/x").unwrap(), 1 << 20) {
                Ok(content) => assert!(texts.iter().any(|text| text.as_bytes() == content.bytes)),
                // The file was replaced between its inspection and its opening.
                Err(problem) => assert_eq!(problem, FileProblem::Changed),
            }
        }
    });
    assert_eq!(place.names(), ["x"]);
}

#[test]
fn of_two_that_create_one_file_one_is_told_that_it_exists() {
    let place = TestSpace::new();
    place.put("a", b"a");
    for round in 0..20 {
        let to = format!("workspace/to-{round}");
        let outcomes: Vec<_> = std::thread::scope(|scope| {
            let copies: Vec<_> = (0..2)
                .map(|number| {
                    let (place, to) = (&place, &to);
                    scope.spawn(move || {
                        let params = json!({ "from_path": "workspace/a", "to_path": to });
                        let mut call = place.call(&files::Copy, effectd_contracts::CallMode::Run, params);
                        call.trace_id = format!("trace-{number}").parse().unwrap();
                        place.answer(&files::Copy, &call).map_err(|failure| failure.code)
                    })
                })
                .collect();
            copies.into_iter().map(|copy| copy.join().unwrap()).collect()
        });
        let failed: Vec<_> = outcomes.iter().filter_map(|outcome| outcome.as_ref().err()).collect();
        assert_eq!(failed, [&Code::FileExists], "{outcomes:?}");
    }
    assert_eq!(place.names().len(), 21);
}

#[test]
fn of_many_unpacking_to_one_path_one_wins_and_leaves_no_rest() {
    let place = TestSpace::new();
    place.put("a.zip", &crate::archive::tests::sample());
    for round in 0..10 {
        let to = format!("workspace/new/to-{round}");
        let outcomes: Vec<_> = std::thread::scope(|scope| {
            let unpacking: Vec<_> = (0..4)
                .map(|number| {
                    let (place, to) = (&place, &to);
                    scope.spawn(move || {
                        let params = json!({ "from_path": "workspace/a.zip", "to_path": to });
                        let mut call = place.call(&files::Extract, effectd_contracts::CallMode::Run, params);
                        call.trace_id = format!("trace-{number}").parse().unwrap();
                        place.answer(&files::Extract, &call).map_err(|failure| failure.code)
                    })
                })
                .collect();
            unpacking.into_iter().map(|one| one.join().unwrap()).collect()
        });
        let done = outcomes.iter().filter(|outcome| outcome.is_ok()).count();
        assert_eq!(done, 1, "{outcomes:?}");
        let told =
            |outcome: &Result<_, Code>| outcome.as_ref().err().is_none_or(|code| *code == Code::FileExists);
        assert!(outcomes.iter().all(told), "{outcomes:?}");
    }
    // The archive, the folder above, and for each target its folder with two folders and two files.
    assert_eq!(place.names().len(), 2 + 10 * 5, "{:?}", place.names());
}

/// Contents from the side channel: an undo that restores a file, and an artifact that is written to one.
#[test]
fn a_full_disk_during_a_stream_leaves_the_space_unchanged() {
    let test = "a_full_disk_during_a_stream_leaves_the_space_unchanged";
    let Some(disk) = SmallDisk::new(test) else { return };
    let place = disk.place();
    prepare(place);
    let content = vec![7; 300_000];
    let path = crate::SpacePath::parse("workspace/text").unwrap();
    let now = place.workspace().standing(&path, 0).unwrap().0;
    let undoing = Undoing {
        restore: vec![Restore {
            path: "workspace/text".to_owned(),
            now,
            then: PathState::File(FileState {
                digest: Digest::of(&content).to_string(),
                bytes: content.len() as u64,
                mode: 0o644,
            }),
            beside: true,
            from: None,
        }],
        contents: vec![content.clone()],
    };
    let get = json!({ "artifact_id": "0".repeat(64), "to_path": "workspace/new/file" });
    disk.fill();
    let before = snapshot(place);
    let failure = place.restore(undoing.clone()).unwrap_err();
    assert_eq!(failure.code, Code::DiskFull, "{failure}");
    assert_eq!(snapshot(place), before);
    place.send(std::slice::from_ref(&content));
    let failure = place.run(&crate::artifact::Get, get.clone()).unwrap_err();
    assert_eq!(failure.code, Code::DiskFull, "{failure}");
    assert_eq!(snapshot(place), before);
    std::fs::remove_file(disk.path.join("ballast")).unwrap();
    place.restore(undoing).unwrap();
    assert_eq!(place.get("text"), Some(content.clone()));
    place.send(std::slice::from_ref(&content));
    place.run(&crate::artifact::Get, get).unwrap();
    assert_eq!(place.get("new/file"), Some(content));
}
