//! The assessment of a batch: each item is judged as the action that it will be, and the strictest decision is that of the whole.

use effectd_contracts::batch::{Batch, BatchItem, BatchMode, is_batch, item_id};
use effectd_contracts::limits::TIMEOUT_MS_MAX;
use effectd_contracts::toolcall::undo_at_service;
use effectd_contracts::{
    ARTIFACT_GET_TOOL, ActionRequest, Code, Digest, Failure, Mode, Phase, Predicted, Redaction, RiskLevel,
    RiskTier, SafetyClass, ToolId, canonical,
};
use effectd_policy::{Decision, Reason, Verdict};
use serde_json::{Map, Value, json};

use super::assessment::{Assessed, Question, might_be, unseen};
use super::{ItemRequest, Preview, Trial, Tried, count, on_copy, tool_sends, tried};
use crate::action::proofs::Ruling;
use crate::effects::changes;
use crate::limits::BATCH_REASONS_MAX;
use crate::registry::RegisteredTool;
use crate::services::Services;
use crate::services::files::Inspected;

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
    let (batch, policy) = (Batch::of_action(question.request)?, services.policy());
    let registry = services.registry();
    let requests = batch.requests(question.request);
    let (mut tools, mut all) = (Vec::with_capacity(requests.len()), Vec::with_capacity(requests.len()));
    let mut params = question.request.params.clone();
    for (index, request) in requests.iter().enumerate() {
        let tool = registry
            .find(&request.tool_id)
            .map_err(|error| Failure::new(Code::UnknownTool, Phase::Gate, error.to_string()))?;
        let mut assessed = unseen(services, &policy, &Question { request, tool, ..*question });
        assessed.item = Some(index);
        params["items"][index]["params"] = Value::Object(std::mem::take(&mut assessed.inspection.params));
        tools.push(tool);
        all.push(assessed);
    }
    let mut preview = None;
    if policy.needs_preview()
        && all.iter().all(|assessed| might_be(&assessed.ruling, &policy))
        && let Some(first) = all.first()
    {
        // One run of all items, in which each sees what those before it do.
        let Question { request, tool, trace_id, .. } = *question;
        let mut trial = Trial::new(request, tool, &params, &first.ruling.decision, trace_id);
        let mut classes = all.iter().map(|assessed| assessed.ruling.decision.safety_class);
        trial.high_isolation = classes.any(|class| class == SafetyClass::High);
        let tried = tried(services, &trial).await?;
        for (assessed, predicted) in all.iter_mut().zip(predictions(services, &batch, &params, &tried)) {
            assessed.ruling.predict(predicted, &policy);
        }
        preview = Some(tried.preview);
    }
    let (mut redactions, mut hidden, mut items) = (Vec::new(), Vec::new(), Vec::new());
    let (mut reasons, mut decided) = (Vec::new(), None::<Assessed>);
    for (index, (mut assessed, tool)) in all.into_iter().zip(tools).enumerate() {
        let tool_id = &batch.items[index].tool_id;
        items.push(depends(tool, &assessed.ruling));
        if batch.mode == BatchMode::Atomic && !can_be_undone(tool, &assessed.ruling.decision) {
            ask(&mut assessed.ruling.decision, tool_id);
        }
        let ruling = &mut assessed.ruling;
        redactions.extend(ruling.redactions.drain(..).map(|one| inside(index, one)));
        hidden.extend(ruling.hidden.drain(..).map(|one| inside(index, one)));
        if let Verdict::NeedsApproval { reasons: own } = &ruling.decision.verdict {
            let named = own.iter().map(|reason| Reason {
                text: format!("items[{index}] ({tool_id}): {}", reason.text),
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
        *all = bounded(reasons);
    }
    // A grant is for calls of one tool, a command is confined by itself, and a batch has the time of a batch.
    decision.grant_allowed = false;
    decision.command = None;
    decision.protected = Vec::new();
    decision.timeout_ms_max = TIMEOUT_MS_MAX;
    decided.ruling = Ruling { redactions, hidden, items, ..decided.ruling };
    decided.inspection.params = params;
    // Each item that is judged again says which paths must be as they were then.
    (decided.preview, decided.before) = (preview, Vec::new());
    Ok(decided)
}

/// How much each item would change, by a run of all of them; `None` if that is not known. What would fail changes nothing, nor does what
/// comes after it; but if the run left items out, one of them may be what a later one needs.
fn predictions(
    services: &Services,
    batch: &Batch,
    params: &Map<String, Value>,
    tried: &Tried,
) -> Vec<Option<Predicted>> {
    let (registry, identity) = (services.registry(), &services.files.identity);
    let is_whole = batch.items.iter().all(|item| is_previewed(services, item));
    let fails = matches!(tried.preview, Preview::WouldFail(_)) && is_whole;
    let predicted = |(index, item): (usize, &BatchItem)| {
        let call = params["items"][index]["params"].as_object()?;
        let touched = registry.get(&item.tool_id)?.touches(call).filter(|touched| !touched.is_empty())?;
        let Some(seen) = tried.items.iter().find(|seen| seen.index == index) else {
            return fails.then(Predicted::default);
        };
        let after: Vec<_> =
            seen.after.iter().map(|seen| Inspected { seen: seen.clone(), content: None }).collect();
        let mut changes = changes::compare(identity, &seen.before, &after, &touched);
        for touch in touched.iter().filter(|touch| touch.filled) {
            changes::add_made(identity, touch, seen.after.iter().cloned(), &mut changes);
        }
        Some(count(&changes))
    };
    batch.items.iter().enumerate().map(predicted).collect()
}

/// The reasons that a person is shown, the last of which says how many more there are.
fn bounded(mut reasons: Vec<Reason>) -> Vec<Reason> {
    let more = reasons.len().saturating_sub(BATCH_REASONS_MAX);
    if more > 0 {
        reasons.truncate(BATCH_REASONS_MAX);
        let text = format!("and {more} more reasons of this kind: each item has its own");
        reasons.push(Reason::new("more_reasons", text, "look at the items"));
    }
    reasons
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
pub(crate) fn is_previewed(services: &Services, item: &BatchItem) -> bool {
    let registry = services.registry();
    registry.get(&item.tool_id).is_some_and(|tool| {
        let is_run = tool.source().is_own() && item.tool_id.as_str() != ARTIFACT_GET_TOOL;
        tool.spec().level() == RiskLevel::Read || is_run && tool.touches(&item.params).is_some()
    })
}

/// Whether nothing of this batch is to start if its preview fails: it is all or nothing, and the preview leaves no item out that a later
/// one may need.
pub(crate) fn is_all_or_nothing(services: &Services, request: &ActionRequest) -> bool {
    is_batch(&request.tool_id)
        && Batch::of_action(request).is_ok_and(|batch| {
            (batch.mode == BatchMode::Atomic || request.dry_run)
                && batch.items.iter().all(|item| is_previewed(services, item))
        })
}

/// The items that send one request each.
pub(super) fn sending(services: &Services, trial: &Trial<'_>) -> Vec<usize> {
    if !is_batch(&trial.tool.spec().tool_id) {
        return Vec::new();
    }
    let (registry, items) = (services.registry(), Batch::of(trial.params).map(|batch| batch.items));
    let items = items.unwrap_or_default().into_iter().enumerate();
    let sends = items.filter(|(_, item)| registry.get(&item.tool_id).is_some_and(|tool| tool_sends(tool)));
    sends.map(|(index, _)| index).collect()
}

/// The requests that these items would send, as many as there is time for; or why one cannot be sent.
pub(super) async fn requests(
    services: &Services,
    trial: &Trial<'_>,
    sending: Vec<usize>,
) -> Result<Vec<ItemRequest>, Failure> {
    let (registry, mut requests) = (services.registry(), Vec::new());
    let until = services.clock.monotonic().plus(services.settings.preview_time_max);
    for item in sending {
        let asked = &trial.params["items"][item];
        let tool = asked["tool_id"].as_str().and_then(|id| registry.get(&ToolId::new(id).ok()?));
        let (Some(tool), Some(params), Some(action_id)) =
            (tool, asked["params"].as_object(), item_id(trial.action_id, item))
        else {
            continue;
        };
        if services.clock.monotonic() >= until {
            break;
        }
        match on_copy(services, &Trial { tool, params, action_id: &action_id, ..*trial }, &[]).await.preview {
            Preview::Request(request) => requests.push(ItemRequest { item, request }),
            Preview::WouldFail(failure) => return Err(at_item(failure, Some(item))),
            Preview::Shown(_) | Preview::Unavailable(_) => {}
        }
    }
    Ok(requests)
}
