//! Snapshots: the state of the paths that an action may change, before its tool runs and after.
//!
//! The snapshot before is in the intent, on disk with the claim; the pre-images are stored before the call (`preimages.rs`). So
//! the first snapshot is known whenever the process dies, and a repeated run does not mistake its own effect for the state
//! before. The changes are in the receipt.

use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::io::Read;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use effectd_bus::limits::RESOURCES_MAX;
use effectd_bus::{BlobError, BlobKind, Blobs, Pins};
use effectd_contracts::text::without_case;
use effectd_contracts::toolcall::is_undo_at_service;
use effectd_contracts::{
    ARTIFACT_GET_TOOL, ActionRequest, Code, Digest, Effects, Failure, FileState, FolderListing, LinkedFile,
    Observed, PathChange, PathSnapshot, PathState, Phase, Restore, SpaceId, Touch, UNDO_TOOL, Unchanged,
    Undoes, quoted,
};
use effectd_policy::{Decision, NamedCommand};
use serde_json::{Map, Value};

use super::changes::{can_restore, changed, compare, fit, list_made_folder, list_new};
use super::preimages::{put, wait_until_stored};
use super::streams::failure_of;
use super::{WHOLE_SPACE, artifacts, is_beneath, undo};
use crate::action::plan::{Area, denied};
use crate::action::proofs::Earlier;
use crate::action::{Action, Claimed, Gated};
use crate::claims::{key, resources};
use crate::control::fair_queue::Join;
use crate::control::resource_queue::ResourceQueue;
use crate::limits::{COMMAND_PATHS_MAX, MOVED_ENTRIES_MAX, PREIMAGE_BYTES_MAX, PREIMAGE_EARLY_BYTES_MAX};
use crate::registry::{RegisteredTool, Registry};
use crate::services::files::{Files, Inspected};
use crate::services::signer::Identity;

/// How much of a large file is read at a time.
const PIECE_BYTES: usize = 65_536;

/// What a run needs to know about the state before it.
#[derive(Debug, Default)]
pub(crate) struct Prepared {
    pub(crate) touched: Vec<Touch>,
    /// The snapshot before the first run; `None` if there is none.
    pub(crate) before: Option<Vec<PathSnapshot>>,
    pub(crate) extras: Extras,
}

/// What a tool gets beside its parameters.
#[derive(Debug, Default)]
pub(crate) struct Extras {
    pub(crate) restore: Vec<Restore>,
    /// The blobs that are streamed to the tool, in order.
    pub(crate) contents: Option<(BlobKind, Vec<String>)>,
    /// The action that a service's own undo makes up for.
    pub(crate) undoes: Option<Box<Undoes>>,
}

/// The paths that a call with these parameters may change.
pub(crate) fn touched_with(
    files: &Files,
    space: &SpaceId,
    tool: &RegisteredTool,
    params: &Map<String, Value>,
) -> Vec<Touch> {
    if tool.spec().tool_id.as_str() == UNDO_TOOL {
        // If the receipt to undo is wrong, the execution reports it.
        return undo::touched(&*files.store, space, params).unwrap_or_default();
    }
    tool.touches(params).unwrap_or_default()
}

/// The paths that an action may change. A named command may change everything beneath the paths that it declares, so what is
/// there is listed first.
pub(crate) async fn touched_by(files: &Files, space: &SpaceId, gated: &Gated) -> Result<Vec<Touch>, Failure> {
    let (mut touched, name, list) = match (gated.command(), gated.area()) {
        (Some(command), _) => {
            (filled_by(command), command.name.as_str(), "`writes` of the command in the policy")
        }
        (None, Some(area)) => (filled_in(area), gated.tool().spec().tool_id.as_str(), "the plan's scope"),
        (None, None) => return Ok(touched_with(files, space, gated.tool(), gated.params())),
    };
    if touched.is_empty() {
        return Ok(Vec::new());
    }
    if let (None, Some(area)) = (gated.command(), gated.area()) {
        check_there(files, space, area).await?;
    }
    let declared = touched.len();
    let refused = |code, why: &str| {
        let change = if code == Code::PathDenied {
            format!("remove what the message names, or narrow {list}")
        } else if code == Code::ToolBusy {
            "try again; if it is still there, remove what the message names".to_owned()
        } else {
            format!("narrow {list}")
        };
        let beneath = if gated.command().is_some() { "its `writes`" } else { "the plan's scope" };
        let message = format!("{name} does not run: beneath {beneath}, {why}");
        Err(Failure::new(code, Phase::Sandbox, message).unless(change))
    };
    let (mut linked, mut found) = (Vec::new(), None);
    // Without its path, or with a link in its place, the command does not start.
    for path in paths(&touched) {
        let beneath = files.beneath(space, &path, false).await?;
        // No snapshot shows where a link leads, so a changed one would stay unseen.
        let other = beneath.seen.iter().find(|seen| seen.standing == PathState::Other);
        let other = other.map(|seen| format!("the path is a link or a special file: {}", quoted(&seen.path)));
        found = found.or(other.map(|why| (Code::PathDenied, why))).or(beneath.missing);
        linked.extend(beneath.linked);
        touched.extend(beneath.seen.into_iter().map(|seen| Touch::replaced(seen.path)));
        if touched.len() > COMMAND_PATHS_MAX + declared {
            let why = format!(
                "there are more than the {COMMAND_PATHS_MAX} files and folders that an undo restores"
            );
            return refused(Code::FileLimit, &why);
        }
    }
    let mut known = HashSet::new();
    touched.retain(|touch| known.insert(touch.path.clone()));
    let shared = || {
        let why = "the file has other names outside of `writes`, which a write would change";
        Some((Code::PathDenied, format!("{why}: {}", quoted(has_name_outside(&linked)?))))
    };
    let protected = gated.ruling().decision.first_protected(touched.iter().map(|touch| touch.path.as_str()));
    let protected = protected
        .map(|path| (Code::PathDenied, format!("the path is protected in the space: {}", quoted(path))));
    match protected.or(found).or_else(shared) {
        None => Ok(touched),
        Some((code, why)) => refused(code, &why),
    }
}

/// Refuses to move a folder with a protected path in it, or one that cannot be listed.
async fn check_moved(
    files: &Files,
    space: &SpaceId,
    decision: &Decision,
    touched: &[Touch],
) -> Result<(), Failure> {
    let moved = touched.iter().filter(|touch| touch.goes_to.is_some()).map(|touch| touch.path.clone());
    let moved: Vec<String> = moved.collect();
    if decision.protected.is_empty() || moved.is_empty() {
        return Ok(());
    }
    let scan = files.blocking(space, move |inspector, root| inspector.scan(root, &moved, MOVED_ENTRIES_MAX));
    let scan = scan.await?;
    let why = match decision.first_protected(scan.marks.keys().map(String::as_str)) {
        Some(path) => format!("the folder has {path:?} in it, which is protected in {space}"),
        None if scan.complete => return Ok(()),
        None => format!("the folder cannot be listed, so a path that is protected in {space} may be in it"),
    };
    let failure = Failure::new(Code::PathDenied, Phase::Sandbox, why);
    Err(failure.unless("move what is in the folder one by one, or let a person move it"))
}

/// What a named command declares.
fn filled_by(command: &NamedCommand) -> Vec<Touch> {
    let declared = command.writes.iter().map(|path| format!("{WHOLE_SPACE}/{}", path.display()));
    declared.map(Touch::filled).collect()
}

/// Refuses a file of a plan's scope that does not exist: to make it, the tool would need its folder, and so could make others there.
async fn check_there(files: &Files, space: &SpaceId, area: &Area) -> Result<(), Failure> {
    let single: Vec<String> = area.files.iter().filter(|file| !area.is_in_dir(file)).cloned().collect();
    let seen = files.inspect(space, single.clone(), 0).await?;
    let is_file = |path: &&String| {
        let is = seen.iter().find(|is| &is.seen.path == *path);
        is.is_some_and(|is| matches!(is.seen.standing, PathState::File(_)))
    };
    match single.iter().find(|path| !is_file(path)) {
        None => Ok(()),
        Some(path) => {
            let why = format!("there is no file {}, so the tool would need its folder", quoted(path));
            Err(denied(why).unless("name the folder in allowedDirs, or create the file first"))
        }
    }
}

/// What a plan allows to a tool that does not declare its paths.
fn filled_in(area: &Area) -> Vec<Touch> {
    let dirs = area.dirs.iter().map(Touch::filled);
    dirs.chain(area.files.iter().map(Touch::replaced)).collect()
}

/// A file among these that has a name elsewhere: to write to it changes a file that the command does not declare.
fn has_name_outside(linked: &[LinkedFile]) -> Option<&str> {
    let mut here: HashMap<(u64, u64), u64> = HashMap::new();
    for file in linked {
        *here.entry(file.identity).or_default() += 1;
    }
    let outside = linked.iter().find(|file| here.get(&file.identity).is_none_or(|names| *names < file.names));
    outside.map(|file| file.path.as_str())
}

/// Pins the blobs that are sent with the call until the action has ended.
pub(crate) fn pin(files: &Files, action: &Action<Gated>) -> Option<Arc<Pins>> {
    let (space, params) = (&action.request.space_id, action.state.params());
    match action.state.tool().spec().tool_id.as_str() {
        UNDO_TOOL => undo::pin(files, space, params),
        ARTIFACT_GET_TOOL => {
            let id = params.get("artifact_id").and_then(Value::as_str)?;
            let pins = files.blobs.pin(BlobKind::Artifacts, space, [id]);
            pins.ok().map(Arc::new)
        }
        _ => None,
    }
}

/// How a request that no stage has checked yet joins its resource queues. If the tool panics over it here, it panics again in a
/// stage, which handles that.
pub(crate) fn join(
    registry: &Registry,
    queue: &ResourceQueue,
    request: &ActionRequest,
    digest: Digest,
) -> Option<Join> {
    if request.dry_run {
        return None;
    }
    let (tool, space) = (registry.get(&request.tool_id)?, &request.space_id);
    let names = catch_unwind(AssertUnwindSafe(|| {
        let touched = tool.touches(&request.params).unwrap_or_default();
        if touched.is_empty() {
            let resource = key::resource_of(tool.spec(), space, &request.params);
            return resource.into_iter().collect();
        }
        let touched = touched.iter().take(RESOURCES_MAX);
        touched.map(|touch| resources::of_touch(space, touch)).collect::<Vec<_>>()
    }));
    let (names, queue) = (names.unwrap_or_default(), queue.clone());
    if names.is_empty() {
        return None;
    }
    let id = (request.action_id.clone(), digest);
    Some(Box::new(move || queue.join(names, id)) as Join)
}

pub(crate) fn paths(touched: &[Touch]) -> Vec<String> {
    touched.iter().map(|touch| touch.path.clone()).collect()
}

/// Puts back what a killed run had set aside, and removes its drafts, which no tool can do for it. Returns the paths where it did,
/// for the receipt. If this fails, the outcome of the action stays the same.
pub(crate) async fn remove_drafts(
    files: &Files,
    action: &Action<Claimed>,
    prepared: &Prepared,
) -> Vec<String> {
    let paths = paths(&prepared.touched);
    let before = prepared.before.clone().unwrap_or_default();
    let trace = action.ticket.trace_id.clone();
    let removing = files.blocking(&action.request.space_id, move |inspector, root| {
        Ok(inspector.remove_drafts(root, &paths, &before, trace.as_str()))
    });
    let (cleaned, all) = removing.await.unwrap_or_else(|failure| (Vec::new(), Err(failure)));
    if let Err(failure) = all {
        tracing::warn!(parent: &action.ticket.span, %failure, "the drafts of a killed run could not be removed");
    }
    cleaned
}

/// Takes the snapshot before a run, and stores the pre-images that are not stored yet. If this fails, nothing has run.
pub(crate) async fn prepare(files: &Files, action: &Action<Claimed>) -> Result<Prepared, Failure> {
    let (gated, space) = (action.state.gated(), &action.request.space_id);
    // What a named command may change can always be undone, and so can what a plan changes.
    let reversible = gated.tool().spec().reversible || gated.is_confined_to_paths() || gated.is_transaction();
    if let (true, Earlier::Interrupted(_)) = (gated.is_confined_to_paths(), action.state.earlier())
        && let Some(before) = first_state(files, action, &[]).await?
    {
        // It does not run again, so what it left is observed, whatever it is: beneath what it declared then, not now.
        let roots = resources::topmost(before.iter().map(|seen| seen.path.as_str()).collect());
        let touched = roots.into_iter().map(Touch::filled).collect();
        return Ok(Prepared { touched, before: Some(before), extras: Extras::default() });
    }
    let touched = touched_by(files, space, gated).await?;
    check_moved(files, space, &gated.ruling().decision, &touched).await?;
    let extras = extras(files, space, gated.tool(), gated.params(), &touched).await?;
    let prepared = |before| Prepared { touched: touched.clone(), before, extras };
    // A plan that was interrupted is rolled back even while effects are paused.
    let is_begun = matches!(action.state.earlier(), Earlier::Interrupted(Some(intent)) if intent.transaction);
    if touched.is_empty() || (gated.dry_run().is_some() && !is_begun) {
        return Ok(prepared(None));
    }
    let kept = &action.state.terms().preimages.names;
    let now = match inspect_again(files, space, &touched, kept).await {
        Ok(now) => now,
        Err(failure) if reversible => return Err(failure),
        Err(_) => return Ok(prepared(None)),
    };
    let seen: Vec<_> = now.iter().map(|inspected| inspected.seen.clone()).collect();
    let before = first_state(files, action, &seen).await?;
    if before.as_ref() == Some(&seen) && !all_kept(&files.identity, &now, kept) {
        let stored = store_preimages(files, space, now, &touched).await;
        if reversible {
            stored?;
        }
    }
    Ok(prepared(before))
}

/// What the tool gets beside its parameters; only some tools need anything.
pub(crate) async fn extras(
    files: &Files,
    space: &SpaceId,
    tool: &RegisteredTool,
    params: &Map<String, Value>,
    touched: &[Touch],
) -> Result<Extras, Failure> {
    match tool.spec().tool_id.as_str() {
        UNDO_TOOL => {
            let now = files.inspect(space, paths(touched), 0).await?;
            undo::plan(files, space, params, &now).await
        }
        ARTIFACT_GET_TOOL => {
            let id = params.get("artifact_id").and_then(Value::as_str);
            let id = id.unwrap_or_default();
            artifacts::check_for_tool(files, space, id)?;
            let contents = Some((BlobKind::Artifacts, vec![id.to_owned()]));
            Ok(Extras { contents, ..Extras::default() })
        }
        _ if is_undo_at_service(&tool.spec().tool_id) => {
            let undoes = undo::at_service(files, space, &tool.spec().tool_id, params)?;
            Ok(Extras { undoes: Some(Box::new(undoes)), ..Extras::default() })
        }
        _ => Ok(Extras::default()),
    }
}

/// Inspects the paths again under the claim; with contents unless all pre-images are stored.
async fn inspect_again(
    files: &Files,
    space: &SpaceId,
    touched: &[Touch],
    kept: &[String],
) -> Result<Vec<Inspected>, Failure> {
    if !kept.is_empty() {
        let now = files.inspect(space, paths(touched), 0).await?;
        if all_kept(&files.identity, &now, kept) {
            return Ok(now);
        }
    }
    let inspecting = files.inspect(space, paths(touched), PREIMAGE_EARLY_BYTES_MAX);
    inspecting.await
}

fn all_kept(identity: &Identity, now: &[Inspected], kept: &[String]) -> bool {
    now.iter().all(|inspected| match &inspected.seen.standing {
        PathState::File(state) => kept.contains(&keyed_name(identity, &state.digest)),
        PathState::Absent | PathState::Folder | PathState::Other => true,
    })
}

/// The snapshot before the first run; for an interrupted action, the one that was stored then.
async fn first_state(
    files: &Files,
    action: &Action<Claimed>,
    seen: &[PathSnapshot],
) -> Result<Option<Vec<PathSnapshot>>, Failure> {
    let space = action.request.space_id.clone();
    let name = Digest::of(format!("before\n{}", action.ticket.action_id).as_bytes()).hex();
    match action.state.earlier() {
        Earlier::No if action.state.terms().before.as_deref() == Some(seen) => Ok(Some(seen.to_vec())),
        Earlier::No => {
            // Another action changed these paths between the first snapshot and the claim.
            let note = serde_json::to_vec(seen).unwrap_or_default();
            put(&files.blobs, space, vec![(name, note)]).await?;
            Ok(Some(seen.to_vec()))
        }
        Earlier::Interrupted(intent) => {
            let noted = files.blobs.get(BlobKind::Preimages, &space, &name).ok();
            let noted = noted.and_then(|bytes| serde_json::from_slice(&bytes).ok());
            Ok(noted.or_else(|| intent.as_ref().and_then(|intent| intent.before.clone())))
        }
    }
}

/// Stores the contents that the action may replace.
async fn store_preimages(
    files: &Files,
    space: &SpaceId,
    now: Vec<Inspected>,
    touched: &[Touch],
) -> Result<(), Failure> {
    let (mut contents, mut large, mut bytes) = (Vec::new(), Vec::new(), 0);
    for Inspected { seen, content } in now {
        let PathState::File(state) = seen.standing else {
            continue;
        };
        let is_moved = touched.iter().any(|touch| touch.goes_to.is_some() && touch.path == seen.path);
        if is_moved && content.is_none() {
            continue;
        }
        bytes += state.bytes;
        let name = keyed_name(&files.identity, &state.digest);
        match content {
            Some(content) => contents.push((name, content)),
            None => large.push((name, seen.path)),
        }
    }
    let max = PREIMAGE_BYTES_MAX.min(files.blobs.bytes_max());
    if bytes > max {
        let message = format!(
            "the content to be replaced is larger than the {max} bytes that a pre-image may have; move it away first"
        );
        return Err(Failure::new(Code::FileLimit, Phase::Sandbox, message));
    }
    put(&files.blobs, space.clone(), contents).await?;
    put_large(files, space, large).await
}

/// Stores pre-images that are too large for memory.
async fn put_large(files: &Files, space: &SpaceId, large: Vec<(String, String)>) -> Result<(), Failure> {
    if large.is_empty() {
        return Ok(());
    }
    let (blobs, identity) = (files.blobs.clone(), files.identity.clone());
    let of = space.clone();
    let putting = files.blocking(space, move |inspector, root| {
        large.iter().try_for_each(|(name, path)| {
            if blobs.renew(BlobKind::Preimages, &of, name).unwrap_or(false) {
                return Ok(());
            }
            let file = inspector.open(root, path)?;
            let stored = copy(file, &blobs, &of, |digest| identity.keyed(digest).hex());
            if &stored.map_err(|error| failure_of(&error))? == name {
                return Ok(());
            }
            let why = format!("{path} changed while its pre-image was stored; nothing was done");
            Err(Failure::new(Code::StateChanged, Phase::Sandbox, why))
        })
    });
    putting.await
}

fn copy(
    mut from: File,
    blobs: &Arc<Blobs>,
    space: &SpaceId,
    name: impl FnOnce(&Digest) -> String,
) -> Result<String, BlobError> {
    let mut writer = blobs.writer(BlobKind::Preimages, space)?;
    let mut piece = vec![0; PIECE_BYTES];
    loop {
        match from.read(&mut piece)? {
            0 => return writer.finish(name),
            count => writer.write(&piece[..count])?,
        }
    }
}

/// The name of a digest in receipts and of its blob: the digest under the device's key.
pub(crate) fn keyed_name(identity: &Identity, digest: &str) -> String {
    match Digest::try_from(digest.to_owned()) {
        Ok(digest) => identity.keyed(&digest).hex(),
        // No inspector returns an invalid digest; an empty name matches no blob.
        Err(_) => String::new(),
    }
}

/// The state of a path as receipts show it, with a keyed digest.
pub(crate) fn keyed(identity: &Identity, standing: &PathState) -> PathState {
    match standing {
        PathState::File(state) => PathState::File(FileState {
            digest: format!("hmac-sha256:{}", keyed_name(identity, &state.digest)),
            ..state.clone()
        }),
        PathState::Absent | PathState::Folder | PathState::Other => standing.clone(),
    }
}

/// The digest of a folder's contents as receipts show it.
pub(crate) fn keyed_inside(identity: &Identity, inside: &FolderListing) -> Option<String> {
    match inside {
        FolderListing::Listed(digest) => Some(format!("hmac-sha256:{}", keyed_name(identity, digest))),
        FolderListing::TooMuch => None,
    }
}

/// What has changed since the snapshot before, now that the tool has run.
pub(crate) async fn observe(files: &Files, action: &Action<Claimed>, prepared: &Prepared) -> Effects {
    let (space, identity) = (&action.request.space_id, &files.identity);
    let Some(before) = &prepared.before else {
        let can_change = !action.state.gated().is_reading_command();
        return if can_change { Effects::Unobserved } else { Effects::None };
    };
    let is_command = action.state.gated().is_confined_to_paths();
    let paths: Vec<String> = before.iter().map(|seen| seen.path.clone()).collect();
    let after = match files.inspect(space, paths.clone(), 0).await {
        Ok(after) => after,
        Err(_) if is_command => inspect_each(files, space, paths).await,
        Err(_) => return Effects::Unobserved,
    };
    let mut changes = compare(identity, before, &after, &prepared.touched);
    for change in &mut changes {
        if let Some(to) = &change.moved_to {
            let inside = files.inside(space, to).await;
            change.inside = keyed_inside(identity, &inside);
        }
    }
    // Until now the intent holds the pre-images; once there is a receipt, the blobs must.
    wait_until_stored(&action.state.terms().preimages, &files.blobs, space).await;
    let mut undoable =
        before.iter().all(|was| changed(was, &after).is_none() || can_restore(files, space, was, &after));
    let mut complete = before.iter().all(|was| after.iter().any(|is| is.seen.path == was.path));
    for touch in prepared.touched.iter().filter(|touch| touch.filled) {
        complete &= list_made_folder(files, space, touch, &mut changes).await;
        if is_command {
            complete &= list_new(files, space, touch, before, &mut changes).await;
        }
    }
    complete &= fit(&mut changes);
    undoable &= complete && !changes.is_empty() && changes.iter().all(can_be_undone);
    let unchanged = after.iter().filter(|is| !changes.iter().any(|change| change.path == is.seen.path));
    let unchanged = unchanged
        .map(|is| Unchanged { path: is.seen.path.clone(), state: keyed(identity, &is.seen.standing) });
    let is_compared = !action.state.terms().depends.is_empty();
    let unchanged = if is_compared { unchanged.collect() } else { Vec::new() };
    let undeclared = Vec::new();
    Effects::Observed(Observed { changes, undoable, undeclared, unchanged, incomplete: !complete })
}

/// An undo removes no links and special files, and exchanges no files and folders.
fn can_be_undone(change: &PathChange) -> bool {
    !matches!(
        (&change.before, &change.after),
        (_, PathState::Other)
            | (PathState::Folder, PathState::File(_))
            | (PathState::File(_), PathState::Folder)
    )
}

/// Inspects paths of which one or more cannot be read, such as a file that is too large now; those are left out. What was in a
/// folder is gone if the folder is a file or a link now.
async fn inspect_each(files: &Files, space: &SpaceId, paths: Vec<String>) -> Vec<Inspected> {
    let inspecting = files.blocking(space, move |inspector, root| {
        let each = paths.iter().map(|path| inspector.inspect(root, std::slice::from_ref(path), 0));
        let mut found: Vec<Inspected> = each.filter_map(Result::ok).flatten().collect();
        let is_no_folder = |is: &Inspected| matches!(is.seen.standing, PathState::File(_) | PathState::Other);
        let is_gone = |path: &&String| {
            found.iter().all(|is| is.seen.path != **path)
                && found.iter().any(|is| is_no_folder(is) && is_beneath(path, &is.seen.path))
        };
        let absent = |path: &String| PathSnapshot::new(path.clone(), PathState::Absent);
        let gone = paths.iter().filter(is_gone).map(|path| Inspected { seen: absent(path), content: None });
        let gone: Vec<_> = gone.collect();
        found.extend(gone);
        Ok(found)
    });
    inspecting.await.unwrap_or_default()
}

/// How the declared paths are now, compared with a receipt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Compared {
    /// As the receipt left them.
    Holds,
    Differs,
    /// The receipt does not say how it left them, or they cannot be read.
    Unknown,
}

pub(crate) async fn compare_now(
    files: &Files,
    space: &SpaceId,
    touched: &[Touch],
    effects: &Effects,
) -> Compared {
    let Effects::Observed(observed) = effects else {
        return Compared::Unknown;
    };
    let Ok(now) = files.inspect(space, paths(touched), 0).await else {
        return Compared::Unknown;
    };
    let ignores_case = files.ignores_case(space);
    let mut compared = Compared::Holds;
    for touch in touched {
        let is = now.iter().find(|inspected| inspected.seen.path == touch.path);
        let was = observed.after(&touch.path).or_else(|| {
            let is_same = |path: &str| without_case(path) == without_case(&touch.path);
            ignores_case.then(|| observed.find(is_same)).flatten()
        });
        match (is, was) {
            (Some(is), Some(was)) if keyed(&files.identity, &is.seen.standing) == *was => {}
            (Some(_), Some(_)) => return Compared::Differs,
            (None, _) | (_, None) => compared = Compared::Unknown,
        }
    }
    compared
}
