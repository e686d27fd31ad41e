//! effectd as a library inside another program.

use std::path::{Path, PathBuf};
use std::time::Duration;

use effectd::Error;
use effectd::contracts::{Code, Operation, Outcome, SessionId, Status, TokenKind};
use effectd::internal::Runtime;
use effectd_actors::Answer;
use effectd_actors::failpoint::{Fault, Trap, arm};
use effectd_actors::operator::operations::Terms;
use effectd_actors::operator::service::perform;
use effectd_actors::services::tokens::Claims;
use effectd_gateway::client::percent_encoded;
use effectd_gateway::{Settings, SharedSettings, Stage};
use hyper::Method;
use serde_json::{Value, json};
use tokio::sync::watch;

use crate::Test;
use crate::child::Report;
use crate::harness::asynchronously;
use crate::place::{PATIENCE, Place, parsed, request, request_how};
use crate::tools::{self, NEVER, PROBE, SAFE};
use crate::undeclared_effects::{READER_ID, SECRET};

pub(crate) const TESTS: &[Test] = &[
    ("it_works_inside_a_program_with_one_thread", one_thread),
    ("a_program_cannot_replace_a_built_in_tool", no_usurper),
    ("another_meaning_of_an_id_is_refused_to_its_asker_alone", conflict),
    ("a_refusal_does_not_take_the_id_from_an_accepted_action", refused_meanwhile),
    ("an_id_belongs_to_who_used_it_first", other_principal),
    ("an_agent_gets_a_result_without_its_secrets", safe_result),
    ("no_failpoint_is_in_what_ships", ships_without),
];

fn one_thread() {
    let place = Place::new();
    let threads = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    threads.block_on(async {
        let runtime = place.runtime(|_| ()).await;
        let ticket = runtime.submit(parsed(&request("submitted", PROBE))).await.unwrap();
        assert_eq!(ticket.action_id().as_str(), "submitted");
        let executed = runtime.exec(parsed(&request("executed", SAFE))).await;
        let (Answer::Done(first), Ok(Answer::Done(second))) = (executed, ticket.receipt().await) else {
            panic!("both have receipts")
        };
        assert_eq!((first.receipt.status, second.receipt.status), (Status::Ok, Status::Ok));
        assert!(runtime.stop().await);
    });
}

/// A tool returns a header with a secret: the route of the session answers, keeps and shows one and the same safe result.
fn safe_result() {
    asynchronously(async {
        let place = Place::new();
        place.set_policy(&[READER_ID]);
        let runtime = place.runtime(|_| ()).await;
        let session_id = SessionId::fresh();
        let create = Operation::CreateSession {
            session_id: session_id.clone(),
            space_id: "shared:household".parse().unwrap(),
            subject_id: "agent://planner@deviceA".parse().unwrap(),
            title: "Read".to_owned(),
            unattended: false,
            connections: Vec::new(),
        };
        let services = runtime.pipeline().services().clone();
        perform(services, create, Terms::default(), "user://alone".parse().unwrap()).await.unwrap();
        let (_stage, open) = watch::channel(Stage::Open);
        let gateway = runtime.gateway(SharedSettings::new(Settings::default()), open).unwrap();
        let account = format!("session://home/{session_id}");
        let mut agent = gateway.client_as(Some(Claims {
            token_id: "t".to_owned(),
            account: account.parse().unwrap(),
            kind: TokenKind::Sandbox,
            org: "home".parse().unwrap(),
            principal: account.parse().unwrap(),
            session: Some(session_id.clone()),
            roles: Vec::new(),
            expires_at: None,
        }));
        let actions = format!("/{session_id}/actions");
        let body = json!({ "integration": "liar", "action": "reader", "params": { "name": "honest" } });
        let invoke = format!("{actions}/invoke");
        let (status, invoked) = agent.ask(Method::POST, &invoke, body.to_string().into()).await.unwrap();
        let invoked: Value = serde_json::from_slice(&invoked).unwrap();
        let safe = json!({ "kept": "seen", "headers": [{ "Authorization": "[redacted:secret]" }] });
        assert_eq!(
            (status, &invoked["result"], &invoked["invocation"]["result"]),
            (200, &safe, &safe),
            "{invoked}"
        );
        let id = invoked["invocation"]["id"].as_str().unwrap();
        let look = format!("{actions}/invocations/{}", percent_encoded(id));
        let (status, looked) = agent.ask(Method::GET, &look, Vec::new().into()).await.unwrap();
        let looked: Value = serde_json::from_slice(&looked).unwrap();
        assert_eq!((status, &looked["invocation"]), (200, &invoked["invocation"]), "{looked}");
        drop((agent, gateway));
        assert!(runtime.stop().await);
        assert_eq!(files_with(&place.state(), SECRET.as_bytes()), Vec::<PathBuf>::new());
    });
}

/// The files below a folder that have these bytes in them.
fn files_with(folder: &Path, bytes: &[u8]) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap().map(Result::unwrap) {
        if entry.file_type().unwrap().is_dir() {
            found.extend(files_with(&entry.path(), bytes));
        } else if entry.file_type().unwrap().is_file()
            && std::fs::read(entry.path()).unwrap().windows(bytes.len()).any(|window| window == bytes)
        {
            found.push(entry.path());
        }
    }
    found
}

fn no_usurper() {
    asynchronously(async {
        let place = Place::new();
        let mut config = place.config();
        config.tools = tools::USURPER;
        let refused = Runtime::start(config).await;
        assert!(matches!(refused, Err(Error::Registry(_))), "{refused:?}");
    });
}

/// While one action runs, another caller asks for something else under its id, by `exec` and by `submit`.
fn conflict() {
    asynchronously(async {
        let place = Place::new();
        let runtime = place.runtime(|_| ()).await;
        let marker = place.marker();
        let rightful = runtime.exec(parsed(&request_how("a", NEVER, "wait")));
        let others = async {
            let waiting = tokio::task::spawn_blocking(move || marker.recv_timeout(PATIENCE));
            assert_eq!(waiting.await.unwrap().as_deref(), Ok("waiting"));
            let other = parsed(&request_how("a", NEVER, "fail"));
            match runtime.exec(other.clone()).await {
                Answer::Refused(failure) => assert_eq!(failure.code, Code::ActionConflict),
                Answer::Held(held) => panic!("{held:?}"),
                Answer::Done(done) => panic!("{:#?}", done.receipt),
            }
            let failure = runtime.submit(other).await.map(|_| ()).unwrap_err();
            assert_eq!(failure.code, Code::ActionConflict);
            place.open_gate();
        };
        let (answer, ()) = tokio::join!(rightful, others);
        let Answer::Done(done) = answer else { panic!("{answer:?}") };
        assert_eq!(done.receipt.outcome, Outcome::Executed);
        let report = Report::of(&runtime).await;
        report.all_settled();
        assert_eq!((report.receipts.len(), report.letters.len()), (1, 0));
        assert!(runtime.stop().await);
    });
}

/// An accepted action is on the bus and not yet claimed when another request with its id is refused.
fn refused_meanwhile() {
    asynchronously(async {
        let place = Place::new();
        let runtime = place.runtime(|config| config.lease_ttl = Duration::from_secs(2)).await;
        // The accepted action stalls before its claim; the other one is refused before that point.
        arm(Trap {
            point: "gate.begin".to_owned(),
            action: Some("refused-meanwhile".parse().unwrap()),
            nth: 1,
            times: 1,
            fault: Fault::Stall,
        });
        let ticket = runtime.submit(parsed(&request("refused-meanwhile", SAFE))).await.unwrap();
        match runtime.exec(parsed(&request("refused-meanwhile", "no.such_tool"))).await {
            Answer::Refused(failure) => assert_eq!(failure.code, Code::ActionConflict),
            Answer::Held(held) => panic!("{held:?}"),
            Answer::Done(done) => panic!("{:#?}", done.receipt),
        }
        let Answer::Done(done) = ticket.receipt().await.unwrap() else { panic!("refused") };
        assert_eq!(done.receipt.outcome, Outcome::Executed);
        let report = Report::of(&runtime).await;
        assert_eq!((report.receipts.len(), report.letters.len()), (1, 0));
        assert!(runtime.stop().await);
    });
}

/// A receipt is shown only to the principal of its action, also while the action is in flight.
fn other_principal() {
    asynchronously(async {
        let place = Place::new();
        let runtime = place.runtime(|_| ()).await;
        let mut asked = request("a", SAFE);
        asked["policy_ctx"] = json!({ "actor": "alice" });
        assert!(matches!(runtime.exec(parsed(&asked)).await, Answer::Done(_)));
        let stranger = effectd_actors::Incoming {
            request: parsed(&asked).into(),
            principal: "user://stranger".parse().unwrap(),
            origin: effectd::contracts::Origin::Arbiter,
            contract: None,
            interactive: false,
        };
        match runtime.pipeline().exec(stranger).await {
            Answer::Refused(failure) => assert_eq!(failure.code, Code::ActionConflict),
            Answer::Held(held) => panic!("{held:?}"),
            Answer::Done(done) => panic!("{:#?}", done.receipt),
        }
        assert!(runtime.stop().await);
    });
}

/// A build without tests enables none of our features for tests, as Cargo itself reports.
fn ships_without() {
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned());
    let tree = std::process::Command::new(cargo)
        .args(["tree", "--offline", "--locked", "--package", "effectd"])
        .args(["--edges", "no-dev", "--prefix", "none", "--format", "{p} features={f}"])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .unwrap();
    let text = String::from_utf8(tree.stdout).unwrap();
    assert!(tree.status.success(), "{}", String::from_utf8_lossy(&tree.stderr));
    let ours: Vec<_> = text.lines().filter(|line| line.starts_with("effectd")).collect();
    assert!(ours.iter().any(|line| line.starts_with("effectd-actors ")), "{text}");
    for line in ours {
        for feature in ["failpoints", "conformance", "testing"] {
            assert!(!line.contains(feature), "{line}");
        }
    }
}
