//! What effects replace: seen and kept before the tool runs, compared after it, so that it can be undone.
//!
//! The state before stands in the intent, on disk with the claim; the contents are kept as sealed blobs before the sandbox
//! is entered, or, if they are small, stand in the intent as well until the blobs are on disk (`keeping.rs`). So whatever dies
//! when, the first state before is known, and a run that is repeated does not take its own effect for it. The changes stand in
//! the receipt.

use std::fs::File;
use std::io::Read;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use effectd_bus::limits::RESOURCES_MAX;
use effectd_bus::{BlobError, Blobs, Pins, Shelf};
use effectd_contracts::{
    ARTIFACT_GET_TOOL, ActionRequest, Code, Digest, Effects, Failure, FileState, Inside, Observed, Phase,
    Restore, Seen, SpaceId, Standing, Touch, UNDO_TOOL,
};
use effectd_sandbox::SpaceRoot;
use serde_json::{Map, Value};

use crate::action::{Action, Claimed, Gated};
use crate::artifacts;
use crate::changes::{compare, filled, is_kept, now};
use crate::control::fair_queue::Join;
use crate::idempotency::Earlier;
use crate::key;
use crate::limits::{PREIMAGE_BYTES_MAX, PREIMAGE_EARLY_BYTES_MAX};
use crate::overreach::Scan;
use crate::parts::Parts;
use crate::registry::Entry;
use crate::resources;
use crate::streams::failure_of;
use crate::undo;

/// How much of a large file is read at a time.
const PIECE_BYTES: usize = 65_536;

/// Looks at files of a space from outside of the sandbox. It never follows a link, and opens nothing but files.
pub trait Witness: Send + Sync {
    /// What stands at these paths beneath the root, and at the folders above them that are missing. Contents come along as
    /// long as all of them together are not more than this.
    fn look(&self, root: &SpaceRoot, paths: &[String], keep_bytes_max: u64) -> Result<Vec<Looked>, Failure>;

    /// The same, if nothing has to be waited for; `None` if it must be, or might.
    fn look_now(&self, _root: &SpaceRoot, _paths: &[String], _keep_bytes_max: u64) -> Option<Vec<Looked>> {
        None
    }

    /// What is in the folder at a path beneath the root.
    fn inside(&self, root: &SpaceRoot, path: &str) -> Result<Inside, Failure>;

    /// What stands beneath a folder that a tool has made. More than tools make is an error.
    fn look_beneath(&self, root: &SpaceRoot, path: &str) -> Result<Vec<Looked>, Failure>;

    /// Opens the file at a path beneath the root, to be read in pieces.
    fn open(&self, root: &SpaceRoot, path: &str) -> Result<File, Failure>;

    /// The folders that stand nearest to these: themselves, or what they would be made in.
    fn nearest(&self, root: &SpaceRoot, folders: &[String]) -> Result<Vec<String>, Failure>;

    /// Those of these paths at which nothing stands.
    fn gone(&self, root: &SpaceRoot, paths: Vec<String>) -> Result<Vec<String>, Failure>;

    /// What is in these folders and beneath, up to so many.
    fn scan(&self, root: &SpaceRoot, folders: &[String], entries_max: usize) -> Result<Scan, Failure>;

    /// Where a run under this trace keeps what is unfinished of a path, and what it sets aside.
    fn drafts_of(&self, path: &str, trace: &str) -> Vec<String>;

    /// Removes what a run under this trace has left half written for these paths, and puts back what it has set aside. What
    /// stood there before it is told as far as it is known. Nothing of the run is alive any more.
    fn remove_drafts(
        &self,
        root: &SpaceRoot,
        paths: &[String],
        before: &[Seen],
        trace: &str,
    ) -> Result<(), Failure>;
}

/// What stands at a path, with its content if that is to be kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Looked {
    pub seen: Seen,
    /// The content of a file that is small enough.
    pub content: Option<Vec<u8>>,
}

/// What a run needs to know of the state before it.
#[derive(Debug, Default)]
pub(crate) struct Prepared {
    pub(crate) touched: Vec<Touch>,
    /// What stood there before the first run; `None` if nobody looked in time.
    pub(crate) before: Option<Vec<Seen>>,
    pub(crate) along: Along,
}

/// What a tool is sent beside its parameters.
#[derive(Debug, Default)]
pub(crate) struct Along {
    pub(crate) restore: Vec<Restore>,
    /// The blobs with contents, in their order.
    pub(crate) contents: Option<(Shelf, Vec<String>)>,
}

pub(crate) fn touched_with(
    parts: &Parts,
    space: &SpaceId,
    entry: &Entry,
    params: &Map<String, Value>,
) -> Vec<Touch> {
    if entry.spec().tool_id.as_str() == UNDO_TOOL {
        // What is wrong with the receipt is told when the action is carried out.
        return undo::touched(parts, space, params).unwrap_or_default();
    }
    entry.touches(params).unwrap_or_default()
}

/// Holds on to what is sent along with the call until the action has ended.
pub(crate) fn pin(parts: &Parts, action: &Action<Gated>) -> Option<Arc<Pins>> {
    let (space, params) = (&action.request.space_id, action.state.params());
    match action.state.entry().spec().tool_id.as_str() {
        UNDO_TOOL => undo::pin(parts, space, params),
        ARTIFACT_GET_TOOL => {
            let id = params.get("artifact_id").and_then(Value::as_str)?;
            parts.blobs.pin(Shelf::Artifacts, space, [id]).ok().map(Arc::new)
        }
        _ => None,
    }
}

/// How to stand in line for what a request of this digest would change, as far as that can be told before anybody has checked it. A tool
/// that panics over such a request does so again in a stage, where that ends as it should.
pub(crate) fn join(parts: &Parts, request: &ActionRequest, digest: Digest) -> Option<Join> {
    if request.dry_run {
        return None;
    }
    let (entry, space) = (parts.registry.get(&request.tool_id)?, &request.space_id);
    let names = catch_unwind(AssertUnwindSafe(|| {
        let touched = entry.touches(&request.params).unwrap_or_default();
        if touched.is_empty() {
            let resource = key::resource_of(entry.spec(), space, &request.params);
            return resource.into_iter().collect();
        }
        let touched = touched.iter().take(RESOURCES_MAX);
        touched
            .map(|touch| resources::of_touch(space, touch))
            .collect::<Vec<_>>()
    }));
    let (names, lines) = (names.unwrap_or_default(), parts.control.lines.clone());
    if names.is_empty() {
        return None;
    }
    let id = (request.action_id.clone(), digest);
    Some(Box::new(move || lines.join(names, id)) as Join)
}

pub(crate) fn paths(touched: &[Touch]) -> Vec<String> {
    touched.iter().map(|touch| touch.path.clone()).collect()
}

pub(crate) async fn look(
    parts: &Parts,
    space: &SpaceId,
    paths: Vec<String>,
    keep_bytes_max: u64,
) -> Result<Vec<Looked>, Failure> {
    let root = (parts.space_roots)(space)?;
    if let Some(looked) = parts.witness.look_now(&root, &paths, keep_bytes_max) {
        return Ok(looked);
    }
    let witness = parts.witness.clone();
    // A disk may take its time; a worker's thread belongs to others, too.
    let looking = tokio::task::spawn_blocking(move || witness.look(&root, &paths, keep_bytes_max));
    looking
        .await
        .unwrap_or_else(|_| Err(broken("looking at the files")))
}

/// What is in a folder. Whoever cannot look has not compared.
pub(crate) async fn inside(parts: &Parts, space: &SpaceId, path: &str) -> Inside {
    let Ok(root) = (parts.space_roots)(space) else {
        return Inside::TooMuch;
    };
    let (witness, path) = (parts.witness.clone(), path.to_owned());
    let looking = tokio::task::spawn_blocking(move || witness.inside(&root, &path));
    match looking.await {
        Ok(Ok(inside)) => inside,
        Ok(Err(_)) | Err(_) => Inside::TooMuch,
    }
}

/// What is in a folder, as it stands in receipts.
pub(crate) fn keyed_inside(parts: &Parts, inside: &Inside) -> Option<String> {
    match inside {
        Inside::Listed(digest) => Some(format!("hmac-sha256:{}", keyed_name(parts, digest))),
        Inside::TooMuch => None,
    }
}

/// What stands at every path in a folder.
pub(crate) async fn look_beneath(
    parts: &Parts,
    space: &SpaceId,
    path: String,
) -> Result<Vec<Looked>, Failure> {
    let root = (parts.space_roots)(space)?;
    let witness = parts.witness.clone();
    let looking = tokio::task::spawn_blocking(move || witness.look_beneath(&root, &path));
    looking
        .await
        .unwrap_or_else(|_| Err(broken("looking at the files")))
}

/// Removes what a killed run has left half written: nobody would see it, and no tool could remove it. Should this fail, the
/// action's end is not another one for it.
pub(crate) async fn remove_drafts(parts: &Parts, action: &Action<Claimed>, prepared: &Prepared) {
    let Ok(root) = (parts.space_roots)(&action.request.space_id) else {
        return;
    };
    let (paths, before) = (
        paths(&prepared.touched),
        prepared.before.clone().unwrap_or_default(),
    );
    let (witness, trace) = (parts.witness.clone(), action.ticket.trace_id.clone());
    let removing =
        tokio::task::spawn_blocking(move || witness.remove_drafts(&root, &paths, &before, trace.as_str()));
    if let Ok(Err(failure)) = removing.await {
        tracing::warn!(parent: &action.ticket.span, %failure, "what a killed run has left stays");
    }
}

fn broken(what: &str) -> Failure {
    Failure::new(Code::Internal, Phase::Sandbox, format!("{what} failed"))
}

/// Sees and keeps what the action is going to replace. Nothing has run yet when this fails.
pub(crate) async fn prepare(parts: &Parts, action: &Action<Claimed>) -> Result<Prepared, Failure> {
    let (gated, space) = (action.state.gated(), &action.request.space_id);
    let spec = gated.entry().spec();
    let touched = touched_with(parts, space, gated.entry(), gated.params());
    let along = sent_along(parts, space, gated.entry(), gated.params(), &touched).await?;
    let prepared = |before| Prepared {
        touched: touched.clone(),
        before,
        along,
    };
    if touched.is_empty() || gated.dry_run().is_some() {
        return Ok(prepared(None));
    }
    let kept = action.state.terms().kept.names();
    let now = match look_for_the_rest(parts, space, &touched, kept).await {
        Ok(now) => now,
        Err(failure) if spec.reversible => return Err(failure),
        Err(_) => return Ok(prepared(None)),
    };
    let seen: Vec<_> = now.iter().map(|looked| looked.seen.clone()).collect();
    let before = first_state(parts, action, &seen).await?;
    if before.as_ref() == Some(&seen) && !all_kept(parts, &now, kept) {
        keep(parts, space, now, &touched, spec.reversible).await?;
    }
    Ok(prepared(before))
}

/// What a tool is sent beside its parameters, if it is one of those that need something.
pub(crate) async fn sent_along(
    parts: &Parts,
    space: &SpaceId,
    entry: &Entry,
    params: &Map<String, Value>,
    touched: &[Touch],
) -> Result<Along, Failure> {
    match entry.spec().tool_id.as_str() {
        UNDO_TOOL => {
            let looked = look(parts, space, paths(touched), 0).await?;
            undo::plan(parts, space, params, &looked).await
        }
        ARTIFACT_GET_TOOL => {
            let id = params.get("artifact_id").and_then(Value::as_str);
            let id = id.unwrap_or_default();
            artifacts::check_for_tool(parts, space, id)?;
            Ok(Along {
                restore: Vec::new(),
                contents: Some((Shelf::Artifacts, vec![id.to_owned()])),
            })
        }
        _ => Ok(Along::default()),
    }
}

/// Looks again, now that the claim is ours, and also at contents unless all of them are kept.
async fn look_for_the_rest(
    parts: &Parts,
    space: &SpaceId,
    touched: &[Touch],
    kept: &[String],
) -> Result<Vec<Looked>, Failure> {
    if !kept.is_empty() {
        let now = look(parts, space, paths(touched), 0).await?;
        if all_kept(parts, &now, kept) {
            return Ok(now);
        }
    }
    look(parts, space, paths(touched), PREIMAGE_EARLY_BYTES_MAX).await
}

fn all_kept(parts: &Parts, now: &[Looked], kept: &[String]) -> bool {
    now.iter().all(|looked| match &looked.seen.standing {
        Standing::File(state) => kept.contains(&keyed_name(parts, &state.digest)),
        Standing::Absent | Standing::Folder | Standing::Other => true,
    })
}

/// The state before the first run. For an action that was begun before, it is what was written down then.
async fn first_state(
    parts: &Parts,
    action: &Action<Claimed>,
    seen: &[Seen],
) -> Result<Option<Vec<Seen>>, Failure> {
    let space = action.request.space_id.clone();
    let name = Digest::of(format!("before\n{}", action.ticket.action_id).as_bytes()).hex();
    match action.state.earlier() {
        Earlier::No if action.state.terms().before.as_deref() == Some(seen) => Ok(Some(seen.to_vec())),
        Earlier::No => {
            // Another action on the same paths ended between the look for the intent and the claim.
            let note = serde_json::to_vec(seen).unwrap_or_default();
            put(parts, space, vec![(name, note)]).await?;
            Ok(Some(seen.to_vec()))
        }
        Earlier::Interrupted(intent) => {
            let noted = parts.blobs.get(Shelf::Preimages, &space, &name).ok();
            let noted = noted.and_then(|bytes| serde_json::from_slice(&bytes).ok());
            Ok(noted.or_else(|| intent.as_ref().and_then(|intent| intent.before.clone())))
        }
    }
}

/// Keeps the contents that will be gone.
async fn keep(
    parts: &Parts,
    space: &SpaceId,
    now: Vec<Looked>,
    touched: &[Touch],
    must: bool,
) -> Result<(), Failure> {
    let (mut contents, mut large, mut bytes) = (Vec::new(), Vec::new(), 0);
    for Looked { seen, content } in now {
        let Standing::File(state) = seen.standing else {
            continue;
        };
        let goes_on = touched
            .iter()
            .any(|touch| touch.goes_to.is_some() && touch.path == seen.path);
        if goes_on && content.is_none() {
            continue;
        }
        bytes += state.bytes;
        let name = keyed_name(parts, &state.digest);
        match content {
            Some(content) => contents.push((name, content)),
            None => large.push((name, seen.path)),
        }
    }
    let max = PREIMAGE_BYTES_MAX.min(parts.blobs.bytes_max());
    let kept = if bytes > max {
        let message = format!(
            "what would be replaced is larger than the {max} bytes that are kept for an undo; move it away first"
        );
        Err(Failure::new(Code::FileLimit, Phase::Sandbox, message))
    } else {
        match put(parts, space.clone(), contents).await {
            Ok(()) => put_large(parts, space.clone(), large).await,
            failed @ Err(_) => failed,
        }
    };
    match kept {
        Err(failure) if must => Err(failure),
        Ok(()) | Err(_) => Ok(()),
    }
}

pub(crate) async fn put(
    parts: &Parts,
    space: SpaceId,
    contents: Vec<(String, Vec<u8>)>,
) -> Result<(), Failure> {
    if contents.is_empty() {
        return Ok(());
    }
    let blobs = parts.blobs.clone();
    let putting = tokio::task::spawn_blocking(move || {
        contents
            .iter()
            .try_for_each(|(name, content)| blobs.put(Shelf::Preimages, &space, name, content))
    });
    let put = putting
        .await
        .unwrap_or_else(|_| Err(BlobError::Disk("it panicked".to_owned())));
    put.map_err(|error| failure_of(&error))
}

/// Keeps files that are too large to be held in memory.
async fn put_large(parts: &Parts, space: SpaceId, files: Vec<(String, String)>) -> Result<(), Failure> {
    if files.is_empty() {
        return Ok(());
    }
    let root = (parts.space_roots)(&space)?;
    let (blobs, witness, identity) = (parts.blobs.clone(), parts.witness.clone(), parts.identity.clone());
    let putting = tokio::task::spawn_blocking(move || {
        files.iter().try_for_each(|(name, path)| {
            if blobs.renew(Shelf::Preimages, &space, name).unwrap_or(false) {
                return Ok(());
            }
            let file = witness.open(&root, path)?;
            let stored = copy(file, &blobs, &space, |digest| identity.keyed(digest).hex());
            if &stored.map_err(|error| failure_of(&error))? == name {
                return Ok(());
            }
            let why = format!("{path} was changed while it was being kept for an undo; nothing was done");
            Err(Failure::new(Code::StateChanged, Phase::Sandbox, why))
        })
    });
    putting
        .await
        .unwrap_or_else(|_| Err(broken("keeping what is replaced")))
}

fn copy(
    mut from: File,
    blobs: &Arc<Blobs>,
    space: &SpaceId,
    name: impl FnOnce(&Digest) -> String,
) -> Result<String, BlobError> {
    let mut writer = blobs.writer(Shelf::Preimages, space)?;
    let mut piece = vec![0; PIECE_BYTES];
    loop {
        match from.read(&mut piece)? {
            0 => return writer.finish(name),
            count => writer.write(&piece[..count])?,
        }
    }
}

/// A digest as it stands in receipts and names blobs: under the device's key.
pub(crate) fn keyed_name(parts: &Parts, digest: &str) -> String {
    match Digest::try_from(digest.to_owned()) {
        Ok(digest) => parts.identity.keyed(&digest).hex(),
        // Never made by a witness; it names nothing.
        Err(_) => String::new(),
    }
}

/// A state as it stands in receipts.
pub(crate) fn keyed(parts: &Parts, standing: &Standing) -> Standing {
    match standing {
        Standing::File(state) => Standing::File(FileState {
            digest: format!("hmac-sha256:{}", keyed_name(parts, &state.digest)),
            ..state.clone()
        }),
        Standing::Absent | Standing::Folder | Standing::Other => standing.clone(),
    }
}

/// What has changed, now that the tool has run.
pub(crate) async fn observe(parts: &Parts, action: &Action<Claimed>, prepared: &Prepared) -> Effects {
    let space = &action.request.space_id;
    let Some(before) = &prepared.before else {
        return Effects::Unobserved;
    };
    let paths = before.iter().map(|seen| seen.path.clone()).collect();
    let Ok(after) = look(parts, space, paths, 0).await else {
        return Effects::Unobserved;
    };
    let mut changes = compare(parts, before, &after, &prepared.touched);
    for change in &mut changes {
        if let Some(to) = &change.moved_to {
            change.inside = keyed_inside(parts, &inside(parts, space, to).await);
        }
    }
    // What was replaced stands in the intent; from the receipt on, its blob must do.
    action.state.terms().kept.settle(parts, space).await;
    let mut undoable = before.iter().all(|was| match now(was, &after) {
        Some(is) => is_kept(parts, space, was, &after) && is.seen.standing != Standing::Other,
        None => true,
    });
    for touch in prepared.touched.iter().filter(|touch| touch.filled) {
        undoable &= filled(parts, space, touch, &mut changes).await;
    }
    undoable &= !changes.is_empty();
    Effects::Observed(Observed {
        changes,
        undoable,
        undeclared: Vec::new(),
    })
}
