//! The bounds of the pipeline. Each is named in `docs/limits.md`, and a test keeps the two in step.

use std::time::Duration;

/// Actions between acceptance and receipt at one time. Mailboxes are unbounded, so this bound is what keeps memory flat.
pub const IN_FLIGHT_MAX: usize = 256;
/// Workers of a stage that waits for the disk or for a child: as many as there may be actions, so that group commit
/// has groups to commit.
pub const WAITING_WORKERS: usize = 256;
/// Workers of a stage that only computes.
pub const COMPUTING_WORKERS: usize = 4;
/// How long intake holds a decision before it goes to someone else; running work extends it. A stage that does not get on
/// for this long loses what it has in hand.
pub const LEASE_TTL: Duration = Duration::from_secs(30);
/// Deliveries of one decision before it is recorded as poison.
pub const DELIVERIES_MAX: u32 = 5;
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
/// Fixed: it only bounds memory.
pub const ERASURE_PAGE: usize = 200;
/// Subjects that are erased together: each has its receipts read through.
/// Fixed: whoever has more asks again.
pub const ERASURE_SUBJECTS_MAX: usize = 100;
/// Questions that wait for a person, told one by one to who erases their subject.
/// Fixed: it only bounds an answer.
pub const ERASURE_HELD_MAX: usize = 100;
/// How often the sweeper begins to let go of what is kept no longer: each time costs some syncs, and hours do not matter.
/// Fixed: `effectd store retain` does it at any time.
pub const RETAIN_EVERY: Duration = Duration::from_secs(3_600);
/// How much longer than receipts what they name is kept: it is stored before the action's receipt is, and an action may run
/// long.
/// Fixed: far longer than any action runs.
pub const RETENTION_BLOBS_LONGER: Duration = Duration::from_secs(86_400);
/// Actions under way that retention looks at in one go.
/// Fixed: it only bounds memory.
pub const RETENTION_INTENTS_PAGE: usize = 500;
/// Most lines of two texts, together, between which a difference is looked for: it may take the square of that.
/// Fixed: it only bounds the work for one question; the digests are there in any case.
pub const PREVIEW_DIFF_LINES_MAX: usize = 8_000;
/// Longest search for the smallest difference between two texts; after that a larger one is shown.
/// Fixed: it only bounds the work for one question.
pub const PREVIEW_DIFF_TIME_MAX: Duration = Duration::from_millis(200);
/// Longest time for the differences of all texts of one preview; those that are left then are left out, and the question says so.
/// Fixed: it only bounds the work for one question; the digests are there in any case.
pub const PREVIEW_DIFFS_TIME_MAX: Duration = Duration::from_millis(1_000);
/// How often the sweeper looks for what has expired.
pub const SWEEP_EVERY: Duration = Duration::from_secs(60);
/// Power of one busy processor core, for the energy figure of receipts: a typical laptop core.
pub const CORE_WATTS: f64 = 15.0;
/// What being done counts for in a reward.
pub const WEIGHT_SUCCESS: f64 = 0.6;
/// What quality counts for in a reward.
pub const WEIGHT_QUALITY: f64 = 0.3;
/// What cost counts against a reward.
pub const WEIGHT_COST: f64 = 0.05;
/// What time counts against a reward.
pub const WEIGHT_LATENCY: f64 = 0.05;
/// Largest weight that can be set: beyond it, everything else is noise.
/// Fixed: the bound of the settings themselves.
pub const WEIGHT_MAX: f64 = 10.0;
/// Signing keys that a log may have had: one a day for some years.
/// Fixed: a check of the log holds them in memory.
pub const KEYS_MAX: usize = 1_000;
/// How long the change to another signing key waits for what the old one has signed to be written; everybody else who signs
/// waits as long.
/// Fixed: writing takes milliseconds; beyond this the disk is in trouble, and a key can be changed later.
pub const KEY_CHANGE_WAIT_MAX: Duration = Duration::from_secs(10);
/// Amendments of one receipt that are looked at.
/// Fixed: what was said first about a receipt is not pushed out by what comes later.
pub const AMENDMENTS_MAX: usize = 1_000;
/// Findings that a check of the log names one by one; beyond it they are counted.
/// Fixed: a person reads them.
pub const FINDINGS_MAX: usize = 1_000;
/// Intents without a receipt that a check of the log keeps in mind at one time: far more than may be on their way.
/// Fixed: bounds the memory of a check of what somebody else has sent.
pub const OPEN_MAX: usize = 1_000_000;
/// Entries that a log can have: a million a second for nine years.
/// Fixed: what somebody else has sent and says more cannot be a log.
pub const LOG_ENTRIES_MAX: u64 = 281_474_976_710_656;
/// Heads that a check of the log compares: one a minute for two months; the rest is covered by later ones.
/// Fixed: bounds the memory of a check, which anybody makes.
pub const HEADS_MAX: usize = 100_000;
/// Processor time that counts as the whole budget of an action in its reward.
pub const COST_BUDGET_MS: f64 = 1_000.0;
/// Quality of a tool that reports none.
/// Fixed: part of the formula of rewards, which has a version.
pub const QUALITY_DEFAULT: f64 = 0.5;
/// Failures in a row that open a breaker: fewer are bad luck, more would be noticed by people first.
pub const BREAKER_FAILURES_MAX: u32 = 5;
/// Share of failed calls within [`BREAKER_WINDOW`] that opens a breaker: a tool that fails every second time is broken.
pub const BREAKER_ERROR_SHARE_MAX: f64 = 0.5;
/// Calls within the window before their share of failures means anything.
pub const BREAKER_CALLS_MIN: u32 = 20;
/// The time over which a breaker looks at the share of failures.
pub const BREAKER_WINDOW: Duration = Duration::from_secs(60);
/// How long a breaker stays open the first time.
pub const BREAKER_COOL_DOWN: Duration = Duration::from_secs(30);
/// How long it stays open at most, when each try fails again: the time doubles up to this.
pub const BREAKER_COOL_DOWN_MAX: Duration = Duration::from_secs(600);
/// Calls let through at once to find out whether it works again.
pub const BREAKER_PROBES: u32 = 1;
/// Calls at once at the end of a gradual release; beyond it the breaker is closed. From one, six steps lead there.
pub const BREAKER_RELEASE_MAX: u32 = 32;
/// Actions that one session may ask for within [`SESSION_WINDOW`].
pub const SESSION_ACTIONS_MAX: u32 = 60;
/// Places for actions on their way that one subject may hold at once: the others always find some.
pub const SUBJECT_IN_FLIGHT_MAX: usize = 192;
/// Places for actions on their way that one tool may hold at once.
pub const TOOL_IN_FLIGHT_MAX: usize = 192;
/// Callers that may wait at the doors for a place, in all; a quarter of them for one subject.
pub const WAITING_MAX: usize = 1_024;
/// How long a caller waits for a place before it is told `overloaded`.
pub const ADMISSION_WAIT_MAX: Duration = Duration::from_secs(1);
/// Children that may be in their first [`START_TIME_MAX`] at once, for each processor: more would only slow each other down,
/// and whose turn is next could not be chosen any more.
pub const STARTS_PER_CORE: usize = 1;
/// The same while there is one subject only, whose children may slow each other down: many of them wait for the disk.
pub const STARTS_ALONE_PER_CORE: usize = 3;
/// How long after there were several subjects room is kept for another one.
/// Fixed: it only has to be longer than the pause between two actions of one that asks for one after the other.
pub const COMPANY_TIME: Duration = Duration::from_secs(5);
/// Decisions on the bus that are looked at to find the open ones among them.
/// Fixed: it only bounds the time of an answer to a person.
pub const OPEN_LOOKED_AT_MAX: u64 = 100_000;
/// Open decisions that are told one by one.
/// Fixed: a person reads them.
pub const OPEN_TOLD_MAX: usize = 100;
/// The window of budgets.
pub const BUDGET_WINDOW: Duration = Duration::from_secs(86_400);
/// Dead letters that are read at once to count what is held for review.
/// Fixed: it only bounds memory; each may hold a request of a megabyte.
pub const QUARANTINED_PAGE: usize = 64;
/// How often what is held for review is counted anew because a subject has no room left: all dead letters are looked at for it.
/// Fixed: whoever releases or shreds something waits so long at most until there is room again.
pub const QUARANTINED_RECOUNT: Duration = Duration::from_secs(60);
/// Longest reason for taking an artifact aside: a line for people.
/// Fixed: part of what is stored.
pub const QUARANTINE_REASON_BYTES_MAX: usize = 1_024;
/// Undeclared changes of one action that its receipt names one by one; a message counts the rest.
/// Fixed: a person reads them.
pub const UNDECLARED_NAMED_MAX: usize = 32;
/// Actions that are remembered, with what they declare, as long as others are at work that began before they ended: whoever has more of
/// them beside it is not judged.
/// Fixed: far more than are at work at a time.
pub const AT_WORK_MAX: usize = 4_096;
/// Most long outputs of one run that are kept: each is a file that is open while the tool runs.
/// Fixed: a receipt names each of them.
pub const STREAMS_MAX: usize = 8;
/// Actions of one session that may wait for a person at once: nobody reads more, and a flood of questions tires people into
/// saying yes.
pub const HELD_PER_SESSION_MAX: usize = 10;
/// How long an action waits for a person when somebody sits at a terminal.
pub const HELD_INTERACTIVE_MAX: Duration = Duration::from_secs(300);
/// How long an action waits for a person when nobody does: somebody looks once a day.
pub const HELD_UNATTENDED_MAX: Duration = Duration::from_secs(86_400);
/// Largest message of the session bus that is read: an answer is a few hundred bytes, and what else comes is passed over.
/// Fixed: nothing longer is of use.
pub const BUS_MESSAGE_BYTES_MAX: usize = 65_536;
/// Messages of the session bus that are passed over while an answer is waited for.
/// Fixed: a bus that sends more unasked is not one to wait for.
pub const BUS_MESSAGES_MAX: usize = 64;
/// Receipts of notifications that are taken up in one step.
/// Fixed: bounds one change of the store, and has no other effect.
pub const NOTIFICATIONS_PAGE: usize = 64;

effectd_contracts::bounds! {
    /// Most changes that a preview lists; the others are counted.
    PREVIEW_CHANGES_MAX: usize = 128, "pipeline.preview_changes_max", 1 ..= 1_024;
    /// Most text of differences in one preview: what a person reads before deciding. It is kept, sealed, with the question.
    PREVIEW_DIFF_BYTES_MAX: u64 = 32_768, "pipeline.preview_diff_bytes_max", 1_024 ..= 131_072;
    /// Longest time for trying an action out on a copy.
    PREVIEW_TIME_MAX: Duration = 5_000, "pipeline.preview_time_ms_max", 100 ..= 20_000;
    /// Actions that are tried out on a copy at once, in all: each takes a sandbox, and who is being carried out needs some, too.
    PREVIEWS_MAX: usize = 4, "pipeline.previews_max", 1 ..= 64;
    /// Those of one subject among them: the others always find a turn.
    PREVIEWS_SUBJECT_MAX: usize = 2, "pipeline.previews_subject_max", 1 ..= 64;
    /// How long an action waits for its turn to be tried out before who asks is told `overloaded`: less than a stage may take.
    PREVIEW_WAIT_MAX: Duration = 10_000, "pipeline.preview_wait_ms_max", 0 ..= 20_000;
    /// Violations of a schema that one failure names.
    VIOLATIONS_MAX: usize = 16, "pipeline.violations_max", 1 ..= 1_000;
    /// How long a decision that a dying worker dropped waits before it is delivered again.
    REDELIVERY_DELAY: Duration = 50, "pipeline.redelivery_delay_ms", 1 ..= 60_000;
    /// How long the tree and the last children may take to end, once they are told to at a stop.
    STOP_MAX: Duration = 5_000, "pipeline.stop_ms_max", 100 ..= 300_000;
    /// Most bytes that one action may replace, if it is to be undone: half of a space's quota, so that two fit beside each other.
    PREIMAGE_BYTES_MAX: u64 = 134_217_728, "pipeline.preimage_bytes_max", 0 ..= 1_073_741_824;
    /// Most bytes that one run of a tool may hand out beside its answer; one that goes on is ended with `output_limit`.
    STREAM_BYTES_MAX: u64 = 268_435_456, "pipeline.stream_bytes_max", 65_536 ..= 2_147_483_648;
    /// Pieces of what goes beside a call that may wait in memory, 64 KiB each; the tool waits beyond this.
    STREAM_PIECES_WAITING: usize = 4, "pipeline.stream_pieces_waiting", 1 ..= 1_024;
    /// Most bytes of what an action replaces that are kept already while its claim is being written: so much of each action
    /// that waits for its claim is held in memory.
    PREIMAGE_EARLY_BYTES_MAX: u64 = 65_536, "pipeline.preimage_early_bytes_max", 0 ..= 1_048_576;
    /// Most bytes of what an action replaces that stand in its intent, if each file of it is small: then nothing else has to be on disk
    /// before it runs. 0 turns that off.
    INTENT_CONTENTS_BYTES_MAX: usize = 4_096, "pipeline.intent_contents_bytes_max", 0 ..= 65_536;
    /// How many other actions of the same subject and space, whose contents stand in their intents as well, have to be under way for the
    /// blobs of an action to be synced only when it has run: one sync then stands for several. With fewer they are synced while it runs,
    /// unless many subjects are there.
    KEEP_COMPANY_MIN: usize = 2, "pipeline.keep_company_min", 0 ..= 100_000;
    /// Most files and folders of a space that are looked at before and after a tool of another program runs, to see whether it does
    /// more than it declares. If there are more, only the folders that it can write to are looked at; if there are more in those, or this is
    /// 0, nothing is, which a metric counts.
    SCAN_ENTRIES_MAX: usize = 4_096, "pipeline.scan_entries_max", 0 ..= 1_000_000;
    /// The same for the tools that effectd brings. They are part of the same program and tried in this way before each release, and
    /// whoever works in the space beside them would have them suspected.
    SCAN_CORE_ENTRIES_MAX: usize = 0, "pipeline.scan_core_entries_max", 0 ..= 1_000_000;
    /// Receipts of late that are held in memory, so that what was done before is answered quickly: a few kilobytes each.
    RECENT_RECEIPTS_MAX: usize = 256, "pipeline.recent_receipts_max", 1 ..= 65_536;
    /// What is said to a call that comes while a breaker is being tried and has no place for it.
    BREAKER_TRY_AGAIN: Duration = 1_000, "control.breaker_try_again_ms", 1 ..= 3_600_000;
    /// Breakers in all. Keys come from requests; closed ones make room for new ones.
    BREAKERS_MAX: usize = 1_024, "control.breakers_max", 16 ..= 65_536;
    /// Keys of one kind that a rate tells apart: beyond it, new ones share a rate until old ones have been idle.
    RATE_KEYS_MAX: usize = 16_384, "control.rate_keys_max", 64 ..= 1_048_576;
    /// The window in which a session's actions are counted.
    SESSION_WINDOW: Duration = 60_000, "control.session_window_ms", 1_000 ..= 86_400_000;
    /// Tries to count a session's action against others who count at the same time; then it is let through.
    SESSION_TRIES: u32 = 32, "control.session_tries", 1 ..= 1_000;
    /// What a caller that is told `overloaded` is told to wait.
    OVERLOAD_RETRY: Duration = 1_000, "control.overload_retry_ms", 1 ..= 3_600_000;
    /// Decisions from the bus that wait for a place: among so many, turns are given fairly.
    AHEAD_MAX: usize = 768, "control.ahead_max", 16 ..= 16_384;
    /// Decisions of one subject among those that wait for a place: what it has more of is put off for a while, so that
    /// others' decisions behind them are seen.
    AHEAD_SUBJECT_MAX: usize = 192, "control.ahead_subject_max", 1 ..= 16_384;
    /// Turns a second that a subject's decisions are believed to get until that has been counted: rather too many, since
    /// what comes back too early is only put off again.
    SURPLUS_RATE_FIRST: u32 = 2_500, "control.surplus_rate_first", 1 ..= 1_000_000;
    /// Decisions a second of one subject that come back at the least, of those that were put off: fewer turns than this are
    /// given only where each takes long.
    SURPLUS_RATE_MIN: u32 = 200, "control.surplus_rate_min", 1 ..= 1_000_000;
    /// How long a decision is put off at most because its subject has too many.
    SURPLUS_TIME_MAX: Duration = 20_000, "control.surplus_ms_max", 10 ..= 3_600_000;
    /// How long a child counts as starting: what takes longer waits for something other than a processor.
    START_TIME_MAX: Duration = 50, "control.start_time_ms_max", 1 ..= 10_000;
    /// Budgets that are held in memory before those that are over are looked for and forgotten.
    BUDGETS_MAX: usize = 16_384, "control.budgets_max", 64 ..= 1_048_576;
    /// How often one action may be requeued from the dead letters: each time is looked up when its decision is.
    REQUEUES_MAX: u32 = 100, "control.requeues_max", 1 ..= 10_000;
    /// Actions of one subject that are held for review because a safety check stopped them; of more there is only the receipt.
    QUARANTINED_MAX: usize = 100, "control.quarantined_subject_max", 1 ..= 10_000;
    /// Bytes of their requests, together.
    QUARANTINED_BYTES_MAX: u64 = 16_777_216, "control.quarantined_subject_bytes_max", 0 ..= 1_073_741_824;
    /// Equal requests that may wait for one answer.
    HELD_MEMBERS_MAX: usize = 64, "approvals.members_max", 1 ..= 1_000;
    /// How often one action may be asked about again, since it had changed each time it was approved.
    HELD_ROUNDS_MAX: u32 = 8, "approvals.rounds_max", 1 ..= 100;
    /// How long is remembered what was decided, for whoever comes late; the receipt stays.
    HELD_PAST_KEPT: Duration = 86_400_000, "approvals.past_kept_ms", 1_000 ..= 2_592_000_000;
    /// Questions and grants that are read in one go: each may hold a request of a megabyte.
    HELD_PAGE: usize = 100, "approvals.page_items", 1 ..= 1_000;
    /// Workers of the stage that asks people: as many as there may be actions, since some of them wait for a preview.
    HOLD_WORKERS: usize = 256, "approvals.workers", 1 ..= 256;
    /// How often one action may be approved in all its lives: each time is looked up when its decision is.
    APPROVALS_MAX: u32 = 100, "approvals.per_action_max", 1 ..= 10_000;
    /// Longest reason that a person gives: it stands in the receipt.
    REASON_BYTES_MAX: usize = 1_024, "approvals.reason_bytes_max", 16 ..= 65_536;
    /// Grants in all: they are looked through whenever a person would be asked.
    GRANTS_MAX: usize = 1_000, "approvals.grants_max", 1 ..= 10_000;
    /// Grants that one principal may have asked for and nobody has given yet.
    GRANT_REQUESTS_MAX: usize = 10, "approvals.grant_requests_max", 1 ..= 1_000;
    /// Receipts that are looked at to say how many past questions a standing approval would have spared.
    ASKS_LOOKED_AT_MAX: usize = 1_000, "approvals.asks_looked_at_max", 1 ..= 100_000;
    /// Notifications that are remembered, with what became of each; the oldest are forgotten first. Their receipts stay.
    NOTIFICATIONS_MAX: usize = 1_000, "notifications.kept_max", 1 ..= 10_000;
    /// How long a notification waits for a desktop to be shown on: what is older than that would only puzzle whoever logs in.
    NOTIFICATION_WAIT_MAX: Duration = 600_000, "notifications.wait_ms_max", 1 ..= 86_400_000;
    /// How often is looked whether there is a desktop now, while a notification waits for one.
    NOTIFICATION_RETRY: Duration = 15_000, "notifications.retry_ms", 10 ..= 3_600_000;
    /// How long the session bus may take to answer: a service that shows notifications may have to be started first.
    BUS_TIME_MAX: Duration = 10_000, "notifications.bus_time_ms_max", 10 ..= 60_000;
    /// How long the last notifications may take to be delivered when the runtime stops.
    NOTIFICATIONS_STOP_MAX: Duration = 2_000, "notifications.stop_ms_max", 0 ..= 60_000;
}
