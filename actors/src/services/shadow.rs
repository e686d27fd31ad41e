//! The shadow: a candidate policy that judges each live decision beside the policy in force. It decides nothing.

use std::collections::{BTreeMap, HashSet, VecDeque};
use std::sync::Arc;

use effectd_contracts::{ActionId, Digest, Timestamp};
use effectd_policy::Policy;
use parking_lot::{Mutex, RwLock};
use prometheus::IntCounterVec;

use crate::limits::{SHADOW_ACTIONS_MAX, SHADOW_FLIPS_MAX, SHADOW_GROUPS_MAX};

pub struct Shadow {
    candidate: RwLock<Option<Candidate>>,
    decisions: IntCounterVec,
}

#[derive(Clone)]
pub(crate) struct Candidate {
    /// With the changes made by commands; or why it cannot judge.
    pub(crate) policy: Result<Policy, String>,
    /// As it was started, so that one overlay which does not fit is not its end.
    started: Result<Policy, String>,
    digest: Digest,
    since: Timestamp,
    figures: Arc<Mutex<Figures>>,
    counted: Arc<Mutex<Counted>>,
}

/// The actions that were counted last: one that is delivered again counts once.
#[derive(Default)]
struct Counted {
    known: HashSet<ActionId>,
    order: VecDeque<ActionId>,
}

impl Counted {
    /// Whether the action is new.
    fn add(&mut self, id: &ActionId) -> bool {
        if !self.known.insert(id.clone()) {
            return false;
        }
        self.order.push_back(id.clone());
        if self.order.len() > SHADOW_ACTIONS_MAX
            && let Some(oldest) = self.order.pop_front()
        {
            self.known.remove(&oldest);
        }
        true
    }
}

/// A candidate, and what it has judged in this process.
#[derive(Debug, Clone)]
pub struct Report {
    /// The digest of the candidate's files.
    pub digest: Digest,
    pub since: Timestamp,
    /// Why it cannot judge.
    pub fault: Option<String>,
    pub figures: Figures,
}

#[derive(Debug, Clone, Default)]
pub struct Figures {
    pub since: Timestamp,
    pub same: u64,
    pub flips: u64,
    pub errors: u64,
    /// The last error.
    pub error: Option<String>,
    /// The number of flips by tool, verdict in force, and verdict of the candidate.
    pub groups: BTreeMap<(String, String, String), u64>,
    /// The last flips, newest first.
    pub last: VecDeque<Flip>,
}

/// A decision that would be another one under the candidate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Flip {
    pub at: Timestamp,
    pub action_id: ActionId,
    pub tool_id: String,
    /// The verdict of the policy in force.
    pub from: String,
    /// The verdict of the candidate.
    pub to: String,
    /// The candidate's rule and reasons.
    pub rule: String,
    pub why: String,
}

impl Shadow {
    pub(crate) fn new(decisions: IntCounterVec) -> Self {
        Self { candidate: RwLock::default(), decisions }
    }

    /// Lets a candidate judge from `now` on; or says why one that was started earlier cannot.
    pub fn start(&self, policy: Result<Policy, String>, digest: Digest, since: Timestamp, now: Timestamp) {
        let figures = Arc::new(Mutex::new(Figures { since: now, ..Figures::default() }));
        let (started, counted) = (policy.clone(), Arc::default());
        *self.candidate.write() = Some(Candidate { policy, started, digest, since, figures, counted });
    }

    /// Ends the candidate, and returns what it has judged.
    pub fn stop(&self) -> Option<Report> {
        self.candidate.write().take().map(|candidate| candidate.report())
    }

    /// Lays the changes made by commands over the candidate, as they are over the policy in force. That policy is read last, so
    /// that of two changes at once the later one stays.
    pub fn lay_over(&self, in_force: impl FnOnce() -> Arc<Policy>) {
        if let Some(candidate) = &mut *self.candidate.write() {
            candidate.policy = candidate.started.clone().and_then(|policy| {
                let laid = policy.with_overlay(in_force().overlay());
                laid.map_err(|error| format!("the overlay does not fit: {error}"))
            });
        }
    }

    pub(crate) fn candidate(&self) -> Option<Candidate> {
        self.candidate.read().clone()
    }

    pub fn report(&self) -> Option<Report> {
        self.candidate().map(|candidate| candidate.report())
    }

    /// Counts a candidate's judgement of an action: the same verdict (`None`), a flip, or an error.
    pub(crate) fn count(&self, candidate: &Candidate, id: &ActionId, judged: Result<Option<Flip>, String>) {
        if !candidate.counted.lock().add(id) {
            return;
        }
        let mut figures = candidate.figures.lock();
        let result = match judged {
            Ok(None) => {
                figures.same += 1;
                "same"
            }
            Ok(Some(flip)) => {
                figures.add(flip);
                "flip"
            }
            Err(error) => {
                figures.errors += 1;
                figures.error = Some(error);
                "error"
            }
        };
        self.decisions.with_label_values(&[result]).inc();
    }
}

impl Candidate {
    fn report(&self) -> Report {
        Report {
            digest: self.digest,
            since: self.since,
            fault: self.policy.as_ref().err().cloned(),
            figures: self.figures.lock().clone(),
        }
    }
}

impl Figures {
    fn add(&mut self, flip: Flip) {
        self.flips += 1;
        let group = (flip.tool_id.clone(), flip.from.clone(), flip.to.clone());
        if self.groups.len() < SHADOW_GROUPS_MAX || self.groups.contains_key(&group) {
            *self.groups.entry(group).or_default() += 1;
        }
        self.last.push_front(flip);
        self.last.truncate(SHADOW_FLIPS_MAX);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use prometheus::Opts;

    use super::*;

    #[test]
    fn an_action_that_is_delivered_again_counts_once() {
        let shadow = Shadow::new(IntCounterVec::new(Opts::new("decisions", "all"), &["result"]).unwrap());
        let now = Timestamp::UNIX_EPOCH;
        shadow.start(Err("it does not compile".to_owned()), Digest::of(b"files"), now, now);
        let candidate = shadow.candidate().unwrap();
        let id = |nth: usize| ActionId::new(format!("a-{nth}")).unwrap();
        for nth in [0, 1, 0, 1] {
            shadow.count(&candidate, &id(nth), Ok(None));
        }
        let report = shadow.report().unwrap();
        assert_eq!((report.figures.same, report.fault.as_deref()), (2, Some("it does not compile")));
        // Only the last ones are remembered.
        for nth in 0..=SHADOW_ACTIONS_MAX {
            shadow.count(&candidate, &id(nth), Ok(None));
        }
        shadow.count(&candidate, &id(0), Ok(None));
        assert_eq!(shadow.report().unwrap().figures.same, SHADOW_ACTIONS_MAX as u64 + 2);
        assert_eq!(candidate.counted.lock().known.len(), SHADOW_ACTIONS_MAX);
    }
}
