//! What an agent hears in a project without a policy: there are no tools, and this command makes them.

use std::path::Path;

use serde_json::{Value, json};

use super::message::{INTERNAL_ERROR, LEGACY, MODERN, Message, failure};

/// What to do, for a person and for the agent that tells one.
pub(super) fn advice(project: &Path) -> String {
    let project = project.display();
    format!(
        "effectd has no policy for {project}, so it has no tools: a person must run `effectd mcp install` in that folder"
    )
}

pub(super) fn answer(id: &Value, message: &Message, project: &Path) -> Value {
    let advice = advice(project);
    let server = json!({ "name": "effectd", "version": env!("CARGO_PKG_VERSION") });
    let mut result = match message.method.as_str() {
        "ping" => json!({}),
        "initialize" => {
            let asked: Value = serde_json::from_slice(&message.bytes).unwrap_or_default();
            let version = LEGACY.into_iter().find(|version| asked["params"]["protocolVersion"] == *version);
            json!({
                "protocolVersion": version.unwrap_or(LEGACY[0]),
                "capabilities": { "tools": { "listChanged": true } },
                "serverInfo": server,
                "instructions": advice,
            })
        }
        "server/discover" => {
            let versions: Vec<&str> = [MODERN].into_iter().chain(LEGACY).collect();
            json!({
                "supportedVersions": versions,
                "capabilities": { "tools": {} },
                "instructions": advice,
                "_meta": { "io.modelcontextprotocol/serverInfo": server },
            })
        }
        "tools/list" => json!({ "tools": [], "_meta": { "effectd/advice": advice } }),
        _ => return failure(id, INTERNAL_ERROR, &advice, None),
    };
    if message.is_modern() {
        result["resultType"] = "complete".into();
        // Whoever asks again after the install gets the tools.
        result["ttlMs"] = 0.into();
        result["cacheScope"] = "private".into();
    }
    json!({ "jsonrpc": "2.0", "id": id, "result": result })
}
