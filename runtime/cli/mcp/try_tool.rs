//! `effectd mcp try`: does what an agent does, to show that it works.

use serde_json::{Map, Value, json};

use super::link::Link;
use crate::cli::{CliError, Common, line, print_json, print_rows};
use crate::exit::Exit;

/// The tool that is called if none is named: it shows what is in the project, and changes nothing.
const TOOL: &str = "files_list";

/// List the tools that an agent has here, and call one
///
/// It goes the way of `effectd mcp`: it starts a daemon if none answers. The call passes every gate and has a receipt.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  effectd mcp try\n  effectd mcp try files_read_text '{ \"path\": \"workspace/README.md\" }'"
)]
pub(super) struct Try {
    /// The tool, as agents name it
    #[arg(value_name = "TOOL", default_value = TOOL)]
    tool: String,
    /// Its arguments, as a JSON object
    #[arg(value_name = "OBJECT", default_value = "{ \"path\": \"workspace\" }")]
    arguments: String,
}

const COLUMNS: [(&str, usize); 4] = [("TOOL", 24), ("TIER", 4), ("MODE", 16), ("WHAT IT DOES", 60)];

impl Try {
    pub(super) async fn main(self, common: &Common, link: &Link) -> Result<Exit, CliError> {
        let arguments: Map<String, Value> = serde_json::from_str(&self.arguments)
            .map_err(|error| CliError::request(format!("the arguments are not a JSON object: {error}")))?;
        let listed = link.ask("tools/list", json!({})).await?;
        let tools = listed["tools"].as_array().cloned().unwrap_or_default();
        if !tools.iter().any(|tool| tool["name"] == self.tool.as_str()) {
            return Err(CliError::request(format!(
                "an agent has {} tools here, and none is named {:?}; the policy decides which it has",
                tools.len(),
                self.tool
            )));
        }
        let call = json!({ "name": self.tool, "arguments": arguments });
        let result = link.ask("tools/call", call).await?;
        let waits = ["input_required", "task"].iter().any(|kind| result["resultType"] == *kind);
        let (outcome, exit) = match (result["isError"] == true, waits) {
            (true, _) => ("failed", Exit::Failed),
            (false, true) => ("waits for a person, see `effectd approvals list`", Exit::Held),
            (false, false) => ("works", Exit::Done),
        };
        if !print_json(common.output, &json!({ "tools": tools, "call": self.tool, "result": result })) {
            print_rows(common.output, &COLUMNS, &tools, cells);
            line(&format!("\n{}: {outcome}", self.tool));
            let texts = result["content"].as_array().into_iter().flatten();
            texts.filter_map(|part| part["text"].as_str()).for_each(line);
        }
        Ok(exit)
    }
}

fn cells(tool: &Value) -> [String; 4] {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let about = text(&tool["description"]);
    let first = about.split_once(". ").map_or(about.as_str(), |(first, _)| first).to_owned();
    let meta = &tool["_meta"];
    [text(&tool["name"]), text(&meta["effectd/risk"]), text(&meta["effectd/mode"]), first]
}
