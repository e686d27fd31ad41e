//! What belongs to others costs what is not there: the same reads of the Store, the same waits for its writer, and nothing else. No
//! clock is needed to see that: a Store that counts stands between the routes and the real one. And what one holder's work takes from
//! others.

use std::io::ErrorKind;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use effectd::contracts::merkle::Frontier;
use effectd::contracts::{
    ActionId, ActionRequest, Code, Digest, EventId, Failure, IdempotencyKey, InvocationBrief, KeyEntry,
    OrgId, Phase, Principal, Receipt, ReceiptId, SessionId, SpaceId, Timestamp, TokenKind,
};
use effectd::internal::WorkspaceInspector;
use effectd_actors::limits::LEASE_TTL;
use effectd_actors::services::shadow::Report;
use effectd_actors::services::tokens::Claims;
use effectd_actors::{Caches, Metrics, Services, ServicesBuilder};
use effectd_bus::{
    Acknowledged, Acknowledgement, Admission, Admitted, Asker, Body, Change, Changed, Claim, ClaimAnswer,
    Committed, Completion, DeadLetter, DeadLetterGroup, DeadLetterPage, DeviceKeyChange, EpochReport,
    EventPage, FamilyName, Fence, GroupInfo, GroupName, GroupOptions, JournalReader, KvEntry, KvPage,
    LeaseId, Leased, Link, LogStatus, Lookup, NewEvent, OpenIntent, Published, ReceiptPage, ReceiptQuery,
    Requeued, ResourceName, Retained, Retention, RetentionMode, SeekTo, Stats, Store, StoreError,
    StoredLogEntry, StoredReceipt, Swap, TopicName, Wait, Watch,
};
use effectd_gateway::client::{Client, percent_encoded};
use effectd_gateway::limits::{BLOCKING_PART, BLOCKING_REQUESTS_MAX};
use effectd_gateway::problem::{Kind, Problem};
use effectd_gateway::views::health::JobView;
use effectd_gateway::views::{Explanation, PolicyChange, PolicyFile, PolicyFiles, PolicyView, ReplayView};
use effectd_gateway::{Gateway, Host, Receipts, Settings, SharedSettings, Stage};
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify};
use parking_lot::{Condvar, Mutex};
use serde_json::json;
use tokio::sync::watch;

use crate::harness::{LONG, Place, Running, until};
use crate::session_routes::{self, Door, READ, ROUTES, account, ask, pending};
use crate::tokens::with_checksum;

/// What a request cost the Store.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Work {
    /// Reads, each by its name; of an entry also its family.
    reads: Vec<String>,
    /// Operations that wait for the writer.
    waits: Vec<&'static str>,
    /// What was unsealed: the families of entries, and `events`.
    unsealed: Vec<String>,
}

/// The real Store, which notes what is asked of it.
struct Counting {
    store: Arc<dyn Store>,
    work: Arc<Mutex<Work>>,
}

impl Counting {
    fn saw(&self, what: &str, bodies: impl IntoIterator<Item = bool>) {
        let opened = bodies.into_iter().filter(|is_opened| *is_opened).map(|_| what.to_owned());
        self.work.lock().unsealed.extend(opened);
    }
}

fn is_opened(body: &Body) -> bool {
    matches!(body, Body::Opened(_))
}

macro_rules! counting {
    (reads { $(fn $read:ident($($arg:ident: $of:ty),*) -> $answer:ty;)+ }
     waits { $(fn $wait:ident($($given:ident: $type:ty),*) -> $done:ty;)+ }) => {
        impl Store for Counting {
            $(fn $read(&self, $($arg: $of),*) -> $answer {
                self.work.lock().reads.push(stringify!($read).to_owned());
                self.store.$read($($arg),*)
            })+
            $(fn $wait(&self, $($given: $type),*) -> $done {
                self.work.lock().waits.push(stringify!($wait));
                self.store.$wait($($given),*)
            })+

            fn entry(&self, family: &FamilyName, key: &str) -> Result<Option<KvEntry>, StoreError> {
                self.work.lock().reads.push(format!("entry of {}", family.as_str()));
                let entry = self.store.entry(family, key)?;
                self.saw(family.as_str(), entry.iter().map(|entry| is_opened(&entry.value)));
                Ok(entry)
            }

            fn entries(
                &self,
                family: &FamilyName,
                prefix: &str,
                after: Option<&str>,
                max: usize,
            ) -> Result<KvPage, StoreError> {
                self.work.lock().reads.push(format!("entries of {}", family.as_str()));
                let page = self.store.entries(family, prefix, after, max)?;
                self.saw(family.as_str(), page.entries.iter().map(|entry| is_opened(&entry.value)));
                Ok(page)
            }

            fn read(&self, topic: &TopicName, from: u64, max: usize) -> Result<EventPage, StoreError> {
                self.work.lock().reads.push("read".to_owned());
                let page = self.store.read(topic, from, max)?;
                self.saw("events", page.events.iter().map(|event| is_opened(&event.body)));
                Ok(page)
            }
        }
    };
}

counting! {
    reads {
        fn published(topic: &TopicName, event: &EventId) -> Result<Option<u64>, StoreError>;
        fn offset_at(topic: &TopicName, time: Timestamp) -> Result<u64, StoreError>;
        fn topics() -> Result<Vec<(TopicName, u64)>, StoreError>;
        fn watch(topic: &TopicName) -> Result<Watch, StoreError>;
        fn watch_group(topic: &TopicName, group: &GroupName) -> Result<Watch, StoreError>;
        fn lookup(
            asker: &Asker,
            key: &IdempotencyKey,
            params: &Digest,
            resources: &[ResourceName]
        ) -> Result<Lookup, StoreError>;
        fn receipt(id: &ReceiptId) -> Result<Option<StoredReceipt>, StoreError>;
        fn receipt_of(action: &ActionId) -> Result<Option<StoredReceipt>, StoreError>;
        fn receipts(query: &ReceiptQuery) -> Result<ReceiptPage, StoreError>;
        fn invocations(org: &OrgId, status: InvocationBrief) -> Result<u64, StoreError>;
        fn notes(about: &str, from: u64, max: usize) -> Result<Vec<StoredLogEntry>, StoreError>;
        fn last_note(about: &str) -> Result<Option<StoredLogEntry>, StoreError>;
        fn log() -> Result<LogStatus, StoreError>;
        fn log_entries(from: u64, max: usize) -> Result<Vec<StoredLogEntry>, StoreError>;
        fn log_place(receipt: &ReceiptId) -> Result<Option<u64>, StoreError>;
        fn log_frontier(size: u64) -> Result<Frontier, StoreError>;
        fn log_inclusion(index: u64, size: u64) -> Result<Vec<Digest>, StoreError>;
        fn log_consistency(old: u64, new: u64) -> Result<Vec<Digest>, StoreError>;
        fn letter(letter: u64) -> Result<Option<DeadLetter>, StoreError>;
        fn letters_end() -> Result<u64, StoreError>;
        fn letters(topic: Option<&TopicName>, from: u64, max: usize) -> Result<DeadLetterPage, StoreError>;
        fn letter_groups(
            topic: Option<&TopicName>,
            takes: Option<&dyn Fn(&DeadLetter) -> bool>
        ) -> Result<Vec<DeadLetterGroup>, StoreError>;
        fn read_journal() -> Result<JournalReader, StoreError>;
        fn check_journal() -> Result<u64, StoreError>;
        fn refusal() -> Option<StoreError>;
        fn damage() -> Option<StoreError>;
        fn stats() -> Stats;
    }
    waits {
        fn publish(topic: &TopicName, events: Vec<NewEvent>) -> Wait<Vec<Published>>;
        fn lease(topic: &TopicName, group: &GroupName, max: usize, ttl: Duration) -> Wait<Leased>;
        fn acknowledge(lease: LeaseId, how: Acknowledgement) -> Wait<Acknowledged>;
        fn extend(lease: LeaseId, ttl: Duration) -> Wait<()>;
        fn configure(topic: &TopicName, group: &GroupName, options: GroupOptions) -> Wait<()>;
        fn seek(topic: &TopicName, group: &GroupName, to: SeekTo) -> Wait<u64>;
        fn remove_group(topic: &TopicName, group: &GroupName) -> Wait<()>;
        fn groups(topic: &TopicName) -> Wait<Vec<GroupInfo>>;
        fn claim(claim: Claim) -> Wait<ClaimAnswer>;
        fn admit(admission: Admission) -> Wait<Admitted>;
        fn take_over(action: &ActionId, seen: Fence) -> Wait<Fence>;
        fn commit(completion: Completion) -> Wait<Committed>;
        fn link(link: Link) -> Wait<()>;
        fn open_intents(after: Option<Fence>, max: usize) -> Wait<Vec<OpenIntent>>;
        fn note(about: &str, body: Vec<u8>) -> Wait<u64>;
        fn change(change: Change) -> Wait<Changed>;
        fn requeue(letter: u64, event: NewEvent) -> Wait<Requeued>;
        fn purge(letters: Vec<u64>) -> Wait<u64>;
        fn close_epochs(before: Timestamp) -> Wait<EpochReport>;
        fn begin_epoch() -> Wait<u32>;
        fn close_epochs_before(epoch: u32) -> Wait<EpochReport>;
        fn rotate_device_key() -> Result<DeviceKeyChange, StoreError>;
        fn retain(retention: &Retention, mode: RetentionMode) -> Result<Retained, StoreError>;
        fn shorten(log_before: u64) -> Result<Retained, StoreError>;
        fn close() -> Result<(), StoreError>;
    }
}

/// What the routes need of a daemon here.
struct Bare {
    services: Arc<Services>,
    metrics: prometheus::Registry,
    door: Arc<Turnstile>,
}

/// Where an explanation stands until it may go on.
#[derive(Default)]
struct Turnstile {
    standing: Mutex<usize>,
    opened: Condvar,
    is_shut: AtomicBool,
}

impl Turnstile {
    fn pass(&self) {
        let mut standing = self.standing.lock();
        *standing += 1;
        // A test that fails does not open it.
        self.opened.wait_while_for(&mut standing, |_| self.is_shut.load(Ordering::Relaxed), LONG);
    }

    fn open(&self) {
        let _standing = self.standing.lock();
        self.is_shut.store(false, Ordering::Relaxed);
        self.opened.notify_all();
    }
}

impl Host for Bare {
    fn services(&self) -> &Arc<Services> {
        &self.services
    }
    fn state_id(&self) -> &'static str {
        "bare"
    }
    fn metrics(&self) -> &prometheus::Registry {
        &self.metrics
    }
    fn policy(&self) -> PolicyView {
        unreachable!()
    }
    fn policy_files_faulty(&self) -> bool {
        false
    }
    fn jobs(&self) -> Vec<JobView> {
        Vec::new()
    }
    fn policy_files(&self) -> Result<PolicyFiles, Problem> {
        unreachable!()
    }
    fn check_policy(&self) -> Result<PolicyView, Problem> {
        unreachable!()
    }
    fn reload_policy(&self) -> Result<PolicyView, Problem> {
        unreachable!()
    }
    fn take_over_policy(&self) -> Result<PolicyView, Problem> {
        unreachable!()
    }
    fn try_policy(&self, _: PolicyChange, _: Option<Timestamp>) -> Result<PolicyView, Problem> {
        unreachable!()
    }
    fn change_policy(&self, _: PolicyChange, _: Option<Timestamp>) -> Result<PolicyView, Problem> {
        unreachable!()
    }
    fn prepare_policy(&self, _: PolicyChange) -> Result<Swap, Problem> {
        unreachable!()
    }
    fn check_shadow(&self, _: Vec<PolicyFile>) -> Result<String, Problem> {
        unreachable!()
    }
    fn replay(&self, _: Vec<PolicyFile>, _: Option<&str>, _: Receipts<'_>) -> Result<ReplayView, Problem> {
        unreachable!()
    }
    fn start_shadow(&self, _: Vec<PolicyFile>) -> Result<Option<String>, Problem> {
        unreachable!()
    }
    fn stop_shadow(&self) -> Result<Option<Report>, Problem> {
        unreachable!()
    }
    fn rotate_key(&self) -> Result<KeyEntry, Problem> {
        unreachable!()
    }
    fn explain_request(&self, _: &ActionRequest, _: &Principal) -> Result<Explanation, Problem> {
        unreachable!()
    }
    fn explain_receipt(&self, _: &Receipt) -> Result<Explanation, Problem> {
        self.door.pass();
        Err(Problem::of(Kind::NotFound, "nothing is explained here"))
    }
}

/// The routes of a running door once more, over its own Store with a count.
struct Counted {
    gateway: Gateway,
    work: Arc<Mutex<Work>>,
    door: Arc<Turnstile>,
    _stage: watch::Sender<Stage>,
}

impl Counted {
    fn of(door: &Door, place: &Place) -> Self {
        let (work, own) = (Arc::<Mutex<Work>>::default(), door.runtime.pipeline().services());
        let metrics = prometheus::Registry::new();
        let no_space = |_: &SpaceId| Err(Failure::new(Code::Internal, Phase::Accept, "nothing runs here"));
        let services = Services::new(ServicesBuilder {
            store: Arc::new(Counting { store: door.runtime.store().clone(), work: work.clone() }),
            registry: own.registry(),
            sandbox: own.children.sandbox.clone(),
            clock: own.clock.clone(),
            identity: own.identity.clone(),
            space_roots: Arc::new(no_space),
            metrics: Metrics::register(&metrics).unwrap(),
            lease_ttl: LEASE_TTL,
            settings: own.settings.clone(),
            inspector: Arc::new(WorkspaceInspector),
            blobs: own.files.blobs.clone(),
            caches: Caches::new(place.path("no-caches")),
            policy: own.policy(),
            egress: effectd::internal::egress("/proc/self/exe".as_ref(), Vec::new()),
            kept_paths: Arc::new(|_| Vec::new()),
        });
        let (stage, open) = watch::channel(Stage::Open);
        let settings = SharedSettings::new(Settings::default());
        let door = Arc::<Turnstile>::default();
        let host = Bare { services, metrics, door: door.clone() };
        let gateway = Gateway::new(Arc::new(host), None, settings, open).unwrap();
        Self { gateway, work, door, _stage: stage }
    }

    /// The answer to a request, and what it cost.
    async fn cost(&self, mut client: Client, line: &str, body: &str) -> ((u16, String), Work) {
        let (method, path) = line.split_once(' ').unwrap();
        *self.work.lock() = Work::default();
        let (status, answer) = ask(&mut client, method, path, body).await;
        ((status, answer["code"].to_string()), self.work.lock().clone())
    }

    /// What a request for something of others costs, and one for something that is not there; the answers are the same.
    async fn both(&self, by: &Claims, line: &str, body: &str, [theirs, none]: [&str; 2]) -> [Work; 2] {
        let cost = async |id: &str| {
            let client = self.gateway.client_as(Some(by.clone()));
            self.cost(client, &line.replace("ID", &percent_encoded(id)), body).await
        };
        let ((theirs, first), (none, second)) = (cost(theirs).await, cost(none).await);
        assert_eq!(theirs, none, "{line}");
        assert!([403, 404].contains(&theirs.0), "{line}: {theirs:?}");
        [first, second]
    }
}

/// An id that nothing has, of the same form.
fn altered(id: &str) -> String {
    let last = if id.ends_with('0') { "1" } else { "0" };
    format!("{}{last}", &id[..id.len() - 1])
}

/// Notes every file that is opened below a folder.
fn watch_files(folder: PathBuf) -> Inotify {
    let watch = Inotify::init(InitFlags::IN_NONBLOCK | InitFlags::IN_CLOEXEC).unwrap();
    let mut folders = vec![folder];
    while let Some(folder) = folders.pop() {
        watch.add_watch(&folder, AddWatchFlags::IN_OPEN).unwrap();
        let below = std::fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path());
        folders.extend(below.filter(|path| path.is_dir()));
    }
    // Reading the folders has opened them.
    opened_files(&watch);
    watch
}

fn opened_files(watch: &Inotify) -> usize {
    let mut files = 0;
    loop {
        match watch.read_events() {
            Ok(events) => {
                files += events.iter().filter(|one| !one.mask.contains(AddWatchFlags::IN_ISDIR)).count();
            }
            Err(error) => {
                assert_eq!(std::io::Error::from(error).kind(), ErrorKind::WouldBlock);
                return files;
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_of_others_costs_what_is_not_there() {
    let place = session_routes::place();
    let door = Door::open(place.config()).await;
    let (own, other) =
        (door.session("account://home/member").await, door.session("account://home/member").await);
    let (mut owner, mut admin) = (door.sandbox(&other), door.user("home", "admin"));
    let held = invoked(&pending(&mut owner, &other, "held.txt").await);
    let denied = pending(&mut owner, &other, "denied.txt").await;
    assert_eq!(ask(&mut admin, "POST", &format!("{denied}/deny"), "").await.0, 200);
    let (status, done) = ask(&mut owner, "POST", &format!("/{other}/actions/invoke"), READ).await;
    assert_eq!(status, 200, "{done}");
    let [done, receipt] =
        ["id", "receipt_id"].map(|name| done["invocation"][name].as_str().unwrap().to_owned());
    let (_, holds) = ask(&mut admin, "GET", "/v1/approvals", "").await;
    let hold = holds["approvals"][0]["approval_id"].as_str().unwrap().to_owned();
    let wanted = r#"{"integration": "files", "action": "copy"}"#;
    let (_, grant) = ask(&mut owner, "POST", &format!("/{other}/actions/grants"), wanted).await;
    let grant = grant["grant"]["id"].as_str().unwrap().to_owned();
    drop((owner, admin));

    let counted = Counted::of(&door, &place);
    let (agent, stranger) = (session_routes::sandbox(&own), account(TokenKind::User, "office", "admin"));
    let blobs = watch_files(place.state().join("blobs"));
    // A session of others: an agent's request reads nothing, a person's one record.
    for (method, route, body, _) in ROUTES {
        let line = format!("{method} /ID/actions/{}", route.replace("/ID", "/a"));
        for by in [&agent, &stranger] {
            let nowhere = SessionId::fresh().to_string();
            let [theirs, none] = counted.both(by, &line, body, [other.as_str(), &nowhere]).await;
            assert_eq!((&theirs.reads, &theirs.waits), (&none.reads, &none.waits), "{line}");
            assert!(theirs.reads.len() <= usize::from(by.session.is_none()), "{line}: {theirs:?}");
        }
    }
    // What has an id of its own, also of the agent of another session.
    for (line, id) in [
        ("GET /v1/receipts/ID", &receipt),
        ("GET /v1/receipts/ID/amendments", &receipt),
        ("GET /v1/receipts/ID/proof", &receipt),
        ("GET /v1/receipts/ID/explanation", &receipt),
        ("GET /v1/receipts/ID/artifacts/a", &receipt),
        ("GET /v1/actions/ID", &held),
        ("GET /v1/actions/ID/wait", &held),
        ("DELETE /v1/actions/ID", &held),
        ("GET /v1/actions/ID", &done),
        ("GET /v1/actions/ID/wait", &done),
        ("DELETE /v1/actions/ID", &done),
    ] {
        let [theirs, none] = counted.both(&agent, line, "", [id, &altered(id)]).await;
        assert_eq!(theirs, none, "{line}");
    }
    let digest = json!({ "digest": "0" }).to_string();
    for (line, body, id) in [
        ("GET /v1/receipts/ID", "", &receipt),
        ("GET /v1/receipts/ID/artifacts/a", "", &receipt),
        ("GET /v1/approvals/ID", "", &hold),
        ("POST /v1/approvals/ID/approve", &*digest, &hold),
        ("POST /v1/approvals/ID/deny", "", &hold),
        ("POST /v1/approvals/ID/preview", r#"{"params": {}}"#, &hold),
        ("GET /v1/approvals/ID/always", "", &hold),
        ("GET /v1/approvals/ID/grant", "", &hold),
        ("POST /v1/grants/ID/activate", "", &grant),
        ("POST /v1/grants/ID/revoke", "", &grant),
        ("GET /v1/sessions/ID", "", &other),
        ("POST /v1/sessions/ID/end", "", &other),
        ("DELETE /v1/sessions/ID", "", &other),
    ] {
        let [theirs, none] = counted.both(&stranger, line, body, [id, &altered(id)]).await;
        assert_eq!((&theirs.reads, &theirs.waits), (&none.reads, &none.waits), "{line}");
        // Only the record of a session says whose it is.
        assert!(theirs.unsealed.iter().all(|family| family == "sessions"), "{line}: {theirs:?}");
    }
    // An action that others may have named is looked for. That it is there saves no wait, and costs no write and no contents.
    for (by, line) in [
        (&stranger, "GET /v1/actions/ID".to_owned()),
        (&stranger, "GET /v1/actions/ID/wait".to_owned()),
        (&stranger, "DELETE /v1/actions/ID".to_owned()),
        (&agent, format!("GET /{own}/actions/invocations/ID")),
    ] {
        for id in [&held, &done] {
            let [theirs, none] = counted.both(by, &line, "", [id, &altered(id)]).await;
            assert_eq!(theirs.waits, none.waits, "{line}");
            assert!(theirs.waits.iter().all(|wait| ["groups", "open_intents"].contains(wait)), "{theirs:?}");
            assert!(theirs.reads.len() <= none.reads.len() + POINT_READS_MORE, "{line}: {theirs:?} {none:?}");
        }
    }
    assert_eq!(opened_files(&blobs), 0, "no blob is opened for others");
    let shown = format!("GET /{other}/actions/invocations/{}", percent_encoded(&done));
    let asker = counted.gateway.client_as(Some(session_routes::sandbox(&other)));
    let ((status, _), _) = counted.cost(asker, &shown, "").await;
    assert_eq!((status, opened_files(&blobs) > 0), (200, true), "one is for the asker");
    drop(counted);
    door.stop().await;
}

/// Reads of the index by which an action of others may cost more than one that is not there: each takes microseconds.
const POINT_READS_MORE: usize = 3;

/// The id at the end of the path of an invocation.
fn invoked(path: &str) -> String {
    path.rsplit('/').next().unwrap().replace("%2F", "/")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_secret_costs_what_an_unknown_token_costs() {
    let place = session_routes::place();
    let door = Door::open(place.config()).await;
    let mut operator = door.gateway.client("user://operator".parse().unwrap(), false);
    let body = json!({ "kind": "user", "org": "home", "name": "member" }).to_string();
    let (status, made) = ask(&mut operator, "POST", "/v1/tokens", &body).await;
    assert_eq!(status, 200, "{made}");
    let token = made["token"].as_str().unwrap();
    let before = &token[..token.len() - 6];
    let wrong_secret = with_checksum(&format!("{}{}", &before[..before.len() - 43], "0".repeat(43)));
    let unknown_id = with_checksum(&before.replace(&token[9..41], &"0".repeat(32)));
    let counted = Counted::of(&door, &place);
    let cost = async |token: &str| {
        let client = counted.gateway.client_by(&[&format!("Bearer {token}")]);
        counted.cost(client, "GET /v1/whoami", "").await
    };
    let (wrong, unknown) = (cost(&wrong_secret).await, cost(&unknown_id).await);
    assert_eq!(wrong, unknown);
    assert_eq!((wrong.0.0, &wrong.1.reads[..]), (401, &["entry of tokens".to_owned()][..]));
    assert_eq!(cost(token).await.0.0, 200);
    drop((operator, counted));
    door.stop().await;
}

/// Blocking work of one holder stands still. It has half of the places, and others the rest.
#[tokio::test(flavor = "multi_thread")]
async fn one_token_leaves_places_for_the_reads_of_others() {
    let place = session_routes::place();
    let door = Door::open(place.config()).await;
    let (own, other) =
        (door.session("account://home/member").await, door.session("account://home/member").await);
    let mut agent = door.sandbox(&own);
    let (status, done) = ask(&mut agent, "POST", &format!("/{own}/actions/invoke"), READ).await;
    assert_eq!(status, 200, "{done}");
    let path = format!("/v1/receipts/{}/explanation", done["invocation"]["receipt_id"].as_str().unwrap());
    drop(agent);
    let counted = Counted::of(&door, &place);
    counted.door.is_shut.store(true, Ordering::Relaxed);
    let flood: Vec<_> = (0..BLOCKING_REQUESTS_MAX)
        .map(|_| {
            let (mut client, path) =
                (counted.gateway.client_as(Some(session_routes::sandbox(&own))), path.clone());
            tokio::spawn(async move { ask(&mut client, "GET", &path, "").await })
        })
        .collect();
    let half = BLOCKING_REQUESTS_MAX / BLOCKING_PART;
    until("its half stands", || *counted.door.standing.lock() == half);
    for _ in 0..2 * BLOCKING_REQUESTS_MAX {
        let mut client = counted.gateway.client_as(Some(session_routes::sandbox(&other)));
        assert_eq!(ask(&mut client, "GET", "/v1/log", "").await.0, 200);
    }
    // Who goes away frees nothing: the work goes on. Who waits too long for a place is told so.
    for asked in flood {
        asked.abort();
        if let Ok((status, answer)) = asked.await {
            assert_eq!(status, 503, "{answer}");
        }
    }
    let mut client = counted.gateway.client_as(Some(session_routes::sandbox(&own)));
    assert_eq!(ask(&mut client, "GET", &path, "").await.0, 503);
    assert_eq!(*counted.door.standing.lock(), half, "it has no more than its half");
    counted.door.open();
    assert_eq!(ask(&mut client, "GET", &path, "").await.0, 404);
    drop(counted);
    door.stop().await;
}
