//! Undeclared effects: whether a tool has done more than it declares, and what happens then.
//!
//! The kernel confines a call to folders, not to the paths in them, and does not keep it from changing the permissions of files
//! that it can open. So the space is scanned before and after a call. Every undeclared change in those folders, or of permissions
//! anywhere, counts against the tool: it is disabled until an operator reviews it, an event says so, and the receipt names
//! the changes. What the kernel refused, such as the network, counts as well. A write to another folder fails and changes
//! nothing, so it is not noticed.
//!
//! A change that another active call declares counts against nobody. If a person changes files during a call, in the folders that
//! the call may write to, the tool is suspected wrongly; scans cannot tell the two apart.

use std::collections::BTreeSet;

use effectd_bus::Store;
use effectd_contracts::{
    Code, DenialSource, Effects, Failure, Observed, Phase, Scan, SideEffect, SpaceId, Timestamp,
    ToolQuarantinedData, ToolSpec, Touch, Undeclared, UndeclaredKind,
};
use effectd_sandbox::limits::NARROWING_PATHS_MAX;

use super::active_calls::{ActiveCall, ActiveCalls, Declared};
use super::snapshot::Prepared;
use super::{WHOLE_SPACE, is_beneath};
use crate::action::{Action, Claimed};
use crate::claims::resources;
use crate::control::switches::Switches;
use crate::limits::UNDECLARED_NAMED_MAX;
use crate::metrics::Metrics;
use crate::registry::{RegisteredTool, Source};
use crate::services::Services;
use crate::services::files::Files;
use crate::services::signer::Identity;
use crate::settings::Settings;

#[derive(Debug)]
pub(crate) struct Watch<'w> {
    call: Option<ActiveCall<'w>>,
    before: Option<Before>,
}

/// The scan before a call.
#[derive(Debug)]
struct Before {
    scan: Scan,
    scanned: Vec<String>,
    /// Where the kernel lets the call write. Elsewhere the call can only change permissions.
    writable: Vec<String>,
}

/// Most entries that are scanned for a tool.
fn entries_max(settings: &Settings, tool: &RegisteredTool) -> usize {
    match tool.source() {
        Source::Core | Source::Db => settings.scan_core_entries_max,
        Source::Provider | Source::Plugin | Source::Connector => settings.scan_entries_max,
    }
}

/// The topmost folders of the paths that a call touches.
fn folders(touched: &[Touch]) -> Vec<String> {
    let folders = touched.iter().filter_map(|touch| touch.path.rsplit_once('/'));
    topmost(folders.map(|(folder, _)| folder).collect())
}

fn topmost(folders: Vec<&str>) -> Vec<String> {
    let mut topmost = resources::topmost(folders);
    topmost.dedup();
    topmost.into_iter().map(str::to_owned).collect()
}

/// Registers an action as active until the result is dropped, so that no other tool is blamed for its changes: also while no tool
/// is watched, since one may join the registry before the action ends.
pub(crate) fn enter<'c>(
    services: &Services,
    calls: &'c ActiveCalls,
    action: &Action<Claimed>,
    prepared: &Prepared,
) -> Option<ActiveCall<'c>> {
    // A space without a root has no files to change.
    let root = services.files.root(&action.request.space_id).ok()?;
    Some(calls.enter(root.path().to_owned(), declared(&services.files, action, prepared)))
}

fn declared(files: &Files, action: &Action<Claimed>, prepared: &Prepared) -> Declared {
    if action.state.gated().is_reading_command() {
        // It can change nothing, so it explains no change that is found while it runs.
        return Declared::default();
    }
    let (spec, trace) = (action.state.gated().tool().spec(), action.ticket.trace_id.as_str());
    Declared::of(&*files.inspector, &prepared.touched, spec, trace)
}

/// Scans before a call that is about to start.
pub(crate) async fn watch<'c>(
    services: &Services,
    calls: &'c ActiveCalls,
    action: &Action<Claimed>,
    prepared: &Prepared,
) -> Watch<'c> {
    let Some(call) = enter(services, calls, action, prepared) else {
        return Watch { call: None, before: None };
    };
    let (tool, space) = (action.state.gated().tool(), &action.request.space_id);
    let max = entries_max(&services.settings, tool);
    // A call that may change everything cannot have undeclared effects; nor can a named command or a tool in the scope of a plan,
    // whose space is mounted read-only but for that.
    let changes_all = (prepared.touched.is_empty() && tool.spec().changes_files())
        || action.state.gated().is_confined_to_paths();
    // Who speaks with a server sees no file of the space, and its program at most one folder, which it may change.
    let is_connector = tool.definition().upstream.is_some();
    let before = if max == 0 || changes_all || is_connector {
        None
    } else {
        let before = first_scan(&services.files, space, folders(&prepared.touched), max).await;
        if before.is_none() {
            services.metrics.unwatched_calls.inc();
        }
        before
    };
    Watch { call: Some(call), before }
}

/// Scans the whole space or, if that has too many entries, the folders that the kernel lets the call write to. A folder that does
/// not exist yet is replaced by the nearest one above it.
async fn first_scan(files: &Files, space: &SpaceId, folders: Vec<String>, max: usize) -> Option<Before> {
    let nearest = files.blocking(space, move |inspector, root| inspector.nearest(root, &folders));
    let nearest = nearest.await.ok()?;
    let mut writable = topmost(nearest.iter().map(String::as_str).collect());
    if writable.len() > NARROWING_PATHS_MAX {
        // The kernel confines a call to at most that many folders; with more, to the whole space.
        writable = vec![WHOLE_SPACE.to_owned()];
    }
    for scanned in [vec![WHOLE_SPACE.to_owned()], writable.clone()] {
        if !scanned.is_empty()
            && let Some(scan) = scan(files, space, &scanned, max).await
            && scan.complete
        {
            return Some(Before { scan, scanned, writable });
        }
    }
    None
}

async fn scan(files: &Files, space: &SpaceId, folders: &[String], max: usize) -> Option<Scan> {
    let folders = folders.to_vec();
    let scanning = files.blocking(space, move |inspector, root| inspector.scan(root, &folders, max));
    scanning.await.ok()
}

/// What a tool did without declaring it.
#[derive(Debug)]
pub(crate) struct UndeclaredEffects {
    /// The first changes, at most [`UNDECLARED_NAMED_MAX`].
    pub(crate) undeclared: Vec<Undeclared>,
    /// The number of all changes.
    count: usize,
    /// What the tool tried and the kernel refused.
    tried: Option<&'static str>,
}

impl Watch<'_> {
    /// The undeclared effects of the call, after none of its processes can run any more.
    pub(crate) async fn judge(
        self,
        files: &Files,
        settings: &Settings,
        metrics: &Metrics,
        action: &Action<Claimed>,
        denials: &[effectd_contracts::Denial],
    ) -> Option<UndeclaredEffects> {
        let (tool, space) = (action.state.gated().tool(), &action.request.space_id);
        let tried = tried(tool.spec(), denials);
        let mut found = Vec::new();
        if let (Some(call), Some(before)) = (&self.call, &self.before) {
            // A call that made more entries than this is judged by those that were scanned.
            let max = entries_max(settings, tool).saturating_mul(2);
            match scan(files, space, &before.scanned, max).await {
                Some(after) => {
                    found = compare(&before.scan, &after);
                    if !after.complete {
                        // There are more entries, or more that cannot be read, than before the call.
                        found.extend(gone(files, space, &before.scan, &after).await);
                        metrics.unwatched_calls.inc();
                    }
                }
                None => metrics.unwatched_calls.inc(),
            }
            // A file that is replaced or removed loses a link, which marks its other names as changed.
            let shared: BTreeSet<_> = before
                .scan
                .marks
                .iter()
                .filter(|(path, _)| call.explains(path, UndeclaredKind::Changed))
                .map(|(_, mark)| mark.identity)
                .collect();
            let is_shared = |path: &str, what: UndeclaredKind| {
                let mark = before.scan.marks.get(path);
                what == UndeclaredKind::Changed && mark.is_some_and(|mark| shared.contains(&mark.identity))
            };
            found.retain(|(path, what)| {
                before.counts(path, *what) && !call.explains(path, *what) && !is_shared(path, *what)
            });
        }
        if found.is_empty() && tried.is_none() {
            return None;
        }
        let count = found.len();
        let first = found.into_iter().take(UNDECLARED_NAMED_MAX);
        let undeclared =
            first.map(|(path, what)| Undeclared { path: named(&files.identity, path, what), what });
        Some(UndeclaredEffects { undeclared: undeclared.collect(), count, tried })
    }
}

impl Before {
    /// Whether the call was able to make this change.
    fn counts(&self, path: &str, what: UndeclaredKind) -> bool {
        what == UndeclaredKind::Permissions || self.writable.iter().any(|folder| is_beneath(path, folder))
    }
}

/// The path as the receipt shows it: a name that the tool chose may contain a secret, a name from before the call cannot.
fn named(identity: &Identity, path: String, what: UndeclaredKind) -> String {
    match what {
        UndeclaredKind::Made => {
            let digest = identity.digest(&serde_json::Value::String(path));
            format!("hmac-sha256:{digest}")
        }
        UndeclaredKind::Removed | UndeclaredKind::Changed | UndeclaredKind::Permissions => path,
    }
}

/// What has changed between two scans.
fn compare(before: &Scan, after: &Scan) -> Vec<(String, UndeclaredKind)> {
    let mut found = Vec::new();
    for (path, was) in &before.marks {
        let what = match after.marks.get(path) {
            None if after.complete => UndeclaredKind::Removed,
            None => continue,
            Some(is) if is.identity != was.identity => UndeclaredKind::Changed,
            Some(is) if is.mode != was.mode => UndeclaredKind::Permissions,
            // The modification time of a folder changes with its entries, which are compared themselves.
            Some(is) if is.is_folder => continue,
            Some(is) if is != was => UndeclaredKind::Changed,
            Some(_) => continue,
        };
        found.push((path.clone(), what));
    }
    let made = after.marks.keys().filter(|path| !before.marks.contains_key(*path));
    found.extend(made.map(|path| (path.clone(), UndeclaredKind::Made)));
    found
}

/// The removed paths, checked one by one: the incomplete scan may have missed paths that still exist.
async fn gone(files: &Files, space: &SpaceId, before: &Scan, after: &Scan) -> Vec<(String, UndeclaredKind)> {
    let missing = before.marks.keys().filter(|path| !after.marks.contains_key(*path));
    let missing: Vec<String> = missing.cloned().collect();
    let gone = files.blocking(space, move |inspector, root| inspector.gone(root, missing));
    let gone = gone.await.unwrap_or_default();
    gone.into_iter().map(|path| (path, UndeclaredKind::Removed)).collect()
}

/// What the kernel refused and the tool does not declare. A tool that runs programs is exempt: they may try more than they need.
fn tried(spec: &ToolSpec, denials: &[effectd_contracts::Denial]) -> Option<&'static str> {
    const STARTING: [&str; 6] = ["fork", "vfork", "clone", "clone3", "execve", "execveat"];
    if spec.side_effects.contains(&SideEffect::ProcessExec) {
        return None;
    }
    denials.iter().filter(|one| one.source == DenialSource::Kernel).find_map(|one| {
        if one.code == Code::NetworkDenied && !spec.side_effects.contains(&SideEffect::NetworkCall) {
            return Some("it tried to use the network");
        }
        let starts = one.code == Code::ProcessLimit || STARTING.contains(&one.what.as_str());
        starts.then_some("it tried to start another process")
    })
}

impl UndeclaredEffects {
    fn reason(&self) -> String {
        let counted = |what: UndeclaredKind| {
            let count = self.undeclared.iter().filter(|one| one.what == what).count();
            (count > 0).then(|| format!("{count} {}", what.as_str()))
        };
        let changed: Vec<_> = UndeclaredKind::ALL.iter().filter_map(|what| counted(*what)).collect();
        let more = self.count - self.undeclared.len();
        let mut said = Vec::new();
        if !changed.is_empty() {
            let more = if more > 0 { format!(" and {more} more") } else { String::new() };
            said.push(format!("undeclared files and folders: {}{more}", changed.join(", ")));
        }
        said.extend(self.tried.map(str::to_owned));
        said.join("; ")
    }

    /// The failure that ends the action: nobody should rely on the reply of such a tool.
    pub(crate) fn failure(&self) -> Failure {
        let why = format!(
            "the tool did more than it declares ({}); it is disabled until an operator reviews it",
            self.reason()
        );
        Failure::new(Code::EffectsUndeclared, Phase::Capture, why)
    }

    /// Adds the undeclared effects to the failure that ended the action.
    pub(crate) fn added_to(&self, mut failure: Failure) -> Failure {
        let more = format!(
            "; the tool did more than it declares ({}), and is disabled until an operator reviews it",
            self.reason()
        );
        failure.message.push_str(&more);
        failure.retryable = false;
        failure
    }

    /// The observed effects, with the undeclared ones added.
    pub(crate) fn effects(&self, seen: Effects) -> Effects {
        let mut observed = match seen {
            Effects::Observed(observed) => observed,
            // No change is known, but the tool tried something that it does not declare.
            Effects::None | Effects::Unobserved | Effects::Possible if self.undeclared.is_empty() => {
                return Effects::Possible;
            }
            Effects::None | Effects::Unobserved | Effects::Possible => Observed {
                changes: Vec::new(),
                undoable: false,
                undeclared: Vec::new(),
                unchanged: Vec::new(),
                incomplete: false,
            },
        };
        observed.undeclared.clone_from(&self.undeclared);
        Effects::Observed(observed)
    }

    /// Switches the tool off, durably and with the reason, and publishes that.
    pub(crate) async fn quarantine(&self, store: &dyn Store, now: Timestamp, action: &Action<Claimed>) {
        let tool = &action.state.gated().tool().spec().tool_id;
        let reason = self.reason();
        tracing::error!(parent: &action.ticket.span, reason, "a tool did more than it declares and was disabled");
        let news = ToolQuarantinedData {
            tool_id: tool.clone(),
            action_id: action.ticket.action_id.clone(),
            reason,
            since: now,
        };
        let switches = Switches::new(store);
        if let Err(error) = switches.quarantine(&news, &action.request.space_id).await {
            tracing::error!(parent: &action.ticket.span, %error, "a tool that did more than it declares could not be disabled");
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use effectd_contracts::Mark;

    fn mark(mode: u32, changed_ns: i128, number: u64) -> Mark {
        Mark { is_folder: mode & 0o170_000 == 0o040_000, mode, bytes: 1, changed_ns, identity: (1, number) }
    }

    fn scan(marks: &[(&str, Mark)]) -> Scan {
        Scan { marks: marks.iter().map(|(path, mark)| ((*path).to_owned(), *mark)).collect(), complete: true }
    }

    #[test]
    fn every_change_is_seen_and_content_does_not_change_its_folder() {
        let (file, folder) = (0o100_644, 0o040_755);
        let before = scan(&[
            ("a", mark(file, 1, 1)),
            ("b", mark(file, 1, 2)),
            ("c", mark(file, 1, 3)),
            ("d", mark(folder, 1, 4)),
            ("e", mark(file, 1, 5)),
            ("f", mark(folder, 1, 6)),
        ]);
        let after = scan(&[
            ("a", mark(file, 1, 1)),
            ("b", mark(file, 2, 2)),
            ("c", mark(0o100_755, 2, 3)),
            ("d", mark(folder, 9, 4)),
            ("f", mark(folder, 1, 7)),
            ("g", mark(file, 2, 8)),
        ]);
        let found = compare(&before, &after);
        let kinds: Vec<_> = found.iter().map(|(path, what)| (path.as_str(), *what)).collect();
        assert_eq!(
            kinds,
            [
                ("b", UndeclaredKind::Changed),
                ("c", UndeclaredKind::Permissions),
                ("e", UndeclaredKind::Removed),
                ("f", UndeclaredKind::Changed),
                ("g", UndeclaredKind::Made),
            ]
        );
    }
}
