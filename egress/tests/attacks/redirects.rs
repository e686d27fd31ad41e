//! Answers that lead elsewhere.

use std::sync::Arc;

use effectd_contracts::{Exchange, Method};

use crate::server::{Go, Peer, Server, answer};
use crate::world::{SECRET, World};
use crate::{Case, case, plain};

fn redirect(status: &'static str, to: String) -> impl Fn(&[u8], &mut dyn Peer) -> Go + Send + Sync {
    move |_, peer| answer(peer, status, &format!("location: {to}\r\nset-cookie: a=b\r\n"), b"")
}

pub(crate) fn cases() -> Vec<Case> {
    let targets = [
        ("301 Moved Permanently", "127.0.0.1"),
        ("302 Found", "169.254.169.254"),
        ("303 See Other", "10.0.0.1"),
        ("307 Temporary Redirect", "evil.test"),
        ("308 Permanent Redirect", "evil.test"),
        ("300 Multiple Choices", "evil.test"),
    ];
    targets.into_iter().map(|(status, host)| redirected(status, host)).collect()
}

/// The attack succeeds if the other server gets anything, above all the secret.
fn redirected(status: &'static str, host: &'static str) -> Case {
    let followed = move |_: &World| {
        let elsewhere = Server::saying(None, "reached");
        let first = Server::new(None, redirect(status, format!("http://{host}:{}/", elsewhere.port)));
        let told = plain::say("api.test", &first, &plain::request("POST", "/", "", "body")).unwrap();
        let told = String::from_utf8(told).unwrap();
        let location = told.lines().find_map(|line| line.strip_prefix("location: http://")).unwrap();
        let (host, _) = location.split_once(':').unwrap();
        let _answer = plain::say(host, &elsewhere, &plain::request("POST", "/", "", "body"));
        elsewhere.requests().iter().any(|request| request.contains(SECRET))
    };
    case(format!("redirect_{}_to_{host}", &status[..3]), followed, move |world| {
        let elsewhere = Arc::new(Server::saying(world.tls(&[host]), "reached"));
        let location = format!("https://{host}:{}/", elsewhere.port);
        let first = Server::new(world.tls(&["api.test"]), redirect(status, location));
        let mut exchange = Exchange::new("crm", Method::Post, "/");
        exchange.body = b"body".to_vec();
        let answer = world.ask(world.origin("api.test", &first), exchange).unwrap();
        assert_eq!(answer.status.to_string(), status[..3]);
        let told = |name: &str| answer.headers.iter().any(|(known, _)| known == name);
        elsewhere.connections() > 0 || told("location") || told("set-cookie")
    })
}
