//! The assessment of a batch: each item is judged as the action that it will be, and the strictest decision is that of the whole.

use effectd_contracts::batch::{Batch, BatchItem, BatchMode, is_batch};
use effectd_contracts::limits::TIMEOUT_MS_MAX;
use effectd_contracts::toolcall::undo_at_service;
use effectd_contracts::{
    ARTIFACT_GET_TOOL, ActionRequest, Code, Digest, Failure, Mode, Phase, Redaction, RiskLevel, RiskTier,
    ToolId, canonical,
};
use effectd_policy::{Decision, Reason, Verdict};
use serde_json::{Value, json};

use super::assessment::{Assessed, Question, assess_one};
use super::{Preview, Trial, of};
use crate::action::proofs::Ruling;
use crate::limits::BATCH_REASONS_MAX;
use crate::registry::RegisteredTool;
use crate::services::Services;

/// The tools of a batch's items by their own ids; none for another action.
pub(super) fn tools(services: &Services, request: &ActionRequest) -> Vec<ToolId> {
    if !is_batch(&request.tool_id) {
        return Vec::new();
    }
    let (registry, batch) = (services.registry(), Batch::of_action(request));
    let items = batch.map(|batch| batch.items).unwrap_or_default();
    let known = items.iter().filter_map(|item| registry.get(&item.tool_id));
    known.map(|tool| tool.spec().tool_id.clone()).collect()
}

/// Whether what the tool does can be undone or made up for, or is nothing.
pub(crate) fn can_be_undone(tool: &RegisteredTool, decision: &Decision) -> bool {
    let spec = tool.spec();
    spec.level() == RiskLevel::Read
        || spec.reversible
        || undo_at_service(&spec.tool_id).is_some()
        || decision.command.is_some()
}

/// A failure that names the item.
pub(crate) fn at_item(failure: Failure, item: Option<usize>) -> Failure {
    match item {
        Some(item) => Failure { message: format!("items[{item}]: {}", failure.message), ..failure },
        None => failure,
    }
}

pub(super) async fn assess(services: &Services, question: &Question<'_>) -> Result<Assessed, Failure> {
    let batch = Batch::of_action(question.request)?;
    let registry = services.registry();
    let mut params = question.request.params.clone();
    let (mut redactions, mut hidden, mut items) = (Vec::new(), Vec::new(), Vec::new());
    let (mut reasons, mut decided) = (Vec::new(), None::<Assessed>);
    for (index, request) in batch.requests(question.request).iter().enumerate() {
        let tool = registry
            .find(&request.tool_id)
            .map_err(|error| Failure::new(Code::UnknownTool, Phase::Gate, error.to_string()))?;
        let mut assessed = assess_one(services, &Question { request, tool, ..*question }).await?;
        assessed.item = Some(index);
        items.push(depends(tool, &assessed.ruling));
        if batch.mode == BatchMode::Atomic && !can_be_undone(tool, &assessed.ruling.decision) {
            ask(&mut assessed.ruling.decision, &request.tool_id);
        }
        let ruling = &mut assessed.ruling;
        redactions.extend(ruling.redactions.drain(..).map(|one| inside(index, one)));
        hidden.extend(ruling.hidden.drain(..).map(|one| inside(index, one)));
        params["items"][index]["params"] = Value::Object(std::mem::take(&mut assessed.inspection.params));
        if let Verdict::NeedsApproval { reasons: own } = &ruling.decision.verdict {
            let named = own.iter().map(|reason| Reason {
                text: format!("items[{index}] ({}): {}", request.tool_id, reason.text),
                ..reason.clone()
            });
            reasons.extend(named);
        }
        if decided.as_ref().is_none_or(|other| rank(&assessed) > rank(other)) {
            decided = Some(assessed);
        }
    }
    let none = || Failure::new(Code::Malformed, Phase::Gate, "a batch has at least one item");
    let mut decided = decided.ok_or_else(none)?;
    let Ruling { decision, .. } = &mut decided.ruling;
    if let Verdict::NeedsApproval { reasons: all } = &mut decision.verdict {
        reasons.truncate(BATCH_REASONS_MAX);
        *all = reasons;
    }
    // A grant is for calls of one tool, a command is confined by itself, and a batch has the time of a batch.
    decision.grant_allowed = false;
    decision.command = None;
    decision.protected = Vec::new();
    decision.timeout_ms_max = TIMEOUT_MS_MAX;
    decided.ruling = Ruling { redactions, hidden, items, ..decided.ruling };
    decided.inspection.params = params;
    // What a rule saw of one item is not what all of them change.
    (decided.preview, decided.before) = (None, Vec::new());
    Ok(decided)
}

/// The stricter verdict decides; among equal ones, that about the higher risk.
fn rank(assessed: &Assessed) -> (u8, RiskTier) {
    let decision = &assessed.ruling.decision;
    let strict = match decision.verdict {
        Verdict::Permit => 0,
        Verdict::NeedsApproval { .. } => 1,
        Verdict::Quarantine { .. } => 2,
        Verdict::Deny { .. } => 3,
    };
    (strict, decision.tier)
}

/// Lets a person decide about a batch that cannot be atomic, since this item cannot be undone.
fn ask(decision: &mut Decision, tool: &ToolId) {
    let text = format!("{tool} may not be undone: if a later item fails, what it did may stay");
    let reason = Reason::new("not_atomic", text, "leave the item out, or ask for the mode `ordered`");
    match &mut decision.verdict {
        Verdict::Permit => {
            decision.mode = Some(Mode::RequireApproval);
            decision.verdict = Verdict::NeedsApproval { reasons: vec![reason] };
        }
        Verdict::NeedsApproval { reasons } => reasons.push(reason),
        Verdict::Deny { .. } | Verdict::Quarantine { .. } => {}
    }
}

fn inside(index: usize, redaction: Redaction) -> Redaction {
    Redaction { field: format!("/items/{index}/params{}", redaction.field), ..redaction }
}

/// What the question about an item depends on, beside its parameters and the files.
pub(crate) fn depends(tool: &RegisteredTool, ruling: &Ruling) -> Digest {
    let Ruling { decision, facts, .. } = ruling;
    canonical::digest(&json!({
        "tool_description": tool.spec(),
        "upstream": tool.definition().upstream,
        "hosts": facts.inspection.as_ref().map(|seen| &seen.hosts),
        "connection_version": facts.connection_version,
        "gates": decision.gates,
        "mode": decision.mode,
        "mode_source": decision.mode_source,
        "clamped_by": decision.clamped_by,
        "tier": decision.tier,
        "safety_class": decision.safety_class,
        "command": decision.command.as_ref().map(|command| (&command.name, &command.writes, &command.caches)),
    }))
}

/// Whether a run on a copy shows all that the item does: it only reads, or is a tool of effectd's that declares its paths.
fn is_previewed(services: &Services, item: &BatchItem) -> bool {
    let registry = services.registry();
    registry.get(&item.tool_id).is_some_and(|tool| {
        let is_run = tool.source().is_own() && item.tool_id.as_str() != ARTIFACT_GET_TOOL;
        tool.spec().level() == RiskLevel::Read || is_run && tool.touches(&item.params).is_some()
    })
}

/// Runs all items on one copy. The failure of an item that would fail, if then nothing is to start.
pub(crate) async fn would_fail(
    services: &Services,
    request: &ActionRequest,
    trial: &Trial<'_>,
) -> Result<Option<Failure>, Failure> {
    let batch = Batch::of_action(request)?;
    if !batch.items.iter().all(|item| is_previewed(services, item)) {
        // What is left out may be what a later item needs.
        return Ok(None);
    }
    let is_atomic = batch.mode == BatchMode::Atomic;
    match of(services, trial).await? {
        Preview::WouldFail(failure) if is_atomic || request.dry_run => Ok(Some(failure)),
        Preview::WouldFail(_) | Preview::Shown(_) | Preview::Request(_) | Preview::Unavailable(_) => Ok(None),
    }
}
