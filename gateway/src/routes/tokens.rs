//! Tokens, for operators at the socket: list, create, revoke and rotate them. A value is in the answer that creates it, and nowhere else.

use axum::extract::State;
use effectd_actors::services::{sessions, tokens};
use effectd_contracts::{Operation, TokenId, filter};

use super::operations::{self, ChangeOf, ChangeQuery};
use crate::app::{App, AppState};
use crate::extract::{After, Json, Operator, Payload, Query, Reply, Viewer};
use crate::limits::LIST_DEFAULT;
use crate::problem::{Kind, Problem, Problems};
use crate::views::operations::OperationView;
use crate::views::tokens::{TokenBody, TokenList, TokenView};

/// Tokens, without their values
#[utoipa::path(get, path = "/v1/tokens", tag = "tokens",
    params(After),
    responses((status = 200, description = "A page of them", body = TokenList), Problems<403>))]
pub(crate) async fn list(
    State(app): AppState,
    _: Viewer,
    Query(After { after }): Query<After>,
) -> Reply<TokenList> {
    let list = move |app: &App| {
        let (found, next) = tokens::list(app.store(), after.as_deref(), LIST_DEFAULT)?;
        let now = app.services().clock.now();
        let views = found.into_iter().map(|token| TokenView::of(app.store(), token, now));
        Ok(TokenList { tokens: views.collect::<Result<_, _>>()?, next })
    };
    app.blocking(list).await.map(Json)
}

/// Create a token
///
/// The answer's `token` is its value, which is shown this once; `id` is the part of it that is no secret. Who is neither root nor the
/// daemon's user also needs the role `admin`.
#[utoipa::path(post, path = "/v1/tokens", tag = "tokens",
    params(ChangeQuery),
    request_body(content = TokenBody, content_type = "application/json"),
    responses((status = 200, description = "It is created, or would be", body = OperationView), Problems<400, 403, 404, 409>))]
pub(crate) async fn create(
    State(app): AppState,
    by: Operator,
    Query(query): Query<ChangeQuery>,
    body: Payload,
) -> Reply<OperationView> {
    by.check_administers(&app)?;
    let (body, _share): (TokenBody, _) = app.json_body(body, Kind::QueryInvalid).await?;
    let TokenBody { kind, session_id, org, name, not_before, lasts } = body;
    let org = match (&session_id, org) {
        (Some(id), None) => {
            let found = sessions::session(app.store(), id.as_str())?;
            found.ok_or_else(|| Problem::of(Kind::NotFound, "there is no such session"))?.org
        }
        (None, Some(org)) => org,
        (Some(_), Some(_)) | (None, None) => {
            let why = "a sandbox token needs a session, any other an organisation and a name";
            return Err(Problem::of(Kind::QueryInvalid, why));
        }
    };
    let begins = not_before.unwrap_or_else(|| app.services().clock.now());
    let expires_at = lasts.as_deref().map(|lasts| filter::end_of(lasts, begins)).transpose();
    let expires_at = expires_at.map_err(|error| Problem::of(Kind::QueryInvalid, error.to_string()))?;
    let id = TokenId::fresh();
    let shown = id.to_string();
    let operation = Operation::CreateToken { id, kind, org, session_id, name, not_before, expires_at };
    operations::create(&app, &by.0, (operation, shown), query).await
}

/// Revoke a token
///
/// The next request with it is refused, as is one that waits, and streams that it holds open end. Repeating this is harmless.
#[utoipa::path(post, path = "/v1/tokens/{id}/revoke", tag = "tokens",
    params(ChangeQuery),
    responses((status = 200, description = "It is revoked, or would be", body = OperationView), Problems<400, 403, 404>))]
pub(crate) async fn revoke(_: Operator, change: ChangeOf) -> Reply<OperationView> {
    let id = token_id(&change)?;
    change.by(Operation::RevokeToken { id }).await
}

/// Replace a token by another one with the same rights and the same end
///
/// The old one is revoked at once. The answer is that of a new token.
#[utoipa::path(post, path = "/v1/tokens/{id}/rotate", tag = "tokens",
    params(ChangeQuery),
    responses((status = 200, description = "It is replaced, or would be", body = OperationView), Problems<400, 403, 404, 409>))]
pub(crate) async fn rotate(by: Operator, change: ChangeOf) -> Reply<OperationView> {
    by.check_administers(&change.app)?;
    let (id, next) = (token_id(&change)?, TokenId::fresh());
    let shown = next.to_string();
    let operation = Operation::RotateToken { id, next };
    operations::create(&change.app, &change.peer, (operation, shown), change.query).await
}

fn token_id(change: &ChangeOf) -> Result<TokenId, Problem> {
    TokenId::new(change.id.as_str()).map_err(|error| Problem::of(Kind::NotFound, error.to_string()))
}
