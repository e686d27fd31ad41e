//! Takes connections, as many as there is room for, and gives each to the routes with the name of whoever opened it.

use std::collections::HashMap;
use std::io::Write;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::{Extension, Router};
use effectd_actors::{Pipeline, Swap};
use effectd_contracts::{ActionRequest, KeyEntry, Principal, Receipt};
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::UnixStream;
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::desk::Desk;
use crate::error::GatewayError;
use crate::limits::RETRY_AFTER;
use crate::metrics::Metrics;
use crate::patience::Patient;
use crate::peer::{self, Peer};
use crate::problem::{Kind, MEDIA_TYPE, Problem};
use crate::pulse::{self, Gauges, Pulse};
use crate::routes;
use crate::settings::{Dial, Settings};
use crate::socket::Socket;
use crate::views::{Explanation, PolicyChange, PolicyView};

pub use crate::pulse::Vitals;

/// What stands behind the door.
pub trait Host: Send + Sync + 'static {
    /// Where decisions go.
    fn pipeline(&self) -> &Pipeline;
    /// Where figures are.
    fn metrics(&self) -> &prometheus::Registry;
    /// The policy in force.
    fn policy(&self) -> PolicyView;
    /// The policy's files as they are now, with the changes beside them; nothing is put in force.
    fn check_policy(&self) -> Result<PolicyView, Problem>;
    /// Puts the policy's files as they are now in force.
    fn reload_policy(&self) -> Result<PolicyView, Problem>;
    /// What a change beside the files would make of the policy; nothing is changed.
    fn try_policy(&self, change: PolicyChange) -> Result<PolicyView, Problem>;
    /// Makes a change beside the files, and puts it in force. Durable when it returns.
    fn change_policy(&self, change: PolicyChange) -> Result<PolicyView, Problem>;
    /// A change beside the files, tried and not made: for whoever makes it in one step with something else, and then
    /// [`Host::reload_policy`].
    fn prepare_policy(&self, change: PolicyChange) -> Result<Swap, Problem>;
    /// Makes a new signing key and lets it sign from now on. Durable when it returns. Called where blocking is allowed.
    fn rotate_key(&self) -> Result<KeyEntry, Problem>;
    /// How a request of this principal would be judged.
    fn explain_request(&self, request: &ActionRequest, principal: &Principal)
    -> Result<Explanation, Problem>;
    /// How the facts of a receipt are judged now.
    fn explain_receipt(&self, receipt: &Receipt) -> Result<Explanation, Problem>;
}

/// How far the daemon is on its way out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// Everybody is welcome.
    Open,
    /// Nobody new is let in; what is on its way may still be answered.
    Closing,
    /// The pipeline has ended: there are no answers any more.
    Closed,
}

/// One door.
pub struct Gateway {
    desk: Arc<Desk>,
    stage: watch::Receiver<Stage>,
}

impl std::fmt::Debug for Gateway {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Gateway")
            .field("settings", &self.desk.settings())
            .finish_non_exhaustive()
    }
}

/// The pause after the kernel refused a connection, for want of file descriptors: those of others come free meanwhile.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

impl Gateway {
    /// A door to this host. Whoever holds the other end of `stage` closes it.
    pub fn new(host: Arc<dyn Host>, dial: Dial, stage: watch::Receiver<Stage>) -> Result<Self, GatewayError> {
        let metrics = Metrics::register(host.metrics())?;
        let pulse = Arc::new(Pulse::default());
        let desk = Arc::new(Desk::new(host, dial, metrics, pulse, stage.clone()));
        Ok(Self { desk, stage })
    }

    /// How the daemon is.
    pub fn vitals(&self) -> Vitals {
        self.desk.vitals.clone()
    }

    /// Serves until the door is closed and everybody has left. When it returns, nothing of it is left.
    pub async fn serve(mut self, socket: Socket) {
        let desk = &self.desk;
        let pulse = tokio::spawn(pulse::ask(
            desk.host.clone(),
            desk.pulse.clone(),
            desk.settings().pulse_every,
            Gauges {
                backlog: desk.metrics.backlog.clone(),
                bytes: desk.metrics.backlog_bytes.clone(),
            },
        ));
        let places = Places::default();
        let router = routes::all(desk.clone());
        let mut visits = JoinSet::new();
        while *self.stage.borrow_and_update() == Stage::Open {
            tokio::select! {
                biased;
                changed = self.stage.changed() => if changed.is_err() { break },
                Some(ended) = visits.join_next() => note(ended),
                accepted = socket.listener.accept() => match accepted {
                    Ok((stream, _)) => self.admit(stream, &places, &router, &mut visits),
                    Err(error) => {
                        tracing::warn!(%error, "a connection cannot be taken");
                        tokio::time::sleep(ACCEPT_PAUSE).await;
                    }
                },
            }
        }
        drop(socket);
        self.empty(&mut visits).await;
        pulse.abort();
        // Aborted tasks have let go of the host only when they are joined.
        let _ = pulse.await;
    }

    /// Waits for those who are inside; once the pipeline has ended, not for long.
    async fn empty(&mut self, visits: &mut JoinSet<()>) {
        let mut stage = self.stage.clone();
        let time_max = self.desk.settings().close_time_max;
        let closed = async {
            // Whoever held the other end is gone: that is the end, too.
            let _ = stage.wait_for(|stage| *stage == Stage::Closed).await;
            tokio::time::sleep(time_max).await;
        };
        tokio::select! {
            () = async { while let Some(ended) = visits.join_next().await { note(ended); } } => {}
            () = closed => visits.shutdown().await,
        }
    }

    fn admit(&self, stream: UnixStream, places: &Places, router: &Router, visits: &mut JoinSet<()>) {
        let metrics = &self.desk.metrics;
        let Ok(uid) = peer::uid(&stream) else {
            metrics.refused.with_label_values(&["unknown_peer"]).inc();
            return;
        };
        let settings = self.desk.settings();
        let Some(place) = places.take(uid, &settings, metrics.connections.clone()) else {
            metrics.refused.with_label_values(&["full"]).inc();
            turn_away(stream);
            return;
        };
        let (router, stage) = (router.clone(), self.stage.clone());
        visits.spawn(async move {
            let _place = place;
            let Some(peer) = Peer::of(uid).await else { return };
            visit(stream, router.layer(Extension(peer)), stage, &settings).await;
        });
    }
}

/// One connection, from its first request to its last.
async fn visit(stream: UnixStream, router: Router, mut stage: watch::Receiver<Stage>, settings: &Settings) {
    let io = TokioIo::new(Patient::new(stream, settings.write_time_max));
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(settings.header_time_max)
        .max_headers(settings.headers_max)
        .max_header_size(settings.header_bytes_max)
        .max_buf_size(2 * settings.header_bytes_max)
        .serve_connection(io, TowerToHyperService::new(router));
    let mut connection = std::pin::pin!(connection);
    tokio::select! {
        biased;
        ended = connection.as_mut() => {
            if let Err(error) = ended {
                // Clients hang up, send rubbish and fall asleep; that is theirs to know.
                tracing::debug!(%error, "a connection ended early");
            }
            return;
        }
        // Whoever held the other end is gone: that is the end, too.
        _ = stage.wait_for(|stage| *stage != Stage::Open) => {}
    }
    connection.as_mut().graceful_shutdown();
    let _ = connection.await;
}

fn note(ended: Result<(), tokio::task::JoinError>) {
    if let Err(error) = ended
        && error.is_panic()
    {
        tracing::error!(%error, "a route panicked; only its connection is lost");
    }
}

/// Says that there is no room, without reading anything, and hangs up.
fn turn_away(stream: UnixStream) {
    let problem = Problem::of(Kind::Busy, "there are too many connections; try again shortly");
    let body = serde_json::to_string(&problem).unwrap_or_default();
    let answer = format!(
        "HTTP/1.1 503 Service Unavailable\r\ncontent-type: {MEDIA_TYPE}\r\nretry-after: {}\r\nconnection: close\r\n\
         content-length: {}\r\n\r\n{body}",
        RETRY_AFTER.get().as_secs().max(1),
        body.len(),
    );
    if let Ok(mut stream) = stream.into_std() {
        // It fits into an empty buffer, or the client has gone.
        let _ = stream.write_all(answer.as_bytes());
    }
}

/// How many are inside, all together and of each user.
#[derive(Clone, Default)]
struct Places {
    inside: Arc<Mutex<HashMap<u32, usize>>>,
}

/// One connection's place; given back when it ends.
struct Place {
    inside: Arc<Mutex<HashMap<u32, usize>>>,
    uid: u32,
    gauge: prometheus::IntGauge,
}

fn lock(inside: &Mutex<HashMap<u32, usize>>) -> MutexGuard<'_, HashMap<u32, usize>> {
    inside.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Places {
    fn take(&self, uid: u32, settings: &Settings, gauge: prometheus::IntGauge) -> Option<Place> {
        let mut inside = lock(&self.inside);
        let all: usize = inside.values().sum();
        let user = inside.get(&uid).copied().unwrap_or(0);
        if all >= settings.connections_max || user >= settings.connections_per_user_max {
            return None;
        }
        inside.insert(uid, user + 1);
        gauge.inc();
        Some(Place {
            inside: self.inside.clone(),
            uid,
            gauge,
        })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut inside = lock(&self.inside);
        if let Some(user) = inside.get_mut(&self.uid) {
            *user -= 1;
            if *user == 0 {
                inside.remove(&self.uid);
            }
        }
        self.gauge.dec();
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn one_user_leaves_room_for_another() {
        let settings = Settings {
            connections_max: 3,
            connections_per_user_max: 2,
            ..Settings::default()
        };
        let places = Places::default();
        let gauge = prometheus::IntGauge::new("inside", "inside").unwrap();
        let take = |uid| places.take(uid, &settings, gauge.clone());
        let (first, _second) = (take(1).unwrap(), take(1).unwrap());
        assert!(take(1).is_none(), "one user has all it may");
        let _third = take(2).unwrap();
        assert!(take(2).is_none(), "the house is full");
        drop(first);
        assert!(take(2).is_some());
        assert_eq!(gauge.get(), 2);
    }
}
