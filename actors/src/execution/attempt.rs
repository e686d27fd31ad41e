//! One attempt: a call of the tool in a fresh sandbox, and what the outcome means.

use std::convert::Infallible;
use std::time::Duration;

use effectd_contracts::plugin::Manifest;
use effectd_contracts::{
    Attempt, CallMode, Code, Denial, DenialSource, Effects, Failure, Millis, Monotonic, Phase, ProbeVerdict,
    ToolOutput, ToolReply, json, limits,
};
use effectd_sandbox::{Answer, CACHE_FULL, Ending, SandboxError, SideChannel};
use parking_lot::Mutex;
use serde_json::Value;
use tokio::sync::{mpsc, oneshot};

use super::call::{attempt_time, call_of};
use super::egress::Wired;
use super::steps::Execution;
use crate::action::proofs::{KeptArtifact, Used};
use crate::effects::snapshot;
use crate::effects::streams::{self, Outputs};
use crate::effects::undeclared::{self, UndeclaredEffects};
use crate::failpoint::hit;
use crate::limits::{PROBE_SERVICE_TIME_MIN, PROBE_TIME_MIN};
use crate::registry::{RegisteredTool, Source};

/// Longest reply that is parsed while its child is being reaped: until then there are two copies of it.
const READ_BYTES_MAX: usize = 64 * 1_024;

pub(crate) struct Tried {
    pub(crate) attempted: Attempted,
    /// The changes, observed while the kernel was still reaping the child.
    pub(crate) seen: Option<Effects>,
    pub(crate) undeclared: Option<UndeclaredEffects>,
}

pub(crate) enum Attempted {
    Done(ToolOutput),
    /// The tool failed, and had no effect.
    Failed(Failure),
    /// The effect may have happened.
    Unclear(Failure),
    /// The runtime stopped the call, or did not start it. The next start settles the action.
    Abandoned,
}

/// What is known after a call.
pub(super) struct Ran {
    pub(super) answer: Answer,
    ended: Monotonic,
    /// The changes, if they were observed.
    seen: Option<Effects>,
    /// The parsed reply, if it was parsed while the changes were observed.
    read: Option<Attempted>,
    outputs: Outputs,
    wired: Wired,
    /// Whether the tool is that of a program, which the call has spoken with.
    is_dialogue: bool,
}

impl Execution<'_> {
    /// Runs the tool once, and adds what the run used.
    pub(crate) async fn attempt(&mut self) -> Tried {
        let (services, action, mode) = (self.services, self.action, self.mode());
        let tool = action.state.gated().tool();
        let (started_at, begun) = (services.clock.now(), services.clock.monotonic());
        let watch = match mode {
            CallMode::Run => Some(undeclared::watch(services, self.calls, action, &self.prepared).await),
            CallMode::DryRun
            | CallMode::Probe
            | CallMode::Preview
            | CallMode::Verify
            | CallMode::Rollback => None,
        };
        // The deadline of a plan leaves time for its checks.
        let time = self.deadline.since(begun).min(attempt_time(action.state.gated()));
        let ran = self.call(mode, time).await;
        let ended = match &ran {
            Ok(ran) => ran.ended,
            Err(_) => services.clock.monotonic(),
        };
        let mut attempt = Attempt {
            started_at,
            exec_ms: Millis::from(ended.since(begun)),
            cpu_ms: Millis::ZERO,
            code: None,
            denials: Vec::new(),
        };
        self.runs.artifacts.clear();
        let mut tried = Tried { attempted: Attempted::Abandoned, seen: None, undeclared: None };
        match ran {
            Ok(mut ran) => {
                let (usage, used) = (&ran.answer.usage, &mut self.runs.used);
                attempt.cpu_ms = Millis::from_micros(usage.cpu_user_us + usage.cpu_system_us);
                used.peak_memory_bytes = used.peak_memory_bytes.max(usage.peak_memory_bytes);
                used.bytes_written += usage.bytes_written;
                self.runs.isolation = Some(ran.answer.isolation);
                attempt.denials = ran.answer.denials.into_iter().map(denial).collect();
                tried.seen = ran.seen;
                tried.attempted = match ran.answer.ending {
                    Ending::Replied(bytes) => ran.read.unwrap_or_else(|| read_reply(&bytes, tool, mode)),
                    Ending::Killed { code, detail, started } => {
                        if mode == CallMode::Run {
                            let files = &services.files;
                            let cleaned = snapshot::remove_drafts(files, action, &self.prepared).await;
                            self.runs.cleaned_up.extend(cleaned);
                        }
                        if mode == CallMode::Run && code == Code::DiskFull {
                            let caches = services.files.caches.clone();
                            let _has_room = tokio::task::spawn_blocking(move || caches.make_room()).await;
                        }
                        let failure = killed(code, detail);
                        if started { Attempted::Unclear(failure) } else { Attempted::Failed(failure) }
                    }
                };
                if self.is_wired() || ran.is_dialogue {
                    tried.attempted = ran.wired.judge(tried.attempted, tool.source().is_own());
                    self.runs.egress.extend(ran.wired.records);
                }
                if let Some(watch) = watch {
                    let (files, settings, metrics) = (&services.files, &services.settings, &services.metrics);
                    tried.undeclared = watch.judge(files, settings, metrics, action, &attempt.denials).await;
                }
                self.store_artifacts(&mut tried, ran.outputs, tool).await;
            }
            Err(Some(failure)) => tried.attempted = Attempted::Failed(failure),
            Err(None) => {}
        }
        attempt.code = match &tried.attempted {
            Attempted::Done(_) | Attempted::Abandoned => None,
            Attempted::Failed(failure) | Attempted::Unclear(failure) => Some(failure.code),
        };
        self.runs.used.add_time(attempt.cpu_ms, attempt.exec_ms);
        self.runs.attempts.push(attempt);
        tried
    }

    /// Asks the tool whether its effect happened; `None` if the runtime stops.
    pub(crate) async fn probe(&mut self) -> Option<ProbeVerdict> {
        let left = self.deadline.since(self.services.clock.monotonic());
        // A run that used up its time must still be probed.
        let left = left.max(if self.is_wired() { PROBE_SERVICE_TIME_MIN } else { PROBE_TIME_MIN });
        let ending = match self.call(CallMode::Probe, left).await {
            Ok(ran) => {
                self.runs.egress.extend(ran.wired.records);
                ran.answer.ending
            }
            Err(Some(_)) => return Some(ProbeVerdict::CannotSay),
            Err(None) => return None,
        };
        Some(match ending {
            Ending::Replied(bytes) => match json::parse_reply(&bytes, limits::TOOL_REPLY_BYTES_MAX) {
                Ok(ToolReply::Probed(verdict)) => verdict,
                Ok(
                    ToolReply::Done(_)
                    | ToolReply::Failed(_)
                    | ToolReply::Previewed(_)
                    | ToolReply::Verified(_),
                )
                | Err(_) => ProbeVerdict::CannotSay,
            },
            Ending::Killed { .. } => ProbeVerdict::CannotSay,
        })
    }

    /// Makes one call. A task of its own waits for the child, so that its death is known even if this worker dies first. Once the
    /// child has replied, none of its processes can run any more: while the kernel reaps it and counts its usage, this observes
    /// the changes and parses the reply. The error says why the call was not made; `None` means that the runtime stops.
    pub(super) async fn call(&self, mode: CallMode, left: Duration) -> Result<Ran, Option<Failure>> {
        let (services, action) = (self.services, self.action);
        let (id, space) = (&action.ticket.action_id, &action.request.space_id);
        let begun = services.clock.monotonic();
        let lane = self.lane(mode, left).await?;
        let mut dialogue = self.dialogue(mode, left).await?;
        let is_answered = lane.is_some() || dialogue.is_some();
        let left = left.saturating_sub(services.clock.monotonic().since(begun));
        let call = call_of(self, mode, left).await?;
        // Only a real run has streams, and changes to observe.
        let is_real = mode == CallMode::Run;
        let inward = self.prepared.extras.contents.as_ref().filter(|_| is_real);
        let inward =
            inward.map(|(shelf, names)| streams::inward(&services.files.blobs, *shelf, space, names));
        let (to_child, replies) = mpsc::channel(1);
        let inward = if is_answered { Some(replies) } else { self.script(mode).await?.or(inward) };
        hit("executor.before_child", id).await;
        let Some(alive) = services.children.running.enter(id) else {
            let message = "an earlier run of this action is still alive";
            return Err(Some(Failure::new(Code::SandboxFailed, Phase::Sandbox, message)));
        };
        let (send, answer) = oneshot::channel();
        let (spoke, spoken) = oneshot::channel();
        let (sandbox, mut halt) = (services.children.sandbox.clone(), services.children.halt.subscribe());
        let (outward, pieces) = streams::outward();
        let outward = (is_real || is_answered).then_some(outward);
        tokio::spawn(async move {
            let call = async {
                let reply = sandbox.ask_with(call, SideChannel { inward, outward }).await?;
                if let Some(bytes) = reply.bytes() {
                    let is_read = is_real && bytes.len() <= READ_BYTES_MAX;
                    let _nobody_waits = spoke.send(is_read.then(|| bytes.to_vec()));
                }
                Ok(reply.reap().await)
            };
            // Dropping the call kills its processes.
            let answer = tokio::select! {
                biased;
                _ = halt.wait_for(|halted| *halted) => None,
                answer = call => Some(answer),
            };
            drop(sandbox);
            drop(alive);
            // If the worker has died, nobody needs the answer: the action is settled by its intent.
            if let Some(answer) = answer {
                drop(send.send(answer));
            }
        });
        let observing = async {
            let Some(said) = spoken.await.ok().filter(|_| is_real) else {
                return (None, None);
            };
            action.step("replied");
            let seen = snapshot::observe(&services.files, action, &self.prepared).await;
            action.step("observed");
            let read = said.map(|said| read_reply(&said, action.state.gated().tool(), mode));
            (Some(seen), read)
        };
        let wired = Mutex::new(Wired::default());
        let (others, to_collect) = if is_answered {
            let (others, to_collect) = mpsc::channel(1);
            (Some((others, pieces)), to_collect)
        } else {
            (None, pieces)
        };
        let collecting = streams::collect(to_collect, services.files.blobs.clone(), space.clone());
        let answer = async {
            let asking = async {
                if let Some((others, pieces)) = others {
                    match (&lane, &mut dialogue) {
                        (Some(lane), _) => lane.serve(pieces, to_child, others, &wired).await,
                        (None, Some(dialogue)) => dialogue.serve(pieces, to_child, others, &wired).await,
                        (None, None) => {}
                    }
                }
                std::future::pending::<Infallible>().await
            };
            // The child's end ends what it asked for.
            tokio::select! {
                biased;
                answer = answer => (answer, services.clock.monotonic()),
                never = asking => match never {},
            }
        };
        let ((mut answer, ended), (seen, read), outputs) = tokio::join!(answer, observing, collecting);
        drop(lane);
        action.step("settled");
        hit("executor.after_child", id).await;
        let is_dialogue = dialogue.is_some();
        if let Some(dialogue) = dialogue {
            let isolation = answer.as_mut().ok().and_then(|answer| answer.as_mut().ok());
            dialogue.settle(isolation.map(|answer| &mut answer.isolation)).await;
        }
        let answer = match answer {
            Ok(Ok(answer)) => answer,
            Ok(Err(SandboxError::Closed)) | Err(_) => return Err(None),
            Ok(Err(error)) => return Err(Some(error.failure())),
        };
        for denial in &answer.denials {
            let labels = [action.state.gated().tool().spec().tool_id.as_str(), denial.code.as_str()];
            let denials = services.metrics.sandbox_denials.with_label_values(&labels);
            denials.inc_by(denial.count.into());
        }
        Ok(Ran { answer, ended, seen, read, outputs, wired: wired.into_inner(), is_dialogue })
    }

    /// Stores the artifacts of a run that succeeded.
    async fn store_artifacts(&mut self, tried: &mut Tried, outputs: Outputs, tool: &RegisteredTool) {
        let Attempted::Done(output) = &mut tried.attempted else {
            return;
        };
        match outputs.keep(&self.services.identity, &output.artifacts).await {
            Ok(kept) => {
                fill_in(output, tool, &kept);
                self.runs.artifacts = kept;
            }
            Err(failure) if tried.seen.as_ref().is_some_and(has_changed) => {
                tried.attempted = Attempted::Unclear(failure);
            }
            Err(failure) => tried.attempted = Attempted::Failed(failure),
        }
    }
}

impl Used {
    pub(super) fn add_time(&mut self, cpu: Millis, exec: Millis) {
        self.cpu = Millis::from_micros(self.cpu.micros() + cpu.micros());
        self.exec = Millis::from_micros(self.exec.micros() + exec.micros());
    }
}

fn killed(code: Code, detail: String) -> Failure {
    let is_cache = detail == CACHE_FULL;
    let mut failure = Failure::new(code, Phase::Dispatch, detail);
    // It would fill the disk again.
    failure.retryable &= code != Code::DiskFull;
    if is_cache { failure.unless("send it again; the cache is emptied") } else { failure }
}

/// Parses the untrusted reply of a run.
fn read_reply(bytes: &[u8], tool: &RegisteredTool, mode: CallMode) -> Attempted {
    let invalid = |why: &str| Attempted::Unclear(Failure::new(Code::ResultInvalid, Phase::Capture, why));
    match json::parse_reply(bytes, limits::TOOL_REPLY_BYTES_MAX) {
        // No script has run that could have an output.
        Ok(ToolReply::Done(output)) if mode == CallMode::DryRun && tool.package().is_some() => {
            Attempted::Done(output)
        }
        Ok(ToolReply::Done(mut output)) => match tool.check_result(&output.result) {
            Ok(()) => {
                json::integers_as_text(&mut output.result);
                Attempted::Done(output)
            }
            Err(failure) => Attempted::Unclear(failure),
        },
        // A script that fails half-way has had half of its effect.
        Ok(ToolReply::Failed(failure)) if tool.package().is_some_and(Manifest::writes) => {
            Attempted::Unclear(own_words(failure, tool))
        }
        Ok(ToolReply::Failed(failure)) => Attempted::Failed(own_words(failure, tool)),
        Ok(ToolReply::Probed(_) | ToolReply::Previewed(_) | ToolReply::Verified(_)) => {
            invalid("the tool's reply is for another call")
        }
        Err(_) => invalid("the tool's answer is not a reply"),
    }
}

/// Whether a change was observed.
pub(crate) fn has_changed(effects: &Effects) -> bool {
    match effects {
        Effects::Observed(observed) => !observed.changes.is_empty() || observed.incomplete,
        Effects::None | Effects::Unobserved | Effects::Possible => false,
    }
}

/// Writes the ids and lengths of artifacts into the fields that the tool's result schema has for them. The tool cannot know these
/// values, so whatever it wrote there is replaced.
fn fill_in(output: &mut ToolOutput, tool: &RegisteredTool, kept: &[KeptArtifact]) {
    let (Some(fields), Some(result)) =
        (tool.spec().result_schema["properties"].as_object(), output.result.as_object_mut())
    else {
        return;
    };
    let is_named = |schema: &Value| {
        let named = schema["x-artifact-bytes"].as_str();
        output.artifacts.iter().any(|one| Some(one.name.as_str()) == named)
    };
    for (field, schema) in fields {
        let find = |mark: &str| {
            let named = schema.get(mark).and_then(Value::as_str);
            named.map(|named| kept.iter().find(|one| one.name == named))
        };
        match find("x-artifact") {
            Some(Some(one)) => drop(result.insert(field.clone(), one.artifact_id.clone().into())),
            // The run has no such artifact: an id from the tool would be that of another action.
            Some(None) => drop(result.remove(field)),
            None => {}
        }
        match find("x-artifact-bytes") {
            Some(Some(one)) => drop(result.insert(field.clone(), one.bytes.into())),
            Some(None) if is_named(schema) => drop(result.insert(field.clone(), 0.into())),
            Some(None) => drop(result.remove(field)),
            None => {}
        }
    }
}

/// A tool's failure, limited to codes that a tool may use: it must not pretend to be the policy or the kernel.
fn own_words(failure: Failure, tool: &RegisteredTool) -> Failure {
    const ALLOWED: [Code; 17] = [
        Code::PermissionDenied,
        Code::FileNotFound,
        Code::FileExists,
        Code::NotAFile,
        Code::NotAFolder,
        Code::NotText,
        Code::ArchiveInvalid,
        Code::StateChanged,
        Code::DiskFull,
        Code::UndoGone,
        Code::ToolFailed,
        Code::ToolBusy,
        Code::ServiceRefused,
        Code::ParamsInvalid,
        Code::PathDenied,
        Code::FileLimit,
        Code::UnknownTool,
    ];
    // Only the child of a connector sees what its server says now.
    let is_drifted = failure.code == Code::ToolDrifted && tool.definition().upstream.is_some();
    // A database says itself that a statement took too long, and stops it.
    let is_late = failure.code == Code::TimedOut && tool.source() == Source::Db;
    let is_known = is_drifted || is_late || ALLOWED.contains(&failure.code);
    let code = if is_known { failure.code } else { Code::ToolFailed };
    Failure::new(code, Phase::Dispatch, failure.message)
}

fn denial(denial: effectd_sandbox::Denial) -> Denial {
    Denial {
        code: denial.code,
        what: denial.what,
        count: denial.count,
        source: match denial.source {
            effectd_sandbox::DenialSource::Kernel => DenialSource::Kernel,
            effectd_sandbox::DenialSource::Child => DenialSource::Child,
        },
    }
}
