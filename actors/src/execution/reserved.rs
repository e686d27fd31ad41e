//! Reserved calls: what effectd itself lets a child do with somebody's text. They belong to no action, and the child sees no file.

use effectd_contracts::{
    BaseProfile, CallMode, Code, Failure, Phase, SandboxProfile, ToolCall, ToolId, ToolReply, TraceId, json,
    limits,
};
use effectd_sandbox::{Call, Ending, Limits, Narrowing, SideChannel};
use serde_json::{Map, Value};

use super::stdio::no_space;
use crate::limits::{RESERVED_CPU_MS, RESERVED_MEMORY_BYTES_MAX, RESERVED_TIME_MAX};
use crate::services::Services;

/// Makes a reserved call of this name. A child that is killed is a failure like any other: it had no effect.
pub async fn call(services: &Services, name: &str, params: Map<String, Value>) -> Result<Value, Failure> {
    let failed = |code, message: String| Failure::new(code, Phase::Validate, message);
    let broken = |error: &dyn std::fmt::Display| failed(Code::Internal, error.to_string());
    let (tool_id, space_id) = (ToolId::new(name).map_err(|error| broken(&error))?, no_space()?);
    let trace_id = TraceId::fresh();
    let request = ToolCall {
        tool_id: tool_id.clone(),
        mode: CallMode::Run,
        space_id: space_id.clone(),
        params,
        timeout_ms: u64::try_from(RESERVED_TIME_MAX.as_millis()).unwrap_or(u64::MAX),
        trace_id: trace_id.clone(),
        before: None,
        restore: Vec::new(),
        expect: Vec::new(),
        mark: None,
        undoes: None,
        upstream: None,
        failed_checks: Vec::new(),
    };
    let call = Call {
        tool_id,
        profile: SandboxProfile { base: BaseProfile::Default, high_isolation: false },
        high_isolation: false,
        space_root: services.files.root(&space_id)?,
        request: serde_json::to_vec(&request).map_err(|error| broken(&error))?,
        limits: Limits {
            cpu_ms: Some(RESERVED_CPU_MS),
            memory_bytes: Some(RESERVED_MEMORY_BYTES_MAX),
            ..Limits::default()
        },
        timeout: RESERVED_TIME_MAX,
        trace_id,
        narrowing: Narrowing { tmp: false, ..Narrowing::read_only() },
        view: None,
    };
    let answer = match services.children.sandbox.ask_with(call, SideChannel::default()).await {
        Ok(reply) => reply.reap().await,
        Err(error) => return Err(error.failure()),
    };
    let bytes = match answer.ending {
        Ending::Replied(bytes) => bytes,
        Ending::Killed { code, detail, .. } => return Err(failed(code, detail)),
    };
    match json::parse_reply::<ToolReply>(&bytes, limits::TOOL_REPLY_BYTES_MAX) {
        Ok(ToolReply::Done(output)) => Ok(output.result),
        // The message is cut to the longest that a failure may have.
        Ok(ToolReply::Failed(failure)) => Err(failed(failure.code, failure.message)),
        Ok(ToolReply::Probed(_) | ToolReply::Previewed(_) | ToolReply::Verified(_)) | Err(_) => {
            Err(failed(Code::ResultInvalid, "the child's answer is none".to_owned()))
        }
    }
}
