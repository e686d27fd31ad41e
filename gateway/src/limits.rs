//! The gateway's limits. Those that a caller can hit are in `docs/limits.md`.

use std::time::Duration;

/// One connection in this many is reserved: half of the reserve for approvers and operators, half for operators alone. A user
/// who opens as many connections as possible does not lock out the people who can stop it.
pub const CONNECTIONS_RESERVE_PART: usize = 8;
/// One address or account over TCP has one connection for this many of one user at the socket: a user is known to the machine, an
/// address is anybody's. By default that is one in sixteen of all.
pub const NETWORK_PART: usize = 8;
/// One connection over TCP in this many may wait for the end of an action: others reach those who approve it.
pub const NETWORK_WAITS_PART: usize = 2;
/// Requests a second of one address that are refused for want of a valid token; beyond it, the answer is 429. Clients that share
/// the address and have valid tokens notice nothing.
pub const AUTH_FAILURES_MAX: u32 = 100;
/// A request that took longer than this has its token checked again before it is answered.
pub const TOKEN_AGE_MAX: Duration = Duration::from_secs(1);
/// TLS handshakes a second of one address, if it is not a proxy's; beyond it, the connection closes. Each costs a signature, which may take
/// a millisecond, before anybody is known.
pub const HANDSHAKES_MAX: u32 = 100;
/// One place in this many of the backlog is out of reach for one principal: a planner that floods leaves room for the others.
pub const BACKLOG_RESERVE_PART: u64 = 4;
/// Extra connections for health probes alone, when all others are in use.
pub const HEALTH_CONNECTIONS_MAX: usize = 16;
/// Health connections of one user: a probe needs one.
pub const HEALTH_CONNECTIONS_PER_USER_MAX: usize = 2;
/// How long a health connection may take to ask, and to close after its answer: a probe over a local socket takes milliseconds.
pub const HEALTH_TIME_MAX: Duration = Duration::from_secs(2);
/// Connections at the address for monitoring: a scrape and a probe need one each, a few times a minute.
pub const SCRAPES_MAX: usize = 16;
/// How long one of these connections may last: a scrape takes milliseconds, and Prometheus waits ten seconds for it.
pub const SCRAPE_TIME_MAX: Duration = Duration::from_secs(10);
/// The pause after a failed accept: when file descriptors run out, other connections free some meanwhile.
pub const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// Bytes that are read and dropped after an answer that precedes the end of its request: a client that writes everything before
/// it reads still gets the answer.
pub const LINGER_BYTES_MAX: u64 = 16_777_216;
/// How long the rest of such a request is read: less than a client may take for its headers, so nobody gains time by it.
pub const LINGER_TIME_MAX: Duration = Duration::from_secs(5);
/// How often the socket's file and those of the certificate are checked: one check costs a microsecond.
pub const SOCKET_CHECK_EVERY: Duration = Duration::from_secs(1);
/// Connections that may wait in the kernel to be accepted.
pub const LISTEN_BACKLOG: u32 = 1_024;
/// Bytes of unread answers that the kernel keeps for each connection over TCP. Otherwise it takes up to 4 MiB each, which no bound of
/// ours counts. 128 KiB under way reach 1 MiB a second over the longest distances; the kernel doubles the number for its own use.
pub const SEND_BUFFER_BYTES: u32 = 131_072;
/// Headers of one request: an honest client sends ten.
pub const HEADERS_MAX: usize = 64;
/// Bytes of a request's first line and headers together: the longest idempotency key fits. A connection's buffer is twice as
/// large.
pub const HEADER_BYTES_MAX: usize = 32_768;
/// Bytes of all request bodies in memory, counted as they arrive: an announced length costs nothing. The socket has as many, and TCP
/// beside it: neither fills the other. Requests that wait for their action have as many again.
pub const BODIES_BYTES_MAX: usize = 67_108_864;
/// Bytes of all long results in answers that are not written yet, at the socket and over TCP each; other long answers have as many
/// again. A short one takes no share: the bound of connections is enough.
pub const RESULTS_BYTES_MAX: usize = 67_108_864;
/// One account, and except for results also one user, may have one part in this many of these bytes: 16 of the largest requests at once,
/// and others have room, first of all those who can stop it.
pub const BODIES_PART: usize = 4;
/// Bytes of an unread answer that a client takes within the time for it: by default 4 KiB a second, which every network has.
pub const UNREAD_BYTES_MIN: usize = 65_536;
/// Most entries of the log in one answer: with the largest receipts, an answer stays below what a client reads.
/// Clients depend on it.
pub const LOG_LIST_MAX: usize = 500;
/// Longest note of an amendment: a paragraph that a person writes.
/// Part of the published interface.
pub const NOTE_BYTES_MAX: usize = 2_048;
/// How often the store's health is checked.
pub const HEALTH_CHECK_EVERY: Duration = Duration::from_millis(500);
/// How old the store's last answer may be before the daemon is not ready.
pub const HEALTH_AGE_MAX: Duration = Duration::from_secs(10);
/// How long answers in progress may take after the pipeline has stopped.
pub const CLOSE_TIME_MAX: Duration = Duration::from_secs(5);
/// Streams of live events, of all peers together: an idle one costs some kilobytes. Each is a connection, so this is the default of
/// `gateway.connections_max`, too.
pub const STREAMS_MAX: usize = 6_144;
/// Streams that tokens leave to the users of the socket, who can revoke tokens. As many connections over TCP are left for requests.
pub const STREAMS_RESERVE: usize = 1_024;
/// Streams of one account and the sessions that it made, with all their tokens: a person has a few windows open, an agent needs one.
pub const STREAMS_PER_ACCOUNT_MAX: usize = 64;
/// Events that may wait for a slow client. Then its stream ends, and it comes back for the rest: 256 are more than a second of a busy
/// organisation.
pub const STREAM_EVENTS_MAX: usize = 256;
/// The same for a client that listens to one session, which has at most 60 actions a minute.
pub const STREAM_SESSION_EVENTS_MAX: usize = 32;
/// How long a stream is quiet before a comment shows that it lives: proxies close connections that are quiet for 30 to 60 seconds.
pub const STREAM_HEARTBEAT: Duration = Duration::from_secs(15);
/// Events of each topic that are read at once for streams.
pub const STREAM_PAGE: usize = 64;
/// Pages that are read at one time for clients that missed events, and lists for those whose tools may have changed: after a restart
/// all of them come back together, and a change is for all.
pub const STREAM_PAGES_MAX: usize = 4;
/// Missed events are sent when they have this many bytes together.
pub const STREAM_BATCH_BYTES: usize = 16_384;
/// Receipts in one answer, unless the query asks for another number.
pub const LIST_DEFAULT: usize = 100;
/// Most receipts in one answer: they are in memory, parsed, for each client that asks.
pub const LIST_MAX: usize = 500;
/// Most decisions in one answer of a replay: memory does not grow with them, so that a few requests cover a year.
pub const REPLAY_MAX: u64 = 10_000;
/// How long one replay begins further pages of receipts: it occupies a thread, of which there are few.
pub const REPLAY_TIME_MAX: Duration = Duration::from_secs(2);
/// Invocations or grants in one answer, unless the query asks for another number.
pub const INVOCATIONS_DEFAULT: usize = 50;
/// Most invocations or grants in one answer.
pub const INVOCATIONS_MAX: usize = 100;
/// Most invocations that a list leaves out: they are read one by one. Older ones are among the receipts.
pub const INVOCATIONS_OFFSET_MAX: usize = 10_000;
/// Lists, explanations and policy changes at one time, for all clients together: each occupies a thread for some milliseconds.
pub const BLOCKING_REQUESTS_MAX: usize = 8;
/// One user or account may have one part in this many of them: a flood leaves the others room, first of all those who can stop it.
pub const BLOCKING_PART: usize = 2;
/// How long such a request waits before it is refused as `overloaded`.
pub const BLOCKING_WAIT_MAX: Duration = Duration::from_secs(2);
/// Previews at one time, for all clients together: fewer than the sandbox runs at once, since approvals need some.
pub const PREVIEWS_ASKED_MAX: usize = 2;
/// Largest change of the policy, in bytes of JSON.
pub const CHANGE_BYTES_MAX: usize = 65_536;
/// The shortest Retry-After, and the one without an estimate: an earlier attempt only costs time.
pub const RETRY_AFTER: Duration = Duration::from_secs(1);
/// The longest Retry-After: a backlog seldom stays as slow as it looks for a moment.
pub const RETRY_AFTER_MAX: Duration = Duration::from_secs(60);
/// Dead letters or events in one answer to an operator: longer lists come in pages.
pub const OPERATOR_PAGE_MAX: usize = 500;
/// How far the clock of an issuer may be from ours, in seconds: machines that set their clocks by the network differ by less.
pub const JWT_SKEW_S_MAX: i64 = 60;
/// How long the keys that an issuer serves count as they are: one that it takes away is not accepted for longer.
pub const JWKS_FRESH: Duration = Duration::from_secs(300);
/// How long they count while the issuer cannot be asked: an outage of an hour stops nobody, and longer than that nobody knows what the
/// issuer has taken back.
pub const JWKS_KEPT: Duration = Duration::from_secs(3_600);
/// How often an issuer is asked at most, whatever keys tokens name: anybody can name one.
pub const JWKS_ASK_EVERY: Duration = Duration::from_secs(60);
/// How long a token waits for keys that are being fetched: a client waits longer than that for its answer.
pub const JWKS_WAIT_MAX: Duration = Duration::from_secs(3);
/// Largest file, or answer, with an issuer's keys: a large issuer has a dozen keys of a kilobyte.
pub const JWKS_BYTES_MAX: u64 = 262_144;
/// Values of the claim for roles that count: an account is in fewer groups that matter here.
pub const CLAIM_VALUES_MAX: usize = 64;
/// How long one MCP request waits, for a tool or for a person: clients give up after a minute, and ask again.
pub const MCP_WAIT_MAX: Duration = Duration::from_secs(50);
/// How often an MCP client is told to ask again for one held action; then it gets an ordinary result. Clients stop at ten.
pub const MCP_ROUNDS_MAX: u32 = 8;
/// How long an MCP client may take its list of tools for current: modes and budgets change by the minute.
pub const MCP_LIST_FRESH_MS: u64 = 10_000;
/// How often an MCP client hears that its call is still running, if it wants to.
pub const MCP_PROGRESS_EVERY: Duration = Duration::from_secs(2);
/// Largest artifact that an MCP client reads as a resource: it is in memory whole, and for a model's context.
pub const MCP_ARTIFACT_BYTES_MAX: u64 = 1_048_576;
/// How often an MCP call with the same key begins anew after it was withdrawn.
pub const MCP_REPEATS_MAX: u32 = 8;
/// How long an MCP client may ask again for a held action: as long as results are kept.
pub const MCP_HANDLE_KEPT: Duration = Duration::from_secs(604_800);
/// How often an MCP client should ask for a task: people decide in seconds at best.
pub const MCP_POLL_MS: u64 = 2_000;
/// Browsers that are signed in to the console: people, a few windows each.
pub const CONSOLE_SESSIONS_MAX: usize = 256;
/// Of one user or token; the one that ends first makes room.
pub const CONSOLE_SESSIONS_PER_HOLDER_MAX: usize = 16;
/// How long a browser stays signed in, if its token lasts that long: a working day.
pub const CONSOLE_SESSION_TIME_MAX: Duration = Duration::from_secs(12 * 3_600);
/// How long a one-time link to the console works: a person opens it at once.
pub const CONSOLE_LINK_TIME: Duration = Duration::from_secs(120);
/// Questions that a session remembers as they were shown, to say what has changed: a person has a few windows.
pub const CONSOLE_SEEN_MAX: usize = 4;
/// Longest text of one of them: all sessions together take 32 MiB at most.
pub const CONSOLE_SEEN_BYTES_MAX: usize = 32_768;
