//! The bounds of tools. Each is named in `docs/limits.md`, and a test keeps the two in step.

use std::time::Duration;

/// Largest call into the sandbox: a request of the largest size, or all that an undo puts back, and what the executor adds.
pub const CALL_BYTES_MAX: usize = 8 * 1_048_576;
/// Longest path a tool takes, as Linux has it.
pub const PATH_BYTES_MAX: usize = 4_096;
/// Most folders in one path: bounds the work of creating them.
pub const PATH_DEPTH_MAX: usize = 64;
/// Longest name of one file or folder, as Linux has it.
pub const NAME_BYTES_MAX: usize = 255;
/// Largest text file that is edited, appended to or patched: all of it is read, and all of it is kept for an undo.
pub const TEXT_FILE_BYTES_MAX: u64 = 3 * 1_048_576;
/// Most of a file that one call reads: with its escapes it fits into an answer.
pub const READ_BYTES_MAX: u64 = 262_144;
/// Largest file that is copied: a larger one is a job for a command.
pub const COPY_BYTES_MAX: u64 = 64 * 1_048_576;
/// Largest file whose state before and after an action is compared: as large as a native tool can make one.
pub const LOOK_BYTES_MAX: u64 = 64 * 1_048_576;
/// Most entries in one listing.
pub const LIST_ENTRIES_MAX: usize = 1_000;
/// Most files and folders that one search or listing looks at.
pub const WALK_ENTRIES_MAX: usize = 20_000;
/// Deepest folder that a search or listing goes down to.
pub const WALK_DEPTH_MAX: usize = 32;
/// Most hits of one search.
pub const SEARCH_HITS_MAX: usize = 500;
/// Longest piece of a line that a hit shows.
pub const SEARCH_LINE_BYTES_MAX: usize = 256;
/// Largest file that a search looks into; larger ones are counted as skipped.
pub const SEARCH_FILE_BYTES_MAX: u64 = 1_048_576;
/// Longest pattern of a search.
pub const PATTERN_BYTES_MAX: usize = 1_024;
/// Most files that one patch changes.
pub const PATCH_FILES_MAX: usize = 32;
/// Most hunks in one patch.
pub const PATCH_HUNKS_MAX: usize = 1_024;
/// Most words of one command line.
pub const ARGV_MAX: usize = 256;
/// Longest word of a command line.
pub const ARGV_WORD_BYTES_MAX: usize = 32_768;
/// Longest time of one command.
pub const COMMAND_TIME_MAX: Duration = Duration::from_secs(60);
/// Beginning of a command's output that stands in its result.
pub const OUTPUT_HEAD_BYTES_MAX: usize = 16_384;
/// Most of each of a command's two outputs that is kept; the rest is counted and dropped.
pub const OUTPUT_KEPT_BYTES_MAX: usize = 786_432;
/// Longest error text that is diagnosed.
pub const DIAGNOSE_BYTES_MAX: usize = 65_536;
