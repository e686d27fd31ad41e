//! Snapshots: the state of the paths that an action may change, before its tool runs and after.
//!
//! The snapshot before is in the intent, on disk with the claim; the pre-images are stored before the call (`preimages.rs`). So
//! the first snapshot is known whenever the process dies, and a repeated run does not mistake its own effect for the state
//! before. The changes are in the receipt.

use std::fs::File;
use std::io::Read;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use effectd_bus::limits::RESOURCES_MAX;
use effectd_bus::{BlobError, BlobKind, Blobs, Pins};
use effectd_contracts::{
    ARTIFACT_GET_TOOL, ActionRequest, Code, Digest, Effects, Failure, FileState, FolderListing, Observed,
    PathSnapshot, PathState, Phase, Restore, SpaceId, Touch, UNDO_TOOL, Unchanged,
};
use serde_json::{Map, Value};

use super::changes::{can_restore, changed, compare, list_made_folder, list_new};
use super::preimages::{put, wait_until_stored};
use super::streams::failure_of;
use super::{WHOLE_SPACE, artifacts, undo};
use crate::action::proofs::Earlier;
use crate::action::{Action, Claimed, Gated};
use crate::claims::{key, resources};
use crate::control::fair_queue::Join;
use crate::control::resource_queue::ResourceQueue;
use crate::limits::{COMMAND_PATHS_MAX, PREIMAGE_BYTES_MAX, PREIMAGE_EARLY_BYTES_MAX};
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
    let Some(command) = gated.command() else {
        return Ok(touched_with(files, space, gated.tool(), gated.params()));
    };
    let declared = command.writes.iter().map(|path| format!("{WHOLE_SPACE}/{}", path.display()));
    let declared: Vec<String> = declared.collect();
    if declared.is_empty() {
        return Ok(Vec::new());
    }
    let mut touched: Vec<_> = declared.iter().cloned().map(Touch::filled).collect();
    for inspected in files.inspect(space, declared, 0).await? {
        if inspected.seen.standing != PathState::Folder {
            continue;
        }
        let path = inspected.seen.path;
        let listing = files.blocking(space, move |inspector, root| inspector.inspect_beneath(root, &path));
        for found in listing.await? {
            // No snapshot shows where a link leads, so a changed one would stay unseen.
            if found.seen.standing == PathState::Other {
                let message = format!(
                    "{} may write to {}, a link or a special file, which an undo cannot restore; remove it, or narrow `writes` \
                     in the policy",
                    command.name, found.seen.path
                );
                return Err(Failure::new(Code::PathDenied, Phase::Sandbox, message));
            }
            touched.push(Touch::replaced(found.seen.path));
        }
    }
    if touched.len() > COMMAND_PATHS_MAX {
        let message = format!(
            "{} may write to {} files and folders, more than the {COMMAND_PATHS_MAX} that an undo restores; narrow its \
             `writes` in the policy",
            command.name,
            touched.len()
        );
        return Err(Failure::new(Code::FileLimit, Phase::Sandbox, message));
    }
    Ok(touched)
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

/// Puts back what a killed run had set aside, and removes its drafts, which no tool can do for it. If this fails, the outcome of
/// the action stays the same.
pub(crate) async fn remove_drafts(files: &Files, action: &Action<Claimed>, prepared: &Prepared) {
    let paths = paths(&prepared.touched);
    let before = prepared.before.clone().unwrap_or_default();
    let trace = action.ticket.trace_id.clone();
    let removing = files.blocking(&action.request.space_id, move |inspector, root| {
        inspector.remove_drafts(root, &paths, &before, trace.as_str())
    });
    if let Err(failure) = removing.await {
        tracing::warn!(parent: &action.ticket.span, %failure, "the drafts of a killed run could not be removed");
    }
}

/// Takes the snapshot before a run, and stores the pre-images that are not stored yet. If this fails, nothing has run.
pub(crate) async fn prepare(files: &Files, action: &Action<Claimed>) -> Result<Prepared, Failure> {
    let (gated, space) = (action.state.gated(), &action.request.space_id);
    // What a named command may change can always be undone.
    let reversible = gated.tool().spec().reversible || gated.command().is_some();
    let touched = touched_by(files, space, gated).await?;
    let extras = extras(files, space, gated.tool(), gated.params(), &touched).await?;
    let prepared = |before| Prepared { touched: touched.clone(), before, extras };
    if touched.is_empty() || gated.dry_run().is_some() {
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
            Ok(Extras { restore: Vec::new(), contents: Some((BlobKind::Artifacts, vec![id.to_owned()])) })
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
    let paths = before.iter().map(|seen| seen.path.clone()).collect();
    let Ok(after) = files.inspect(space, paths, 0).await else {
        return Effects::Unobserved;
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
    let mut undoable = before.iter().all(|was| match changed(was, &after) {
        Some(is) => can_restore(files, space, was, &after) && is.seen.standing != PathState::Other,
        None => true,
    });
    for touch in prepared.touched.iter().filter(|touch| touch.filled) {
        undoable &= list_made_folder(files, space, touch, &mut changes).await;
        if action.state.gated().command().is_some() {
            let Some(removable) = list_new(files, space, touch, before, &mut changes).await else {
                return Effects::Unobserved;
            };
            undoable &= removable;
        }
    }
    undoable &= !changes.is_empty();
    let unchanged = after.iter().filter(|is| !changes.iter().any(|change| change.path == is.seen.path));
    let unchanged = unchanged
        .map(|is| Unchanged { path: is.seen.path.clone(), state: keyed(identity, &is.seen.standing) });
    let is_compared = !action.state.terms().depends.is_empty();
    let unchanged = if is_compared { unchanged.collect() } else { Vec::new() };
    Effects::Observed(Observed { changes, undoable, undeclared: Vec::new(), unchanged })
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
    let mut compared = Compared::Holds;
    for touch in touched {
        let is = now.iter().find(|inspected| inspected.seen.path == touch.path);
        match (is, observed.after(&touch.path)) {
            (Some(is), Some(was)) if keyed(&files.identity, &is.seen.standing) == *was => {}
            (Some(_), Some(_)) => return Compared::Differs,
            (None, _) | (_, None) => compared = Compared::Unknown,
        }
    }
    compared
}
