//! The bounds of the pipeline. Those that a caller can hit are in `docs/limits.md`.

use std::time::Duration;

/// Fewest workers of a stage that waits for the disk or for a child: with one for each action, group commit has groups to
/// commit.
pub const WAITING_WORKERS: usize = 256;
/// Workers of a stage that only computes.
pub const COMPUTING_WORKERS: usize = 4;
/// How long intake holds a decision before it goes to someone else; running work extends it. A stage that does not get on
/// for this long loses what it has in hand.
pub const LEASE_TTL: Duration = Duration::from_secs(30);
/// Restarts of one plain actor within [`RESTART_WINDOW`] before the process gives up.
pub const RESTARTS_MAX: usize = 5;
/// The time over which restarts are counted.
pub const RESTART_WINDOW: Duration = Duration::from_secs(60);
/// First pause before a passing failure is tried again.
pub const BACKOFF_FIRST: Duration = Duration::from_millis(50);
/// By how much each further pause is longer.
pub const BACKOFF_FACTOR: f64 = 2.0;
/// How far a pause is spread at random, up and down, as a share of it.
pub const BACKOFF_SPREAD: f64 = 0.5;
/// Longest pause: beyond this a caller with patience left would rather be told.
pub const BACKOFF_MAX: Duration = Duration::from_secs(5);
/// Time that a probe has in any case: a run that used up its own must still be settled.
pub const PROBE_TIME_MIN: Duration = Duration::from_secs(1);
/// Tries to write a receipt before the action is left to redelivery.
pub const COMMIT_TRIES: u32 = 3;
/// Receipts and dead letters that an erasure reads at once.
pub const ERASURE_PAGE: usize = 200;
/// Subjects that are erased together: each has its receipts read through.
pub const ERASURE_SUBJECTS_MAX: usize = 100;
/// Questions that wait for a person, told one by one to who erases their subject.
pub const ERASURE_HELD_MAX: usize = 100;
/// How often the sweeper begins to let go of what is kept no longer: each time costs some syncs, and hours do not matter.
/// `effectd store retain` does it at any time.
pub const RETAIN_EVERY: Duration = Duration::from_secs(3_600);
/// How much longer than receipts what they name is kept: it is stored before the action's receipt is, and an action may run
/// long.
/// Far longer than any action runs.
pub const RETENTION_BLOBS_LONGER: Duration = Duration::from_secs(86_400);
/// Actions under way that retention looks at in one go.
pub const RETENTION_INTENTS_PAGE: usize = 500;
/// Most lines of two texts, together, between which a difference is looked for: it may take the square of that.
pub const PREVIEW_DIFF_LINES_MAX: usize = 8_000;
/// Longest search for the smallest difference between two texts; after that a larger one is shown.
pub const PREVIEW_DIFF_TIME_MAX: Duration = Duration::from_millis(200);
/// Longest time for the differences of all texts of one preview; those that are left then are left out, and the question says so.
pub const PREVIEW_DIFFS_TIME_MAX: Duration = Duration::from_millis(1_000);
/// Schemas inside the schema of a tool's parameters or result: far more than a person writes.
pub const SUBSCHEMAS_MAX: usize = 1_000;
/// How deep they may be nested.
pub const SCHEMA_DEPTH_MAX: usize = 32;
/// Cost of listing the violations of a schema, in schemas times values. Beyond it the failure names none of them.
pub const VIOLATIONS_COST_MAX: usize = 250_000;
/// Largest weight that can be set: beyond it, everything else is noise.
pub const WEIGHT_MAX: f64 = 10.0;
/// Signing keys that a log may have had: one a day for some years.
pub const KEYS_MAX: usize = 1_000;
/// How long the change to another signing key waits for what the old one has signed to be written; everybody else who signs
/// waits as long.
/// Writing takes milliseconds; beyond this the disk is in trouble, and a key can be changed later.
pub const KEY_CHANGE_WAIT_MAX: Duration = Duration::from_secs(10);
/// Amendments of one receipt that are looked at.
/// What was said first about a receipt is not pushed out by what comes later.
pub const AMENDMENTS_MAX: usize = 1_000;
/// Findings that a check of the log names one by one; beyond it they are counted.
pub const FINDINGS_MAX: usize = 1_000;
/// Intents without a receipt that a check of the log keeps in mind at one time: far more than may be on their way.
pub const OPEN_MAX: usize = 1_000_000;
/// Entries that a log can have: a million a second for nine years.
/// A bundle from elsewhere that claims more entries is refused.
pub const LOG_ENTRIES_MAX: u64 = 281_474_976_710_656;
/// Heads that a check of the log compares: one a minute for two months; the rest is covered by later ones.
pub const HEADS_MAX: usize = 100_000;
/// Quality of a tool that reports none.
/// Part of the formula of rewards, which has a version.
pub const QUALITY_DEFAULT: f64 = 0.5;
/// Children that may be in their first [`START_TIME_MAX`] at once, for each processor: many of them wait for the disk. One subject may
/// have two thirds of them.
pub const STARTS_PER_CORE: usize = 3;
/// Decisions on the bus that are looked at to find the open ones among them.
pub const OPEN_LOOKED_AT_MAX: u64 = 100_000;
/// Open decisions that are told one by one.
pub const OPEN_TOLD_MAX: usize = 100;
/// The window of budgets.
pub const BUDGET_WINDOW: Duration = Duration::from_secs(86_400);
/// Dead letters that are read at once to count what is held for review.
pub const QUARANTINED_PAGE: usize = 64;
/// How often what is held for review is counted anew because a subject has no room left: all dead letters are looked at for it.
/// Longest wait of a release or a shred for room.
pub const QUARANTINED_RECOUNT: Duration = Duration::from_secs(60);
/// Longest reason for taking an artifact aside: a line for people.
/// Part of what is stored.
pub const QUARANTINE_REASON_BYTES_MAX: usize = 1_024;
/// Undeclared changes of one action that its receipt names one by one; a message counts the rest.
pub const UNDECLARED_NAMED_MAX: usize = 32;
/// Actions that are remembered, with what they declare, as long as others are at work that began before they ended: whoever has more of
/// them beside it is not judged.
/// Far more than are at work at a time.
pub const AT_WORK_MAX: usize = 4_096;
/// Most long outputs of one run that are kept: each is a file that is open while the tool runs.
/// A receipt names each of them.
pub const STREAMS_MAX: usize = 8;
/// How long a request for a grant waits for an approver: approvers look at least once a day.
pub const GRANT_REQUEST_WAIT_MAX: Duration = Duration::from_secs(86_400);
/// Receipts of notifications that are taken up in one step.
pub const NOTIFICATIONS_PAGE: usize = 64;
/// Most changes that a preview lists; the others are counted.
pub const PREVIEW_CHANGES_MAX: usize = 128;
/// Most text of differences in one preview: what a person reads before deciding. It is kept, sealed, with the question.
pub const PREVIEW_DIFF_BYTES_MAX: u64 = 32_768;
/// Actions that are tried out on a copy at once, in all: each takes a sandbox, and who is being carried out needs some, too.
pub const PREVIEWS_MAX: usize = 4;
/// Those of one subject among them: the others always find a turn.
pub const PREVIEWS_SUBJECT_MAX: usize = 2;
/// How long a preview waits for a place before its caller gets `overloaded`: less than the time of a stage.
pub const PREVIEW_WAIT_MAX: Duration = Duration::from_secs(10);
/// Violations of a schema that one failure names.
pub const VIOLATIONS_MAX: usize = 16;
/// How long a decision that a dying worker dropped waits before it is delivered again.
pub const REDELIVERY_DELAY: Duration = Duration::from_millis(50);
/// How long the tree and the last children may take to end, once they are told to at a stop.
pub const STOP_MAX: Duration = Duration::from_secs(5);
/// Most bytes that one action may replace, if it is to be undone: half of a space's quota, so that two fit beside each other.
pub const PREIMAGE_BYTES_MAX: u64 = 134_217_728;
/// Most bytes that one run of a tool may hand out beside its answer; one that goes on is ended with `output_limit`.
pub const STREAM_BYTES_MAX: u64 = 268_435_456;
/// Pieces of what goes beside a call that may wait in memory, 64 KiB each; the tool waits beyond this.
pub const STREAM_PIECES_WAITING: usize = 4;
/// Most bytes of what an action replaces that are kept already while its claim is being written: so much of each action
/// that waits for its claim is held in memory.
pub const PREIMAGE_EARLY_BYTES_MAX: u64 = 65_536;
/// Most bytes of what an action replaces that stand in its intent, if each file of it is small: then nothing else has to be on disk
/// before it runs. 0 turns that off.
pub const INTENT_CONTENTS_BYTES_MAX: usize = 4_096;
/// Receipts of late that are held in memory, so that what was done before is answered quickly: a few kilobytes each.
pub const RECENT_RECEIPTS_MAX: usize = 256;
/// What is said to a call that comes while a breaker is being tried and has no place for it.
pub const BREAKER_TRY_AGAIN: Duration = Duration::from_secs(1);
/// Breakers in all. Keys come from requests; closed ones make room for new ones.
pub const BREAKERS_MAX: usize = 1_024;
/// Keys of one kind that a rate tells apart: beyond it, new ones share a rate until old ones have been idle.
pub const RATE_KEYS_MAX: usize = 16_384;
/// The window in which a session's actions are counted.
pub const SESSION_WINDOW: Duration = Duration::from_secs(60);
/// Tries to count a session's action against others who count at the same time; then it is let through.
pub const SESSION_TRIES: u32 = 32;
/// The `retry_after` of `overloaded`.
pub const OVERLOAD_RETRY: Duration = Duration::from_secs(1);
/// Decisions from the bus that wait for a place: among so many, turns are given fairly.
pub const AHEAD_MAX: usize = 768;
/// Decisions of one subject among those that wait for a place: what it has more of is put off for a while, so that
/// others' decisions behind them are seen.
pub const AHEAD_SUBJECT_MAX: usize = 192;
/// Turns a second that a subject's decisions are believed to get until that has been counted: rather too many, since
/// what comes back too early is only put off again.
pub const SURPLUS_RATE_FIRST: u32 = 2_500;
/// Decisions a second of one subject that come back at the least, of those that were put off: fewer turns than this are
/// given only where each takes long.
pub const SURPLUS_RATE_MIN: u32 = 200;
/// How long a decision is put off at most because its subject has too many.
pub const SURPLUS_TIME_MAX: Duration = Duration::from_secs(20);
/// How long a child counts as starting: what takes longer waits for something other than a processor.
pub const START_TIME_MAX: Duration = Duration::from_millis(50);
/// Budgets that are held in memory before those that are over are looked for and forgotten.
pub const BUDGETS_MAX: usize = 16_384;
/// How often one action may be requeued from the dead letters: each time is looked up when its decision is.
pub const REQUEUES_MAX: u32 = 100;
/// Bytes of their requests, together.
pub const QUARANTINED_BYTES_MAX: u64 = 16_777_216;
/// Equal requests that may wait for one answer.
pub const HELD_MEMBERS_MAX: usize = 64;
/// How often one action may be asked about again, since it had changed each time it was approved.
pub const HELD_ROUNDS_MAX: u32 = 8;
/// How long is remembered what was decided, for whoever comes late; the receipt stays.
pub const HELD_PAST_KEPT: Duration = Duration::from_secs(86_400);
/// Questions and grants that are read in one go: each may hold a request of a megabyte.
pub const HELD_PAGE: usize = 100;
/// Workers of the stage that asks people: as many as there may be actions, since some of them wait for a preview.
pub const HOLD_WORKERS: usize = 256;
/// How often one action may be approved in all its lives: each time is looked up when its decision is.
pub const APPROVALS_MAX: u32 = 100;
/// Longest reason that a person gives: it stands in the receipt.
pub const REASON_BYTES_MAX: usize = 1_024;
/// Grants in all: they are looked through whenever a person would be asked.
pub const GRANTS_MAX: usize = 1_000;
/// Grants that one principal may have asked for and nobody has given yet.
pub const GRANT_REQUESTS_MAX: usize = 10;
/// Receipts that are looked at to say how many past questions a standing approval would have spared.
pub const ASKS_LOOKED_AT_MAX: usize = 1_000;
/// How long a notification waits for a desktop to be shown on: what is older than that would only puzzle whoever logs in.
pub const NOTIFICATION_WAIT_MAX: Duration = Duration::from_secs(600);
/// How often is looked whether there is a desktop now, while a notification waits for one: a look costs one connection.
pub const NOTIFICATION_RETRY: Duration = Duration::from_secs(1);
/// How long the session bus may take to answer, as D-Bus libraries have it: a service that shows notifications may have to
/// be started first.
pub const BUS_TIME_MAX: Duration = Duration::from_secs(25);
