//! What every route works with, and the questions that several ask: how does this action stand, is there room for another?

use std::sync::Arc;
use std::time::Duration;

use effectd_actors::held::look;
use effectd_actors::limits::OVERLOAD_RETRY;
use effectd_actors::{Answer, Decider, Done, Held, Parts, Pipeline, StoreError, decisions};
use effectd_contracts::{ActionId, Code, Failure, Phase, Principal, Topic};
use tokio::sync::{Semaphore, SemaphorePermit, watch};

use crate::body::Budget;
use crate::limits::{BODIES_BYTES_MAX, PREVIEWS_ASKED_MAX, PULSE_AGE_MAX, TURN_TIME_MAX, TURNS_MAX};
use crate::metrics::Metrics;
use crate::peer::Peer;
use crate::problem::{Kind, Problem};
use crate::pulse::{Pulse, Vitals};
use crate::server::{Host, Stage};
use crate::settings::{Dial, Settings};

/// What every route works with.
pub(crate) struct Desk {
    pub(crate) host: Arc<dyn Host>,
    pipeline: Option<Arc<Pipeline>>,
    pub(crate) dial: Dial,
    pub(crate) budget: Budget,
    pub(crate) metrics: Metrics,
    pub(crate) pulse: Arc<Pulse>,
    pub(crate) vitals: Vitals,
    pub(crate) stage: watch::Receiver<Stage>,
    turns: Semaphore,
    previews: Semaphore,
}

/// How an action stands, as far as this peer may know.
pub(crate) enum Found {
    Done(Done),
    Accepted,
    Held(Held),
    Unknown,
}

impl Desk {
    pub(crate) fn new(
        host: Arc<dyn Host>,
        pipeline: Option<Arc<Pipeline>>,
        dial: Dial,
        metrics: Metrics,
        stage: watch::Receiver<Stage>,
    ) -> Self {
        let clock = host.parts().clock.clone();
        let pulse = Arc::new(Pulse::default());
        Self {
            vitals: Vitals::new(pulse.clone(), clock, stage.clone(), PULSE_AGE_MAX),
            budget: Budget::new(BODIES_BYTES_MAX),
            host,
            pipeline,
            dial,
            metrics,
            pulse,
            stage,
            turns: Semaphore::new(TURNS_MAX),
            previews: Semaphore::new(PREVIEWS_ASKED_MAX),
        }
    }

    pub(crate) fn parts(&self) -> &Arc<Parts> {
        self.host.parts()
    }

    /// Where decisions go; a problem where nothing is carried out.
    pub(crate) fn pipeline(&self) -> Result<&Pipeline, Problem> {
        self.pipeline.as_deref().ok_or_else(|| {
            let message = "nothing is carried out here; `effectd serve` starts a daemon";
            Problem::failed(&Failure::new(Code::ShuttingDown, Phase::Accept, message))
        })
    }

    /// What the operator has set, as it is now.
    pub(crate) fn settings(&self) -> Arc<Settings> {
        self.dial.settings()
    }

    /// Whether this peer may decide about what waits for a person, by the policy in force.
    pub(crate) fn may_decide(&self, peer: &Peer) -> bool {
        let by = Decider {
            principal: peer.principal.clone(),
            operator: peer.operator,
        };
        self.parts().policy().may_look(&by)
    }

    /// How long a request may wait: as long as it asks for, within the bound.
    pub(crate) fn wait_time(&self, asked_ms: Option<u64>) -> Duration {
        let most = self.settings().wait_time_max;
        asked_ms.map_or(most, |asked| Duration::from_millis(asked).min(most))
    }

    /// A turn at what takes a thread for some milliseconds.
    pub(crate) async fn turn(&self) -> Result<SemaphorePermit<'_>, Problem> {
        match tokio::time::timeout(TURN_TIME_MAX, self.turns.acquire()).await {
            Ok(Ok(turn)) => Ok(turn),
            Ok(Err(_)) | Err(_) => Err(Problem::of(
                Kind::Busy,
                "too many questions at once; try again shortly",
            )),
        }
    }

    /// A turn at trying something out, which takes a sandbox and perhaps seconds. Nobody waits for it: other questions would wait
    /// behind them.
    pub(crate) fn preview_turn(&self) -> Result<SemaphorePermit<'_>, Problem> {
        self.previews.try_acquire().map_err(|_| {
            let most = PREVIEWS_ASKED_MAX;
            let message = format!("{most} previews are being made already; ask again shortly");
            let failure = Failure::new(Code::Overloaded, Phase::Accept, message);
            Problem::failed(&failure.retry_after(OVERLOAD_RETRY))
        })
    }

    /// Whether another decision of this size may be taken on.
    pub(crate) fn room(&self, bytes: u64) -> Result<(), Problem> {
        let settings = self.settings();
        let (backlog, waiting) = (self.pulse.backlog(), self.pulse.backlog_bytes());
        let message = if backlog >= settings.backlog_max {
            format!("{backlog} decisions are accepted and not yet ended; try again shortly")
        } else if waiting.saturating_add(bytes) > settings.backlog_bytes_max {
            format!("{waiting} bytes of decisions are accepted and not yet ended; try again shortly")
        } else {
            return Ok(());
        };
        let failure = Failure::new(Code::Overloaded, Phase::Accept, message).retry_after(self.pulse.relief());
        Err(Problem::failed(&failure))
    }

    /// How an action stands. What belongs to somebody else is as good as unknown.
    pub(crate) async fn find(&self, action: &ActionId, peer: &Peer) -> Result<Found, Problem> {
        // It goes from the bus to those who decide, back, and to its receipt: one that was nowhere may have passed us.
        for _ in 0..LOOKS {
            if let Some(found) = self.look_for(action, peer).await? {
                return Ok(found);
            }
        }
        // The store answers in order: a repeat that was answered before this is linked to its receipt now.
        let in_order = self.parts().store.groups(&Topic::ActionDecision.into()).await;
        in_order.map_err(|error| unavailable(&error))?;
        let linked = self.receipt_of(action)?;
        Ok(linked.map_or(Found::Unknown, |done| seen(done, peer)))
    }

    async fn look_for(&self, action: &ActionId, peer: &Peer) -> Result<Option<Found>, Problem> {
        if let Some(done) = self.receipt_of(action)? {
            return Ok(Some(seen(done, peer)));
        }
        let waiting = look::waiting(self.parts(), action).await;
        if let Some((held, principal)) = waiting.map_err(|error| unavailable(&error))? {
            let ours = peer.operator || principal == peer.principal;
            return Ok(Some(match held.filter(|_| ours) {
                Some(held) => Found::Held(held),
                // It is decided, and being carried out or ended.
                None if ours => match self.receipt_of(action)? {
                    Some(done) => seen(done, peer),
                    None => Found::Accepted,
                },
                None => Found::Unknown,
            }));
        }
        Ok(self.is_open(action, peer).await?.then_some(Found::Accepted))
    }

    pub(crate) fn receipt_of(&self, action: &ActionId) -> Result<Option<Done>, Problem> {
        let stored = self.parts().store.receipt_of(action);
        let stored = stored.map_err(|error| unavailable(&error))?;
        let receipt = stored.map(|stored| stored.parse()).transpose();
        let receipt = receipt.map_err(|error| unavailable(&error))?;
        Ok(receipt.map(|receipt| Done {
            receipt: Arc::new(receipt),
            before: true,
            result: None,
        }))
    }

    /// Waits until an action has ended or waits for a person. Where nothing is carried out, looks whether it has.
    pub(crate) async fn ended(&self, action: &ActionId, wait: Duration) -> Option<Answer> {
        match self.pipeline() {
            Ok(pipeline) => {
                let ended = tokio::time::timeout(wait, pipeline.wait_or_held(action)).await;
                ended.ok()?.ok()
            }
            Err(_) => self.receipt_of(action).ok()?.map(Answer::Done),
        }
    }

    /// Whether the decision of this peer lies on the bus and is not settled.
    async fn is_open(&self, action: &ActionId, peer: &Peer) -> Result<bool, Problem> {
        let store = &*self.parts().store;
        let found = decisions::published(store, action).map_err(|error| unavailable(&error))?;
        let Some(found) = found else { return Ok(false) };
        let ours = |principal: &Principal| peer.operator || *principal == peer.principal;
        if !found.event.is_some_and(|event| ours(&event.data.principal)) {
            return Ok(false);
        }
        let groups = store.groups(&Topic::ActionDecision.into()).await;
        let groups = groups.map_err(|error| unavailable(&error))?;
        // What everybody has settled without a receipt was set aside as a dead letter. A decision that no pipeline has looked at
        // yet has no group to be settled by.
        Ok(groups.is_empty() || groups.iter().any(|group| group.committed <= found.offset))
    }
}

/// How often an action that was found nowhere is looked for: it moves twice at most while somebody looks.
const LOOKS: usize = 3;

/// The store could not answer.
pub(crate) fn unavailable(error: &StoreError) -> Problem {
    let failure = Failure::new(Code::StoreUnavailable, Phase::Accept, error.to_string());
    Problem::failed(&failure)
}

fn seen(done: Done, peer: &Peer) -> Found {
    if peer.may_see(&done.receipt) {
        Found::Done(done)
    } else {
        Found::Unknown
    }
}
