//! The question to the approver, as one digest: an approval counts for this digest only.
//!
//! The digest covers the request and its contract, the parameters that the tool gets after redaction, the tool's whole description
//! with its version, the hosts and the version of the connection that it uses, the rules that demand the approval, all rules in
//! Cedar, and the snapshot of the paths. If one of them differs when the action is delivered again, it is another question.

use std::sync::Arc;

use effectd_contracts::{
    ActionRequest, Contract, Digest, Failure, PathSnapshot, PathState, Principal, SpaceId, Touch, TraceId,
    canonical,
};
use effectd_policy::{Decision, Policy};
use serde_json::{Map, Value, json};

use crate::action::plan::Area;
use crate::action::preview::Preview;
use crate::action::proofs::Ruling;
use crate::effects::preimages::first_snapshot;
use crate::effects::snapshot;
use crate::preview::{self, Trial};
use crate::registry::RegisteredTool;
use crate::services::Services;
use crate::services::files::Files;

const FORMAT: u32 = 5;

#[derive(Debug, Clone)]
pub struct Question {
    /// The keyed digest of the question.
    pub digest: Digest,
    /// The snapshot of the paths that the tool changes or reads.
    pub stands: Vec<PathSnapshot>,
    /// Paths that cannot be inspected: the digest does not cover them.
    pub unseen: Vec<String>,
}

impl Question {
    pub(crate) async fn of(
        files: &Files,
        policy: &Policy,
        request: &ActionRequest,
        by: (&Principal, Option<&Contract>),
        tool: &Arc<RegisteredTool>,
        params: &Map<String, Value>,
        ruling: &Ruling,
    ) -> Self {
        let mut touched = snapshot::touched_with(files, &request.space_id, tool, params);
        // What the tool reads determines what it writes.
        let mut reads = tool.reads(params);
        // A tool that does not declare its paths changes what its plan allows.
        let scope =
            by.1.and_then(|contract| contract.scope.as_ref()).filter(|_| tool.touches(params).is_none());
        if let Some(area) = scope.and_then(|scope| Area::of(scope).ok()) {
            reads.extend(area.dirs);
            touched.extend(area.files.into_iter().map(Touch::replaced));
        }
        touched.extend(reads.iter().map(Touch::replaced));
        let (mut stands, unseen) = inspect(files, &request.space_id, &touched).await;
        // The snapshot of a folder that is moved or read includes the folder's contents.
        let is_whole = |seen: &PathSnapshot| {
            let moved = |touch: &Touch| touch.path == seen.path && touch.goes_to.is_some();
            touched.iter().any(moved) || reads.contains(&seen.path)
        };
        for seen in &mut stands {
            if seen.standing == PathState::Folder && is_whole(seen) {
                seen.inside = Some(files.inside(&request.space_id, &seen.path).await);
            }
        }
        let digest = digest(request, params, by, tool, (ruling, policy.rules_digest()), &stands);
        Self { digest: files.identity.keyed(&digest), stands, unseen }
    }

    pub(crate) async fn preview(
        &self,
        services: &Services,
        request: &ActionRequest,
        tool: &RegisteredTool,
        params: &Map<String, Value>,
        (decision, trace_id): (&Decision, &TraceId),
    ) -> Result<Preview, Failure> {
        if let Some(why) = self.blind() {
            return Ok(Preview::Unavailable(why));
        }
        let trial =
            Trial { stands: Some(&self.stands), ..Trial::new(request, tool, params, decision, trace_id) };
        preview::of(services, &trial).await
    }

    /// The warning to the approver if paths cannot be inspected.
    fn blind(&self) -> Option<String> {
        let first = self.unseen.first()?;
        let more = match self.unseen.len() - 1 {
            0 => String::new(),
            more => format!(" (and {more} more)"),
        };
        Some(format!(
            "{first}{more} cannot be inspected: the action may change whatever is there when it runs"
        ))
    }
}

/// The snapshot of these paths, and the paths that cannot be inspected.
async fn inspect(files: &Files, space: &SpaceId, touched: &[Touch]) -> (Vec<PathSnapshot>, Vec<String>) {
    if let Some(all) = first_snapshot(files, space, touched).await {
        return (all.seen, Vec::new());
    }
    let (mut stands, mut unseen) = (Vec::new(), Vec::new());
    for touch in touched {
        match first_snapshot(files, space, std::slice::from_ref(touch)).await {
            Some(one) => stands.extend(one.seen),
            None => unseen.push(touch.path.clone()),
        }
    }
    (stands, unseen)
}

fn digest(
    request: &ActionRequest,
    params: &Map<String, Value>,
    (principal, contract): (&Principal, Option<&Contract>),
    tool: &RegisteredTool,
    (Ruling { decision, facts, items, .. }, rules): (&Ruling, Digest),
    stands: &[PathSnapshot],
) -> Digest {
    // Without the action's id: equal requests make the same question.
    let spec = tool.spec();
    let mut question = json!({
        "format": FORMAT,
        "principal": principal,
        "subject": request.subject_id,
        "space": request.space_id,
        "tool": request.tool_id,
        "params": request.params,
        // A policy that has changed may redact otherwise.
        "redacted_params": params,
        "qos": request.qos,
        "policy_ctx": request.policy_ctx,
        "idempotency_key": request.idempotency_key,
        "dry_run": request.dry_run,
        "contract": contract,
        "hosts": facts.inspection.as_ref().map(|seen| &seen.hosts),
        "connection_version": facts.connection_version,
        "tool_version": spec.version,
        "tool_description": spec,
        "rules": {
            "rule": without_line(&decision.rule),
            "gates": decision.gates,
            "why": reasons(decision),
            "mode": decision.mode,
            "mode_source": decision.mode_source,
            "clamped_by": decision.clamped_by,
            "tier": decision.tier,
            "safety_class": decision.safety_class,
            // All rules: after a change, any rule might decide otherwise.
            "cedar": rules,
        },
        // With the parameters, everything that the effect depends on.
        "stands": stands,
    });
    if let Some(pinned) = &tool.definition().plugin {
        // What is approved is this code, and no other that an operator adds meanwhile.
        question["package"] = json!(pinned.files);
    }
    if let Some(upstream) = &tool.definition().upstream {
        // Also what the operator's words hide.
        question["upstream"] = json!(upstream);
    }
    if !items.is_empty() {
        question["items"] = json!(items);
    }
    if let Some(command) = &decision.command {
        // An approval covers the command as it is confined now.
        question["command"] = json!([command.name, command.writes, command.caches, command.programs]);
    }
    canonical::digest(&question)
}

/// The rule's location without its line number, which changes when other rules are edited.
fn without_line(rule: &str) -> &str {
    match rule.rsplit_once(':') {
        Some((file, line)) if line.bytes().all(|byte| byte.is_ascii_digit()) => file,
        Some(_) | None => rule,
    }
}

/// Why an approval is needed. For a floor, also its text, which names the tier and the band.
fn reasons(decision: &Decision) -> Vec<(&str, Option<&str>)> {
    let reasons = decision.verdict.reasons().iter();
    let worded = decision.clamped_by.is_some();
    reasons.map(|reason| (reason.code.as_ref(), worded.then_some(reason.text.as_str()))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rule_is_known_by_what_it_says_and_not_by_its_line() {
        for (rule, known) in [
            ("policy.toml:12", "policy.toml"),
            ("overlay", "overlay"),
            ("the default of tier R2", "the default of tier R2"),
            ("the tool's description changed", "the tool's description changed"),
        ] {
            assert_eq!(without_line(rule), known);
        }
    }
}
