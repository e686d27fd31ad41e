//! Declared against observed: whether a tool has done more than it says it does, and what follows if it has.
//!
//! What a call may write to is more than what it says it changes: the kernel can confine it to folders, not to names in
//! them, and it does not confine at all who changes permissions of what he can open. So the space is looked at before and
//! after, and whatever has changed in those folders, or has got other permissions anywhere, without having been declared is
//! held against the tool: it is switched off until an operator has looked, everybody who listens is told, and the receipt
//! names what it was. What the kernel refused outright, such as the network, counts as well. Of a write elsewhere, which the
//! kernel refuses with an error, nothing is seen: it changes nothing, and only the tool itself knows of it.
//!
//! Changes that another action at work in the same space may have made are not held against anybody, and neither is what
//! was changed before the call began. Should a person change files in the very moment of a call, beneath the very folders
//! that the call may write to, the tool is suspected wrongly; that is the price of seeing.

use std::collections::{BTreeMap, BTreeSet};

use effectd_contracts::{
    Code, DenialSource, Effects, Failure, Observed, Phase, SideEffect, SpaceId, ToolNews, ToolSpec, Touch,
    Undeclared, UndeclaredKind,
};

use effectd_sandbox::limits::NARROWING_PATHS_MAX;

use crate::action::{Action, Claimed};
use crate::at_work::{Allowed, Turn, WHOLE_SPACE, is_beneath};
use crate::limits::UNDECLARED_NAMED_MAX;
use crate::parts::Parts;
use crate::preimage::Prepared;
use crate::registry::{Entry, Source};
use crate::switches::Switches;

/// Something in a folder, without its content.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mark {
    pub is_folder: bool,
    /// Its permissions and kind.
    pub mode: u32,
    pub bytes: u64,
    /// When anything about it was last changed, in nanoseconds since 1970.
    pub changed_ns: i128,
    /// Which one it is, whatever it is called.
    pub identity: (u64, u64),
}

/// All that is in some folders, by the paths as requests write them.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Scan {
    pub marks: BTreeMap<String, Mark>,
    /// Whether that is all.
    pub complete: bool,
}

#[derive(Debug)]
pub(crate) struct Watch<'w> {
    turn: Option<Turn<'w>>,
    before: Option<Before>,
}

/// What there was before a call.
#[derive(Debug)]
struct Before {
    scan: Scan,
    looked_at: Vec<String>,
    /// Where the kernel lets it write. Elsewhere it can change permissions, and nothing else.
    writable: Vec<String>,
}

/// How much of what a tool may write to is looked at.
fn entries_max(parts: &Parts, entry: &Entry) -> usize {
    match entry.source() {
        Source::Core => parts.settings.scan_core_entries_max,
        Source::Provider | Source::Plugin | Source::Connector => parts.settings.scan_entries_max,
    }
}

/// The folders in which a call can write: those of what it touches.
fn folders(touched: &[Touch]) -> Vec<String> {
    let folders = touched
        .iter()
        .filter_map(|touch| touch.path.rsplit_once('/').map(|(folder, _)| folder.to_owned()));
    topmost(folders.collect())
}

/// Those that lie in none of the others.
fn topmost(mut folders: Vec<String>) -> Vec<String> {
    folders.sort_unstable();
    folders.dedup();
    let all = folders.clone();
    folders.retain(|folder| {
        !all.iter()
            .any(|other| other != folder && is_beneath(folder, other))
    });
    folders
}

/// Says that an action is at work, for as long as this lives, so that what it changes is held against nobody beside it.
pub(crate) fn at_work<'p>(
    parts: &'p Parts,
    action: &Action<Claimed>,
    prepared: &Prepared,
) -> Option<Turn<'p>> {
    let (entry, space) = (action.state.gated().entry(), &action.request.space_id);
    // A space without a root has nothing in it to be changed.
    let root = (parts.space_roots)(space).ok()?;
    parts.overreach_matters().then(|| {
        let trace = action.ticket.trace_id.as_str();
        let allowed = Allowed::of(parts, prepared, entry.spec(), trace);
        parts.at_work.enter(root.path().to_owned(), allowed)
    })
}

pub(crate) async fn watch<'p>(parts: &'p Parts, action: &Action<Claimed>, prepared: &Prepared) -> Watch<'p> {
    let (entry, space) = (action.state.gated().entry(), &action.request.space_id);
    let root = (parts.space_roots)(space).ok();
    let Some(root) = root.filter(|_| parts.overreach_matters()) else {
        return Watch {
            turn: None,
            before: None,
        };
    };
    let trace = action.ticket.trace_id.as_str();
    let allowed = Allowed::of(parts, prepared, entry.spec(), trace);
    let (max, whole) = (entries_max(parts, entry), allowed.whole);
    let turn = parts.at_work.enter(root.path().to_owned(), allowed);
    // What may change everything cannot do more.
    let before = if max == 0 || whole {
        None
    } else {
        let before = first_scan(parts, space, folders(&prepared.touched), max).await;
        if before.is_none() {
            parts.metrics.unwatched_calls.inc();
        }
        before
    };
    Watch {
        turn: Some(turn),
        before,
    }
}

/// What is there before: in the whole space, or, if that is too much, in the folders that the kernel lets it write to. Where
/// one is not there yet, that is the one that it will be made in.
async fn first_scan(parts: &Parts, space: &SpaceId, folders: Vec<String>, max: usize) -> Option<Before> {
    let root = (parts.space_roots)(space).ok()?;
    let witness = parts.witness.clone();
    let looking = tokio::task::spawn_blocking(move || witness.nearest(&root, &folders));
    let mut writable = topmost(looking.await.ok()?.ok()?);
    if writable.len() > NARROWING_PATHS_MAX {
        // The kernel confines it to that many at most, and otherwise to the space.
        writable = vec![WHOLE_SPACE.to_owned()];
    }
    for looked_at in [vec![WHOLE_SPACE.to_owned()], writable.clone()] {
        if !looked_at.is_empty()
            && let Some(scan) = scan(parts, space, &looked_at, max).await
            && scan.complete
        {
            return Some(Before {
                scan,
                looked_at,
                writable,
            });
        }
    }
    None
}

async fn scan(parts: &Parts, space: &SpaceId, folders: &[String], max: usize) -> Option<Scan> {
    let root = (parts.space_roots)(space).ok()?;
    let (witness, folders) = (parts.witness.clone(), folders.to_vec());
    let scanning = tokio::task::spawn_blocking(move || witness.scan(&root, &folders, max));
    scanning.await.ok()?.ok()
}

/// What a tool has done beyond what it declares.
#[derive(Debug)]
pub(crate) struct Overreach {
    /// What was changed, the first of them by name.
    pub(crate) undeclared: Vec<Undeclared>,
    /// How many there were.
    count: usize,
    /// What the kernel refused it.
    tried: Option<&'static str>,
}

impl Watch<'_> {
    /// What the call has done beyond what its tool declares, now that nothing of it can run any more.
    pub(crate) async fn judge(
        self,
        parts: &Parts,
        action: &Action<Claimed>,
        denials: &[effectd_contracts::Denial],
    ) -> Option<Overreach> {
        let (entry, space) = (action.state.gated().entry(), &action.request.space_id);
        let tried = tried(entry.spec(), denials);
        let mut found = Vec::new();
        if let (Some(turn), Some(before)) = (&self.turn, &self.before) {
            // Whoever makes more than can be looked at has made what is seen of it.
            let max = entries_max(parts, entry).saturating_mul(2);
            match scan(parts, space, &before.looked_at, max).await {
                Some(after) => {
                    found = compare(&before.scan, &after);
                    if !after.complete {
                        // There is more than can be looked at, or less that can be read, than before.
                        found.extend(gone(parts, space, &before.scan, &after).await);
                        parts.metrics.unwatched_calls.inc();
                    }
                }
                None => parts.metrics.unwatched_calls.inc(),
            }
            // A file that is replaced or goes takes a link from its other names, and they have changed by that alone.
            let shared: BTreeSet<_> = before
                .scan
                .marks
                .iter()
                .filter(|(path, _)| turn.explains(path, UndeclaredKind::Changed))
                .map(|(_, mark)| mark.identity)
                .collect();
            let is_shared = |path: &str, what: UndeclaredKind| {
                let mark = before.scan.marks.get(path);
                what == UndeclaredKind::Changed && mark.is_some_and(|mark| shared.contains(&mark.identity))
            };
            found.retain(|(path, what)| {
                before.counts(path, *what) && !turn.explains(path, *what) && !is_shared(path, *what)
            });
        }
        if found.is_empty() && tried.is_none() {
            return None;
        }
        let count = found.len();
        let named = found.into_iter().take(UNDECLARED_NAMED_MAX);
        let undeclared = named.map(|(path, what)| Undeclared {
            path: told(parts, path, what),
            what,
        });
        Some(Overreach {
            undeclared: undeclared.collect(),
            count,
            tried,
        })
    }
}

impl Before {
    /// Whether a change can be the tool's own.
    fn counts(&self, path: &str, what: UndeclaredKind) -> bool {
        what == UndeclaredKind::Permissions || self.writable.iter().any(|folder| is_beneath(path, folder))
    }
}

/// A name that the tool has chosen may say what nobody is to read; one that was there before has not been chosen by it.
fn told(parts: &Parts, path: String, what: UndeclaredKind) -> String {
    match what {
        UndeclaredKind::Made => {
            let digest = parts.identity.digest(&serde_json::Value::String(path));
            format!("hmac-sha256:{digest}")
        }
        UndeclaredKind::Removed | UndeclaredKind::Changed | UndeclaredKind::Permissions => path,
    }
}

/// What is not as it was.
fn compare(before: &Scan, after: &Scan) -> Vec<(String, UndeclaredKind)> {
    let mut found = Vec::new();
    for (path, was) in &before.marks {
        let what = match after.marks.get(path) {
            None if after.complete => UndeclaredKind::Removed,
            None => continue,
            Some(is) if is.identity != was.identity => UndeclaredKind::Changed,
            Some(is) if is.mode != was.mode => UndeclaredKind::Permissions,
            // A folder changes with what is in it, and that is told by itself.
            Some(is) if is.is_folder => continue,
            Some(is) if is != was => UndeclaredKind::Changed,
            Some(_) => continue,
        };
        found.push((path.clone(), what));
    }
    let made = after
        .marks
        .keys()
        .filter(|path| !before.marks.contains_key(*path));
    found.extend(made.map(|path| (path.clone(), UndeclaredKind::Made)));
    found
}

/// What was there and is not, looked at one by one: of a look that did not come to its end, what is missing may be there.
async fn gone(parts: &Parts, space: &SpaceId, before: &Scan, after: &Scan) -> Vec<(String, UndeclaredKind)> {
    let missing = before
        .marks
        .keys()
        .filter(|path| !after.marks.contains_key(*path));
    let missing: Vec<String> = missing.cloned().collect();
    let Ok(root) = (parts.space_roots)(space) else {
        return Vec::new();
    };
    let witness = parts.witness.clone();
    let looking = tokio::task::spawn_blocking(move || witness.gone(&root, missing));
    let gone = looking.await.ok().and_then(Result::ok).unwrap_or_default();
    gone.into_iter()
        .map(|path| (path, UndeclaredKind::Removed))
        .collect()
}

/// What the kernel refused that the tool does not say it does. A program that is run may well ask for more than it needs.
fn tried(spec: &ToolSpec, denials: &[effectd_contracts::Denial]) -> Option<&'static str> {
    const STARTING: [&str; 6] = ["fork", "vfork", "clone", "clone3", "execve", "execveat"];
    if spec.side_effects.contains(&SideEffect::ProcessExec) {
        return None;
    }
    denials
        .iter()
        .filter(|one| one.source == DenialSource::Kernel)
        .find_map(|one| {
            if one.code == Code::NetworkDenied && !spec.side_effects.contains(&SideEffect::NetworkCall) {
                return Some("it tried to use the network");
            }
            let starts = one.code == Code::ProcessLimit || STARTING.contains(&one.what.as_str());
            starts.then_some("it tried to start another process")
        })
}

impl Overreach {
    fn reason(&self) -> String {
        let counted = |what: UndeclaredKind| {
            let count = self.undeclared.iter().filter(|one| one.what == what).count();
            (count > 0).then(|| format!("{count} {}", what.as_str()))
        };
        let changed: Vec<_> = UndeclaredKind::ALL
            .iter()
            .filter_map(|what| counted(*what))
            .collect();
        let more = self.count - self.undeclared.len();
        let mut said = Vec::new();
        if !changed.is_empty() {
            let more = if more > 0 {
                format!(" and {more} more")
            } else {
                String::new()
            };
            said.push(format!(
                "files and folders that it does not declare: {}{more}",
                changed.join(", ")
            ));
        }
        said.extend(self.tried.map(str::to_owned));
        said.join("; ")
    }

    /// What the action ends with: nobody should build on the answer of a tool that does more than it says.
    pub(crate) fn failure(&self) -> Failure {
        let why = format!(
            "the tool did more than it declares ({}); it is switched off until an operator has looked at it",
            self.reason()
        );
        Failure::new(Code::EffectsUndeclared, Phase::Capture, why)
    }

    /// What ended the action otherwise, with that beside it.
    pub(crate) fn beside(&self, mut failure: Failure) -> Failure {
        let more = format!(
            "; the tool did more than it declares ({}), and is switched off until an operator has looked at it",
            self.reason()
        );
        failure.message.push_str(&more);
        failure.retryable = false;
        failure
    }

    /// What was seen, with what was not declared.
    pub(crate) fn effects(&self, seen: Effects) -> Effects {
        let mut observed = match seen {
            Effects::Observed(observed) => observed,
            // Nobody could look, and nothing else is known.
            Effects::None | Effects::Unobserved | Effects::Possible if self.undeclared.is_empty() => {
                return Effects::Possible;
            }
            Effects::None | Effects::Unobserved | Effects::Possible => Observed {
                changes: Vec::new(),
                undoable: false,
                undeclared: Vec::new(),
            },
        };
        observed.undeclared.clone_from(&self.undeclared);
        Effects::Observed(observed)
    }
}

/// Switches the tool off, durably and with its reason, and tells everybody who listens.
pub(crate) async fn quarantine(parts: &Parts, action: &Action<Claimed>, overreach: &Overreach) {
    let tool = &action.state.gated().entry().spec().tool_id;
    let reason = overreach.reason();
    tracing::error!(parent: &action.ticket.span, trace_id = %action.ticket.trace_id, tool_id = %tool, reason,
        "a tool did more than it declares, and is switched off");
    parts.metrics.quarantined_tools.inc();
    let news = ToolNews {
        tool_id: tool.clone(),
        action_id: action.ticket.action_id.clone(),
        reason,
        since: parts.clock.now(),
    };
    let switches = Switches::new(&*parts.store);
    if let Err(error) = switches.quarantine(&news, &action.request.space_id).await {
        tracing::error!(%error, tool_id = %tool, "a tool that did more than it declares could not be switched off");
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn mark(mode: u32, changed_ns: i128, number: u64) -> Mark {
        Mark {
            is_folder: mode & 0o170_000 == 0o040_000,
            mode,
            bytes: 1,
            changed_ns,
            identity: (1, number),
        }
    }

    fn scan(marks: &[(&str, Mark)]) -> Scan {
        Scan {
            marks: marks
                .iter()
                .map(|(path, mark)| ((*path).to_owned(), *mark))
                .collect(),
            complete: true,
        }
    }

    #[test]
    fn every_kind_of_change_is_seen_and_a_folder_is_not_changed_by_what_is_in_it() {
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
        let told: Vec<_> = found.iter().map(|(path, what)| (path.as_str(), *what)).collect();
        assert_eq!(
            told,
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
