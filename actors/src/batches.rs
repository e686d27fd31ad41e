//! Batches: runs the items of a claimed batch one after another, and undoes them in reverse if one fails.
//!
//! A batch is an action whose intent is on disk before its first item. Each item, and each undo of one, is an action by itself, so the
//! journal has how far the batch is: whoever runs it after a crash finds the receipts of what has ended, and asks for the rest again
//! under the same ids. Nothing here is remembered elsewhere.
//!
//! The batch holds the resources of all its items, so that two batches that cross never wait for each other. Items that change
//! different paths are claimed ahead of their turn (`steps.rs`), and none runs before it.

mod marks;
mod result;
mod steps;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use effectd_contracts::batch::{Batch, BatchMode, Marker, undo_id};
use effectd_contracts::limits::RETRIES_MAX;
use effectd_contracts::toolcall::undo_at_service;
use effectd_contracts::{
    ActionRequest, Code, Effects, Failure, Observed, Outcome, PathSnapshot, Phase, Receipt, RiskLevel,
    ToolId, ToolOutput, UNDO_TOOL,
};
use serde_json::{Map, Value, json};

use crate::action::proofs::{DryRun, Earlier, Ended, Runs};
use crate::action::{Action, Claimed, Submitted};
use crate::claims::pending::intent_of;
use crate::control::batch_turns::Allowed;
use crate::failpoint::hit;
use crate::preview::batch::is_previewed;
use crate::services::Services;
use crate::stage::Address;

pub use result::result_of;

use marks::{Mark, Paths};
use steps::{Done, Run, Step};

/// Why an item does not start.
pub(crate) fn not_started() -> Failure {
    Failure::new(Code::NotStarted, Phase::Dispatch, "an earlier item of its batch failed")
}

/// The end of an item; `None` if it was never asked for.
type End = Option<Result<Done, Failure>>;

/// Runs a batch. `None` if the runtime stops, and the next start goes on.
pub(crate) async fn run(
    services: &Arc<Services>,
    validator: &Address<Action<Submitted>>,
    action: &mut Action<Claimed>,
    timeout: Duration,
) -> Option<Box<Ended>> {
    let id = action.ticket.action_id.clone();
    // Whoever gets a second copy of the batch waits until this one has ended.
    let _alive = services.children.running.enter(&id)?;
    let batch = match Batch::of_action(&action.request) {
        Ok(batch) => batch,
        Err(failure) => return Some(ended(Err(failure), Outcome::Invalid, None)),
    };
    let began_dry = match action.state.earlier() {
        Earlier::Interrupted(Some(intent)) => intent.dry_run.then_some(DryRun::Paused),
        Earlier::Interrupted(None) | Earlier::No => None,
    };
    if let Some(dry_run) = action.state.gated().dry_run().or(began_dry) {
        return Some(not_run(&batch, dry_run));
    }
    let turns = Turns::begin(services, action);
    let halt = services.children.halt.subscribe();
    let left = timeout.saturating_sub(since_begun(services, action).await);
    let deadline = services.clock.monotonic().plus(left);
    let items = batch.requests(&action.request);
    let mut drain = Drain { batch, items, turns, run: Run::new(services, validator, halt, action, deadline) };
    hit("batch.begun", &id).await;
    drain.drain().await
}

/// How long ago a process that died began the batch.
async fn since_begun(services: &Services, action: &Action<Claimed>) -> Duration {
    if *action.state.earlier() == Earlier::No {
        return Duration::ZERO;
    }
    // If the Store cannot say, the batch has its whole time once more.
    let open = intent_of(&*services.store, &action.ticket.action_id).await.ok().flatten();
    let since = open.map(|open| services.clock.now().duration_since(open.since));
    since.and_then(|since| since.try_into().ok()).unwrap_or_default()
}

fn ended(result: Result<ToolOutput, Failure>, outcome: Outcome, marks: Option<Value>) -> Box<Ended> {
    let (effects, runs) = (Effects::None, Runs::default());
    Box::new(Ended { result, outcome, effects, dead_letter: false, runs, marks })
}

/// Nothing starts: the batch was judged and previewed.
fn not_run(batch: &Batch, dry_run: DryRun) -> Box<Ended> {
    let why = match dry_run {
        DryRun::Asked => "a dry run",
        DryRun::Paused => "effects are paused",
    };
    let marks = batch.items.iter().map(|_| Mark::new(Marker::NotStarted, why)).collect();
    ended(Ok(ToolOutput::new(marks::outputs(marks), None)), dry_run.outcome(), None)
}

/// Opens the turns of the batch's items, until dropped.
struct Turns<'s>(&'s Services, String);

impl<'s> Turns<'s> {
    fn begin(services: &'s Services, action: &Action<Claimed>) -> Self {
        let id = action.ticket.action_id.to_string();
        let judged = match action.state.earlier() {
            Earlier::No => &action.state.gated().ruling().items[..],
            Earlier::Interrupted(intent) => {
                intent.as_ref().map(|intent| &intent.items[..]).unwrap_or_default()
            }
        };
        services.control.batches.begin(&id, &action.state.terms().resources, judged);
        Self(services, id)
    }

    fn allow(&self, allowed: Allowed) {
        self.0.control.batches.allow(&self.1, allowed);
    }
}

impl Drop for Turns<'_> {
    fn drop(&mut self) {
        self.0.control.batches.end(&self.1);
    }
}

struct Drain<'a> {
    batch: Batch,
    items: Vec<ActionRequest>,
    turns: Turns<'a>,
    run: Run<'a>,
}

impl Drain<'_> {
    async fn drain(&mut self) -> Option<Box<Ended>> {
        let steps = self.run.items(&self.items);
        let mut ends: Vec<End> = Vec::new();
        if *self.run.action.state.earlier() == Earlier::No
            && let Some(failure) = self.run.objection(&steps).ok()?
        {
            self.run.stop(&steps, &mut ends).await?;
            let marks =
                ends.iter().map(|end| marks::after_failure(end.as_ref(), None, false, |_| None)).collect();
            let outcome = failure.code.outcome();
            return Some(ended(Err(failure), outcome, Some(marks::outputs(marks))));
        }
        let turns = &self.turns;
        let forward = |index: u32| turns.allow(Allowed::Items(index));
        let failed = self.run.until_failure(&steps, &forward, &mut ends).await?;
        let Some(failed) = failed else {
            let marks = ends.iter().map(committed).collect();
            let done = Ok(ToolOutput::new(marks::outputs(marks), None));
            let mut ended = ended(done, Outcome::Executed, None);
            ended.runs.of_items = Some(Box::new(self.together(&ends, &steps)));
            return Some(ended);
        };
        // First the items that were claimed ahead, then those that were not asked for: from now on it is on disk that the batch failed.
        self.turns.allow(Allowed::Stopped);
        self.run.stop(&steps, &mut ends).await?;
        let batch_id = self.run.action.ticket.action_id.clone();
        hit("batch.stopped", &batch_id).await;
        let undone = self.undo(&ends, failed).await?;
        hit("batch.undone", &batch_id).await;
        let marks = self.marks(&ends, &undone, failed).await;
        Some(self.failed(failed, &ends, marks))
    }

    /// What all items have changed, as one preview of all of them shows it; `Unobserved` if that cannot be told.
    fn together(&self, ends: &[End], steps: &[Step]) -> Effects {
        let mut all = BTreeMap::new();
        for (end, step) in ends.iter().zip(steps).filter(|(_, step)| !step.changes_none) {
            let Some(receipt) = end.as_ref().and_then(own_receipt) else { continue };
            let is_shown = is_previewed(self.run.services, &self.batch.items[step.index]);
            match &receipt.effects {
                Effects::None => {}
                // What is in a moved folder is at other paths afterwards.
                Effects::Observed(observed)
                    if is_shown && observed.changes.iter().all(|change| change.moved_to.is_none()) =>
                {
                    for change in &observed.changes {
                        let first = all.entry(&change.path).or_insert_with(|| change.clone());
                        first.after.clone_from(&change.after);
                    }
                }
                Effects::Observed(_) | Effects::Unobserved | Effects::Possible => return Effects::Unobserved,
            }
        }
        let changes = all.into_values().filter(|change| change.before != change.after).collect();
        let (undeclared, unchanged) = (Vec::new(), Vec::new());
        Effects::Observed(Observed { changes, undoable: false, undeclared, unchanged, incomplete: false })
    }

    /// Undoes what the mode says, the last item first. Returns what each undo came to.
    async fn undo(&mut self, ends: &[End], failed: usize) -> Option<HashMap<usize, Result<Done, Failure>>> {
        let first = match self.batch.mode {
            BatchMode::Atomic => 0,
            // A failed item leaves nothing half done.
            BatchMode::Ordered => failed,
        };
        let mut steps = Vec::new();
        for index in (first..ends.len()).rev() {
            let receipt = ends.get(index).and_then(|end| own_receipt(end.as_ref()?));
            let tool = receipt.and_then(|receipt| self.undoing(receipt));
            if let (Some(receipt), Some(tool)) = (receipt, tool)
                && let Some(request) = self.undo_request(index, receipt, tool)
            {
                steps.push(self.run.undo(index, request, receipt));
            }
        }
        let turns = &self.turns;
        let back = |index: u32| turns.allow(Allowed::Undo(index));
        let undone = self.run.all(&steps, &back).await?;
        Some(steps.iter().map(|step| step.index).zip(undone).collect())
    }

    /// The tool that undoes what this receipt describes; `None` if nothing is to be undone, or nothing can.
    fn undoing(&self, receipt: &Receipt) -> Option<ToolId> {
        if let Effects::Observed(observed) = &receipt.effects {
            let is_due = observed.undoable && !observed.changes.is_empty();
            return is_due.then(|| ToolId::new(UNDO_TOOL).ok()).flatten();
        }
        let made_up = undo_at_service(&receipt.tool_id).filter(|_| receipt.outcome == Outcome::Executed);
        made_up.and_then(|tool| ToolId::new(tool).ok())
    }

    fn undo_request(&self, index: usize, receipt: &Receipt, tool: ToolId) -> Option<ActionRequest> {
        let batch = &self.run.action.request;
        let params = json!({ "receipt_id": receipt.receipt_id, "space_id": batch.space_id });
        let place = (batch.subject_id.clone(), batch.space_id.clone());
        let params = params.as_object().cloned().unwrap_or_else(Map::new);
        let mut request = ActionRequest::new(undo_id(&batch.action_id, index)?, place, (tool, params));
        request.qos.max_retries = Some(RETRIES_MAX);
        request.trace_id.clone_from(&batch.trace_id);
        Some(request)
    }

    async fn marks(
        &self,
        ends: &[End],
        undone: &HashMap<usize, Result<Done, Failure>>,
        failed: usize,
    ) -> Vec<Mark> {
        let start = self.start();
        let receipts = ends.iter().flatten().filter_map(|end| own_receipt(end));
        let paths = Paths::now(self.run.services, &self.run.action.request.space_id, &start, receipts).await;
        let stays = |index: usize| self.batch.mode == BatchMode::Ordered && index < failed;
        let mut marks: Vec<Mark> = Vec::with_capacity(ends.len());
        for (index, end) in ends.iter().enumerate() {
            let done = end.as_ref().and_then(|end| end.as_ref().ok());
            let same = done.and_then(|done| Some((done, marks.get(done.same_as?)?)));
            marks.push(if let Some((done, same)) = same {
                // What was done once is undone once.
                same.again(&done.by_whom())
            } else if stays(index) {
                committed(end)
            } else {
                let (item, registry) = (&self.items[index], self.run.services.registry());
                let declared = self.run.declared(item);
                let tool = registry.get(&item.tool_id);
                let only_reads = tool.is_some_and(|tool| tool.spec().level() == RiskLevel::Read);
                marks::after_failure(end.as_ref(), undone.get(&index), only_reads, |receipt| {
                    paths.that_differ(receipt, declared.as_deref())
                })
            });
        }
        marks
    }

    /// The state of all declared paths before the first item.
    fn start(&self) -> Vec<PathSnapshot> {
        let state = &self.run.action.state;
        match state.earlier() {
            Earlier::No => state.terms().before.clone().unwrap_or_default(),
            Earlier::Interrupted(intent) => {
                intent.as_ref().and_then(|intent| intent.before.clone()).unwrap_or_default()
            }
        }
    }

    fn failed(&self, failed: usize, ends: &[End], marks: Vec<Mark>) -> Box<Ended> {
        let is = |marker: Marker| marks.iter().filter(|mark| mark.0.marker == marker).count();
        let (partial, stay) = (is(Marker::RollbackFailed), is(Marker::Committed));
        let why = match ends.get(failed).and_then(Option::as_ref) {
            Some(Ok(done)) => done.why(),
            Some(Err(failure)) => failure.message.clone(),
            None => "it did not start".to_owned(),
        };
        let is_whole = self.batch.mode == BatchMode::Atomic && partial == 0;
        let (code, then) = match (is_whole, self.batch.mode) {
            (true, _) => (Code::BatchRolledBack, "nothing of the batch is left".to_owned()),
            (false, BatchMode::Atomic) => {
                (Code::BatchIncomplete, format!("{partial} could not be undone: see the markers"))
            }
            (false, BatchMode::Ordered) => (
                Code::BatchIncomplete,
                format!("{stay} before it are done, and those after it did not start"),
            ),
        };
        let tool = &self.items[failed].tool_id;
        let failure = Failure::new(code, Phase::Settle, format!("items[{failed}] ({tool}): {why}; {then}"));
        ended(Err(failure), code.outcome(), Some(marks::outputs(marks)))
    }
}

fn committed(end: &End) -> Mark {
    match end {
        Some(Ok(done)) => Mark::new(Marker::Committed, &done.by_whom()),
        Some(Err(failure)) => Mark::new(Marker::NotStarted, &failure.message),
        None => Mark::new(Marker::NotStarted, "it did not start"),
    }
}

/// The receipt of what this batch did. An item that was answered from memory is not undone.
fn own_receipt(end: &Result<Done, Failure>) -> Option<&Receipt> {
    end.as_ref().ok().filter(|done| done.is_own).map(|done| &*done.receipt)
}
