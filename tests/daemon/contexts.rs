//! Contexts: which daemon at a URL a command speaks to, and what it says before it changes something there.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::process::{Child, Stdio};
use std::sync::{Arc, Mutex};

use rustls::pki_types::PrivatePkcs8KeyDer;
use rustls::{ServerConfig, ServerConnection, StreamOwned};
use serde_json::{Value, json};

use crate::approvals::asking;
use crate::harness::{Place, Ran, Serving, run_to_end, until};

const TOKEN: &str = "efd_user_0199f6a2_canary5e3c1a90b7d2";

/// Runs the program with a folder for contexts, and more in its environment.
fn run(place: &Place, arguments: &[&str], environment: &[(&str, &str)]) -> Ran {
    place.effectd_on(arguments, Some(TOKEN), |command| {
        command.env("XDG_CONFIG_HOME", place.path("config")).envs(environment.iter().copied());
    })
}

fn add(place: &Place, name: &str, url: &str) {
    let added = run(place, &["context", "add", name, "--url", url, "--token-file", "-"], &[]);
    assert_eq!(added.code(), 0, "{}", added.stderr());
}

/// A port on which nobody listens.
fn closed_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

#[test]
fn a_context_has_a_url_and_a_token_that_nobody_else_reads() {
    let place = Place::new();
    let mut said = String::new();
    let mut check = |arguments: &[&str], code: i32, says: &str| {
        let ran = run(&place, &[&["context"], arguments].concat(), &[]);
        let words = ran.stdout() + &ran.stderr();
        assert_eq!(ran.code(), code, "{arguments:?}: {words}");
        assert!(words.contains(says), "{arguments:?}: {words}");
        said += &words;
    };
    let url = "http://127.0.0.1:7070";
    check(&["show", "-o", "json"], 0, "\"name\": \"local\"");
    check(&["add", "home", "--url", url, "--token-file", "-"], 0, "effectd context use home");
    check(&["add", "home", "--url", url, "--token-file", "-"], 2, "effectd context remove home");
    check(&["add", "far", "--url", "http://example.org", "--token-file", "-"], 2, "use https");
    check(
        &["add", "far", "--url", "https://example.org", "--token-file", "-", "--ca", "no.pem"],
        2,
        "no.pem",
    );
    check(&["add", "far", "--url", url], 2, "--token-file");
    check(&["add", "far", "--url", url, "--token-file", "no.token"], 2, "no.token");
    check(&["add", "local", "--url", url, "--token-file", "-"], 2, "this machine");
    check(&["add", "../far", "--url", url, "--token-file", "-"], 2, "a name has letters");
    check(&["show"], 0, "local");
    check(&["use", "nowhere"], 2, "no context \"nowhere\"");
    check(&["use", "home"], 0, "the current context is home");
    check(&["show"], 0, "efd_user_0199f6a2");
    check(&["list", "-o", "json"], 0, url);
    let folder = place.path("config/effectd");
    let token = folder.join("tokens/home");
    for (path, mode) in [
        (folder.clone(), 0o700),
        (folder.join("tokens"), 0o700),
        (folder.join("contexts.toml"), 0o600),
        (token.clone(), 0o600),
    ] {
        let found = std::fs::metadata(&path).unwrap().permissions().mode() & 0o777;
        assert_eq!(found, mode, "{}", path.display());
    }
    assert_eq!(std::fs::read_to_string(&token).unwrap(), TOKEN);
    // A token that others may read is not sent.
    std::fs::set_permissions(&token, std::fs::Permissions::from_mode(0o644)).unwrap();
    let open = run(&place, &["tools", "list"], &[]);
    assert_eq!(open.code(), 2, "{}", open.stderr());
    assert!(open.stderr().contains("chmod 600"), "{}", open.stderr());
    check(&["remove", "home"], 0, "removed home");
    check(&["remove", "home"], 2, "no context \"home\"");
    check(&["remove", "local"], 2, "it stays");
    check(&["show", "-o", "json"], 0, "\"name\": \"local\"");
    assert!(!token.exists());
    assert!(!said.contains("canary"), "{said}");
    // Without a folder for them there are no contexts, and everything else works.
    let homeless = place.effectd(&["context", "use", "local"], None);
    assert!(homeless.stderr().contains("set HOME or XDG_CONFIG_HOME"), "{}", homeless.stderr());
    assert_eq!(place.effectd(&["tools", "list"], None).code(), 0);
}

#[test]
fn a_flag_beats_the_environment_and_that_the_current_context() {
    let place = Place::seeded();
    let port = closed_port();
    // All are this machine, and nobody answers there: the message names the one that was tried.
    let urls = [2, 3, 4, 5].map(|n| format!("http://127.0.0.{n}:{port}"));
    let [current, other, of_flag, of_variable] = urls.each_ref().map(String::as_str);
    add(&place, "current", current);
    add(&place, "other", other);
    let tried = |arguments: &[&str], environment: &[(&str, &str)]| {
        let ran = run(&place, &[&["tools", "list"], arguments].concat(), environment);
        let said = ran.stderr();
        let named: Vec<&str> = urls.iter().map(String::as_str).filter(|url| said.contains(url)).collect();
        match (ran.code(), &named[..]) {
            (75, [url]) => (*url).to_owned(),
            (0, []) => "here".to_owned(),
            (2, []) => said,
            _ => panic!("{arguments:?} {environment:?}: {} {said}", ran.code()),
        }
    };
    let token = ("EFFECTD_TOKEN", TOKEN);
    let variable = [("EFFECTD_URL", of_variable), token];
    assert_eq!(tried(&[], &[]), "here");
    assert_eq!(run(&place, &["context", "use", "current"], &[]).code(), 0);
    for (arguments, environment, target) in [
        (&["--context", "other"][..], &variable[..], other),
        (&["--context", "other"], &[], other),
        (&[], &[], current),
        (&["--url", of_flag], &[token], of_flag),
        (&[], &variable, of_variable),
        (&[], &[("EFFECTD_CONTEXT", "other")], other),
        (&[], &[("EFFECTD_CONTEXT", "")], current),
        (&["--url", of_flag], &variable, of_flag),
        (&["--context", "other"], &[("EFFECTD_STATE", ".effectd")], other),
        (&[], &[("EFFECTD_STATE", ".effectd")], "here"),
        (&[], &[("EFFECTD_SOCKET", "no.sock")], "here"),
        (&["--context", "local"], &variable, "here"),
        (&["--state", ".effectd"], &variable, "here"),
        (&["--socket", "no.sock"], &[("EFFECTD_CONTEXT", "other")], "here"),
        (&["--set", "gateway.socket=no.sock"], &[], "here"),
        (&["--set", "gateway.socket_mode=0660"], &[], current),
    ] {
        assert_eq!(tried(arguments, environment), target, "{arguments:?} {environment:?}");
    }
    for (arguments, environment, says) in [
        (&["--context", "other", "--url", of_flag][..], &[token][..], "--context and --url name two targets"),
        (&["--context", "other", "--state", ".effectd"], &[], "--context and --state or --socket"),
        (
            &[],
            &[("EFFECTD_CONTEXT", "other"), ("EFFECTD_STATE", ".effectd")],
            "EFFECTD_CONTEXT and EFFECTD_STATE",
        ),
        (&["--context", "nowhere"], &[], "no context \"nowhere\""),
        (&["--url", of_flag], &[], "set EFFECTD_TOKEN"),
    ] {
        let ran = run(&place, &[&["tools", "list"], arguments].concat(), environment);
        assert_eq!(ran.code(), 2, "{arguments:?} {environment:?}: {}", ran.stderr());
        assert!(ran.stderr().contains(says), "{arguments:?} {environment:?}: {}", ran.stderr());
    }
}

#[test]
fn what_destroys_goes_to_a_context_only_if_the_line_names_it() {
    let place = Place::seeded();
    let url = format!("http://127.0.0.1:{}", closed_port());
    add(&place, "far", &url);
    assert_eq!(run(&place, &["context", "use", "far"], &[]).code(), 0);
    for line in [
        &["dlq", "drop", "0", "--yes"][..],
        &["dlq", "purge", "0", "--yes"],
        &["quarantine", "shred", "0", "--yes"],
        &["secrets", "delete", "home", "token", "--yes"],
        &["store", "erase", "--subject", "agent://nobody@deviceA", "--force", "--yes"],
        &["store", "retain", "--yes"],
        &["keys", "rotate", "--yes"],
        &["policy", "set-mode", "--org", "home", "--tool", "files.copy", "deny", "--yes"],
        &["policy", "reload", "--yes"],
        &["restore", "copy", "--keys", "keys"],
    ] {
        for environment in [&[("EFFECTD_CONTEXT", "far")][..], &[("EFFECTD_URL", url.as_str())], &[]] {
            let ran = run(&place, line, environment);
            assert_eq!(ran.code(), 2, "{line:?}: {}", ran.stderr());
            assert!(ran.stderr().contains("name it with --context"), "{line:?}: {}", ran.stderr());
        }
        let named = run(&place, &[line, &["--context", "far"]].concat(), &[]);
        // `restore` makes a state on this machine.
        let (code, says) = match line[0] {
            "restore" => (2, "works on this machine; leave out --context"),
            _ => (75, url.as_str()),
        };
        assert_eq!(named.code(), code, "{line:?}: {}", named.stderr());
        assert!(named.stderr().contains(says), "{line:?}: {}", named.stderr());
        let here = run(&place, &[line, &["--context", "local"]].concat(), &[]);
        assert!(!here.stderr().contains("--context") && here.code() != 75, "{line:?}: {}", here.stderr());
    }
    // What works on this machine alone does so whatever is current, and takes no context.
    assert_eq!(run(&place, &["config", "show"], &[]).code(), 0);
    for line in
        [&["config", "show", "--context", "far"][..], &["doctor", "--url", &url], &["serve", "--url", &url]]
    {
        let ran = run(&place, line, &[]);
        assert_eq!(ran.code(), 2, "{line:?}: {}", ran.stderr());
        assert!(ran.stderr().contains("works on this machine"), "{line:?}: {}", ran.stderr());
    }
    // Nothing else needs a name.
    assert_eq!(run(&place, &["dlq", "list"], &[]).code(), 75);
}

/// Answers one request of a connection: who asks, to those with the token, and a refusal to everything else. Hangs up when an action
/// is invoked, and answers if that is repeated with the same key. Remembers requests.
fn answer(mut stream: impl Read + Write, seen: &Mutex<Vec<String>>) {
    let mut request = Vec::new();
    let mut byte = [0];
    while !request.ends_with(b"\r\n\r\n") && stream.read_exact(&mut byte).is_ok() {
        request.push(byte[0]);
    }
    let request = String::from_utf8_lossy(&request).into_owned();
    let header = |name: &str| {
        let mut headers = request.lines().filter_map(|line| line.split_once(": "));
        headers.find(|(found, _)| *found == name).map(|(_, value)| value)
    };
    // A connection that is closed with an unread body may lose the answer.
    let mut body = vec![0; header("content-length").map_or(0, |length| length.parse().unwrap())];
    let Some(line) = request.lines().next().filter(|_| stream.read_exact(&mut body).is_ok()) else { return };
    let line = [line, header("idempotency-key").unwrap_or_default()].join(" ").trim_end().to_owned();
    let is_repeated = seen.lock().unwrap().contains(&line);
    seen.lock().unwrap().push(line.clone());
    let problem = |status: u16, code: &str| {
        json!({ "type": format!("urn:effectd:problem:{code}"), "title": "t", "status": status, "detail": "d", "code": code,
            "retryable": false })
    };
    let (status, body) = if !request.contains(&format!("authorization: Bearer {TOKEN}\r\n")) {
        (401, problem(401, "unauthenticated"))
    } else if line.starts_with("GET /v1/whoami ") {
        (
            200,
            json!({ "principal": "account://home/ada", "kind": "user", "org": "home", "state_id": "00c0ffee" }),
        )
    } else if line.contains("/actions/invoke ") {
        if !is_repeated {
            return;
        }
        let invocation = json!({ "id": "s/1", "status": "completed", "result": { "n": 1 } });
        (200, json!({ "invocation": invocation, "result": { "n": 1 } }))
    } else {
        (403, problem(403, "operators_only"))
    };
    let body = body.to_string();
    let length = body.len();
    let head = format!("HTTP/1.1 {status} x\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n");
    let _ = stream.write_all((head + &body).as_bytes()).and_then(|()| stream.flush());
}

/// Serves [`answer`] until the test ends; returns the port, and the requests that came.
fn served(tls: Option<Arc<ServerConfig>>) -> (u16, Arc<Mutex<Vec<String>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let (port, seen) = (listener.local_addr().unwrap().port(), Arc::<Mutex<Vec<String>>>::default());
    let requests = seen.clone();
    std::thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            match &tls {
                None => answer(stream, &requests),
                Some(tls) => {
                    let connection = ServerConnection::new(tls.clone()).unwrap();
                    answer(StreamOwned::new(connection, stream), &requests);
                }
            }
        }
    });
    (port, seen)
}

#[test]
fn a_change_says_its_target_first_and_a_look_does_not() {
    let place = Place::new();
    let (port, seen) = served(None);
    let url = format!("http://127.0.0.1:{port}");
    add(&place, "far", &url);
    let target = format!("effectd: target {url} (context \"far\"), state 00c0ffee, as account://home/ada\n");
    let look = run(&place, &["sessions", "list", "--context", "far"], &[]);
    assert_eq!(look.code(), 3, "{}", look.stderr());
    assert!(!look.stderr().contains("target"), "{}", look.stderr());
    assert_eq!(*seen.lock().unwrap(), ["GET /v1/sessions HTTP/1.1"]);
    seen.lock().unwrap().clear();
    let change = run(&place, &["pause", "--yes", "--context", "far"], &[]);
    assert_eq!(change.code(), 3, "{}", change.stderr());
    assert!(change.stderr().starts_with(&target), "{}", change.stderr());
    assert_eq!(change.stderr().matches("target").count(), 1);
    let requests = seen.lock().unwrap().clone();
    assert_eq!(requests, ["GET /v1/whoami HTTP/1.1", "POST /v1/operations?preview=true HTTP/1.1"]);
    // A token that is not accepted changes nothing, and the message says whose it is.
    let wrong = run(&place, &["pause", "--yes", "--url", &url], &[("EFFECTD_TOKEN", "wrong")]);
    assert_eq!(wrong.code(), 69, "{}", wrong.stderr());
    let says = format!("{url} does not accept the token of EFFECTD_TOKEN");
    assert!(wrong.stderr().contains(&says), "{}", wrong.stderr());
}

#[test]
fn a_change_here_says_its_target_and_a_look_does_not() {
    let place = Place::seeded();
    let daemon = place.serve(&[]);
    let said = |line: &[&str]| {
        let ran = run(&place, line, &[]);
        assert_eq!(ran.code(), 0, "{line:?}: {}", ran.stderr());
        ran.stderr()
    };
    let state = std::fs::read_to_string(place.state().join("id")).unwrap();
    let says = format!(", state {}, as user://", state.trim());
    for change in [&["pause", "--yes"][..], &["resume", "--yes", "-o", "json"]] {
        let told = said(change);
        let (first, rest) = told.split_once('\n').unwrap();
        assert!(first.starts_with("effectd: target ") && first.contains(&says), "{told}");
        assert!(first.contains("run/effectd.sock") && !rest.contains("target"), "once: {told}");
    }
    for look in [&["sessions", "list"][..], &["sessions", "list", "-o", "json"], &["policy", "check"]] {
        assert!(!said(look).contains("target"), "{look:?}");
    }
    assert_eq!(daemon.stop(), 0);
    let direct = format!("directly, state {}\n", state.trim());
    assert!(said(&["pause", "--yes"]).contains(&direct));
}

#[test]
fn a_lost_answer_is_asked_for_again_with_the_same_key() {
    let place = Place::new();
    let (port, seen) = served(None);
    let url = format!("http://127.0.0.1:{port}");
    let line =
        ["actions", "run", "--integration", "files", "--action", "list", "--session", "s", "--url", &url];
    let ran = run(&place, &line, &[("EFFECTD_TOKEN", TOKEN)]);
    assert_eq!(ran.json(0), json!({ "n": 1 }));
    assert!(ran.stderr().contains("waiting for the daemon"), "{}", ran.stderr());
    let requests = seen.lock().unwrap().clone();
    let [who, first, health, second] = &requests[..] else { panic!("{requests:?}") };
    assert!(who.starts_with("GET /v1/whoami ") && health.starts_with("GET /healthz "), "{requests:?}");
    assert!(first.starts_with("POST /s/actions/invoke HTTP/1.1 "), "it has a key: {first}");
    assert_eq!(first, second);
}

#[test]
fn a_daemon_is_trusted_by_its_certificate_and_name() {
    let place = Place::new();
    let made = |name: &str| rcgen::generate_simple_self_signed([name.to_owned()]).unwrap();
    let (own, other) = (made("localhost"), made("localhost"));
    std::fs::write(place.path("own.pem"), own.cert.pem()).unwrap();
    std::fs::write(place.path("other.pem"), other.cert.pem()).unwrap();
    let key = PrivatePkcs8KeyDer::from(own.signing_key.serialize_der());
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
    let config = config.with_no_client_auth().with_single_cert(vec![own.cert.der().clone()], key.into());
    let (port, seen) = served(Some(Arc::new(config.unwrap())));
    let look = |host: &str, ca: &str| {
        let url = format!("https://{host}:{port}");
        let add = ["context", "add", "tls", "--url", &url, "--token-file", "-", "--ca", ca];
        assert_eq!(run(&place, &add, &[]).code(), 0);
        let ran = run(&place, &["sessions", "list", "--context", "tls"], &[]);
        assert_eq!(run(&place, &["context", "remove", "tls"], &[]).code(), 0);
        (ran.code(), ran.stderr())
    };
    let (code, said) = look("localhost", "own.pem");
    assert!(code == 3 && said.contains("operators_only"), "{code} {said}");
    assert_eq!(seen.lock().unwrap().len(), 1);
    for (host, ca) in [("127.0.0.1", "own.pem"), ("localhost", "other.pem")] {
        let (code, said) = look(host, ca);
        assert!(code == 69 && said.contains("cannot be trusted"), "{host} {ca}: {code} {said}");
        assert!(said.contains("--ca") && said.contains("context \"tls\""), "{said}");
    }
    // Nobody who is not trusted has seen the token.
    assert_eq!(seen.lock().unwrap().len(), 1);
}

/// A daemon that listens at a TCP address. Killed when the test ends.
pub struct Listening {
    child: Child,
    pub url: String,
}

impl Listening {
    pub fn start(place: &Place) -> Self {
        let log = std::fs::File::create(place.path("listening.jsonl")).unwrap();
        let serve = ["serve", "--state", ".effectd", "--listen", "127.0.0.1:0"];
        let child = place.command(&serve).stdin(Stdio::null()).stderr(log).spawn().unwrap();
        let mut daemon = Self { child, url: String::new() };
        let mut line = String::new();
        BufReader::new(daemon.child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let url = line.trim().strip_prefix("listening on ");
        daemon.url = url.unwrap_or_else(|| panic!("the daemon says where it listens: {line:?}")).to_owned();
        daemon
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn an_agent_whose_question_expires_ends_as_denied() {
    let place = asking();
    std::fs::write(place.state().join("config.toml"), "[approvals]\ninteractive_ms_max = 1000\n").unwrap();
    let daemon = Listening::start(&place);
    let create =
        ["sessions", "create", "--space", "shared:household", "--subject", "agent://planner@deviceA"];
    let create = [&create[..], &["--title", "week", "--yes", "-o", "json"]].concat();
    let session = place.effectd(&create, None).json(0);
    let params = json!({ "path": "workspace/late.txt", "text": "late" }).to_string();
    let run = ["actions", "run", "--integration", "files", "--action", "write_text", "--params", &params];
    let mut agent = place.command(&run);
    agent.env("EFFECTD_URL", &daemon.url).env("EFFECTD_TOKEN", session["token"].as_str().unwrap());
    let ran = run_to_end(agent, "");
    assert_eq!((ran.code(), ran.stdout().as_str()), (3, ""), "{}", ran.stderr());
    assert!(ran.stderr().contains("expired"), "{}", ran.stderr());
    assert!(!place.note("late.txt").exists());
}

#[test]
fn an_agent_waits_for_a_person_and_gets_the_result() {
    let place = asking();
    let daemon = Listening::start(&place);
    let create =
        ["sessions", "create", "--space", "shared:household", "--subject", "agent://planner@deviceA"];
    let create = [&create[..], &["--title", "week", "--yes", "-o", "json"]].concat();
    let session = place.effectd(&create, None).json(0);
    let token = session["token"].as_str().unwrap();
    let state = std::fs::read_to_string(place.state().join("id")).unwrap();
    let agent = |arguments: &[&str]| {
        let mut command = place.command(&[&["actions"], arguments].concat());
        command.env("EFFECTD_URL", &daemon.url).env("EFFECTD_TOKEN", token);
        command
    };
    let look = |arguments: &[&str]| run_to_end(agent(arguments), "");
    let listed = look(&["list", "-o", "json"]).json(0);
    let write = listed.as_array().unwrap().iter().find(|action| action["action"] == "write_text").unwrap();
    assert_eq!((&write["integration"], &write["mode"]), (&json!("files"), &json!("require_approval")));
    assert!(look(&["list"]).stdout().contains("require_approval"));
    assert!(look(&["guide", "--integration", "files"]).stdout().contains("write_text"));
    assert_eq!(look(&["guide", "--integration", "nothing"]).code(), 1);
    // Quotes, line breaks and what a shell would read arrive as they are.
    let text = "a \"quoted\" \\ line\n'and' $(another) `one`";
    let write = ["run", "--integration", "files", "--action", "write_text", "--params", "-"];
    let decided = |verb: &str, name: &str| {
        let params =
            json!({ "path": format!("workspace/{name}"), "text": text, "space_id": "shared:household" });
        let mut child = agent(&write).spawn().unwrap();
        child.stdin.take().unwrap().write_all(params.to_string().as_bytes()).unwrap();
        let mut pending = Value::Null;
        until("the question is asked", || {
            let listed = place.effectd(&["approvals", "list", "-o", "json"], None).json(0);
            pending = listed[0]["approval_id"].clone();
            pending.is_string()
        });
        assert!(child.try_wait().unwrap().is_none(), "it waits for the decision");
        let done = place.effectd(&["approvals", verb, pending.as_str().unwrap()], None);
        assert_eq!(done.code(), 0, "{}", done.stderr());
        Ran(child.wait_with_output().unwrap())
    };
    let approved = decided("approve", "yes.txt");
    assert!(approved.json(0)["bytes_written"].is_number(), "{}", approved.stdout());
    assert_eq!(std::fs::read_to_string(place.note("yes.txt")).unwrap(), text);
    let target = format!("target {} (EFFECTD_TOKEN), state {}, as session://home/", daemon.url, state.trim());
    assert!(approved.stderr().contains(&target), "{}", approved.stderr());
    assert!(approved.stderr().contains("a person must decide before"), "{}", approved.stderr());
    let denied = decided("deny", "no.txt");
    assert_eq!((denied.code(), denied.stdout().as_str()), (3, ""), "{}", denied.stderr());
    assert!(denied.stderr().contains("denied: human"), "{}", denied.stderr());
    assert!(!place.note("no.txt").exists());
    // What is no invocation is not waited for.
    for (params, code) in [("{}", 2), ("[]", 2), ("@no.json", 2)] {
        let ran = look(&["run", "--integration", "files", "--action", "write_text", "--params", params]);
        assert_eq!(ran.code(), code, "{params}: {}", ran.stderr());
    }
    assert_ne!(look(&["run", "--integration", "files", "--action", "nothing"]).code(), 0);
    let request =
        ["grant", "request", "--integration", "files", "--action", "write_text", "--max-calls", "1"];
    let grant = look(&[&request[..], &["-o", "json"]].concat()).json(0);
    assert_eq!((&grant["action"], &grant["max_calls"]), (&json!("write_text"), &json!(1)), "{grant}");
    let grants = look(&["grants", "list", "-o", "json"]).json(0);
    assert_eq!(grants[0]["id"], grant["id"], "{grants}");
    assert!(look(&["grants", "list"]).stdout().contains("write_text"));
    // Who has no session names one.
    let nobody = place.effectd(&["actions", "list"], None);
    assert_eq!(nobody.code(), 2, "{}", nobody.stderr());
    assert!(nobody.stderr().contains("--session"), "{}", nobody.stderr());
}
