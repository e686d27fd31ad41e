//! Limits of a policy and of inspections, each with its reason. `docs/limits.md` lists those that a caller can hit.

/// Longest chain of roles that inherit from each other: nobody understands a longer one.
pub const ROLE_DEPTH_MAX: usize = 16;
/// Longest name, pattern or identifier in a policy: the limit of identifiers in the published schemas.
pub const NAME_BYTES_MAX: usize = 256;
/// Longest Cedar rule, in bytes: room for a list of a hundred names, without overflowing the stack of a recursive parser.
pub const CEDAR_RULE_BYTES_MAX: usize = 8_192;
/// Deepest nesting of brackets, and most `if`s and conditions, in one Cedar rule: the parser and the evaluator recurse once a level.
pub const CEDAR_DEPTH_MAX: usize = 24;
/// Stack that Cedar has at least: without optimisation, a rule within these bounds needs more than a thread's usual two mebibytes.
pub const CEDAR_STACK_BYTES: usize = 4 * 1_024 * 1_024;
/// Most operators in one Cedar rule: a chain of them becomes a tree as deep as the chain is long, and the parser recurses.
pub const CEDAR_OPERATORS_MAX: usize = 256;

/// Largest compiled form of one pattern of the word list: refuses counted repetitions that explode.
pub const PATTERN_BYTES_MAX: usize = 262_144;
/// Deepest nesting of one pattern of the word list: the parser recurses once a level.
pub const PATTERN_DEPTH_MAX: u32 = 32;

/// Most findings that one inspection records: one is enough to quarantine, and a receipt stays small.
pub const FINDINGS_MAX: usize = 32;
/// Most fields whose redactions one inspection records one by one; it counts those of further fields together.
pub const REDACTIONS_RECORDED_MAX: usize = 64;
/// Most hosts, commands or spaces that one inspection collects; the safety gate quarantines parameters with more.
pub const TARGETS_MAX: usize = 32;
/// Longest text of a public parameter that rules can use, in bytes: the longest path.
pub const PARAM_BYTES_MAX: usize = 4_096;
/// Deepest nesting that inspection, removal of secrets and pruning follow; they remove deeper values.
pub const VALUE_DEPTH_MAX: usize = 64;
/// Longest reason of a decision: a line that a person reads, stored in the receipt.
pub const REASON_BYTES_MAX: usize = 512;
/// Most reasons of one decision, which the receipt stores.
pub const REASONS_MAX: usize = 16;

/// Default of the largest difference between a request's own time and the runtime's clock, in seconds: household clocks differ
/// by up to five minutes.
pub const SKEW_S_DEFAULT: u32 = 300;
/// The largest such difference that a policy may allow, in seconds: beyond a day, the request's time says nothing.
pub const SKEW_S_MAX: u32 = 86_400;
/// Default of when the night begins, in minutes after midnight: 22:00.
pub const NIGHT_FROM_MINUTE_DEFAULT: u16 = 22 * 60;
/// Default of when the night ends, in minutes after midnight: 06:00.
pub const NIGHT_UNTIL_MINUTE_DEFAULT: u16 = 6 * 60;

/// Default of the longest text in a parameter of a LOW tool: as large as a request may be.
pub const TEXT_BYTES_MAX_LOW: usize = 1_048_576;
/// Default of the longest text in a parameter of a MEDIUM tool: a long document.
pub const TEXT_BYTES_MAX_MEDIUM: usize = 262_144;
/// Default of the longest text in a parameter of a HIGH tool: what a person can read before approving.
pub const TEXT_BYTES_MAX_HIGH: usize = 65_536;

/// Default timeout of a LOW tool, in milliseconds: four seconds.
pub const TIMEOUT_MS_LOW: u64 = 4_000;
/// Default timeout of a MEDIUM tool: shorter than LOW, since it can do more harm in that time.
pub const TIMEOUT_MS_MEDIUM: u64 = 3_000;
/// Default timeout of a HIGH local tool: the shortest, since it is the most dangerous.
pub const TIMEOUT_MS_HIGH: u64 = 2_000;
/// Default timeout of a network call: enough for a slow service.
pub const TIMEOUT_MS_EGRESS: u64 = 30_000;

/// Most named commands: each is a table that a person has written.
pub const COMMANDS_MAX: usize = 256;
/// Most words of a named command: a person writes them.
pub const COMMAND_WORDS_MAX: usize = 64;
/// Most paths in one list of a named command: each is a mount.
pub const COMMAND_PATHS_MAX: usize = 16;
/// Default time of a named command, in seconds: what `command.run` declares.
pub const COMMAND_TIMEOUT_S_DEFAULT: u64 = 60;
/// Longest time of a named command, in seconds: the longest deadline of any call.
pub const COMMAND_TIMEOUT_S_MAX: u64 = 600;
/// Default memory of a named command, in MiB: that of the sandbox profile `exec`.
pub const COMMAND_MEMORY_MIB_DEFAULT: u64 = 1_024;
/// Least memory of a named command, in MiB: below this, few programs start.
pub const COMMAND_MEMORY_MIB_MIN: u64 = 16;
/// Most memory of a named command, in MiB: 64 GiB, that of a large build.
pub const COMMAND_MEMORY_MIB_MAX: u64 = 65_536;

/// Largest stored result, in bytes of JSON; larger ones are pruned. Learners rely on it.
pub const STORED_RESULT_BYTES_MAX: usize = 10_240;
/// Largest file of a policy directory: room for thousands of rules, parsed in well below a second.
pub const POLICY_FILE_BYTES_MAX: usize = 524_288;
/// Most files in a policy directory: enough to split the rules as a person likes.
pub const POLICY_FILES_MAX: usize = 64;
/// Largest policy directory, all files together: the policy is in memory, twice during a reload.
pub const POLICY_BYTES_MAX: usize = 1_048_576;
/// Most entries in one table of `policy.toml` (subjects, consents, spaces …), so that a policy compiles in milliseconds.
pub const TABLE_ENTRIES_MAX: usize = 10_000;
/// Most entries in one list of a table (capabilities of a role, words …), so that a policy compiles in milliseconds.
pub const LIST_ENTRIES_MAX: usize = 1_000;
/// Most Cedar rules in all files together: a decision evaluates each rule that could apply.
pub const CEDAR_RULES_MAX: usize = 2_000;
/// Most examples in a policy: they are checked at every load.
pub const EXAMPLES_MAX: usize = 500;
/// Most faults of a policy that are told at once: as many as a person mends in one go.
pub const FAULTS_MAX: usize = 32;
/// Most changes in the overlay; for more, edit the files.
pub const OVERLAY_ENTRIES_MAX: usize = 10_000;
