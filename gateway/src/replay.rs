//! Groups that replay a topic: each has its own place, moves it on as it reads, and can begin anew.
//!
//! A learner reads in order and says how far it has come; nothing is lent out, so nothing is given back, redelivered or
//! set aside when it dies. It goes on where it last said it was.

use effectd_actors::{GroupName, SeekTo, Store, StoreError, TopicName};
use effectd_contracts::{Timestamp, Topic, filter};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// How a group stands.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct GroupView {
    /// Its name.
    pub group: String,
    /// The next event that it reads.
    pub offset: u64,
    /// How many events are before it.
    pub behind: u64,
    /// The topic's end.
    pub end: u64,
}

/// Where a group stands now.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Moved {
    /// The next event that it reads.
    pub offset: u64,
}

/// Reads a place in a topic: `start`, `end`, an offset, a time (`2026-01-01T00:00:00Z`), or how long ago (`2h`).
pub(crate) fn place(text: &str, now: Timestamp) -> Result<SeekTo, StoreError> {
    match text {
        "start" => Ok(SeekTo::Start),
        "end" => Ok(SeekTo::End),
        other => match other.parse() {
            Ok(offset) => Ok(SeekTo::Offset(offset)),
            Err(_) => filter::moment(other, now).map(SeekTo::Time).map_err(|_| {
                StoreError::Invalid(format!(
                    "`{other}` is no place; say start, end, an offset, 2026-01-01T00:00:00Z or how long ago: 2h"
                ))
            }),
        },
    }
}

/// The groups of a topic, by name.
pub(crate) fn groups(store: &dyn Store, topic: &str) -> Result<Vec<GroupView>, StoreError> {
    let mut found = store.groups(&TopicName::new(topic)?).wait()?;
    found.sort_by(|a, b| a.group.as_str().cmp(b.group.as_str()));
    let views = found.into_iter().map(|group| GroupView {
        group: group.group.to_string(),
        offset: group.committed,
        behind: group.end.saturating_sub(group.committed),
        end: group.end,
    });
    Ok(views.collect())
}

/// Moves a group to a place, and makes it if there is none. Durable when it returns.
pub(crate) fn move_to(store: &dyn Store, topic: &str, group: &str, to: SeekTo) -> Result<Moved, StoreError> {
    let (topic, group) = (replayed(topic)?, GroupName::new(group)?);
    let offset = store.seek(&topic, &group, to).wait()?;
    Ok(Moved { offset })
}

/// Where a group stands; a new one stands at the start.
pub(crate) fn standing(store: &dyn Store, topic: &str, group: &str) -> Result<Moved, StoreError> {
    let (topic, group) = (replayed(topic)?, GroupName::new(group)?);
    let known = store.groups(&topic).wait()?;
    let known = known.iter().find(|known| known.group == group);
    let offset = match known {
        Some(known) => known.committed,
        None => offset_of(store, topic.as_str(), SeekTo::Start)?,
    };
    Ok(Moved { offset })
}

pub(crate) fn offset_of(store: &dyn Store, topic: &str, place: SeekTo) -> Result<u64, StoreError> {
    let topic = TopicName::new(topic)?;
    match place {
        SeekTo::Start => Ok(store.read(&topic, u64::MAX, 1)?.begin),
        SeekTo::Offset(offset) => Ok(offset),
        SeekTo::Time(time) => store.offset_at(&topic, time),
        SeekTo::End => Ok(store.read(&topic, u64::MAX, 1)?.end),
    }
}

/// A topic that can be replayed. Whoever moved the pipeline's own place would have decisions carried out twice, or never.
fn replayed(topic: &str) -> Result<TopicName, StoreError> {
    if topic == Topic::ActionDecision.as_str() {
        let why = format!("{topic} is what the pipeline works on; its place is not moved by hand");
        return Err(StoreError::Invalid(why));
    }
    TopicName::new(topic)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn places_are_start_end_offsets_and_times() {
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
            assert_eq!(place(text, now).unwrap(), expected, "{text}");
        }
        for wrong in ["", "-1", "begin", "99999999999999999999"] {
            assert!(place(wrong, now).is_err(), "{wrong}");
        }
    }
}
