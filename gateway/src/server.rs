//! The server: accepts connections within their limits, and serves each with the identity of its peer.

use std::io::{self, Write};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::Request;
use axum::http::header::AUTHORIZATION;
use axum::http::{HeaderMap, HeaderValue};
use axum::middleware::{self, Next};
use axum::{Extension, Router};
use effectd_actors::Pipeline;
use effectd_actors::services::tokens::Claims;
use effectd_contracts::Principal;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::{Service as _, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::MissedTickBehavior;

use crate::app::App;
use crate::authenticate;
use crate::client::Client;
use crate::error::GatewayError;
use crate::health::{self, Readiness};
use crate::host::Host;
use crate::limits::{
    ACCEPT_PAUSE, CLOSE_TIME_MAX, CONNECTIONS_RESERVE_PART, HEADER_BYTES_MAX, HEADERS_MAX,
    HEALTH_CONNECTIONS_MAX, HEALTH_CONNECTIONS_PER_USER_MAX, HEALTH_TIME_MAX, LINGER_BYTES_MAX,
    LINGER_TIME_MAX, RETRY_AFTER, SOCKET_CHECK_EVERY,
};
use crate::mcp;
use crate::metrics::Metrics;
use crate::peer::{self, Caller, Peer};
use crate::problem::{MEDIA_TYPE, Problem};
use crate::routes;
use crate::scrape::Scrape;
use crate::settings::{Settings, SharedSettings};
use crate::slots::{Holder, Slot, Slots};
use crate::socket::Socket;
use crate::streams;
use crate::tcp::Tcp;
use crate::write_timeout::WriteTimeout;

use crate::host::Stage;

pub struct Gateway {
    app: Arc<App>,
    stage: watch::Receiver<Stage>,
}

impl std::fmt::Debug for Gateway {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Gateway").field("settings", &self.app.settings()).finish_non_exhaustive()
    }
}

impl Gateway {
    /// A gateway to this host; without a pipeline it runs no actions. `stage` closes it.
    pub fn new(
        host: Arc<dyn Host>,
        pipeline: Option<Arc<Pipeline>>,
        settings: SharedSettings,
        stage: watch::Receiver<Stage>,
    ) -> Result<Self, GatewayError> {
        let metrics = Metrics::register(host.metrics())?;
        let app = Arc::new(App::new(host, pipeline, settings, metrics, stage.clone()));
        Ok(Self { app, stage })
    }

    /// A client in this process: the same routes without a socket, for `principal`, who is an operator if this process's user
    /// is. `interactive` if a person waits at a terminal.
    pub fn client(&self, principal: Principal, interactive: bool) -> Client {
        let uid = nix::unistd::geteuid().as_raw();
        let peer = Peer { caller: Caller::User(uid), principal, operator: peer::is_operator(uid) };
        Client::in_process(routes::all(self.app.clone(), mcp::routes()).layer(Extension(peer)), interactive)
    }

    /// A client in this process that sends these `Authorization` headers, and is who they say.
    pub fn client_by(&self, authorization: &[&str]) -> Client {
        let values = authorization.iter().filter_map(|value| HeaderValue::from_str(value).ok());
        let (app, headers) =
            (self.app.clone(), HeaderMap::from_iter(values.map(|value| (AUTHORIZATION, value))));
        let admit = move |mut request: Request<Body>, next: Next| {
            let (app, headers) = (app.clone(), headers.clone());
            async move {
                request.extensions_mut().insert(authenticate::peer(&app, &headers).await?);
                Ok::<_, Problem>(next.run(request).await)
            }
        };
        let routes = routes::all(self.app.clone(), mcp::routes());
        Client::in_process(routes.layer(middleware::from_fn(admit)), false)
    }

    /// A client in this process for the holder of a token, or for nobody; for tests.
    #[doc(hidden)]
    pub fn client_as(&self, claims: Option<Claims>) -> Client {
        let routes = routes::all(self.app.clone(), mcp::routes());
        let Some(claims) = claims else { return Client::in_process(routes, false) };
        let principal = claims.principal.clone();
        let peer = Peer { caller: Caller::Token(Arc::new(claims)), principal, operator: false };
        Client::in_process(routes.layer(Extension(peer)), false)
    }

    /// Starts the checks of the store's health.
    pub fn watch_health(&self) -> JoinHandle<()> {
        let (app, services) = (&self.app, self.app.services().clone());
        let (health, metrics) = (app.health.clone(), app.metrics.clone());
        tokio::spawn(health::watch_store(services, app.pipeline.clone(), health, metrics))
    }

    pub fn readiness(&self) -> Readiness {
        self.app.readiness.clone()
    }

    /// Serves until the stage is no longer open and every connection has ended. When this returns, no task of the gateway is
    /// left.
    pub async fn serve(mut self, mut socket: Socket, scrape: Option<Scrape>, tcp: Option<Tcp>) {
        let watch = self.watch_health();
        let (services, streams) = (self.app.services().clone(), self.app.streams.clone());
        let reading = streams::reader::start(services, streams, self.stage.clone());
        let scraping = scrape.map(|scrape| tokio::spawn(scrape.serve(self.app.clone(), self.stage.clone())));
        if let Some(tcp) = &tcp {
            let _ = self.app.signed_in.url.set(tcp.url().to_owned());
        }
        let tcp = tcp.map(|tcp| tokio::spawn(tcp.serve(self.app.clone(), self.stage.clone())));
        let listener = Listener::new(&self.app);
        let mut connections = JoinSet::new();
        let mut check = tokio::time::interval(SOCKET_CHECK_EVERY);
        check.set_missed_tick_behavior(MissedTickBehavior::Delay);
        while *self.stage.borrow_and_update() == Stage::Open {
            tokio::select! {
                biased;
                changed = self.stage.changed() => if changed.is_err() { break },
                Some(ended) = connections.join_next() => log_panic(ended),
                _ = check.tick() => socket.restore(),
                accepted = socket.listener.accept() => match accepted {
                    Ok((stream, _)) => self.admit(stream, &listener, &mut connections),
                    Err(error) => {
                        tracing::warn!(%error, "a connection cannot be accepted");
                        tokio::time::sleep(ACCEPT_PAUSE).await;
                    }
                },
            }
        }
        drop(socket);
        // Ends all streams: their connections would not end by themselves.
        log_panic(reading.await);
        if let Some(scraping) = scraping {
            log_panic(scraping.await);
        }
        drain(self.stage.clone(), &mut connections).await;
        if let Some(tcp) = tcp {
            log_panic(tcp.await);
        }
        watch.abort();
        // An aborted task holds the host until it is joined.
        let _ = watch.await;
    }

    fn admit(&self, stream: UnixStream, listener: &Listener, connections: &mut JoinSet<()>) {
        let metrics = &self.app.metrics;
        let Ok(uid) = peer::uid(&stream) else {
            metrics.refused.with_label_values(&["unknown_peer"]).inc();
            return;
        };
        let settings = self.app.settings();
        let Some((mut slot, mut access)) = listener.enter(uid, &settings) else {
            metrics.refused.with_label_values(&["full"]).inc();
            reject(stream.into_std());
            return;
        };
        let (app, listener, stage) = (self.app.clone(), listener.clone(), self.stage.clone());
        connections.spawn(async move {
            let Some(peer) = Peer::of(uid).await else { return };
            // Only a peer's name shows whether it is an approver, and the lookup of the name takes time.
            if access == Access::HealthOnly
                && app.may_decide(&peer)
                && let Some(reserved) =
                    listener.all.take(Holder::User(uid), Rank::Approver.connections(&settings))
            {
                (slot, access) = (reserved, Access::All);
            }
            let stream = WriteTimeout::new(stream, settings.write_time_max);
            serve_connection(stream, listener.service(access, peer, &settings), stage).await;
            drop(slot);
        });
    }
}

/// Waits for the open connections; once the pipeline has stopped, only for a short time.
pub(crate) async fn drain(mut stage: watch::Receiver<Stage>, connections: &mut JoinSet<()>) {
    let closed = async {
        // An error means that the sender is gone, which closes the gateway, too.
        let _ = stage.wait_for(|stage| *stage == Stage::Closed).await;
        tokio::time::sleep(CLOSE_TIME_MAX).await;
    };
    tokio::select! {
        () = async { while let Some(ended) = connections.join_next().await { log_panic(ended); } } => {}
        () = closed => connections.shutdown().await,
    }
}

/// Which routes a connection may use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Access {
    All,
    /// The health routes, since all ordinary connections are in use.
    HealthOnly,
}

/// The connections in use, and the routes, for each kind of access.
#[derive(Clone)]
struct Listener {
    all: Slots,
    health: Slots,
    routes: Router,
    health_routes: Router,
}

impl Listener {
    fn new(app: &Arc<App>) -> Self {
        let gauge = &app.metrics.connections;
        Self {
            all: Slots::shown_by(gauge),
            health: Slots::shown_by(gauge),
            routes: routes::all(app.clone(), mcp::routes()),
            health_routes: routes::health_only(app.clone()),
        }
    }

    /// Takes a connection for all routes, or else for health only; `None` if neither is free, or the user has the most that one
    /// may have.
    fn enter(&self, uid: u32, settings: &Settings) -> Option<(Slot, Access)> {
        let rank = if peer::is_operator(uid) { Rank::Operator } else { Rank::Anybody };
        let user = Holder::User(uid);
        if let Some(slot) = self.all.take(user.clone(), rank.connections(settings)) {
            return Some((slot, Access::All));
        }
        if self.all.of(&user) >= settings.connections_per_user_max {
            return None;
        }
        let most = (HEALTH_CONNECTIONS_MAX, HEALTH_CONNECTIONS_PER_USER_MAX);
        Some((self.health.take(user, most)?, Access::HealthOnly))
    }

    fn service(&self, access: Access, sender: Peer, settings: &Settings) -> Service<Peer> {
        let (routes, header_time, linger_time) = match access {
            Access::All => (&self.routes, settings.header_time_max, LINGER_TIME_MAX),
            Access::HealthOnly => (&self.health_routes, HEALTH_TIME_MAX, HEALTH_TIME_MAX),
        };
        let keep_alive = access == Access::All;
        Service { routes: routes.clone(), sender, keep_alive, header_time, linger_time }
    }
}

/// The rank of a user: a higher one may use more of the reserved connections.
#[derive(Debug, Clone, Copy)]
enum Rank {
    Anybody,
    /// May decide about approvals, by the policy in force.
    Approver,
    Operator,
}

impl Rank {
    /// The most connections of all users together, and of one user.
    fn connections(self, settings: &Settings) -> (usize, usize) {
        let reserve = settings.connections_max / CONNECTIONS_RESERVE_PART;
        let reserved = match self {
            Rank::Anybody => reserve,
            Rank::Approver => reserve / 2,
            Rank::Operator => 0,
        };
        let all = settings.connections_max - reserved;
        (all, settings.connections_per_user_max)
    }
}

/// How one connection is served.
pub(crate) struct Service<E> {
    pub(crate) routes: Router,
    /// Who sends its requests; each carries a clone.
    pub(crate) sender: E,
    pub(crate) keep_alive: bool,
    pub(crate) header_time: Duration,
    pub(crate) linger_time: Duration,
}

/// Serves one connection from its first request to its last.
pub(crate) async fn serve_connection<S, E>(stream: S, service: Service<E>, mut stage: watch::Receiver<Stage>)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    E: Clone + Send + Sync + 'static,
{
    let Service { routes, sender, keep_alive, header_time, linger_time } = service;
    let routes = TowerToHyperService::new(routes);
    let routes = service_fn(move |mut request: Request<Incoming>| {
        request.extensions_mut().insert(sender.clone());
        routes.call(request)
    });
    let mut connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .keep_alive(keep_alive)
        .header_read_timeout(header_time)
        .max_headers(HEADERS_MAX)
        .max_header_size(HEADER_BYTES_MAX)
        .max_buf_size(2 * HEADER_BYTES_MAX)
        .serve_connection(TokioIo::new(stream), routes);
    let ended = tokio::select! {
        biased;
        ended = &mut connection => Some(ended),
        _ = stage.wait_for(|stage| *stage != Stage::Open) => None,
    };
    let Some(ended) = ended else {
        Pin::new(&mut connection).graceful_shutdown();
        let _ = connection.await;
        return;
    };
    if let Err(error) = ended {
        // Clients disconnect, send invalid requests and time out.
        tracing::debug!(%error, "a connection ended early");
        if !error.is_parse() {
            return;
        }
    }
    tokio::select! {
        () = linger(connection.into_parts().io.into_inner(), linger_time) => {}
        _ = stage.wait_for(|stage| *stage != Stage::Open) => {}
    }
}

/// Reads and drops the rest of a request that was answered before its end. Many clients read only after they have written
/// everything: closing at once would break their write, and they would miss the answer.
async fn linger(mut stream: impl AsyncRead + AsyncWrite + Unpin, time_max: Duration) {
    let rest = async {
        stream.shutdown().await?;
        tokio::io::copy(&mut stream.take(LINGER_BYTES_MAX), &mut tokio::io::sink()).await
    };
    // The connection is closed in any case.
    let _ = tokio::time::timeout(time_max, rest).await;
}

pub(crate) fn log_panic(ended: Result<(), tokio::task::JoinError>) {
    if let Err(error) = ended
        && error.is_panic()
    {
        tracing::error!(%error, "a route panicked; only its connection is lost");
    }
}

/// Answers 503 without reading the request, and closes: there is no slot for this connection.
pub(crate) fn reject(stream: io::Result<impl Write>) {
    let body = serde_json::to_string(&routes::too_many_connections()).unwrap_or_default();
    let answer = format!(
        "HTTP/1.1 503 Service Unavailable\r\ncontent-type: {MEDIA_TYPE}\r\nretry-after: {}\r\nconnection: close\r\n\
         content-length: {}\r\n\r\n{body}",
        RETRY_AFTER.as_secs().max(1),
        body.len(),
    );
    // It fits into an empty socket buffer, or the client is gone.
    let _ = stream.and_then(|mut stream| stream.write_all(answer.as_bytes()));
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn connections() -> (Slots, prometheus::IntGauge) {
        let gauge = prometheus::IntGauge::new("inside", "inside").unwrap();
        (Slots::shown_by(&gauge), gauge)
    }

    #[test]
    fn one_user_leaves_room_for_another() {
        let settings = Settings { connections_max: 3, connections_per_user_max: 2, ..Settings::default() };
        let (connections, gauge) = connections();
        let take = |uid| connections.take(Holder::User(uid), Rank::Anybody.connections(&settings));
        let (first, _second) = (take(1).unwrap(), take(1).unwrap());
        assert!(take(1).is_none(), "one user has all it may");
        let _third = take(2).unwrap();
        assert!(take(2).is_none(), "all are in use");
        drop(first);
        assert!(take(2).is_some());
        assert_eq!(gauge.get(), 2);
    }

    #[test]
    fn users_leave_room_for_approvers_and_all_for_operators() {
        let settings = Settings { connections_max: 16, connections_per_user_max: 16, ..Settings::default() };
        let (connections, _) = connections();
        let mut held = Vec::new();
        for (rank, all) in [(Rank::Anybody, 14), (Rank::Approver, 15), (Rank::Operator, 16)] {
            while let Some(connection) = connections.take(Holder::User(1), rank.connections(&settings)) {
                held.push(connection);
            }
            assert_eq!(held.len(), all, "{rank:?}");
        }
    }
}
