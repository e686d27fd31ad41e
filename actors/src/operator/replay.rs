//! Consumer groups that replay a topic: parses positions, reads a group's offset, and moves it.
//!
//! Such a group reads in order and commits its own offset. It holds no leases, so when its reader dies nothing is redelivered;
//! the reader continues at the last committed offset.

use std::collections::BTreeSet;

use effectd_bus::{Cause, GroupName, SeekTo, Store, StoreError, TopicName};
use effectd_contracts::{Timestamp, Topic, filter};

use super::erasure;
use crate::registry::nearest;
use crate::services::webhooks;

/// Parses `start`, `end`, an offset, a time (`2026-01-01T00:00:00Z`), or an age (`2h`).
pub fn parse_position(text: &str, now: Timestamp) -> Result<SeekTo, StoreError> {
    match text {
        "start" => Ok(SeekTo::Start),
        "end" => Ok(SeekTo::End),
        other => match other.parse() {
            Ok(offset) => Ok(SeekTo::Offset(offset)),
            Err(_) => filter::moment(other, now).map(SeekTo::Time).map_err(|_| {
                StoreError::Invalid(format!(
                    "`{other}` is not a position; use start, end, an offset, a time (2026-01-01T00:00:00Z) or an age (2h)"
                ))
            }),
        },
    }
}

/// Moves a group, and creates it if it is new. Durable when it returns; blocks.
pub fn seek(store: &dyn Store, topic: &str, group: &str, to: SeekTo) -> Result<u64, StoreError> {
    let replayed = replayable(store, topic)?;
    let to = match to {
        SeekTo::Offset(_) => SeekTo::Offset(offset_of(store, topic, to)?),
        SeekTo::Start | SeekTo::End | SeekTo::Time(_) => to,
    };
    store.seek(&replayed, &GroupName::new(group)?, to).wait()
}

/// The next offset that a group reads; a new group begins at the start. Blocks.
pub fn position(store: &dyn Store, topic: &str, group: &str) -> Result<u64, StoreError> {
    let (topic, group) = (replayable(store, topic)?, GroupName::new(group)?);
    let groups = store.groups(&topic).wait()?;
    match groups.iter().find(|known| known.group == group) {
        Some(known) => Ok(known.committed),
        None => offset_of(store, topic.as_str(), SeekTo::Start),
    }
}

/// The offset that a position means now. An offset beyond the end is refused: a reader there would skip events unnoticed.
pub fn offset_of(store: &dyn Store, topic: &str, position: SeekTo) -> Result<u64, StoreError> {
    let topic = known_topic(store, topic)?;
    let ends = || store.read(&topic, u64::MAX, 1);
    match position {
        SeekTo::Start => Ok(ends()?.begin),
        SeekTo::Offset(offset) => match ends()?.end {
            end if offset > end => Err(StoreError::Invalid(format!(
                "offset {offset} is beyond the end of {topic}, which is {end}; say `end` for what comes next"
            ))),
            _ => Ok(offset),
        },
        SeekTo::Time(time) => store.offset_at(&topic, time),
        SeekTo::End => Ok(ends()?.end),
    }
}

/// A topic that effectd writes, or that has events.
pub fn known_topic(store: &dyn Store, name: &str) -> Result<TopicName, StoreError> {
    let topic = TopicName::new(name)?;
    let own = Topic::ALL.iter().map(|topic| topic.as_str()).chain([erasure::TOPIC, webhooks::RETRIES]);
    let mut known: BTreeSet<String> = own.map(str::to_owned).collect();
    known.extend(store.topics()?.into_iter().map(|(topic, _)| topic.to_string()));
    if known.contains(name) {
        return Ok(topic);
    }
    let meant = match nearest(name, known.iter().map(String::as_str)) {
        Some(nearest) => format!("did you mean {nearest}?"),
        None => format!("there are {}", Vec::from_iter(known).join(", ")),
    };
    Err(StoreError::NoSuchName(Cause::new(format!("there is no topic {name}; {meant}"))))
}

/// Refuses the pipeline's own topic: moving its group would run decisions twice, or never.
fn replayable(store: &dyn Store, topic: &str) -> Result<TopicName, StoreError> {
    if topic == Topic::ActionDecision.as_str() {
        let why = format!("the pipeline consumes {topic}; its position cannot be moved by hand");
        return Err(StoreError::Invalid(why));
    }
    known_topic(store, topic)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn positions_are_start_end_offsets_and_times() {
        let now: Timestamp = "2026-01-01T12:00:00Z".parse().unwrap();
        let at = |text: &str| SeekTo::Time(text.parse().unwrap());
        let cases = [
            ("start", SeekTo::Start),
            ("end", SeekTo::End),
            ("17", SeekTo::Offset(17)),
            ("2h", at("2026-01-01T10:00:00Z")),
            ("2025-06-01T00:00:00Z", at("2025-06-01T00:00:00Z")),
        ];
        for (text, expected) in cases {
            assert_eq!(parse_position(text, now).unwrap(), expected, "{text}");
        }
        for wrong in ["", "-1", "begin", "99999999999999999999"] {
            assert!(parse_position(wrong, now).is_err(), "{wrong}");
        }
    }
}
