//! The bounds of the Store. Each is named in `docs/limits.md`, and a test keeps the two in step.

use std::time::Duration;

/// Longest name of a topic, group or family: they become index keys, labels and file names.
pub const NAME_BYTES_MAX: usize = 64;
/// Largest body of one event, receipt, intent or family value: a whole request of a megabyte and its envelope fit.
pub const BODY_BYTES_MAX: usize = 1_310_720;
/// Most events in one `publish`: one block holds them, and a block is written and read as a whole.
pub const PUBLISH_EVENTS_MAX: usize = 1_024;
/// Largest sum of bodies in one operation, so that a single caller cannot fill a block alone.
pub const OPERATION_BYTES_MAX: usize = 4_194_304;
/// Bytes after which the writer closes a block and syncs it: beyond this, a longer block saves no time per record.
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
/// Shortest lease: below this the answer may be older than the lease.
pub const LEASE_TTL_MIN: Duration = Duration::from_millis(10);
/// Longest lease: what nobody extends within an hour is given to someone else.
pub const LEASE_TTL_MAX: Duration = Duration::from_secs(3_600);
/// Longest delay of a nack or defer.
pub const DELAY_MAX: Duration = Duration::from_secs(86_400);
/// Deliveries of one event to one group before it is a dead letter, unless the group says otherwise: a poison decision
/// may take the process down this often, then it is set aside.
pub const DELIVERIES_MAX_DEFAULT: u32 = 5;
/// Largest number of deliveries that a group may ask for.
pub const DELIVERIES_MAX: u32 = 1_000;
/// How far a group may run ahead of its oldest unfinished event: bounds the memory that acks out of order take.
pub const GROUP_WINDOW_MAX: u64 = 65_536;
/// Most groups in one store; each is held in memory.
pub const GROUPS_MAX: usize = 1_024;
/// Most topics in one store; each is held in memory.
pub const TOPICS_MAX: usize = 256;
/// Most claims open at once: each is held in memory, and far fewer children can run.
pub const CLAIMS_OPEN_MAX: usize = 65_536;
/// Most resources that one claim may name.
pub const RESOURCES_MAX: usize = 16;
/// Longest name of a resource: a scheme, a space and a path of `PATH_MAX` fit.
pub const RESOURCE_BYTES_MAX: usize = 8_192;
/// Longest free text beside a dead letter or nack: a line a person reads.
pub const DETAIL_BYTES_MAX: usize = 2_048;
/// Words of a dead letter's detail that its fingerprint is made of: what follows is mostly the particular case.
pub const FINGERPRINT_WORDS_MAX: usize = 32;
/// Most causes that dead letters are grouped by in one answer: a person reads them.
pub const LETTER_GROUPS_MAX: usize = 1_000;
/// Most gaps in a damaged journal that a salvage names one by one.
pub const SALVAGE_GAPS_MAX: usize = 1_000;
/// Most leases, links and events that one completion may settle: as many parked twins as one action may have.
pub const COMPLETION_ITEMS_MAX: usize = 1_024;
/// Longest key of a family entry.
pub const FAMILY_KEY_BYTES_MAX: usize = 512;
/// Most entries of a family in one store: families are for what people and breakers hold, not for logs.
pub const FAMILY_ENTRIES_MAX: usize = 100_000;
/// How long a `link` may wait for another block to ride in before it gets one of its own.
pub const LINK_LINGER: Duration = Duration::from_millis(20);
/// Free space below which new work is refused, so that work already begun can still be recorded.
pub const DISK_FREE_BYTES_MIN: u64 = 67_108_864;
/// Entries that are gathered in memory before they become a file of the index: a file costs three syncs, whatever is in it.
pub const INDEX_GATHER_ENTRIES: usize = 65_536;
/// Blocks after which what was gathered becomes a file, however little it is: bounds how much is replayed on open.
pub const INDEX_GATHER_BLOCKS: usize = 4_096;
/// Bytes of journal after which what was gathered becomes a file, for the same reason.
pub const INDEX_GATHER_BYTES: usize = 67_108_864;
/// How often the gathered amount may be waiting in memory; the writer waits beyond this, so that memory stays bounded.
pub const INDEX_LAG_MAX: usize = 3;
/// How much of the index may be kept in memory after it was read, unless configured otherwise.
pub const INDEX_CACHE_BYTES: u64 = 16_777_216;
/// How long the journal may take to open, beside a second for every 16 MiB of it: sled may never end on a damaged file.
pub const JOURNAL_OPEN_MAX: Duration = Duration::from_secs(60);
/// Size at which a file of the journal is full and the next one is begun: what retention gives back at once, and what is
/// read again after a crash.
pub const SEGMENT_BYTES: usize = 67_108_864;
/// Largest such size that can be asked for: places in a file are four bytes, and one block may go beyond it.
pub const SEGMENT_BYTES_LIMIT: usize = 1_073_741_824;
/// Full files of the journal that are kept open for reading.
pub const SEGMENT_FILES_OPEN_MAX: usize = 32;
/// Bytes of one physical value in the embedded journal: above about 30 KiB sled spills pages into files of their own.
pub const CHUNK_BYTES_MAX: usize = 24_576;
/// Length of one sealing epoch; its key is destroyed when all of its actions have ended.
pub const EPOCH_SECONDS: i64 = 3_600;
/// Largest blob: twice what an action may replace, so that nothing that is kept for an undo is too large.
pub const BLOB_BYTES_MAX: u64 = 8 * 1_048_576;
/// Most blobs on the shelf of one space: the directory stays quick to read.
pub const BLOBS_PER_SHELF_MAX: usize = 16_384;
/// Room for what effects replaced, and as much for long outputs, in each space. What was stored longest ago goes first.
pub const BLOB_QUOTA_BYTES: u64 = 256 * 1_048_576;
