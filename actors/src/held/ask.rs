//! What exactly a person is asked, as one digest: whoever says yes says yes to this and to nothing else.
//!
//! It covers the request, the tool's whole description with its version, the rules that ask, and what stands where the tool
//! will work. If any of it is different when the action comes in again, that is another question.

use std::sync::Arc;

use effectd_contracts::{ActionRequest, Digest, Principal, Seen, canonical};
use effectd_policy::Decision;
use serde_json::{Map, Value, json};

use crate::parts::Parts;
use crate::preimage;
use crate::registry::Entry;

/// The version of what is digested.
const FORMAT: u32 = 1;

/// A question, before anybody is asked.
#[derive(Debug, Clone)]
pub struct Ask {
    /// Over what, under the device's key.
    pub digest: Digest,
    /// What stands where the tool will work.
    pub stands: Vec<Seen>,
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
        let touched = preimage::touched_with(parts, &request.space_id, entry, params);
        let looked = preimage::first_look(parts, &request.space_id, &touched).await;
        let stands = looked.map(|look| look.seen).unwrap_or_default();
        let digest = digest(request, principal, entry, decision, &stands);
        Self {
            digest: parts.identity.keyed(&digest),
            stands,
        }
    }
}

fn digest(
    request: &ActionRequest,
    principal: &Principal,
    entry: &Entry,
    decision: &Decision,
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
            "rule": decision.rule,
            "mode": decision.mode,
            "mode_source": decision.mode_source,
            "clamped_by": decision.clamped_by,
            "tier": decision.tier,
            "safety_class": decision.safety_class,
        },
        "stands": stands,
        // What the tool says it would do; nothing can be asked that yet.
        "previewed": [],
    }))
}
