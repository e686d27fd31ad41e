//! The bytes of each kind of record.

use super::fields::{
    digest, family, group, hash, hashes, id, optional_hash, optional_id, options, put_hashes, put_optional,
    put_optional_hash, put_options, status, status_byte, topic,
};
use super::{
    Blob, ClaimRecord, Ending, EventRecord, ExpiredRecord, LeasedRecord, LetterRecord, Payload,
    ReceiptRecord, Record, SettledRecord,
};
use crate::codec::{Malformed, Place, Reader, Span, put_bytes, put_i64, put_str, put_u64};

const PUBLISHED: u8 = 1;
const LEASED: u8 = 2;
const SETTLED: u8 = 3;
const LETTERED: u8 = 4;
const CLAIMED: u8 = 5;
const TAKEN_OVER: u8 = 6;
const COMPLETED: u8 = 7;
const LINKED: u8 = 8;
const ENTRY_PUT: u8 = 9;
const ENTRY_DELETED: u8 = 10;
const SOUGHT: u8 = 11;
const CONFIGURED: u8 = 12;
const EPOCH_CLOSED: u8 = 13;
const LETTER_RESEALED: u8 = 14;
const LETTER_ENDED: u8 = 15;
const NOTED: u8 = 32;
const EXPIRED: u8 = 16;
const EVENT_MOVED: u8 = 17;
const CLAIM_MOVED: u8 = 18;
const LETTER_MOVED: u8 = 19;
/// A letter that tells of each attempt.
const LETTERED_TRIES: u8 = 20;
const DISTURBED: u8 = 21;

impl Record {
    /// Appends the record to its block, and turns its drafts into the places where they now lie. `out` holds the block
    /// from its first byte on.
    pub fn encode(&mut self, out: &mut Vec<u8>) {
        match self {
            Record::Published(event) => {
                out.push(PUBLISHED);
                event.encode(out);
            }
            Record::Leased(leased) => leased.encode(out),
            Record::Settled(settled) => settled.encode(out),
            Record::Lettered(letter) => {
                out.push(if letter.tries.is_some() {
                    LETTERED_TRIES
                } else {
                    LETTERED
                });
                letter.encode(out);
            }
            Record::Claimed(claim) => claim.encode(out),
            Record::TakenOver { action, fence } => {
                out.push(TAKEN_OVER);
                out.extend_from_slice(&action.0);
                put_u64(out, *fence);
            }
            Record::Completed(receipt) => receipt.encode(out),
            Record::Linked {
                action,
                action_digest,
                ordinal,
            } => {
                out.push(LINKED);
                out.extend_from_slice(&action.0);
                out.extend_from_slice(action_digest.as_bytes());
                put_u64(out, *ordinal);
            }
            Record::EntryPut {
                family,
                key,
                version,
                created,
                value,
            } => {
                out.push(ENTRY_PUT);
                put_str(out, family.as_str());
                put_str(out, key);
                put_u64(out, *version);
                out.push(u8::from(*created));
                value.encode(out);
            }
            Record::EntryDeleted { family, key } => {
                out.push(ENTRY_DELETED);
                put_str(out, family.as_str());
                put_str(out, key);
            }
            Record::Sought { topic, group, offset } => {
                out.push(SOUGHT);
                put_str(out, topic.as_str());
                put_str(out, group.as_str());
                put_u64(out, *offset);
            }
            Record::Configured {
                topic,
                group,
                options,
            } => {
                out.push(CONFIGURED);
                put_str(out, topic.as_str());
                put_str(out, group.as_str());
                put_options(out, *options);
            }
            Record::EpochClosed { epoch } => {
                out.push(EPOCH_CLOSED);
                put_u64(out, u64::from(*epoch));
            }
            Record::LetterEnded { letter, reopened } => {
                out.push(LETTER_ENDED);
                put_u64(out, *letter);
                put_optional_hash(out, *reopened);
            }
            Record::Noted { about, body } => {
                out.push(NOTED);
                out.extend_from_slice(&about.0);
                body.encode(out);
            }
            Record::LetterResealed {
                letter,
                at_ms,
                fingerprint,
                record,
                detail,
                payload,
            } => {
                out.push(LETTER_RESEALED);
                put_u64(out, *letter);
                put_i64(out, *at_ms);
                out.extend_from_slice(&fingerprint.0);
                record.encode(out);
                detail.encode(out);
                payload.encode(out);
            }
            Record::Expired(expired) => expired.encode(out),
            Record::EventMoved { at_ms, event } => {
                out.push(EVENT_MOVED);
                put_i64(out, *at_ms);
                event.encode(out);
            }
            Record::ClaimMoved { fence, intent } => {
                out.push(CLAIM_MOVED);
                put_u64(out, *fence);
                intent.encode(out);
            }
            Record::LetterMoved { at_ms, letter } => {
                out.push(LETTER_MOVED);
                put_i64(out, *at_ms);
                out.push(u8::from(letter.tries.is_some()));
                letter.encode(out);
            }
            Record::Disturbed { ordinal, resources } => {
                out.push(DISTURBED);
                put_u64(out, *ordinal);
                put_hashes(out, resources);
            }
        }
    }

    /// Reads one record, which must fill its bytes.
    pub fn decode(reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        let record = match reader.u8()? {
            PUBLISHED => Record::Published(EventRecord::decode(reader)?),
            LEASED => Record::Leased(LeasedRecord::decode(reader)?),
            SETTLED => Record::Settled(SettledRecord::decode(reader)?),
            LETTERED => Record::Lettered(LetterRecord::decode(reader, false)?),
            CLAIMED => Record::Claimed(ClaimRecord::decode(reader)?),
            TAKEN_OVER => Record::TakenOver {
                action: hash(reader)?,
                fence: reader.u64()?,
            },
            COMPLETED => Record::Completed(ReceiptRecord::decode(reader)?),
            LINKED => Record::Linked {
                action: hash(reader)?,
                action_digest: digest(reader)?,
                ordinal: reader.u64()?,
            },
            ENTRY_PUT => Record::EntryPut {
                family: family(reader)?,
                key: reader.text()?.to_owned(),
                version: reader.u64()?,
                created: reader.flag()?,
                value: Payload::decode(reader)?,
            },
            ENTRY_DELETED => Record::EntryDeleted {
                family: family(reader)?,
                key: reader.text()?.to_owned(),
            },
            SOUGHT => Record::Sought {
                topic: topic(reader)?,
                group: group(reader)?,
                offset: reader.u64()?,
            },
            CONFIGURED => Record::Configured {
                topic: topic(reader)?,
                group: group(reader)?,
                options: options(reader)?,
            },
            EPOCH_CLOSED => Record::EpochClosed { epoch: reader.u32()? },
            LETTER_RESEALED => Record::LetterResealed {
                letter: reader.u64()?,
                at_ms: reader.i64()?,
                fingerprint: hash(reader)?,
                record: Place::decode(reader)?,
                detail: Payload::decode(reader)?,
                payload: Payload::decode(reader)?,
            },
            LETTER_ENDED => Record::LetterEnded {
                letter: reader.u64()?,
                reopened: optional_hash(reader)?,
            },
            NOTED => Record::Noted {
                about: hash(reader)?,
                body: Blob::At(reader.span()?),
            },
            EXPIRED => Record::Expired(ExpiredRecord::decode(reader)?),
            EVENT_MOVED => Record::EventMoved {
                at_ms: reader.i64()?,
                event: EventRecord::decode(reader)?,
            },
            CLAIM_MOVED => Record::ClaimMoved {
                fence: reader.u64()?,
                intent: Payload::decode(reader)?,
            },
            LETTER_MOVED => {
                let (at_ms, tries) = (reader.i64()?, reader.flag()?);
                Record::LetterMoved {
                    at_ms,
                    letter: LetterRecord::decode(reader, tries)?,
                }
            }
            LETTERED_TRIES => Record::Lettered(LetterRecord::decode(reader, true)?),
            DISTURBED => Record::Disturbed {
                ordinal: reader.u64()?,
                resources: hashes(reader)?,
            },
            0 | 22..NOTED | 33..=u8::MAX => return Err(Malformed("a record of an unknown kind")),
        };
        reader.end()?;
        Ok(record)
    }
}

impl EventRecord {
    fn encode(&mut self, out: &mut Vec<u8>) {
        put_str(out, self.topic.as_str());
        put_u64(out, self.offset);
        put_str(out, self.event_id.as_str());
        put_i64(out, self.time_ms);
        put_str(out, self.trace_id.as_str());
        put_optional(out, self.action_id.as_ref().map(|id| id.as_str()));
        self.body.encode(out);
    }

    fn decode(reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        Ok(EventRecord {
            topic: topic(reader)?,
            offset: reader.u64()?,
            event_id: id(reader)?,
            time_ms: reader.i64()?,
            trace_id: id(reader)?,
            action_id: optional_id(reader)?,
            body: Payload::decode(reader)?,
        })
    }
}

impl LeasedRecord {
    fn encode(&self, out: &mut Vec<u8>) {
        out.push(LEASED);
        put_str(out, self.topic.as_str());
        put_str(out, self.group.as_str());
        put_u64(out, self.ttl_ms);
        put_u64(out, self.grants.len() as u64);
        for (offset, lease) in &self.grants {
            put_u64(out, *offset);
            put_u64(out, *lease);
        }
    }

    fn decode(reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        let (topic, group, ttl_ms) = (topic(reader)?, group(reader)?, reader.u64()?);
        let count = reader.count()?;
        let grants = (0..count)
            .map(|_| Ok((reader.u64()?, reader.u64()?)))
            .collect::<Result<_, Malformed>>()?;
        Ok(LeasedRecord {
            topic,
            group,
            ttl_ms,
            grants,
        })
    }
}

impl SettledRecord {
    fn encode(&mut self, out: &mut Vec<u8>) {
        out.push(SETTLED);
        put_str(out, self.topic.as_str());
        put_str(out, self.group.as_str());
        put_u64(out, self.offset);
        match &mut self.how {
            Ending::Done => out.push(0),
            Ending::Nacked { delay_ms, detail } => {
                out.push(1);
                put_u64(out, *delay_ms);
                detail.encode(out);
            }
            Ending::Deferred { delay_ms } => {
                out.push(2);
                put_u64(out, *delay_ms);
            }
        }
    }

    fn decode(reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        let (topic, group, offset) = (topic(reader)?, group(reader)?, reader.u64()?);
        let how = match reader.u8()? {
            0 => Ending::Done,
            1 => Ending::Nacked {
                delay_ms: reader.u64()?,
                detail: Payload::decode(reader)?,
            },
            2 => Ending::Deferred {
                delay_ms: reader.u64()?,
            },
            3..=u8::MAX => return Err(Malformed("an unknown ending")),
        };
        Ok(SettledRecord {
            topic,
            group,
            offset,
            how,
        })
    }
}

impl LetterRecord {
    fn encode(&mut self, out: &mut Vec<u8>) {
        put_u64(out, self.letter);
        put_str(out, self.topic.as_str());
        put_optional(out, self.delivery.as_ref().map(|(group, _)| group.as_str()));
        put_u64(out, self.delivery.as_ref().map_or(0, |(_, offset)| *offset));
        put_optional(out, self.receipt_id.as_ref().map(|id| id.as_str()));
        put_optional(out, self.action_id.as_ref().map(|id| id.as_str()));
        put_str(out, &self.code);
        out.extend_from_slice(&self.fingerprint.0);
        put_u64(out, u64::from(self.attempts));
        self.detail.encode(out);
        self.payload.encode(out);
        if let Some(tries) = &mut self.tries {
            tries.encode(out);
        }
    }

    fn decode(reader: &mut Reader<'_>, tries: bool) -> Result<Self, Malformed> {
        let (letter, topic) = (reader.u64()?, topic(reader)?);
        let group = if reader.flag()? {
            Some(group(reader)?)
        } else {
            None
        };
        let offset = reader.u64()?;
        Ok(LetterRecord {
            letter,
            topic,
            delivery: group.map(|group| (group, offset)),
            receipt_id: optional_id(reader)?,
            action_id: optional_id(reader)?,
            code: reader.text()?.to_owned(),
            fingerprint: hash(reader)?,
            attempts: reader.u32()?,
            detail: Payload::decode(reader)?,
            payload: Payload::decode(reader)?,
            tries: if tries {
                Some(Payload::decode(reader)?)
            } else {
                None
            },
        })
    }
}

impl ExpiredRecord {
    fn encode(&self, out: &mut Vec<u8>) {
        out.push(EXPIRED);
        put_u64(out, self.receipts_begin);
        put_u64(out, u64::from(self.epochs_before));
        put_u64(out, self.topics.len() as u64);
        for (topic, begin, unsettled) in &self.topics {
            put_str(out, topic.as_str());
            put_u64(out, *begin);
            out.push(u8::from(*unsettled));
        }
    }

    fn decode(reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        let (receipts_begin, epochs_before) = (reader.u64()?, reader.u32()?);
        let count = reader.count()?;
        let topics = (0..count)
            .map(|_| Ok((topic(reader)?, reader.u64()?, reader.flag()?)))
            .collect::<Result<_, Malformed>>()?;
        Ok(ExpiredRecord {
            receipts_begin,
            epochs_before,
            topics,
        })
    }
}

impl ClaimRecord {
    fn encode(&mut self, out: &mut Vec<u8>) {
        out.push(CLAIMED);
        put_str(out, self.action_id.as_str());
        out.extend_from_slice(self.action_digest.as_bytes());
        put_str(out, self.space.as_str());
        put_optional_hash(out, self.key);
        out.extend_from_slice(self.params_digest.as_bytes());
        put_hashes(out, &self.resources);
        put_u64(out, self.fence);
        self.intent.encode(out);
    }

    fn decode(reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        Ok(ClaimRecord {
            action_id: id(reader)?,
            action_digest: digest(reader)?,
            space: id(reader)?,
            key: optional_hash(reader)?,
            params_digest: digest(reader)?,
            resources: hashes(reader)?,
            fence: reader.u64()?,
            intent: Payload::decode(reader)?,
        })
    }
}

impl ReceiptRecord {
    fn encode(&mut self, out: &mut Vec<u8>) {
        out.push(COMPLETED);
        put_u64(out, self.ordinal);
        put_str(out, self.receipt_id.as_str());
        put_str(out, self.action_id.as_str());
        out.extend_from_slice(self.action_digest.as_bytes());
        put_str(out, self.tool_id.as_str());
        put_str(out, self.subject_id.as_str());
        put_str(out, self.space_id.as_str());
        out.push(status_byte(self.status));
        put_optional_hash(out, self.key);
        out.extend_from_slice(self.params_digest.as_bytes());
        put_i64(out, self.time_ms);
        out.extend_from_slice(&self.body_hash.0);
        self.body.encode(out);
    }

    fn decode(reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        Ok(ReceiptRecord {
            ordinal: reader.u64()?,
            receipt_id: id(reader)?,
            action_id: id(reader)?,
            action_digest: digest(reader)?,
            tool_id: id(reader)?,
            subject_id: id(reader)?,
            space_id: id(reader)?,
            status: status(reader)?,
            key: optional_hash(reader)?,
            params_digest: digest(reader)?,
            time_ms: reader.i64()?,
            body_hash: hash(reader)?,
            body: Blob::At(reader.span()?),
        })
    }
}

impl Blob {
    fn encode(&mut self, out: &mut Vec<u8>) {
        if let Blob::Draft(bytes) = self {
            put_bytes(out, bytes);
            let at = out.len() - bytes.len();
            #[expect(
                clippy::cast_possible_truncation,
                reason = "a block is bounded far below 4 GiB"
            )]
            let span = Span {
                at: at as u32,
                len: bytes.len() as u32,
            };
            *self = Blob::At(span);
        }
    }
}

impl Payload {
    fn encode(&mut self, out: &mut Vec<u8>) {
        put_u64(out, self.epoch.map_or(0, |epoch| u64::from(epoch) + 1));
        self.blob.encode(out);
    }

    fn decode(reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        let epoch = match reader.u64()? {
            0 => None,
            more => Some(u32::try_from(more - 1).map_err(|_| Malformed("an epoch beyond 32 bits"))?),
        };
        Ok(Payload {
            epoch,
            blob: Blob::At(reader.span()?),
        })
    }
}
