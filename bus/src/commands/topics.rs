//! Publishing events.

use effectd_contracts::EventId;

use super::Batch;
use crate::error::{StoreError, bound};
use crate::journal::record::{EventRecord, Record};
use crate::limits::TOPICS_MAX;
use crate::names::TopicName;
use crate::reads::published_at;
use crate::types::events::Published;

impl Batch<'_> {
    pub(crate) fn publish(
        &mut self,
        topic: &TopicName,
        events: Vec<EventRecord>,
    ) -> Result<Vec<Published>, StoreError> {
        self.admit_new_work()?;
        self.check_topic(topic)?;
        events.iter().try_for_each(|event| self.check_epoch(&event.body))?;
        events.into_iter().map(|event| self.append(topic, event)).collect()
    }

    /// Whether the topic exists or may be created.
    pub(crate) fn check_topic(&self, topic: &TopicName) -> Result<(), StoreError> {
        if !self.state.topics.contains_key(topic) && self.state.topics.len() >= TOPICS_MAX {
            return bound("number of topics", TOPICS_MAX + 1, TOPICS_MAX);
        }
        Ok(())
    }

    pub(crate) fn published_at(&self, topic: &TopicName, id: &EventId) -> Result<Option<u64>, StoreError> {
        published_at(self.view(), topic, id, self.state.begin(topic))
    }

    /// Appends one event unless its id is known. The caller has checked everything else.
    pub(crate) fn append(&mut self, topic: &TopicName, event: EventRecord) -> Result<Published, StoreError> {
        if let Some(offset) = self.published_at(topic, &event.event_id)? {
            return Ok(Published { offset, duplicate: true });
        }
        let offset = self.state.end(topic);
        let topic = topic.clone();
        self.emit(Record::Published { topic, offset, event })?;
        Ok(Published { offset, duplicate: false })
    }
}
