//! What the broker costs: `cargo bench -p effectd-egress`.
//!
//! The same request to the same server over TLS on connections that stay open: by hyper in this process, and through the broker, in
//! turns. Then 64 at once through the broker, and the memory of the broker when it is idle.
#![expect(clippy::print_stdout, reason = "a benchmark prints its figures")]
#![expect(clippy::expect_used, reason = "a benchmark that cannot be set up has nothing to say")]
#![expect(clippy::disallowed_types, clippy::disallowed_methods, reason = "it is a server, and measures time")]

use std::io::{Read, Write};
use std::net::TcpListener;
use std::sync::Arc;
use std::time::{Duration, Instant};

use effectd_contracts::{AddressRange, Exchange, ExchangeReply};
use effectd_egress::{Broker, BrokerConfig, Credential, Order, Origin, Scheme, Secret, Trust};
use http_body_util::{BodyExt, Empty};
use hyper::Request;
use hyper::body::Bytes;
use hyper_util::rt::TokioIo;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, RootCertStore, ServerConfig, ServerConnection, StreamOwned};

const TURNS: usize = 5;
const REQUESTS: usize = 2_000;
const IN_FLIGHT: usize = 64;
const ADDED_MS_GOAL: f64 = 0.25;
const RATE_GOAL: f64 = 3_000.0;
const IDLE_MIB_GOAL: f64 = 12.0;
const ANSWER: &[u8] =
    b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 11\r\n\r\n{\"ok\":true}";

/// As in the program that ships.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() {
    effectd_egress::init();
    let (port, pem, der) = serve();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let broker = Arc::new(Broker::new(BrokerConfig::this_program()));
        let order = Arc::new(order(port, pem));
        for _ in 0..200 {
            carry(&broker, &order).await;
        }
        // In turns: what else the machine does meets both.
        let mut added = Vec::new();
        for turn in 1..=TURNS {
            let plain = p50(in_process(port, der.clone()).await);
            let mut through = Vec::new();
            for _ in 0..REQUESTS {
                let begun = Instant::now();
                carry(&broker, &order).await;
                through.push(begun.elapsed());
            }
            let through = p50(through);
            println!("turn {turn}: hyper in process p50 {plain:?}, through the broker p50 {through:?}");
            added.push(through.saturating_sub(plain));
        }
        added.sort();
        let ms = |time: Duration| time.as_secs_f64() * 1_000.0;
        let (low, middle, high) = (ms(added[0]), ms(added[TURNS / 2]), ms(added[TURNS - 1]));
        let is_met = verdict(middle <= ADDED_MS_GOAL);
        println!(
            "added: {middle:.3} ms ({low:.3} to {high:.3} over {TURNS} turns; goal {ADDED_MS_GOAL}: {is_met})"
        );
        let mut rates = Vec::new();
        for _ in 0..TURNS {
            let begun = Instant::now();
            let all: Vec<_> = (0..IN_FLIGHT)
                .map(|_| {
                    let (broker, order) = (broker.clone(), order.clone());
                    tokio::spawn(async move {
                        for _ in 0..REQUESTS / 8 {
                            carry(&broker, &order).await;
                        }
                    })
                })
                .collect();
            for one in all {
                one.await.expect("an exchange");
            }
            rates.push((IN_FLIGHT * (REQUESTS / 8)) as f64 / begun.elapsed().as_secs_f64());
        }
        rates.sort_by(f64::total_cmp);
        let (low, middle, high) = (rates[0], rates[TURNS / 2], rates[TURNS - 1]);
        let is_met = verdict(middle >= RATE_GOAL);
        println!("{IN_FLIGHT} at once: {middle:.0}/s ({low:.0} to {high:.0}; goal {RATE_GOAL}: {is_met})");
        let idle = Broker::new(BrokerConfig::this_program());
        carry(&idle, &order).await;
        let pid = idle.pid().await.expect("a broker");
        let (resident, own) = (memory(pid, "Rss:"), memory(pid, "Pss:"));
        let is_met = verdict(resident <= IDLE_MIB_GOAL);
        println!("idle: RSS {resident:.1} MiB, PSS {own:.1} MiB (goal for RSS {IDLE_MIB_GOAL}: {is_met})");
    });
}

/// In MiB. RSS counts the pages of this program's file, which other processes share; PSS counts them in part.
fn memory(pid: u32, name: &str) -> f64 {
    let rollup = std::fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).expect("its memory");
    let line = rollup.lines().find_map(|line| line.strip_prefix(name)).expect("a line");
    line.trim().trim_end_matches(" kB").parse::<f64>().expect("a number") / 1_024.0
}

fn verdict(is_met: bool) -> &'static str {
    if is_met { "met" } else { "MISSED" }
}

fn p50(mut times: Vec<Duration>) -> Duration {
    times.sort();
    times[times.len() / 2]
}

fn order(port: u16, pem: String) -> Order {
    Order {
        id: 0,
        origin: Origin {
            connection: "bench:1".to_owned(),
            scheme: Scheme::Https,
            host: "localhost".to_owned(),
            port,
            trust: Trust::Authority(pem),
            allowed: vec![
                "127.0.0.0/8".parse::<AddressRange>().expect("a range"),
                "::1".parse().expect("a range"),
            ],
        },
        credential: Some(Credential {
            header: "authorization".to_owned(),
            value: Secret::from("Bearer sk-bench-0123456789".to_owned()),
        }),
        secrets: Vec::new(),
        exchange: Exchange::get("bench", "/v1/items"),
        time_ms: 10_000,
        own_headers: Vec::new(),
        bytes_max: 1 << 20,
        only_dial: false,
        login: None,
    }
}

async fn carry(broker: &Broker, order: &Order) {
    match broker.carry(order.clone(), None).await.reply {
        ExchangeReply::Answered(answer) => assert_eq!(answer.body, b"{\"ok\":true}"),
        ExchangeReply::Failed(failure) => panic!("{failure}"),
    }
}

/// One connection of hyper, as a program has it that needs no broker.
async fn in_process(port: u16, authority: CertificateDer<'static>) -> Vec<Duration> {
    let mut roots = RootCertStore::empty();
    roots.add(authority).expect("an authority");
    let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_root_certificates(roots)
        .with_no_client_auth();
    let stream = tokio::net::TcpStream::connect(("127.0.0.1", port)).await.expect("a connection");
    stream.set_nodelay(true).expect("an option");
    let name = ServerName::try_from("localhost").expect("a name");
    let stream = TlsConnector::from(Arc::new(config)).connect(name, stream).await.expect("TLS");
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.expect("HTTP");
    tokio::spawn(connection);
    let mut times = Vec::new();
    for _ in 0..REQUESTS {
        let begun = Instant::now();
        sender.ready().await.expect("a connection");
        let request = Request::get("/v1/items")
            .header("host", format!("localhost:{port}"))
            .header("authorization", "Bearer sk-bench-0123456789")
            .body(Empty::<Bytes>::new())
            .expect("a request");
        let answer = sender.send_request(request).await.expect("an answer");
        let body = answer.into_body().collect().await.expect("a body").to_bytes();
        assert_eq!(&body[..], b"{\"ok\":true}");
        times.push(begun.elapsed());
    }
    times
}

/// A server with a thread for each connection. Returns its port, and its authority.
fn serve() -> (u16, String, CertificateDer<'static>) {
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let key = KeyPair::generate().expect("a key");
    let authority = CertifiedIssuer::self_signed(params, key).expect("an authority");
    let key = KeyPair::generate().expect("a key");
    let params = CertificateParams::new(vec!["localhost".to_owned()]).expect("a name");
    let certificate = params.signed_by(&key, &authority).expect("a certificate");
    let private = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()));
    let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_no_client_auth()
        .with_single_cert(vec![certificate.der().clone()], private)
        .expect("a configuration");
    let config = Arc::new(config);
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("an address").port();
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let config = config.clone();
            std::thread::spawn(move || {
                stream.set_nodelay(true).expect("an option");
                let connection = ServerConnection::new(config).expect("TLS");
                let mut stream = StreamOwned::new(connection, stream);
                let (mut request, mut piece) = (Vec::new(), [0; 4_096]);
                while let Ok(count @ 1..) = stream.read(&mut piece) {
                    request.extend_from_slice(&piece[..count]);
                    if request.ends_with(b"\r\n\r\n") {
                        request.clear();
                        if stream.write_all(ANSWER).and_then(|()| stream.flush()).is_err() {
                            return;
                        }
                    }
                }
            });
        }
    });
    (port, authority.pem(), authority.der().clone())
}
