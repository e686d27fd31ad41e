//! The console: who signs in, what its pages never do, and that a decision is for what was shown.

use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use effectd_contracts::limits::REQUEST_BYTES_MAX;
use effectd_gateway::Settings;
use effectd_gateway::client::percent_encoded;
use effectd_gateway::limits::{AUTH_FAILURES_MAX, BODIES_BYTES_MAX, BODIES_PART};
use serde_json::json;

use crate::approvals::{asking, held, receipts_of};
use crate::harness::{Daemon, Place, Reply, Serving, program, until, write_note};
use crate::shared::Terminal;
use crate::tcp::{ask_by, connect, listening, reads_to_the_end, token, while_time_stands_still};

/// People, beside whom root still decides: the policy names an approver.
const PEOPLE: &str = r#"
[principals."account://home/ada"]
subjects = []
roles = ["approver"]

[principals."account://home/eva"]
subjects = []
roles = ["approver", "admin"]

[principals."account://home/guest"]
subjects = []

[principals."user://root"]
subjects = []
roles = ["approver"]
"#;

/// A browser: it keeps the cookie that it got, and names its origin.
pub struct Browser {
    address: String,
    cookie: String,
}

impl Browser {
    fn at(address: &str) -> Self {
        Self { address: address.to_owned(), cookie: String::new() }
    }

    fn ask(&self, lines: &str, body: &str) -> Reply {
        let mut stream = connect(&self.address);
        let cookie =
            if self.cookie.is_empty() { String::new() } else { format!("cookie: {}\r\n", self.cookie) };
        let host = &self.address;
        let head =
            format!("{lines}\r\nhost: {host}\r\nconnection: close\r\ncontent-length: {}\r\n", body.len());
        // The daemon may close before it has read everything.
        let _ = write!(stream, "{head}{cookie}\r\n{body}");
        Reply::of(&reads_to_the_end(stream))
    }

    pub fn get(&self, path: &str) -> Reply {
        self.ask(&format!("GET {path} HTTP/1.1"), "")
    }

    pub fn post(&mut self, path: &str, fields: &[(&str, &str)]) -> Reply {
        let fields: Vec<_> =
            fields.iter().map(|(name, value)| format!("{name}={}", percent_encoded(value))).collect();
        let lines = format!(
            "POST {path} HTTP/1.1\r\norigin: http://{}\r\nsec-fetch-site: same-origin\r\ncontent-type: application/x-www-form-urlencoded",
            self.address
        );
        let reply = self.ask(&lines, &fields.join("&"));
        if let Some(line) = header(&reply, "set-cookie") {
            self.cookie = line.split(';').next().unwrap().to_owned();
        }
        reply
    }

    /// A browser that is signed in with this token.
    #[track_caller]
    fn with(address: &str, token: &str) -> Self {
        let mut browser = Self::at(address);
        let reply = browser.post("/console/login", &[("token", token), ("to", "/")]);
        assert_eq!((reply.status, header(&reply, "location").as_deref()), (303, Some("/")), "{reply:?}");
        browser
    }
}

fn header(reply: &Reply, name: &str) -> Option<String> {
    let mut lines = reply.head.lines().filter_map(|line| line.strip_prefix(name)?.strip_prefix(": "));
    lines.next().map(str::to_owned)
}

/// Whether it is a page of the inbox.
fn is_inbox(reply: &Reply) -> bool {
    reply.status == 200 && reply.body.contains("id=\"queue\"")
}

#[track_caller]
fn is_sent_to_sign_in(reply: &Reply) {
    assert_eq!(reply.status, 303, "{reply:?}");
    assert!(header(reply, "location").unwrap().starts_with("/console/login"), "{reply:?}");
}

/// A place whose notes need an approval, with people.
fn with_people() -> Place {
    let place = asking();
    let file = place.state().join("policy/policy.toml");
    let text = std::fs::read_to_string(&file).unwrap();
    let text = text.split("[example_tools").next().unwrap().to_owned();
    std::fs::write(&file, text + PEOPLE).unwrap();
    place
}

/// The digest of a question as a page shows it.
fn digest_on(page: &Reply) -> String {
    let (_, rest) = page.body.split_once("name=\"digest\" value=\"").unwrap_or_else(|| panic!("{page:?}"));
    rest.split('"').next().unwrap().to_owned()
}

fn state_of(daemon: &Daemon, id: &str) -> String {
    daemon.get(&format!("/v1/approvals/{id}")).json(200)["state"].as_str().unwrap().to_owned()
}

fn link(place: &Place) -> String {
    let ran = place.effectd(&["console", "--print"], None);
    assert_eq!(ran.code(), 0, "{}", ran.stderr());
    let url = ran.stdout().trim().to_owned();
    url.split_once("://").unwrap().1.split_once('/').unwrap().1.to_owned()
}

#[test]
fn every_answer_of_the_console_forbids_foreign_code() {
    let place = Place::seeded();
    let (_daemon, address) = listening(&place, &[]);
    let browser = Browser::at(&address);
    let login = browser.get("/console/login");
    let style = login.body.split('"').find(|text| text.ends_with("-console.css")).unwrap().to_owned();
    let pages = ["/", "/console/login", "/console/approvals/x", "/console/link/x", "/console/stream"];
    for path in pages.into_iter().chain(["/console/none", "/console/login?to", &style]) {
        let reply = browser.get(path);
        let policy = header(&reply, "content-security-policy").unwrap_or_else(|| panic!("{path}: {reply:?}"));
        for part in [
            "default-src 'none'",
            "script-src 'self'",
            "style-src 'self'",
            "frame-ancestors 'none'",
            "base-uri 'none'",
            "form-action 'self'",
            "require-trusted-types-for 'script'",
        ] {
            assert!(policy.contains(part), "{path}: {policy}");
        }
        assert!(!policy.contains("unsafe"), "{policy}");
        assert_eq!(header(&reply, "x-content-type-options").as_deref(), Some("nosniff"));
        assert_eq!(header(&reply, "referrer-policy").as_deref(), Some("same-origin"));
        let is_file = path == style;
        let kept = if is_file { "public, max-age=31536000, immutable" } else { "no-store" };
        assert_eq!(header(&reply, "cache-control").as_deref(), Some(kept), "{path}");
    }
    assert_eq!(browser.get("/console/none").status, 404);
    // Nothing on the page is from elsewhere, or code in the page.
    for foreign in ["http://", "https://", " style=", "javascript:"] {
        assert!(!login.body.contains(foreign), "{foreign}");
    }
    let is_code = |rest: &str| rest.trim_start_matches(|c: char| c.is_ascii_alphabetic()).starts_with('=');
    assert!(!login.body.split(" on").skip(1).any(is_code), "{}", login.body);
    let tag = header(&browser.get(&style), "etag").unwrap();
    let again = browser.ask(&format!("GET {style} HTTP/1.1\r\nif-none-match: {tag}"), "");
    assert_eq!((again.status, again.body.as_str()), (304, ""));
}

#[test]
fn the_first_page_is_small() {
    let place = asking();
    let (daemon, address) = listening(&place, &[]);
    let text = "a line that is new\n".repeat(1_000);
    for number in 0..10 {
        held(&daemon, &format!("a{number}"), &format!("n{number}.txt"), &text);
    }
    let mut browser = Browser::at(&address);
    let path = format!("/{}", link(&place));
    assert_eq!(browser.post(&path, &[]).status, 303);
    let page = browser.get("/");
    assert!(is_inbox(&page));
    let files = page.body.split('"').filter(|text| text.starts_with("/console/assets/"));
    let files: std::collections::BTreeSet<_> = files.map(str::to_owned).collect();
    assert_eq!(files.len(), 3, "{files:?}");
    let bytes: usize = files.iter().map(|file| browser.get(file).body.len()).sum::<usize>() + page.body.len();
    assert!(bytes <= 100_000, "{bytes} bytes, {} of them the page", page.body.len());
}

#[test]
fn a_token_signs_in_until_it_is_revoked() {
    let place = with_people();
    let (daemon, address) = listening(&place, &[]);
    let value = token(&daemon, "ada");
    let mut browser = Browser::with(&address, &value);
    assert!(!browser.cookie.contains(&value) && browser.cookie.starts_with("effectd-console="));
    let page = browser.get("/");
    assert!(is_inbox(&page) && page.body.contains("account://home/ada"), "{page:?}");
    // The cookie is for the pages alone.
    assert_eq!(browser.get("/v1/whoami").status, 401);
    let id = value.split('_').nth(2).unwrap();
    assert_eq!(daemon.post(&format!("/v1/tokens/{id}/revoke"), &json!({})).status, 200);
    is_sent_to_sign_in(&browser.get("/"));
    browser.post("/console/login", &[("token", &value)]);
    is_sent_to_sign_in(&browser.get("/"));
    // The log has no token and no cookie.
    let log = place.log();
    assert!(!log.contains(&value) && !log.contains(browser.cookie.split('=').nth(1).unwrap_or("none")));
}

#[test]
fn who_signs_out_is_out_also_with_the_old_cookie() {
    let place = with_people();
    let (daemon, address) = listening(&place, &[]);
    let mut browser = Browser::with(&address, &token(&daemon, "ada"));
    let before = browser.cookie.clone();
    assert_eq!(browser.post("/console/logout", &[]).status, 303);
    assert_eq!(browser.cookie, "effectd-console=");
    browser.cookie = before;
    is_sent_to_sign_in(&browser.get("/"));
}

#[test]
fn agents_and_services_do_not_sign_in() {
    let place = with_people();
    let (daemon, address) = listening(&place, &[]);
    let service = json!({ "kind": "service", "org": "home", "name": "ada" });
    let service = daemon.post("/v1/tokens", &service).json(200)["token"].as_str().unwrap().to_owned();
    let mut browser = Browser::at(&address);
    let reply = browser.post("/console/login", &[("token", &service)]);
    assert!(reply.status == 403 && reply.body.contains("decides nothing"), "{reply:?}");
    assert!(browser.cookie.is_empty());
}

#[test]
fn wrong_tokens_in_the_form_count_for_their_address() {
    let place = Place::seeded();
    while_time_stands_still(&place, Settings::default(), |_, address| {
        let mut browser = Browser::at(address);
        for _ in 0..AUTH_FAILURES_MAX {
            let refused = browser.post("/console/login", &[("token", "efd_user_x")]);
            assert!(refused.status == 401 && refused.body.contains("not valid"), "{refused:?}");
        }
        assert_eq!(browser.post("/console/login", &[("token", "x")]).status, 429);
        assert!(browser.cookie.is_empty());
    });
}

#[test]
fn wrong_tokens_of_who_is_signed_in_count_too() {
    let place = Place::seeded();
    while_time_stands_still(&place, Settings::default(), |_, address| {
        let mut browser = Browser::at(address);
        assert_eq!(browser.post(&format!("/{}", link(&place)), &[]).status, 303);
        for _ in 0..AUTH_FAILURES_MAX {
            assert_eq!(browser.post("/console/login", &[("token", "efd_user_x")]).status, 401);
        }
        assert_eq!(browser.post("/console/login", &[("token", "x")]).status, 429);
        assert!(is_inbox(&browser.get("/")));
    });
}

#[test]
fn a_form_of_another_site_changes_nothing() {
    let place = with_people();
    let (daemon, address) = listening(&place, &[]);
    let id = held(&daemon, "a", "a.txt", "text");
    let browser = Browser::with(&address, &token(&daemon, "ada"));
    let digest = digest_on(&browser.get("/"));
    let body = format!("verb=approve&digest={}", percent_encoded(&digest));
    for lines in [
        "",
        "\r\norigin: null",
        "\r\norigin: http://evil.example",
        "\r\norigin: http://localhost:1",
        "\r\nsec-fetch-site: cross-site",
        "\r\nsec-fetch-site: same-site",
    ] {
        for path in
            [format!("/console/approvals/{id}"), "/console/login".to_owned(), "/console/logout".to_owned()]
        {
            let reply = browser.ask(&format!("POST {path} HTTP/1.1{lines}"), &body);
            reply.problem(403, "cross_site");
        }
    }
    assert_eq!(state_of(&daemon, &id), "pending");
    assert!(is_inbox(&browser.get("/")));
}

#[test]
fn a_page_of_another_port_gets_nothing_for_the_cookie() {
    let place = with_people();
    let (daemon, address) = listening(&place, &[]);
    let id = held(&daemon, "a", "a.txt", "text");
    let browser = Browser::with(&address, &token(&daemon, "ada"));
    for path in ["/".to_owned(), format!("/console/approvals/{id}"), "/console/stream".to_owned()] {
        let page = browser.ask(&format!("GET {path} HTTP/1.1\r\nsec-fetch-site: same-site"), "");
        // The same page asks again, from here.
        assert!(page.body.contains("http-equiv=\"refresh\"") && !page.body.contains(&id), "{path}: {page:?}");
        if path != "/console/stream" {
            let page = browser.ask(&format!("GET {path} HTTP/1.1\r\nsec-fetch-site: same-origin"), "");
            assert!(is_inbox(&page) && page.body.contains(&id), "{page:?}");
        }
    }
}

#[test]
fn over_tls_a_form_is_of_an_https_page_and_so_it_stays() {
    let place = Place::seeded();
    let (_daemon, address) = listening(&place, &["--set", "gateway.behind_proxy=true"]);
    let browser = Browser::at(&address);
    let page = browser.get("/console/login");
    assert_eq!(header(&page, "strict-transport-security").as_deref(), Some("max-age=31536000"), "{page:?}");
    let sign_in = |scheme: &str| {
        browser.ask(&format!("POST /console/login HTTP/1.1\r\norigin: {scheme}://{address}"), "token=x")
    };
    sign_in("http").problem(403, "cross_site");
    assert_eq!(sign_in("https").status, 401);
}

#[test]
fn a_stranger_who_sends_much_keeps_nobody_else_from_signing_in() {
    let place = Place::seeded();
    let (_daemon, address) = listening(&place, &["--set", "gateway.behind_proxy=true"]);
    let sign_in = |from: &str, length: usize, body: &str| {
        let mut stream = connect(&address);
        let head = format!(
            "POST /console/login HTTP/1.1\r\nhost: {address}\r\nsec-fetch-site: same-origin\r\nx-forwarded-for: {from}\r\n\
             connection: close\r\ncontent-length: {length}\r\n\r\n"
        );
        stream.write_all(head.as_bytes()).unwrap();
        // The daemon may close before it has read everything.
        let _ = stream.write_all(body.as_bytes());
        stream
    };
    let status = |from: &str| Reply::of(&reads_to_the_end(sign_in(from, 7, "token=x"))).status;
    // Each of these lacks a byte.
    let much = "x".repeat(REQUEST_BYTES_MAX);
    let own = BODIES_BYTES_MAX / BODIES_PART;
    let _unfinished: Vec<_> =
        (0..own / much.len()).map(|_| sign_in("192.0.2.1", much.len() + 1, &much)).collect();
    until("its share is full", || status("192.0.2.1") == 503);
    assert_eq!(status("192.0.2.2"), 401);
}

#[test]
fn a_grant_is_decided_for_what_its_page_showed() {
    let place = with_people();
    let (daemon, address) = listening(&place, &[]);
    // Root speaks for the planner, so that it may only ask.
    let wanted = json!({
        "org": "home", "session": "agent:agent://planner@deviceA", "tool": "files.write_text", "calls_max": 3,
        "reason": "the <b>weekly</b> notes",
    });
    let grant = daemon.post("/v1/grants/requests", &wanted).json(200);
    assert_eq!(grant["state"], "requested", "{grant}");
    let id = grant["grant_id"].as_str().unwrap();
    let path = format!("/console/grants/{id}");
    let mut guest = Browser::with(&address, &token(&daemon, "guest"));
    assert_eq!(guest.get(&path).status, 404);
    let mut ada = Browser::with(&address, &token(&daemon, "ada"));
    let inbox = ada.get("/");
    assert!(is_inbox(&inbox) && inbox.body.contains(&path), "{inbox:?}");
    let page = ada.get(&path);
    for shown in [
        "files.write_text",
        "3 calls in session agent:agent://planner@deviceA",
        "&#60;b&#62;weekly",
        "user://root",
    ] {
        assert!(page.body.contains(shown), "{shown}: {page:?}");
    }
    let digest = digest_on(&page);
    let state = || daemon.get("/v1/grants").json(200)["grants"][0]["state"].clone();
    for fields in [vec![("verb", "activate")], vec![("verb", "activate"), ("digest", "sha256:0")]] {
        ada.post(&path, &fields);
        assert_eq!(state(), "requested");
    }
    let fields = [("verb", "activate"), ("digest", &*digest)];
    assert_eq!(guest.post(&path, &fields).status, 404);
    assert_eq!(ada.post(&path, &fields).status, 303);
    assert_eq!(state(), "active");
    assert!(!ada.get("/").body.contains(&path));
    assert_eq!(ada.post(&path, &[("verb", "revoke"), ("digest", &*digest)]).status, 303);
    assert_eq!(state(), "revoked");
}

#[test]
fn a_link_signs_in_once_as_the_user_of_the_socket() {
    let place = asking();
    let (_daemon, address) = listening(&place, &[]);
    let path = format!("/{}", link(&place));
    let mut browser = Browser::at(&address);
    // What opens links by itself does not use it up.
    for _ in 0..2 {
        let page = browser.get(&path);
        assert!(page.status == 200 && page.body.contains("user://"), "{page:?}");
        is_sent_to_sign_in(&browser.get("/"));
    }
    assert_eq!(browser.post(&path, &[]).status, 303);
    assert!(is_inbox(&browser.get("/")));
    let mut other = Browser::at(&address);
    assert_eq!(other.post(&path, &[]).status, 401);
    is_sent_to_sign_in(&other.get("/"));
    // Over the network nobody makes one.
    let daemon_link = ask_by(&address, "efd_user_x", "POST", "/v1/console/link", "{}");
    assert_eq!(daemon_link.status, 401);
}

#[test]
fn a_token_makes_no_link() {
    let place = with_people();
    let (daemon, address) = listening(&place, &[]);
    let token = token(&daemon, "ada");
    ask_by(&address, &token, "POST", "/v1/console/link", "{}").problem(403, "token_forbidden");
}

#[test]
fn without_an_address_the_command_says_how_to_get_one() {
    let place = Place::seeded();
    let _daemon = place.serve(&[]);
    let ran = place.effectd(&["console", "--print"], None);
    assert_ne!(ran.code(), 0);
    assert!(ran.stderr().contains("serve --listen"), "{}", ran.stderr());
}

#[test]
fn a_restart_signs_everybody_out() {
    let place = with_people();
    let (daemon, address) = listening(&place, &[]);
    let browser = Browser::with(&address, &token(&daemon, "ada"));
    drop(daemon);
    let port = address.rsplit_once(':').unwrap().1;
    let _daemon = place.serve(&["--listen", &format!("127.0.0.1:{port}")]);
    is_sent_to_sign_in(&browser.get("/"));
}

#[test]
fn a_yes_is_for_the_digest_that_the_page_showed() {
    let place = with_people();
    let (daemon, address) = listening(&place, &[]);
    let id = held(&daemon, "a", "a.txt", "text");
    let mut browser = Browser::with(&address, &token(&daemon, "ada"));
    let path = format!("/console/approvals/{id}");
    let digest = digest_on(&browser.get(&path));
    let other = format!("hmac-sha256:{}", "0".repeat(64));
    for (fields, status) in [
        (vec![("verb", "approve")], 400),
        (vec![("verb", "approve"), ("digest", &other)], 409),
        (vec![("verb", "deny"), ("digest", &other)], 409),
        (vec![("verb", "nothing"), ("digest", &digest)], 400),
    ] {
        let reply = browser.post(&path, &fields);
        assert_eq!(reply.status, status, "{fields:?}: {reply:?}");
        // The page shows the question as it is now.
        assert_eq!(digest_on(&reply), digest);
        assert_eq!(state_of(&daemon, &id), "pending");
    }
    let reply = browser.post(&path, &[("verb", "approve"), ("digest", &digest)]);
    let to = header(&reply, "location").unwrap();
    assert_eq!((reply.status, to.as_str()), (303, format!("/?did={id}").as_str()));
    let after = browser.get(&to);
    assert!(after.body.contains("files.write_text: approved, done"), "{after:?}");
    until("the note is there", || place.note("a.txt").exists());
    let receipt = daemon.get("/v1/actions/a").json(200)["receipt"].clone();
    assert_eq!(
        (&receipt["approval"]["by"], &receipt["approval"]["digest"]),
        (&json!("account://home/ada"), &json!(digest))
    );
    // A second tab is late, and is told so.
    let late = browser.post(&path, &[("verb", "deny"), ("digest", &digest), ("reason", "no")]);
    assert!(late.status == 409 && late.body.contains("already decided"), "{late:?}");
    assert_eq!(receipts_of(&place, "a"), 1);
}

#[test]
fn a_no_reaches_the_receipt_with_its_reason() {
    let place = with_people();
    let (daemon, address) = listening(&place, &[]);
    let id = held(&daemon, "a", "a.txt", "text");
    let mut browser = Browser::with(&address, &token(&daemon, "ada"));
    let path = format!("/console/approvals/{id}");
    let digest = digest_on(&browser.get(&path));
    let reply = browser.post(&path, &[("verb", "deny"), ("digest", &digest), ("reason", "not on Sundays")]);
    assert_eq!(reply.status, 303);
    let receipt = daemon.get("/v1/receipts?q=action:a").json(200)["receipts"][0].clone();
    assert_eq!(receipt["approval"]["reason"], "not on Sundays", "{receipt}");
}

#[test]
fn who_may_not_decide_sees_no_button_and_decides_nothing() {
    let place = with_people();
    let (daemon, address) = listening(&place, &[]);
    let id = held(&daemon, "a", "a.txt", "text");
    let mut browser = Browser::with(&address, &token(&daemon, "guest"));
    let page = browser.get("/");
    assert!(is_inbox(&page) && !page.body.contains("name=\"verb\"") && !page.body.contains(&id), "{page:?}");
    let digest = daemon.get(&format!("/v1/approvals/{id}")).json(200)["digest"].as_str().unwrap().to_owned();
    for verb in ["approve", "deny", "always", "grant"] {
        let reply = browser.post(&format!("/console/approvals/{id}"), &[("verb", verb), ("digest", &digest)]);
        assert!(matches!(reply.status, 403 | 404), "{verb}: {reply:?}");
    }
    // Who acts for the planner sees its question, and no button: nobody decides about their own requests.
    let mut own = Browser::at(&address);
    assert_eq!(own.post(&format!("/{}", link(&place)), &[]).status, 303);
    for path in
        ["/".to_owned(), format!("/console/approvals/{id}"), format!("/console/approvals/{id}?how=edit")]
    {
        let page = own.get(&path);
        assert!(page.status == 200 && page.body.contains(&id), "{page:?}");
        assert!(!page.body.contains("name=\"verb\"") && !page.body.contains("name=\"pick\""), "{page:?}");
    }
    let pick = format!("{id}={digest}");
    let several = browser.post("/console/approvals", &[("verb", "approve"), ("pick", &pick)]);
    assert!(several.status == 200 && several.body.contains("class=\"note bad\""), "{several:?}");
    assert_eq!(state_of(&daemon, &id), "pending");
}

#[test]
fn several_are_decided_as_their_rows_were_shown() {
    let place = with_people();
    let (daemon, address) = listening(&place, &[]);
    let ids = ["a", "b", "c"].map(|name| held(&daemon, name, &format!("{name}.txt"), name));
    let mut browser = Browser::with(&address, &token(&daemon, "ada"));
    let page = browser.get("/");
    let picks: Vec<String> = ids
        .iter()
        .map(|id| {
            let start = page.body.find(&format!("value=\"{id}=")).unwrap();
            page.body[start + 7..].split('"').next().unwrap().to_owned()
        })
        .collect();
    let stale = format!("{}=hmac-sha256:{}", ids[1], "0".repeat(64));
    let fields =
        [("verb", "approve"), ("pick", picks[0].as_str()), ("pick", &stale), ("pick", picks[2].as_str())];
    let reply = browser.post("/console/approvals", &fields);
    assert_eq!(reply.status, 200, "{reply:?}");
    assert_eq!(reply.body.matches("class=\"note good\"").count(), 2, "{reply:?}");
    assert_eq!(reply.body.matches("class=\"note bad\"").count(), 1);
    let states = ids.each_ref().map(|id| state_of(&daemon, id));
    assert_eq!(states, ["approved", "pending", "approved"]);
}

#[test]
fn a_grant_and_always_say_what_they_would_do() {
    let place = with_people();
    let (daemon, address) = listening(&place, &[]);
    let id = held(&daemon, "a", "a.txt", "text");
    let path = format!("/console/approvals/{id}");
    let administers = Browser::with(&address, &token(&daemon, "eva"));
    let always = administers.get(&format!("{path}?how=always"));
    assert!(always.body.contains("home: files.write_text = allow"), "{always:?}");
    assert!(administers.get(&format!("{path}?how=grant")).body.contains("name=\"org\""));
    // Who only approves is offered neither for the whole organisation.
    let mut browser = Browser::with(&address, &token(&daemon, "ada"));
    let page = browser.get(&format!("{path}?how=grant"));
    assert!(page.body.contains("name=\"calls\"") && !page.body.contains("name=\"org\""), "{page:?}");
    let plain = browser.get(&path).body;
    assert!(plain.contains("how=grant") && !plain.contains("how=always"), "{plain}");
    let fields = [("verb", "grant"), ("digest", &*digest_on(&page)), ("calls", "3"), ("minutes", "5")];
    let reply = browser.post(&path, &fields);
    assert_eq!(reply.status, 303, "{reply:?}");
    let grants = daemon.get("/v1/grants").json(200);
    assert_eq!(grants["grants"][0]["calls_max"], 3, "{grants}");
}

#[test]
fn edited_parameters_run_after_their_preview_was_approved() {
    let place = with_people();
    let (daemon, address) = listening(&place, &[]);
    let id = held(&daemon, "a", "a.txt", "first\n");
    let mut browser = Browser::with(&address, &token(&daemon, "ada"));
    let path = format!("/console/approvals/{id}");
    let form = browser.get(&format!("{path}?how=edit"));
    assert!(form.body.contains("name=\"p.text\"") && form.body.contains("first\n</textarea>"), "{form:?}");
    // What is refused keeps what was typed.
    let fields = [("verb", "preview"), ("p.path", "/etc/passwd"), ("p.text", "second\r\n")];
    let refused = browser.post(&path, &fields);
    assert!(refused.status == 400 && refused.body.contains("value=\"/etc/passwd\""), "{refused:?}");
    assert!(refused.body.contains("second\n</textarea>"), "{refused:?}");
    let fields = [("verb", "preview"), ("p.path", "workspace/a.txt"), ("p.text", "second\r\n")];
    let preview = browser.post(&path, &fields);
    assert!(preview.status == 200 && preview.body.contains(">second</ins>"), "{preview:?}");
    let field = |name: &str| {
        let (_, rest) = preview.body.split_once(&format!("name=\"{name}\" value=\"")).unwrap();
        rest.split('"').next().unwrap().replace("&#34;", "\"")
    };
    let (digest, edited, params) = (digest_on(&preview), field("edited_digest"), field("params"));
    let fields = [("verb", "edit"), ("digest", &*digest), ("edited_digest", &*edited), ("params", &*params)];
    assert_eq!(browser.post(&path, &fields).status, 303);
    until("the note is there", || {
        std::fs::read_to_string(place.note("a.txt")).is_ok_and(|text| text == "second\n")
    });
}

#[test]
fn hostile_text_is_text() {
    let place = with_people();
    let (daemon, address) = listening(&place, &[]);
    let mut request = write_note("a", "a&b<i>.txt", "hello\n<b>bold</b>\n");
    // Such letters in the parameters would be quarantined before a person sees them.
    let reason = "</blockquote><img src=x> \u{2066}turn\u{2069} \u{1b}[2J\u{1b}]0;owned\u{7}\u{202e}evil zero\u{200b}width";
    request["rationale"] = json!({ "reason": reason });
    let view = daemon.post("/v1/actions?wait", &request).json(202);
    let id = view["approval"]["approval_id"].as_str().unwrap();
    let browser = Browser::with(&address, &token(&daemon, "ada"));
    let page = browser.get(&format!("/console/approvals/{id}"));
    assert_eq!(page.status, 200, "{page:?}");
    for text in ["‹U+202E›", "‹U+200B›", "‹U+2066›", "␛[2J", "␇"] {
        assert!(page.body.contains(text), "{text}: {}", page.body);
    }
    for text in ["<img src=x", "<b>", "<i>", "\u{202e}", "\u{200b}", "\u{2066}", "\u{1b}"] {
        assert!(!page.body.contains(text), "{text:?}");
    }
}

#[test]
fn a_long_parameter_is_shown_to_its_end() {
    let place = with_people();
    let (daemon, address) = listening(&place, &[]);
    let text = format!("{}{}HIDDEN-TAIL", "harmless ".repeat(300), " ".repeat(200));
    let id = held(&daemon, "a", "a.txt", &text);
    let browser = Browser::with(&address, &token(&daemon, "ada"));
    let page = browser.get(&format!("/console/approvals/{id}"));
    assert!(page.body.contains("HIDDEN-TAIL</code>"), "{page:?}");
}

#[test]
fn the_console_hears_live_events_with_its_cookie() {
    let place = with_people();
    let (daemon, address) = listening(&place, &[]);
    let browser = Browser::with(&address, &token(&daemon, "ada"));
    let mut stream = connect(&address);
    let head =
        format!("GET /console/stream HTTP/1.1\r\nhost: {address}\r\ncookie: {}\r\n\r\n", browser.cookie);
    stream.write_all(head.as_bytes()).unwrap();
    let mut lines = std::io::BufRead::lines(std::io::BufReader::new(stream)).map_while(Result::ok);
    assert!(lines.any(|line| line == ":"), "it is open");
    held(&daemon, "a", "a.txt", "text");
    assert!(lines.any(|line| line == "event: action_approval_request"));
}

#[test]
fn somebody_new_makes_an_action_happen_and_sees_it() {
    let place = Place::seeded();
    let (_daemon, address) = listening(&place, &[]);
    let mut browser = Browser::at(&address);
    browser.post(&format!("/{}", link(&place)), &[]);
    let first = browser.get("/");
    assert!(first.body.contains("effectd mcp install"), "{first:?}");
    // What it offers is what the policy permits this person.
    let field = |name: &str| {
        let (_, rest) = first.body.split_once(&format!("name=\"{name}\" value=\"")).unwrap();
        rest.split('"').next().unwrap().to_owned()
    };
    let [action, subject, space] = ["action_id", "subject", "space"].map(field);
    assert_eq!((subject.as_str(), space.as_str()), ("agent://planner@deviceA", "shared:household"));
    let fields = [("action_id", &*action), ("subject", &*subject), ("space", &*space)];
    let reply = browser.post("/console/try", &fields);
    let seen = browser.get(&header(&reply, "location").unwrap());
    assert!(seen.body.contains("Your action: done"), "{seen:?}");
    assert!(place.note("effectd-hello.txt").exists());
    // The policy judges it like any other.
    let denied = browser.post(
        "/console/try",
        &[("action_id", "b"), ("subject", "agent://nobody@x"), ("space", "shared:household")],
    );
    let seen = browser.get(&header(&denied, "location").unwrap());
    assert!(seen.body.contains("Your action: denied"), "{seen:?}");
}

/// People who look, operate and act, beside those of [`with_people`]; root operates.
fn with_more_people() -> Place {
    let place = with_people();
    let file = place.state().join("policy/policy.toml");
    let text = std::fs::read_to_string(&file).unwrap();
    let more = r#"
[principals."account://home/mia"]
subjects = []
roles = ["look"]

[principals."account://home/gil"]
subjects = ["agent://planner@deviceA"]
orgs = { home = "member" }
"#;
    std::fs::write(&file, text + more).unwrap();
    place
}

/// A browser of the user that the daemon runs as.
pub fn operator(place: &Place, address: &str) -> Browser {
    let mut browser = Browser::at(address);
    assert_eq!(browser.post(&format!("/{}", link(place)), &[]).status, 303);
    browser
}

/// Asks for a note whose letters a safety check stops, and returns the cause of the dead letter.
fn quarantined(daemon: &Daemon, action: &str) -> String {
    let refused = daemon.post("/v1/actions?wait", &write_note(action, "q.txt", "from \u{202e}right to left"));
    refused.problem(403, "safety_quarantined");
    until("the letter is there", || daemon.get("/v1/dlq").json(200)["letters"] != json!([]));
    daemon.get("/v1/dlq").json(200)["letters"][0]["cause"].as_str().unwrap().to_owned()
}

#[test]
fn all_is_well_only_while_nothing_waits_for_an_operator() {
    let place = with_more_people();
    let (daemon, address) = listening(&place, &[]);
    let browser = operator(&place, &address);
    let overview = || browser.get("/console/operations").body;
    assert!(overview().contains("All is well."), "{}", overview());
    quarantined(&daemon, "q");
    until("the figure is read", || overview().contains("To be reviewed: 1 quarantined action"));
    assert!(!overview().contains("All is well."));
    // Who does not see what waits is not told that nothing does.
    let guest = Browser::with(&address, &token(&daemon, "guest"));
    let page = guest.get("/console/operations").body;
    assert!(page.contains("The daemon is up.") && !page.contains("All is well."), "{page}");
}

#[test]
fn a_requeue_leads_back_to_its_cause_and_says_what_became_of_it() {
    let place = with_more_people();
    let (daemon, address) = listening(&place, &[]);
    let cause = quarantined(&daemon, "q");
    let mut browser = operator(&place, &address);
    let path = format!("/console/operations/letters/{cause}");
    let page = browser.get(&path).body;
    let time = page.split("<time ").nth(1).unwrap().split('<').next().unwrap();
    assert!(time.ends_with(" UTC"), "a time has its last digit and its zone: {time}");
    let (_, rest) = page.split_once("do=requeue_letters&amp;").unwrap();
    let query = rest.split('"').next().unwrap().replace("&amp;", "&");
    let fields: Vec<_> = query.split('&').map(|field| field.split_once('=').unwrap()).collect();
    assert_eq!(fields, [("cause", &*cause), ("letters", "0"), ("action", "q")]);
    let fields = [&fields[..], &[("do", "requeue_letters"), ("reason", "reviewed")]].concat();
    let reply = browser.post("/console/operations/change", &fields);
    let to = header(&reply, "location").unwrap();
    assert!(reply.status == 303 && to.starts_with(&format!("{path}?receipt=")), "{reply:?}");
    let back = browser.get(&to).body;
    assert!(back.contains("/console/actions?q=action%3A%22q%22"), "{back}");
    let receipt = to.split(['=', '&']).nth(1).unwrap();
    let receipt = daemon.get(&format!("/v1/receipts/{receipt}")).json(200);
    assert_eq!(receipt["tool_id"], "effectd.requeue_letters", "{receipt}");
}

#[test]
fn who_only_looks_is_offered_no_change_of_sessions() {
    let place = with_more_people();
    let (daemon, address) = listening(&place, &[]);
    let body = json!({ "space_id": "shared:household", "subject_id": "agent://planner@deviceA", "title": "the week" });
    assert_eq!(daemon.post("/v1/sessions", &body).status, 200);
    let looks = Browser::with(&address, &token(&daemon, "mia"));
    let page = looks.get("/console/operations/access").body;
    assert!(page.contains("the week") && !page.contains("/console/operations/change"), "{page}");
    let page = operator(&place, &address).get("/console/operations/access").body;
    assert!(page.contains("do=end_session"), "{page}");
}

#[test]
fn an_undo_is_offered_to_who_acts_for_the_subject() {
    let place = with_more_people();
    let (daemon, address) = listening(&place, &[]);
    let made = json!({
        "action_id": "dir", "tool_id": "files.make_dir", "subject_id": "agent://planner@deviceA", "space_id": "shared:household",
        "params": { "path": "workspace/dir", "space_id": "shared:household" }, "policy_ctx": {}, "dry_run": false,
    });
    daemon.post("/v1/actions?wait", &made).json(200);
    let acts = operator(&place, &address);
    assert!(acts.get("/console/actions/dir").body.contains("/undo\""));
    let receipt =
        daemon.get("/v1/actions/dir").json(200)["receipt"]["receipt_id"].as_str().unwrap().to_owned();
    let mut looks = Browser::with(&address, &token(&daemon, "mia"));
    let path = format!("/console/actions/{receipt}");
    let page = looks.get(&path);
    assert!(page.status == 200 && !page.body.contains("/undo\""), "{page:?}");
    let refused = looks.post(&format!("{path}/undo"), &[("action_id", "x")]);
    assert!(refused.status == 404 && place.note("dir").exists(), "{refused:?}");
    // A name is no pattern.
    assert_eq!(acts.get("/console/actions/*").status, 404);
    assert_eq!(acts.get("/console/actions/di*").status, 404);
}

#[test]
fn the_overview_shows_what_is_left_of_budgets() {
    let place = with_more_people();
    let (daemon, address) = listening(&place, &["--set", "control.budget_calls_max=2"]);
    let browser = operator(&place, &address);
    let page = browser.get("/console/operations").body;
    assert!(page.contains("Nobody has used any of 2 calls in 1d."), "{page}");
    held(&daemon, "held", "held.txt", "x");
    let made = json!({
        "action_id": "dir", "tool_id": "files.make_dir", "subject_id": "agent://planner@deviceA", "space_id": "shared:household",
        "params": { "path": "workspace/dir", "space_id": "shared:household" }, "policy_ctx": {},
    });
    daemon.post("/v1/actions?wait", &made).json(200);
    let page = browser.get("/console/operations").body;
    assert!(
        page.contains("Each subject has 2 calls in 1d.") && page.contains(">1 call left</span>"),
        "{page}"
    );
    let guest = Browser::with(&address, &token(&daemon, "guest"));
    assert!(!guest.get("/console/operations").body.contains("2 calls"));
}

#[test]
fn changed_files_show_which_past_decisions_flip() {
    let place = with_more_people();
    let (daemon, address) = listening(&place, &[]);
    let made = json!({
        "action_id": "dir", "tool_id": "files.make_dir", "subject_id": "agent://planner@deviceA", "space_id": "shared:household",
        "params": { "path": "workspace/dir", "space_id": "shared:household" }, "policy_ctx": {},
    });
    let done = daemon.post("/v1/actions?wait", &made).json(200);
    let mut browser = operator(&place, &address);
    let path = "/console/operations/policy";
    let page = browser.get(path).body;
    let (_, files) = page.split_once("name=\"text\"").unwrap();
    assert!(files.contains("\nversion = 1\n") && files.contains("band = &#34;GREEN&#34;"), "{page}");
    let mut sent = Vec::new();
    for file in daemon.get("/v1/policy/files").json(200)["files"].as_array().unwrap() {
        // As a browser sends it.
        let text = file["text"].as_str().unwrap().replace("\"GREEN\"", "\"BLACK\"").replace('\n', "\r\n");
        sent.push(("name", file["name"].as_str().unwrap().to_owned()));
        sent.push(("text", text));
    }
    let closed: Vec<_> = sent.iter().map(|(name, value)| (*name, value.as_str())).collect();
    let page = browser.post(path, &closed);
    let receipt = done["receipt"]["receipt_id"].as_str().unwrap();
    assert!(page.status == 200 && page.body.contains("1 decision: 0 stay, 1 flip, 0 unknowable"), "{page:?}");
    for part in [&format!("/console/actions/{receipt}\">dir</a>"), "<strong>deny by space</strong>", "BLACK"]
    {
        assert!(page.body.contains(part), "{part}: {page:?}");
    }
    let wrong = browser.post(path, &[("name", "policy.toml"), ("text", "version = 1\r\nnonsense = 1\r\n")]);
    assert!(wrong.status == 422 && wrong.body.contains("policy.toml:2:1</code> unknown field"), "{wrong:?}");
    assert!(wrong.body.contains("nonsense = 1"), "what was typed stays");
    // Who looks pastes files, since those in force stay with the users of the machine.
    let mut looks = Browser::with(&address, &token(&daemon, "mia"));
    let page = looks.get(path).body;
    assert!(page.contains("name=\"text\"") && !page.contains("GREEN"), "{page}");
    let page = looks.post(path, &closed);
    assert!(page.body.contains("1 flip"), "{page:?}");
    let mut guest = Browser::with(&address, &token(&daemon, "guest"));
    assert!(!guest.get(path).body.contains("name=\"text\""));
    assert_eq!(guest.post(path, &closed).status, 403);
}

#[test]
fn a_session_that_is_out_of_reach_does_not_hide_the_policy() {
    let place = with_more_people();
    let (daemon, address) = listening(&place, &[]);
    let gil = token(&daemon, "gil");
    let body = json!({ "space_id": "shared:household", "subject_id": "agent://planner@deviceA", "title": "the week" });
    ask_by(&address, &gil, "POST", "/v1/sessions", &body.to_string()).json(200);
    let browser = Browser::with(&address, &gil);
    let page = browser.get("/console/operations/policy");
    assert!(page.status == 200 && page.body.contains("the week"), "{page:?}");
    let file = place.state().join("policy/policy.toml");
    let text = std::fs::read_to_string(&file).unwrap();
    std::fs::write(&file, text.replace("orgs = { home = \"member\" }", "")).unwrap();
    assert_eq!(place.effectd(&["policy", "reload", "--yes"], None).code(), 0);
    let page = browser.get("/console/operations/policy");
    assert!(page.status == 200 && !page.body.contains("the week"), "{page:?}");
}

#[test]
fn a_page_counts_as_one_request() {
    let place = Place::seeded();
    let (daemon, address) = listening(&place, &[]);
    assert_eq!(operator(&place, &address).get("/console/operations").status, 200);
    let metrics = daemon.get("/metrics").body;
    assert!(metrics.contains("route=\"/console/operations\""), "{metrics}");
    assert!(!metrics.contains("route=\"/v1/dlq/causes\""), "{metrics}");
}

#[test]
fn the_command_prints_the_link_and_waits_for_no_browser() {
    let place = Place::seeded();
    let (_daemon, _address) = listening(&place, &[]);
    let (bin, held) = (place.path("bin"), place.path("held"));
    std::fs::create_dir(&bin).unwrap();
    assert!(Command::new("mkfifo").arg(&held).status().unwrap().success());
    // A browser that runs in the foreground.
    let opener =
        format!("#!/bin/sh\ncp \"$1\" '{0}/page'\nread -r _ <'{1}'\n", bin.display(), held.display());
    std::fs::write(bin.join("xdg-open"), opener).unwrap();
    std::fs::set_permissions(bin.join("xdg-open"), PermissionsExt::from_mode(0o755)).unwrap();
    let path = format!("PATH={}:/usr/bin:/bin", bin.display());
    let folder = format!("XDG_RUNTIME_DIR={}", bin.display());
    let command = ["env", &path, &folder, "DISPLAY=:0", program(), "console"];
    let terminal = Terminal::start(&place, &command, 200, 10);
    assert_eq!(terminal.ended(), "0");
    let screen = terminal.wait_for("the desktop opens it");
    let link = screen.split_whitespace().find(|word| word.contains("/console/link/")).unwrap();
    until("the browser has the link", || {
        std::fs::read_to_string(bin.join("page")).is_ok_and(|page| page.contains(link))
    });
    std::fs::write(&held, "\n").unwrap();
}
