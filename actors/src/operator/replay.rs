//! Consumer groups that replay a topic: parses positions, reads a group's offset, and moves it.
//!
//! Such a group reads in order and commits its own offset. It holds no leases, so when its reader dies nothing is redelivered;
//! the reader continues at the last committed offset.

use effectd_bus::{GroupName, SeekTo, Store, StoreError, TopicName};
use effectd_contracts::{Timestamp, Topic, filter};

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
    store.seek(&replayable(topic)?, &GroupName::new(group)?, to).wait()
}

/// The next offset that a group reads; a new group begins at the start. Blocks.
pub fn position(store: &dyn Store, topic: &str, group: &str) -> Result<u64, StoreError> {
    let (topic, group) = (replayable(topic)?, GroupName::new(group)?);
    let groups = store.groups(&topic).wait()?;
    match groups.iter().find(|known| known.group == group) {
        Some(known) => Ok(known.committed),
        None => offset_of(store, topic.as_str(), SeekTo::Start),
    }
}

/// The offset that a position means now.
pub fn offset_of(store: &dyn Store, topic: &str, position: SeekTo) -> Result<u64, StoreError> {
    let topic = TopicName::new(topic)?;
    match position {
        SeekTo::Start => Ok(store.read(&topic, u64::MAX, 1)?.begin),
        SeekTo::Offset(offset) => Ok(offset),
        SeekTo::Time(time) => store.offset_at(&topic, time),
        SeekTo::End => Ok(store.read(&topic, u64::MAX, 1)?.end),
    }
}

/// Refuses the pipeline's own topic: moving its group would run decisions twice, or never.
fn replayable(topic: &str) -> Result<TopicName, StoreError> {
    if topic == Topic::ActionDecision.as_str() {
        let why = format!("the pipeline consumes {topic}; its position cannot be moved by hand");
        return Err(StoreError::Invalid(why));
    }
    TopicName::new(topic)
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
