//! The bounds of the Store. `docs/limits.md` lists those that a caller can hit.
//!
//! "Stored format" marks bounds that readers of existing journals rely on.

use std::time::Duration;

/// Longest name of a topic, group or family, which is also an index key, a label and a file name. Stored format.
pub const NAME_BYTES_MAX: usize = 64;
/// Largest body of one event, receipt, intent or family value: a request of 1 MiB and its envelope. Stored format.
pub const BODY_BYTES_MAX: usize = 1_310_720;
/// Most events in one `publish`: one block holds them all.
pub const PUBLISH_EVENTS_MAX: usize = 1_024;
/// Largest sum of bodies in one operation: bounds a block, which has whole operations. Stored format.
pub const OPERATION_BYTES_MAX: usize = 4_194_304;
/// Shortest lease: a shorter one may expire before the caller learns of it.
pub const LEASE_TTL_MIN: Duration = Duration::from_millis(10);
/// Default deliveries of one event to one group before it becomes a dead letter: a poison decision may kill the
/// process this often.
pub const DELIVERIES_MAX_DEFAULT: u32 = 5;
/// Most deliveries that a group may ask for. Stored format.
pub const DELIVERIES_MAX: u32 = 1_000;
/// Most resources of one claim. Stored format.
pub const RESOURCES_MAX: usize = 64;
/// Longest name of a resource: a scheme, a space and a path of `PATH_MAX`. Stored format.
pub const RESOURCE_BYTES_MAX: usize = 8_192;
/// Longest detail of a dead letter or nack. Stored format.
pub const DETAIL_BYTES_MAX: usize = 2_048;
/// Attempts that a dead letter lists, the last ones. Stored format.
pub const LETTER_TRIES_MAX: usize = 16;
/// About how many bytes of the journal one step of retention drops: it replays them in memory.
pub const RETAIN_STEP_BYTES: usize = 4_194_304;
/// Index entries removed, or dead letters expired, in one operation: no more work for the writer than an ordinary block.
pub const RETAIN_BATCH: usize = 256;
/// How long retention waits for the index to be flushed; then the next step tries again.
pub const RETAIN_FLUSH_MAX: Duration = Duration::from_secs(60);
/// Default days that receipts and events are kept.
pub const RECEIPT_DAYS: u32 = 180;
/// Smallest bound on the bytes of receipts: a receipt answers repeated requests, so it must not expire at once.
pub const RECEIPT_BYTES_MIN: u64 = 16_777_216;
/// Default days that dead letters are kept; longer than receipts.
pub const LETTER_DAYS: u32 = 730;
/// Closed epochs that are stored one by one before a single number replaces the oldest.
pub const CLOSED_EPOCHS_MAX: usize = 1_000;
/// Words of a dead letter's detail that make its fingerprint. Another number changes the fingerprints of known causes.
pub const FINGERPRINT_WORDS_MAX: usize = 32;
/// Most leases, links, events and swaps of one operation together: as many parked duplicates as one action may have.
pub const COMPLETION_ITEMS_MAX: usize = 1_024;
/// Longest key of a family entry. Stored format.
pub const FAMILY_KEY_BYTES_MAX: usize = 512;
/// Free space below which new work is refused, so that work in progress can still be recorded.
pub const DISK_FREE_BYTES_MIN: u64 = 67_108_864;
/// Default bytes of the index's cache.
pub const INDEX_CACHE_BYTES: u64 = 16_777_216;
/// Size at which a segment is full: retention frees disk space in this unit, and opening checks the last segment.
pub const SEGMENT_BYTES: usize = 67_108_864;
/// Largest size of a segment: offsets have four bytes, and one block may go beyond the size. Stored format.
pub const SEGMENT_BYTES_LIMIT: usize = 1_073_741_824;
/// Bytes of one value in sled: above about 30 KiB sled writes a page to a file of its own. Stored format.
pub const CHUNK_BYTES_MAX: usize = 24_576;
/// Length of a sealing epoch; its key is destroyed when all of its actions have ended. Part of the key files' names.
pub const EPOCH_SECONDS: i64 = 3_600;
/// Most sealing epochs begun ahead of the clock: their keys live until their hour has passed. An erasure begins two.
pub const EPOCHS_AHEAD_MAX: u32 = 24;
/// Largest blob. Blobs are streamed; the quota of a space is the stricter bound.
pub const BLOB_BYTES_MAX: u64 = 1_073_741_824;
/// Largest blob that is read into memory at once.
pub const BLOB_WHOLE_BYTES_MAX: u64 = 8 * 1_048_576;
/// Bytes after which the writer closes a block: a longer one saves no time per record. Stored format.
pub const BLOCK_BYTES_TARGET: usize = 1_048_576;
/// Operations after which the writer closes a block: bounds what one failed sync loses.
pub const BLOCK_OPERATIONS_MAX: usize = 1_024;
/// Longest time that a link to an existing receipt waits for the next block, so that a repeated action needs no sync of its own.
pub const LINK_DELAY: Duration = Duration::from_millis(20);
/// Operations that may wait in the writer's queue; the next one is `Overloaded`.
pub const QUEUE_OPERATIONS_MAX: usize = 8_192;
/// Bytes that may wait in the writer's queue, in memory.
pub const QUEUE_BYTES_MAX: usize = 67_108_864;
/// Most events, receipts, dead letters or entries in one page; longer reads continue with a cursor.
pub const PAGE_ITEMS_MAX: usize = 1_000;
/// Bytes of bodies after which a page ends early.
pub const PAGE_BYTES_MAX: usize = 8_388_608;
/// Index entries that one filtered query reads before it returns what it has, with a cursor.
pub const QUERY_SCAN_MAX: usize = 10_000;
/// Most events leased in one call.
pub const LEASE_EVENTS_MAX: usize = 1_000;
/// Longest lease: a delivery that nobody extends within an hour is due again.
pub const LEASE_TTL_MAX: Duration = Duration::from_secs(3_600);
/// Longest delay of a nack or defer.
pub const DELAY_MAX: Duration = Duration::from_secs(86_400);
/// Most groups in one store, which are held in memory.
pub const GROUPS_MAX: usize = 1_024;
/// Most topics in one store, which are held in memory.
pub const TOPICS_MAX: usize = 256;
/// How far a group may run ahead of its oldest unacknowledged event: bounds the memory of acks out of order.
pub const GROUP_WINDOW_MAX: u64 = 65_536;
/// Most open claims, which are held in memory; far fewer actions can run at once.
pub const CLAIMS_OPEN_MAX: usize = 65_536;
/// Most causes that dead letters are grouped by in one answer.
pub const LETTER_GROUPS_MAX: usize = 1_000;
/// Most gaps in a damaged journal that a salvage lists.
pub const SALVAGE_GAPS_MAX: usize = 1_000;
/// Most lost receipts, and most lost events, that salvage counts for one lost block; a real block has far fewer.
pub const LOST_IN_BLOCK_MAX: usize = 24_576;
/// Most entries of all families of one store: families are not for logs.
pub const FAMILY_ENTRIES_MAX: usize = 100_000;
/// Entries of a memtable before it is written as a run: a run costs three syncs, whatever its size.
pub const INDEX_MEMTABLE_ENTRIES: usize = 65_536;
/// Blocks after which a memtable is written as a run, however small: bounds the replay on open.
pub const INDEX_MEMTABLE_BLOCKS: usize = 4_096;
/// Bytes of journal after which a memtable is written as a run, for the same reason.
pub const INDEX_MEMTABLE_BYTES: usize = 67_108_864;
/// The writer waits for a flush when the active memtable has this many times the size at which it is due.
pub const INDEX_LAG_MAX: usize = 3;
/// How long opening a journal in sled may take, besides a second for every 16 MiB: sled may hang on a damaged file.
pub const JOURNAL_OPEN_MAX: Duration = Duration::from_secs(60);
/// Full segments that are kept open for reading.
pub const SEGMENT_FILES_OPEN_MAX: usize = 32;
/// Most blobs of one kind in one space, so that its folder stays quick to read. Each takes at least 4 KiB of disk.
pub const BLOBS_PER_FOLDER_MAX: usize = 16_384;
/// Default quota for pre-images, the same for artifacts and the same for results, in each space. The oldest blobs are evicted
/// first. Pinned blobs, and blobs that are being written, may each take as much again.
pub const BLOB_QUOTA_BYTES: u64 = 268_435_456;
