//! The second door, for monitoring: figures and health over TCP, at an address that the operator chooses.
//!
//! Prometheus cannot connect to a unix socket. TCP has no peer to identify, so nobody is identified here: there are three paths,
//! all of them show figures only, and everybody who reaches the address may read them.
#![expect(clippy::disallowed_types, reason = "the door for monitoring")]

use std::net::SocketAddr;
use std::sync::Arc;

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;

use crate::app::App;
use crate::error::GatewayError;
use crate::host::Stage;
use crate::limits::{
    ACCEPT_PAUSE, HEADER_BYTES_MAX, HEADERS_MAX, HEALTH_TIME_MAX, SCRAPE_TIME_MAX, SCRAPES_MAX,
};
use crate::routes;

/// A listening TCP socket.
#[derive(Debug)]
pub struct Scrape(TcpListener);

impl Scrape {
    /// Listens at an address; port 0 lets the kernel choose a free one.
    pub async fn bind(address: SocketAddr) -> Result<Self, GatewayError> {
        let failed = |source| GatewayError::Listen { setting: "telemetry.listen", address, source };
        let listener = TcpListener::bind(address).await.map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        tracing::info!(%address, "figures and health are shown to everybody who reaches this address");
        Ok(Self(listener))
    }

    /// Serves until the stage is no longer open. When this returns, every connection has ended.
    pub(crate) async fn serve(self, app: Arc<App>, mut stage: watch::Receiver<Stage>) {
        let (router, places) = (routes::scraped(app.clone()), Arc::new(Semaphore::new(SCRAPES_MAX)));
        let mut connections = JoinSet::new();
        while *stage.borrow_and_update() == Stage::Open {
            tokio::select! {
                biased;
                changed = stage.changed() => if changed.is_err() { break },
                Some(_) = connections.join_next() => {}
                accepted = self.0.accept() => match (accepted, places.clone().try_acquire_owned()) {
                    (Ok((stream, _)), Ok(place)) => {
                        let router = router.clone();
                        connections.spawn(async move {
                            answer(stream, router).await;
                            drop(place);
                        });
                    }
                    (Ok(_), Err(_)) => app.metrics.refused.with_label_values(&["full"]).inc(),
                    (Err(error), _) => {
                        tracing::warn!(%error, "a connection for monitoring cannot be accepted");
                        tokio::time::sleep(ACCEPT_PAUSE).await;
                    }
                },
            }
        }
        connections.shutdown().await;
    }
}

/// Answers one request. A slow client loses its connection.
async fn answer(stream: TcpStream, router: Router) {
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .keep_alive(false)
        .header_read_timeout(HEALTH_TIME_MAX)
        .max_headers(HEADERS_MAX)
        .max_header_size(HEADER_BYTES_MAX)
        .max_buf_size(2 * HEADER_BYTES_MAX)
        .serve_connection(TokioIo::new(stream), TowerToHyperService::new(router));
    match tokio::time::timeout(SCRAPE_TIME_MAX, connection).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::debug!(%error, "a connection for monitoring ended early"),
        Err(_) => tracing::debug!("a connection for monitoring took too long"),
    }
}
