//! Limits of the broker, each with its reason. `docs/limits.md` lists those that a caller can hit.

use std::time::Duration;

/// Most exchanges under way: each may hold a child of the sandbox that waits.
pub const EXCHANGES_IN_FLIGHT_MAX: usize = 64;
/// Longest time to find the addresses of a name.
pub const RESOLVE_TIME_MAX: Duration = Duration::from_secs(5);
/// Most names that are looked up at the same time: a lookup of the C library cannot be stopped, and holds a thread.
pub const LOOKUPS_MAX: usize = 8;
/// Most of these that are for one name: its server may be slow on purpose.
pub const LOOKUPS_OF_NAME_MAX: usize = 2;
/// Most addresses of a name that are tried.
pub const ADDRESSES_MAX: usize = 4;
/// Longest time for a connection to one address.
pub const CONNECT_TIME_MAX: Duration = Duration::from_secs(5);
/// Longest time for a TLS handshake.
pub const HANDSHAKE_TIME_MAX: Duration = Duration::from_secs(10);
/// How long a connection is kept for the next read: shorter than common servers keep it.
pub const IDLE_TIME_MAX: Duration = Duration::from_secs(4);
/// How long a connection is kept for the next write. A server that closes it meanwhile makes the write's outcome unknown.
pub const IDLE_TIME_OF_WRITES_MAX: Duration = Duration::from_secs(1);
/// Most connections kept in all.
pub const IDLE_MAX: usize = 64;
/// Largest head of an answer, with all of its headers.
pub const HEAD_BYTES_MAX: usize = 32_768;
/// Most headers of an answer.
pub const HEADERS_MAX: usize = 100;
/// Largest message of a database but for a row: the names of as many columns as PostgreSQL has.
pub const SQL_MESSAGE_BYTES_MAX: usize = 262_144;
/// Most bytes that a database may send for one statement: a hundred rows of long values, of which only a part is kept.
pub const SQL_READ_BYTES_MAX: u64 = 33_554_432;
/// How much earlier than effectd the database gives up a statement: so its own error comes back, and nothing runs on there.
pub const SQL_TIME_MARGIN: Duration = Duration::from_millis(500);
/// Answers up to this size need no share of the broker's memory, and follow their report at once.
pub const SMALL_ANSWER_BYTES_MAX: usize = 65_536;
/// Most larger answers that the broker holds at the same time: with their compressed form they are half of its memory.
pub const LARGE_ANSWERS_MAX: usize = 12;
/// Most of these that come over one connection of an organisation: its service may be slow on purpose.
pub const LARGE_ANSWERS_OF_CONNECTION_MAX: usize = 4;
/// Bytes of requests and answers that the daemon holds at the same time, over all organisations.
pub const WAITING_BYTES_MAX: usize = 33_554_432;
/// Largest head of a message between daemon and broker: an exchange, a private authority, the secrets.
pub const MESSAGE_HEAD_BYTES_MAX: usize = 262_144;
/// Most names of a certificate that are told.
pub const CERTIFICATE_NAMES_MAX: usize = 32;
/// How long a finished exchange waits for its connection to be ready for another; usually it is at once.
pub const READY_TIME_MAX: Duration = Duration::from_millis(20);
/// Shortest secret that is removed from answers: a shorter one is part of any text.
pub const STRIPPED_BYTES_MIN: usize = 4;
/// Longest time until a new broker reports that it is confined.
pub const START_TIME_MAX: Duration = Duration::from_secs(10);
/// How many times a broker is started within [`RESTART_WINDOW`]; one that keeps ending is left alone until the window is over.
pub const STARTS_MAX: usize = 5;
/// The time in which [`STARTS_MAX`] counts.
pub const RESTART_WINDOW: Duration = Duration::from_secs(10);
