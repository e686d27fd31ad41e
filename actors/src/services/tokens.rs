//! Tokens: who holds one, and what it may be used for.
//!
//! A token is `efd_<kind>_<id>_<secret><crc>`: 256 random bits and a checksum over all before it, so that scanners find a lost token
//! and a misspelt one costs no lookup. The Store has the SHA-256 of the whole, and never the token itself. A slow hash is for
//! passwords, not for 256 random bits. [`crate::operator::tokens`] creates, rotates and revokes them.

use effectd_bus::{Expect, FamilyName, Store, StoreError};
use effectd_contracts::{Digest, IdInvalid, OrgId, Principal, SessionId, Timestamp, TokenId, TokenKind};
use serde::{Deserialize, Serialize};
use subtle::ConstantTimeEq;
use zeroize::Zeroizing;

use super::Services;
use super::connections::SecretValue;
use super::sessions::session;
use crate::stored::{put, read_json, swap_all};

/// Tokens by id, in clear.
pub(crate) const TOKENS: &str = "tokens";

const PREFIX: &str = "efd_";
/// What the principals of accounts begin with.
pub(crate) const ACCOUNT: &str = "account://";
/// 256 bits in base 62.
const SECRET_CHARS: usize = 43;
/// 32 bits in base 62.
const CRC_CHARS: usize = 6;

/// Who holds a token, as the token's record or a verified JWT says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Claims {
    /// The token's public id; for a JWT, its principal. Its rate is counted by it.
    pub token_id: String,
    /// By whom connections, streams and memory are counted: the principal, or the account that made its session. A new session gives
    /// an account no more of them.
    pub account: Principal,
    pub kind: TokenKind,
    pub org: OrgId,
    /// `session://<org>/<session>` for a sandbox, `account://<org>/<name>` otherwise.
    pub principal: Principal,
    /// The session of a sandbox token.
    pub session: Option<SessionId>,
    /// The roles that a JWT's claims give, beside those that the policy gives to the principal.
    pub roles: Vec<String>,
    pub expires_at: Option<Timestamp>,
}

/// The record of a token.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Token {
    pub token_id: TokenId,
    pub kind: TokenKind,
    pub org: OrgId,
    /// The session of a sandbox. Its token is valid no longer than the session takes actions.
    pub session_id: Option<SessionId>,
    /// The account of a user or a service.
    pub name: Option<String>,
    /// Of the whole token.
    pub(crate) hash: Digest,
    pub created_by: Principal,
    pub created_at: Timestamp,
    pub not_before: Option<Timestamp>,
    pub expires_at: Option<Timestamp>,
    pub revoked_at: Option<Timestamp>,
    /// The day of the last use: `2026-11-18`.
    pub last_used: Option<String>,
}

impl Token {
    /// Whether it is valid now. The token of a sandbox ends with its session.
    pub fn is_valid(&self, store: &dyn Store, now: Timestamp) -> Result<bool, StoreError> {
        if self.has_ended(now) || self.not_before.is_some_and(|from| now < from) {
            return Ok(false);
        }
        match &self.session_id {
            Some(id) => Ok(session(store, id.as_str())?.is_some_and(|session| session.ended_at.is_none())),
            None => Ok(true),
        }
    }

    /// Whether it is revoked or expired.
    pub(crate) fn has_ended(&self, now: Timestamp) -> bool {
        self.revoked_at.is_some() || self.expires_at.is_some_and(|end| end <= now)
    }

    pub fn principal(&self) -> Result<Principal, IdInvalid> {
        match &self.session_id {
            Some(session) => Principal::new(format!("session://{}/{session}", self.org)),
            None => account(&self.org, self.name.as_deref().unwrap_or_default()),
        }
    }
}

/// The principal of an account. Neither name has a slash, so that no two organisations share one, and no account's action id, which
/// begins with its principal, is that of another.
pub fn account(org: &OrgId, name: &str) -> Result<Principal, IdInvalid> {
    if !is_account_name(name) || org.as_str().contains('/') {
        return Err(IdInvalid::NotPrintable { kind: "the name of an account" });
    }
    Principal::new(format!("{ACCOUNT}{org}/{name}"))
}

/// Letters, digits and punctuation of ASCII, but neither `/` nor `*`.
pub(crate) fn is_account_name(name: &str) -> bool {
    !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_graphic() && !b"/*".contains(&byte))
}

/// A token by its id.
pub fn token(store: &dyn Store, id: &str) -> Result<Option<Token>, StoreError> {
    Ok(store.entry(&FamilyName::new(TOKENS)?, id)?.as_ref().and_then(read_json))
}

/// One page of them, the oldest first.
pub fn list(
    store: &dyn Store,
    after: Option<&str>,
    max: usize,
) -> Result<(Vec<Token>, Option<String>), StoreError> {
    let page = store.entries(&FamilyName::new(TOKENS)?, "", after, max)?;
    Ok((page.entries.iter().filter_map(read_json).collect(), page.after))
}

/// A new token, and its hash.
pub(crate) fn mint(kind: TokenKind, id: &TokenId) -> Result<(SecretValue, Digest), StoreError> {
    let mut random = Zeroizing::new([0; 32]);
    getrandom::fill(&mut *random)
        .map_err(|error| StoreError::unavailable(format!("the system gives no randomness: {error}")))?;
    let secret = Zeroizing::new(base62(&*random, SECRET_CHARS));
    let mut token = format!("{PREFIX}{}_{id}_{}", kind.as_str(), *secret);
    token += &checksum(&token);
    let hash = Digest::of(token.as_bytes());
    Ok((SecretValue::from(token), hash))
}

fn checksum(text: &str) -> String {
    base62(&crc32fast::hash(text.as_bytes()).to_be_bytes(), CRC_CHARS)
}

/// A number in base 62, with leading zeros.
fn base62(number: &[u8], width: usize) -> String {
    const DIGITS: &[u8; 62] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
    let mut number = Zeroizing::new(number.to_vec());
    let mut digits = vec!['0'; width];
    for digit in digits.iter_mut().rev() {
        let mut rest = 0;
        for byte in number.iter_mut() {
            let all = (rest << 8) | u32::from(*byte);
            // Less than 256, as the rest is less than 62.
            *byte = u8::try_from(all / 62).unwrap_or_default();
            rest = all % 62;
        }
        *digit = char::from(DIGITS[rest as usize]);
    }
    digits.into_iter().collect()
}

/// The id in a text that can be a token: its kind, its length and its checksum are right.
fn id_of(token: &str) -> Option<&str> {
    let (before, crc) = token.split_at_checked(token.len().checked_sub(CRC_CHARS)?)?;
    let rest = before.strip_prefix(PREFIX)?;
    let (kind, rest) = rest.split_once('_')?;
    let (id, secret) = rest.split_once('_')?;
    let fits = TokenKind::ALL.iter().any(|known| known.as_str() == kind)
        && secret.len() == SECRET_CHARS
        && checksum(before) == crc;
    fits.then_some(id).filter(|id| TokenId::new(*id).is_ok())
}

/// Whether a text looks like a token of effectd's own.
pub fn is_own(text: &str) -> bool {
    text.starts_with(PREFIX)
}

/// Who holds this token; `None` if it is misspelt, unknown, or not valid now. Notes the day of its use.
pub async fn holder(services: &Services, text: &str) -> Result<Option<Claims>, StoreError> {
    let (store, now) = (&*services.store, services.clock.now());
    let Some(id) = id_of(text) else {
        return Ok(None);
    };
    let found = token(store, id)?;
    // An unknown id is compared, too, and takes as long as a wrong secret.
    let expected = found.as_ref().map_or_else(|| Digest::from_bytes([0; 32]), |token| token.hash);
    let is_same = bool::from(Digest::of(text.as_bytes()).as_bytes().ct_eq(expected.as_bytes()));
    let Some(token) = found.filter(|_| is_same) else {
        return Ok(None);
    };
    if !token.is_valid(store, now)? {
        return Ok(None);
    }
    note_use(services, &token, &now.to_string()[..DAY_CHARS]).await;
    let principal = token.principal()?;
    // The users of the socket are known to the machine: their sessions are counted one by one.
    let is_made = token.session_id.is_some() && token.created_by.as_str().starts_with(ACCOUNT);
    Ok(Some(Claims {
        token_id: token.token_id.to_string(),
        account: if is_made { token.created_by } else { principal.clone() },
        kind: token.kind,
        org: token.org,
        principal,
        session: token.session_id,
        roles: Vec::new(),
        expires_at: token.expires_at,
    }))
}

/// The day in a time: `2026-11-18`.
const DAY_CHARS: usize = 10;

/// Writes the day of the last use, once a day. If somebody changes a token just now, the next request does it.
async fn note_use(services: &Services, used: &Token, day: &str) {
    if used.last_used.as_deref() == Some(day) {
        return;
    }
    let Ok(_lock) = services.connections.changes.try_lock() else {
        return;
    };
    let (store, id) = (&*services.store, used.token_id.as_str());
    let written = async {
        let family = FamilyName::new(TOKENS)?;
        let entry = store.entry(&family, id)?;
        if let Some((token, entry)) = entry.and_then(|entry| Some((read_json::<Token>(&entry)?, entry))) {
            let token = Token { last_used: Some(day.to_owned()), ..token };
            swap_all(store, vec![put(family, id, Expect::Version(entry.version), &token)]).await?;
        }
        Ok::<_, StoreError>(())
    };
    if let Err(error) = written.await {
        tracing::debug!(%error, token_id = id, "the day of a token's last use could not be written");
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_number_in_base_62_has_its_width() {
        assert_eq!(base62(&[0; 32], SECRET_CHARS), "0".repeat(SECRET_CHARS));
        assert_eq!(base62(&u32::MAX.to_be_bytes(), CRC_CHARS), "4gfFC3");
        assert_eq!(base62(&[0, 61], 2), "0z");
        assert_eq!(base62(&[0, 62], 2), "10");
        assert_ne!(base62(&[255; 32], SECRET_CHARS).as_bytes()[0], b'0', "every digit is needed");
    }

    #[test]
    fn only_a_text_with_the_right_checksum_can_be_a_token() {
        let id = TokenId::fresh();
        let (value, hash) = mint(TokenKind::User, &id).unwrap();
        let token = value.as_str();
        assert_eq!(id_of(token), Some(id.as_str()));
        assert_eq!(hash, Digest::of(token.as_bytes()));
        assert_eq!(token.len(), "efd_user_".len() + 32 + 1 + SECRET_CHARS + CRC_CHARS);
        assert_ne!(mint(TokenKind::User, &id).unwrap().0, value, "the secret is random");
        let swapped = |text: String| format!("{text}{}", checksum(&text));
        let before = &token[..token.len() - CRC_CHARS];
        for wrong in [
            String::new(),
            "efd_".to_owned(),
            "é".repeat(20),
            before.to_owned(),
            format!("{token}0"),
            token[1..].to_owned(),
            token.replace("user", "service"),
            token.replacen('e', "E", 1),
            // The checksum is right, and the form is not.
            swapped(before[..before.len() - 1].to_owned()),
            swapped(before.replace("user", "root")),
            swapped(before.replace("efd_", "eff_")),
            swapped(before.replace(id.as_str(), "")),
        ] {
            assert_eq!(id_of(&wrong), None, "{wrong}");
        }
        // Each place is covered by the checksum.
        for at in 0..token.len() {
            let mut bytes = token.as_bytes().to_vec();
            bytes[at] = if bytes[at] == b'x' { b'y' } else { b'x' };
            assert_eq!(id_of(std::str::from_utf8(&bytes).unwrap()), None, "{at}");
        }
    }

    #[test]
    fn no_two_organisations_share_an_account() {
        let org = OrgId::new("office").unwrap();
        assert_eq!(account(&org, "ada@example.org").unwrap().as_str(), "account://office/ada@example.org");
        for wrong in ["", "a/b", "*", "a b", "é", "a\n"] {
            assert!(account(&org, wrong).is_err(), "{wrong:?}");
        }
        // The action `c/x` of `account://a/b` would be the action `x` of `account://a/b/c`.
        assert!(account(&OrgId::new("a/b").unwrap(), "c").is_err());
    }
}
