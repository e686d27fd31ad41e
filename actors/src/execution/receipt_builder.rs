//! Builds receipts: the measured figures without sensitive data, and the records that are committed with a receipt.

use std::collections::BTreeSet;

use effectd_bus::fingerprint::fingerprint;
use effectd_bus::{
    Completion, FailedAttempt, Fence, Fingerprint, NewDeadLetter, NewReceipt, ResourceName, Store,
};
use effectd_contracts::plan::Verified;
use effectd_contracts::reward::{Inputs, reward};
use effectd_contracts::{
    ActionRequest, Attempt, Check, Choice, Clock, Cost, Digest, Effects, EgressRecord, Event, Failure,
    GateResults, IdempotencyKey, Isolation, KeptResult, Millis, Outcome, PlanRecord, PlanStatus, PlanStep,
    PreviewRecord, Receipt, ReceiptId, Status, Timestamp, Timing, ToolOutput, ToolSpec, Topic, Transition,
};
use effectd_policy::inspect::redact_choice;
use effectd_policy::redact::personal::{redact_stored, redact_values};
use effectd_policy::redact::{prune_result, redact_secrets};
use serde_json::{Map, Value, json};

use crate::action::decisions::is_dead_letter_again;
use crate::action::plan::PlanRun;
use crate::action::proofs::{Earlier, Ended, KeptArtifact, Ruling, Used};
use crate::action::{Action, Finished, Ticket};
use crate::claims::resources;
use crate::effects::results::{self, Storing};
use crate::effects::{invalidation, snapshot, undo};
use crate::messages::Refusal;
use crate::services::Services;
use crate::services::files::Files;
use crate::services::signer::{DeviceKey, Identity};
use crate::stored::{clear_event, json_bytes};

/// A receipt, and everything that is committed with it.
pub(crate) struct Captured {
    pub(crate) receipt: Receipt,
    pub(crate) completion: Completion,
    /// The result, which must be written before the receipt is committed.
    pub(crate) result: Option<Storing>,
}

/// What a receipt is built from.
struct Account<'a> {
    receipt_id: ReceiptId,
    ticket: &'a Ticket,
    request: &'a ActionRequest,
    params: &'a Map<String, Value>,
    /// The names of parameters that do not fit the schema.
    unfit: BTreeSet<String>,
    spec: Option<&'a ToolSpec>,
    ruling: Option<&'a Ruling>,
    key: Option<IdempotencyKey>,
    result: Result<&'a ToolOutput, &'a Failure>,
    outcome: Outcome,
    attempts: Vec<Attempt>,
    used: Used,
    isolation: Option<Isolation>,
    egress: Vec<EgressRecord>,
    effects: Effects,
    cleaned_up: BTreeSet<String>,
    preview: Option<PreviewRecord>,
    allowed: Millis,
    artifacts: &'a [KeptArtifact],
    /// The pre-images that are kept.
    preimages: BTreeSet<String>,
    kept_result: Option<KeptResult>,
    /// What a failure says in place of a result.
    marks: Option<&'a Value>,
    /// What the plan came to, if it ran.
    plan: Option<&'a PlanRun>,
    /// Whether this is an operation on effectd itself: its parameters are shown, though no tool declares them public.
    plain: bool,
}

impl<'a> Account<'a> {
    /// An action without a tool, a ruling, a key and attempts.
    fn new<S>(action: &'a Action<S>, result: Result<&'a ToolOutput, &'a Failure>, outcome: Outcome) -> Self {
        Self {
            receipt_id: ReceiptId::fresh(),
            ticket: &action.ticket,
            request: &action.request,
            params: &action.request.params,
            unfit: BTreeSet::new(),
            spec: None,
            ruling: None,
            key: None,
            result,
            outcome,
            attempts: Vec::new(),
            used: Used::default(),
            isolation: None,
            egress: Vec::new(),
            effects: Effects::None,
            cleaned_up: BTreeSet::new(),
            preview: None,
            allowed: Millis::ZERO,
            artifacts: &[],
            preimages: BTreeSet::new(),
            kept_result: None,
            marks: None,
            plan: None,
            plain: false,
        }
    }
}

/// The receipt of an action that ran. Also begins to write the result, so that this happens while the receipt is signed.
pub(crate) fn ran(services: &Services, key: &DeviceKey, action: &Action<Finished>) -> Captured {
    let claimed = action.state.claimed();
    let (gated, terms, ended) = (claimed.gated(), claimed.terms(), action.state.ended());
    let receipt_id = ReceiptId::fresh();
    let result = ended.kept().and_then(|kept| {
        let (space, principal) = (&action.request.space_id, &action.ticket.principal);
        results::store(services, space, principal, &receipt_id, &kept)
    });
    let account = Account {
        receipt_id,
        params: gated.params(),
        spec: Some(gated.tool().spec()),
        ruling: Some(gated.ruling()),
        key: terms.key.clone(),
        attempts: ended.runs.attempts.clone(),
        used: ended.runs.used,
        isolation: ended.runs.isolation.clone(),
        egress: ended.runs.egress.clone(),
        effects: ended.effects.clone(),
        cleaned_up: ended.runs.cleaned_up.clone(),
        preview: previewed(&action.ticket, claimed.earlier(), ended),
        allowed: Millis::from(action.state.timeout()),
        artifacts: &ended.runs.artifacts,
        preimages: undo::preimages_kept(&services.files, &action.request.space_id, &ended.effects),
        kept_result: result.as_ref().map(|result| result.kept.clone()),
        marks: ended.marks.as_ref(),
        plan: ended.runs.plan.as_deref(),
        ..Account::new(action, ended.result.as_ref(), ended.outcome)
    };
    let (receipt, body) = receipt(services, key, account);
    let has_changed = match &receipt.effects {
        Effects::None => false,
        Effects::Observed(observed) => {
            !observed.changes.is_empty() || !observed.undeclared.is_empty() || observed.incomplete
        }
        Effects::Unobserved | Effects::Possible => gated.dry_run().is_none(),
    };
    let mut changed = Changed { depends: terms.depends.clone(), ..Changed::default() };
    if has_changed {
        changed.retire.clone_from(&terms.resources);
    }
    if gated.dry_run().is_none() {
        let (spec, space) = (gated.tool().spec(), &action.request.space_id);
        let disturbed = invalidation::disturbed(spec, space, &terms.touched, &receipt.effects);
        let (appeared, ignores_case) =
            (invalidation::appeared(space, &receipt.effects), services.files.ignores_case(space));
        changed.disturbed = resources::compared(disturbed, ignores_case);
        changed.appeared = resources::compared(appeared, ignores_case);
    }
    // A batch that failed finds its items' receipts, whenever it is tried again.
    let has_ended = ended.marks.is_some();
    let letter = (!has_ended
        && is_letter(&*services.store, &action.ticket, ended.dead_letter, ended.outcome))
    .then(|| letter(&action.ticket, &action.request, &receipt, &ended.runs.attempts));
    let completion = completion(
        services.clock.now(),
        &action.ticket,
        (&receipt, body),
        terms.params_digest,
        (Some(claimed.fence()), letter),
        changed,
    );
    Captured { receipt, completion, result }
}

/// The receipt of an action that was refused.
pub(crate) fn refused(services: &Services, key: &DeviceKey, refusal: &Refusal) -> Captured {
    let (action, tool, outcome) = (&refusal.action, refusal.tool.as_ref(), refusal.outcome());
    let params = &action.request.params;
    let account = Account {
        unfit: tool.map_or_else(BTreeSet::new, |tool| tool.unfit_params(params)),
        spec: tool.map(|tool| tool.spec()),
        ruling: refusal.ruling.as_ref(),
        key: action.request.idempotency_key.clone(),
        effects: if outcome == Outcome::Indeterminate { Effects::Possible } else { Effects::None },
        ..Account::new(action, Err(&refusal.failure), outcome)
    };
    let (receipt, body) = receipt(services, key, account);
    let letter = is_letter(&*services.store, &action.ticket, refusal.dead_letter, outcome)
        .then(|| letter(&action.ticket, &action.request, &receipt, &[]));
    let completion = completion(
        services.clock.now(),
        &action.ticket,
        (&receipt, body),
        services.identity.keyed(&action.request.params_digest()),
        (refusal.fence, letter),
        may_have_changed(&services.files, refusal),
    );
    Captured { receipt, completion, result: None }
}

/// The receipt of an operation on effectd itself: no tool ran, and its parameters are not secret.
pub(crate) fn operated(
    services: &Services,
    key: &DeviceKey,
    action: &Action<()>,
    ended: Result<Map<String, Value>, &Failure>,
) -> Captured {
    let outcome = ended.as_ref().map_or_else(|failure| failure.code.outcome(), |_| Outcome::Executed);
    let done = ended.map(|outputs| ToolOutput::new(Value::Object(outputs), None));
    let account =
        Account { plain: true, ..Account::new(action, done.as_ref().map_err(|failure| *failure), outcome) };
    let (receipt, body) = receipt(services, key, account);
    let completion = completion(
        services.clock.now(),
        &action.ticket,
        (&receipt, body),
        services.identity.keyed(&action.request.params_digest()),
        (None, None),
        Changed::default(),
    );
    Captured { receipt, completion, result: None }
}

pub(super) fn is_letter(store: &dyn Store, ticket: &Ticket, dead_letter: bool, outcome: Outcome) -> bool {
    dead_letter || is_dead_letter_again(store, &ticket.action_id, outcome)
}

/// Builds and signs the receipt; also returns its canonical text.
fn receipt(services: &Services, key: &DeviceKey, account: Account<'_>) -> (Receipt, String) {
    let how = |name: &str| {
        let how = Shown::param(account.spec, name);
        if account.plain {
            Shown::InClear
        } else if how == Shown::InClear && account.unfit.contains(name) {
            Shown::AsDigest
        } else {
            how
        }
    };
    let inputs_shown = shown(&services.identity, account.params, account.plain, how);
    let mut redactions = account.ruling.map_or_else(Vec::new, |ruling| ruling.redactions.clone());
    let mut choice = Choice::of(account.request);
    let digest = |id: &str| services.identity.digest(&Value::String(id.to_owned()));
    redactions.extend(choice.as_mut().map(|choice| redact_choice(choice, digest)).unwrap_or_default());
    let outputs_shown = outputs(&services.identity, &account);
    let plan = plan_record(&account);
    let Account { ticket, request, spec, ruling, outcome, used, .. } = account;
    let timing = timing(&*services.clock, ticket, used.exec);
    let quality = account.result.ok().and_then(|output| output.quality);
    let inputs = Inputs { outcome, quality, cpu: used.cpu, took: used.exec, allowed: account.allowed };
    let mut receipt = Receipt {
        receipt_id: account.receipt_id,
        action_id: ticket.action_id.clone(),
        tool_id: spec.map_or(&request.tool_id, |spec| &spec.tool_id).clone(),
        space_id: request.space_id.clone(),
        subject_id: request.subject_id.clone(),
        status: outcome.project().receipt.unwrap_or(Status::Error),
        error: account.result.err().cloned().map(without_personal_data),
        inputs: inputs_shown,
        outputs: outputs_shown,
        policy: ruling.map_or_else(GateResults::default, |ruling| ruling.decision.gates),
        cost: cost(services.settings.core_watts, &used, account.attempts.is_empty()),
        timing,
        idempotency_key: account.key,
        trace_id: ticket.trace_id.clone(),
        trace_context: request.trace_context(&ticket.trace_id),
        reward: reward(&inputs, &services.settings.weights),
        outcome,
        tool_version: spec.map(|spec| spec.version.clone()),
        principal: ticket.principal.clone(),
        origin: ticket.origin.clone(),
        session_id: ticket.origin.session(),
        org: ticket.org.clone(),
        request_digest: format!("hmac-sha256:{}", ticket.digest.hex()),
        decision: ruling.map(|ruling| ruling.decision.record(&ruling.facts)),
        redactions,
        approval: ticket.approval().cloned(),
        attempts: account.attempts,
        isolation: account.isolation,
        egress: account.egress,
        effects: account.effects,
        cleaned_up: account.cleaned_up,
        preview: account.preview,
        choice,
        kept_result: account.kept_result,
        plan,
        signature: None,
    };
    let body = key.sign(&mut receipt);
    (receipt, body)
}

/// What the plan came to, if the action has one or its tool is of a package.
fn plan_record(account: &Account<'_>) -> Option<PlanRecord> {
    let Account { ticket, request, spec, ruling, outcome, .. } = account;
    let is_of_package = spec.is_some_and(|spec| spec.package.is_some());
    if ticket.contract.is_none() && !is_of_package {
        return None;
    }
    let clean = |text: &str| redact_stored(text).map_or_else(|| text.to_owned(), |found| found.text);
    let run = account.plan.cloned().unwrap_or_default();
    let check = |check: Check| Check { name: clean(&check.name), output: String::new(), ..check };
    let checks = run.verified.checks.into_iter().map(check).collect();
    let mut transitions = run.transitions;
    transitions.push(Transition { step: PlanStep::Feedback, ok: true });
    let rationale = request.rationale.as_ref();
    let stated = ticket.contract.as_ref().and_then(|contract| contract.risk_tier);
    Some(PlanRecord {
        // Every outcome of an action that has ended has a word. A plan that was only tried out is not done, and not verified.
        result_status: if matches!(outcome, Outcome::DryRun | Outcome::Paused) {
            PlanStatus::Rejected
        } else {
            outcome.project().plan.unwrap_or(PlanStatus::Failed)
        },
        action_type: request.tool_id.to_string(),
        risk_tier: ruling.map(|ruling| ruling.decision.tier).or(stated),
        confidence: rationale.and_then(|rationale| rationale.confidence),
        reason: rationale.and_then(|rationale| rationale.reason.as_deref()).map(clean),
        verification: Verified { ok: run.verified.ok, checks },
        repair: run.repair,
        rollback: run.rollback,
        transitions,
        not_restored: run.not_restored,
    })
}

/// Whether the observed changes match the preview. A dry run changes nothing, so it is not compared.
fn previewed(ticket: &Ticket, earlier: &Earlier, ended: &Ended) -> Option<PreviewRecord> {
    let preview = ticket.preview.as_ref()?;
    let is_dry_run = matches!(ended.outcome, Outcome::DryRun | Outcome::Paused);
    // If the action was begun before, a policy rule's preview may have run on top of the action's own effect.
    let again = match earlier {
        Earlier::No => false,
        Earlier::Interrupted(_) => ticket.approved.is_none(),
    };
    let effects = ended.runs.of_items.as_deref().unwrap_or(&ended.effects);
    (!is_dry_run && !again).then(|| preview.compared(effects))
}

fn timing(clock: &dyn Clock, ticket: &Ticket, exec: Millis) -> Timing {
    let queued = Millis::from(ticket.queued.unwrap_or_default());
    let age = Millis::from(ticket.age(clock));
    let least = Millis::from_micros(queued.micros() + exec.micros());
    Timing {
        queued_ms: queued,
        exec_ms: exec,
        total_ms: age.max(least),
        started_at: ticket.accepted_at,
        ended_at: clock.now(),
    }
}

fn cost(core_watts: f64, used: &Used, nothing_ran: bool) -> Cost {
    let measured = |value: u64| (!nothing_ran).then_some(value);
    let milliwatt_hours = used.cpu.as_f64() * core_watts / 3_600.0;
    Cost {
        cpu_ms: used.cpu,
        energy_mwh: (milliwatt_hours * 1e6).round() / 1e6,
        peak_memory_bytes: measured(used.peak_memory_bytes),
        bytes_written: measured(used.bytes_written),
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Shown {
    InClear,
    /// Shown as its name and a keyed digest.
    AsDigest,
    /// The schema does not declare its name, which may itself be a secret.
    Unnamed,
}

impl Shown {
    fn param(spec: Option<&ToolSpec>, name: &str) -> Self {
        match spec {
            Some(spec) if spec.is_public_param(name) => Self::InClear,
            Some(spec) if spec.declares_param(name) => Self::AsDigest,
            Some(_) | None => Self::Unnamed,
        }
    }

    fn result(spec: Option<&ToolSpec>, name: &str) -> Self {
        match spec {
            Some(spec) if spec.is_public_result(name) => Self::InClear,
            Some(spec) if spec.declares_result(name) => Self::AsDigest,
            Some(_) | None => Self::Unnamed,
        }
    }
}

/// How the name of a digest begins.
const DIGEST_PREFIX: &str = "hmac_sha256_";

/// Messages name paths.
fn without_personal_data(mut failure: Failure) -> Failure {
    if let Some(found) = redact_stored(&failure.message) {
        failure.message = found.text;
    }
    failure
}

/// Fields as the receipt shows them: undeclared ones together, under one keyed digest; in clear only without secrets and personal
/// data, since those may be in a field that is declared public. An operation on effectd itself (`plain`) names its principals.
/// The result is pruned to stay small.
fn shown(
    identity: &Identity,
    fields: &Map<String, Value>,
    plain: bool,
    how: impl Fn(&str) -> Shown,
) -> Map<String, Value> {
    let (mut clear, mut digests, mut unnamed) = (Map::new(), Map::new(), Map::new());
    let digest = |value: &Value| Value::String(identity.digest(value));
    for (name, value) in fields {
        match how(name) {
            Shown::InClear => clear.insert(name.clone(), value.clone()),
            Shown::AsDigest => digests.insert(format!("{DIGEST_PREFIX}{name}"), digest(value)),
            Shown::Unnamed => unnamed.insert(name.clone(), value.clone()),
        };
    }
    if !unnamed.is_empty() {
        digests.insert(format!("{DIGEST_PREFIX}*"), digest(&Value::Object(unnamed)));
    }
    let mut fields_shown = Value::Object(clear);
    redact_secrets(&mut fields_shown);
    if !plain {
        redact_values(&mut fields_shown);
    }
    if let Value::Object(fields_shown) = &mut fields_shown {
        fields_shown.append(&mut digests);
    }
    match prune_result(fields_shown) {
        Value::Object(pruned) => pruned,
        // Pruning never turns an object into something else.
        Value::Array(_) | Value::String(_) | Value::Null | Value::Bool(_) | Value::Number(_) => Map::new(),
    }
}

fn outputs(identity: &Identity, account: &Account<'_>) -> Map<String, Value> {
    let (spec, outcome, artifacts) = (account.spec, account.outcome, account.artifacts);
    let how = |name: &str| {
        if account.plain || name == "settled_by" {
            return Shown::InClear;
        }
        Shown::result(spec, name)
    };
    let Ok(output) = account.result else {
        let marks = account.marks.and_then(Value::as_object);
        return marks.map(|marks| shown(identity, marks, account.plain, how)).unwrap_or_default();
    };
    let fields = output.result.as_object();
    let mut shown = fields.map(|fields| shown(identity, fields, account.plain, how)).unwrap_or_default();
    if matches!(outcome, Outcome::DryRun | Outcome::Paused) {
        shown.insert("dry_run".to_owned(), json!(true));
    } else {
        let mut ids: Vec<_> = artifacts.iter().map(|kept| &kept.artifact_id).collect();
        let preimages: Vec<_> = account.preimages.iter().filter(|id| !ids.contains(id)).collect();
        ids.extend(preimages);
        shown.insert("artifact_ids".to_owned(), json!(ids));
        if !artifacts.is_empty() {
            shown.insert("artifacts".to_owned(), json!(artifacts));
        }
    }
    shown
}

/// The dead letter of an action. It contains the whole decision, so that it can be requeued.
fn letter(
    ticket: &Ticket,
    request: &ActionRequest,
    receipt: &Receipt,
    attempts: &[Attempt],
) -> NewDeadLetter {
    let failure = receipt.error.as_ref();
    let decision = ticket.decision(request);
    NewDeadLetter {
        topic: Topic::ActionDecision.into(),
        code: failure.map_or_else(|| receipt.outcome.as_str().to_owned(), |failure| failure.code.to_string()),
        detail: failure.map_or_else(
            || "the action was requeued as a dry run".to_owned(),
            |failure| failure.message.clone(),
        ),
        attempts: u32::try_from(attempts.len()).unwrap_or(u32::MAX),
        tries: tries(attempts, failure),
        payload: json_bytes(&decision),
    }
}

/// Each attempt with its time and its code; the last attempt also with its message.
fn tries(attempts: &[Attempt], failure: Option<&Failure>) -> Vec<FailedAttempt> {
    let last = attempts.len().saturating_sub(1);
    let tries = attempts.iter().enumerate().map(|(nth, attempt)| {
        let code = attempt.code.as_ref().map_or_else(String::new, ToString::to_string);
        let error = match failure {
            Some(failure) if nth == last => format!("{code}: {}", failure.message),
            Some(_) | None => code,
        };
        let took = std::time::Duration::from_secs_f64(attempt.exec_ms.as_f64().max(0.0) / 1_000.0);
        let at = attempt.started_at.checked_add(took).unwrap_or(attempt.started_at);
        FailedAttempt { at, error }
    });
    tries.collect()
}

/// The resources that were changed, or may have been.
#[derive(Debug, Default)]
struct Changed {
    retire: Vec<ResourceName>,
    disturbed: Vec<ResourceName>,
    appeared: Vec<ResourceName>,
    /// The resources whose change frees the action's own key.
    depends: Vec<ResourceName>,
}

/// What a refused action may have changed if an earlier delivery began it.
fn may_have_changed(files: &Files, refusal: &Refusal) -> Changed {
    let (request, tool) = (&refusal.action.request, refusal.tool.as_ref());
    let Some(entry) = tool.filter(|_| refusal.outcome() == Outcome::Indeterminate) else {
        return Changed::default();
    };
    let (spec, space) = (entry.spec(), &request.space_id);
    let touched = snapshot::touched_with(files, space, entry, &request.params);
    let compared = |names| resources::compared(names, files.ignores_case(space));
    Changed {
        retire: compared(resources::of_action(spec, space, &request.params, &touched)),
        disturbed: compared(invalidation::disturbed(spec, space, &touched, &Effects::Possible)),
        appeared: Vec::new(),
        depends: Vec::new(),
    }
}

fn completion(
    now: Timestamp,
    ticket: &Ticket,
    (receipt, body): (&Receipt, String),
    params_digest: Digest,
    (fence, letter): (Option<Fence>, Option<NewDeadLetter>),
    changed: Changed,
) -> Completion {
    let executed = clear_event(&Event::executed(receipt, now), Some(&receipt.action_id));
    let mut events = vec![(Topic::ActionExecuted.into(), executed)];
    if let Some(letter) = &letter {
        let tool = Some(receipt.tool_id.as_str());
        let cause = Fingerprint(fingerprint(tool, &letter.code, &letter.detail)).to_string();
        let event = Event::dead_letter(receipt, letter.code.clone(), cause, letter.attempts, now);
        events.push((Topic::DeadLetters.into(), clear_event(&event, Some(&receipt.action_id))));
    }
    Completion {
        receipt: NewReceipt {
            receipt_id: receipt.receipt_id.clone(),
            action_id: receipt.action_id.clone(),
            action_digest: ticket.digest,
            tool_id: receipt.tool_id.clone(),
            subject_id: receipt.subject_id.clone(),
            space_id: receipt.space_id.clone(),
            status: receipt.status,
            key: receipt.idempotency_key.clone(),
            params_digest,
            time: receipt.timing.ended_at,
            body: body.into_bytes(),
        },
        events,
        fence,
        leases: ticket.lease().into_iter().collect(),
        letter,
        retire: changed.retire,
        disturbed: changed.disturbed,
        appeared: changed.appeared,
        depends: changed.depends,
        links: Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_public_field_hides_its_secrets_whatever_its_name() {
        let identity = Identity::new(&[1; 32], [2; 32]);
        let fields = json!({ "hmac_sha256_x": { "token": "canary", "n": 1 }, "private": "canary", "more": "canary", "to": ["a/canary@example.org"] });
        let how = |name: &str| match name {
            "private" => Shown::AsDigest,
            "more" => Shown::Unnamed,
            _ => Shown::InClear,
        };
        let shown = Value::Object(shown(&identity, fields.as_object().unwrap(), false, how));
        assert_eq!(shown["to"], json!(["a/[redacted:email]"]));
        assert_eq!(shown["hmac_sha256_x"], json!({ "token": "[redacted:secret]", "n": 1 }));
        assert!(!shown.to_string().contains("canary"), "{shown}");
        // A digest is shown as it is.
        assert_eq!(shown["hmac_sha256_private"], identity.digest(&json!("canary")));
        assert_eq!(shown["hmac_sha256_*"], identity.digest(&json!({ "more": "canary" })));
    }
}
