//! Rollback: restores the pre-images of an action's changes, and compares. It is part of the action that was permitted, so it
//! passes no gate; nobody's word for it counts but the contents of the files.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use effectd_bus::BlobKind;
use effectd_contracts::{
    ActionId, CallMode, Code, Effects, Failure, Observed, PathChange, PathSnapshot, Phase, SpaceId, ToolCall,
    ToolId, ToolReply, TraceId, UNDO_TOOL, json, limits, quoted,
};
use effectd_sandbox::limits::NARROWING_PATHS_MAX;
use effectd_sandbox::{Answer, Call, Ending, Limits, Narrowing, SandboxError, SideChannel};
use serde_json::Map;
use tokio::sync::{mpsc, oneshot};

use super::changes::compare;
use super::snapshot::keyed;
use super::{streams, undo};
use crate::services::Services;
use crate::services::running::Alive;

/// Whose changes are rolled back.
#[derive(Clone, Copy)]
pub(crate) struct Whose<'a> {
    pub(crate) action: &'a ActionId,
    pub(crate) space: &'a SpaceId,
    pub(crate) trace: &'a TraceId,
    /// The mark of the action's children, if the caller holds it.
    pub(crate) alive: Option<&'a Arc<Alive>>,
}

/// What a rollback came to.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct RolledBack {
    /// The paths that are not as they were before the action.
    pub(crate) not_restored: BTreeSet<String>,
    /// Why, as far as it is known.
    pub(crate) why: Option<String>,
}

impl RolledBack {
    pub(crate) fn is_complete(&self) -> bool {
        self.not_restored.is_empty() && self.why.is_none()
    }

    /// What was not restored, for people.
    pub(crate) fn text(&self) -> String {
        let paths: Vec<String> = self.not_restored.iter().take(NAMED_MAX).map(quoted).collect();
        let more = match self.not_restored.len().saturating_sub(NAMED_MAX) {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        let paths = match paths.is_empty() {
            true => String::new(),
            false => format!("; not restored: {}{more}", paths.join(", ")),
        };
        let why = self.why.as_deref().map(|why| format!(" ({why})")).unwrap_or_default();
        format!("the rollback did not restore everything{why}{paths}")
    }

    /// The failure of an action that could not be rolled back, after the failure that made that necessary.
    pub(crate) fn failure(&self, after: &Failure) -> Failure {
        let message = format!("{}; it ended with {after}", self.text());
        Failure::new(Code::RollbackFailed, Phase::Settle, message)
            .unless("compare the paths with what they should be, and restore them by hand")
    }
}

/// Most paths that a failure names; the receipt has all of them.
const NAMED_MAX: usize = 8;

/// Restores what changed, as far as nobody else has changed it since, and compares every path with its pre-image. Works for an action
/// that runs as well as for one that has ended. `None` if the runtime stops.
pub(crate) async fn roll_back(
    services: &Services,
    whose: Whose<'_>,
    effects: &Effects,
    time: Duration,
) -> Option<RolledBack> {
    let observed = match effects {
        Effects::None => return Some(RolledBack::default()),
        Effects::Observed(observed) => observed,
        Effects::Unobserved | Effects::Possible => {
            let why = Some("it is not known what changed".to_owned());
            return Some(RolledBack { why, ..RolledBack::default() });
        }
    };
    let mut why = match restore(services, whose, observed, time).await {
        Ok(()) => None,
        Err(Some(failure)) => Some(failure.to_string()),
        Err(None) => return None,
    };
    let differing = differing(services, whose.space, observed).await;
    let not_restored = match differing {
        Ok(paths) => paths,
        Err(failure) => {
            why = why.or(Some(failure.to_string()));
            observed.changes.iter().map(|change| change.path.clone()).collect()
        }
    };
    if observed.incomplete {
        why = why.or(Some("more has changed than can be listed".to_owned()));
    } else if not_restored.is_empty() {
        why = None;
    }
    Some(RolledBack { not_restored, why })
}

/// [`roll_back`] to a snapshot, whoever has changed its paths since.
pub(crate) async fn to_snapshot(
    services: &Services,
    whose: Whose<'_>,
    before: &[PathSnapshot],
    time: Duration,
) -> Option<RolledBack> {
    let files = &services.files;
    let paths = before.iter().map(|seen| seen.path.clone()).collect();
    let changes = match files.inspect(whose.space, paths, 0).await {
        Ok(now) => compare(&files.identity, before, &now, &[]),
        Err(failure) => return Some(RolledBack { why: Some(failure.to_string()), ..RolledBack::default() }),
    };
    let (undeclared, unchanged) = (Vec::new(), Vec::new());
    let observed = Observed { changes, undoable: true, undeclared, unchanged, incomplete: false };
    roll_back(services, whose, &Effects::Observed(observed), time).await
}

/// The paths that are not as they were before.
async fn differing(
    services: &Services,
    space: &SpaceId,
    observed: &Observed,
) -> Result<BTreeSet<String>, Failure> {
    let files = &services.files;
    let paths = observed.changes.iter().map(|change| change.path.clone()).collect();
    let now = files.inspect(space, paths, 0).await?;
    let is_restored = |change: &PathChange| {
        let is = now.iter().find(|inspected| inspected.seen.path == change.path);
        is.is_some_and(|is| keyed(&files.identity, &is.seen.standing) == change.before)
    };
    let differ = observed.changes.iter().filter(|change| !is_restored(change));
    Ok(differ.map(|change| change.path.clone()).collect())
}

/// Lets the undo tool restore the pre-images, in a child that may write where they belong. The error is `None` if the runtime stops.
async fn restore(
    services: &Services,
    whose: Whose<'_>,
    observed: &Observed,
    time: Duration,
) -> Result<(), Option<Failure>> {
    let (files, space) = (&services.files, whose.space);
    let paths = observed.changes.iter().map(|change| change.path.clone()).collect();
    let now = files.inspect(space, paths, 0).await?;
    let extras = undo::plan_of(files, space, observed, &now, undo::Others::Skipped).await?;
    if extras.restore.iter().all(|one| one.now == one.then) {
        return Ok(());
    }
    let internal =
        |error: &dyn std::fmt::Display| Failure::new(Code::Internal, Phase::Settle, error.to_string());
    let tool_id = ToolId::new(UNDO_TOOL).map_err(|error| internal(&error))?;
    let registry = services.registry();
    let tool = registry.get(&tool_id).ok_or_else(|| internal(&"the tool that restores is not registered"))?;
    let folders: BTreeSet<PathBuf> = extras.restore.iter().filter_map(|one| folder(&one.path)).collect();
    let whole = folders.len() > NARROWING_PATHS_MAX;
    let writable = if whole { vec![PathBuf::new()] } else { folders.into_iter().collect() };
    let call = ToolCall {
        tool_id: tool_id.clone(),
        mode: CallMode::Run,
        space_id: space.clone(),
        // The tool restores what the call says, and looks at no receipt.
        params: Map::from_iter([("receipt_id".to_owned(), whose.action.as_str().into())]),
        timeout_ms: u64::try_from(time.as_millis()).unwrap_or(u64::MAX),
        trace_id: whose.trace.clone(),
        before: None,
        restore: extras.restore,
        expect: Vec::new(),
        mark: None,
        undoes: None,
        upstream: None,
        failed_checks: Vec::new(),
    };
    let call = Call {
        tool_id,
        profile: tool.spec().effective_profile(),
        high_isolation: false,
        space_root: files.root(space)?,
        request: serde_json::to_vec(&call).map_err(|error| internal(&error))?,
        limits: Limits::default(),
        timeout: time,
        trace_id: whose.trace.clone(),
        narrowing: Narrowing { writable: Some(writable), ..Narrowing::default() },
        view: None,
    };
    let contents = extras.contents.as_ref();
    let inward =
        contents.map(|(kind, names): &(BlobKind, _)| streams::inward(&files.blobs, *kind, space, names));
    match ask(services, (whose.action, whose.alive), call, inward).await?.ending {
        Ending::Replied(bytes) => match json::parse_reply(&bytes, limits::TOOL_REPLY_BYTES_MAX) {
            Ok(ToolReply::Done(_)) => Ok(()),
            Ok(ToolReply::Failed(failure)) => Err(Some(failure)),
            Ok(ToolReply::Probed(_) | ToolReply::Previewed(_) | ToolReply::Verified(_)) | Err(_) => {
                Err(Some(internal(&"the child's answer is no result of a restore")))
            }
        },
        Ending::Killed { code, detail, .. } => Err(Some(Failure::new(code, Phase::Settle, detail))),
    }
}

/// The folder of a path in the space.
fn folder(path: &str) -> Option<PathBuf> {
    let path = PathBuf::from(path.strip_prefix("workspace/")?);
    Some(path.parent().map(PathBuf::from).unwrap_or_default())
}

/// Makes a call beside the run of an action's own tool: a check, or what restores. A task of its own waits for the child, so that its
/// death is known even if this worker dies first. The error is `None` if the runtime stops.
pub(crate) async fn ask(
    services: &Services,
    (action, alive): (&ActionId, Option<&Arc<Alive>>),
    call: Call,
    inward: Option<mpsc::Receiver<Vec<u8>>>,
) -> Result<Answer, Option<Failure>> {
    let enter = || services.children.running.enter(action).map(Arc::new);
    let Some(alive) = alive.cloned().or_else(enter) else {
        let message = "an earlier child of this action is still alive";
        return Err(Some(Failure::new(Code::SandboxFailed, Phase::Sandbox, message)));
    };
    let (sandbox, mut halt) = (services.children.sandbox.clone(), services.children.halt.subscribe());
    let (send, answer) = oneshot::channel();
    tokio::spawn(async move {
        let call =
            async { Ok(sandbox.ask_with(call, SideChannel { inward, outward: None }).await?.reap().await) };
        // Dropping the call kills its processes.
        let answer: Option<Result<Answer, SandboxError>> = tokio::select! {
            biased;
            _ = halt.wait_for(|halted| *halted) => None,
            answer = call => Some(answer),
        };
        drop(alive);
        if let Some(answer) = answer {
            drop(send.send(answer));
        }
    });
    match answer.await {
        Ok(Ok(answer)) => Ok(answer),
        Ok(Err(SandboxError::Closed)) | Err(_) => Err(None),
        Ok(Err(error)) => Err(Some(error.failure())),
    }
}
