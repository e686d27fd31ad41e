//! The bounds of the Store. Those that a caller can hit are in `docs/limits.md`.

use std::time::Duration;
/// Longest name of a topic, group or family: they become index keys, labels and file names.
/// Part of the stored format.
pub const NAME_BYTES_MAX: usize = 64;
/// Largest body of one event, receipt, intent or family value: a whole request of a megabyte and its envelope fit.
/// Part of the stored format.
pub const BODY_BYTES_MAX: usize = 1_310_720;
/// Most events in one `publish`: one block holds them, and a block is written and read as a whole.
/// Part of the contract of every engine.
pub const PUBLISH_EVENTS_MAX: usize = 1_024;
/// Largest sum of bodies in one operation, so that a single caller cannot fill a block alone.
/// Part of the stored format: what reads a journal counts on it.
pub const OPERATION_BYTES_MAX: usize = 4_194_304;
/// Shortest lease: below this the answer may be older than the lease.
/// Part of the contract of every engine.
pub const LEASE_TTL_MIN: Duration = Duration::from_millis(10);
/// Deliveries of one event to one group before it is a dead letter, unless the group says otherwise: a poison decision
/// may take the process down this often, then it is set aside.
pub const DELIVERIES_MAX_DEFAULT: u32 = 5;
/// Largest number of deliveries that a group may ask for.
/// Part of the stored format.
pub const DELIVERIES_MAX: u32 = 1_000;
/// Most resources that one claim may name.
/// Part of the stored format.
pub const RESOURCES_MAX: usize = 64;
/// Longest name of a resource: a scheme, a space and a path of `PATH_MAX` fit.
/// Part of the stored format.
pub const RESOURCE_BYTES_MAX: usize = 8_192;
/// Longest free text beside a dead letter or nack: a line a person reads.
/// Part of the stored format.
pub const DETAIL_BYTES_MAX: usize = 2_048;
/// Attempts that a dead letter tells one by one, the last ones: what a person reads.
/// Part of the stored format.
pub const LETTER_TRIES_MAX: usize = 16;
/// Bytes of journal that one turn of retention lets go of, about: it is folded again in memory, in a thread of its own.
pub const RETAIN_STEP_BYTES: usize = 4_194_304;
/// Entries of the index that are taken out, and letters that expire, in one operation: the writer is held up no longer
/// than by an ordinary block.
pub const RETAIN_BATCH: usize = 256;
/// How long retention waits for the index to be on disk before it gives up until its next turn.
/// The next turn tries again.
pub const RETAIN_FLUSH_MAX: Duration = Duration::from_secs(60);
/// Days that receipts and events are kept, unless configured otherwise.
pub const RECEIPT_DAYS: u32 = 180;
/// The least bytes of receipts that can be asked to be kept: a receipt answers who asks again, so it must not go moments
/// after it was written.
pub const RECEIPT_BYTES_MIN: u64 = 16_777_216;
/// Days that dead letters are kept, unless configured otherwise: always longer than receipts.
pub const LETTER_DAYS: u32 = 730;
/// Closed epochs that are remembered one by one before they are summed up.
pub const CLOSED_EPOCHS_MAX: usize = 1_000;
/// Words of a dead letter's detail that its fingerprint is made of: what follows is mostly the particular case.
/// Another number would give another fingerprint to the same cause.
pub const FINGERPRINT_WORDS_MAX: usize = 32;
/// Most leases, links and events that one completion may settle: as many parked twins as one action may have.
/// Part of the contract of every engine.
pub const COMPLETION_ITEMS_MAX: usize = 1_024;
/// Longest key of a family entry.
/// Part of the stored format.
pub const FAMILY_KEY_BYTES_MAX: usize = 512;
/// Free space below which new work is refused, so that work already begun can still be recorded.
pub const DISK_FREE_BYTES_MIN: u64 = 67_108_864;
/// How much of the index may be kept in memory after it was read, unless configured otherwise.
pub const INDEX_CACHE_BYTES: u64 = 16_777_216;
/// Size at which a file of the journal is full and the next one is begun: what retention gives back at once, and what is
/// read again after a crash.
pub const SEGMENT_BYTES: usize = 67_108_864;
/// Largest such size that can be asked for: places in a file are four bytes, and one block may go beyond it.
/// Part of the stored format.
pub const SEGMENT_BYTES_LIMIT: usize = 1_073_741_824;
/// Bytes of one physical value in the embedded journal: above about 30 KiB sled spills pages into files of their own.
/// Part of the stored format of a journal in sled.
pub const CHUNK_BYTES_MAX: usize = 24_576;
/// Length of one sealing epoch; its key is destroyed when all of its actions have ended.
/// Names the files of keys.
pub const EPOCH_SECONDS: i64 = 3_600;
/// How many sealing epochs may be begun by hand ahead of the clock: keys of such epochs live until their hour has passed, and
/// an erasure begins two.
/// A day of keys, whatever is asked for.
pub const EPOCHS_AHEAD_MAX: u32 = 24;
/// Largest blob. Blobs are written and read in pieces; the quota of a space is the stricter bound.
pub const BLOB_BYTES_MAX: u64 = 1_073_741_824;
/// Largest blob that is read whole: it is held in memory.
/// Only notes of our own are read whole.
pub const BLOB_WHOLE_BYTES_MAX: u64 = 8 * 1_048_576;
/// Bytes after which the writer closes a block and syncs it: beyond this, a longer block saves no time per record.
/// Part of the stored format: what reads a journal counts on it.
pub const BLOCK_BYTES_TARGET: usize = 1_048_576;
/// Operations after which the writer closes a block: bounds what one failed sync takes with it.
pub const BLOCK_OPERATIONS_MAX: usize = 1_024;
/// Operations that may wait in front of the writer; one more is told `Overloaded`.
pub const QUEUE_OPERATIONS_MAX: usize = 8_192;
/// Bytes that may wait in front of the writer; they are held in memory.
pub const QUEUE_BYTES_MAX: usize = 67_108_864;
/// Most events, receipts, letters or entries in one answer: a page is held in memory, longer reads come back with a cursor.
pub const PAGE_ITEMS_MAX: usize = 1_000;
/// Bytes of bodies after which a page ends early.
pub const PAGE_BYTES_MAX: usize = 8_388_608;
/// Index entries that one filtered query looks at before it answers with what it has and a cursor.
pub const QUERY_SCAN_MAX: usize = 10_000;
/// Most events leased in one call.
pub const LEASE_EVENTS_MAX: usize = 1_000;
/// Longest lease: what nobody extends within an hour is given to someone else.
pub const LEASE_TTL_MAX: Duration = Duration::from_secs(3_600);
/// Longest delay of a nack or defer.
pub const DELAY_MAX: Duration = Duration::from_secs(86_400);
/// Most groups in one store; each is held in memory.
pub const GROUPS_MAX: usize = 1_024;
/// Most topics in one store; each is held in memory.
pub const TOPICS_MAX: usize = 256;
/// How far a group may run ahead of its oldest unfinished event: bounds the memory that acks out of order take.
pub const GROUP_WINDOW_MAX: u64 = 65_536;
/// Most claims open at once: each is held in memory, and far fewer children can run.
pub const CLAIMS_OPEN_MAX: usize = 65_536;
/// Most causes that dead letters are grouped by in one answer: a person reads them.
pub const LETTER_GROUPS_MAX: usize = 1_000;
/// Most gaps in a damaged journal that a salvage names one by one.
pub const SALVAGE_GAPS_MAX: usize = 1_000;
/// Most entries of a family in one store: families are for what people and breakers hold, not for logs.
pub const FAMILY_ENTRIES_MAX: usize = 100_000;
/// Entries that are gathered in memory before they become a file of the index: a file costs three syncs, whatever is in it.
pub const INDEX_GATHER_ENTRIES: usize = 65_536;
/// Blocks after which what was gathered becomes a file, however little it is: bounds how much is replayed on open.
pub const INDEX_GATHER_BLOCKS: usize = 4_096;
/// Bytes of journal after which what was gathered becomes a file, for the same reason.
pub const INDEX_GATHER_BYTES: usize = 67_108_864;
/// How often the gathered amount may be waiting in memory; the writer waits beyond this, so that memory stays bounded.
pub const INDEX_LAG_MAX: usize = 3;
/// How long the journal may take to open, beside a second for every 16 MiB of it: sled may never end on a damaged file.
pub const JOURNAL_OPEN_MAX: Duration = Duration::from_secs(60);
/// Full files of the journal that are kept open for reading.
pub const SEGMENT_FILES_OPEN_MAX: usize = 32;
/// Most blobs on the shelf of one space: what is there stays quick to read. However small, each takes 4 KiB of the disk.
pub const BLOBS_PER_SHELF_MAX: usize = 16_384;
/// Room for pre-images, and as much for long outputs, in each space, unless configured otherwise. The oldest go first. What is being
/// written, and what is just being put back, takes at most as much again each, until that is over.
pub const BLOB_QUOTA_BYTES: u64 = 268_435_456;
