//! The steps of a batch: hands each item, or what undoes it, to the pipeline as an action, and waits for its receipt.
//!
//! Steps that change different paths are handed over ahead of their turn: their pre-images and intents reach the disk while the steps
//! before them run. A step whose interrupted run nobody can settle is never claimed before its turn.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use effectd_bus::{Pins, StoreError};
use effectd_contracts::access::is_wired;
use effectd_contracts::batch::{origin, undo_id};
use effectd_contracts::text::without_case;
use effectd_contracts::{
    ActionId, ActionRequest, Code, DecisionData, Effects, Failure, Monotonic, Origin, Outcome, PathSnapshot,
    Phase, Receipt, Repeat, RiskLevel,
};
use tokio::sync::{oneshot, watch};

use super::not_started;
use crate::action::decisions::{answer_of_ended, detached, id_taken};
use crate::action::proofs::Earlier;
use crate::action::ticket::{Back, NewTicket, Slot, Ticket, Way};
use crate::action::{Action, Claimed, Submitted};
use crate::claims::pending::intent_of;
use crate::claims::resources;
use crate::effects::undo;
use crate::execution::recording;
use crate::limits::{BATCH_AHEAD_MAX, BATCH_TRIES, BATCH_UNDO_TRIES, OVERLOAD_RETRY};
use crate::messages::Refusal;
use crate::services::Services;
use crate::services::answers::{self, Answer};
use crate::stage::{Address, pass};

/// An item or an undo that has ended.
#[derive(Debug, Clone)]
pub(super) struct Done {
    pub(super) receipt: Arc<Receipt>,
    /// Whether this step did it; otherwise it was done before, and the earlier receipt is the answer.
    pub(super) is_own: bool,
    /// The equal item of this batch that did it.
    pub(super) same_as: Option<usize>,
}

impl Done {
    pub(super) fn is_done(&self) -> bool {
        self.receipt.outcome == Outcome::Executed
    }

    /// Why it is not done.
    pub(super) fn why(&self) -> String {
        let failure = self.receipt.error.as_ref().map(|failure| failure.message.clone());
        failure.unwrap_or_else(|| format!("it ended as {}", self.receipt.outcome.as_str()))
    }

    /// Who did it, if not this step.
    pub(super) fn by_whom(&self) -> String {
        match self.same_as {
            Some(index) => format!("the same as items[{index}]"),
            None if self.is_own => String::new(),
            None => "done before this batch".to_owned(),
        }
    }
}

#[derive(Debug)]
pub(super) struct Step {
    pub(super) index: usize,
    request: ActionRequest,
    is_undo: bool,
    /// The paths that it may change; `None` if that is not known.
    writes: Option<Vec<String>>,
    reads: Vec<String>,
    /// Whether it may be claimed before its turn.
    early: bool,
    /// Whether it changes no file of the space, whatever it declares.
    pub(super) changes_none: bool,
    /// The state of its paths that an approver saw.
    expect: Vec<PathSnapshot>,
}

impl Step {
    /// Whether the order of the two matters.
    fn depends_on(&self, other: &Step) -> bool {
        let (Some(own), Some(others)) = (&self.writes, &other.writes) else { return true };
        let own = || own.iter().chain(&self.reads);
        own().any(|path| overlaps(path, others))
            || self.writes.iter().flatten().any(|path| overlaps(path, &other.reads))
    }
}

/// Whether a path is one of these, or lies above or beneath one.
fn overlaps(path: &str, others: &[String]) -> bool {
    let beneath = |one: &str, other: &str| {
        one.strip_prefix(other).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    };
    // Some file systems ignore case.
    let path = without_case(path);
    others
        .iter()
        .map(|other| without_case(other))
        .any(|other| beneath(&path, &other) || beneath(&other, &path))
}

/// A step in the pipeline.
struct Entered {
    answer: oneshot::Receiver<Answer>,
    back: oneshot::Receiver<Back>,
    /// Whether it can no longer turn back.
    is_on_disk: bool,
    /// Its answer, if it had ended before.
    known: Option<Result<Done, Failure>>,
}

pub(super) struct Run<'a> {
    pub(super) services: &'a Arc<Services>,
    validator: &'a Address<Action<Submitted>>,
    halt: watch::Receiver<bool>,
    pub(super) action: &'a mut Action<Claimed>,
    deadline: Monotonic,
    /// Steps that were handed over, the first of them that whose turn is next.
    ahead: VecDeque<Entered>,
    /// The pre-images of what has been done, until the batch has ended.
    pins: Vec<Arc<Pins>>,
}

impl<'a> Run<'a> {
    pub(super) fn new(
        services: &'a Arc<Services>,
        validator: &'a Address<Action<Submitted>>,
        halt: watch::Receiver<bool>,
        action: &'a mut Action<Claimed>,
        deadline: Monotonic,
    ) -> Self {
        Self { services, validator, halt, action, deadline, ahead: VecDeque::new(), pins: Vec::new() }
    }

    /// The paths that a call declares; `None` if it declares none.
    pub(super) fn declared(&self, request: &ActionRequest) -> Option<Vec<String>> {
        let registry = self.services.registry();
        let touches = registry.get(&request.tool_id)?.touches(&request.params)?;
        Some(touches.into_iter().map(|touch| touch.path).collect())
    }

    /// The states of paths that an approver saw. After a crash, the batch's own snapshot is that of the approved question.
    fn approved_states(&self) -> Vec<PathSnapshot> {
        match self.action.state.earlier() {
            Earlier::Interrupted(Some(intent)) if self.action.ticket.approved.is_some() => {
                intent.before.clone().unwrap_or_default()
            }
            Earlier::No | Earlier::Interrupted(_) => self.action.ticket.expect.clone(),
        }
    }

    /// The steps of all items.
    pub(super) fn items(&self, requests: &[ActionRequest]) -> Vec<Step> {
        let registry = self.services.registry();
        let seen = self.approved_states();
        let mut steps: Vec<Step> = Vec::with_capacity(requests.len());
        for (index, request) in requests.iter().enumerate() {
            let tool = registry.get(&request.tool_id);
            let writes = self.declared(request).filter(|paths| !paths.is_empty());
            let reads = tool.map(|tool| tool.reads(&request.params)).unwrap_or_default();
            let own: Vec<_> = writes.iter().flatten().chain(&reads).cloned().collect();
            let is_first = |path: &str| {
                let leaves = |step: &Step| step.writes.as_ref().is_some_and(|writes| !overlaps(path, writes));
                steps.iter().all(|step| step.changes_none || leaves(step))
            };
            let changes_none = tool.is_some_and(|tool| {
                tool.spec().level() == RiskLevel::Read || is_wired(tool.spec().tool_id.source())
            });
            let expect = seen.iter().filter(|seen| own.contains(&seen.path) && is_first(&seen.path));
            steps.push(Step {
                index,
                request: request.clone(),
                is_undo: false,
                reads,
                early: tool.is_some_and(|tool| tool.spec().repeat != Repeat::Never),
                changes_none,
                expect: expect.cloned().collect(),
                writes,
            });
        }
        steps
    }

    /// The step that undoes what this receipt describes.
    pub(super) fn undo(&self, index: usize, request: ActionRequest, receipt: &Receipt) -> Step {
        let writes: Option<Vec<String>> = match &receipt.effects {
            Effects::Observed(observed) => {
                let changes = observed.changes.iter();
                Some(
                    changes
                        .flat_map(|change| [Some(change.path.clone()), change.moved_to.clone()])
                        .flatten()
                        .collect(),
                )
            }
            Effects::None | Effects::Unobserved | Effects::Possible => None,
        };
        // One that claims what the batch did not could wait for an undo before it, which waits for its turn.
        let early = writes.as_ref().is_some_and(|writes| self.has_claimed(writes));
        Step {
            index,
            request,
            is_undo: true,
            writes,
            reads: Vec::new(),
            early,
            changes_none: false,
            expect: Vec::new(),
        }
    }

    /// Whether the batch holds all of these paths.
    fn has_claimed(&self, paths: &[String]) -> bool {
        let (services, ticket) = (self.services, &self.action.ticket);
        let space = &self.action.request.space_id;
        let names = paths.iter().filter_map(|path| resources::named(space, path)).collect();
        let names = resources::compared(names, services.files.ignores_case(space));
        services.control.batches.left_to_claim(ticket.action_id.as_str(), &names).is_empty()
    }

    /// Why a new batch does not begin: it was withdrawn meanwhile, or an id that it needs is that of another action.
    pub(super) fn objection(&self, steps: &[Step]) -> Result<Option<Failure>, StoreError> {
        let principal = &self.action.ticket.principal;
        for step in steps {
            let id = &step.request.action_id;
            let is_taken = match self.known(step)? {
                Some(Ok(done)) if done.is_own && done.receipt.outcome == Outcome::NotStarted => {
                    let why = "it was withdrawn before any item started";
                    return Ok(Some(Failure::new(Code::Cancelled, Phase::Dispatch, why)));
                }
                Some(ended) => ended.is_err(),
                None => {
                    let by = (&self.origin(step.index, false), principal);
                    recording::is_anothers(self.services, id, by, Some(&step.request))?
                }
            };
            let undo = undo_id(&self.action.ticket.action_id, step.index);
            let is_taken =
                is_taken || undo.map_or(Ok(false), |undo| self.is_undo_taken(step.index, &undo))?;
            if is_taken {
                let Failure { code, message, .. } = id_taken();
                let why = format!("items[{}] ({id}): {message}", step.index);
                return Ok(Some(Failure::new(code, Phase::Dispatch, why)));
            }
        }
        Ok(None)
    }

    fn is_undo_taken(&self, index: usize, undo: &ActionId) -> Result<bool, StoreError> {
        let origin = self.origin(index, true);
        if let Some((receipt, _)) = answers::ended(&*self.services.store, undo)? {
            return Ok(receipt.origin != origin);
        }
        recording::is_anothers(self.services, undo, (&origin, &self.action.ticket.principal), None)
    }

    /// Runs the steps until one fails. Returns which; its end is the last of `ends`, unless it did not start.
    pub(super) async fn until_failure(
        &mut self,
        steps: &[Step],
        turn: &(dyn Fn(u32) + Sync),
        ends: &mut Vec<Option<Result<Done, Failure>>>,
    ) -> Option<Option<usize>> {
        let mut may_be_begun = *self.action.state.earlier() != Earlier::No;
        for at in 0..steps.len() {
            let is_over = self.services.clock.monotonic() >= self.deadline;
            if !matches!(self.known(&steps[at]), Ok(Some(_))) {
                // What a process that died had begun is settled, however late it is.
                if is_over && !(may_be_begun && self.is_begun(&steps[at]).await) {
                    return Some(Some(at));
                }
                may_be_begun = false;
            }
            let mut end = self.next(steps, at, turn).await?;
            if let Err(failure) = &end {
                match self.refuse(&steps[at], failure.clone()).await {
                    // Perhaps it has ended meanwhile.
                    Ok(done) => end = Ok(done),
                    Err(error) if is_of_another(&error) => {}
                    // Nothing is undone before it is on disk that the batch failed: the batch is delivered again.
                    Err(_) => return None,
                }
            }
            let is_done = end.as_ref().is_ok_and(Done::is_done);
            ends.push(Some(end));
            if !is_done {
                return Some(Some(at));
            }
        }
        Some(None)
    }

    /// Whether a process has begun this step. If the Store cannot say, the pipeline asks it again.
    async fn is_begun(&self, step: &Step) -> bool {
        let open = intent_of(&*self.services.store, &step.request.action_id).await;
        open.map_or(true, |open| open.is_some())
    }

    /// Runs all steps, whatever they come to.
    pub(super) async fn all(
        &mut self,
        steps: &[Step],
        turn: &(dyn Fn(u32) + Sync),
    ) -> Option<Vec<Result<Done, Failure>>> {
        let mut ends = Vec::with_capacity(steps.len());
        for at in 0..steps.len() {
            ends.push(self.next(steps, at, turn).await?);
        }
        Some(ends)
    }

    /// Ends the steps that have not started, each with a receipt.
    pub(super) async fn stop(
        &mut self,
        steps: &[Step],
        ends: &mut Vec<Option<Result<Done, Failure>>>,
    ) -> Option<()> {
        let (first, rest) = (ends.len(), &steps[ends.len()..]);
        let is_over = self.services.clock.monotonic() >= self.deadline;
        let (mut refusals, mut found) = (Vec::new(), Vec::new());
        for step in rest {
            let failure = if step.index == first && is_over { time_over() } else { not_started() };
            found.push(match self.refusal(step, failure) {
                Ok(Ok(done)) => Some(Ok(done)),
                Ok(Err(refusal)) => {
                    refusals.push(refusal);
                    None
                }
                Err(error) => Some(Err(error)),
            });
        }
        let mut written = recording::never_begun(self.services, refusals).await.into_iter();
        for (step, found) in rest.iter().zip(found) {
            let entered = self.ahead.pop_front();
            let ended = match found {
                Some(found) => found,
                None => self.refused(step, written.next()?),
            };
            let end = match (ended, entered) {
                (Ok(done), _) => Ok(done),
                // It is claimed, perhaps by a process that died: the executor ends it.
                (Err(StoreError::StaleFence { .. }), entered) => {
                    let entered = entered.unwrap_or_else(|| self.enter(step));
                    self.wait(step, entered).await?
                }
                (Err(error), _) if is_of_another(&error) => Err(error.failure(Phase::Dispatch)),
                (Err(_), _) => return None,
            };
            ends.push(Some(end));
        }
        Some(())
    }

    /// Hands over this step, and those after it that need not wait; then waits for this one.
    async fn next(
        &mut self,
        steps: &[Step],
        at: usize,
        turn: &(dyn Fn(u32) + Sync),
    ) -> Option<Result<Done, Failure>> {
        while self.ahead.len() < BATCH_AHEAD_MAX {
            let place = at + self.ahead.len();
            let Some(step) = steps.get(place) else { break };
            let is_free = step.early && !steps[at..place].iter().any(|before| step.depends_on(before));
            if place > at && !is_free {
                break;
            }
            let entered = self.enter(step);
            self.ahead.push_back(entered);
        }
        let step = steps.get(at)?;
        turn(u32::try_from(step.index).unwrap_or(u32::MAX));
        let entered = self.ahead.pop_front()?;
        let end = self.wait(step, entered).await?;
        if let Ok(done) = &end
            && done.is_own
        {
            self.account(step, &done.receipt);
        }
        Some(end)
    }

    /// Charges the batch for a step, and keeps the pre-images that undo it.
    fn account(&mut self, step: &Step, receipt: &Receipt) {
        if step.is_undo {
            return;
        }
        let cpu = Duration::from_micros(receipt.cost.cpu_ms.micros());
        self.action.ticket.slot.charge(cpu, receipt.attempts.len());
        self.pins.extend(undo::pin_changes(&self.services.files, &receipt.space_id, &receipt.effects));
    }

    fn enter(&self, step: &Step) -> Entered {
        let (services, ticket) = (self.services, &self.action.ticket);
        let answer = services.in_flight.answers.wait_for(&step.request.action_id);
        let (back, came_back) = oneshot::channel();
        let known = self.known(step).map_err(|error| error.failure(Phase::Accept)).transpose();
        let known = known.map(|known| known.and_then(|known| known));
        if known.is_none() {
            let new = NewTicket {
                digest: services.identity.keyed(&step.request.digest_under(None)),
                trace_id: ticket.trace_id.clone(),
                principal: ticket.principal.clone(),
                origin: self.origin(step.index, step.is_undo),
                contract: None,
                interactive: false,
                approved: None,
                accepted_at: services.clock.now(),
                waited: Duration::ZERO,
                way: Some(Way::Caller { back }),
                // It runs in the slot of the batch.
                slot: Slot::unlimited(None, &services.metrics.in_flight),
            };
            let mut ticket = Ticket::new(services, &step.request, new);
            ticket.expect.clone_from(&step.expect);
            pass(self.validator, Action::new(ticket, Arc::new(step.request.clone())));
        }
        Entered { answer, back: came_back, is_on_disk: false, known }
    }

    /// A step that has ended. A single action of the same id and content was not done by this batch.
    fn done(&self, step: &Step, receipt: Arc<Receipt>) -> Done {
        let is_own = receipt.action_id == step.request.action_id
            && receipt.origin == self.origin(step.index, step.is_undo);
        let of_batch = receipt.origin.item().filter(|(id, _)| *id == self.action.ticket.action_id.as_str());
        let same_as = of_batch.filter(|_| !is_own).map(|(_, index)| index as usize);
        Done { receipt, is_own, same_as }
    }

    fn origin(&self, index: usize, undo: bool) -> Origin {
        origin(&self.action.request, &self.action.ticket.origin, index, undo)
    }

    /// The end of a step that has ended.
    fn known(&self, step: &Step) -> Result<Option<Result<Done, Failure>>, StoreError> {
        let asker = (&self.action.ticket.principal, None);
        let ended = answer_of_ended(self.services, &step.request, asker)?;
        Ok(ended.map(|ended| ended.map(|receipt| self.done(step, receipt))))
    }

    /// Waits for the end of a step. When the time of the batch is over, a step that has not begun ends.
    async fn wait(&self, step: &Step, mut entered: Entered) -> Option<Result<Done, Failure>> {
        let (mut tries, mut halt) = (0, self.halt.clone());
        let mut is_over = step.is_undo;
        let most = if step.is_undo { BATCH_UNDO_TRIES } else { BATCH_TRIES };
        loop {
            if let Some(known) = entered.known.take() {
                return Some(known);
            }
            let left = self.deadline.since(self.services.clock.monotonic());
            tokio::select! {
                biased;
                answer = &mut entered.answer => {
                    return match answer {
                        Ok(Answer::Done(answers::Done { receipt, .. })) => Some(Ok(self.done(step, receipt))),
                        Ok(Answer::Refused(failure)) => Some(Err(failure)),
                        // Only the whole batch is held.
                        Ok(Answer::Held(_)) => Some(Err(not_started())),
                        // The runtime stops.
                        Err(_) => None,
                    };
                }
                back = &mut entered.back, if !entered.is_on_disk => {
                    let again = match back {
                        Err(_) => { entered.is_on_disk = true; continue }
                        Ok(Back::Lost) if *self.services.children.halt.borrow() => return None,
                        Ok(Back::Lost) => Failure::new(Code::Internal, Phase::Dispatch, "a worker died with it"),
                        Ok(Back::Held(_)) => return Some(Err(not_started())),
                        Ok(Back::Refused(failure)) if !failure.retryable => return Some(Err(failure)),
                        Ok(Back::Refused(failure)) => failure,
                    };
                    tries += 1;
                    if tries > most {
                        return Some(Err(again));
                    }
                    tokio::time::sleep(again.retry_after_ms.map_or(OVERLOAD_RETRY, Duration::from_millis)).await;
                    entered = self.enter(step);
                }
                () = async { drop(halt.wait_for(|halted| *halted).await) } => return None,
                () = tokio::time::sleep(left), if !is_over => {
                    is_over = true;
                    if let Ok(done) = self.refuse(step, time_over()).await {
                        return Some(Ok(done));
                    }
                }
            }
        }
    }

    /// Ends a step that was not begun, with a receipt. The Store refuses if it was begun.
    async fn refuse(&self, step: &Step, failure: Failure) -> Result<Done, StoreError> {
        match self.refusal(step, failure)? {
            Ok(done) => Ok(done),
            Err(refusal) => self.refused(step, recording::withdrawn(self.services, refusal).await),
        }
    }

    /// How a step ends that was not begun, or has ended.
    fn refusal(&self, step: &Step, failure: Failure) -> Result<Result<Done, Refusal>, StoreError> {
        if let Some(Ok(done)) = self.known(step)? {
            return Ok(Ok(done));
        }
        let (ticket, id) = (&self.action.ticket, &step.request.action_id);
        let origin = self.origin(step.index, step.is_undo);
        let by = (&origin, &ticket.principal);
        if recording::is_anothers(self.services, id, by, Some(&step.request))? {
            return Err(StoreError::StateConflict(format!("the id {id} belongs to another action")));
        }
        let decision = DecisionData::new(step.request.clone(), ticket.principal.clone(), origin);
        let tool = self.services.registry().get(&step.request.tool_id).cloned();
        let action = detached(self.services, decision, ticket.trace_id.clone(), self.services.clock.now());
        Ok(Err(Refusal { tool, ..Refusal::new(action, failure) }))
    }

    fn refused(&self, step: &Step, written: Result<answers::Done, StoreError>) -> Result<Done, StoreError> {
        match written {
            Ok(answers::Done { receipt, .. }) => Ok(self.done(step, receipt)),
            Err(StoreError::AlreadyReceipted { .. }) => match self.known(step)? {
                Some(Ok(done)) => Ok(done),
                Some(Err(failure)) => Err(StoreError::Invalid(failure.message)),
                None => Err(StoreError::StateConflict("the receipt of an item is gone".to_owned())),
            },
            Err(error) => Err(error),
        }
    }
}

fn time_over() -> Failure {
    Failure::new(Code::NotStarted, Phase::Dispatch, "the time of the batch was over")
}

/// Whether an item gets no receipt, since its id is that of another action.
fn is_of_another(error: &StoreError) -> bool {
    matches!(error, StoreError::StateConflict(_) | StoreError::Invalid(_))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_overlap_if_one_lies_beneath_the_other() {
        let others = ["workspace/a/b".to_owned()];
        for (path, is) in [
            ("workspace/a/b", true),
            ("workspace/A/b/c", true),
            ("workspace/a", true),
            ("workspace", true),
            ("workspace/a/bc", false),
            ("workspace/b", false),
        ] {
            assert_eq!(overlaps(path, &others), is, "{path}");
        }
    }
}
