//! Renders the changes of an action, a line for each path.

use effectd_contracts::{Effects, Observed, PathChange, Receipt};
use effectd_gateway::views::receipt_text;

/// The number of paths that are listed; the receipt has all.
const LISTED_MAX: usize = 8;

pub(super) fn changes(receipt: &Receipt) -> Vec<String> {
    match &receipt.effects {
        Effects::None => Vec::new(),
        Effects::Unobserved => vec!["not observed".to_owned()],
        Effects::Possible => vec!["unknown: the action failed, but may have had its effect".to_owned()],
        Effects::Observed(observed) if observed.changes.is_empty() && !observed.incomplete => {
            vec!["nothing".to_owned()]
        }
        Effects::Observed(observed) => listed(observed),
    }
}

/// The command that undoes the changes, if there is one.
pub(super) fn undo(receipt: &Receipt) -> Option<String> {
    match &receipt.effects {
        Effects::Observed(observed) if observed.undoable && !observed.changes.is_empty() => {
            Some(format!("effectd undo {}", receipt.receipt_id))
        }
        Effects::None | Effects::Unobserved | Effects::Possible | Effects::Observed(_) => None,
    }
}

fn listed(observed: &Observed) -> Vec<String> {
    let mut lines: Vec<String> = observed.changes.iter().take(LISTED_MAX).map(change).collect();
    if let Some(more) = observed.changes.len().checked_sub(LISTED_MAX).filter(|more| *more > 0) {
        lines.push(format!("and {more} more paths"));
    }
    if observed.incomplete {
        lines.push("and perhaps more that cannot be listed".to_owned());
    }
    lines
}

fn change(change: &PathChange) -> String {
    format!("{}: {}", change.path.escape_debug(), receipt_text::change(change))
}
