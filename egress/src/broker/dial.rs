//! Connections to servers, and the count of what goes over them.
#![expect(clippy::disallowed_types, reason = "the broker dials")]

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsFd;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll, ready};

use effectd_contracts::{AddressClass, ExchangeFault, Scheme};
use http_body_util::Full;
use hyper::body::Bytes;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use memchr::memmem;
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::net::TcpStream;
use tokio::task::AbortHandle;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::ServerName;
use zeroize::Zeroizing;

use super::certificate;
use super::courier::Fault;
use super::postgres::TLS_REQUEST;
use super::resolve::Judged;
use super::tls::{self, Tls};
use crate::limits::{CONNECT_TIME_MAX, HANDSHAKE_TIME_MAX, HEAD_BYTES_MAX, HEADERS_MAX};
use crate::order::{Credential, Origin, Seen};

/// Sends requests over one connection.
pub(super) type Sender = http1::SendRequest<Full<Bytes>>;

/// A connection to a server, and what went over it.
#[derive(Debug)]
pub(super) struct Line {
    pub(super) sender: Sender,
    pub(super) meter: Arc<Meter>,
    pub(super) address: IpAddr,
    pub(super) in_allowed_range: bool,
    /// The same socket once more, to look at what waits in it.
    probe: std::net::TcpStream,
    connection: AbortHandle,
}

impl Drop for Line {
    fn drop(&mut self) {
        // hyper would first write what it still has, for as long as the server does not read it.
        self.connection.abort();
    }
}

impl Line {
    /// Whether nothing came since the last answer: neither its server's farewell nor an answer that nobody asked for. hyper sees
    /// both too, but only when the event loop has told it.
    pub(super) fn is_quiet(&self) -> bool {
        !self.sender.is_closed()
            && self.probe.peek(&mut [0]).is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock)
    }
}

/// Bytes of HTTP over one connection.
#[derive(Debug, Default)]
pub(super) struct Meter {
    out: AtomicU64,
    into: AtomicU64,
    /// Where `into` must not get: a server that sends without end is cut off.
    into_max: AtomicU64,
    /// Whether hyper or TLS still has bytes to write. hyper says that it is ready for the next request all the same.
    unsent: AtomicBool,
    /// The credential of the request that is sent next.
    credential: Mutex<Option<Credential>>,
}

impl Meter {
    /// Begins another exchange, whose answer may have this many bytes. Returns what was counted before.
    pub(super) fn begin(&self, bytes_max: u64, credential: Option<Credential>) -> (u64, u64) {
        let before = self.read();
        *self.credential.lock() = credential;
        self.into_max.store(before.1.saturating_add(bytes_max), Ordering::Relaxed);
        before
    }

    /// Bytes that left, and bytes that came.
    pub(super) fn read(&self) -> (u64, u64) {
        (self.out.load(Ordering::Relaxed), self.into.load(Ordering::Relaxed))
    }

    /// Whether all of the request has left: a server may answer without reading it.
    pub(super) fn has_sent(&self) -> bool {
        !self.unsent.load(Ordering::Relaxed)
    }

    pub(super) fn is_over(&self) -> bool {
        self.into.load(Ordering::Relaxed) > self.into_max.load(Ordering::Relaxed)
    }
}

trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

/// A stream whose bytes are counted, above TLS.
///
/// It is also where the credential joins its request: hyper is given an empty header, because its buffers outlive the exchange and
/// nobody wipes them.
pub(super) struct Metered {
    stream: Box<dyn Stream>,
    pub(super) meter: Arc<Meter>,
    joined: Option<Joined>,
}

/// Most bytes of a record of TLS.
const RECORD_BYTES: usize = 16_384;

/// The beginning of a request, with its credential.
struct Joined {
    bytes: Zeroizing<Vec<u8>>,
    written: usize,
    /// How many bytes it stands for.
    of: usize,
}

impl Joined {
    /// hyper hands the head over in one piece, and in no other line of it can be what a line break precedes.
    fn new(Credential { header, value }: &Credential, head: &[u8]) -> Option<Self> {
        let line = format!("\r\n{}: ", header.to_ascii_lowercase());
        let at = memmem::find(head, format!("{line}\r\n").as_bytes())? + line.len();
        // What fits into one record of TLS leaves at once; no more of a body is copied than that.
        let head = &head[..usize::max(at, head.len().min(RECORD_BYTES))];
        let (before, after) = head.split_at(at);
        let mut bytes = Zeroizing::new(Vec::with_capacity(head.len() + value.as_str().len()));
        for part in [before, value.as_str().as_bytes(), after] {
            bytes.extend_from_slice(part);
        }
        Some(Self { bytes, written: 0, of: head.len() })
    }
}

impl Metered {
    fn poll_send(&mut self, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut *self.stream).poll_write(cx, bytes);
        // TLS may have sent what it could not take whole: whatever was handed over counts.
        let count = match &written {
            Poll::Ready(Ok(count)) => *count,
            Poll::Ready(Err(_)) => usize::from(!bytes.is_empty()),
            Poll::Pending => 0,
        };
        self.meter.out.fetch_add(count as u64, Ordering::Relaxed);
        written
    }
}

impl AsyncRead for Metered {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = into.filled().len();
        let read = Pin::new(&mut *self.stream).poll_read(cx, into);
        let count = (into.filled().len() - before) as u64;
        self.meter.into.fetch_add(count, Ordering::Relaxed);
        if self.meter.is_over() {
            return Poll::Ready(Err(io::Error::other("the answer is too large")));
        }
        read
    }
}

impl AsyncWrite for Metered {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.meter.unsent.store(true, Ordering::Relaxed);
        let credential = self.meter.credential.lock().take();
        if let Some(credential) = credential {
            let joined = Joined::new(&credential, bytes);
            self.joined = Some(joined.ok_or_else(|| io::Error::other("the head came in pieces"))?);
        }
        while let Some(mut joined) = self.joined.take() {
            if joined.written == joined.bytes.len() {
                return Poll::Ready(Ok(joined.of));
            }
            let sent = self.poll_send(cx, &joined.bytes[joined.written..]);
            if let Poll::Ready(Ok(count)) = &sent {
                joined.written += count;
            }
            self.joined = Some(joined);
            if ready!(sent)? == 0 {
                return Poll::Ready(Ok(0));
            }
        }
        self.poll_send(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        // hyper flushes when it has written all that it has.
        let flushed = ready!(Pin::new(&mut *self.stream).poll_flush(cx));
        self.meter.unsent.store(false, Ordering::Relaxed);
        Poll::Ready(flushed)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.stream).poll_shutdown(cx)
    }
}

/// A connection by HTTP.
pub(super) async fn dial(
    origin: &Origin,
    judged: &Judged,
    tls: &Tls,
    seen: &mut Option<Seen>,
) -> Result<Line, Fault> {
    let (stream, probe, address) = connect(origin, judged, tls, seen).await?;
    let meter = stream.meter.clone();
    let (sender, connection) = begin(stream).await?;
    let in_allowed_range = AddressClass::of(address) != AddressClass::Public;
    Ok(Line { sender, meter, address, in_allowed_range, probe, connection })
}

/// Connects to the first of these addresses that answers, and to no other. `seen` is filled with whoever it met last.
pub(super) async fn connect(
    origin: &Origin,
    judged: &Judged,
    tls: &Tls,
    seen: &mut Option<Seen>,
) -> Result<(Metered, std::net::TcpStream, IpAddr), Fault> {
    let unreachable = |why: &str| Fault::new(ExchangeFault::Unreachable, why);
    let mut last = unreachable("no address answers");
    for address in &judged.addresses {
        let class = AddressClass::of(*address);
        if origin.scheme.is_in_clear() && class == AddressClass::Public {
            let why = "without TLS anybody on the way could read the secret; use TLS beyond allowed ranges";
            return Err(Fault::new(ExchangeFault::Refused, why));
        }
        *seen = Some(Seen { address: *address, class, certificate: None });
        let at = SocketAddr::new(*address, origin.port);
        let stream = match timeout(CONNECT_TIME_MAX, TcpStream::connect(at)).await {
            Ok(Ok(stream)) => stream,
            Ok(Err(error)) => {
                last = unreachable(&format!("no connection: {}", error.kind()));
                continue;
            }
            Err(_) => {
                last = unreachable("no connection in time");
                continue;
            }
        };
        let probe = stream.as_fd().try_clone_to_owned().map(std::net::TcpStream::from);
        let is_sound = stream.peer_addr().ok() == Some(at) && stream.set_nodelay(true).is_ok();
        let Some(probe) = probe.ok().filter(|_| is_sound) else {
            last = unreachable("the connection broke");
            continue;
        };
        // A connection of a machine to itself has the same address at both ends.
        if judged.is_own_port && probe.local_addr().is_ok_and(|local| local.ip() == *address) {
            return Err(Fault::new(ExchangeFault::Refused, "the host leads to effectd itself"));
        }
        let stream: Box<dyn Stream> = match origin.scheme {
            Scheme::Http | Scheme::PostgresInClear => Box::new(stream),
            Scheme::Https | Scheme::Postgres => encrypted(origin, stream, tls, seen).await?,
        };
        return Ok((Metered { stream, meter: Arc::default(), joined: None }, probe, *address));
    }
    Err(last)
}

async fn encrypted(
    origin: &Origin,
    mut stream: TcpStream,
    tls: &Tls,
    seen: &mut Option<Seen>,
) -> Result<Box<dyn Stream>, Fault> {
    let untrusted = |why: &str| Fault::new(ExchangeFault::Untrusted, why);
    let (config, witness) = tls.config(&origin.trust, origin.scheme).map_err(untrusted)?;
    let name =
        ServerName::try_from(origin.host.clone()).map_err(|_| untrusted("the host has no name for TLS"))?;
    let shaking = async {
        if origin.scheme == Scheme::Postgres {
            stream.write_all(&TLS_REQUEST).await?;
            // Not a byte more: what follows in clear is read as TLS, and is none.
            if stream.read_u8().await? != b'S' {
                return Ok(None);
            }
        }
        TlsConnector::from(config).connect(name, stream).await.map(Some)
    };
    let shaken = timeout(HANDSHAKE_TIME_MAX, shaking).await;
    if let Some(seen) = seen {
        seen.certificate = witness.shown().and_then(|shown| certificate::read(&shown));
    }
    match shaken {
        Ok(Ok(Some(stream))) => Ok(Box::new(stream)),
        Ok(Ok(None)) => Err(untrusted("the server does not offer TLS")),
        Ok(Err(error)) => Err(untrusted(tls::why(&error))),
        Err(_) => {
            Err(Fault::new(ExchangeFault::TimedOut, "the server did not finish the TLS handshake in time"))
        }
    }
}

async fn begin(stream: Metered) -> Result<(Sender, AbortHandle), Fault> {
    let mut builder = http1::Builder::new();
    builder.max_headers(HEADERS_MAX).max_header_size(HEAD_BYTES_MAX).max_buf_size(2 * HEAD_BYTES_MAX);
    let broken = |_| Fault::new(ExchangeFault::Unreachable, "the connection broke");
    let (sender, connection) = builder.handshake(TokioIo::new(stream)).await.map_err(broken)?;
    let running = tokio::spawn(async move {
        let _ended = connection.await;
    });
    Ok((sender, running.abort_handle()))
}
