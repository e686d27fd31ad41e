//! The gate's rules for plans: what the plan of an action and the package of its tool demand, and whether that can be kept.

use std::sync::Arc;

use effectd_contracts::{
    ActionRequest, Code, Contract, Failure, Mode, Phase, RiskLevel, RiskTier, SpaceId, Touch, quoted,
};
use effectd_policy::{Decision, Policy};
use serde_json::{Map, Value};

use crate::action::plan::{Area, PlanTerms, PlannedCheck, denied, words};
use crate::effects::snapshot::touched_with;
use crate::limits::SCOPE_PATHS_MAX;
use crate::registry::RegisteredTool;
use crate::services::Services;

/// The terms of an action; `None` if it has no plan and its tool no package. The failure says what the plan lacks.
pub(super) fn terms(
    services: &Services,
    (request, contract): (&ActionRequest, Option<&Contract>),
    (tool, params): (&RegisteredTool, &Map<String, Value>),
    decision: &Decision,
) -> Result<Option<Arc<PlanTerms>>, Failure> {
    let (spec, package) = (tool.spec(), tool.spec().package.as_ref());
    if contract.is_none() && package.is_none() {
        return Ok(None);
    }
    let verification = contract.and_then(|contract| contract.verification.as_ref());
    let declared = [verification, package.map(|package| &package.verification)].into_iter().flatten();
    let required = declared.clone().any(|one| one.required);
    let writes = match &decision.command {
        Some(command) => !command.writes.is_empty(),
        None => spec.level() != RiskLevel::Read,
    };
    if writes && decision.tier == RiskTier::R2 {
        let has_check = declared.clone().any(|one| !one.commands.is_empty())
            || package.is_some_and(|package| package.verifies);
        let has_rollback = contract.is_some_and(|contract| contract.rollback_plan.is_some());
        for (is_there, name, how) in [
            (
                required && has_check,
                "verification",
                "set verification.required to true, and name the commands that verify it",
            ),
            (
                has_rollback,
                "rollbackPlan",
                "send the action as a plan, with a rollbackPlan that says how its effect is undone",
            ),
        ] {
            if !is_there {
                let why = format!("a write of tier R2 needs {name}");
                return Err(Failure::new(Code::Malformed, Phase::Gate, why).unless(how));
            }
        }
    }
    let mut terms = PlanTerms { required, ..PlanTerms::default() };
    let policy = services.policy();
    for name in declared.flat_map(|one| &one.commands) {
        if terms.checks.iter().all(|check| check.name != *name) {
            terms.checks.push(check(services, &policy, &request.space_id, name)?);
        }
    }
    let scope = contract.and_then(|contract| contract.scope.as_ref());
    let area = scope.map(Area::of).transpose()?;
    if !writes || !spec.changes_files() {
        return Ok(Some(Arc::new(terms)));
    }
    let touched = match &decision.command {
        Some(command) => {
            let writes = command.writes.iter().map(|path| format!("workspace/{}", path.display()));
            Some(writes.map(Touch::filled).collect())
        }
        None => tool.touches(params).map(|_| touched_with(&services.files, &request.space_id, tool, params)),
    };
    match (touched, area) {
        (Some(touched), Some(area)) => {
            services.files.learn_case(&request.space_id);
            area.check(&touched, services.files.ignores_case(&request.space_id))?;
        }
        (Some(_), None) => {}
        (None, Some(area)) if area.files.len() + area.dirs.len() > SCOPE_PATHS_MAX => {
            let why = format!("the plan's scope has more than {SCOPE_PATHS_MAX} files and folders");
            return Err(denied(why).unless("name the folder that they are in"));
        }
        (None, Some(area)) => terms.area = Some(area),
        (None, None) if package.is_some() || decision.tier == RiskTier::R2 => {
            let why = format!(
                "{} does not say which files it changes, so nothing could be rolled back",
                spec.tool_id
            );
            return Err(denied(why).unless("send it as a plan with a scope that names the files"));
        }
        // A person has approved a call that may change the whole space.
        (None, None) => {}
    }
    Ok(Some(Arc::new(terms)))
}

/// A verification command, if the policy names it and lets it change nothing.
fn check(services: &Services, policy: &Policy, space: &SpaceId, name: &str) -> Result<PlannedCheck, Failure> {
    let unlisted = |why: &str| {
        let why = format!("the verification command {} {why}", quoted(name));
        let failure = Failure::new(Code::PolicyDenied, Phase::Gate, why);
        failure.unless("name it in [commands] of the policy, without `writes`")
    };
    let argv =
        words(name).ok_or_else(|| unlisted("is not a program and its arguments with one space between"))?;
    let command = policy.command_of(&argv).ok_or_else(|| unlisted("is not named by the policy"))?;
    if !command.writes.is_empty() {
        return Err(unlisted("is one that changes files"));
    }
    let mode = policy.command_mode(space, &command.name, services.clock.now());
    if mode.is_some_and(|mode| mode != Mode::Allow) {
        return Err(unlisted("has a mode that is not `allow`"));
    }
    Ok(PlannedCheck { name: name.to_owned(), argv, command })
}
