//! Tools of MCP servers that others wrote: `connector:<id>.<name>`, all of them by one small client.
//!
//! The client runs in the confined child, so what a hostile server sends is parsed where it can do nothing. It reaches the server by
//! exchanges ([`http`]), or by the side channel if the server is a program on this machine ([`stdio`], [`serve`]). Before it calls a tool
//! it lists it, and compares it with what the gate has judged.

mod client;
mod http;
mod lines;
mod message;
mod serve;
mod sse;
mod stdio;

use effectd_contracts::connector::{Ask, CONNECTOR_SOURCE, Transport as Reached, Upstream};
use effectd_contracts::limits::TOOL_REPLY_BYTES_MAX;
use effectd_contracts::{ToolCall, ToolId, ToolOutput, ToolSpec, headers_of};
use serde_json::Map;

use crate::exchange::connection_of;
use crate::prelude::*;
use crate::tool::Tool;
use client::{Client, Transport, failed};
use message::taken;

/// Every tool of every connector.
#[derive(Debug, Clone, Copy)]
struct Connector;

/// Room in a reply for all but the content.
const REPLY_HEAD_BYTES: usize = 65_536;

/// The tool of a connector, or what runs its program.
pub(crate) fn tool(id: &ToolId) -> Option<&'static dyn Tool> {
    if id.source().starts_with(CONNECTOR_SOURCE) {
        return Some(&Connector);
    }
    (id.as_str() == serve::Serve.id()).then_some(&serve::Serve)
}

impl Tool for Connector {
    fn id(&self) -> &'static str {
        "connector"
    }

    /// Not used: each tool's spec comes from its server, and from what people say about it.
    fn spec(&self) -> ToolSpec {
        Tool::spec(&crate::http::Request)
    }

    fn check(&self, _: &Map<String, Value>) -> Result<(), Failure> {
        Ok(())
    }

    fn run(&self, workspace: &Workspace<'_>, call: &ToolCall) -> Result<ToolOutput, Failure> {
        let Some(upstream) = call.upstream.as_deref() else {
            return Err(failed("the call names no server"));
        };
        match &upstream.transport {
            Reached::Http { path } => {
                let connection = connection_of(&call.tool_id);
                let transport = http::Http { workspace, connection, path, session: None };
                asked(&mut Client::new(transport, None, 1), call, upstream)
            }
            Reached::Stdio { .. } => {
                let mut client = stdio::client(workspace)?;
                let output = asked(&mut client, call, upstream)?;
                stdio::note(&mut client)?;
                Ok(output)
            }
        }
    }

    fn dry_run(&self, _: &Workspace<'_>, _: &ToolCall) -> Result<ToolOutput, Failure> {
        let said = json!({ "type": "text", "text": "nothing was called" });
        Ok(params::dry(json!({ "content": [said], "isError": false })))
    }
}

fn asked<T: Transport>(
    client: &mut Client<T>,
    call: &ToolCall,
    upstream: &Upstream,
) -> Result<ToolOutput, Failure> {
    if matches!(upstream.ask, Ask::Harvest {}) {
        client.greet(None)?;
        let harvest = client.harvest()?;
        let harvest = serde_json::to_value(harvest).map_err(|error| failed(error.to_string()))?;
        return Ok(ToolOutput::new(harvest, None));
    }
    client.greet(upstream.protocol.as_deref())?;
    let name = call.tool_id.action();
    upstream.ask.check(client.find(name)?.as_ref())?;
    let headers = headers_of(&upstream.headers, &call.params);
    Ok(answered(client.call(name, &call.params, headers)?))
}

/// The result of a call that was answered. A server that says that the tool failed has answered, so the call is done, with quality 0.
fn answered(mut said: Value) -> ToolOutput {
    let content = Some(taken(&mut said, "content")).filter(Value::is_array).unwrap_or_else(|| json!([]));
    let mut result = json!({ "content": content, "isError": said["isError"] == true });
    let structured = taken(&mut said, "structuredContent");
    if !structured.is_null() {
        result["structuredContent"] = structured;
    }
    if said["resultType"].as_str().is_some_and(|kind| kind != "complete") {
        let why = "the server asks for more input before it answers, which effectd does not give";
        result = json!({ "content": [{ "type": "text", "text": why }], "isError": true });
    }
    if result.to_string().len() > TOOL_REPLY_BYTES_MAX - REPLY_HEAD_BYTES {
        result = json!({ "content": [], "isError": result["isError"], "content_left_out": true });
    }
    let quality = if result["isError"] == true { 0.0 } else { 1.0 };
    ToolOutput::new(result, Some(quality))
}

#[cfg(test)]
mod tests;
