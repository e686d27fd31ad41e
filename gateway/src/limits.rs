//! The bounds of the doors. Those that a caller can hit are in `docs/limits.md`.

use std::time::Duration;

/// One connection in so many is kept free of ordinary users, half of these for approvers and all for root and the daemon's user:
/// whoever fills the door must not keep away those who can act on it.
/// An eighth is enough for people, and nobody wants to be shut out.
pub const CONNECTIONS_RESERVE_PART: usize = 8;
/// Connections beyond all others, for health alone: a probe sends one small request and goes.
/// They serve supervisors, not load.
pub const HEALTH_CONNECTIONS_MAX: usize = 16;
/// Connections for health of one user at one time: a user that fills the door does not take these as well.
/// A probe needs one.
pub const HEALTH_CONNECTIONS_PER_USER_MAX: usize = 2;
/// How long a connection for health may take to ask, and to go after its answer.
/// A probe over a local socket takes milliseconds.
pub const HEALTH_TIME_MAX: Duration = Duration::from_secs(2);
/// Bytes that are read and dropped after an answer that came before the end of a request: a client that sends all before it
/// reads gets its answer, up to some of the largest requests.
/// What is sent beyond it is no mistake.
pub const LINGER_BYTES_MAX: u64 = 16_777_216;
/// How long the rest of such a request is read: over a local socket it takes milliseconds.
/// Less than a client may take for its headers, so that it wins nobody time.
pub const LINGER_TIME_MAX: Duration = Duration::from_secs(5);
/// How often is looked whether the socket's file is there: one look costs a microsecond.
pub const SOCKET_LOOK_EVERY: Duration = Duration::from_secs(1);
/// Connections that may wait in the kernel to be taken.
pub const LISTEN_BACKLOG: u32 = 1_024;
/// Headers of one request: an honest client sends ten.
pub const HEADERS_MAX: usize = 64;
/// Bytes of a request's first line and headers together, and the buffer of a connection: the longest idempotency key fits.
pub const HEADER_BYTES_MAX: usize = 32_768;
/// Bytes of bodies that are held for all clients together, before they are read as requests: counted as they arrive, so
/// that announcing much costs nothing and sending much is bounded.
pub const BODIES_BYTES_MAX: usize = 67_108_864;
/// Most entries of the log in one answer: with the largest receipts, an answer stays below what a client takes.
/// Clients count on it.
pub const LOG_LIST_MAX: usize = 500;
/// Longest note of an amendment: a paragraph that a person writes.
/// Part of the published interface.
pub const NOTE_BYTES_MAX: usize = 2_048;
/// How often the store is asked how it stands.
pub const PULSE_EVERY: Duration = Duration::from_millis(500);
/// How old the store's last answer may be before the daemon calls itself not ready.
pub const PULSE_AGE_MAX: Duration = Duration::from_secs(10);
/// How long answers that are on their way may take when the daemon stops, after the pipeline has ended.
pub const CLOSE_TIME_MAX: Duration = Duration::from_secs(5);
/// Receipts in one answer, unless another number is asked for.
pub const LIST_DEFAULT: usize = 100;
/// Most receipts in one answer: they are held in memory, parsed, for each client that asks.
pub const LIST_MAX: usize = 500;
/// Lists, explanations and changes of the policy worked on at one time, for all clients together: each takes a thread and
/// some milliseconds of it.
pub const TURNS_MAX: usize = 8;
/// Previews that are asked for at one time, by all clients together: fewer than are tried out at once, since who asks a person
/// needs some, too. More are told `overloaded`.
pub const PREVIEWS_ASKED_MAX: usize = 2;
/// How long such a question waits for its turn before it is told to come again.
pub const TURN_TIME_MAX: Duration = Duration::from_secs(2);
/// Largest change of the policy, in bytes of JSON.
pub const CHANGE_BYTES_MAX: usize = 65_536;
/// What a client that is turned away is told to wait at least, and when nobody knows better, in milliseconds: one that
/// comes back sooner only takes up the door's time.
pub const RETRY_AFTER: Duration = Duration::from_secs(1);
/// What such a client is told to wait at most, in milliseconds: a backlog is seldom as slow as it looks for a moment.
pub const RETRY_AFTER_MAX: Duration = Duration::from_secs(60);
/// Dead letters or events in one answer to an operator: a page is held in memory, longer reads ask again.
pub const UPKEEP_PAGE_MAX: usize = 500;
