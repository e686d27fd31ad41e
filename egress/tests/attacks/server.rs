//! Servers that do as a test says, at every address of this network.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio_rustls::rustls::{ServerConfig, ServerConnection, StreamOwned};

/// A connection, encrypted or not.
pub(crate) trait Peer: Read + Write {}
impl<T: Read + Write> Peer for T {}

type Script = dyn Fn(&[u8], &mut dyn Peer) -> Go + Send + Sync;

/// What a server does after an answer.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Go {
    On,
    Close,
}

#[derive(Default)]
struct Seen {
    connections: usize,
    requests: Vec<Vec<u8>>,
}

pub(crate) struct Server {
    pub(crate) port: u16,
    seen: Arc<Mutex<Seen>>,
}

impl Server {
    /// A server that answers each request by this script.
    pub(crate) fn new(
        tls: Option<Arc<ServerConfig>>,
        script: impl Fn(&[u8], &mut dyn Peer) -> Go + Send + Sync + 'static,
    ) -> Self {
        // IPv6 sockets hear IPv4, too.
        let listener = TcpListener::bind("[::]:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let (seen, script): (Arc<Mutex<Seen>>, Arc<Script>) = (Arc::default(), Arc::new(script));
        let shared = seen.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                shared.lock().connections += 1;
                let (tls, seen, script) = (tls.clone(), shared.clone(), script.clone());
                std::thread::spawn(move || {
                    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
                    // What is said has left then, and does not wait for what the other side says.
                    stream.set_nodelay(true).unwrap();
                    match tls {
                        Some(tls) => {
                            let connection = ServerConnection::new(tls).unwrap();
                            talk(&mut StreamOwned::new(connection, stream), &seen, &*script);
                        }
                        None => talk::<TcpStream>(&mut { stream }, &seen, &*script),
                    }
                });
            }
        });
        Self { port, seen }
    }

    /// A server that answers each request when it has its head, and never reads the body.
    pub(crate) fn unread(tls: Option<Arc<ServerConfig>>) -> Self {
        let listener = TcpListener::bind("[::]:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let seen: Arc<Mutex<Seen>> = Arc::default();
        let shared = seen.clone();
        std::thread::spawn(move || {
            let mut held: Vec<Box<dyn Peer + Send>> = Vec::new();
            for stream in listener.incoming().flatten() {
                shared.lock().connections += 1;
                let mut stream: Box<dyn Peer + Send> = match &tls {
                    Some(tls) => {
                        Box::new(StreamOwned::new(ServerConnection::new(tls.clone()).unwrap(), stream))
                    }
                    None => Box::new(stream),
                };
                let (mut head, mut byte) = (Vec::new(), [0]);
                while !head.ends_with(b"\r\n\r\n") && stream.read_exact(&mut byte).is_ok() {
                    head.push(byte[0]);
                }
                ok(&mut *stream, b"early");
                let _gone = stream.flush();
                held.push(stream);
            }
        });
        Self { port, seen }
    }

    /// A server that says this to whoever connects, without waiting for a request.
    pub(crate) fn at_once(text: &'static str) -> Self {
        let listener = TcpListener::bind("[::]:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        std::thread::spawn(move || {
            for mut stream in listener.incoming().flatten() {
                let _gone = stream.write_all(text.as_bytes());
                // What the other side sends is read, so that closing does not reset what was said.
                let _gone = stream.shutdown(std::net::Shutdown::Write);
                std::thread::spawn(move || std::io::copy(&mut stream, &mut std::io::sink()));
            }
        });
        Self { port, seen: Arc::default() }
    }

    /// A server that answers 200 with this body.
    pub(crate) fn saying(tls: Option<Arc<ServerConfig>>, body: &'static str) -> Self {
        Self::new(tls, move |_, to| ok(to, body.as_bytes()))
    }

    pub(crate) fn connections(&self) -> usize {
        self.seen.lock().connections
    }

    /// All requests so far, each as it came.
    pub(crate) fn requests(&self) -> Vec<String> {
        let seen = self.seen.lock();
        seen.requests.iter().map(|bytes| String::from_utf8_lossy(bytes).into_owned()).collect()
    }
}

fn talk<T: Read + Write>(stream: &mut T, seen: &Mutex<Seen>, script: &Script) {
    loop {
        let Some(request) = read_request(stream) else {
            return;
        };
        seen.lock().requests.push(request.clone());
        if script(&request, stream) == Go::Close || stream.flush().is_err() {
            return;
        }
    }
}

/// Reads one request as a simple server does: to the empty line, then as many bytes as a content length says. What follows is the
/// next request.
fn read_request(stream: &mut impl Read) -> Option<Vec<u8>> {
    let mut request = Vec::new();
    let mut byte = [0];
    while !request.ends_with(b"\r\n\r\n") {
        stream.read_exact(&mut byte).ok()?;
        request.push(byte[0]);
    }
    let head = String::from_utf8_lossy(&request).to_ascii_lowercase();
    let is_chunked = head.contains("transfer-encoding: chunked");
    let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")?.parse::<usize>().ok());
    let mut body = vec![0; length.filter(|_| !is_chunked).unwrap_or(0)];
    stream.read_exact(&mut body).ok()?;
    request.extend(body);
    if is_chunked {
        while !request.ends_with(b"0\r\n\r\n") {
            stream.read_exact(&mut byte).ok()?;
            request.push(byte[0]);
        }
    }
    Some(request)
}

pub(crate) fn ok(to: &mut dyn Peer, body: &[u8]) -> Go {
    answer(to, "200 OK", "", body)
}

/// An answer with these lines of headers, each with its end.
pub(crate) fn answer(to: &mut dyn Peer, status: &str, headers: &str, body: &[u8]) -> Go {
    let head = format!("HTTP/1.1 {status}\r\n{headers}content-length: {}\r\n\r\n", body.len());
    let _gone = to.write_all(&[head.as_bytes(), body].concat());
    Go::On
}
