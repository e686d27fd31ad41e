//! Runs a tool on a copy of what it may touch, so that people can see what it would do.
//!
//! The copy lies in the call's own scratch folder: it is bounded by the kernel, nobody else sees it, and it vanishes with
//! the call. The sandbox lets a preview change nothing in the space itself, whatever the tool tries.

use std::io;
use std::os::fd::AsFd;

use effectd_contracts::{Code, Failure, Phase, Rehearsal, Rehearsed, Seen, Standing, ToolCall, Touch};
use nix::errno::Errno;

use crate::beside::Beside;
use crate::limits::PREVIEW_TEXT_BYTES_MAX;
use crate::spacepath::{Base, SpacePath};
use crate::tool::Tool;
use crate::workspace::{FileProblem, Workspace};

pub(crate) fn rehearse(
    tool: &dyn Tool,
    space: &Workspace<'_>,
    call: &ToolCall,
) -> Result<Rehearsal, Failure> {
    let (touched, read) = paths(tool, call)?;
    let mut looked: Vec<Seen> = space
        .look(&touched, 0)?
        .into_iter()
        .map(|look| look.seen)
        .collect();
    for path in wholes(tool, call) {
        for seen in looked.iter_mut().filter(|seen| seen.path == path.to_string()) {
            *seen = space.see_whole(&path)?;
        }
    }
    let changing = looked.len();
    for path in &read {
        looked.push(space.see_whole(path)?);
    }
    let [root, scratch] = space.grounds()?;
    let aside = Aside(space.beside());
    let copy = Workspace::new(root.as_fd(), scratch.as_fd());
    let copy = copy.named(space.root_name()).with_beside(&aside);
    let all: Vec<SpacePath> = touched.iter().chain(&read).cloned().collect();
    space.copy_to(&copy, &all).map_err(no_room)?;
    let failed = match tool.run(&copy, call) {
        Ok(_) => None,
        Err(failure) if failure.code == Code::DiskFull => return Err(too_large()),
        Err(failure) => Some(failure),
    };
    let mut after = after(&copy, &looked[..changing])?;
    for touch in tool.touches(&call.params).unwrap_or_default() {
        if touch.filled && call.restore.is_empty() {
            after.extend(filled(&copy, &touch, &after)?);
        }
    }
    // What was copied must be what was seen: otherwise it shows the effect on something else.
    let still = looked.iter().all(|seen| stands(space, seen));
    if !still {
        return Err(Failure::new(
            Code::StateChanged,
            Phase::Dispatch,
            "the files were changed while they were looked at; ask again",
        ));
    }
    Ok(Rehearsal {
        before: looked,
        after,
        failed,
    })
}

fn stands(space: &Workspace<'_>, seen: &Seen) -> bool {
    let now = SpacePath::parse_folder(&seen.path)
        .ok()
        .and_then(|path| match seen.inside {
            Some(_) => space.see_whole(&path).ok(),
            None => Some(Seen::new(seen.path.clone(), space.standing(&path, 0).ok()?.0)),
        });
    now.as_ref() == Some(seen)
}

/// What goes elsewhere as a whole, if it is a folder.
fn wholes(tool: &dyn Tool, call: &ToolCall) -> Vec<SpacePath> {
    let touches = tool.touches(&call.params).unwrap_or_default();
    let gone = touches.into_iter().filter(|touch| touch.goes_to.is_some());
    gone.filter_map(|touch| SpacePath::parse(&touch.path).ok())
        .collect()
}

/// What the tool may change, and what else it reads.
fn paths(tool: &dyn Tool, call: &ToolCall) -> Result<(Vec<SpacePath>, Vec<SpacePath>), Failure> {
    let touched: Vec<String> = if call.restore.is_empty() {
        let touches = tool.touches(&call.params).unwrap_or_default();
        touches.into_iter().map(|touch| touch.path).collect()
    } else {
        call.restore.iter().map(|one| one.path.clone()).collect()
    };
    if touched.is_empty() {
        let why = "this tool does not say what it may change, so it cannot be tried out on a copy";
        return Err(Failure::new(Code::ToolFailed, Phase::Dispatch, why));
    }
    let parsed = |paths: Vec<String>| -> Result<Vec<SpacePath>, Failure> {
        let parse =
            |path: String| SpacePath::parse_folder(&path).map_err(|why| crate::params::invalid("path", why));
        paths.into_iter().map(parse).collect()
    };
    let mut read = parsed(tool.reads(&call.params))?;
    let touched = parsed(touched)?;
    // The scratch folder of a fresh call is empty.
    read.retain(|path| path.base() == Base::Workspace && !touched.contains(path));
    Ok((touched, read))
}

/// All that is in a folder that was made, as it is listed when it has really been made.
fn filled(copy: &Workspace<'_>, touch: &Touch, after: &[Rehearsed]) -> Result<Vec<Rehearsed>, Failure> {
    let made = after.iter().find(|now| now.path == touch.path);
    if made.is_none_or(|now| now.standing != Standing::Folder) {
        return Ok(Vec::new());
    }
    let path = SpacePath::parse(&touch.path).map_err(|why| crate::params::invalid("path", why))?;
    let beneath = copy.look_beneath(&path)?.ok_or_else(too_large)?;
    let listed = beneath.into_iter().map(|seen| Rehearsed {
        path: seen.path,
        standing: seen.standing,
        text: None,
        too_long: false,
    });
    Ok(listed.collect())
}

/// What stands in the copy now, at the paths that may have changed, and the texts that are new.
fn after(copy: &Workspace<'_>, before: &[Seen]) -> Result<Vec<Rehearsed>, Failure> {
    let mut left = PREVIEW_TEXT_BYTES_MAX;
    let mut after = Vec::with_capacity(before.len());
    for was in before {
        let path = SpacePath::parse(&was.path).map_err(|why| crate::params::invalid("path", why))?;
        let (standing, content) = match copy.standing(&path, left) {
            // A folder above it is gone, or is a file now.
            Err(problem) if matches!(problem.errno(), Some(Errno::ENOTDIR | Errno::ENOENT)) => {
                (Standing::Absent, None)
            }
            standing => standing?,
        };
        let changed = standing != was.standing;
        let too_long = changed && content.is_none() && matches!(standing, Standing::File(_));
        let text = content.filter(|_| changed).and_then(|content| {
            let text = String::from_utf8(content).ok()?;
            (!text.contains('\0')).then_some(text)
        });
        left -= text.as_ref().map_or(0, |text| text.len() as u64);
        after.push(Rehearsed {
            path: was.path.clone(),
            standing,
            text,
            too_long,
        });
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
        "what it would touch is too large to be copied for a preview",
    )
}

/// What was sent along is heard as in a real run; what the tool says at length is nobody's.
#[derive(Debug)]
struct Aside<'a>(&'a dyn Beside);

impl Beside for Aside<'_> {
    fn say(&self, _: u8, _: &[u8]) -> io::Result<()> {
        Ok(())
    }

    fn hear(&self) -> io::Result<Vec<u8>> {
        self.0.hear()
    }
}
