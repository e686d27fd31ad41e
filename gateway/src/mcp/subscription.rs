//! `subscriptions/listen`: a stream that says when the caller's list of tools has changed.

use std::sync::Arc;

use axum::body::Bytes;
use axum::response::Response;
use effectd_contracts::Digest;
use rmcp::model::ErrorData;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::time::sleep;

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
pub(super) async fn listen(id: &Value, asked: &Asked) -> Result<Response, ErrorData> {
    let wanted = asked.params.get("notifications").and_then(|all| all.get("toolsListChanged"));
    let hears = wanted == Some(&Value::Bool(true));
    let mut changes = Changes {
        caller: Caller::of(asked)?,
        _slot: asked.app.streams.enter(&asked.peer)?,
        changed: asked.app.services().tools_changed.subscribe(),
        app: asked.app.clone(),
        peer: asked.peer.clone(),
        id: id.clone(),
        hears,
        list: None,
        first: None,
        is_over: false,
    };
    changes.list = changes.listed().await;
    let accepted = if hears { json!({ "toolsListChanged": true }) } else { json!({}) };
    let accepted = json!({ "notifications": accepted });
    changes.first = Some(changes.notification("subscriptions/acknowledged", accepted));
    Ok(events(streamed(changes, Changes::next)))
}

struct Changes {
    app: Arc<App>,
    peer: Peer,
    caller: Caller,
    hears: bool,
    id: Value,
    changed: watch::Receiver<()>,
    /// The digest of the list. `None` if the list could not be made, or the client did not ask for its changes.
    list: Option<Digest>,
    /// The first message, until it is sent.
    first: Option<Bytes>,
    /// Whether the last message is sent.
    is_over: bool,
    _slot: Slot,
}

impl Changes {
    async fn next(mut self) -> Option<(Bytes, Self)> {
        let bytes = match self.first.take() {
            Some(first) => first,
            None if self.is_over => return None,
            None => self.listened().await?,
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
        let mut is_changed = false;
        tokio::select! {
            biased;
            _ = stage.wait_for(|stage| *stage != Stage::Open) => self.is_over = true,
            _ = self.changed.changed(), if self.hears => is_changed = true,
            () = sleep(STREAM_HEARTBEAT) => {}
        }
        if !authenticate::still_valid(&self.app, &self.peer) {
            return None;
        }
        if self.is_over {
            let result = json!({ "resultType": "complete", "_meta": { (SUBSCRIPTION): self.id } });
            return Some(event(&json!({ "jsonrpc": "2.0", "id": self.id, "result": result })));
        }
        if !is_changed {
            return Some(HEARTBEAT);
        }
        let before = self.list.take();
        self.list = self.listed().await;
        // What cannot be compared may have changed.
        let is_same = before.is_some() && before == self.list;
        Some(if is_same { HEARTBEAT } else { self.notification("tools/list_changed", json!({})) })
    }

    /// The digest of the list. After a change all listeners need theirs at once: they queue among themselves, not among other requests.
    async fn listed(&self) -> Option<Digest> {
        if !self.hears {
            return None;
        }
        let (app, caller) = (self.app.clone(), self.caller.clone());
        let list = async move { tools::list(&app, &caller) };
        let tools = self.app.streams.read_list(list).await?.ok()?;
        Some(Digest::of(tools.as_bytes()))
    }
}
