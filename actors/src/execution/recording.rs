//! Recording: commits a receipt, counts it, and answers the callers. Used by the recorder stage, and by operations that end an
//! action outside of the pipeline.

use std::sync::Arc;
use std::time::Duration;

use effectd_bus::{Completion, FamilyName, Store, StoreError};
use effectd_contracts::batch::{self, Batch, is_batch};
use effectd_contracts::{
    ActionId, ActionRequest, Code, DecisionData, Failure, Millis, Mode, ModeSource, Origin, Principal,
    Receipt, ReceiptId, Status,
};
use serde_json::{Map, Value};

use super::receipt_builder::{self, Captured, is_letter};
use crate::action::Action;
use crate::action::decisions::{detached, published};
use crate::claims::pending::intent_of;
use crate::failpoint::hit;
use crate::limits::{BACKOFF_FIRST, COMMIT_TRIES};
use crate::messages::Refusal;
use crate::metrics::Metrics;
use crate::services::Services;
use crate::services::answers::{Answer, Answers, Done};
use crate::services::signer::DeviceKey;
use crate::stored::HELD_ACTIONS;

/// Ends an action that was never begun. The Store refuses if it was begun or has ended: an action that may have had its effect
/// must not be taken over for this.
pub(crate) async fn withdrawn(services: &Services, refusal: Refusal) -> Result<Done, StoreError> {
    refusal.action.ticket.hop("recorder");
    items_not_started(services, &refusal).await?;
    let build = |key: &DeviceKey| receipt_builder::refused(services, key, &refusal);
    let (receipt, committed) = write(services, build).await;
    committed?;
    let done = recorded(&services.metrics, &services.in_flight.answers, &refusal.action, receipt, None);
    answer(&services.in_flight.answers, refusal.action, Answer::Done(done.clone())).await;
    Ok(done)
}

/// Ends actions that were never begun, none of them a batch. Their receipts share blocks. The Store refuses each that was begun or has
/// ended.
pub(crate) async fn never_begun(
    services: &Services,
    refusals: Vec<Refusal>,
) -> Vec<Result<Done, StoreError>> {
    let answers = &services.in_flight.answers;
    let signing = services.identity.signing().await;
    let mut commits = Vec::with_capacity(refusals.len());
    for refusal in refusals {
        refusal.action.ticket.hop("recorder");
        let Captured { receipt, completion, .. } = receipt_builder::refused(services, &signing, &refusal);
        hit("recorder.before_commit", &refusal.action.ticket.action_id).await;
        // All are queued before the first is awaited.
        commits.push((refusal.action, receipt, services.store.commit(completion)));
    }
    let mut ended = Vec::with_capacity(commits.len());
    for (action, receipt, committed) in commits {
        let committed = committed.await;
        hit("recorder.after_commit", &action.ticket.action_id).await;
        if let Err(error) = committed {
            ended.push(Err(error));
            continue;
        }
        let done = recorded(&services.metrics, answers, &action, receipt, None);
        answer(answers, action, Answer::Done(done.clone())).await;
        ended.push(Ok(done));
    }
    ended
}

/// Whether the id of an item, or of what undoes it, is that of another action, from which a receipt would take it.
pub(crate) fn is_anothers(
    services: &Services,
    id: &ActionId,
    by: (&Origin, &Principal),
    request: Option<&ActionRequest>,
) -> Result<bool, StoreError> {
    let store = &*services.store;
    // No item waits for a person by itself.
    if store.entry(&FamilyName::new(HELD_ACTIONS)?, id.as_str())?.is_some() {
        return Ok(true);
    }
    let event = published(store, id)?;
    Ok(event.is_some_and(|published| {
        published.event.is_none_or(|event| {
            (&event.data.origin, &event.data.principal) != by
                || request.is_some_and(|request| event.data.request != *request)
        })
    }))
}

/// Writes the receipts of the items of a batch that is refused before it began; for another action, nothing. Repeating it is harmless.
pub(crate) async fn items_not_started(services: &Services, refusal: &Refusal) -> Result<(), StoreError> {
    let Action { ticket, request, .. } = &refusal.action;
    let store = &*services.store;
    if !is_batch(&request.tool_id) || is_letter(store, ticket, refusal.dead_letter, refusal.outcome()) {
        // After a review, a dead letter may run.
        return Ok(());
    }
    if intent_of(store, &ticket.action_id).await?.is_some() {
        return Ok(());
    }
    let items = Batch::of_action(request).map(|batch| batch.requests(request)).unwrap_or_default();
    let mut refusals = Vec::with_capacity(items.len());
    for (index, item) in items.into_iter().enumerate() {
        let tool = services.registry().get(&item.tool_id).cloned();
        let origin = batch::origin(request, &ticket.origin, index, false);
        if is_anothers(services, &item.action_id, (&origin, &ticket.principal), Some(&item))? {
            continue;
        }
        let decision = DecisionData::new(item, ticket.principal.clone(), origin);
        let action = detached(services, decision, ticket.trace_id.clone(), ticket.accepted_at);
        let failure = match refusal.item {
            Some(item) if item == index => refusal.failure.clone(),
            Some(_) | None => {
                let why = "the batch was refused before any item started";
                Failure::new(Code::NotStarted, refusal.failure.phase, why)
            }
        };
        refusals.push(Refusal { tool, ..Refusal::new(action, failure) });
    }
    for ended in never_begun(services, refusals).await {
        match ended {
            // The id is that of another action, or an earlier try wrote it.
            Ok(_) | Err(StoreError::AlreadyReceipted { .. } | StoreError::StaleFence { .. }) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Writes the receipt of an operation on effectd itself.
pub(crate) async fn operated(
    services: &Services,
    action: Action<()>,
    ended: Result<Map<String, Value>, &Failure>,
) -> Result<ReceiptId, StoreError> {
    let build = |key: &DeviceKey| receipt_builder::operated(services, key, &action, ended);
    let (receipt, committed) = write(services, build).await;
    committed?;
    let done = recorded(&services.metrics, &services.in_flight.answers, &action, receipt, None);
    Ok(done.receipt.receipt_id.clone())
}

/// Builds a receipt, waits until the result is written, and commits the receipt. Holds the signing key until the receipt is on disk.
pub(crate) async fn write(
    services: &Services,
    build: impl FnOnce(&DeviceKey) -> Captured,
) -> (Receipt, Result<(), StoreError>) {
    let signing = services.identity.signing().await;
    let Captured { receipt, completion, mut result } = build(&signing);
    if let Some(result) = &mut result {
        result.finish().await;
    }
    let committed = commit(&*services.store, &services.metrics, completion).await;
    // The store refused the receipt itself. After every other error it may be committed.
    let is_refused = matches!(
        committed,
        Err(StoreError::AlreadyReceipted { .. }
            | StoreError::StaleFence { .. }
            | StoreError::NotFound { .. }
            | StoreError::Invalid(_)
            | StoreError::InvalidId(_)
            | StoreError::TooLarge { .. })
    );
    if let Some(result) = result.filter(|_| is_refused) {
        result.discard().await;
    }
    (receipt, committed)
}

async fn commit(store: &dyn Store, metrics: &Metrics, completion: Completion) -> Result<(), StoreError> {
    let id = completion.receipt.action_id.clone();
    let given_up = completion.letter.as_ref().map(|letter| letter.code.clone());
    // A quarantined action waits for a review.
    let given_up = given_up.filter(|code| code != Code::SafetyQuarantined.as_str());
    hit("recorder.before_commit", &id).await;
    let committed = try_commit(store, completion).await;
    if let (Ok(()), Some(code)) = (&committed, given_up) {
        metrics.given_up.with_label_values(&[code.as_str()]).inc();
    }
    hit("recorder.after_commit", &id).await;
    committed
}

async fn try_commit(store: &dyn Store, completion: Completion) -> Result<(), StoreError> {
    let mut pause = BACKOFF_FIRST;
    for _ in 1..COMMIT_TRIES {
        match store.commit(completion.clone()).await {
            Err(
                StoreError::Unavailable { .. }
                | StoreError::Overloaded { .. }
                | StoreError::Full
                | StoreError::ReadOnly,
            ) => {}
            answer => return answer.map(|_| ()),
        }
        tokio::time::sleep(pause).await;
        pause *= 4;
    }
    store.commit(completion).await.map(|_| ())
}

/// Counts, logs and caches a receipt that is on disk.
pub(crate) fn recorded(
    metrics: &Metrics,
    answers: &Answers,
    action: &Action<()>,
    receipt: Receipt,
    result: Option<Arc<Value>>,
) -> Done {
    count(metrics, &receipt);
    let span = &action.ticket.span;
    span.record("outcome", receipt.outcome.as_str());
    span.record("status", receipt.outcome.project().brief.map(|(status, _)| status.as_str()));
    span.record("duration_ms", receipt.timing.total_ms.as_f64());
    if let Some(decision) = &receipt.decision {
        span.record("mode", decision.mode.map(Mode::as_str));
        span.record("mode_source", decision.mode_source.map(ModeSource::as_str));
    }
    if let Some(failure) = &receipt.error {
        span.record("error.type", failure.code.as_str());
    }
    if tracing::enabled!(tracing::Level::DEBUG) {
        // As the receipt shows them: values that are not public are digests.
        let inputs = serde_json::to_string(&receipt.inputs).unwrap_or_default();
        span.record("gen_ai.tool.call.arguments", inputs.as_str());
    }
    // The one line of an action at `info`; tool, ids, trace and outcome are fields of its span.
    tracing::info!(parent: span, code = receipt.error.as_ref().map(|failure| failure.code.as_str()), receipt_id = %receipt.receipt_id,
        total_ms = receipt.timing.total_ms.as_f64(), exec_ms = receipt.timing.exec_ms.as_f64(), "action ended");
    let receipt = Arc::new(receipt);
    answers.recent.put(&receipt, action.ticket.digest);
    Done { receipt, before: false, result: Ok(result) }
}

/// Answers everybody who waits for the action, and closes its ticket.
pub(crate) async fn answer(answers: &Answers, mut action: Action<()>, answer: Answer) {
    let id = action.ticket.action_id.clone();
    // Before the answer, so that a caller who has it finds the budget charged.
    action.ticket.slot.release_budget();
    answers.send(&id, &answer);
    // After the answer: closing frees the slot, and once all slots are free, a stopping runtime drops those who wait.
    action.ticket.close();
    hit("recorder.after_answer", &id).await;
}

fn count(metrics: &Metrics, receipt: &Receipt) {
    // An unknown tool has no series: ids that requests choose must not become labels.
    let tool = if receipt.tool_version.is_some() || receipt.status == Status::Ok {
        receipt.tool_id.as_str()
    } else {
        "unknown"
    };
    let seconds = |time: Millis| Duration::from_micros(time.micros()).as_secs_f64();
    let (timing, cost) = (&receipt.timing, &receipt.cost);
    let outcome = receipt.outcome.as_str();
    metrics.actions.with_label_values(&[tool, outcome]).inc();
    if let Some(mode) = receipt.decision.as_ref().and_then(|decision| decision.mode) {
        metrics.invocations.with_label_values(&[mode.as_str()]).inc();
    }
    let duration = metrics.duration.with_label_values(&[tool]);
    // People's time is apart.
    let held = receipt.held();
    duration.observe(seconds(timing.total_ms.less(held)));
    let queued = metrics.queued.with_label_values(&[tool]);
    queued.observe(seconds(timing.queued_ms.less(held)));
    if let Some(approval) = receipt.asked() {
        let decided = metrics.approval.with_label_values(&[tool]);
        decided.observe(seconds(Millis::between(approval.asked_at, approval.at)));
    }
    let cpu = metrics.cpu.with_label_values(&[tool]);
    cpu.inc_by(seconds(cost.cpu_ms));
    // A milliwatt-hour is 3.6 joules.
    let energy = metrics.energy.with_label_values(&[tool]);
    energy.inc_by(cost.energy_mwh * 3.6);
    let written = metrics.written.with_label_values(&[tool]);
    written.inc_by(cost.bytes_written.unwrap_or(0));
    if !receipt.attempts.is_empty() {
        let exec = metrics.exec.with_label_values(&[tool]);
        exec.observe(seconds(timing.exec_ms));
    }
    if let Some(failure) = &receipt.error {
        let family = if receipt.outcome.is_refusal() { &metrics.refusals } else { &metrics.failures };
        let counter = family.with_label_values(&[tool, failure.code.as_str()]);
        counter.inc();
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use effectd_contracts::Phase;
    use serde_json::json;

    use super::*;

    #[test]
    fn a_persons_time_and_refusals_are_counted_apart() {
        let metrics = Metrics::register(&prometheus::Registry::new()).unwrap();
        let golden = include_str!("../../../contracts/tests/golden/receipt.json");
        let mut receipt: Receipt = serde_json::from_str(golden).unwrap();
        // A person thought for 700 s.
        let digest = format!("hmac-sha256:{}", "0".repeat(64));
        receipt.approval = serde_json::from_value(json!({
            "approval_id": "ap-1", "verdict": "once", "by": "user://ann", "authority": "separate", "digest": digest,
            "asked_at": "2026-01-01T00:00:00Z", "at": "2026-01-01T00:11:40Z",
        }))
        .unwrap();
        receipt.timing.queued_ms = Millis::from_micros(700_000_400);
        receipt.timing.total_ms = Millis::from_micros(700_003_500);
        count(&metrics, &receipt);
        let sum = |histogram: &prometheus::HistogramVec| {
            histogram.with_label_values(&["files.write_text"]).get_sample_sum()
        };
        assert!(sum(&metrics.duration) < 0.01 && sum(&metrics.queued) < 0.01);
        assert!((sum(&metrics.approval) - 700.0).abs() < 0.01);
        assert_eq!(metrics.invocations.with_label_values(&["allow"]).get(), 1);
        for (code, refusals, failures) in [(Code::BreakerOpen, 1, 0), (Code::ToolFailed, 0, 1)] {
            receipt.error = Some(Failure::new(code, Phase::Dispatch, "as asked"));
            receipt.outcome = code.outcome();
            count(&metrics, &receipt);
            let labels = ["files.write_text", code.as_str()];
            assert_eq!(metrics.refusals.with_label_values(&labels).get(), refusals, "{code}");
            assert_eq!(metrics.failures.with_label_values(&labels).get(), failures, "{code}");
        }
    }
}
