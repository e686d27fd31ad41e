//! The limits of tools. Those that a caller can hit are in `docs/limits.md`.

use std::time::Duration;

/// Largest call into the sandbox: the largest request, and what the executor adds.
pub const CALL_BYTES_MAX: usize = 8 * 1_048_576;
/// Longest path that a tool takes: the limit of Linux.
pub const PATH_BYTES_MAX: usize = 4_096;
/// Longest name of one file or folder: the limit of Linux.
pub const NAME_BYTES_MAX: usize = 255;
/// Most folders in one path: it bounds the work of creating them.
pub const PATH_DEPTH_MAX: usize = 64;
/// Largest text file that is edited, appended to or patched: the whole file is read, and is the pre-image.
pub const TEXT_FILE_BYTES_MAX: u64 = 3_145_728;
/// Most bytes of a file that one call reads: with JSON escapes they fit into an answer.
pub const READ_BYTES_MAX: u64 = 262_144;
/// Largest file that is copied: a larger one is a job for a command.
pub const COPY_BYTES_MAX: u64 = 67_108_864;
/// Largest file whose state before and after an action is compared: the profile `default` lets none grow larger.
pub const INSPECT_BYTES_MAX: u64 = 67_108_864;
/// Most entries in one listing.
pub const LIST_ENTRIES_MAX: usize = 1_000;
/// Most files and folders that one search or listing visits.
pub const WALK_ENTRIES_MAX: usize = 20_000;
/// Most entries beneath a folder on whose listing an approval depends; with more, the question says that it does not.
pub const TREE_DIGEST_ENTRIES_MAX: usize = 10_000;
/// Deepest folder that a search or listing visits.
pub const WALK_DEPTH_MAX: usize = 32;
/// Most hits of one search.
pub const SEARCH_HITS_MAX: usize = 500;
/// Longest part of a line in a hit.
pub const SEARCH_LINE_BYTES_MAX: usize = 256;
/// Largest file that a search reads; larger ones count as skipped.
pub const SEARCH_FILE_BYTES_MAX: u64 = 1_048_576;
/// Longest pattern of a search.
pub const PATTERN_BYTES_MAX: usize = 1_024;
/// Most files that one patch changes.
pub const PATCH_FILES_MAX: usize = 32;
/// Most hunks in one patch.
pub const PATCH_HUNKS_MAX: usize = 1_024;
/// Largest archive that is unpacked, and most content that is packed into one: the `file_bytes` of the profile `default`.
pub const ARCHIVE_BYTES_MAX: u64 = 67_108_864;
/// Most files and folders in one archive: the receipt lists each that is unpacked, for an undo.
pub const EXTRACT_ENTRIES_MAX: usize = 1_000;
/// Most bytes that are unpacked from one archive: as many as one action may replace, so that its undo can be undone, too.
pub const EXTRACT_BYTES_MAX: u64 = 134_217_728;
/// Largest ratio of unpacked to packed bytes, beyond the first mebibyte: text hardly reaches 20, a zip bomb reaches 1,000.
pub const EXTRACT_RATIO_MAX: u64 = 200;
/// Most bytes of all names in one archive together: they are in the receipt.
pub const EXTRACT_PATHS_BYTES_MAX: usize = 262_144;
/// Most words of one command line.
pub const ARGV_MAX: usize = 256;
/// Longest word of a command line.
pub const ARGV_WORD_BYTES_MAX: usize = 32_768;
/// Longest time of one command.
pub const COMMAND_TIME_MAX: Duration = Duration::from_secs(60);
/// Most of a command's output that is in its result.
pub const OUTPUT_HEAD_BYTES_MAX: usize = 16_384;
/// Most of each of a command's two outputs that is stored; the rest is counted and dropped. Their sum must fit
/// `actors::limits::STREAM_BYTES_MAX`.
pub const OUTPUT_KEPT_BYTES_MAX: u64 = 67_108_864;
/// Most text in a preview, of all new contents together: nobody reads more before deciding.
pub const PREVIEW_TEXT_BYTES_MAX: u64 = 131_072;
/// Largest database that is queried: all of it is read into memory.
pub const SQLITE_FILE_BYTES_MAX: u64 = 33_554_432;
/// Memory for a query, in addition to the database itself.
pub const SQLITE_HEAP_BYTES_MAX: u64 = 33_554_432;
/// Longest time of one query of a database.
pub const SQLITE_TIME_MAX: Duration = Duration::from_secs(2);
/// Longest statement: more than people and planners write, and fast to parse.
pub const SQLITE_SQL_BYTES_MAX: usize = 16_384;
/// Most values for one statement.
pub const SQLITE_ARGS_MAX: usize = 100;
/// Most rows of one answer.
pub const SQLITE_ROWS_MAX: usize = 100;
/// Longest text or bytes of one cell; a longer one is cut.
pub const SQLITE_CELL_BYTES_MAX: usize = 16_384;
/// Most bytes of all cells together; rows beyond it are left out.
pub const SQLITE_RESULT_BYTES_MAX: usize = 131_072;
/// Longest error text that is diagnosed.
pub const DIAGNOSE_BYTES_MAX: usize = 65_536;
/// Longest title of a notification: one line.
pub const NOTIFY_TITLE_BYTES_MAX: usize = 256;
/// Longest body of a notification: about a screen of text.
pub const NOTIFY_BODY_BYTES_MAX: usize = 4_096;
