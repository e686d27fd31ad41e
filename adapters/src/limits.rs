//! The bounds of tools. Each is named in `docs/limits.md`, and a test keeps the two in step.

use std::time::Duration;

/// Largest call into the sandbox: a request of the largest size, and what the executor adds.
/// Fixed: runtime and child must agree on it.
pub const CALL_BYTES_MAX: usize = 8 * 1_048_576;
/// Longest path a tool takes, as Linux has it.
/// Fixed: the kernel's own.
pub const PATH_BYTES_MAX: usize = 4_096;
/// Longest name of one file or folder, as Linux has it.
/// Fixed: the kernel's own.
pub const NAME_BYTES_MAX: usize = 255;

effectd_contracts::bounds! {
    /// Most folders in one path: bounds the work of creating them.
    PATH_DEPTH_MAX: usize = 64, "tools.path_depth_max", 4 ..= 1_024;
    /// Largest text file that is edited, appended to or patched: all of it is read, and all of it is kept for an undo.
    TEXT_FILE_BYTES_MAX: u64 = 3_145_728, "tools.text_file_bytes_max", 4_096 ..= 3_145_728;
    /// Most of a file that one call reads: with its escapes it fits into an answer.
    READ_BYTES_MAX: u64 = 262_144, "tools.read_bytes_max", 4_096 ..= 524_288;
    /// Largest file that is copied: a larger one is a job for a command.
    COPY_BYTES_MAX: u64 = 67_108_864, "tools.copy_bytes_max", 4_096 ..= 67_108_864;
    /// Largest file whose state before and after an action is compared: as large as a native tool can make one.
    LOOK_BYTES_MAX: u64 = 67_108_864, "tools.look_bytes_max", 4_096 ..= 67_108_864;
    /// Most entries in one listing.
    LIST_ENTRIES_MAX: usize = 1_000, "tools.list_entries_max", 16 ..= 10_000;
    /// Most files and folders that one search or listing looks at.
    WALK_ENTRIES_MAX: usize = 20_000, "tools.walk_entries_max", 16 ..= 1_000_000;
    /// Most files and folders beneath a folder that a person agrees to whose listing is compared; of more, the question says that it is not.
    INSIDE_ENTRIES_MAX: usize = 10_000, "tools.inside_entries_max", 0 ..= 1_000_000;
    /// Deepest folder that a search or listing goes down to.
    WALK_DEPTH_MAX: usize = 32, "tools.walk_depth_max", 1 ..= 256;
    /// Most hits of one search.
    SEARCH_HITS_MAX: usize = 500, "tools.search_hits_max", 1 ..= 5_000;
    /// Longest piece of a line that a hit shows.
    SEARCH_LINE_BYTES_MAX: usize = 256, "tools.search_line_bytes_max", 16 ..= 4_096;
    /// Largest file that a search looks into; larger ones are counted as skipped.
    SEARCH_FILE_BYTES_MAX: u64 = 1_048_576, "tools.search_file_bytes_max", 4_096 ..= 67_108_864;
    /// Longest pattern of a search.
    PATTERN_BYTES_MAX: usize = 1_024, "tools.pattern_bytes_max", 16 ..= 16_384;
    /// Most files that one patch changes.
    PATCH_FILES_MAX: usize = 32, "tools.patch_files_max", 1 ..= 1_024;
    /// Most hunks in one patch.
    PATCH_HUNKS_MAX: usize = 1_024, "tools.patch_hunks_max", 1 ..= 65_536;
    /// Largest archive that is unpacked, and most content that is packed into one: as large as a native tool can make a file.
    ARCHIVE_BYTES_MAX: u64 = 67_108_864, "tools.archive_bytes_max", 4_096 ..= 67_108_864;
    /// Most files and folders in one archive: each that is unpacked stands in the receipt, so that it can be taken back.
    EXTRACT_ENTRIES_MAX: usize = 1_000, "tools.extract_entries_max", 1 ..= 1_000;
    /// Most bytes that are unpacked from one archive: as many as one action may replace, so that taking it back can be undone, too.
    EXTRACT_BYTES_MAX: u64 = 134_217_728, "tools.extract_bytes_max", 4_096 ..= 134_217_728;
    /// How many times its own size may come out of an archive, beyond the first mebibyte: text hardly reaches 20, a bomb 1,000.
    EXTRACT_RATIO_MAX: u64 = 200, "tools.extract_ratio_max", 2 ..= 2_000;
    /// Longest names of what is unpacked from one archive, all of them together: they stand in the receipt.
    EXTRACT_PATHS_BYTES_MAX: usize = 262_144, "tools.extract_paths_bytes_max", 1_024 ..= 262_144;
    /// Most words of one command line.
    ARGV_MAX: usize = 256, "tools.argv_max", 1 ..= 4_096;
    /// Longest word of a command line.
    ARGV_WORD_BYTES_MAX: usize = 32_768, "tools.argv_word_bytes_max", 64 ..= 131_072;
    /// Longest time of one command.
    COMMAND_TIME_MAX: Duration = 60_000, "tools.command_time_ms_max", 100 ..= 600_000;
    /// Beginning of a command's output that stands in its result.
    OUTPUT_HEAD_BYTES_MAX: usize = 16_384, "tools.output_head_bytes_max", 256 ..= 262_144;
    /// Most of each of a command's two outputs that is kept, in pieces as it comes; the rest is counted and dropped. Both must
    /// fit into `pipeline.stream_bytes_max`.
    OUTPUT_KEPT_BYTES_MAX: u64 = 67_108_864, "tools.output_kept_bytes_max", 4_096 ..= 536_870_912;
    /// Most text that a preview hands out, of all new contents together: more is for no person to read before deciding.
    PREVIEW_TEXT_BYTES_MAX: u64 = 131_072, "tools.preview_text_bytes_max", 1_024 ..= 262_144;
    /// Largest database that is asked: all of it is read into memory.
    SQLITE_FILE_BYTES_MAX: u64 = 33_554_432, "tools.sqlite_file_bytes_max", 65_536 ..= 67_108_864;
    /// Memory that asking a database may take beside the database itself.
    SQLITE_HEAP_BYTES_MAX: u64 = 33_554_432, "tools.sqlite_heap_bytes_max", 1_048_576 ..= 67_108_864;
    /// Longest time of one question to a database.
    SQLITE_TIME_MAX: Duration = 2_000, "tools.sqlite_time_ms_max", 10 ..= 3_500;
    /// Longest statement: more than people and planners write, and little to parse.
    SQLITE_SQL_BYTES_MAX: usize = 16_384, "tools.sqlite_sql_bytes_max", 256 ..= 524_288;
    /// Most values for one statement.
    SQLITE_ARGS_MAX: usize = 100, "tools.sqlite_args_max", 1 ..= 1_000;
    /// Most rows of one answer.
    SQLITE_ROWS_MAX: usize = 100, "tools.sqlite_rows_max", 1 ..= 100;
    /// Longest text or bytes of one cell; of more, the beginning is handed out.
    SQLITE_CELL_BYTES_MAX: usize = 16_384, "tools.sqlite_cell_bytes_max", 64 ..= 65_536;
    /// Most of all cells together; rows beyond it are left out.
    SQLITE_RESULT_BYTES_MAX: usize = 131_072, "tools.sqlite_result_bytes_max", 4_096 ..= 524_288;
    /// Longest error text that is diagnosed.
    DIAGNOSE_BYTES_MAX: usize = 65_536, "tools.diagnose_bytes_max", 256 ..= 524_288;
    /// Longest title of a notification: a line that a person reads at a glance.
    NOTIFY_TITLE_BYTES_MAX: usize = 256, "tools.notify_title_bytes_max", 16 ..= 1_024;
    /// Longest body of a notification: nobody reads more than a screen of it.
    NOTIFY_BODY_BYTES_MAX: usize = 4_096, "tools.notify_body_bytes_max", 16 ..= 16_384;
}
