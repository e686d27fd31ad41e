//! Properties of parsers for any input, shared by the tests and the fuzz targets.

use super::glob;
use super::patch::Patch;
use crate::archive::{self, Budget};
use crate::spacepath::{Base, SpacePath};

/// Parses a patch and applies it to a file. Neither may panic or take long, no path may lead outside, and an applied patch
/// can be inverted.
pub fn patch(text: &[u8], file: &[u8]) {
    let (Ok(text), Ok(file)) = (std::str::from_utf8(text), std::str::from_utf8(file)) else {
        return;
    };
    let Ok(patch) = Patch::parse(text) else { return };
    for one in &patch.files {
        stays_inside(&one.path);
        if let Ok(applied) = one.apply(file)
            && let Ok(back) = one.inverted().apply(&applied)
        {
            assert_eq!(back.len(), file.len(), "taking back changed the length");
        }
    }
}

/// Parses a path. An accepted path stays inside its base, and parses to itself again.
pub fn path(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else {
        return;
    };
    for path in [SpacePath::parse(text), SpacePath::parse_folder(text)].into_iter().flatten() {
        stays_inside(&path);
        assert_eq!(SpacePath::parse_folder(&path.to_string()), Ok(path));
    }
    let (pattern, name) = text.split_at(text.floor_char_boundary(text.len() / 2));
    glob::matches(pattern, name);
}

/// Reads an archive to its end. It may not panic or take long, and its content stays within the budget.
pub fn archive(bytes: &[u8]) {
    let budget = Budget::new(bytes.len() as u64);
    let mut out = 0;
    let read = archive::read(std::io::Cursor::new(bytes), &budget, &mut |_, content| {
        out += archive::drain(content, |_| Ok(()))?;
        Ok(())
    });
    // Every error has a message.
    if let Err(problem) = read {
        assert!(!effectd_contracts::Failure::from(problem).message.is_empty());
    }
    assert!(out <= crate::limits::EXTRACT_BYTES_MAX);
}

/// Like `archive`, with these bytes as a tar in valid compression.
pub fn tar(bytes: &[u8]) {
    use std::io::Write;
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    if encoder.write_all(bytes).is_ok()
        && let Ok(packed) = encoder.finish()
    {
        archive(&packed);
    }
}

fn stays_inside(path: &SpacePath) {
    let relative = path.relative();
    assert!(matches!(path.base(), Base::Workspace | Base::Scratch));
    assert!(!relative.starts_with('/') && !relative.contains('\0'), "{relative:?}");
    assert!(relative.split('/').all(|part| !part.is_empty() && part != ".."), "{relative:?}");
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn paths_from_anywhere_stay_inside(text in "(workspace|tmp|/|\\.|\\.\\.|//|\\PC|\u{202e}|\u{ff0f}|a){0,12}") {
            super::path(text.as_bytes());
        }

        #[test]
        fn any_bytes_are_no_danger(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
            super::path(&bytes);
            super::patch(&bytes, &bytes);
        }
    }

    /// Inputs that were interesting once stay tested.
    #[test]
    fn the_corpus_holds() {
        for text in [
            "workspace/../x",
            "workspace/a/./../b",
            "tmp/",
            "workspace//",
            "./workspace",
            "workspace/\u{2024}\u{2024}/x",
            "--- a/x\n+++ b/x\n@@ -0,0 +1 @@\n+x",
            "--- a/x\n+++ b/x\n@@ -18446744073709551615 +1 @@\n-x\n+y\n",
            "--- a/x\n+++ b/x\n@@ -18446744073709551615,0 +1 @@\n+y\n",
            "--- \n+++ \n@@ -1 +1 @@\n-a\n+b\n",
            "--- x\n+++ x\n@@ -1 +1 @@\n-\n\\\n+\n\\\n",
        ] {
            super::path(text.as_bytes());
            for file in ["", "x", "x\n", "a\nb\n", "\n"] {
                super::patch(text.as_bytes(), file.as_bytes());
            }
        }
    }
}
