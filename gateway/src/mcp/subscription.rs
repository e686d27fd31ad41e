//! `subscriptions/listen`: a stream that says when the caller's list of tools has changed.

use std::sync::Arc;

use axum::body::Bytes;
use axum::response::Response;
use effectd_actors::Registry;
use effectd_contracts::{Digest, canonical};
use rmcp::model::ErrorData;
use serde_json::{Value, json};

use super::caller::Caller;
use super::progress::{event, events};
use super::{Asked, error_of, tools, value};
use crate::app::App;
use crate::authenticate;
use crate::host::Stage;
use crate::limits::{MCP_CHANGES_EVERY, MCP_CHANGES_LIST_EVERY, STREAM_HEARTBEAT};
use crate::peer::Peer;
use crate::problem::Problem;
use crate::slots::Slot;
use crate::streams::body::{HEARTBEAT, streamed};

/// The member of `_meta` that names the request whose stream a notification is on.
const SUBSCRIPTION: &str = "io.modelcontextprotocol/subscriptionId";

/// Begins a stream. Of all that a client may ask for, only the list of tools changes here.
pub(super) fn listen(id: &Value, asked: &Asked) -> Result<Response, ErrorData> {
    let refused = |problem: Problem| error_of(&problem);
    let wanted = asked.params.get("notifications").and_then(|all| all.get("toolsListChanged"));
    let hears = wanted == Some(&Value::Bool(true));
    let caller = Caller::of(asked).map_err(refused)?;
    let slot = asked.app.streams.enter(&asked.peer).map_err(refused)?;
    let (app, peer) = (asked.app.clone(), asked.peer.clone());
    let id = id.clone();
    let changes =
        Changes { app, peer, caller, hears, id, seen: None, looks: 0, step: Step::Begin, _slot: slot };
    Ok(events(streamed(changes, Changes::next)))
}

/// How far a stream has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    Begin,
    Listen,
    End,
}

/// What a list of tools was made from, and its digest.
struct Seen {
    policy: Digest,
    registry: Arc<Registry>,
    list: Digest,
}

struct Changes {
    app: Arc<App>,
    peer: Peer,
    caller: Caller,
    hears: bool,
    id: Value,
    seen: Option<Seen>,
    /// Looks since the list was last made.
    looks: u32,
    step: Step,
    _slot: Slot,
}

impl Changes {
    async fn next(mut self) -> Option<(Bytes, Self)> {
        match self.step {
            Step::Begin => {
                self.has_changed().await;
                self.step = Step::Listen;
                let accepted = if self.hears { json!({ "toolsListChanged": true }) } else { json!({}) };
                let params = json!({ "_meta": { (SUBSCRIPTION): self.id }, "notifications": accepted });
                let method = "notifications/subscriptions/acknowledged";
                Some((event(&json!({ "jsonrpc": "2.0", "method": method, "params": params })), self))
            }
            Step::Listen => {
                let bytes = self.listened().await?;
                Some((bytes, self))
            }
            Step::End => None,
        }
    }

    /// The next change, a comment if there is none for a while, or the result when the daemon stops. `None` if the token has ended.
    async fn listened(&mut self) -> Option<Bytes> {
        let mut stage = self.app.stage.clone();
        let quiet_looks = STREAM_HEARTBEAT.as_millis() / MCP_CHANGES_EVERY.as_millis();
        for _ in 0..quiet_looks {
            tokio::select! {
                biased;
                _ = stage.wait_for(|stage| *stage != Stage::Open) => {
                    self.step = Step::End;
                    let result = json!({ "resultType": "complete", "_meta": { (SUBSCRIPTION): self.id } });
                    return Some(event(&json!({ "jsonrpc": "2.0", "id": self.id, "result": result })));
                }
                () = tokio::time::sleep(MCP_CHANGES_EVERY) => {}
            }
            if self.peer.claims().is_some_and(|claims| !authenticate::still_valid(&self.app, claims)) {
                return None;
            }
            if self.hears && self.has_changed().await {
                let params = json!({ "_meta": { (SUBSCRIPTION): self.id } });
                let method = "notifications/tools/list_changed";
                return Some(event(&json!({ "jsonrpc": "2.0", "method": method, "params": params })));
            }
        }
        Some(HEARTBEAT)
    }

    /// Whether the list is another than when this was last asked. If it cannot be made now, it is made at the next look.
    async fn has_changed(&mut self) -> bool {
        let (services, caller) = (self.app.services(), self.caller.clone());
        let (policy, registry) = (services.policy().digest(), services.registry());
        self.looks += 1;
        let is_same = self.seen.as_ref().is_some_and(|seen| {
            seen.policy == policy
                && Arc::ptr_eq(&seen.registry, &registry)
                && self.looks < MCP_CHANGES_LIST_EVERY
        });
        if is_same {
            return false;
        }
        let Ok(tools) = self.app.blocking(move |app| tools::list(app, &caller)).await else { return false };
        self.looks = 0;
        let list = canonical::digest(&value(tools));
        let before = self.seen.replace(Seen { policy, registry, list });
        before.is_some_and(|before| before.list != list)
    }
}
