//! Erasing subjects: what was sealed for them can be opened by no key any more, and all signatures and proofs stay.
//!
//! Payloads are sealed under the keys of epochs, so they are erased by destroying keys, and everybody's ended actions lose
//! theirs together; what is alive of others is sealed again first. In order:
//!
//! 1. A new epoch begins. Whatever the subjects were given until now is under an earlier one.
//! 2. When nothing of the earlier epochs is under way, all that these actions leave behind is there.
//! 3. Dead letters of the subjects are forgotten, and the blobs that their receipts name are destroyed.
//! 4. Another epoch begins, and when nothing is under way in those before it, their keys are destroyed.
//! 5. An event says so.
//!
//! Each step can be done again and changes nothing then, so an erasure that was cut off is asked for anew. One whose event is
//! there was done to the end.

use std::collections::BTreeSet;

use effectd_bus::{
    BlobError, Blobs, NewBody, NewEvent, ReceiptQuery, Shelf, Store, StoreError, StoredLetter, TopicName,
    Turn,
};
use effectd_contracts::{
    Digest, Effects, EventId, Receipt, SpaceId, Standing, SubjectId, Timestamp, TraceId,
};
use serde_json::{Value, json};

use crate::held::entries;
use crate::limits::{ERASURE_HELD_MAX, ERASURE_PAGE, ERASURE_SUBJECTS_MAX};
use crate::{artifacts, letters};

pub const TOPIC: &str = "ERASURES";
const EVENT_TYPE: &str = "effectd.subject.erased.v1";

/// How far an erasure has come, for who asks again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Progress {
    /// The epoch that was begun first.
    pub begun: Option<u32>,
    /// The epoch that was begun when letters and blobs were gone.
    pub swept: Option<u32>,
}

/// What an erasure did, or would do.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Erased {
    pub letters: u64,
    /// Blobs: what the subjects' actions replaced or wrote, and what their tools said at length.
    pub blobs: u64,
    /// Entries and letters of others that were sealed again.
    pub resealed: u64,
    /// Questions of the subjects that wait for a person, who has to decide first.
    pub held: Vec<String>,
    /// Epochs in which something is still under way: ask again.
    pub waiting: u64,
    pub progress: Progress,
    pub done: bool,
}

/// Erases subjects as far as that can be done now. Blocks.
pub fn erase(
    store: &dyn Store,
    blobs: &Blobs,
    now: Timestamp,
    subjects: &BTreeSet<SubjectId>,
    (turn, from): (Turn, Progress),
) -> Result<Erased, StoreError> {
    if subjects.is_empty() || subjects.len() > ERASURE_SUBJECTS_MAX {
        return Err(StoreError::Invalid(format!(
            "name at least one subject and at most {ERASURE_SUBJECTS_MAX}"
        )));
    }
    let mut told = Erased {
        held: held(store, subjects)?,
        progress: from,
        ..Erased::default()
    };
    if turn == Turn::Preview {
        told.letters = letters_of(store, subjects)?.len() as u64;
        // Several receipts may name the same one.
        let mut seen = BTreeSet::new();
        told.blobs = named(store, subjects, |shelf, space, name| {
            Ok(blobs.has(shelf, space, name) && seen.insert((shelf, space.clone(), name.to_owned())))
        })?;
        return Ok(told);
    }
    if !told.held.is_empty() {
        return Ok(told);
    }
    if from
        .swept
        .is_some_and(|swept| from.begun.is_none_or(|begun| swept <= begun))
    {
        return Err(StoreError::Invalid(
            "`swept` is an epoch after `begun`; give both as the last answer did, or neither".into(),
        ));
    }
    let begun = from.begun.map_or_else(|| store.begin_epoch().wait(), Ok)?;
    told.progress.begun = Some(begun);
    if !closed(store, begun, &mut told)? {
        return Ok(told);
    }
    // What was under way may have ended as a question.
    told.held = held(store, subjects)?;
    if !told.held.is_empty() {
        return Ok(told);
    }
    // Whoever asks again may be another who guessed the numbers, so it is not taken for done.
    sweep(store, blobs, subjects, &mut told)?;
    let swept = match from.swept {
        Some(swept) if told.letters == 0 => swept,
        // A letter that was there still is sealed under an epoch that has to go, too.
        Some(_) | None => store.begin_epoch().wait()?,
    };
    told.progress.swept = Some(swept);
    if closed(store, swept, &mut told)? && destroyed(store, swept, &mut told)? {
        store
            .publish(&TopicName::new(TOPIC)?, vec![event(subjects, swept, now)?])
            .wait()?;
        told.done = true;
    }
    Ok(told)
}

/// Closes the epochs before one; whether all of them are closed.
fn closed(store: &dyn Store, epoch: u32, told: &mut Erased) -> Result<bool, StoreError> {
    let report = store.close_epochs_before(epoch).wait()?;
    told.resealed += report.resealed;
    told.waiting = report.busy.len() as u64;
    Ok(report.busy.is_empty())
}

/// Whether no epoch before one has a key any more. One whose key could not be destroyed is closed anew, which tries again.
fn destroyed(store: &dyn Store, epoch: u32, told: &mut Erased) -> Result<bool, StoreError> {
    let report = store.close_epochs_before(epoch).wait()?;
    told.waiting = (report.busy.len() + report.closed.len()) as u64;
    Ok(told.waiting == 0)
}

fn sweep(
    store: &dyn Store,
    blobs: &Blobs,
    subjects: &BTreeSet<SubjectId>,
    told: &mut Erased,
) -> Result<(), StoreError> {
    for letters in letters_of(store, subjects)?.chunks(ERASURE_PAGE) {
        told.letters += store.purge(letters.to_vec()).wait()?;
    }
    told.blobs += named(store, subjects, |shelf, space, name| {
        let there = blobs.has(shelf, space, name);
        match blobs.remove(shelf, space, name) {
            Ok(()) | Err(BlobError::Name(_)) => Ok(there),
            Err(error) => Err(StoreError::Unavailable {
                reason: format!("a blob could not be destroyed: {error}"),
            }),
        }
    })?;
    Ok(())
}

/// Whether a letter is about one of the subjects. One that is no whole decision, for which it may be a letter at all, is
/// looked through for whom it names.
fn is_of(letter: &StoredLetter, subjects: &BTreeSet<SubjectId>) -> bool {
    if let Some(decision) = letters::decision(letter) {
        return subjects.contains(&decision.request.subject_id);
    }
    letter.payload.bytes().is_some_and(|bytes| names(bytes, subjects))
}

/// Whether a request, or what has one in it, names one of the subjects, however little else of it is right.
fn names(bytes: &[u8], subjects: &BTreeSet<SubjectId>) -> bool {
    let Ok(found) = serde_json::from_slice::<Value>(bytes) else {
        return false;
    };
    let places = [
        "/subject_id",
        "/request/subject_id",
        "/data/subject_id",
        "/data/request/subject_id",
    ];
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

/// The first questions of the subjects that are open.
fn held(store: &dyn Store, subjects: &BTreeSet<SubjectId>) -> Result<Vec<String>, StoreError> {
    let (mut found, mut after) = (Vec::new(), None::<String>);
    loop {
        let (holds, next) = entries::holds(store, after.as_deref())?;
        let theirs = holds
            .iter()
            .filter(|hold| subjects.contains(&hold.value.decision.request.subject_id));
        found.extend(theirs.map(|hold| hold.value.approval_id.to_string()));
        if next.is_none() || found.len() >= ERASURE_HELD_MAX {
            found.truncate(ERASURE_HELD_MAX);
            return Ok(found);
        }
        after = next;
    }
}

/// Goes through the blobs that receipts of the subjects name; how many times `each` said yes.
fn named(
    store: &dyn Store,
    subjects: &BTreeSet<SubjectId>,
    mut each: impl FnMut(Shelf, &SpaceId, &str) -> Result<bool, StoreError>,
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

/// What an action left: the contents that it replaced, and those that it wrote, which whoever replaced them has kept.
fn blobs_of(receipt: &Receipt) -> BTreeSet<(Shelf, String)> {
    let said = artifacts::named(receipt).into_iter();
    let mut found: BTreeSet<_> = said.map(|name| (Shelf::Artifacts, name.to_owned())).collect();
    let state = Digest::of(format!("before\n{}", receipt.action_id).as_bytes()).hex();
    found.insert((Shelf::Preimages, state));
    if let Effects::Observed(observed) = &receipt.effects {
        for standing in observed
            .changes
            .iter()
            .flat_map(|change| [&change.before, &change.after])
        {
            if let Standing::File(file) = standing
                && let Some(name) = file.digest.strip_prefix("hmac-sha256:")
            {
                found.insert((Shelf::Preimages, name.to_owned()));
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
        event_id: EventId::new(id).map_err(|error| StoreError::Invalid(error.to_string()))?,
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
        // Nothing is ever stored there.
        let nowhere = std::env::temp_dir().join("effectd-no-blobs");
        let blobs = Blobs::new(nowhere, &zeroize::Zeroizing::new([7; 32]), 1 << 20);
        let from = |begun, swept| {
            let from = Progress { begun, swept };
            erase(&store, &blobs, clock.now(), &subjects(), (Turn::LetGo, from))
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
        assert_eq!(
            (first.done, first.waiting, swept),
            (false, 1, None),
            "nobody has settled it"
        );
        for (begun, swept) in [
            (None, Some(u32::MAX)),
            (begun, begun),
            (Some(1), Some(u32::MAX)),
            (Some(u32::MAX), None),
        ] {
            let refused = from(begun, swept);
            assert!(
                matches!(refused, Err(StoreError::Invalid(_))),
                "{begun:?} {swept:?}: {refused:?}"
            );
        }
        let group = effectd_bus::GroupName::new("g").unwrap();
        let leased = store
            .lease(&topic, &group, 1, std::time::Duration::from_secs(60))
            .wait()
            .unwrap();
        store.ack(leased.deliveries[0].lease_id).wait().unwrap();
        let last = from(begun, swept).unwrap();
        assert!(last.done && last.waiting == 0, "{last:?}");
        assert_eq!(store.read(&topic, 0, 1).unwrap().events[0].body.bytes(), None);
    }
}
