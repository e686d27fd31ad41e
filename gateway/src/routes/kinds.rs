//! Which routes each kind of token may use, whatever its account's roles. The policy's roles count afterwards.
//!
//! A user of this machine is not asked here.

use std::collections::HashMap;
use std::sync::Arc;

use axum::body::Body;
use axum::extract::{MatchedPath, Request, State};
use axum::http::Method;
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use effectd_contracts::TokenKind;
use utoipa::openapi::Paths;

use crate::peer::Peer;
use crate::problem::{Kind, Problem};

/// The kinds of tokens that may use a route, by its method and path. A route that is missing is for no token.
#[derive(Default)]
pub(super) struct Kinds(HashMap<String, &'static [TokenKind]>);

impl Kinds {
    pub(super) fn add(&mut self, routes: &Paths, kinds: &'static [TokenKind]) {
        for (path, item) in &routes.paths {
            let methods =
                [("GET", &item.get), ("POST", &item.post), ("PUT", &item.put), ("DELETE", &item.delete)];
            let described = methods.into_iter().filter(|(_, operation)| operation.is_some());
            self.0.extend(described.map(|(method, _)| (format!("{method} {path}"), kinds)));
        }
    }

    /// A route that no document describes.
    pub(super) fn add_other(&mut self, route: &str, kinds: &'static [TokenKind]) {
        self.0.insert(route.to_owned(), kinds);
    }

    /// Whether a token of this kind may use a route.
    fn allow(&self, kind: TokenKind, method: &Method, path: &str) -> bool {
        // Who may get a thing may ask for its head.
        let method = if method == Method::HEAD { &Method::GET } else { method };
        self.0.get(&format!("{method} {path}")).is_some_and(|kinds| kinds.contains(&kind))
    }
}

/// Refuses the holder of a token that is for something else. Paths that do not exist are not asked about here.
pub(super) async fn check(State(kinds): State<Arc<Kinds>>, request: Request<Body>, next: Next) -> Response {
    let (extensions, method) = (request.extensions(), request.method());
    let path = extensions.get::<MatchedPath>().map_or("", MatchedPath::as_str);
    if let Some(claims) = extensions.get::<Peer>().and_then(Peer::claims)
        && !kinds.allow(claims.kind, method, path)
    {
        let kind = claims.kind.as_str();
        let why = format!("a {kind} token may not do this, whatever the roles of its account");
        let mut problem = Problem::of(Kind::TokenForbidden, why);
        // As every refusal of a session's routes.
        problem.error = path.starts_with("/{").then(|| problem.detail.clone());
        return problem.into_response();
    }
    next.run(request).await
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::super::{described, descriptions};
    use super::*;

    #[test]
    fn every_route_is_in_the_table_of_kinds_once() {
        let document = serde_json::to_value(descriptions()).unwrap();
        let (_, kinds) = described();
        let mut routes = 0;
        for (path, methods) in document["paths"].as_object().unwrap() {
            for method in methods.as_object().unwrap().keys() {
                let route = format!("{} {path}", method.to_uppercase());
                assert!(kinds.0.contains_key(&route), "{route}: say in `table` which tokens may use it");
                routes += 1;
            }
        }
        assert_eq!(super::super::table().len(), routes, "each handler has a route of its own");
    }

    #[test]
    fn a_token_may_use_what_its_kind_is_for() {
        let (_, kinds) = described();
        let may = |kind, route: &str| {
            let (method, path) = route.split_once(' ').unwrap();
            kinds.allow(kind, &method.parse().unwrap(), path)
        };
        for (route, expected) in [
            ("GET /healthz", [true, true, true]),
            ("POST /v1/actions", [true, true, true]),
            ("POST /mcp", [true, true, true]),
            ("HEAD /v1/receipts/{id}", [true, true, true]),
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
