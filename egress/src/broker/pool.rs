//! Connections that are kept for the next exchange of the same origin.

use std::collections::HashMap;
use std::time::Duration;

use tokio::time::Instant;

use super::dial::Line;
use crate::limits::{IDLE_MAX, IDLE_TIME_MAX, IDLE_TIME_OF_WRITES_MAX};
use crate::order::Origin;

#[derive(Debug)]
struct Kept {
    line: Line,
    since: Instant,
}

/// Kept connections. One is in use by one exchange at a time.
#[derive(Debug, Default)]
pub(super) struct Pool {
    kept: HashMap<Origin, Vec<Kept>>,
    count: usize,
}

impl Pool {
    /// A connection that is still open and not kept for too long: a write gets a younger one.
    pub(super) fn take(&mut self, origin: &Origin, is_write: bool) -> Option<Line> {
        self.expire(IDLE_TIME_MAX);
        let age_max = if is_write { IDLE_TIME_OF_WRITES_MAX } else { IDLE_TIME_MAX };
        let kept = self.kept.get_mut(origin)?;
        // The last one is the youngest.
        while let Some(found) = kept.pop_if(|last| last.since.elapsed() <= age_max) {
            self.count -= 1;
            if found.line.is_quiet() {
                return Some(found.line);
            }
        }
        None
    }

    pub(super) fn keep(&mut self, origin: &Origin, line: Line) {
        if self.count < IDLE_MAX && !line.sender.is_closed() {
            let kept = Kept { line, since: Instant::now() };
            self.kept.entry(origin.clone()).or_default().push(kept);
            self.count += 1;
        }
    }

    /// Closes what is kept for longer, or is closed by its server.
    pub(super) fn expire(&mut self, age_max: Duration) {
        self.kept.retain(|_, kept| {
            kept.retain(|one| one.since.elapsed() <= age_max && !one.line.sender.is_closed());
            !kept.is_empty()
        });
        self.count = self.kept.values().map(Vec::len).sum();
    }
}
