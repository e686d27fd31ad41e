//! Creates, ends and deletes sessions. Each change is an event on the topic `SESSIONS`.
//!
//! A deleted session leaves the list at once. In order:
//!
//! 1. One step moves its record to the deleted sessions: from now on it takes no action, no grant and no approval.
//! 2. Its open holds are denied.
//! 3. Its grants are revoked.
//! 4. Its tokens are removed, and the dead letters of its actions purged: nobody can requeue them.
//! 5. The results, pre-images and artifacts of its actions are destroyed, except for contents that others need. The receipts stay,
//!    for auditors.
//! 6. The record says that this is done.
//!
//! Each step can be repeated, and the sweeper repeats all of them until step 6 is on disk. An action that was in flight may end
//! later, so the sweeper does the steps once more before it removes the record.

use std::collections::BTreeMap;

use effectd_bus::{
    BlobKind, Blobs, Cause, DeadLetter, Expect, FamilyName, KvEntry, ReceiptQuery, Store, StoreError,
};
use effectd_contracts::text::is_unprintable;
use effectd_contracts::{
    ConnectionId, OrgId, Origin, PathState, Principal, Session, SessionChange, SessionData, SessionId,
    SpaceId, SubjectId, Timestamp, Topic,
};
use serde::{Deserialize, Serialize};

use super::tokens;
use crate::approvals::repository::{self, Step, Versioned, read};
use crate::approvals::{expiry, grants, hold::HoldState};
use crate::claims::intent::Intent;
use crate::claims::pending::each_intent;
use crate::effects::snapshot::keyed_name;
use crate::failpoint::hit_idle;
use crate::limits::{
    SESSION_CONNECTIONS_MAX, SESSION_DELETED_KEPT, SESSION_TITLE_BYTES_MAX, SESSIONS_MAX, SESSIONS_PAGE,
    SESSIONS_SUBJECT_MAX,
};
use crate::operator::{dead_letters, erasure};
use crate::services::sessions::{SESSIONS, is_deleted, is_implicit};
use crate::services::signer::Identity;
use crate::services::tokens::{TOKENS, Token};
use crate::services::{Services, connections};
use crate::stored::entries;

/// Deleted sessions by id, until nothing can be left of them.
const DELETED: &str = "sessions-deleted";

#[derive(Debug, Clone, Serialize, Deserialize)]
struct Deleted {
    /// Without its title.
    session: Session,
    by: Principal,
    at: Timestamp,
    /// Whether all steps were done once.
    done: bool,
}

fn family(name: &str) -> Result<FamilyName, StoreError> {
    FamilyName::new(name)
}

/// A session of the list; an error if there is none.
pub(super) fn known(store: &dyn Store, id: &SessionId) -> Result<Versioned<Session>, StoreError> {
    let entry = store.entry(&family(SESSIONS)?, id.as_str())?;
    let unknown = || StoreError::NoSuchName(Cause::new(format!("there is no session {id}")));
    read(&entry.ok_or_else(unknown)?)
}

/// The organisation of a new session. Refuses a session that cannot be created.
pub(super) fn check_new(
    services: &Services,
    id: &SessionId,
    (subject, space): (&SubjectId, &SpaceId),
    title: &str,
    wanted: &[ConnectionId],
) -> Result<OrgId, StoreError> {
    let (store, policy) = (&*services.store, services.policy());
    let used = |name| Ok::<_, StoreError>(store.entry(&family(name)?, id.as_str())?.is_some());
    // A slash ends the organisation in the principal of a session.
    let has_mark = is_implicit(id.as_str()) || id.as_str().contains('/');
    if has_mark || used(SESSIONS)? || used(DELETED)? {
        let why = format!("choose another id than {id}: it is used, or has a colon or a slash");
        return Err(StoreError::Invalid(why));
    }
    if title.is_empty() || title.len() > SESSION_TITLE_BYTES_MAX || title.chars().any(is_unprintable) {
        let why = format!("a session's title is printable text of 1 to {SESSION_TITLE_BYTES_MAX} bytes");
        return Err(StoreError::Invalid(why));
    }
    let no_org = || StoreError::NoSuchName(Cause::new(format!("the policy has no organisation of {space}")));
    let org = OrgId::new(policy.org_of(space).ok_or_else(no_org)?)?;
    if wanted.len() > SESSION_CONNECTIONS_MAX {
        let (what, size) = ("number of connections", wanted.len());
        return Err(StoreError::TooLarge { what, size, max: SESSION_CONNECTIONS_MAX });
    }
    let all = connections::all(store)?;
    for id in wanted {
        if !all.iter().any(|(known, _)| known.connection_id == *id && known.org == org) {
            return Err(StoreError::NoSuchName(Cause::new(format!("{org} has no connection {id}"))));
        }
    }
    let (mut size, mut of_subject) = (1, 1);
    for entry in entries(store, &family(SESSIONS)?, SESSIONS_PAGE) {
        size += 1;
        of_subject +=
            usize::from(read::<Session>(&entry?).is_ok_and(|known| known.value.subject_id == *subject));
    }
    let bounds = [
        ("number of sessions (delete ended ones)", size, SESSIONS_MAX),
        ("number of sessions of one subject (delete ended ones)", of_subject, SESSIONS_SUBJECT_MAX),
    ];
    match bounds.into_iter().find(|(_, size, max)| size > max) {
        Some((what, size, max)) => Err(StoreError::TooLarge { what, size, max }),
        None => Ok(org),
    }
}

/// Creates a session with its first token.
pub(super) async fn create(services: &Services, session: &Session, token: &Token) -> Result<(), StoreError> {
    let mut step = Step::default();
    step.put(SESSIONS, session.session_id.as_str(), Expect::Absent, session)?;
    step.put(TOKENS, token.token_id.as_str(), Expect::Absent, token)?;
    announce(&mut step, session, SessionChange::Created, &session.created_by, session.created_at)?;
    step.commit(&*services.store).await.map(drop)
}

/// Ends a session: it takes no new action, and none of its tokens is valid. What has begun continues.
pub(super) async fn end(services: &Services, id: &SessionId, by: &Principal) -> Result<(), StoreError> {
    let _lock = services.connections.changes.lock().await;
    let Versioned { value: mut session, version } = known(&*services.store, id)?;
    let now = services.clock.now();
    session.ended_at.get_or_insert(now);
    let mut step = Step::default();
    step.put(SESSIONS, id.as_str(), Expect::Version(version), &session)?;
    announce(&mut step, &session, SessionChange::Ended, by, now)?;
    step.commit(&*services.store).await.map(drop)
}

/// Deletes a session. If this fails after the first step, the sweeper does the others.
pub(super) async fn delete(services: &Services, id: &SessionId, by: &Principal) -> Result<(), StoreError> {
    let lock = services.connections.changes.lock().await;
    let Versioned { value: session, version } = known(&*services.store, id)?;
    let at = services.clock.now();
    let mut step = Step::default();
    step.delete(SESSIONS, id.as_str(), Expect::Version(version))?;
    announce(&mut step, &session, SessionChange::Deleted, by, at)?;
    let session = Session { title: String::new(), ..session };
    let deleted = Deleted { session, by: by.clone(), at, done: false };
    step.put(DELETED, id.as_str(), Expect::Absent, &deleted)?;
    step.commit(&*services.store).await?;
    drop(lock);
    hit_idle("session.marked").await;
    finish(services, deleted).await
}

fn announce(
    step: &mut Step,
    session: &Session,
    what: SessionChange,
    by: &Principal,
    at: Timestamp,
) -> Result<(), StoreError> {
    let data = SessionData {
        what,
        session_id: session.session_id.clone(),
        org: session.org.clone(),
        subject_id: session.subject_id.clone(),
        by: by.clone(),
    };
    let about = format!("session:{}", session.session_id);
    step.announce(Topic::Sessions, data, about, (session.space_id.clone(), at))
}

/// Steps 2 to 6.
async fn finish(services: &Services, mut deleted: Deleted) -> Result<(), StoreError> {
    clear(services, &deleted).await?;
    deleted.done = true;
    let mut step = Step::default();
    step.put(DELETED, deleted.session.session_id.as_str(), Expect::Any, &deleted)?;
    step.commit(&*services.store).await?;
    hit_idle("session.done").await;
    Ok(())
}

/// Steps 2 to 5.
async fn clear(services: &Services, deleted: &Deleted) -> Result<(), StoreError> {
    let id = &deleted.session.session_id;
    let mut after = None;
    loop {
        let (holds, next) = repository::holds(&*services.store, after.as_deref())?;
        for hold in holds {
            if hold.value.session == id.as_str() && hold.value.state == HoldState::Pending {
                expiry::deny_of_deleted(services, &hold).await?;
            }
        }
        match next {
            Some(next) => after = Some(next),
            None => break,
        }
    }
    hit_idle("session.holds").await;
    grants::revoke_of(services, id.as_str(), &deleted.by).await?;
    hit_idle("session.grants").await;
    let (store, session) = (services.store.clone(), deleted.session.clone());
    blocking(move || {
        tokens::remove(&*store, Some(&session.session_id))?;
        let is_of = |letter: &DeadLetter| {
            let origin = dead_letters::decision(letter).map(|decision| decision.origin);
            origin == Some(Origin::Session { session_id: session.session_id.clone() })
        };
        erasure::purge(&*store, &erasure::letters_where(&*store, is_of)?)
    })
    .await?;
    hit_idle("session.letters").await;
    let (store, session) = (services.store.clone(), deleted.session.clone());
    let (blobs, identity) = (services.files.blobs.clone(), services.identity.clone());
    blocking(move || destroy_blobs(&*store, &blobs, &identity, &session)).await?;
    hit_idle("session.blobs").await;
    Ok(())
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, StoreError> + Send + 'static,
) -> Result<T, StoreError> {
    let done = tokio::task::spawn_blocking(work).await;
    done.unwrap_or_else(|error| Err(StoreError::unavailable_by("the work was cut short", error)))
}

/// Destroys the blobs that receipts of the session name. A space stores equal content once: what an action in flight needs for its
/// undo, or a receipt names that belongs to no deleted session, stays. So does what is stored or used again meanwhile: the sweeper
/// looks at it once more.
fn destroy_blobs(
    store: &dyn Store,
    blobs: &Blobs,
    identity: &Identity,
    session: &Session,
) -> Result<(), StoreError> {
    let (id, space, mut own) = (&session.session_id, &session.space_id, BTreeMap::new());
    let of_session = ReceiptQuery { session: Some(id.clone()), ..ReceiptQuery::default() };
    erasure::each_blob(store, of_session, |_, kind, name| {
        let age = blobs.age(kind, space, name);
        Ok(age.map(|age| own.entry((kind, name.to_owned())).or_insert(age)).is_some())
    })?;
    // Only a result has a name of its own.
    if own.keys().any(|(kind, _)| *kind != BlobKind::Results) {
        // Before the receipts: an action that ends meanwhile is among those.
        each_intent(store, |open| {
            let intent = open.intent.bytes().filter(|_| open.space == *space).and_then(Intent::from_bytes);
            for seen in intent.and_then(|intent| intent.before).into_iter().flatten() {
                if let PathState::File(file) = seen.standing {
                    own.remove(&(BlobKind::Preimages, keyed_name(identity, &file.digest)));
                }
            }
        })?;
        let of_space = ReceiptQuery { space_id: Some(space.clone()), ..ReceiptQuery::default() };
        erasure::each_blob(store, of_space, |receipt, kind, name| {
            let blob = (kind, name.to_owned());
            Ok(own.contains_key(&blob) && !is_deleted(store, &receipt.origin)? && own.remove(&blob).is_some())
        })?;
    }
    own.iter().try_for_each(|((kind, name), age)| {
        let destroyed = blobs.remove_unless_renewed(*kind, space, name, *age);
        destroyed.map_err(|error| StoreError::unavailable_by("a blob could not be destroyed", error))
    })
}

/// Finishes deletions that a dead process left, and removes records that are no longer needed. One that fails stops no other.
pub(crate) async fn sweep(services: &Services) -> Result<(), StoreError> {
    for entry in entries(&*services.store, &family(DELETED)?, SESSIONS_PAGE) {
        let entry = entry?;
        if let Err(error) = settle(services, &entry).await {
            let session = entry.key.as_str();
            tracing::warn!(%error, session, "a deleted session could not be cleared; the sweeper tries again");
        }
    }
    Ok(())
}

async fn settle(services: &Services, entry: &KvEntry) -> Result<(), StoreError> {
    let Versioned { value: deleted, version } = read::<Deleted>(entry)?;
    let now = services.clock.now();
    if !deleted.done {
        finish(services, deleted).await?;
    } else if deleted.at < now.checked_sub(SESSION_DELETED_KEPT).unwrap_or(now) {
        clear(services, &deleted).await?;
        let mut step = Step::default();
        step.delete(DELETED, &entry.key, Expect::Version(version))?;
        step.commit(&*services.store).await?;
    }
    Ok(())
}
