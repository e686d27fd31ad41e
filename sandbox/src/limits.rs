//! The limits of the sandbox itself. What one tool may use is data: see `profiles/`.

use std::time::Duration;

/// Oldest Landlock version that is enough: from 6 on, it confines signals and abstract sockets, too.
pub const LANDLOCK_ABI_MIN: u32 = 6;
/// Largest piece on a side channel: each call in flight holds a few in memory.
pub const PIECE_BYTES_MAX: usize = 65_536;
/// Largest request into a child: the largest parameters and their envelope fit. Longer contents use the side channel.
pub const REQUEST_BYTES_MAX: usize = 8 * 1_048_576;
/// Largest answer that any profile may allow: each call in flight holds one in memory.
pub const OUTPUT_BYTES_MAX: u64 = 64 * 1_048_576;
/// Most zygotes at a time, one for each (profile, space root): together with their guards they stay under 64 MiB.
pub const ZYGOTES_MAX: usize = 16;
/// Children kept ready for each zygote without calls: the next call finds its child waiting.
pub const READY_MIN: usize = 1;
/// Most children kept ready for each zygote: more than one for each processor would only take memory.
pub const READY_MAX: usize = 16;
/// Longest text of one denial that a child reports.
pub const DENIAL_TEXT_BYTES_MAX: usize = 256;
/// Most paths in a narrowing: each is one Landlock rule.
pub const NARROWING_PATHS_MAX: usize = 64;
/// Longest deadline of one call, as in the contracts.
pub const CALL_TIME_MAX: Duration = Duration::from_millis(effectd_contracts::limits::TIMEOUT_MS_MAX);
/// Processor time between the soft limit and the kill: the kernel's smallest unit, in which the child reports the reason.
pub const CPU_GRACE_S: u64 = 1;
/// The ordinary uid and gid of children when root owns the workspace: a number that no distribution assigns.
pub const STAND_IN_ID: u32 = 65_531;
/// The ordinary uid and gid of the egress broker, if effectd is root: a number that no distribution assigns.
pub const BROKER_ID: u32 = 65_532;
/// Most different denials in one answer.
pub const DENIALS_NAMED_MAX: usize = 32;
/// After this long without calls, half of the ready children are dropped.
pub const READY_DECAY: Duration = Duration::from_secs(10);
/// Longest time until a new zygote reports that it is confined: reading its binary from a busy disk may take seconds.
pub const BOOT_TIME_MAX: Duration = Duration::from_secs(10);
/// Longest time for a fresh child to confine itself; far beyond the usual tenth of a millisecond.
pub const CHILD_SETUP_TIME_MAX: Duration = Duration::from_secs(5);
/// Longest wait for a child when none is ready; a machine that needs longer is overloaded.
pub const CHILD_WAIT_MAX: Duration = Duration::from_secs(10);
/// Longest time until a killed process tree is reaped; after that, its whole zygote is killed.
pub const REAP_TIME_MAX: Duration = Duration::from_secs(5);
/// Most refused system calls of one call that fail with an errno; a program that makes more is killed.
pub const DENIALS_MAX: u32 = 10_000;
/// Most files in a child's scratch folder.
pub const TMP_FILES_MAX: u64 = 4_096;
/// Most bytes in one cache of a named command: the build of a large project.
pub const CACHE_BYTES_MAX: u64 = 17_179_869_184;
/// Most files and folders in one cache: they are counted before each run, and while it lasts.
pub const CACHE_FILES_MAX: u64 = 200_000;
/// Deepest folder of a cache, as deep as a path of a tool: counting holds one descriptor for each level.
pub const CACHE_DEPTH_MAX: usize = 64;
/// How often the caches of a running call and the disk are checked: each check counts every file.
pub const CACHE_CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// Longest pause between two counts of the caches of a running call, however long a count takes.
pub const CACHE_CHECK_PAUSE_MAX: Duration = Duration::from_secs(5);
/// How fast a call fills a disk at most, 4 GiB in a second: the disk is checked more often when it could be full sooner.
pub const DISK_BYTES_PER_MS: u64 = 4_194_304;
/// Most idle memory cgroups that are kept for reuse.
pub const CGROUPS_IDLE_MAX: usize = 32;
