//! The bounds of the sandbox itself. What a single tool may use is data: see `profiles/`.

use std::time::Duration;
/// Oldest Landlock that is enough: from version 6 on, signals and abstract sockets are confined too.
/// Less would not confine.
pub const LANDLOCK_ABI_MIN: u32 = 6;
/// Largest piece of what goes beside a request or an answer: a few of them are held in memory for each call in flight.
/// Runtime and child must agree on it.
pub const PIECE_BYTES_MAX: usize = 65_536;
/// Largest request into a child: the largest parameters and the envelope fit. What is longer goes beside it, in pieces.
/// Runtime and child must agree on it.
pub const REQUEST_BYTES_MAX: usize = 8 * 1_048_576;
/// Largest answer that any profile may allow: it is held in memory, once for each call in flight.
pub const OUTPUT_BYTES_MAX: u64 = 64 * 1_048_576;
/// Most zygotes at a time, one for each (profile, space root): together with their guards they stay under 64 MiB.
pub const ZYGOTES_MAX: usize = 16;
/// Children kept ready for each zygote when nothing is going on: one call finds its child waiting.
pub const READY_MIN: usize = 1;
/// Most children kept ready for each zygote: beyond the number of processors more would only take memory.
pub const READY_MAX: usize = 16;
/// Longest text of one refusal that a child reports.
/// Runtime and child must agree on it.
pub const DENIAL_TEXT_BYTES_MAX: usize = 256;
/// Most paths in a narrowing: each is one Landlock rule.
/// Runtime and child must agree on it.
pub const NARROWING_PATHS_MAX: usize = 64;
/// Longest deadline of one call, as in the contracts.
/// As in the contracts.
pub const CALL_TIME_MAX: Duration = Duration::from_millis(effectd_contracts::limits::TIMEOUT_MS_MAX);
/// Processor time beyond the soft limit after which the kernel kills for good.
/// The kernel counts whole seconds, and none would leave no time to say why.
pub const CPU_GRACE_S: u64 = 1;
/// The ordinary uid and gid that stand in for root when root owns the workspace: a number that no distribution assigns.
pub const STAND_IN_ID: u32 = 65_531;
/// Most different refusals that are named in an answer.
/// Runtime and child must agree on it.
pub const DENIALS_NAMED_MAX: usize = 32;
/// Without calls for this long, half of the ready children are let go.
pub const READY_DECAY: Duration = Duration::from_secs(10);
/// Longest time from starting a zygote to its word that it is confined: a cold binary on a busy disk needs some of it.
pub const BOOT_TIME_MAX: Duration = Duration::from_secs(10);
/// Longest time for a fresh child to confine itself; far beyond the usual tenth of a millisecond.
pub const CHILD_SETUP_TIME_MAX: Duration = Duration::from_secs(5);
/// Longest wait for a child when none is ready; a machine that needs longer is overloaded.
pub const CHILD_WAIT_MAX: Duration = Duration::from_secs(10);
/// Longest time for a killed process tree to be reaped before its zygote is given up and killed as a whole.
pub const REAP_TIME_MAX: Duration = Duration::from_secs(5);
/// Most refused system calls of one call that are answered with an errno; a program that goes on is killed.
pub const DENIALS_MAX: u32 = 10_000;
/// Most files in a child's scratch folder.
pub const TMP_FILES_MAX: u64 = 4_096;
/// Memory cgroups kept for reuse.
pub const CGROUPS_IDLE_MAX: usize = 32;
