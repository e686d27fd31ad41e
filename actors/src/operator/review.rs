//! Quarantined requests for review: how many of them are kept.
//!
//! Each is a dead letter that is kept for long, and a subject that is refused can ask again at once. So the number per subject is
//! bounded; beyond it only the receipt is kept, which says so.

use std::collections::HashMap;
use std::sync::Arc;

use effectd_bus::{Store, StoreError};
use effectd_contracts::{Clock, Code, Failure, Monotonic, SubjectId};
use tokio::sync::Mutex;

use super::dead_letters;
use crate::limits::{QUARANTINED_BYTES_MAX, QUARANTINED_PAGE, QUARANTINED_RECOUNT};

/// The quarantined requests that are kept, by subject. Counted when first needed, and again when a subject has no room left.
#[derive(Debug, Default)]
pub(crate) struct ReviewTally(Mutex<Tally>);

#[derive(Debug, Default)]
struct Tally {
    counted: Option<Monotonic>,
    subjects: HashMap<SubjectId, Amount>,
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
struct Amount {
    count: usize,
    bytes: u64,
}

impl Amount {
    fn has_room(self, most: usize, bytes: u64) -> bool {
        self.count < most && self.bytes.saturating_add(bytes) <= QUARANTINED_BYTES_MAX
    }

    fn add(&mut self, bytes: u64) {
        self.count += 1;
        self.bytes = self.bytes.saturating_add(bytes);
    }
}

impl ReviewTally {
    /// Whether one more request of this subject is kept. If they cannot be counted, it is: better one too many than one lost.
    pub(crate) async fn takes(
        &self,
        store: &Arc<dyn Store>,
        clock: &dyn Clock,
        most: usize,
        subject: &SubjectId,
        bytes: u64,
    ) -> bool {
        let mut tally = self.0.lock().await;
        let now = clock.monotonic();
        let has_room = |tally: &Tally| {
            let amount = tally.subjects.get(subject).copied().unwrap_or_default();
            amount.has_room(most, bytes)
        };
        let recount = match tally.counted {
            None => true,
            Some(counted) => !has_room(&tally) && now.since(counted) >= QUARANTINED_RECOUNT,
        };
        if recount {
            let store = store.clone();
            match tokio::task::spawn_blocking(move || count(&store)).await {
                Ok(Ok(subjects)) => {
                    tally.subjects = subjects;
                    tally.counted = Some(now);
                }
                Ok(Err(_)) | Err(_) => return true,
            }
        }
        let takes = has_room(&tally);
        if takes {
            tally.subjects.entry(subject.clone()).or_default().add(bytes);
        }
        takes
    }
}

fn count(store: &Arc<dyn Store>) -> Result<HashMap<SubjectId, Amount>, StoreError> {
    let mut subjects: HashMap<SubjectId, Amount> = HashMap::new();
    let mut from = Some(0);
    while let Some(at) = from {
        let page = store.letters(None, at, QUARANTINED_PAGE)?;
        for letter in &page.letters {
            if letter.code != Code::SafetyQuarantined.as_str() {
                continue;
            }
            let bytes = letter.payload.bytes().map_or(0, <[u8]>::len) as u64;
            if let Some(decision) = dead_letters::decision(letter) {
                subjects.entry(decision.request.subject_id).or_default().add(bytes);
            }
        }
        from = page.next;
    }
    Ok(subjects)
}

pub(crate) fn not_kept(failure: Failure) -> Failure {
    let message = format!(
        "{}; not stored for review: this subject's quarantine is full, see `effectd quarantine list`",
        failure.message
    );
    Failure { message, ..failure }
}
