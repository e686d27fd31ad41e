//! What stands where an action will work: looked at before it is claimed, and kept beside.
//!
//! Contents that will be gone must be on disk before the tool runs. Small ones are put into the intent, which has to be there
//! by then anyway; their blobs are written at the same time, and have to be on disk only by the time the tool has run. While the subject
//! has hardly anything else under way in the space, they come there beside the tool, without anybody waiting for them. Otherwise they
//! are left until somebody waits, and the sync of one action stands for all that was written by then. Should the power fail between,
//! whoever finds the intent stores them again.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use effectd_bus::{BlobError, Blobs, Shelf, Storing};
use effectd_contracts::{ActionRequest, Seen, SpaceId, Standing, SubjectId, Touch};
use tokio::runtime::Handle;
use tokio::sync::{oneshot, watch};
use tokio::task::spawn_blocking;

use crate::intent::Content;
use crate::limits::{INTENT_CONTENTS_BYTES_MAX, KEEP_COMPANY_MIN, PREIMAGE_EARLY_BYTES_MAX};
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
    /// What has to come to the disk yet; none if nothing ever had.
    coming: Option<Coming>,
}

/// Contents that stand in the intent, and whose blobs have to come to the disk.
#[derive(Debug, Clone)]
struct Coming {
    contents: Arc<Vec<(String, Vec<u8>)>>,
    way: Way,
    _keeping: Option<Arc<Keeping>>,
}

/// How blobs come to the disk.
#[derive(Debug, Clone)]
enum Way {
    /// By themselves, and whether they have come there. The sender goes when nothing is on its way any more.
    Beside(watch::Receiver<bool>),
    /// When somebody waits for them.
    Left(Arc<Mutex<Left>>),
}

/// Blobs that somebody has to wait for, or whether they came to the disk when somebody did.
#[derive(Debug)]
enum Left {
    Written(Vec<Storing>),
    Ended(bool),
}

impl Drop for Left {
    fn drop(&mut self) {
        // Nobody has waited for them, so nobody needs them. To give them up takes a write.
        if let (Left::Written(storing), Ok(handle)) = (self, Handle::try_current())
            && !storing.is_empty()
        {
            let storing = std::mem::take(storing);
            drop(handle.spawn_blocking(move || drop(storing)));
        }
    }
}

fn finish(storing: Vec<Storing>) -> Result<(), BlobError> {
    storing.into_iter().try_for_each(Storing::finish)
}

/// Actions under way whose contents stand in their intents, by space and subject. Those of one subject share a sync; so do those of
/// many. Who asks for one thing at a time is not made to wait for a sync at its end because another subject floods.
#[derive(Debug, Clone, Default)]
pub(crate) struct Keepings(Arc<Mutex<HashMap<SpaceId, Owners>>>);

/// How many of them each subject has.
type Owners = HashMap<SubjectId, usize>;

/// More subjects than this are many.
const OWNERS_MAX: usize = 4;

/// One of them.
#[derive(Debug)]
struct Keeping {
    all: Keepings,
    space: SpaceId,
    subject: SubjectId,
}

impl Keepings {
    fn lock(&self) -> MutexGuard<'_, HashMap<SpaceId, Owners>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One more; and whether there are others to share a sync with.
    fn enter(&self, space: &SpaceId, subject: &SubjectId) -> (Keeping, bool) {
        let mut all = self.lock();
        let owners = all.entry(space.clone()).or_default();
        let own = owners.entry(subject.clone()).or_default();
        let others = *own;
        *own += 1;
        let has_company = others >= KEEP_COMPANY_MIN.get() || owners.len() > OWNERS_MAX;
        let keeping = Keeping {
            all: self.clone(),
            space: space.clone(),
            subject: subject.clone(),
        };
        (keeping, has_company)
    }
}

impl Drop for Keeping {
    fn drop(&mut self) {
        let mut all = self.all.lock();
        let Some(owners) = all.get_mut(&self.space) else {
            return;
        };
        match owners.get_mut(&self.subject) {
            Some(count) if *count > 1 => *count -= 1,
            Some(_) | None => drop(owners.remove(&self.subject)),
        }
        if owners.is_empty() {
            all.remove(&self.space);
        }
    }
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
    /// not wait for the disk. What is not kept is tried again when the action is carried out, and what was kept in vain is given up or
    /// goes by the quota.
    pub(crate) async fn keep(self, parts: &Parts, request: &ActionRequest, in_intent: bool) -> Kept {
        if self.contents.is_empty() {
            return Kept::default();
        }
        let names = self.contents.iter().map(|(name, _)| name.clone()).collect();
        let (space, subject) = (request.space_id.clone(), &request.subject_id);
        let (blobs, contents) = (parts.blobs.clone(), Arc::new(self.contents));
        let (begun, has_begun) = oneshot::channel();
        let keeping = in_intent.then(|| parts.keepings.enter(&space, subject));
        let has_company = keeping.as_ref().is_some_and(|(_, has_company)| *has_company);
        let stored = contents.clone();
        spawn_blocking(move || {
            let begin =
                |(name, content): &(String, Vec<u8>)| blobs.begin(Shelf::Preimages, &space, name, content);
            let storing: Result<Vec<Storing>, BlobError> = contents.iter().map(begin).collect();
            match storing {
                Ok(storing) if in_intent && has_company => {
                    let left = Arc::new(Mutex::new(Left::Written(storing)));
                    let _nobody_waits = begun.send(Some(Some(Way::Left(left))));
                }
                Ok(storing) if in_intent => {
                    let (told, there) = watch::channel(false);
                    let _nobody_waits = begun.send(Some(Some(Way::Beside(there))));
                    told.send_replace(finish(storing).is_ok());
                }
                storing => {
                    let there = storing.and_then(finish).is_ok();
                    let _nobody_waits = begun.send(there.then_some(None));
                }
            }
        });
        let Ok(Some(way)) = has_begun.await else {
            return Kept::default();
        };
        let coming = way.map(|way| Coming {
            contents: stored,
            way,
            _keeping: keeping.map(|(keeping, _)| Arc::new(keeping)),
        });
        Kept { names, coming }
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
        if coming.way.end().await {
            return;
        }
        let contents = coming.contents.to_vec();
        if let Err(failure) = put(parts, space.clone(), contents).await {
            tracing::warn!(%failure, "what an action has replaced is not kept");
        }
    }
}

impl Way {
    /// Waits until the blobs are on disk; whether they are.
    async fn end(&self) -> bool {
        let left = match self {
            Way::Beside(there) => return there.clone().wait_for(|there| *there).await.is_ok(),
            Way::Left(left) => left,
        };
        let lock = || left.lock().unwrap_or_else(PoisonError::into_inner);
        let storing = match &mut *lock() {
            Left::Ended(there) => return *there,
            // Somebody has begun to wait and was dropped.
            Left::Written(storing) if storing.is_empty() => return false,
            Left::Written(storing) => std::mem::take(storing),
        };
        let there = if storing.iter().all(Storing::is_settled) {
            finish(storing).is_ok()
        } else {
            let finished = spawn_blocking(move || finish(storing)).await;
            finished.is_ok_and(|finished| finished.is_ok())
        };
        *lock() = Left::Ended(there);
        there
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn who_asks_for_one_thing_shares_no_sync_with_a_flood_but_with_many() {
        let (keepings, space) = (Keepings::default(), SpaceId::new("space").unwrap());
        let elsewhere = SpaceId::new("elsewhere").unwrap();
        let enter =
            |space: &SpaceId, name: &str| keepings.enter(space, &format!("agent://{name}").parse().unwrap());
        let flood: Vec<_> = (0..5).map(|_| enter(&space, "flood")).collect();
        let company: Vec<bool> = flood.iter().map(|(_, has_company)| *has_company).collect();
        assert_eq!(company, [false, false, true, true, true]);
        assert!(!enter(&space, "other").1);
        let few: Vec<_> = (1..OWNERS_MAX).map(|n| enter(&space, &format!("s{n}"))).collect();
        assert!(few.iter().all(|(_, has_company)| !has_company));
        assert!(enter(&space, "other").1);
        assert!(!enter(&elsewhere, "flood").1);
        drop(few);
        assert!(!enter(&space, "other").1);
        drop(flood);
        assert!(keepings.lock().is_empty());
    }
}
