//! A network in which every address is this machine, with one server of names.

use std::net::{IpAddr, UdpSocket};
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};

use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};

/// Enters it. The process has no other thread yet.
pub(crate) fn enter() {
    unshare(CloneFlags::CLONE_NEWNET | CloneFlags::CLONE_NEWNS).unwrap();
    let none = None::<&str>;
    mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none).unwrap();
    for (name, text) in [
        ("resolv.conf", "nameserver 127.0.0.1\n"),
        ("hosts", "127.0.0.1 localhost\n"),
        ("nsswitch.conf", "hosts: files dns\n"),
    ] {
        let file = std::env::temp_dir().join(format!("effectd-attacks-{}-{name}", std::process::id()));
        std::fs::write(&file, text).unwrap();
        mount(Some(&file), format!("/etc/{name}").as_str(), none, MsFlags::MS_BIND, none).unwrap();
        std::fs::remove_file(&file).unwrap();
    }
    for line in ["link set lo up", "route add local 0.0.0.0/0 dev lo", "-6 route add local ::/0 dev lo"] {
        let status = Command::new("ip").args(line.split(' ')).status().expect("ip of iproute2");
        assert!(status.success(), "ip {line}");
    }
    // Small enough that a large request does not fit between two programs.
    for file in ["tcp_wmem", "tcp_rmem"] {
        std::fs::write(format!("/proc/sys/net/ipv4/{file}"), "4096 16384 65536").unwrap();
    }
    let socket = UdpSocket::bind("127.0.0.1:53").unwrap();
    std::thread::spawn(move || serve_names(&socket));
}

/// Every name and its addresses.
const NAMES: &[(&str, &[&str])] = &[
    ("api.test", &["8.8.8.8"]),
    ("evil.test", &["9.9.9.9"]),
    ("inner.test", &["127.0.0.1"]),
    ("metadata.test", &["169.254.169.254"]),
    ("private.test", &["10.0.0.1"]),
    ("both.test", &["8.8.8.8", "10.0.0.1"]),
    ("mapped.test", &["::ffff:127.0.0.1"]),
    ("nat64.test", &["64:ff9b::7f00:1"]),
    ("unique.test", &["fd00::1"]),
    ("shared.test", &["100.64.0.1"]),
    ("link.test", &["169.254.0.1"]),
    ("unspecified.test", &["0.0.0.0"]),
    ("documentation.test", &["192.0.2.1"]),
    ("reserved.test", &["240.0.0.1"]),
    ("sixtofour.test", &["2002:7f00:1::1"]),
    ("teredo.test", &["2001::1"]),
    ("loopback6.test", &["::1"]),
    ("metadata6.test", &["fd00:ec2::254"]),
    ("all.test", &["8.8.8.8", "9.9.9.9", "1.1.1.1", "1.0.0.1", "8.8.4.4", "169.254.169.254"]),
];

/// How often `rebind.test` was asked for: the first answer is public, the later ones are not.
pub(crate) static REBOUND: AtomicUsize = AtomicUsize::new(0);

fn addresses(name: &str, is_v6: bool) -> Vec<IpAddr> {
    if name == "rebind.test" {
        if is_v6 {
            return Vec::new();
        }
        let is_first = REBOUND.fetch_add(1, Ordering::SeqCst) == 0;
        return vec![IpAddr::from(if is_first { [8, 8, 8, 8] } else { [127, 0, 0, 1] })];
    }
    let known = NAMES.iter().find(|(known, _)| known.eq_ignore_ascii_case(name));
    let all = known.into_iter().flat_map(|(_, all)| all.iter()).map(|text| text.parse::<IpAddr>().unwrap());
    all.filter(|address| address.is_ipv6() == is_v6).collect()
}

fn serve_names(socket: &UdpSocket) {
    let mut query = [0; 512];
    while let Ok((length, from)) = socket.recv_from(&mut query) {
        let query = &query[..length];
        let (mut name, mut at) = (Vec::new(), 12);
        while query[at] != 0 {
            let end = at + 1 + usize::from(query[at]);
            name.push(String::from_utf8_lossy(&query[at + 1..end]).into_owned());
            at = end;
        }
        let kind = u16::from_be_bytes([query[at + 1], query[at + 2]]);
        let name = name.join(".");
        let found = addresses(&name, kind == 28);
        let is_known =
            name == "rebind.test" || NAMES.iter().any(|(known, _)| known.eq_ignore_ascii_case(&name));
        let mut answer = query[..2].to_vec();
        answer.extend([0x85, if is_known { 0x80 } else { 0x83 }, 0, 1, 0, found.len() as u8, 0, 0, 0, 0]);
        answer.extend(&query[12..at + 5]);
        for address in found {
            let bytes = match address {
                IpAddr::V4(address) => address.octets().to_vec(),
                IpAddr::V6(address) => address.octets().to_vec(),
            };
            answer.extend([0xc0, 12, 0, kind as u8, 0, 1, 0, 0, 0, 0, 0, bytes.len() as u8]);
            answer.extend(bytes);
        }
        let _gone = socket.send_to(&answer, from);
    }
}
