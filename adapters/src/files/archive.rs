//! `files.archive`: packs a file or a folder of the space into an archive.

use std::io::{self, BufWriter, Write};

use nix::errno::Errno;

use crate::archive::{Format, Member, Writer};
use crate::limits::{ARCHIVE_BYTES_MAX, EXTRACT_ENTRIES_MAX};
use crate::prelude::*;
use crate::workspace::{Hashing, Stat, WalkEntry};

#[derive(Debug, Clone, Copy)]
pub struct Archive;

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Params {
    from_path: FolderPath,
    to_path: SpacePath,
    /// Default: what the end of to_path says.
    #[schemars(extend("x-public" = true))]
    format: Option<Format>,
    /// Replace the file if it exists. Default: false.
    #[serde(default)]
    #[schemars(extend("x-public" = true))]
    overwrite: bool,
}

impl TypedTool for Archive {
    const ID: &'static str = "files.archive";
    const DESCRIPTION: &'static str = "Packs a file or a folder of the space into a .tar.gz or .zip. Overwrites an \
        existing file only on request. Links and devices are left out and counted; times and owners are not kept, \
        so that the same content gives the same archive. Use it to hand over many files as one.";
    type Params = Params;

    fn spec(&self) -> ToolSpec {
        let result = json!({
            "entries": count(), "content_bytes": count(), "archive_bytes": count(), "left_out": count(),
            "dry_run": flag(),
        });
        ToolSpec {
            caps_required: params::caps(["files.read", "files.write", "workspace:shared:write"]),
            timeout_ms: 30_000,
            resource: params::resource("file:{space_id}/{to_path}"),
            repeat: Repeat::Probe,
            ..params::writes::<Self>(&["entries", "content_bytes", "left_out"], result)
        }
    }

    fn example(&self) -> Value {
        json!({ "from_path": "workspace/notes", "to_path": "workspace/notes.tar.gz" })
    }

    fn check(&self, params: &Params) -> Result<(), Failure> {
        if params.from_path.0 == params.to_path {
            return Err(params::invalid("to_path", "it is the path that is packed"));
        }
        params.format().map(drop)
    }

    fn touches(&self, params: &Params) -> Option<Vec<Touch>> {
        Some(params::touched(&params.to_path))
    }

    /// The source, with everything in it if it is a folder.
    fn reads(&self, params: &Params) -> Vec<String> {
        vec![params.from_path.0.to_string()]
    }

    /// Quality is the share of the entries that is in the archive.
    fn run(&self, workspace: &Workspace<'_>, call: &Call<'_, Params>) -> Result<ToolOutput, Failure> {
        let (from, to) = (&call.params.from_path.0, &call.params.to_path);
        let found = find(workspace, from, to)?;
        let mark = call.trace_id.as_str();
        let (draft, mut file) =
            workspace.draft_open(to, None, Existing::replace_if(call.params.overwrite), mark)?;
        pack(workspace, &found, call.params.format()?, &mut file)?;
        // An archive inside the packed folder changes that folder's listing itself.
        if !format!("{to}/").starts_with(&format!("{from}/")) {
            workspace.check_still(from)?;
        }
        file.sync_all().map_err(FileProblem::io("sync the file"))?;
        let archive_bytes = file.metadata().map_or(0, |meta| meta.len());
        draft.place()?;
        let mut result = found.result();
        result["archive_bytes"] = json!(archive_bytes);
        Ok(ToolOutput::new(result, Some(found.share())))
    }

    fn dry_run(&self, workspace: &Workspace<'_>, call: &Call<'_, Params>) -> Result<ToolOutput, Failure> {
        let (from, to) = (&call.params.from_path.0, &call.params.to_path);
        let found = find(workspace, from, to)?;
        workspace.may_place(to, Existing::replace_if(call.params.overwrite))?;
        Ok(params::dry(found.result()))
    }

    /// Done if the target has changed and packing again gives its bytes.
    fn probe(&self, workspace: &Workspace<'_>, call: &Call<'_, Params>) -> Result<ProbeVerdict, Failure> {
        let (from, to) = (&call.params.from_path.0, &call.params.to_path);
        probe::by_path(workspace, call, to, |_, is| {
            let found = find(workspace, from, to)?;
            let mut packed = Hashing::new(io::sink());
            pack(workspace, &found, call.params.format()?, &mut packed)?;
            Ok(probe::digest(is) == Some(packed.digest().to_string().as_str()))
        })
    }
}

impl Params {
    /// The requested format, or else the one that the file name implies.
    fn format(&self) -> Result<Format, Failure> {
        self.format.or_else(|| Format::of_name(self.to_path.file_name())).ok_or_else(|| {
            params::invalid("format", "choose tar.gz or zip, or give the archive that extension")
        })
    }
}

/// The members of a new archive, in their order.
#[derive(Default)]
struct Found {
    members: Vec<(SpacePath, Member, u64)>,
    left_out: u64,
}

impl Found {
    fn add(&mut self, name: &str, path: &SpacePath, stat: Stat) {
        if matches!(stat.kind, FileKind::Link | FileKind::Special) {
            self.left_out += 1;
            return;
        }
        let member = Member {
            name: name.to_owned(),
            is_folder: stat.kind == FileKind::Folder,
            is_program: stat.mode & 0o100 != 0,
        };
        self.members.push((path.clone(), member, stat.bytes));
    }

    fn content_bytes(&self) -> u64 {
        self.members.iter().map(|(_, _, bytes)| bytes).sum()
    }

    fn share(&self) -> f64 {
        let count = self.members.len() as f64;
        if self.left_out == 0 { 1.0 } else { count / (count + self.left_out as f64) }
    }

    fn result(&self) -> Value {
        json!({
            "entries": self.members.len(), "content_bytes": self.content_bytes(), "left_out": self.left_out,
        })
    }
}

/// Finds what to pack. Links, special files and names that are not UTF-8 count as left out; any other gap is an error.
fn find(workspace: &Workspace<'_>, from: &SpacePath, to: &SpacePath) -> Result<Found, Failure> {
    let stat = workspace.stat(from)?;
    let stat = stat.ok_or(FileProblem::at("open the path to pack")(Errno::ENOENT))?;
    let mut found = Found::default();
    if stat.kind != FileKind::Folder {
        // Anything but a file fails with its own error.
        workspace.open_file(from)?;
        found.add(from.file_name(), from, stat);
        FileProblem::check_size(stat.bytes, ARCHIVE_BYTES_MAX)?;
        return Ok(found);
    }
    let walk = workspace.walk(from, true)?;
    let beneath = format!("{from}/");
    for WalkEntry { path, stat } in walk.entries.iter().filter(|entry| &entry.path != to) {
        let name = path.to_string();
        found.add(name.strip_prefix(&beneath).unwrap_or_default(), path, *stat);
    }
    found.left_out += walk.unnamed;
    let max = EXTRACT_ENTRIES_MAX;
    if walk.partial || found.members.len() > max {
        let why = format!(
            "there are more than {max} files and folders, or they are nested too deeply, or some cannot be read; pack them in parts"
        );
        return Err(Failure::new(Code::FileLimit, Phase::Dispatch, why));
    }
    FileProblem::check_size(found.content_bytes(), ARCHIVE_BYTES_MAX)?;
    Ok(found)
}

fn pack(
    workspace: &Workspace<'_>,
    found: &Found,
    format: Format,
    into: impl Write,
) -> Result<(), FileProblem> {
    let failed = |error: io::Error| {
        if error.kind() == io::ErrorKind::InvalidData {
            FileProblem::Changed
        } else {
            FileProblem::io("write the archive")(error)
        }
    };
    let mut writer = Writer::new(format, BufWriter::new(into));
    for (path, member, bytes) in &found.members {
        if member.is_folder {
            writer.add(member, 0, &mut io::empty()).map_err(failed)?;
        } else {
            let (file, _) = workspace.open_file(path)?;
            let mut reading = Hashing::new(file);
            writer.add(member, *bytes, &mut reading).map_err(failed)?;
            workspace.check_read(path, || reading.digest())?;
        }
    }
    writer.finish().and_then(|mut into| into.flush()).map_err(failed)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::tests::space::TestSpace;

    fn params(to: &str) -> Value {
        json!({ "from_path": "workspace/dir", "to_path": to })
    }

    #[test]
    fn archives_are_reproducible_and_omit_nothing_silently() {
        for to in ["workspace/one.zip", "workspace/one.tar.gz"] {
            let (place, other) = (TestSpace::new(), TestSpace::new());
            for place in [&other, &place] {
                place.put("dir/b/deep", b"deep");
                place.put("dir/a", &[7; 100_000]);
                std::fs::create_dir(place.path("dir/empty")).unwrap();
            }
            let output = place.run(&Archive, params(to)).unwrap();
            other.run(&Archive, params(to)).unwrap();
            let name = to.strip_prefix("workspace/").unwrap();
            assert_eq!(place.get(name), other.get(name), "{to}");
            assert_eq!(
                (&output.result["entries"], &output.result["content_bytes"], output.quality),
                (&json!(4), &json!(100_004), Some(1.0))
            );
            std::os::unix::fs::symlink("/etc/passwd", place.path("dir/link")).unwrap();
            place.fifo("dir/pipe");
            let again = place.run(&Archive, params("workspace/two.zip")).unwrap();
            assert_eq!((&again.result["left_out"], again.quality), (&json!(2), Some(4.0 / 6.0)));
        }
    }

    #[test]
    fn an_archive_skips_itself_and_overwrites_only_when_asked() {
        let place = TestSpace::new();
        place.put("dir/a", b"a");
        let mut inside = json!({ "from_path": "workspace", "to_path": "workspace/all.zip" });
        let first = place.run(&Archive, inside.clone()).unwrap();
        assert_eq!(place.run(&Archive, inside.clone()).unwrap_err().code, Code::FileExists);
        assert_eq!(place.dry_run(&Archive, inside.clone()).unwrap_err().code, Code::FileExists);
        let before = place.get("all.zip");
        inside["overwrite"] = json!(true);
        let second = place.run(&Archive, inside).unwrap();
        assert_eq!((first.result, before), (second.result, place.get("all.zip")));
    }

    #[test]
    fn what_is_too_much_or_has_no_form_is_refused() {
        let place = TestSpace::new();
        place.put("dir/a", b"a");
        let plain = params("workspace/plain");
        assert_eq!(place.run(&Archive, plain.clone()).unwrap_err().code, Code::ParamsInvalid);
        let mut named = plain;
        named["format"] = json!("zip");
        place.run(&Archive, named).unwrap();
        let giant = std::fs::File::create(place.path("dir/giant")).unwrap();
        giant.set_len(1 << 40).unwrap();
        let before = place.names();
        for tool in ["workspace/x.zip", "workspace/x.tgz"] {
            assert_eq!(place.run(&Archive, params(tool)).unwrap_err().code, Code::FileLimit);
            assert_eq!(place.dry_run(&Archive, params(tool)).unwrap_err().code, Code::FileLimit);
        }
        assert_eq!(place.names(), before);
    }
}
