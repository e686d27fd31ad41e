//! Servers that give the secret back to whoever sent it.

use std::io::Write;

use base64::Engine;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use effectd_contracts::limits::EXCHANGE_ANSWER_BYTES_MAX;
use effectd_contracts::{Exchange, ExchangeFault};
use effectd_egress::{Order, Secret};
use flate2::Compression;
use flate2::write::GzEncoder;

use crate::server::{Go, Peer, Server, answer, ok};
use crate::world::SECRET;
use crate::{Case, case, plain};

type Echo = fn(&str, &mut dyn Peer) -> Go;

/// What each server makes of the secret that it was sent.
const ECHOES: &[(&str, Echo)] = &[
    ("in_a_body", |secret, to| ok(to, format!("you said {secret}").as_bytes())),
    ("in_an_error", |secret, to| {
        answer(to, "401 Unauthorized", "", format!("bad token: {secret}").as_bytes())
    }),
    ("with_its_word", |secret, to| ok(to, format!("authorization: Bearer {secret}").as_bytes())),
    ("in_json", |secret, to| ok(to, serde_json::json!({ "token": secret }).to_string().as_bytes())),
    ("in_base64", |secret, to| ok(to, STANDARD.encode(secret).as_bytes())),
    ("in_base64_for_urls", |secret, to| ok(to, URL_SAFE_NO_PAD.encode(secret).as_bytes())),
    ("in_base64_behind_a_user", |secret, to| ok(to, STANDARD.encode(format!("me:{secret}")).as_bytes())),
    ("percent_encoded", |secret, to| {
        let encoded: String = secret
            .bytes()
            .map(|byte| match byte {
                byte if byte.is_ascii_alphanumeric() || b"-_.~".contains(&byte) => {
                    char::from(byte).to_string()
                }
                byte => format!("%{byte:02x}"),
            })
            .collect();
        ok(to, encoded.as_bytes())
    }),
    ("in_hexadecimal", |secret, to| {
        let hex: String = secret.bytes().map(|byte| format!("{byte:02x}")).collect();
        ok(to, hex.as_bytes())
    }),
    ("in_a_header", |secret, to| answer(to, "200 OK", &format!("etag: {secret}\r\n"), b"")),
    ("in_a_header_that_nobody_is_told", |secret, to| {
        answer(to, "200 OK", &format!("x-debug: {secret}\r\nset-cookie: t={secret}\r\n"), b"")
    }),
    ("in_a_challenge", |secret, to| {
        answer(to, "401 Unauthorized", &format!("www-authenticate: Bearer error=\"{secret}\"\r\n"), b"")
    }),
    ("compressed", |secret, to| {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
        encoder.write_all(secret.as_bytes()).unwrap();
        answer(to, "200 OK", "content-encoding: gzip\r\n", &encoder.finish().unwrap())
    }),
    ("in_a_reason", |secret, to| answer(to, &format!("400 {}", secret.replace('"', "")), "", b"")),
    ("in_what_is_not_http", |secret, to| {
        let _gone = to.write_all(format!("{secret}\r\n\r\n").as_bytes());
        Go::Close
    }),
];

pub(crate) fn cases() -> Vec<Case> {
    let mut cases: Vec<Case> = ECHOES.iter().map(|(name, echo)| echoed(name, *echo)).collect();
    cases.push(case(
        "secret_in_the_name_of_a_header",
        |_| plain::has(&plain::get("api.test", &Server::new(None, named)), LOWER),
        |world| {
            let server = Server::new(world.tls(&["api.test"]), named);
            let order = world.order(world.origin("api.test", &server), Exchange::get("crm", "/"));
            let carried = world.carry(Order { secrets: vec![Secret::from(LOWER.to_owned())], ..order });
            let all = format!("{carried:?}");
            assert!(all.contains("x-ratelimit-limit"), "{all}");
            all.contains(LOWER)
        },
    ));
    // What stands for a secret is longer than a short one: the answer grows beyond what the daemon reads, which ends the broker.
    cases.push(case(
        "short_secret_until_the_answer_bursts",
        |_| {
            let body = plain::get("api.test", &Server::new(None, many));
            String::from_utf8(body).unwrap().replace("abcd", "[redacted:secret]").len() > 2 << 20
        },
        |world| {
            let server = Server::new(world.tls(&["api.test"]), many);
            let order = world.order(world.origin("api.test", &server), Exchange::get("crm", "/"));
            let bytes_max = EXCHANGE_ANSWER_BYTES_MAX;
            let order = Order { secrets: vec![Secret::from("abcd".to_owned())], bytes_max, ..order };
            let failure = crate::world::told(world.carry(order)).unwrap_err();
            failure.fault != ExchangeFault::TooLarge
        },
    ));
    cases
}

const LOWER: &str = "sk-lower-0123456789";

fn named(_: &[u8], to: &mut dyn Peer) -> Go {
    answer(to, "200 OK", &format!("x-ratelimit-{LOWER}: 1\r\nx-ratelimit-limit: 1\r\n"), b"")
}

fn many(_: &[u8], to: &mut dyn Peer) -> Go {
    ok(to, &b"abcd".repeat(EXCHANGE_ANSWER_BYTES_MAX / 4))
}

fn server(tls: Option<std::sync::Arc<tokio_rustls::rustls::ServerConfig>>, echo: Echo) -> Server {
    Server::new(tls, move |request, to| {
        let request = String::from_utf8_lossy(request).into_owned();
        let secret = request.lines().find_map(|line| line.strip_prefix("authorization: Bearer "));
        echo(secret.unwrap(), to)
    })
}

/// A part of the secret that no other text has: enough to know it by, in any of the spellings.
fn parts() -> Vec<String> {
    let middle = &SECRET[5..11];
    let hex: String = middle.bytes().map(|byte| format!("{byte:02x}")).collect();
    let base64 =
        |shift: usize| STANDARD.encode([&vec![b':'; shift], SECRET.as_bytes()].concat())[8..20].to_owned();
    let mut parts = vec![middle.to_owned(), hex, base64(0), base64(1), base64(2)];
    parts.push(base64(0).replace('+', "-").replace('/', "_"));
    parts
}

fn leaks(bytes: &[u8]) -> bool {
    parts().iter().any(|part| plain::has(bytes, part))
}

fn echoed(name: &str, echo: Echo) -> Case {
    let plainly = move |_: &_| {
        let answer = plain::get("api.test", &server(None, echo));
        let plain_body = plain::body(&answer);
        let mut unzipped = Vec::new();
        let _not_gzip = std::io::copy(&mut flate2::read::GzDecoder::new(plain_body), &mut unzipped);
        leaks(&answer) || leaks(&unzipped)
    };
    case(format!("secret_{name}"), plainly, move |world| {
        let server = server(world.tls(&["api.test"]), echo);
        let carried = world.carry(world.order(world.origin("api.test", &server), Exchange::get("crm", "/")));
        assert!(server.requests()[0].contains(SECRET), "the server has it");
        let body = match &carried.reply {
            effectd_contracts::ExchangeReply::Answered(answer) => answer.body.clone(),
            effectd_contracts::ExchangeReply::Failed(_) => Vec::new(),
        };
        let all = format!("{carried:?}");
        leaks(&body) || leaks(all.as_bytes())
    })
}
