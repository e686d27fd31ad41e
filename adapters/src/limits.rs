//! The bounds of tools. Those that a caller can hit are in `docs/limits.md`.

use std::time::Duration;

/// Largest call into the sandbox: a request of the largest size, and what the executor adds.
/// Runtime and child must agree on it.
pub const CALL_BYTES_MAX: usize = 8 * 1_048_576;
/// Longest path a tool takes, as Linux has it.
/// The kernel's own.
pub const PATH_BYTES_MAX: usize = 4_096;
/// Longest name of one file or folder, as Linux has it.
/// The kernel's own.
pub const NAME_BYTES_MAX: usize = 255;
/// Most folders in one path: bounds the work of creating them.
pub const PATH_DEPTH_MAX: usize = 64;
/// Largest text file that is edited, appended to or patched: all of it is read, and all of it is kept for an undo.
pub const TEXT_FILE_BYTES_MAX: u64 = 3_145_728;
/// Most of a file that one call reads: with its escapes it fits into an answer.
pub const READ_BYTES_MAX: u64 = 262_144;
/// Largest file that is copied: a larger one is a job for a command.
pub const COPY_BYTES_MAX: u64 = 67_108_864;
/// Largest file whose state before and after an action is compared: as large as a native tool can make one.
pub const LOOK_BYTES_MAX: u64 = 67_108_864;
/// Most entries in one listing.
pub const LIST_ENTRIES_MAX: usize = 1_000;
/// Most files and folders that one search or listing looks at.
pub const WALK_ENTRIES_MAX: usize = 20_000;
/// Most files and folders beneath a folder that a person agrees to whose listing is compared; of more, the question says that it is not.
pub const INSIDE_ENTRIES_MAX: usize = 10_000;
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
/// Largest archive that is unpacked, and most content that is packed into one: as large as a native tool can make a file.
pub const ARCHIVE_BYTES_MAX: u64 = 67_108_864;
/// Most files and folders in one archive: each that is unpacked stands in the receipt, so that it can be taken back.
pub const EXTRACT_ENTRIES_MAX: usize = 1_000;
/// Most bytes that are unpacked from one archive: as many as one action may replace, so that taking it back can be undone, too.
pub const EXTRACT_BYTES_MAX: u64 = 134_217_728;
/// How many times its own size may come out of an archive, beyond the first mebibyte: text hardly reaches 20, a bomb 1,000.
pub const EXTRACT_RATIO_MAX: u64 = 200;
/// Longest names of what is unpacked from one archive, all of them together: they stand in the receipt.
pub const EXTRACT_PATHS_BYTES_MAX: usize = 262_144;
/// Most words of one command line.
pub const ARGV_MAX: usize = 256;
/// Longest word of a command line.
pub const ARGV_WORD_BYTES_MAX: usize = 32_768;
/// Longest time of one command.
pub const COMMAND_TIME_MAX: Duration = Duration::from_secs(60);
/// Beginning of a command's output that stands in its result.
pub const OUTPUT_HEAD_BYTES_MAX: usize = 16_384;
/// Most of each of a command's two outputs that is kept, in pieces as it comes; the rest is counted and dropped. Both must
/// fit into `pipeline.stream_bytes_max`.
pub const OUTPUT_KEPT_BYTES_MAX: u64 = 67_108_864;
/// Most text that a preview hands out, of all new contents together: more is for no person to read before deciding.
pub const PREVIEW_TEXT_BYTES_MAX: u64 = 131_072;
/// Largest database that is asked: all of it is read into memory.
pub const SQLITE_FILE_BYTES_MAX: u64 = 33_554_432;
/// Memory that asking a database may take beside the database itself.
pub const SQLITE_HEAP_BYTES_MAX: u64 = 33_554_432;
/// Longest time of one question to a database.
pub const SQLITE_TIME_MAX: Duration = Duration::from_secs(2);
/// Longest statement: more than people and planners write, and little to parse.
pub const SQLITE_SQL_BYTES_MAX: usize = 16_384;
/// Most values for one statement.
pub const SQLITE_ARGS_MAX: usize = 100;
/// Most rows of one answer.
pub const SQLITE_ROWS_MAX: usize = 100;
/// Longest text or bytes of one cell; of more, the beginning is handed out.
pub const SQLITE_CELL_BYTES_MAX: usize = 16_384;
/// Most of all cells together; rows beyond it are left out.
pub const SQLITE_RESULT_BYTES_MAX: usize = 131_072;
/// Longest error text that is diagnosed.
pub const DIAGNOSE_BYTES_MAX: usize = 65_536;
/// Longest title of a notification: a line that a person reads at a glance.
pub const NOTIFY_TITLE_BYTES_MAX: usize = 256;
/// Longest body of a notification: nobody reads more than a screen of it.
pub const NOTIFY_BODY_BYTES_MAX: usize = 4_096;
