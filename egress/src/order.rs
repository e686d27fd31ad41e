//! What daemon and broker say to each other, over one unix socket, in frames of a head in JSON and a body.

use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr};

use effectd_contracts::exchange::{FRAME_PREFIX_BYTES, FrameLengths};
use effectd_contracts::limits::EXCHANGE_ANSWER_BYTES_MAX;
use effectd_contracts::{
    AddressClass, AddressRange, EgressRecord, Exchange, ExchangeReply, Scheme, Timestamp, Trust,
};
use serde::de::{DeserializeOwned, Error as _};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use tokio::io::{AsyncRead, AsyncReadExt};
use zeroize::Zeroizing;

use crate::limits::MESSAGE_HEAD_BYTES_MAX;

/// Text that is wiped when it is dropped, and that no `Debug` shows.
///
/// Between daemon and broker it is written in hexadecimal: text with a quote or a backslash would pass through a buffer of the JSON
/// reader that nobody wipes.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(Zeroizing<String>);

impl Secret {
    /// The value itself.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl From<String> for Secret {
    fn from(value: String) -> Self {
        Self(Zeroizing::new(value))
    }
}

impl Serialize for Secret {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(&digits(self.0.as_bytes()))
    }
}

/// In hexadecimal.
pub(crate) fn digits(bytes: &[u8]) -> Zeroizing<String> {
    let mut digits = Zeroizing::new(String::with_capacity(2 * bytes.len()));
    for byte in bytes {
        for half in [byte >> 4, byte & 15] {
            digits.push(char::from_digit(half.into(), 16).unwrap_or_default());
        }
    }
    digits
}

impl<'de> Deserialize<'de> for Secret {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let digits = <&str>::deserialize(from)?.as_bytes();
        let half = |digit: u8| char::from(digit).to_digit(16).and_then(|half| u8::try_from(half).ok());
        let mut bytes = Zeroizing::new(Vec::with_capacity(digits.len() / 2));
        for pair in digits.chunks(2) {
            let byte = match pair {
                [high, low] => half(*high).zip(half(*low)).map(|(high, low)| high << 4 | low),
                _ => None,
            };
            bytes.push(byte.ok_or_else(|| D::Error::custom("no hexadecimal digits"))?);
        }
        let text = String::from_utf8(std::mem::take(&mut *bytes));
        text.map(Self::from).map_err(|error| {
            let _wiped = Zeroizing::new(error.into_bytes());
            D::Error::custom("no text")
        })
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret")
    }
}

/// Where a connection leads. Requests to the same origin share its kept connections.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Origin {
    /// The connection and its version: two connections share nothing.
    pub connection: String,
    pub scheme: Scheme,
    pub host: String,
    pub port: u16,
    pub trust: Trust,
    /// Addresses that are not public, and may be dialled.
    #[serde(default)]
    pub allowed: Vec<AddressRange>,
}

/// The header that says who asks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Credential {
    pub header: String,
    /// The whole value, such as `Bearer …`.
    pub value: Secret,
}

/// Who asks a database.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Login {
    /// The name of the database.
    pub name: String,
    pub user: String,
    pub password: Secret,
}

/// One exchange, with all that the child does not know.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Order {
    pub id: u64,
    pub origin: Origin,
    pub credential: Option<Credential>,
    /// Only for a database.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub login: Option<Login>,
    /// What is removed from the answer: the secrets that the connection names, each by itself.
    pub secrets: Vec<Secret>,
    pub exchange: Exchange,
    /// Headers that only the daemon may set: a tool cannot ask for them.
    #[serde(default)]
    pub own_headers: Vec<(String, String)>,
    pub time_ms: u64,
    /// Largest body of the answer.
    pub bytes_max: usize,
    /// Whether to make a new connection and send nothing. The answer has the status 0 then, and the record has none.
    #[serde(default)]
    pub only_dial: bool,
}

/// What became of an order.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Report {
    pub id: u64,
    pub reply: ExchangeReply,
    pub record: EgressRecord,
    /// Bytes of the answer's body.
    pub body_bytes: usize,
    /// Whether the body does not follow at once: the daemon fetches it when it has room.
    pub waits: bool,
    /// Whom the broker met, if it dialled for this order.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seen: Option<Seen>,
}

/// The other end of a connection that was dialled for an order. An exchange over a kept connection has none.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Seen {
    pub address: IpAddr,
    pub class: AddressClass,
    /// What the server showed, also if the broker did not accept it. Absent over HTTP, and without a handshake.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub certificate: Option<Certificate>,
}

/// What a certificate says. Nobody but its issuer vouches for it, and a certificate that was refused has no such issuer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Certificate {
    /// Names and addresses that it is for: the first [`CERTIFICATE_NAMES_MAX`](crate::limits::CERTIFICATE_NAMES_MAX).
    pub names: Vec<String>,
    pub not_before: Timestamp,
    pub not_after: Timestamp,
}

/// What the daemon sends. The body of an order is that of its exchange.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum ToBroker {
    Start(Start),
    Order(Box<Order>),
    /// The body of a report that waits.
    Fetch(u64),
    /// Nobody waits for this any more.
    Drop(u64),
}

/// The first message.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Start {
    /// Where effectd listens itself.
    pub(crate) own: Vec<SocketAddr>,
}

/// What the broker sends.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum FromBroker {
    /// It is confined, and takes orders.
    Ready,
    /// It cannot be confined, and ends.
    Unfit(String),
    Report(Box<Report>),
    /// The body that was fetched.
    Body(u64),
}

/// One message as bytes. They may hold a secret, and are wiped; so are those that a growing buffer would leave behind, since this
/// one does not grow.
pub(crate) fn message(head: &impl Serialize, body: &[u8]) -> io::Result<Zeroizing<Vec<u8>>> {
    let mut counted = Counted(0);
    serde_json::to_writer(&mut counted, head)?;
    let length = |bytes: usize| u32::try_from(bytes).map_err(|_| io::Error::from(io::ErrorKind::InvalidData));
    let mut bytes = Zeroizing::new(Vec::with_capacity(FRAME_PREFIX_BYTES + counted.0 + body.len()));
    bytes.extend_from_slice(&length(counted.0)?.to_be_bytes());
    bytes.extend_from_slice(&length(body.len())?.to_be_bytes());
    serde_json::to_writer(&mut *bytes, head)?;
    bytes.extend_from_slice(body);
    Ok(bytes)
}

/// Counts what is written.
struct Counted(usize);

impl io::Write for Counted {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0 += bytes.len();
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Reads the next message; `None` if the other side has closed.
pub(crate) async fn receive<T: DeserializeOwned>(
    from: &mut (impl AsyncRead + Unpin),
) -> io::Result<Option<(T, Vec<u8>)>> {
    let mut prefix = [0; FRAME_PREFIX_BYTES];
    match from.read_exact(&mut prefix).await {
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
        read => read?,
    };
    let lengths = FrameLengths::read(prefix, (MESSAGE_HEAD_BYTES_MAX, EXCHANGE_ANSWER_BYTES_MAX));
    let lengths = lengths.ok_or(io::ErrorKind::InvalidData)?;
    let mut head = Zeroizing::new(vec![0; lengths.head]);
    from.read_exact(&mut head).await?;
    let mut body = vec![0; lengths.body];
    from.read_exact(&mut body).await?;
    Ok(Some((serde_json::from_slice(&head)?, body)))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_secret_travels_in_digits() {
        let text = "sk \"\\\n\u{e9}/";
        let value = Secret::from(text.to_owned());
        let bytes = message(&ToBroker::Order(Box::new(order(value.clone()))), b"body").unwrap();
        assert_eq!(bytes.len(), bytes.capacity());
        let parts = [b"sk".as_slice(), text.as_bytes()];
        assert!(parts.iter().all(|part| !bytes.windows(part.len()).any(|window| window == *part)));
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let (head, body) = runtime.block_on(receive(&mut bytes.as_slice())).unwrap().unwrap();
        let ToBroker::Order(read) = head else { panic!("{head:?}") };
        assert_eq!((read.secrets, body), (vec![value], b"body".to_vec()));
        for wrong in ["\"0\"", "\"zz\"", "\"ff\"", "\"+1\"", "7"] {
            assert!(serde_json::from_str::<Secret>(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn no_debug_output_shows_a_secret() {
        let order = order(Secret::from("the canary sings".to_owned()));
        assert!(!format!("{order:?} {order:#?}").contains("canary"));
    }

    fn order(value: Secret) -> Order {
        let credential = Credential { header: "authorization".to_owned(), value: value.clone() };
        Order {
            id: 1,
            origin: Origin {
                connection: "crm".to_owned(),
                scheme: Scheme::Https,
                host: "api.example.org".to_owned(),
                port: 443,
                trust: Trust::System,
                allowed: Vec::new(),
            },
            credential: Some(credential),
            login: None,
            secrets: vec![value],
            exchange: Exchange::get("crm", "/v1"),
            own_headers: Vec::new(),
            time_ms: 1,
            bytes_max: 1,
            only_dial: false,
        }
    }
}
