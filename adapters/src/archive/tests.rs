//! Archives: a packed archive unpacks to the same files, here and with other programs, and hostile archives are refused.
#![allow(clippy::unwrap_used, clippy::disallowed_types)]

use std::io::Cursor;
use std::process::{Command, Stdio};

use effectd_contracts::{Code, ProbeVerdict};
use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::files::{Archive, Extract};
use crate::limits::EXTRACT_ENTRIES_MAX;
use crate::tests::space::TestSpace;

fn member(name: &str, is_folder: bool) -> Member {
    Member { name: name.to_owned(), is_folder, is_program: false }
}

/// A name, and the content of a file; a folder has none.
type Packed<'p> = (&'p str, Option<&'p [u8]>);

/// An archive of these members, written by [`Writer`].
fn packed(format: Format, members: &[Packed<'_>]) -> Vec<u8> {
    let mut writer = Writer::new(format, Vec::new());
    for (name, content) in members {
        let bytes = content.unwrap_or_default();
        let one = member(name, content.is_none());
        writer.add(&one, bytes.len() as u64, &mut &*bytes).unwrap();
    }
    writer.finish().unwrap()
}

fn unpacked(bytes: &[u8]) -> Result<Vec<(Member, Vec<u8>)>, Failure> {
    let mut found = Vec::new();
    let budget = Budget::new(bytes.len() as u64);
    read(Cursor::new(bytes), &budget, &mut |member, content| {
        let mut all = Vec::new();
        drain(content, |piece| {
            all.extend_from_slice(piece);
            Ok(())
        })?;
        found.push((member.clone(), all));
        Ok(())
    })?;
    Ok(found)
}

/// The output of a Python script with these bytes as its input.
fn python(script: &str, input: &[u8]) -> Vec<u8> {
    let mut child = Command::new("python3")
        .args(["-c", script])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let input = input.to_vec();
    let writing = std::thread::spawn(move || stdin.write_all(&input));
    let output = child.wait_with_output().unwrap();
    let _ = writing.join();
    assert!(output.status.success(), "{script}");
    output.stdout
}

const BOTH: [Format; 2] = [Format::TarGz, Format::Zip];

#[test]
fn what_was_packed_comes_out_again() {
    let long = format!("{}/{}", "folder".repeat(20), "name".repeat(40));
    let noise: Vec<u8> = (0..200_000_u32).flat_map(|n| n.wrapping_mul(0x9E37_79B9).to_le_bytes()).collect();
    let members: [(&str, Option<&[u8]>); 5] = [
        ("empty", Some(b"")),
        ("folder", None),
        ("folder/naïve ☃.txt", Some(b"text")),
        (&long, Some(b"long")),
        ("noise", Some(&noise)),
    ];
    for format in BOTH {
        let found = unpacked(&packed(format, &members)).unwrap();
        assert_eq!(found.len(), members.len());
        for ((name, content), (member, read)) in members.iter().zip(&found) {
            assert_eq!((member.name.trim_end_matches('/'), member.is_folder), (*name, content.is_none()));
            assert!(content.unwrap_or_default() == read, "{format:?} {name}");
        }
        assert!(unpacked(&packed(format, &[])).unwrap().is_empty());
    }
}

#[test]
fn other_programs_read_what_we_write_and_write_what_we_read() {
    let members: [(&str, Option<&[u8]>); 3] = [("d", None), ("d/ä", Some(b"one")), ("e", Some(&[7; 70_000]))];
    let scripts = [
        (
            Format::Zip,
            "import sys,io,zipfile\nz=zipfile.ZipFile(io.BytesIO(sys.stdin.buffer.read()))\nassert z.testzip() is None\n\
             o=io.BytesIO()\nw=zipfile.ZipFile(o,'w',zipfile.ZIP_DEFLATED)\n[w.writestr(n,z.read(n)) for n in z.namelist()]\n\
             w.comment=b'PK\\x05\\x06 a comment'\nw.close()\nsys.stdout.buffer.write(o.getvalue())",
        ),
        (
            Format::TarGz,
            "import sys,io,tarfile\nt=tarfile.open(fileobj=io.BytesIO(sys.stdin.buffer.read()),mode='r:gz')\no=io.BytesIO()\n\
             w=tarfile.open(fileobj=o,mode='w:gz',format=tarfile.PAX_FORMAT)\n\
             [w.addfile(m,t.extractfile(m) if m.isfile() else None) for m in t.getmembers()]\nw.close()\n\
             sys.stdout.buffer.write(o.getvalue())",
        ),
    ];
    for (format, script) in scripts {
        let theirs = python(script, &packed(format, &members));
        let found = unpacked(&theirs).unwrap_or_else(|failure| panic!("{format:?}: {failure}"));
        let told: Vec<_> = found
            .iter()
            .map(|(member, content)| (member.name.trim_end_matches('/'), member.is_folder, content.len()))
            .collect();
        assert_eq!(told, [("d", true, 0), ("d/ä", false, 3), ("e", false, 70_000)], "{format:?}");
    }
}

/// Checks that the tool refuses these bytes with this code, and leaves nothing behind.
fn refused(bytes: &[u8], wanted: Code, case: &str) {
    let place = TestSpace::new();
    place.put("a.archive", bytes);
    let params = json!({ "from_path": "workspace/a.archive", "to_path": "workspace/new/out" });
    for dry in [true, false] {
        let answer =
            if dry { place.dry_run(&Extract, params.clone()) } else { place.run(&Extract, params.clone()) };
        let failure = answer.map(|output| output.result).unwrap_err();
        assert_eq!(failure.code, wanted, "{case} (dry {dry}): {failure}");
        assert_eq!(place.names(), ["a.archive"], "{case} (dry {dry})");
    }
}

#[test]
fn names_that_lead_out_lie_or_come_twice_are_refused() {
    let names = [
        "../x",
        "a/../../x",
        "/etc/passwd",
        "a\\b",
        "a/..",
        "..",
        "a\0b",
        "a\nb",
        "\u{202e}x",
        "a/\u{2024}\u{2024}/b",
        ".effectd-1.draft",
        "",
    ];
    // The tar crate refuses to write most of these names; the test below makes such tars by hand.
    for name in names {
        refused(&packed(Format::Zip, &[(name, Some(b"x"))]), Code::PathDenied, name);
    }
    for format in BOTH {
        let deep = "d/".repeat(100) + "x";
        refused(&packed(format, &[(&deep, Some(b"x"))]), Code::PathDenied, "deep");
        let wide = "n".repeat(256);
        refused(&packed(format, &[(&wide, Some(b"x"))]), Code::PathDenied, "wide");
    }
    let twice: [&[Packed<'_>]; 5] = [
        &[("a", Some(b"1")), ("a", Some(b"2"))],
        &[("a", Some(b"1")), ("./a", Some(b"2"))],
        &[("a", Some(b"1")), ("a/b", Some(b"2"))],
        &[("a/b", Some(b"1")), ("a", Some(b"2"))],
        &[("a", None), ("a", None)],
    ];
    for format in BOTH {
        for (number, members) in twice.iter().enumerate() {
            // The tar crate cleans up names when it writes them.
            if format == Format::TarGz && number == 1 {
                continue;
            }
            refused(&packed(format, members), Code::PathDenied, &format!("{format:?} {number}"));
        }
    }
}

/// A tar with one header, made by hand.
fn tar_with(kind: tar::EntryType, name: &[u8], link: &str) -> Vec<u8> {
    let mut header = tar::Header::new_gnu();
    header.as_mut_bytes()[..name.len()].copy_from_slice(name);
    header.set_entry_type(kind);
    header.set_mode(0o644);
    header.set_size(0);
    header.set_mtime(0);
    if !link.is_empty() {
        header.set_link_name(link).unwrap();
    }
    header.set_cksum();
    let mut bytes = header.as_bytes().to_vec();
    bytes.extend([0; 1_024]);
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
    encoder.write_all(&bytes).unwrap();
    encoder.finish().unwrap()
}

/// A tar whose extended headers mark its one file as sparse.
fn sparse_by_notes() -> Vec<u8> {
    let encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
    let mut tar = tar::Builder::new(encoder);
    let notes = [("GNU.sparse.major", &b"1"[..]), ("GNU.sparse.name", b"real")];
    tar.append_pax_extensions(notes).unwrap();
    let mut header = tar::Header::new_ustar();
    header.set_entry_type(tar::EntryType::Regular);
    header.set_mode(0o644);
    header.set_size(2);
    tar.append_data(&mut header, "x", &b"0\n"[..]).unwrap();
    tar.into_inner().unwrap().finish().unwrap()
}

#[test]
fn links_devices_and_what_is_no_file_are_refused() {
    use tar::EntryType;
    let kinds = [
        (EntryType::Symlink, "/etc/passwd"),
        (EntryType::Link, "a"),
        (EntryType::Char, ""),
        (EntryType::Block, ""),
        (EntryType::Fifo, ""),
        (EntryType::new(b'Z'), ""),
    ];
    for (kind, link) in kinds {
        refused(&tar_with(kind, b"x", link), Code::PathDenied, &format!("{kind:?}"));
    }
    refused(&tar_with(EntryType::GNUSparse, b"x", ""), Code::ArchiveInvalid, "sparse");
    refused(&sparse_by_notes(), Code::PathDenied, "sparse, by notes");
    for name in [&b"../x"[..], b"/etc/passwd", b"\xff\xfe", b"a/../../x"] {
        refused(&tar_with(EntryType::Regular, name, ""), Code::PathDenied, &format!("{name:?}"));
    }
    // A zip states the kind of a member in its directory: 0o120777 for a link, and so on.
    for mode in [0o120_777_u32, 0o020_666, 0o060_666, 0o010_666, 0o140_666] {
        let mut bytes = packed(Format::Zip, &[("x", Some(b"/etc/passwd"))]);
        let at = find(&bytes, b"PK\x01\x02") + 38;
        bytes[at..at + 4].copy_from_slice(&(mode << 16).to_le_bytes());
        refused(&bytes, Code::PathDenied, &format!("{mode:o}"));
    }
}

fn find(bytes: &[u8], wanted: &[u8]) -> usize {
    bytes.windows(wanted.len()).position(|window| window == wanted).unwrap()
}

#[test]
fn bombs_are_refused_by_what_comes_out_and_not_by_what_they_say() {
    let zeros = vec![0; 8 << 20];
    for format in BOTH {
        let bomb = packed(format, &[("zeros", Some(&zeros))]);
        assert!(bomb.len() < 64 << 10, "{format:?}: {}", bomb.len());
        refused(&bomb, Code::FileLimit, "a ratio");
        let many: Vec<(String, Option<&[u8]>)> =
            (0..=EXTRACT_ENTRIES_MAX).map(|number| (format!("{number}"), Some(&b""[..]))).collect();
        let many: Vec<_> = many.iter().map(|(name, content)| (name.as_str(), *content)).collect();
        refused(&packed(format, &many), Code::FileLimit, "a count");
        let name = "n".repeat(200);
        let long: Vec<String> = (0..900).map(|number| format!("{name}/{number}/{name}")).collect();
        let long: Vec<(&str, Option<&[u8]>)> = long.iter().map(|name| (name.as_str(), None)).collect();
        refused(&packed(format, &long), Code::FileLimit, "names");
    }
    // A member that claims to be smaller than it is.
    let mut liar = packed(Format::Zip, &[("x", Some(&[7; 100_000]))]);
    let at = find(&liar, b"PK\x01\x02") + 24;
    liar[at..at + 4].copy_from_slice(&10_u32.to_le_bytes());
    refused(&liar, Code::ArchiveInvalid, "a length that lies");
    let budget = Budget::new(u64::MAX);
    let mut endless = Counted { from: io::repeat(7), budget: &budget };
    let problem = budget.judge(drain(&mut endless, |_| Ok(())).unwrap_err());
    assert_eq!(Failure::from(problem).code, Code::FileLimit);
}

#[test]
fn members_that_overlap_or_contradict_the_directory_are_refused() {
    let two = packed(Format::Zip, &[("a", Some(b"first")), ("b", Some(b"second"))]);
    let first = find(&two, b"PK\x01\x02");
    let second = first + 46 + 1;
    // Both entries of the directory point to the content of the first member.
    let mut overlap = two.clone();
    overlap.copy_within(first + 42..first + 46, second + 42);
    refused(&overlap, Code::ArchiveInvalid, "one place for two");
    for (at, case) in [(first + 46, "a name"), (first + 16, "a checksum"), (first + 10, "a method")] {
        let mut wrong = two.clone();
        wrong[at] ^= 8;
        refused(&wrong, Code::ArchiveInvalid, case);
    }
    let mut secret = two.clone();
    secret[first + 8] |= 1;
    refused(&secret, Code::PathDenied, "encrypted");
    for cut in [0, 3, 20, two.len() / 2, two.len() - 1] {
        refused(&two[..cut], Code::ArchiveInvalid, "cut off");
    }
    let tar = packed(Format::TarGz, &[("a", Some(&[1; 5_000]))]);
    for cut in [10, tar.len() / 2, tar.len() - 1] {
        refused(&tar[..cut], Code::ArchiveInvalid, "cut off");
    }
    refused(b"neither the one nor the other", Code::ArchiveInvalid, "text");
}

/// What the archive lies about, and the bytes that replace the true ones.
type Lie<'l> = (&'l str, &'l [(usize, &'l [u8])]);

#[test]
fn wrong_formats_and_trailing_bytes_are_refused() {
    let one = packed(Format::Zip, &[("x", Some(b"content"))]);
    let (local, directory, end) =
        (find(&one, b"PK\x03\x04"), find(&one, b"PK\x01\x02"), find(&one, b"PK\x05\x06"));
    let with = |changes: &[(usize, &[u8])]| {
        let mut bytes = one.clone();
        for (at, new) in changes {
            bytes[*at..at + new.len()].copy_from_slice(new);
        }
        bytes
    };
    let large: [Lie<'_>; 4] = [
        ("members", &[(end + 8, &[0xff; 4])]),
        ("the place of the directory", &[(end + 16, &[0xff; 4])]),
        ("a length", &[(directory + 24, &[0xff; 4])]),
        ("a packed length", &[(directory + 20, &[0xff; 4])]),
    ];
    for (case, changes) in large {
        refused(&with(changes), Code::FileLimit, case);
    }
    let lies: [Lie<'_>; 5] = [
        ("no lengths in the head, and none later", &[(local + 6, &[0, 8])]),
        ("another length in the head", &[(local + 22, &[1])]),
        ("another checksum in the head", &[(local + 14, &[1])]),
        ("more members than there are", &[(end + 8, &[2, 0, 2, 0])]),
        ("a longer directory", &[(end + 12, &[0xff])]),
    ];
    for (case, changes) in lies {
        refused(&with(changes), Code::ArchiveInvalid, case);
    }
    refused(&with(&[(end + 4, &[1])]), Code::PathDenied, "a second volume");
    refused(
        &with(&[(local + 30, &[0xff]), (directory + 46, &[0xff])]),
        Code::PathDenied,
        "a name that is not UTF-8",
    );
    refused(&[&one[..], b"behind it"].concat(), Code::ArchiveInvalid, "something behind a zip");
    let tar = packed(Format::TarGz, &[("x", Some(b"content"))]);
    refused(&[&tar[..], b"behind it"].concat(), Code::ArchiveInvalid, "something behind a tar");
    let mut wrong = tar.clone();
    let checksum = wrong.len() - 8;
    wrong[checksum] ^= 1;
    refused(&wrong, Code::ArchiveInvalid, "a checksum of gzip");
    for format in BOTH {
        let deep = "d/".repeat(40) + "x";
        refused(&packed(format, &[(&deep, Some(b"x"))]), Code::FileLimit, "deep");
    }
}

#[test]
fn a_folder_goes_in_and_comes_out_as_it_was() {
    use std::os::unix::fs::PermissionsExt;
    for archive in ["workspace/a.zip", "workspace/a.tgz"] {
        let place = TestSpace::new();
        place.put("dir/run.sh", b"#!/bin/sh\n");
        place.put("dir/deep/er/data", &[3; 70_000]);
        std::fs::create_dir(place.path("dir/empty")).unwrap();
        std::fs::set_permissions(place.path("dir/run.sh"), std::fs::Permissions::from_mode(0o4755)).unwrap();
        place.run(&Archive, json!({ "from_path": "workspace/dir", "to_path": archive })).unwrap();
        let out = json!({ "from_path": archive, "to_path": "workspace/out/here" });
        let before = Some(place.look(&Extract, &out));
        assert_eq!(place.probe(&Extract, out.clone(), before.clone()), ProbeVerdict::NotDone);
        let dry = place.dry_run(&Extract, out.clone()).unwrap();
        let output = place.run(&Extract, out.clone()).unwrap();
        let told = json!({ "files": 2, "folders": 3, "content_bytes": 70_010 });
        assert_eq!(output.result, told);
        assert_eq!(dry.result["content_bytes"], told["content_bytes"]);
        assert_eq!(place.probe(&Extract, out.clone(), before.clone()), ProbeVerdict::Done);
        for name in ["run.sh", "deep/er/data"] {
            assert_eq!(place.get(&format!("out/here/{name}")), place.get(&format!("dir/{name}")));
        }
        assert!(place.path("out/here/empty").is_dir());
        let mode = std::fs::metadata(place.path("out/here/run.sh")).unwrap().permissions().mode();
        assert_eq!(mode & 0o7777, 0o755, "no bit that makes somebody else of whoever runs it");
        assert_eq!(place.run(&Extract, out.clone()).unwrap_err().code, Code::FileExists);
        place.put("out/here/run.sh", b"other");
        assert_eq!(place.probe(&Extract, out, before), ProbeVerdict::CannotSay);
    }
}

#[test]
fn what_an_interrupted_run_has_unpacked_is_removed_by_the_next() {
    let place = TestSpace::new();
    place.put("a.zip", &packed(Format::Zip, &[("deep/x", Some(b"x"))]));
    let to = crate::SpacePath::parse("workspace/out").unwrap();
    let draft = place.workspace().draft_folder(&to, "trace").unwrap();
    draft.file(&["half".to_owned(), "done".to_owned()], 0o644).unwrap();
    // A process that is killed drops nothing.
    #[expect(clippy::disallowed_methods, reason = "stands for a kill")]
    std::mem::forget(draft);
    assert_eq!(place.names().len(), 4);
    assert!(place.workspace().remove_draft(&to, "trace", None).unwrap());
    assert_eq!(place.names(), ["a.zip"]);
    let params = json!({ "from_path": "workspace/a.zip", "to_path": "workspace/out" });
    place.run(&Extract, params).unwrap();
    assert_eq!(place.names(), ["a.zip", "out", "out/deep", "out/deep/x"]);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, ..ProptestConfig::default() })]

    #[test]
    fn any_bytes_are_no_danger(bytes in prop::collection::vec(any::<u8>(), 0..512), zip in any::<bool>()) {
        let head: &[u8] = if zip { b"PK\x03\x04" } else { &[0x1f, 0x8b, 8, 0] };
        crate::files::fuzz::archive(&[head, &bytes].concat());
        crate::files::fuzz::archive(&bytes);
    }

    #[test]
    fn archives_with_a_few_wrong_bytes_are_no_danger(
        at in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6), zip in any::<bool>(),
    ) {
        let format = if zip { Format::Zip } else { Format::TarGz };
        let mut bytes = packed(format, &[("a/b", Some(b"content")), ("c", None), ("d", Some(&[9; 300]))]);
        for (index, byte) in at {
            let index = index.index(bytes.len());
            bytes[index] = byte;
        }
        crate::files::fuzz::archive(&bytes);
    }

    #[test]
    fn tars_with_wrong_bytes_within_are_no_danger(
        at in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8),
    ) {
        let mut writer = tar::Builder::new(Vec::new());
        for name in ["a/b".to_owned(), "long".repeat(60)] {
            let mut header = tar::Header::new_gnu();
            header.set_size(7);
            header.set_mode(0o644);
            writer.append_data(&mut header, name, &b"content"[..]).unwrap();
        }
        let mut bytes = writer.into_inner().unwrap();
        for (index, byte) in at {
            let index = index.index(bytes.len());
            bytes[index] = byte;
        }
        crate::files::fuzz::tar(&bytes);
    }
}

#[test]
fn a_format_is_known_by_its_name() {
    let known: Vec<Value> = ["a.zip", "A.ZIP", "a.tar.gz", "a.tgz", "a.tar", "zip", ""]
        .map(|name| json!(Format::of_name(name).is_some()))
        .to_vec();
    assert_eq!(json!(known), json!([true, true, true, true, false, false, false]));
}

/// A small archive for the tests of all tools: a file, and one in a folder.
pub(crate) fn sample() -> Vec<u8> {
    let mut writer = Writer::new(Format::Zip, Vec::new());
    for name in ["inside", "deep/er/inside"] {
        let member = Member { name: name.to_owned(), is_folder: false, is_program: false };
        writer.add(&member, 6, &mut &b"inside"[..]).unwrap();
    }
    writer.finish().unwrap()
}
