//! No socket of any kind reaches anything, and every attempt is counted.

use std::net::{TcpListener, UdpSocket};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram, UnixListener};

use serde_json::{Value, json};

use crate::ground::{Attack, DEFAULT, EXEC, Ground, HIGH, Promise, killed, replied};

pub(crate) const ATTACKS: &[(&str, Attack)] = &[
    ("tcp", |_, to| outcome(std::net::TcpStream::connect(to.as_str().unwrap()).map(drop))),
    ("udp", |_, to| {
        outcome(UdpSocket::bind("127.0.0.1:0").and_then(|s| s.send_to(b"x", to.as_str().unwrap())).map(drop))
    }),
    ("unix path", |_, to| outcome(std::os::unix::net::UnixStream::connect(to.as_str().unwrap()).map(drop))),
    ("unix abstract", abstract_stream),
    ("unix sendmsg", sendmsg),
    ("unix sendmsg, abstract", sendmsg_abstract),
    ("names", |_, name| {
        use std::net::ToSocketAddrs;
        json!(i32::from((name.as_str().unwrap(), 80).to_socket_addrs().is_err()))
    }),
    ("every family", every_family),
    ("every pair", every_pair),
    ("sendto from a pair", sendto_from_pair),
];

fn outcome(result: std::io::Result<()>) -> Value {
    json!(result.err().map_or(0, |error| error.raw_os_error().unwrap_or(-1)))
}

fn abstract_stream(_: &Ground<'_>, to: &Value) -> Value {
    let address = SocketAddr::from_abstract_name(to.as_str().unwrap());
    outcome(address.and_then(|a| std::os::unix::net::UnixStream::connect_addr(&a)).map(drop))
}

/// The classic gap: a datagram needs neither connect nor sendto.
fn sendmsg(_: &Ground<'_>, to: &Value) -> Value {
    use nix::sys::socket::{AddressFamily, MsgFlags, SockFlag, SockType, UnixAddr, sendmsg, socket};
    use std::os::fd::AsRawFd;
    let sent = socket(AddressFamily::Unix, SockType::Datagram, SockFlag::empty(), None).and_then(|socket| {
        let address = UnixAddr::new(to.as_str().unwrap())?;
        sendmsg(socket.as_raw_fd(), &[std::io::IoSlice::new(b"x")], &[], MsgFlags::empty(), Some(&address))
    });
    json!(sent.map_or_else(|errno| errno as i32, |_| 0))
}

/// From one end of a pair, which is allowed: the other end gets a message without an address, and nobody one with an address.
fn sendto_from_pair(_: &Ground<'_>, to: &Value) -> Value {
    use nix::sys::socket::{AddressFamily, MsgFlags, SockFlag, SockType, UnixAddr, send, sendto, socketpair};
    use std::os::fd::AsRawFd;
    let pair = socketpair(AddressFamily::Unix, SockType::Stream, None, SockFlag::SOCK_CLOEXEC);
    let (one, _other) = pair.unwrap();
    let plain = send(one.as_raw_fd(), b"x", MsgFlags::empty());
    let address = UnixAddr::new(to.as_str().unwrap()).unwrap();
    let sent = sendto(one.as_raw_fd(), b"x", &address, MsgFlags::empty());
    json!([plain, sent].map(|sent| sent.map_or_else(|errno| errno as i32, |_| 0)))
}

/// The same to a name that is no file: only the network namespace separates these.
fn sendmsg_abstract(_: &Ground<'_>, to: &Value) -> Value {
    use nix::sys::socket::{AddressFamily, MsgFlags, SockFlag, SockType, UnixAddr, sendmsg, socket};
    use std::os::fd::AsRawFd;
    let sent = socket(AddressFamily::Unix, SockType::Datagram, SockFlag::empty(), None).and_then(|socket| {
        let address = UnixAddr::new_abstract(to.as_str().unwrap().as_bytes())?;
        let bytes = [std::io::IoSlice::new(b"x")];
        sendmsg(socket.as_raw_fd(), &bytes, &[], MsgFlags::empty(), Some(&address))
    });
    json!(sent.map_or_else(|errno| errno as i32, |_| 0))
}

/// The families that could be opened at all, of all that the kernel could have.
fn every_family(_: &Ground<'_>, _: &Value) -> Value {
    let mut opened = Vec::new();
    for family in 0..64 {
        for kind in [libc::SOCK_STREAM, libc::SOCK_DGRAM, libc::SOCK_RAW, libc::SOCK_SEQPACKET] {
            // SAFETY: plain integers.
            if unsafe { libc::socket(family, kind, 0) } >= 0 {
                opened.push(family);
            }
        }
    }
    json!(opened)
}

/// The pairs of sockets that could be made, by family and kind.
fn every_pair(_: &Ground<'_>, _: &Value) -> Value {
    let mut made = Vec::new();
    for family in 0..64 {
        for kind in [libc::SOCK_STREAM, libc::SOCK_DGRAM, libc::SOCK_RAW, libc::SOCK_SEQPACKET] {
            for kind in [kind, kind | libc::SOCK_CLOEXEC] {
                let mut ends = [0; 2];
                // SAFETY: `ends` has room for two descriptors.
                if unsafe { libc::socketpair(family, kind, 0, ends.as_mut_ptr()) } == 0 {
                    made.push((family, kind));
                }
            }
        }
    }
    json!(made)
}

pub(crate) fn promises() -> Vec<Promise> {
    vec![
        Promise {
            name: "no_socket_reaches_a_live_listener_and_attempts_are_counted",
            keep: |scene| {
                let tcp = TcpListener::bind("127.0.0.1:0").unwrap();
                let udp = UdpSocket::bind("127.0.0.1:0").unwrap();
                let path = scene.outside.join("listener");
                let stream = UnixListener::bind(&path).unwrap();
                // In the workspace itself: reachable by name, and still not to be spoken to.
                let inside = scene.workspace.join("datagrams");
                let datagrams = UnixDatagram::bind(&inside).unwrap();
                let name = format!("effectd-escape-{}", std::process::id());
                let hidden =
                    UnixListener::bind_addr(&SocketAddr::from_abstract_name(&name).unwrap()).unwrap();
                let silent = format!("effectd-escape-datagrams-{}", std::process::id());
                let nameless =
                    UnixDatagram::bind_addr(&SocketAddr::from_abstract_name(&silent).unwrap()).unwrap();
                nameless.set_nonblocking(true).unwrap();
                tcp.set_nonblocking(true).unwrap();
                udp.set_nonblocking(true).unwrap();
                datagrams.set_nonblocking(true).unwrap();
                stream.set_nonblocking(true).unwrap();
                hidden.set_nonblocking(true).unwrap();
                let mut bytes = [0; 8];
                let attacks = [
                    (
                        "tcp",
                        json!(tcp.local_addr().unwrap().to_string()),
                        json!(tcp.local_addr().unwrap().to_string()),
                    ),
                    (
                        "udp",
                        json!(udp.local_addr().unwrap().to_string()),
                        json!(udp.local_addr().unwrap().to_string()),
                    ),
                    ("unix path", json!(path), json!(path)),
                    ("unix abstract", json!(name), json!(name)),
                    ("unix sendmsg", json!("/workspace/datagrams"), json!(inside)),
                    ("unix sendmsg, abstract", json!(silent), json!(silent)),
                ];
                for (attack, to, _) in &attacks {
                    for profile in [DEFAULT, HIGH] {
                        let answer = scene.attack(profile, attack, to.clone());
                        assert_eq!(killed(&answer).as_str(), "network_denied", "{attack}");
                        assert_eq!(
                            (answer.denials[0].what.as_str(), answer.denials[0].count),
                            ("socket", 1),
                            "{attack}"
                        );
                    }
                    for profile in scene.profiles().into_iter().skip(2) {
                        let answer = scene.attack(profile, attack, to.clone());
                        assert_eq!(replied(&answer), json!(libc::EPERM), "{attack}");
                        assert_eq!(
                            answer.denials[0].code.as_str(),
                            "network_denied",
                            "{attack}: {:?}",
                            answer.denials
                        );
                    }
                }
                assert!(tcp.accept().is_err() && stream.accept().is_err() && hidden.accept().is_err());
                assert!(udp.recv(&mut bytes).is_err() && datagrams.recv(&mut bytes).is_err());
                assert!(nameless.recv(&mut bytes).is_err());

                for (attack, _, to) in &attacks {
                    assert_eq!(scene.control(attack, to.clone()), json!(0), "the control of {attack}");
                }
                assert!(
                    tcp.accept().is_ok() && stream.accept().is_ok() && hidden.accept().is_ok(),
                    "the control"
                );
                assert!(udp.recv(&mut bytes).is_ok() && datagrams.recv(&mut bytes).is_ok(), "the control");
                assert!(nameless.recv(&mut bytes).is_ok(), "the control");
            },
        },
        Promise {
            name: "no_name_is_resolved",
            keep: |scene| {
                for profile in [DEFAULT, HIGH] {
                    let answer = scene.attack(profile, "names", json!("localhost"));
                    // Without a resolver's settings it may give up before it opens a socket.
                    match &answer.ending {
                        effectd_sandbox::Ending::Replied(_) => assert_eq!(replied(&answer), json!(1)),
                        effectd_sandbox::Ending::Killed { code, .. } => {
                            assert_eq!(code.as_str(), "network_denied", "{answer:?}");
                        }
                    }
                }
                assert_eq!(replied(&scene.attack(EXEC, "names", json!("localhost"))), json!(1));
                assert_eq!(scene.control("names", json!("localhost")), json!(0), "the control");
            },
        },
        Promise {
            name: "no_socket_of_any_family_can_be_made",
            keep: |scene| {
                for profile in [DEFAULT, HIGH] {
                    let answer = scene.attack(profile, "every family", json!(null));
                    assert_eq!(killed(&answer).as_str(), "network_denied");
                }
                for profile in scene.profiles().into_iter().skip(2) {
                    let answer = scene.attack(profile, "every family", json!(null));
                    assert_eq!(replied(&answer), json!([]));
                    assert_eq!((answer.denials.len(), answer.denials[0].count), (1, 256));
                }
                let opened = scene.control("every family", json!(null));
                assert!(opened.as_array().unwrap().contains(&json!(libc::AF_INET)), "the control: {opened}");
            },
        },
        Promise {
            name: "a_pair_of_sockets_can_send_to_nobody_else",
            keep: |scene| {
                for profile in [DEFAULT, HIGH] {
                    let answer = scene.attack(profile, "every pair", json!(null));
                    assert_eq!(killed(&answer).as_str(), "network_denied");
                }
                // A datagram socket of a pair could send to any socket by name; a connected one cannot.
                for profile in scene.profiles().into_iter().skip(2) {
                    let answer = replied(&scene.attack(profile, "every pair", json!(null)));
                    let connected = [libc::SOCK_STREAM, libc::SOCK_SEQPACKET];
                    let connected = json!(connected.map(|kind| (libc::AF_UNIX, kind | libc::SOCK_CLOEXEC)));
                    assert_eq!(answer, if profile == EXEC { connected } else { json!([]) }, "{profile:?}");
                }
                let beside = scene.workspace.join("beside-pairs");
                let _heard = UnixDatagram::bind(&beside).unwrap();
                let answer =
                    replied(&scene.attack(EXEC, "sendto from a pair", json!("/workspace/beside-pairs")));
                assert_eq!(answer, json!([0, libc::EPERM]));
                let made = scene.control("every pair", json!(null));
                assert!(
                    made.as_array().unwrap().contains(&json!([1, libc::SOCK_DGRAM])),
                    "the control: {made}"
                );
            },
        },
    ]
}
