//! What the door tells about actions.

use effectd_actors::Done;
use effectd_contracts::{ActionId, Outcome, Receipt};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::problem::Problem;

/// How an action stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// It is on disk and will be carried out or refused, whatever dies.
    Accepted,
    /// It has ended, and there is its receipt.
    Done,
}

/// One action, as its planner sees it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ActionView {
    /// Which action.
    #[schema(value_type = String)]
    pub action_id: ActionId,
    /// How it stands.
    pub state: State,
    /// How it ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(schema_with = crate::openapi::outcome)]
    pub outcome: Option<Outcome>,
    /// Nothing was done now: this receipt, or one for the same key, was there before.
    #[serde(default)]
    pub already_done: bool,
    /// The proof of how it ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(schema_with = crate::openapi::receipt)]
    pub receipt: Option<Box<Receipt>>,
}

impl ActionView {
    /// An action that is on its way.
    pub fn accepted(action_id: ActionId) -> Self {
        Self {
            action_id,
            state: State::Accepted,
            outcome: None,
            already_done: false,
            receipt: None,
        }
    }

    /// An action that has ended.
    pub fn done(action_id: ActionId, done: &Done) -> Self {
        Self {
            action_id,
            state: State::Done,
            outcome: Some(done.receipt.outcome),
            already_done: done.before,
            receipt: Some(Box::new((*done.receipt).clone())),
        }
    }
}

/// The answer to a request to do something: a refusal is a problem, with the receipt that records it.
pub fn ended(action_id: ActionId, done: &Done) -> Result<ActionView, Box<Problem>> {
    match &done.receipt.error {
        Some(failure) => Err(Box::new(
            Problem::recorded(&done.receipt, failure).about(&action_id),
        )),
        None => Ok(ActionView::done(action_id, done)),
    }
}

/// How the daemon is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Health {
    /// `ok`.
    pub status: String,
    /// The version that runs.
    pub version: String,
    /// Decisions that are accepted and not yet ended, when the store was asked last.
    pub backlog: u64,
}
