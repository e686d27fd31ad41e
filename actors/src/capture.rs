//! Makes the receipt: what was measured, in the form that everybody may see.

use std::collections::BTreeSet;

use effectd_bus::fingerprint::fingerprint;
use effectd_bus::{
    Completion, Fence, Fingerprint, NewBody, NewEvent, NewLetter, NewReceipt, ResourceName, Try,
};
use effectd_contracts::{
    Attempt, Choice, Cost, Effects, Event, Failure, GateResults, IdempotencyKey, Isolation, Millis, Outcome,
    PreviewRecord, Receipt, ReceiptId, Status, Timing, ToolOutput, ToolSpec, Topic,
};
use effectd_policy::redact::prune_result;
use serde_json::{Map, Value, json};

use crate::action::{Action, Finished, Ticket};
use crate::executor::{Ended, Used};
use crate::gate::Ruling;
use crate::idempotency::Earlier;
use crate::identity::DeviceKey;
use crate::letters::comes_back;
use crate::messages::Refusal;
use crate::parts::Parts;
use crate::reward::{Inputs, reward};
use crate::streams::KeptArtifact;
use crate::{disturbed, preimage, resources, stage};

/// A receipt, and all that is written with it.
pub(crate) struct Captured {
    pub(crate) receipt: Receipt,
    pub(crate) completion: Completion,
}

struct Account<'a> {
    ticket: &'a Ticket,
    request: &'a effectd_contracts::ActionRequest,
    params: &'a Map<String, Value>,
    /// Parameters that break their schema.
    unfit: BTreeSet<String>,
    spec: Option<&'a ToolSpec>,
    ruling: Option<&'a Ruling>,
    key: Option<IdempotencyKey>,
    result: Result<&'a ToolOutput, &'a Failure>,
    outcome: Outcome,
    attempts: Vec<Attempt>,
    used: Used,
    isolation: Option<Isolation>,
    effects: Effects,
    preview: Option<PreviewRecord>,
    allowed: Millis,
    artifacts: &'a [KeptArtifact],
    /// Nothing in its parameters is secret, though no tool says so.
    plain: bool,
}

/// The receipt of an action that ran.
pub(crate) fn ran(parts: &Parts, key: &DeviceKey, action: &Action<Finished>) -> Captured {
    let claimed = action.state.claimed();
    let (gated, ended) = (claimed.gated(), action.state.ended());
    let account = Account {
        ticket: &action.ticket,
        request: &action.request,
        params: gated.params(),
        unfit: BTreeSet::new(),
        spec: Some(gated.entry().spec()),
        ruling: Some(gated.ruling()),
        key: claimed.terms().key.clone(),
        result: ended.result.as_ref(),
        outcome: ended.outcome,
        attempts: ended.runs.attempts.clone(),
        used: ended.runs.used,
        isolation: ended.runs.isolation.clone(),
        effects: ended.effects.clone(),
        preview: previewed(&action.ticket, claimed.earlier(), ended),
        allowed: Millis::from(action.state.timeout()),
        artifacts: &ended.runs.artifacts,
        plain: false,
    };
    let (receipt, body) = receipt(parts, key, account);
    let changed = match &receipt.effects {
        Effects::None => false,
        Effects::Observed(observed) => !observed.changes.is_empty() || !observed.undeclared.is_empty(),
        Effects::Unobserved | Effects::Possible => gated.dry_run().is_none(),
    };
    let retire: Vec<_> = claimed
        .terms()
        .resources
        .iter()
        .filter(|_| changed)
        .cloned()
        .collect();
    let space = &action.request.space_id;
    let (disturbed, appeared) = match gated.dry_run() {
        Some(_) => (Vec::new(), Vec::new()),
        None => (
            disturbed::disturbed(
                gated.entry().spec(),
                space,
                &claimed.terms().touched,
                &receipt.effects,
            ),
            disturbed::appeared(space, &receipt.effects),
        ),
    };
    let params_digest = claimed.terms().params_digest;
    let is_letter = ended.dead_letter || comes_back(parts, &action.ticket.action_id, ended.outcome);
    let letter = is_letter.then(|| letter(&action.ticket, &action.request, &receipt, &ended.runs.attempts));
    let completion = completion(
        parts,
        &action.ticket,
        (&receipt, body),
        params_digest,
        Some(claimed.fence()),
        letter,
        Changed {
            retire,
            disturbed,
            appeared,
            depends: claimed.terms().depends.clone(),
        },
    );
    Captured { receipt, completion }
}

/// The receipt of an action that was refused on its way.
pub(crate) fn refused(parts: &Parts, key: &DeviceKey, refusal: &Refusal) -> Captured {
    let (action, tool) = (&refusal.action, refusal.tool.as_ref());
    let effects = if refusal.outcome() == Outcome::Indeterminate {
        Effects::Possible
    } else {
        Effects::None
    };
    let account = Account {
        ticket: &action.ticket,
        request: &action.request,
        params: &action.request.params,
        unfit: tool.map_or_else(BTreeSet::new, |entry| entry.unfit_params(&action.request.params)),
        spec: tool.map(|entry| entry.spec()),
        ruling: refusal.ruling.as_ref(),
        key: action.request.idempotency_key.clone(),
        result: Err(&refusal.failure),
        outcome: refusal.outcome(),
        attempts: Vec::new(),
        used: Used::default(),
        isolation: None,
        effects,
        preview: None,
        allowed: Millis::ZERO,
        artifacts: &[],
        plain: false,
    };
    let (receipt, body) = receipt(parts, key, account);
    let is_letter = refusal.dead_letter || comes_back(parts, &action.ticket.action_id, refusal.outcome());
    let letter = is_letter.then(|| letter(&action.ticket, &action.request, &receipt, &[]));
    let digest = parts.identity.keyed(&action.request.params_digest());
    let completion = completion(
        parts,
        &action.ticket,
        (&receipt, body),
        digest,
        refusal.fence,
        letter,
        may_have_changed(parts, refusal),
    );
    Captured { receipt, completion }
}

/// The receipt of something that was done to effectd itself: no tool ran, and nothing in it is secret.
pub(crate) fn acted(
    parts: &Parts,
    key: &DeviceKey,
    action: &Action<()>,
    ended: Result<Map<String, Value>, &Failure>,
) -> Captured {
    let outcome = ended
        .as_ref()
        .map_or_else(|failure| failure.code.outcome(), |_| Outcome::Executed);
    let done = ended.map(|outputs| ToolOutput::new(Value::Object(outputs), None));
    let account = Account {
        ticket: &action.ticket,
        request: &action.request,
        params: &action.request.params,
        unfit: BTreeSet::new(),
        spec: None,
        ruling: None,
        key: None,
        result: done.as_ref().map_err(|failure| *failure),
        outcome,
        attempts: Vec::new(),
        used: Used::default(),
        isolation: None,
        effects: Effects::None,
        preview: None,
        allowed: Millis::ZERO,
        artifacts: &[],
        plain: true,
    };
    let (receipt, body) = receipt(parts, key, account);
    let digest = parts.identity.keyed(&action.request.params_digest());
    let completion = completion(
        parts,
        &action.ticket,
        (&receipt, body),
        digest,
        None,
        None,
        Changed::default(),
    );
    Captured { receipt, completion }
}

/// The receipt, and its canonical text.
fn receipt(parts: &Parts, key: &DeviceKey, account: Account<'_>) -> (Receipt, String) {
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
    let told = shown(parts, account.params, how);
    let Account {
        ticket,
        request,
        spec,
        ruling,
        outcome,
        used,
        ..
    } = account;
    let timing = timing(parts, ticket, used.exec);
    let quality = account.result.ok().and_then(|output| output.quality);
    let inputs = Inputs {
        outcome,
        quality,
        cpu: used.cpu,
        took: used.exec,
        allowed: account.allowed,
    };
    let mut receipt = Receipt {
        receipt_id: ReceiptId::fresh(),
        action_id: ticket.action_id.clone(),
        tool_id: spec.map_or(&request.tool_id, |spec| &spec.tool_id).clone(),
        space_id: request.space_id.clone(),
        subject_id: request.subject_id.clone(),
        status: outcome.project().receipt.unwrap_or(Status::Error),
        error: account.result.err().cloned(),
        inputs: told,
        outputs: outputs(parts, &account),
        policy: ruling.map_or_else(GateResults::default, |ruling| ruling.decision.gates),
        cost: cost(parts, &used, account.attempts.is_empty()),
        timing,
        idempotency_key: account.key,
        trace_id: ticket.trace_id.clone(),
        trace_context: request.trace_context(&ticket.trace_id),
        reward: reward(&inputs, &parts.weights),
        outcome,
        tool_version: spec.map(|spec| spec.version.clone()),
        principal: ticket.principal.clone(),
        request_digest: format!("hmac-sha256:{}", ticket.digest.hex()),
        decision: ruling.map(|ruling| ruling.decision.record(&ruling.facts)),
        redacted: ruling.map_or_else(Vec::new, |ruling| ruling.redacted.clone()),
        approval: ticket.approval().cloned(),
        attempts: account.attempts,
        isolation: account.isolation,
        effects: account.effects,
        preview: account.preview,
        choice: choice(request),
        signature: None,
    };
    let body = key.sign(&mut receipt);
    (receipt, body)
}

/// Whether what happened is what was shown. What was only tried out has nothing to be compared with.
fn previewed(ticket: &Ticket, earlier: &Earlier, ended: &Ended) -> Option<PreviewRecord> {
    let preview = ticket.preview.as_ref()?;
    let tried_out = matches!(ended.outcome, Outcome::DryRun | Outcome::Paused);
    // What a rule was shown of an action that was begun before was its effect on its own effect.
    let again = match earlier {
        Earlier::No => false,
        Earlier::Interrupted(_) => ticket.approved.is_none(),
    };
    (!tried_out && !again).then(|| preview.compared(&ended.effects))
}

/// What the planner chose among, given back as it was told.
fn choice(request: &effectd_contracts::ActionRequest) -> Option<Choice> {
    let told = !request.candidates.is_empty() || request.propensity.is_some();
    told.then(|| Choice {
        candidates: request.candidates.clone(),
        propensity: request.propensity,
    })
}

fn timing(parts: &Parts, ticket: &Ticket, exec: Millis) -> Timing {
    let queued = Millis::from(ticket.queued.unwrap_or_default());
    let age = Millis::from(ticket.age(&*parts.clock));
    let least = Millis::from_micros(queued.micros() + exec.micros());
    Timing {
        queued_ms: queued,
        exec_ms: exec,
        total_ms: age.max(least),
        started_at: ticket.accepted_at,
        ended_at: parts.clock.now(),
    }
}

fn cost(parts: &Parts, used: &Used, nothing_ran: bool) -> Cost {
    let measured = |value: u64| (!nothing_ran).then_some(value);
    let milliwatt_hours = used.cpu.as_f64() * parts.settings.core_watts / 3_600.0;
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
    /// By its name and a keyed digest.
    AsDigest,
    /// The schema does not know its name, which may be content, too.
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

/// Fields as they stand in a receipt: those without a name together, under one keyed digest. Whatever it is, it stays small.
fn shown(parts: &Parts, fields: &Map<String, Value>, how: impl Fn(&str) -> Shown) -> Map<String, Value> {
    let (mut told, mut unnamed) = (Map::new(), Map::new());
    let digest = |value: &Value| Value::String(parts.identity.digest(value));
    for (name, value) in fields {
        match how(name) {
            Shown::InClear => told.insert(name.clone(), value.clone()),
            Shown::AsDigest => told.insert(format!("hmac_sha256_{name}"), digest(value)),
            Shown::Unnamed => unnamed.insert(name.clone(), value.clone()),
        };
    }
    if !unnamed.is_empty() {
        told.insert("hmac_sha256_*".to_owned(), digest(&Value::Object(unnamed)));
    }
    match prune_result(Value::Object(told)) {
        Value::Object(told) => told,
        // Pruning keeps an object an object; were it otherwise, nothing is told.
        Value::Array(_) | Value::String(_) | Value::Null | Value::Bool(_) | Value::Number(_) => Map::new(),
    }
}

fn outputs(parts: &Parts, account: &Account<'_>) -> Map<String, Value> {
    let Ok(output) = account.result else {
        return Map::new();
    };
    let (spec, outcome, artifacts) = (account.spec, account.outcome, account.artifacts);
    let how = |name: &str| {
        if account.plain || name == "settled_by" {
            return Shown::InClear;
        }
        Shown::result(spec, name)
    };
    let mut shown = output
        .result
        .as_object()
        .map(|fields| shown(parts, fields, how))
        .unwrap_or_default();
    if matches!(outcome, Outcome::DryRun | Outcome::Paused) {
        shown.insert("dry_run".to_owned(), json!(true));
    } else {
        let ids: Vec<_> = artifacts.iter().map(|kept| &kept.artifact_id).collect();
        shown.insert("artifact_ids".to_owned(), json!(ids));
        if !artifacts.is_empty() {
            shown.insert("artifacts".to_owned(), json!(artifacts));
        }
    }
    shown
}

/// The dead letter of an action: the whole decision, so that it can be put on the bus again as it was.
fn letter(
    ticket: &Ticket,
    request: &effectd_contracts::ActionRequest,
    receipt: &Receipt,
    attempts: &[Attempt],
) -> NewLetter {
    let failure = receipt.error.as_ref();
    let decision = ticket.decision(request);
    NewLetter {
        topic: Topic::ActionDecision.into(),
        code: failure.map_or_else(
            || receipt.outcome.as_str().to_owned(),
            |failure| failure.code.to_string(),
        ),
        detail: failure.map_or_else(
            || "it was requeued, and only tried out".to_owned(),
            |failure| failure.message.clone(),
        ),
        attempts: u32::try_from(attempts.len()).unwrap_or(u32::MAX),
        tries: tries(attempts, failure),
        // Plain data with text keys, for which serde_json has no failure.
        payload: serde_json::to_vec(&decision).unwrap_or_default(),
    }
}

/// Each attempt with its time and its code, the last one in words.
fn tries(attempts: &[Attempt], failure: Option<&effectd_contracts::Failure>) -> Vec<Try> {
    let last = attempts.len().saturating_sub(1);
    let told = attempts.iter().enumerate().map(|(nth, attempt)| {
        let code = attempt
            .code
            .as_ref()
            .map_or_else(String::new, ToString::to_string);
        let error = match failure {
            Some(failure) if nth == last => format!("{code}: {}", failure.message),
            Some(_) | None => code,
        };
        let took = std::time::Duration::from_secs_f64(attempt.exec_ms.as_f64().max(0.0) / 1_000.0);
        let at = attempt.started_at.checked_add(took).unwrap_or(attempt.started_at);
        Try { at, error }
    });
    told.collect()
}

/// What was changed, or may have been, by the names under which it is found again.
#[derive(Debug, Default)]
struct Changed {
    retire: Vec<ResourceName>,
    disturbed: Vec<ResourceName>,
    appeared: Vec<ResourceName>,
    /// What the action's own key depends on.
    depends: Vec<ResourceName>,
}

/// What an action may have changed that was begun, and may not go on.
fn may_have_changed(parts: &Parts, refusal: &Refusal) -> Changed {
    let (request, tool) = (&refusal.action.request, refusal.tool.as_ref());
    let Some(entry) = tool.filter(|_| refusal.outcome() == Outcome::Indeterminate) else {
        return Changed::default();
    };
    let (spec, space) = (entry.spec(), &request.space_id);
    let touched = preimage::touched_with(parts, space, entry, &request.params);
    Changed {
        retire: resources::of_action(spec, space, &request.params, &touched),
        disturbed: disturbed::disturbed(spec, space, &touched, &Effects::Possible),
        appeared: Vec::new(),
        // It satisfies no key.
        depends: Vec::new(),
    }
}

/// An event about a receipt, as the Store takes it.
fn announced<T: serde::Serialize>(event: &Event<T>, receipt: &Receipt) -> NewEvent {
    NewEvent {
        event_id: event.id.clone(),
        time: event.time,
        trace_id: event.traceid.clone(),
        action_id: Some(receipt.action_id.clone()),
        body: NewBody::Clear(stage::body(event)),
    }
}

fn completion(
    parts: &Parts,
    ticket: &Ticket,
    (receipt, body): (&Receipt, String),
    params_digest: effectd_contracts::Digest,
    fence: Option<Fence>,
    letter: Option<NewLetter>,
    changed: Changed,
) -> Completion {
    let now = parts.clock.now();
    let executed = announced(&Event::executed(receipt, now), receipt);
    let mut events = vec![(Topic::ActionExecuted.into(), executed)];
    if let Some(letter) = &letter {
        let cause = Fingerprint(fingerprint(&letter.code, &letter.detail)).to_string();
        let event = Event::dead_letter(receipt, letter.code.clone(), cause, letter.attempts, now);
        events.push((Topic::DeadLetters.into(), announced(&event, receipt)));
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
