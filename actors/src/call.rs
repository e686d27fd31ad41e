//! Builds the one call that a child gets for a permitted action.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Duration;

use effectd_contracts::{ActionRequest, CallMode, Code, Failure, Phase, SafetyClass, ToolCall, Touch};
use effectd_sandbox::limits::NARROWING_PATHS_MAX;
use effectd_sandbox::{Call, Limits, Narrowing};
use serde_json::{Map, Value};

use crate::action::Gated;
use crate::disturbed;
use crate::executor::Course;
use crate::expected::expected;
use crate::parts::Parts;
use crate::registry::Entry;

/// The smallest of what the caller asks for, what the tool needs and what its class allows.
pub(crate) fn allowed_time(request: &ActionRequest, gated: &Gated) -> Duration {
    let asked = request.qos.timeout_ms.unwrap_or(u64::MAX);
    let class = gated.ruling().decision.timeout_ms_max;
    Duration::from_millis(asked.min(gated.entry().spec().timeout_ms).min(class))
}

/// A call for a permitted action, which may take as long as is left.
pub(crate) async fn call_of(course: &Course<'_>, mode: CallMode, left: Duration) -> Result<Call, Failure> {
    let (action, prepared) = (course.action, &course.prepared);
    let gated = action.state.gated();
    let expect = expected(course, mode).await?;
    if left.is_zero() {
        let message = "no time was left to run the tool";
        return Err(Failure::new(Code::TimedOut, Phase::Dispatch, message));
    }
    let narrowing = match mode {
        CallMode::Run => narrowed(&prepared.touched, gated.entry(), gated.params()),
        CallMode::DryRun | CallMode::Probe | CallMode::Preview => Narrowing::read_only(),
    };
    let call = ToolCall {
        tool_id: gated.entry().spec().tool_id.clone(),
        mode,
        space_id: action.request.space_id.clone(),
        params: gated.params().as_ref().clone(),
        timeout_ms: 0,
        trace_id: action.ticket.trace_id.clone(),
        before: prepared.before.clone(),
        restore: prepared.along.restore.clone(),
        expect,
    };
    let is_high = gated.ruling().decision.safety_class == SafetyClass::High;
    confined(course.parts, gated.entry(), call, (left, is_high, narrowing))
}

/// The call with its confinement.
pub(crate) fn confined(
    parts: &Parts,
    entry: &Entry,
    mut call: ToolCall,
    (timeout, high_isolation, narrowing): (Duration, bool, Narrowing),
) -> Result<Call, Failure> {
    call.timeout_ms = u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX);
    let request = serde_json::to_vec(&call)
        .map_err(|error| Failure::new(Code::Internal, Phase::Dispatch, error.to_string()))?;
    Ok(Call {
        tool_id: call.tool_id,
        profile: entry.spec().effective_profile(),
        high_isolation,
        space_root: (parts.space_roots)(&call.space_id)?,
        request,
        limits: Limits::default(),
        timeout,
        trace_id: call.trace_id,
        narrowing,
    })
}

/// A tool that says what it may change can change nothing else: the folders of those paths, or where they are to be made.
/// One that says that it changes no file of the space can change none.
fn narrowed(touched: &[Touch], entry: &Entry, params: &Map<String, Value>) -> Narrowing {
    if touched.is_empty() {
        let changes_none = !disturbed::changes_files(entry.spec()) || entry.touches(params).is_some();
        return if changes_none {
            Narrowing::read_only()
        } else {
            Narrowing::default()
        };
    }
    let beneath = |touch: &Touch| {
        let path = PathBuf::from(touch.path.strip_prefix("workspace/")?);
        Some(path.parent().map(Path::to_owned).unwrap_or_default())
    };
    let folders: BTreeSet<_> = touched.iter().filter_map(beneath).collect();
    let writable = if folders.len() > NARROWING_PATHS_MAX {
        vec![PathBuf::new()]
    } else {
        folders.into_iter().collect()
    };
    Narrowing {
        writable: Some(writable),
        ..Narrowing::default()
    }
}
