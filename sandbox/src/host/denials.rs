//! Denials that the kernel only counts, and the log of all denials of a call.

use effectd_contracts::{Code, ToolId, TraceId};

use super::outcome::{Cause, Facts};
use crate::call::{Denial, DenialSource, Denials};
use crate::sys::process::Ended;

impl Denials {
    /// Adds the refusals that no listener announced: an exit status or a counter of the kernel shows them.
    pub(crate) fn add_from(&mut self, cause: &Cause, facts: &Facts) {
        // The kernel killed the process at once, and does not say which banned system call it made.
        let by_filter =
            |ended: Ended| libc::WIFSIGNALED(ended.status) && libc::WTERMSIG(ended.status) == libc::SIGSYS;
        if matches!(cause, Cause::Silent) && facts.ended.is_some_and(by_filter) {
            self.count(Code::SyscallDenied, "a banned system call", DenialSource::Kernel);
        }
        if matches!(cause, Cause::Replied(_)) && facts.oom_kills > 0 {
            self.count(Code::MemoryLimit, "a process was killed for lack of memory", DenialSource::Kernel);
        }
        if facts.fork_refusals > 0 {
            let count = u32::try_from(facts.fork_refusals).unwrap_or(u32::MAX);
            self.add(Denial {
                code: Code::ProcessLimit,
                what: "starting another process".to_owned(),
                count,
                source: DenialSource::Kernel,
            });
        }
    }

    pub(crate) fn log(&self, tool_id: &ToolId, trace_id: &TraceId) {
        for denial in &self.0 {
            tracing::warn!(
                trace_id = trace_id.as_str(),
                tool_id = tool_id.as_str(),
                code = denial.code.as_str(),
                what = denial.what,
                count = denial.count,
                "refused in the sandbox"
            );
        }
    }
}
