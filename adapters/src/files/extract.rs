//! `files.extract`: unpacks an archive of the space into a new folder, all of it or nothing.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::unix::fs::MetadataExt;

use crate::archive::{self, Budget, Member, Problem};
use crate::limits::{ARCHIVE_BYTES_MAX, EXTRACT_ENTRIES_MAX, EXTRACT_PATHS_BYTES_MAX, WALK_DEPTH_MAX};
use crate::prelude::*;
use crate::workspace::{DraftFolder, Hashing};

#[derive(Debug, Clone, Copy)]
pub struct Extract;

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Params {
    from_path: SpacePath,
    to_path: SpacePath,
}

impl TypedTool for Extract {
    const ID: &'static str = "files.extract";
    const DESCRIPTION: &'static str = "Unpacks a .tar.gz or .zip of the space into a new folder, all of it or \
        nothing. Refuses paths outside of the folder, links, devices, duplicate names, and archives that unpack to \
        too much. Use it to work with the contents of an archive.";
    type Params = Params;

    fn spec(&self) -> ToolSpec {
        let result =
            json!({ "files": count(), "folders": count(), "content_bytes": count(), "dry_run": flag() });
        ToolSpec {
            caps_required: params::caps(["files.read", "files.write", "workspace:shared:write"]),
            timeout_ms: 30_000,
            resource: params::resource("file:{space_id}/{to_path}"),
            repeat: Repeat::Probe,
            ..params::writes::<Self>(&["files", "folders", "content_bytes"], result)
        }
    }

    fn example(&self) -> Value {
        json!({ "from_path": "workspace/notes.tar.gz", "to_path": "workspace/unpacked" })
    }

    fn check(&self, params: &Params) -> Result<(), Failure> {
        if params.to_path.base() != Base::Workspace {
            let why = "tmp/ is deleted after the call; unpack into workspace/";
            return Err(params::invalid("to_path", why));
        }
        Ok(())
    }

    fn touches(&self, params: &Params) -> Option<Vec<Touch>> {
        Some(vec![Touch::filled(params.to_path.to_string())])
    }

    fn reads(&self, params: &Params) -> Vec<String> {
        vec![params.from_path.to_string()]
    }

    /// Quality is always 1: an archive that does not unpack whole is an error.
    fn run(&self, workspace: &Workspace<'_>, call: &Call<'_, Params>) -> Result<ToolOutput, Failure> {
        let (from, to) = (&call.params.from_path, &call.params.to_path);
        workspace.check_free(to)?;
        let draft = workspace.draft_folder(to, call.trace_id.as_str())?;
        let mut unpacking = Unpacking::new(to);
        read(workspace, from, |member, content| {
            let Some(place) = unpacking.add(member)? else {
                return Ok(());
            };
            if member.is_folder {
                draft.folder(&place)?;
                return Ok(());
            }
            unpacking.content_bytes += write(&draft, &place, member, content)?;
            Ok(())
        })?;
        draft.place()?;
        Ok(ToolOutput::new(unpacking.result(), Some(1.0)))
    }

    fn dry_run(&self, workspace: &Workspace<'_>, call: &Call<'_, Params>) -> Result<ToolOutput, Failure> {
        let (from, to) = (&call.params.from_path, &call.params.to_path);
        workspace.check_free(to)?;
        let mut unpacking = Unpacking::new(to);
        read(workspace, from, |member, content| {
            unpacking.add(member)?;
            unpacking.content_bytes += archive::drain(content, |_| Ok(()))?;
            Ok(())
        })?;
        Ok(params::dry(unpacking.result()))
    }

    /// Done if the folder is new and everything in the archive is in it.
    fn probe(&self, workspace: &Workspace<'_>, call: &Call<'_, Params>) -> Result<ProbeVerdict, Failure> {
        let (from, to) = (&call.params.from_path, &call.params.to_path);
        probe::by_path(workspace, call, to, |was, is| {
            let (mut unpacking, mut is_same) = (Unpacking::new(to), true);
            read(workspace, from, |member, content| {
                let Some(parts) = unpacking.add(member)? else {
                    return Ok(());
                };
                let path = parts.iter().fold(to.clone(), |path, name| path.child(name));
                let mut reading = Hashing::new(content);
                archive::drain(&mut reading, |_| Ok(()))?;
                is_same &= match probe::now(workspace, &path)? {
                    PathState::File(state) => {
                        !member.is_folder && state.digest == reading.digest().to_string()
                    }
                    PathState::Folder => member.is_folder,
                    PathState::Absent | PathState::Other => false,
                };
                Ok(())
            })?;
            Ok(is_same && (was, is) == (&PathState::Absent, &PathState::Folder))
        })
    }
}

fn read(
    workspace: &Workspace<'_>,
    from: &SpacePath,
    mut visit: impl FnMut(&Member, &mut dyn Read) -> Result<(), Problem>,
) -> Result<(), Failure> {
    let (file, stat) = workspace.open_file(from)?;
    FileProblem::check_size(stat.bytes, ARCHIVE_BYTES_MAX)?;
    let budget = Budget::new(stat.bytes);
    let first = last_change(&file)?;
    let source = io::BufReader::with_capacity(65_536, &file);
    archive::read(source, &budget, &mut visit)?;
    workspace.check_read_file(from, &file)?;
    // Reading an archive takes time. A write in between would mix two archives.
    if last_change(&file)? != first {
        return Err(FileProblem::Changed.into());
    }
    Ok(())
}

/// The size and the time of the last change, which nobody can set back.
fn last_change(file: &File) -> Result<(u64, i64, i64), FileProblem> {
    let meta = file.metadata().map_err(FileProblem::io("inspect the file"))?;
    Ok((meta.len(), meta.ctime(), meta.ctime_nsec()))
}

fn write(
    draft: &DraftFolder,
    place: &[String],
    member: &Member,
    content: &mut dyn Read,
) -> Result<u64, Problem> {
    let mode = if member.is_program { 0o755 } else { 0o644 };
    let mut file = draft.file(place, mode)?;
    let bytes = archive::drain(content, |piece| {
        Ok(file.write_all(piece).map_err(FileProblem::io("write the file"))?)
    })?;
    file.sync_all().map_err(FileProblem::io("sync the file"))?;
    Ok(bytes)
}

/// What was unpacked so far, and where it goes.
struct Unpacking<'t> {
    to: &'t SpacePath,
    /// Every path, and whether the archive lists it as a file, as a folder, or only something beneath it.
    seen: BTreeMap<Vec<String>, Kind>,
    paths_bytes: usize,
    content_bytes: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    File,
    Folder,
    Parent,
}

impl<'t> Unpacking<'t> {
    fn new(to: &'t SpacePath) -> Self {
        Self { to, seen: BTreeMap::new(), paths_bytes: to.to_string().len(), content_bytes: 0 }
    }

    /// Where a member goes beneath the new folder; `None` for the folder itself. Its name must be unique and, as text,
    /// a path inside the folder.
    fn add(&mut self, member: &Member) -> Result<Option<Vec<String>>, Problem> {
        let refused = |why: String| Problem::Other(Failure::new(Code::PathDenied, Phase::Dispatch, why));
        if member.name.contains('\\') {
            return Err(Problem::Refused("a name with a backslash in it"));
        }
        if member.name.starts_with('/') {
            return Err(Problem::Refused("an absolute path"));
        }
        let whole = format!("{}/{}", self.to, member.name);
        let path = SpacePath::parse_folder(&whole)
            .map_err(|why| refused(format!("the archive holds a name that is refused: {why}")))?;
        let above = self.to.folders().len() + 1;
        let mut parts = path.folders().to_vec();
        parts.push(path.file_name().to_owned());
        let parts = parts.split_off(above);
        if parts.is_empty() {
            return match member.is_folder {
                true => Ok(None),
                false => Err(Problem::Refused("a file without a name")),
            };
        }
        if !member.is_folder && member.name.ends_with('/') {
            return Err(Problem::Refused("a file whose name ends like a folder's"));
        }
        // A walk would not reach a deeper entry.
        if parts.len() >= WALK_DEPTH_MAX {
            return Err(Problem::TooMuch("its folders are nested too deeply".to_owned()));
        }
        for length in 1..parts.len() {
            self.note(&parts[..length], Kind::Parent)?;
        }
        self.note(&parts, if member.is_folder { Kind::Folder } else { Kind::File })?;
        Ok(Some(parts))
    }

    fn note(&mut self, parts: &[String], kind: Kind) -> Result<(), Problem> {
        match (self.seen.get(parts), kind) {
            (None, _) => {
                let names: usize = parts.iter().map(|part| part.len() + 1).sum();
                self.paths_bytes += self.to.to_string().len() + names;
                if self.paths_bytes > EXTRACT_PATHS_BYTES_MAX {
                    return Err(Problem::TooMuch("the sum of its names is too long".to_owned()));
                }
                // Folders without an entry of their own are listed in the receipt, too.
                if self.seen.len() >= 2 * EXTRACT_ENTRIES_MAX {
                    return Err(Problem::TooMuch("it has too many folders".to_owned()));
                }
                self.seen.insert(parts.to_vec(), kind);
            }
            (Some(Kind::Folder | Kind::Parent), Kind::Parent) => {}
            (Some(Kind::Parent), Kind::Folder) => {
                self.seen.insert(parts.to_vec(), kind);
            }
            (Some(Kind::File), Kind::Parent) => {
                return Err(Problem::Refused("a file that is also used as a folder"));
            }
            (Some(Kind::Parent), Kind::File)
            | (Some(Kind::File | Kind::Folder), Kind::File | Kind::Folder) => {
                return Err(Problem::Refused("a name that appears twice"));
            }
        }
        Ok(())
    }

    fn result(&self) -> Value {
        let files = self.seen.values().filter(|kind| **kind == Kind::File).count();
        json!({
            "files": files, "folders": self.seen.len() - files, "content_bytes": self.content_bytes,
        })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::tests::space::TestSpace;

    #[test]
    fn an_archive_that_is_written_to_meanwhile_is_not_unpacked() {
        let place = TestSpace::new();
        place.put("a.zip", &archive::tests::sample());
        let from = SpacePath::parse("workspace/a.zip").unwrap();
        read(&place.workspace(), &from, |_, _| Ok(())).unwrap();
        let failure = read(&place.workspace(), &from, |_, _| {
            let file = File::options().append(true).open(place.path("a.zip")).unwrap();
            (&file).write_all(b"more").unwrap();
            Ok(())
        });
        assert_eq!(failure.unwrap_err().code, Code::StateChanged);
    }
}
