//! Undo: finds what to restore, from a receipt.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use effectd_bus::{BlobError, BlobKind, Blobs, Pins, Store};
use effectd_contracts::access::is_wired;
use effectd_contracts::batch::is_batch;
use effectd_contracts::toolcall::undo_at_service;
use effectd_contracts::{
    Code, Digest, Effects, Failure, FileState, Observed, Outcome, PathChange, PathState, Phase, Receipt,
    ReceiptId, Restore, SpaceId, ToolId, Touch, Undoes,
};
use serde_json::{Map, Value};
use sha2::{Digest as _, Sha256};

use super::snapshot::{Extras, keyed, keyed_name};
use crate::services::files::{Files, Inspected};
use crate::services::signer::Identity;

fn refused(code: Code, why: impl Into<String>) -> Failure {
    Failure::new(code, Phase::Sandbox, why)
}

/// The receipt that the parameters name, if it is one of this space.
fn receipt(store: &dyn Store, space: &SpaceId, params: &Map<String, Value>) -> Result<Receipt, Failure> {
    let id = params.get("receipt_id").and_then(Value::as_str).unwrap_or_default();
    let unknown = || {
        let why = format!("this space has no receipt {id}; `effectd undo` needs the receipt of an action");
        refused(Code::UndoGone, why)
    };
    let id = ReceiptId::new(id).map_err(|_| unknown())?;
    let stored = store.receipt(&id).map_err(|error| {
        let why = format!("{error}; try again");
        refused(Code::StoreUnavailable, why)
    })?;
    let receipt = stored.and_then(|stored| stored.parse().ok()).ok_or_else(unknown)?;
    // A receipt of another space is reported as unknown.
    if &receipt.space_id == space { Ok(receipt) } else { Err(unknown()) }
}

/// The action that a service's own undo makes up for.
pub(super) fn at_service(
    files: &Files,
    space: &SpaceId,
    tool: &ToolId,
    params: &Map<String, Value>,
) -> Result<Undoes, Failure> {
    let Receipt { action_id, tool_id, outcome, inputs, outputs, timing, .. } =
        receipt(&*files.store, space, params)?;
    if undo_at_service(&tool_id).as_deref() != Some(tool.as_str()) {
        return Err(refused(Code::UndoGone, format!("{tool} does not undo actions of {tool_id}")));
    }
    if outcome != Outcome::Executed {
        let why = "that action is not known to have had an effect at the service";
        return Err(refused(Code::UndoGone, why));
    }
    Ok(Undoes { tool_id, mark: files.identity.mark(&action_id, timing.started_at), inputs, outputs })
}

/// The changes that the receipt records, if they can be undone in this space.
fn changes(store: &dyn Store, space: &SpaceId, params: &Map<String, Value>) -> Result<Observed, Failure> {
    let receipt = receipt(store, space, params)?;
    if is_wired(receipt.tool_id.source()) {
        let why = match undo_at_service(&receipt.tool_id) {
            Some(tool) => format!("that action changed no file; {tool} undoes it"),
            None => "that action changed something at a service, which effectd cannot undo".to_owned(),
        };
        return Err(refused(Code::UndoGone, why));
    }
    if receipt.outputs.get("can_be_unsent") == Some(&Value::Bool(false)) {
        return Err(refused(Code::UndoGone, "that action sent a notification, which cannot be unsent"));
    }
    match receipt.effects {
        Effects::Observed(observed) if observed.undoable => Ok(observed),
        Effects::Observed(observed) if observed.incomplete => Err(refused(
            Code::UndoGone,
            "that action changed more than effectd can list, so it cannot be undone; the receipt has the known changes",
        )),
        Effects::Observed(observed) if observed.changes.is_empty() => {
            Err(refused(Code::UndoGone, "that action changed nothing"))
        }
        Effects::Observed(_) => Err(refused(
            Code::UndoGone,
            "that action cannot be undone: a pre-image is not stored, or it made a link or replaced a folder by a file",
        )),
        Effects::None if is_batch(&receipt.tool_id) => {
            Err(refused(Code::UndoGone, "that is the receipt of a batch: undo its items, the last one first"))
        }
        Effects::None => Err(refused(Code::UndoGone, "that action did nothing")),
        Effects::Unobserved | Effects::Possible => {
            Err(refused(Code::UndoGone, "effectd did not observe what that action changed"))
        }
    }
}

pub(crate) fn touched(
    store: &dyn Store,
    space: &SpaceId,
    params: &Map<String, Value>,
) -> Result<Vec<Touch>, Failure> {
    let observed = changes(store, space, params)?;
    Ok(observed
        .changes
        .iter()
        .map(|change| Touch { goes_to: goes_to(&observed, change), ..Touch::replaced(change.path.clone()) })
        .collect())
}

/// Pins the blobs that an undo restores: the quota must not remove them for the undo's own pre-images.
pub(crate) fn pin(files: &Files, space: &SpaceId, params: &Map<String, Value>) -> Option<Arc<Pins>> {
    // If the receipt is wrong, the execution reports it.
    let observed = changes(&*files.store, space, params).ok()?;
    files.blobs.pin(BlobKind::Preimages, space, preimages(&observed)).ok().map(Arc::new)
}

/// Pins the pre-images of these changes, so that they can be undone.
pub(crate) fn pin_changes(files: &Files, space: &SpaceId, effects: &Effects) -> Option<Arc<Pins>> {
    let Effects::Observed(observed) = effects else { return None };
    files.blobs.pin(BlobKind::Preimages, space, preimages(observed)).ok().map(Arc::new)
}

/// The names of the pre-images of all changes, whether their blobs exist or not.
fn preimages(observed: &Observed) -> impl Iterator<Item = &str> {
    observed.changes.iter().filter_map(|change| match &change.before {
        PathState::File(was) => Some(blob_name(was)),
        PathState::Absent | PathState::Folder | PathState::Other => None,
    })
}

/// Pre-images that a receipt names among its artifacts: it must fit into one record, and its changes have the digests of all.
const PREIMAGES_NAMED_MAX: usize = 64;

/// The pre-images of these changes whose blobs exist; of very many, the first.
pub(crate) fn preimages_kept(files: &Files, space: &SpaceId, effects: &Effects) -> BTreeSet<String> {
    let Effects::Observed(observed) = effects else {
        return BTreeSet::new();
    };
    let named = preimages(observed).take(PREIMAGES_NAMED_MAX);
    named.filter(|name| files.blobs.has(BlobKind::Preimages, space, name)).map(str::to_owned).collect()
}

/// The path to which the undo moves what is at the change's path, if it moves it; then no pre-image is needed.
fn goes_to(observed: &Observed, change: &PathChange) -> Option<String> {
    let back = observed.changes.iter().find(|other| {
        let moved = other.moved_to.as_ref() == Some(&change.path);
        let same = match (&change.after, &other.before) {
            (PathState::File(now), PathState::File(then)) => now.digest == then.digest,
            (PathState::File(_) | PathState::Absent | PathState::Folder | PathState::Other, _) => false,
        };
        other.path != change.path && (moved || same)
    });
    back.map(|other| other.path.clone())
}

/// The plain digests of the pre-images, by the names of their blobs.
type Digests = HashMap<String, Result<Digest, BlobError>>;

/// What to restore, given the present state of the paths. Fails if one of them has changed since the receipt.
pub(crate) async fn plan(
    files: &Files,
    space: &SpaceId,
    params: &Map<String, Value>,
    inspected: &[Inspected],
) -> Result<Extras, Failure> {
    let observed = changes(&*files.store, space, params)?;
    plan_of(files, space, &observed, inspected, Others::Refused).await
}

/// What is done about a path that somebody has changed since.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Others {
    /// Nothing is restored.
    Refused,
    /// The path stays as it is, and so does one whose pre-image is gone; the others are restored.
    Skipped,
}

/// [`plan`] for changes that are known already.
pub(crate) async fn plan_of(
    files: &Files,
    space: &SpaceId,
    observed: &Observed,
    inspected: &[Inspected],
    others: Others,
) -> Result<Extras, Failure> {
    let kept = kept(files, space, observed).await;
    let now = |path: &str| inspected.iter().find(|inspected| inspected.seen.path == path);
    let (mut restore, mut contents) = (Vec::new(), Vec::new());
    for change in &observed.changes {
        let is = now(&change.path).map_or(&PathState::Absent, |inspected| &inspected.seen.standing);
        let seen = keyed(&files.identity, is);
        // Already restored: by another undo, or by this one before it was interrupted.
        if seen == change.before {
            restore.push(Restore {
                path: change.path.clone(),
                now: is.clone(),
                then: is.clone(),
                beside: false,
                from: None,
            });
            continue;
        }
        let interrupted = seen == PathState::Absent && goes_to(observed, change).is_some();
        let is_others = seen != change.after && !interrupted;
        if is_others && others == Others::Skipped {
            continue;
        }
        if is_others {
            let why = format!("{} has changed since; nothing was undone", change.path);
            return Err(refused(Code::StateChanged, why));
        }
        let (then, content) = match then(&files.identity, change, inspected, &kept) {
            Err(_) if others == Others::Skipped => continue,
            found => found?,
        };
        restore.push(Restore {
            path: change.path.clone(),
            now: is.clone(),
            then,
            beside: content.is_some(),
            from: change.moved_to.clone(),
        });
        contents.extend(content);
    }
    let contents = (!contents.is_empty()).then_some((BlobKind::Preimages, contents));
    Ok(Extras { restore, contents, undoes: None })
}

/// Reads the pre-images once, for the plain digests that the tool compares.
async fn kept(files: &Files, space: &SpaceId, observed: &Observed) -> Digests {
    let names: Vec<String> = preimages(observed).map(str::to_owned).collect();
    let (blobs, space) = (files.blobs.clone(), space.clone());
    let reading = tokio::task::spawn_blocking(move || {
        let read = |name: String| (name.clone(), digest_of(&blobs, &space, &name));
        names.into_iter().map(read).collect()
    });
    // Pre-images that cannot be read count as gone.
    reading.await.unwrap_or_default()
}

fn digest_of(blobs: &Blobs, space: &SpaceId, name: &str) -> Result<Digest, BlobError> {
    let mut reader = blobs.reader(BlobKind::Preimages, space, name)?;
    let mut hasher = Sha256::new();
    while let Some(piece) = reader.piece()? {
        hasher.update(&piece);
    }
    Ok(Digest::from_bytes(hasher.finalize().into()))
}

/// The name of a file's blob, from the file's state in a receipt.
pub(super) fn blob_name(state: &FileState) -> &str {
    state.digest.strip_prefix("hmac-sha256:").unwrap_or_default()
}

/// The state to restore, and the blob of its content; no blob if that is gone and another path has the content.
fn then(
    identity: &Identity,
    change: &PathChange,
    inspected: &[Inspected],
    kept: &Digests,
) -> Result<(PathState, Option<String>), Failure> {
    let PathState::File(was) = &change.before else {
        return Ok((change.before.clone(), None));
    };
    let name = blob_name(was);
    let elsewhere = inspected.iter().find_map(|inspected| match &inspected.seen.standing {
        PathState::File(state)
            if inspected.seen.path != change.path && keyed_name(identity, &state.digest) == name =>
        {
            Some(state.digest.clone())
        }
        PathState::File(_) | PathState::Absent | PathState::Folder | PathState::Other => None,
    });
    let kept = kept.get(name).unwrap_or(&Err(BlobError::Gone));
    let (digest, content) = match (kept, elsewhere) {
        (Ok(digest), _) => (digest.to_string(), Some(name.to_owned())),
        (Err(_), Some(digest)) => (digest, None),
        (Err(BlobError::Gone), None) => {
            return Err(refused(
                Code::UndoGone,
                "the pre-image is no longer stored: newer ones needed the room, its session was deleted, or its subject erased",
            ));
        }
        (Err(error), None) => return Err(refused(Code::StoreUnavailable, error.to_string())),
    };
    if keyed_name(identity, &digest) != name {
        return Err(refused(Code::UndoGone, "the stored pre-image is not the content that was replaced"));
    }
    let state = FileState { digest, ..was.clone() };
    Ok((PathState::File(state), content))
}
