//! Takes connections, as many as there is room for, and gives each to the routes with the name of whoever opened it.

use std::collections::HashMap;
use std::io::Write;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use axum::{Extension, Router};
use effectd_actors::{Parts, Pipeline, Swap};
use effectd_contracts::{ActionRequest, KeyEntry, Principal, Receipt};
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use parking_lot::{Mutex, MutexGuard};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::MissedTickBehavior;

use crate::client::Client;
use crate::desk::Desk;
use crate::error::GatewayError;
use crate::limits::{
    CLOSE_TIME_MAX, CONNECTIONS_RESERVE_PART, HEADER_BYTES_MAX, HEADERS_MAX, HEALTH_CONNECTIONS_MAX,
    HEALTH_CONNECTIONS_PER_USER_MAX, HEALTH_TIME_MAX, LINGER_BYTES_MAX, LINGER_TIME_MAX, RETRY_AFTER,
    SOCKET_LOOK_EVERY,
};
use crate::metrics::Metrics;
use crate::patience::Patient;
use crate::peer::{self, Peer};
use crate::problem::{MEDIA_TYPE, Problem};
use crate::pulse;
use crate::routes;
use crate::settings::{Dial, Settings};
use crate::socket::Socket;
use crate::views::{Explanation, PolicyChange, PolicyView};

pub use crate::pulse::Vitals;

/// What stands behind the door.
pub trait Host: Send + Sync + 'static {
    /// What a pipeline is made of.
    fn parts(&self) -> &Arc<Parts>;
    /// Where figures are.
    fn metrics(&self) -> &prometheus::Registry;
    /// The policy in force.
    fn policy(&self) -> PolicyView;
    /// The policy's files as they are now, with the changes beside them; nothing is put in force.
    fn check_policy(&self) -> Result<PolicyView, Problem>;
    /// Puts the policy's files as they are now in force. Each space keeps its root.
    fn reload_policy(&self) -> Result<PolicyView, Problem>;
    /// The same, and takes the roots of the spaces as they are now.
    fn take_over_policy(&self) -> Result<PolicyView, Problem>;
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
    Open,
    /// Nobody new is let in; what is on its way may still be answered.
    Closing,
    /// The pipeline has ended: there are no answers any more.
    Closed,
}

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
    /// A door to this host; without a pipeline nothing is carried out behind it. Whoever holds the other end of `stage` closes it.
    pub fn new(
        host: Arc<dyn Host>,
        pipeline: Option<Arc<Pipeline>>,
        dial: Dial,
        stage: watch::Receiver<Stage>,
    ) -> Result<Self, GatewayError> {
        let metrics = Metrics::register(host.metrics())?;
        let desk = Arc::new(Desk::new(host, pipeline, dial, metrics, stage.clone()));
        Ok(Self { desk, stage })
    }

    /// A client in this process: the same routes without a socket, for the user that this process runs as.
    pub fn client(&self, principal: Principal) -> Client {
        let peer = Peer {
            principal,
            operator: peer::is_operator(nix::unistd::geteuid().as_raw()),
        };
        Client::in_process(routes::all(self.desk.clone()).layer(Extension(peer)))
    }

    /// Asks the store again and again how it stands.
    pub fn beat(&self) -> JoinHandle<()> {
        tokio::spawn(pulse::ask(self.desk.clone()))
    }

    pub fn vitals(&self) -> Vitals {
        self.desk.vitals.clone()
    }

    /// Serves until the door is closed and everybody has left. When it returns, nothing of it is left.
    pub async fn serve(mut self, mut socket: Socket) {
        let pulse = self.beat();
        let doors = Doors::of(&self.desk);
        let mut visits = JoinSet::new();
        let mut look = tokio::time::interval(SOCKET_LOOK_EVERY);
        look.set_missed_tick_behavior(MissedTickBehavior::Delay);
        while *self.stage.borrow_and_update() == Stage::Open {
            tokio::select! {
                biased;
                changed = self.stage.changed() => if changed.is_err() { break },
                Some(ended) = visits.join_next() => note(ended),
                _ = look.tick() => socket.keep(),
                accepted = socket.listener.accept() => match accepted {
                    Ok((stream, _)) => self.admit(stream, &doors, &mut visits),
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
        let closed = async {
            // Whoever held the other end is gone: that is the end, too.
            let _ = stage.wait_for(|stage| *stage == Stage::Closed).await;
            tokio::time::sleep(CLOSE_TIME_MAX).await;
        };
        tokio::select! {
            () = async { while let Some(ended) = visits.join_next().await { note(ended); } } => {}
            () = closed => visits.shutdown().await,
        }
    }

    fn admit(&self, stream: UnixStream, doors: &Doors, visits: &mut JoinSet<()>) {
        let metrics = &self.desk.metrics;
        let Ok(uid) = peer::uid(&stream) else {
            metrics.refused.with_label_values(&["unknown_peer"]).inc();
            return;
        };
        let settings = self.desk.settings();
        let Some((mut place, mut door)) = doors.enter(uid, &settings) else {
            metrics.refused.with_label_values(&["full"]).inc();
            turn_away(stream);
            return;
        };
        let (desk, doors, stage) = (self.desk.clone(), doors.clone(), self.stage.clone());
        visits.spawn(async move {
            let Some(peer) = Peer::of(uid).await else { return };
            // Who approves is known by name, which may take a while to find out.
            if door == Door::Health
                && desk.may_decide(&peer)
                && let Some(kept) = doors.all.take(uid, Rank::Approver.connections(&settings))
            {
                (place, door) = (kept, Door::All);
            }
            visit(stream, &doors, door, peer, stage, &settings).await;
            drop(place);
        });
    }
}

/// Which routes a connection leads to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Door {
    All,
    /// There is no room: only health is told.
    Health,
}

/// The places and the routes behind each door.
#[derive(Clone)]
struct Doors {
    all: Places,
    health: Places,
    routes: Router,
    health_routes: Router,
}

impl Doors {
    fn of(desk: &Arc<Desk>) -> Self {
        let gauge = &desk.metrics.connections;
        Self {
            all: Places::new(gauge.clone()),
            health: Places::new(gauge.clone()),
            routes: routes::all(desk.clone()),
            health_routes: routes::health_only(desk.clone()),
        }
    }

    /// A place behind the door that has one for this user; none for a user that holds all it may itself.
    fn enter(&self, uid: u32, settings: &Settings) -> Option<(Place, Door)> {
        let rank = if peer::is_operator(uid) {
            Rank::Operator
        } else {
            Rank::Anybody
        };
        if let Some(place) = self.all.take(uid, rank.connections(settings)) {
            return Some((place, Door::All));
        }
        if self.all.of(uid) >= settings.connections_per_user_max {
            return None;
        }
        let most = (HEALTH_CONNECTIONS_MAX, HEALTH_CONNECTIONS_PER_USER_MAX);
        Some((self.health.take(uid, most)?, Door::Health))
    }
}

/// How far a user may fill the door.
#[derive(Debug, Clone, Copy)]
enum Rank {
    Anybody,
    /// May decide about what waits for a person, by the policy in force.
    Approver,
    Operator,
}

impl Rank {
    /// The most connections, with those of everybody else and of this user alone.
    fn connections(self, settings: &Settings) -> (usize, usize) {
        let reserve = settings.connections_max / CONNECTIONS_RESERVE_PART;
        let kept_from = match self {
            Rank::Anybody => reserve,
            Rank::Approver => reserve / 2,
            Rank::Operator => 0,
        };
        (
            settings.connections_max - kept_from,
            settings.connections_per_user_max,
        )
    }
}

/// One connection, from its first request to its last.
async fn visit(
    stream: UnixStream,
    doors: &Doors,
    door: Door,
    peer: Peer,
    mut stage: watch::Receiver<Stage>,
    settings: &Settings,
) {
    let (router, header_time, linger_time) = match door {
        Door::All => (&doors.routes, settings.header_time_max, LINGER_TIME_MAX),
        Door::Health => (&doors.health_routes, HEALTH_TIME_MAX, HEALTH_TIME_MAX),
    };
    let router = router.clone().layer(Extension(peer));
    let io = TokioIo::new(Patient::new(stream, settings.write_time_max));
    let mut connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .keep_alive(door == Door::All)
        .header_read_timeout(header_time)
        .max_headers(HEADERS_MAX)
        .max_header_size(HEADER_BYTES_MAX)
        .max_buf_size(2 * HEADER_BYTES_MAX)
        .serve_connection(io, TowerToHyperService::new(router));
    let ended = tokio::select! {
        biased;
        ended = &mut connection => Some(ended),
        // Whoever held the other end is gone: that is the end, too.
        _ = stage.wait_for(|stage| *stage != Stage::Open) => None,
    };
    let Some(ended) = ended else {
        Pin::new(&mut connection).graceful_shutdown();
        let _ = connection.await;
        return;
    };
    if let Err(error) = ended {
        // Clients hang up, send rubbish and fall asleep; that is theirs to know.
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

/// Reads and drops what the client still sends, within bounds. An answer may come before the end of a request; closing then would
/// break the client's writing, and many clients read only when they have written all.
async fn linger(mut stream: Patient, time_max: Duration) {
    let rest = async {
        stream.shutdown().await?;
        tokio::io::copy(&mut stream.take(LINGER_BYTES_MAX), &mut tokio::io::sink()).await
    };
    // Whichever bound is reached, and whatever fails, the connection is closed.
    let _ = tokio::time::timeout(time_max, rest).await;
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
    let body = serde_json::to_string(&routes::no_room()).unwrap_or_default();
    let answer = format!(
        "HTTP/1.1 503 Service Unavailable\r\ncontent-type: {MEDIA_TYPE}\r\nretry-after: {}\r\nconnection: close\r\n\
         content-length: {}\r\n\r\n{body}",
        RETRY_AFTER.as_secs().max(1),
        body.len(),
    );
    if let Ok(mut stream) = stream.into_std() {
        // It fits into an empty buffer, or the client has gone.
        let _ = stream.write_all(answer.as_bytes());
    }
}

/// How many connections there are, all together and of each user.
#[derive(Clone)]
struct Places {
    taken: Arc<Mutex<HashMap<u32, usize>>>,
    gauge: prometheus::IntGauge,
}

/// One connection's place; given back when it ends.
struct Place {
    places: Places,
    uid: u32,
}

impl Places {
    fn new(gauge: prometheus::IntGauge) -> Self {
        let taken = Arc::default();
        Self { taken, gauge }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<u32, usize>> {
        self.taken.lock()
    }

    fn of(&self, uid: u32) -> usize {
        self.lock().get(&uid).copied().unwrap_or(0)
    }

    /// A place, while there are fewer than so many in all and of this user.
    fn take(&self, uid: u32, (all_max, user_max): (usize, usize)) -> Option<Place> {
        let mut taken = self.lock();
        let all: usize = taken.values().sum();
        let user = taken.get(&uid).copied().unwrap_or(0);
        if all >= all_max || user >= user_max {
            return None;
        }
        taken.insert(uid, user + 1);
        self.gauge.inc();
        let places = self.clone();
        Some(Place { places, uid })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut taken = self.places.lock();
        if let Some(user) = taken.get_mut(&self.uid) {
            *user -= 1;
            if *user == 0 {
                taken.remove(&self.uid);
            }
        }
        self.places.gauge.dec();
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn places() -> Places {
        Places::new(prometheus::IntGauge::new("inside", "inside").unwrap())
    }

    #[test]
    fn one_user_leaves_room_for_another() {
        let settings = Settings {
            connections_max: 3,
            connections_per_user_max: 2,
            ..Settings::default()
        };
        let places = places();
        let take = |uid| places.take(uid, Rank::Anybody.connections(&settings));
        let (first, _second) = (take(1).unwrap(), take(1).unwrap());
        assert!(take(1).is_none(), "one user has all it may");
        let _third = take(2).unwrap();
        assert!(take(2).is_none(), "the house is full");
        drop(first);
        assert!(take(2).is_some());
        assert_eq!(places.gauge.get(), 2);
    }

    #[test]
    fn users_leave_room_for_approvers_and_all_for_operators() {
        let settings = Settings {
            connections_max: 16,
            connections_per_user_max: 16,
            ..Settings::default()
        };
        let places = places();
        let mut held = Vec::new();
        for (rank, all) in [(Rank::Anybody, 14), (Rank::Approver, 15), (Rank::Operator, 16)] {
            while let Some(place) = places.take(1, rank.connections(&settings)) {
                held.push(place);
            }
            assert_eq!(held.len(), all, "{rank:?}");
        }
    }
}
