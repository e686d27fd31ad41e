//! Which routes each kind of token may use, whatever its account's roles. The policy's roles count afterwards.
//!
//! A user of this machine is not asked here.

use axum::body::Body;
use axum::extract::{MatchedPath, Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use effectd_contracts::TokenKind;

use crate::peer::Peer;
use crate::problem::{Kind, Problem};

/// Refuses the holder of a token of another kind than these.
pub(super) async fn check(
    State(kinds): State<&'static [TokenKind]>,
    request: Request<Body>,
    next: Next,
) -> Response {
    let extensions = request.extensions();
    if let Some(claims) = extensions.get::<Peer>().and_then(Peer::claims)
        && !kinds.contains(&claims.kind)
    {
        let kind = claims.kind.as_str();
        let why = format!("a {kind} token may not do this, whatever the roles of its account");
        let mut problem = Problem::of(Kind::TokenForbidden, why);
        // As every refusal of a session's routes.
        let is_of_session =
            extensions.get::<MatchedPath>().is_some_and(|path| path.as_str().starts_with("/{"));
        problem.error = is_of_session.then(|| problem.detail.clone());
        return problem.into_response();
    }
    next.run(request).await
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::super::{descriptions, table};
    use super::*;

    #[test]
    fn every_handler_has_a_route_of_its_own() {
        let document = serde_json::to_value(descriptions()).unwrap();
        let paths = document["paths"].as_object().unwrap().values();
        let routes: usize = paths.map(|methods| methods.as_object().unwrap().len()).sum();
        assert_eq!(table().len(), routes);
    }

    #[test]
    fn a_token_may_use_what_its_kind_is_for() {
        let table = table();
        let may = |kind, route: &str| {
            let (method, path) = route.split_once(' ').unwrap();
            let mut fitting = table.iter().filter(|(_, (_, paths, _))| {
                let methods = serde_json::to_value(paths.paths.get(path)).unwrap();
                methods.get(method.to_lowercase()).is_some()
            });
            fitting.any(|(kinds, _)| kinds.contains(&kind))
        };
        for (route, expected) in [
            ("GET /healthz", [true, true, true]),
            ("POST /v1/actions", [true, true, true]),
            ("GET /v1/receipts/{id}", [true, true, true]),
            ("POST /{session_id}/actions/invoke", [true, false, false]),
            ("GET /{session_id}/actions/invocations/{id}", [true, true, false]),
            ("POST /{session_id}/actions/invocations/{id}/approve", [false, true, false]),
            ("POST /v1/approvals/{id}/approve", [false, true, false]),
            ("POST /v1/approvals/{id}/deny", [false, true, false]),
            ("POST /v1/grants", [false, true, false]),
            ("POST /v1/grants/{id}/activate", [false, true, false]),
            ("POST /v1/sessions", [false, true, false]),
            ("POST /v1/operations", [false, true, false]),
            ("POST /v1/dlq/{letter}/requeue", [false, true, false]),
            ("GET /v1/store", [false, true, true]),
            ("GET /v1/store/topics/{topic}", [false, true, true]),
            ("GET /v1/tree", [false, true, true]),
            ("GET /v1/log/entries", [false; 3]),
            ("GET /v1/store/journal", [false; 3]),
            ("POST /v1/store/erase", [false; 3]),
            ("POST /v1/store/retain", [false; 3]),
            ("POST /v1/log/keys", [false; 3]),
            ("GET /v1/policy/files", [false; 3]),
            ("POST /v1/policy/reload", [false; 3]),
            ("DELETE /v1/policy/shadow", [false; 3]),
            ("GET /v1/tokens", [false; 3]),
            ("POST /v1/tokens/{id}/rotate", [false; 3]),
            ("GET /v1/nothing", [false; 3]),
            ("PUT /v1/actions", [false; 3]),
        ] {
            assert_eq!(
                [TokenKind::Sandbox, TokenKind::User, TokenKind::Service].map(|kind| may(kind, route)),
                expected,
                "{route}"
            );
        }
    }
}
