//! Erasure of subjects: destroys every key that opens what was sealed for them; all signatures and proofs stay valid.
//!
//! Payloads are sealed under epoch keys, so erasing them means destroying keys. The ended actions of everybody in those epochs
//! become unreadable too; open payloads of other subjects are sealed again first. In order:
//!
//! 1. A new epoch begins. Everything about the subjects until now is sealed under an earlier epoch.
//! 2. Wait until no action of the earlier epochs is in flight: then these actions add nothing more.
//! 3. The subjects' dead letters are purged, and the blobs that their receipts name are destroyed.
//! 4. Another epoch begins; once no action is in flight in the epochs before it, their keys are destroyed.
//! 5. An event says that the subjects are erased.
//!
//! Each step can be repeated, so an interrupted erasure is simply requested again (with `force` if nothing names the subjects any
//! more). It is complete once its event exists.

use std::collections::BTreeSet;

use effectd_bus::{
    BlobError, BlobKind, Blobs, Cause, DeadLetter, NewBody, NewEvent, ReceiptQuery, RetentionMode, Store,
    StoreError, TopicName,
};
use effectd_contracts::{
    Digest, Effects, EventId, PathState, Receipt, SpaceId, SubjectId, Timestamp, TraceId,
};
use serde_json::{Value, json};

use super::dead_letters;
use crate::approvals::repository;
use crate::claims::pending::open_decisions;
use crate::effects::{artifacts, results};
use crate::limits::{ERASURE_HELD_MAX, ERASURE_PAGE, ERASURE_SUBJECTS_MAX};

pub const TOPIC: &str = "ERASURES";
const EVENT_TYPE: &str = "effectd.subject.erased.v1";

/// How far an erasure has come; the next request continues from there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Progress {
    /// The epoch of step 1.
    pub begun: Option<u32>,
    /// The epoch of step 4.
    pub swept: Option<u32>,
}

/// What an erasure did, or would do.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Erased {
    pub letters: u64,
    /// Pre-images, artifacts and results of the subjects' actions.
    pub blobs: u64,
    /// Entries and letters of other subjects that were sealed again.
    pub resealed: u64,
    /// Open holds of the subjects, which a person must decide first.
    pub held: Vec<String>,
    /// Epochs whose keys cannot be destroyed yet, mostly because an action is in flight: ask again.
    pub waiting: u64,
    pub progress: Progress,
    pub done: bool,
}

/// Erases subjects as far as possible now. Blocks.
pub fn erase(
    store: &dyn Store,
    blobs: &Blobs,
    now: Timestamp,
    subjects: &BTreeSet<SubjectId>,
    (turn, from): (RetentionMode, Progress),
) -> Result<Erased, StoreError> {
    if subjects.is_empty() || subjects.len() > ERASURE_SUBJECTS_MAX {
        return Err(StoreError::Invalid(format!(
            "name at least one subject and at most {ERASURE_SUBJECTS_MAX}"
        )));
    }
    let mut erased = Erased { held: held(store, subjects)?, progress: from, ..Erased::default() };
    if turn == RetentionMode::Preview {
        erased.letters = letters_of(store, subjects)?.len() as u64;
        // Several receipts may name the same blob.
        let mut seen = BTreeSet::new();
        erased.blobs = named(store, subjects, |shelf, space, name| {
            Ok(blobs.has(shelf, space, name) && seen.insert((shelf, space.clone(), name.to_owned())))
        })?;
        return Ok(erased);
    }
    if !erased.held.is_empty() {
        return Ok(erased);
    }
    if from.swept.is_some_and(|swept| from.begun.is_none_or(|begun| swept <= begun)) {
        return Err(StoreError::Invalid(
            "`swept` must be an epoch after `begun`; copy both from the last response, or omit both".into(),
        ));
    }
    let begun = from.begun.map_or_else(|| store.begin_epoch().wait(), Ok)?;
    erased.progress.begun = Some(begun);
    if !closed(store, begun, &mut erased)? {
        return Ok(erased);
    }
    // An action that was in flight may be held now.
    erased.held = held(store, subjects)?;
    if !erased.held.is_empty() {
        return Ok(erased);
    }
    // Repeated even if the caller passes `swept`, which may be wrong.
    sweep(store, blobs, subjects, &mut erased)?;
    let swept = match from.swept {
        Some(swept) if erased.letters == 0 => swept,
        // A letter that was still there was sealed under an epoch whose key must be destroyed as well.
        Some(_) | None => store.begin_epoch().wait()?,
    };
    erased.progress.swept = Some(swept);
    if closed(store, swept, &mut erased)? && destroyed(store, swept, &mut erased)? {
        store.publish(&TopicName::new(TOPIC)?, vec![event(subjects, swept, now)?]).wait()?;
        erased.done = true;
    }
    Ok(erased)
}

/// Refuses subjects that no receipt, dead letter, pending approval or open decision names: a misspelt subject must not become
/// the proof of an erasure.
pub fn check_known(store: &dyn Store, subjects: &BTreeSet<SubjectId>) -> Result<(), StoreError> {
    for subject in subjects {
        let one = BTreeSet::from([subject.clone()]);
        let query = ReceiptQuery { subject_id: Some(subject.clone()), limit: 1, ..ReceiptQuery::default() };
        let is_open = || -> Result<bool, StoreError> {
            let open = open_decisions(store, u64::MAX, usize::MAX)?;
            Ok(open.iter().any(|open| open.subject_id == *subject))
        };
        let is_known = !store.receipts(&query)?.receipts.is_empty()
            || !letters_of(store, &one)?.is_empty()
            || !held(store, &one)?.is_empty()
            || is_open()?;
        if !is_known {
            return Err(StoreError::NoSuchName(Cause::new(format!(
                "no receipt, dead letter, pending approval or open action names {subject}; check its spelling"
            ))));
        }
    }
    Ok(())
}

/// Closes the epochs before `epoch`. Returns whether all of them are closed.
fn closed(store: &dyn Store, epoch: u32, erased: &mut Erased) -> Result<bool, StoreError> {
    let report = store.close_epochs_before(epoch).wait()?;
    erased.resealed += report.resealed;
    erased.waiting = report.busy.len() as u64;
    Ok(report.busy.is_empty())
}

/// Whether all keys of the epochs before `epoch` are destroyed. Closing an epoch again retries to destroy its key.
fn destroyed(store: &dyn Store, epoch: u32, erased: &mut Erased) -> Result<bool, StoreError> {
    let report = store.close_epochs_before(epoch).wait()?;
    erased.waiting = (report.busy.len() + report.closed.len()) as u64;
    Ok(erased.waiting == 0)
}

fn sweep(
    store: &dyn Store,
    blobs: &Blobs,
    subjects: &BTreeSet<SubjectId>,
    erased: &mut Erased,
) -> Result<(), StoreError> {
    for letters in letters_of(store, subjects)?.chunks(ERASURE_PAGE) {
        erased.letters += store.purge(letters.to_vec()).wait()?;
    }
    erased.blobs += named(store, subjects, |shelf, space, name| {
        let there = blobs.has(shelf, space, name);
        match blobs.remove(shelf, space, name) {
            Ok(()) | Err(BlobError::Name(_)) => Ok(there),
            Err(error) => Err(StoreError::unavailable_by("a blob could not be destroyed", error)),
        }
    })?;
    Ok(())
}

/// Whether a letter is about one of the subjects. If its decision cannot be read, its payload is searched for their ids.
fn is_of(letter: &DeadLetter, subjects: &BTreeSet<SubjectId>) -> bool {
    if let Some(decision) = dead_letters::decision(letter) {
        return subjects.contains(&decision.request.subject_id);
    }
    letter.payload.bytes().is_some_and(|bytes| names(bytes, subjects))
}

/// Whether a request, or a document that contains one, names one of the subjects, even if other fields are invalid.
fn names(bytes: &[u8], subjects: &BTreeSet<SubjectId>) -> bool {
    let Ok(found) = serde_json::from_slice::<Value>(bytes) else {
        return false;
    };
    let places = ["/subject_id", "/request/subject_id", "/data/subject_id", "/data/request/subject_id"];
    let mut named = places.iter().filter_map(|place| found.pointer(place)?.as_str());
    named.any(|name| subjects.iter().any(|subject| subject.as_str() == name))
}

fn letters_of(store: &dyn Store, subjects: &BTreeSet<SubjectId>) -> Result<Vec<u64>, StoreError> {
    let (mut found, mut from) = (Vec::new(), Some(0));
    while let Some(at) = from {
        let page = store.letters(None, at, ERASURE_PAGE)?;
        let theirs = page.letters.iter().filter(|letter| is_of(letter, subjects));
        found.extend(theirs.map(|letter| letter.letter));
        from = page.next;
    }
    Ok(found)
}

/// The first open holds of the subjects, at most [`ERASURE_HELD_MAX`].
fn held(store: &dyn Store, subjects: &BTreeSet<SubjectId>) -> Result<Vec<String>, StoreError> {
    let (mut found, mut after) = (Vec::new(), None::<String>);
    loop {
        let (holds, next) = repository::holds(store, after.as_deref())?;
        let theirs = holds.iter().filter(|hold| subjects.contains(&hold.value.decision.request.subject_id));
        found.extend(theirs.map(|hold| hold.value.approval_id.to_string()));
        if next.is_none() || found.len() >= ERASURE_HELD_MAX {
            found.truncate(ERASURE_HELD_MAX);
            return Ok(found);
        }
        after = next;
    }
}

/// Calls `each` for every blob that a receipt of the subjects names, and counts how often it returns `true`.
fn named(
    store: &dyn Store,
    subjects: &BTreeSet<SubjectId>,
    mut each: impl FnMut(BlobKind, &SpaceId, &str) -> Result<bool, StoreError>,
) -> Result<u64, StoreError> {
    let mut count = 0;
    for subject in subjects {
        let mut query = ReceiptQuery {
            subject_id: Some(subject.clone()),
            limit: ERASURE_PAGE,
            ..ReceiptQuery::default()
        };
        loop {
            let page = store.receipts(&query)?;
            for stored in &page.receipts {
                let receipt = stored.parse()?;
                for (shelf, name) in blobs_of(&receipt) {
                    count += u64::from(each(shelf, &receipt.space_id, &name)?);
                }
            }
            query.cursor = page.cursor;
            if query.cursor.is_none() {
                break;
            }
        }
    }
    Ok(count)
}

/// The blobs of an action: its result, artifacts, pre-images, and what it wrote, which is the pre-image of a later action.
fn blobs_of(receipt: &Receipt) -> BTreeSet<(BlobKind, String)> {
    let said = artifacts::put_out(receipt).into_iter();
    let mut found: BTreeSet<_> = said.map(|name| (BlobKind::Artifacts, name.to_owned())).collect();
    let state = Digest::of(format!("before\n{}", receipt.action_id).as_bytes()).hex();
    found.insert((BlobKind::Preimages, state));
    if receipt.kept_result.is_some() {
        found.insert((BlobKind::Results, results::name(&receipt.principal, &receipt.receipt_id)));
    }
    if let Effects::Observed(observed) = &receipt.effects {
        for standing in observed.changes.iter().flat_map(|change| [&change.before, &change.after]) {
            if let PathState::File(file) = standing
                && let Some(name) = file.digest.strip_prefix("hmac-sha256:")
            {
                found.insert((BlobKind::Preimages, name.to_owned()));
            }
        }
    }
    found
}

fn event(subjects: &BTreeSet<SubjectId>, epoch: u32, now: Timestamp) -> Result<NewEvent, StoreError> {
    let id = format!("erased-{epoch}");
    let body = json!({
        "specversion": "1.0",
        "id": id,
        "source": "effectd",
        "type": EVENT_TYPE,
        "time": now.to_string(),
        "datacontenttype": "application/json",
        "data": { "subjects": subjects, "epochs_before": epoch },
    });
    Ok(NewEvent {
        event_id: EventId::new(id)?,
        time: now,
        trace_id: TraceId::fresh(),
        action_id: None,
        body: NewBody::Clear(body.to_string().into_bytes()),
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::sync::Arc;

    use effectd_contracts::{ActionId, Clock, ManualClock};

    use super::*;

    const SUBJECT: &str = "agent://planner@deviceA";

    fn subjects() -> BTreeSet<SubjectId> {
        BTreeSet::from([SubjectId::new(SUBJECT).unwrap()])
    }

    #[test]
    fn a_request_names_its_subject_however_broken_the_rest_of_it_is() {
        let request = json!({"subject_id": SUBJECT, "tool_id": 7});
        for whole in [
            request.clone(),
            json!({"request": request}),
            json!({"data": {"request": request, "decision": null}}),
        ] {
            assert!(names(whole.to_string().as_bytes(), &subjects()), "{whole}");
        }
        let other = json!({"data": {"request": {"subject_id": "agent://other@deviceA"}, "note": SUBJECT}});
        for none in [other.to_string(), format!("{SUBJECT} {{"), "[]".to_owned()] {
            assert!(!names(none.as_bytes(), &subjects()), "{none}");
        }
    }

    #[test]
    fn an_erasure_goes_on_only_from_where_one_can_be() {
        let clock = Arc::new(ManualClock::at(Timestamp::from_second(1_800_000_000).unwrap()));
        let store = effectd_bus::memory::open(clock.clone()).unwrap();
        // No blob is ever stored there.
        let nowhere = std::env::temp_dir().join("effectd-no-blobs");
        let blobs = Blobs::new(nowhere, &zeroize::Zeroizing::new([7; 32]), 1 << 20);
        let from = |begun, swept| {
            let from = Progress { begun, swept };
            erase(&store, &blobs, clock.now(), &subjects(), (RetentionMode::Apply, from))
        };
        let secret = NewEvent {
            event_id: EventId::new("e").unwrap(),
            time: clock.now(),
            trace_id: TraceId::fresh(),
            action_id: Some(ActionId::new("a").unwrap()),
            body: NewBody::Sealed(b"the canary sings".to_vec()),
        };
        let topic = TopicName::new("t").unwrap();
        store.publish(&topic, vec![secret]).wait().unwrap();
        let first = from(None, None).unwrap();
        let (begun, swept) = (first.progress.begun, first.progress.swept);
        assert_eq!((first.done, first.waiting, swept), (false, 1, None), "nobody has settled it");
        for (begun, swept) in
            [(None, Some(u32::MAX)), (begun, begun), (Some(1), Some(u32::MAX)), (Some(u32::MAX), None)]
        {
            let refused = from(begun, swept);
            assert!(matches!(refused, Err(StoreError::Invalid(_))), "{begun:?} {swept:?}: {refused:?}");
        }
        let group = effectd_bus::GroupName::new("g").unwrap();
        let leased = store.lease(&topic, &group, 1, std::time::Duration::from_secs(60)).wait().unwrap();
        store.ack(leased.deliveries[0].lease_id).wait().unwrap();
        let last = from(begun, swept).unwrap();
        assert!(last.done && last.waiting == 0, "{last:?}");
        assert_eq!(store.read(&topic, 0, 1).unwrap().events[0].body.bytes(), None);
    }
}
