//! The bounds of the sandbox itself. What a single tool may use is data: see `profiles/`.

use std::time::Duration;
/// Oldest Landlock that is enough: from version 6 on, signals and abstract sockets are confined too.
/// Fixed: less would not confine.
pub const LANDLOCK_ABI_MIN: u32 = 6;
/// Largest piece of what goes beside a request or an answer: a few of them are held in memory for each call in flight.
/// Fixed: runtime and child must agree on it.
pub const PIECE_BYTES_MAX: usize = 65_536;
/// Largest request into a child: the largest parameters and the envelope fit. What is longer goes beside it, in pieces.
/// Fixed: runtime and child must agree on it.
pub const REQUEST_BYTES_MAX: usize = 8 * 1_048_576;
/// Largest answer that any profile may allow: it is held in memory, once for each call in flight.
/// Fixed: the profiles set stricter ones.
pub const OUTPUT_BYTES_MAX: u64 = 64 * 1_048_576;
/// Most zygotes at a time, one for each (profile, space root): together with their guards they stay under 64 MiB.
pub const ZYGOTES_MAX: usize = 16;
/// Children kept ready for each zygote when nothing is going on: one call finds its child waiting.
pub const READY_MIN: usize = 1;
/// Most children kept ready for each zygote: beyond the number of processors more would only take memory.
pub const READY_MAX: usize = 16;
/// Longest text of one refusal that a child reports.
/// Fixed: runtime and child must agree on it.
pub const DENIAL_TEXT_BYTES_MAX: usize = 256;
/// Most paths in a narrowing: each is one Landlock rule.
/// Fixed: runtime and child must agree on it.
pub const NARROWING_PATHS_MAX: usize = 64;
/// Longest deadline of one call, as in the contracts.
/// Fixed: as in the contracts.
pub const CALL_TIME_MAX: Duration = Duration::from_millis(effectd_contracts::limits::TIMEOUT_MS_MAX);
/// Processor time beyond the soft limit after which the kernel kills for good.
/// Fixed: the kernel counts whole seconds, and none would leave no time to say why.
pub const CPU_GRACE_S: u64 = 1;
/// The ordinary uid and gid that stand in for root when root owns the workspace: a number that no distribution assigns.
/// Fixed: `sandbox.uid` names another.
pub const STAND_IN_ID: u32 = 65_531;
/// Most different refusals that are named in an answer.
/// Fixed: runtime and child must agree on it.
pub const DENIALS_NAMED_MAX: usize = 32;

effectd_contracts::bounds! {
    /// Without calls for this long, half of the ready children are let go.
    READY_DECAY: Duration = 10_000, "sandbox.ready_decay_ms", 100 ..= 3_600_000;
    /// Longest time from starting a zygote to its word that it is confined: a cold binary on a busy disk needs some of it.
    BOOT_TIME_MAX: Duration = 10_000, "sandbox.boot_time_ms_max", 1_000 ..= 300_000;
    /// Longest time for a fresh child to confine itself; far beyond the usual tenth of a millisecond.
    CHILD_SETUP_TIME_MAX: Duration = 5_000, "sandbox.child_setup_time_ms_max", 100 ..= 60_000;
    /// Longest wait for a child when none is ready; a machine that needs longer is overloaded.
    CHILD_WAIT_MAX: Duration = 10_000, "sandbox.child_wait_ms_max", 100 ..= 300_000;
    /// How many microseconds a call that is alone listens for its answer without sleeping; with 0 it sleeps at once.
    AWAKE_REPLY_US_MAX: u64 = 1_000, "sandbox.awake_reply_us_max", 0 ..= 10_000;
    /// How many microseconds a call that is over looks for the end of its processes without sleeping, and as many again for what they
    /// cost; with 0 it sleeps at once.
    AWAKE_END_US_MAX: u64 = 250, "sandbox.awake_end_us_max", 0 ..= 10_000;
    /// Calls of the pipeline that take fewer microseconds of a processor, on average, keep to one half of the processors and leave the
    /// other to the runtime, whose writer keeps to it; with 0 none does.
    ROOM_CALL_US_MAX: u64 = 1_500, "sandbox.room_call_us_max", 0 ..= 1_000_000;
    /// Longest time for a killed process tree to be reaped before its zygote is given up and killed as a whole.
    REAP_TIME_MAX: Duration = 5_000, "sandbox.reap_time_ms_max", 100 ..= 300_000;
    /// Most refused system calls of one call that are answered with an errno; a program that goes on is killed.
    DENIALS_MAX: u32 = 10_000, "sandbox.denials_max", 16 ..= 1_000_000;
    /// Most files in a child's scratch folder.
    TMP_FILES_MAX: u64 = 4_096, "sandbox.tmp_files_max", 16 ..= 1_000_000;
    /// Memory cgroups kept for reuse.
    CGROUPS_IDLE_MAX: usize = 32, "sandbox.cgroups_idle_max", 0 ..= 1_024;
}
