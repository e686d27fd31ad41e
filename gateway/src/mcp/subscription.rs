//! `subscriptions/listen`: a stream that says when the caller's list of tools has changed.

use std::sync::Arc;

use axum::body::Bytes;
use axum::response::Response;
use effectd_contracts::{Digest, canonical};
use rmcp::model::ErrorData;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::time::timeout;

use super::caller::Caller;
use super::progress::{event, events};
use super::{Asked, tools};
use crate::app::App;
use crate::authenticate;
use crate::host::Stage;
use crate::limits::STREAM_HEARTBEAT;
use crate::peer::Peer;
use crate::slots::Slot;
use crate::streams::body::{HEARTBEAT, streamed};

/// The member of `_meta` that names the request whose stream a notification is on.
const SUBSCRIPTION: &str = "io.modelcontextprotocol/subscriptionId";

/// Begins a stream. Of all that a client may ask for, only the list of tools changes here.
pub(super) fn listen(id: &Value, asked: &Asked) -> Result<Response, ErrorData> {
    let wanted = asked.params.get("notifications").and_then(|all| all.get("toolsListChanged"));
    let hears = wanted == Some(&Value::Bool(true));
    let caller = Caller::of(asked)?;
    let slot = asked.app.streams.enter(&asked.peer)?;
    let (app, peer, id) = (asked.app.clone(), asked.peer.clone(), id.clone());
    let changed = app.services().tools_changed.subscribe();
    let step = Step::Begin;
    let changes = Changes { app, peer, caller, hears, id, changed, list: None, step, _slot: slot };
    Ok(events(streamed(changes, Changes::next)))
}

/// How far a stream has come.
enum Step {
    Begin,
    Listen,
    End,
}

struct Changes {
    app: Arc<App>,
    peer: Peer,
    caller: Caller,
    hears: bool,
    id: Value,
    changed: watch::Receiver<()>,
    /// The digest of the list, unless it could not be made.
    list: Option<Digest>,
    step: Step,
    _slot: Slot,
}

impl Changes {
    async fn next(mut self) -> Option<(Bytes, Self)> {
        let bytes = match self.step {
            Step::Begin => {
                self.list = self.listed().await;
                self.step = Step::Listen;
                let accepted = if self.hears { json!({ "toolsListChanged": true }) } else { json!({}) };
                self.notification("subscriptions/acknowledged", json!({ "notifications": accepted }))
            }
            Step::Listen => self.listened().await?,
            Step::End => return None,
        };
        Some((bytes, self))
    }

    fn notification(&self, what: &str, mut params: Value) -> Bytes {
        params["_meta"] = json!({ (SUBSCRIPTION): self.id });
        event(&json!({ "jsonrpc": "2.0", "method": format!("notifications/{what}"), "params": params }))
    }

    /// The next change, a comment if there is none for a while, or the result when the daemon stops. `None` if the token has ended.
    async fn listened(&mut self) -> Option<Bytes> {
        let mut stage = self.app.stage.clone();
        let heard = async {
            tokio::select! {
                biased;
                _ = stage.wait_for(|stage| *stage != Stage::Open) => Step::End,
                _ = self.changed.changed(), if self.hears => Step::Listen,
            }
        };
        let heard = timeout(STREAM_HEARTBEAT, heard).await;
        if self.peer.claims().is_some_and(|claims| !authenticate::still_valid(&self.app, claims)) {
            return None;
        }
        Some(match heard {
            Ok(Step::End) => {
                self.step = Step::End;
                let result = json!({ "resultType": "complete", "_meta": { (SUBSCRIPTION): self.id } });
                event(&json!({ "jsonrpc": "2.0", "id": self.id, "result": result }))
            }
            Ok(Step::Begin | Step::Listen) => {
                let before = self.list.take();
                self.list = self.listed().await;
                // What cannot be compared may have changed.
                if before.is_some() && before == self.list {
                    return Some(HEARTBEAT);
                }
                self.notification("tools/list_changed", json!({}))
            }
            Err(_) => HEARTBEAT,
        })
    }

    async fn listed(&self) -> Option<Digest> {
        let caller = self.caller.clone();
        let tools = self.app.blocking(move |app| tools::list(app, &caller)).await;
        tools.ok().map(|tools| canonical::digest(&Value::Array(tools)))
    }
}
