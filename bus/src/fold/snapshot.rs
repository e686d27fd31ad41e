//! The working state as bytes, so that a store opens without reading its whole journal.
//!
//! A snapshot holds what the fold would be if the process had died right after the block that it names: leases are over,
//! claims have no holder. Two folds of one journal have the same snapshot, byte for byte, which is how the crash tests
//! compare what is served with what the journal says.

use std::collections::BTreeSet;
use std::time::Duration;

use effectd_contracts::Monotonic;
use effectd_contracts::merkle::Frontier;

use super::apply::waiting;
use super::groups::{Group, Hold, Pending, Tried};
use super::{Fold, OpenClaim, Topic, When};
use crate::codec::{Malformed, Reader, put_bytes, put_i64, put_str, put_u64};
use crate::keys::{Stored, action_hash};
use crate::record::fields::{
    digest, group as read_group, hashes, id, optional_hash, options, put_hashes, put_optional_hash,
    put_options, topic,
};

const MARK: &str = "effectd snapshot 3";

impl Fold {
    /// The state's bytes, as of block `seq`, behind a checksum.
    pub fn snapshot(&self, seq: u64) -> Vec<u8> {
        let mut body = Vec::new();
        put_str(&mut body, MARK);
        put_u64(&mut body, seq);
        put_u64(&mut body, self.log.size());
        for peak in self.log.peaks() {
            body.extend_from_slice(peak.as_bytes());
        }
        let counters = [
            self.next_lease,
            self.next_fence,
            self.next_version,
            self.next_ordinal,
            self.next_letter,
            self.entries,
            self.receipts_begin,
            self.receipt_bytes,
            u64::from(self.epochs_before),
        ];
        counters
            .into_iter()
            .for_each(|counter| put_u64(&mut body, counter));
        put_u64(&mut body, self.closed_epochs.len() as u64);
        self.closed_epochs
            .iter()
            .for_each(|epoch| put_u64(&mut body, u64::from(*epoch)));
        self.put_topics(&mut body);
        put_u64(&mut body, self.groups.len() as u64);
        for ((topic, name), group) in &self.groups {
            put_str(&mut body, topic.as_str());
            put_str(&mut body, name.as_str());
            put_group(&mut body, group);
        }
        put_u64(&mut body, self.claims.len() as u64);
        for (fence, claim) in &self.claims {
            put_u64(&mut body, *fence);
            put_claim(&mut body, claim);
        }
        let mut out = crc32fast::hash(&body).to_be_bytes().to_vec();
        put_bytes(&mut out, &body);
        out
    }

    /// Reads a state back, and the block it is of.
    pub fn restore(bytes: &[u8], when: When) -> Result<(u64, Fold), Malformed> {
        let mut reader = checked(bytes)?;
        let seq = reader.u64()?;
        let mut fold = Fold {
            log: read_log(&mut reader)?,
            next_lease: reader.u64()?,
            next_fence: reader.u64()?,
            next_version: reader.u64()?,
            next_ordinal: reader.u64()?,
            next_letter: reader.u64()?,
            entries: reader.u64()?,
            receipts_begin: reader.u64()?,
            receipt_bytes: reader.u64()?,
            epochs_before: reader.u32()?,
            ..Fold::default()
        };
        for _ in 0..reader.count()? {
            fold.closed_epochs.insert(reader.u32()?);
        }
        fold.read_topics(&mut reader)?;
        for _ in 0..reader.count()? {
            let key = (topic(&mut reader)?, read_group(&mut reader)?);
            fold.groups.insert(key, restore_group(&mut reader, when)?);
        }
        for _ in 0..reader.count()? {
            let fence = reader.u64()?;
            let claim = restore_claim(&mut reader)?;
            fold.open_claim(action_hash(claim.action_id.as_str()), fence, claim);
        }
        reader.end()?;
        Ok((seq, fold))
    }

    fn put_topics(&self, out: &mut Vec<u8>) {
        put_u64(out, self.topics.len() as u64);
        for (name, topic) in &self.topics {
            put_str(out, name.as_str());
            put_u64(out, topic.end);
            put_u64(out, topic.begin);
            out.push(u8::from(topic.keeps_unsettled));
            put_u64(out, topic.bytes);
            put_u64(out, topic.sealed.len() as u64);
            for (epoch, end) in &topic.sealed {
                put_u64(out, u64::from(*epoch));
                put_u64(out, *end);
            }
        }
    }

    fn read_topics(&mut self, reader: &mut Reader<'_>) -> Result<(), Malformed> {
        for _ in 0..reader.count()? {
            let name = topic(reader)?;
            let mut read = Topic {
                end: reader.u64()?,
                begin: reader.u64()?,
                keeps_unsettled: reader.flag()?,
                bytes: reader.u64()?,
                ..Topic::default()
            };
            for _ in 0..reader.count()? {
                read.sealed.insert(reader.u32()?, reader.u64()?);
            }
            self.topics.insert(name, read);
        }
        Ok(())
    }
}

/// The right edge of the log.
pub(crate) fn log(bytes: &[u8]) -> Result<Frontier, Malformed> {
    let mut reader = checked(bytes)?;
    reader.u64()?;
    read_log(&mut reader)
}

fn read_log(reader: &mut Reader<'_>) -> Result<Frontier, Malformed> {
    let size = reader.u64()?;
    let peaks = (0..size.count_ones())
        .map(|_| digest(reader))
        .collect::<Result<_, _>>()?;
    Frontier::restore(size, peaks).ok_or(Malformed("a log of another size"))
}

/// Whether these bytes are a snapshot that this version can read.
pub fn check(bytes: &[u8]) -> Result<(), Malformed> {
    checked(bytes).map(drop)
}

fn checked(bytes: &[u8]) -> Result<Reader<'_>, Malformed> {
    let mut outer = Reader::new(bytes, 0);
    let checksum = u32::from_be_bytes(outer.array()?);
    let body = outer.bytes()?;
    outer.end()?;
    if crc32fast::hash(body) != checksum {
        return Err(Malformed("a snapshot whose checksum does not fit"));
    }
    let mut reader = Reader::new(body, 0);
    if reader.text()? != MARK {
        return Err(Malformed("a snapshot of another format"));
    }
    Ok(reader)
}

fn put_group(out: &mut Vec<u8>, group: &Group) {
    put_options(out, group.options);
    put_u64(out, group.committed());
    put_u64(out, group.next());
    put_u64(out, group.done().len() as u64);
    group.done().iter().for_each(|offset| put_u64(out, *offset));
    put_u64(out, group.pending().len() as u64);
    for (offset, pending) in group.pending() {
        put_u64(out, *offset);
        put_u64(out, u64::from(pending.count));
        match pending.hold {
            Hold::Leased { .. } => out.push(0),
            Hold::Waiting {
                until_ms, delay_ms, ..
            } => {
                out.push(1);
                put_i64(out, until_ms);
                put_u64(out, delay_ms);
            }
        }
    }
    put_u64(out, group.tried().len() as u64);
    for (offset, tries) in group.tried() {
        put_u64(out, *offset);
        put_u64(out, tries.len() as u64);
        for tried in tries {
            put_i64(out, tried.at_ms);
            tried.detail.encode(out);
        }
    }
}

fn restore_group(reader: &mut Reader<'_>, when: When) -> Result<Group, Malformed> {
    let (options, committed, next) = (options(reader)?, reader.u64()?, reader.u64()?);
    let count = reader.count()?;
    let done = (0..count)
        .map(|_| reader.u64())
        .collect::<Result<BTreeSet<u64>, _>>()?;
    let mut group = Group::restored(options, committed, next, done);
    for _ in 0..reader.count()? {
        let (offset, count) = (reader.u64()?, reader.u32()?);
        let hold = if reader.flag()? {
            waiting(when, reader.i64()?, reader.u64()?)
        } else {
            // A lease number that is never given out: the lease is over, and nobody can settle by it.
            Hold::Leased {
                lease: u64::MAX,
                until: Monotonic::from_start(Duration::ZERO),
            }
        };
        group.hold(offset, Pending { count, hold });
    }
    for _ in 0..reader.count()? {
        let offset = reader.u64()?;
        for _ in 0..reader.count()? {
            let at_ms = reader.i64()?;
            let detail = Stored::decode(reader)?;
            group.note(offset, Tried { at_ms, detail });
        }
    }
    Ok(group)
}

fn put_claim(out: &mut Vec<u8>, claim: &OpenClaim) {
    put_str(out, claim.action_id.as_str());
    out.extend_from_slice(claim.action_digest.as_bytes());
    put_str(out, claim.space.as_str());
    put_optional_hash(out, claim.key);
    out.extend_from_slice(claim.params_digest.as_bytes());
    put_hashes(out, &claim.resources);
    put_i64(out, claim.since_ms);
    claim.intent.encode(out);
}

fn restore_claim(reader: &mut Reader<'_>) -> Result<OpenClaim, Malformed> {
    Ok(OpenClaim {
        action_id: id(reader)?,
        action_digest: digest(reader)?,
        space: id(reader)?,
        key: optional_hash(reader)?,
        params_digest: digest(reader)?,
        resources: hashes(reader)?,
        since_ms: reader.i64()?,
        orphaned: true,
        intent: Stored::decode(reader)?,
    })
}
