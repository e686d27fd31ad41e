//! The door on the network: what a client over TCP can do badly, and that it gets nowhere.

use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use effectd::internal::{Config, Runtime};
use effectd_contracts::{ManualClock, Timestamp};
use effectd_gateway::client::percent_encoded;
use effectd_gateway::limits::{AUTH_FAILURES_MAX, CLOSE_TIME_MAX};
use effectd_gateway::socket::make_private;
use effectd_gateway::{Settings, SharedSettings, Socket, Stage, Tcp};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::signal::Signal;
use serde_json::{Value, json};
use tokio::net::TcpSocket;
use tokio::sync::watch;

use crate::harness::{Daemon, LONG, Place, Reply, Serving, send_on, until, write_note};
use crate::shared::program;

/// A daemon that also listens at a free port of loopback, and its address.
pub fn listening(place: &Place, arguments: &[&str]) -> (Daemon, String) {
    let daemon = place.serve(&[&["--listen", "127.0.0.1:0"][..], arguments].concat());
    (daemon, address(place))
}

/// Where the last daemon of this place listens.
pub fn address(place: &Place) -> String {
    let log = place.log();
    let line = log.lines().rfind(|line| line.contains("listening on http")).unwrap();
    let line: Value = serde_json::from_str(line).unwrap();
    line["address"].as_str().unwrap().to_owned()
}

pub fn connect(address: &str) -> TcpStream {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(LONG)).unwrap();
    stream.set_write_timeout(Some(LONG)).unwrap();
    stream
}

pub fn reads_to_the_end(mut stream: impl Read) -> Vec<u8> {
    let mut bytes = Vec::new();
    // What came before the connection broke still counts.
    if let Err(error) = stream.read_to_end(&mut bytes) {
        assert_ne!(error.kind(), ErrorKind::WouldBlock, "the daemon does not close the connection");
    }
    bytes
}

/// Everything that comes back for these bytes, until the daemon closes.
fn answer(address: &str, bytes: &str) -> String {
    let mut stream = connect(address);
    // The daemon may close before it has read everything.
    let _ = stream.write_all(bytes.as_bytes());
    String::from_utf8_lossy(&reads_to_the_end(stream)).into_owned()
}

/// One request with these lines as its head, on a connection that closes after it.
fn ask(address: &str, head: &str) -> Reply {
    Reply::of(answer(address, &format!("{head}\r\nconnection: close\r\n\r\n")).as_bytes())
}

fn health(address: &str) -> Reply {
    ask(address, "GET /healthz HTTP/1.1\r\nhost: localhost")
}

/// Checks that others are served meanwhile: at the socket, and at this address.
fn others_are_served(daemon: &Daemon, address: &str, name: &str) {
    // Where slow clients are cut off soon, this one may be slow, too.
    until("the socket is served", || {
        let reply = daemon.post("/v1/actions?wait", &write_note(name, name, "served"));
        reply.status != 0 && reply.json(200)["outcome"] == "executed"
    });
    until("the address is served", || health(address).status == 200);
}

#[test]
fn a_request_without_a_token_is_refused() {
    let place = Place::seeded();
    let (daemon, address) = listening(&place, &[]);
    for path in ["/v1/receipts", "/v1/store/journal", "/readyz", "/metrics", "/openapi.json", "/nowhere"] {
        let reply = ask(&address, &format!("GET {path} HTTP/1.1\r\nhost: {address}"));
        reply.problem(401, "unauthenticated");
        assert!(reply.head.contains("www-authenticate: bearer"), "{reply:?}");
    }
    // The socket needs none.
    assert_eq!(daemon.get("/readyz").status, 200);
    let figures = daemon.get("/metrics").body;
    assert!(figures.contains("effectd_http_requests_total{route=\"none\",status=\"401\"} 6"), "{figures}");
}

#[test]
fn health_without_a_token_is_ok_and_nothing_else() {
    let place = Place::seeded();
    let (daemon, address) = listening(&place, &[]);
    let reply = health(&address);
    assert_eq!((reply.status, reply.body.as_str()), (200, "ok"), "{reply:?}");
    assert!(reply.head.contains("content-type: text/plain"), "{reply:?}");
    // A token that is not valid is no missing one.
    let wrong = ask(&address, "GET /healthz HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer wrong");
    wrong.problem(401, "unauthenticated");
    assert!(daemon.get("/healthz").json(200)["state_id"].is_string());
}

#[test]
fn a_name_that_is_not_the_daemons_is_refused() {
    let place = Place::seeded();
    let (_daemon, address) = listening(&place, &[]);
    for host in ["evil.example", "localhost.evil.example", "127.0.0.2", "0.0.0.0", "[::1]"] {
        let reply = ask(&address, &format!("GET /healthz HTTP/1.1\r\nhost: {host}:7070"));
        reply.problem(421, "misdirected");
        assert!(!reply.body.contains("evil"), "{reply:?}");
    }
    for host in ["localhost", "LocalHost:1", "localhost.", "127.0.0.1", address.as_str()] {
        assert_eq!(ask(&address, &format!("GET /healthz HTTP/1.1\r\nhost: {host}")).status, 200, "{host}");
    }
}

#[test]
fn names_of_the_daemon_are_settings_that_a_reload_changes() {
    let place = Place::seeded();
    let config = place.state().join("config.toml");
    std::fs::write(&config, "[gateway]\nhosts = \"effectd.example, other.example\"\n").unwrap();
    let (daemon, address) = listening(&place, &[]);
    let status = |host: &str| ask(&address, &format!("GET /healthz HTTP/1.1\r\nhost: {host}")).status;
    assert_eq!(
        [status("effectd.example:443"), status("OTHER.example"), status("x.example")],
        [200, 200, 421]
    );
    std::fs::write(&config, "[gateway]\nhosts = \"x.example\"\n").unwrap();
    daemon.signal(Signal::SIGHUP);
    until("the name is known", || status("x.example") == 200);
    assert_eq!(status("effectd.example"), 421);
}

#[test]
fn a_request_without_a_host_is_refused() {
    let place = Place::seeded();
    let (_daemon, address) = listening(&place, &[]);
    for head in [
        "GET /healthz HTTP/1.1\r\naccept: */*",
        "GET /healthz HTTP/1.0\r\naccept: */*",
        "GET /healthz HTTP/1.1\r\nhost:",
        "GET /healthz HTTP/1.1\r\nhost: a b",
        "GET /healthz HTTP/1.1\r\nhost: evil.example@localhost",
    ] {
        ask(&address, head).problem(400, "header_invalid");
    }
}

#[test]
fn a_request_with_two_hosts_is_refused() {
    let place = Place::seeded();
    let (_daemon, address) = listening(&place, &[]);
    for second in ["localhost", "evil.example"] {
        let head = format!("GET /healthz HTTP/1.1\r\nhost: localhost\r\nhost: {second}");
        ask(&address, &head).problem(400, "header_invalid");
    }
}

#[test]
fn a_whole_address_as_target_must_name_the_daemon() {
    let place = Place::seeded();
    let (_daemon, address) = listening(&place, &[]);
    let target =
        |name: &str| ask(&address, &format!("GET http://{name}/healthz HTTP/1.1\r\nhost: localhost"));
    target("evil.example").problem(421, "misdirected");
    assert_eq!(target("localhost").status, 200);
}

#[test]
fn a_page_of_another_site_changes_nothing() {
    let place = Place::seeded();
    let (_daemon, address) = listening(&place, &[]);
    let post = |headers: &str| {
        let head = format!("POST /v1/actions HTTP/1.1\r\nhost: {address}\r\ncontent-length: 0\r\n{headers}");
        ask(&address, &head)
    };
    for foreign in [
        "origin: http://evil.example",
        "origin: null",
        "origin: http://localhost:1",
        "sec-fetch-site: cross-site",
        "sec-fetch-site: same-site",
    ] {
        post(foreign).problem(403, "cross_site");
    }
    for method in ["PUT", "DELETE", "PATCH"] {
        let head =
            format!("{method} /v1/actions/a HTTP/1.1\r\nhost: localhost\r\norigin: http://evil.example");
        ask(&address, &head).problem(403, "cross_site");
    }
    // The own page passes, and so does who is no browser; both need a token.
    post(&format!("origin: http://{address}\r\nsec-fetch-site: same-origin")).problem(401, "unauthenticated");
    post("accept: */*").problem(401, "unauthenticated");
    let read = ask(&address, "GET /v1/receipts HTTP/1.1\r\nhost: localhost\r\norigin: http://evil.example");
    read.problem(401, "unauthenticated");
    assert!(!read.head.contains("access-control"), "no page of another site reads an answer: {read:?}");
}

#[test]
fn slow_headers_over_tcp_are_given_up() {
    let place = Place::seeded();
    let (daemon, address) = listening(&place, &["--set", "gateway.header_time_ms_max=300"]);
    let mut slow = connect(&address);
    let _ = slow.write_all(b"GET /healthz HTTP/1.1\r\nhost: localhost\r\nslow: ");
    assert!(reads_to_the_end(slow).is_empty());
    others_are_served(&daemon, &address, "after-slow");
}

#[test]
fn an_idle_connection_over_tcp_is_closed() {
    let place = Place::seeded();
    let (_daemon, address) = listening(&place, &["--set", "gateway.header_time_ms_max=300"]);
    // One that never asks, and one that asks once.
    assert!(reads_to_the_end(connect(&address)).is_empty());
    let reply = || Reply::of(answer(&address, HIDDEN).as_bytes());
    until("one that asks once is answered and closed", || {
        let reply = reply();
        reply.status == 200 && !reply.head.contains("connection: close")
    });
}

#[test]
fn a_slow_body_without_a_token_is_not_waited_for() {
    let place = Place::seeded();
    let (_daemon, address) = listening(&place, &[]);
    let head = "POST /v1/actions HTTP/1.1\r\nhost: localhost\r\ncontent-length: 1000000\r\n\r\n{";
    Reply::of(answer(&address, head).as_bytes()).problem(401, "unauthenticated");
}

#[test]
fn a_client_that_waits_to_send_its_body_is_told_at_once() {
    let place = Place::seeded();
    let (_daemon, address) = listening(&place, &[]);
    let head =
        "POST /v1/actions HTTP/1.1\r\nhost: localhost\r\nexpect: 100-continue\r\ncontent-length: 9\r\n\r\n";
    let reply = answer(&address, head);
    assert!(!reply.contains("100 Continue"), "{reply}");
    Reply::of(reply.as_bytes()).problem(401, "unauthenticated");
}

#[test]
fn giant_headers_over_tcp_are_refused() {
    let place = Place::seeded();
    let (daemon, address) = listening(&place, &[]);
    let long = "x".repeat(40_000);
    let line = format!("GET /{long} HTTP/1.1\r\nhost: localhost");
    for head in [format!("GET /healthz HTTP/1.1\r\nhost: localhost\r\nlong: {long}"), line] {
        assert_eq!(ask(&address, &head).status, 431);
    }
    others_are_served(&daemon, &address, "after-giant");
}

#[test]
fn too_many_headers_over_tcp_are_refused() {
    let place = Place::seeded();
    let (daemon, address) = listening(&place, &[]);
    let many: String = (0..100).map(|number| format!("x-{number}: 1\r\n")).collect();
    let head = format!("GET /healthz HTTP/1.1\r\nhost: localhost\r\n{}", many.trim_end());
    assert_eq!(ask(&address, &head).status, 431);
    others_are_served(&daemon, &address, "after-many");
}

/// A request that is hidden in the body of another.
const HIDDEN: &str = "GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n";

/// Sends a head with these lines and a hidden request as its body, and checks that one refusal comes and nothing else.
fn hides_nothing(address: &str, lines: &str, status: u16) {
    let head = format!("POST /v1/actions HTTP/1.1\r\nhost: localhost\r\n{lines}\r\n\r\n");
    for body in [HIDDEN.to_owned(), format!("0\r\n\r\n{HIDDEN}"), format!("2\r\n{{}}\r\n0\r\n\r\n{HIDDEN}")] {
        let reply = answer(address, &format!("{head}{body}{HIDDEN}"));
        assert_eq!(Reply::of(reply.as_bytes()).status, status, "{lines:?}: {reply}");
        assert_eq!(reply.matches("HTTP/1.1 ").count(), 1, "{lines:?}: {reply}");
    }
}

#[test]
fn a_length_beside_an_encoding_is_refused() {
    let place = Place::seeded();
    let (_daemon, address) = listening(&place, &[]);
    hides_nothing(&address, "content-length: 4\r\ntransfer-encoding: chunked", 400);
    hides_nothing(&address, "transfer-encoding: chunked\r\ncontent-length: 4", 400);
    hides_nothing(&address, "content-length: 0\r\nTransfer-Encoding:\tchunked", 400);
    // Behind another request it is not even read.
    let lines = "content-length: 4\r\ntransfer-encoding: chunked";
    let second = format!("POST /v1/actions HTTP/1.1\r\nhost: localhost\r\n{lines}\r\n\r\n0\r\n\r\n{HIDDEN}");
    let both = answer(&address, &format!("{HIDDEN}{second}"));
    let statuses: Vec<_> = both.split("HTTP/1.1 ").skip(1).map(|reply| &reply[..3]).collect();
    assert_eq!(statuses, ["200"], "{both}");
}

#[test]
fn two_lengths_and_false_ones_are_refused() {
    let place = Place::seeded();
    let (_daemon, address) = listening(&place, &[]);
    hides_nothing(&address, "content-length: 4\r\ncontent-length: 0", 400);
    for length in ["4, 4", "4,0", "+4", "-1", "0x4", "4 4", "18446744073709551616", "4;", "four"] {
        hides_nothing(&address, &format!("content-length: {length}"), 400);
    }
}

#[test]
fn encodings_with_tricks_are_refused() {
    let place = Place::seeded();
    let (_daemon, address) = listening(&place, &[]);
    for encoding in [
        "xchunked",
        "chunked, chunked",
        "chunked\r\ntransfer-encoding: chunked",
        "chunked, identity",
        "identity",
        "gzip, chunked",
        "\"chunked\"",
        "chunked\r\ntransfer-encoding: x",
    ] {
        hides_nothing(&address, &format!("transfer-encoding: {encoding}"), 400);
    }
    let old =
        format!("POST /v1/actions HTTP/1.0\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n{HIDDEN}");
    assert!(answer(&address, &old).starts_with("HTTP/1."), "{old}");
    assert_eq!(answer(&address, &old).matches("HTTP/1.").count(), 1);
}

#[test]
fn folded_lines_and_spaces_before_a_colon_are_refused() {
    let place = Place::seeded();
    let (_daemon, address) = listening(&place, &[]);
    for lines in [
        "x: a\r\n transfer-encoding: chunked",
        "x: a\r\n\tcontent-length: 4",
        "content-length : 4",
        "transfer-encoding : chunked",
        "x: a\rcontent-length: 4",
        "x: a\0b",
        "x y: a",
    ] {
        hides_nothing(&address, lines, 400);
    }
}

/// A lone line feed ends a line, as RFC 9112 allows: what follows it is a header, and not part of the one before.
#[test]
fn a_lone_line_feed_hides_no_header() {
    let place = Place::seeded();
    let (_daemon, address) = listening(&place, &[]);
    hides_nothing(&address, "x: a\ntransfer-encoding: identity", 400);
    hides_nothing(&address, "x: a\ncontent-length: 4\r\ntransfer-encoding: chunked", 400);
    hides_nothing(&address, "content-length: 4\nx: a\r\ncontent-length: 5", 400);
    let twice = answer(&address, "GET /healthz HTTP/1.1\nhost: localhost\nhost: evil.example\n\n");
    Reply::of(twice.as_bytes()).problem(400, "header_invalid");
}

#[test]
fn what_follows_a_refused_request_is_not_read() {
    let place = Place::seeded();
    let (_daemon, address) = listening(&place, &[]);
    let length = HIDDEN.len();
    for (lines, status) in [
        (format!("content-length: {length}"), 401),
        ("content-length: 4".to_owned(), 401),
        ("content-length: 0".to_owned(), 401),
        ("transfer-encoding: chunked".to_owned(), 401),
        ("accept: */*".to_owned(), 401),
        ("origin: null\r\ncontent-length: 4".to_owned(), 403),
    ] {
        hides_nothing(&address, &lines, status);
    }
}

#[test]
fn an_unread_answer_over_tcp_is_given_up() {
    let place = Place::seeded();
    let (daemon, address) = listening(&place, &["--set", "gateway.write_time_ms_max=300"]);
    let mut deaf = connect(&address);
    deaf.set_nonblocking(true).unwrap();
    let questions = HIDDEN.repeat(1_000);
    until("who reads nothing is cut off", || match deaf.write(questions.as_bytes()) {
        Ok(_) => false,
        Err(error) => error.kind() != ErrorKind::WouldBlock,
    });
    others_are_served(&daemon, &address, "after-deaf");
}

#[test]
fn one_address_has_a_bounded_number_of_connections() {
    let place = Place::seeded();
    let few = ["gateway.connections_per_user_max=32", "gateway.header_time_ms_max=60000"];
    let (daemon, address) = listening(&place, &["--set", few[0], "--set", few[1]]);
    let held: Vec<_> = (0..4).map(|_| connect(&address)).collect();
    // A connection that closes unread may lose its answer.
    assert!(matches!(health(&address).status, 503 | 0));
    assert!(
        daemon.get("/metrics").body.contains("effectd_http_connections_refused_total{reason=\"full\"} 1")
    );
    // The socket has its own.
    let done = daemon.post("/v1/actions?wait", &write_note("beside", "beside", "served")).json(200);
    assert_eq!(done["outcome"], "executed");
    drop(held);
    until("there is room again", || health(&address).status == 200);
}

#[test]
fn all_addresses_together_leave_room_at_the_socket() {
    let place = Place::seeded();
    let few = ["gateway.connections_max=8", "gateway.header_time_ms_max=60000"];
    let (daemon, address) = listening(&place, &["--set", few[0], "--set", few[1]]);
    let _held: Vec<_> = (0..8).map(|_| connect(&address)).collect();
    assert!(matches!(health(&address).status, 503 | 0));
    let _at_the_socket: Vec<_> = (0..4).map(|_| daemon.connect()).collect();
    assert_eq!(daemon.get("/readyz").status, 200);
}

/// All connections of a proxy come from one address.
#[test]
fn a_proxy_has_the_connections_of_all_its_clients() {
    let place = Place::seeded();
    let few = ["gateway.connections_per_user_max=8", "gateway.header_time_ms_max=60000"];
    let proxy = "gateway.behind_proxy=true";
    let (_daemon, address) = listening(&place, &["--set", few[0], "--set", few[1], "--set", proxy]);
    let _held: Vec<_> = (0..8).map(|_| connect(&address)).collect();
    assert_eq!(health(&address).status, 200);
}

#[test]
fn a_token_counts_for_its_requests_in_progress() {
    let place = Place::seeded();
    let policy = place.state().join("policy/policy.toml");
    let text = std::fs::read_to_string(&policy).unwrap();
    let member = "[principals.\"account://home/*\"]\nsubjects = []\norgs = { home = \"member\" }";
    std::fs::write(&policy, text.replacen("[principals.", &format!("{member}\n\n[principals."), 1)).unwrap();
    // One request of each token, and of each client of the proxy.
    let few = ["gateway.connections_per_user_max=8", "gateway.header_time_ms_max=60000"];
    let proxy = "gateway.behind_proxy=true";
    let (daemon, address) = listening(&place, &["--set", few[0], "--set", few[1], "--set", proxy]);
    let [ada, ben] = ["ada", "ben"].map(|name| token(&daemon, name));
    let request = |path: &str, token: &str, from: &str| {
        let head = format!("GET {path} HTTP/1.1\r\nhost: localhost\r\nx-forwarded-for: {from}");
        format!("{head}\r\nauthorization: Bearer {token}\r\n\r\n")
    };
    let asks = |token: &str, from: &str| {
        let mut stream = BufReader::new(connect(&address));
        let status = exchange(&mut stream, &request("/v1/whoami", token, from)).status;
        (stream, status)
    };
    // The proxy keeps connections open that nobody uses just now.
    let _idle: Vec<_> = (0..4)
        .map(|_| {
            let (stream, status) = asks(&ada, "192.0.2.1");
            assert_eq!(status, 200);
            stream
        })
        .collect();
    // A stream is in progress until it ends, after its head was answered.
    let mut stream = connect(&address);
    stream.write_all(request("/v1/stream", &ada, "192.0.2.1").as_bytes()).unwrap();
    let mut first = [0; 12];
    stream.read_exact(&mut first).unwrap();
    assert_eq!(&first, b"HTTP/1.1 200");
    assert_eq!(asks(&ada, "192.0.2.2").1, 503, "its token has its part");
    assert_eq!(asks(&ben, "192.0.2.1").1, 503, "its address has its part");
    assert_eq!(asks(&ben, "192.0.2.2").1, 200);
    drop(stream);
    until("the stream has ended", || asks(&ada, "192.0.2.1").1 == 200);
}

/// The bytes of memory that a daemon has.
pub fn resident(daemon: &Daemon) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", daemon.pid())).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() * 1_024
}

const OPEN: &str = "effectd_http_connections ";
const REFUSED: &str = "effectd_http_connections_refused_total{reason=\"full\"}";

/// A figure of a daemon; 0 if there is none yet.
fn figure(daemon: &Daemon, name: &str) -> u64 {
    let figures = daemon.get("/metrics").body;
    figures.lines().find_map(|line| line.strip_prefix(name)?.trim().parse::<u64>().ok()).unwrap_or(0)
}

#[test]
fn idle_connections_by_the_thousand_leave_memory_flat() {
    let place = Place::seeded();
    // One address has an eighth of it.
    let few = ["gateway.connections_per_user_max=1024", "gateway.header_time_ms_max=600000"];
    let (daemon, address) = listening(&place, &["--set", few[0], "--set", few[1]]);
    others_are_served(&daemon, &address, "first");
    let before = resident(&daemon);
    // The daemon holds some of the first ones. It closes the others, so they are closed here, too: this needs few open files.
    let idle: Vec<_> = (0..200).map(|_| connect(&address)).collect();
    (200..10_000).for_each(|_| drop(connect(&address)));
    until("most are refused", || figure(&daemon, REFUSED) > 9_000);
    let done = daemon.post("/v1/actions?wait", &write_note("beside", "beside", "served")).json(200);
    assert_eq!(done["outcome"], "executed");
    until("128 and those at the socket are open", || (128..=130).contains(&figure(&daemon, OPEN)));
    let grown = resident(&daemon).saturating_sub(before);
    assert!(grown < 32 << 20, "{grown} bytes");
    drop(idle);
    until("there is room again", || health(&address).status == 200);
}

/// Connections that ask nothing, from as many addresses of loopback as they need: one address has a sixteenth of them.
fn idle_from_many(daemon: &Daemon, address: &str, count: usize) -> Vec<TcpStream> {
    let to = address.parse().unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let each = (count / 64).max(1);
    let connected = async |n: usize| {
        let socket = TcpSocket::new_v4().unwrap();
        let host = u8::try_from(1 + n / each).unwrap();
        socket.bind(SocketAddr::from(([127, 0, 1, host], 0))).unwrap();
        socket.connect(to).await.unwrap().into_std().unwrap()
    };
    runtime.block_on(async {
        let mut idle = Vec::new();
        for n in 0..count {
            idle.push(connected(n).await);
            // More than the kernel keeps for the daemon would each wait for a second.
            if idle.len() % 512 == 0 || idle.len() == count {
                until("the daemon holds them", || figure(daemon, OPEN) >= idle.len() as u64);
            }
        }
        idle
    })
}

#[test]
fn all_idle_connections_that_fit_leave_memory_flat() {
    let (_, files) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    setrlimit(Resource::RLIMIT_NOFILE, files, files).unwrap();
    let most = Settings::default().within_files(usize::try_from(files).unwrap_or(usize::MAX)).connections_max;
    let place = Place::seeded();
    let (daemon, address) = listening(&place, &["--set", "gateway.header_time_ms_max=600000"]);
    others_are_served(&daemon, &address, "first");
    // Some are left for those who ask.
    let idle = most - most / 64;
    let hold = || {
        let held = idle_from_many(&daemon, &address, idle);
        others_are_served(&daemon, &address, "beside");
        (held, resident(&daemon))
    };
    let before = resident(&daemon);
    let (held, once) = hold();
    let each = once.saturating_sub(before) / idle as u64;
    assert!(each < 16 << 10, "{each} bytes for each of {idle}");
    drop(held);
    until("they are closed", || figure(&daemon, OPEN) < 10);
    let (_held, twice) = hold();
    let grown = twice.saturating_sub(once);
    assert!(grown < 32 << 20, "the same connections once more need {grown} bytes more");
    // All others are refused, and the socket has its own connections.
    let beyond: Vec<_> = (0..most / 32).map(|_| connect(&address)).collect();
    until("some are refused", || figure(&daemon, REFUSED) > 0);
    assert_eq!(daemon.get("/readyz").status, 200);
    drop(beyond);
    until("the address is served", || health(&address).status == 200);
}

#[test]
fn a_flood_without_tokens_leaves_memory_flat() {
    let place = Place::seeded();
    // Each request is of another client of the proxy.
    let (daemon, address) = listening(&place, &["--set", "gateway.behind_proxy=true"]);
    others_are_served(&daemon, &address, "first");
    let before = resident(&daemon);
    for n in 0..3_000 {
        let lines = format!("x-forwarded-for: 2001:db8:1:{n:x}::1\r\nauthorization: Bearer efd_user_{n}_x");
        stranger(&address, &lines).problem(401, "unauthenticated");
    }
    let grown = resident(&daemon).saturating_sub(before);
    assert!(grown < 32 << 20, "{grown} bytes");
    others_are_served(&daemon, &address, "last");
}

#[test]
fn giant_headers_leave_memory_flat() {
    let place = Place::seeded();
    let (daemon, address) = listening(&place, &["--set", "gateway.header_time_ms_max=600000"]);
    others_are_served(&daemon, &address, "first");
    let before = resident(&daemon);
    // Nearly as long as a head may be, without an end.
    let unended = format!("GET /healthz HTTP/1.1\r\nhost: localhost\r\nlong: {}", "x".repeat(30_000));
    for _ in 0..30 {
        let held: Vec<_> = (0..100)
            .map(|_| {
                let mut stream = connect(&address);
                stream.write_all(unended.as_bytes()).unwrap();
                stream
            })
            .collect();
        // The daemon has read them when it answers the last one.
        let end = |mut stream: TcpStream| {
            stream.write_all(b"\r\nconnection: close\r\n\r\n").unwrap();
            assert_eq!(Reply::of(&reads_to_the_end(stream)).status, 200);
        };
        held.into_iter().for_each(end);
    }
    let grown = resident(&daemon).saturating_sub(before);
    assert!(grown < 32 << 20, "{grown} bytes");
    others_are_served(&daemon, &address, "last");
}

/// A token of an account.
pub fn token(daemon: &Daemon, name: &str) -> String {
    let made = daemon.post("/v1/tokens", &json!({ "kind": "user", "org": "home", "name": name })).json(200);
    made["token"].as_str().unwrap().to_owned()
}

/// Sends a request with a token; the caller reads the reply later.
pub fn send_by(address: &str, token: &str, method: &str, path: &str, body: &str) -> TcpStream {
    let mut stream = connect(address);
    let head = format!("{method} {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close");
    let length = body.len();
    let whole = format!("{head}\r\nauthorization: Bearer {token}\r\ncontent-length: {length}\r\n\r\n{body}");
    stream.write_all(whole.as_bytes()).unwrap();
    stream
}

/// One request with a token.
pub fn ask_by(address: &str, token: &str, method: &str, path: &str, body: &str) -> Reply {
    Reply::of(&reads_to_the_end(send_by(address, token, method, path, body)))
}

/// The head of a decision with a token.
fn submits(token: &str, lines: &str) -> String {
    let head = "POST /v1/actions?wait HTTP/1.1\r\nhost: localhost\r\n";
    format!("{head}authorization: Bearer {token}\r\n{lines}\r\n\r\n")
}

#[test]
fn slow_bodies_over_tcp_leave_memory_for_others() {
    let place = Place::seeded();
    let open = ["gateway.body_time_ms_max=600000", "gateway.token_rate_max=0"];
    let (daemon, address) = listening(&place, &["--set", open[0], "--set", open[1]]);
    let tokens: Vec<_> = (0..6).map(|n| token(&daemon, &format!("t-{n}"))).collect();
    let long = "x".repeat(1_000_000);
    let send = |token: &str, length: usize| {
        let mut stream = connect(&address);
        let head = submits(token, &format!("connection: close\r\ncontent-length: {length}"));
        // One that is refused may be closed before it is sent.
        let _ = stream.write_all(format!("{head}{long}").as_bytes());
        stream
    };
    // A body that is read whole is no JSON.
    let whole = |token: &str| Reply::of(&reads_to_the_end(send(token, long.len()))).status;
    let before = resident(&daemon);
    let mut held = Vec::new();
    let mut fill = |token: &str| {
        until("its bodies have all memory that they may", || {
            held.push(send(token, long.len() + 1));
            whole(token) == 503
        });
    };
    fill(&tokens[0]);
    for _ in 0..50 {
        whole(&tokens[0]);
    }
    let grown = resident(&daemon).saturating_sub(before);
    assert!(grown < 64 << 20, "{grown} bytes");
    // Another token has its own part, until all parts are in use.
    assert_eq!(whole(&tokens[1]), 400);
    tokens[1..].iter().for_each(|token| fill(token));
    // The socket has its own memory.
    daemon.ask("POST", "/v1/actions", &[], &long).problem(400, "malformed");
    drop(held);
    until("there is room again", || whole(&tokens[0]) == 400);
}

#[test]
fn unread_answers_over_tcp_leave_memory_for_others() {
    let place = Place::seeded();
    // Nobody is cut off during this test.
    let open = ["gateway.write_time_ms_max=600000", "gateway.token_rate_max=0"];
    let (daemon, address) = listening(&place, &["--set", open[0], "--set", open[1]]);
    let [ada, ben] = ["ada", "ben"].map(|name| token(&daemon, name));
    let page = |token: &str| ask_by(&address, token, "GET", "/openapi.json", "").status;
    assert_eq!([&ada, &ben].map(|token| page(token)), [200, 200]);
    let ask = format!("GET /openapi.json HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {ada}\r\n\r\n");
    let (before, to) = (resident(&daemon), address.parse().unwrap());
    let mut unread = Vec::new();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let mut send = || {
        let socket = TcpSocket::new_v4().unwrap();
        // The kernel keeps as little of an unread answer as it can on this side, and what the daemon lets it keep on the other one.
        socket.set_recv_buffer_size(2_048).unwrap();
        let mut stream = runtime.block_on(socket.connect(to)).unwrap().into_std().unwrap();
        stream.write_all(ask.as_bytes()).unwrap();
        unread.push(stream);
    };
    (0..30).for_each(|_| send());
    until("its answers have all memory that they may", || {
        send();
        page(&ada) == 503
    });
    (0..20).for_each(|_| send());
    // Short answers need no share, and another token has its own part.
    assert_eq!(ask_by(&address, &ada, "GET", "/v1/whoami", "").status, 200);
    assert_eq!(page(&ben), 200);
    let grown = resident(&daemon).saturating_sub(before);
    assert!(grown < 64 << 20, "{grown} bytes");
    drop(unread);
    until("there is room again", || page(&ada) == 200);
}

/// One request on a connection that stays open.
fn exchange(stream: &mut BufReader<TcpStream>, request: &str) -> Reply {
    stream.get_mut().write_all(request.as_bytes()).unwrap();
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        assert_ne!(stream.read_line(&mut head).unwrap(), 0, "{head}");
    }
    let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")).unwrap();
    let mut body = vec![0; length.parse().unwrap()];
    stream.read_exact(&mut body).unwrap();
    Reply::of(&[head.as_bytes(), &body].concat())
}

#[test]
fn a_body_in_chunks_is_read_within_the_same_bounds() {
    let place = Place::seeded();
    let policy = place.state().join("policy/policy.toml");
    let text = std::fs::read_to_string(&policy).unwrap();
    let ada =
        "[principals.\"account://home/ada\"]\nsubjects = [\"agent://planner@deviceA\"]\nactors = [\"alice\"]";
    let known = text.replacen("[principals.", &format!("{ada}\n\n[principals."), 1);
    std::fs::write(&policy, known).unwrap();
    let (daemon, address) = listening(&place, &["--set", "gateway.body_time_ms_max=5000"]);
    let token = token(&daemon, "ada");
    let note = |name: &str| write_note(name, name, "in chunks").to_string();
    let chunks = |body: &str| -> String {
        let pieces = body.as_bytes().chunks(100).map(|piece| String::from_utf8_lossy(piece));
        pieces.map(|piece| format!("{:x}\r\n{piece}\r\n", piece.len())).collect()
    };
    let chunked = |body: &str, lines: &str| {
        let head = submits(&token, &format!("{lines}Transfer-Encoding: Chunked"));
        format!("{head}{}0\r\n\r\n", chunks(body))
    };
    let sized = |body: &str| format!("{}{body}", submits(&token, &format!("content-length: {}", body.len())));
    // With and without a length, in turns, on one connection.
    let mut stream = BufReader::new(connect(&address));
    for (n, request) in
        [chunked(&note("c-0"), ""), sized(&note("c-1")), chunked(&note("c-2"), "")].iter().enumerate()
    {
        let done = exchange(&mut stream, request).json(200);
        let id = format!("account://home/ada/c-{n}");
        assert_eq!((&done["action_id"], &done["outcome"]), (&json!(id), &json!("executed")));
    }
    // Both are refused.
    let both = exchange(&mut stream, &chunked(&note("c-3"), "content-length: 4\r\n"));
    both.problem(400, "header_invalid");
    let [second, third] = [2, 3].map(|n| percent_encoded(&format!("account://home/ada/c-{n}")));
    assert_eq!(daemon.get(&format!("/v1/actions/{second}")).status, 200);
    assert_eq!(daemon.get(&format!("/v1/actions/{third}")).status, 404);
    // A body with such a line is the last of its connection: the line would count for the next request, maybe of another client.
    let mut stream = BufReader::new(connect(&address));
    let last = exchange(&mut stream, &sized("\r\ncontent-length: 4\r\n"));
    last.problem(400, "malformed");
    assert!(last.head.contains("connection: close"), "{last:?}");
    // Too long, too slow, and broken.
    let head = submits(&token, "connection: close\r\ntransfer-encoding: chunked");
    let long = format!("{head}{}0\r\n\r\n", format!("10000\r\n{}\r\n", "x".repeat(65_536)).repeat(17));
    for (request, status, code) in [
        (long, 413, "body_too_large"),
        (format!("{head}5\r\n{{"), 408, "body_timeout"),
        (format!("{head}zz\r\n"), 400, "body_broken"),
    ] {
        Reply::of(answer(&address, &request).as_bytes()).problem(status, code);
    }
}

#[test]
fn the_daemon_may_open_as_many_files_as_its_user() {
    let place = Place::seeded();
    let serve = place.command(&["serve", "--state", ".effectd", "--listen", "127.0.0.1:0"]);
    let journal = std::env::var("EFFECTD_TEST_JOURNAL").map(|journal| ("EFFECTD_STORE_JOURNAL", journal));
    let mut child = Command::new("sh")
        .args(["-c", "ulimit -S -n 256 && exec \"$0\" \"$@\""])
        .arg(serve.get_program())
        .args(serve.get_args())
        .current_dir(place.path(""))
        .env_clear()
        .env("PATH", "/usr/bin:/bin")
        .envs(journal)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let limits = std::fs::read_to_string(format!("/proc/{}/limits", child.id())).unwrap();
    child.kill().unwrap();
    child.wait().unwrap();
    let files = limits.lines().find_map(|line| line.strip_prefix("Max open files")).unwrap();
    let files: Vec<_> = files.split_whitespace().collect();
    assert_eq!(files[0], files[1], "{line}: {limits}");
}

/// Runs a test against a gateway in this process whose clock stands still, so that no rate recovers meanwhile.
pub fn while_time_stands_still(place: &Place, mut settings: Settings, test: impl FnOnce(&ManualClock, &str)) {
    settings.listen = Some("127.0.0.1:0".parse().unwrap());
    // A connection may end later here than at its client.
    (settings.connections_max, settings.connections_per_user_max) = (8_192, 8_192);
    let clock = Arc::new(ManualClock::at(Timestamp::now()));
    let mut config = Config::embedded(place.state()).unwrap();
    config.zygote_exe = program().into();
    config.clock = clock.clone();
    let threads = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    threads.block_on(async {
        let runtime = Runtime::start(config).await.unwrap();
        make_private(place.socket().parent().unwrap()).unwrap();
        let socket = Socket::bind(&place.socket(), 0o600).unwrap();
        let tcp = Tcp::bind(&settings).await.unwrap().unwrap();
        let address = tcp.url().split_once("://").unwrap().1.to_owned();
        let (stage, open) = watch::channel(Stage::Open);
        let gateway = runtime.gateway(SharedSettings::new(settings), open).unwrap();
        let serving = tokio::spawn(gateway.serve(socket, None, Some(tcp)));
        // Other threads serve.
        test(&clock, &address);
        stage.send(Stage::Closed).unwrap();
        serving.await.unwrap();
        assert!(runtime.stop().await);
    });
}

/// Asks without a token, with these lines in the head.
fn stranger(address: &str, lines: &str) -> Reply {
    ask(address, &format!("GET /v1/receipts HTTP/1.1\r\nhost: localhost\r\n{lines}"))
}

#[test]
fn a_flood_without_a_token_spends_nobody_elses_rate() {
    let place = Place::seeded();
    while_time_stands_still(&place, Settings::default(), |clock, address| {
        let flood = || stranger(address, "accept: */*");
        for _ in 0..AUTH_FAILURES_MAX {
            flood().problem(401, "unauthenticated");
        }
        let refused = flood();
        let problem = refused.problem(429, "rate_limited");
        assert!(refused.head.contains("retry-after: 1"), "{refused:?}");
        let detail = problem["detail"].as_str().unwrap();
        assert!(detail.contains("the address has reached its rate limit"), "{problem}");
        // An invented address is no other one.
        stranger(address, "x-forwarded-for: 198.51.100.7").problem(429, "rate_limited");
        // Whoever needs no token notices nothing.
        assert_eq!(health(address).status, 200);
        let at_socket = UnixStream::connect(place.socket()).unwrap();
        at_socket.set_read_timeout(Some(LONG)).unwrap();
        let note = write_note("beside-flood", "beside-flood", "served").to_string();
        let done = Reply::read(send_on(at_socket, "POST", "/v1/actions?wait", &[], &note)).json(200);
        assert_eq!(done["outcome"], "executed");
        clock.advance(Duration::from_secs(1));
        flood().problem(401, "unauthenticated");
    });
}

#[test]
fn behind_a_proxy_the_last_address_that_it_adds_counts() {
    let place = Place::seeded();
    let settings = Settings { behind_proxy: true, ..Settings::default() };
    while_time_stands_still(&place, settings, |_, address| {
        let by = |hops: &str| stranger(address, &format!("x-forwarded-for: {hops}"));
        for _ in 0..AUTH_FAILURES_MAX {
            by("203.0.113.1").problem(401, "unauthenticated");
        }
        by("203.0.113.1").problem(429, "rate_limited");
        // Another client of the proxy has its own rate.
        by("203.0.113.2").problem(401, "unauthenticated");
        // Hops that the client has invented stand before the proxy's.
        by("198.51.100.7, 203.0.113.1").problem(429, "rate_limited");
    });
}

#[test]
fn off_loopback_without_tls_the_daemon_does_not_start() {
    let place = Place::seeded();
    let refused = place.effectd(&["serve", "--state", ".effectd", "--listen", "0.0.0.0:0"], None);
    assert_eq!(refused.code(), 2, "{}", refused.stderr());
    for named in ["0.0.0.0:0", "gateway.tls_cert", "gateway.tls_key", "gateway.behind_proxy", "127.0.0.1"] {
        assert!(refused.stderr().contains(named), "{}", refused.stderr());
    }
    assert!(!place.socket().exists());
}

#[test]
fn behind_a_proxy_the_daemon_starts_off_loopback() {
    let place = Place::seeded();
    let proxy = ["--listen", "0.0.0.0:0", "--set", "gateway.behind_proxy=true"];
    let _daemon = place.serve(&proxy);
    let port = address(&place).rsplit(':').next().unwrap().to_owned();
    assert_eq!(health(&format!("127.0.0.1:{port}")).status, 200);
}

#[test]
fn an_address_in_use_is_named_with_its_setting() {
    let place = Place::seeded();
    let other = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = other.local_addr().unwrap().to_string();
    let refused = place.effectd(&["serve", "--state", ".effectd", "--listen", &taken], None);
    assert!(refused.code() == 75 && refused.stderr().contains("gateway.listen"), "{}", refused.stderr());
}

#[test]
fn a_stop_ends_idle_connections_over_tcp() {
    let place = Place::seeded();
    let (daemon, address) = listening(&place, &[]);
    let mut idle = connect(&address);
    idle.write_all(HIDDEN.as_bytes()).unwrap();
    let mut first = [0; 12];
    idle.read_exact(&mut first).unwrap();
    assert_eq!(&first, b"HTTP/1.1 200");
    let begun = Instant::now();
    daemon.signal(Signal::SIGTERM);
    reads_to_the_end(idle);
    assert!(begun.elapsed() < CLOSE_TIME_MAX, "it was cut off");
    assert_eq!(daemon.wait(), 0);
}

/// The line with which a script finds the port.
#[test]
fn standard_output_says_where_the_daemon_listens() {
    let place = Place::seeded();
    let mut child =
        place.command(&["serve", "--state", ".effectd", "--listen", "127.0.0.1:0"]).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let address = line.trim_end().strip_prefix("listening on http://");
    let status = address.map(|address| health(address).status);
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(status, Some(200), "{line:?}");
}
