//! Bad clients: slow, malformed and flooding ones are cut off, and no other client notices.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;

use crate::harness::{Daemon, Place, Reply, Serving, until, write_note};

/// Checks that another client is served.
fn others_are_served(daemon: &Daemon, name: &str) {
    let done = daemon.post("/v1/actions?wait", &write_note(name, name, "served")).json(200);
    assert_eq!(done["outcome"], "executed");
}

/// The same with a daemon that soon cuts off slow clients. On a machine that stalls this client may be one of them: it asks again.
fn others_are_served_soon(daemon: &Daemon, name: &str) {
    until("another client is served", || {
        let reply = daemon.post("/v1/actions?wait", &write_note(name, name, "served"));
        if reply.status == 0 {
            return false;
        }
        assert_eq!(reply.json(200)["outcome"], "executed");
        true
    });
}

fn reads_to_the_end(mut stream: UnixStream) -> String {
    let mut bytes = Vec::new();
    let _ = stream.read_to_end(&mut bytes);
    String::from_utf8_lossy(&bytes).into_owned()
}

#[test]
fn garbage_is_refused_and_forgotten() {
    let place = Place::seeded();
    let daemon = place.serve(&[]);
    let garbage: [&[u8]; 6] = [
        b"\x00\x01\x02\xff\xfe\r\n\r\n",
        b"GET\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"POST /v1/actions HTTP/1.1\r\nhost: x\r\ncontent-length: banana\r\n\r\n",
        b"POST /v1/actions HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    ];
    for bytes in garbage {
        let mut stream = daemon.connect();
        stream.write_all(bytes).unwrap();
        stream.shutdown(std::net::Shutdown::Write).unwrap();
        let answer = reads_to_the_end(stream);
        assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 4"), "{bytes:?}: {answer}");
    }
    // Too many headers, and a header that is too long.
    let many: String = (0..100).map(|number| format!("x-{number}: 1\r\n")).collect();
    let long = format!("x: {}\r\n", "y".repeat(40_000));
    for headers in [many, long] {
        let mut stream = daemon.connect();
        let _ = stream.write_all(format!("GET /healthz HTTP/1.1\r\n{headers}\r\n").as_bytes());
        let answer = reads_to_the_end(stream);
        assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 4"), "{answer}");
    }
    others_are_served(&daemon, "after-garbage");
}

#[test]
fn a_body_beyond_the_bound_is_refused_without_being_read() {
    let place = Place::seeded();
    let daemon = place.serve(&[]);
    let large = "x".repeat(1_048_577);
    daemon.ask("POST", "/v1/actions", &[], &large).problem(413, "body_too_large");
    others_are_served(&daemon, "after-large");
}

/// Sends all of it before anything is read, as many clients do.
fn sends_all_then_reads(daemon: &Daemon, request: &[u8]) -> std::io::Result<Reply> {
    let mut stream = daemon.connect();
    stream.write_all(request)?;
    Ok(Reply::read(stream))
}

#[test]
fn an_answer_before_the_end_of_a_request_reaches_the_client() {
    let place = Place::seeded();
    let daemon = place.serve(&[]);
    let with_body = |path: &str| {
        let head = format!("POST {path} HTTP/1.1\r\nhost: x\r\ncontent-length: 2097152\r\n\r\n");
        [head.into_bytes(), vec![b'x'; 2 << 20]].concat()
    };
    let head = b"POST /v1/actions HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n".to_vec();
    let chunk = [b"10000\r\n".to_vec(), vec![b'x'; 65_536], b"\r\n".to_vec()].concat();
    let chunked = [head, chunk.repeat(48), b"0\r\n\r\n".to_vec()].concat();
    let line = format!("GET /{} HTTP/1.1\r\nhost: x\r\n\r\n", "x".repeat(1 << 20)).into_bytes();
    let cases = [(with_body("/v1/actions"), 413), (chunked, 413), (with_body("/nowhere"), 404), (line, 431)];
    std::thread::scope(|scope| {
        for (request, status) in &cases {
            scope.spawn(|| {
                for _ in 0..10 {
                    let reply =
                        sends_all_then_reads(&daemon, request).expect("the client may send all of it");
                    assert_eq!(reply.status, *status, "{reply:?}");
                }
            });
        }
    });
    // A client that never stops sending is cut off.
    let mut endless = daemon.connect();
    let mut sent = endless.write_all(&with_body("/nowhere"));
    for _ in 0..64 {
        sent = sent.and_then(|()| endless.write_all(&[b'x'; 1 << 20]));
    }
    assert!(sent.is_err(), "it sent 66 MiB");
    others_are_served(&daemon, "after-endless");
}

#[test]
fn slow_clients_are_given_up() {
    let place = Place::seeded();
    // A client that never finishes its body; its headers have the usual time.
    let daemon = place.serve(&["--set", "gateway.body_time_ms_max=300"]);
    let mut body = daemon.connect();
    body.write_all(b"POST /v1/actions HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\n{").unwrap();
    Reply::read(body).problem(408, "body_timeout");
    assert_eq!(daemon.stop(), 0);
    let daemon =
        place.serve(&["--set", "gateway.header_time_ms_max=300", "--set", "gateway.write_time_ms_max=300"]);
    // One that never finishes its headers, and one that never begins. They may be cut off before they have sent anything.
    let mut headers = daemon.connect();
    let _ = headers.write_all(b"POST /v1/actions HTTP/1.1\r\nhost: x\r\n");
    let silent = daemon.connect();
    // One that asks and asks and never reads.
    let mut deaf = daemon.connect();
    deaf.set_nonblocking(true).unwrap();
    let question = b"GET /openapi.json HTTP/1.1\r\nhost: x\r\n\r\n".repeat(200);
    let _ = deaf.write(&question);
    others_are_served_soon(&daemon, "beside-slow");
    assert!(reads_to_the_end(headers).is_empty());
    assert!(reads_to_the_end(silent).is_empty());
    // Only the connection that asks for the metrics is left.
    until("the deaf client is cut off", || {
        let figures = daemon.get("/metrics").body;
        figures.lines().any(|line| line == "effectd_http_connections 1")
    });
    others_are_served_soon(&daemon, "after-slow");
}

#[test]
fn a_flood_of_connections_is_turned_away_at_its_bound() {
    let place = Place::seeded();
    let few = ["--set", "gateway.connections_per_user_max=8", "--set"];
    let flooded = |daemon: &Daemon| -> Vec<_> { (0..8).map(|_| daemon.connect()).collect() };
    // No connection of the flood is dropped for idleness before the next one is open.
    let daemon = place.serve(&[&few[..], &["gateway.header_time_ms_max=60000"]].concat());
    let flood = flooded(&daemon);
    let turned_away = daemon.get("/healthz");
    assert!(turned_away.head.contains("retry-after: 1"), "{turned_away:?}");
    turned_away.problem(503, "overloaded");
    drop(flood);
    daemon.kill();
    // Idle connections are closed after a while.
    let daemon = place.serve(&[&few[..], &["gateway.header_time_ms_max=500"]].concat());
    for idle in flooded(&daemon) {
        assert!(reads_to_the_end(idle).is_empty());
    }
    others_are_served_soon(&daemon, "after-flood");
}

#[test]
fn a_command_that_finds_a_full_daemon_may_try_again() {
    let place = Place::seeded();
    let daemon =
        place.serve(&["--set", "gateway.connections_max=8", "--set", "gateway.header_time_ms_max=60000"]);
    let flood: Vec<_> = (0..8).map(|_| daemon.connect()).collect();
    // The check of the daemon's state is answered, the request is not.
    let request = write_note("full-1", "full.txt", "x").to_string();
    let submit = ["submit", "--wait", "--patience", "0", "-", "--state", ".effectd", "-o", "json"];
    let full = place.effectd(&submit, Some(&request));
    let problem = full.json(75);
    assert_eq!((&problem["code"], &problem["retry_after_ms"]), (&"overloaded".into(), &1_000.into()));
    assert!(full.stderr().contains("too many connections"), "{}", full.stderr());
    drop(flood);
    let mut patient = submit;
    patient[3] = "60";
    assert_eq!(place.effectd(&patient, Some(&request)).json(0)["outcome"], "executed");
}

#[test]
fn a_client_that_hangs_up_takes_nothing_with_it() {
    let place = Place::seeded();
    let daemon = place.serve(&[]);
    for number in 0..20 {
        let request = write_note(&format!("h-{number}"), &format!("h-{number}"), "gone").to_string();
        let mut stream = daemon.connect();
        let length = request.len();
        let head = format!("POST /v1/actions?wait HTTP/1.1\r\nhost: x\r\ncontent-length: {length}\r\n\r\n");
        stream.write_all(head.as_bytes()).unwrap();
        stream.write_all(&request.as_bytes()[..if number % 2 == 0 { length } else { length / 2 }]).unwrap();
    }
    others_are_served(&daemon, "after-hang-ups");
    assert_eq!(daemon.stop(), 0);
}
