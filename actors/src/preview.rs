//! Previews: what an action would change. Its tool runs on a copy, in a sandbox that cannot change the space.
//!
//! A person approves what the preview shows, so the execution must do the same. The snapshot before is part of the question
//! ([`crate::approvals::question`]), and the sandbox checks it again when the action is executed; the receipt says whether the
//! observed changes match the predicted ones.

pub(crate) mod assessment;
pub(crate) mod batch;
mod diff;
mod foresee;
pub(crate) mod shadow;

use std::sync::Arc;
use std::time::Duration;

use effectd_contracts::access::is_wired;
use effectd_contracts::{
    ActionId, ActionRequest, AskedRequest, CallMode, Clock, Code, EffectMark, Failure, PathChange,
    PathSnapshot, PathState, Phase, Predicted, PreviewResult, PreviewedItem, PreviewedPath, RiskLevel,
    SafetyClass, SpaceId, SubjectId, ToolCall, ToolId, ToolReply, Touch, TraceId, json, limits,
};
use effectd_policy::Decision;
use effectd_sandbox::{Ending, Narrowing, Sandbox, SideChannel};
use serde_json::{Map, Value};

pub use crate::action::preview::{Change, Diff, ItemRequest, LeftOut, Preview, RequestShown, Shown};
pub use assessment::{Offers, decision_in, example_in, facts_of};
pub(crate) use diff::redact;
pub use foresee::{Foresight, foresee};

use crate::action::preview::digest;
use crate::control::fair_queue::{FairQueue, Permit};
use crate::effects::{changes, snapshot, streams};
use crate::execution::call::confined;
use crate::limits::{
    OVERLOAD_RETRY, PREVIEW_CHANGES_MAX, PREVIEW_DIFF_BYTES_MAX, PREVIEW_WAIT_MAX, REQUEST_TEXT_BYTES_MAX,
};
use crate::registry::RegisteredTool;
use crate::services::Services;
use crate::services::files::{Files, Inspected};

/// What a tool run on a copy needs.
pub(crate) struct Trial<'a> {
    pub(crate) action_id: &'a ActionId,
    pub(crate) subject: &'a SubjectId,
    pub(crate) space: &'a SpaceId,
    pub(crate) tool: &'a RegisteredTool,
    pub(crate) params: &'a Map<String, Value>,
    pub(crate) high_isolation: bool,
    pub(crate) trace_id: &'a TraceId,
    /// The snapshot of the question, if the preview is for one.
    pub(crate) stands: Option<&'a [PathSnapshot]>,
}

impl<'a> Trial<'a> {
    pub(crate) fn new(
        request: &'a ActionRequest,
        tool: &'a RegisteredTool,
        params: &'a Map<String, Value>,
        decision: &Decision,
        trace_id: &'a TraceId,
    ) -> Self {
        Self {
            action_id: &request.action_id,
            subject: &request.subject_id,
            space: &request.space_id,
            tool,
            params,
            high_isolation: decision.safety_class == SafetyClass::High,
            trace_id,
            stands: None,
        }
    }
}

/// Previews an action. If that fails, the preview says why: a person can decide without a preview. The only error is
/// `overloaded`, if no slot comes free in time: otherwise a noisy subject could keep previews from approvers.
pub(crate) async fn of(services: &Services, trial: &Trial<'_>) -> Result<Preview, Failure> {
    Ok(tried(services, trial).await?.preview)
}

/// What a run on a copy came to.
pub(crate) struct Tried {
    pub(crate) preview: Preview,
    /// The snapshot before, also if the tool would fail.
    pub(crate) before: Vec<PathSnapshot>,
    /// What each item of a batch changed, of those that did not fail.
    pub(crate) items: Vec<PreviewedItem>,
}

impl Tried {
    fn new(preview: Preview) -> Self {
        Self { preview, before: Vec::new(), items: Vec::new() }
    }
}

/// [`of`] with all that the run on a copy came to.
pub(crate) async fn tried(services: &Services, trial: &Trial<'_>) -> Result<Tried, Failure> {
    let touched = snapshot::touched_with(&services.files, trial.space, trial.tool, trial.params);
    let tool = &trial.tool.spec().tool_id;
    let sending = batch::sending(services, trial);
    if touched.is_empty() && !tool_sends(trial.tool) && sending.is_empty() {
        let why = match trial.tool.definition().upstream {
            Some(_) => "a call of a server cannot be previewed",
            None => "it does not declare which files it changes",
        };
        let why = format!("{tool} cannot be previewed: {why}");
        return Ok(Tried::new(Preview::Unavailable(why)));
    }
    let _permit = acquire(&services.control.previews, trial.subject, tool).await?;
    let mut tried = if touched.is_empty() && !sending.is_empty() {
        Tried::new(Preview::Shown(Shown::nothing()))
    } else {
        on_copy(services, trial, &touched).await
    };
    if let Preview::Shown(shown) = &mut tried.preview {
        match batch::requests(services, trial, sending).await {
            Ok(requests) if requests.is_empty() && touched.is_empty() => {
                tried.preview = Preview::Unavailable("no request could be made in time".to_owned());
            }
            Ok(requests) => shown.requests = requests,
            Err(failure) => tried.preview = Preview::WouldFail(failure),
        }
    }
    Ok(tried)
}

async fn on_copy(services: &Services, trial: &Trial<'_>, touched: &[Touch]) -> Tried {
    let is_request = tool_sends(trial.tool);
    let time_max = services.settings.preview_time_max;
    let mark = is_request.then(|| services.identity.mark(trial.action_id, services.clock.now()));
    let rehearsing = rehearsed(&services.files, &services.children.sandbox, (time_max, mark), trial, touched);
    match rehearsing.await {
        Ok(PreviewResult { failed: Some(failure), before, items, .. }) => {
            Tried { preview: Preview::WouldFail(failure), before, items }
        }
        Ok(PreviewResult { request: Some(request), .. }) if is_request => {
            Tried::new(request_shown(services, trial, request))
        }
        Ok(mut rehearsal) => {
            let (before, items) = (rehearsal.before.clone(), std::mem::take(&mut rehearsal.items));
            match shown(&services.files, &services.clock, trial, touched, rehearsal).await {
                Ok(shown) => Tried { preview: Preview::Shown(shown), before, items },
                Err(failure) => Tried::new(Preview::Unavailable(failure.message)),
            }
        }
        Err(failure) => Tried::new(Preview::Unavailable(format!("no preview: {}", failure.message))),
    }
}

/// Whether a call of the tool sends one request to its connection, which a preview can show.
pub(crate) fn tool_sends(tool: &RegisteredTool) -> bool {
    let spec = tool.spec();
    is_wired(spec.tool_id.source()) && spec.risk_level != Some(RiskLevel::Read)
}

/// The request as people see it. Only its text is redacted: the digest is of what would be sent.
fn request_shown(services: &Services, trial: &Trial<'_>, request: AskedRequest) -> Preview {
    let org = services.org_of(trial.space);
    let connection = org.and_then(|org| services.connection(&org, trial.tool.spec().tool_id.source()));
    let found = connection.as_ref().and_then(|found| Some((found.access.as_ref()?, found.hosts.first()?)));
    let (Some((access, host)), Some(exchange)) = (found, request.exchange()) else {
        return Preview::Unavailable("the connection of this tool is not there".to_owned());
    };
    if !access.allows(exchange.method, &exchange.path) {
        let why = format!("the connection does not allow this; it allows {}", access.allowed());
        return Preview::WouldFail(Failure::new(Code::EgressRefused, Phase::Dispatch, why));
    }
    let port = access.port.map(|port| format!(":{port}")).unwrap_or_default();
    let target = exchange.target() + access.database.as_ref().map_or("", |login| &login.name);
    let mut url = format!("{}://{host}{port}{target}", access.scheme.as_str());
    redact(&mut url);
    let headers = exchange.headers.iter().map(|(name, value)| {
        let mut value = value.clone();
        redact(&mut value);
        (name.clone(), value)
    });
    let body = std::str::from_utf8(&exchange.body).ok().filter(|text| !text.is_empty()).map(|text| {
        let cut = text.len() > REQUEST_TEXT_BYTES_MAX;
        // One document on one line is hard to read.
        let json = serde_json::from_str::<Value>(text).ok().filter(|_| !cut);
        let pretty = json.and_then(|json| serde_json::to_string_pretty(&json).ok());
        let mut text =
            pretty.unwrap_or_else(|| text[..text.floor_char_boundary(REQUEST_TEXT_BYTES_MAX)].to_owned());
        let redacted = redact(&mut text);
        Diff { text: text.lines().map(|line| format!("+{line}\n")).collect(), cut, redacted }
    });
    Preview::Request(RequestShown {
        method: exchange.method,
        url,
        headers: headers.collect(),
        body,
        body_bytes: exchange.body.len(),
        digest: services.identity.keyed(&exchange.digest()),
    })
}

/// Waits for a slot, at most [`PREVIEW_WAIT_MAX`]: a preview takes a sandbox and seconds.
async fn acquire(queue: &FairQueue, subject: &SubjectId, tool: &ToolId) -> Result<Permit, Failure> {
    match tokio::time::timeout(PREVIEW_WAIT_MAX, queue.enqueue(subject, tool, None)).await {
        Ok(Ok(permit)) => Ok(permit),
        Ok(Err(_)) | Err(_) => {
            let message = "too many previews run at once; nothing was done";
            Err(Failure::new(Code::Overloaded, Phase::Gate, message).retry_after(OVERLOAD_RETRY))
        }
    }
}

async fn rehearsed(
    files: &Files,
    sandbox: &Sandbox,
    (time_max, mark): (Duration, Option<EffectMark>),
    trial: &Trial<'_>,
    touched: &[Touch],
) -> Result<PreviewResult, Failure> {
    let extras = snapshot::extras(files, trial.space, trial.tool, trial.params, touched).await?;
    let spec = trial.tool.spec();
    let timeout = Duration::from_millis(spec.timeout_ms).min(time_max);
    let call = ToolCall {
        tool_id: spec.tool_id.clone(),
        mode: CallMode::Preview,
        space_id: trial.space.clone(),
        params: trial.params.clone(),
        timeout_ms: 0,
        trace_id: trial.trace_id.clone(),
        before: None,
        restore: extras.restore,
        expect: Vec::new(),
        mark,
        undoes: extras.undoes,
        upstream: None,
        failed_checks: Vec::new(),
    };
    let confinement = (timeout, trial.high_isolation, Narrowing::read_only(), None);
    let call = confined(files, trial.tool, call, confinement)?;
    let contents = extras.contents.as_ref();
    let beside = SideChannel {
        inward: contents.map(|(shelf, names)| streams::inward(&files.blobs, *shelf, trial.space, names)),
        outward: None,
    };
    let reply = sandbox.ask_with(call, beside).await;
    let answer = match reply {
        Ok(reply) => reply.reap().await,
        Err(error) => return Err(error.failure()),
    };
    match answer.ending {
        Ending::Replied(bytes) => read(&bytes),
        Ending::Killed { code, detail, .. } => Err(Failure::new(code, Phase::Dispatch, detail)),
    }
}

/// A tool's failure, its message cut to the longest that a failure may have.
fn bounded(failure: Failure) -> Failure {
    Failure::new(failure.code, Phase::Dispatch, failure.message)
}

/// Parses the child's reply, which is not trusted.
fn read(bytes: &[u8]) -> Result<PreviewResult, Failure> {
    let invalid = || Failure::new(Code::ResultInvalid, Phase::Capture, "the answer is not a preview");
    match json::parse_reply::<ToolReply>(bytes, limits::TOOL_REPLY_BYTES_MAX) {
        Ok(ToolReply::Previewed(mut rehearsal)) => {
            rehearsal.failed = rehearsal.failed.map(bounded);
            Ok(rehearsal)
        }
        Ok(ToolReply::Failed(failure)) => Err(bounded(failure)),
        Ok(ToolReply::Done(_) | ToolReply::Probed(_) | ToolReply::Verified(_)) | Err(_) => Err(invalid()),
    }
}

/// What would change: the state after comes from the child's reply, the state before from our own snapshot.
async fn shown(
    files: &Files,
    clock: &Arc<dyn Clock>,
    trial: &Trial<'_>,
    touched: &[Touch],
    rehearsal: PreviewResult,
) -> Result<Shown, Failure> {
    let paths = touched.iter().map(|touch| touch.path.clone()).collect();
    let inspecting = files.inspect(trial.space, paths, PREVIEW_DIFF_BYTES_MAX * 8);
    let inspected = inspecting.await?;
    let same = inspected.iter().all(|ours| {
        let like = |all: &[PathSnapshot]| all.iter().any(|seen| seen.is_like(&ours.seen));
        trial.stands.is_none_or(like) && like(&rehearsal.before)
    });
    if !same {
        let why = "the files changed during the preview; try again";
        return Err(Failure::new(Code::StateChanged, Phase::Dispatch, why));
    }
    let before: Vec<PathSnapshot> = inspected.iter().map(|ours| ours.seen.clone()).collect();
    let after = rehearsal.after.iter().map(|now| Inspected {
        seen: PathSnapshot::new(now.path.clone(), now.standing.clone()),
        content: None,
    });
    let after: Vec<Inspected> = after.collect();
    let mut changes = changes::compare(&files.identity, &before, &after, touched);
    for touch in touched.iter().filter(|touch| touch.filled) {
        let beneath = after.iter().map(|inspected| inspected.seen.clone());
        changes::add_made(&files.identity, touch, beneath, &mut changes);
    }
    let known = trial.stands.unwrap_or(&rehearsal.before);
    for change in changes.iter_mut().filter(|change| change.moved_to.is_some()) {
        let seen = known.iter().find(|seen| seen.path == change.path);
        let inside = match seen.and_then(|seen| seen.inside.clone()) {
            Some(inside) => inside,
            // For an undo, the child knows the moved folder only from the receipt.
            None => files.inside(trial.space, &change.path).await,
        };
        change.inside = snapshot::keyed_inside(&files.identity, &inside);
    }
    let digest = digest(&changes);
    let predicted = count(&changes);
    let cut = changes.len() > PREVIEW_CHANGES_MAX;
    changes.truncate(PREVIEW_CHANGES_MAX);
    let changes = listed(clock, changes, inspected, rehearsal.after).await?;
    Ok(Shown { predicted, changes, cut, digest, requests: Vec::new() })
}

/// The changes with their diffs, computed on a thread of their own.
async fn listed(
    clock: &Arc<dyn Clock>,
    changes: Vec<PathChange>,
    inspected: Vec<Inspected>,
    after: Vec<PreviewedPath>,
) -> Result<Vec<Change>, Failure> {
    let clock = clock.clone();
    let listing = tokio::task::spawn_blocking(move || {
        let mut room = diff::Room::new(&*clock);
        let with_diff = |change: PathChange| {
            let old = inspected.iter().find(|ours| ours.seen.path == change.path);
            let new = after.iter().find(|now| now.path == change.path);
            let (diff, left_out) = match (old, new) {
                (Some(old), Some(new)) => match diff::between(old, new, &mut room) {
                    Ok(diff) => (diff, None),
                    Err(why) => (None, Some(why)),
                },
                (Some(_) | None, _) => (None, None),
            };
            Change {
                path: change.path,
                before: change.before,
                after: change.after,
                moved_to: change.moved_to,
                diff,
                left_out,
            }
        };
        changes.into_iter().map(with_diff).collect()
    });
    let broken = |_| Failure::new(Code::Internal, Phase::Dispatch, "comparing the texts failed");
    listing.await.map_err(broken)
}

fn count(changes: &[PathChange]) -> Predicted {
    let mut predicted = Predicted { files: changes.len() as u64, ..Predicted::default() };
    for change in changes {
        match (&change.before, &change.after) {
            (_, PathState::File(state)) => predicted.bytes = predicted.bytes.saturating_add(state.bytes),
            (PathState::Absent, _) | (_, PathState::Folder | PathState::Other) => {}
            (PathState::File(_) | PathState::Folder | PathState::Other, PathState::Absent) => {
                let lives_on = change.moved_to.is_some() || goes_on(change, changes);
                predicted.deletes += u64::from(!lives_on);
            }
        }
    }
    predicted
}

/// Whether the content that is gone from one path appears at another.
fn goes_on(gone: &PathChange, changes: &[PathChange]) -> bool {
    let PathState::File(was) = &gone.before else {
        return false;
    };
    changes.iter().any(|other| match (&other.before, &other.after) {
        (before, PathState::File(is)) => {
            is.digest == was.digest && other.path != gone.path && before != &other.after
        }
        (_, PathState::Absent | PathState::Folder | PathState::Other) => false,
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::collections::HashMap;

    use super::*;
    use crate::control::fair_queue::Rules;

    #[tokio::test(start_paused = true)]
    async fn previews_are_shared_fairly_and_long_waits_get_retry_after() {
        let queue = FairQueue::new(Rules {
            slots: 4,
            subject_max: 2,
            tool_max: 4,
            waiting_max: usize::MAX,
            weights: HashMap::new(),
        });
        let tool = "t.x".parse().unwrap();
        let (one, other) = ("agent://one@a".parse().unwrap(), "agent://other@a".parse().unwrap());
        let mut taken = Vec::new();
        for _ in 0..2 {
            taken.push(acquire(&queue, &one, &tool).await.unwrap());
        }
        let refused = acquire(&queue, &one, &tool).await.unwrap_err();
        assert_eq!(refused.code, Code::Overloaded);
        assert!(refused.retry_after_ms.is_some(), "{refused:?}");
        let others = acquire(&queue, &other, &tool).await.unwrap();
        drop((others, taken));
        drop(acquire(&queue, &one, &tool).await.unwrap());
        drop(acquire(&queue, &other, &tool).await.unwrap());
        assert_eq!((queue.taken(), queue.waiting()), (0, 0));
    }
}
