//! Copies of a journal: from the bytes of a [`JournalReader`] into a new journal of any kind.
//!
//! The writer checks every block, and that each follows the one before it.

use std::path::Path;
use std::sync::Arc;

use super::salvage::BLOCK_BYTES_MAX;
use crate::config::{Durability, EmbeddedConfig, JournalKind};
use crate::error::StoreError;
use crate::files::{private_dir, remove_dir, sync_tree};
use crate::journal::block::{self, BlockError, HEADER_BYTES, Header};
use crate::journal::state_dir::{lock_journal, write_format};
use crate::journal::{self, HEAD_BYTES, Journal, JournalReader, checkpoint_files};
use crate::state::checkpoint::Checkpoint;

/// Copies the journal of a state directory that no process uses.
pub fn copy(config: &EmbeddedConfig, writer: &mut JournalWriter) -> Result<(), StoreError> {
    let mut config = config.clone();
    let _lock = lock_journal(&mut config)?;
    write(journal::open(&config)?, writer)
}

pub(super) fn write(from: Arc<dyn Journal>, writer: &mut JournalWriter) -> Result<(), StoreError> {
    let journal = from.clone();
    let mut reader = JournalReader::new(from.as_ref(), move |seq| journal.block(seq))?;
    while let Some(piece) = reader.piece()? {
        writer.write(&piece)?;
    }
    Ok(())
}

/// Writes a new journal. Nothing of it is durable before [`JournalWriter::finish`].
pub struct JournalWriter {
    config: EmbeddedConfig,
    /// Bytes that are not a whole block yet.
    bytes: Vec<u8>,
    begun: Option<Begun>,
}

struct Begun {
    journal: Arc<dyn Journal>,
    first: u64,
    next: u64,
    /// Checksum of the block before the next one.
    before: u32,
}

impl JournalWriter {
    /// A journal of this kind in a state directory whose journal is of another kind. Removes what an earlier attempt wrote.
    pub(super) fn new(config: &EmbeddedConfig, journal: JournalKind) -> Result<Self, StoreError> {
        remove_dir(&journal::directory(journal, &config.state))?;
        Ok(Self {
            config: EmbeddedConfig { journal, durability: Durability::Unsynced, ..config.clone() },
            bytes: Vec::new(),
            begun: None,
        })
    }

    /// A journal in plain files, in a state directory that has none.
    pub fn in_files(state: &Path) -> Result<Self, StoreError> {
        private_dir(&state.join("journal"))?;
        write_format(state, JournalKind::Files)?;
        Self::new(&EmbeddedConfig::new(state), JournalKind::Files)
    }

    pub fn write(&mut self, bytes: &[u8]) -> Result<(), StoreError> {
        self.bytes.extend_from_slice(bytes);
        let mut at = 0;
        loop {
            let rest = self.bytes.get(at..).unwrap_or_default();
            if let Some(begun) = &mut self.begun {
                let Some((header, block)) = begun.whole_block(rest)? else {
                    break;
                };
                begun.journal.append(header.seq, block)?;
                self.config.progress.at("copying the journal", header.seq + 1 - begun.first, 0);
                (begun.next, begun.before) = (header.seq + 1, header.checksum);
                at += block.len();
            } else {
                let Some((first, checkpoint)) = head(rest)? else {
                    break;
                };
                at += HEAD_BYTES + checkpoint.len();
                self.begun = Some(Begun::new(&self.config, first, checkpoint)?);
            }
        }
        self.bytes.drain(..at);
        Ok(())
    }

    /// Makes the journal durable; returns the number of its blocks.
    pub fn finish(self) -> Result<u64, StoreError> {
        let Some(begun) = self.begun.filter(|_| self.bytes.is_empty()) else {
            return Err(StoreError::unavailable("the journal broke off while it was copied"));
        };
        drop(begun.journal);
        sync_tree(&journal::directory(self.config.journal, &self.config.state))?;
        Ok(begun.next - begun.first)
    }
}

/// The bytes before the blocks, if they are complete: the number of the first block, and the checkpoint.
fn head(bytes: &[u8]) -> Result<Option<(u64, &[u8])>, StoreError> {
    let numbers = bytes.split_first_chunk::<8>();
    let numbers = numbers.and_then(|(first, rest)| Some((first, rest.split_first_chunk::<8>()?)));
    let Some((first, (length, rest))) = numbers else {
        return Ok(None);
    };
    let (first, length) = (u64::from_be_bytes(*first), u64::from_be_bytes(*length));
    let length = usize::try_from(length).unwrap_or(usize::MAX);
    if length > CHECKPOINT_BYTES_MAX {
        return Err(BlockError::Damaged("a checkpoint that is too long").at(first));
    }
    Ok(rest.get(..length).map(|checkpoint| (first, checkpoint)))
}

/// Longest checkpoint that is read from another process into memory; a real one has a few megabytes.
const CHECKPOINT_BYTES_MAX: usize = 1 << 30;

impl Begun {
    fn new(config: &EmbeddedConfig, first: u64, checkpoint: &[u8]) -> Result<Self, StoreError> {
        let directory = journal::directory(config.journal, &config.state);
        private_dir(&directory)?;
        let mut before = 0;
        if !checkpoint.is_empty() {
            before = Checkpoint::read(checkpoint, first)?.checksum;
            checkpoint_files::begin(&directory, first, checkpoint)?;
        }
        Ok(Self { journal: journal::open(config)?, first, next: first, before })
    }

    /// The block at the beginning of these bytes, if it is complete.
    fn whole_block<'a>(&self, bytes: &'a [u8]) -> Result<Option<(Header, &'a [u8])>, StoreError> {
        let Some(length) = bytes.get(32..).and_then(|length| length.first_chunk::<4>()) else {
            return Ok(None);
        };
        let length = HEADER_BYTES + u32::from_be_bytes(*length) as usize;
        if length > BLOCK_BYTES_MAX {
            return Err(BlockError::Damaged("a length that no block has").at(self.next));
        }
        let Some(block) = bytes.get(..length) else {
            return Ok(None);
        };
        let header = block::check_next(block, self.next, Some(self.before))?;
        Ok(Some((header, block)))
    }
}
