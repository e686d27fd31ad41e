//! Requests that a server reads otherwise than effectd.

use effectd_contracts::{Exchange, ExchangeFault, Method};

use crate::server::Server;
use crate::world::World;
use crate::{Case, case, plain};

/// An exchange that must be refused before anything is sent, and the bytes that a client sends which does not look.
fn refused(name: &'static str, bytes: Vec<u8>, mark: String, exchange: Exchange) -> Case {
    let plainly = move |_: &World| {
        let server = Server::saying(None, "ok");
        let _answer = plain::say("api.test", &server, &bytes).unwrap();
        server.requests().iter().any(|request| request.contains(&mark))
    };
    case(name, plainly, move |world| {
        let server = Server::saying(world.tls(&["api.test"]), "ok");
        let refused = world.ask(world.origin("api.test", &server), exchange.clone()).unwrap_err();
        assert_eq!((refused.fault, refused.sent), (ExchangeFault::Refused, false), "{refused}");
        server.connections() > 0
    })
}

fn with(name: &str, value: &str) -> Exchange {
    let headers = vec![(name.to_owned(), value.to_owned())];
    Exchange { headers, ..Exchange::new("crm", Method::Post, "/v1") }
}

pub(crate) fn cases() -> Vec<Case> {
    let target = |target: &str| plain::request("GET", target, "", "");
    let mut cases = Vec::new();
    for (name, header_name, value) in [
        ("header_value_with_a_line_break", "accept", "a\r\nx-injected: 1"),
        ("header_value_with_a_newline", "accept", "a\nx-injected: 1"),
        ("header_name_with_a_line_break", "x: 1\r\nx-injected", "1"),
        ("smuggled_host", "host", "inner.test"),
        ("smuggled_host_in_capitals", "HOST", "inner.test"),
        ("smuggled_forwarded_host", "x-forwarded-host", "inner.test"),
        ("smuggled_original_url", "x-original-url", "/admin"),
        ("smuggled_method", "x-http-method-override", "DELETE"),
        ("smuggled_length", "content-length", "2"),
        ("smuggled_coding", "transfer-encoding", "chunked"),
        ("smuggled_connection", "connection", "upgrade"),
        ("own_authorization", "authorization", "Bearer other"),
        ("own_cookie", "cookie", "session=1"),
    ] {
        let line = format!("{header_name}: {value}");
        let body = match header_name {
            "content-length" => "abc",
            "transfer-encoding" => "0\r\n\r\n",
            _ => "",
        };
        let bytes = plain::request("POST", "/v1", &format!("{line}\r\n"), body);
        let is_injected = line.contains("x-injected");
        let mark = if is_injected { "\nx-injected: 1".to_owned() } else { format!("\n{line}") };
        cases.push(refused(name, bytes, mark, with(header_name, value)));
    }
    for (name, path) in [
        ("path_with_a_line_break", "/v1 HTTP/1.1\r\nx-injected: 1\r\nx: "),
        ("path_with_a_space", "/v1 /other"),
        ("path_with_a_query", "/v1?role=admin"),
        ("path_with_a_fragment", "/v1#admin"),
        ("path_up", "/v1/../admin"),
        ("path_up_encoded", "/v1/%2e%2e/admin"),
        ("path_up_encoded_twice", "/v1/%252e%252e/admin"),
        ("path_up_by_a_backslash", "/v1/..%5cadmin"),
        ("path_up_with_a_parameter", "/v1/..;/admin"),
        ("path_with_a_nul", "/v1/%00admin"),
        ("path_that_is_a_url", "http://inner.test/admin"),
        ("path_that_is_a_host", "//inner.test/admin"),
    ] {
        let mark = path.split("\r\n").next().unwrap().to_owned();
        cases.push(refused(name, target(path), mark, Exchange::get("crm", path)));
    }
    cases.push(case(
        "query_with_a_line_break",
        |_| {
            let server = Server::saying(None, "ok");
            let bytes = plain::request("GET", "/v1?q=a HTTP/1.1\r\nx-injected: 1\r\nx: b", "", "");
            let _answer = plain::say("api.test", &server, &bytes).unwrap();
            server.requests().iter().any(|request| request.contains("\nx-injected: 1"))
        },
        |world| {
            let server = Server::saying(world.tls(&["api.test"]), "ok");
            let query = vec![("q".to_owned(), "a HTTP/1.1\r\nx-injected: 1\r\nx: b&admin=1".to_owned())];
            let exchange = Exchange { query, ..Exchange::get("crm", "/v1") };
            assert_eq!(world.ask(world.origin("api.test", &server), exchange).unwrap().status, 200);
            let requests = server.requests();
            let line = requests[0].lines().next().unwrap();
            assert_eq!(
                line,
                "GET /v1?q=a%20HTTP%2F1.1%0D%0Ax-injected%3A%201%0D%0Ax%3A%20b%26admin%3D1 HTTP/1.1"
            );
            requests.iter().any(|request| request.contains("\nx-injected"))
        },
    ));
    cases.push(case(
        "read_with_a_body",
        |_| {
            let server = Server::saying(None, "ok");
            let _answer = plain::say("api.test", &server, &plain::request("GET", "/", "", "hidden")).unwrap();
            server.requests()[0].ends_with("hidden")
        },
        |world| {
            let server = Server::saying(world.tls(&["api.test"]), "ok");
            let exchange = Exchange { body: b"hidden".to_vec(), ..Exchange::get("crm", "/") };
            let refused = world.ask(world.origin("api.test", &server), exchange).unwrap_err();
            refused.fault != ExchangeFault::Refused || server.connections() > 0
        },
    ));
    cases
}
