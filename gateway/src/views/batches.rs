//! Batches in JSON: where a batch is, and what has become of its items.

use effectd_actors::batches::result_of;
use effectd_actors::{Done, Held};
use effectd_bus::{Store, StoreError};
use effectd_contracts::{ActionId, BatchResult};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::actions::{ActionView, HeldView, State};

/// One batch.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct BatchView {
    #[schema(value_type = String)]
    pub batch_id: ActionId,
    pub state: State,
    /// The approval that the whole batch waits for.
    pub approval: Option<HeldView>,
    /// It had ended before this request; nothing ran now.
    #[serde(default)]
    pub already_done: bool,
    /// What has become of it, once it has ended.
    #[schema(schema_with = crate::schema::batch_result)]
    pub result: Option<BatchResult>,
}

impl BatchView {
    pub(crate) fn accepted(batch_id: ActionId) -> Self {
        Self { batch_id, state: State::Accepted, approval: None, already_done: false, result: None }
    }

    pub(crate) fn held(batch_id: ActionId, held: &Held) -> Self {
        Self { state: State::Held, approval: Some(held.into()), ..Self::accepted(batch_id) }
    }

    pub(crate) fn done(store: &dyn Store, batch_id: ActionId, done: Done) -> Result<Self, StoreError> {
        let result = result_of(store, &done.receipt)?;
        let ActionView { state, already_done, .. } = ActionView::done(batch_id.clone(), done);
        Ok(Self { state, already_done, result: Some(result), ..Self::accepted(batch_id) })
    }
}
