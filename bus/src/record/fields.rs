//! Fields that several kinds of records, and the snapshot, are made of.

use effectd_contracts::{Digest, Status};

use crate::codec::{Hash16, Malformed, Reader, put_str, put_u64};
use crate::names::{FamilyName, GroupName, TopicName};
use crate::types::groups::{Exhausted, GroupOptions};

/// The stored form of a status.
pub(crate) fn status_byte(status: Status) -> u8 {
    match status {
        Status::Ok => 0,
        Status::Error => 1,
        Status::Skipped => 2,
        Status::Quarantined => 3,
    }
}

pub(crate) fn status(reader: &mut Reader<'_>) -> Result<Status, Malformed> {
    match reader.u8()? {
        0 => Ok(Status::Ok),
        1 => Ok(Status::Error),
        2 => Ok(Status::Skipped),
        3 => Ok(Status::Quarantined),
        4..=u8::MAX => Err(Malformed("an unknown status")),
    }
}

pub(crate) fn put_options(out: &mut Vec<u8>, options: GroupOptions) {
    put_u64(out, u64::from(options.deliveries_max));
    out.push(match options.exhausted {
        Exhausted::DeadLetter => 0,
        Exhausted::HandOver => 1,
    });
}

pub(crate) fn options(reader: &mut Reader<'_>) -> Result<GroupOptions, Malformed> {
    let deliveries_max = reader.u32()?;
    let exhausted = if reader.flag()? {
        Exhausted::HandOver
    } else {
        Exhausted::DeadLetter
    };
    Ok(GroupOptions {
        deliveries_max,
        exhausted,
    })
}

pub(crate) fn topic(reader: &mut Reader<'_>) -> Result<TopicName, Malformed> {
    TopicName::new(reader.text()?).map_err(|_| Malformed("a topic's name that is none"))
}

pub(crate) fn group(reader: &mut Reader<'_>) -> Result<GroupName, Malformed> {
    GroupName::new(reader.text()?).map_err(|_| Malformed("a group's name that is none"))
}

pub(crate) fn family(reader: &mut Reader<'_>) -> Result<FamilyName, Malformed> {
    FamilyName::new(reader.text()?).map_err(|_| Malformed("a family's name that is none"))
}

pub(crate) fn id<I: TryFrom<String>>(reader: &mut Reader<'_>) -> Result<I, Malformed> {
    I::try_from(reader.text()?.to_owned()).map_err(|_| Malformed("an id that is none"))
}

pub(crate) fn optional_id<I: TryFrom<String>>(reader: &mut Reader<'_>) -> Result<Option<I>, Malformed> {
    if reader.flag()? {
        id(reader).map(Some)
    } else {
        Ok(None)
    }
}

pub(crate) fn put_optional(out: &mut Vec<u8>, text: Option<&str>) {
    out.push(u8::from(text.is_some()));
    if let Some(text) = text {
        put_str(out, text);
    }
}

pub(crate) fn digest(reader: &mut Reader<'_>) -> Result<Digest, Malformed> {
    reader.array().map(Digest::from_bytes)
}

pub(crate) fn hash(reader: &mut Reader<'_>) -> Result<Hash16, Malformed> {
    reader.array().map(Hash16)
}

pub(crate) fn put_optional_hash(out: &mut Vec<u8>, hash: Option<Hash16>) {
    out.push(u8::from(hash.is_some()));
    if let Some(hash) = hash {
        out.extend_from_slice(&hash.0);
    }
}

pub(crate) fn optional_hash(reader: &mut Reader<'_>) -> Result<Option<Hash16>, Malformed> {
    if reader.flag()? {
        hash(reader).map(Some)
    } else {
        Ok(None)
    }
}

pub(crate) fn put_hashes(out: &mut Vec<u8>, hashes: &[Hash16]) {
    put_u64(out, hashes.len() as u64);
    hashes.iter().for_each(|hash| out.extend_from_slice(&hash.0));
}

pub(crate) fn hashes(reader: &mut Reader<'_>) -> Result<Vec<Hash16>, Malformed> {
    let count = reader.count()?;
    (0..count).map(|_| hash(reader)).collect()
}
