//! The journal: blocks in order, durable one by one.

use std::sync::Arc;

use parking_lot::{RwLock, RwLockWriteGuard};

use crate::codec::Span;
use crate::error::StoreError;

/// What is done with each block of a scan: its number, its bytes.
pub type Each<'a> = dyn FnMut(u64, &[u8]) -> Result<(), StoreError> + 'a;

/// Where blocks are kept. Another local engine is another implementation of this, and nothing else.
///
/// Blocks are numbered without gaps. [`Journal::append`] is all or nothing: after a crash inside it, the block is there
/// as a whole or not at all. After any error the journal is not used again; the engine opens a new one.
pub trait Journal: Send + Sync {
    /// Appends a block. When this returns, the block survives power loss.
    fn append(&self, seq: u64, block: &[u8]) -> Result<(), StoreError>;

    /// The first and the last block; `None` while there is none.
    fn bounds(&self) -> Result<Option<(u64, u64)>, StoreError>;

    /// One block as a whole.
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

    /// The first block that counts; 1 while none was let go.
    fn first(&self) -> u64;

    /// What the blocks from [`Journal::first`] on stand on, as [`crate::ground`] writes it; `None` while none was let go.
    fn ground(&self) -> Result<Option<Vec<u8>>, StoreError>;

    /// Makes ready what the blocks from `seq` on will stand on. Durable when this returns, and without effect before
    /// [`Journal::truncate_before`] of the same block.
    fn stage(&self, seq: u64, ground: &[u8]) -> Result<(), StoreError>;

    /// Lets go of the blocks before `seq`, for which a ground was made ready. After a crash inside it, all of them count
    /// or none.
    fn truncate_before(&self, seq: u64) -> Result<(), StoreError>;
}

/// Bytes before the ground in what a [`JournalReader`] reads.
pub(crate) const HEAD_BYTES: usize = 16;
/// About how much of a journal is read at a time.
const PIECE_BYTES: usize = 256 << 10;

/// Reads a journal for a copy, from its first block to the one that is the last now, as bytes: the number of the first block and the
/// length of the ground, each in eight bytes, big-endian; the ground; and the blocks, which say themselves how long they are.
pub struct JournalReader {
    /// The journal, which a store opens anew after an error of the disk.
    journal: Box<dyn Fn() -> Result<Arc<dyn Journal>, StoreError> + Send>,
    head: Option<Vec<u8>>,
    next: u64,
    /// The block after the last.
    end: u64,
}

impl JournalReader {
    pub(crate) fn new(
        journal: impl Fn() -> Result<Arc<dyn Journal>, StoreError> + Send + 'static,
    ) -> Result<Self, StoreError> {
        let open = journal()?;
        // What is let go meanwhile moves the beginning.
        let (first, ground) = loop {
            let first = open.first();
            let ground = open.ground();
            if open.first() == first {
                break (first, ground?.unwrap_or_default());
            }
        };
        let mut head = Vec::with_capacity(HEAD_BYTES + ground.len());
        head.extend_from_slice(&first.to_be_bytes());
        head.extend_from_slice(&(ground.len() as u64).to_be_bytes());
        head.extend_from_slice(&ground);
        let end = open.bounds()?.map_or(first, |(_, last)| last + 1);
        Ok(Self {
            journal: Box::new(journal),
            head: Some(head),
            next: first,
            end,
        })
    }

    /// The next bytes; `None` at the end. Fails if a block is let go before it is read.
    pub fn piece(&mut self) -> Result<Option<Vec<u8>>, StoreError> {
        if let Some(head) = self.head.take() {
            return Ok(Some(head));
        }
        let mut piece = Vec::new();
        while self.next < self.end && piece.len() < PIECE_BYTES {
            piece.extend_from_slice(&(self.journal)()?.block(self.next)?);
            self.next += 1;
        }
        Ok(Some(piece).filter(|piece| !piece.is_empty()))
    }
}

/// A block or part that should be there and is not.
pub(crate) fn missing(seq: u64) -> StoreError {
    StoreError::Damaged {
        what: format!("block {seq} of the journal is missing or cut off"),
        advice: ADVICE,
    }
}

/// A journal that was to be shortened to a block without having been told what it stands on then.
pub(crate) fn unprepared(seq: u64) -> StoreError {
    StoreError::Invalid(format!(
        "the journal cannot begin with block {seq}: what it would stand on was not made ready"
    ))
}

/// What to do about a journal that is not what was written.
pub(crate) const ADVICE: &str =
    "Stop effectd, keep a copy of the state directory as it is, and restore the last backup.";

/// A journal in memory, for tests and as the model of the durable ones.
#[derive(Debug, Default)]
pub struct MemoryJournal {
    blocks: RwLock<(u64, Vec<Vec<u8>>)>,
    grounds: RwLock<Grounds>,
}

#[derive(Debug, Default)]
struct Grounds {
    staged: Option<(u64, Vec<u8>)>,
    in_force: Option<(u64, Vec<u8>)>,
}

impl MemoryJournal {
    fn grounds(&self) -> RwLockWriteGuard<'_, Grounds> {
        self.grounds.write()
    }
}

impl Journal for MemoryJournal {
    fn append(&self, seq: u64, block: &[u8]) -> Result<(), StoreError> {
        let mut blocks = self.blocks.write();
        if blocks.1.is_empty() && blocks.0 == 0 {
            blocks.0 = seq;
        }
        blocks.1.push(block.to_vec());
        Ok(())
    }

    fn bounds(&self) -> Result<Option<(u64, u64)>, StoreError> {
        let blocks = self.blocks.read();
        Ok((!blocks.1.is_empty()).then(|| (blocks.0, blocks.0 + blocks.1.len() as u64 - 1)))
    }

    fn block(&self, seq: u64) -> Result<Vec<u8>, StoreError> {
        let blocks = self.blocks.read();
        let index = seq
            .checked_sub(blocks.0)
            .and_then(|index| usize::try_from(index).ok());
        index
            .and_then(|index| blocks.1.get(index))
            .cloned()
            .ok_or_else(|| missing(seq))
    }

    fn part(&self, seq: u64, span: Span) -> Result<Vec<u8>, StoreError> {
        let blocks = self.blocks.read();
        let index = seq
            .checked_sub(blocks.0)
            .and_then(|index| usize::try_from(index).ok());
        let block = index
            .and_then(|index| blocks.1.get(index))
            .ok_or_else(|| missing(seq))?;
        let range = span.at as usize..span.at as usize + span.len as usize;
        block.get(range).map(<[u8]>::to_vec).ok_or_else(|| missing(seq))
    }

    fn first(&self) -> u64 {
        self.grounds().in_force.as_ref().map_or(1, |(first, _)| *first)
    }

    fn ground(&self) -> Result<Option<Vec<u8>>, StoreError> {
        Ok(self.grounds().in_force.as_ref().map(|(_, bytes)| bytes.clone()))
    }

    fn stage(&self, seq: u64, ground: &[u8]) -> Result<(), StoreError> {
        self.grounds().staged = Some((seq, ground.to_vec()));
        Ok(())
    }

    fn truncate_before(&self, seq: u64) -> Result<(), StoreError> {
        let mut grounds = self.grounds();
        let staged = grounds.staged.take().filter(|(ready, _)| *ready == seq);
        grounds.in_force = Some(staged.ok_or_else(|| unprepared(seq))?);
        drop(grounds);
        let mut blocks = self.blocks.write();
        let count = usize::try_from(seq.saturating_sub(blocks.0))
            .unwrap_or(usize::MAX)
            .min(blocks.1.len());
        blocks.1.drain(..count);
        blocks.0 += count as u64;
        Ok(())
    }
}
