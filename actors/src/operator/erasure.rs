//! Erasure of subjects: destroys every key that opens what was sealed for them; all signatures and proofs stay valid.
//!
//! Payloads are sealed under epoch keys, so erasing them means destroying keys. The ended actions of everybody in those epochs
//! become unreadable too; open payloads of other subjects are sealed again first. In order:
//!
//! 1. A new epoch begins. Everything about the subjects until now is sealed under an earlier epoch.
//! 2. Wait until no action of the earlier epochs is in flight: then these actions add nothing more.
//! 3. The subjects' dead letters are purged, the titles of their sessions are removed, and the blobs that their receipts name are
//!    destroyed.
//! 4. Another epoch begins; once no action is in flight in the epochs before it, their keys are destroyed.
//! 5. An event says that the subjects are erased.
//!
//! Each step can be repeated, so an interrupted erasure is simply requested again (with `force` if nothing names the subjects any
//! more). It is complete once its event exists.

use std::collections::BTreeSet;

use effectd_bus::{
    BlobError, BlobKind, Blobs, Cause, DeadLetter, Expect, FamilyName, NewBody, NewEvent, ReceiptQuery,
    RetentionMode, Store, StoreError, TopicName,
};
use effectd_contracts::{
    Digest, Effects, EventId, PathState, Receipt, Session, SubjectId, Timestamp, TraceId,
};
use serde_json::{Value, json};

use super::dead_letters;
use crate::approvals::repository::{self, Step, Versioned, read};
use crate::claims::pending::open_decisions;
use crate::effects::{artifacts, results};
use crate::limits::{ERASURE_HELD_MAX, ERASURE_PAGE, ERASURE_SUBJECTS_MAX, SESSIONS_PAGE};
use crate::services::sessions::SESSIONS;
use crate::stored::entries;

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
    /// Sessions whose titles were removed.
    titles: u64,
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
        erased.blobs = named(store, subjects, |receipt, kind, name| {
            let space = &receipt.space_id;
            Ok(blobs.has(kind, space, name) && seen.insert((kind, space.clone(), name.to_owned())))
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
        Some(swept) if erased.letters + erased.titles == 0 => swept,
        // A letter or a title that was still there was sealed under an epoch whose key must be destroyed as well.
        Some(_) | None => store.begin_epoch().wait()?,
    };
    erased.progress.swept = Some(swept);
    if closed(store, swept, &mut erased)? && destroyed(store, swept, &mut erased)? {
        store.publish(&TopicName::new(TOPIC)?, vec![event(subjects, swept, now)?]).wait()?;
        erased.done = true;
    }
    Ok(erased)
}

/// Refuses subjects that no receipt, dead letter, pending approval, session or open decision names: a misspelt subject must not become
/// the proof of an erasure.
pub fn check_known(store: &dyn Store, subjects: &BTreeSet<SubjectId>) -> Result<(), StoreError> {
    for subject in subjects {
        let one = BTreeSet::from([subject.clone()]);
        let query = ReceiptQuery { subject_id: Some(subject.clone()), limit: 1, ..ReceiptQuery::default() };
        let is_open = || -> Result<bool, StoreError> {
            let open = open_decisions(store, (u64::MAX, usize::MAX), |_| true)?;
            Ok(open.iter().any(|open| open.subject_id == *subject))
        };
        let is_known = !store.receipts(&query)?.receipts.is_empty()
            || !letters_of(store, &one)?.is_empty()
            || !held(store, &one)?.is_empty()
            || !titled(store, &one)?.is_empty()
            || is_open()?;
        if !is_known {
            return Err(StoreError::NoSuchName(Cause::new(format!(
                "no receipt, dead letter, pending approval, session or open action names {subject}; check its spelling"
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
    erased.letters += purge(store, &letters_of(store, subjects)?)?;
    erased.titles += untitled(store, subjects)?;
    erased.blobs += named(store, subjects, |receipt, kind, name| {
        let there = blobs.has(kind, &receipt.space_id, name);
        match blobs.remove(kind, &receipt.space_id, name) {
            Ok(()) | Err(BlobError::Name(_)) => Ok(there),
            Err(error) => Err(StoreError::unavailable_by("a blob could not be destroyed", error)),
        }
    })?;
    Ok(())
}

/// Deletes dead letters, and returns how many there were.
pub(super) fn purge(store: &dyn Store, letters: &[u64]) -> Result<u64, StoreError> {
    letters.chunks(ERASURE_PAGE).map(|some| store.purge(some.to_vec()).wait()).sum()
}

/// The subjects' sessions with a title.
fn titled(store: &dyn Store, subjects: &BTreeSet<SubjectId>) -> Result<Vec<Versioned<Session>>, StoreError> {
    let mut found = Vec::new();
    for entry in entries(store, &FamilyName::new(SESSIONS)?, SESSIONS_PAGE) {
        let entry = entry?;
        // After the loss of its key, nobody can read a session: it stops no erasure.
        if entry.value.bytes().is_none_or(<[u8]>::is_empty) {
            continue;
        }
        let session = read::<Session>(&entry)?;
        if subjects.contains(&session.value.subject_id) && !session.value.title.is_empty() {
            found.push(session);
        }
    }
    Ok(found)
}

/// Removes the titles of the subjects' sessions, and returns how many there were.
fn untitled(store: &dyn Store, subjects: &BTreeSet<SubjectId>) -> Result<u64, StoreError> {
    let found = titled(store, subjects)?;
    for some in found.chunks(ERASURE_PAGE) {
        let mut step = Step::default();
        for Versioned { value, version } in some {
            let session = Session { title: String::new(), ..value.clone() };
            step.put(SESSIONS, session.session_id.as_str(), Expect::Version(*version), &session)?;
        }
        step.commit(store).wait()?;
    }
    Ok(found.len() as u64)
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
    letters_where(store, |letter| is_of(letter, subjects))
}

pub(super) fn letters_where(
    store: &dyn Store,
    is_of: impl Fn(&DeadLetter) -> bool,
) -> Result<Vec<u64>, StoreError> {
    let (mut found, mut from) = (Vec::new(), Some(0));
    while let Some(at) = from {
        let page = store.letters(None, at, ERASURE_PAGE)?;
        let theirs = page.letters.iter().filter(|letter| is_of(letter));
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
    mut each: impl FnMut(&Receipt, BlobKind, &str) -> Result<bool, StoreError>,
) -> Result<u64, StoreError> {
    let query =
        |subject: &SubjectId| ReceiptQuery { subject_id: Some(subject.clone()), ..ReceiptQuery::default() };
    subjects.iter().map(|subject| each_blob(store, query(subject), &mut each)).sum()
}

/// The same for every receipt that a query selects.
pub(super) fn each_blob(
    store: &dyn Store,
    mut query: ReceiptQuery,
    mut each: impl FnMut(&Receipt, BlobKind, &str) -> Result<bool, StoreError>,
) -> Result<u64, StoreError> {
    query.limit = ERASURE_PAGE;
    let mut count = 0;
    loop {
        let page = store.receipts(&query)?;
        for stored in &page.receipts {
            let receipt = stored.parse()?;
            for (kind, name) in blobs_of(&receipt) {
                count += u64::from(each(&receipt, kind, &name)?);
            }
        }
        query.cursor = page.cursor;
        if query.cursor.is_none() {
            return Ok(count);
        }
    }
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

    use effectd_bus::{KvChange, Swap};
    use effectd_contracts::{ActionId, Clock, ManualClock};

    use super::*;
    use crate::stored::swap_all;

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
        let unreadable = Swap {
            family: FamilyName::new(SESSIONS).unwrap(),
            key: "lost".to_owned(),
            expect: Expect::Absent,
            change: KvChange::Put(NewBody::Clear(Vec::new())),
        };
        swap_all(&store, vec![unreadable]).wait().unwrap();
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
