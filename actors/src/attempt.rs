//! One call of a tool in a fresh sandbox, and what its ending means.

use std::time::Duration;

use effectd_contracts::{
    Attempt, CallMode, Code, Denial, DenialSource, Effects, Failure, Millis, Monotonic, Phase, ProbeVerdict,
    ToolOutput, ToolReply, json, limits,
};
use effectd_sandbox::{Answer, Beside, Ending, SandboxError};
use serde_json::Value;
use tokio::sync::oneshot;

use crate::call::call_of;
use crate::executor::{Course, Used};
use crate::failpoint::hit;
use crate::limits::PROBE_TIME_MIN;
use crate::overreach::{self, Overreach};
use crate::preimage;
use crate::registry::Entry;
use crate::streams::{self, KeptArtifact, Taken};

/// Longest answer that is read while its child is taken down: until then it is held twice.
const READ_BYTES_MAX: usize = 64 * 1_024;

pub(crate) struct Tried {
    pub(crate) attempted: Attempted,
    /// What has changed, looked at while the kernel was still taking the child down.
    pub(crate) seen: Option<Effects>,
    /// What it has done beyond what its tool declares.
    pub(crate) overreach: Option<Overreach>,
}

pub(crate) enum Attempted {
    Done(ToolOutput),
    /// It did not, and had no effect.
    Failed(Failure),
    /// It ended so that its effect may have happened.
    Unclear(Failure),
    /// The runtime stopped it, or did not start it any more. What came of it is for the next start to find out.
    Abandoned,
}

/// What is known when a call has been made.
struct Ran {
    answer: Answer,
    ended: Monotonic,
    /// What has changed, if that was looked at.
    seen: Option<Effects>,
    /// What the child said, if that was read while it was looked at.
    read: Option<Attempted>,
    taken: Taken,
}

impl Course<'_> {
    /// Runs the tool once, and adds what it used to the course.
    pub(crate) async fn attempt(&mut self) -> Tried {
        let (parts, action, mode) = (self.parts, self.action, self.mode());
        let entry = action.state.gated().entry();
        let (started_at, begun) = (parts.clock.now(), parts.clock.monotonic());
        let watch = match mode {
            CallMode::Run => Some(overreach::watch(parts, action, &self.prepared).await),
            CallMode::DryRun | CallMode::Probe | CallMode::Preview => None,
        };
        let ran = self.call(mode, self.deadline.since(begun)).await;
        let ended = match &ran {
            Ok(ran) => ran.ended,
            Err(_) => parts.clock.monotonic(),
        };
        let mut attempt = Attempt {
            started_at,
            exec_ms: Millis::from(ended.since(begun)),
            cpu_ms: Millis::ZERO,
            code: None,
            denials: Vec::new(),
        };
        self.runs.artifacts.clear();
        let mut tried = Tried {
            attempted: Attempted::Abandoned,
            seen: None,
            overreach: None,
        };
        match ran {
            Ok(ran) => {
                let (usage, used) = (&ran.answer.usage, &mut self.runs.used);
                attempt.cpu_ms = Millis::from_micros(usage.cpu_user_us + usage.cpu_system_us);
                used.peak_memory_bytes = used.peak_memory_bytes.max(usage.peak_memory_bytes);
                used.bytes_written += usage.bytes_written;
                self.runs.isolation = Some(ran.answer.isolation);
                attempt.denials = ran.answer.denials.into_iter().map(denial).collect();
                tried.seen = ran.seen;
                tried.attempted = match ran.answer.ending {
                    Ending::Replied(bytes) => ran.read.unwrap_or_else(|| read_reply(&bytes, entry)),
                    Ending::Killed {
                        code,
                        detail,
                        started,
                    } => {
                        if mode == CallMode::Run {
                            preimage::remove_drafts(parts, action, &self.prepared).await;
                        }
                        let failure = Failure::new(code, Phase::Dispatch, detail);
                        if started {
                            Attempted::Unclear(failure)
                        } else {
                            Attempted::Failed(failure)
                        }
                    }
                };
                if let Some(watch) = watch {
                    tried.overreach = watch.judge(parts, action, &attempt.denials).await;
                }
                self.keep(&mut tried, ran.taken, entry).await;
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

    /// Asks the tool whether it has run; `None` if the runtime stops.
    pub(crate) async fn probe(&self) -> Option<ProbeVerdict> {
        let left = self.deadline.since(self.parts.clock.monotonic());
        // A run that used up its time must not leave its probe without any.
        let left = left.max(PROBE_TIME_MIN);
        let ending = match self.call(CallMode::Probe, left).await {
            Ok(ran) => ran.answer.ending,
            Err(Some(_)) => return Some(ProbeVerdict::CannotSay),
            Err(None) => return None,
        };
        Some(match ending {
            Ending::Replied(bytes) => match json::parse_reply(&bytes, limits::TOOL_REPLY_BYTES_MAX) {
                Ok(ToolReply::Probed(verdict)) => verdict,
                Ok(ToolReply::Done(_) | ToolReply::Failed(_) | ToolReply::Rehearsed(_)) | Err(_) => {
                    ProbeVerdict::CannotSay
                }
            },
            Ending::Killed { .. } => ProbeVerdict::CannotSay,
        })
    }

    /// Has one call made. The child is waited for by a task of its own, so that it is known to be dead even if the worker that
    /// asked dies first. When the child has spoken and nothing of it can run any more, there is time to look at what it has
    /// done and to read what it has said: the kernel takes as long again to take it down and to say what it cost. The error
    /// is why the call was not made; none means that the runtime stops.
    async fn call(&self, mode: CallMode, left: Duration) -> Result<Ran, Option<Failure>> {
        let (parts, action) = (self.parts, self.action);
        let (id, space) = (&action.ticket.action_id, &action.request.space_id);
        let call = call_of(self, mode, left).await?;
        // Only a real run has something to send, to keep and to look at.
        let is_real = mode == CallMode::Run;
        let inward = self.prepared.along.contents.as_ref().filter(|_| is_real);
        let inward = inward.map(|(shelf, names)| streams::inward(parts, *shelf, space, names));
        hit("executor.before_child", id).await;
        let Some(alive) = parts.running.enter(id) else {
            let message = "an earlier run of this action is still alive";
            return Err(Some(Failure::new(Code::SandboxFailed, Phase::Sandbox, message)));
        };
        let (told, answer) = oneshot::channel();
        let (spoke, spoken) = oneshot::channel();
        let (sandbox, mut halt) = (parts.sandbox.clone(), parts.halt.subscribe());
        let (outward, pieces) = streams::outward();
        let outward = is_real.then_some(outward);
        tokio::spawn(async move {
            let call = async {
                let reply = sandbox.ask_with(call, Beside { inward, outward }).await?;
                if let Some(bytes) = reply.bytes() {
                    let is_read = is_real && bytes.len() <= READ_BYTES_MAX;
                    let _nobody_waits = spoke.send(is_read.then(|| bytes.to_vec()));
                }
                Ok(reply.settle().await)
            };
            // Dropping the call kills its processes.
            let answer = tokio::select! {
                biased;
                _ = halt.wait_for(|halted| *halted) => None,
                answer = call => Some(answer),
            };
            drop(sandbox);
            drop(alive);
            // A worker that has died meanwhile needs no answer: its action is settled by the intent.
            if let Some(answer) = answer {
                drop(told.send(answer));
            }
        });
        let looking = async {
            let Some(said) = spoken.await.ok().filter(|_| is_real) else {
                return (None, None);
            };
            action.step("replied");
            let seen = preimage::observe(parts, action, &self.prepared).await;
            action.step("observed");
            let read = said.map(|said| read_reply(&said, action.state.gated().entry()));
            (Some(seen), read)
        };
        let taking = streams::take(pieces, parts.blobs.clone(), space.clone());
        let answer = async { (answer.await, parts.clock.monotonic()) };
        let ((answer, ended), (seen, read), taken) = tokio::join!(answer, looking, taking);
        action.step("settled");
        hit("executor.after_child", id).await;
        let answer = match answer {
            Ok(Ok(answer)) => answer,
            Ok(Err(SandboxError::Closed)) | Err(_) => return Err(None),
            Ok(Err(error)) => return Err(Some(error.failure())),
        };
        for denial in &answer.denials {
            tracing::warn!(parent: &action.ticket.span, trace_id = %action.ticket.trace_id, code = %denial.code,
                what = denial.what, count = denial.count, "refused in the sandbox");
        }
        Ok(Ran {
            answer,
            ended,
            seen,
            read,
            taken,
        })
    }

    /// Keeps what the tool said at length, if it has done what it was asked to.
    async fn keep(&mut self, tried: &mut Tried, taken: Taken, entry: &Entry) {
        let Attempted::Done(output) = &mut tried.attempted else {
            return;
        };
        match taken.keep(self.parts, &output.artifacts).await {
            Ok(kept) => {
                fill_in(output, entry, &kept);
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
    fn add_time(&mut self, cpu: Millis, exec: Millis) {
        self.cpu = Millis::from_micros(self.cpu.micros() + cpu.micros());
        self.exec = Millis::from_micros(self.exec.micros() + exec.micros());
    }
}

/// Reads what a run says, which is not to be trusted.
fn read_reply(bytes: &[u8], entry: &Entry) -> Attempted {
    let invalid = |why: &str| Attempted::Unclear(Failure::new(Code::ResultInvalid, Phase::Capture, why));
    match json::parse_reply(bytes, limits::TOOL_REPLY_BYTES_MAX) {
        Ok(ToolReply::Done(mut output)) => match entry.check_result(&output.result) {
            Ok(()) => {
                json::integers_as_text(&mut output.result);
                Attempted::Done(output)
            }
            Err(failure) => Attempted::Unclear(failure),
        },
        Ok(ToolReply::Failed(failure)) => Attempted::Failed(own_words(failure)),
        Ok(ToolReply::Probed(_) | ToolReply::Rehearsed(_)) => invalid("the tool answered another question"),
        Err(_) => invalid("the tool's answer is not a reply"),
    }
}

/// Whether something was seen to be otherwise after the run.
pub(crate) fn has_changed(effects: &Effects) -> bool {
    match effects {
        Effects::Observed(observed) => !observed.changes.is_empty(),
        Effects::None | Effects::Unobserved | Effects::Possible => false,
    }
}

/// Puts the ids and lengths of artifacts where the tool's result has a place for them. The tool cannot know the ids, and how much
/// was kept is not its word: whatever it has said, this is what is there.
fn fill_in(output: &mut ToolOutput, entry: &Entry, kept: &[KeptArtifact]) {
    let (Some(fields), Some(result)) = (
        entry.spec().result_schema["properties"].as_object(),
        output.result.as_object_mut(),
    ) else {
        return;
    };
    let is_named = |schema: &Value| {
        let named = schema["x-artifact-bytes"].as_str();
        output
            .artifacts
            .iter()
            .any(|one| Some(one.name.as_str()) == named)
    };
    for (field, schema) in fields {
        let find = |mark: &str| {
            let named = schema.get(mark).and_then(Value::as_str);
            named.map(|named| kept.iter().find(|one| one.name == named))
        };
        match find("x-artifact") {
            Some(Some(one)) => drop(result.insert(field.clone(), one.artifact_id.clone().into())),
            // A tool that names one by itself names somebody else's.
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

/// A tool's failure with a code that a tool may use. It must not pretend that the policy or the kernel said something.
fn own_words(failure: Failure) -> Failure {
    const ALLOWED: [Code; 16] = [
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
        Code::ParamsInvalid,
        Code::PathDenied,
        Code::FileLimit,
        Code::UnknownTool,
    ];
    let code = if ALLOWED.contains(&failure.code) {
        failure.code
    } else {
        Code::ToolFailed
    };
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
