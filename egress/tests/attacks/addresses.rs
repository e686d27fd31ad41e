//! Addresses that are not public, in every spelling.

use effectd_contracts::{Exchange, ExchangeFault};

use crate::server::Server;
use crate::{Case, case, plain};

/// Each leads to this machine. Programs read some of them differently, which is the attack.
const HOSTS: &[&str] = &[
    "127.0.0.1",
    "127.9.9.9",
    "127.1",
    "127.0.1",
    "2130706433",
    "0x7f.1",
    "0x7f000001",
    "0x7f.0.0.1",
    "0177.0.0.1",
    "017700000001",
    "0.0.0.0",
    "10.0.0.1",
    "172.16.0.1",
    "192.168.0.1",
    "100.64.0.1",
    "100.100.100.200",
    "168.63.129.16",
    "169.254.0.1",
    "169.254.169.254",
    "2852039166",
    "192.0.0.192",
    "192.0.2.1",
    "192.88.99.1",
    "198.18.0.1",
    "198.51.100.1",
    "203.0.113.1",
    "240.0.0.1",
    "::",
    "::1",
    "::2",
    "::ffff:127.0.0.1",
    "::ffff:a9fe:a9fe",
    "64:ff9b::7f00:1",
    "64:ff9b:1::1",
    "100::1",
    "2001::1",
    "2001:db8::1",
    "2002:7f00:1::1",
    "3fff::1",
    "5f00::1",
    "fc00::1",
    "fd00:ec2::254",
    "fec0::1",
];

pub(crate) fn cases() -> Vec<Case> {
    let one = |host: &'static str| {
        let reached = move |_: &_| {
            let server = Server::saying(None, "reached");
            plain::has(&plain::get(host, &server), "reached")
        };
        case(format!("address_{host}"), reached, move |world| {
            let server = Server::saying(None, "reached");
            let refused = world.ask(world.origin(host, &server), Exchange::get("crm", "/")).unwrap_err();
            assert_eq!((refused.fault, refused.sent), (ExchangeFault::Refused, false), "{refused}");
            server.connections() > 0
        })
    };
    HOSTS.iter().copied().map(one).collect()
}
