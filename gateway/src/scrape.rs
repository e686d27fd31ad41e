//! The second door, for monitoring: figures and health over TCP, at an address that the operator chooses.
//!
//! Prometheus cannot connect to a unix socket. TCP has no peer to identify, so nobody is identified here: there are three paths,
//! all of them show figures only, and everybody who reaches the address may read them.
#![expect(clippy::disallowed_types, reason = "the door for monitoring")]

use std::net::SocketAddr;
use std::sync::Arc;

use tokio::net::TcpListener;
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;

use crate::app::App;
use crate::error::GatewayError;
use crate::host::Stage;
use crate::limits::{ACCEPT_PAUSE, HEALTH_TIME_MAX, SCRAPE_TIME_MAX, SCRAPES_MAX};
use crate::routes;
use crate::server::{Service, serve_connection};

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
        let (routes, places) = (routes::scraped(app.clone()), Arc::new(Semaphore::new(SCRAPES_MAX)));
        let mut connections = JoinSet::new();
        while *stage.borrow_and_update() == Stage::Open {
            tokio::select! {
                biased;
                changed = stage.changed() => if changed.is_err() { break },
                Some(_) = connections.join_next() => {}
                accepted = self.0.accept() => match (accepted, places.clone().try_acquire_owned()) {
                    (Ok((stream, _)), Ok(place)) => {
                        let (routes, time) = (routes.clone(), HEALTH_TIME_MAX);
                        let service = Service { routes, sender: (), keep_alive: false, header_time: time, linger_time: time };
                        let answer = serve_connection(stream, service, stage.clone());
                        connections.spawn(async move {
                            // A slow client loses its connection.
                            let _ = tokio::time::timeout(SCRAPE_TIME_MAX, answer).await;
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
