//! Who sends a request over TCP: the holder of the token in its `Authorization` header, or who is signed in to the console.

use std::sync::Arc;

use axum::http::{HeaderMap, header};
use effectd_actors::operator::connections;
use effectd_actors::services::tokens::{self, Claims};
use effectd_bus::StoreError;
use effectd_contracts::OrgId;

use crate::app::App;
use crate::limits::JWKS_BYTES_MAX;
use crate::oidc;
use crate::peer::{Caller, Peer};
use crate::problem::{Kind, Problem};
use crate::signed_in;

/// The holder of a request's token. Everything that is wrong with a token has the same answer, so that nobody learns which ids exist.
/// Only a request with a valid token counts against the token's rate.
pub(crate) async fn peer(app: &App, headers: &HeaderMap) -> Result<Peer, Problem> {
    let token = bearer(headers).ok_or_else(|| {
        let why = "send one header `Authorization: Bearer …` with a token; `effectd tokens create` makes one";
        Problem::of(Kind::Unauthenticated, why)
    })?;
    let claims = holder(app, token).await?;
    check_rate(app, &claims)?;
    let principal = claims.principal.clone();
    Ok(Peer { caller: Caller::Token(Arc::new(claims)), principal, operator: false })
}

/// Who is signed in to the console with this request's cookie. Nobody is any more whose token has ended.
pub(crate) fn signed_in(app: &App, headers: &HeaderMap) -> Result<Option<Peer>, Problem> {
    let Some(value) = signed_in::cookie(headers, app.settings().is_tls()) else {
        return Ok(None);
    };
    let Some(peer) = app.signed_in.peer(value, app.services().clock.now()) else {
        return Ok(None);
    };
    if !still_valid(app, &peer) {
        app.signed_in.leave(value);
        return Ok(None);
    }
    if let Some(claims) = peer.claims() {
        check_rate(app, claims)?;
    }
    Ok(Some(peer))
}

/// Who holds this token.
pub(crate) async fn holder(app: &App, token: &str) -> Result<Claims, Problem> {
    let claims = if tokens::is_own(token) {
        tokens::holder(app.services(), token).await?
    } else {
        let (services, settings) = (app.services().clone(), app.settings());
        let clock = services.clock.clone();
        let keys = |org: OrgId, source: String| async move {
            connections::fetch(&services, &org, &source, JWKS_BYTES_MAX as usize).await
        };
        app.oidc.holder(&settings.oidc, token, &*clock, keys).await
    };
    claims.ok_or_else(not_valid)
}

fn check_rate(app: &App, claims: &Claims) -> Result<(), Problem> {
    if let Some(rate) = &app.token_rate {
        rate.check(&claims.token_id).map_err(|throttled| throttled.failure())?;
    }
    Ok(())
}

pub(crate) fn not_valid() -> Problem {
    let why = "the token is not valid: it is misspelt or unknown, has expired, or was revoked";
    Problem::of(Kind::Unauthenticated, why)
}

/// The token of the one `Authorization` header. A token elsewhere, as in the query, is in logs and histories: it counts as none.
fn bearer(headers: &HeaderMap) -> Option<&str> {
    let mut given = headers.get_all(header::AUTHORIZATION).iter();
    let (Some(value), None) = (given.next(), given.next()) else {
        return None;
    };
    let (scheme, token) = value.to_str().ok()?.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| token.trim())
}

/// Whether the token of a peer, if it came with one, is still valid: who holds a stream open or waits is asked again.
pub(crate) fn still_valid(app: &App, peer: &Peer) -> bool {
    let Some(claims) = peer.claims() else { return true };
    let (services, now) = (app.services(), app.services().clock.now());
    if claims.token_id == claims.principal.as_str() {
        return oidc::still_valid(&app.settings().oidc, claims, now);
    }
    let found = tokens::token(&*services.store, &claims.token_id);
    let valid =
        found.and_then(|found| found.map_or(Ok(false), |token| token.is_valid(&*services.store, now)));
    valid.unwrap_or_else(|error: StoreError| {
        tracing::warn!(%error, "a token cannot be read; it counts as not valid");
        false
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn one_header_names_one_token() {
        let token = |values: &[&str]| {
            let mut headers = HeaderMap::new();
            for value in values {
                headers.append(header::AUTHORIZATION, value.parse().unwrap());
            }
            bearer(&headers).map(str::to_owned)
        };
        assert_eq!(token(&["Bearer efd_x"]).as_deref(), Some("efd_x"));
        assert_eq!(token(&["bearer  efd_x "]).as_deref(), Some("efd_x"));
        for none in [
            &[][..],
            &["Basic ZWZkOng="],
            &["efd_x"],
            &["Bearer"],
            &["Bearerefd_x"],
            &["Bearer efd_x", "Bearer efd_x"],
            &["Basic ZWZkOng=", "Bearer efd_x"],
        ] {
            assert_eq!(token(none), None, "{none:?}");
        }
    }
}
