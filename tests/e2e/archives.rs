//! Archives end to end: packed, unpacked, undone and redone, and refused where they would do harm.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::Value;

use crate::harness::{Place, Ran};

fn attempt(place: &Place, arguments: &[&str]) -> Ran {
    place.effectd(&[&["tools", "try", "-o", "json"], arguments].concat(), None)
}

fn undo(place: &Place, told: &Value) -> Value {
    let receipt = told["receipt"]["receipt_id"].as_str().unwrap();
    place.effectd(&["undo", "-o", "json", receipt], None).json(0)
}

/// Everything beneath a folder, by its path.
pub(crate) fn all(folder: &Path) -> BTreeMap<String, Option<Vec<u8>>> {
    let mut found = BTreeMap::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(next) = folders.pop() {
        for entry in std::fs::read_dir(&next).unwrap().map(Result::unwrap) {
            let path = entry.path();
            let name = path.strip_prefix(folder).unwrap().display().to_string();
            let is_folder = entry.file_type().unwrap().is_dir();
            found.insert(name, (!is_folder).then(|| std::fs::read(&path).unwrap()));
            if is_folder {
                folders.push(path);
            }
        }
    }
    found
}

#[test]
fn a_folder_is_packed_unpacked_taken_back_and_unpacked_again() {
    let place = Place::seeded();
    for number in 0..90 {
        let folder = place.path(&format!("workspace/dir/{}", number % 7));
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(folder.join(format!("{number}.txt")), format!("{number}\n").repeat(number * 50))
            .unwrap();
    }
    let before = all(&place.path("workspace/dir"));
    for archive in ["one.zip", "two.tar.gz"] {
        let to = format!("to_path=workspace/{archive}");
        let packed = attempt(&place, &["files.archive", "from_path=workspace/dir", &to]).json(0);
        assert_eq!(packed["result"]["entries"], before.len());
        let from = format!("from_path=workspace/{archive}");
        let there = all(&place.path("workspace"));
        let unpacked = attempt(&place, &["files.extract", &from, "to_path=workspace/new/out"]).json(0);
        assert_eq!(all(&place.path("workspace/new/out")), before, "{archive}");
        let observed = &unpacked["receipt"]["effects"]["observed"];
        assert_eq!(observed["undoable"], true);
        assert_eq!(observed["changes"].as_array().unwrap().len(), before.len() + 2);
        let undone = undo(&place, &unpacked);
        assert_eq!(all(&place.path("workspace")), there, "{archive}");
        let redone = undo(&place, &undone);
        assert_eq!(all(&place.path("workspace/new/out")), before, "{archive}");
        undo(&place, &redone);
        undo(&place, &packed);
        assert_eq!(all(&place.path("workspace/dir")), before, "{archive}");
        assert_eq!(all(&place.path("workspace")).len(), before.len() + 1, "{archive}");
    }
}

#[test]
fn an_archive_that_would_do_harm_leaves_nothing_and_says_why() {
    let place = Place::seeded();
    std::fs::create_dir_all(place.path("workspace")).unwrap();
    let make = |script: &str| {
        let made = std::process::Command::new("python3")
            .args(["-c", script])
            .current_dir(place.path("workspace"))
            .status()
            .unwrap();
        assert!(made.success(), "{script}");
    };
    make(
        "import zipfile\nz=zipfile.ZipFile('slip.zip','w')\nz.writestr('fine','x')\nz.writestr('../../slipped','x')\nz.close()\n\
         z=zipfile.ZipFile('bomb.zip','w',zipfile.ZIP_DEFLATED)\nz.writestr('zeros',bytes(64<<20))\nz.close()",
    );
    make(
        "import tarfile,io\nt=tarfile.open('link.tgz','w:gz')\nl=tarfile.TarInfo('l')\nl.type=tarfile.SYMTYPE\n\
         l.linkname='/etc'\nt.addfile(l)\nf=tarfile.TarInfo('l/passwd')\nf.size=1\nt.addfile(f,io.BytesIO(b'x'))\nt.close()",
    );
    let before = all(&place.path("workspace"));
    for (archive, code) in
        [("slip.zip", "path_denied"), ("bomb.zip", "file_limit"), ("link.tgz", "path_denied")]
    {
        let from = format!("from_path=workspace/{archive}");
        let refused = attempt(&place, &["files.extract", &from, "to_path=workspace/out"]);
        assert_eq!(refused.json(1)["code"], code, "{archive}: {}", refused.stdout());
        assert_eq!(all(&place.path("workspace")), before, "{archive}");
    }
    assert!(!place.path("slipped").exists());
}

/// More files than one claim can name one by one.
#[test]
fn a_patch_of_many_files_is_one_action_that_can_be_taken_back() {
    let place = Place::seeded();
    std::fs::create_dir_all(place.path("workspace")).unwrap();
    let patch: String = (0..32)
        .map(|number| format!("--- /dev/null\n+++ b/d{number}/f{number}\n@@ -0,0 +1 @@\n+{number}\n"))
        .collect();
    let params = serde_json::json!({ "patch": patch }).to_string();
    let patched = attempt(&place, &["files.apply_patch", "--json", &params]).json(0);
    assert_eq!(all(&place.path("workspace")).len(), 64);
    undo(&place, &patched);
    assert_eq!(all(&place.path("workspace")).len(), 0);
}
