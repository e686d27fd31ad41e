//! A journal written forward: from what a [`JournalReader`] reads into a new journal of any kind.
//!
//! The writer checks every block, and that each follows the one before it.

use std::path::Path;
use std::sync::Arc;

use super::salvage::BLOCK_BYTES_MAX;
use super::{Durability, EmbeddedConfig, JournalKind, grounds, prepared, remove, sync_tree, write_format};
use crate::block::{self, BlockError, HEADER_BYTES, Header};
use crate::engine::recover::damaged;
use crate::error::StoreError;
use crate::ground::Ground;
use crate::journal::{HEAD_BYTES, Journal, JournalReader};
use crate::vault::keyring::private_dir;

/// Copies the journal of a state directory that no process uses.
pub fn copy(config: &EmbeddedConfig, writer: &mut JournalWriter) -> Result<(), StoreError> {
    let mut config = config.clone();
    let _lock = prepared(&mut config)?;
    write(config.journal.open(&config)?, writer)
}

pub(super) fn write(from: Arc<dyn Journal>, writer: &mut JournalWriter) -> Result<(), StoreError> {
    let mut reader = JournalReader::new(move || Ok(from.clone()))?;
    while let Some(piece) = reader.piece()? {
        writer.write(&piece)?;
    }
    Ok(())
}

/// Writes a new journal. Nothing of it is durable before [`JournalWriter::finish`].
pub struct JournalWriter {
    config: EmbeddedConfig,
    /// What was written and is not a whole block yet.
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
    /// A journal of this kind in a state directory where another kind is in force. One that was begun before is removed.
    pub(super) fn new(config: &EmbeddedConfig, journal: JournalKind) -> Result<Self, StoreError> {
        remove(&journal.directory(&config.state))?;
        Ok(Self {
            config: EmbeddedConfig {
                journal,
                durability: Durability::Unsynced,
                ..config.clone()
            },
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
                (begun.next, begun.before) = (header.seq + 1, header.checksum);
                at += block.len();
            } else {
                let Some((first, ground)) = head(rest)? else {
                    break;
                };
                at += HEAD_BYTES + ground.len();
                self.begun = Some(Begun::new(&self.config, first, ground)?);
            }
        }
        self.bytes.drain(..at);
        Ok(())
    }

    /// Makes all of it durable; how many blocks there are.
    pub fn finish(self) -> Result<u64, StoreError> {
        let Some(begun) = self.begun.filter(|_| self.bytes.is_empty()) else {
            return Err(StoreError::Unavailable {
                reason: "the journal broke off while it was copied".into(),
            });
        };
        drop(begun.journal);
        sync_tree(&self.config.journal.directory(&self.config.state))?;
        Ok(begun.next - begun.first)
    }
}

/// What stands before the blocks, if all of it is there: the first block's number, and the ground.
fn head(bytes: &[u8]) -> Result<Option<(u64, &[u8])>, StoreError> {
    let numbers = bytes.split_first_chunk::<8>();
    let numbers = numbers.and_then(|(first, rest)| Some((first, rest.split_first_chunk::<8>()?)));
    let Some((first, (length, rest))) = numbers else {
        return Ok(None);
    };
    let (first, length) = (u64::from_be_bytes(*first), u64::from_be_bytes(*length));
    let length = usize::try_from(length).unwrap_or(usize::MAX);
    if length > GROUND_BYTES_MAX {
        return Err(damaged(first, &BlockError::Damaged("a ground that is too long")));
    }
    Ok(rest.get(..length).map(|ground| (first, ground)))
}

/// Longest ground that is read from another process: it is held in memory, and a real one is a few megabytes.
const GROUND_BYTES_MAX: usize = 1 << 30;

impl Begun {
    fn new(config: &EmbeddedConfig, first: u64, ground: &[u8]) -> Result<Self, StoreError> {
        let directory = config.journal.directory(&config.state);
        private_dir(&directory)?;
        let mut before = 0;
        if !ground.is_empty() {
            before = Ground::read(ground, first)?.checksum;
            grounds::begin(&directory, first, ground)?;
        }
        Ok(Self {
            journal: config.journal.open(config)?,
            first,
            next: first,
            before,
        })
    }

    /// The block that these bytes begin with, if all of it is there.
    fn whole_block<'a>(&self, bytes: &'a [u8]) -> Result<Option<(Header, &'a [u8])>, StoreError> {
        let wrong = |what| damaged(self.next, &BlockError::Damaged(what));
        let Some(length) = bytes.get(32..).and_then(|length| length.first_chunk::<4>()) else {
            return Ok(None);
        };
        let length = HEADER_BYTES + u32::from_be_bytes(*length) as usize;
        if length > BLOCK_BYTES_MAX {
            return Err(wrong("a length that no block has"));
        }
        let Some(block) = bytes.get(..length) else {
            return Ok(None);
        };
        let header = block::check(block).map_err(|error| damaged(self.next, &error))?;
        if header.seq != self.next || header.previous != self.before {
            return Err(wrong("a block that does not follow the one before it"));
        }
        Ok(Some((header, block)))
    }
}
