//! TLS at the door on the network.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use effectd_gateway::Settings;
use effectd_gateway::limits::HANDSHAKES_MAX;
use rustls::pki_types::CertificateDer;
use rustls::version::{TLS12, TLS13};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned, SupportedProtocolVersion};

use crate::harness::{Daemon, Place, Reply, Serving, until};
use crate::tcp::{address, connect, reads_to_the_end, while_time_stands_still};
use crate::unit::not_run;

const BOTH: [&SupportedProtocolVersion; 2] = [&TLS13, &TLS12];
const HEALTH: &str = "GET /healthz HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n";

/// Writes a new certificate and its key.
fn certify(place: &Place) -> CertificateDer<'static> {
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    std::fs::write(place.path("cert.pem"), made.cert.pem()).unwrap();
    std::fs::write(place.path("key.pem"), made.signing_key.serialize_pem()).unwrap();
    made.cert.der().clone()
}

/// A daemon with TLS, at an address that others could reach.
fn listening(place: &Place, arguments: &[&str]) -> (Daemon, String) {
    let tls =
        ["--listen", "0.0.0.0:0", "--set", "gateway.tls_cert=cert.pem", "--set", "gateway.tls_key=key.pem"];
    let daemon = place.serve(&[&tls[..], arguments].concat());
    (daemon, address(place).replace("0.0.0.0", "127.0.0.1"))
}

/// A connection whose handshake has ended, by a client that trusts this certificate.
fn greet(
    address: &str,
    trusted: &CertificateDer<'static>,
    versions: &[&'static SupportedProtocolVersion],
) -> std::io::Result<StreamOwned<ClientConnection, TcpStream>> {
    let mut roots = RootCertStore::empty();
    roots.add(trusted.clone()).unwrap();
    let config = ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_protocol_versions(versions)
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let client = ClientConnection::new(Arc::new(config), "localhost".try_into().unwrap()).unwrap();
    let mut stream = StreamOwned::new(client, connect(address));
    stream.conn.complete_io(&mut stream.sock)?;
    Ok(stream)
}

fn status(mut stream: StreamOwned<ClientConnection, TcpStream>) -> u16 {
    stream.write_all(HEALTH.as_bytes()).unwrap();
    Reply::of(&reads_to_the_end(stream)).status
}

#[test]
fn tls_1_2_and_1_3_are_served() {
    let place = Place::seeded();
    let trusted = certify(&place);
    let (daemon, address) = listening(&place, &[]);
    for version in BOTH {
        let stream = greet(&address, &trusted, &[version]).unwrap();
        assert_eq!(stream.conn.protocol_version(), Some(version.version));
        assert_eq!(status(stream), 200);
    }
    assert!(place.log().contains("listening on https://0.0.0.0:"));
    // Who is silent does not keep the daemon from stopping.
    let _silent = connect(&address);
    assert_eq!(daemon.stop(), 0);
}

/// The greeting of a client that speaks TLS 1.1 at most.
fn old_greeting() -> Vec<u8> {
    let signatures = [0, 0x0d, 0, 4, 0, 2, 4, 1];
    let hello = [&[3, 2][..], &[7; 32], &[0, 0, 2, 0xc0, 0x13, 1, 0, 0, 8], &signatures].concat();
    let length = u8::try_from(hello.len()).unwrap();
    [&[0x16, 3, 1, 0, length + 4, 1, 0, 0, length][..], &hello].concat()
}

#[test]
fn tls_1_1_is_refused() {
    let place = Place::seeded();
    certify(&place);
    let (_daemon, address) = listening(&place, &[]);
    let mut stream = connect(&address);
    stream.write_all(&old_greeting()).unwrap();
    let alert = reads_to_the_end(stream);
    // A fatal alert: `protocol_version`.
    assert_eq!((alert.first(), alert.get(5..7)), (Some(&0x15), Some(&[2, 70][..])), "{alert:?}");
    // The same as another program sees it.
    let openssl = |version: &str| {
        let arguments = ["s_client", "-connect", &address, version, "-cipher", "ALL:@SECLEVEL=0"];
        let mut command = Command::new("openssl");
        command.args(arguments).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        command.status().ok().map(|ended| ended.success())
    };
    if openssl("-tls1_2").is_some() {
        let seen = ["-tls1_1", "-tls1_2", "-tls1_3"].map(openssl);
        assert_eq!(seen, [Some(false), Some(true), Some(true)]);
    } else {
        not_run("needs openssl", "tls_1_1_is_refused");
    }
}

#[test]
fn plain_text_at_the_tls_door_is_cut_off() {
    let place = Place::seeded();
    let trusted = certify(&place);
    let (_daemon, address) = listening(&place, &[]);
    for bytes in
        [HEALTH.as_bytes(), b"\x00\x01\x02\xff\xfe", b"SSH-2.0-x\r\n", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"]
    {
        let mut stream = connect(&address);
        let _ = stream.write_all(bytes);
        let _ = stream.shutdown(std::net::Shutdown::Write);
        let answer = reads_to_the_end(stream);
        assert!(!String::from_utf8_lossy(&answer).contains("HTTP"), "{answer:?}");
    }
    assert_eq!(status(greet(&address, &trusted, &BOTH).unwrap()), 200);
}

#[test]
fn a_handshake_that_never_ends_is_given_up() {
    let place = Place::seeded();
    let trusted = certify(&place);
    let (_daemon, address) = listening(&place, &["--set", "gateway.header_time_ms_max=500"]);
    let mut silent = connect(&address);
    let mut begun = connect(&address);
    let _ = begun.write_all(&old_greeting()[..20]);
    // Neither gets a byte; both connections end.
    assert_eq!(silent.read(&mut [0; 8]).unwrap(), 0);
    assert!(reads_to_the_end(begun).is_empty());
    until("others are served", || greet(&address, &trusted, &BOTH).is_ok_and(|stream| status(stream) == 200));
}

#[test]
fn one_address_has_a_bounded_rate_of_handshakes() {
    let place = Place::seeded();
    let trusted = certify(&place);
    let file = |name: &str| place.path(name).to_str().unwrap().to_owned();
    let settings = Settings { tls_cert: file("cert.pem"), tls_key: file("key.pem"), ..Settings::default() };
    while_time_stands_still(&place, settings, |clock, address| {
        assert_eq!(status(greet(address, &trusted, &BOTH).unwrap()), 200);
        // Who does not even greet counts, too.
        (1..HANDSHAKES_MAX).for_each(|_| drop(connect(address)));
        assert!(greet(address, &trusted, &BOTH).is_err());
        clock.advance(Duration::from_secs(1));
        assert_eq!(status(greet(address, &trusted, &BOTH).unwrap()), 200);
    });
}

#[test]
fn a_full_tls_door_closes_without_a_handshake() {
    let place = Place::seeded();
    let trusted = certify(&place);
    let few = ["gateway.connections_per_user_max=2", "gateway.header_time_ms_max=60000"];
    let (daemon, address) = listening(&place, &["--set", few[0], "--set", few[1]]);
    let held = greet(&address, &trusted, &BOTH).unwrap();
    assert!(reads_to_the_end(connect(&address)).is_empty());
    let figures = daemon.get("/metrics").body;
    assert!(figures.contains("effectd_http_connections_refused_total{reason=\"full\"} 1"), "{figures}");
    drop(held);
    until("there is room again", || {
        greet(&address, &trusted, &BOTH).is_ok_and(|stream| status(stream) == 200)
    });
}

#[test]
fn a_renewed_certificate_is_used_without_a_restart() {
    let place = Place::seeded();
    let first = certify(&place);
    let (_daemon, address) = listening(&place, &["--set", "gateway.header_time_ms_max=60000"]);
    let mut kept = greet(&address, &first, &BOTH).unwrap();
    let second = certify(&place);
    until("the second certificate is in force", || place.log().contains("certificate is in force"));
    assert_eq!(status(greet(&address, &second, &BOTH).unwrap()), 200);
    assert!(greet(&address, &first, &BOTH).is_err());
    // A certificate without its key, and then none: the current one stays.
    let stray = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    std::fs::write(place.path("cert.pem"), stray.cert.pem()).unwrap();
    until("the stray certificate is refused", || place.log().contains("cannot be used together"));
    std::fs::remove_file(place.path("cert.pem")).unwrap();
    until("the missing file is reported", || place.log().contains("cert.pem cannot be read"));
    assert_eq!(status(greet(&address, &second, &BOTH).unwrap()), 200);
    // A connection from before goes on.
    kept.write_all(HEALTH.as_bytes()).unwrap();
    assert_eq!(Reply::of(&reads_to_the_end(kept)).status, 200);
}

#[test]
fn a_certificate_that_cannot_be_used_stops_the_start() {
    let place = Place::seeded();
    let serve = |more: &[&str]| {
        let tls = ["--set", "gateway.tls_cert=cert.pem", "--set", "gateway.tls_key=key.pem"];
        let start = ["serve", "--state", ".effectd", "--listen", "127.0.0.1:0"];
        place.effectd(&[&start[..], &tls, more].concat(), None)
    };
    let refused = serve(&[]);
    assert!(
        refused.code() == 69 && refused.stderr().contains("cert.pem cannot be read"),
        "{}",
        refused.stderr()
    );
    certify(&place);
    let stray = std::fs::read(place.path("key.pem")).unwrap();
    certify(&place);
    std::fs::write(place.path("key.pem"), stray).unwrap();
    let refused = serve(&[]);
    assert!(
        refused.code() == 69 && refused.stderr().contains("cannot be used together"),
        "{}",
        refused.stderr()
    );
    std::fs::write(place.path("cert.pem"), "no certificate").unwrap();
    let refused = serve(&[]);
    assert!(
        refused.code() == 69 && refused.stderr().contains("no certificate in PEM"),
        "{}",
        refused.stderr()
    );
    let half = serve(&["--set", "gateway.tls_key="]);
    assert!(half.code() == 2 && half.stderr().contains("both be empty"), "{}", half.stderr());
}
