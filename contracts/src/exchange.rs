//! Exchanges: the requests that a confined tool may ask for, and their answers.
//!
//! A tool never names a host, a port or a credential. It names a connection, and effectd knows where that leads. So a tool, however
//! it was misled, cannot choose where a secret goes.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::error::Error as JsonError;

use crate::digest::Digest;
use crate::json;
use crate::limits::{
    EXCHANGE_ANSWER_BYTES_MAX, EXCHANGE_BODY_BYTES_MAX, EXCHANGE_HEAD_BYTES_MAX, EXCHANGE_HEADERS_MAX,
};
use crate::sql::{self, SqlInvalid};

/// The stream of a child's side channel on which it asks for exchanges. Artifacts have the others.
pub const EXCHANGE_STREAM: u8 = 255;
/// The stream for the lines of a server that is a program on this machine, in both directions.
pub const STDIO_STREAM: u8 = 254;
/// The stream for what is no line: what a call notes for the next one, and the last words of such a program.
pub const STDIO_NOTE_STREAM: u8 = 253;

crate::wire_enum! {
    /// What an exchange asks for: a method of HTTP, or a kind of SQL statement.
    pub enum Method {
        /// Reads.
        Get = "GET",
        /// Reads, without a body in the answer.
        Head = "HEAD",
        /// Does what the service says.
        Post = "POST",
        /// Replaces.
        Put = "PUT",
        /// Changes a part.
        Patch = "PATCH",
        /// Deletes.
        Delete = "DELETE",
        /// Reads rows of a database, by `SELECT`, `VALUES`, `TABLE` or `WITH`.
        Select = "SELECT",
        /// Reads a setting of a database.
        Show = "SHOW",
        /// Reads how a database would find rows.
        Explain = "EXPLAIN",
    }
}

impl Method {
    /// Whether it asks for an effect. `GET` and `HEAD` ask for none, by HTTP, and a database takes statements that only read.
    pub const fn is_write(self) -> bool {
        match self {
            Self::Get | Self::Head | Self::Select | Self::Show | Self::Explain => false,
            Self::Post | Self::Put | Self::Patch | Self::Delete => true,
        }
    }

    /// Whether it is a kind of SQL statement.
    pub const fn is_sql(self) -> bool {
        matches!(self, Self::Select | Self::Show | Self::Explain)
    }
}

/// One request of a tool over a connection.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Exchange {
    /// The connection, by the source of its tools.
    pub connection: String,
    /// The method.
    pub method: Method,
    /// The path, percent-encoded, from `/` on.
    pub path: String,
    /// Names and values of the query, not encoded yet.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub query: Vec<(String, String)>,
    /// Headers. Only some may be set: see [`ASKED_HEADERS`] and [`PARAM_HEADER`].
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub headers: Vec<(String, String)>,
    /// The body. It follows the rest, and so is not part of its JSON.
    #[serde(skip)]
    pub body: Vec<u8>,
}

/// The answer to an exchange.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum ExchangeReply {
    /// The service answered, whatever it said.
    Answered(ExchangeAnswer),
    /// There is no whole answer.
    Failed(ExchangeFailure),
}

/// What a service answered.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ExchangeAnswer {
    /// The status; 0 of a database, whose body is a [`crate::sql::SqlAnswer`] in JSON.
    pub status: u16,
    /// Some of its headers: see [`is_told`].
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub headers: Vec<(String, String)>,
    /// The body, uncompressed. It follows the rest, and so is not part of its JSON.
    #[serde(skip)]
    pub body: Vec<u8>,
}

impl ExchangeAnswer {
    /// The value of a header.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }
}

/// Why there is no answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[serde(deny_unknown_fields)]
#[error("{message}")]
pub struct ExchangeFailure {
    /// The reason, for programs.
    pub fault: ExchangeFault,
    /// One line for people. It never has a secret, a parameter or a byte that the service sent.
    pub message: String,
    /// Whether a byte of the request may have left. Then a write may have happened.
    pub sent: bool,
}

crate::wire_enum! {
    /// Why an exchange has no answer.
    pub enum ExchangeFault {
        /// The request breaks a rule, or leads where it may not.
        Refused = "refused",
        /// The name has no address.
        Unresolved = "unresolved",
        /// No connection could be made.
        Unreachable = "unreachable",
        /// The service did not prove who it is.
        Untrusted = "untrusted",
        /// The time is over.
        TimedOut = "timed_out",
        /// The answer is larger than allowed.
        TooLarge = "too_large",
        /// What the service sent is no whole answer.
        Broken = "broken",
        /// Too many exchanges are under way.
        Busy = "busy",
        /// The broker ended.
        Gone = "gone",
    }
}

/// The headers that a tool may set. The others are effectd's, or mean something to the connection itself.
pub const ASKED_HEADERS: [&str; 12] = [
    "accept",
    "accept-language",
    "content-type",
    "idempotency-key",
    "if-match",
    "if-none-match",
    "last-event-id",
    "mcp-method",
    "mcp-name",
    "mcp-protocol-version",
    "mcp-session-id",
    "prefer",
];

/// What a header begins with that repeats a parameter of an MCP tool.
pub const PARAM_HEADER: &str = "mcp-param-";

/// Whether a text can be a name of a header, or a part of it.
pub fn is_token(text: &str) -> bool {
    let is_part = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    !text.is_empty() && text.bytes().all(is_part)
}

/// Whether a tool may set this header.
pub(crate) fn may_be_set(name: &str) -> bool {
    let is_param = |rest: &str| is_token(rest) && !rest.bytes().any(|byte| byte.is_ascii_uppercase());
    ASKED_HEADERS.contains(&name) || name.strip_prefix(PARAM_HEADER).is_some_and(is_param)
}

/// The headers of an answer that a tool gets. Cookies, redirects and challenges are not among them.
const TOLD_HEADERS: [&str; 13] = [
    "cache-control",
    "content-language",
    "content-type",
    "date",
    "deprecation",
    "etag",
    "last-modified",
    "mcp-session-id",
    "preference-applied",
    "request-id",
    "retry-after",
    "sunset",
    "x-request-id",
];

/// Whether a tool gets this header of an answer.
pub fn is_told(name: &str) -> bool {
    TOLD_HEADERS.contains(&name) || name.starts_with("x-ratelimit-") || name.starts_with("ratelimit")
}

/// A rule that an exchange breaks.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ExchangeInvalid {
    /// A part is too long, or there are too many.
    #[error("{0} is larger than allowed")]
    TooLarge(&'static str),
    /// The path is not one that all programs read alike.
    #[error("the path {0}")]
    Path(&'static str),
    /// A header may not be set, or is set twice.
    #[error("the header {0:?} may not be set by a tool, or only once")]
    Header(String),
    /// The value of a header has a line break or another control character.
    #[error("the value of the header {0:?} has characters that a header may not have")]
    Value(String),
    /// A read has a body.
    #[error("{} has no body", .0.as_str())]
    Body(Method),
    /// The statement is not one that only reads.
    #[error("the statement: {0}")]
    Sql(#[from] SqlInvalid),
}

impl Exchange {
    /// A read without anything but a path.
    pub fn get(connection: impl Into<String>, path: impl Into<String>) -> Self {
        Self::new(connection, Method::Get, path)
    }

    /// A request without query, headers and body.
    pub fn new(connection: impl Into<String>, method: Method, path: impl Into<String>) -> Self {
        let (connection, path) = (connection.into(), path.into());
        Self { connection, method, path, query: Vec::new(), headers: Vec::new(), body: Vec::new() }
    }

    /// One SQL statement. Its text is the body; nothing else of a request by HTTP means anything to a database.
    pub fn sql(connection: impl Into<String>, sql: &str) -> Result<Self, SqlInvalid> {
        let method = sql::check(sql)?;
        Ok(Self { body: sql.into(), ..Self::new(connection, method, "/") })
    }

    /// Refuses an exchange that some program on the way could read as another, and a statement that does not only read.
    pub fn check(&self) -> Result<(), ExchangeInvalid> {
        let Self { connection: _, method, path, query, headers, body } = self;
        if method.is_sql() {
            let sql = str::from_utf8(body).map_err(|_| SqlInvalid::Text("the statement is no UTF-8"))?;
            let is_plain =
                path == "/" && query.is_empty() && headers.is_empty() && sql::check(sql)? == *method;
            let wrong = SqlInvalid::Text("it is more than a statement, or of another kind than it says");
            return if is_plain { Ok(()) } else { Err(wrong.into()) };
        }
        check_path(path).map_err(ExchangeInvalid::Path)?;
        if body.len() > EXCHANGE_BODY_BYTES_MAX {
            return Err(ExchangeInvalid::TooLarge("the body"));
        }
        if !method.is_write() && !body.is_empty() {
            return Err(ExchangeInvalid::Body(*method));
        }
        if query.len() > EXCHANGE_HEADERS_MAX || headers.len() > EXCHANGE_HEADERS_MAX {
            return Err(ExchangeInvalid::TooLarge("the number of headers or of values in the query"));
        }
        let pairs = query.iter().chain(headers);
        let bytes = path.len() + pairs.map(|(name, value)| name.len() + 3 * value.len()).sum::<usize>();
        if bytes > EXCHANGE_HEAD_BYTES_MAX / 2 {
            return Err(ExchangeInvalid::TooLarge("the path with query and headers"));
        }
        for (at, (name, value)) in headers.iter().enumerate() {
            let is_twice = headers[..at].iter().any(|(earlier, _)| earlier == name);
            if is_twice || !may_be_set(name) {
                return Err(ExchangeInvalid::Header(cut(name)));
            }
            let is_plain = |byte: u8| byte == b' ' || byte.is_ascii_graphic();
            if !value.bytes().all(is_plain) || value.trim() != value {
                return Err(ExchangeInvalid::Value(cut(name)));
            }
        }
        Ok(())
    }

    /// The digest of the whole request.
    pub fn digest(&self) -> Digest {
        // Plain data with text keys, for which serde_json has no failure.
        Digest::of(&self.to_frame().unwrap_or_default())
    }

    /// Path and query, as they are sent.
    pub fn target(&self) -> String {
        if self.query.is_empty() {
            return self.path.clone();
        }
        let pairs = self.query.iter().map(|(name, value)| (name.as_str(), value.as_str()));
        format!("{}?{}", self.path, form(pairs))
    }
}

fn cut(name: &str) -> String {
    name.chars().take(32).collect()
}

/// Percent-encodes all but what means itself everywhere.
fn encode(text: &str, into: &mut String) {
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-_.~".contains(&byte) {
            into.push(char::from(byte));
        } else {
            into.push_str(&format!("%{byte:02X}"));
        }
    }
}

/// Names and values, as a query or a form has them.
pub fn form<'a>(pairs: impl IntoIterator<Item = (&'a str, &'a str)>) -> String {
    let mut encoded = String::new();
    for (name, value) in pairs {
        if !encoded.is_empty() {
            encoded.push('&');
        }
        encode(name, &mut encoded);
        encoded.push('=');
        encode(value, &mut encoded);
    }
    encoded
}

/// Encodes text as one segment of a path, whatever it has. `.` and `..` cannot be written so that all programs take them for names.
pub fn segment(text: &str) -> Option<String> {
    let mut encoded = String::with_capacity(text.len());
    encode(text, &mut encoded);
    is_plain_segment(&encoded).then_some(encoded)
}

/// The error says what is wrong with the path.
pub(crate) fn check_path(path: &str) -> Result<(), &'static str> {
    let Some(segments) = path.strip_prefix('/') else {
        return Err("does not begin with /");
    };
    // All that RFC 3986 has in a path; no query, no fragment, no backslash.
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"/-._~%!$&'()*+,;=:@".contains(&byte);
    if !path.bytes().all(is_plain) {
        return Err("has characters that must be percent-encoded");
    }
    if !has_whole_escapes(path) {
        return Err("has a % that is not followed by two hexadecimal digits, or encodes a control character");
    }
    if !segments.split('/').all(is_plain_segment) {
        return Err("has . or .. as a segment, encoded or not");
    }
    if path.contains("//") {
        return Err("has an empty segment");
    }
    Ok(())
}

fn has_whole_escapes(path: &str) -> bool {
    let mut parts = path.split('%');
    parts.next();
    parts.all(|part| {
        let digits = part.get(..2).filter(|digits| digits.bytes().all(|byte| byte.is_ascii_hexdigit()));
        let byte = digits.and_then(|digits| u8::from_str_radix(digits, 16).ok());
        byte.is_some_and(|byte| !byte.is_ascii_control())
    })
}

/// Whether no program takes the segment for a way up, even one that decodes it twice, takes `%2F` and `%5C` for separators, or
/// ignores what follows a `;`.
fn is_plain_segment(segment: &str) -> bool {
    let decoded = decode(&decode(segment));
    let is_up = |part: &str| matches!(part.split(';').next().map(str::trim), Some("." | ".."));
    !decoded.split(['/', '\\']).any(is_up)
}

fn decode(text: &str) -> String {
    let bytes = text.as_bytes();
    let (mut decoded, mut at) = (Vec::with_capacity(bytes.len()), 0);
    while let Some(&byte) = bytes.get(at) {
        let digits = text.get(at + 1..at + 3).filter(|_| byte == b'%');
        let escaped = digits.and_then(|digits| u8::from_str_radix(digits, 16).ok());
        decoded.push(escaped.unwrap_or(byte));
        at += if escaped.is_some() { 3 } else { 1 };
    }
    String::from_utf8_lossy(&decoded).into_owned()
}

/// What follows the head of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FrameLengths {
    /// Bytes of the head, in JSON.
    pub head: usize,
    /// Bytes of the body.
    pub body: usize,
}

/// Bytes in front of each frame.
pub const FRAME_PREFIX_BYTES: usize = 8;

impl FrameLengths {
    /// Reads the first bytes of a frame; `None` if its head or its body is larger than this.
    pub fn read(
        prefix: [u8; FRAME_PREFIX_BYTES],
        (head_bytes_max, body_bytes_max): (usize, usize),
    ) -> Option<Self> {
        let [a, b, c, d, e, f, g, h] = prefix;
        let number = |bytes| usize::try_from(u32::from_be_bytes(bytes)).ok();
        let (head, body) = (number([a, b, c, d])?, number([e, f, g, h])?);
        let fits = head <= head_bytes_max && body <= body_bytes_max;
        fits.then_some(Self { head, body })
    }

    /// Bytes after the prefix.
    pub fn rest(self) -> usize {
        self.head + self.body
    }
}

/// One frame: the lengths, the head as JSON, the body.
pub fn frame(head: &impl Serialize, body: &[u8]) -> Result<Vec<u8>, JsonError> {
    let head = serde_json::to_vec(head)?;
    let length = |bytes: usize| u32::try_from(bytes).unwrap_or(u32::MAX).to_be_bytes();
    let mut bytes = Vec::with_capacity(FRAME_PREFIX_BYTES + head.len() + body.len());
    bytes.extend_from_slice(&length(head.len()));
    bytes.extend_from_slice(&length(body.len()));
    bytes.extend_from_slice(&head);
    bytes.extend_from_slice(body);
    Ok(bytes)
}

impl Exchange {
    /// The exchange as a child sends it.
    pub fn to_frame(&self) -> Result<Vec<u8>, JsonError> {
        frame(self, &self.body)
    }

    /// Reads what follows a frame's prefix. It comes from a child: nothing in it is believed.
    pub fn from_frame(lengths: FrameLengths, mut rest: Vec<u8>) -> Option<Self> {
        let body = (rest.len() == lengths.rest()).then(|| rest.split_off(lengths.head))?;
        let head: Self = json::parse(&rest, EXCHANGE_HEAD_BYTES_MAX).ok()?;
        Some(Self { body, ..head })
    }
}

impl ExchangeReply {
    /// The reply as a child receives it.
    pub fn to_frame(&self) -> Result<Vec<u8>, JsonError> {
        match self {
            Self::Answered(answer) => frame(self, &answer.body),
            Self::Failed(_) => frame(self, &[]),
        }
    }

    /// Reads what follows a frame's prefix.
    pub fn from_frame(lengths: FrameLengths, mut rest: Vec<u8>) -> Option<Self> {
        let body = (rest.len() == lengths.rest()).then(|| rest.split_off(lengths.head))?;
        match serde_json::from_slice(&rest).ok()? {
            Self::Answered(answer) => Some(Self::Answered(ExchangeAnswer { body, ..answer })),
            Self::Failed(failure) => body.is_empty().then_some(Self::Failed(failure)),
        }
    }
}

/// Reads one whole frame from pieces, as they come over a side channel. It holds no more than one frame.
#[derive(Debug)]
pub struct FrameReader {
    bytes: Vec<u8>,
    body_bytes_max: usize,
}

impl FrameReader {
    /// A reader of exchanges.
    pub fn of_exchanges() -> Self {
        Self { bytes: Vec::new(), body_bytes_max: EXCHANGE_BODY_BYTES_MAX }
    }

    /// A reader of replies.
    pub fn of_replies() -> Self {
        Self { bytes: Vec::new(), body_bytes_max: EXCHANGE_ANSWER_BYTES_MAX }
    }

    /// The lengths of the frame, once they are there. An error: it is too large.
    pub fn lengths(&self) -> Result<Option<FrameLengths>, ExchangeInvalid> {
        let Some(prefix) = self.bytes.first_chunk() else {
            return Ok(None);
        };
        let lengths = FrameLengths::read(*prefix, (EXCHANGE_HEAD_BYTES_MAX, self.body_bytes_max));
        lengths.map(Some).ok_or(ExchangeInvalid::TooLarge("the exchange"))
    }

    /// Adds a piece. Returns the frame when it is whole. Bytes beyond it are an error, since one side waits for the answer of the other.
    pub fn add(&mut self, piece: &[u8]) -> Result<Option<(FrameLengths, Vec<u8>)>, ExchangeInvalid> {
        self.bytes.extend_from_slice(piece);
        let Some(lengths) = self.lengths()? else {
            return Ok(None);
        };
        match self.bytes.len().cmp(&(FRAME_PREFIX_BYTES + lengths.rest())) {
            std::cmp::Ordering::Less => Ok(None),
            std::cmp::Ordering::Equal => {
                let rest = self.bytes.split_off(FRAME_PREFIX_BYTES);
                self.bytes.clear();
                Ok(Some((lengths, rest)))
            }
            std::cmp::Ordering::Greater => Err(ExchangeInvalid::TooLarge("the exchange")),
        }
    }
}

/// What went over the wire in one exchange, as the broker counted it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct EgressRecord {
    /// The host, as the connection names it.
    pub host: String,
    /// The address that was dialled; absent if none was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<String>,
    /// The method, or the kind of the statement.
    pub method: Method,
    /// The status of the answer; absent without a whole answer, and with that of a database.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<u16>,
    /// Why there is no answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fault: Option<ExchangeFault>,
    /// Bytes that left, without those of TLS.
    pub bytes_out: u64,
    /// Bytes that came.
    pub bytes_in: u64,
    /// The time from the request to the last byte of the answer.
    pub ms: crate::millis::Millis,
    /// Whether the address is not public, and the connection allows its range.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub allowed_range: bool,
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn with_header(name: &str, value: &str) -> Exchange {
        let headers = vec![(name.to_owned(), value.to_owned())];
        Exchange { headers, ..Exchange::get("crm", "/v1") }
    }

    #[test]
    fn a_path_means_the_same_to_every_program() {
        for path in
            ["/", "/v1/items", "/v1/items/", "/a%2Fb%3Fc", "/~me/a.b;c=d/x..y/...", "/v1/%C3%BC:batch"]
        {
            assert_eq!(Exchange::get("crm", path).check(), Ok(()), "{path}");
        }
        for path in [
            "",
            "v1",
            "http://example.org/",
            "//example.org/v1",
            "/v1//items",
            "/v1?x=1",
            "/v1#x",
            "/v1 x",
            "/v1\r\nHost: x",
            "/v1\0",
            "/v1\\..\\x",
            "/ü",
            "/v1/..",
            "/v1/../x",
            "/./v1",
            "/v1/%2e%2e/x",
            "/v1/%2E./x",
            "/v1/..%2Fx",
            "/v1/a%2f..%2fb",
            "/v1/..%5cx",
            "/v1/%252e%252e/x",
            "/v1/..;/x",
            "/v1/..%3Bx/y",
            "/v1/%252e%252e%252fx",
            "/v1/%0d%0aHost:x",
            "/v1/%00",
            "/v1/%7f",
            "/v1/%2",
            "/v1/%zz",
            "/v1/%+1",
        ] {
            assert!(matches!(Exchange::get("crm", path).check(), Err(ExchangeInvalid::Path(_))), "{path:?}");
        }
    }

    #[test]
    fn what_a_caller_names_is_one_segment() {
        assert_eq!(segment("a/b?c d").unwrap(), "a%2Fb%3Fc%20d");
        assert_eq!(segment("ü%2e").unwrap(), "%C3%BC%252e");
        for text in [".", "..", "../x", "a/../b", "%2e%2e", "..\\x"] {
            assert_eq!(segment(text), None, "{text}");
        }
    }

    #[test]
    fn a_query_is_encoded_by_effectd() {
        let query = vec![("q".to_owned(), "a&b=c#d é\r\n".to_owned()), ("é".to_owned(), String::new())];
        let exchange = Exchange { query, ..Exchange::get("crm", "/v1") };
        assert_eq!(exchange.target(), "/v1?q=a%26b%3Dc%23d%20%C3%A9%0D%0A&%C3%A9=");
        assert_eq!(exchange.check(), Ok(()));
    }

    #[test]
    fn a_tool_sets_no_header_that_means_something_to_the_connection() {
        for name in ASKED_HEADERS.into_iter().chain(["mcp-param-region", "mcp-param-a.b"]) {
            assert_eq!(with_header(name, "a b").check(), Ok(()), "{name}");
        }
        for name in [
            "host",
            "Host",
            "authorization",
            "cookie",
            "proxy-authorization",
            "connection",
            "content-length",
            "transfer-encoding",
            "te",
            "trailer",
            "upgrade",
            "expect",
            "accept-encoding",
            "content-encoding",
            "x-forwarded-host",
            "x-forwarded-for",
            "forwarded",
            "x-http-method-override",
            "x-original-url",
            "Accept",
            "accept ",
            "accept\r\nhost",
            "mcp-param-",
            "mcp-param-A",
            "mcp-param-a b",
            "mcp-param-a\r\nhost",
            "",
        ] {
            let refused = with_header(name, "a").check();
            assert!(matches!(refused, Err(ExchangeInvalid::Header(_))), "{name:?}: {refused:?}");
        }
        for value in ["a\r\nHost: x", "a\nb", "a\rb", "a\0b", "a\tb", " a", "a ", "ü", "\u{7f}"] {
            let refused = with_header("accept", value).check();
            assert!(matches!(refused, Err(ExchangeInvalid::Value(_))), "{value:?}: {refused:?}");
        }
        let mut twice = with_header("accept", "a");
        twice.headers.push(("accept".to_owned(), "b".to_owned()));
        assert!(matches!(twice.check(), Err(ExchangeInvalid::Header(_))));
    }

    #[test]
    fn a_statement_is_nothing_but_itself() {
        let sound = Exchange::sql("db:1", "SELECT 1").unwrap();
        assert_eq!((sound.method, sound.check()), (Method::Select, Ok(())));
        assert!(Exchange::sql("db:1", "DELETE FROM t").is_err());
        for wrong in [
            Exchange { method: Method::Show, ..sound.clone() },
            Exchange { path: "/v1".to_owned(), ..sound.clone() },
            Exchange { headers: vec![("accept".to_owned(), "x".to_owned())], ..sound.clone() },
            Exchange { query: vec![("a".to_owned(), "b".to_owned())], ..sound.clone() },
            Exchange { body: b"DELETE FROM t".to_vec(), ..sound.clone() },
            Exchange { body: b"SELECT 1; SELECT 2".to_vec(), ..sound.clone() },
            Exchange { body: b"SELECT '\xff'".to_vec(), ..sound.clone() },
            Exchange { body: Vec::new(), ..sound },
        ] {
            assert!(matches!(wrong.check(), Err(ExchangeInvalid::Sql(_))), "{wrong:?}");
        }
    }

    #[test]
    fn bounds_are_those_of_the_limits() {
        let body =
            |bytes| Exchange { body: vec![0; bytes], method: Method::Post, ..Exchange::get("crm", "/v1") };
        assert_eq!(body(EXCHANGE_BODY_BYTES_MAX).check(), Ok(()));
        assert_eq!(body(EXCHANGE_BODY_BYTES_MAX + 1).check(), Err(ExchangeInvalid::TooLarge("the body")));
        let read = Exchange { method: Method::Get, ..body(1) };
        assert_eq!(read.check(), Err(ExchangeInvalid::Body(Method::Get)));
        let long = Exchange::get("crm", format!("/{}", "a".repeat(EXCHANGE_HEAD_BYTES_MAX)));
        assert!(matches!(long.check(), Err(ExchangeInvalid::TooLarge(_))));
    }

    #[test]
    fn frames_are_read_from_pieces_of_any_length() {
        let exchange = Exchange {
            body: b"{\"a\":1}\0\xff".to_vec(),
            method: Method::Put,
            ..with_header("content-type", "text/plain")
        };
        let bytes = exchange.to_frame().unwrap();
        for step in [1, 2, 7, 8, 9, bytes.len()] {
            let mut reader = FrameReader::of_exchanges();
            let mut found = None;
            for piece in bytes.chunks(step) {
                assert!(found.is_none());
                found = reader.add(piece).unwrap();
            }
            let (lengths, rest) = found.unwrap();
            assert_eq!(Exchange::from_frame(lengths, rest), Some(exchange.clone()), "{step}");
        }
        let answer = ExchangeAnswer { status: 200, body: vec![7; 70_000], ..ExchangeAnswer::default() };
        let reply = ExchangeReply::Answered(answer);
        let (lengths, rest) = FrameReader::of_replies().add(&reply.to_frame().unwrap()).unwrap().unwrap();
        assert_eq!(ExchangeReply::from_frame(lengths, rest), Some(reply));
        let message = "the time is over".to_owned();
        let failed = ExchangeFailure { fault: ExchangeFault::TimedOut, message, sent: true };
        let reply = ExchangeReply::Failed(failed);
        let (lengths, rest) = FrameReader::of_replies().add(&reply.to_frame().unwrap()).unwrap().unwrap();
        assert_eq!(ExchangeReply::from_frame(lengths, rest), Some(reply));
    }

    /// A child chooses these bytes.
    #[test]
    fn a_frame_that_lies_is_refused_before_it_is_held() {
        let huge = [u32::MAX.to_be_bytes(), 0u32.to_be_bytes()].concat();
        assert!(FrameReader::of_exchanges().add(&huge).is_err());
        let huge = [2u32.to_be_bytes(), u32::MAX.to_be_bytes()].concat();
        assert!(FrameReader::of_exchanges().add(&huge).is_err());
        let mut more = Exchange::get("crm", "/v1").to_frame().unwrap();
        more.push(0);
        assert!(FrameReader::of_exchanges().add(&more).is_err());
        for head in ["", "[]", "{}", "null", r#"{"connection":"a","method":"TRACE","path":"/"}"#] {
            let lengths = FrameLengths { head: head.len(), body: 0 };
            assert_eq!(Exchange::from_frame(lengths, head.as_bytes().to_vec()), None, "{head}");
        }
        let url = r#"{"connection":"a","method":"GET","path":"/","host":"evil.example"}"#;
        let lengths = FrameLengths { head: url.len(), body: 0 };
        assert_eq!(Exchange::from_frame(lengths, url.as_bytes().to_vec()), None, "a child names no host");
    }

    #[test]
    fn a_tool_is_told_no_cookie_and_no_way_elsewhere() {
        for name in
            ["content-type", "etag", "retry-after", "x-ratelimit-remaining", "ratelimit", "mcp-session-id"]
        {
            assert!(is_told(name), "{name}");
        }
        for name in ["set-cookie", "location", "www-authenticate", "authorization", "refresh", "server"] {
            assert!(!is_told(name), "{name}");
        }
    }
}
