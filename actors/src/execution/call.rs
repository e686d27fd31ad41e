//! Builds the one call that a child gets for a permitted action, and its confinement.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Duration;

use effectd_contracts::access::is_wired;
use effectd_contracts::limits::TIMEOUT_MS_MAX;
use effectd_contracts::{
    ActionRequest, BaseProfile, CallMode, Code, Failure, Phase, SafetyClass, ToolCall, Touch,
};
use effectd_sandbox::limits::NARROWING_PATHS_MAX;
use effectd_sandbox::{Call, Limits, Narrowing, View};
use serde_json::{Map, Value};

use super::stdio::no_space;
use super::steps::Execution;
use super::view::{view_of, view_of_area};
use crate::action::Gated;
use crate::action::plan::Area;
use crate::action::proofs::Earlier;
use crate::effects::preconditions::preconditions;
use crate::registry::RegisteredTool;
use crate::services::files::Files;

/// The time for a run: the shortest of what the caller asks for, the tool declares, and the policy allows.
pub(crate) fn allowed_time(request: &ActionRequest, gated: &Gated) -> Duration {
    let asked = request.qos.timeout_ms.unwrap_or(u64::MAX);
    Duration::from_millis(asked.min(whole_time_ms(gated)))
}

/// The time for one attempt: that of a plan has the time for its checks and for a repair in it.
pub(crate) fn attempt_time(gated: &Gated) -> Duration {
    Duration::from_millis(own_time_ms(gated))
}

/// The time of an action whose caller asks for none: twice an attempt and its checks, if it has a plan.
fn whole_time_ms(gated: &Gated) -> u64 {
    let own = own_time_ms(gated);
    let Some(terms) = gated.terms() else { return own };
    let checks: u64 = terms.checks.iter().map(|check| check.command.timeout_ms).sum();
    let verifies = gated.tool().spec().package.as_ref().is_some_and(|package| package.verifies);
    let verify = if verifies { own } else { 0 };
    own.saturating_add(verify).saturating_add(checks).saturating_mul(2).min(TIMEOUT_MS_MAX)
}

/// The time of a run whose caller asks for none. For a named command the policy alone decides.
fn own_time_ms(gated: &Gated) -> u64 {
    let policy = gated.ruling().decision.timeout_ms_max;
    if gated.command().is_some() { policy } else { policy.min(gated.tool().spec().timeout_ms) }
}

/// Whether the caller set an earlier deadline than the tool's own: reaching it says nothing about the tool.
pub(crate) fn has_callers_deadline(request: &ActionRequest, gated: &Gated) -> bool {
    request.qos.timeout_ms.is_some_and(|asked| asked < own_time_ms(gated))
}

/// The processor time of a run: three quarters of its own time, in whole seconds as the kernel counts, so that a busy loop ends by
/// this limit and not by its deadline. The profile may have less. Programs may use several processors at once, and so have the
/// limit of their profile, or that of the view of a named command.
fn cpu_limit_ms(gated: &Gated) -> Option<u64> {
    let has_one_thread = gated.tool().spec().sandbox_profile.base == BaseProfile::Default;
    has_one_thread.then(|| (own_time_ms(gated) * 3 / 4_000).max(1) * 1_000)
}

/// The call, which may take at most the time that is left.
pub(crate) async fn call_of(
    execution: &Execution<'_>,
    mode: CallMode,
    left: Duration,
) -> Result<Call, Failure> {
    let (services, action, prepared) = (execution.services, execution.action, &execution.prepared);
    let gated = action.state.gated();
    let begun = execution.may_have_effect || *action.state.earlier() != Earlier::No;
    // The repair of a package works on what the run before it has left.
    let is_mended = !execution.failed_checks.is_empty() && gated.tool().spec().package.is_some();
    let expect = match !is_mended {
        true => preconditions(&services.files, action, prepared, mode, begun).await?,
        false => Vec::new(),
    };
    if left.is_zero() {
        let message = "the deadline passed before the tool could run";
        return Err(Failure::new(Code::TimedOut, Phase::Dispatch, message));
    }
    let space = &action.request.space_id;
    let has_effect = matches!(mode, CallMode::Run | CallMode::Rollback);
    let view = match (gated.command(), gated.area()) {
        (Some(command), _) => Some(view_of(&services.files, space, command, mode).await?),
        (None, Some(area)) if has_effect && !area.is_empty() => {
            Some(view_of_area(&services.files, space, area, attempt_time(gated)).await?)
        }
        // A script that only reads could else change modes and times, which a narrowing does not cover.
        (None, _) if gated.tool().package().is_some() => {
            let nothing = Area::default();
            Some(view_of_area(&services.files, space, &nothing, attempt_time(gated)).await?)
        }
        (None, _) => None,
    };
    let narrowing = match mode {
        // The view says what is writable.
        CallMode::Run | CallMode::Rollback if view.is_some() => Narrowing::default(),
        CallMode::Run if gated.area().is_some() => Narrowing::read_only(),
        CallMode::Run => narrowed(&prepared.touched, gated.tool(), gated.params()),
        CallMode::DryRun | CallMode::Probe | CallMode::Preview | CallMode::Verify | CallMode::Rollback => {
            Narrowing::read_only()
        }
    };
    let call = ToolCall {
        tool_id: gated.tool().spec().tool_id.clone(),
        mode,
        space_id: action.request.space_id.clone(),
        params: gated.params().as_ref().clone(),
        timeout_ms: 0,
        trace_id: action.ticket.trace_id.clone(),
        before: prepared.before.clone(),
        restore: prepared.extras.restore.clone(),
        expect,
        mark: is_wired(gated.tool().spec().tool_id.source())
            .then(|| services.identity.mark(&action.ticket.action_id, action.ticket.accepted_at)),
        undoes: prepared.extras.undoes.clone(),
        upstream: gated.tool().upstream(),
        failed_checks: execution.failed_checks.clone(),
    };
    let is_high = gated.ruling().decision.safety_class == SafetyClass::High;
    let mut call = confined(&services.files, gated.tool(), call, (left, is_high, narrowing, view))?;
    call.limits.cpu_ms = cpu_limit_ms(gated);
    Ok(call)
}

pub(crate) fn confined(
    files: &Files,
    tool: &RegisteredTool,
    mut call: ToolCall,
    (timeout, high_isolation, narrowing, view): (Duration, bool, Narrowing, Option<View>),
) -> Result<Call, Failure> {
    call.timeout_ms = u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX);
    let request = serde_json::to_vec(&call)
        .map_err(|error| Failure::new(Code::Internal, Phase::Dispatch, error.to_string()))?;
    let space_root =
        if tool.sees_no_files() { files.root(&no_space()?)? } else { files.root(&call.space_id)? };
    Ok(Call {
        tool_id: call.tool_id,
        profile: tool.spec().effective_profile(),
        high_isolation,
        space_root,
        request,
        limits: Limits::default(),
        timeout,
        trace_id: call.trace_id,
        narrowing,
        view,
    })
}

/// The folders that a call may write to: those of the paths that the tool declares; none if it declares that it changes no file
/// of the space.
fn narrowed(touched: &[Touch], tool: &RegisteredTool, params: &Map<String, Value>) -> Narrowing {
    // What a connector's program may change, it changes itself, and not the child that speaks with it.
    if tool.definition().upstream.is_some() {
        return Narrowing::read_only();
    }
    if touched.is_empty() {
        let changes_none = !tool.spec().changes_files() || tool.touches(params).is_some();
        return if changes_none { Narrowing::read_only() } else { Narrowing::default() };
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
    Narrowing { writable: Some(writable), ..Narrowing::default() }
}
