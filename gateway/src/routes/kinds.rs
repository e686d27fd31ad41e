//! Which routes each kind of token may use, whatever its account's roles. The policy's roles count afterwards.
//!
//! A user of this machine is not asked here. A route that is missing in the table is for no token.

use axum::body::Body;
use axum::extract::{MatchedPath, Request};
use axum::http::Method;
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use effectd_contracts::TokenKind::{self, Sandbox, Service, User};

use crate::peer::Peer;
use crate::problem::{Kind, Problem};

/// The kinds of tokens, and the routes that they may use. Each part of a path that varies is `{}`.
const ROUTES: &[(&[TokenKind], &[&str])] = &[
    // What is public here, and a caller's own actions.
    (
        &[Sandbox, User, Service],
        &[
            "GET /healthz",
            "GET /readyz",
            "GET /openapi.json",
            "GET /v1/whoami",
            "GET /v1/stream",
            "GET /v1/tools",
            "GET /v1/tools/{}",
            "POST /v1/actions",
            "GET /v1/actions/{}",
            "DELETE /v1/actions/{}",
            "GET /v1/actions/{}/wait",
            "GET /v1/receipts",
            "GET /v1/receipts/{}",
            "GET /v1/receipts/{}/amendments",
            "GET /v1/receipts/{}/artifacts/{}",
            "GET /v1/receipts/{}/explanation",
            "GET /v1/receipts/{}/proof",
            "GET /v1/log",
            "GET /v1/log/frontier",
            "GET /v1/log/heads",
            "GET /v1/log/keys",
        ],
    ),
    // A session, for its agent and for people.
    (
        &[Sandbox, User],
        &[
            "GET /{}/actions/available",
            "GET /{}/actions/guide/{}",
            "GET /{}/actions/invocations",
            "GET /{}/actions/invocations/{}",
            "GET /{}/actions/grants",
        ],
    ),
    (&[Sandbox], &["POST /{}/actions/invoke", "POST /{}/actions/grants"]),
    // What accounts look at, and ask beforehand.
    (
        &[User, Service],
        &[
            "GET /metrics",
            "POST /v1/preview",
            "POST /v1/policy/explain",
            "GET /v1/inbox",
            "GET /v1/approvals",
            "GET /v1/approvals/{}",
            "GET /v1/grants",
            "GET /v1/sessions",
            "GET /v1/sessions/{}",
            "GET /v1/orgs",
            "GET /v1/connections",
            "GET /v1/policy",
            "GET /v1/breakers",
            "GET /v1/breakers/{}",
            "GET /v1/dlq",
            "GET /v1/dlq/causes",
            "GET /v1/artifacts/quarantined",
            "GET /v1/log/entries",
            "GET /v1/tree",
            "GET /v1/store",
            "GET /v1/store/topics/{}",
            "GET /v1/store/topics/{}/groups",
            "GET /v1/store/topics/{}/groups/{}",
            "POST /v1/store/topics/{}/groups/{}",
        ],
    ),
    // What people decide, manage and operate.
    (
        &[User],
        &[
            "POST /{}/actions/invocations/{}/approve",
            "POST /{}/actions/invocations/{}/deny",
            "GET /v1/approvals/{}/always",
            "GET /v1/approvals/{}/grant",
            "POST /v1/approvals/{}/approve",
            "POST /v1/approvals/{}/deny",
            "POST /v1/approvals/{}/preview",
            "POST /v1/grants",
            "POST /v1/grants/requests",
            "POST /v1/grants/requests/preview",
            "POST /v1/grants/{}/activate",
            "POST /v1/grants/{}/revoke",
            "POST /v1/sessions",
            "DELETE /v1/sessions/{}",
            "POST /v1/sessions/{}/end",
            "POST /v1/connections",
            "DELETE /v1/connections/{}",
            "POST /v1/connections/{}/disable",
            "POST /v1/connections/{}/enable",
            "GET /v1/secrets",
            "PUT /v1/secrets/{}/{}",
            "DELETE /v1/secrets/{}/{}",
            "POST /v1/operations",
            "POST /v1/policy/changes",
            "POST /v1/breakers/{}/reset",
            "POST /v1/breakers/{}/trip",
            "GET /v1/dlq/{}",
            "POST /v1/dlq/{}/purge",
            "POST /v1/dlq/{}/requeue",
            "GET /v1/quarantine/{}",
            "POST /v1/artifacts/{}/quarantine",
            "POST /v1/artifacts/{}/release",
            "GET /v1/notifications",
            "GET /v1/notifications/{}",
            "POST /v1/receipts/{}/amendments",
            "POST /v1/log/head",
        ],
    ),
    // What stays with the users of this machine, whatever the policy says.
    (
        &[],
        &[
            "POST /v1/log/keys",
            "GET /v1/policy/files",
            "POST /v1/policy/check",
            "POST /v1/policy/reload",
            "GET /v1/policy/shadow",
            "POST /v1/policy/shadow",
            "DELETE /v1/policy/shadow",
            "GET /v1/store/journal",
            "POST /v1/store/retain",
            "POST /v1/store/erase",
            "GET /v1/tokens",
            "POST /v1/tokens",
            "POST /v1/tokens/{}/revoke",
            "POST /v1/tokens/{}/rotate",
        ],
    ),
];

/// Whether a token of this kind may use a route.
fn allows(kind: TokenKind, method: &Method, path: &str) -> bool {
    // Who may get a thing may ask for its head.
    let method = if method == Method::HEAD { &Method::GET } else { method };
    let parts = path.split('/').map(|part| if part.starts_with('{') { "{}" } else { part });
    let route = format!("{method} {}", parts.collect::<Vec<_>>().join("/"));
    ROUTES.iter().any(|(kinds, routes)| kinds.contains(&kind) && routes.contains(&route.as_str()))
}

/// Refuses the holder of a token that is for something else. Paths that do not exist are not asked about here.
pub(super) async fn check(request: Request<Body>, next: Next) -> Response {
    let (extensions, method) = (request.extensions(), request.method());
    let path = extensions.get::<MatchedPath>().map_or("", MatchedPath::as_str);
    if let Some(claims) = extensions.get::<Peer>().and_then(Peer::claims)
        && !allows(claims.kind, method, path)
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
    use std::collections::BTreeSet;

    use super::*;

    /// Routes that are described, as the table writes them.
    fn described() -> BTreeSet<String> {
        let document = serde_json::to_value(super::super::descriptions()).unwrap();
        let mut found = BTreeSet::new();
        for (path, methods) in document["paths"].as_object().unwrap() {
            let parts = path.split('/').map(|part| if part.starts_with('{') { "{}" } else { part });
            let path = parts.collect::<Vec<_>>().join("/");
            found.extend(
                methods.as_object().unwrap().keys().map(|method| format!("{} {path}", method.to_uppercase())),
            );
        }
        found
    }

    #[test]
    fn every_route_is_in_the_table_of_kinds_once() {
        let listed: Vec<&str> = ROUTES.iter().flat_map(|(_, routes)| *routes).copied().collect();
        let unique: BTreeSet<&str> = listed.iter().copied().collect();
        assert_eq!(listed.len(), unique.len());
        for route in described() {
            assert!(unique.contains(route.as_str()), "{route}: say in ROUTES which tokens may use it");
        }
    }

    #[test]
    fn a_token_may_use_what_its_kind_is_for() {
        let may = |kind, route: &str| {
            let (method, path) = route.split_once(' ').unwrap();
            allows(kind, &method.parse().unwrap(), path)
        };
        for (route, expected) in [
            ("GET /healthz", [true, true, true]),
            ("POST /v1/actions", [true, true, true]),
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
            assert_eq!([Sandbox, User, Service].map(|kind| may(kind, route)), expected, "{route}");
        }
    }
}
