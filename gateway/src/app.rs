//! The state that all routes share, and the questions that several of them ask: where is this action, is there room for another?

use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, Bytes, HttpBody};
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use effectd_actors::action::decisions;
use effectd_actors::approvals::{Hold, view};
use effectd_actors::control::rates::Rate;
use effectd_actors::effects::results;
use effectd_actors::limits::OVERLOAD_RETRY;
use effectd_actors::{Answer, Done, Held, OrgRole, Pipeline, PrincipalRole, Services};
use effectd_bus::{Store, StoreError};
use effectd_contracts::{ActionId, ActionRequest, Code, Failure, Phase, Principal, Topic, json};
use http_body_util::BodyExt;
use serde::de::DeserializeOwned;
use tokio::sync::{Semaphore, SemaphorePermit, watch};

use crate::body::{AnswerBytes, BodyBudget, BodyBytes, BodyShare};
use crate::catalogue::{self, Catalogue};
use crate::extract::{Json, Payload, Reply};
use crate::health::{Readiness, StoreHealth};
use crate::host::{Host, Stage};
use crate::limits::{
    BACKLOG_RESERVE_PART, BLOCKING_PART, BLOCKING_REQUESTS_MAX, BLOCKING_WAIT_MAX, BODIES_BYTES_MAX,
    BODIES_PART, CHANGE_BYTES_MAX, PREVIEWS_ASKED_MAX, RESULTS_BYTES_MAX,
};
use crate::metrics::Metrics;
use crate::oidc::Issuer;
use crate::peer::Peer;
use crate::problem::{Kind, Problem};
use crate::settings::{Settings, SharedSettings};
use crate::signed_in::SignedIn;
use crate::slots::{Holder, Place, Places, Slot, Slots};
use crate::streams::Streams;

/// Results up to this size take no share of the memory for results: the bound on connections is enough.
const SMALL_RESULT_BYTES_MAX: u64 = 16_384;
/// Other answers up to this size take no share, either: the kernel has room for that much of an unread one. It is more than the answer to
/// a call or an invocation has, so that none of these is refused after its effect.
const SMALL_ANSWER_BYTES_MAX: u64 = 65_536;

tokio::task_local! {
    /// Whose request this task answers. Every route sets it, so that no handler can forget it.
    pub(crate) static HOLDER: Option<Holder>;
    /// Whether the request came over TCP: a browser may be signed in there as a user of the socket.
    pub(crate) static OVER_TCP: ();
}

/// Whose request this task answers. Work after the answer, such as a stream, counts for nobody.
fn holder() -> Holder {
    HOLDER.try_with(Clone::clone).ok().flatten().unwrap_or(Holder::Nobody)
}

fn is_at_socket(peer: &Peer) -> bool {
    peer.claims().is_none() && OVER_TCP.try_with(|()| ()).is_err()
}

pub(crate) type AppState = State<Arc<App>>;

/// The state that all routes share.
pub(crate) struct App {
    pub(crate) host: Arc<dyn Host>,
    pub(crate) pipeline: Option<Arc<Pipeline>>,
    settings: SharedSettings,
    at_socket: Bodies,
    over_tcp: Bodies,
    pub(crate) streams: Arc<Streams>,
    pub(crate) metrics: Metrics,
    pub(crate) health: Arc<StoreHealth>,
    pub(crate) readiness: Readiness,
    pub(crate) stage: watch::Receiver<Stage>,
    /// Requests of each token.
    pub(crate) token_rate: Option<Rate>,
    pub(crate) oidc: Issuer,
    pub(crate) signed_in: SignedIn,
    catalogue: catalogue::Current,
    blocking: Places,
    previews: Semaphore,
    waits: Slots,
}

/// The memory for bodies at one door.
struct Bodies {
    requests: BodyBudget,
    /// Requests that were read and wait for their action. They have bytes of their own: while many wait, an approval is read.
    waiting: BodyBudget,
    results: BodyBudget,
    /// Other long answers, such as lists.
    answers: BodyBudget,
}

impl Bodies {
    /// One holder may take one part in this many of the results.
    fn new(part: usize) -> Self {
        let budget = |most: usize, part: usize| BodyBudget::new(most, most / part);
        Self {
            requests: budget(BODIES_BYTES_MAX, BODIES_PART),
            waiting: budget(BODIES_BYTES_MAX, BODIES_PART),
            results: budget(RESULTS_BYTES_MAX, part),
            answers: budget(RESULTS_BYTES_MAX, BODIES_PART),
        }
    }
}

/// Where an action is, as far as this peer may know.
pub(crate) enum Found {
    /// With the share of memory that its result has until the answer is written.
    Done(Done, BodyShare),
    Accepted,
    Held(Held),
    Unknown,
}

impl App {
    pub(crate) fn new(
        host: Arc<dyn Host>,
        pipeline: Option<Arc<Pipeline>>,
        settings: SharedSettings,
        metrics: Metrics,
        stage: watch::Receiver<Stage>,
    ) -> Self {
        let (health, clock) = (Arc::new(StoreHealth::default()), host.services().clock.clone());
        Self {
            readiness: Readiness::new(health.clone(), clock.clone(), stage.clone()),
            token_rate: settings.get().token_rate_max.map(|most| Rate::new("token", most, &clock)),
            oidc: Issuer::new(),
            signed_in: SignedIn::default(),
            catalogue: catalogue::Current::default(),
            at_socket: Bodies::new(1),
            over_tcp: Bodies::new(BODIES_PART),
            streams: Streams::new(&*host.services().store, &metrics.streams),
            host,
            pipeline,
            settings,
            metrics,
            health,
            stage,
            blocking: Places::new(BLOCKING_REQUESTS_MAX, BLOCKING_REQUESTS_MAX / BLOCKING_PART),
            previews: Semaphore::new(PREVIEWS_ASKED_MAX),
            waits: Slots::default(),
        }
    }

    pub(crate) fn services(&self) -> &Arc<Services> {
        self.host.services()
    }

    pub(crate) fn store(&self) -> &dyn Store {
        &*self.services().store
    }

    /// The tools of the registry in force, as models see them.
    pub(crate) fn catalogue(&self) -> Arc<Catalogue> {
        self.catalogue.of(self.services().registry())
    }

    /// The pipeline; a problem if this process runs none.
    pub(crate) fn pipeline(&self) -> Result<&Pipeline, Problem> {
        self.pipeline.as_deref().ok_or_else(|| {
            let message = "no pipeline runs here; `effectd serve` starts a daemon";
            Failure::new(Code::ShuttingDown, Phase::Accept, message).into()
        })
    }

    /// The settings as they are now.
    pub(crate) fn settings(&self) -> Arc<Settings> {
        self.settings.get()
    }

    /// Whether the policy lets this peer decide about approvals.
    pub(crate) fn may_decide(&self, peer: &Peer) -> bool {
        let (policy, by) = (self.services().policy(), peer.decider());
        let mut orgs = policy.orgs().into_iter();
        policy.may_view_approvals(&by, None) || orgs.any(|org| policy.may_view_approvals(&by, Some(org)))
    }

    /// Whether this peer may do this part of an operator's work.
    pub(crate) fn may_operate(&self, peer: &Peer, part: PrincipalRole) -> bool {
        self.services().policy().may_operate(&peer.decider(), part)
    }

    /// Whether this peer may look at what an organisation has: as an operator, or by at least this role in it.
    pub(crate) fn sees_org(&self, peer: &Peer, org: &str, least: OrgRole) -> bool {
        let (policy, by) = (self.services().policy(), peer.decider());
        policy.may_operate_in(&by, PrincipalRole::Look, Some(org)) || policy.role_in(&by, org) >= Some(least)
    }

    /// Fails unless this peer may change what an organisation has: as an operator, or by at least this role in it.
    pub(crate) fn check_org(&self, peer: &Peer, org: &str, least: OrgRole) -> Result<(), Problem> {
        let (policy, by) = (self.services().policy(), peer.decider());
        if policy.may_operate_in(&by, PrincipalRole::Operate, Some(org))
            || policy.role_in(&by, org) >= Some(least)
        {
            return Ok(());
        }
        let role = least.as_str();
        let why =
            format!("only operators, and principals with the role `{role}` or higher in the organisation");
        Err(Problem::of(Kind::OperatorsOnly, format!("{why} may do this")))
    }

    /// How long a request may wait: as long as it asks for, up to the limit.
    pub(crate) fn wait_time(&self, asked_ms: Option<u64>) -> Duration {
        let most = self.settings().wait_time_max;
        asked_ms.map_or(most, |asked| Duration::from_millis(asked).min(most))
    }

    /// A slot for a request that waits, if it came over TCP; at the socket the bounds of connections are enough. Fails at once if
    /// none is free.
    pub(crate) fn wait_slot(&self, peer: &Peer) -> Result<Option<Slot>, Problem> {
        if is_at_socket(peer) {
            return Ok(None);
        }
        let slot = self.waits.take(peer.holder(), self.settings().network_waits());
        slot.map(Some).ok_or_else(|| Problem::of(Kind::Busy, "too many requests wait; try again shortly"))
    }

    /// The memory for this peer's bodies: a flood over TCP leaves the socket its own.
    fn bodies(&self, peer: &Peer) -> &Bodies {
        if is_at_socket(peer) { &self.at_socket } else { &self.over_tcp }
    }

    pub(crate) async fn body(&self, Payload { peer, body }: Payload) -> Result<BodyBytes, Problem> {
        let time_max = self.settings().body_time_max;
        self.bodies(&peer).requests.read(peer.holder(), body, time_max).await
    }

    /// The body of somebody who is not known yet, over TCP.
    pub(crate) async fn strangers_body(&self, body: Body) -> Result<BodyBytes, Problem> {
        self.over_tcp.requests.read(holder(), body, self.settings().body_time_max).await
    }

    /// The share of a request of this size that waits for its action.
    pub(crate) fn waiting_share(&self, peer: &Peer, bytes: u64) -> Result<BodyShare, Problem> {
        let busy = "too many bytes of requests wait for their actions; try again shortly";
        self.bodies(peer).waiting.share(peer.holder(), bytes, busy)
    }

    /// Reads an action request, and makes its id whole. Also returns its size and its share of the memory for bodies. The caller
    /// drops the share once the limits of waiting requests or of accepted decisions count the request.
    pub(crate) async fn action_request(
        &self,
        payload: Payload,
    ) -> Result<(ActionRequest, u64, BodyShare), Problem> {
        let peer = payload.peer.clone();
        let BodyBytes { bytes, share } = self.body(payload).await?;
        let mut request = ActionRequest::parse(&bytes)?;
        request.action_id = peer.whole_id(&request.action_id)?;
        Ok((request, bytes.len() as u64, share))
    }

    /// Reads a small JSON body; one that cannot be parsed is a problem of the kind `invalid`. The caller keeps the share until
    /// it answers.
    pub(crate) async fn json_body<T: DeserializeOwned>(
        &self,
        body: Payload,
        invalid: Kind,
    ) -> Result<(T, BodyShare), Problem> {
        let BodyBytes { bytes, share } = self.body(body).await?;
        let refused = |error: json::JsonInvalid| Problem::of(invalid, error.to_string());
        // serde would take a number for the index of a variant.
        let plain = json::parse_value(&bytes, CHANGE_BYTES_MAX).map_err(refused)?;
        if ["change", "do", "kind"].iter().any(|tag| plain.get(tag).is_some_and(|word| !word.is_string())) {
            return Err(Problem::of(invalid, "`change`, `do` and `kind` must be texts"));
        }
        let value = json::parse(&bytes, CHANGE_BYTES_MAX).map_err(refused)?;
        Ok((value, share))
    }

    /// Like `json_body`, for a body that may be left out.
    pub(crate) async fn optional_json_body<T: DeserializeOwned + Default>(
        &self,
        body: Payload,
        bytes_max: usize,
        invalid: Kind,
    ) -> Result<(T, BodyShare), Problem> {
        let BodyBytes { bytes, share } = self.body(body).await?;
        if bytes.is_empty() {
            return Ok((T::default(), share));
        }
        let value = json::parse(&bytes, bytes_max);
        let value = value.map_err(|error| Problem::of(invalid, error.to_string()))?;
        Ok((value, share))
    }

    /// A place for work that occupies a thread for some milliseconds. Whoever works keeps it, also if the client goes away meanwhile.
    pub(crate) async fn blocking_place(&self) -> Result<Place, Problem> {
        let place = tokio::time::timeout(BLOCKING_WAIT_MAX, self.blocking.wait(&holder())).await;
        let busy = || Problem::of(Kind::Busy, "too many requests at once; try again shortly");
        place.ok().flatten().ok_or_else(busy)
    }

    /// Runs blocking work on a thread of its own, a few at a time for all clients.
    pub(crate) async fn blocking<T: Send + 'static>(
        self: &Arc<Self>,
        work: impl FnOnce(&Self) -> Result<T, Problem> + Send + 'static,
    ) -> Result<T, Problem> {
        let (app, place) = (self.clone(), self.blocking_place().await?);
        let work = move || {
            let _place = place;
            work(&app)
        };
        let done = tokio::task::spawn_blocking(work).await;
        done.unwrap_or_else(|error| Err(Problem::of(Kind::Internal, error.to_string())))
    }

    /// Like `blocking`, for operators' routes, whose problems distinguish the store's errors.
    pub(crate) async fn store_query<T: Send + 'static>(
        self: &Arc<Self>,
        work: impl FnOnce(&Services) -> Result<T, StoreError> + Send + 'static,
    ) -> Reply<T> {
        let work = move |app: &Self| work(app.services()).map_err(|error| Problem::for_operator(&error));
        self.blocking(work).await.map(Json)
    }

    /// A permit for a preview, which occupies a sandbox, perhaps for seconds. Fails at once if none is free.
    pub(crate) fn preview_permit(&self) -> Result<SemaphorePermit<'_>, Problem> {
        self.previews.try_acquire().map_err(|_| {
            let most = PREVIEWS_ASKED_MAX;
            let message = format!("{most} previews are already running; try again shortly");
            let failure = Failure::new(Code::Overloaded, Phase::Accept, message);
            failure.retry_after(OVERLOAD_RETRY).into()
        })
    }

    /// Back-pressure: refuses another decision of this size while the backlog is full, or the principal has its share of it.
    pub(crate) fn check_backlog(&self, principal: &Principal, bytes: u64) -> Result<(), Problem> {
        let settings = self.settings();
        let (backlog, waiting) = (self.health.backlog(), self.health.backlog_bytes());
        let (own, own_bytes) = self.health.backlog_of(principal);
        let share = |most: u64| most - most / BACKLOG_RESERVE_PART;
        let own_max = share(settings.backlog_max);
        let message = if backlog >= settings.backlog_max {
            format!("{backlog} accepted decisions are unfinished; try again shortly")
        } else if waiting.saturating_add(bytes) > settings.backlog_bytes_max {
            format!("{waiting} bytes of accepted decisions are unfinished; try again shortly")
        } else if own.min(backlog) >= own_max {
            format!(
                "{own} accepted decisions of yours are unfinished, and the rest is for others; try again shortly"
            )
        } else if own > 0 && own_bytes.saturating_add(bytes) > share(settings.backlog_bytes_max) {
            format!(
                "{own_bytes} bytes of your accepted decisions are unfinished, and the rest is for others; try again shortly"
            )
        } else {
            return Ok(());
        };
        let failure = Failure::new(Code::Overloaded, Phase::Accept, message);
        Err(failure.retry_after(self.health.retry_after()).into())
    }

    /// Where the action is that a peer means by this id, with its whole id.
    pub(crate) async fn find_meant(&self, id: &ActionId, peer: &Peer) -> Result<(ActionId, Found), Problem> {
        for whole in peer.meant_ids(id) {
            match self.find(&whole, peer).await? {
                Found::Unknown => {}
                found @ (Found::Done(..) | Found::Accepted | Found::Held(_)) => return Ok((whole, found)),
            }
        }
        Ok((id.clone(), Found::Unknown))
    }

    /// Where an action is. Other people's actions are unknown, and are searched for as long.
    pub(crate) async fn find(&self, action: &ActionId, peer: &Peer) -> Result<Found, Problem> {
        // During one search, an action may move between topic, approval and receipt, and be missed.
        for _ in 0..SEARCHES {
            if let Some(found) = self.find_once(action, peer).await? {
                return Ok(found);
            }
        }
        // The store answers in order: after this reply, a repeated request that was answered earlier is linked to its receipt.
        self.store().groups(&Topic::ActionDecision.into()).await?;
        let linked = self.receipt_of(action)?;
        match linked {
            Some(done) => self.visible(done, peer).await,
            None => Ok(Found::Unknown),
        }
    }

    async fn find_once(&self, action: &ActionId, peer: &Peer) -> Result<Option<Found>, Problem> {
        if let Some(done) = self.receipt_of(action)? {
            let found = self.visible(done, peer).await?;
            return Ok((!matches!(found, Found::Unknown)).then_some(found));
        }
        let is_own = |hold: &Hold| owns(peer, &hold.decision.principal);
        let mut by = peer.decider();
        // Nobody else takes an id like its own ones, so its question is opened wherever its space belongs now.
        if peer.whole_id(action).is_ok_and(|own| own == *action) {
            by.org = None;
        }
        if let Some(held) = view::waiting(self.services(), &by, action, is_own).await? {
            if let Some(held) = held {
                return Ok(Some(Found::Held(held)));
            }
            // The approval is decided; the action runs or has ended.
            return Ok(Some(match self.receipt_of(action)? {
                Some(done) => self.visible(done, peer).await?,
                None => Found::Accepted,
            }));
        }
        Ok(self.is_open(action, peer).await?.then_some(Found::Accepted))
    }

    pub(crate) fn receipt_of(&self, action: &ActionId) -> Result<Option<Done>, Problem> {
        let Some(stored) = self.store().receipt_of(action)? else {
            return Ok(None);
        };
        Ok(Some(Done::before(Arc::new(stored.parse()?))))
    }

    async fn visible(&self, done: Done, peer: &Peer) -> Result<Found, Problem> {
        if results::reads(&self.services().policy(), &done.receipt, &peer.decider(), None).is_none() {
            return Ok(Found::Unknown);
        }
        let (done, share) = self.with_result(done, peer).await?;
        Ok(Found::Done(done, share))
    }

    /// An answer with its result: whole for the principal who asked, and safe to show to others. A long result needs a share of
    /// the memory for results, which the caller keeps until the answer is written; the one for others is short.
    pub(crate) async fn with_result(&self, done: Done, peer: &Peer) -> Result<(Done, BodyShare), Problem> {
        let bytes = done.receipt.kept_result.as_ref().map_or(0, |kept| kept.bytes);
        let share = self.result_share(peer, bytes);
        if done.receipt.principal == peer.principal {
            let share = share?;
            return Ok((results::fill(self.services(), done).await, share));
        }
        // A share for the whole result, until it is pruned. Without one, others still see how the action ended.
        let mut done = match &share {
            Err(busy) if matches!(done.result, Ok(None)) => {
                let failure = Failure::new(Code::Overloaded, Phase::Record, busy.detail.as_str());
                Done { result: Err(failure.retry_after(OVERLOAD_RETRY)), ..done }
            }
            Ok(_) | Err(_) => results::fill(self.services(), done).await,
        };
        done.result = done.result.map(|result| result.map(|result| Arc::new(results::safe(&result))));
        Ok((done, BodyShare::default()))
    }

    /// The share of an answer with a result of this size. A short one needs none.
    pub(crate) fn result_share(&self, peer: &Peer, bytes: u64) -> Result<BodyShare, Problem> {
        if bytes <= SMALL_RESULT_BYTES_MAX {
            return Ok(BodyShare::default());
        }
        let busy = "the action has ended, but too many long results are in memory; ask for it again shortly";
        self.bodies(peer).results.share(peer.holder(), bytes, busy)
    }

    /// An answer that keeps its share of memory until it is written or given up. One that came without takes one if it is long.
    pub(crate) async fn holding(&self, peer: &Peer, response: Response) -> Response {
        let (mut head, body) = response.into_parts();
        let share = head.extensions.remove::<Arc<BodyShare>>().filter(|share| !share.is_none());
        let bytes = body.size_hint().exact().unwrap_or(0);
        let share = match share {
            Some(share) => share,
            None if bytes <= SMALL_ANSWER_BYTES_MAX => return Response::from_parts(head, body),
            None => {
                let busy = "too many long answers are unread; read them, or ask again shortly";
                match self.bodies(peer).answers.share(peer.holder(), bytes, busy) {
                    Ok(share) => Arc::new(share),
                    Err(busy) => return busy.into_response(),
                }
            }
        };
        // All of it is in memory already.
        match body.collect().await {
            Ok(body) => {
                let held = AnswerBytes { bytes: body.to_bytes(), _share: share };
                Response::from_parts(head, Body::from(Bytes::from_owner(held)))
            }
            Err(error) => Problem::of(Kind::Internal, error.to_string()).into_response(),
        }
    }

    /// Waits until an action ends or needs an approval. Without a pipeline it only reads the receipt.
    pub(crate) async fn ended(&self, action: &ActionId, wait: Duration) -> Option<Answer> {
        match self.pipeline() {
            Ok(pipeline) => {
                let ended = tokio::time::timeout(wait, pipeline.wait_or_held(action)).await;
                ended.ok()?.ok()
            }
            Err(_) => self.receipt_of(action).ok()?.map(Answer::Done),
        }
    }

    /// Whether a decision of this peer is on the topic and not acknowledged.
    async fn is_open(&self, action: &ActionId, peer: &Peer) -> Result<bool, Problem> {
        let Some(found) = decisions::published(self.store(), action)? else {
            return Ok(false);
        };
        if !found.event.is_some_and(|event| owns(peer, &event.data.principal)) {
            return Ok(false);
        }
        let groups = self.store().groups(&Topic::ActionDecision.into()).await?;
        // A decision that every group has acknowledged is a dead letter, as it has no receipt. Without groups, no pipeline has
        // read it.
        Ok(groups.is_empty() || groups.iter().any(|group| group.committed <= found.offset))
    }
}

/// How often `find` searches before it reports an action as unknown.
const SEARCHES: usize = 3;

fn owns(peer: &Peer, principal: &Principal) -> bool {
    peer.operator || *principal == peer.principal
}
