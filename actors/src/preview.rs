//! Shows what an action would change before it may: its tool runs on a copy, in a sandbox that can change nothing.
//!
//! What is shown is what a person says yes to, so it must be what happens. The states before are part of the question
//! ([`crate::held::ask`]) and are looked at again inside the sandbox when the action is carried out; the states after are
//! compared with what was observed, and the receipt says whether they are the same.

mod diff;
mod foresee;

use std::sync::Arc;
use std::time::Duration;

use effectd_contracts::{
    CallMode, Clock, Code, Effects, Failure, PathChange, Phase, Predicted, PreviewRecord, PreviewVerdict,
    Rehearsal, Rehearsed, Seen, SpaceId, Standing, SubjectId, ToolCall, ToolId, ToolReply, Touch, TraceId,
    canonical, json, limits,
};
use effectd_sandbox::{Beside, Ending, Narrowing};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

pub(crate) use diff::redact;
pub use diff::{Diff, LeftOut};
pub use foresee::{Foresight, foresee};

use crate::call::confined;
use crate::changes;
use crate::control::fair_queue::{FairQueue, Permit};
use crate::limits::{OVERLOAD_RETRY, PREVIEW_CHANGES_MAX, PREVIEW_DIFF_BYTES_MAX, PREVIEW_WAIT_MAX};
use crate::parts::Parts;
use crate::preimage::{self, Looked};
use crate::registry::Entry;
use crate::streams;

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Preview {
    Shown(Shown),
    /// The tool would fail with this, and change nothing that it says it may.
    WouldFail(Failure),
    /// Nobody can tell, for this reason.
    Unavailable(String),
}

impl Preview {
    /// Keeps which paths would change and how large they are, for those who may not read what stands in them.
    pub fn leave_texts_out(&mut self) {
        match self {
            Preview::Shown(shown) => {
                for change in &mut shown.changes {
                    if change.diff.take().is_some() {
                        change.left_out = Some(LeftOut::NotYours);
                    }
                }
            }
            Preview::WouldFail(_) | Preview::Unavailable(_) => {}
        }
    }
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Shown {
    pub predicted: Predicted,
    /// Path by path, with digests as receipts have them.
    pub changes: Vec<Change>,
    /// There are more than are listed.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub cut: bool,
    /// Over all changes, listed or not.
    digest: effectd_contracts::Digest,
}

/// One path that would not be as it is.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Change {
    /// Where, as requests write it: `workspace/…`.
    pub path: String,
    pub before: Standing,
    pub after: Standing,
    /// Where the folder that stands here would go, with all that is in it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub moved_to: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub diff: Option<Diff>,
    /// Why what is different in it is not shown, if it is not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub left_out: Option<LeftOut>,
}

pub(crate) struct Trial<'a> {
    pub(crate) subject: &'a SubjectId,
    pub(crate) space: &'a SpaceId,
    pub(crate) entry: &'a Entry,
    pub(crate) params: &'a Map<String, Value>,
    pub(crate) high_isolation: bool,
    pub(crate) trace_id: &'a TraceId,
    /// What stands there by the question that it is shown with, if there is one.
    pub(crate) stands: Option<&'a [Seen]>,
}

/// Why a tool cannot be tried out, if it cannot.
pub(crate) fn cannot(entry: &Entry, touched: &[Touch]) -> Option<String> {
    touched.is_empty().then(|| {
        let tool = &entry.spec().tool_id;
        format!("{tool} cannot be previewed: it does not say which files it changes")
    })
}

/// Tries an action out, in its turn. Whatever goes wrong is told in the preview: a question without one is still a question. Only
/// that it is nobody's turn for too long is an error, `overloaded`: otherwise whoever asks for enough at once would decide
/// what people get to see.
pub(crate) async fn of(parts: &Parts, trial: &Trial<'_>) -> Result<Preview, Failure> {
    Ok(tried(parts, trial).await?.0)
}

/// The same, with what stood there when it was tried out, also where it would have failed.
pub(crate) async fn tried(parts: &Parts, trial: &Trial<'_>) -> Result<(Preview, Vec<Seen>), Failure> {
    let touched = preimage::touched_with(parts, trial.space, trial.entry, trial.params);
    if let Some(why) = cannot(trial.entry, &touched) {
        return Ok((Preview::Unavailable(why), Vec::new()));
    }
    let tool = &trial.entry.spec().tool_id;
    let _permit = acquire(&parts.control.previews, trial.subject, tool).await?;
    Ok(match rehearsed(parts, trial, &touched).await {
        Ok(Rehearsal {
            failed: Some(failure),
            before,
            ..
        }) => (Preview::WouldFail(failure), before),
        Ok(rehearsal) => {
            let before = rehearsal.before.clone();
            match shown(parts, trial, &touched, rehearsal).await {
                Ok(shown) => (Preview::Shown(shown), before),
                Err(failure) => (Preview::Unavailable(failure.message), Vec::new()),
            }
        }
        Err(failure) => {
            let why = format!("there is no preview: {}", failure.message);
            (Preview::Unavailable(why), Vec::new())
        }
    })
}

/// Waits for a place, but not for long: a preview takes a sandbox and seconds.
async fn acquire(queue: &FairQueue, subject: &SubjectId, tool: &ToolId) -> Result<Permit, Failure> {
    match tokio::time::timeout(PREVIEW_WAIT_MAX, queue.enqueue(subject, tool, None)).await {
        Ok(Ok(permit)) => Ok(permit),
        Ok(Err(_)) | Err(_) => {
            let message = "too many actions are being tried out at once; nothing was done";
            Err(Failure::new(Code::Overloaded, Phase::Gate, message).retry_after(OVERLOAD_RETRY))
        }
    }
}

async fn rehearsed(parts: &Parts, trial: &Trial<'_>, touched: &[Touch]) -> Result<Rehearsal, Failure> {
    let along = preimage::sent_along(parts, trial.space, trial.entry, trial.params, touched).await?;
    let spec = trial.entry.spec();
    let timeout = Duration::from_millis(spec.timeout_ms).min(parts.settings.preview_time_max);
    let call = ToolCall {
        tool_id: spec.tool_id.clone(),
        mode: CallMode::Preview,
        space_id: trial.space.clone(),
        params: trial.params.clone(),
        timeout_ms: 0,
        trace_id: trial.trace_id.clone(),
        before: None,
        restore: along.restore,
        expect: Vec::new(),
    };
    let confinement = (timeout, trial.high_isolation, Narrowing::read_only());
    let call = confined(parts, trial.entry, call, confinement)?;
    let contents = along.contents.as_ref();
    let beside = Beside {
        inward: contents.map(|(shelf, names)| streams::inward(parts, *shelf, trial.space, names)),
        outward: None,
    };
    let reply = parts.sandbox.ask_with(call, beside).await;
    let answer = match reply {
        Ok(reply) => reply.settle().await,
        Err(error) => return Err(error.failure()),
    };
    match answer.ending {
        Ending::Replied(bytes) => read(&bytes),
        Ending::Killed { code, detail, .. } => Err(Failure::new(code, Phase::Dispatch, detail)),
    }
}

/// A tool's words, no longer than a failure's may be.
fn bounded(failure: Failure) -> Failure {
    Failure::new(failure.code, Phase::Dispatch, failure.message)
}

/// Reads what the child says, which is not to be trusted.
fn read(bytes: &[u8]) -> Result<Rehearsal, Failure> {
    let invalid = || Failure::new(Code::ResultInvalid, Phase::Capture, "the answer is not a preview");
    match json::parse_reply::<ToolReply>(bytes, limits::TOOL_REPLY_BYTES_MAX) {
        Ok(ToolReply::Rehearsed(mut rehearsal)) => {
            rehearsal.failed = rehearsal.failed.map(bounded);
            Ok(rehearsal)
        }
        Ok(ToolReply::Failed(failure)) => Err(bounded(failure)),
        Ok(ToolReply::Done(_) | ToolReply::Probed(_)) | Err(_) => Err(invalid()),
    }
}

/// What would change, by the child's word for after and by our own eyes for before.
async fn shown(
    parts: &Parts,
    trial: &Trial<'_>,
    touched: &[Touch],
    rehearsal: Rehearsal,
) -> Result<Shown, Failure> {
    let paths = touched.iter().map(|touch| touch.path.clone()).collect();
    let looked = preimage::look(parts, trial.space, paths, PREVIEW_DIFF_BYTES_MAX * 8).await?;
    let same = looked.iter().all(|ours| {
        let like = |all: &[Seen]| all.iter().any(|seen| seen.is_like(&ours.seen));
        trial.stands.is_none_or(like) && like(&rehearsal.before)
    });
    if !same {
        let why = "the files were changed while they were looked at; ask again";
        return Err(Failure::new(Code::StateChanged, Phase::Dispatch, why));
    }
    let before: Vec<Seen> = looked.iter().map(|ours| ours.seen.clone()).collect();
    let after = rehearsal.after.iter().map(|now| Looked {
        seen: Seen::new(now.path.clone(), now.standing.clone()),
        content: None,
    });
    let after: Vec<Looked> = after.collect();
    let mut changes = changes::compare(parts, &before, &after, touched);
    for touch in touched.iter().filter(|touch| touch.filled) {
        let beneath = after.iter().map(|looked| looked.seen.clone());
        changes::fill(parts, touch, beneath, &mut changes);
    }
    let known = trial.stands.unwrap_or(&rehearsal.before);
    for change in changes.iter_mut().filter(|change| change.moved_to.is_some()) {
        let seen = known.iter().find(|seen| seen.path == change.path);
        let inside = match seen.and_then(|seen| seen.inside.clone()) {
            Some(inside) => inside,
            // The child knows what an undo moves by the receipt only.
            None => preimage::inside(parts, trial.space, &change.path).await,
        };
        change.inside = preimage::keyed_inside(parts, &inside);
    }
    let digest = digest(&changes);
    let predicted = count(&changes);
    let cut = changes.len() > PREVIEW_CHANGES_MAX;
    changes.truncate(PREVIEW_CHANGES_MAX);
    Ok(Shown {
        predicted,
        changes: listed(parts, changes, looked, rehearsal.after).await?,
        cut,
        digest,
    })
}

/// The changes with what is different in texts. Finding that out takes a thread for a while, which belongs to others, too.
async fn listed(
    parts: &Parts,
    changes: Vec<PathChange>,
    looked: Vec<Looked>,
    after: Vec<Rehearsed>,
) -> Result<Vec<Change>, Failure> {
    let clock: Arc<dyn Clock> = parts.clock.clone();
    let listing = tokio::task::spawn_blocking(move || {
        let mut room = diff::Room::new(&*clock);
        let with_diff = |change: PathChange| {
            let old = looked.iter().find(|ours| ours.seen.path == change.path);
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

/// What is not known to be as it was shown, although nothing else is known either.
fn unseen(effects: &Effects) -> Option<&'static str> {
    match effects {
        Effects::Observed(observed) => observed
            .changes
            .iter()
            .any(|change| change.moved_to.is_some() && change.inside.is_none())
            .then_some("what is in the folder that was moved was too much to be compared"),
        Effects::None | Effects::Unobserved | Effects::Possible => None,
    }
}

/// Over every path with what stands there before and after.
fn digest(changes: &[PathChange]) -> effectd_contracts::Digest {
    // Plain data with text keys, for which serde_json has no failure.
    canonical::digest(&serde_json::to_value(changes).unwrap_or_default())
}

fn count(changes: &[PathChange]) -> Predicted {
    let mut predicted = Predicted {
        files: changes.len() as u64,
        ..Predicted::default()
    };
    for change in changes {
        match (&change.before, &change.after) {
            (_, Standing::File(state)) => predicted.bytes = predicted.bytes.saturating_add(state.bytes),
            (Standing::Absent, _) | (_, Standing::Folder | Standing::Other) => {}
            (Standing::File(_) | Standing::Folder | Standing::Other, Standing::Absent) => {
                let lives_on = change.moved_to.is_some() || goes_on(change, changes);
                predicted.deletes += u64::from(!lives_on);
            }
        }
    }
    predicted
}

/// Whether the content that is gone from one path has come to stand at another.
fn goes_on(gone: &PathChange, changes: &[PathChange]) -> bool {
    let Standing::File(was) = &gone.before else {
        return false;
    };
    changes.iter().any(|other| match (&other.before, &other.after) {
        (before, Standing::File(is)) => {
            is.digest == was.digest && other.path != gone.path && before != &other.after
        }
        (_, Standing::Absent | Standing::Folder | Standing::Other) => false,
    })
}

impl Preview {
    /// What would change, in numbers; `None` if nobody can tell.
    pub fn predicted(&self) -> Option<Predicted> {
        match self {
            Self::Shown(shown) => Some(shown.predicted),
            Self::WouldFail(_) => Some(Predicted::default()),
            Self::Unavailable(_) => None,
        }
    }

    /// Whether what happened is what was shown.
    pub(crate) fn compared(&self, effects: &Effects) -> PreviewRecord {
        let record = |verdict, why: Option<&str>| PreviewRecord {
            verdict,
            why: why.map(str::to_owned),
            predicted: self.predicted(),
        };
        let happened = match effects {
            Effects::Observed(observed) => Some(digest(&observed.changes)),
            Effects::None => Some(digest(&[])),
            Effects::Unobserved | Effects::Possible => None,
        };
        match (self, happened) {
            (Self::Unavailable(why), _) => record(PreviewVerdict::NotPreviewed, Some(why)),
            (_, None) => record(
                PreviewVerdict::NotPreviewed,
                Some("nobody saw what has really changed"),
            ),
            (Self::Shown(shown), Some(happened)) if shown.digest == happened => {
                record(PreviewVerdict::Matched, unseen(effects))
            }
            (Self::WouldFail(_), Some(happened)) if happened == digest(&[]) => {
                record(PreviewVerdict::Matched, None)
            }
            (Self::Shown(_), Some(_)) => record(
                PreviewVerdict::Differed,
                Some("what has changed is not what was shown before"),
            ),
            (Self::WouldFail(_), Some(_)) => record(
                PreviewVerdict::Differed,
                Some("it was to fail, and has changed something"),
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::collections::HashMap;

    use super::*;
    use crate::control::fair_queue::Rules;

    #[tokio::test(start_paused = true)]
    async fn one_subject_leaves_turns_for_the_others_and_who_waits_too_long_is_told_when_to_come_back() {
        let queue = FairQueue::new(Rules {
            places: 4,
            subject_max: 2,
            tool_max: 4,
            waiting_max: usize::MAX,
            weights: HashMap::new(),
        });
        let tool = "t.x".parse().unwrap();
        let (one, other) = (
            "agent://one@a".parse().unwrap(),
            "agent://other@a".parse().unwrap(),
        );
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
