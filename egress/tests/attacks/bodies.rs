//! Answers without end, without a beginning, or with two ends.

use std::io::{Read, Write};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use effectd_contracts::{Exchange, ExchangeFault, Method};
use effectd_egress::Order;
use flate2::Compression;
use flate2::write::GzEncoder;
use parking_lot::Mutex;

use crate::server::{Go, Peer, Server, ok};
use crate::world::{SOON, World};
use crate::{Case, case, plain};

type Script = fn(&mut dyn Peer) -> Go;

fn say(to: &mut dyn Peer, text: &str) -> bool {
    to.write_all(text.as_bytes()).and_then(|()| to.flush()).is_ok()
}

/// Says it again until the other side has enough, or this many times.
fn again(to: &mut dyn Peer, text: &str, times: usize) -> Go {
    for _ in 0..times {
        if !say(to, text) {
            break;
        }
    }
    Go::Close
}

/// The same, slowly.
fn drip(to: &mut dyn Peer, text: &str) -> Go {
    let end = Instant::now() + Duration::from_secs(20);
    while Instant::now() < end && say(to, text) {
        // The pace of the attack, not a wait for something.
        std::thread::sleep(Duration::from_millis(50));
    }
    Go::Close
}

/// What a plain client takes that reads until it is full, in bytes.
const FILLED: usize = 8 << 20;
const OK: &str = "HTTP/1.1 200 OK\r\n";

pub(crate) fn cases() -> Vec<Case> {
    vec![
        case(
            "gzip_bomb",
            |_| {
                let server = Server::new(None, |_, to| zipped(to, 64 << 20));
                let answer = plain::get("api.test", &server);
                plain::unzipped(plain::body(&answer), 64 << 20) >= 64 << 20
            },
            |world| ends_otherwise(world, |to| zipped(to, 64 << 20), ExchangeFault::TooLarge),
        ),
        endless(
            "endless_body",
            |to| {
                say(to, &format!("{OK}connection: close\r\n\r\n"));
                again(to, &"x".repeat(65_536), 1_000)
            },
            ExchangeFault::TooLarge,
        ),
        endless(
            "endless_chunks",
            |to| {
                say(to, &format!("{OK}transfer-encoding: chunked\r\n\r\n"));
                again(to, &format!("10000\r\n{}\r\n", "x".repeat(65_536)), 1_000)
            },
            ExchangeFault::TooLarge,
        ),
        endless(
            "endless_small_chunks",
            |to| {
                say(to, &format!("{OK}transfer-encoding: chunked\r\n\r\n"));
                again(to, &"1\r\nx\r\n".repeat(10_000), 1_000)
            },
            ExchangeFault::TooLarge,
        ),
        endless(
            "endless_headers",
            |to| {
                say(to, OK);
                again(to, &format!("x-a: {}\r\n", "x".repeat(60_000)), 1_000)
            },
            ExchangeFault::Broken,
        ),
        endless(
            "endless_informational_answers",
            |to| again(to, &"HTTP/1.1 103 Early Hints\r\n\r\n".repeat(1_000), 2_000),
            ExchangeFault::TooLarge,
        ),
        endless(
            "endless_trailers",
            |to| {
                say(to, &format!("{OK}transfer-encoding: chunked\r\n\r\n0\r\n"));
                again(to, &format!("x-a: {}\r\n", "x".repeat(60_000)), 1_000)
            },
            ExchangeFault::Broken,
        ),
        endless(
            "endless_extension_of_a_chunk",
            |to| {
                say(to, &format!("{OK}transfer-encoding: chunked\r\n\r\n4;"));
                again(to, &"x".repeat(65_536), 1_000)
            },
            ExchangeFault::Broken,
        ),
        endless(
            "endless_lines_before_an_answer",
            |to| again(to, &"\r\n".repeat(30_000), 1_000),
            ExchangeFault::Broken,
        ),
        endless("endless_status_line", |to| again(to, &"H".repeat(65_536), 1_000), ExchangeFault::Broken),
        slow("slow_body", |to| {
            say(to, &format!("{OK}content-length: 100000\r\n\r\n"));
            drip(to, "x")
        }),
        slow("slow_head", |to| drip(to, "H")),
        slow("slow_informational_answers", |to| drip(to, "HTTP/1.1 103 Early Hints\r\n\r\n")),
        slow("slow_chunks", |to| {
            say(to, &format!("{OK}transfer-encoding: chunked\r\n\r\n"));
            drip(to, "1\r\nx\r\n")
        }),
        slow("slow_trailers", |to| {
            say(to, &format!("{OK}transfer-encoding: chunked\r\n\r\n0\r\n"));
            drip(to, "x: y\r\n")
        }),
        slow("no_answer", |to| drip(to, "")),
        whole("half_closed", |to| {
            say(to, &format!("{OK}content-length: 100\r\n\r\nhalf"));
            Go::Close
        }),
        whole("cut_off_chunks", |to| {
            say(to, &format!("{OK}transfer-encoding: chunked\r\n\r\n4\r\nhalf\r\n"));
            Go::Close
        }),
        // Without `close_notify`, anybody on the way can end it.
        whole("cut_off_tls", |to| {
            say(to, &format!("{OK}connection: close\r\n\r\nhalf"));
            Go::Close
        }),
        whole("two_lengths", |to| {
            say(to, &format!("{OK}content-length: 4\r\ncontent-length: 9\r\n\r\nhalf-half"));
            Go::Close
        }),
        whole("length_and_chunks", |to| {
            say(
                to,
                &format!("{OK}content-length: 4\r\ntransfer-encoding: chunked\r\n\r\n4\r\nhalf\r\n0\r\n\r\n"),
            );
            Go::Close
        }),
        framed("two_lengths_that_agree", "content-length: 4\r\ncontent-length: 4", "half"),
        framed("list_of_lengths", "content-length: 4, 4", "half"),
        framed("length_with_a_sign", "content-length: +4", "half"),
        framed("length_in_hexadecimal", "content-length: 0x4", "half"),
        framed("length_beyond_numbers", "content-length: 18446744073709551620", "half"),
        framed("space_before_a_colon", "content-length : 4", "half"),
        framed("folded_header", "x-a: b\r\n content-length: 9\r\ncontent-length: 4", "half"),
        framed("nul_in_a_header", "x-a: b\0\r\ncontent-length: 4", "half"),
        framed("carriage_return_in_a_header", "x-a: b\rcontent-length: 9\r\ncontent-length: 4", "half"),
        framed("coding_of_the_transfer", "transfer-encoding: gzip", "half"),
        framed("two_codings_of_the_transfer", "transfer-encoding: gzip, chunked", "4\r\nhalf\r\n0\r\n\r\n"),
        framed(
            "coding_of_the_transfer_twice",
            "transfer-encoding: chunked\r\ntransfer-encoding: chunked",
            "4\r\nhalf\r\n0\r\n\r\n",
        ),
        framed("chunk_with_a_sign", "transfer-encoding: chunked", "+4\r\nhalf\r\n0\r\n\r\n"),
        framed(
            "chunk_beyond_numbers",
            "transfer-encoding: chunked",
            "10000000000000004\r\nhalf\r\n0\r\n\r\n",
        ),
        framed("chunk_that_is_longer", "transfer-encoding: chunked", "4\r\nhalf-half\r\n0\r\n\r\n"),
        whole("length_that_is_negative", |to| {
            say(to, &format!("{OK}content-length: -1\r\n\r\nhalf"));
            Go::Close
        }),
        whole("not_http", |to| {
            say(to, "SSH-2.0-half\r\n\r\n");
            Go::Close
        }),
        whole("http_0_9", |to| {
            say(to, "<html>half</html>");
            Go::Close
        }),
        whole("coding_that_nobody_asked_for", |to| {
            say(to, &format!("{OK}content-encoding: br\r\ncontent-length: 4\r\n\r\nhalf"));
            Go::On
        }),
        whole("other_protocol", |to| {
            say(to, "HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: x\r\n\r\nhalf");
            Go::Close
        }),
        zipped_oddly("second_stream_behind_gzip", || [gzip(b"half"), gzip(b"more")].concat()),
        zipped_oddly("bytes_behind_gzip", || [gzip(b"half"), b"more".to_vec()].concat()),
        zipped_oddly("cut_off_gzip", || {
            let whole = gzip(&b"half".repeat(10));
            whole[..whole.len() - 3].to_vec()
        }),
        zipped_oddly("gzip_with_a_wrong_sum", || {
            let mut whole = gzip(b"half");
            let at = whole.len() - 6;
            whole[at] ^= 1;
            whole
        }),
        poisoned("answer_to_a_request_that_nobody_made", Method::Get, "200 OK\r\ncontent-length: 1", "1"),
        poisoned("body_of_an_answer_to_head", Method::Head, "200 OK\r\ncontent-length: 47", ""),
        poisoned("body_of_an_answer_without_content", Method::Get, "204 No Content\r\nx-a: b", ""),
        poisoned("body_of_an_answer_that_says_unchanged", Method::Get, "304 Not Modified\r\nx-a: b", ""),
        case("answer_before_its_request", |_| early_plainly(), early),
        case("answer_without_reading_the_request", |_| unread_plainly(), unread),
    ]
}

/// Headers by which some programs find another end of the body.
fn framed(name: &str, headers: &'static str, body: &'static str) -> Case {
    whole(name, move |to: &mut dyn Peer| {
        say(to, &format!("{OK}{headers}\r\n\r\n{body}"));
        Go::Close
    })
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

/// What a program takes for a body that does not look at the end.
fn zipped_oddly(name: &str, body: fn() -> Vec<u8>) -> Case {
    let script =
        move |to: &mut dyn Peer| crate::server::answer(to, "200 OK", "content-encoding: gzip\r\n", &body());
    let plainly = move |_: &_| {
        let answer = plain::get("api.test", &Server::new(None, move |_, to| script(to)));
        let mut read = Vec::new();
        let _end = std::io::copy(&mut flate2::read::GzDecoder::new(plain::body(&answer)), &mut read);
        plain::has(&read, "half")
    };
    case(name, plainly, move |world| ends_otherwise(world, script, ExchangeFault::Broken))
}

fn zipped(to: &mut dyn Peer, bytes: usize) -> Go {
    crate::server::answer(to, "200 OK", "content-encoding: gzip\r\n", &gzip(&vec![0; bytes]))
}

fn ends_otherwise(
    world: &World,
    script: impl Fn(&mut dyn Peer) -> Go + Send + Sync + 'static,
    fault: ExchangeFault,
) -> bool {
    let server = Server::new(world.tls(&["api.test"]), move |_, to| script(to));
    let order = world.order(world.origin("api.test", &server), Exchange::get("crm", "/"));
    // Few bytes in much time: that the time is over would be another end.
    let order = Order { bytes_max: 1 << 18, time_ms: 30_000, ..order };
    let failure = crate::world::told(world.carry(order)).unwrap_err();
    assert!(failure.sent, "{failure}");
    if failure.fault != fault {
        eprintln!("{failure:?}");
    }
    failure.fault != fault
}

fn endless(name: &str, script: Script, fault: ExchangeFault) -> Case {
    let plainly = move |_: &_| {
        let server = Server::new(None, move |_, to| script(to));
        plain::get("api.test", &server).len() > FILLED
    };
    case(name, plainly, move |world| ends_otherwise(world, script, fault))
}

/// The attack: whoever asks waits for longer than its exchange may take.
fn slow(name: &str, script: Script) -> Case {
    let plainly = move |_: &_| {
        let server = Arc::new(Server::new(None, move |_, to| script(to)));
        let begun = Instant::now();
        let mut stream = plain::connect("api.test", server.port).unwrap();
        stream.set_read_timeout(Some(2 * SOON)).unwrap();
        stream.write_all(&plain::request("GET", "/", "", "")).unwrap();
        let mut piece = [0; 100];
        while begun.elapsed() < 2 * SOON && stream.read(&mut piece).is_ok_and(|count| count > 0) {}
        begun.elapsed() >= 2 * SOON
    };
    case(name, plainly, move |world| {
        // The first answer is a good one: broker and connection stand then, and the time is that of the second request alone.
        let asked = AtomicUsize::new(0);
        let server = Server::new(world.tls(&["api.test"]), move |_, to| {
            if asked.fetch_add(1, Ordering::SeqCst) == 0 { ok(to, b"") } else { script(to) }
        });
        let origin = world.origin("api.test", &server);
        world.ask(origin.clone(), Exchange::get("crm", "/")).unwrap();
        let begun = Instant::now();
        let failure = world.ask_soon(origin).unwrap_err();
        assert_eq!((failure.fault, failure.sent), (ExchangeFault::TimedOut, true), "{failure}");
        begun.elapsed() > 8 * SOON
    })
}

/// The attack: what is not a whole answer is taken for one.
fn whole(name: &str, script: impl Fn(&mut dyn Peer) -> Go + Send + Sync + Copy + 'static) -> Case {
    let plainly = move |_: &_| {
        let server = Server::new(None, move |_, to| script(to));
        plain::has(&plain::get("api.test", &server), "half")
    };
    case(name, plainly, move |world| {
        let server = Server::new(world.tls(&["api.test"]), move |_, to| script(to));
        let answer = world.ask(world.origin("api.test", &server), Exchange::get("crm", "/"));
        let failure = match answer {
            Ok(_) => return true,
            Err(failure) => failure,
        };
        assert_eq!((failure.fault, failure.sent), (ExchangeFault::Broken, true), "{failure}");
        false
    })
}

const POISON: &str = "HTTP/1.1 200 OK\r\ncontent-length: 8\r\n\r\npoisoned";

/// Whether a later request of five gets the poison for an answer.
fn is_poisoned(world: &World, server: &Server, method: Method) -> bool {
    (0..5).any(|_| {
        let answer = world.ask(world.origin("api.test", server), Exchange::new("crm", method, "/"));
        answer.is_ok_and(|answer| answer.body == b"poisoned")
    })
}

/// The attack: what comes behind an answer is the answer to the next request.
fn poisoned(name: &str, method: Method, head: &'static str, body: &'static str) -> Case {
    let text = move || format!("HTTP/1.1 {head}\r\n\r\n{body}{POISON}");
    // A client that keeps its buffer between two requests.
    let plainly = move |_: &_| {
        let server = Server::new(None, move |_, to| {
            say(to, &text());
            Go::Close
        });
        let answer = plain::say("api.test", &server, &plain::request(method.as_str(), "/", "", "")).unwrap();
        plain::body(&answer)[body.len()..].ends_with(b"poisoned")
    };
    case(name, plainly, move |world| {
        let server = Server::new(world.tls(&["api.test"]), move |_, to| {
            say(to, &text());
            Go::On
        });
        let first = world.ask(world.origin("api.test", &server), Exchange::new("crm", method, "/"));
        assert_eq!(first.unwrap().body, body.as_bytes());
        is_poisoned(world, &server, method)
    })
}

/// A client that reads what waits, and only then sends.
fn early_plainly() -> bool {
    let server = Server::new(None, |_, to| {
        ok(to, b"1");
        say(to, POISON);
        Go::On
    });
    let mut stream = plain::connect("api.test", server.port).unwrap();
    let mut two = vec![0; OK.len() + "content-length: 1\r\n\r\n1".len() + POISON.len()];
    stream.write_all(&plain::request("GET", "/", "", "")).unwrap();
    stream.read_exact(&mut two).unwrap();
    stream.write_all(&plain::request("GET", "/second", "", "")).unwrap();
    // The answer to the second request was there before it.
    two.ends_with(b"poisoned")
}

/// The poison comes when the connection is already kept for the next request.
fn early(world: &World) -> bool {
    let (told, poisons) = mpsc::channel();
    let (answered, go) = mpsc::channel();
    let (told, go) = (Mutex::new(told), Mutex::new(go));
    let server = Server::new(world.tls(&["api.test"]), move |_, to| {
        ok(to, b"1");
        let _gone = to.flush();
        if go.lock().recv_timeout(Duration::from_secs(20)).is_ok() {
            say(to, POISON);
            let _gone = told.lock().send(());
        }
        Go::On
    });
    let first = world.ask(world.origin("api.test", &server), Exchange::get("crm", "/")).unwrap();
    assert_eq!(first.body, b"1");
    answered.send(()).unwrap();
    poisons.recv_timeout(Duration::from_secs(20)).unwrap();
    drop(answered);
    is_poisoned(world, &server, Method::Get)
}

/// A client that keeps the connection: its next request does not leave.
fn unread_plainly() -> bool {
    let server = Server::unread(None);
    let mut stream = plain::connect("api.test", server.port).unwrap();
    stream.set_write_timeout(Some(SOON / 2)).unwrap();
    let _full = stream.write_all(&plain::request("POST", "/", "", &"x".repeat(1 << 20)));
    let mut answer = vec![0; OK.len()];
    stream.read_exact(&mut answer).unwrap();
    answer == OK.as_bytes() && stream.write_all(&plain::request("GET", "/second", "", "")).is_err()
}

fn unread(world: &World) -> bool {
    let server = Server::unread(world.tls(&["api.test"]));
    for _ in 0..20 {
        let exchange = Exchange { body: vec![7; 1 << 20], ..Exchange::new("crm", Method::Post, "/") };
        let answer = world.ask(world.origin("api.test", &server), exchange);
        if !answer.is_ok_and(|answer| answer.body == b"early") {
            return true;
        }
    }
    assert_eq!(server.connections(), 20);
    // What did not leave is not kept either.
    let pid = world.runtime.block_on(world.broker.pid()).unwrap();
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let data = status.lines().find_map(|line| line.strip_prefix("VmData:")).unwrap();
    let kib: u64 = data.trim().trim_end_matches(" kB").parse().unwrap();
    assert!(kib < 16 * 1_024, "{kib} KiB");
    false
}
