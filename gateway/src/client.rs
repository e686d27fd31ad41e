//! The client of all routes, over three transports: the socket of a daemon, its URL, or the same routes in this process.
//!
//! Every request may be repeated: the action's id ensures that an accepted action does not run twice.
#![expect(clippy::disallowed_methods, reason = "connects to the daemon")]

mod remote;

pub use remote::Remote;

use std::io::{self, IsTerminal};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use effectd_contracts::{ActionId, ActionRequest, BatchRequest, Plan, PlanResult};
use http_body_util::{BodyExt, Collected, Full, Limited};
use hyper::body::Bytes;
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HOST, HeaderValue};
use hyper::service::Service;
use hyper::{HeaderMap, Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use hyper_util::service::TowerToHyperService;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::UnixStream;
use tokio::time::timeout;

use crate::headers::{IDEMPOTENCY_KEY, INTERACTIVE};
use crate::problem::{Kind, Problem};
use crate::views::actions::{ActionView, State};
use crate::views::batches::BatchView;
use crate::views::health::Health;
use crate::views::whoami::WhoamiView;

/// The largest answer that is read at once: a receipt with the largest output of a tool fits several times.
const ANSWER_BYTES_MAX: usize = 16 * 1_048_576;
/// What is no GET, and changes nothing that its caller would look for.
const LOOKS: [&str; 4] = ["/v1/log/head", "/v1/policy/check", "/v1/policy/explain", "/v1/preview"];
/// How long an answer from a URL may take to begin. Longer than a daemon lets a request wait.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(15 * 60);

#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    #[error("no daemon answers on {}; start one with `effectd serve`, with the same --state", .0.display())]
    NoDaemon(PathBuf),
    #[error(
        "the daemon on {} serves the state {found}, not {} ({}); leave out --state or --socket, or correct gateway.socket in the \
         state's config.toml",
        socket.display(), expected.directory.display(), expected.id.as_deref().unwrap_or("not used yet, so it has no id")
    )]
    OtherState { socket: PathBuf, found: String, expected: ExpectedState },
    #[error("you may not connect to {}; ask the daemon's operator to set gateway.socket_mode = \"0660\" and to add you to the socket's group", .0.display())]
    NotPermitted(PathBuf),
    /// Whether the daemon accepted the request is unknown; repeating it is harmless.
    #[error("the connection to the daemon broke: {0}; it is safe to retry")]
    Broken(String),
    /// The routes in this process broke off their answer.
    #[error("{0}")]
    Failed(String),
    /// The response is not one that this version of effectd knows.
    #[error("the response is not from effectd, or from another version: {0}")]
    Strange(String),
    #[error("{}: {}", .0.code, .0.detail)]
    Refused(Box<Problem>),
    #[error(
        "nothing answers at {url} ({name}): {why}; check the address, and that a daemon listens there (`effectd serve --listen`)"
    )]
    Unreachable { name: String, url: String, why: String },
    #[error(
        "{url} ({name}) cannot be trusted: {why}; the certificate must name this host, and come from an authority that this system \
         or the CA file of the context knows (`effectd context add --ca`)"
    )]
    Untrusted { name: String, url: String, why: String },
    #[error(
        "{url} does not accept the token of {name}: it is wrong, expired or revoked; ask the daemon's operator for another \
         (`effectd tokens create`), and remove and add the context, or set EFFECTD_TOKEN"
    )]
    TokenRefused { name: String, url: String },
}

impl ClientError {
    pub fn may_retry(&self) -> bool {
        match self {
            ClientError::NoDaemon(_) | ClientError::Broken(_) | ClientError::Unreachable { .. } => true,
            ClientError::Refused(problem) => problem.retry_after_ms.is_some(),
            ClientError::OtherState { .. }
            | ClientError::NotPermitted(_)
            | ClientError::Failed(_)
            | ClientError::Strange(_)
            | ClientError::Untrusted { .. }
            | ClientError::TokenRefused { .. } => false,
        }
    }
}

/// The answer to a request about one action.
#[derive(Debug, Clone, PartialEq)]
pub enum ActionReply {
    View(ActionView),
    Problem(Problem),
}

/// The answer to a request about one plan.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(untagged)]
pub enum PlanReply {
    /// It has ended, or waits for a person.
    Result(Box<PlanResult>),
    /// It has begun, or is about to.
    GoesOn(Box<ActionView>),
}

/// An answer whose body is read in pieces, as they come.
#[derive(Debug)]
pub struct StreamedAnswer {
    pub status: u16,
    pub headers: HeaderMap,
    body: Body,
}

impl StreamedAnswer {
    /// The next piece of the body; `None` at its end.
    pub async fn piece(&mut self) -> Result<Option<Bytes>, ClientError> {
        while let Some(frame) = self.body.frame().await {
            let frame = frame.map_err(|error| ClientError::Broken(error.to_string()))?;
            if let Ok(piece) = frame.into_data() {
                return Ok(Some(piece));
            }
        }
        Ok(None)
    }
}

/// The state that a daemon must serve.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExpectedState {
    pub directory: PathBuf,
    /// `None` if no process has opened it yet; then no daemon serves it.
    pub id: Option<String>,
}

#[derive(Debug)]
enum Transport {
    /// A daemon; the client connects on demand, and again after the connection broke.
    Daemon(Connection),
    InProcess(TowerToHyperService<Router>),
}

#[derive(Debug, Clone)]
enum Address {
    Socket {
        path: PathBuf,
        /// Compared with the daemon's state after each connect, before any other request.
        expected: Option<ExpectedState>,
    },
    Url(Arc<Remote>),
}

/// What is said once, before the first request of some clients that may change something: where it goes, and who asks there.
#[derive(Debug)]
pub struct Notice {
    say: fn(&str, &WhoamiView),
    said: AtomicBool,
}

impl Notice {
    pub fn new(say: fn(&str, &WhoamiView)) -> Self {
        Self { say, said: AtomicBool::new(false) }
    }
}

#[derive(Debug)]
struct Connection {
    address: Address,
    sender: Option<SendRequest<Full<Bytes>>>,
    notice: Option<Arc<Notice>>,
}

#[derive(Debug)]
pub struct Client {
    transport: Transport,
    /// A person waits at a terminal.
    interactive: bool,
}

impl Client {
    /// A client of a daemon. It is interactive if standard input is a terminal.
    pub fn new(socket: impl Into<PathBuf>) -> Self {
        Self::of_state(socket, None)
    }

    /// A client of the daemon of this state; refuses a daemon of another state.
    pub fn of_state(socket: impl Into<PathBuf>, expected: Option<ExpectedState>) -> Self {
        Self::at(Address::Socket { path: socket.into(), expected })
    }

    /// A client of the daemon at a URL.
    pub fn remote(remote: Arc<Remote>) -> Self {
        Self::at(Address::Url(remote))
    }

    fn at(address: Address) -> Self {
        let connection = Connection { address, sender: None, notice: None };
        Self { transport: Transport::Daemon(connection), interactive: io::stdin().is_terminal() }
    }

    /// This client with a notice before what it changes. Routes in this process need none.
    pub fn with_notice(mut self, notice: Option<Arc<Notice>>) -> Self {
        if let Transport::Daemon(connection) = &mut self.transport {
            connection.notice = notice;
        }
        self
    }

    pub(crate) fn in_process(routes: Router, interactive: bool) -> Self {
        Self { transport: Transport::InProcess(TowerToHyperService::new(routes)), interactive }
    }

    /// Another client of the same routes.
    pub fn another(&self) -> Self {
        let transport = match &self.transport {
            Transport::Daemon(Connection { address, notice, .. }) => {
                let (address, notice) = (address.clone(), notice.clone());
                Transport::Daemon(Connection { address, sender: None, notice })
            }
            Transport::InProcess(routes) => Transport::InProcess(routes.clone()),
        };
        Self { transport, interactive: self.interactive }
    }

    /// Whether the routes are in this process.
    pub fn is_in_process(&self) -> bool {
        matches!(self.transport, Transport::InProcess(_))
    }

    pub async fn connect(&mut self) -> Result<(), ClientError> {
        match &mut self.transport {
            Transport::Daemon(connection) => connection.ready().await.map(drop),
            Transport::InProcess(_) => Ok(()),
        }
    }

    /// Says what the client may change, before a view takes the screen over.
    pub async fn announce(&mut self) -> Result<(), ClientError> {
        match &mut self.transport {
            Transport::Daemon(connection) => connection.announce().await,
            Transport::InProcess(_) => Ok(()),
        }
    }

    pub async fn is_there(&mut self) -> Result<(), ClientError> {
        self.ask(Method::GET, "/healthz", Bytes::new()).await.map(drop)
    }

    /// Submits an action; with `wait`, waits this long for its receipt.
    pub async fn submit(
        &mut self,
        request: &ActionRequest,
        wait: Option<Duration>,
    ) -> Result<ActionReply, ClientError> {
        let body = serde_json::to_vec(request).map_err(|error| ClientError::Strange(error.to_string()))?;
        let path = match wait {
            None => "/v1/actions".to_owned(),
            Some(wait) => format!("/v1/actions?wait={}", wait.as_millis()),
        };
        action_reply(self.ask(Method::POST, &path, body.into()).await)
    }

    /// Runs a batch. Waits until it has ended or waits for a person, as often as the daemon ends a request before.
    pub async fn batch(&mut self, batch: &BatchRequest) -> Result<BatchView, ClientError> {
        loop {
            let view: BatchView = self.post("/v1/batches", batch).await?;
            if view.state != State::Accepted {
                return Ok(view);
            }
        }
    }

    /// Where a batch is.
    pub async fn batch_of(&mut self, batch_id: &ActionId) -> Result<BatchView, ClientError> {
        self.get(&format!("/v1/batches/{}", percent_encoded(batch_id.as_str()))).await
    }

    /// Carries out a plan, and waits this long for its result.
    pub async fn plan(&mut self, plan: &Plan, wait: Duration) -> Result<PlanReply, ClientError> {
        self.post(&format!("/v1/plans?timeout_ms={}", wait.as_millis()), plan).await
    }

    /// What a plan came to.
    pub async fn plan_result(&mut self, action: &ActionId) -> Result<PlanReply, ClientError> {
        self.get(&format!("/v1/plans/{}", percent_encoded(action.as_str()))).await
    }

    pub async fn status(&mut self, action: &ActionId) -> Result<ActionReply, ClientError> {
        self.about(Method::GET, action, "").await
    }

    /// Waits until an action has ended, at most this long.
    pub async fn wait(&mut self, action: &ActionId, wait: Duration) -> Result<ActionReply, ClientError> {
        let wait = format!("/wait?timeout_ms={}", wait.as_millis());
        self.about(Method::GET, action, &wait).await
    }

    pub async fn cancel(&mut self, action: &ActionId) -> Result<ActionReply, ClientError> {
        self.about(Method::DELETE, action, "").await
    }

    async fn about(
        &mut self,
        method: Method,
        action: &ActionId,
        rest: &str,
    ) -> Result<ActionReply, ClientError> {
        let path = format!("/v1/actions/{}{rest}", percent_encoded(action.as_str()));
        action_reply(self.ask(method, &path, Bytes::new()).await)
    }

    pub async fn get<T: DeserializeOwned>(&mut self, path: &str) -> Result<T, ClientError> {
        self.call(Method::GET, path, "").await
    }

    /// All pages of a list; `split` takes a page apart into its items and the `after` of the next page.
    pub async fn pages<P: DeserializeOwned, T>(
        &mut self,
        path: &str,
        split: impl Fn(P) -> (Vec<T>, Option<String>),
    ) -> Result<Vec<T>, ClientError> {
        let (mut all, mut next) = split(self.get(path).await?);
        while let Some(after) = next {
            let path = format!("{path}?after={}", percent_encoded(&after));
            let (items, more) = split(self.get(&path).await?);
            all.extend(items);
            next = more;
        }
        Ok(all)
    }

    pub async fn post<T: DeserializeOwned>(
        &mut self,
        path: &str,
        body: &impl Serialize,
    ) -> Result<T, ClientError> {
        let body = serde_json::to_vec(body).map_err(|error| ClientError::Strange(error.to_string()))?;
        self.call(Method::POST, path, body).await
    }

    /// Any request whose answer is JSON.
    pub async fn call<T: DeserializeOwned>(
        &mut self,
        method: Method,
        path: &str,
        body: impl Into<Bytes>,
    ) -> Result<T, ClientError> {
        let (status, body) = self.ask(method, path, body.into()).await?;
        if status < 400 { read(&body) } else { Err(ClientError::Refused(read(&body)?)) }
    }

    /// Any request; returns status and body.
    pub async fn ask(
        &mut self,
        method: Method,
        path: &str,
        body: Bytes,
    ) -> Result<(u16, Bytes), ClientError> {
        let request = request(method, path, self.interactive, body)?;
        self.status_and_body(request).await
    }

    /// A POST that does nothing twice if it is repeated with the same key.
    pub async fn post_with_key(
        &mut self,
        path: &str,
        body: Bytes,
        key: &str,
    ) -> Result<(u16, Bytes), ClientError> {
        let mut request = request(Method::POST, path, self.interactive, body)?;
        let key = HeaderValue::from_str(key).map_err(|error| ClientError::Strange(error.to_string()))?;
        request.headers_mut().insert(IDEMPOTENCY_KEY, key);
        self.status_and_body(request).await
    }

    /// A POST with headers of its own, whose answer may be a stream. The caller reads it to its end before the next request.
    pub async fn post_streamed(
        &mut self,
        path: &str,
        body: Bytes,
        headers: HeaderMap,
    ) -> Result<StreamedAnswer, ClientError> {
        let mut request = request(Method::POST, path, self.interactive, body)?;
        request.headers_mut().extend(headers);
        let (head, body) = self.send(request).await?.into_parts();
        Ok(StreamedAnswer { status: head.status.as_u16(), headers: head.headers, body })
    }

    async fn status_and_body(&mut self, request: Request<Full<Bytes>>) -> Result<(u16, Bytes), ClientError> {
        let response = self.send(request).await?;
        let status = response.status().as_u16();
        let body = whole(response).await.map_err(|why| self.cut_off(why))?;
        Ok((status, body))
    }

    /// Gets a long response in pieces, for `take`. The inner error is that of `take`.
    pub async fn fetch(
        &mut self,
        path: &str,
        mut take: impl FnMut(&[u8]) -> io::Result<()>,
    ) -> Result<io::Result<()>, ClientError> {
        let request = request(Method::GET, path, self.interactive, Bytes::new())?;
        let response = self.send(request).await?;
        if response.status().as_u16() != 200 {
            let body = whole(response).await.map_err(|why| self.cut_off(why))?;
            return Err(ClientError::Refused(read(&body)?));
        }
        let mut body = response.into_body();
        while let Some(frame) = body.frame().await {
            let frame = frame.map_err(|error| self.cut_off(error.to_string()))?;
            if let Ok(piece) = frame.into_data()
                && let Err(error) = take(&piece)
            {
                // The rest of the answer must not be read as the next one.
                self.hang_up();
                return Ok(Err(error));
            }
        }
        Ok(Ok(()))
    }

    fn cut_off(&mut self, why: String) -> ClientError {
        self.hang_up();
        match &self.transport {
            Transport::Daemon(_) => ClientError::Broken(why),
            Transport::InProcess(_) => ClientError::Failed(why),
        }
    }

    fn hang_up(&mut self) {
        if let Transport::Daemon(connection) = &mut self.transport {
            connection.sender = None;
        }
    }

    async fn send(&mut self, request: Request<Full<Bytes>>) -> Result<Response<Body>, ClientError> {
        match &mut self.transport {
            Transport::InProcess(routes) => match routes.call(request).await {
                Ok(response) => Ok(response),
                Err(never) => match never {},
            },
            Transport::Daemon(connection) => {
                if request.method() != Method::GET && !LOOKS.contains(&request.uri().path()) {
                    connection.announce().await?;
                }
                connection.send(request).await
            }
        }
    }
}

impl Connection {
    async fn ready(&mut self) -> Result<&mut SendRequest<Full<Bytes>>, ClientError> {
        let alive = match &mut self.sender {
            Some(sender) => sender.ready().await.is_ok(),
            None => false,
        };
        let ready = match self.sender.take().filter(|_| alive) {
            Some(sender) => sender,
            None => self.connect().await?,
        };
        Ok(self.sender.insert(ready))
    }

    async fn send(&mut self, mut request: Request<Full<Bytes>>) -> Result<Response<Body>, ClientError> {
        if let Address::Url(remote) = &self.address {
            let headers = request.headers_mut();
            headers.insert(HOST, remote.host.clone());
            headers.insert(AUTHORIZATION, remote.authorization.clone());
        }
        let answer = self.ready().await?.send_request(request);
        let sent = match &self.address {
            Address::Socket { .. } => answer.await.map_err(|error| error.to_string()),
            // A network can lose a connection without a word.
            Address::Url(_) => match timeout(ANSWER_TIME_MAX, answer).await {
                Ok(sent) => sent.map_err(|error| error.to_string()),
                Err(_) => Err("no answer in time".to_owned()),
            },
        };
        match (sent, &self.address) {
            (Err(why), _) => {
                self.sender = None;
                Err(ClientError::Broken(why))
            }
            (Ok(response), Address::Url(remote)) if response.status() == StatusCode::UNAUTHORIZED => {
                let (name, url) = (remote.name.clone(), remote.url.clone());
                Err(ClientError::TokenRefused { name, url })
            }
            (Ok(response), _) => Ok(response.map(Body::new)),
        }
    }

    /// Before the first request that may change something: says what it changes.
    async fn announce(&mut self) -> Result<(), ClientError> {
        let unsaid = |notice: &Arc<Notice>| !notice.said.load(Ordering::Relaxed);
        let Some(notice) = self.notice.clone().filter(unsaid) else {
            return Ok(());
        };
        let response = self.send(request(Method::GET, "/v1/whoami", false, Bytes::new())?).await?;
        let who = answer(response).await?;
        let target = match &self.address {
            Address::Socket { path, .. } => path.display().to_string(),
            Address::Url(remote) => format!("{} ({})", remote.url, remote.name),
        };
        if !notice.said.swap(true, Ordering::Relaxed) {
            (notice.say)(&target, &who);
        }
        Ok(())
    }

    async fn connect(&self) -> Result<SendRequest<Full<Bytes>>, ClientError> {
        let (path, expected) = match &self.address {
            Address::Url(remote) => return remote.connect().await,
            Address::Socket { path, expected: None } => return connect(path).await,
            Address::Socket { path, expected: Some(expected) } => (path, expected),
        };
        // A full daemon answers `/healthz` and hangs up. One that stops does, too, and does not answer a second time.
        for _ in 0..2 {
            let mut sender = connect(path).await?;
            check(&mut sender, path, expected).await?;
            if sender.ready().await.is_ok() {
                return Ok(sender);
            }
        }
        let why = "the daemon has too many connections and only reports its health; try again shortly";
        Err(ClientError::Refused(Box::new(Problem::of(Kind::Busy, why))))
    }
}

/// Refuses the daemon of another state.
async fn check(
    sender: &mut SendRequest<Full<Bytes>>,
    socket: &Path,
    expected: &ExpectedState,
) -> Result<(), ClientError> {
    let request = request(Method::GET, "/healthz", false, Bytes::new())?;
    let sent = sender.send_request(request).await;
    let response = sent.map_err(|error| ClientError::Broken(error.to_string()))?.map(Body::new);
    let found = answer::<Health>(response).await?.state_id;
    if expected.id.as_ref() != Some(&found) {
        let (socket, expected) = (socket.to_owned(), expected.clone());
        return Err(ClientError::OtherState { socket, found, expected });
    }
    Ok(())
}

fn request(
    method: Method,
    path: &str,
    interactive: bool,
    body: Bytes,
) -> Result<Request<Full<Bytes>>, ClientError> {
    Request::builder()
        .method(method)
        .uri(path)
        .header(HOST, "effectd")
        .header(CONTENT_TYPE, "application/json")
        .header(INTERACTIVE, interactive.to_string())
        .body(Full::new(body))
        .map_err(|error| ClientError::Strange(error.to_string()))
}

async fn connect(path: &Path) -> Result<SendRequest<Full<Bytes>>, ClientError> {
    let stream = UnixStream::connect(path).await.map_err(|error| {
        let is = |kind| error.kind() == kind;
        if is(io::ErrorKind::NotFound)
            || is(io::ErrorKind::NotADirectory)
            || is(io::ErrorKind::ConnectionRefused)
        {
            ClientError::NoDaemon(path.to_owned())
        } else if is(io::ErrorKind::PermissionDenied) {
            ClientError::NotPermitted(path.to_owned())
        } else {
            ClientError::Broken(error.to_string())
        }
    })?;
    begin(stream).await
}

/// Begins HTTP on a connection.
async fn begin(
    stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
) -> Result<SendRequest<Full<Bytes>>, ClientError> {
    let (sender, connection) =
        handshake(TokioIo::new(stream)).await.map_err(|error| ClientError::Broken(error.to_string()))?;
    // Requests on the connection report its errors.
    tokio::spawn(async move { drop(connection.await) });
    Ok(sender)
}

/// The answer to a request of the client's own.
async fn answer<T: DeserializeOwned>(response: Response<Body>) -> Result<T, ClientError> {
    let status = response.status().as_u16();
    let body = whole(response).await.map_err(ClientError::Broken)?;
    if status < 400 { read(&body) } else { Err(ClientError::Refused(read(&body)?)) }
}

async fn whole(response: Response<Body>) -> Result<Bytes, String> {
    let body = Limited::new(response.into_body(), ANSWER_BYTES_MAX).collect().await;
    body.map(Collected::to_bytes).map_err(|error| error.to_string())
}

fn action_reply(answer: Result<(u16, Bytes), ClientError>) -> Result<ActionReply, ClientError> {
    let (status, body) = match answer {
        // The daemon refused the check of its state, and the request with it.
        Err(ClientError::Refused(problem)) => return Ok(ActionReply::Problem(*problem)),
        answer => answer?,
    };
    if status < 400 { read(&body).map(ActionReply::View) } else { read(&body).map(ActionReply::Problem) }
}

fn read<T: DeserializeOwned>(body: &[u8]) -> Result<T, ClientError> {
    serde_json::from_slice(body).map_err(|error| ClientError::Strange(error.to_string()))
}

/// Encodes a name as one segment of a path.
pub fn percent_encoded(text: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.~".contains(&byte);
    let mut encoded = String::with_capacity(text.len());
    for byte in text.bytes() {
        if plain(byte) {
            encoded.push(char::from(byte));
        } else {
            encoded.push_str(&format!("%{byte:02X}"));
        }
    }
    // `.` and `..` are folders to URL parsers.
    match encoded.as_str() {
        "." => "%2E".to_owned(),
        ".." => "%2E%2E".to_owned(),
        _ => encoded,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_id_is_one_segment() {
        assert_eq!(percent_encoded("a/b?c d"), "a%2Fb%3Fc%20d");
        assert_eq!(percent_encoded(".."), "%2E%2E");
        assert_eq!(percent_encoded("0199-x_y.z~"), "0199-x_y.z~");
    }

    #[tokio::test]
    async fn in_this_process_no_connection_breaks() {
        let cut = || async { Body::new(Limited::new(Full::new(Bytes::from_static(b"too long")), 1)) };
        let mut client = Client::in_process(Router::new().route("/cut", axum::routing::get(cut)), false);
        let asked = client.ask(Method::GET, "/cut", Bytes::new()).await.map(drop);
        let fetched = client.fetch("/cut", |_| Ok(())).await.map(drop);
        for result in [asked, fetched] {
            assert!(
                matches!(&result, Err(error @ ClientError::Failed(_)) if !error.may_retry()),
                "{result:?}"
            );
        }
    }
}
