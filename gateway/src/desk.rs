//! What every route works with, and the one question that several ask: how does this action stand?

use std::sync::Arc;
use std::time::Duration;

use effectd_actors::{Done, Pipeline};
use effectd_contracts::limits::REQUEST_BYTES_MAX;
use effectd_contracts::{ActionId, Code, DecisionData, Event, Failure, Phase, Topic, json};
use tokio::sync::Semaphore;

use crate::body::Budget;
use crate::limits::{SCAN_EVENTS_MAX, SCANS_MAX};
use crate::metrics::Metrics;
use crate::peer::Peer;
use crate::problem::{Kind, Problem};
use crate::pulse::{Pulse, Vitals};
use crate::server::Host;
use crate::settings::Settings;

/// What every route works with.
pub(crate) struct Desk {
    pub(crate) host: Arc<dyn Host>,
    pub(crate) settings: Settings,
    pub(crate) budget: Budget,
    pub(crate) metrics: Metrics,
    pub(crate) pulse: Arc<Pulse>,
    pub(crate) vitals: Vitals,
    scans: Semaphore,
}

/// How an action stands, as far as this peer may know.
pub(crate) enum Found {
    Done(Done),
    Accepted,
    Unknown,
}

/// The most decisions read at once.
const PAGE: usize = 500;

impl Desk {
    pub(crate) fn new(
        host: Arc<dyn Host>,
        settings: Settings,
        metrics: Metrics,
        pulse: Arc<Pulse>,
        vitals: Vitals,
    ) -> Self {
        Self {
            host,
            settings,
            budget: Budget::new(),
            metrics,
            pulse,
            vitals,
            scans: Semaphore::new(SCANS_MAX),
        }
    }

    pub(crate) fn pipeline(&self) -> &Pipeline {
        self.host.pipeline()
    }

    /// How long a request may wait: as long as it asks for, within the bound.
    pub(crate) fn wait_time(&self, asked_ms: Option<u64>) -> Duration {
        let most = self.settings.wait_time_max;
        asked_ms.map_or(most, |asked| Duration::from_millis(asked).min(most))
    }

    /// Whether another decision may be taken on.
    pub(crate) fn room(&self) -> Result<(), Problem> {
        let (backlog, most) = (self.pulse.backlog(), self.settings.backlog_max);
        if backlog < most {
            return Ok(());
        }
        let message = format!("{backlog} decisions are accepted and not yet ended; try again shortly");
        Err(Problem::failed(&Failure::new(
            Code::Overloaded,
            Phase::Accept,
            message,
        )))
    }

    /// How an action stands. What belongs to somebody else is as good as unknown.
    pub(crate) async fn find(&self, action: &ActionId, peer: &Peer) -> Result<Found, Problem> {
        if let Some(done) = self.receipt_of(action)? {
            return Ok(seen(done, peer));
        }
        if !self.is_open(action, peer).await? {
            // It may have ended while the open ones were looked through.
            return Ok(self
                .receipt_of(action)?
                .map_or(Found::Unknown, |done| seen(done, peer)));
        }
        Ok(Found::Accepted)
    }

    fn receipt_of(&self, action: &ActionId) -> Result<Option<Done>, Problem> {
        self.pipeline()
            .receipt_of(action)
            .map_err(|failure| Problem::failed(&failure))
    }

    /// Looks through the decisions that are not settled yet, oldest first.
    async fn is_open(&self, action: &ActionId, peer: &Peer) -> Result<bool, Problem> {
        let _turn = self
            .scans
            .try_acquire()
            .map_err(|_| Problem::of(Kind::Busy, "too many questions at once; try again shortly"))?;
        let store = self.pipeline().parts().store.clone();
        let unavailable =
            |why: String| Problem::failed(&Failure::new(Code::StoreUnavailable, Phase::Accept, why));
        let groups = store
            .groups(&Topic::ActionDecision.into())
            .await
            .map_err(|error| unavailable(error.to_string()))?;
        let Some(mut from) = groups.iter().map(|group| group.committed).min() else {
            return Ok(false);
        };
        let (action, peer) = (action.clone(), peer.clone());
        let looked = tokio::task::spawn_blocking(move || {
            let end = from + SCAN_EVENTS_MAX as u64;
            while from < end {
                let page = store.read(&Topic::ActionDecision.into(), from, PAGE)?;
                let ours = page
                    .events
                    .iter()
                    .find(|event| event.action_id.as_ref() == Some(&action));
                if let Some(event) = ours {
                    return Ok(may_know(event.body.bytes(), &peer));
                }
                if page.events.is_empty() || page.next >= page.end {
                    return Ok(false);
                }
                from = page.next;
            }
            Ok(false)
        });
        match looked.await {
            Ok(Ok(open)) => Ok(open),
            Ok(Err(error)) => {
                let error: Box<dyn std::error::Error + Send + Sync> = error;
                Err(unavailable(error.to_string()))
            }
            Err(error) => Err(Problem::of(Kind::Internal, error.to_string())),
        }
    }
}

fn seen(done: Done, peer: &Peer) -> Found {
    if peer.may_see(&done.receipt) {
        Found::Done(done)
    } else {
        Found::Unknown
    }
}

/// Whether the decision is this peer's.
fn may_know(body: Option<&[u8]>, peer: &Peer) -> bool {
    let decision = body.and_then(|body| {
        // The envelope adds little to the largest request.
        json::parse::<Event<DecisionData>>(body, 2 * REQUEST_BYTES_MAX).ok()
    });
    peer.operator || decision.is_some_and(|decision| decision.data.principal == peer.principal)
}
