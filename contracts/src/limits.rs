//! Limits of documents and identifiers, each with its reason. `docs/limits.md` lists those that a caller can hit.

/// Longest identifier (action, subject, space, tool, trace …): long enough for any URI a planner uses, short enough to index.
/// Published schemas and keys on disk depend on it.
pub const ID_BYTES_MAX: usize = 256;
/// Longest name of an action that a connector or a database offers: the most that MCP allows for a tool's name.
/// With its source in front it is an identifier.
pub const REMOTE_ACTION_BYTES_MAX: usize = 128;
/// Longest idempotency key: room for a tool id, a path of `PATH_MAX` and some digests.
/// Published schemas and keys on disk depend on it.
pub const IDEMPOTENCY_KEY_BYTES_MAX: usize = 8_192;
/// Largest request, in bytes of JSON: room for a large text file as a parameter.
/// Planner and effectd must agree on it, and what was accepted once must be readable for ever.
pub const REQUEST_BYTES_MAX: usize = 1_048_576;
/// Deepest nesting of a document from outside: far more than honest parameters need, far less than overflows a parser's stack.
/// What was accepted once must be readable for ever.
pub const JSON_DEPTH_MAX: usize = 32;
/// Most values in one document from outside: bounds the memory that a megabyte of `[[],[],…` takes.
/// What was accepted once must be readable for ever.
pub const JSON_NODES_MAX: usize = 65_536;
/// Longest timeout that a caller may ask for: ten minutes; longer work is several actions.
/// Part of the published schemas. The policy sets stricter ones by safety class.
pub const TIMEOUT_MS_MAX: u64 = 600_000;
/// Timeout of a tool whose spec names none.
/// A new value would change what existing specs mean.
pub const TIMEOUT_MS_DEFAULT: u64 = 5_000;
/// Most retries a caller may ask for.
/// Part of the published schemas.
pub const RETRIES_MAX: u32 = 10;
/// Retries of a request that names none: zero, so that nothing is repeated unasked.
/// Part of what a request means.
pub const RETRIES_DEFAULT: u32 = 0;
/// Most capabilities or key fields that one tool may declare: more than any tool needs.
/// Part of the published schemas.
pub const SPEC_LIST_MAX: usize = 64;
/// Most alternatives that a planner may name: a menu, not a catalogue; they are stored in clear.
/// Part of the published schemas.
pub const CANDIDATES_MAX: usize = 64;
/// Most features in the context of a choice: a vector for a learner, not a document; they are stored in clear.
/// Part of the published schemas.
pub const CONTEXT_FEATURES_MAX: usize = 32;
/// Longest name or word in the context of a choice: too short for a sentence or most secrets.
/// Part of the published schemas.
pub const CONTEXT_WORD_BYTES_MAX: usize = 32;
/// Longest reason that a planner gives for an action: an approver reads it.
/// Part of the published schemas.
pub const RATIONALE_BYTES_MAX: usize = 1_024;
/// Most commands, and most paths of one kind, in a contract: a plan of one action, not of a project.
/// Part of the published schemas.
pub const CONTRACT_LIST_MAX: usize = 256;
/// Most items of a batch: as many as the resources that one claim holds.
/// Part of the published schemas.
pub const BATCH_ITEMS_MAX: usize = 64;
/// Longest id of a batch: an identifier with room for the ids of its items.
/// Part of the published schemas.
pub const BATCH_ID_BYTES_MAX: usize = 248;
/// Longest reason in the receipt of a batch, for each item.
/// Part of stored receipts.
pub const BATCH_REASON_BYTES_MAX: usize = 96;
/// Largest contract, in bytes of JSON: with the largest request it still fits into one event.
/// What was accepted once must be readable for ever.
pub const CONTRACT_BYTES_MAX: usize = 65_536;
/// Longest output of one check in the result of a plan: its end, where programs say what is wrong.
/// With the most checks it still fits into one reply.
pub const CHECK_OUTPUT_BYTES_MAX: usize = 4_096;
/// Longest `tracestate`: what the standard requires everybody to propagate. It is stored in clear with the receipt.
/// Part of the published schemas.
pub const TRACESTATE_BYTES_MAX: usize = 512;
/// Most members of a `tracestate`, by the standard.
pub const TRACESTATE_MEMBERS_MAX: usize = 32;
/// Longest filter of receipts: a line that a person types.
/// Command line and daemon must agree on it.
pub const FILTER_BYTES_MAX: usize = 2_048;
/// Most conditions in one filter.
/// Command line and daemon must agree on it.
pub const FILTER_TERMS_MAX: usize = 32;
/// Largest JSON Schema of a tool's parameters or result, in bytes.
/// A spec that is valid on one machine must be valid on every other.
pub const SCHEMA_BYTES_MAX: usize = 65_536;
/// Longest message of a failure: a line that a person reads, not a dump.
/// Part of stored receipts.
pub const FAILURE_MESSAGE_BYTES_MAX: usize = 2_048;
/// Largest reply of a tool, in bytes of JSON: as much as the sandbox lets through.
pub const TOOL_REPLY_BYTES_MAX: usize = 4_194_304;
/// Largest notification, in bytes of JSON: the longest title and body that can be configured, with every character escaped.
/// Tool and runtime must agree on it.
pub const NOTICE_BYTES_MAX: usize = 131_072;
/// Largest path with query and headers of an exchange, in bytes of JSON: what common servers take, twice, since JSON escapes.
/// Tool, daemon and broker must agree on it.
pub const EXCHANGE_HEAD_BYTES_MAX: usize = 32_768;
/// Most headers of an exchange, and most values in its query.
/// Tool, daemon and broker must agree on it.
pub const EXCHANGE_HEADERS_MAX: usize = 64;
/// Largest body that a tool sends in one exchange: as much as a request of a planner.
/// Tool, daemon and broker must agree on it.
pub const EXCHANGE_BODY_BYTES_MAX: usize = 1_048_576;
/// Largest body of an answer, uncompressed: as much as a tool may reply.
/// Tool, daemon and broker must agree on it.
pub const EXCHANGE_ANSWER_BYTES_MAX: usize = 4_194_304;
/// Most exchanges of one call: a few pages of a list, not a crawl.
/// Tools are written against it.
pub const EXCHANGES_MAX: u32 = 16;
/// Longest SQL statement: what a person can still read before a yes.
/// Tool, daemon and broker must agree on it.
pub const SQL_BYTES_MAX: usize = 16_384;
/// Most rows that a statement returns: an answer, not a copy of a table.
/// Tools are written against it.
pub const SQL_ROWS_MAX: usize = 100;
/// Most bytes of one value of a row.
/// Tools are written against it.
pub const SQL_CELL_BYTES_MAX: usize = 16_384;
/// Most bytes of all values of an answer: more than a model reads, and less than the broker keeps without a share of its memory.
/// Tools are written against it.
pub const SQL_RESULT_BYTES_MAX: usize = 131_072;
/// Longest name of a database or of its user: what PostgreSQL keeps of one.
pub const DATABASE_NAME_BYTES_MAX: usize = 63;
/// Most tools that a connector offers: more than a model can choose from, and few enough that a list is quick.
pub const CONNECTOR_TOOLS_MAX: usize = 1_000;
/// Longest description, title or annotations of a tool of a connector, in bytes.
pub const TOOL_WORDS_BYTES_MAX: usize = 8_192;
/// Most arguments of a connector's program, and most folders of programs.
pub const CONNECTOR_ARGS_MAX: usize = 64;
/// Longest argument of a connector's program: the longest path.
pub const CONNECTOR_ARG_BYTES_MAX: usize = 4_096;
/// Most exchanges of one harvest: a thousand tools in pages of twenty, and the greeting.
/// The client of connectors is written against it.
pub const HARVEST_EXCHANGES_MAX: u32 = 64;
/// Time of one harvest, in milliseconds: a person waits for it.
pub const HARVEST_MS_MAX: u64 = 15_000;
/// Most routes of a connection by HTTP.
pub const ROUTES_MAX: usize = 64;
/// Longest path of a route.
pub const ROUTE_BYTES_MAX: usize = 512;
/// Longest id of a user, a channel or a workspace of Slack: they have 9 to 11 characters, and Slack says that this may grow.
pub const SLACK_ID_BYTES_MAX: usize = 32;
/// Longest id of an OAuth client, and longest scope: issuers make shorter ones.
pub const OAUTH_TEXT_BYTES_MAX: usize = 1_024;
/// Most ranges of addresses that a connection allows.
pub const CONNECTION_RANGES_MAX: usize = 16;
/// Largest PEM of a private authority: a chain of a few certificates.
pub const AUTHORITY_BYTES_MAX: usize = 65_536;
/// Longest time of one exchange, from its request to the last byte of its answer.
/// Tools are written against it.
pub const EXCHANGE_MS_MAX: u64 = 30_000;
/// Most signing keys in one log: one a day for some years.
/// A log with more keys cannot be verified.
pub const LOG_KEYS_MAX: usize = 1_000;
/// Most entries in one log: a million a second for nine years.
/// A bundle that claims more is refused.
pub const LOG_ENTRIES_MAX: u64 = 281_474_976_710_656;
/// Files that the disk of the state must still take: with fewer, new work is refused and named commands end.
pub const DISK_FREE_FILES_MIN: u64 = 1_000;
/// Longest name of a plugin's package, and of a file in it: with the source in front it is an identifier that models can use.
pub const PLUGIN_NAME_BYTES_MAX: usize = 56;
/// Largest file of a plugin's package: a script, not a program with its libraries. Each call reads and compares it.
pub const PLUGIN_SCRIPT_BYTES_MAX: usize = 262_144;
/// Largest output of a plugin's script.
/// Packages are written against it.
pub const PLUGIN_OUTPUT_BYTES_MAX: usize = 1_048_576;
/// Most checks of one script that verifies: a person reads them.
pub const PLUGIN_CHECKS_MAX: usize = 64;
