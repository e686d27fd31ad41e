//! The view of a named command on its space: what the policy lets it change, keep and execute.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::available_parallelism;
use std::time::Duration;

use effectd_contracts::{CallMode, Code, Failure, PathState, Phase, SpaceId};
use effectd_policy::NamedCommand;
use effectd_sandbox::{SandboxError, View};

use crate::action::plan::Area;
use crate::limits::STDIO_MEMORY_BYTES_MAX;
use crate::services::files::Files;

pub(crate) async fn view_of(
    files: &Files,
    space: &SpaceId,
    command: &Arc<NamedCommand>,
    mode: CallMode,
) -> Result<View, Failure> {
    let (command, caches, of) = (command.clone(), files.caches.clone(), space.clone());
    let refused = |error: SandboxError| error.failure();
    files
        .blocking(space, move |_, root| {
            let can_write = !command.writes.is_empty() || !command.caches.is_empty();
            if mode == CallMode::Run && can_write && !caches.make_room() {
                let message = "the command was not started: the disk of the state directory is almost full";
                return Err(Failure::new(Code::DiskFull, Phase::Sandbox, message));
            }
            // Each process may use every processor for the whole time: the deadline alone bounds a build.
            let processors = available_parallelism().map_or(1, usize::from) as u64;
            let cpu_ms = command.timeout_ms.saturating_mul(processors);
            let mut view = View::new(command.memory_bytes, cpu_ms);
            caches.reserve(&mut view);
            for path in &command.writes {
                view.add_writable(root, path).map_err(refused)?;
            }
            let rights = &command.digest().hex()[..16];
            for path in &command.caches {
                let cache = caches.open((&of, &command.name, rights, path), root.owner())?;
                view.add_cache(root, path, &cache).map_err(refused)?;
            }
            for folder in &command.programs {
                view.add_programs(root, folder).map_err(refused)?;
            }
            Ok(view)
        })
        .await
}

/// The view of a tool that a plan confines: the space is read-only but for the scope, and a forbidden file is read-only in it.
pub(crate) async fn view_of_area(
    files: &Files,
    space: &SpaceId,
    area: &Area,
    time: Duration,
) -> Result<View, Failure> {
    let area = area.clone();
    let refused = |error: SandboxError| error.failure();
    files
        .blocking(space, move |inspector, root| {
            let cpu_ms = u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
            let mut view = View::new(STDIO_MEMORY_BYTES_MAX, cpu_ms);
            let there = area.files.iter().filter(|file| !area.is_in_dir(file));
            for path in area.dirs.iter().chain(there) {
                view.add_writable(root, &beneath(path)).map_err(refused)?;
            }
            let forbidden = inspector.inspect(root, &area.forbidden, 0)?;
            for path in &area.forbidden {
                let is = forbidden.iter().find(|one| &one.seen.path == path);
                if is.is_some_and(|is| is.seen.standing != PathState::Absent) {
                    view.add_read_only(root, &beneath(path)).map_err(refused)?;
                }
            }
            Ok(view)
        })
        .await
}

/// A path of a request as one beneath the root.
fn beneath(path: &str) -> PathBuf {
    match Path::new(path).strip_prefix("workspace") {
        Ok(rest) if !rest.as_os_str().is_empty() => rest.to_owned(),
        Ok(_) | Err(_) => PathBuf::from("."),
    }
}
