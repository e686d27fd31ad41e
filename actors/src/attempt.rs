//! One run of a tool in a fresh sandbox, and what its ending means.

use std::task::Poll;
use std::time::Duration;

use effectd_contracts::{
    Attempt, CallMode, Code, Denial, DenialSource, Effects, Failure, Isolation, Millis, Monotonic, Phase,
    ProbeVerdict, ToolOutput, ToolReply, json, limits,
};
use effectd_sandbox::{Answer, Beside, Call, Ending, SandboxError};
use serde_json::Value;
use tokio::sync::{mpsc, oneshot};

use crate::action::{Action, Claimed};
use crate::executor::Used;
use crate::expected::expected;
use crate::failpoint::hit;
use crate::grip::Grip;
use crate::overreach::{self, Overreach};
use crate::parts::Parts;
use crate::poise::{Poised, Told, call_of};
use crate::preimage::{self, Prepared};
use crate::registry::Entry;
use crate::streams::{self, KeptArtifact, Taken};

/// Longest answer that is read while its child is taken down: until then it is held twice.
const READ_BYTES_MAX: usize = 64 * 1_024;

/// One run.
pub(crate) struct Tried {
    pub(crate) attempt: Attempt,
    pub(crate) used: Used,
    pub(crate) isolation: Option<Isolation>,
    pub(crate) came_to: Attempted,
    pub(crate) probed: Option<ProbeVerdict>,
    /// What has changed, looked at while the kernel was still taking the child down.
    pub(crate) effects: Option<Effects>,
    /// What it said at length.
    pub(crate) artifacts: Vec<KeptArtifact>,
    /// What it has done beyond what its tool declares.
    pub(crate) overreach: Option<Overreach>,
    /// What it may have replaced.
    pub(crate) grip: Option<Grip>,
}

/// What one run came to.
pub(crate) enum Attempted {
    /// The tool did it.
    Done(ToolOutput),
    /// It did not, and had no effect.
    Failed(Failure),
    /// It ended so that its effect may have happened.
    Unclear(Failure),
    /// The runtime stopped it, or did not start it any more. What came of it is for the next start to find out.
    Abandoned,
}

/// Runs the tool once; whether nothing has run before that may have had its effect is said with the mode. The child is waited for by a task of its own, so that it is known to be dead even if the worker
/// that asked dies first.
pub(crate) async fn attempt(
    parts: &Parts,
    action: &Action<Claimed>,
    prepared: &Prepared,
    (mode, first): (CallMode, bool),
    left: Duration,
) -> Tried {
    let started_at = parts.clock.now();
    let begun = parts.clock.monotonic();
    let watch = match mode {
        CallMode::Run => Some(overreach::watch(parts, action, prepared).await),
        CallMode::DryRun | CallMode::Probe | CallMode::Preview => None,
    };
    let call = the_call(parts, action, prepared, (mode, first), left).await;
    let mut grip = None;
    let outcome = match call {
        Ok(call) => {
            let look = preimage::observe(parts, action, prepared);
            let look = (mode == CallMode::Run).then_some(look);
            grip = look.is_some().then(|| prepared.take_grip()).flatten();
            let (shelf, contents) = &prepared.contents;
            let inward = (mode == CallMode::Run && !contents.is_empty())
                .then(|| streams::inward(parts, *shelf, &action.request.space_id, contents));
            run(parts, action, (call, mode), (inward, left), look).await
        }
        Err(failure) => Err(Some(failure)),
    };
    let ended = match &outcome {
        Ok(ran) => ran.ended,
        Err(_) => parts.clock.monotonic(),
    };
    let took = Millis::from(ended.since(begun));
    let entry = action.state.gated().entry();
    let mut tried = Tried {
        attempt: Attempt {
            started_at,
            exec_ms: took,
            cpu_ms: Millis::ZERO,
            code: None,
            denials: Vec::new(),
        },
        used: Used {
            exec: took,
            ..Used::default()
        },
        isolation: None,
        came_to: Attempted::Failed(Failure::new(Code::Internal, Phase::Sandbox, "nothing ran")),
        probed: None,
        effects: None,
        artifacts: Vec::new(),
        overreach: None,
        grip,
    };
    match outcome {
        Ok(Ran {
            answer, seen, taken, ..
        }) => {
            let was_killed = matches!(answer.ending, Ending::Killed { .. });
            let (look, read) = seen.unzip();
            tell(&mut tried, answer, read.flatten(), (entry, mode), action);
            if was_killed && mode == CallMode::Run {
                preimage::remove_drafts(parts, action, prepared).await;
            }
            tried.effects = look;
            if let Some(watch) = watch {
                tried.overreach = watch.judge(parts, action, &tried.attempt.denials).await;
            }
            keep(parts, &mut tried, taken, entry).await;
        }
        Err(Some(failure)) => tried.came_to = Attempted::Failed(failure),
        Err(None) => tried.came_to = Attempted::Abandoned,
    }
    tried.attempt.code = match &tried.came_to {
        Attempted::Done(_) | Attempted::Abandoned => None,
        Attempted::Failed(failure) | Attempted::Unclear(failure) => Some(failure.code),
    };
    tried
}

/// A call that is still to be made, or that a child has in hand.
enum Made {
    New(Call),
    Poised(Poised),
}

/// The call. The child that was handed it before it was claimed gets the word, if what it was told is still so; otherwise it goes, and
/// another one is called.
async fn the_call(
    parts: &Parts,
    action: &Action<Claimed>,
    prepared: &Prepared,
    (mode, first): (CallMode, bool),
    left: Duration,
) -> Result<Made, Failure> {
    if let Some(poised) = action.state.take_poised()
        && mode == CallMode::Run
        && first
        && !left.is_zero()
        && prepared.is_told(&poised)
    {
        return Ok(Made::Poised(poised));
    }
    let told = Told {
        mode,
        touched: &prepared.touched,
        before: prepared.before.as_deref(),
        restore: &prepared.restore,
        expect: expected(parts, action, prepared, (mode, first)).await?,
        left,
    };
    let asked = (&*action.request, &*action.ticket);
    call_of(parts, asked, action.state.gated(), told).map(Made::New)
}

/// Makes up what can be of the receipt while the tool runs. The call goes first: it is a task of its own, which begins when this one
/// rests.
pub(crate) async fn write_ahead(parts: &Parts, action: &Action<Claimed>) {
    let mut rested = false;
    let rest = std::future::poll_fn(|context| {
        if std::mem::replace(&mut rested, true) {
            return Poll::Ready(());
        }
        context.waker().wake_by_ref();
        Poll::Pending
    });
    rest.await;
    action.state.write_ahead(parts);
}

/// Keeps what the tool said at length, if it has done what it was asked to.
async fn keep(parts: &Parts, tried: &mut Tried, taken: Taken, entry: &Entry) {
    let Attempted::Done(output) = &mut tried.came_to else {
        return;
    };
    match taken.keep(parts, &output.artifacts).await {
        Ok(kept) => {
            fill_in(output, entry, &kept);
            tried.artifacts = kept;
        }
        Err(failure) if tried.effects.as_ref().is_some_and(has_changed) => {
            tried.came_to = Attempted::Unclear(failure)
        }
        Err(failure) => tried.came_to = Attempted::Failed(failure),
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

/// What is known when a call has been made.
struct Ran<T> {
    answer: Answer,
    /// When it was over.
    ended: Monotonic,
    /// What a look has shown, and what the child said, if that was short.
    seen: Option<(T, Option<Read>)>,
    taken: Taken,
}

/// Has the call made. When the child has spoken and nothing of it can run any more, there is time to look at what it has
/// done and to read what it has said: the kernel takes as long again to take it down and to say what it cost. The error is
/// why it was not made; none means that the runtime stops.
async fn run<T>(
    parts: &Parts,
    action: &Action<Claimed>,
    (call, mode): (Made, CallMode),
    (inward, left): (Option<mpsc::Receiver<Vec<u8>>>, Duration),
    look: Option<impl Future<Output = T>>,
) -> Result<Ran<T>, Option<Failure>> {
    let id = &action.ticket.action_id;
    hit("executor.before_child", id).await;
    let (call, alive) = match call {
        Made::Poised(poised) => {
            let (child, alive) = poised.carried_out();
            (Err(child), Some(alive))
        }
        Made::New(call) => (Ok(call), parts.running.enter(id)),
    };
    let Some(alive) = alive else {
        let message = "an earlier run of this action is still alive";
        return Err(Some(Failure::new(Code::SandboxFailed, Phase::Sandbox, message)));
    };
    let (told, answer) = oneshot::channel();
    let (spoke, spoken) = oneshot::channel();
    let (sandbox, mut halt) = (parts.sandbox.clone(), parts.halt.subscribe());
    let (outward, pieces) = streams::outward();
    let beside = Beside {
        inward,
        // Only a real run has something to keep.
        outward: look.is_some().then_some(outward),
    };
    let is_looked_at = look.is_some();
    tokio::spawn(async move {
        let call = async {
            let reply = match call {
                Ok(call) => sandbox.ask_with(call, beside).await?,
                Err(poised) => poised.go(left, beside).await?,
            };
            if let Some(bytes) = reply.bytes() {
                let is_read = is_looked_at && bytes.len() <= READ_BYTES_MAX;
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
        match (look, spoken.await) {
            (Some(look), Ok(said)) => {
                action.step("replied");
                let looked = look.await;
                action.step("observed");
                let read = said.map(|said| read_reply(&said, action.state.gated().entry(), mode));
                Some((looked, read))
            }
            (Some(_) | None, _) => None,
        }
    };
    let taking = streams::take(pieces, parts.blobs.clone(), action.request.space_id.clone());
    let answer = async { (answer.await, parts.clock.monotonic()) };
    let ((answer, ended), seen, taken) = tokio::join!(answer, looking, taking);
    action.step("settled");
    hit("executor.after_child", id).await;
    match answer {
        Ok(Ok(answer)) => Ok(Ran {
            answer,
            ended,
            seen,
            taken,
        }),
        Ok(Err(SandboxError::Closed)) | Err(_) => Err(None),
        Ok(Err(error)) => Err(Some(error.failure())),
    }
}

/// Says what the call came to; what the child said may have been read before.
fn tell(
    tried: &mut Tried,
    answer: Answer,
    read: Option<Read>,
    (entry, mode): (&Entry, CallMode),
    action: &Action<Claimed>,
) {
    let usage = &answer.usage;
    tried.used.cpu = Millis::from_micros(usage.cpu_user_us + usage.cpu_system_us);
    tried.used.peak_memory_bytes = usage.peak_memory_bytes;
    tried.used.bytes_written = usage.bytes_written;
    tried.attempt.cpu_ms = tried.used.cpu;
    tried.isolation = Some(answer.isolation);
    for denial in &answer.denials {
        tracing::warn!(parent: &action.ticket.span, trace_id = %action.ticket.trace_id, code = %denial.code,
            what = denial.what, count = denial.count, "refused in the sandbox");
    }
    tried.attempt.denials = answer.denials.into_iter().map(denial).collect();
    match answer.ending {
        Ending::Replied(bytes) => match read.unwrap_or_else(|| read_reply(&bytes, entry, mode)) {
            Ok(Reply::Output(output)) => tried.came_to = Attempted::Done(output),
            Ok(Reply::Verdict(verdict)) => tried.probed = Some(verdict),
            Err((failure, true)) => tried.came_to = Attempted::Unclear(failure),
            Err((failure, false)) => tried.came_to = Attempted::Failed(failure),
        },
        Ending::Killed {
            code,
            detail,
            started,
        } => {
            let failure = Failure::new(code, Phase::Dispatch, detail);
            tried.came_to = if started {
                Attempted::Unclear(failure)
            } else {
                Attempted::Failed(failure)
            };
        }
    }
}

enum Reply {
    Output(ToolOutput),
    Verdict(ProbeVerdict),
}

/// What a child said, read. The flag tells whether it may have had its effect.
type Read = Result<Reply, (Failure, bool)>;

/// Reads what the child says, which is not to be trusted.
fn read_reply(bytes: &[u8], entry: &Entry, mode: CallMode) -> Read {
    let invalid = |why: &str| Failure::new(Code::ResultInvalid, Phase::Capture, why);
    let reply: ToolReply = json::parse(bytes, limits::TOOL_REPLY_BYTES_MAX)
        .map_err(|_| (invalid("the tool's answer is not a reply"), true))?;
    match (reply, mode) {
        (ToolReply::Done(output), CallMode::Run | CallMode::DryRun) => {
            entry
                .check_result(&output.result)
                .map_err(|failure| (failure, true))?;
            Ok(Reply::Output(output))
        }
        (ToolReply::Probed(verdict), CallMode::Probe) => Ok(Reply::Verdict(verdict)),
        (ToolReply::Failed(failure), _) => Err((own_words(failure), false)),
        (ToolReply::Done(_), CallMode::Probe | CallMode::Preview)
        | (ToolReply::Probed(_), CallMode::Run | CallMode::DryRun | CallMode::Preview)
        | (ToolReply::Rehearsed(_), _) => Err((invalid("the tool answered another question"), true)),
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
