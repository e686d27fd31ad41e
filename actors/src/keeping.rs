//! What stands where an action will work: looked at before it is claimed, and kept beside.
//!
//! Contents that will be gone must be on disk before the tool runs. Small ones are put into the intent, which has to be there
//! by then anyway; their blobs are written at the same time, and are on disk by the time the tool has run, without anybody
//! waiting for them. Should the power fail between, whoever finds the intent stores them again.

use std::sync::Arc;

use effectd_bus::{BlobError, Blobs, Shelf, Storing};
use effectd_contracts::{Seen, SpaceId, Standing, Touch};
use tokio::sync::{oneshot, watch};

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
    /// What is on its way to the disk; none if nothing ever was.
    coming: Option<Coming>,
}

/// Contents that stand in the intent, and whose blobs are on their way to the disk.
#[derive(Debug, Clone)]
struct Coming {
    contents: Arc<Vec<(String, Vec<u8>)>>,
    /// Whether they have come there. The sender goes when nothing is on its way any more.
    there: watch::Receiver<bool>,
}

/// Looks at where the action will work. Whoever cannot look finds out again when it is carried out.
pub(crate) async fn first_look(parts: &Parts, space: &SpaceId, touched: &[Touch]) -> Option<FirstLook> {
    if touched.is_empty() {
        return None;
    }
    let looked = look(parts, space, paths(touched), PREIMAGE_EARLY_BYTES_MAX.get())
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
    /// The contents for the intent, if those that are held here are small; otherwise none.
    pub(crate) fn for_intent(&self) -> Vec<Content> {
        let bytes: usize = self.contents.iter().map(|(_, content)| content.len()).sum();
        let max = INTENT_CONTENTS_BYTES_MAX.get();
        let mut contents = self.contents.iter();
        // What is a file of its own is waited for in any case.
        if max == 0 || bytes > max || !contents.all(|(_, content)| Blobs::is_small(content.len() as u64)) {
            return Vec::new();
        }
        let contents = self.contents.iter();
        contents
            .map(|(name, content)| Content::new(name.clone(), content))
            .collect()
    }

    /// Keeps the contents already while the claim is being written: neither needs the other. If they stand in the intent, this does
    /// not wait for the disk. What is not kept is tried again when the action is carried out, and what was kept in vain goes by the
    /// quota.
    pub(crate) async fn keep(self, parts: &Parts, space: &SpaceId, in_intent: bool) -> Kept {
        if self.contents.is_empty() {
            return Kept::default();
        }
        let names = self.contents.iter().map(|(name, _)| name.clone()).collect();
        let (blobs, space, contents) = (parts.blobs.clone(), space.clone(), Arc::new(self.contents));
        let (begun, has_begun) = oneshot::channel();
        let (told, there) = watch::channel(false);
        let coming = Coming {
            contents: contents.clone(),
            there,
        };
        tokio::task::spawn_blocking(move || {
            let begin =
                |(name, content): &(String, Vec<u8>)| blobs.begin(Shelf::Preimages, &space, name, content);
            let storing: Result<Vec<Storing>, BlobError> = contents.iter().map(begin).collect();
            let finish = |storing: Vec<Storing>| storing.into_iter().try_for_each(Storing::finish);
            match storing {
                Ok(storing) if in_intent => {
                    let _nobody_waits = begun.send(true);
                    told.send_replace(finish(storing).is_ok());
                }
                storing => {
                    let _nobody_waits = begun.send(storing.and_then(finish).is_ok());
                }
            }
        });
        if has_begun.await == Ok(true) {
            let coming = in_intent.then_some(coming);
            Kept { names, coming }
        } else {
            Kept::default()
        }
    }
}

impl Kept {
    /// The names of the blobs in which the contents are, or are about to be and stand in the intent.
    pub(crate) fn names(&self) -> &[String] {
        &self.names
    }

    /// Waits until what is on its way has come to the disk. If it has not, for which somebody else's failure is enough, it is
    /// stored once more. What is not there then cannot be undone, and the receipt does not say that it can.
    pub(crate) async fn settle(&self, parts: &Parts, space: &SpaceId) {
        let Some(coming) = &self.coming else { return };
        if coming.there.clone().wait_for(|there| *there).await.is_ok() {
            return;
        }
        let contents = coming.contents.to_vec();
        if let Err(failure) = put(parts, space.clone(), contents).await {
            tracing::warn!(%failure, "what an action has replaced is not kept");
        }
    }
}
