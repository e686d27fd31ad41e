//! Bad input, the same for every tool: each kind has its own code, and the space stays unchanged.

use std::os::unix::fs::symlink;

use effectd_contracts::{Code, RiskLevel};
use serde_json::{Value, json};

use super::recovery::snapshot;
use super::{prepare, samples};
use crate::limits::{NAME_BYTES_MAX, PATH_BYTES_MAX, PATH_DEPTH_MAX};
use crate::tests::space::TestSpace;
use crate::tool::Tool;
use crate::{all, artifact, command, files};

/// Parameters for every tool, in a space that `prepare` made.
pub(super) fn every_tool() -> Vec<(&'static dyn Tool, Value)> {
    let mut every = samples();
    every.push((&files::ReadText, json!({ "path": "workspace/text" })));
    every.push((&files::List, json!({ "path": "workspace/folder" })));
    every.push((&files::Search, json!({ "path": "workspace/folder", "text": "in" })));
    every.push((&files::Stat, json!({ "path": "workspace/text" })));
    every.push((&command::Run, json!({ "argv": ["true"], "directory_path": "workspace/folder" })));
    for tool in all() {
        if !every.iter().any(|(known, _)| known.id() == tool.id()) {
            every.push((*tool, tool.example()));
        }
    }
    every
}

/// A tool for texts, and its parameters for a path.
type TextTool = (&'static dyn Tool, fn(&str) -> Value);

pub(super) fn path_params(params: &Value) -> Vec<String> {
    let names = params.as_object().unwrap().keys();
    names.filter(|name| *name == "path" || name.ends_with("_path")).cloned().collect()
}

fn refused(place: &TestSpace, tool: &dyn Tool, params: &Value, wanted: &[Code], case: &str) {
    let before = snapshot(place);
    for dry in [false, true] {
        let answer = if dry { place.dry_run(tool, params.clone()) } else { place.run(tool, params.clone()) };
        match answer {
            Err(failure) => assert!(wanted.contains(&failure.code), "{} {case}: {failure}", tool.id()),
            // A dry run of these tools does not find every obstacle; the run does.
            Ok(_)
                if dry
                    && matches!(
                        tool.id(),
                        "files.write_text" | "files.make_dir" | "files.copy" | "files.move"
                    ) => {}
            Ok(output) => panic!("{} {case} was taken: {}", tool.id(), output.result),
        }
        assert_eq!(snapshot(place), before, "{} {case} left something behind", tool.id());
    }
}

#[test]
fn wrong_types_missing_and_unknown_parameters_are_refused() {
    let place = TestSpace::new();
    prepare(&place);
    for (tool, mut params) in every_tool() {
        params["space_id"] = json!("shared:household");
        for name in params.as_object().unwrap().keys().cloned().collect::<Vec<_>>() {
            for wrong in [json!(null), json!(1.5), json!({ "a": 1 }), json!([[]])] {
                let mut bad = params.clone();
                bad[&name] = wrong.clone();
                refused(&place, tool, &bad, &[Code::ParamsInvalid], &format!("{name}: {wrong}"));
            }
        }
        let mut unknown = params.clone();
        unknown["surprise"] = json!(true);
        refused(&place, tool, &unknown, &[Code::ParamsInvalid], "an unknown parameter");
        let spec = tool.spec();
        for name in spec.params_schema["required"].as_array().into_iter().flatten() {
            let mut bad = params.clone();
            bad.as_object_mut().unwrap().remove(name.as_str().unwrap());
            if name != "space_id" {
                refused(&place, tool, &bad, &[Code::ParamsInvalid], &format!("without {name}"));
            }
        }
    }
}

#[test]
fn tricks_of_spelling_are_refused_before_anything_is_touched() {
    let place = TestSpace::new();
    prepare(&place);
    let tricks = [
        "workspace/../x".to_owned(),
        "workspace/folder/../../x".to_owned(),
        "/etc/passwd".to_owned(),
        "//workspace/x".to_owned(),
        "etc/passwd".to_owned(),
        "workspace/a\0b".to_owned(),
        "workspace/a\nb".to_owned(),
        "workspace/\u{202e}x".to_owned(),
        "workspace/\u{ff0f}etc".to_owned(),
        "workspace/\u{2024}\u{2024}/x".to_owned(),
        "workspace/.effectd-x.draft".to_owned(),
        format!("workspace/{}", "n".repeat(NAME_BYTES_MAX + 1)),
        format!("workspace/{}", "n".repeat(PATH_BYTES_MAX)),
        format!("workspace/{}x", "d/".repeat(PATH_DEPTH_MAX + 1)),
    ];
    for (tool, params) in every_tool() {
        for name in path_params(&params) {
            for trick in &tricks {
                let mut bad = params.clone();
                bad[&name] = json!(trick);
                refused(&place, tool, &bad, &[Code::ParamsInvalid], trick);
            }
        }
    }
    for trick in ["../x", "/etc/passwd", "a/../../x", "\u{202e}x"] {
        let patch = format!("--- {trick}\n+++ {trick}\n@@ -1 +1 @@\n-a\n+b\n");
        refused(&place, &files::ApplyPatch, &json!({ "patch": patch }), &[Code::ParamsInvalid], trick);
    }
}

/// Paths that are not a file, each with the code of the error.
fn traps(place: &TestSpace) -> Vec<(&'static str, Code)> {
    symlink("loop-b", place.path("loop-a")).unwrap();
    symlink("loop-a", place.path("loop-b")).unwrap();
    symlink("/etc/passwd", place.path("link")).unwrap();
    symlink("/etc", place.path("link-folder")).unwrap();
    symlink("text", place.path("link-inside")).unwrap();
    place.fifo("pipe");
    let mut traps = vec![
        ("workspace/loop-a", Code::PathDenied),
        ("workspace/link", Code::PathDenied),
        ("workspace/link-inside", Code::PathDenied),
        ("workspace/link-folder/passwd", Code::PathDenied),
        ("workspace/loop-a/x", Code::PathDenied),
        ("workspace/pipe", Code::NotAFile),
        ("workspace/folder", Code::NotAFile),
        ("workspace/text/below", Code::NotAFolder),
    ];
    let device = nix::sys::stat::mknod(
        &place.path("device"),
        nix::sys::stat::SFlag::S_IFCHR,
        nix::sys::stat::Mode::from_bits_truncate(0o666),
        nix::sys::stat::makedev(1, 5),
    );
    if device.is_ok() {
        traps.push(("workspace/device", Code::NotAFile));
    }
    traps
}

#[test]
fn what_is_no_file_is_neither_read_nor_replaced() {
    let place = TestSpace::new();
    prepare(&place);
    let traps = traps(&place);
    for (tool, params) in every_tool() {
        if matches!(
            tool.id(),
            "files.list" | "files.search" | "files.stat" | "files.make_dir" | "command.run"
        ) {
            continue;
        }
        for name in path_params(&params) {
            for (trap, code) in &traps {
                let mut bad = params.clone();
                bad[&name] = json!(trap);
                // From an existing file to a trap, and from a trap to a free path.
                if name == "from_path" {
                    bad["to_path"] = json!("workspace/free");
                }
                // A folder may be moved, and its own path is not another one.
                if tool.id() == "files.move"
                    && bad["from_path"] == "workspace/folder"
                    && *trap == "workspace/folder"
                {
                    continue;
                }
                // A folder may be packed.
                if tool.id() == "files.archive" && *trap == "workspace/folder" && bad["from_path"] == *trap {
                    continue;
                }
                let folder_in_the_way =
                    tool.id() == "files.extract" && name == "to_path" && *trap == "workspace/folder";
                // A folder cannot be moved to a path inside of itself, whatever is there.
                let from = bad["from_path"].as_str().unwrap_or_default();
                let inside =
                    tool.id() == "files.move" && name == "to_path" && trap.starts_with(&format!("{from}/"));
                let code = match (inside, folder_in_the_way) {
                    (true, _) => Code::ParamsInvalid,
                    (_, true) => Code::FileExists,
                    (false, false) => *code,
                };
                refused(&place, tool, &bad, &[code], trap);
            }
        }
    }
    for (trap, code) in traps {
        let name = trap.strip_prefix("workspace/").unwrap();
        let patch = format!("--- {name}\n+++ {name}\n@@ -1 +1 @@\n-a\n+b\n");
        refused(&place, &files::ApplyPatch, &json!({ "patch": patch }), &[code], trap);
        // Tools for folders accept a folder, but no link and no other kind of entry.
        if name == "folder" {
            continue;
        }
        let folder = json!({ "path": trap });
        refused(&place, &files::List, &folder, &[code, Code::NotAFolder], trap);
        refused(
            &place,
            &files::Search,
            &json!({ "path": trap, "glob": "*" }),
            &[code, Code::NotAFolder],
            trap,
        );
        refused(&place, &files::MakeDir, &folder, &[code, Code::NotAFolder], trap);
        let run = json!({ "argv": ["true"], "directory_path": trap });
        refused(&place, &command::Run, &run, &[code, Code::NotAFolder], trap);
    }
    // `files.stat` reports the kind of an entry without opening it, and follows no link.
    for (trap, kind) in
        [("loop-a", "link"), ("link-folder", "link"), ("pipe", "special"), ("folder", "folder")]
    {
        let told = place.run(&files::Stat, json!({ "path": format!("workspace/{trap}") }));
        assert_eq!(told.unwrap().result["kind"], kind);
    }
    for (trap, code) in [
        ("workspace/link-folder/passwd", Code::PathDenied),
        ("workspace/loop-a/x", Code::PathDenied),
        ("workspace/text/below", Code::NotAFolder),
    ] {
        refused(&place, &files::Stat, &json!({ "path": trap }), &[code], trap);
    }
}

/// Tools that use only names and sizes need not read the contents.
#[test]
fn binary_files_can_be_listed_measured_moved_and_removed() {
    use std::os::unix::ffi::OsStrExt;
    let place = TestSpace::new();
    prepare(&place);
    let giant = std::fs::File::create(place.path("folder/giant")).unwrap();
    giant.set_len(1 << 40).unwrap();
    let odd = std::ffi::OsStr::from_bytes(b"folder/\xff\xfe");
    std::fs::write(place.path("").join(odd), "x").unwrap();
    let list = place.run(&files::List, json!({ "path": "workspace/folder" })).unwrap();
    assert_eq!((&list.result["count"], &list.result["unnamed"]), (&json!(2), &json!(1)));
    std::fs::remove_file(place.path("").join(odd)).unwrap();
    let search = json!({ "path": "workspace", "text": "binary" });
    let found = place.run(&files::Search, search).unwrap();
    assert_eq!(found.result["hits"], json!([]), "{}", found.result);
    let stat = place.run(&files::Stat, json!({ "path": "workspace/folder/giant" })).unwrap();
    assert_eq!((&stat.result["bytes"], stat.result.get("sha256")), (&json!(1_u64 << 40), None));
    let put = json!({ "path": "workspace/folder/giant" });
    refused(&place, &artifact::Put, &put, &[Code::FileLimit], "a giant");
    let to = json!({ "from_path": "workspace/folder/giant", "to_path": "workspace/there" });
    place.run(&files::Move, to).unwrap();
    place.run(&files::Delete, json!({ "path": "workspace/there" })).unwrap();
    let text = json!({ "path": "workspace/private", "text": "now a text" });
    place.run(&files::WriteText, text).unwrap();
    assert_eq!(place.get("private"), Some(b"now a text".to_vec()));
}

#[test]
fn binary_files_invalid_text_and_sparse_giants_are_refused() {
    let place = TestSpace::new();
    prepare(&place);
    place.put("latin", b"one\ntw\xf6\n");
    std::fs::File::create(place.path("giant")).unwrap().set_len(1 << 40).unwrap();
    let patch = |name: &str| json!({ "patch": format!("--- {name}\n+++ {name}\n@@ -1 +1 @@\n-a\n+b\n") });
    let text_tools: [TextTool; 3] = [
        (&files::ReadText, |path| json!({ "path": path })),
        (&files::AppendText, |path| json!({ "path": path, "text": "x" })),
        (&files::EditText, |path| json!({ "path": path, "find": "a", "replace": "b" })),
    ];
    for (tool, params) in text_tools {
        for path in ["workspace/private", "workspace/latin"] {
            refused(&place, tool, &params(path), &[Code::NotText], path);
        }
        // Reading a part of the file finds that it is not text.
        refused(&place, tool, &params("workspace/giant"), &[Code::FileLimit, Code::NotText], "a giant");
    }
    for (name, code) in [("private", Code::NotText), ("latin", Code::NotText), ("giant", Code::FileLimit)] {
        refused(&place, &files::ApplyPatch, &patch(name), &[code], name);
    }
    let copy = json!({ "from_path": "workspace/giant", "to_path": "workspace/copy.zip" });
    for tool in [&files::Copy as &dyn Tool, &files::Archive, &files::Extract] {
        refused(&place, tool, &copy, &[Code::FileLimit], "a giant");
    }
    for name in ["private", "latin"] {
        let from = json!({ "from_path": format!("workspace/{name}"), "to_path": "workspace/out" });
        refused(&place, &files::Extract, &from, &[Code::ArchiveInvalid], name);
    }
}

#[test]
fn what_is_not_there_has_its_own_code() {
    let place = TestSpace::new();
    prepare(&place);
    for (tool, params) in every_tool() {
        let creates = matches!(tool.id(), "files.write_text" | "files.append_text" | "files.make_dir");
        for name in path_params(&params).iter().filter(|name| *name != "to_path") {
            let mut bad = params.clone();
            bad[name] = json!("workspace/none");
            if !creates && tool.spec().level() != RiskLevel::Read {
                refused(&place, tool, &bad, &[Code::FileNotFound], "nothing there");
            }
        }
    }
    for tool in [&files::ReadText as &dyn Tool, &files::List, &files::Search] {
        let params = json!({ "path": "workspace/none", "glob": "*" });
        let params = if tool.id() == "files.search" { params } else { json!({ "path": "workspace/none" }) };
        refused(&place, tool, &params, &[Code::FileNotFound], "nothing there");
    }
}
