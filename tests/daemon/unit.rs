//! The unit of docs/deploy, started by a real systemd that this test boots in namespaces of its own.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use crate::harness::{Place, is_root, program, root};

const TEST: &str = "the_unit_starts_under_systemd_and_confines_tools";
const LEG: &str = "the unit bounds the memory of whole process trees";

/// Not by a macro: libtest captures the output of macros.
pub(crate) fn not_run(reason: &str, what: &str) {
    std::io::stderr().write_all(format!("NOT RUN ({reason}): {what}\n").as_bytes()).unwrap();
}

/// A cgroup of version 2 for the systemd of a test; removed after it.
struct Group {
    path: PathBuf,
    control: PathBuf,
    /// What was enabled for it above.
    enabled: Vec<&'static str>,
    has_memory: bool,
}

impl Group {
    fn new() -> std::io::Result<Self> {
        let mounts = fs::read_to_string("/proc/self/mounts")?;
        let top = mounts.lines().find_map(|line| {
            let mut words = line.split(' ').skip(1);
            let (point, kind) = (words.next()?, words.next()?);
            (kind == "cgroup2").then(|| Path::new(point))
        });
        let top = top.ok_or(std::io::ErrorKind::NotFound)?;
        let control = top.join("cgroup.subtree_control");
        let has = |file: &str, name: &str| {
            fs::read_to_string(top.join(file))
                .is_ok_and(|text| text.split_whitespace().any(|word| word == name))
        };
        let mut enabled = Vec::new();
        for name in ["memory", "pids"] {
            if has("cgroup.controllers", name) && !has("cgroup.subtree_control", name) {
                fs::write(&control, format!("+{name}"))?;
                enabled.push(name);
            }
        }
        let path = top.join(format!("effectd-unit-{}", std::process::id()));
        fs::create_dir(&path)?;
        Ok(Self { path, has_memory: has("cgroup.controllers", "memory"), control, enabled })
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // Folders of cgroups are removed one by one, the innermost first.
        let _ = Command::new("find").arg(&self.path).args("-depth -type d -delete".split(' ')).status();
        for name in &self.enabled {
            let _in_use = fs::write(&self.control, format!("-{name}"));
        }
    }
}

/// Boots systemd in a folder with the unit, and waits until it ends.
fn boot(place: &Place, group: &Group) {
    fs::create_dir(place.path("bin")).unwrap();
    assert!(Command::new("cp").arg(program()).arg(place.path("bin/effectd")).status().unwrap().success());
    for file in ["docs/deploy/effectd.service", "tests/daemon/unit.sh", "examples/write_note.json"] {
        let name = Path::new(file).file_name().unwrap();
        let name = if name == "write_note.json" { "request.json".as_ref() } else { name };
        fs::copy(root().join(file), place.path("").join(name)).unwrap();
    }
    let booted = Command::new("timeout")
        .args("-s KILL 120 unshare --pid --fork --kill-child --mount --net --ipc --uts bash".split(' '))
        .arg(place.path("unit.sh"))
        .arg("boot")
        .args([&place.path(""), &group.path])
        .output()
        .unwrap();
    let words = ["try.err", "doctor.out", "doctor.err", "effectd.err"]
        .map(|name| fs::read_to_string(place.path(name)).unwrap_or_default());
    assert!(booted.status.success(), "{booted:?}\n{}", words.join("\n"));
}

#[test]
fn the_unit_starts_under_systemd_and_confines_tools() {
    if !is_root(TEST) {
        return;
    }
    if !Path::new("/lib/systemd/systemd").exists() {
        return not_run("needs systemd", TEST);
    }
    let group = match Group::new() {
        Ok(group) => group,
        Err(error) => return not_run(&format!("no group of cgroup v2 can be made, {}", error.kind()), TEST),
    };
    let place = Place::new();
    boot(&place, &group);
    let read = |name: &str| fs::read_to_string(place.path(name)).unwrap();
    let report: Value = serde_json::from_str(&read("doctor.out")).unwrap();
    let receipt: Value = serde_json::from_str(&read("receipt.json")).unwrap();
    assert_eq!(receipt["status"], "ok", "{receipt:#}");
    let by_cgroup = |value: &Value| value.as_str().unwrap().contains("cgroup v2");
    for finding in report["findings"].as_array().unwrap() {
        match finding["promise"].as_str().unwrap() {
            "tree memory" if !group.has_memory => not_run("cgroup v2 has no memory controller here", LEG),
            "tree memory" => assert!(by_cgroup(&finding["what"]), "{finding}"),
            _ => assert_eq!(finding["verdict"], "enforced", "{finding}"),
        }
    }
    let memory = &receipt["isolation"]["mechanisms"]["memory"];
    assert_eq!(by_cgroup(memory), group.has_memory, "{memory}");
    assert_eq!(read("ended.txt"), "Result=success\n");
}
