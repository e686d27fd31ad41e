//! Servers that are not who they say.

use std::sync::Arc;

use effectd_contracts::{Exchange, ExchangeFault};
use effectd_egress::{Origin, Scheme, Trust};
use rcgen::date_time_ymd;
use tokio_rustls::rustls::ServerConfig;

use crate::server::Server;
use crate::world::{Authority, SECRET, World};
use crate::{Case, case, plain};

type Certificate = fn(&World) -> Arc<ServerConfig>;

pub(crate) fn cases() -> Vec<Case> {
    let mut cases = vec![
        untrusted("certificate_for_another_name", |world| {
            world.authority.server(&["evil.test"], |_| ()).config
        }),
        untrusted("certificate_for_a_longer_name", |world| {
            world.authority.server(&["api.test.evil.test"], |_| ()).config
        }),
        untrusted("certificate_for_a_wildcard_above", |world| {
            world.authority.server(&["*.test.test"], |_| ()).config
        }),
        untrusted("certificate_of_another_authority", |_| {
            Authority::new().server(&["api.test"], |_| ()).config
        }),
        untrusted("certificate_that_has_expired", |world| {
            let expired = |params: &mut rcgen::CertificateParams| {
                params.not_before = date_time_ymd(2019, 1, 1);
                params.not_after = date_time_ymd(2020, 1, 1);
            };
            world.authority.server(&["api.test"], expired).config
        }),
        untrusted("certificate_of_tomorrow", |world| {
            let early = |params: &mut rcgen::CertificateParams| {
                params.not_before = date_time_ymd(2090, 1, 1);
                params.not_after = date_time_ymd(2091, 1, 1);
            };
            world.authority.server(&["api.test"], early).config
        }),
        untrusted("certificate_of_its_own", |_| Authority::new().itself("api.test")),
        untrusted("certificate_by_another_server", |world| world.authority.by_a_server("api.test")),
        untrusted("certificate_for_clients", |world| {
            let client = |params: &mut rcgen::CertificateParams| {
                params.extended_key_usages = vec![rcgen::ExtendedKeyUsagePurpose::ClientAuth];
            };
            world.authority.server(&["api.test"], client).config
        }),
        untrusted("certificate_with_its_name_as_subject_only", |world| {
            let named = |params: &mut rcgen::CertificateParams| {
                params.distinguished_name.push(rcgen::DnType::CommonName, "api.test");
            };
            world.authority.server(&[], named).config
        }),
    ];
    cases.push(case(
        "another_key_than_the_pinned_one",
        |world| plain::has(&plain::get_unverified("api.test", &right(world)), "reached"),
        |world| {
            let other = world.authority.server(&["api.test"], |_| ()).pin;
            let server = right(world);
            let origin = Origin { trust: Trust::Key(other), ..world.origin("api.test", &server) };
            refused(world, origin, &server)
        },
    ));
    cases.push(case(
        "system_authorities_for_a_private_one",
        |world| plain::has(&plain::get_unverified("api.test", &right(world)), "reached"),
        |world| {
            let server = right(world);
            refused(world, Origin { trust: Trust::System, ..world.origin("api.test", &server) }, &server)
        },
    ));
    const IN_CLEAR: &str = "HTTP/1.1 200 OK\r\ncontent-length: 7\r\n\r\nreached";
    cases.push(case(
        "no_tls_where_tls_is_due",
        |_| plain::has(&plain::get("api.test", &Server::at_once(IN_CLEAR)), "reached"),
        |world| {
            let server = Server::at_once(IN_CLEAR);
            refused(world, world.origin("api.test", &server), &server)
        },
    ));
    cases.push(case(
        "secret_in_clear_over_the_internet",
        |_| {
            let server = Server::saying(None, "reached");
            let _answer = plain::get("api.test", &server);
            server.requests()[0].contains(SECRET)
        },
        |world| {
            let server = Server::saying(None, "reached");
            let origin = Origin { scheme: Scheme::Http, ..world.origin("api.test", &server) };
            let failure = world.ask(origin, Exchange::get("crm", "/")).unwrap_err();
            assert_eq!(failure.fault, ExchangeFault::Refused);
            server.connections() > 0
        },
    ));
    cases
}

fn right(world: &World) -> Server {
    Server::saying(world.tls(&["api.test"]), "reached")
}

fn untrusted(name: &str, certificate: Certificate) -> Case {
    let plainly = move |world: &World| {
        let server = Server::saying(Some(certificate(world)), "reached");
        plain::has(&plain::get_unverified("api.test", &server), "reached")
    };
    case(name, plainly, move |world| {
        let server = Server::saying(Some(certificate(world)), "reached");
        refused(world, world.origin("api.test", &server), &server)
    })
}

fn refused(world: &World, origin: Origin, server: &Server) -> bool {
    let failure = world.ask(origin, Exchange::get("crm", "/")).unwrap_err();
    assert_eq!((failure.fault, failure.sent), (ExchangeFault::Untrusted, false), "{failure}");
    !server.requests().is_empty()
}
