//! Previews: a tool runs on a copy of the paths that it may change, so that people can see the effect before they decide.
//!
//! The copy is in the call's own scratch folder: the kernel bounds its size, nobody else sees it, and it vanishes with the
//! call. The sandbox lets a preview change nothing in the space itself, whatever the tool tries.

use std::io;
use std::os::fd::AsFd;

use effectd_contracts::batch::is_batch;
use effectd_contracts::{
    AskedRequest, Code, Failure, PathSnapshot, PathState, Phase, PreviewResult, PreviewedPath, ToolCall,
    Touch,
};
use nix::errno::Errno;

use crate::batch;
use crate::limits::PREVIEW_TEXT_BYTES_MAX;
use crate::side_channel::ToolChannel;
use crate::spacepath::{Base, SpacePath};
use crate::tool::Tool;
use crate::workspace::{FileProblem, Workspace};

pub(crate) fn preview(
    tool: &dyn Tool,
    space: &Workspace<'_>,
    call: &ToolCall,
) -> Result<PreviewResult, Failure> {
    if let Some(exchange) = tool.exchange(call)? {
        return Ok(PreviewResult {
            before: Vec::new(),
            after: Vec::new(),
            items: Vec::new(),
            request: Some(AskedRequest::of(exchange)),
            failed: None,
        });
    }
    let (touched, read) = paths(tool, call)?;
    let mut before: Vec<PathSnapshot> =
        space.inspect(&touched, 0)?.into_iter().map(|path| path.seen).collect();
    for path in moved(tool, call) {
        for seen in before.iter_mut().filter(|seen| seen.path == path.to_string()) {
            *seen = space.inspect_tree(&path)?;
        }
    }
    let changing = before.len();
    for path in &read {
        before.push(space.inspect_tree(path)?);
    }
    let [root, scratch] = space.copy_folders()?;
    let receive_only = ReceiveOnly(space.side_channel());
    let copy = Workspace::new(root.as_fd(), scratch.as_fd());
    let copy = copy.named(space.root_name()).with_side_channel(&receive_only);
    let all: Vec<SpacePath> = touched.iter().chain(&read).cloned().collect();
    space.copy_to(&copy, &all).map_err(no_room)?;
    let mut items = Vec::new();
    let ran = if is_batch(&call.tool_id) {
        batch::preview(&copy, call, &mut items)
    } else {
        tool.run(&copy, call).map(drop)
    };
    let failed = match ran {
        Ok(()) => None,
        Err(failure) if failure.code == Code::DiskFull => return Err(too_large()),
        Err(failure) => Some(failure),
    };
    let mut after = after(&copy, &before[..changing])?;
    for touch in tool.touches(&call.params).unwrap_or_default() {
        if touch.filled && call.restore.is_empty() {
            let made = after.iter().find(|now| now.path == touch.path).map(|now| &now.standing);
            let beneath = filled(&copy, &touch, made)?.into_iter();
            after.extend(beneath.map(|PathSnapshot { path, standing, .. }| PreviewedPath {
                path,
                standing,
                text: None,
                too_long: false,
            }));
        }
    }
    // If the files changed while they were copied, the preview shows the effect on a mix of two states.
    if !before.iter().all(|seen| is_unchanged(space, seen)) {
        return Err(Failure::new(
            Code::StateChanged,
            Phase::Dispatch,
            "the files changed during the preview; try again",
        ));
    }
    Ok(PreviewResult { before, after, items, request: None, failed })
}

fn is_unchanged(space: &Workspace<'_>, seen: &PathSnapshot) -> bool {
    let now = SpacePath::parse_folder(&seen.path).ok().and_then(|path| match seen.inside {
        Some(_) => space.inspect_tree(&path).ok(),
        None => Some(PathSnapshot::new(seen.path.clone(), space.standing(&path, 0).ok()?.0)),
    });
    now.as_ref() == Some(seen)
}

/// The paths that the tool moves: a folder moves as a whole.
fn moved(tool: &dyn Tool, call: &ToolCall) -> Vec<SpacePath> {
    let touches = tool.touches(&call.params).unwrap_or_default();
    let moved = touches.into_iter().filter(|touch| touch.goes_to.is_some());
    moved.filter_map(|touch| SpacePath::parse(&touch.path).ok()).collect()
}

/// The paths that the tool may change, and the other paths that it reads.
fn paths(tool: &dyn Tool, call: &ToolCall) -> Result<(Vec<SpacePath>, Vec<SpacePath>), Failure> {
    let touched: Vec<String> = if call.restore.is_empty() {
        let touches = tool.touches(&call.params).unwrap_or_default();
        touches.into_iter().map(|touch| touch.path).collect()
    } else {
        call.restore.iter().map(|one| one.path.clone()).collect()
    };
    if touched.is_empty() {
        let why = "this tool does not declare what it may change, so it cannot be previewed";
        return Err(Failure::new(Code::ToolFailed, Phase::Dispatch, why));
    }
    let parsed = |paths: Vec<String>| -> Result<Vec<SpacePath>, Failure> {
        let parse =
            |path: String| SpacePath::parse_folder(&path).map_err(|why| crate::params::invalid("path", why));
        paths.into_iter().map(parse).collect()
    };
    let mut read = parsed(tool.reads(&call.params))?;
    let touched = parsed(touched)?;
    // Paths in the scratch folder need no copy: the scratch folder of a fresh call is empty.
    read.retain(|path| path.base() == Base::Workspace && !touched.contains(path));
    Ok((touched, read))
}

/// The content of a new folder, as a receipt would list it.
pub(crate) fn filled(
    copy: &Workspace<'_>,
    touch: &Touch,
    made: Option<&PathState>,
) -> Result<Vec<PathSnapshot>, Failure> {
    if made != Some(&PathState::Folder) {
        return Ok(Vec::new());
    }
    let path = SpacePath::parse(&touch.path).map_err(|why| crate::params::invalid("path", why))?;
    let beneath = copy.inspect_beneath(&path, true)?;
    if beneath.missing.is_some() {
        return Err(too_large());
    }
    Ok(beneath.seen)
}

/// The state of a path in the copy, and its content if that has at most so many bytes.
pub(crate) fn standing(
    copy: &Workspace<'_>,
    path: &str,
    bytes_max: u64,
) -> Result<(PathState, Option<Vec<u8>>), Failure> {
    let path = SpacePath::parse(path).map_err(|why| crate::params::invalid("path", why))?;
    match copy.standing(&path, bytes_max) {
        // A parent is gone, or is a file now.
        Err(problem) if matches!(problem.errno(), Some(Errno::ENOTDIR | Errno::ENOENT)) => {
            Ok((PathState::Absent, None))
        }
        standing => Ok(standing?),
    }
}

/// The state of the paths in the copy after the run, with the new texts.
fn after(copy: &Workspace<'_>, before: &[PathSnapshot]) -> Result<Vec<PreviewedPath>, Failure> {
    let mut left = PREVIEW_TEXT_BYTES_MAX;
    let mut after = Vec::with_capacity(before.len());
    for was in before {
        let (standing, content) = standing(copy, &was.path, left)?;
        let changed = standing != was.standing;
        let too_long = changed && content.is_none() && matches!(standing, PathState::File(_));
        let text = content.filter(|_| changed).and_then(|content| {
            let text = String::from_utf8(content).ok()?;
            (!text.contains('\0')).then_some(text)
        });
        left -= text.as_ref().map_or(0, |text| text.len() as u64);
        after.push(PreviewedPath { path: was.path.clone(), standing, text, too_long });
    }
    Ok(after)
}

fn no_room(problem: FileProblem) -> Failure {
    match problem.errno() {
        Some(Errno::ENOSPC | Errno::EDQUOT | Errno::EFBIG) => too_large(),
        Some(_) | None => problem.into(),
    }
}

fn too_large() -> Failure {
    Failure::new(
        Code::FileLimit,
        Phase::Dispatch,
        "the files that it would change are too large to copy for a preview",
    )
}

/// The side channel of a preview: it receives as in a real run, and discards what the tool sends.
#[derive(Debug)]
struct ReceiveOnly<'a>(&'a dyn ToolChannel);

impl ToolChannel for ReceiveOnly<'_> {
    fn send_piece(&self, _: u8, _: &[u8]) -> io::Result<()> {
        Ok(())
    }

    fn receive_piece(&self) -> io::Result<Vec<u8>> {
        self.0.receive_piece()
    }
}
