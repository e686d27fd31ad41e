//! Names that lead where they may not, and names that two programs read as two.

use std::net::ToSocketAddrs;
use std::sync::atomic::Ordering;

use effectd_contracts::address::may_dial;
use effectd_contracts::{Exchange, ExchangeFault};

use crate::network::REBOUND;
use crate::server::Server;
use crate::world::World;
use crate::{Case, case, plain};

pub(crate) fn cases() -> Vec<Case> {
    let mut cases: Vec<Case> = [
        "localhost",
        "inner.test",
        "metadata.test",
        "private.test",
        "mapped.test",
        "nat64.test",
        "unique.test",
        "shared.test",
        "link.test",
        "unspecified.test",
        "documentation.test",
        "reserved.test",
        "sixtofour.test",
        "teredo.test",
        "loopback6.test",
        "metadata6.test",
        "inner.test.",
        "INNER.test",
    ]
    .into_iter()
    .map(|host| case(format!("name_{host}"), move |_| plainly(host), move |world| reached(world, host)))
    .collect();
    cases.extend([
        // A client that takes the second address if the first does not answer, or any of them.
        case(
            "name_of_a_public_and_a_private_address",
            |_| {
                let server = Server::saying(None, "reached");
                let mut all = ("both.test", server.port).to_socket_addrs().unwrap();
                all.any(|address| {
                    let is_private = !may_dial(address.ip(), &[]);
                    is_private && plain::connect_to(address).is_ok()
                })
            },
            |world| reached(world, "both.test"),
        ),
        // One that looks at the first addresses only.
        case(
            "name_with_a_private_address_behind_many",
            |_| {
                let server = Server::saying(None, "reached");
                let mut all = ("all.test", server.port).to_socket_addrs().unwrap();
                all.any(|address| !may_dial(address.ip(), &[]) && plain::connect_to(address).is_ok())
            },
            |world| reached(world, "all.test"),
        ),
        // It resolves, judges, and resolves again to connect.
        case(
            "rebinding_between_resolve_and_dial",
            |_| {
                REBOUND.store(0, Ordering::SeqCst);
                let server = Server::saying(None, "reached");
                let judged = ("rebind.test", server.port).to_socket_addrs().unwrap();
                assert!(judged.into_iter().all(|address| may_dial(address.ip(), &[])));
                let stream = plain::connect("rebind.test", server.port).unwrap();
                stream.peer_addr().unwrap().ip().to_canonical().is_loopback()
            },
            |world| {
                REBOUND.store(0, Ordering::SeqCst);
                let server = Server::saying(world.tls(&["rebind.test"]), "reached");
                let origin = world.origin("rebind.test", &server);
                let carried = world.carry(world.order(origin, Exchange::get("crm", "/")));
                assert_eq!(carried.record.address.as_deref(), Some("8.8.8.8"), "{:?}", carried.reply);
                // A new connection asks again, and is refused now.
                let other = effectd_egress::Origin {
                    connection: "crm:2".to_owned(),
                    ..world.origin("rebind.test", &server)
                };
                let refused = world.ask(other, Exchange::get("crm", "/")).unwrap_err();
                assert_eq!(refused.fault, ExchangeFault::Refused);
                server.connections() != 1
            },
        ),
        // The list is checked with the whole text, and the C library reads it to the NUL.
        case(
            "nul_in_a_name",
            |_| {
                let (text, server) = ("inner.test\0.api.test", Server::saying(None, "reached"));
                let listed = text.ends_with(".api.test");
                listed && plain::has(&plain::get(text.split('\0').next().unwrap(), &server), "reached")
            },
            |world| reached(world, "inner.test\0.api.test"),
        ),
        case(
            "brackets_around_a_name",
            |_| {
                let (text, denied) = ("[inner.test]", ["inner.test", "127.0.0.1"]);
                let server = Server::saying(None, "reached");
                let passes = !denied.contains(&text);
                passes && plain::has(&plain::get(text.trim_matches(['[', ']']), &server), "reached")
            },
            |world| reached(world, "[inner.test]"),
        ),
        case(
            "brackets_around_an_address",
            |_| {
                let server = Server::saying(None, "reached");
                plain::has(&plain::get("[::1]".trim_matches(['[', ']']), &server), "reached")
            },
            |world| reached(world, "[::1]"),
        ),
        case("wide_digits", |_| plainly(&folded("１２７.0.0.1")), |world| reached(world, "１２７.0.0.1")),
        case(
            "ideographic_dots",
            |_| plainly(&folded("127。0。0。1")),
            |world| reached(world, "127。0。0。1"),
        ),
        case("circled_letters", |_| plainly(&folded("ⓘⓝⓝⓔⓡ.test")), |world| reached(world, "ⓘⓝⓝⓔⓡ.test")),
        case(
            "soft_hyphen",
            |_| plainly(&folded("inn\u{ad}er.test")),
            |world| reached(world, "inn\u{ad}er.test"),
        ),
        case(
            "sign_of_kelvin",
            |_| plainly(&folded("lin\u{212a}.test")),
            |world| reached(world, "lin\u{212a}.test"),
        ),
        case("an_interface_in_an_address", |_| plainly("::1"), |world| reached(world, "::1%lo")),
        case(
            "a_user_before_the_host",
            |_| plainly("api.test@inner.test".rsplit('@').next().unwrap()),
            |world| reached(world, "api.test@inner.test"),
        ),
        case(
            "a_port_in_the_host",
            |_| {
                let server = Server::saying(None, "reached");
                let text = format!("inner.test:{}", server.port);
                text.to_socket_addrs().is_ok_and(|mut all| all.any(|at| plain::connect_to(at).is_ok()))
            },
            |world| {
                let server = Server::saying(None, "reached");
                let text = format!("inner.test:{}", server.port);
                let _refused =
                    world.ask(world.origin(&text, &server), Exchange::get("crm", "/")).unwrap_err();
                server.connections() > 0
            },
        ),
        case(
            "effectd_itself",
            |_| {
                let door = std::net::TcpListener::bind("127.0.0.1:7070").unwrap();
                plain::connect("127.0.0.1", 7_070).is_ok() && door.local_addr().is_ok()
            },
            |world| {
                let server = Server::saying(None, "reached");
                let origin = effectd_egress::Origin { port: 7_070, ..world.inner(&server) };
                let refused = world.ask(origin, Exchange::get("crm", "/")).unwrap_err();
                refused.fault != ExchangeFault::Refused
            },
        ),
        case(
            "effectd_itself_by_a_public_address",
            |_| {
                let _door = std::net::TcpListener::bind("8.8.4.4:7070").unwrap();
                plain::connect("8.8.4.4", 7_070).is_ok()
            },
            |world| {
                let _door = std::net::TcpListener::bind("8.8.4.4:7070").unwrap();
                let server = Server::saying(None, "reached");
                let origin = effectd_egress::Origin { port: 7_070, ..world.origin("8.8.4.4", &server) };
                let refused = world.ask(origin, Exchange::get("crm", "/")).unwrap_err();
                refused.fault != ExchangeFault::Refused || refused.sent
            },
        ),
    ]);
    cases
}

fn plainly(host: &str) -> bool {
    let server = Server::saying(None, "reached");
    plain::has(&plain::get(host, &server), "reached")
}

fn reached(world: &World, host: &str) -> bool {
    let server = Server::saying(None, "reached");
    let refused = world.ask(world.origin(host, &server), Exchange::get("crm", "/")).unwrap_err();
    assert!(!refused.sent, "{refused}");
    server.connections() > 0
}

/// What IDNA makes of such letters.
fn folded(text: &str) -> String {
    let fold = |c: char| match u32::from(c) {
        wide @ 0xff01..=0xff5e => char::from_u32(wide - 0xfee0).unwrap(),
        circled @ 0x24d0..=0x24e9 => char::from_u32(circled - 0x24d0 + u32::from('a')).unwrap(),
        0x3002 => '.',
        0x212a => 'k',
        _ => c,
    };
    text.chars().filter(|c| *c != '\u{ad}').map(fold).collect()
}
