//! Undoing: from a receipt to what has to be put back.

use std::collections::HashMap;
use std::sync::Arc;

use effectd_bus::{BlobError, Blobs, Pins, Shelf};
use effectd_contracts::{
    Code, Digest, Effects, Failure, FileState, Observed, PathChange, Phase, ReceiptId, Restore, SpaceId,
    Standing, Touch,
};
use serde_json::{Map, Value};
use sha2::{Digest as _, Sha256};

use crate::parts::Parts;
use crate::preimage::{Along, Looked, keyed, keyed_name};

fn refused(code: Code, why: impl Into<String>) -> Failure {
    Failure::new(code, Phase::Sandbox, why)
}

/// What the action of the receipt changed, if that can be undone in this space.
fn changes(parts: &Parts, space: &SpaceId, params: &Map<String, Value>) -> Result<Observed, Failure> {
    let id = params
        .get("receipt_id")
        .and_then(Value::as_str)
        .unwrap_or_default();
    let unknown = || {
        let why =
            format!("there is no receipt {id} of this space; `effectd undo` takes the receipt of an action");
        refused(Code::UndoGone, why)
    };
    let id = ReceiptId::new(id).map_err(|_| unknown())?;
    let stored = parts.store.receipt(&id).map_err(|error| {
        let why = format!("{error}; ask again");
        refused(Code::StoreUnavailable, why)
    })?;
    let receipt = stored
        .and_then(|stored| stored.parse().ok())
        .ok_or_else(unknown)?;
    // Another space's receipts are not told apart from none.
    if &receipt.space_id != space {
        return Err(unknown());
    }
    if receipt.outputs.get("can_be_unsent") == Some(&Value::Bool(false)) {
        return Err(refused(
            Code::UndoGone,
            "that action told people something, and what was told cannot be unsent",
        ));
    }
    match receipt.effects {
        Effects::Observed(observed) if observed.undoable => Ok(observed),
        Effects::Observed(observed) if observed.changes.is_empty() => {
            Err(refused(Code::UndoGone, "that action changed nothing"))
        }
        Effects::Observed(_) => Err(refused(Code::UndoGone, "what that action replaced was not kept")),
        Effects::None => Err(refused(Code::UndoGone, "that action did nothing")),
        Effects::Unobserved | Effects::Possible => {
            Err(refused(Code::UndoGone, "nobody saw what that action changed"))
        }
    }
}

pub(crate) fn touched(
    parts: &Parts,
    space: &SpaceId,
    params: &Map<String, Value>,
) -> Result<Vec<Touch>, Failure> {
    let observed = changes(parts, space, params)?;
    Ok(observed
        .changes
        .iter()
        .map(|change| Touch {
            goes_to: goes_to(&observed, change),
            ..Touch::replaced(change.path.clone())
        })
        .collect())
}

/// Holds on to what an undo puts back: what it keeps of its own must not push that out.
pub(crate) fn pin(parts: &Parts, space: &SpaceId, params: &Map<String, Value>) -> Option<Arc<Pins>> {
    // What is wrong with the receipt is told when the action is carried out.
    let observed = changes(parts, space, params).ok()?;
    let names = observed.changes.iter().filter_map(|change| match &change.before {
        Standing::File(was) => Some(blob_name(was)),
        Standing::Absent | Standing::Folder | Standing::Other => None,
    });
    parts.blobs.pin(Shelf::Preimages, space, names).ok().map(Arc::new)
}

/// Where what stands at the change's path now goes back to, if it is another path; then it need not be kept.
fn goes_to(observed: &Observed, change: &PathChange) -> Option<String> {
    let back = observed.changes.iter().find(|other| {
        let moved = other.moved_to.as_ref() == Some(&change.path);
        let same = match (&change.after, &other.before) {
            (Standing::File(now), Standing::File(then)) => now.digest == then.digest,
            (Standing::File(_) | Standing::Absent | Standing::Folder | Standing::Other, _) => false,
        };
        other.path != change.path && (moved || same)
    });
    back.map(|other| other.path.clone())
}

/// The digests of what is kept, by the names of the blobs.
type Kept = HashMap<String, Result<Digest, BlobError>>;

/// What is to be put back, given what stands there now. Whatever has changed since is left alone.
pub(crate) async fn plan(
    parts: &Parts,
    space: &SpaceId,
    params: &Map<String, Value>,
    looked: &[Looked],
) -> Result<Along, Failure> {
    let observed = changes(parts, space, params)?;
    let kept = kept(parts, space, &observed).await;
    let now = |path: &str| looked.iter().find(|looked| looked.seen.path == path);
    let (mut restore, mut contents) = (Vec::new(), Vec::new());
    for change in &observed.changes {
        let is = now(&change.path).map_or(&Standing::Absent, |looked| &looked.seen.standing);
        let seen = keyed(parts, is);
        // As it was already: another undo, or this one before it was interrupted.
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
        let interrupted = seen == Standing::Absent && goes_to(&observed, change).is_some();
        if seen != change.after && !interrupted {
            let why = format!("{} has changed since; nothing was undone", change.path);
            return Err(refused(Code::StateChanged, why));
        }
        let (then, content) = then(parts, change, looked, &kept)?;
        restore.push(Restore {
            path: change.path.clone(),
            now: is.clone(),
            then,
            beside: content.is_some(),
            from: change.moved_to.clone(),
        });
        contents.extend(content);
    }
    let contents = (!contents.is_empty()).then_some((Shelf::Preimages, contents));
    Ok(Along { restore, contents })
}

/// Reads what is kept of what was replaced, once, for the digests that a tool can compare.
async fn kept(parts: &Parts, space: &SpaceId, observed: &Observed) -> Kept {
    let files = observed.changes.iter().filter_map(|change| match &change.before {
        Standing::File(was) => Some(blob_name(was).to_owned()),
        Standing::Absent | Standing::Folder | Standing::Other => None,
    });
    let names: Vec<String> = files.collect();
    let (blobs, space) = (parts.blobs.clone(), space.clone());
    let reading = tokio::task::spawn_blocking(move || {
        let read = |name: String| (name.clone(), digest_of(&blobs, &space, &name));
        names.into_iter().map(read).collect()
    });
    // Whoever cannot read finds nothing kept.
    reading.await.unwrap_or_default()
}

fn digest_of(blobs: &Blobs, space: &SpaceId, name: &str) -> Result<Digest, BlobError> {
    let mut reader = blobs.reader(Shelf::Preimages, space, name)?;
    let mut hasher = Sha256::new();
    while let Some(piece) = reader.piece()? {
        hasher.update(&piece);
    }
    Ok(Digest::from_bytes(hasher.finalize().into()))
}

/// The name of the blob that has a file's content, by its state as receipts have it.
fn blob_name(state: &FileState) -> &str {
    state.digest.strip_prefix("hmac-sha256:").unwrap_or_default()
}

/// What is to stand there again, with the name of its content unless that lies at another path.
fn then(
    parts: &Parts,
    change: &PathChange,
    looked: &[Looked],
    kept: &Kept,
) -> Result<(Standing, Option<String>), Failure> {
    let Standing::File(was) = &change.before else {
        return Ok((change.before.clone(), None));
    };
    let name = blob_name(was);
    let elsewhere = looked.iter().find_map(|looked| match &looked.seen.standing {
        Standing::File(state)
            if looked.seen.path != change.path && keyed_name(parts, &state.digest) == name =>
        {
            Some(state.digest.clone())
        }
        Standing::File(_) | Standing::Absent | Standing::Folder | Standing::Other => None,
    });
    let kept = kept.get(name).unwrap_or(&Err(BlobError::Gone));
    let (digest, content) = match (kept, elsewhere) {
        (Ok(digest), _) => (digest.to_string(), Some(name.to_owned())),
        (Err(_), Some(digest)) => (digest, None),
        (Err(BlobError::Gone), None) => {
            return Err(refused(
                Code::UndoGone,
                "what was replaced is not kept any more; the quota was needed for newer",
            ));
        }
        (Err(error), None) => return Err(refused(Code::StoreUnavailable, error.to_string())),
    };
    if keyed_name(parts, &digest) != name {
        return Err(refused(Code::UndoGone, "what is kept is not what was replaced"));
    }
    let state = FileState {
        digest,
        ..was.clone()
    };
    Ok((Standing::File(state), content))
}
