//! Tokens in JSON. No list has the value of one.

use effectd_actors::services::tokens::Token;
use effectd_bus::{Store, StoreError};
use effectd_contracts::{OrgId, SessionId, Timestamp, TokenKind};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// A token without its value.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TokenView {
    pub token_id: String,
    /// `sandbox`, `user` or `service`.
    pub kind: String,
    pub org: String,
    /// Who its holder is.
    pub principal: String,
    /// `valid`, `not_yet` (before `not_before`), `expired`, `revoked`, or `ended` with its session.
    pub state: String,
    pub created_by: String,
    pub created_at: String,
    pub not_before: Option<String>,
    pub expires_at: Option<String>,
    pub revoked_at: Option<String>,
    /// The day of its last use: `2026-11-18`.
    pub last_used: Option<String>,
}

impl TokenView {
    pub(crate) fn of(store: &dyn Store, token: Token, now: Timestamp) -> Result<Self, StoreError> {
        let state = if token.revoked_at.is_some() {
            "revoked"
        } else if token.expires_at.is_some_and(|end| end <= now) {
            "expired"
        } else if token.not_before.is_some_and(|from| now < from) {
            "not_yet"
        } else if token.is_valid(store, now)? {
            "valid"
        } else {
            "ended"
        };
        let text = |at: Option<Timestamp>| at.map(|at| at.to_string());
        Ok(Self {
            principal: token.principal()?.to_string(),
            token_id: token.token_id.to_string(),
            kind: token.kind.as_str().to_owned(),
            org: token.org.to_string(),
            state: state.to_owned(),
            created_by: token.created_by.to_string(),
            created_at: token.created_at.to_string(),
            not_before: text(token.not_before),
            expires_at: text(token.expires_at),
            revoked_at: text(token.revoked_at),
            last_used: token.last_used,
        })
    }
}

/// A page of tokens.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TokenList {
    /// Oldest first.
    pub tokens: Vec<TokenView>,
    /// The `after` of the next page.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
}

/// A new token.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct TokenBody {
    #[schema(value_type = String)]
    pub kind: TokenKind,
    /// The session of a sandbox, and of no other.
    #[schema(value_type = Option<String>)]
    pub session_id: Option<SessionId>,
    /// The organisation of an account, and of no sandbox.
    #[schema(value_type = Option<String>)]
    pub org: Option<OrgId>,
    /// The account: ASCII text without blanks, `/` and `*`.
    pub name: Option<String>,
    /// Since when it is valid; at once if left out.
    #[schema(value_type = Option<String>)]
    pub not_before: Option<Timestamp>,
    /// How long it is valid (`90d`); until it is revoked if left out.
    pub lasts: Option<String>,
}
