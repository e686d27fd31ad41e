//! The bounds of the pipeline. Those that a caller can hit are in `docs/limits.md`.

use std::time::Duration;

/// Fewest workers of a stage that waits for the disk or for a child: with a worker for each action, a group commit has many
/// actions to commit.
pub const WAITING_WORKERS: usize = 256;
/// Workers of a stage that only computes: enough for a few processors.
pub const COMPUTING_WORKERS: usize = 4;
/// How long intake leases a decision. A stage that takes longer without extending the lease loses its action.
pub const LEASE_TTL: Duration = Duration::from_secs(30);
/// Restarts of one actor under the supervisor within [`RESTART_WINDOW`] before the process gives up.
pub const RESTARTS_MAX: usize = 5;
/// The time over which restarts are counted.
pub const RESTART_WINDOW: Duration = Duration::from_secs(60);
/// First pause before a retry.
pub const BACKOFF_FIRST: Duration = Duration::from_millis(50);
/// Each further pause is longer by this factor.
pub const BACKOFF_FACTOR: f64 = 2.0;
/// Random spread of a pause, up and down, as a share of the pause.
pub const BACKOFF_SPREAD: f64 = 0.5;
/// Longest pause between attempts: a caller would rather have the failure than wait longer.
pub const BACKOFF_MAX: Duration = Duration::from_secs(5);
/// Least time for a probe: a run that used up all its time must still be settled.
pub const PROBE_TIME_MIN: Duration = Duration::from_secs(1);
/// The same for a tool whose effect is at a service: the probe makes requests, and looks twice.
pub const PROBE_SERVICE_TIME_MIN: Duration = Duration::from_secs(15);
/// Items of a batch that are claimed ahead of the one that runs, so that their intents share blocks.
pub const BATCH_AHEAD_MAX: usize = 8;
/// Bytes of JSON of all markers of a batch: less than the receipt holds of a result, beyond which texts are cut.
pub const BATCH_MARKS_BYTES_MAX: usize = 10_000;
/// Reasons for an approval of a batch that a person is shown; one more says how many there are beside them.
pub const BATCH_REASONS_MAX: usize = 16;
/// How often an item is handed to the pipeline again, if a worker died with it or it was put off.
pub const BATCH_TRIES: u32 = 5;
/// The same for what undoes an item: minutes, since what is not undone stays.
pub const BATCH_UNDO_TRIES: u32 = 300;
/// Least time for what undoes an item, with all its retries: a disk that is full may have room again in a minute.
pub const BATCH_UNDO_TIME_MIN: Duration = Duration::from_secs(120);
/// Least time for the rollback of a plan: one that used up all its time must still be undone.
pub const ROLLBACK_TIME_MIN: Duration = Duration::from_secs(20);
/// Most files and folders in the scope of a plan for a tool that does not declare its paths: each is a mount and a claim.
pub const SCOPE_PATHS_MAX: usize = 32;
/// Tries to commit a receipt; after that, the action waits for redelivery.
pub const COMMIT_TRIES: u32 = 3;
/// Receipts or dead letters in one page that an erasure reads.
pub const ERASURE_PAGE: usize = 200;
/// Subjects in one erasure, which reads all receipts of each.
pub const ERASURE_SUBJECTS_MAX: usize = 100;
/// Open holds that an erasure lists one by one.
pub const ERASURE_HELD_MAX: usize = 100;
/// How often the sweeper starts a round of retention: a round costs some syncs, and an hour more or less does not matter.
/// `effectd store retain` starts one at any time.
pub const RETAIN_EVERY: Duration = Duration::from_secs(3_600);
/// How much longer than receipts their blobs are kept: a blob is stored before its receipt. Far longer than any action runs.
pub const RETENTION_BLOBS_LONGER: Duration = Duration::from_secs(86_400);
/// How long the result of a tool is kept: a planner that was away for a weekend or a week still gets it.
pub const RESULT_KEPT: Duration = Duration::from_secs(604_800);
/// Bytes of a long text in one part of a result: as much as a short result has.
pub const RESULT_PART_BYTES_MAX: usize = 8_192;
/// Open intents in one page that retention reads.
pub const RETENTION_INTENTS_PAGE: usize = 500;
/// Most lines of two texts, together, that are diffed: the time may grow with the square of the lines.
pub const PREVIEW_DIFF_LINES_MAX: usize = 8_000;
/// Longest search for the smallest diff of two texts; after that, the preview shows a larger one.
pub const PREVIEW_DIFF_TIME_MAX: Duration = Duration::from_millis(200);
/// Longest time for all diffs of one preview; it leaves out the others and says so.
pub const PREVIEW_DIFFS_TIME_MAX: Duration = Duration::from_millis(1_000);
/// Schemas inside the schema of a tool: far more than a person writes.
pub const SUBSCHEMAS_MAX: usize = 1_000;
/// How deep schemas may be nested.
pub const SCHEMA_DEPTH_MAX: usize = 32;
/// Most work for listing the violations of a schema, in schemas times values. Beyond it the failure names no place.
pub const VIOLATIONS_COST_MAX: usize = 250_000;
/// Largest reward weight that can be set: a larger one would drown all others.
pub const WEIGHT_MAX: f64 = 10.0;
/// How long a change of the signing key waits until everything that the old key signed is on disk; nobody can sign meanwhile.
/// Writing takes milliseconds; if it takes longer than this, the disk is failing, and the key can be changed later.
pub const KEY_CHANGE_WAIT_MAX: Duration = Duration::from_secs(10);
/// Amendments of one receipt that are read, the earliest first: later ones cannot displace them.
pub const AMENDMENTS_MAX: usize = 1_000;
/// Children that may be in their first [`START_TIME_MAX`] at once, for each processor: many of them wait for the disk. One
/// subject gets at most two thirds of these starts.
pub const STARTS_PER_CORE: usize = 3;
/// Decisions on the bus that are read at most to find the pending ones.
pub const OPEN_LOOKED_AT_MAX: u64 = 100_000;
/// Pending decisions that an operator sees one by one.
pub const OPEN_TOLD_MAX: usize = 100;
/// The window of budgets.
pub const BUDGET_WINDOW: Duration = Duration::from_secs(86_400);
/// Dead letters in one page, read to count the quarantined requests that are kept for review.
pub const QUARANTINED_PAGE: usize = 64;
/// How often the quarantined requests are counted again for a subject without room, which reads all dead letters. So a release
/// makes room after this time at the latest.
pub const QUARANTINED_RECOUNT: Duration = Duration::from_secs(60);
/// Longest reason for quarantining an artifact: one line for people.
pub const QUARANTINE_REASON_BYTES_MAX: usize = 1_024;
/// Undeclared changes of one action that its receipt names; a message counts the rest.
pub const UNDECLARED_NAMED_MAX: usize = 32;
/// Calls that are remembered with what they declare, as long as a call that overlapped them is active. A call that overlaps more
/// than these is not judged. Far more than are active at one time.
pub const ACTIVE_CALLS_MAX: usize = 4_096;
/// Artifacts of one run that are kept: each is an open file while the tool runs, and the receipt names each.
pub const STREAMS_MAX: usize = 8;
/// How long a requested grant waits for an approver: approvers look at least once a day.
pub const GRANT_REQUEST_WAIT_MAX: Duration = Duration::from_secs(86_400);
/// Notifications, or receipts of the notifying tool, in one page.
pub const NOTIFICATIONS_PAGE: usize = 64;
/// Changes that a preview lists; the others are counted.
pub const PREVIEW_CHANGES_MAX: usize = 128;
/// Bytes of diff text in one preview, which a person reads before deciding. The hold stores it, sealed.
pub const PREVIEW_DIFF_BYTES_MAX: u64 = 32_768;
/// Previews at once: each takes a sandbox, and executions need sandboxes as well.
pub const PREVIEWS_MAX: usize = 4;
/// Previews of one subject at once, so that the others always find a slot.
pub const PREVIEWS_SUBJECT_MAX: usize = 2;
/// How long a preview waits for a slot before its caller gets `overloaded`: shorter than the time limit of a stage.
pub const PREVIEW_WAIT_MAX: Duration = Duration::from_secs(10);
/// Violations of a schema that one failure names.
pub const VIOLATIONS_MAX: usize = 16;
/// How long a decision waits before it is delivered again after its worker died.
pub const REDELIVERY_DELAY: Duration = Duration::from_millis(50);
/// How long a stop waits for the actors, and then for the last children.
pub const STOP_MAX: Duration = Duration::from_secs(5);
/// Most bytes of pre-images of one undoable action: half of a space's quota, so that two such actions fit.
pub const PREIMAGE_BYTES_MAX: u64 = 134_217_728;
/// Most bytes that one run may stream out beside its reply; a run with more ends with `output_limit`.
pub const STREAM_BYTES_MAX: u64 = 268_435_456;
/// Pieces of a stream, 64 KiB each, that may wait in memory; then the sender waits.
pub const STREAM_PIECES_WAITING: usize = 4;
/// Most bytes of pre-images stored while the claim is being written: each waiting action holds that much in memory at most.
pub const PREIMAGE_EARLY_BYTES_MAX: u64 = 65_536;
/// Most bytes of pre-images in an intent: then only the intent must be on disk before the tool runs.
pub const INTENT_CONTENTS_BYTES_MAX: usize = 4_096;
/// Receipts in the cache that answers repeated requests quickly: a few kilobytes each.
pub const RECENT_RECEIPTS_MAX: usize = 256;
/// The `retry_after` of a call that a half-open or releasing breaker refuses, since as many as it allows are in flight.
pub const BREAKER_TRY_AGAIN: Duration = Duration::from_secs(1);
/// Breakers in all. Requests choose keys, so a new key replaces an idle breaker. Those of tools and of operators may exceed it.
pub const BREAKERS_MAX: usize = 1_024;
/// Breakers that one subject may name: one for each service that it depends on, and few enough that many subjects find room.
pub const BREAKERS_SUBJECT_MAX: usize = 16;
/// Keys of one kind that a rate distinguishes: beyond it, new keys share one rate until old ones are idle.
pub const RATE_KEYS_MAX: usize = 16_384;
/// The window in which a session's actions are counted.
pub const SESSION_WINDOW: Duration = Duration::from_secs(60);
/// Automations in all, archived ones too: each is an entry of the Store and a file.
pub const AUTOMATIONS_MAX: usize = 10_000;
/// Automations in one page.
pub const AUTOMATIONS_PAGE: usize = 500;
/// Largest definition of an automation: 64 steps with a prompt of some kilobytes each.
pub const DEFINITION_BYTES_MAX: usize = 262_144;
/// Longest reserved call. A template that its author can read takes milliseconds.
pub const RESERVED_TIME_MAX: Duration = Duration::from_millis(1_000);
/// Processor time of a reserved call, in milliseconds.
pub const RESERVED_CPU_MS: u64 = 1_000;
/// Memory of a reserved call: several times the longest text that it may make.
pub const RESERVED_MEMORY_BYTES_MAX: u64 = 33_554_432;
/// Sessions in all, ended ones too: they share the Store's entries with approvals and grants, and each is sealed again every hour.
pub const SESSIONS_MAX: usize = 10_000;
/// Sessions of one subject, ended ones too: each may hold actions, and no planner takes the room of all others.
pub const SESSIONS_SUBJECT_MAX: usize = 1_000;
/// Longest title of a session: one line for people.
pub const SESSION_TITLE_BYTES_MAX: usize = 256;
/// Connections that one session may use.
pub const SESSION_CONNECTIONS_MAX: usize = 64;
/// Sessions in one page.
pub const SESSIONS_PAGE: usize = 500;
/// How long the record of a deleted session is kept: far longer than an action in flight takes.
pub const SESSION_DELETED_KEPT: Duration = Duration::from_secs(3_600);
/// Connections of one organisation: those that are enabled are in memory.
pub const CONNECTIONS_MAX: usize = 1_000;
/// Connections or secrets in one page.
pub const CONNECTIONS_PAGE: usize = 500;
/// Tools that are no connector's and about which operators say something: each is looked at whenever connections change.
pub const TOOL_OVERLAYS_MAX: usize = 1_000;
/// Hosts of one connection: a service has a few.
pub const CONNECTION_HOSTS_MAX: usize = 64;
/// Longest name of a host, by the standard.
pub const HOST_BYTES_MAX: usize = 253;
/// Secrets of one connection.
pub const CONNECTION_SECRETS_MAX: usize = 16;
/// Secrets of one organisation: each is sealed again every hour.
pub const SECRETS_MAX: usize = 1_000;
/// Longest name of a secret.
pub const SECRET_NAME_BYTES_MAX: usize = 64;
/// Largest value of a secret: a key with its certificates.
pub const SECRET_BYTES_MAX: usize = 16_384;
/// Tokens of the accounts of one organisation: a person or a service has a few.
pub const TOKENS_ORG_MAX: usize = 1_000;
/// Tokens of one session: one is in use, and another follows it.
pub const TOKENS_SESSION_MAX: usize = 4;
/// Tokens in one page: 500 records take some hundred KiB of memory.
pub const TOKENS_PAGE: usize = 500;
/// Longest name of an account: an address for mail is shorter.
pub const ACCOUNT_BYTES_MAX: usize = 128;
/// Tries to count a session's action against concurrent ones; after that, the action passes uncounted.
pub const SESSION_TRIES: u32 = 32;
/// Longest body of a request that a preview shows: more than anybody reads before a decision.
pub const REQUEST_TEXT_BYTES_MAX: usize = 65_536;
/// Longest time of a test of a connection, in milliseconds: a person waits for it.
pub const TEST_MS_MAX: u64 = 10_000;
/// Longest exchange with a token endpoint, in milliseconds: the calls of its connection wait for it.
pub const TOKEN_MS_MAX: u64 = 15_000;
/// Largest answer of a token endpoint: two tokens and some words about them.
pub const TOKEN_ANSWER_BYTES_MAX: usize = 65_536;
/// An access token that ends sooner than this is refreshed first: it must be valid until its request has arrived, by another clock.
pub const TOKEN_LEFT_MIN: Duration = Duration::from_secs(60);
/// How long an access token is used whose endpoint does not say how long it is valid. Few are valid for less.
pub const TOKEN_VALID: Duration = Duration::from_secs(300);
/// Longest time for which an access token is used, whatever its endpoint says: one that was taken back is found out each day.
pub const TOKEN_VALID_MAX: Duration = Duration::from_secs(86_400);
/// Longest name of a connection by HTTP, which is part of the ids of its tools.
pub const HTTP_NAME_BYTES_MAX: usize = 32;
/// Actions that may wait for services at the same time: the others find their slots, and the broker carries as many exchanges.
pub const EGRESS_PLACES: usize = 64;
/// Places of one organisation, so that a slow service of one does not keep the others out.
pub const EGRESS_PLACES_OF_ORG: usize = 16;
/// Longest time that a service may ask effectd to wait.
pub const RETRY_AFTER_MAX: Duration = Duration::from_secs(3_600);
/// MCP servers of one organisation: more tools than theirs no model can choose from.
pub const CONNECTORS_MAX: usize = 20;
/// Time of one call of an MCP server's tool: 15 s to list its tools, and 30 s for the call.
pub const CONNECTOR_CALL_MS: u64 = 45_000;
/// Largest list of tools that is stored, in bytes of JSON: an entry of the Store holds no more.
pub const HARVEST_BYTES_MAX: usize = 1_048_576;
/// From this many bytes on, the comparison of a tool with its reviewed description has [`TOOL_DIFF_TIME_MAX`]: smaller ones are
/// always compared finely.
pub const TOOL_DIFF_TIMED_BYTES_MIN: usize = 8_192;
/// Longest comparison of one tool with its reviewed description: a page has a thousand of them.
pub const TOOL_DIFF_TIME_MAX: Duration = Duration::from_millis(10);
/// How often an MCP server is asked for its tools.
pub const HARVEST_EVERY: Duration = Duration::from_secs(86_400);
/// How long after a failure it is asked again.
pub const HARVEST_AGAIN: Duration = Duration::from_secs(3_600);
/// Webhooks of one organisation: each sends one event at a time, so they take at most half of the organisation's places.
pub const WEBHOOKS_MAX: usize = 8;
/// Webhooks that send at the same time, over all organisations: half of the places, so that dead services leave the rest to tools.
pub const WEBHOOKS_SENDING: usize = 32;
/// Deliveries of one event by a webhook until it is a dead letter: with these pauses, about two hours.
pub const WEBHOOK_DELIVERIES_MAX: u32 = 10;
/// The pause after the first failed delivery of a webhook.
pub const WEBHOOK_BACKOFF_FIRST: Duration = Duration::from_secs(1);
/// How much longer each further pause of a webhook is, up to [`RETRY_AFTER_MAX`].
pub const WEBHOOK_BACKOFF_FACTOR: u32 = 3;
/// Shortest pause of a webhook, whatever its service asks for.
pub const WEBHOOK_RETRY_MIN: Duration = Duration::from_millis(100);
/// How long a service may take for one event, in milliseconds.
pub const WEBHOOK_MS_MAX: u64 = 15_000;
/// How long an event is leased to a webhook: longer than the start of a broker, the exchange and what the daemon waits for its report.
pub const WEBHOOK_LEASE: Duration = Duration::from_secs(60);
/// Events that a webhook looks at in one go, before it stores how far it is.
pub const WEBHOOK_PAGE: usize = 64;
/// Users of Slack that are accounts of one organisation.
pub const SLACK_USERS_MAX: usize = 1_000;
/// Longest text of one block of a message in Slack, in characters: Slack takes 2,000 of a field, and 3,000 of a section.
pub const SLACK_TEXT_CHARS_MAX: usize = 1_900;
/// Blocks of a message that show parameters and diffs: an answer has all of them again, in [`SLACK_BYTES_MAX`].
pub const SLACK_BLOCKS_MAX: usize = 10;
/// How much older or newer than now an answer from Slack may be: Slack's own advice against answers that come again.
pub const SLACK_AGE_MAX: Duration = Duration::from_secs(300);
/// Largest answer from Slack: it has the message, whose blocks are bounded, in JSON and percent-encoded.
pub const SLACK_BYTES_MAX: usize = 262_144;
/// Longest wait for a decision before Slack gets its answer: after 3 s, it tells the person that something is wrong.
pub const SLACK_ANSWER_MAX: Duration = Duration::from_secs(2);
/// The `retry_after` of the failure `overloaded`.
pub const OVERLOAD_RETRY: Duration = Duration::from_secs(1);
/// Decisions from the bus that wait in memory for a slot: the fair queue chooses among them.
pub const AHEAD_MAX: usize = 768;
/// Decisions of one subject among those that wait: its others are deferred, so that intake leases those of other subjects.
pub const AHEAD_SUBJECT_MAX: usize = 192;
/// Begun actions whose delivery was given back, and which intake has not seen again.
pub const INTERRUPTED_MAX: usize = 4_096;
/// Starts a second that a subject is assumed to get until its starts were counted. Rather too high: a decision that returns too
/// early is only deferred again.
pub const SURPLUS_RATE_FIRST: u32 = 2_500;
/// Lowest rate of starts a second by which deferred decisions of one subject return: only slow actions start less often.
pub const SURPLUS_RATE_MIN: u32 = 200;
/// Longest deferral of a decision whose subject has too many; a very long backlog raises it.
pub const SURPLUS_TIME_MAX: Duration = Duration::from_secs(20);
/// How long a child counts as starting: a child that takes longer waits for something other than a processor.
pub const START_TIME_MAX: Duration = Duration::from_millis(50);
/// Budgets in memory before those whose window has ended are removed.
pub const BUDGETS_MAX: usize = 16_384;
/// How often one action may be requeued: finding its latest decision takes a lookup for each requeue.
pub const REQUEUES_MAX: u32 = 100;
/// Bytes of quarantined requests of one subject that are kept for review.
pub const QUARANTINED_BYTES_MAX: u64 = 16_777_216;
/// Equal requests that may join one hold.
pub const HELD_MEMBERS_MAX: usize = 64;
/// How often a person may be asked about one action again because it had changed after the approval.
pub const HELD_ROUNDS_MAX: u32 = 8;
/// How long a decision about a hold can be looked up; its receipt is kept longer.
pub const HELD_PAST_KEPT: Duration = Duration::from_secs(86_400);
/// Holds or grants in one page: each may contain a request of a megabyte.
pub const HELD_PAGE: usize = 100;
/// Workers of the approval stage: one for each action, since some wait for a preview.
pub const HOLD_WORKERS: usize = 256;
/// How often one action may be approved in all: finding its latest decision takes a lookup for each approval.
pub const APPROVALS_MAX: u32 = 100;
/// Longest reason that a person gives: the receipt contains it.
pub const REASON_BYTES_MAX: usize = 1_024;
/// Grants in all: every action that needs an approval reads all of them.
pub const GRANTS_MAX: usize = 1_000;
/// Grants that one principal may have requested and that are not in force yet. A session with as many gets no more by its agent's request
/// alone.
pub const GRANT_REQUESTS_MAX: usize = 10;
/// Receipts that are read to count the past approvals that a standing approval would have replaced.
pub const ASKS_LOOKED_AT_MAX: usize = 1_000;
/// How long a notification waits for a desktop: an older one would only puzzle the user.
pub const NOTIFICATION_WAIT_MAX: Duration = Duration::from_secs(600);
/// How often a waiting notification checks for a desktop: each check costs one connection.
pub const NOTIFICATION_RETRY: Duration = Duration::from_secs(1);
/// How long the session bus may take to answer, as in other D-Bus libraries: it may have to start the notification service first.
pub const BUS_TIME_MAX: Duration = Duration::from_secs(25);

/// Most files and folders beneath the paths that a named command may change: each is in the intent and the receipt.
pub const COMMAND_PATHS_MAX: usize = 1_000;
/// Most files and folders in a folder that is moved in a space with protected paths: all are compared with those.
pub const MOVED_ENTRIES_MAX: usize = 65_536;
/// Most changes in a receipt: what an archive may unpack, with its folders and those above it. With their digests they fit into
/// one record of the Store.
pub const CHANGES_MAX: usize = 2_064;
/// Most bytes of the paths of these changes, for the same reason.
pub const CHANGE_PATHS_BYTES_MAX: usize = 262_144;
/// Flips of a candidate policy that are listed one by one: as many as a person reads.
pub const SHADOW_FLIPS_MAX: usize = 50;
/// Actions that a candidate policy has judged and that are remembered, so that one that is delivered again counts once: many more than
/// are in flight.
pub const SHADOW_ACTIONS_MAX: usize = 4_096;
/// Groups of flips of a candidate policy. Beyond them a flip is only counted; the tools and the verdicts make fewer.
pub const SHADOW_GROUPS_MAX: usize = 500;
/// Most programs of connectors that run for later calls: with their zygotes they are half of those that the sandbox may have.
pub const STDIO_PROGRAMS_MAX: usize = 8;
/// Those of one organisation: half of them, so that another one finds room.
pub const STDIO_PROGRAMS_OF_ORG: usize = 4;
/// How long such a program stays without a call.
pub const STDIO_IDLE_MAX: Duration = Duration::from_secs(300);
/// How long a program may take to end by itself.
pub const STDIO_STOP_TIME_MAX: Duration = Duration::from_millis(200);
/// Memory of such a program, all its processes together: what Node.js takes before it thinks of collecting garbage.
pub const STDIO_MEMORY_BYTES_MAX: u64 = 1_073_741_824;
/// Bytes that such a program may write to its standard output in its life.
pub const STDIO_BYTES_MAX: u64 = 268_435_456;
/// Longest note of a call for the next one.
pub const STDIO_NOTE_BYTES_MAX: usize = 1_024;
/// Most plugins: each is a tool in every list, and a person has looked at it.
pub const PLUGINS_MAX: usize = 256;
