//! Pre-images: what stands where an action will work, looked at before it is claimed, and stored beside the claim.
//!
//! A pre-image must be on disk before the tool runs. Small ones stand in the intent, which must be there by then anyway; their blobs are
//! written while the tool runs, and must be on disk when the receipt says that the action can be undone. Should the power fail between,
//! the takeover stores them again from the intent.

use std::sync::Arc;

use effectd_bus::{Blobs, Shelf};
use effectd_contracts::{Seen, SpaceId, Standing, Touch};
use tokio::sync::watch;
use tokio::task::spawn_blocking;

use crate::intent::Content;
use crate::limits::{INTENT_CONTENTS_BYTES_MAX, PREIMAGE_EARLY_BYTES_MAX};
use crate::parts::Parts;
use crate::preimage::{Looked, keyed_name, look, paths, put};

/// What stands where the action will work.
#[derive(Debug)]
pub(crate) struct FirstLook {
    /// For its intent.
    pub(crate) seen: Vec<Seen>,
    /// Contents that are small enough to be kept at once, with the names of their blobs.
    contents: Vec<(String, Vec<u8>)>,
}

/// What is kept of the state before.
#[derive(Debug, Clone, Default)]
pub struct Kept {
    names: Vec<String>,
    /// Blobs that may not be on disk yet; their contents stand in the intent.
    storing: Option<Storing>,
}

#[derive(Debug, Clone)]
struct Storing {
    contents: Arc<Vec<(String, Vec<u8>)>>,
    /// Whether they are on disk. The sender is dropped when nothing is written any more.
    stored: watch::Receiver<bool>,
}

/// Looks at where the action will work. Whoever cannot look finds out again when it is carried out.
pub(crate) async fn first_look(parts: &Parts, space: &SpaceId, touched: &[Touch]) -> Option<FirstLook> {
    if touched.is_empty() {
        return None;
    }
    let looked = look(parts, space, paths(touched), PREIMAGE_EARLY_BYTES_MAX)
        .await
        .ok()?;
    let mut first = FirstLook {
        seen: Vec::with_capacity(looked.len()),
        contents: Vec::new(),
    };
    for Looked { seen, content } in looked {
        if let (Standing::File(state), Some(content)) = (&seen.standing, content) {
            first.contents.push((keyed_name(parts, &state.digest), content));
        }
        first.seen.push(seen);
    }
    Some(first)
}

impl FirstLook {
    /// The contents for the intent, if all of them together are small; otherwise none.
    pub(crate) fn for_intent(&self, blobs: &Blobs) -> Vec<Content> {
        let bytes: usize = self.contents.iter().map(|(_, content)| content.len()).sum();
        let max = INTENT_CONTENTS_BYTES_MAX;
        // What no blob may hold is refused before the call.
        if max == 0 || bytes > max || bytes as u64 > blobs.bytes_max() {
            return Vec::new();
        }
        let contents = self.contents.iter();
        contents
            .map(|(name, content)| Content::new(name.clone(), content))
            .collect()
    }

    /// Stores the contents while the claim is being written. If they stand in the intent, this does not wait for the disk. What fails
    /// here is tried again before the call, and what was stored for an action that is not claimed goes by the quota.
    pub(crate) async fn keep(self, parts: &Parts, space: &SpaceId, in_intent: bool) -> Kept {
        if self.contents.is_empty() {
            return Kept::default();
        }
        let names = self.contents.iter().map(|(name, _)| name.clone()).collect();
        let contents = Arc::new(self.contents);
        let (tell, mut stored) = watch::channel(false);
        let (blobs, space, storing) = (parts.blobs.clone(), space.clone(), contents.clone());
        spawn_blocking(move || {
            let put =
                |(name, content): &(String, Vec<u8>)| blobs.put(Shelf::Preimages, &space, name, content);
            tell.send_replace(storing.iter().try_for_each(put).is_ok());
        });
        if in_intent {
            let storing = Some(Storing { contents, stored });
            return Kept { names, storing };
        }
        match stored.wait_for(|stored| *stored).await {
            Ok(_) => Kept { names, storing: None },
            Err(_) => Kept::default(),
        }
    }
}

impl Kept {
    /// The names of the blobs in which the contents are, or will be while they stand in the intent.
    pub(crate) fn names(&self) -> &[String] {
        &self.names
    }

    /// Waits until the blobs are on disk, and stores those that failed once more. What is not there then cannot be undone, and the
    /// receipt does not say that it can.
    pub(crate) async fn settle(&self, parts: &Parts, space: &SpaceId) {
        let Some(storing) = &self.storing else { return };
        if storing.stored.clone().wait_for(|stored| *stored).await.is_ok() {
            return;
        }
        let contents = storing.contents.to_vec();
        if let Err(failure) = put(parts, space.clone(), contents).await {
            tracing::warn!(%failure, "what an action has replaced is not kept");
        }
    }
}
