//! What must work, and what must be known, when the broker lives, waits and dies.

use std::net::IpAddr;
use std::os::unix::fs::FileExt;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use effectd_contracts::{AddressClass, Exchange, ExchangeFault, Method};
use effectd_egress::limits::{EXCHANGES_IN_FLIGHT_MAX, SMALL_ANSWER_BYTES_MAX};
use effectd_egress::{Order, Origin, Trust};
use nix::fcntl::{FcntlArg, FdFlag, fcntl};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use parking_lot::Mutex;

use crate::server::{Go, Server, answer, ok};
use crate::world::{SECRET, SOON, World, has_network, told};

type Promise = (&'static str, fn(&World));

pub(crate) fn promises() -> Vec<Promise> {
    vec![
        ("an_exchange_over_tls_works_and_is_counted", |world| {
            let (server, origin) =
                world.serve(|_, to| answer(to, "201 Created", "etag: \"7\"\r\nserver: x\r\n", b"made"));
            let mut exchange = Exchange::new("crm", Method::Post, "/v1/items");
            exchange.body = b"{\"name\":1}".to_vec();
            exchange.headers = vec![("content-type".to_owned(), "application/json".to_owned())];
            let carried = world.carry(world.order(origin, exchange));
            let record = carried.record.clone();
            let answer = told(carried).unwrap();
            assert_eq!((answer.status, answer.body.as_slice()), (201, b"made".as_slice()));
            assert_eq!(answer.headers, [("etag".to_owned(), "\"7\"".to_owned())]);
            let request = &server.requests()[0];
            let host = format!("host: {}:{}\r\n", world.host(), server.port);
            assert!(
                request.starts_with("POST /v1/items HTTP/1.1\r\n") && request.contains(&host),
                "{request}"
            );
            assert_eq!(request.matches("authorization: Bearer ").count(), 1, "{request}");
            assert!(request.ends_with("\r\n\r\n{\"name\":1}"), "{request}");
            assert_eq!(record.bytes_out, request.len() as u64);
            assert_eq!((record.status, record.fault), (Some(201), None));
            assert_eq!(record.allowed_range, !has_network());
            let address: IpAddr = record.address.unwrap().parse().unwrap();
            assert!(address.is_loopback() || has_network() && address.to_string() == "8.8.8.8", "{address}");
            assert!(record.bytes_in > 20 && record.ms.micros() > 0);
        }),
        ("a_pinned_key_is_enough", |world| {
            let certified = world.authority.server(&["other.test"], |_| ());
            let server = Server::saying(Some(certified.config.clone()), "reached");
            let origin = Origin { trust: Trust::Key(certified.pin), ..world.home(&server) };
            assert_eq!(world.ask(origin, Exchange::get("crm", "/")).unwrap().body, b"reached");
        }),
        ("an_allowed_range_is_reached_and_said", |world| {
            let server = Server::saying(None, "reached");
            let carried = world.carry(world.order(world.inner(&server), Exchange::get("crm", "/")));
            assert!(carried.record.allowed_range);
            assert_eq!(told(carried).unwrap().body, b"reached");
        }),
        ("connections_are_kept_for_their_connection_alone", |world| {
            let server = Server::saying(world.tls(&[world.host()]), "reached");
            let origin = world.home(&server);
            for _ in 0..5 {
                world.ask(origin.clone(), Exchange::get("crm", "/")).unwrap();
            }
            assert_eq!(server.connections(), 1);
            let other = Origin { connection: "crm:2".to_owned(), ..origin };
            world.ask(other, Exchange::get("crm", "/")).unwrap();
            assert_eq!(server.connections(), 2);
        }),
        ("whoever_was_dialled_is_seen", |world| {
            let server = Server::saying(world.tls(&[world.host(), "other.test"]), "reached");
            let ask = |origin| world.carry(world.order(origin, Exchange::get("crm", "/"))).seen;
            let seen = ask(world.home(&server)).unwrap();
            let class = if has_network() { AddressClass::Public } else { AddressClass::Loopback };
            assert_eq!(seen.class, class);
            let certificate = seen.certificate.unwrap();
            assert_eq!(certificate.names, [world.host(), "other.test"]);
            assert!(certificate.not_before < certificate.not_after);
            assert_eq!(ask(world.home(&server)), None, "the connection was kept");
            assert_eq!(ask(world.inner(&Server::saying(None, "reached"))).unwrap().certificate, None);
            let requests = server.requests().len();
            let order = world.order(world.home(&server), Exchange::get("crm", "/"));
            let dialled = world.carry(Order { only_dial: true, ..order });
            assert_eq!((dialled.record.status, dialled.seen.is_some()), (None, true));
            assert!(dialled.record.address.is_some() && dialled.record.bytes_out == 0);
            assert_eq!(told(dialled).unwrap().status, 0);
            assert_eq!(server.requests().len(), requests);
            // What was refused is seen, too.
            let expired = |params: &mut rcgen::CertificateParams| {
                params.not_before = rcgen::date_time_ymd(2019, 1, 1);
                params.not_after = rcgen::date_time_ymd(2020, 1, 1);
            };
            let server =
                Server::saying(Some(world.authority.server(&["wrong.test"], expired).config), "reached");
            let carried = world.carry(world.order(world.home(&server), Exchange::get("crm", "/")));
            let certificate = carried.seen.clone().unwrap().certificate.unwrap();
            assert_eq!(told(carried).unwrap_err().fault, ExchangeFault::Untrusted);
            assert_eq!(certificate.names, ["wrong.test"]);
            assert_eq!(certificate.not_after.to_string(), "2020-01-01T00:00:00Z");
        }),
        ("no_secret_stays_in_the_memory_of_the_broker", |world| {
            let server = Server::saying(world.tls(&[world.host()]), "reached");
            for method in [Method::Get, Method::Post, Method::Post] {
                world.ask(world.home(&server), Exchange::new("crm", method, "/kept-apart")).unwrap();
            }
            assert!(server.requests().iter().all(|request| request.contains(SECRET)));
            let pid = world.runtime.block_on(world.broker.pid()).unwrap();
            // The broker's memory can be read by root alone.
            if has_network() {
                let hex: String = SECRET.bytes().map(|byte| format!("{byte:02x}")).collect();
                assert!(is_in_memory(pid, b"/kept-apart"), "the search finds what is there");
                assert!(!is_in_memory(pid, &SECRET.as_bytes()[4..]));
                assert!(!is_in_memory(pid, &hex.as_bytes()[8..]));
            } else {
                assert!(std::fs::File::open(format!("/proc/{pid}/mem")).is_err());
            }
        }),
        ("no_file_of_the_daemon_is_open_in_the_broker", |world| {
            let place = tempfile::tempdir().unwrap();
            let file = std::fs::File::create(place.path().join("journal")).unwrap();
            // As a program may that embeds effectd: children get it.
            fcntl(&file, FcntlArg::F_SETFD(FdFlag::empty())).unwrap();
            let server = Server::saying(world.tls(&[world.host()]), "reached");
            world.ask(world.home(&server), Exchange::get("crm", "/")).unwrap();
            let pid = world.runtime.block_on(world.broker.pid()).unwrap();
            let open = std::fs::read_dir(format!("/proc/{pid}/fd"));
            assert_eq!(open.is_ok(), has_network(), "root alone may look");
            for entry in open.into_iter().flatten() {
                // One may be closed meanwhile.
                let target = std::fs::read_link(entry.unwrap().path()).unwrap_or_default();
                let shown = target.to_string_lossy();
                let is_known =
                    ["socket:", "pipe:", "anon_inode:", "/dev/null"].iter().any(|it| shown.starts_with(it));
                assert!(is_known || shown.is_empty(), "{shown}");
            }
        }),
        ("a_large_answer_is_fetched_whole", |world| {
            let body: Vec<u8> = (0..900_000u32).map(|at| (at % 251) as u8).collect();
            assert!(body.len() > SMALL_ANSWER_BYTES_MAX);
            let said = body.clone();
            let server = Server::new(world.tls(&[world.host()]), move |_, to| ok(to, &said));
            for _ in 0..20 {
                let answer = world.ask(world.home(&server), Exchange::get("crm", "/")).unwrap();
                assert!(answer.body == body);
            }
        }),
        ("a_write_without_an_answer_is_sent_once_and_unclear", |world| {
            let server = Server::new(world.tls(&[world.host()]), |_, _| Go::Close);
            let failure = world.ask(world.home(&server), Exchange::new("crm", Method::Post, "/"));
            let failure = failure.unwrap_err();
            assert_eq!((failure.fault, failure.sent), (ExchangeFault::Broken, true));
            assert_eq!(server.requests().len(), 1);
        }),
        ("a_connection_that_the_server_closed_is_not_used_again", |world| {
            let server = Server::new(world.tls(&[world.host()]), |_, to| {
                ok(to, b"once");
                Go::Close
            });
            for _ in 0..3 {
                // The close may be on its way when the next request leaves: then that read fails, and is known to have been sent.
                let answer = world.ask(world.home(&server), Exchange::get("crm", "/"));
                assert!(answer.is_ok_and(|answer| answer.body == b"once") || server.connections() > 1);
            }
        }),
        ("who_gives_up_at_the_start_does_not_use_up_the_starts", |world| {
            let server = Server::saying(world.tls(&[world.host()]), "reached");
            let order = || world.order(world.home(&server), Exchange::get("crm", "/"));
            for _ in 0..20 {
                world.runtime.block_on(async {
                    let _gave_up =
                        tokio::time::timeout(Duration::ZERO, world.broker.carry(order(), None)).await;
                });
            }
            assert_eq!(told(world.carry(order())).unwrap().body, b"reached");
        }),
        ("killed_before_an_exchange_another_broker_serves", |world| {
            let server = Server::saying(world.tls(&[world.host()]), "reached");
            let origin = world.home(&server);
            world.ask(origin.clone(), Exchange::get("crm", "/")).unwrap();
            let pid = kill_broker(world);
            let answered = world.ask(origin, Exchange::get("crm", "/"));
            assert_eq!(answered.unwrap().body, b"reached");
            assert_ne!(world.runtime.block_on(world.broker.pid()).unwrap(), pid);
        }),
        ("killed_while_sending_the_outcome_is_unknown", |world| {
            let (say, said) = mpsc::channel();
            let say = Mutex::new(say);
            let server = Server::new(world.tls(&[world.host()]), move |_, _| {
                say.lock().send(()).unwrap();
                // Until the broker is gone.
                std::thread::park_timeout(Duration::from_secs(20));
                Go::Close
            });
            let order = world.order(world.home(&server), Exchange::new("crm", Method::Post, "/"));
            let failure = std::thread::scope(|scope| {
                let asking = scope.spawn(|| world.carry(order));
                said.recv_timeout(Duration::from_secs(20)).unwrap();
                kill_broker(world);
                told(asking.join().unwrap()).unwrap_err()
            });
            assert_eq!((failure.fault, failure.sent), (ExchangeFault::Gone, true));
            assert_eq!(server.requests().len(), 1);
        }),
        ("killed_after_an_answer_the_answer_stays", |world| {
            let server = Server::saying(world.tls(&[world.host()]), "reached");
            let answer = world.ask(world.home(&server), Exchange::new("crm", Method::Post, "/"));
            kill_broker(world);
            assert_eq!(answer.unwrap().body, b"reached");
            assert_eq!(server.requests().len(), 1);
        }),
        ("a_broker_that_keeps_ending_is_left_alone", |world| {
            let server = Server::saying(world.tls(&[world.host()]), "reached");
            let mut refused = None;
            for _ in 0..10 {
                match world.ask(world.home(&server), Exchange::get("crm", "/")) {
                    Ok(_) => _ = kill_broker(world),
                    Err(failure) => {
                        refused = Some(failure);
                        break;
                    }
                }
            }
            let refused = refused.unwrap();
            assert_eq!((refused.fault, refused.sent), (ExchangeFault::Gone, false));
        }),
        ("places_are_bounded_and_given_back", |world| {
            let (open, gate) = mpsc::channel::<()>();
            let gate = Mutex::new(gate);
            let server = Server::new(world.tls(&[world.host()]), move |_, to| {
                let _opened = gate.lock().recv();
                ok(to, b"late")
            });
            let order = |time_ms| {
                let order = world.order(world.home(&server), Exchange::get("crm", "/"));
                Order { time_ms, ..order }
            };
            world.runtime.block_on(async {
                let mut all = Vec::new();
                for _ in 0..EXCHANGES_IN_FLIGHT_MAX {
                    all.push(Box::pin(world.broker.carry(order(30_000), None)));
                }
                let begun = Instant::now();
                let one_more = async {
                    // All the others have their places when each was polled once.
                    tokio::task::yield_now().await;
                    let refused = world.broker.carry(order(SOON.as_millis() as u64), None).await;
                    assert_eq!(told(refused).unwrap_err().fault, ExchangeFault::Busy);
                    assert!(begun.elapsed() >= SOON);
                    drop(open);
                };
                let everybody = async {
                    let mut answered = 0;
                    for one in join(all).await {
                        assert_eq!(told(one).unwrap().body, b"late");
                        answered += 1;
                    }
                    answered
                };
                let ((), answered) = tokio::join!(one_more, everybody);
                assert_eq!(answered, EXCHANGES_IN_FLIGHT_MAX);
            });
            assert!(world.ask(world.home(&server), Exchange::get("crm", "/")).is_ok());
        }),
        ("who_gives_up_leaves_nothing_behind", |world| {
            let body = vec![7; 4 * SMALL_ANSWER_BYTES_MAX];
            let server = Server::new(world.tls(&[world.host()]), move |_, to| ok(to, &body));
            for turn in 0..4 * EXCHANGES_IN_FLIGHT_MAX as u32 {
                let order = world.order(world.home(&server), Exchange::get("crm", "/"));
                world.runtime.block_on(async {
                    let carrying = world.broker.carry(order, None);
                    let _gave_up = tokio::time::timeout(SOON / 1_000 * (turn % 16), carrying).await;
                });
            }
            let answer = world.ask(world.home(&server), Exchange::get("crm", "/"));
            assert_eq!(answer.unwrap().body.len(), 4 * SMALL_ANSWER_BYTES_MAX);
        }),
        ("an_idle_broker_is_small", |world| {
            let server = Server::saying(world.tls(&[world.host()]), "reached");
            world.ask(world.home(&server), Exchange::get("crm", "/")).unwrap();
            let pid = world.runtime.block_on(world.broker.pid()).unwrap();
            let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
            let line = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).unwrap().trim();
            let resident: u64 = line("VmRSS:").trim_end_matches(" kB").parse().unwrap();
            // A build for tests is larger than what ships, of which a benchmark measures 12 MiB.
            assert!(resident < 40 * 1_024, "{resident} KiB");
            assert_eq!(line("Uid:").starts_with("65532"), has_network(), "{status}");
            assert_eq!(line("NoNewPrivs:"), "1");
            assert_eq!(line("Seccomp:"), "2");
            assert_eq!(u64::from_str_radix(line("CapEff:"), 16), Ok(0));
        }),
    ]
}

fn is_in_memory(pid: u32, text: &[u8]) -> bool {
    let memory = std::fs::File::open(format!("/proc/{pid}/mem")).unwrap();
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).unwrap();
    let writable = maps.lines().filter(|line| line.contains(" rw"));
    let mut ranges = writable.map(|line| {
        let (from, to) = line.split(' ').next().unwrap().split_once('-').unwrap();
        let number = |text| u64::from_str_radix(text, 16).unwrap();
        (number(from), number(to))
    });
    ranges.any(|(from, to)| {
        let mut bytes = vec![0; usize::try_from(to - from).unwrap()];
        // Some ranges, such as those of the kernel, cannot be read.
        memory.read_exact_at(&mut bytes, from).is_ok()
            && bytes.windows(text.len()).any(|window| window == text)
    })
}

fn kill_broker(world: &World) -> u32 {
    let pid = world.runtime.block_on(world.broker.pid()).unwrap();
    let process = Pid::from_raw(i32::try_from(pid).unwrap());
    kill(process, Signal::SIGKILL).unwrap();
    // Its socket takes bytes until its last thread has ended, and nobody can know what became of them.
    let threads = || std::fs::read_dir(format!("/proc/{pid}/task")).map_or(0, Iterator::count);
    while threads() > 1
        || std::fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| !stat.contains(") Z"))
    {
        std::thread::yield_now();
    }
    pid
}

/// Waits for all of them at the same time.
async fn join<F: Future + Unpin>(mut all: Vec<F>) -> Vec<F::Output> {
    let mut done: Vec<Option<F::Output>> = all.iter().map(|_| None).collect();
    std::future::poll_fn(|cx| {
        for (one, output) in all.iter_mut().zip(&mut done) {
            if output.is_none()
                && let std::task::Poll::Ready(ready) = std::pin::Pin::new(one).poll(cx)
            {
                *output = Some(ready);
            }
        }
        if done.iter().all(Option::is_some) { std::task::Poll::Ready(()) } else { std::task::Poll::Pending }
    })
    .await;
    done.into_iter().flatten().collect()
}
