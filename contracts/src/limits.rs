//! The bounds of everything that is said. Those that a caller can hit are in `docs/limits.md`.

/// Longest identifier (action, subject, space, tool, trace …): long enough for any URI a planner uses, short enough to index.
/// Part of the published schemas, and of keys on disk.
pub const ID_BYTES_MAX: usize = 256;
/// Longest idempotency key: a tool id, a path of `PATH_MAX` and some digests fit.
/// Part of the published schemas, and of keys on disk.
pub const IDEMPOTENCY_KEY_BYTES_MAX: usize = 8_192;
/// Largest request, in bytes of JSON: a large text file as a parameter fits; a flood of them is bounded by the backlog.
/// Planner and effectd must agree on it, and what was accepted once must be readable for ever.
pub const REQUEST_BYTES_MAX: usize = 1_048_576;
/// Deepest nesting of a document from outside: far beyond honest parameters, far below what a recursive reader survives.
/// What was accepted once must be readable for ever.
pub const JSON_DEPTH_MAX: usize = 32;
/// Most values in one document from outside: bounds the memory that a megabyte of `[[],[],…` can take.
/// What was accepted once must be readable for ever.
pub const JSON_NODES_MAX: usize = 65_536;
/// Longest wall-clock time a caller may ask for: ten minutes; longer work is several actions.
/// Part of the published schemas; the policy sets stricter ones by safety class.
pub const TIMEOUT_MS_MAX: u64 = 600_000;
/// Wall-clock time of a tool that names none.
/// Part of what a tool's description means.
pub const TIMEOUT_MS_DEFAULT: u64 = 5_000;
/// Most retries a caller may ask for.
/// Part of the published schemas.
pub const RETRIES_MAX: u32 = 10;
/// Retries of a request that names none: none, so that nothing is repeated that nobody asked to repeat.
/// Part of what a request means.
pub const RETRIES_DEFAULT: u32 = 0;
/// Most capabilities, side effects or key fields that one tool may declare.
/// Part of the published schemas.
pub const SPEC_LIST_MAX: usize = 64;
/// Most candidates that a planner may name beside what it chose: a menu, not a catalogue; they are stored in clear.
/// Part of the published schemas.
pub const CANDIDATES_MAX: usize = 64;
/// Longest reason that a planner gives for an action: a person reads it before deciding.
/// Part of the published schemas.
pub const RATIONALE_BYTES_MAX: usize = 1_024;
/// Longest `tracestate`: as much as the standard asks everybody to hand on. It is stored in clear with the receipt.
/// Part of the published schemas.
pub const TRACESTATE_BYTES_MAX: usize = 512;
/// Most members of a `tracestate`, as in the standard.
/// By the standard.
pub const TRACESTATE_MEMBERS_MAX: usize = 32;
/// Longest filter of receipts: a line that a person types.
/// Command line and daemon must agree on it.
pub const FILTER_BYTES_MAX: usize = 2_048;
/// Most conditions in one filter.
/// Command line and daemon must agree on it.
pub const FILTER_TERMS_MAX: usize = 32;
/// Largest JSON Schema of a tool's parameters or result, in bytes.
/// Part of what a tool's description may be, on whatever machine it is registered.
pub const SCHEMA_BYTES_MAX: usize = 65_536;
/// Longest message inside a failure: a line a person reads, not a dump.
/// Part of stored receipts.
pub const FAILURE_MESSAGE_BYTES_MAX: usize = 2_048;
/// Largest answer of a tool, in bytes of JSON: as much as the sandbox lets through.
pub const TOOL_REPLY_BYTES_MAX: usize = 4_194_304;
/// Largest notification in the spool, in bytes of JSON: the longest title and body that can be configured, every character escaped.
/// Tool and runtime must agree on it.
pub const NOTICE_BYTES_MAX: usize = 131_072;
