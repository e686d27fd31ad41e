//! Markers: what has become of each item, by its receipt, by what undid it, and by what the disk says now.

use std::collections::{BTreeSet, HashMap};

use effectd_contracts::batch::{ItemMark, Marker};
use effectd_contracts::limits::BATCH_REASON_BYTES_MAX;
use effectd_contracts::{Effects, Failure, Outcome, PathSnapshot, PathState, Receipt, SpaceId};
use serde_json::{Value, json};

use super::steps::Done;
use crate::effects::snapshot::keyed;
use crate::limits::BATCH_MARKS_BYTES_MAX;
use crate::services::Services;
use crate::services::files::Inspected;
use crate::stored::json_bytes;

pub(super) struct Mark(pub(super) ItemMark);

impl Mark {
    /// A mark; the reason is cut, so that the receipt holds those of all items.
    pub(super) fn new(marker: Marker, reason: &str) -> Self {
        let cut = reason.floor_char_boundary(BATCH_REASON_BYTES_MAX);
        let reason = (!reason.is_empty()).then(|| reason[..cut].to_owned());
        Self(ItemMark { marker, reason, paths: Vec::new(), paths_left_out: 0 })
    }

    /// The mark of an equal item.
    pub(super) fn again(&self, reason: &str) -> Self {
        Self(ItemMark { reason: Some(reason.to_owned()), ..self.0.clone() })
    }
}

/// The marks as the receipt holds them: with as many paths as there is room for, each of them whole.
pub(super) fn outputs(marks: Vec<Mark>) -> Value {
    let mut items: Vec<_> = marks.into_iter().map(|mark| mark.0).collect();
    let partial = items.iter().any(|item| item.marker == Marker::RollbackFailed);
    let mut over = json_bytes(&items).len().saturating_sub(BATCH_MARKS_BYTES_MAX);
    while over > 0
        && let Some(longest) = items.iter_mut().max_by_key(|item| item.paths.len())
        && let Some(path) = longest.paths.pop()
    {
        if longest.paths_left_out == 0 {
            over += r#","paths_left_out":1000000"#.len();
        }
        longest.paths_left_out += 1;
        over = over.saturating_sub(json_bytes(&path).len() + 1);
    }
    json!({ "items": items, "partial": partial })
}

/// What has become of an item of a batch that failed, and that is to leave nothing.
pub(super) fn after_failure(
    end: Option<&Result<Done, Failure>>,
    undone: Option<&Result<Done, Failure>>,
    only_reads: bool,
    differ: impl Fn(&Receipt) -> Option<Vec<String>>,
) -> Mark {
    let done = match end {
        None => return Mark::new(Marker::NotStarted, "an earlier item failed"),
        Some(Err(failure)) => return Mark::new(Marker::NotStarted, &failure.message),
        Some(Ok(done)) => done,
    };
    if !done.is_own {
        return Mark::new(Marker::Committed, &done.by_whom());
    }
    let receipt = &*done.receipt;
    if receipt.outcome.is_refusal() || matches!(receipt.outcome, Outcome::DryRun | Outcome::Paused) {
        return Mark::new(Marker::NotStarted, &done.why());
    }
    let own_fault = receipt.error.as_ref().map(|failure| failure.message.as_str()).unwrap_or_default();
    let is_undone = match undone {
        Some(Ok(undo)) => undo.is_done() && is_declared(receipt),
        Some(Err(_)) => false,
        None => only_reads || left_nothing(receipt),
    };
    if is_undone {
        return Mark::new(Marker::RolledBack, own_fault);
    }
    let paths = differ(receipt);
    if is_declared(receipt) && paths.as_ref().is_some_and(Vec::is_empty) {
        return Mark::new(Marker::RolledBack, own_fault);
    }
    let why = match undone {
        Some(Ok(_)) if !is_declared(receipt) => "it changed more than it declares".to_owned(),
        Some(Ok(undo)) => undo.why(),
        Some(Err(failure)) => failure.message.clone(),
        None if matches!(receipt.effects, Effects::Possible) => "whether it happened is unknown".to_owned(),
        None => "it cannot be undone".to_owned(),
    };
    let mut mark = Mark::new(Marker::RollbackFailed, &why);
    mark.0.paths = paths.unwrap_or_default();
    if let Effects::Observed(observed) = &receipt.effects {
        mark.0.paths.extend(observed.undeclared.iter().map(|undeclared| undeclared.path.clone()));
    }
    mark
}

/// Whether the changes that are undone are all that there are.
fn is_declared(receipt: &Receipt) -> bool {
    match &receipt.effects {
        Effects::Observed(observed) => observed.undeclared.is_empty() && !observed.incomplete,
        Effects::None | Effects::Unobserved | Effects::Possible => true,
    }
}

/// Whether the action changed nothing, by its receipt.
fn left_nothing(receipt: &Receipt) -> bool {
    match &receipt.effects {
        Effects::None => true,
        Effects::Observed(observed) => {
            observed.changes.is_empty() && observed.undeclared.is_empty() && !observed.incomplete
        }
        Effects::Unobserved | Effects::Possible => false,
    }
}

/// The states of all paths before the batch and now, as receipts show them.
pub(super) struct Paths {
    before: HashMap<String, PathState>,
    /// `None` if they cannot be inspected.
    now: Option<HashMap<String, PathState>>,
}

impl Paths {
    pub(super) async fn now<'r>(
        services: &Services,
        space: &SpaceId,
        start: &[PathSnapshot],
        receipts: impl Iterator<Item = &'r Receipt>,
    ) -> Self {
        let identity = &services.files.identity;
        let declared = start.iter().map(|seen| (seen.path.clone(), keyed(identity, &seen.standing)));
        let mut before: HashMap<_, _> = declared.collect();
        // In order: what an item found at a path that nobody declared is how it was before the batch.
        for receipt in receipts {
            if let Effects::Observed(observed) = &receipt.effects {
                for change in &observed.changes {
                    before.entry(change.path.clone()).or_insert_with(|| change.before.clone());
                }
            }
        }
        let paths = before.keys().cloned().collect();
        let inspected = services.files.inspect(space, paths, 0).await.ok();
        let state = |one: Inspected| {
            let now = keyed(identity, &one.seen.standing);
            (one.seen.path, now)
        };
        Self { before, now: inspected.map(|all| all.into_iter().map(state).collect()) }
    }

    /// The paths of an item that are not as they were before the batch; `None` if what it may have changed is not known.
    pub(super) fn that_differ(&self, receipt: &Receipt, declared: Option<&[String]>) -> Option<Vec<String>> {
        let observed = match &receipt.effects {
            Effects::Observed(observed) if !observed.incomplete => {
                observed.changes.iter().map(|change| change.path.clone()).collect::<BTreeSet<_>>()
            }
            Effects::Observed(_) => return None,
            Effects::None | Effects::Unobserved | Effects::Possible => BTreeSet::new(),
        };
        if observed.is_empty() && declared.is_none_or(<[String]>::is_empty) {
            return None;
        }
        let all = declared.into_iter().flatten().cloned().chain(observed).collect::<BTreeSet<_>>();
        let differs = |path: &String| match &self.now {
            // What was there is not known if nobody saw it before.
            Some(now) => self.before.get(path) != Some(now.get(path).unwrap_or(&PathState::Absent)),
            None => true,
        };
        Some(all.into_iter().filter(differs).collect())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use effectd_policy::redact::prune_result;

    use super::*;

    #[test]
    fn a_receipt_has_whole_paths_and_counts_the_others() {
        let mark = |paths: usize| {
            let mut mark = Mark::new(Marker::RollbackFailed, &"why ".repeat(40));
            mark.0.paths = (0..paths).map(|n| format!("workspace/{}/{n}", "\"ü".repeat(50))).collect();
            mark
        };
        for counts in [vec![300, 1], vec![20; 64], vec![0; 64]] {
            let whole: Vec<Mark> = counts.iter().map(|paths| mark(*paths)).collect();
            let shown = outputs(counts.iter().map(|paths| mark(*paths)).collect());
            assert_eq!(prune_result(shown.clone()), shown, "it fits as it is");
            let items: Vec<ItemMark> = serde_json::from_value(shown["items"].clone()).unwrap();
            for (item, whole) in items.iter().zip(&whole) {
                assert_eq!(item.paths[..], whole.0.paths[..item.paths.len()]);
                assert_eq!(item.paths.len() as u64 + item.paths_left_out, whole.0.paths.len() as u64);
            }
            assert_eq!(
                items.last().unwrap().paths.len(),
                usize::from(counts.len() == 2),
                "the longest list loses"
            );
        }
    }
}
