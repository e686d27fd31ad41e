//! Live events, as a stream of server-sent events.

use std::sync::Arc;

use axum::extract::State;
use axum::http::{HeaderMap, header};
use axum::response::{IntoResponse, Response};
use effectd_actors::{OrgRole, PrincipalRole};
use effectd_contracts::{OrgId, TokenKind};

use crate::app::{App, AppState};
use crate::authenticate;
use crate::peer::Peer;
use crate::problem::{Kind, Problem, Problems};
use crate::streams::body::{Guard, Stream, streamed};
use crate::streams::position::Position;
use crate::streams::{Detail, Scope};

const LAST_EVENT_ID: &str = "last-event-id";
const GONE: &str = "events after this Last-Event-ID are no longer kept, or it is not from here; \
                    begin a stream without it, then read GET /v1/inbox for what is pending";

/// Live events
///
/// Server-sent events: `action_approval_request` when an action waits for a person, `action_completed` when it was carried out or has
/// failed (see `status`), `action_approval_result` when its approval was denied. `data` is the invocation as it is when the event is sent. A
/// sandbox hears of its session, an account and a member of an organisation of that organisation; who may `look` hears of all, without
/// parameters and errors. A client that comes back with `Last-Event-ID` first gets what it missed. The stream ends when its token does, when
/// the client does not read, and when the daemon stops.
#[utoipa::path(get, path = "/v1/stream", tag = "stream", operation_id = "events",
    params(("Last-Event-ID" = Option<String>, Header, description = "The `id` of the last event that the client has")),
    responses((status = 200, description = "The events", body = String, content_type = "text/event-stream"), Problems<400, 403, 410, 429, 503>))]
pub(crate) async fn events(
    State(app): AppState,
    peer: Peer,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    let scope = scope(&app, &peer).ok_or_else(|| {
        let why = "only sandboxes, members of an organisation and those who may look hear of live events";
        Problem::of(Kind::OperatorsOnly, why)
    })?;
    let slot = app.streams.enter(&peer)?;
    let at = match last_event(&headers)? {
        Some(at) if at.is_kept(app.store())? => at,
        Some(_) => return Err(Problem::of(Kind::Dropped, GONE)),
        None => Position::end_of(app.store())?,
    };
    let (services, streams) = (app.services().clone(), app.streams.clone());
    let guard = guard(app, peer, scope.clone());
    let stream = Stream { services, streams, scope, guard, _slot: slot, at, live: None, is_open: false };
    let headers = [
        (header::CONTENT_TYPE, "text/event-stream"),
        (header::CACHE_CONTROL, "no-store"),
        // Proxies that know it pass each event on at once.
        (header::HeaderName::from_static("x-accel-buffering"), "no"),
    ];
    Ok((headers, streamed(stream, Stream::next)).into_response())
}

/// Where the client stopped; `None` if it is new.
fn last_event(headers: &HeaderMap) -> Result<Option<Position>, Problem> {
    let mut values = headers.get_all(LAST_EVENT_ID).iter();
    let Some(value) = values.next().filter(|value| !value.is_empty()) else {
        return Ok(None);
    };
    let cursor = value.to_str().ok().filter(|_| values.next().is_none());
    let invalid = || Problem::of(Kind::HeaderInvalid, "Last-Event-ID is not the `id` of an event from here");
    cursor.and_then(Position::of_cursor).map(Some).ok_or_else(invalid)
}

/// What this peer hears; `None` if nothing. The kind of a token counts before any role, and no token hears of another organisation.
fn scope(app: &App, peer: &Peer) -> Option<Scope> {
    let Some(claims) = peer.claims() else {
        let (others, policy) = (detail(app, peer, None), app.services().policy());
        let orgs = policy.orgs().into_iter().filter_map(|org| {
            let full = detail(app, peer, Some(org)).filter(|detail| *detail != Detail::Brief);
            Some((OrgId::new(org).ok()?, full?))
        });
        let orgs: Vec<_> = orgs.collect();
        let any = others.is_some() || !orgs.is_empty();
        return any.then_some(Scope { orgs, session: None, others });
    };
    let detail = match claims.kind {
        TokenKind::Sandbox => claims.session.as_ref().map(|_| Detail::Full),
        TokenKind::User | TokenKind::Service => detail(app, peer, Some(claims.org.as_str())),
    };
    let orgs = vec![(claims.org.clone(), detail?)];
    Some(Scope { orgs, session: claims.session.clone(), others: None })
}

/// How much a peer hears of an organisation, or of everything, by its roles; the inbox shows as much.
pub(super) fn detail(app: &App, peer: &Peer, org: Option<&str>) -> Option<Detail> {
    let (policy, by) = (app.services().policy(), peer.decider());
    if policy.may_view_approvals(&by, org) || app.may_operate(peer, PrincipalRole::Operate) {
        return Some(Detail::Full);
    }
    if org.is_some_and(|org| policy.role_in(&by, org) >= Some(OrgRole::Member)) {
        return Some(Detail::Sessions);
    }
    app.may_operate(peer, PrincipalRole::Look).then_some(Detail::Brief)
}

/// Ends a stream whose token has ended, or whose holder may hear less or more than when it began.
fn guard(app: Arc<App>, peer: Peer, begun: Scope) -> Guard {
    let mut checked = None;
    Box::new(move || {
        if !authenticate::still_valid(&app, &peer) {
            return false;
        }
        let policy = app.services().policy();
        if !checked.as_ref().is_some_and(|checked| Arc::ptr_eq(checked, &policy)) {
            checked = Some(policy);
            return scope(&app, &peer).is_some_and(|scope| scope == begun);
        }
        true
    })
}
