//! After a call: what came of it, and what it cost.
//!
//! The two are known at different times. What a child said is known when nothing of it can run any more; what it cost, when
//! the kernel has taken its processes down, which takes as long again.

use std::time::Instant;

use effectd_contracts::{ToolId, TraceId};
use tokio::io::Interest;

use crate::call::{Answer, Usage};
use crate::cgroup::{Seen, Slot};
use crate::denials::Denials;
use crate::ending::{Cause, Facts, classify};
use crate::limits::REAP_TIME_MAX;
use crate::pool::{InFlight, Pool, Ready};
use crate::profile::Ceilings;
use crate::run::{read_up_to, watched};
use crate::sys::process::Ended;
use crate::wire::{ENDED_BYTES, unpack_ended};

/// A call that is over: whatever it started will never run again, and what it had to say has been heard. What it cost is not
/// known yet, since the kernel settles a process's accounts when it has taken the process down. Dropping it gives them up.
pub struct Reply {
    pub(crate) child: Ready,
    pub(crate) call: CallSummary,
    pub(crate) ceilings: Ceilings,
    pub(crate) cause: Cause,
    pub(crate) denials: Denials,
    pub(crate) begun: Instant,
    /// Until here the pool counts the call as under way.
    pub(crate) in_flight: InFlight,
}

/// What is left of a call when it has been made.
pub(crate) struct CallSummary {
    pub(crate) tool_id: ToolId,
    pub(crate) trace_id: TraceId,
}

impl Reply {
    /// What the child answered, if it did. These are its own words; and only [`Reply::settle`] says whether it kept to its
    /// limits while it earned them.
    pub fn bytes(&self) -> Option<&[u8]> {
        match &self.cause {
            Cause::Replied(bytes) => Some(bytes),
            Cause::Denied { .. }
            | Cause::TimedOut
            | Cause::WroteTooMuch
            | Cause::OutputLimit
            | Cause::Garbage
            | Cause::Panicked
            | Cause::NotNarrowed(_)
            | Cause::Silent => None,
        }
    }

    /// Waits until every process has been taken down and reaped, and makes up the accounts.
    pub async fn settle(self) -> Answer {
        let Self {
            mut child,
            call,
            ceilings,
            cause,
            mut denials,
            begun,
            in_flight,
        } = self;
        let pool = in_flight.pool();
        // While the kernel takes the tree down, there is time to read what its group has seen.
        let early = matches!(cause, Cause::Replied(_)).then(|| seen(&child));
        let ended = reaped(pool, &child).await;
        let wall = begun.elapsed();
        let seen = early.unwrap_or_else(|| seen(&child));

        let facts = Facts {
            ended,
            oom_kills: seen.oom_kills,
            fork_refusals: seen.fork_refusals,
            cpu_limit_ms: ceilings.cpu_ms,
        };
        if let (Some(slot), Some(_)) = (child.cgroup.take(), ended) {
            slot.recycle();
        }
        denials.count_unanswered(&cause, &facts);
        let usage = usage(ended.unwrap_or_default(), seen.peak_bytes, wall);
        let wrote_too_much = usage.bytes_written > ceilings.written_bytes;
        let replied = matches!(cause, Cause::Replied(_));
        let cause = if replied && wrote_too_much {
            Cause::WroteTooMuch
        } else {
            cause
        };
        denials.log(&call);
        pool.leave(child);
        Answer {
            ending: classify(cause, &facts),
            usage,
            isolation: pool.isolation(&ceilings),
            denials: denials.0,
        }
    }
}

fn seen(child: &Ready) -> Seen {
    child.cgroup.as_ref().map(Slot::seen).unwrap_or_default()
}

fn usage(ended: Ended, peak_bytes: Option<u64>, wall: std::time::Duration) -> Usage {
    Usage {
        cpu_user_us: ended.user_us,
        cpu_system_us: ended.system_us,
        // What a child held before it was put into its group is not in the group's count.
        peak_memory_bytes: peak_bytes.unwrap_or(0).max(ended.resident_max_kib * 1_024),
        bytes_written: ended.blocks_written * 512,
        wall,
    }
}

/// Waits for the zygote's report that the tree, which has been killed, is reaped. `None` means that the zygote died as well,
/// and with it, by the kernel's own rule, the tree.
async fn reaped(pool: &Pool, child: &Ready) -> Option<Ended> {
    let status = watched(&child.status, Interest::READABLE).ok()?;
    let mut report = Vec::with_capacity(ENDED_BYTES);
    let waited = tokio::time::timeout(REAP_TIME_MAX, read_up_to(&status, &mut report, ENDED_BYTES)).await;
    if waited.is_err() {
        pool.give_up_zygote();
    }
    report.first_chunk::<ENDED_BYTES>().map(unpack_ended)
}
