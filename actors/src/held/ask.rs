//! What exactly a person is asked, as one digest: whoever says yes says yes to this and to nothing else.
//!
//! It covers the request, the tool's whole description with its version, the rules that ask, all rules in Cedar, and what stands
//! where the tool will work. If any of it is different when the action comes in again, that is another question.

use std::sync::Arc;

use effectd_contracts::{ActionRequest, Digest, Principal, Seen, SpaceId, Standing, Touch, canonical};
use effectd_policy::Decision;
use serde_json::{Map, Value, json};

use crate::keeping::first_look;
use crate::parts::Parts;
use crate::preimage;
use crate::registry::Entry;

/// The version of what is digested.
const FORMAT: u32 = 3;

/// A question, before anybody is asked.
#[derive(Debug, Clone)]
pub struct Ask {
    /// Over what, under the device's key.
    pub digest: Digest,
    /// What stands where the tool will work.
    pub stands: Vec<Seen>,
    /// Where nobody can look: what stands there is no part of the question.
    pub unseen: Vec<String>,
}

impl Ask {
    /// The question whether this may happen.
    pub(crate) async fn of(
        parts: &Parts,
        request: &ActionRequest,
        principal: &Principal,
        entry: &Arc<Entry>,
        params: &Map<String, Value>,
        decision: &Decision,
    ) -> Self {
        let mut touched = preimage::touched_with(parts, &request.space_id, entry, params);
        // What it reads decides what it writes.
        touched.extend(entry.reads(params).into_iter().map(Touch::replaced));
        let (mut stands, unseen) = look(parts, &request.space_id, &touched).await;
        // What goes elsewhere as a whole, or is read as one, is what is in it, too.
        let reads = entry.reads(params);
        let is_whole = |seen: &Seen| {
            let moved = |touch: &Touch| touch.path == seen.path && touch.goes_to.is_some();
            touched.iter().any(moved) || reads.contains(&seen.path)
        };
        for seen in &mut stands {
            if seen.standing == Standing::Folder && is_whole(seen) {
                seen.inside = Some(preimage::inside(parts, &request.space_id, &seen.path).await);
            }
        }
        let rules = parts.policy().rules_digest();
        let digest = digest(request, principal, entry, (decision, rules), &stands);
        Self {
            digest: parts.identity.keyed(&digest),
            stands,
            unseen,
        }
    }

    /// What the person is told if something cannot be looked at.
    pub(crate) fn blind(&self) -> Option<String> {
        let first = self.unseen.first()?;
        let more = match self.unseen.len() - 1 {
            0 => String::new(),
            more => format!(" (and {more} more)"),
        };
        Some(format!(
            "{first}{more} cannot be looked at: whatever stands there when it is carried out may be changed"
        ))
    }
}

/// What stands at these paths, and at which of them nobody can look. One of those does not take the others along.
async fn look(parts: &Parts, space: &SpaceId, touched: &[Touch]) -> (Vec<Seen>, Vec<String>) {
    if let Some(all) = first_look(parts, space, touched).await {
        return (all.seen, Vec::new());
    }
    let (mut stands, mut unseen) = (Vec::new(), Vec::new());
    for touch in touched {
        match first_look(parts, space, std::slice::from_ref(touch)).await {
            Some(one) => stands.extend(one.seen),
            None => unseen.push(touch.path.clone()),
        }
    }
    (stands, unseen)
}

fn digest(
    request: &ActionRequest,
    principal: &Principal,
    entry: &Entry,
    (decision, rules): (&Decision, Digest),
    stands: &[Seen],
) -> Digest {
    // Equal requests are one question, whatever they are called.
    let spec = entry.spec();
    canonical::digest(&json!({
        "format": FORMAT,
        "principal": principal,
        "subject": request.subject_id,
        "space": request.space_id,
        "tool": request.tool_id,
        "params": request.params,
        "qos": request.qos,
        "policy_ctx": request.policy_ctx,
        "idempotency_key": request.idempotency_key,
        "dry_run": request.dry_run,
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
            // All of them: which of them would have another word if something else had changed is not for guessing.
            "cedar": rules,
        },
        // The paths that it will change, each with what stands there: with the parameters, all that its effect depends on.
        "stands": stands,
    }))
}

/// Where a rule stands, without the line: another line above it is not another rule. What it says is beside it.
fn without_line(rule: &str) -> &str {
    match rule.rsplit_once(':') {
        Some((file, line)) if line.bytes().all(|byte| byte.is_ascii_digit()) => file,
        Some(_) | None => rule,
    }
}

/// Why a person is asked. Of what a floor demands also the words, which name the tier and the band.
fn reasons(decision: &Decision) -> Vec<(&str, Option<&str>)> {
    let reasons = decision.verdict.reasons().iter();
    let worded = decision.clamped_by.is_some();
    reasons
        .map(|reason| (reason.code.as_ref(), worded.then_some(reason.text.as_str())))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rule_is_known_by_what_it_says_and_not_by_its_line() {
        for (rule, known) in [
            ("policy.toml:12", "policy.toml"),
            ("overlay", "overlay"),
            ("inferred from R2", "inferred from R2"),
            ("the tool's description changed", "the tool's description changed"),
        ] {
            assert_eq!(without_line(rule), known);
        }
    }
}
