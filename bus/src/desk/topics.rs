//! Publishing.

use effectd_contracts::EventId;

use super::Desk;
use crate::codec::Malformed;
use crate::error::StoreError;
use crate::journal::ADVICE;
use crate::keys;
use crate::limits::TOPICS_MAX;
use crate::names::TopicName;
use crate::record::{EventRecord, Record};
use crate::types::events::Published;

impl Desk<'_> {
    pub(crate) fn publish(
        &mut self,
        topic: &TopicName,
        events: Vec<EventRecord>,
    ) -> Result<Vec<Published>, StoreError> {
        self.admit_new_work()?;
        self.check_topic(topic)?;
        events
            .iter()
            .try_for_each(|event| self.check_epoch(&event.body))?;
        events
            .into_iter()
            .map(|event| self.append(topic, event))
            .collect()
    }

    /// Whether the topic exists or may be made.
    pub(crate) fn check_topic(&self, topic: &TopicName) -> Result<(), StoreError> {
        if !self.fold.topics.contains_key(topic) && self.fold.topics.len() >= TOPICS_MAX {
            return Err(StoreError::TooLarge {
                what: "number of topics",
                size: TOPICS_MAX + 1,
                max: TOPICS_MAX,
            });
        }
        Ok(())
    }

    pub(crate) fn published_at(&self, topic: &TopicName, id: &EventId) -> Result<Option<u64>, StoreError> {
        let found = self.view().get(&keys::event(topic, id))?;
        let found = found.map(|bytes| keys::read_event_value(&bytes)).transpose();
        let begin = self.fold.begin(topic);
        let kept = |(offset, moved): &(u64, bool)| *moved || *offset >= begin;
        let found = found.map_err(|error| index_damaged(&error))?.filter(kept);
        Ok(found.map(|(offset, _)| offset))
    }

    /// Appends one event unless its id is there already. Everything that can be refused was checked before.
    pub(crate) fn append(&mut self, topic: &TopicName, event: EventRecord) -> Result<Published, StoreError> {
        if let Some(offset) = self.published_at(topic, &event.event_id)? {
            return Ok(Published {
                offset,
                duplicate: true,
            });
        }
        let offset = self.fold.end(topic);
        let topic = topic.clone();
        self.emit(Record::Published { topic, offset, event })?;
        Ok(Published {
            offset,
            duplicate: false,
        })
    }
}

/// An entry of the index that does not decode.
pub(crate) fn index_damaged(error: &Malformed) -> StoreError {
    StoreError::Damaged {
        what: format!("the index: {error}"),
        advice: ADVICE,
    }
}
