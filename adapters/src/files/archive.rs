//! `files.archive`: packs a file or a folder of the space into an archive.

use std::io::Write;

use effectd_contracts::{
    Code, Digest, Failure, Phase, ProbeVerdict, Repeat, Standing, ToolOutput, ToolSpec, Touch,
};
use nix::errno::Errno;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use super::copy::existing;
use crate::archive::{Format, Member, Writer};
use crate::before::{before, now};
use crate::limits::{ARCHIVE_BYTES_MAX, EXTRACT_ENTRIES_MAX};
use crate::params::{self, FolderPath};
use crate::spacepath::SpacePath;
use crate::typed::{Call, TypedTool};
use crate::workspace::{FileKind, FileProblem, Workspace};

/// Packs one file, or one folder with all that is in it. What is neither a file nor a folder is left out and counted.
#[derive(Debug, Clone, Copy)]
pub struct Archive;

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Params {
    from_path: FolderPath,
    to_path: SpacePath,
    #[schemars(extend("x-public" = true))]
    format: Option<Format>,
    #[serde(default)]
    #[schemars(extend("x-public" = true))]
    overwrite: bool,
}

impl TypedTool for Archive {
    const ID: &'static str = "files.archive";
    type Params = Params;

    fn spec(&self) -> ToolSpec {
        let result = json!({
            "entries": { "type": "integer", "minimum": 0, "x-public": true },
            "content_bytes": { "type": "integer", "minimum": 0, "x-public": true },
            "archive_bytes": { "type": "integer", "minimum": 0, "x-public": true },
            "left_out": { "type": "integer", "minimum": 0, "x-public": true },
            "dry_run": { "type": "boolean", "x-public": true },
        });
        ToolSpec {
            caps_required: params::caps(["files.read", "files.write", "workspace:shared:write"]),
            timeout_ms: 30_000,
            resource: params::resource("file:{space_id}/{to_path}"),
            repeat: Repeat::Probe,
            ..params::writes::<Self>(
                "Packs a file or a folder of the space into a .tar.gz or .zip; another file is overwritten only if that is asked \
                    for. Links and devices are left out and counted; times and owners are not kept, so that the same content \
                    gives the same archive.",
                params::object(&["entries", "content_bytes", "left_out"], result),
            )
        }
    }

    fn example(&self) -> Value {
        json!({
            "from_path": "workspace/notes", "to_path": "workspace/notes.tar.gz", "space_id": "shared:household",
        })
    }

    fn check(&self, params: &Params) -> Result<(), Failure> {
        if params.from_path.0 == params.to_path {
            return Err(params::invalid("to_path", "it is what is to be packed"));
        }
        params.format().map(drop)
    }

    fn touches(&self, params: &Params) -> Option<Vec<Touch>> {
        Some(params::touched(&params.to_path))
    }

    /// With what is in it, if it is a folder.
    fn reads(&self, params: &Params) -> Vec<String> {
        vec![params.from_path.0.to_string()]
    }

    /// Quality is the share of what was found that is in the archive.
    fn run(&self, workspace: &Workspace<'_>, call: &Call<'_, Params>) -> Result<ToolOutput, Failure> {
        let (from, to) = (&call.params.from_path.0, &call.params.to_path);
        let found = find(workspace, from, to)?;
        let mark = call.trace_id.as_str();
        let (draft, mut file) = workspace.draft_open(to, existing(call.params.overwrite), mark)?;
        pack(workspace, &found, call.params.format()?, &mut file)?;
        // What is written in it, as this is beneath, would be seen in it.
        if !format!("{to}/").starts_with(&format!("{from}/")) {
            workspace.check_still(from)?;
        }
        file.sync_all().map_err(FileProblem::io("sync the file"))?;
        let archive_bytes = file.metadata().map_or(0, |meta| meta.len());
        draft.place()?;
        let mut result = found.told();
        result["archive_bytes"] = json!(archive_bytes);
        Ok(ToolOutput::new(result, Some(found.share())))
    }

    fn dry_run(&self, workspace: &Workspace<'_>, call: &Call<'_, Params>) -> Result<ToolOutput, Failure> {
        let (from, to) = (&call.params.from_path.0, &call.params.to_path);
        let found = find(workspace, from, to)?;
        workspace.may_place(to, existing(call.params.overwrite))?;
        let mut result = found.told();
        result["dry_run"] = json!(true);
        Ok(ToolOutput::new(result, None))
    }

    /// The target has changed, and packing again would give just that.
    fn probe(&self, workspace: &Workspace<'_>, call: &Call<'_, Params>) -> Result<ProbeVerdict, Failure> {
        let (from, to) = (&call.params.from_path.0, &call.params.to_path);
        let Some(was) = before(call, to) else {
            return Ok(ProbeVerdict::CannotSay);
        };
        let is = now(workspace, to)?;
        if &is == was {
            return Ok(ProbeVerdict::NotDone);
        }
        let found = find(workspace, from, to)?;
        let mut hashed = Hashed(Sha256::new());
        pack(workspace, &found, call.params.format()?, &mut hashed)?;
        let digest = Digest::from_bytes(hashed.0.finalize().into()).to_string();
        Ok(match is {
            Standing::File(state) if state.digest == digest => ProbeVerdict::Done,
            Standing::File(_) | Standing::Absent | Standing::Folder | Standing::Other => {
                ProbeVerdict::CannotSay
            }
        })
    }
}

impl Params {
    /// By what is asked for, or else by the name.
    fn format(&self) -> Result<Format, Failure> {
        self.format
            .or_else(|| Format::of_name(self.to_path.file_name()))
            .ok_or_else(|| params::invalid("format", "say tar.gz or zip, or name the archive so"))
    }
}

/// What goes into an archive, in its order.
struct Found {
    members: Vec<(SpacePath, Member, u64)>,
    left_out: u64,
}

impl Found {
    fn content_bytes(&self) -> u64 {
        self.members.iter().map(|(_, _, bytes)| bytes).sum()
    }

    fn share(&self) -> f64 {
        let count = self.members.len() as f64;
        if self.left_out == 0 {
            1.0
        } else {
            count / (count + self.left_out as f64)
        }
    }

    fn told(&self) -> Value {
        json!({
            "entries": self.members.len(), "content_bytes": self.content_bytes(), "left_out": self.left_out,
        })
    }
}

/// All of it, or nothing: an archive that leaves something out without saying so would be worse than none.
fn find(workspace: &Workspace<'_>, from: &SpacePath, to: &SpacePath) -> Result<Found, Failure> {
    let stat = workspace.stat(from)?;
    let stat = stat.ok_or(FileProblem::at("open what is to be packed")(Errno::ENOENT))?;
    let mut found = Found {
        members: Vec::new(),
        left_out: 0,
    };
    match stat.kind {
        FileKind::Folder => find_beneath(workspace, from, to, &mut found)?,
        // Whatever else it is has its own word.
        FileKind::File | FileKind::Link | FileKind::Special => {
            workspace.open_file(from)?;
            let member = member(from.file_name().to_owned(), false, stat.mode);
            found.members.push((from.clone(), member, stat.bytes));
        }
    }
    let bytes_max = ARCHIVE_BYTES_MAX;
    if found.content_bytes() > bytes_max {
        return Err(FileProblem::TooLarge { bytes_max }.into());
    }
    Ok(found)
}

fn find_beneath(
    workspace: &Workspace<'_>,
    from: &SpacePath,
    to: &SpacePath,
    found: &mut Found,
) -> Result<(), Failure> {
    let walk = workspace.walk(from, true)?;
    let beneath = format!("{from}/");
    for entry in walk.entries.iter().filter(|entry| &entry.path != to) {
        let path = entry.path.to_string();
        let name = path.strip_prefix(&beneath).unwrap_or_default().to_owned();
        let is_folder = match entry.stat.kind {
            FileKind::File => false,
            FileKind::Folder => true,
            FileKind::Link | FileKind::Special => {
                found.left_out += 1;
                continue;
            }
        };
        let member = member(name, is_folder, entry.stat.mode);
        found.members.push((entry.path.clone(), member, entry.stat.bytes));
    }
    found.left_out += walk.unnamed;
    let max = EXTRACT_ENTRIES_MAX;
    if walk.partial || found.members.len() > max {
        let why = format!(
            "there are more than {max} files and folders, or they lie too deep, or some cannot be read; pack them in parts"
        );
        return Err(Failure::new(Code::FileLimit, Phase::Dispatch, why));
    }
    Ok(())
}

fn member(name: String, is_folder: bool, mode: u32) -> Member {
    Member {
        name,
        is_folder,
        is_program: mode & 0o100 != 0,
    }
}

fn pack(
    workspace: &Workspace<'_>,
    found: &Found,
    format: Format,
    into: impl Write,
) -> Result<(), FileProblem> {
    let failed = |error: std::io::Error| {
        if error.kind() == std::io::ErrorKind::InvalidData {
            FileProblem::Changed
        } else {
            FileProblem::io("write the archive")(error)
        }
    };
    let mut writer = Writer::new(format, std::io::BufWriter::new(into));
    for (path, member, bytes) in &found.members {
        if member.is_folder {
            writer.add(member, 0, &mut std::io::empty()).map_err(failed)?;
        } else {
            let (file, _) = workspace.open_file(path)?;
            let mut reading = Hashing {
                from: file,
                hasher: Sha256::new(),
            };
            writer.add(member, *bytes, &mut reading).map_err(failed)?;
            workspace.check_read(path, || Digest::from_bytes(reading.hasher.finalize().into()))?;
        }
    }
    writer.finish().and_then(|mut into| into.flush()).map_err(failed)
}

/// A file that is read, and what it was.
struct Hashing {
    from: std::fs::File,
    hasher: Sha256,
}

impl std::io::Read for Hashing {
    fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
        let count = self.from.read(into)?;
        self.hasher.update(&into[..count]);
        Ok(count)
    }
}

/// What is written nowhere, and what it would have been.
struct Hashed(Sha256);

impl Write for Hashed {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.update(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::testing::Place;

    fn params(to: &str) -> Value {
        json!({ "from_path": "workspace/dir", "to_path": to })
    }

    #[test]
    fn the_same_content_gives_the_same_archive_and_nothing_is_left_out_silently() {
        for to in ["workspace/one.zip", "workspace/one.tar.gz"] {
            let (place, other) = (Place::new(), Place::new());
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
                (
                    &output.result["entries"],
                    &output.result["content_bytes"],
                    output.quality
                ),
                (&json!(4), &json!(100_004), Some(1.0))
            );
            std::os::unix::fs::symlink("/etc/passwd", place.path("dir/link")).unwrap();
            place.fifo("dir/pipe");
            let again = place.run(&Archive, params("workspace/two.zip")).unwrap();
            assert_eq!(
                (&again.result["left_out"], again.quality),
                (&json!(2), Some(4.0 / 6.0))
            );
        }
    }

    #[test]
    fn an_archive_is_not_packed_into_itself_and_another_file_is_only_overwritten_when_asked() {
        let place = Place::new();
        place.put("dir/a", b"a");
        let mut inside = json!({ "from_path": "workspace", "to_path": "workspace/all.zip" });
        let first = place.run(&Archive, inside.clone()).unwrap();
        assert_eq!(
            place.run(&Archive, inside.clone()).unwrap_err().code,
            Code::FileExists
        );
        assert_eq!(
            place.dry_run(&Archive, inside.clone()).unwrap_err().code,
            Code::FileExists
        );
        let before = place.get("all.zip");
        inside["overwrite"] = json!(true);
        let second = place.run(&Archive, inside).unwrap();
        assert_eq!((first.result, before), (second.result, place.get("all.zip")));
    }

    #[test]
    fn what_is_too_much_or_has_no_form_is_refused() {
        let place = Place::new();
        place.put("dir/a", b"a");
        let plain = params("workspace/plain");
        assert_eq!(
            place.run(&Archive, plain.clone()).unwrap_err().code,
            Code::ParamsInvalid
        );
        let mut named = plain;
        named["format"] = json!("zip");
        place.run(&Archive, named).unwrap();
        let giant = std::fs::File::create(place.path("dir/giant")).unwrap();
        giant.set_len(1 << 40).unwrap();
        let before = place.names();
        for tool in ["workspace/x.zip", "workspace/x.tgz"] {
            assert_eq!(
                place.run(&Archive, params(tool)).unwrap_err().code,
                Code::FileLimit
            );
            assert_eq!(
                place.dry_run(&Archive, params(tool)).unwrap_err().code,
                Code::FileLimit
            );
        }
        assert_eq!(place.names(), before);
    }
}
