//! What an action changed, a line for each path.

use effectd_contracts::{Effects, Observed, PathChange, Receipt, Standing};

/// Paths that are told one by one: a person looks at some, a program at the receipt itself.
const TOLD: usize = 8;

pub(super) fn changes(receipt: &Receipt) -> Vec<String> {
    match &receipt.effects {
        Effects::None => Vec::new(),
        Effects::Unobserved => vec!["nobody looked".to_owned()],
        Effects::Possible => vec!["perhaps: it failed, and may have had its effect all the same".to_owned()],
        Effects::Observed(observed) if observed.changes.is_empty() => vec!["nothing".to_owned()],
        Effects::Observed(observed) => told(receipt, observed),
    }
}

fn told(receipt: &Receipt, observed: &Observed) -> Vec<String> {
    let mut lines: Vec<String> = observed.changes.iter().take(TOLD).map(change).collect();
    if let Some(more) = observed.changes.len().checked_sub(TOLD).filter(|more| *more > 0) {
        lines.push(format!("and {more} more paths"));
    }
    if observed.undoable {
        lines.push(format!("`effectd undo {}` takes it back", receipt.receipt_id));
    }
    lines
}

fn change(change: &PathChange) -> String {
    let path = change.path.escape_debug();
    let what = match (&change.before, &change.after) {
        (Standing::Absent, now) => format!("made, {}", standing(now)),
        (_, Standing::Absent) => "gone".to_owned(),
        (Standing::File(before), Standing::File(after)) if before.digest == after.digest => {
            format!("permissions {:o}, before {:o}", after.mode, before.mode)
        }
        (before, now) => format!("{}, before {}", standing(now), standing(before)),
    };
    format!("{path}: {what}")
}

fn standing(standing: &Standing) -> String {
    match standing {
        Standing::Absent => "nothing".to_owned(),
        Standing::Folder => "a folder".to_owned(),
        Standing::File(file) => format!("{} bytes", file.bytes),
        Standing::Other => "neither file nor folder".to_owned(),
    }
}
