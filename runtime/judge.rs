//! What people ask about the policy: what it is, whether its files are good, why it judges as it does. The daemon answers
//! with this at its door, and the commands where no daemon runs.

use effectd_actors::switches::Switches;
use effectd_actors::{Registry, Store};
use effectd_contracts::{ActionRequest, Code, Failure, Phase, Principal, Receipt, Timestamp};
use effectd_gateway::problem::{Kind, Problem};
use effectd_gateway::views::{Explanation, PolicyChange, PolicyView};
use effectd_policy::explain::explain;
use effectd_policy::{Change, Facts, Policy, inspect};

use crate::error::Error;
use crate::spaces::Survey;
use crate::state::State;

/// The policy, for people.
pub fn view(policy: &Policy, in_force: bool) -> PolicyView {
    PolicyView {
        digest: policy.digest().to_string(),
        in_force,
        summary: policy.summary(),
        warnings: policy.warnings(),
        receipt_id: None,
        roots: Vec::new(),
        unusable: Vec::new(),
    }
}

/// The same, with what was found of the spaces' roots.
pub(crate) fn with_roots(view: PolicyView, found: Survey) -> PolicyView {
    let unusable = found.unusable.iter();
    PolicyView {
        roots: found.changes,
        unusable: unusable
            .map(|(space, error)| format!("{space}: {error}"))
            .collect(),
        ..view
    }
}

/// A change as the policy takes it.
pub fn change(change: PolicyChange) -> Change {
    match change {
        PolicyChange::GrantConsent {
            subject,
            space,
            purpose,
        } => Change::GrantConsent {
            subject,
            space,
            purpose,
        },
        PolicyChange::RevokeConsent {
            subject,
            space,
            purpose,
        } => Change::RevokeConsent {
            subject,
            space,
            purpose,
        },
        PolicyChange::SetOrgMode { org, tool, mode } => Change::SetOrgMode { org, tool, mode },
        PolicyChange::SetAutomationMode {
            automation,
            tool,
            mode,
        } => Change::SetAutomationMode {
            automation,
            tool,
            mode,
        },
    }
}

/// How a request would be judged.
pub fn request(
    request: &ActionRequest,
    registry: &Registry,
    policy: &Policy,
    principal: &Principal,
    (now, store): (Timestamp, &dyn Store),
) -> Result<Explanation, Failure> {
    let entry = registry.get(&request.tool_id).ok_or_else(|| {
        let message = format!("there is no tool {}", request.tool_id);
        Failure::new(Code::UnknownTool, Phase::Validate, message)
    })?;
    let inspection = inspect(&request.params, entry.spec(), policy);
    let mut facts = Facts::of(request, entry.spec(), principal, now, &inspection);
    Switches::new(store).apply(&mut facts);
    Ok(explained(&facts, policy, false))
}

/// How the facts of a receipt are judged now.
#[expect(
    clippy::result_large_err,
    reason = "a problem is made once for a refused request, and is its answer"
)]
pub fn receipt(receipt: &Receipt, policy: &Policy) -> Result<Explanation, Problem> {
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

/// An error of the runtime, as the door answers it: files of the state without the path to it, which only the log has.
pub fn problem(error: &Error, state: &State) -> Problem {
    tracing::info!(%error, "the runtime refuses");
    let path = state.path().display().to_string();
    let text = error
        .to_string()
        .replace(&format!("{path}/"), "")
        .replace(&path, ".");
    match error {
        Error::Policy(_) | Error::StateInSpace { .. } => Problem::of(Kind::PolicyInvalid, text),
        Error::Store(_) => Problem::failed(&Failure::new(Code::StoreUnavailable, Phase::Accept, text)),
        Error::State { .. }
        | Error::Key { .. }
        | Error::Sandbox(_)
        | Error::Registry(_)
        | Error::Pipeline(_)
        | Error::Door(_)
        | Error::Request(_)
        | Error::NoState(_)
        | Error::Broken(_)
        | Error::Internal(_) => Problem::of(Kind::Internal, text),
    }
}
