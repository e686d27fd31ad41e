//! The bounds of a policy and of what it looks at. Those that a caller can hit are in `docs/limits.md`.

/// Longest chain of roles that inherit from each other: nobody understands a longer one.
/// A policy means the same on every machine.
pub const ROLE_DEPTH_MAX: usize = 16;
/// Longest text of a name, pattern or identifier in a policy; the bound of identifiers everywhere.
/// The bound of identifiers in the published schemas.
pub const NAME_BYTES_MAX: usize = 256;
/// Longest single Cedar rule, in bytes: long enough for a list of a hundred names, short enough for a recursive reader.
/// Keeps a recursive reader within its stack.
pub const CEDAR_RULE_BYTES_MAX: usize = 8_192;
/// Deepest nesting of brackets in one Cedar rule: a reader of the language recurses once a level.
/// Keeps a recursive reader within its stack.
pub const CEDAR_DEPTH_MAX: usize = 24;
/// Most operators in one Cedar rule: a chain of them becomes a tree as deep as the chain is long.
/// Keeps a recursive reader within its stack.
pub const CEDAR_OPERATORS_MAX: usize = 256;

/// Largest compiled form of one pattern of the word list: a counted repetition that explodes is refused here.
/// A policy means the same on every machine.
pub const PATTERN_BYTES_MAX: usize = 262_144;
/// Deepest nesting of one pattern of the word list.
/// Keeps a recursive reader within its stack.
pub const PATTERN_DEPTH_MAX: u32 = 32;

/// Most findings that one inspection records; one is enough to quarantine, and a receipt stays small.
/// The same facts give the same decision on every machine.
pub const FINDINGS_MAX: usize = 32;
/// Most fields whose redactions one inspection records one by one; beyond it they count together.
/// The same facts give the same decision on every machine.
pub const REDACTIONS_RECORDED_MAX: usize = 64;
/// Most hosts, commands or spaces that one inspection collects from parameters; more of them is refused by the gate.
/// The same facts give the same decision on every machine.
pub const TARGETS_MAX: usize = 32;
/// Deepest nesting that the inspection and both redactors follow; what lies deeper is removed, not trusted.
/// The same facts give the same decision on every machine.
pub const VALUE_DEPTH_MAX: usize = 64;
/// Longest reason inside a decision: a line that a person reads.
/// Part of stored receipts.
pub const REASON_BYTES_MAX: usize = 512;
/// Most reasons inside one decision.
/// Part of stored receipts.
pub const REASONS_MAX: usize = 16;

/// Furthest that a request's own time may be from the runtime's clock unless the policy says otherwise, in seconds: five minutes is what clocks of a household differ by.
pub const SKEW_S_DEFAULT: u32 = 300;
/// Furthest that a policy may allow: a day. Beyond that the stated time says nothing.
/// A policy means the same on every machine.
pub const SKEW_S_MAX: u32 = 86_400;
/// When the night begins unless the policy says otherwise, in minutes after midnight: 22:00.
pub const NIGHT_FROM_MINUTE_DEFAULT: u16 = 22 * 60;
/// When the night ends unless the policy says otherwise, in minutes after midnight: 06:00.
pub const NIGHT_UNTIL_MINUTE_DEFAULT: u16 = 6 * 60;

/// Longest text in one parameter of a LOW tool unless the policy says otherwise: as large as a request may be.
pub const TEXT_BYTES_MAX_LOW: usize = 1_048_576;
/// Longest text in one parameter of a MEDIUM tool unless the policy says otherwise: a long document.
pub const TEXT_BYTES_MAX_MEDIUM: usize = 262_144;
/// Longest text in one parameter of a HIGH tool unless the policy says otherwise: what a person can read before saying yes.
pub const TEXT_BYTES_MAX_HIGH: usize = 65_536;

/// Longest time a LOW tool may take unless the policy says otherwise, in milliseconds.
pub const TIMEOUT_MS_LOW: u64 = 4_000;
/// Longest time a MEDIUM tool may take unless the policy says otherwise: stricter than LOW, since it can do more harm in it.
pub const TIMEOUT_MS_MEDIUM: u64 = 3_000;
/// Longest time a HIGH local tool may take unless the policy says otherwise: a person waits, and it is the most dangerous.
pub const TIMEOUT_MS_HIGH: u64 = 2_000;
/// Longest time a call through the egress lane may take unless the policy says otherwise: a slow service still answers.
pub const TIMEOUT_MS_EGRESS: u64 = 30_000;

/// Largest stored result, in bytes of JSON; larger ones are pruned by structure.
/// Part of what receipts promise to learners.
pub const STORED_RESULT_BYTES_MAX: usize = 10_240;
/// Largest single file of a policy directory: thousands of rules fit, and parsing it stays well below a second.
pub const POLICY_FILE_BYTES_MAX: usize = 524_288;
/// Most files in a policy directory: one subject a file is plenty, and a directory is read in one go.
pub const POLICY_FILES_MAX: usize = 64;
/// Largest policy directory, all files together: the whole policy is held in memory, twice while it is reloaded.
pub const POLICY_BYTES_MAX: usize = 1_048_576;
/// Most entries in one table of `policy.toml` (subjects, consents, spaces …): keeps compiling a policy in the milliseconds.
pub const TABLE_ENTRIES_MAX: usize = 10_000;
/// Most entries in one list inside a table (capabilities of a role, words of the word list …).
pub const LIST_ENTRIES_MAX: usize = 1_000;
/// Most Cedar rules in all files together: every evaluation looks at each rule that could apply.
pub const CEDAR_RULES_MAX: usize = 2_000;
/// Most examples in a policy: they run at every load.
pub const EXAMPLES_MAX: usize = 500;
/// Most changes that the command line may lay over a policy directory; beyond that the files want an edit.
pub const OVERLAY_ENTRIES_MAX: usize = 10_000;
