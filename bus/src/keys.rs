//! The index: which keys there are, and what stands under them.
//!
//! | key | value |
//! |---|---|
//! | `e` topic, offset | a run: where this event and those after it in the same block lie |
//! | `i` hash of topic and event id | its offset |
//! | `O` ordinal | a run: where this receipt and those after it in the same block lie |
//! | `R` hash of receipt id | its ordinal, and the hash of its body |
//! | `A` hash of action id | the ordinal that it resolves to, and the digest of its request |
//! | `K` hash of asker and key | the ordinal that satisfies it, and the digest of its parameters |
//! | `b` hash of resource | after which receipts and claims it was last changed, or all beneath it was last disturbed |
//! | `x` dimension, hash of value, bucket | which of 256 ordinals have this value |
//! | `D` letter | where the dead letter lies |
//! | `L` place in the log | a run: where this entry of the log and those after it in the same block lie |
//! | `F` family, key | version of the entry, and where its value lies |
//! | `Z` | the first block whose entries are here: those of blocks before it were taken out |

use effectd_contracts::{Digest, EventId, IdempotencyKey, SpaceId, Status};

use crate::codec::{Hash16, Malformed, Place, Reader, Span, put_i64, put_str, put_u64};
use crate::names::{FamilyName, TopicName};
use crate::record::Payload;
use crate::types::claims::Asker;

/// What receipts and letters are listed by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dimension {
    /// Receipts by tool.
    Tool,
    /// Receipts by subject.
    Subject,
    /// Receipts by space.
    Space,
    /// Receipts by status.
    Status,
    /// Receipts by space and idempotency key.
    Key,
    /// Letters by topic.
    LetterTopic,
    /// Notes by what they are about.
    Note,
}

impl Dimension {
    pub(crate) fn byte(self) -> u8 {
        match self {
            Dimension::Tool => 1,
            Dimension::Subject => 2,
            Dimension::Space => 3,
            Dimension::Status => 4,
            Dimension::Key => 5,
            Dimension::LetterTopic => 6,
            Dimension::Note => 7,
        }
    }
}

fn named(tag: u8, name: &str) -> Vec<u8> {
    let mut key = Vec::with_capacity(name.len() + 10);
    key.push(tag);
    key.push(name.len() as u8);
    key.extend_from_slice(name.as_bytes());
    key
}

fn hashed(tag: u8, hash: Hash16) -> Vec<u8> {
    let mut key = Vec::with_capacity(17);
    key.push(tag);
    key.extend_from_slice(&hash.0);
    key
}

fn numbered(tag: u8, number: u64) -> Vec<u8> {
    let mut key = Vec::with_capacity(9);
    key.push(tag);
    key.extend_from_slice(&number.to_be_bytes());
    key
}

/// Key of the run that begins at an offset.
pub fn run(topic: &TopicName, offset: u64) -> Vec<u8> {
    let mut key = named(b'e', topic.as_str());
    key.extend_from_slice(&offset.to_be_bytes());
    key
}

/// Key of the run that begins at an ordinal.
pub fn receipt_run(ordinal: u64) -> Vec<u8> {
    numbered(b'O', ordinal)
}

/// Key of the run that begins at a place in the log.
pub fn log_run(index: u64) -> Vec<u8> {
    numbered(b'L', index)
}

/// Key of an event's id.
pub fn event(topic: &TopicName, id: &EventId) -> Vec<u8> {
    hashed(
        b'i',
        Hash16::of(&[topic.as_str().as_bytes(), id.as_str().as_bytes()]),
    )
}

/// Key of a receipt's id.
pub fn receipt(id: &str) -> Vec<u8> {
    hashed(b'R', Hash16::of(&[id.as_bytes()]))
}

/// The hash that an action is known by.
pub fn action_hash(id: &str) -> Hash16 {
    Hash16::of(&[id.as_bytes()])
}

/// Key of an action's receipt.
pub fn action(hash: Hash16) -> Vec<u8> {
    hashed(b'A', hash)
}

/// The hash that receipts with an idempotency key of a space are listed by.
pub fn key_hash(space: &SpaceId, key: &IdempotencyKey) -> Hash16 {
    Hash16::of(&[space.as_str().as_bytes(), key.as_str().as_bytes()])
}

/// The hash that an asker's idempotency key is claimed and found by.
pub fn asked_hash(asker: &Asker, key: &IdempotencyKey) -> Hash16 {
    Hash16::of(&[
        asker.space.as_str().as_bytes(),
        asker.subject.as_str().as_bytes(),
        asker.principal.as_str().as_bytes(),
        key.as_str().as_bytes(),
    ])
}

/// Key of the receipt of an asker's idempotency key.
pub fn key(hash: Hash16) -> Vec<u8> {
    hashed(b'K', hash)
}

/// Key of when all beneath a resource was last disturbed.
pub fn beneath(hash: Hash16) -> Vec<u8> {
    hashed(b'b', hash)
}

/// Key of a dead letter.
pub fn letter(letter: u64) -> Vec<u8> {
    numbered(b'D', letter)
}

/// Beginning of the keys of a family's entries.
pub fn family(family: &FamilyName) -> Vec<u8> {
    named(b'F', family.as_str())
}

/// Key of an entry.
pub fn entry(name: &FamilyName, entry: &str) -> Vec<u8> {
    let mut key = family(name);
    key.extend_from_slice(entry.as_bytes());
    key
}

/// Beginning of the buckets of one value.
pub fn postings(dimension: Dimension, value: Hash16) -> Vec<u8> {
    let mut key = Vec::with_capacity(26);
    key.extend_from_slice(&[b'x', dimension.byte()]);
    key.extend_from_slice(&value.0);
    key
}

/// The bucket that a number is in, and its place there.
pub fn posting(dimension: Dimension, value: Hash16, number: u64) -> (Vec<u8>, u8) {
    let mut key = postings(dimension, value);
    key.extend_from_slice(&(number >> 8).to_be_bytes());
    (key, (number & 0xff) as u8)
}

/// The value that receipts of a status are listed under.
pub fn status_hash(status: Status) -> Hash16 {
    Hash16::of(&[status.as_str().as_bytes()])
}

/// The value that things with this text are listed under.
pub fn text_hash(text: &str) -> Hash16 {
    Hash16::of(&[text.as_bytes()])
}

/// Key of the first block whose entries are here.
pub fn cut() -> Vec<u8> {
    vec![b'Z']
}

/// The value of [`cut`].
pub fn cut_value(first: u64) -> Vec<u8> {
    let mut out = Vec::with_capacity(4);
    put_u64(&mut out, first);
    out
}

/// Where an event's id leads: its offset, and the block that the event was written forward to, if it was.
pub fn event_value(offset: u64, moved_to: Option<u64>) -> Vec<u8> {
    let mut out = Vec::with_capacity(8);
    put_u64(&mut out, offset);
    if let Some(seq) = moved_to {
        put_u64(&mut out, seq);
    }
    out
}

/// Reads an [`event_value`]: the offset, and whether the event was written forward.
pub fn read_event_value(bytes: &[u8]) -> Result<(u64, bool), Malformed> {
    let mut reader = Reader::new(bytes, 0);
    let offset = reader.u64()?;
    Ok((offset, reader.end().is_err()))
}

/// When all beneath a resource was last disturbed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Disturbance {
    /// Receipts before this one do not tell any more what is there.
    pub ordinal: u64,
    /// Claims with a smaller fence were open then, or had been.
    pub fence: u64,
}

impl Disturbance {
    /// Its bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(16);
        put_u64(&mut out, self.ordinal);
        put_u64(&mut out, self.fence);
        out
    }

    /// Reads its bytes.
    pub fn decode(bytes: &[u8]) -> Result<Self, Malformed> {
        let mut reader = Reader::new(bytes, 0);
        let found = Disturbance {
            ordinal: reader.u64()?,
            fence: reader.u64()?,
        };
        reader.end()?;
        Ok(found)
    }
}

/// Where the records of one block that follow each other in a topic lie.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Run {
    /// When the block was written.
    pub at_ms: i64,
    /// Which block.
    pub seq: u64,
    /// Bytes of all records before these, since the topic began: how much there is after any of them can be told
    /// without reading the rest.
    pub before: u64,
    /// The records, in order.
    pub spans: Vec<Span>,
}

impl Run {
    /// Bytes of all records up to the last of these.
    pub fn after(&self) -> u64 {
        let own: u64 = self.spans.iter().map(|span| u64::from(span.len)).sum();
        self.before + own
    }

    /// Its bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(16 + self.spans.len() * 5);
        put_i64(&mut out, self.at_ms);
        put_u64(&mut out, self.seq);
        put_u64(&mut out, self.before);
        put_u64(&mut out, self.spans.len() as u64);
        let mut last = 0;
        for span in &self.spans {
            put_u64(&mut out, u64::from(span.at - last));
            put_u64(&mut out, u64::from(span.len));
            last = span.at;
        }
        out
    }

    /// Reads its bytes.
    pub fn decode(bytes: &[u8]) -> Result<Self, Malformed> {
        let mut reader = Reader::new(bytes, 0);
        let (at_ms, seq, before, count) = (reader.i64()?, reader.u64()?, reader.u64()?, reader.count()?);
        let mut last = 0_u32;
        let mut spans = Vec::with_capacity(count);
        for _ in 0..count {
            last = last
                .checked_add(reader.u32()?)
                .ok_or(Malformed("a place beyond 4 GiB"))?;
            spans.push(Span {
                at: last,
                len: reader.u32()?,
            });
        }
        reader.end()?;
        Ok(Run {
            at_ms,
            seq,
            before,
            spans,
        })
    }
}

/// The receipt that an action or a key resolves to, and the digest it holds for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Resolution {
    /// Which receipt.
    pub ordinal: u64,
    /// Digest of the request or the parameters.
    pub digest: Digest,
}

impl Resolution {
    /// Its bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(40);
        put_u64(&mut out, self.ordinal);
        out.extend_from_slice(self.digest.as_bytes());
        out
    }

    /// Reads its bytes.
    pub fn decode(bytes: &[u8]) -> Result<Self, Malformed> {
        let mut reader = Reader::new(bytes, 0);
        let found = Resolution {
            ordinal: reader.u64()?,
            digest: Digest::from_bytes(reader.array()?),
        };
        reader.end()?;
        Ok(found)
    }
}

/// Where a payload lies, and what it is sealed under.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stored {
    /// The sealing epoch; `None` for bytes in clear.
    pub epoch: Option<u32>,
    /// Where it lies.
    pub place: Place,
}

impl Stored {
    /// Where a written payload lies.
    pub fn of(seq: u64, payload: &Payload) -> Self {
        Stored {
            epoch: payload.epoch,
            place: Place {
                seq,
                span: payload.blob.span(),
            },
        }
    }

    /// Writes it.
    pub fn encode(&self, out: &mut Vec<u8>) {
        put_u64(out, self.epoch.map_or(0, |epoch| u64::from(epoch) + 1));
        self.place.encode(out);
    }

    /// Reads it.
    pub fn decode(reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        let epoch = match reader.u64()? {
            0 => None,
            more => Some(u32::try_from(more - 1).map_err(|_| Malformed("an epoch beyond 32 bits"))?),
        };
        Ok(Stored {
            epoch,
            place: Place::decode(reader)?,
        })
    }
}

/// Where a dead letter lies. Detail and payload move when they are sealed again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LetterAt {
    /// When it was set aside.
    pub at_ms: i64,
    /// What its cause is known by.
    pub fingerprint: Hash16,
    /// Its record.
    pub record: Place,
    /// Its detail.
    pub detail: Stored,
    /// Its payload.
    pub payload: Stored,
    /// Its attempts, one by one, if they were told.
    pub tries: Option<Stored>,
}

impl LetterAt {
    /// Its bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(64);
        put_i64(&mut out, self.at_ms);
        out.extend_from_slice(&self.fingerprint.0);
        self.record.encode(&mut out);
        self.detail.encode(&mut out);
        self.payload.encode(&mut out);
        out.push(u8::from(self.tries.is_some()));
        if let Some(tries) = self.tries {
            tries.encode(&mut out);
        }
        out
    }

    /// Reads its bytes.
    pub fn decode(bytes: &[u8]) -> Result<Self, Malformed> {
        let mut reader = Reader::new(bytes, 0);
        let letter = LetterAt {
            at_ms: reader.i64()?,
            fingerprint: Hash16(reader.array()?),
            record: Place::decode(&mut reader)?,
            detail: Stored::decode(&mut reader)?,
            payload: Stored::decode(&mut reader)?,
            tries: if reader.flag()? {
                Some(Stored::decode(&mut reader)?)
            } else {
                None
            },
        };
        reader.end()?;
        Ok(letter)
    }
}

/// An entry's version, and where its value lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EntryAt {
    /// Its version.
    pub version: u64,
    /// Its value.
    pub value: Stored,
}

impl EntryAt {
    /// Its bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(24);
        put_u64(&mut out, self.version);
        self.value.encode(&mut out);
        out
    }

    /// Reads its bytes.
    pub fn decode(bytes: &[u8]) -> Result<Self, Malformed> {
        let mut reader = Reader::new(bytes, 0);
        let entry = EntryAt {
            version: reader.u64()?,
            value: Stored::decode(&mut reader)?,
        };
        reader.end()?;
        Ok(entry)
    }
}

/// A receipt's ordinal, and the hash of its body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReceiptAt {
    /// Its place among all receipts.
    pub ordinal: u64,
    /// Hash of its body.
    pub body: Hash16,
}

impl ReceiptAt {
    /// Its bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(24);
        put_u64(&mut out, self.ordinal);
        out.extend_from_slice(&self.body.0);
        out
    }

    /// Reads its bytes.
    pub fn decode(bytes: &[u8]) -> Result<Self, Malformed> {
        let mut reader = Reader::new(bytes, 0);
        let receipt = ReceiptAt {
            ordinal: reader.u64()?,
            body: Hash16(reader.array()?),
        };
        reader.end()?;
        Ok(receipt)
    }
}

/// How far the index has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Checkpoint {
    /// The last block that it holds.
    pub seq: u64,
    /// That block's checksum.
    pub checksum: u32,
}

impl Checkpoint {
    /// Its bytes, which have a checksum of their own.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        put_str(&mut out, "effectd index 2");
        put_u64(&mut out, self.seq);
        out.extend_from_slice(&self.checksum.to_be_bytes());
        let own = crc32fast::hash(&out);
        out.extend_from_slice(&own.to_be_bytes());
        out
    }

    /// Reads its bytes.
    pub fn decode(bytes: &[u8]) -> Result<Self, Malformed> {
        let own = bytes
            .len()
            .checked_sub(4)
            .ok_or(Malformed("a checkpoint that is too short"))?;
        if crc32fast::hash(&bytes[..own]).to_be_bytes() != bytes[own..] {
            return Err(Malformed("a checkpoint whose checksum does not fit"));
        }
        let mut reader = Reader::new(&bytes[..own], 0);
        if reader.text()? != "effectd index 2" {
            return Err(Malformed("an index of another format"));
        }
        let checkpoint = Checkpoint {
            seq: reader.u64()?,
            checksum: u32::from_be_bytes(reader.array()?),
        };
        reader.end()?;
        Ok(checkpoint)
    }
}
