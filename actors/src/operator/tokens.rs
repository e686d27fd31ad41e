//! Creates, revokes and rotates tokens. The value of a new token is in the answer alone.

use std::sync::Arc;

use effectd_bus::{Expect, FamilyName, Store, StoreError};
use effectd_contracts::{Digest, OrgId, Principal, Session, SessionId, Timestamp, TokenId, TokenKind};

use super::connections::{bounded, check_org, has_room, no_such};
use super::service::blocking;
use crate::approvals::repository::{Step, Versioned, read};
use crate::limits::{ACCOUNT_BYTES_MAX, TOKENS_ORG_MAX, TOKENS_PAGE, TOKENS_SESSION_MAX};
use crate::services::Services;
use crate::services::connections::SecretValue;
use crate::services::sessions::session;
use crate::services::tokens::{TOKENS, Token, is_account_name, mint};
use crate::stored::{entries, read_json};

pub(super) fn known(store: &dyn Store, id: &TokenId) -> Result<Versioned<Token>, StoreError> {
    let entry = store.entry(&FamilyName::new(TOKENS)?, id.as_str())?;
    read(&entry.ok_or_else(|| no_such(format!("there is no token {id}")))?)
}

/// The record of a new token, before its secret is made.
pub(super) fn record(
    token_id: TokenId,
    kind: TokenKind,
    org: OrgId,
    (created_by, created_at): (Principal, Timestamp),
) -> Token {
    Token {
        token_id,
        kind,
        org,
        session_id: None,
        name: None,
        hash: Digest::from_bytes([0; 32]),
        created_by,
        created_at,
        not_before: None,
        expires_at: None,
        revoked_at: None,
        last_used: None,
    }
}

/// The first token of a new session.
pub(super) fn of_session(session: &Session) -> Result<(Token, SecretValue), StoreError> {
    let id = TokenId::fresh();
    let (value, hash) = mint(TokenKind::Sandbox, &id)?;
    let by = (session.created_by.clone(), session.created_at);
    let token = record(id, TokenKind::Sandbox, session.org.clone(), by);
    let token = Token { session_id: Some(session.session_id.clone()), hash, ..token };
    // The ids of the session and its organisation may be too long for a principal.
    token.principal()?;
    Ok((token, value))
}

/// Refuses a token that cannot be created, in place of this one if any. Returns the records that go when it is.
pub(super) fn check(
    services: &Services,
    new: &Token,
    replaced: Option<&TokenId>,
) -> Result<Vec<TokenId>, StoreError> {
    let (store, now) = (&*services.store, services.clock.now());
    let invalid = |why: &str| Err(StoreError::Invalid(why.to_owned()));
    check_org(services, &new.org)?;
    match (new.kind, &new.session_id, &new.name) {
        (TokenKind::Sandbox, Some(id), None) => {
            let found = session(store, id.as_str())?.filter(|found| found.ended_at.is_none());
            if found.is_none_or(|found| found.org != new.org) {
                return Err(no_such(format!("{} has no open session {id}", new.org)));
            }
        }
        (TokenKind::User | TokenKind::Service, None, Some(name)) => {
            bounded("name of an account", name.len(), ACCOUNT_BYTES_MAX)?;
            if !is_account_name(name) || new.org.as_str().contains('/') {
                return invalid(
                    "the name of an account is ASCII text without blanks, `/` and `*`, and its organisation's has no `/`",
                );
            }
        }
        (TokenKind::Sandbox, ..) => return invalid("a sandbox token needs a session, and has no name"),
        (TokenKind::User | TokenKind::Service, ..) => {
            return invalid("a token of this kind needs the name of an account, and has no session");
        }
    }
    new.principal()?;
    if new.expires_at.is_some_and(|end| end <= now || new.not_before.is_some_and(|from| end <= from)) {
        let why = "a token must end after it begins, and in the future";
        return Err(StoreError::StateConflict(why.to_owned()));
    }
    let (mut size, mut gone) = (1, Vec::new());
    for entry in entries(store, &FamilyName::new(TOKENS)?, TOKENS_PAGE) {
        // One that cannot be read is nobody's: it opens nothing, and stops no other.
        let Some(token) = read_json::<Token>(&entry?) else { continue };
        if token.org != new.org || token.session_id != new.session_id {
            continue;
        }
        if token.has_ended(now) || Some(&token.token_id) == replaced {
            gone.push(token.token_id);
        } else {
            size += 1;
        }
    }
    match new.session_id {
        Some(_) => has_room("number of tokens of one session (revoke some)", size, TOKENS_SESSION_MAX)?,
        None => has_room("number of tokens of one organisation (revoke some)", size, TOKENS_ORG_MAX)?,
    }
    Ok(gone)
}

pub(super) async fn create(services: &Arc<Services>, new: Token) -> Result<SecretValue, StoreError> {
    let _lock = services.connections.changes.lock().await;
    let (gone, new) = blocking(services, move |services| Ok((check(services, &new, None)?, new))).await?;
    write(services, new, &gone).await
}

/// Writes a new token and removes the others, in one step.
async fn write(services: &Services, new: Token, gone: &[TokenId]) -> Result<SecretValue, StoreError> {
    let mut step = Step::default();
    gone.iter().try_for_each(|id| step.delete(TOKENS, id.as_str(), Expect::Any))?;
    let (value, hash) = mint(new.kind, &new.token_id)?;
    let new = Token { hash, ..new };
    step.put(TOKENS, new.token_id.as_str(), Expect::Absent, &new)?;
    step.commit(&*services.store).await?;
    Ok(value)
}

/// Revokes a token: the next request with it is refused.
pub(super) async fn revoke(services: &Services, id: &TokenId) -> Result<(), StoreError> {
    let _lock = services.connections.changes.lock().await;
    let Versioned { value: mut token, version } = known(&*services.store, id)?;
    token.revoked_at.get_or_insert(services.clock.now());
    let mut step = Step::default();
    step.put(TOKENS, id.as_str(), Expect::Version(version), &token)?;
    step.commit(&*services.store).await.map(drop)
}

/// The token that would replace this one. Refuses one that is not valid.
pub(super) fn successor(
    services: &Services,
    id: &TokenId,
    next: &TokenId,
    by: &Principal,
) -> Result<(Token, Vec<TokenId>), StoreError> {
    let (store, now) = (&*services.store, services.clock.now());
    let token = known(store, id)?.value;
    if !token.is_valid(store, now)? {
        let why = format!("the token {id} is not valid now: create another one");
        return Err(StoreError::StateConflict(why));
    }
    let (created_by, created_at) = (by.clone(), now);
    let next = Token { token_id: next.clone(), created_by, created_at, last_used: None, ..token };
    let gone = check(services, &next, Some(id))?;
    Ok((next, gone))
}

/// Replaces a token by its successor, in one step.
pub(super) async fn rotate(
    services: &Arc<Services>,
    (id, next): (TokenId, TokenId),
    by: Principal,
) -> Result<SecretValue, StoreError> {
    let _lock = services.connections.changes.lock().await;
    let (next, gone) = blocking(services, move |services| successor(services, &id, &next, &by)).await?;
    write(services, next, &gone).await
}

/// Removes the tokens of a deleted session; without one, all of a state that was just restored, since its backup also has those that were
/// revoked later. Blocks.
pub fn remove(store: &dyn Store, of: Option<&SessionId>) -> Result<(), StoreError> {
    let mut gone = Vec::new();
    for entry in entries(store, &FamilyName::new(TOKENS)?, TOKENS_PAGE) {
        let entry = entry?;
        let is_of = |token: Token| token.session_id.as_ref() == of;
        if of.is_none() || read_json(&entry).is_some_and(is_of) {
            gone.push(entry.key);
        }
    }
    for page in gone.chunks(TOKENS_PAGE) {
        let mut step = Step::default();
        page.iter().try_for_each(|id| step.delete(TOKENS, id, Expect::Any))?;
        step.commit(store).wait()?;
    }
    Ok(())
}
