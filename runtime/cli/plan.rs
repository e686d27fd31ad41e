//! `effectd plan`: carry out a plan, and show what it came to.

use std::path::PathBuf;
use std::time::Duration;

use effectd_contracts::limits::TIMEOUT_MS_MAX;
use effectd_contracts::plan::Tried;
use effectd_contracts::{ActionId, Plan, PlanResult, PlanStatus};
use effectd_gateway::client::PlanReply;

use super::request_args::RequestArgs;
use super::short_id::Purpose;
use super::{CliError, Common, Depth, TIME, eprint_line, line, print_json, run, short_id, span, with_client};
use crate::exit::Exit;

/// Carry out a plan: one action with the checks that verify it, its scope and its rollback
#[derive(Debug, clap::Subcommand)]
pub(super) enum PlanCommand {
    /// Carry out a plan, and show its result
    ///
    /// The action is executed, verified, repaired once and rolled back if it still is not as the plan says. The result is succeeded,
    /// reverted, queued (a person must decide), rejected or failed. The same plan again gets the first result.
    #[command(
        after_help = "Examples:\n  effectd plan run examples/plans/diagnose.json\n  effectd plan run examples/plans/diagnose.json --space shared:household -o json"
    )]
    Run {
        /// The plan, in JSON; `-` reads standard input
        #[arg(value_name = "FILE")]
        plan: PathBuf,
        #[command(flatten)]
        by: RequestArgs,
        /// How long to wait: `90s`, `30m`, `2h`; a bare number is seconds
        #[arg(long, value_name = TIME, value_parser = span, default_value = "1h")]
        timeout: Duration,
    },
    /// Show what a plan came to
    ///
    /// A plan that was `queued` has another result under its id when a person has decided.
    #[command(
        after_help = "Examples:\n  effectd plan show action:example\n  effectd plan show 0199f6a2-5a4e-7c10-8d53-3f2b5f0c9a36 -o json"
    )]
    Show {
        /// The plan's `actionId`
        #[arg(value_name = "ACTION")]
        action: ActionId,
    },
}

/// The longest that the daemon lets one request wait.
const STEP: Duration = Duration::from_millis(TIMEOUT_MS_MAX);

impl PlanCommand {
    pub(super) async fn main(self, common: &Common) -> Result<Exit, CliError> {
        let reply = match self {
            Self::Run { plan, by, timeout } => {
                let plan = read(&plan, by)?;
                with_client(common, Depth::Pipeline, async |client| {
                    Ok(client.plan(&plan, timeout.min(STEP)).await?)
                })
                .await?
            }
            Self::Show { action } => {
                with_client(common, Depth::Store, async |client| {
                    let action = short_id::action(client, &action, Purpose::Show).await?;
                    Ok(client.plan_result(&action).await?)
                })
                .await?
            }
        };
        Ok(match reply {
            PlanReply::Result(result) => {
                if !print_json(common.output, &result) {
                    print(&result);
                }
                exit_of(&result)
            }
            PlanReply::GoesOn(view) => {
                print_json(common.output, &view);
                eprint_line(&format!("it goes on: effectd plan show {}", view.action_id));
                Exit::TryAgain
            }
        })
    }
}

/// Reads a plan, which gets the subject and the space of the command line if it names none.
fn read(file: &std::path::Path, by: RequestArgs) -> Result<Plan, CliError> {
    let name = file.display();
    let bytes = run::read_bounded(file).map_err(|error| {
        CliError::request(format!("{name} cannot be read: {error}; name a file that holds a plan"))
    })?;
    let plan = Plan::parse(&bytes);
    let mut plan =
        plan.map_err(|failure| CliError::request(format!("{name} is not a plan: {}", failure.message)))?;
    plan.subject_id.get_or_insert(by.subject);
    plan.space_id.get_or_insert(by.space);
    Ok(plan)
}

fn exit_of(result: &PlanResult) -> Exit {
    match (result.status, &result.error) {
        (PlanStatus::Succeeded, _) => Exit::Done,
        (PlanStatus::Queued, _) => Exit::Held,
        (PlanStatus::Rejected, Some(failure)) => Exit::of(failure.code.outcome()),
        (PlanStatus::Rejected, None) => Exit::Denied,
        (PlanStatus::Reverted | PlanStatus::Failed, _) => Exit::Failed,
    }
}

fn print(result: &PlanResult) {
    line(&format!("{}  {}  {}", result.status.as_str(), result.action_type, result.risk_tier.as_str()));
    for check in &result.verification.checks {
        let code = check.exit_code.map(|code| format!(" (exit {code})")).unwrap_or_default();
        let ok = if check.ok { "passed" } else { "failed" };
        line(&format!("  check     {ok}{code}: {}", check.name));
        if !check.ok {
            check.output.lines().for_each(|text| line(&format!("            {text}")));
        }
    }
    for (name, Tried { attempted, ok }) in [("repair", result.repair), ("rollback", result.rollback)] {
        if attempted {
            line(&format!("  {name:<9} {}", if ok { "succeeded" } else { "failed" }));
        }
    }
    if let Some(failure) = &result.error {
        line(&format!("  why       {failure}"));
    }
    if let Some(approval) = &result.feedback.approval_id {
        line(&format!("  approval  {approval}"));
    }
    if let Some(receipt) = &result.feedback.receipt_id {
        line(&format!("  receipt   {receipt}"));
    }
    line(&format!("  action    {}", result.action_id));
}
