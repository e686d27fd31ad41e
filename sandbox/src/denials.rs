//! What a call tried and was refused, merged and bounded, so that a program that does nothing else cannot fill a receipt.

use effectd_contracts::Code;

use crate::call::{Denial, DenialSource};
use crate::ending::{Cause, Facts};
use crate::limits::DENIALS_NAMED_MAX;
use crate::settle::CallSummary;
use crate::sys::process::Ended;

/// What was refused, merged and bounded.
#[derive(Default)]
pub(crate) struct Denials(pub(crate) Vec<Denial>);

impl Denials {
    /// What the kernel refused to a part of the tree while the whole still answered.
    pub(crate) fn count_unanswered(&mut self, cause: &Cause, facts: &Facts) {
        let replied = matches!(cause, Cause::Replied(_));
        // The kernel killed at once; it does not say which of the banned calls it was.
        let by_filter =
            |ended: Ended| libc::WIFSIGNALED(ended.status) && libc::WTERMSIG(ended.status) == libc::SIGSYS;
        if matches!(cause, Cause::Silent) && facts.ended.is_some_and(by_filter) {
            self.count(Code::SyscallDenied, "a banned system call", DenialSource::Kernel);
        }
        if replied && facts.oom_kills > 0 {
            self.count(
                Code::MemoryLimit,
                "a process was killed for lack of memory",
                DenialSource::Kernel,
            );
        }
        if facts.fork_refusals > 0 {
            let count = u32::try_from(facts.fork_refusals).unwrap_or(u32::MAX);
            let what = "starting another process".to_owned();
            self.add(Denial {
                code: Code::ProcessLimit,
                what,
                count,
                source: DenialSource::Kernel,
            });
        }
    }

    pub(crate) fn log(&self, call: &CallSummary) {
        for denial in &self.0 {
            tracing::warn!(
                trace_id = call.trace_id.as_str(),
                tool_id = call.tool_id.as_str(),
                code = denial.code.as_str(),
                what = denial.what,
                count = denial.count,
                "refused in the sandbox"
            );
        }
    }

    pub(crate) fn count(&mut self, code: Code, what: &str, source: DenialSource) {
        self.add(Denial {
            code,
            what: what.to_owned(),
            count: 1,
            source,
        });
    }

    pub(crate) fn add(&mut self, denial: Denial) {
        let same = |known: &&mut Denial| {
            known.code == denial.code && known.what == denial.what && known.source == denial.source
        };
        if let Some(known) = self.0.iter_mut().find(same) {
            known.count = known.count.saturating_add(denial.count);
        } else if self.0.len() < DENIALS_NAMED_MAX {
            self.0.push(denial);
        }
    }
}
