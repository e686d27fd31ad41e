//! Positions in the two topics that live events come from, and the cursors that stand for them.

use effectd_bus::{EventPage, Store, StoreError, StoredEvent};
use effectd_contracts::Topic;

use crate::limits::STREAM_PAGE;

/// The first events that were not read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Position {
    pub(crate) approvals: u64,
    pub(crate) executed: u64,
}

impl Position {
    pub(crate) const MAX: Self = Self { approvals: u64::MAX, executed: u64::MAX };

    pub(crate) fn end_of(store: &dyn Store) -> Result<Self, StoreError> {
        let [approvals, executed] = ranges(store)?;
        Ok(Self { approvals: approvals.end, executed: executed.end })
    }

    /// Whether all events from here on are kept. A position after the end is none of this store.
    pub(crate) fn is_kept(self, store: &dyn Store) -> Result<bool, StoreError> {
        let [approvals, executed] = ranges(store)?;
        let holds = |page: EventPage, at: u64| (page.begin..=page.end).contains(&at);
        Ok(holds(approvals, self.approvals) && holds(executed, self.executed))
    }

    pub(crate) fn covers(self, other: Self) -> bool {
        self.approvals >= other.approvals && self.executed >= other.executed
    }

    /// How many events there are from here to another position.
    pub(crate) fn until(self, to: Self) -> u64 {
        to.approvals.saturating_sub(self.approvals) + to.executed.saturating_sub(self.executed)
    }

    pub(crate) fn cursor(self) -> String {
        format!("{}-{}", self.approvals, self.executed)
    }

    /// The position of a cursor; `None` if it is not in the form of one.
    pub(crate) fn of_cursor(cursor: &str) -> Option<Self> {
        let (approvals, executed) = cursor.split_once('-')?;
        let at = Self { approvals: approvals.parse().ok()?, executed: executed.parse().ok()? };
        (at.cursor() == cursor).then_some(at)
    }
}

/// The ranges of the topics: pages without events.
fn ranges(store: &dyn Store) -> Result<[EventPage; 2], StoreError> {
    let range = |topic: Topic| store.read(&topic.into(), u64::MAX, 1);
    Ok([range(Topic::Approvals)?, range(Topic::ActionExecuted)?])
}

/// The next events of both topics in the order in which they were stored, each with the position after it. Fails if one of them is no
/// longer kept.
pub(crate) fn page(
    store: &dyn Store,
    from: Position,
    to: Position,
) -> Result<Vec<(Position, StoredEvent)>, StoreError> {
    let read = |topic: Topic, from: u64, to: u64| {
        let most = usize::try_from(to.saturating_sub(from)).unwrap_or(usize::MAX).min(STREAM_PAGE);
        let page = store.read(&topic.into(), from, most)?;
        if from < page.begin {
            return Err(StoreError::Dropped { topic: topic.into(), begins: page.begin });
        }
        let more = page.next < page.end.min(to);
        Ok((page.events.into_iter().peekable(), more))
    };
    // Receipts first: the question that precedes a receipt is then there to be read, too.
    let (mut executed, more_executed) = read(Topic::ActionExecuted, from.executed, to.executed)?;
    let (mut approvals, more_approvals) = read(Topic::Approvals, from.approvals, to.approvals)?;
    let (mut at, mut events) = (from, Vec::new());
    loop {
        let is_approval = match (approvals.peek(), executed.peek()) {
            (Some(approval), Some(receipt)) => approval.stored_at <= receipt.stored_at,
            (Some(_), None) if !more_executed => true,
            (None, Some(_)) if !more_approvals => false,
            // What comes next is on the next page of a topic, or there is nothing.
            (Some(_), None) | (None, Some(_)) | (None, None) => return Ok(events),
        };
        let event = if is_approval {
            at.approvals += 1;
            approvals.next()
        } else {
            at.executed += 1;
            executed.next()
        };
        events.extend(event.map(|event| (at, event)));
    }
}
