//! The program `effectd` with the tools that MCP's own conformance suite calls; `.ci/mcp/run` runs it. Each call goes the whole way of
//! an action, with gates, sandbox and receipt. What the suite wants beyond tools, effectd does not have: `.ci/mcp/expected-*.yml` says why.

use std::process::ExitCode;
use std::time::Duration;

use effectd::adapters::{Tool, Workspace};
use effectd::contracts::{Code, Failure, Phase, ToolCall, ToolOutput, ToolSpec};
use serde_json::{Map, Value, json};

/// Long enough for three signs of progress, and shorter than the suite waits.
const LONG: Duration = Duration::from_millis(6_500);

fn main() -> ExitCode {
    effectd::init(TOOLS);
    effectd::cli::main()
}

/// A tool of the suite. For models, the dot of its id is a `_`.
struct Fixture {
    id: &'static str,
    does: Does,
}

enum Does {
    Answer,
    AnswerLate,
    Fail,
}

const TOOLS: effectd::Tools = &[
    &Fixture { id: "test.simple_text", does: Does::Answer },
    &Fixture { id: "test.tool_with_progress", does: Does::AnswerLate },
    &Fixture { id: "test.error_handling", does: Does::Fail },
    // The policy holds it, and its call is answered with `input_required`.
    &Fixture { id: "test.input_required_result_elicitation", does: Does::Answer },
    // Two that could send more than their result, and must not.
    &Fixture { id: "test.logging_tool", does: Does::Answer },
    &Fixture { id: "test.streaming_elicitation", does: Does::Answer },
];

impl Tool for Fixture {
    fn id(&self) -> &'static str {
        self.id
    }

    #[expect(clippy::expect_used, reason = "a constant, which the program reads when it starts")]
    fn spec(&self) -> ToolSpec {
        let spec = json!({
            "tool_id": self.id,
            "version": "1.0.0",
            "description": "A fixture of MCP's conformance suite.",
            "caps_required": ["diagnose"],
            "params_schema": { "type": "object", "properties": {}, "additionalProperties": false },
            "result_schema": {
                "type": "object",
                "required": ["text"],
                "properties": { "text": { "type": "string" } },
                "additionalProperties": false,
            },
            "side_effects": ["read_only"],
            "safety_class": "LOW",
            "timeout_ms": 20_000,
        });
        serde_json::from_value(spec).expect("the description is well-formed")
    }

    fn check(&self, _: &Map<String, Value>) -> Result<(), Failure> {
        Ok(())
    }

    fn run(&self, _: &Workspace<'_>, _: &ToolCall) -> Result<ToolOutput, Failure> {
        match self.does {
            Does::Answer => {}
            Does::AnswerLate => std::thread::sleep(LONG),
            Does::Fail => return Err(Failure::new(Code::ToolFailed, Phase::Dispatch, "failed, as asked")),
        }
        Ok(ToolOutput::new(json!({ "text": "This is a simple text response for testing." }), None))
    }

    fn dry_run(&self, _: &Workspace<'_>, _: &ToolCall) -> Result<ToolOutput, Failure> {
        Ok(ToolOutput::new(json!({ "text": "" }), None))
    }
}
