//! The journal: numbered blocks, each durable on its own. Everything else in the store follows from it.

pub mod block;
pub(crate) mod checkpoint_files;
pub mod record;
pub(crate) mod segments;
mod sled_guard;
pub(crate) mod sled_journal;
pub(crate) mod state_dir;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::RwLock;

use crate::codec::Span;
use crate::config::{EmbeddedConfig, JournalKind};
use crate::error::StoreError;
use block::{BlockError, Header};
use segments::SegmentJournal;
use sled_journal::SledJournal;

/// Called for each block of a scan: its number, its bytes.
pub type Each<'a> = dyn FnMut(u64, &[u8]) -> Result<(), StoreError> + 'a;

/// Where blocks are stored. Another local engine is another implementation of this trait and nothing else.
///
/// Blocks are numbered without gaps. [`Journal::append`] is atomic: after a crash, the block is complete or absent.
/// After any error the engine drops the journal and opens a new one.
pub trait Journal: Send + Sync {
    /// Appends a block. When this returns, the block survives power loss.
    fn append(&self, seq: u64, block: &[u8]) -> Result<(), StoreError>;

    /// The first and the last block; `None` while there is none.
    fn bounds(&self) -> Result<Option<(u64, u64)>, StoreError>;

    /// A whole block.
    fn block(&self, seq: u64) -> Result<Vec<u8>, StoreError>;

    /// A part of a block.
    fn part(&self, seq: u64, span: Span) -> Result<Vec<u8>, StoreError>;

    /// Every block from `from` on, in order, until `each` fails.
    fn scan(&self, from: u64, each: &mut Each<'_>) -> Result<(), StoreError> {
        let Some((first, last)) = self.bounds()? else {
            return Ok(());
        };
        for seq in from.max(first)..=last {
            each(seq, &self.block(seq)?)?;
        }
        Ok(())
    }

    /// The first block that retention has not dropped; 1 in a complete journal.
    fn first(&self) -> u64;

    /// The bytes of the checkpoint before [`Journal::first`]; `None` for a complete journal.
    fn checkpoint(&self) -> Result<Option<Vec<u8>>, StoreError>;

    /// Stores the checkpoint of a journal that will begin with block `seq`. Durable when this returns, and without
    /// effect before [`Journal::truncate_before`] of the same block.
    fn stage(&self, seq: u64, checkpoint: &[u8]) -> Result<(), StoreError>;

    /// Activates the staged checkpoint of `seq` and drops the blocks before it. Atomic.
    fn truncate_before(&self, seq: u64) -> Result<(), StoreError>;
}

/// Opens the journal of a state directory.
pub(crate) fn open(config: &EmbeddedConfig) -> Result<Arc<dyn Journal>, StoreError> {
    Ok(match config.journal {
        JournalKind::Files => Arc::new(SegmentJournal::open(config)?),
        JournalKind::Sled => Arc::new(sled_journal::released(|| SledJournal::open(config))?),
    })
}

/// The directory of a journal of this kind.
pub(crate) fn directory(kind: JournalKind, state: &Path) -> PathBuf {
    match kind {
        JournalKind::Files => segments::directory(state),
        JournalKind::Sled => sled_journal::directory(state),
    }
}

/// Bytes before the checkpoint in what a [`JournalReader`] reads.
pub(crate) const HEAD_BYTES: usize = 16;
/// About how many bytes a [`JournalReader`] returns at a time.
const PIECE_BYTES: usize = 256 << 10;

/// Reads a journal for a copy, from its first block to the one that is the last now. The bytes are: the number of the
/// first block and the length of the checkpoint (eight bytes each, big-endian), the checkpoint, the blocks.
pub struct JournalReader {
    /// Reads a block.
    block: Box<dyn Fn(u64) -> Result<Vec<u8>, StoreError> + Send>,
    head: Option<Vec<u8>>,
    next: u64,
    /// The block after the last.
    end: u64,
}

impl JournalReader {
    pub(crate) fn new(
        journal: &dyn Journal,
        block: impl Fn(u64) -> Result<Vec<u8>, StoreError> + Send + 'static,
    ) -> Result<Self, StoreError> {
        // Retention may drop blocks between the two reads.
        let (first, checkpoint) = loop {
            let first = journal.first();
            let checkpoint = journal.checkpoint();
            if journal.first() == first {
                break (first, checkpoint?.unwrap_or_default());
            }
        };
        let end = journal.bounds()?.map_or(first, |(_, last)| last + 1);
        Ok(Self { block: Box::new(block), head: Some(head(first, &checkpoint)), next: first, end })
    }

    /// The next bytes; `None` at the end. Fails if retention drops a block before it is read.
    pub fn piece(&mut self) -> Result<Option<Vec<u8>>, StoreError> {
        if let Some(head) = self.head.take() {
            return Ok(Some(head));
        }
        let mut piece = Vec::new();
        while self.next < self.end && piece.len() < PIECE_BYTES {
            piece.extend_from_slice(&(self.block)(self.next)?);
            self.next += 1;
        }
        Ok(Some(piece).filter(|piece| !piece.is_empty()))
    }
}

/// The bytes before the blocks in what a [`JournalReader`] reads.
pub(crate) fn head(first: u64, checkpoint: &[u8]) -> Vec<u8> {
    [&first.to_be_bytes(), &(checkpoint.len() as u64).to_be_bytes(), checkpoint].concat()
}

/// Checks the checksums and the order of all blocks, and that their records can be read. Calls `each` for each block.
pub(crate) fn check(journal: &dyn Journal, each: &mut dyn FnMut(&Header, &[u8])) -> Result<(), StoreError> {
    let mut before = None;
    journal.scan(0, &mut |seq, bytes| {
        let header = block::check_next(bytes, seq, before)?;
        for record in block::records(bytes) {
            record.map_err(|error| BlockError::from(error).at(seq))?;
        }
        before = Some(header.checksum);
        each(&header, bytes);
        Ok(())
    })
}

/// The error of a block, or a part of one, that should exist and does not.
pub(crate) fn missing(seq: u64) -> StoreError {
    StoreError::damaged(format!("block {seq} of the journal is missing or truncated"))
}

/// A truncation without a staged checkpoint.
pub(crate) fn no_checkpoint(seq: u64) -> StoreError {
    StoreError::Invalid(format!("the journal cannot begin with block {seq}: its checkpoint was not staged"))
}

/// A journal in memory: for tests, and the model of the durable ones.
#[derive(Debug, Default)]
pub struct MemoryJournal(RwLock<MemoryBlocks>);

#[derive(Debug, Default)]
struct MemoryBlocks {
    /// The number of the first block; 0 before the first append.
    first: u64,
    blocks: Vec<Vec<u8>>,
    staged: Option<(u64, Vec<u8>)>,
    active: Option<(u64, Vec<u8>)>,
}

impl MemoryBlocks {
    fn block(&self, seq: u64) -> Result<&[u8], StoreError> {
        seq.checked_sub(self.first)
            .and_then(|nth| self.blocks.get(usize::try_from(nth).ok()?))
            .map(Vec::as_slice)
            .ok_or_else(|| missing(seq))
    }
}

impl Journal for MemoryJournal {
    fn append(&self, seq: u64, block: &[u8]) -> Result<(), StoreError> {
        let mut memory = self.0.write();
        if memory.first == 0 {
            memory.first = seq;
        }
        memory.blocks.push(block.to_vec());
        Ok(())
    }

    fn bounds(&self) -> Result<Option<(u64, u64)>, StoreError> {
        let memory = self.0.read();
        let last = (memory.first + memory.blocks.len() as u64).saturating_sub(1);
        Ok((!memory.blocks.is_empty()).then_some((memory.first, last)))
    }

    fn block(&self, seq: u64) -> Result<Vec<u8>, StoreError> {
        self.0.read().block(seq).map(<[u8]>::to_vec)
    }

    fn part(&self, seq: u64, span: Span) -> Result<Vec<u8>, StoreError> {
        let memory = self.0.read();
        let part = span.of(memory.block(seq)?);
        part.map(<[u8]>::to_vec).ok_or_else(|| missing(seq))
    }

    fn first(&self) -> u64 {
        self.0.read().active.as_ref().map_or(1, |(first, _)| *first)
    }

    fn checkpoint(&self) -> Result<Option<Vec<u8>>, StoreError> {
        Ok(self.0.read().active.as_ref().map(|(_, bytes)| bytes.clone()))
    }

    fn stage(&self, seq: u64, checkpoint: &[u8]) -> Result<(), StoreError> {
        self.0.write().staged = Some((seq, checkpoint.to_vec()));
        Ok(())
    }

    fn truncate_before(&self, seq: u64) -> Result<(), StoreError> {
        let mut memory = self.0.write();
        let staged = memory.staged.take().filter(|(of, _)| *of == seq);
        memory.active = Some(staged.ok_or_else(|| no_checkpoint(seq))?);
        let count =
            usize::try_from(seq.saturating_sub(memory.first)).unwrap_or(usize::MAX).min(memory.blocks.len());
        memory.blocks.drain(..count);
        memory.first += count as u64;
        Ok(())
    }
}
