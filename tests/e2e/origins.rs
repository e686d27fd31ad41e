//! Origins, contracts and connections, from the door to the receipt.

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;

use effectd::contracts::{
    ActionId, Approval, ApprovalId, ApprovalVerdict, Code, Compensation, ConnectionId, DeniedReason,
    InvocationStatus, Mode, ModeSource, Operation, Origin, Outcome, Receipt, RiskTier, SafetyClass,
    SessionId, SideEffect, Timestamp,
};
use effectd::internal::{Config, Runtime};
use effectd_actors::action::decisions::published;
use effectd_actors::approvals::decide::{approve, deny};
use effectd_actors::approvals::{Approve, Held, Hold, HoldState, invocation, repository};
use effectd_actors::limits::{CONNECTIONS_MAX, SECRETS_MAX, SESSIONS_SUBJECT_MAX};
use effectd_actors::operator::connections::set_secret;
use effectd_actors::operator::dead_letters::{IfUnknown, Now, decision, requeue};
use effectd_actors::operator::operations::Terms;
use effectd_actors::operator::service::perform;
use effectd_actors::preview::{facts_of, foresee};
use effectd_actors::{Answer, Decider, Incoming};
use effectd_bus::{Change, Expect, FamilyName, KvChange, NewBody, StoreError, Swap};
use effectd_policy::{Clamp, Verdict};
use serde_json::{Value, json};

use crate::approvals::{allowing, request};
use crate::harness::{Place, Running, note, until};

fn plan(command: &str) -> Option<Value> {
    Some(json!({
        "verification": { "required": true, "commands": [command] }, "rollbackPlan": { "steps": ["undo"] },
    }))
}

/// The policy names the commands of the plans.
fn named() -> Place {
    with_check(Place::seeded())
}

fn with_check(place: Place) -> Place {
    let file = place.state().join("policy/policy.toml");
    let text = std::fs::read_to_string(&file).unwrap();
    std::fs::write(&file, format!("{text}\n[commands.check]\nargv = [\"true\", \"**\"]\n")).unwrap();
    place
}

fn step_of_run() -> Origin {
    Origin::Run { automation_id: "weekly".into(), run_id: "r-1".into(), step_id: "s-1".into() }
}

fn writes(action: &str, text: &str, contract: Option<Value>, origin: Origin) -> Incoming {
    Incoming {
        request: Arc::new(note(action, "workspace/plan.txt", text)),
        principal: Config::embedded(".").unwrap().principal,
        origin,
        contract: contract.map(|contract| serde_json::from_value(contract).unwrap()),
        interactive: false,
    }
}

fn operator() -> Decider {
    Decider::local(Config::embedded(".").unwrap().principal, true)
}

async fn done(runtime: &Runtime, incoming: Incoming) -> Receipt {
    match runtime.pipeline().exec(incoming).await {
        Answer::Done(done) => (*done.receipt).clone(),
        other @ (Answer::Held(_) | Answer::Refused(_)) => panic!("{other:?}"),
    }
}

async fn held(runtime: &Runtime, incoming: Incoming) -> Held {
    match runtime.pipeline().exec(incoming).await {
        Answer::Held(held) => held,
        other @ (Answer::Done(_) | Answer::Refused(_)) => panic!("{other:?}"),
    }
}

fn hold(runtime: &Runtime, id: &ApprovalId) -> Hold {
    repository::hold(&**runtime.store(), id).unwrap().unwrap().value
}

fn id(action: &str) -> ActionId {
    action.parse().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_same_action_under_another_contract_is_a_conflict() {
    let place = named();
    let runtime = place.runtime().await;
    let pipeline = runtime.pipeline();
    let first = done(&runtime, writes("c-1", "x", plan("true test"), Origin::Arbiter)).await;
    // The same decision may come in through another door.
    let again = done(&runtime, writes("c-1", "x", plan("true test"), step_of_run())).await;
    assert_eq!(again.receipt_id, first.receipt_id);
    pipeline.submit_offset(writes("c-2", "y", plan("true test"), Origin::Arbiter)).await.unwrap();
    for contract in [None, plan("true lint")] {
        let Answer::Refused(failure) =
            pipeline.exec(writes("c-1", "x", contract.clone(), Origin::Arbiter)).await
        else {
            panic!("another contract has the receipt of the first")
        };
        assert_eq!(failure.code, Code::ActionConflict);
        let on_bus = pipeline.submit_offset(writes("c-2", "y", contract, Origin::Arbiter)).await;
        assert_eq!(on_bus.unwrap_err().code, Code::ActionConflict);
    }
    let many = json!({ "scope": { "allowedFiles": vec!["x"; 300] } });
    let Answer::Refused(failure) = pipeline.exec(writes("c-3", "z", Some(many), Origin::Arbiter)).await
    else {
        panic!("a contract has no bounds")
    };
    assert_eq!(failure.code, Code::Malformed);
    assert!(runtime.stop().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_approval_of_one_plan_runs_no_other() {
    let place = with_check(allowing(&[]));
    let runtime = place.runtime().await;
    let services = runtime.pipeline().services();
    let (test, lint) = (plan("true test"), plan("true lint"));
    let first = held(&runtime, writes("p-1", "x", test.clone(), step_of_run())).await;
    let other = held(&runtime, writes("p-2", "x", lint, Origin::Arbiter)).await;
    let equal = held(&runtime, writes("p-3", "x", test.clone(), Origin::Arbiter)).await;
    assert_ne!(first.approval_id, other.approval_id, "another contract is another question");
    assert_eq!((&equal.approval_id, equal.joined), (&first.approval_id, true), "the origin is no part of it");
    let stored = hold(&runtime, &first.approval_id);
    assert_eq!(stored.decision.origin, step_of_run());
    assert_eq!(serde_json::to_value(&stored.decision.contract).unwrap(), test.unwrap());
    assert_eq!(stored.member(&id("p-3")).unwrap().origin, Origin::Arbiter);

    let waiting = invocation::find(services, &id("p-2")).await.unwrap().unwrap();
    assert_eq!((waiting.id.as_str(), waiting.status), ("p-2", InvocationStatus::Pending));
    assert_eq!(waiting.session_id, "agent:agent://planner@deviceA");
    assert_eq!(waiting.organization_id, "home".parse().ok());
    assert_eq!((waiting.integration.as_str(), waiting.action.as_str()), ("files", "write_text"));
    assert_eq!(waiting.mode, Some(Mode::RequireApproval));
    assert_eq!(waiting.mode_source, Some(ModeSource::OrgDefault));
    assert_eq!(waiting.params["path"], "workspace/plan.txt");
    assert!(waiting.expires_at.is_some() && waiting.receipt_id.is_none());

    approve(services, &first.approval_id, &operator(), Approve::default()).await.unwrap();
    let Ok(Answer::Done(ended)) = runtime.pipeline().wait(&id("p-1")).await else { panic!("p-1 has no end") };
    let receipt = &ended.receipt;
    assert_eq!((receipt.outcome, &receipt.origin), (Outcome::Executed, &step_of_run()));
    assert_eq!(
        (receipt.session_id.clone(), receipt.org.clone()),
        ("run:r-1".parse().ok(), "home".parse().ok())
    );
    let facts = &receipt.decision.as_ref().unwrap().facts;
    assert_eq!((&facts["automation"], &facts["verified"]), (&json!("weekly"), &json!(true)));
    // The receipt of the first answers the other, which does not show the session of the first.
    for (action, session) in [("p-1", "run:r-1"), ("p-3", "agent:agent://planner@deviceA")] {
        runtime.pipeline().wait(&id(action)).await.unwrap();
        let shown = invocation::find(services, &id(action)).await.unwrap().unwrap();
        assert_eq!((shown.id.as_str(), shown.status), (action, InvocationStatus::Completed));
        assert_eq!(shown.session_id, session, "{action}");
        assert_eq!(shown.receipt_id.as_ref(), Some(&receipt.receipt_id));
        assert_eq!(shown.approved_by, Some(operator().principal.to_string()));
    }
    assert_eq!(invocation::find(services, &id("none")).await.unwrap(), None);
    let mut denied = repository::hold(&**runtime.store(), &other.approval_id).unwrap().unwrap();
    assert!(denied.value.decided().is_none(), "the other plan still waits");
    // A person denies it, and the process dies before it writes the receipt.
    let verdict = ApprovalVerdict::Denied;
    denied.value.state = HoldState::Decided(Approval { verdict, ..receipt.approval.clone().unwrap() });
    let swap = Swap {
        family: FamilyName::new("holds").unwrap(),
        key: other.approval_id.to_string(),
        expect: Expect::Version(denied.version),
        change: KvChange::Put(NewBody::Sealed(serde_json::to_vec(&denied.value).unwrap())),
    };
    runtime.store().change(Change { swaps: vec![swap], ..Change::default() }).await.unwrap();
    let refused = invocation::find(services, &id("p-2")).await.unwrap().unwrap();
    assert_eq!(
        (refused.status, refused.denied_reason),
        (InvocationStatus::Denied, Some(DeniedReason::Human))
    );
    assert!(refused.error.is_some_and(|error| error.contains("denied it")));
    assert!(runtime.stop().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_invocation_is_found_also_in_the_moment_it_ends() {
    let place = allowing(&[]);
    let runtime = place.runtime().await;
    let services = runtime.pipeline().services();
    for n in 0..100 {
        let action = id(&format!("m-{n}"));
        let held = held(&runtime, writes(action.as_str(), action.as_str(), None, Origin::Arbiter)).await;
        let watch = async {
            loop {
                let found = invocation::find(services, &action).await.unwrap();
                if found.expect("it is somewhere").receipt_id.is_some() {
                    break;
                }
            }
        };
        let by = operator();
        let ((), denied) = tokio::join!(watch, deny(services, &held.approval_id, &by, None));
        denied.unwrap();
    }
    assert!(runtime.stop().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_digest_of_an_edited_request_covers_its_contract() {
    let place = with_check(allowing(&[]));
    let runtime = place.runtime().await;
    let asked = writes("e-1", "x", plan("true test"), Origin::Arbiter);
    // With the planner's own parameters the edited request is the planner's.
    let edit = Approve { params: Some(asked.request.params.clone()), ..Approve::default() };
    let question = held(&runtime, asked).await;
    let services = runtime.pipeline().services();
    approve(services, &question.approval_id, &operator(), edit).await.unwrap();
    let Ok(Answer::Done(ended)) = runtime.pipeline().wait(&id("e-1")).await else { panic!("e-1 has no end") };
    let receipt = &ended.receipt;
    assert_eq!(receipt.outcome, Outcome::Executed, "{:?}", receipt.error);
    let edited = receipt.approval.as_ref().unwrap().edited_request_digest.as_ref();
    assert_eq!(edited, Some(&receipt.request_digest));
    assert!(runtime.stop().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_action_whose_session_is_deleted_meanwhile_is_refused() {
    let place = named();
    let runtime = place.runtime().await;
    let services = runtime.pipeline().services();
    let session_id = SessionId::fresh();
    let create = Operation::CreateSession {
        session_id: session_id.clone(),
        space_id: "shared:household".parse().unwrap(),
        subject_id: "agent://planner@deviceA".parse().unwrap(),
        title: "short".to_owned(),
        unattended: false,
        connections: Vec::new(),
    };
    perform(services.clone(), create, Terms::default(), operator().principal).await.unwrap();
    // It is deleted while the parameters of its action are checked.
    let base = services.registry();
    let mut tool = base.get(&"files.write_text".parse().unwrap()).unwrap().definition().clone();
    let (weak, gone) = (Arc::downgrade(services), session_id.clone());
    tool.rule = Arc::new(move |_| {
        let delete = Operation::DeleteSession { session_id: gone.clone() };
        let deleting = perform(weak.upgrade().unwrap(), delete, Terms::default(), operator().principal);
        let handle = tokio::runtime::Handle::current();
        tokio::task::block_in_place(|| handle.block_on(deleting)).unwrap();
        Ok(())
    });
    let (next, refused) = base.replace(|tool| tool.spec().tool_id.as_str() == "files.write_text", &[tool]);
    assert!(refused.is_empty(), "{refused:?}");
    services.set_registry(&base, next).unwrap();
    let origin = Origin::Session { session_id: session_id.clone() };
    let receipt = done(&runtime, writes("g-1", "x", None, origin)).await;
    assert_eq!(receipt.error.map(|error| error.code), Some(Code::SessionUnknown));
    assert_eq!((receipt.outcome, receipt.session_id), (Outcome::NotFound, Some(session_id)));
    assert!(!place.note("plan.txt").exists());
    assert!(runtime.stop().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn dead_letters_and_requeues_keep_origin_and_contract() {
    let place = named();
    let runtime = place.runtime().await;
    let store = runtime.store().clone();
    let key = "-----BEGIN OPENSSH PRIVATE KEY-----\nc2VjcmV0\n-----END OPENSSH PRIVATE KEY-----\n";
    let receipt = done(&runtime, writes("q-1", key, plan("true test"), step_of_run())).await;
    assert_eq!((receipt.outcome, &receipt.origin), (Outcome::Quarantined, &step_of_run()));
    let letter = store.letters(None, 0, 1).unwrap().letters.remove(0);
    let kept = decision(&letter).unwrap();
    assert_eq!(kept.origin, step_of_run());
    assert_eq!(serde_json::to_value(&kept.contract).unwrap(), plan("true test").unwrap());
    let number = letter.letter;
    let again = {
        let store = store.clone();
        let requeuing = move || requeue(&*store, &[number], Timestamp::now(), IfUnknown::Leave);
        tokio::task::spawn_blocking(requeuing).await.unwrap().unwrap()
    };
    assert_eq!(again, [(number, Now::Requeued)]);
    let event = published(&*store, &id("q-1")).unwrap().unwrap().event.unwrap();
    assert_eq!((event.data.origin, event.data.contract), (kept.origin, kept.contract));
    runtime.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_approval_counts_for_one_version_of_a_connection() {
    let place = named();
    let file = place.state().join("policy/policy.toml");
    let text = std::fs::read_to_string(&file).unwrap();
    std::fs::write(&file, text.replace("hosts = []", "hosts = [\"chat.example\", \"files.chat.example\"]"))
        .unwrap();
    let runtime = place.runtime().await;
    let services = runtime.pipeline().services();
    let base = services.registry();
    let mut post = base.get(&"files.write_text".parse().unwrap()).unwrap().definition().clone();
    post.spec.tool_id = "chat.post".parse().unwrap();
    post.spec.side_effects = BTreeSet::from([SideEffect::NetworkCall]);
    (post.spec.safety_class, post.spec.reversible) = (SafetyClass::Medium, false);
    post.spec.compensation = Compensation::Declared;
    (post.touches, post.aliases) = (None, Vec::new());
    post.hosts = vec!["chat.example".to_owned()];
    let (next, refused) = base.replace(|_| false, &[post]);
    assert!(refused.is_empty(), "{refused:?}");
    services.set_registry(&base, next).unwrap();
    let posts = |action: &str, origin| Incoming {
        request: Arc::new(request(
            action,
            "chat.post",
            json!({ "path": "workspace/general", "text": "hello" }),
        )),
        ..writes(action, "", None, origin)
    };
    let change = |operation| perform(services.clone(), operation, Terms::default(), operator().principal);
    let alone = done(&runtime, posts("n-1", Origin::Arbiter)).await;
    assert_eq!(alone.outcome, Outcome::DeniedPolicy, "nobody consented, and there is no connection");

    let connection_id = ConnectionId::fresh();
    change(Operation::CreateConnection {
        connection_id: connection_id.clone(),
        org: "home".parse().unwrap(),
        source: "chat".to_owned(),
        name: "Team chat".to_owned(),
        hosts: vec!["files.chat.example".to_owned()],
        secrets: Vec::new(),
        access: None,
        connector: None,
    })
    .await
    .unwrap();
    let first = held(&runtime, posts("n-2", Origin::Arbiter)).await;
    let asked = hold(&runtime, &first.approval_id).prompt;
    assert!(asked.facts.connection && asked.facts.connection_version.is_some(), "{:?}", asked.facts);
    assert_eq!(asked.facts.connection_id.as_ref(), Some(&connection_id));
    let shown = invocation::find(services, &id("n-2")).await.unwrap().unwrap();
    assert_eq!(shown.integration_id.as_ref(), Some(&connection_id));
    let (registry, request) = (services.registry(), posts("n-7", Origin::Arbiter).request);
    let tool = registry.get(&request.tool_id).unwrap();
    let explained = facts_of(services, &services.policy(), &request, tool, &operator().principal);
    assert_eq!(explained.connection_id.as_ref(), Some(&connection_id), "`policy explain` sees it too");
    let hosts = asked.facts.inspection.unwrap().hosts;
    assert_eq!(hosts, ["chat.example", "files.chat.example"].map(str::to_owned).into());
    assert_eq!((asked.decision.tier, asked.decision.safety_class), (RiskTier::R2, SafetyClass::High));
    assert!(asked.decision.grant_allowed, "a grant or a mode can spare the question");
    let equal = held(&runtime, posts("n-3", Origin::Arbiter)).await;
    assert_eq!(equal.approval_id, first.approval_id);

    // A session uses only the connections that it names.
    for (action, connections) in [("n-4", Vec::new()), ("n-5", vec![connection_id.clone()])] {
        let session_id = SessionId::fresh();
        let is_named = !connections.is_empty();
        change(Operation::CreateSession {
            session_id: session_id.clone(),
            space_id: "shared:household".parse().unwrap(),
            subject_id: "agent://planner@deviceA".parse().unwrap(),
            title: "chat".to_owned(),
            unattended: false,
            connections,
        })
        .await
        .unwrap();
        let origin = Origin::Session { session_id: session_id.clone() };
        let (request, by) = (posts(action, Origin::Arbiter).request, operator().principal);
        let preview = || foresee(services, &request, (&by, &origin));
        let verdict = preview().await.unwrap().decision.verdict;
        assert_eq!(matches!(verdict, Verdict::NeedsApproval { .. }), is_named, "{action}: {verdict:?}");
        match runtime.pipeline().exec(posts(action, origin.clone())).await {
            Answer::Held(_) => assert!(is_named, "{action}"),
            Answer::Done(done) => {
                assert_eq!((done.receipt.outcome, is_named), (Outcome::DeniedPolicy, false))
            }
            Answer::Refused(failure) => panic!("{failure:?}"),
        }
        if is_named {
            change(Operation::EndSession { session_id }).await.unwrap();
            assert_eq!(preview().await.unwrap_err().code, Code::SessionUnknown);
        }
    }

    change(Operation::DisableConnection { connection_id: connection_id.clone() }).await.unwrap();
    change(Operation::EnableConnection { connection_id }).await.unwrap();
    approve(services, &first.approval_id, &operator(), Approve::default()).await.unwrap();
    let Ok(Answer::Held(again)) = runtime.pipeline().wait_or_held(&id("n-2")).await else {
        panic!("it ran over a connection that nobody approved")
    };
    let why = hold(&runtime, &again.approval_id).because.unwrap();
    assert!(why.contains("its connection"), "{why}");
    let equal = held(&runtime, posts("n-6", Origin::Arbiter)).await;
    assert_eq!(equal.approval_id, again.approval_id);
    // A person sees the plan and the connection.
    let planned = Incoming {
        contract: plan("true test with AKIAIOSFODNN7EXAMPLE")
            .map(|plan| serde_json::from_value(plan).unwrap()),
        ..posts("n-8", Origin::Arbiter)
    };
    let planned = held(&runtime, planned).await.approval_id;
    let version = hold(&runtime, &planned).prompt.facts.connection_version.unwrap();
    assert!(runtime.stop().await);
    let shown = place.effectd(&["approvals", "show", planned.as_str()], None).stdout();
    assert!(shown.contains(&format!("over      Team chat, version {version}, ")), "{shown}");
    assert!(shown.contains("contract  verification = ") && shown.contains("true test"), "{shown}");
    assert!(!shown.contains("AKIAIOSFODNN7EXAMPLE"), "{shown}");
    let shown = place.effectd(&["approvals", "show", planned.as_str(), "-o", "json"], None).json(0);
    let used = &shown["prompt"]["connection"];
    assert_eq!((&used["name"], &used["version"]), (&json!("Team chat"), &json!(version)), "{shown}");
    assert_eq!(shown["prompt"]["contract"]["rollbackPlan"], json!({ "steps": ["undo"] }), "{shown}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tool_that_drifted_is_asked_about() {
    let place = named();
    let runtime = place.runtime().await;
    let services = runtime.pipeline().services();
    let base = services.registry();
    let mut drifted = base.get(&"files.write_text".parse().unwrap()).unwrap().definition().clone();
    drifted.drifted = true;
    let of_tool = |tool: &effectd_actors::RegisteredTool| tool.spec().tool_id.as_str() == "files.write_text";
    let (next, _) = base.replace(of_tool, &[drifted]);
    services.set_registry(&base, next).unwrap();
    let asked = held(&runtime, writes("d-1", "x", None, Origin::Arbiter)).await;
    let decision = hold(&runtime, &asked.approval_id).prompt.decision;
    assert_eq!((decision.clamped_by, decision.grant_allowed), (Some(Clamp::Drift), false));
    assert!(runtime.stop().await);
}

fn new_session(subject: &str) -> (SessionId, Operation) {
    let session_id = SessionId::fresh();
    let operation = Operation::CreateSession {
        session_id: session_id.clone(),
        space_id: "shared:household".parse().unwrap(),
        subject_id: subject.parse().unwrap(),
        title: "week".to_owned(),
        unattended: false,
        connections: Vec::new(),
    };
    (session_id, operation)
}

#[tokio::test(flavor = "multi_thread")]
async fn of_two_deletions_at_once_one_finds_no_session() {
    let place = named();
    let runtime = place.runtime().await;
    let services = runtime.pipeline().services();
    let change = |operation| perform(services.clone(), operation, Terms::default(), operator().principal);
    for _ in 0..4 {
        let (session_id, create) = new_session("agent://planner@deviceA");
        change(create).await.unwrap();
        let delete = || change(Operation::DeleteSession { session_id: session_id.clone() });
        let end = change(Operation::EndSession { session_id: session_id.clone() });
        let (one, other, ended) = tokio::join!(delete(), delete(), end);
        assert_eq!([&one, &other].iter().filter(|done| done.is_ok()).count(), 1, "{one:?} {other:?}");
        for refused in [one, other, ended].into_iter().filter_map(Result::err) {
            assert!(matches!(refused, StoreError::NoSuchName(_)), "{refused:?}");
        }
    }
    assert!(runtime.stop().await);
}

/// Puts as many entries with this value into a family.
async fn fill(runtime: &Runtime, (family, key): (&str, &str), numbers: Range<usize>, value: &[u8]) {
    let put = |number: &usize| Swap {
        family: FamilyName::new(family).unwrap(),
        key: format!("{key}{number}"),
        expect: Expect::Absent,
        change: KvChange::Put(NewBody::Clear(value.to_vec())),
    };
    for some in numbers.collect::<Vec<_>>().chunks(100) {
        let swaps = some.iter().map(put).collect();
        runtime.store().change(Change { swaps, ..Change::default() }).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_organisation_takes_no_room_of_others() {
    let place = named();
    let runtime = place.runtime().await;
    let services = runtime.pipeline().services();
    let (home, by) = ("home".parse().unwrap(), operator().principal);
    let connect = |source: &str| {
        let operation = Operation::CreateConnection {
            connection_id: ConnectionId::fresh(),
            org: "home".parse().unwrap(),
            source: source.to_owned(),
            name: source.to_owned(),
            hosts: vec!["api.example".to_owned()],
            secrets: Vec::new(),
            access: None,
            connector: None,
        };
        perform(services.clone(), operation, Terms::default(), operator().principal)
    };
    let set = |name: &'static str| set_secret(services, (&home, name), "x".to_owned().into(), (&by, None));
    for org in ["elsewhere", "home"] {
        let connection = json!({
            "connection_id": ConnectionId::fresh(), "org": org, "source": "other", "name": "other",
            "hosts": ["api.example"], "enabled": true, "created_by": by, "created_at": Timestamp::now(),
        });
        let secret = json!({ "value": "x", "set_by": by, "set_at": Timestamp::now() });
        let (connection, secret) = (connection.to_string(), secret.to_string());
        // The organisation has one of each already when its turn comes.
        let most = if org == "home" { 1..CONNECTIONS_MAX } else { 0..CONNECTIONS_MAX };
        fill(&runtime, ("connections", &format!("{org}-")), most.clone(), connection.as_bytes()).await;
        fill(&runtime, ("secrets", &format!("{org}/s-")), most, secret.as_bytes()).await;
        if org == "elsewhere" {
            connect("first").await.unwrap();
            set("first").await.unwrap();
        }
    }
    let full = connect("last").await.unwrap_err();
    let said = format!("at most {CONNECTIONS_MAX} is allowed");
    assert!(matches!(&full, StoreError::StateConflict(why) if why.ends_with(&said)), "{full:?}");
    let full = set("last").await.unwrap_err();
    assert!(matches!(full, StoreError::TooLarge { max: SECRETS_MAX, .. }), "{full:?}");
    set("first").await.unwrap();
    assert!(runtime.stop().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_subject_takes_no_room_for_sessions_of_others() {
    let place = named();
    let runtime = place.runtime().await;
    let services = runtime.pipeline().services();
    let change = |operation| perform(services.clone(), operation, Terms::default(), operator().principal);
    let (first, create) = new_session("agent://planner@deviceA");
    change(create).await.unwrap();
    let entry = runtime.store().entry(&FamilyName::new("sessions").unwrap(), first.as_str());
    let bytes = entry.unwrap().unwrap().value.bytes().unwrap().to_vec();
    fill(&runtime, ("sessions", "s-"), 1..SESSIONS_SUBJECT_MAX, &bytes).await;
    let refused = change(new_session("agent://planner@deviceA").1).await.unwrap_err();
    assert!(matches!(refused, StoreError::TooLarge { max: SESSIONS_SUBJECT_MAX, .. }), "{refused:?}");
    change(new_session("agent://other@deviceA").1).await.unwrap();
    assert!(runtime.stop().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deleted_session_that_cannot_be_read_stops_no_other() {
    let place = named();
    let runtime = place.runtime().await;
    let services = runtime.pipeline().services();
    let (session_id, create) = new_session("agent://planner@deviceA");
    perform(services.clone(), create, Terms::default(), operator().principal).await.unwrap();
    let entry = runtime.store().entry(&FamilyName::new("sessions").unwrap(), session_id.as_str());
    let session: Value = serde_json::from_slice(entry.unwrap().unwrap().value.bytes().unwrap()).unwrap();
    let marked = json!({ "session": session, "by": "user://a", "at": Timestamp::now(), "done": false });
    let family = FamilyName::new("sessions-deleted").unwrap();
    // The first sorts before the other.
    let swaps = [("0", b"{".to_vec()), (session_id.as_str(), serde_json::to_vec(&marked).unwrap())].map(
        |(key, bytes)| Swap {
            family: family.clone(),
            key: key.to_owned(),
            expect: Expect::Absent,
            change: KvChange::Put(NewBody::Clear(bytes)),
        },
    );
    runtime.store().change(Change { swaps: swaps.into(), ..Change::default() }).await.unwrap();
    assert!(runtime.stop().await);
    // The next start finishes deletions.
    let runtime = place.runtime().await;
    let is_done = || {
        let done = runtime.store().entry(&family, session_id.as_str()).unwrap();
        done.is_some_and(|done| {
            serde_json::from_slice::<Value>(done.value.bytes().unwrap()).unwrap()["done"] == true
        })
    };
    tokio::task::block_in_place(|| until("the deletion is done", is_done));
    assert!(runtime.stop().await);
}
