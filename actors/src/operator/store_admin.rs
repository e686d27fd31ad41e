//! Retention and erasure when operators start them: each leaves a receipt that names the operator.

use std::collections::BTreeMap;
use std::sync::Arc;

use effectd_bus::{Retained, RetentionMode, StoreError};
use effectd_contracts::{Operation, Principal, SubjectId};
use serde_json::{Map, Value, json};

use super::service::{blocking, object};
use crate::operator::erasure::{self, Erased, Progress};
use crate::operator::operations::recorded;
use crate::operator::retention;
use crate::services::Services;

/// Subjects to erase, and how far earlier requests came.
#[derive(Debug, Clone)]
pub struct Erasure {
    pub subjects: Vec<String>,
    pub progress: Progress,
    /// Erase also subjects that nothing names.
    pub force: bool,
    /// For the receipt.
    pub reason: Option<String>,
}

/// Runs one round of retention. Leaves a receipt if it removes anything.
pub async fn retain(services: Arc<Services>, by: Principal) -> Result<Retained, StoreError> {
    let work = async {
        let retained = retention::run(&services).await?;
        let details = retention_details(&retained);
        Ok((retained, details))
    };
    let (retained, _) = recorded(&services, &Operation::Retain {}, (&by, None), work).await?;
    Ok(retained)
}

/// The outputs for the receipt of a round of retention; `None` if the round removed nothing.
pub(super) fn retention_details(retained: &Retained) -> Option<Map<String, Value>> {
    let events: BTreeMap<_, _> =
        retained.events.iter().map(|(topic, count)| (topic.to_string(), *count)).collect();
    removes_anything(retained).then(|| {
        object(json!({
            "receipts": retained.receipts, "events": events, "dead_letters": retained.letters,
            "moved": retained.moved, "blocks": retained.blocks, "bytes": retained.bytes, "more": retained.more,
        }))
    })
}

pub(super) fn removes_anything(retained: &Retained) -> bool {
    retained.receipts + retained.letters + retained.blocks + retained.events.values().sum::<u64>() > 0
}

/// What an erasure would destroy. Blocks.
pub fn preview_erasure(services: &Services, erasure: &Erasure) -> Result<Erased, StoreError> {
    run(services, erasure, RetentionMode::Preview)
}

/// Erases as much as possible now. The first request and the one that completes the erasure leave receipts.
pub async fn erase(services: Arc<Services>, erasure: Erasure, by: Principal) -> Result<Erased, StoreError> {
    let (subjects, reason) = (erasure.subjects.clone(), erasure.reason.clone());
    let first = erasure.progress.begun.is_none();
    let work = async {
        let erased =
            blocking(&services, move |services| run(services, &erasure, RetentionMode::Apply)).await?;
        let is_recorded = erased.held.is_empty() && (first || erased.done);
        let details = is_recorded.then(|| {
            object(json!({
                "dead_letters": erased.letters, "blobs": erased.blobs, "resealed": erased.resealed,
                "held": erased.held, "waiting": erased.waiting, "begun": erased.progress.begun,
                "swept": erased.progress.swept, "done": erased.done,
            }))
        });
        Ok((erased, details))
    };
    let (erased, _) = recorded(&services, &Operation::Erase { subjects }, (&by, reason), work).await?;
    Ok(erased)
}

fn run(services: &Services, erasure: &Erasure, turn: RetentionMode) -> Result<Erased, StoreError> {
    let subjects = erasure.subjects.iter().map(|subject| SubjectId::new(subject.as_str()));
    let subjects = subjects.collect::<Result<_, _>>()?;
    let (store, now) = (&*services.store, services.clock.now());
    // A later request may find nothing more: the first one has removed the letters.
    if !erasure.force && erasure.progress.begun.is_none() {
        erasure::check_known(store, &subjects)?;
    }
    erasure::erase(store, &services.files.blobs, now, &subjects, (turn, erasure.progress))
}
