//! Answers questions about the policy: its summary, whether its files are valid, and why it decides as it does.

use effectd_actors::Services;
use effectd_actors::preview::facts_of;
use effectd_contracts::{ActionRequest, Code, Failure, Mode, Phase, Principal, Receipt, Timestamp};
use effectd_gateway::Receipts;
use effectd_gateway::problem::{Kind, PolicyFault, Problem};
use effectd_gateway::views::{
    Explanation, PolicyChange, PolicyFile, PolicyFiles, PolicyView, ReplayChange, ReplayView,
};
use effectd_policy::explain::explain;
use effectd_policy::{Change, Facts, Location, Policy, Recorded, Replayed, SetMode, SourceFile};

use crate::error::{Error, chain};
use crate::state::State;
use crate::state::spaces::Survey;

pub(crate) fn view(policy: &Policy, in_force: bool) -> PolicyView {
    PolicyView {
        digest: policy.digest().to_string(),
        in_force,
        summary: policy.summary(),
        warnings: policy.warnings(),
        receipt_id: None,
        roots: Vec::new(),
        unusable: Vec::new(),
        faults: Vec::new(),
        released: 0,
        ended: 0,
    }
}

/// The files of a policy, and the changes beside them.
pub(crate) fn files(policy: &Policy) -> Result<PolicyFiles, Error> {
    let file = |file: &SourceFile| PolicyFile { name: file.name.clone(), text: file.text.clone() };
    Ok(PolicyFiles {
        digest: policy.digest().to_string(),
        files: policy.source().files().map(file).collect(),
        overlay: serde_json::to_value(policy.overlay()).map_err(Error::internal)?,
    })
}

/// Adds the state of the spaces' roots to a view.
pub(crate) fn with_roots(view: PolicyView, found: Survey) -> PolicyView {
    let unusable = found.unusable.iter();
    PolicyView {
        roots: found.changes,
        unusable: unusable.map(|(space, error)| format!("{space}: {error}")).collect(),
        ..view
    }
}

/// A change as the policy knows it.
#[expect(
    clippy::result_large_err,
    reason = "a problem is made once for a refused request, and is its answer"
)]
pub(crate) fn change(change: PolicyChange, until: Option<Timestamp>) -> Result<Change, Problem> {
    let is_mode = matches!(change, PolicyChange::SetOrgMode { mode: Some(_), .. });
    if until.is_some() && !is_mode {
        return Err(Problem::of(Kind::PolicyInvalid, "only a mode can have an end; leave `lasts` out"));
    }
    let set = |mode: Mode| match until {
        Some(until) => SetMode::Ending { mode, until, then: None },
        None => SetMode::Lasting(mode),
    };
    Ok(match change {
        PolicyChange::GrantConsent { subject, space, purpose } => {
            Change::GrantConsent { subject, space, purpose }
        }
        PolicyChange::RevokeConsent { subject, space, purpose } => {
            Change::RevokeConsent { subject, space, purpose }
        }
        PolicyChange::SetOrgMode { org, tool, mode } => Change::SetOrgMode { org, tool, mode: mode.map(set) },
        PolicyChange::SetBand { space, band } => Change::SetBand { space, band },
        PolicyChange::SetEntry { list, subject, entry, allowed } => {
            Change::SetEntry { list, subject, entry, allowed }
        }
        PolicyChange::Clear {} => Change::Clear {},
    })
}

/// How the policy would decide about this request.
pub(crate) fn request(
    services: &Services,
    request: &ActionRequest,
    principal: &Principal,
) -> Result<Explanation, Failure> {
    let (registry, policy) = (services.registry(), services.policy());
    let tool = registry.get(&request.tool_id).ok_or_else(|| {
        let message = format!("there is no tool {}", request.tool_id);
        Failure::new(Code::UnknownTool, Phase::Validate, message)
    })?;
    Ok(explained(&facts_of(services, &policy, request, tool, principal), &policy, false))
}

/// How the policy decides now about the facts of a receipt.
#[expect(
    clippy::result_large_err,
    reason = "a problem is made once for a refused request, and is its answer"
)]
pub(crate) fn receipt(receipt: &Receipt, policy: &Policy) -> Result<Explanation, Problem> {
    let id = &receipt.receipt_id;
    let record = receipt.decision.as_ref().ok_or_else(|| {
        let why = format!("{id} ended before the policy was asked");
        Problem::of(Kind::NotExplainable, why)
    })?;
    let facts = Facts::from_record(record).map_err(|error| {
        let why = format!("the facts of {id} cannot be read: {error}");
        Problem::of(Kind::NotExplainable, why)
    })?;
    let changed = record.policy_digest != policy.digest();
    Ok(explained(&facts, policy, changed))
}

fn explained(facts: &Facts, policy: &Policy, policy_changed: bool) -> Explanation {
    let explained = explain(facts, policy);
    Explanation {
        verdict: explained.decision.record(facts).verdict,
        text: explained.to_string(),
        policy_digest: policy.digest().to_string(),
        policy_changed,
    }
}

/// Decides again what receipts record, under another policy.
#[expect(
    clippy::result_large_err,
    reason = "a problem is made once for a refused request, and is its answer"
)]
pub(crate) fn replay(policy: &Policy, more: Receipts<'_>) -> Result<ReplayView, Problem> {
    let mut found = ReplayView::default();
    while let Some(receipts) = more(&found)? {
        for receipt in &receipts {
            let Some(record) = Recorded::of(receipt) else { continue };
            found.total += 1;
            let (to, rule, why) = match effectd_policy::replay(&record, policy) {
                Replayed::Same => {
                    found.same += 1;
                    continue;
                }
                Replayed::Flip { now } => {
                    found.flips += 1;
                    (now.verdict.to_string(), now.rule, now.verdict.why())
                }
                Replayed::Unknowable { why } => {
                    found.unknowable += 1;
                    ("unknowable".to_owned(), String::new(), why)
                }
            };
            found.changes.push(ReplayChange {
                receipt_id: record.id,
                action_id: receipt.action_id.to_string(),
                tool_id: receipt.tool_id.to_string(),
                from: record.verdict,
                to,
                rule,
                why,
            });
        }
    }
    Ok(found)
}

/// An error's text with paths relative to the state directory.
pub(crate) fn plain_text(error: &Error, state: &State) -> String {
    let path = state.path().display().to_string();
    chain(error).replace(&format!("{path}/"), "").replace(&path, ".")
}

/// An error as a client sees it: with paths relative to the state directory. The log has the full paths.
pub(crate) fn problem(error: &Error, state: &State) -> Problem {
    tracing::info!(error = chain(error), "a request is refused");
    let text = plain_text(error, state);
    match error {
        Error::Policy(error) => {
            let fault = |(at, message): (&Location, String)| PolicyFault {
                file: at.file.clone(),
                line: at.line,
                column: at.column,
                message,
            };
            let faults = error.located().into_iter().map(fault).collect();
            Problem { faults, ..Problem::of(Kind::PolicyInvalid, text) }
        }
        Error::StateInSpace { .. } => Problem::of(Kind::PolicyInvalid, text),
        Error::Store(error) => Problem::failed(&error.failure(Phase::Accept)),
        Error::State { .. }
        | Error::Key { .. }
        | Error::Sandbox(_)
        | Error::Registry(_)
        | Error::Pipeline(_)
        | Error::Gateway(_)
        | Error::Request(_)
        | Error::NoState(_)
        | Error::Broken(_)
        | Error::Internal(_) => Problem::of(Kind::Internal, text),
    }
}
