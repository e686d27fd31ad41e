//! Who sends a request over TCP: the holder of the token in its `Authorization` header.

use std::sync::Arc;

use axum::http::{HeaderMap, header};
use effectd_actors::services::tokens::{self, Claims};
use effectd_bus::StoreError;

use crate::app::App;
use crate::oidc;
use crate::peer::{Caller, Peer};
use crate::problem::{Kind, Problem};

/// The holder of a request's token. Everything that is wrong with a token has the same answer, so that nobody learns which ids exist.
/// Only a request with a valid token counts against the token's rate.
pub(crate) async fn peer(app: &App, headers: &HeaderMap) -> Result<Peer, Problem> {
    let token = bearer(headers).ok_or_else(|| {
        let why = "send one header `Authorization: Bearer …` with a token; `effectd tokens create` makes one";
        Problem::of(Kind::Unauthenticated, why)
    })?;
    let claims = if tokens::is_own(token) {
        tokens::holder(app.services(), token).await?
    } else {
        app.oidc.holder(&app.settings().oidc, token, app.services().clock.now())
    };
    let claims = claims.ok_or_else(|| {
        let why = "the token is not valid: it is misspelt or unknown, has expired, or was revoked";
        Problem::of(Kind::Unauthenticated, why)
    })?;
    if let Some(rate) = &app.token_rate {
        rate.check(&claims.token_id).map_err(|throttled| throttled.failure())?;
    }
    let principal = claims.principal.clone();
    Ok(Peer { caller: Caller::Token(Arc::new(claims)), principal, operator: false })
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

/// Whether a token is still valid: who holds a stream open is asked again.
pub(crate) fn still_valid(app: &App, claims: &Claims) -> bool {
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
