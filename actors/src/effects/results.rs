//! Results of tools: kept sealed for the asker, so that every later request for the action gets them again.
//!
//! A result is written before its receipt is committed, but not synced: no kill loses it, a power failure may.

use std::sync::Arc;

use effectd_bus::blobs::OWNER_DIGITS;
use effectd_bus::{BlobError, BlobKind, Blobs};
use effectd_contracts::{
    Code, Digest, Failure, KeptResult, OrgId, Phase, Principal, Receipt, ReceiptId, SessionId, SpaceId,
};
use effectd_policy::redact::{prune_result, redact_secrets};
use effectd_policy::{Decider, Policy};
use serde_json::{Map, Value};
use tokio::task::{JoinHandle, spawn_blocking};

use crate::limits::{RESULT_KEPT, RESULT_PART_BYTES_MAX};
use crate::services::Services;
use crate::services::answers::Done;

/// A result that is being written.
pub(crate) struct Storing {
    pub(crate) kept: KeptResult,
    blobs: Arc<Blobs>,
    space: SpaceId,
    name: String,
    writing: JoinHandle<Result<(), BlobError>>,
}

/// Begins to write the result of an action, unless the tool returned nothing.
pub(crate) fn store(
    services: &Services,
    space: &SpaceId,
    principal: &Principal,
    receipt: &ReceiptId,
    result: &Value,
) -> Option<Storing> {
    if result.is_null() || result.as_object().is_some_and(Map::is_empty) {
        return None;
    }
    // A result is plain data with text keys, for which serde_json has no failure.
    let content = serde_json::to_vec(result).unwrap_or_default();
    let bytes = content.len() as u64;
    let (blobs, space, name) = (services.files.blobs.clone(), space.clone(), name(principal, receipt));
    let writing = {
        let (blobs, space, name) = (blobs.clone(), space.clone(), name.clone());
        spawn_blocking(move || blobs.put(BlobKind::Results, &space, &name, &content))
    };
    let digest = format!("hmac-sha256:{}", services.identity.digest(&without_secrets(result)));
    Some(Storing { kept: KeptResult { digest, bytes }, blobs, space, name, writing })
}

impl Storing {
    /// Waits until the result is written. If it cannot be written, the action counts all the same, and its result is gone.
    pub(crate) async fn finish(&mut self) {
        match (&mut self.writing).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::warn!(%error, "a result is not kept"),
            Err(error) => tracing::error!(%error, "a result is not kept"),
        }
    }

    /// Removes the result again, because its receipt is not committed.
    pub(crate) async fn discard(self) {
        let removing = spawn_blocking(move || self.blobs.remove(BlobKind::Results, &self.space, &self.name));
        if let Ok(Err(error)) = removing.await {
            tracing::warn!(%error, "a result without a receipt stays until it expires");
        }
    }
}

/// The name of the blob that has the result of this receipt. It begins with the principal, whose share of the quota it takes: a
/// request can claim another subject, but no other principal.
pub(crate) fn name(principal: &Principal, receipt: &ReceiptId) -> String {
    let mut name = Digest::of(format!("principal\n{principal}").as_bytes()).hex();
    let own = Digest::of(format!("result\n{receipt}").as_bytes()).hex();
    name.replace_range(OWNER_DIGITS.., &own[OWNER_DIGITS..]);
    name
}

/// Reads the result of an answer that does not have it, because the action ended earlier.
pub async fn fill(services: &Services, mut done: Done) -> Done {
    if matches!(done.result, Ok(None)) {
        done.result = read(services, &done.receipt).await;
    }
    done
}

/// Reads the result of a receipt. The seal is bound to the receipt's id and proves the content, so the digest in `kept_result` is
/// not compared.
async fn read(services: &Services, receipt: &Receipt) -> Result<Option<Arc<Value>>, Failure> {
    if receipt.kept_result.is_none() {
        return Ok(None);
    }
    if receipt.timing.ended_at.checked_add(RESULT_KEPT).is_ok_and(|end| end <= services.clock.now()) {
        return Err(gone());
    }
    let (blobs, space) = (services.files.blobs.clone(), receipt.space_id.clone());
    let name = name(&receipt.principal, &receipt.receipt_id);
    let reading = move || {
        let content = blobs.get(BlobKind::Results, &space, &name)?;
        serde_json::from_slice(&content).map_err(|_| BlobError::Damaged)
    };
    match spawn_blocking(reading).await.unwrap_or(Err(BlobError::Damaged)) {
        Ok(result) => Ok(Some(Arc::new(result))),
        // A power failure may leave an incomplete file.
        Err(BlobError::Gone | BlobError::Damaged) => Err(gone()),
        Err(error) => {
            let message = format!("the result cannot be read now: {error}; ask again");
            Err(Failure::new(Code::StoreUnavailable, Phase::Record, message))
        }
    }
}

fn gone() -> Failure {
    let days = RESULT_KEPT.as_secs() / 86_400;
    let message = format!(
        "the action was carried out, but its result is no longer stored: it is kept for {days} days, unless the space's quota, the \
         deletion of its session, an erasure or a power failure ends it earlier, or it could not be written; if the tool only reads, send the request under a \
         new action_id (and a new idempotency_key, if it has one); otherwise that carries it out again"
    );
    Failure::new(Code::ResultGone, Phase::Record, message)
}

/// How much of a result somebody may read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reads {
    Whole,
    /// See [`safe`].
    Safe,
}

/// How much of a receipt's result this person may read, or this session: the asker reads the whole; the session of the action, who
/// decided about it, approvers of its organisation and operators a safe one; others nothing.
pub fn reads(policy: &Policy, receipt: &Receipt, by: &Decider, session: Option<&SessionId>) -> Option<Reads> {
    if receipt.principal == by.principal {
        return Some(Reads::Whole);
    }
    let decided = receipt.approval.as_ref().is_some_and(|approval| approval.by == by.principal.as_str());
    let is_own = session.is_some() && receipt.session_id.as_ref() == session;
    let approves = |org: &OrgId| policy.may_view_approvals(by, Some(org.as_str()));
    let of_org = receipt.org.as_ref().is_some_and(approves);
    (by.operator || decided || is_own || of_org).then_some(Reads::Safe)
}

/// A result for people who did not ask for it: without secrets, and pruned.
pub fn safe(result: &Value) -> Value {
    prune_result(without_secrets(result))
}

/// A part of a result, without secrets: the value at a JSON pointer, or of a text as much as fits from a byte on, and the byte where the
/// next part begins. `None` if the pointer leads nowhere.
pub fn part(result: &Value, pointer: &str, from: usize) -> Option<(Value, Option<usize>)> {
    let safe = without_secrets(result);
    let found = safe.pointer(pointer)?;
    let Some(text) = found.as_str() else { return Some((prune_result(found.clone()), None)) };
    let start = text.ceil_char_boundary(from.min(text.len()));
    let end = text.floor_char_boundary((start + RESULT_PART_BYTES_MAX).min(text.len()));
    Some((text[start..end].into(), (end < text.len()).then_some(end)))
}

fn without_secrets(result: &Value) -> Value {
    let mut safe = result.clone();
    redact_secrets(&mut safe);
    safe
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use effectd_policy::{Overlay, Source};
    use serde_json::json;

    use super::*;

    #[test]
    fn a_gone_result_invites_no_second_effect() {
        let advice = gone().message;
        assert!(advice.starts_with("the action was carried out"), "{advice}");
        assert!(
            advice.contains("if the tool only reads") && advice.contains("carries it out again"),
            "{advice}"
        );
    }

    #[test]
    fn a_result_has_its_readers_by_person_session_and_org() {
        let policy = r#"version = 1
[orgs.home]
[orgs.work]
[principals."user://asker"]
subjects = []
[principals."user://everywhere"]
subjects = []
roles = ["approver"]
[principals."user://at_home"]
subjects = []
orgs = { home = "admin" }
[principals."user://at_work"]
subjects = []
orgs = { work = "admin" }
[principals."user://member"]
subjects = []
orgs = { home = "member" }
"#;
        let policy = Policy::compile(&Source::new(policy, []), &Overlay::default()).unwrap();
        let golden = include_str!("../../../contracts/tests/golden/receipt.json");
        let mut receipt: Receipt = serde_json::from_str(golden).unwrap();
        receipt.principal = "user://asker".parse().unwrap();
        (receipt.session_id, receipt.org) = ("s-1".parse().ok(), "home".parse().ok());
        let by = |name: &str, session: Option<&str>| {
            let by = Decider::local(format!("user://{name}").parse().unwrap(), name == "root");
            let session = session.map(|session| session.parse().unwrap());
            reads(&policy, &receipt, &by, session.as_ref())
        };
        for (name, session, expected) in [
            ("asker", None, Some(Reads::Whole)),
            ("root", None, Some(Reads::Safe)),
            ("everywhere", None, Some(Reads::Safe)),
            ("at_home", None, Some(Reads::Safe)),
            ("at_work", None, None),
            ("member", None, None),
            ("stranger", None, None),
            ("stranger", Some("s-1"), Some(Reads::Safe)),
            ("stranger", Some("s-2"), None),
        ] {
            assert_eq!(by(name, session), expected, "{name} {session:?}");
        }
        let mut arbiter = receipt.clone();
        (arbiter.session_id, arbiter.org) = (None, None);
        let stranger = Decider::local("user://x".parse().unwrap(), false);
        assert_eq!(reads(&policy, &arbiter, &stranger, None), None, "no session is nobody's session");
    }

    #[test]
    fn others_get_a_result_without_secrets_and_pruned() {
        let result = json!({ "headers": [{ "Authorization": "canary" }], "rows": vec!["row"; 9_000] });
        let safe = safe(&result);
        assert_eq!(safe["_truncated"], true);
        assert!(safe.to_string().len() <= 10_240 && !safe.to_string().contains("canary"), "{safe}");
        assert_eq!(super::safe(&json!({ "stdout": "3\n" })), json!({ "stdout": "3\n" }));
    }

    #[test]
    fn others_get_the_rows_of_a_query_without_its_secret_columns() {
        let typed = json!([{ "name": "owner", "type": "text" }, { "name": "api_key", "type": "text" }]);
        for columns in [json!(["owner", "api_key"]), typed] {
            let rows = json!([["ada", "canary"], ["bob", null]]);
            let result = json!({ "columns": columns, "rows": rows, "row_count": 2, "cells_shortened": 0 });
            let rows = json!([["ada", "[redacted:secret]"], ["bob", null]]);
            assert_eq!(super::safe(&result)["rows"], rows);
            assert_eq!(part(&result, "/rows/0/1", 0), Some((rows[0][1].clone(), None)));
            assert_eq!(super::safe(&result)["columns"], columns);
        }
    }

    #[test]
    fn a_long_text_is_read_in_parts_that_lose_nothing() {
        let text = "é".repeat(RESULT_PART_BYTES_MAX);
        let result = json!({ "text": text, "token": "canary", "rows": [1, 2] });
        let (mut whole, mut from) = (String::new(), Some(0));
        while let Some(at) = from {
            let (piece, next) = part(&result, "/text", at).unwrap();
            whole.push_str(piece.as_str().unwrap());
            from = next;
        }
        assert!(whole == text);
        assert_eq!(part(&result, "/rows/1", 0).unwrap(), (json!(2), None));
        assert_eq!(part(&result, "/text", usize::MAX).unwrap(), (json!(""), None));
        assert_eq!(part(&result, "/nothing", 0), None);
        assert!(!part(&result, "/token", 0).unwrap().0.to_string().contains("canary"));
    }
}
