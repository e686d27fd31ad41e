//! The end of a call: its outcome, and what it cost.
//!
//! The two are known at different times. The outcome is known when no process of the call can run any more; the cost,
//! when the kernel has torn the processes down, which takes as long again.

use std::time::Duration;

use effectd_contracts::{ToolId, TraceId};
use tokio::io::Interest;
use tokio::time::Instant;

use super::cgroup::{GroupUsage, Slot};
use super::outcome::{Cause, Facts, classify};
use super::pool::{InFlight, Pool, ReadyChild};
use super::session::{read_exactly, watched};
use crate::call::{Answer, Denials, Usage};
use crate::confine::profile::Ceilings;
use crate::limits::REAP_TIME_MAX;
use crate::sys::process::Ended;
use crate::wire::{ENDED_BYTES, unpack_ended};

/// A call that is over: nothing that it started will ever run again, and its answer has been read. Its cost is not known
/// yet, because the kernel accounts for a process when it has torn the process down. Dropping it discards the cost.
pub struct Reply {
    pub(super) child: ReadyChild,
    pub(super) tool_id: ToolId,
    pub(super) trace_id: TraceId,
    pub(super) ceilings: Ceilings,
    pub(super) cause: Cause,
    pub(super) denials: Denials,
    pub(super) begun: Instant,
    /// While this lives, the pool counts the call as running.
    pub(super) in_flight: InFlight,
}

impl Reply {
    /// The child's answer, if there is one. The child chose these bytes, and only [`Reply::reap`] says whether it kept
    /// to its limits.
    pub fn bytes(&self) -> Option<&[u8]> {
        if let Cause::Replied(bytes) = &self.cause {
            return Some(bytes);
        }
        None
    }

    /// Waits until every process is reaped, and returns the outcome with its cost.
    pub async fn reap(mut self) -> Answer {
        let pool = self.in_flight.pool();
        let replied = matches!(self.cause, Cause::Replied(_));
        // The kernel is still tearing the tree down: there is time to read the counters of its cgroup.
        let early = replied.then(|| group_usage(&self.child));
        let ended = reaped(pool, &self.child).await;
        let wall = self.begun.elapsed();
        let group = early.unwrap_or_else(|| group_usage(&self.child));

        let facts = Facts {
            ended,
            oom_kills: group.oom_kills,
            fork_refusals: group.fork_refusals,
            cpu_limit_ms: self.ceilings.cpu_ms,
        };
        if let (Some(slot), Some(_)) = (self.child.cgroup.take(), ended) {
            slot.recycle();
        }
        self.denials.add_from(&self.cause, &facts);
        self.denials.log(&self.tool_id, &self.trace_id);
        let usage = usage(ended.unwrap_or_default(), group.peak_bytes, wall);
        let cause = if replied && usage.bytes_written > self.ceilings.written_bytes {
            Cause::WroteTooMuch
        } else {
            self.cause
        };
        pool.leave(self.child);
        Answer {
            ending: classify(cause, &facts),
            usage,
            isolation: pool.isolation(&self.ceilings),
            denials: self.denials.0,
        }
    }
}

fn group_usage(child: &ReadyChild) -> GroupUsage {
    child.cgroup.as_ref().map(Slot::usage).unwrap_or_default()
}

fn usage(ended: Ended, peak_bytes: Option<u64>, wall: Duration) -> Usage {
    Usage {
        cpu_user_us: ended.user_us,
        cpu_system_us: ended.system_us,
        // The cgroup does not count what the child held before it joined.
        peak_memory_bytes: peak_bytes.unwrap_or(0).max(ended.resident_max_kib * 1_024),
        bytes_written: ended.blocks_written * 512,
        wall,
    }
}

/// Waits for the zygote's report that the killed tree is reaped. `None` means that the zygote died, and the kernel killed
/// the tree with it.
async fn reaped(pool: &Pool, child: &ReadyChild) -> Option<Ended> {
    let status = watched(&child.status, Interest::READABLE).ok()?;
    let mut report = Vec::with_capacity(ENDED_BYTES);
    let waited = tokio::time::timeout(REAP_TIME_MAX, read_exactly(&status, &mut report, ENDED_BYTES)).await;
    if waited.is_err() {
        pool.give_up_zygote();
    }
    report.first_chunk::<ENDED_BYTES>().map(unpack_ended)
}
