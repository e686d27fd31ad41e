//! Carries one order out: judged, dialled, sent, read, and stripped.

use std::sync::Arc;
use std::time::Duration;

use effectd_contracts::access::is_credential;
use effectd_contracts::exchange::is_told;
use effectd_contracts::limits::{EXCHANGE_ANSWER_BYTES_MAX, EXCHANGE_MS_MAX};
use effectd_contracts::{
    EgressRecord, Exchange, ExchangeAnswer, ExchangeFailure, ExchangeFault, ExchangeReply, Host, Method,
    Millis,
};
use http_body_util::Full;
use hyper::body::Bytes;
use hyper::header::{ACCEPT_ENCODING, HOST, HeaderMap, HeaderName, HeaderValue, USER_AGENT};
use hyper::{Request, Response};
use parking_lot::Mutex;
use tokio::time::{Instant, timeout, timeout_at};

use super::body::{self, Whole};
use super::dial::{self, Line, Meter};
use super::echo::Strip;
use super::places::{Place, Places};
use super::pool::Pool;
use super::postgres::Server;
use super::resolve::{Judged, Resolver};
use super::tls::Tls;
use crate::limits::{
    HEAD_BYTES_MAX, IDLE_TIME_MAX, LARGE_ANSWERS_MAX, LARGE_ANSWERS_OF_CONNECTION_MAX, READY_TIME_MAX,
    SMALL_ANSWER_BYTES_MAX, SQL_READ_BYTES_MAX, SQL_TIME_MARGIN,
};
use crate::order::{Credential, Login, Order, Origin, Report, Seen};

/// Why an exchange failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Fault {
    pub(super) fault: ExchangeFault,
    pub(super) message: String,
}

impl Fault {
    pub(super) fn new(fault: ExchangeFault, message: impl Into<String>) -> Self {
        Self { fault, message: message.into() }
    }
}

/// Most bytes of the headers that a tool is told.
const TOLD_BYTES_MAX: usize = 8_192;

/// What all exchanges share.
#[derive(Debug, Clone)]
pub(super) struct Courier {
    resolver: Resolver,
    tls: Tls,
    pool: Arc<Mutex<Pool>>,
    large: Places,
}

/// An order that was carried out, with the body of its answer.
#[derive(Debug)]
pub(super) struct Carried {
    pub(super) report: Report,
    pub(super) body: Vec<u8>,
    /// The body's share of the broker's memory.
    pub(super) _share: Option<Place>,
}

/// What is known of an exchange so far. It is filled while the exchange runs, so that an end at any point leaves the truth.
#[derive(Debug, Default)]
struct Wire {
    address: Option<String>,
    in_allowed_range: bool,
    seen: Option<Seen>,
    counted: Option<(Arc<Meter>, (u64, u64))>,
    /// Whether a connection has the request. It may write it at any moment from then on, so the count alone proves nothing.
    handed: bool,
}

impl Wire {
    /// Bytes that left, and bytes that came.
    fn bytes(&self) -> (u64, u64) {
        let Some((meter, before)) = &self.counted else {
            return (0, 0);
        };
        let now = meter.read();
        (now.0 - before.0, now.1 - before.1)
    }
}

impl Courier {
    pub(super) fn new(resolver: Resolver, tls: Tls) -> Self {
        let (pool, large) = (Arc::default(), Places::new(LARGE_ANSWERS_MAX, LARGE_ANSWERS_OF_CONNECTION_MAX));
        Self { resolver, tls, pool, large }
    }

    /// Closes connections that nobody used for long.
    pub(super) fn expire(&self) {
        self.pool.lock().expire(IDLE_TIME_MAX);
    }

    /// Carries an order out. It always returns, at the order's time at the latest.
    pub(super) async fn carry(&self, order: Order) -> Carried {
        let Order {
            id,
            origin,
            credential,
            login,
            secrets,
            exchange,
            own_headers,
            time_ms,
            bytes_max,
            only_dial,
        } = order;
        let begun = Instant::now();
        let end = begun + Duration::from_millis(time_ms.min(EXCHANGE_MS_MAX));
        let strip = Strip::new(credential.as_ref(), &secrets);
        let (host, method) = (origin.host.clone(), exchange.method);
        let mut wire = Wire::default();
        let bytes_max = bytes_max.min(EXCHANGE_ANSWER_BYTES_MAX);
        let carrying = async {
            if origin.scheme.is_database() || login.is_some() {
                let body = self.query(&origin, login, &exchange, end, &mut wire).await?;
                return Ok((0, HeaderMap::new(), body));
            }
            let request = request(&origin, credential.as_ref(), exchange, &own_headers)?;
            if only_dial {
                self.dial(&origin, &mut wire).await?;
                return Ok((0, HeaderMap::new(), Whole::default()));
            }
            self.send(&origin, Sent { request, credential }, (method, bytes_max), &mut wire).await
        };
        let late = |_| Fault::new(ExchangeFault::TimedOut, "the service did not answer in time");
        let result = timeout_at(end, carrying).await.map_err(late).flatten();
        let result = result.and_then(|(status, headers, Whole { bytes, share })| {
            let body = strip.strip(bytes, bytes_max).ok_or_else(too_large)?;
            Ok((status, headers, body, share))
        });
        let (bytes_out, bytes_in) = wire.bytes();
        let mut record = EgressRecord {
            host,
            address: wire.address.take().or(wire.seen.as_ref().map(|seen| seen.address.to_string())),
            method,
            status: None,
            fault: None,
            bytes_out,
            bytes_in,
            ms: Millis::from(begun.elapsed()),
            allowed_range: wire.in_allowed_range,
        };
        let (reply, body, share) = match result {
            Ok((status, headers, body, share)) => {
                record.status = Some(status).filter(|status| *status != 0);
                let answer = ExchangeAnswer { status, headers: told(&headers, &strip), body: Vec::new() };
                (ExchangeReply::Answered(answer), body, share)
            }
            Err(Fault { fault, message }) => {
                record.fault = Some(fault);
                let failure = ExchangeFailure { fault, message, sent: wire.handed };
                (ExchangeReply::Failed(failure), Vec::new(), None)
            }
        };
        let report = Report { id, reply, record, body_bytes: body.len(), waits: false, seen: wire.seen };
        Carried { report, body, _share: share }
    }

    async fn send(
        &self,
        origin: &Origin,
        Sent { request, credential }: Sent,
        (method, bytes_max): (Method, usize),
        wire: &mut Wire,
    ) -> Result<(u16, HeaderMap, Whole), Fault> {
        let kept = self.pool.lock().take(origin, method.is_write());
        let (mut line, response) = match kept {
            Some(line) => {
                let sent = Sent { request, credential: credential.clone() };
                match ask(line, sent, bytes_max, wire).await {
                    // The server closed it before it took anything, so this is no second attempt.
                    Err(Unsent::Whole(request)) => {
                        let sent = Sent { request: *request, credential };
                        self.ask_anew(origin, sent, bytes_max, wire).await?
                    }
                    Err(Unsent::No(fault)) => return Err(fault),
                    Ok(answered) => answered,
                }
            }
            None => self.ask_anew(origin, Sent { request, credential }, bytes_max, wire).await?,
        };
        let (head, body) = response.into_parts();
        let status = head.status.as_u16();
        if head.status.is_informational() {
            return Err(Fault::new(
                ExchangeFault::Broken,
                "the server changes the protocol, which nobody asked for",
            ));
        }
        let encoding = body::encoding(&head.headers)?;
        let meter = line.meter.clone();
        let whole = body::read(body, (encoding, bytes_max), (&self.large, &origin.connection)).await;
        let whole = whole.map_err(|fault| if meter.is_over() { too_large() } else { fault })?;
        // A server that sent more than its answer has closed the connection by then; and behind a request that it did not read, the
        // next one would wait.
        if meter.has_sent()
            && let Ok(Ok(())) = timeout(READY_TIME_MAX, line.sender.ready()).await
        {
            self.pool.lock().keep(origin, line);
        }
        Ok((status, head.headers, whole))
    }

    async fn dial(&self, origin: &Origin, wire: &mut Wire) -> Result<Line, Fault> {
        let judged = self.judged(origin, wire).await?;
        dial::dial(origin, &judged, &self.tls, &mut wire.seen).await
    }

    async fn judged(&self, origin: &Origin, wire: &mut Wire) -> Result<Judged, Fault> {
        let judged = self.resolver.resolve(&origin.host, origin.port, &origin.allowed).await?;
        wire.in_allowed_range = judged.in_allowed_range;
        Ok(judged)
    }

    /// Asks a database, over a connection that nobody used before or will use again.
    async fn query(
        &self,
        origin: &Origin,
        login: Option<Login>,
        exchange: &Exchange,
        end: Instant,
        wire: &mut Wire,
    ) -> Result<Whole, Fault> {
        let refused = |why: String| Fault::new(ExchangeFault::Refused, why);
        exchange.check().map_err(|why| refused(why.to_string()))?;
        let sql =
            str::from_utf8(&exchange.body).map_err(|_| refused("the statement is no UTF-8".to_owned()))?;
        let login = login.filter(|_| origin.scheme.is_database() && exchange.method.is_sql());
        let wrong = || refused("a database takes statements, and nothing else does".to_owned());
        let login = login.ok_or_else(wrong)?;
        let judged = self.judged(origin, wire).await?;
        let (stream, _, _) = dial::connect(origin, &judged, &self.tls, &mut wire.seen).await?;
        let meter = stream.meter.clone();
        wire.counted = Some((meter.clone(), meter.begin(SQL_READ_BYTES_MAX, None)));
        let asking = async {
            let mut server = Server::log_in(stream, &login).await?;
            wire.handed = true;
            server.ask(sql, end.saturating_duration_since(Instant::now() + SQL_TIME_MARGIN)).await
        };
        let answer = asking.await.map_err(|fault| match meter.is_over() {
            true => Fault::new(ExchangeFault::TooLarge, SQL_TOO_LARGE),
            false => fault,
        })?;
        let bytes = serde_json::to_vec(&answer).map_err(|_| too_large())?;
        let is_large = bytes.len() > SMALL_ANSWER_BYTES_MAX;
        let share = if is_large { self.large.take(&origin.connection).await } else { None };
        Ok(Whole { bytes, share })
    }

    async fn ask_anew(
        &self,
        origin: &Origin,
        sent: Sent,
        bytes_max: usize,
        wire: &mut Wire,
    ) -> Result<(Line, Response<hyper::body::Incoming>), Fault> {
        let line = self.dial(origin, wire).await?;
        ask(line, sent, bytes_max, wire).await.map_err(|unsent| match unsent {
            Unsent::Whole(_) => Fault::new(ExchangeFault::Unreachable, "the server closed the connection"),
            Unsent::No(fault) => fault,
        })
    }
}

const SQL_TOO_LARGE: &str =
    "the rows have more than 32 MiB; select less, or parts of long values: left(column, 1000)";

fn too_large() -> Fault {
    Fault::new(ExchangeFault::TooLarge, "the answer is larger than allowed")
}

/// A request, and what joins it on the wire.
struct Sent {
    request: Request<Full<Bytes>>,
    credential: Option<Credential>,
}

/// What became of a request without an answer.
enum Unsent {
    /// Nothing of it left: here it is again.
    Whole(Box<Request<Full<Bytes>>>),
    No(Fault),
}

async fn ask(
    mut line: Line,
    Sent { request, credential }: Sent,
    bytes_max: usize,
    wire: &mut Wire,
) -> Result<(Line, Response<hyper::body::Incoming>), Unsent> {
    // Room for the head, and for what framing in small pieces adds.
    let before = line.meter.begin(2 * bytes_max as u64 + 4 * HEAD_BYTES_MAX as u64, credential);
    wire.address = Some(line.address.to_string());
    wire.in_allowed_range = line.in_allowed_range;
    wire.counted = Some((line.meter.clone(), before));
    wire.handed = true;
    match line.sender.try_send_request(request).await {
        Ok(response) => Ok((line, response)),
        Err(mut error) => match error.take_message() {
            // It is given back only if no byte of it was written.
            Some(request) => {
                wire.handed = false;
                Err(Unsent::Whole(Box::new(request)))
            }
            None if line.meter.is_over() => Err(Unsent::No(too_large())),
            None => {
                let why = "the server closed the connection without an answer, or what it sent is not HTTP";
                Err(Unsent::No(Fault::new(ExchangeFault::Broken, why)))
            }
        },
    }
}

/// The request as it is sent, but for the value of the credential. Host and credential are the connection's, and nothing of the
/// child's is a header that frames.
fn request(
    origin: &Origin,
    credential: Option<&Credential>,
    exchange: Exchange,
    own: &[(String, String)],
) -> Result<Request<Full<Bytes>>, Fault> {
    let refused = |why: String| Fault::new(ExchangeFault::Refused, why);
    exchange.check().map_err(|why| refused(why.to_string()))?;
    let host = Host::parse(&origin.host).map_err(|why| refused(why.to_string()))?;
    let mut authority = match &host {
        Host::Address(address) if address.is_ipv6() => format!("[{address}]"),
        Host::Address(_) | Host::Name(_) => host.to_string(),
    };
    if origin.port != origin.scheme.port() {
        authority = format!("{authority}:{}", origin.port);
    }
    let unfit = |_| refused("the request has a part that cannot be sent".to_owned());
    let mut request = Request::builder()
        .method(exchange.method.as_str())
        .uri(exchange.target())
        .body(Full::new(Bytes::new()))
        .map_err(unfit)?;
    let headers = request.headers_mut();
    let plain =
        |text: &str| HeaderValue::from_str(text).map_err(|_| refused("a header cannot be sent".to_owned()));
    headers.insert(HOST, plain(&authority)?);
    headers.insert(USER_AGENT, HeaderValue::from_static("effectd"));
    headers.insert(ACCEPT_ENCODING, HeaderValue::from_static("gzip"));
    for (name, value) in exchange.headers.iter().chain(own) {
        let name = HeaderName::from_bytes(name.as_bytes())
            .map_err(|_| refused("a header cannot be sent".to_owned()))?;
        headers.insert(name, plain(value)?);
    }
    if let Some(Credential { header, value }) = credential {
        let unfit = || refused("the connection's credential cannot be sent as a header".to_owned());
        let name = HeaderName::from_bytes(header.to_ascii_lowercase().as_bytes()).map_err(|_| unfit())?;
        let is_plain = |byte: u8| byte == b' ' || byte.is_ascii_graphic();
        let text = value.as_str();
        if !is_credential(name.as_str()) || !text.bytes().all(is_plain) || text.trim() != text {
            return Err(unfit());
        }
        headers.insert(name, HeaderValue::from_static(""));
    }
    *request.body_mut() = Full::new(Bytes::from(exchange.body));
    Ok(request)
}

/// The headers that a tool is told, without secrets and within a bound.
fn told(headers: &HeaderMap, strip: &Strip) -> Vec<(String, String)> {
    let mut told: Vec<(String, String)> = Vec::new();
    let mut left = TOLD_BYTES_MAX;
    for (name, value) in headers.iter().filter(|(name, _)| is_told(name.as_str())) {
        let is_twice = told.iter().any(|(known, _)| known == name.as_str());
        // Some names are told by how they begin, and the server chooses the rest.
        if is_twice || strip.is_in(name.as_str().as_bytes()) {
            continue;
        }
        let value = strip.strip(value.as_bytes().to_vec(), TOLD_BYTES_MAX);
        let Some(value) = value.and_then(|value| String::from_utf8(value).ok()) else {
            continue;
        };
        let length = name.as_str().len() + value.len();
        if length <= left {
            left -= length;
            told.push((name.as_str().to_owned(), value));
        }
    }
    told
}
