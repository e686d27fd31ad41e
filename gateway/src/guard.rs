//! What every request over TCP passes before its route: that it means this daemon, that no page of another site sends it, and who
//! sends it. All of this is known from its head: the body of a request that is refused is not read.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::request::Parts;
use axum::http::uri::Authority;
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::{Extension, Router};
use effectd_actors::control::rates::Rate;
use http_body_util::BodyExt;

use crate::app::{App, OVER_TCP};
use crate::authenticate;
use crate::console;
use crate::headers::{FETCH_SITE, is_from_elsewhere};
use crate::limits::{AUTH_FAILURES_MAX, TOKEN_AGE_MAX};
use crate::mcp;
use crate::peer::Peer;
use crate::problem::{Kind, Problem};
use crate::routes;
use crate::settings::Settings;
use crate::slack;
use crate::slots::{Holder, Slot, Slots};

const FORWARDED_FOR: &str = "x-forwarded-for";

struct Guard {
    app: Arc<App>,
    /// Requests in progress, of each address behind the proxy.
    addresses: Slots,
    /// Requests in progress, of each account.
    accounts: Slots,
    /// Requests without a valid token, of each address. No other rate counts them.
    failures: Rate,
}

/// One connection over TCP, as its requests see it.
pub(crate) struct Link {
    from: IpAddr,
    /// The address of this machine that the client has reached.
    to: IpAddr,
    /// Lines `Content-Length: …` that have come and are of no request so far.
    pub(crate) lengths: Arc<AtomicUsize>,
}

/// A request that may pass.
struct Admitted {
    who: Who,
    /// For a page of the console and for Slack: the address that a wrong token or signature in the body counts for.
    form_of: Option<IpAddr>,
    slots: [Option<Slot>; 2],
}

enum Who {
    Peer(Peer),
    /// Somebody at this address who is not known yet: a browser that is not signed in sees the pages for that, and the console's files.
    Stranger(IpAddr),
    /// It only asks whether the daemon is alive.
    Probe,
}

/// A rate for each address.
pub(crate) fn address_rate(app: &App, per_second: u32) -> Rate {
    let most = NonZeroU32::new(per_second).unwrap_or(NonZeroU32::MIN);
    Rate::new("address", most, &app.services().clock)
}

/// All routes, behind the guard. Each connection adds its [`Link`] to its requests.
pub(crate) fn guarded(app: Arc<App>) -> Router {
    let failures = address_rate(&app, AUTH_FAILURES_MAX);
    let guard = Guard { app: app.clone(), addresses: Slots::default(), accounts: Slots::default(), failures };
    let more = mcp::routes().merge(console::routes(&app)).merge(slack::routes());
    routes::all(app, more).layer(middleware::from_fn_with_state(Arc::new(guard), check))
}

async fn check(
    State(guard): State<Arc<Guard>>,
    Extension(link): Extension<Arc<Link>>,
    request: Request<Body>,
    next: Next,
) -> Response {
    let (mut parts, body) = request.into_parts();
    let (mut response, is_refused) = match guard.admit(&link, &parts).await {
        Ok(Admitted { who: Who::Probe, .. }) => ("ok".into_response(), false),
        Ok(Admitted { who, form_of, slots }) => {
            let peer = match who {
                Who::Peer(peer) => {
                    parts.extensions.insert(peer.clone());
                    Some(peer)
                }
                Who::Stranger(from) => {
                    parts.extensions.insert(Holder::Address(from));
                    None
                }
                Who::Probe => None,
            };
            let (app, clock) = (&guard.app, &guard.app.services().clock);
            let begun = clock.monotonic();
            let answer = next.run(Request::from_parts(parts, body));
            let mut response = OVER_TCP.scope((), answer).await;
            // A wrong token in the form counts as one in the header does.
            if let Some(from) = form_of
                && response.status() == StatusCode::UNAUTHORIZED
                && let Err(full) = guard.failures.check(&from.to_string())
            {
                response = Problem::from(full.failure()).into_response();
            }
            // Who has waited may have lost the token meanwhile.
            if clock.monotonic().since(begun) > TOKEN_AGE_MAX
                && peer.is_some_and(|peer| !authenticate::still_valid(app, &peer))
            {
                response = authenticate::not_valid().into_response();
            }
            // The body holds the slots until it is sent or given up.
            let holding = move |error: axum::Error| {
                let _slots = &slots;
                error
            };
            (response.map(|body| Body::new(body.map_err(holding))), false)
        }
        Err(problem) => {
            let response = problem.into_response();
            let counted = &guard.app.metrics.requests;
            counted.with_label_values(&["none", response.status().as_str()]).inc();
            (response, true)
        }
    };
    // The next request is not read: it may be part of this one's body, or a line of this one's body would count for it.
    if is_refused || link.lengths.load(Ordering::Relaxed) > 0 {
        response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    }
    response
}

impl Guard {
    async fn admit(&self, link: &Link, parts: &Parts) -> Result<Admitted, Problem> {
        let (settings, headers) = (self.app.settings(), &parts.headers);
        if !link.has_one_end(headers) {
            let why = "over TCP, send the body with its Content-Length, or with `Transfer-Encoding: chunked` and no other";
            return Err(Problem::of(Kind::HeaderInvalid, why));
        }
        let host = host(headers)?;
        let mut named = [Some(&host), parts.uri.authority()].into_iter().flatten();
        if !named.all(|authority| link.is_named(authority.host(), &settings)) {
            let why = "this daemon does not have that name; the setting gateway.hosts lists its names";
            return Err(Problem::of(Kind::Misdirected, why));
        }
        if !parts.method.is_safe() && is_cross_site(headers, &host, settings.is_tls()) {
            return Err(Problem::of(Kind::CrossSite, "only pages of this host may change something"));
        }
        let from = link.client(headers, &settings);
        // Behind a proxy, connections are not bounded for each address, so requests are.
        let all = settings.network_connections();
        let slot = settings.behind_proxy.then(|| self.addresses.take(Holder::Address(from), all));
        let slot = slot.map(|slot| slot.ok_or_else(routes::too_many_connections)).transpose()?;
        let is_probe = parts.method == Method::GET && parts.uri.path() == "/healthz";
        if is_probe && !headers.contains_key(header::AUTHORIZATION) {
            return Ok(Admitted { who: Who::Probe, form_of: None, slots: [slot, None] });
        }
        if slack::is_at(parts.uri.path()) {
            return Ok(Admitted { who: Who::Stranger(from), form_of: Some(from), slots: [slot, None] });
        }
        let form_of = console::is_at(parts.uri.path()).then_some(from);
        let peer = if form_of.is_some() {
            // A browser says where a change comes from; without that, a cookie proves nothing.
            if !parts.method.is_safe()
                && [header::ORIGIN.as_str(), FETCH_SITE].iter().all(|name| !headers.contains_key(*name))
            {
                return Err(Problem::of(
                    Kind::CrossSite,
                    "a form needs the header `Origin` or `Sec-Fetch-Site`",
                ));
            }
            // Pages of another port of this host get the cookie sent along, and mean nothing that a person does here.
            let known =
                if is_from_elsewhere(headers) { None } else { authenticate::signed_in(&self.app, headers)? };
            let Some(peer) = known else {
                return Ok(Admitted { who: Who::Stranger(from), form_of, slots: [slot, None] });
            };
            peer
        } else {
            let known = authenticate::peer(&self.app, headers).await;
            known.map_err(|problem| self.failed(from, problem))?
        };
        let own = self.accounts.take(peer.holder(), all).ok_or_else(routes::too_many_connections)?;
        Ok(Admitted { who: Who::Peer(peer), form_of, slots: [slot, Some(own)] })
    }

    /// Counts a request without a valid token for its address.
    fn failed(&self, from: IpAddr, problem: Problem) -> Problem {
        if problem.status != 401 {
            return problem;
        }
        self.failures.check(&from.to_string()).map_or_else(|full| full.failure().into(), |()| problem)
    }
}

impl Link {
    pub(crate) fn new(from: SocketAddr, to: SocketAddr) -> Self {
        let (from, to) = (from.ip(), to.ip().to_canonical());
        Self { from, to, lengths: Arc::default() }
    }

    /// Whether everybody sees the end of this request's body in one place. With a length beside chunks, or with another encoding, a
    /// proxy and this daemon may disagree about it, and even about who sends the next request. hyper takes the length away if there
    /// are chunks, so its line is looked for in what has come. One of a request that is sent before this one's answer counts, too.
    fn has_one_end(&self, headers: &HeaderMap) -> bool {
        let own = usize::from(headers.contains_key(header::CONTENT_LENGTH));
        let others = self.lengths.fetch_sub(own, Ordering::Relaxed).saturating_sub(own);
        let mut encodings = headers.get_all(header::TRANSFER_ENCODING).iter();
        encodings.next().is_none_or(|encoding| {
            encoding.as_bytes().eq_ignore_ascii_case(b"chunked") && encodings.next().is_none() && others == 0
        })
    }

    /// Whether a name in `Host` means this daemon. A page of another site can point its own name at this address, and would then
    /// be of the same origin.
    fn is_named(&self, name: &str, settings: &Settings) -> bool {
        let name = name.trim_end_matches('.');
        let literal = name.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>();
        let mut names = settings.hosts.split(',').map(str::trim).chain(["localhost"]);
        literal.is_ok_and(|address| address.to_canonical() == self.to)
            || (!name.is_empty() && names.any(|own| own.eq_ignore_ascii_case(name)))
    }

    /// The address that bounds count: behind a proxy, the one that it has added last. What is before it, the client may invent.
    fn client(&self, headers: &HeaderMap, settings: &Settings) -> IpAddr {
        let forwarded = || {
            let last = headers.get_all(FORWARDED_FOR).iter().next_back()?.to_str().ok()?;
            let hop = last.rsplit(',').next()?.trim();
            hop.parse().ok().or_else(|| hop.parse::<SocketAddr>().ok().map(|address| address.ip()))
        };
        host_part(settings.behind_proxy.then(forwarded).flatten().unwrap_or(self.from))
    }
}

/// An address as bounds count it: of an IPv6 address only the network, since one machine may have all addresses of it.
pub(crate) fn host_part(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() & (u128::MAX << 64)).into(),
        IpAddr::V4(address) => address.into(),
    }
}

/// The one `Host` of a request: a name or address, perhaps with a port, and no user.
fn host(headers: &HeaderMap) -> Result<Authority, Problem> {
    let mut hosts = headers.get_all(header::HOST).iter();
    let host = hosts.next().filter(|_| hosts.next().is_none());
    let host = host.and_then(|host| host.to_str().ok().filter(|host| !host.contains('@'))?.parse().ok());
    host.ok_or_else(|| Problem::of(Kind::HeaderInvalid, "a request needs one Host header, with a name"))
}

/// Whether a page of another origin sends this, as a browser says. Programs that are no browsers send neither header.
fn is_cross_site(headers: &HeaderMap, host: &Authority, is_tls: bool) -> bool {
    let own = format!("{}://{host}", if is_tls { "https" } else { "http" });
    let is_own = |origin: &HeaderValue| origin.as_bytes().eq_ignore_ascii_case(own.as_bytes());
    !headers.get_all(header::ORIGIN).iter().all(is_own) || is_from_elsewhere(headers)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn link(to: &str) -> Link {
        Link::new("192.0.2.9:5000".parse().unwrap(), to.parse().unwrap())
    }

    fn with(pairs: &[(&'static str, &str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in pairs {
            headers.append(*name, value.parse().unwrap());
        }
        headers
    }

    #[test]
    fn only_the_own_names_mean_this_daemon() {
        let settings = Settings { hosts: "effectd.example, Other.example".to_owned(), ..Settings::default() };
        let v4 = link("127.0.0.1:7070");
        for own in ["127.0.0.1", "localhost", "LOCALHOST.", "effectd.example", "other.EXAMPLE"] {
            assert!(v4.is_named(own, &settings), "{own}");
        }
        for other in ["evil.example", "127.0.0.2", "[::1]", "", ".", "localhost.evil.example", "0.0.0.0"] {
            assert!(!v4.is_named(other, &settings), "{other}");
        }
        assert!(link("[::1]:7070").is_named("[::1]", &settings));
        assert!(link("[::ffff:127.0.0.1]:7070").is_named("127.0.0.1", &settings));
        assert!(!v4.is_named("", &Settings::default()));
    }

    #[test]
    fn an_address_of_a_proxy_counts_only_behind_one() {
        let (direct, behind) = (Settings::default(), Settings { behind_proxy: true, ..Settings::default() });
        let link = link("127.0.0.1:7070");
        let ip = |text: &str| text.parse::<IpAddr>().unwrap();
        let one = with(&[("x-forwarded-for", "203.0.113.1, 203.0.113.2")]);
        assert_eq!(link.client(&one, &direct), ip("192.0.2.9"));
        assert_eq!(link.client(&one, &behind), ip("203.0.113.2"));
        let two = with(&[("x-forwarded-for", "203.0.113.1"), ("x-forwarded-for", "203.0.113.3:4000")]);
        assert_eq!(link.client(&two, &behind), ip("203.0.113.3"));
        let unnamed: [&[(&'static str, &str)]; 3] =
            [&[], &[("x-forwarded-for", "unknown")], &[("x-forwarded-for", "203.0.113.1,")]];
        for none in unnamed {
            assert_eq!(link.client(&with(none), &behind), ip("192.0.2.9"));
        }
        let v6 = with(&[("x-forwarded-for", "2001:db8:1:2:3:4:5:6")]);
        assert_eq!(link.client(&v6, &behind), ip("2001:db8:1:2::"));
    }

    #[test]
    fn a_page_of_another_origin_is_told_from_the_own_one() {
        let host: Authority = "localhost:7070".parse().unwrap();
        let own: [&[(&'static str, &str)]; 4] = [
            &[],
            &[("origin", "http://localhost:7070"), ("sec-fetch-site", "same-origin")],
            &[("origin", "http://LOCALHOST:7070")],
            &[("sec-fetch-site", "none")],
        ];
        for headers in own {
            assert!(!is_cross_site(&with(headers), &host, false), "{headers:?}");
        }
        let secure = with(&[("origin", "https://localhost:7070")]);
        assert!(!is_cross_site(&secure, &host, true) && is_cross_site(&with(own[1]), &host, true));
        let foreign: [&[(&'static str, &str)]; 9] = [
            &[("origin", "http://localhost:3000")],
            &[("origin", "https://localhost:7070")],
            &[("origin", "http://evil.example")],
            &[("origin", "null")],
            &[("origin", "")],
            &[("sec-fetch-site", "cross-site")],
            &[("sec-fetch-site", "same-site")],
            &[("origin", "http://localhost:7070"), ("origin", "http://evil.example")],
            &[("origin", "http://localhost:7070"), ("sec-fetch-site", "cross-site")],
        ];
        for headers in foreign {
            assert!(is_cross_site(&with(headers), &host, false), "{headers:?}");
        }
    }
}
