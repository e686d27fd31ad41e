//! `effectd approvals …`: pending approvals and the decisions about them.

mod watch;

use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Subcommand;
use effectd_contracts::limits::REQUEST_BYTES_MAX;
use effectd_contracts::{ApprovalId, json as strict};
use effectd_gateway::client::{Client, percent_encoded};
use effectd_gateway::problem::{Kind, Problem};
use effectd_gateway::views::approvals::{
    ApprovalList, ApprovalView, ApproveBody, DecisionView, DenyBody, EditBody, HowWord, PreviewView,
    StandingView,
};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use super::receipt_view::{self, Detail};
use super::short_id::Purpose;
use super::{
    CliError, Common, Depth, Form, action_output, approval_view, eprint_line, is_in_process, line,
    print_json, print_rows, run, short_id, with_client,
};
use crate::exit::Exit;

/// List pending approvals, approve or deny them
///
/// The policy says who may decide, and nobody decides about their own requests; if the policy names no approvers, the user who runs
/// effectd decides. An approval is for exactly what was shown: if the tool, a rule or a file changes before the action runs, a person is
/// asked again.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  effectd approvals list\n  effectd approvals show 0199f6a2-5a4e-7c10-8d53-3f2b5f0c9a40"
)]
pub(super) struct ApprovalsCommand {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// List pending approvals, oldest first
    #[command(after_help = "Example:\n  effectd approvals list -o json")]
    List,
    /// Show pending approvals in the terminal as they come, and decide with one key
    ///
    /// Needs a terminal and a daemon. `a` approves once, `g` grants, `A` approves always, `d` denies with a reason.
    #[command(after_help = "Example:\n  effectd approvals watch")]
    Watch,
    /// Show one approval: what would happen, why a person is asked, and the decision
    #[command(after_help = "Example:\n  effectd approvals show 0199f6a2-5a4e-7c10-8d53-3f2b5f0c9a40")]
    Show(Which),
    /// Approve
    ///
    /// The exit code is that of the action's outcome, 0 if it has not ended yet, 3 if you may not decide, 1 if somebody else has
    /// decided, and 2 if --always or --edit was not confirmed.
    #[command(after_help = "Examples:\n  effectd approvals approve 0199f6a2-5a4e-7c10-8d53-3f2b5f0c9a40\n  \
        effectd approvals approve 0199f6a2-5a4e-7c10-8d53-3f2b5f0c9a41 --grant --calls 5 --for 3600\n  \
        effectd approvals approve 0199f6a2-5a4e-7c10-8d53-3f2b5f0c9a42 --always --yes")]
    Approve(Box<Approve>),
    /// Deny
    #[command(
        after_help = "Example:\n  effectd approvals deny 0199f6a2-5a4e-7c10-8d53-3f2b5f0c9a43 --reason \"not today\""
    )]
    Deny {
        #[command(flatten)]
        which: Which,
        /// The reason, which goes into the receipt
        #[arg(long, value_name = "TEXT")]
        reason: Option<String>,
    },
}

#[derive(Debug, clap::Args)]
struct Which {
    /// The approval's id
    #[arg(value_name = "APPROVAL")]
    id: ApprovalId,
}

#[derive(Debug, clap::Args)]
struct Approve {
    #[command(flatten)]
    which: Which,
    /// Approve only this action (the default)
    #[arg(long, conflicts_with_all = ["grant", "always"])]
    once: bool,
    /// Approve this action, and grant further calls of the tool by the same session
    #[arg(long, conflicts_with = "always")]
    grant: bool,
    /// With --grant: also calls by the rest of the organisation; needs an administrator
    #[arg(long, requires = "grant")]
    org: bool,
    /// With --grant: number of further calls
    #[arg(long, value_name = "NUMBER", requires = "grant", value_parser = clap::value_parser!(u32).range(1..))]
    calls: Option<u32>,
    /// With --grant: duration in seconds
    #[arg(long = "for", value_name = "SECONDS", requires = "grant")]
    lasts: Option<u64>,
    /// Approve this action and all later calls of the tool: sets the organisation's mode to `allow`; needs an administrator
    ///
    /// The change is shown first, with the number of past approvals that it would have made unnecessary.
    #[arg(long)]
    always: bool,
    /// Do not ask for confirmation of --always and --edit
    #[arg(long)]
    yes: bool,
    /// Replace the planner's parameters with those in this JSON file; `-` reads standard input
    ///
    /// The gates and the preview run again with them. The preview is shown first, and the approval is for exactly that.
    #[arg(long, value_name = "FILE")]
    edit: Option<PathBuf>,
    /// Approve only if the request has this digest
    #[arg(long, value_name = "DIGEST")]
    digest: Option<String>,
    /// The reason, which goes into the receipt
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,
    /// How long to wait for the action's end, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 60)]
    wait: u64,
}

const COLUMNS: [(&str, usize); 5] =
    [("APPROVAL", 36), ("TOOL", 20), ("TIER", 4), ("EXPIRES", 20), ("SUBJECT", 24)];

impl ApprovalsCommand {
    pub(super) async fn main(self, common: &Common) -> Result<Exit, CliError> {
        let done = match self.verb {
            Verb::List => list(common).await,
            Verb::Watch => watch::main(common).await,
            Verb::Show(which) => show(common, &which.id).await,
            Verb::Approve(args) => approve(common, *args).await,
            Verb::Deny { which, reason } => deny(common, &which.id, reason).await,
        };
        match done {
            // The approval is unknown or already decided: a result of the command, not an error.
            Err(CliError::Refused(problem)) if matches!(problem.status, 404 | 409 | 410) => {
                eprint_line(&CliError::Refused(problem));
                Ok(Exit::Failed)
            }
            done => done,
        }
    }
}

async fn list(common: &Common) -> Result<Exit, CliError> {
    let views = with_client(common, Depth::Policy, all).await?;
    if views.is_empty() {
        eprint_line(&"no approval is pending");
    }
    print_rows(common.output, &COLUMNS, &views, |view| {
        let tier = view.prompt.as_ref().map(|prompt| prompt.tier.clone());
        let expires = view.expires_at.as_deref().unwrap_or_default();
        [
            view.approval_id.clone(),
            view.tool_id.clone(),
            tier.unwrap_or_default(),
            expires.split('.').next().unwrap_or_default().to_owned(),
            view.subject_id.clone(),
        ]
    });
    Ok(Exit::Done)
}

pub(super) async fn all(client: &mut Client) -> Result<Vec<ApprovalView>, CliError> {
    let split = |page: ApprovalList| (page.approvals, page.next);
    Ok(client.pages("/v1/approvals", split).await?)
}

async fn show(common: &Common, id: &ApprovalId) -> Result<Exit, CliError> {
    let view: ApprovalView = with_client(common, Depth::Policy, async |client| {
        let id = short_id::approval(client, id, Purpose::Show).await?;
        get(client, &id, "").await
    })
    .await?;
    if !print_json(common.output, &view) {
        approval_view::print(&approval_view::of_approval(&view));
    }
    Ok(Exit::Done)
}

async fn get<T: DeserializeOwned>(client: &mut Client, id: &ApprovalId, what: &str) -> Result<T, CliError> {
    let path = format!("/v1/approvals/{}{what}", percent_encoded(id.as_str()));
    Ok(client.get(&path).await?)
}

async fn post<T: DeserializeOwned>(
    client: &mut Client,
    id: &ApprovalId,
    what: &str,
    body: &impl Serialize,
) -> Result<T, CliError> {
    let path = format!("/v1/approvals/{}/{what}", percent_encoded(id.as_str()));
    Ok(client.post(&path, body).await?)
}

async fn approve(common: &Common, mut args: Approve) -> Result<Exit, CliError> {
    // Once, so that what is shown is what is approved.
    if short_id::is_short(args.which.id.as_str()) {
        let find =
            async |client: &mut Client| short_id::approval(client, &args.which.id, Purpose::Decide).await;
        args.which.id = with_client(common, Depth::Policy, find).await?;
    }
    let id = &args.which.id;
    let params = args.edit.as_deref().map(read_params).transpose()?;
    let (mut agreed, mut edited_digest) = (true, None);
    if let Some(params) = &params {
        (agreed, edited_digest) = edited(common, &args, params).await?;
    }
    if !agreed || (args.always && !standing_agreed(common, &args).await?) {
        eprint_line(&"nothing was decided");
        return Ok(Exit::Usage);
    }
    let how = match (args.grant, args.always) {
        (true, _) => HowWord::Grant,
        (false, true) => HowWord::Always,
        (false, false) => HowWord::Once,
    };
    let body = ApproveBody {
        how,
        digest: args.digest.clone(),
        params,
        edited_digest,
        reason: args.reason.clone(),
        org: args.org,
        calls_max: args.calls,
        lasts_s: args.lasts,
    };
    let wait = Duration::from_secs(args.wait).as_millis();
    let decided = with_client(common, Depth::Sandbox, async |client| {
        let decided = post(client, id, &format!("approve?wait_ms={wait}"), &body).await?;
        if is_in_process(client) {
            eprint_line(&"approved; a running daemon or `effectd wait` carries it out");
        }
        Ok(decided)
    });
    Ok(print(&decided.await?, common.output))
}

/// Shows what a standing approval would change, and asks for confirmation.
async fn standing_agreed(common: &Common, args: &Approve) -> Result<bool, CliError> {
    let id = &args.which.id;
    let change: StandingView =
        with_client(common, Depth::Policy, async |client| get(client, id, "/always").await).await?;
    let StandingView { org, tool, asked, covered } = change;
    eprint_line(&format!(
        "the mode of {tool} in {org} becomes allow: it would have made {covered} of the last {asked} approvals unnecessary"
    ));
    Ok(is_meant(args))
}

/// Shows the preview of the edited parameters, and asks for confirmation. Returns the digest of the preview.
async fn edited(
    common: &Common,
    args: &Approve,
    params: &Map<String, Value>,
) -> Result<(bool, Option<String>), CliError> {
    let id = &args.which.id;
    let body = EditBody { params: params.clone() };
    let view: PreviewView =
        with_client(common, Depth::Sandbox, async |client| post(client, id, "preview", &body).await).await?;
    for row in approval_view::of_request(&view) {
        eprint_line(&row.text);
    }
    Ok((is_meant(args), view.digest))
}

/// Asks for confirmation, unless `--yes` was given.
fn is_meant(args: &Approve) -> bool {
    if args.yes {
        return true;
    }
    if !std::io::stdin().is_terminal() {
        eprint_line(&"add --yes to confirm");
        return false;
    }
    eprint_line(&"continue? [y/N]");
    let mut answer = String::new();
    let read = std::io::stdin().read_line(&mut answer);
    read.is_ok() && matches!(answer.trim(), "y" | "Y" | "yes")
}

async fn deny(common: &Common, id: &ApprovalId, reason: Option<String>) -> Result<Exit, CliError> {
    let body = DenyBody { reason };
    let decided = with_client(common, Depth::Policy, async |client| {
        let id = short_id::approval(client, id, Purpose::Decide).await?;
        post(client, &id, "deny", &body).await
    });
    print(&decided.await?, common.output);
    Ok(Exit::Done)
}

fn print(view: &DecisionView, form: Form) -> Exit {
    if !print_json(form, view) {
        match &view.action.receipt {
            Some(receipt) => {
                receipt_view::print(receipt, false, Detail::Short);
                action_output::print_result(&view.action);
            }
            None => line(&format!("{}: {}", view.approval.state, view.action.action_id)),
        }
        if let Some(grant) = &view.grant {
            line(&format!("  granted   {} for {}", grant.grant_id, grant.tool));
        }
    }
    view.action.outcome.map_or(Exit::Done, Exit::of)
}

fn read_params(file: &Path) -> Result<Map<String, Value>, CliError> {
    let wrong = |why: String| {
        let what = format!("{}: {why}", file.display());
        CliError::Refused(Box::new(Problem::of(Kind::DecisionInvalid, what)))
    };
    let bytes = run::read_bounded(file).map_err(|error| wrong(error.to_string()))?;
    strict::parse(&bytes, REQUEST_BYTES_MAX).map_err(|error| wrong(error.to_string()))
}
