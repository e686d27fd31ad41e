//! Carrying out a plan: execute, verify, repair once, verify, roll back, under one claim and one deadline.
//!
//! The tool has run when this begins. An action that was interrupted is rolled back, since nobody has verified it.

use std::time::Duration;

use effectd_bus::BlobKind;
use effectd_contracts::limits::CONTRACT_LIST_MAX;
use effectd_contracts::{
    COMMAND_TOOL, CallMode, Check, Code, Digest, Effects, Failure, Millis, Outcome, PathSnapshot, Phase,
    PlanStep, Preset, SideEffect, ToolCall, ToolId, ToolOutput, ToolReply, json, limits, quoted,
};
use effectd_sandbox::{Answer, Ending, Narrowing};
use serde_json::{Map, Value, json};

use super::attempt::{Attempted, Tried, has_changed};
use super::call::{attempt_time, confined};
use super::steps::{Execution, Over};
use super::view::view_of;
use crate::action::plan::{PlanRun, PlanTerms, PlannedCheck, denied};
use crate::action::proofs::Ended;
use crate::effects::preimages::put;
use crate::effects::rollback::{self, RolledBack, Whose};
use crate::effects::{snapshot, undeclared};
use crate::failpoint::hit;
use crate::limits::ROLLBACK_TIME_MIN;

/// Notes for the next start: what the first run has changed, that a repair has begun, and what that has changed.
const RAN: &str = "ran";
const REPAIRING: &str = "repairing";
const REPAIRED: &str = "repaired";

/// What the tool came to: its output, or why it failed.
type Came = Result<ToolOutput, Failure>;

impl Execution<'_> {
    /// Verifies what the tool did, lets it repair that once, and rolls it back if it still is not as the plan says.
    pub(crate) async fn complete(&mut self, terms: &PlanTerms, ended: Box<Ended>) -> Over {
        let Ended { mut result, outcome, mut effects, dead_letter, runs, marks: _ } = *ended;
        self.runs = runs;
        let mut run = PlanRun::default();
        let never_ran = self.runs.attempts.is_empty() && result.is_err();
        // Before its run a tool refuses a path or a state, and whatever else; there is nothing to repair, and nothing to roll back.
        let refused = matches!(&result, Err(failure) if !self.may_have_effect && !has_changed(&effects) && is_refusal(failure));
        if never_ran || refused || self.dry_run().is_some() {
            self.runs.plan = Some(Box::new(run));
            return self.end(result, outcome, effects, dead_letter);
        }
        let was_done = result.is_ok();
        self.note_seen(Some(&effects), RAN).await;
        run.note(PlanStep::Execute, was_done);
        self.verify(terms, &mut run, &mut result).await?;
        if let Err(failure) = &result
            && self.may_repair(failure)
        {
            result = self.repair(terms, &mut run, result).await?;
            effects = snapshot::observe(&self.services.files, self.action, &self.prepared).await;
            if let (Ok(_), Some(why)) = (&result, self.protected_change(&effects)) {
                (run.verified.ok, run.repair.ok) = (false, false);
                result = Err(Failure::new(Code::PathDenied, Phase::Capture, why));
            }
        }
        match result {
            Ok(output) => {
                self.runs.plan = Some(Box::new(run));
                let outcome = if was_done { outcome } else { Outcome::Executed };
                self.end(Ok(output), outcome, effects, false)
            }
            Err(failure) if self.has_rollback() => self.end_by_rollback(run, failure).await,
            Err(failure) => {
                let outcome = if was_done || run.repair.attempted { failure.code.outcome() } else { outcome };
                self.runs.plan = Some(Box::new(run));
                self.end(Err(failure), outcome, effects, dead_letter)
            }
        }
    }

    /// Remembers what a run has changed: what is otherwise by the time of the rollback, somebody else has changed. The note is for the next
    /// start.
    async fn note_seen(&mut self, effects: Option<&Effects>, note: &'static str) {
        let is_known = |effects: &&Effects| matches!(effects, Effects::Observed(_) | Effects::None);
        self.seen = effects.filter(is_known).cloned();
        if let Some(Effects::Observed(observed)) = &self.seen {
            self.undeclared.extend(observed.undeclared.iter().cloned());
        }
        if let Some(seen) = self.seen.clone().filter(|_| self.has_rollback()) {
            self.note(note, &seen).await;
        }
    }

    async fn note(&self, note: &'static str, effects: &Effects) {
        let (space, blobs) = (self.action.request.space_id.clone(), &self.services.files.blobs);
        // Plain data with text keys, for which serde_json has no failure.
        let content = serde_json::to_vec(effects).unwrap_or_default();
        if let Err(failure) = put(blobs, space, vec![(self.name_of(note), content)]).await {
            tracing::warn!(parent: &self.action.ticket.span, %failure, "what a plan has changed is not noted for the next start");
        }
    }

    fn noted(&self, note: &'static str) -> Option<Effects> {
        let (space, blobs) = (&self.action.request.space_id, &self.services.files.blobs);
        let content = blobs.get(BlobKind::Preimages, space, &self.name_of(note)).ok()?;
        serde_json::from_slice(&content).ok()
    }

    fn name_of(&self, note: &'static str) -> String {
        Digest::of(format!("{note}\n{}", self.action.ticket.action_id).as_bytes()).hex()
    }

    /// Restores what an interrupted plan has changed. Whether it was right, nobody has verified.
    pub(crate) async fn settle_transaction(&mut self) -> Over {
        let why = "the plan was interrupted before it was verified";
        let failure = Failure::new(Code::VerificationFailed, Phase::Settle, why);
        let mut run = PlanRun::default();
        run.note(PlanStep::Execute, false);
        self.seen = match self.noted(REPAIRING) {
            Some(_) => self.noted(REPAIRED),
            None => self.noted(RAN),
        };
        self.end_by_rollback(run, failure).await
    }

    /// Whether the action changes files of which pre-images are kept.
    fn has_rollback(&self) -> bool {
        self.action.state.gated().is_transaction() && self.prepared.before.is_some()
    }

    async fn end_by_rollback(&mut self, mut run: PlanRun, failure: Failure) -> Over {
        let mut rolled_back = self.roll_back().await?;
        let undeclared = std::mem::take(&mut self.undeclared);
        if !undeclared.is_empty() {
            rolled_back.why = Some("the tool also changed files that it does not declare".to_owned());
        }
        run.rollback.attempted = true;
        run.rollback.ok = rolled_back.is_complete();
        run.note(PlanStep::Rollback, run.rollback.ok);
        run.verified.ok = false;
        let mut left = snapshot::observe(&self.services.files, self.action, &self.prepared).await;
        if let Effects::Observed(observed) = &mut left {
            observed.undeclared = undeclared;
        }
        let (failure, outcome) = match rolled_back.is_complete() {
            // The plan asked for what it must not have; that nothing is left of it makes no difference.
            true if failure.code == Code::ScopeDenied => (failure, Outcome::DeniedPolicy),
            true => (failure, Outcome::Reverted),
            false => (rolled_back.failure(&failure), Outcome::Failed),
        };
        run.not_restored = rolled_back.not_restored.into_iter().collect();
        let dead_letter = outcome == Outcome::Failed;
        self.runs.plan = Some(Box::new(run));
        self.end(Err(failure), outcome, left, dead_letter)
    }

    /// Puts back everything that this action has changed. `None` if the runtime stops.
    async fn roll_back(&mut self) -> Option<RolledBack> {
        let (services, action) = (self.services, self.action);
        let id = &action.ticket.action_id;
        hit("plan.before_rollback", id).await;
        let _call = undeclared::enter(services, self.calls, action, &self.prepared);
        let package = action.state.gated().tool().spec().package.as_ref();
        let mut seen = self.seen.clone();
        if package.is_some_and(|package| package.rolls_back) {
            seen = None;
            // For what is not files. Nobody takes its word.
            if let Err(failure) = self.ask_package(CallMode::Rollback).await? {
                tracing::warn!(parent: &action.ticket.span, %failure, "the package's own rollback failed");
            }
        }
        let cleaned = snapshot::remove_drafts(&services.files, action, &self.prepared).await;
        self.runs.cleaned_up.extend(cleaned);
        let effects = match seen {
            Some(seen) => seen,
            None => snapshot::observe(&services.files, action, &self.prepared).await,
        };
        let (space, trace) = (&action.request.space_id, &action.ticket.trace_id);
        let whose = Whose { action: id, space, trace, alive: None };
        let time = self.left_at_least(ROLLBACK_TIME_MIN);
        let rolled_back = rollback::roll_back(services, whose, &effects, time).await?;
        hit("plan.after_rollback", id).await;
        Some(rolled_back)
    }

    /// The files that the plan forbids, as they are now.
    pub(crate) async fn forbidden_now(&self) -> Result<Vec<PathSnapshot>, Failure> {
        let Some(area) = self.action.state.gated().area().filter(|area| !area.forbidden.is_empty()) else {
            return Ok(Vec::new());
        };
        let space = &self.action.request.space_id;
        let now = self.services.files.inspect(space, area.forbidden.clone(), 0).await?;
        let seen = now.into_iter().map(|inspected| inspected.seen);
        Ok(seen.filter(|seen| area.forbidden.contains(&seen.path)).collect())
    }

    fn left_at_least(&self, least: Duration) -> Duration {
        self.deadline.since(self.services.clock.monotonic()).max(least)
    }

    /// Runs all checks. If one fails that must pass, or the tool has touched what the plan forbids, the result is a failure.
    async fn verify(&mut self, terms: &PlanTerms, run: &mut PlanRun, result: &mut Came) -> Option<()> {
        if let Some(failure) = self.forbidden_change().await {
            *result = Err(failure);
        }
        if result.is_err() {
            run.verified.ok = false;
            return Some(());
        }
        hit("plan.before_verify", &self.action.ticket.action_id).await;
        let mut checks = Vec::new();
        let package = self.action.state.gated().tool().spec().package.as_ref();
        if package.is_some_and(|package| package.verifies) {
            match self.ask_package(CallMode::Verify).await? {
                Ok(ToolReply::Verified(own)) if !own.is_empty() => {
                    let own = own.into_iter().take(CONTRACT_LIST_MAX);
                    checks.extend(own.map(|one| Check::new(one.name, one.ok, one.exit_code, one.output)));
                }
                Ok(_) => checks.push(Check::new("verify", false, None, "it reported no check".to_owned())),
                Err(failure) => checks.push(Check::new("verify", false, None, failure.to_string())),
            }
        }
        for planned in &terms.checks {
            checks.push(self.check(planned).await?);
        }
        run.verified.ok = checks.iter().all(|check| check.ok);
        run.verified.checks = checks;
        run.note(PlanStep::Verify, run.verified.ok);
        let failed = run.failed();
        if terms.required
            && let Some(first) = failed.first()
        {
            let more = match failed.len() - 1 {
                0 => String::new(),
                more => format!(" (and {more} more)"),
            };
            let why = format!("the check {}{more} did not pass", quoted(&first.name));
            *result = Err(Failure::new(Code::VerificationFailed, Phase::Settle, why));
        }
        Some(())
    }

    /// Why the run is one that the plan forbids: a forbidden file is not as it was.
    async fn forbidden_change(&self) -> Option<Failure> {
        let now = match self.forbidden_now().await {
            Ok(now) => now,
            Err(failure) => return Some(denied(format!("a forbidden file cannot be inspected: {failure}"))),
        };
        let changed = self.forbidden.iter().find(|was| !now.iter().any(|is| is.is_like(was)))?;
        Some(denied(format!("the tool changed {}, which the plan forbids", quoted(&changed.path))))
    }

    /// Runs one command that reads the space, confined as the policy says. One that cannot run is one that did not pass.
    async fn check(&mut self, planned: &PlannedCheck) -> Option<Check> {
        let PlannedCheck { name, argv, command } = planned;
        let failed = |why: String| Check::new(name, false, None, why);
        let left = self.deadline.since(self.services.clock.monotonic());
        let time = left.min(Duration::from_millis(command.timeout_ms));
        if time.is_zero() {
            return Some(failed("the time of the plan is over".to_owned()));
        }
        let asked = async {
            let (files, action) = (&self.services.files, self.action);
            let view = view_of(files, &action.request.space_id, command, CallMode::Run).await?;
            let no_tool =
                || Failure::new(Code::UnknownTool, Phase::Settle, "there is no tool that runs commands");
            let tool_id = ToolId::new(COMMAND_TOOL).map_err(|_| no_tool())?;
            let registry = self.services.registry();
            let tool = registry.get(&tool_id).ok_or_else(&no_tool)?;
            let params = Map::from_iter([("argv".to_owned(), json!(argv))]);
            let call = self.beside(tool_id, CallMode::Run, params);
            let call = confined(files, tool, call, (time, false, Narrowing::default(), Some(view)))?;
            rollback::ask(self.services, (&action.ticket.action_id, None), call, None).await
        };
        let answer = match asked.await {
            Ok(answer) => answer,
            Err(Some(failure)) => return Some(failed(failure.to_string())),
            Err(None) => return None,
        };
        self.count(&answer);
        Some(match answer.ending {
            Ending::Killed { code, detail, .. } => failed(format!("{code}: {detail}")),
            Ending::Replied(bytes) => match json::parse_reply(&bytes, limits::TOOL_REPLY_BYTES_MAX) {
                Ok(ToolReply::Done(output)) => passed(name, &output.result),
                Ok(ToolReply::Failed(failure)) => failed(failure.message),
                Ok(ToolReply::Probed(_) | ToolReply::Previewed(_) | ToolReply::Verified(_)) | Err(_) => {
                    failed("its answer is not that of a command".to_owned())
                }
            },
        })
    }

    /// Counts what a call beside the tool's own run has used.
    fn count(&mut self, answer: &Answer) {
        let (usage, used) = (&answer.usage, &mut self.runs.used);
        used.peak_memory_bytes = used.peak_memory_bytes.max(usage.peak_memory_bytes);
        used.bytes_written += usage.bytes_written;
        let cpu = Millis::from_micros(usage.cpu_user_us + usage.cpu_system_us);
        used.add_time(cpu, Millis::from(usage.wall));
    }

    /// A call beside the run of the action's own tool.
    fn beside(&self, tool_id: ToolId, mode: CallMode, params: Map<String, Value>) -> ToolCall {
        ToolCall {
            tool_id,
            mode,
            space_id: self.action.request.space_id.clone(),
            params,
            timeout_ms: 0,
            trace_id: self.action.ticket.trace_id.clone(),
            before: None,
            restore: Vec::new(),
            expect: Vec::new(),
            mark: None,
            undoes: None,
            upstream: None,
            failed_checks: Vec::new(),
        }
    }

    /// Runs the script of the tool's package that verifies or rolls back. The inner failure is that of the script.
    async fn ask_package(&mut self, mode: CallMode) -> Option<Result<ToolReply, Failure>> {
        let left = if mode == CallMode::Rollback {
            self.left_at_least(ROLLBACK_TIME_MIN)
        } else {
            // A script that hangs leaves time for the repair.
            let left = self.deadline.since(self.services.clock.monotonic());
            left.min(attempt_time(self.action.state.gated()))
        };
        let ending = match self.call(mode, left).await {
            Ok(ran) => {
                self.count(&ran.answer);
                ran.answer.ending
            }
            Err(Some(failure)) => return Some(Err(failure)),
            Err(None) => return None,
        };
        Some(match ending {
            Ending::Killed { code, detail, .. } => Err(Failure::new(code, Phase::Settle, detail)),
            Ending::Replied(bytes) => match json::parse_reply(&bytes, limits::TOOL_REPLY_BYTES_MAX) {
                Ok(ToolReply::Failed(failure)) => {
                    Err(Failure::new(Code::ToolFailed, Phase::Settle, failure.message))
                }
                Ok(reply) => Ok(reply),
                Err(_) => Err(Failure::new(Code::ResultInvalid, Phase::Settle, "its answer is not a reply")),
            },
        })
    }

    /// Whether a second run can help and do no harm: there is time, and the effect of the tool is files, or it is told what failed.
    fn may_repair(&self, failure: &Failure) -> bool {
        let spec = self.action.state.gated().tool().spec();
        let has_time = !self.deadline.since(self.services.clock.monotonic()).is_zero();
        let is_repairable = !matches!(
            failure.code,
            Code::ScopeDenied | Code::EffectsUndeclared | Code::PathDenied | Code::StoreUnavailable
        );
        let is_files = |effect: &SideEffect| match effect {
            SideEffect::ReadOnly
            | SideEffect::FilesystemWrite
            | SideEffect::FilesystemDelete
            | SideEffect::ProcessExec
            | SideEffect::UserVisible => true,
            SideEffect::NetworkCall
            | SideEffect::DeviceNotification
            | SideEffect::DeviceCapture
            | SideEffect::CrossSpace => false,
        };
        let is_elsewhere =
            Preset::of(spec.tool_id.source()).is_some() || !spec.side_effects.iter().all(is_files);
        let has_ground = !spec.changes_files() || self.has_rollback();
        has_time && is_repairable && (spec.package.is_some() || !is_elsewhere) && has_ground
    }

    /// One more attempt, which is told the checks that failed, and its verification. A tool that knows nothing of checks begins again from
    /// the state before: otherwise its effect would happen twice.
    async fn repair(&mut self, terms: &PlanTerms, run: &mut PlanRun, result: Came) -> Option<Came> {
        run.repair.attempted = true;
        hit("plan.before_repair", &self.action.ticket.action_id).await;
        if self.has_rollback() {
            self.note(REPAIRING, &Effects::Possible).await;
        }
        let gated = self.action.state.gated();
        if gated.tool().spec().package.is_none() && self.has_rollback() {
            let restored = self.roll_back().await?;
            if !restored.is_complete() {
                run.note(PlanStep::Repair, false);
                return Some(result);
            }
            self.may_have_effect = false;
        }
        self.failed_checks = run.failed();
        self.seen = None;
        let Tried { attempted, seen, undeclared } = self.attempt().await;
        self.note_seen(seen.as_ref(), REPAIRED).await;
        if let Some(undeclared) = &undeclared {
            self.quarantine(undeclared).await;
            self.undeclared.extend(undeclared.undeclared.iter().cloned());
        }
        let mut result = match (undeclared, attempted) {
            (_, Attempted::Abandoned) => return None,
            (Some(undeclared), _) => Err(undeclared.failure()),
            (None, Attempted::Done(output)) => Ok(output),
            (None, Attempted::Failed(failure) | Attempted::Unclear(failure)) => Err(failure),
        };
        run.note(PlanStep::Repair, result.is_ok());
        self.verify(terms, run, &mut result).await?;
        run.repair.ok = result.is_ok();
        Some(result)
    }
}

/// The check that a command was.
fn passed(name: &str, result: &Value) -> Check {
    let exit_code = result["exit_code"].as_i64().and_then(|code| i32::try_from(code).ok());
    let mut output = String::new();
    for stream in ["stdout", "stderr"] {
        output.push_str(result[stream].as_str().unwrap_or_default());
    }
    Check::new(name, exit_code == Some(0), exit_code, output)
}

/// Whether a failure refuses the action for what it asks, and not for how it ran.
fn is_refusal(failure: &Failure) -> bool {
    let refuses = matches!(
        failure.code,
        Code::PathDenied
            | Code::StateChanged
            | Code::ToolDrifted
            | Code::InterpreterMissing
            | Code::FileLimit
            | Code::StoreUnavailable
    );
    refuses || failure.code.outcome().is_refusal()
}
