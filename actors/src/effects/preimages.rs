//! Pre-images: what an action will replace, inspected before it is claimed and stored beside the claim.
//!
//! A pre-image must be on disk before the tool runs. Small ones are in the intent, which must be on disk by then anyway; their
//! blobs are written while the tool runs, and must be on disk when the receipt says that the action can be undone. If the power
//! fails in between, the takeover stores the blobs again from the intent.

use std::sync::Arc;

use effectd_bus::{BlobError, BlobKind, Blobs};
use effectd_contracts::{Failure, PathSnapshot, PathState, SpaceId, Touch};
use tokio::sync::watch;
use tokio::task::spawn_blocking;

use super::snapshot::{keyed_name, paths};
use super::streams::failure_of;
use crate::action::proofs::{Preimages, Storing};
use crate::claims::intent::{Content, Intent};
use crate::limits::{INTENT_CONTENTS_BYTES_MAX, PREIMAGE_EARLY_BYTES_MAX};
use crate::services::files::{Files, Inspected};

/// The snapshot for the intent, taken before the claim.
#[derive(Debug)]
pub(crate) struct FirstSnapshot {
    pub(crate) seen: Vec<PathSnapshot>,
    /// Contents that are small enough to be stored early, with the names of their blobs.
    contents: Vec<(String, Vec<u8>)>,
}

/// Inspects the paths that the action may change. An error is ignored here: the executor inspects them again and reports it.
pub(crate) async fn first_snapshot(
    files: &Files,
    space: &SpaceId,
    touched: &[Touch],
) -> Option<FirstSnapshot> {
    if touched.is_empty() {
        return None;
    }
    let inspecting = files.inspect(space, paths(touched), PREIMAGE_EARLY_BYTES_MAX);
    let inspected = inspecting.await.ok()?;
    let mut first = FirstSnapshot { seen: Vec::with_capacity(inspected.len()), contents: Vec::new() };
    for Inspected { seen, content } in inspected {
        if let (PathState::File(state), Some(content)) = (&seen.standing, content) {
            let name = keyed_name(&files.identity, &state.digest);
            first.contents.push((name, content));
        }
        first.seen.push(seen);
    }
    Some(first)
}

impl FirstSnapshot {
    /// The contents for the intent, if all of them together are small; otherwise none.
    pub(crate) fn for_intent(&self, blobs: &Blobs) -> Vec<Content> {
        let bytes: usize = self.contents.iter().map(|(_, content)| content.len()).sum();
        // Contents that are too large for a blob make the action fail before the call.
        if bytes > INTENT_CONTENTS_BYTES_MAX || bytes as u64 > blobs.bytes_max() {
            return Vec::new();
        }
        let contents = self.contents.iter();
        contents.map(|(name, content)| Content::new(name.clone(), content)).collect()
    }

    /// Stores the contents while the claim is being written; does not wait for the disk if the intent holds them. A failed write
    /// is repeated before the call, and the quota removes contents of an action that is not claimed in the end.
    pub(crate) async fn store(self, blobs: &Arc<Blobs>, space: &SpaceId, in_intent: bool) -> Preimages {
        if self.contents.is_empty() {
            return Preimages::default();
        }
        let names = self.contents.iter().map(|(name, _)| name.clone()).collect();
        let contents = Arc::new(self.contents);
        let (done, mut stored) = watch::channel(false);
        let (blobs, space, storing) = (blobs.clone(), space.clone(), contents.clone());
        spawn_blocking(move || {
            done.send_replace(put_all(&blobs, &space, &storing).is_ok());
        });
        if in_intent {
            let storing = Some(Storing { contents, stored });
            return Preimages { names, storing };
        }
        match stored.wait_for(|stored| *stored).await {
            Ok(_) => Preimages { names, storing: None },
            Err(_) => Preimages::default(),
        }
    }
}

/// Waits until the blobs are on disk, and tries once more to store those that failed. If that fails as well, the receipt does not
/// say that the action can be undone.
pub(crate) async fn wait_until_stored(preimages: &Preimages, blobs: &Arc<Blobs>, space: &SpaceId) {
    let Some(storing) = &preimages.storing else { return };
    if storing.stored.clone().wait_for(|stored| *stored).await.is_ok() {
        return;
    }
    put_or_warn(blobs, space, storing.contents.to_vec()).await;
}

/// Stores the pre-images of an interrupted action again, from its intent.
pub(crate) async fn store_again(intent: &Intent, blobs: &Arc<Blobs>, space: &SpaceId) {
    let contents = intent.contents.iter().filter_map(Content::bytes).collect();
    put_or_warn(blobs, space, contents).await;
}

async fn put_or_warn(blobs: &Arc<Blobs>, space: &SpaceId, contents: Vec<(String, Vec<u8>)>) {
    if let Err(failure) = put(blobs, space.clone(), contents).await {
        tracing::warn!(%failure, "a pre-image is not stored; its action cannot be undone");
    }
}

pub(crate) async fn put(
    blobs: &Arc<Blobs>,
    space: SpaceId,
    contents: Vec<(String, Vec<u8>)>,
) -> Result<(), Failure> {
    if contents.is_empty() {
        return Ok(());
    }
    let blobs = blobs.clone();
    let putting = spawn_blocking(move || put_all(&blobs, &space, &contents));
    let put = putting.await.unwrap_or_else(|_| Err(BlobError::disk("it panicked")));
    put.map_err(|error| failure_of(&error))
}

fn put_all(blobs: &Blobs, space: &SpaceId, contents: &[(String, Vec<u8>)]) -> Result<(), BlobError> {
    contents.iter().try_for_each(|(name, content)| blobs.put(BlobKind::Preimages, space, name, content))
}
