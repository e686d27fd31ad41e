//! The door on the network: the same routes over TCP, for holders of tokens, with TLS, on loopback or behind a proxy.
#![expect(clippy::disallowed_types, reason = "the door on the network")]

use std::io::{self, BufRead};
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, ready};

use axum::Router;
use effectd_actors::control::rates::Rate;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, timeout};

use crate::app::App;
use crate::error::GatewayError;
use crate::guard::{Link, address_rate, guarded, host_part};
use crate::host::Stage;
use crate::limits::{
    ACCEPT_PAUSE, HANDSHAKES_MAX, LINGER_TIME_MAX, LISTEN_BACKLOG, SEND_BUFFER_BYTES, SOCKET_CHECK_EVERY,
};
use crate::server::{Service, drain, log_panic, reject, serve_connection};
use crate::settings::Settings;
use crate::slots::{Holder, Slots};
use crate::tls::Tls;
use crate::write_timeout::WriteTimeout;

/// A listening TCP socket, and its TLS.
pub struct Tcp {
    listener: TcpListener,
    tls: Option<Tls>,
    url: String,
}

impl std::fmt::Debug for Tcp {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tcp").field("url", &self.url).finish_non_exhaustive()
    }
}

impl Tcp {
    /// Listens at the address of these settings; `None` if they have none. Port 0 lets the kernel choose a free one.
    pub async fn bind(settings: &Settings) -> Result<Option<Self>, GatewayError> {
        let Some(address) = settings.listen else {
            return Ok(None);
        };
        let tls = Tls::open(settings)?;
        let failed = |source| GatewayError::Listen { setting: "gateway.listen", address, source };
        let socket =
            if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }.map_err(failed)?;
        // A daemon that is started again gets its port at once.
        socket.set_reuseaddr(true).map_err(failed)?;
        // Every connection has the bound of its listener.
        socket.set_send_buffer_size(SEND_BUFFER_BYTES).map_err(failed)?;
        socket.bind(address).map_err(failed)?;
        let listener = socket.listen(LISTEN_BACKLOG).map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        let url = format!("{}://{address}", if tls.is_some() { "https" } else { "http" });
        tracing::info!(%address, "listening on {url}");
        Ok(Some(Self { listener, tls, url }))
    }

    /// Where it listens.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Serves until the stage is no longer open and every connection has ended.
    pub(crate) async fn serve(mut self, app: Arc<App>, mut stage: watch::Receiver<Stage>) {
        let door = Door {
            routes: guarded(app.clone()),
            slots: Slots::shown_by(&app.metrics.connections),
            handshakes: address_rate(&app, HANDSHAKES_MAX),
            stage: stage.clone(),
            app,
        };
        let mut connections = JoinSet::new();
        let mut check = tokio::time::interval(SOCKET_CHECK_EVERY);
        check.set_missed_tick_behavior(MissedTickBehavior::Delay);
        while *stage.borrow_and_update() == Stage::Open {
            tokio::select! {
                biased;
                changed = stage.changed() => if changed.is_err() { break },
                Some(ended) = connections.join_next() => log_panic(ended),
                _ = check.tick() => if let Some(tls) = &mut self.tls { tls.reload() },
                accepted = self.listener.accept() => match accepted {
                    Ok((stream, from)) => door.admit(stream, from, self.tls.as_ref(), &mut connections),
                    Err(error) => {
                        tracing::warn!(%error, "a connection over TCP cannot be accepted");
                        tokio::time::sleep(ACCEPT_PAUSE).await;
                    }
                },
            }
        }
        drop(self.listener);
        drain(stage, &mut connections).await;
    }
}

/// What connections over TCP share.
struct Door {
    app: Arc<App>,
    routes: Router,
    slots: Slots,
    /// TLS handshakes, of each address.
    handshakes: Rate,
    stage: watch::Receiver<Stage>,
}

impl Door {
    fn admit(&self, stream: TcpStream, from: SocketAddr, tls: Option<&Tls>, connections: &mut JoinSet<()>) {
        let metrics = &self.app.metrics;
        let Ok(to) = stream.local_addr() else {
            metrics.refused.with_label_values(&["unknown_peer"]).inc();
            return;
        };
        let (settings, address) = (self.app.settings(), host_part(from.ip()));
        let is_counted = tls.is_some() && !settings.behind_proxy;
        if is_counted && self.handshakes.check(&address.to_string()).is_err() {
            metrics.refused.with_label_values(&["rate"]).inc();
            return;
        }
        let (all, each) = settings.network_connections();
        // All connections of a proxy come from its address; the guard counts the requests of those behind it.
        let each = if settings.behind_proxy { all } else { each };
        let Some(slot) = self.slots.take(Holder::Address(address), (all, each)) else {
            metrics.refused.with_label_values(&["full"]).inc();
            // An answer over TLS would cost a handshake, which is more than the door can give.
            if tls.is_none() {
                reject(stream.into_std());
            }
            return;
        };
        // An answer is written whole, so nothing is gained by waiting for more.
        let _ = stream.set_nodelay(true);
        let stream = WriteTimeout::new(stream, settings.write_time_max);
        let link = Link::new(from, to);
        let lengths = link.lengths.clone();
        let service = Service {
            routes: self.routes.clone(),
            sender: Arc::new(link),
            keep_alive: true,
            header_time: settings.header_time_max,
            linger_time: LINGER_TIME_MAX,
        };
        let (acceptor, stage) = (tls.map(|tls| tls.acceptor.clone()), self.stage.clone());
        connections.spawn(async move {
            match acceptor {
                None => serve_connection(counted(stream, lengths), service, stage).await,
                Some(acceptor) => {
                    let mut closing = stage.clone();
                    let greeted = tokio::select! {
                        greeted = timeout(settings.header_time_max, acceptor.accept(stream)) => greeted,
                        _ = closing.wait_for(|stage| *stage != Stage::Open) => return,
                    };
                    match greeted {
                        Ok(Ok(stream)) => serve_connection(counted(stream, lengths), service, stage).await,
                        // Clients speak no TLS or an old one, and mistrust the certificate.
                        Ok(Err(error)) => tracing::debug!(%error, "a TLS handshake failed"),
                        Err(_) => tracing::debug!("a TLS handshake took too long"),
                    }
                }
            }
            drop(slot);
        });
    }
}

/// The beginning of a line that says how long a body is.
const LENGTH: &[u8] = b"content-length:";

/// Counts the lines that begin so, in bodies too: the guard has to know of one that hyper takes away.
struct Counted<R> {
    stream: R,
    lengths: Arc<AtomicUsize>,
    /// Bytes of the present line, as long as it begins so.
    matched: usize,
}

fn counted<S: AsyncRead + AsyncWrite>(
    stream: S,
    lengths: Arc<AtomicUsize>,
) -> impl AsyncRead + AsyncWrite + Unpin {
    let (stream, write) = tokio::io::split(stream);
    tokio::io::join(Counted { stream, lengths, matched: 0 }, write)
}

impl<R: AsyncRead + Unpin> AsyncRead for Counted<R> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        ready!(Pin::new(&mut self.stream).poll_read(context, buffer))?;
        let mut rest = &buffer.filled()[before..];
        while let Some((byte, more)) = rest.split_first() {
            if LENGTH.get(self.matched).is_some_and(|next| byte.eq_ignore_ascii_case(next)) {
                (self.matched, rest) = (self.matched + 1, more);
                self.lengths.fetch_add(usize::from(self.matched == LENGTH.len()), Ordering::Relaxed);
            } else {
                let line = rest;
                let read = rest.skip_until(b'\n')?;
                self.matched = if line[..read].ends_with(b"\n") { 0 } else { usize::MAX };
            }
        }
        Poll::Ready(Ok(()))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    #[tokio::test]
    async fn a_length_is_counted_however_it_arrives() {
        let head = "POST /content-length: HTTP/1.1\r\nContent-LENGTH: 4\r\nx: content-length: 4\r\n\
                    content-lengths: 4\r\nx: y\ncontent-length:\t4\r\n content-length: 4\r\n\r\n";
        for piece in [1, 2, 7, head.len()] {
            let (mut theirs, ours) = tokio::io::duplex(piece);
            let lengths = Arc::<AtomicUsize>::default();
            let mut ours = counted(ours, lengths.clone());
            let write = async {
                theirs.write_all(head.as_bytes()).await.unwrap();
                theirs.shutdown().await.unwrap();
            };
            let mut read = String::new();
            let ((), bytes) = tokio::join!(write, ours.read_to_string(&mut read));
            assert_eq!((bytes.unwrap(), read.as_str()), (head.len(), head));
            assert_eq!(lengths.load(Ordering::Relaxed), 2, "{piece}");
        }
    }
}
