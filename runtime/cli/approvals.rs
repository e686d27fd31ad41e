//! `effectd approvals …`: what waits for a person, and that person's word. Through the daemon if one runs.

mod watch;

use std::io::{IsTerminal, Read};
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

use super::backend::{Trouble, is_alone, with_client};
use super::output::{Form, Printer, for_programs, line};
use super::{Common, complain, prompt, show};
use crate::exit::Exit;
use crate::runtime::Depth;

/// Look at what waits for a person, approve it or deny it
///
/// Who may decide stands in the policy, and nobody decides about their own requests; where the policy names no approvers,
/// whoever runs effectd does. An approval is for exactly what was asked: if the tool, a rule or a file has changed when the
/// action comes to be carried out, a person is asked again.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  effectd approvals list\n  effectd approvals show 0199f6a2-5a4e-7c10-8d53-3f2b5f0c9a40"
)]
pub(super) struct ApprovalsCommand {
    #[command(subcommand)]
    verb: Verb,
    /// How the answer is shown
    #[arg(
        long,
        short,
        global = true,
        value_enum,
        default_value = "table",
        value_name = "FORM"
    )]
    output: Form,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// List what waits, the oldest first
    #[command(after_help = "Example:\n  effectd approvals list -o json")]
    List,
    /// Look at what waits in the terminal, as it comes, and decide with one key each
    ///
    /// Needs a terminal and a daemon. `a` approves once, `g` grants, `A` approves always, `d` denies with a reason.
    #[command(after_help = "Example:\n  effectd approvals watch")]
    Watch,
    /// Show one of them: what is to happen, why a person is asked, and what was decided
    #[command(after_help = "Example:\n  effectd approvals show 0199f6a2-5a4e-7c10-8d53-3f2b5f0c9a40")]
    Show(Which),
    /// Say yes
    ///
    /// The exit code is that of the action's outcome, 0 if it has not ended yet, 3 if you may not decide, 1 if somebody else
    /// has, and 2 if --always or --edit was not confirmed.
    #[command(
        after_help = "Examples:\n  effectd approvals approve 0199f6a2-5a4e-7c10-8d53-3f2b5f0c9a40\n  \
        effectd approvals approve 0199f6a2-5a4e-7c10-8d53-3f2b5f0c9a41 --grant --calls 5 --for 3600\n  \
        effectd approvals approve 0199f6a2-5a4e-7c10-8d53-3f2b5f0c9a42 --always --yes"
    )]
    Approve(Box<Yes>),
    /// Say no
    #[command(
        after_help = "Example:\n  effectd approvals deny 0199f6a2-5a4e-7c10-8d53-3f2b5f0c9a43 --reason \"not today\""
    )]
    Deny {
        #[command(flatten)]
        which: Which,
        /// Why; it stands in the receipt
        #[arg(long, value_name = "TEXT")]
        reason: Option<String>,
    },
}

#[derive(Debug, clap::Args)]
struct Which {
    /// Its handle
    #[arg(value_name = "APPROVAL")]
    id: ApprovalId,
}

#[derive(Debug, clap::Args)]
struct Yes {
    #[command(flatten)]
    which: Which,
    /// To this one only; this is what happens if nothing else is said
    #[arg(long, conflicts_with_all = ["grant", "always"])]
    once: bool,
    /// And to more calls of the tool, by the same session
    #[arg(long, conflicts_with = "always")]
    grant: bool,
    /// With --grant: by everybody of the organisation; needs an administrator
    #[arg(long, requires = "grant")]
    org: bool,
    /// With --grant: so many calls more
    #[arg(long, value_name = "NUMBER", requires = "grant", value_parser = clap::value_parser!(u32).range(1..))]
    calls: Option<u32>,
    /// With --grant: for so long, in seconds
    #[arg(long = "for", value_name = "SECONDS", requires = "grant")]
    lasts: Option<u64>,
    /// And to all calls of the tool: sets the organisation's mode to `allow`; needs an administrator
    ///
    /// What would change is shown first, with how many past questions it would have spared.
    #[arg(long)]
    always: bool,
    /// Do not ask back before --always and --edit
    #[arg(long)]
    yes: bool,
    /// With the parameters in this file of JSON instead of the planner's; `-` reads standard input
    ///
    /// They are judged and tried out anew. What they would change is shown first, and the yes is to exactly that.
    #[arg(long, value_name = "FILE")]
    edit: Option<PathBuf>,
    /// Only if this is the digest of what is asked
    #[arg(long, value_name = "DIGEST")]
    digest: Option<String>,
    /// Why; it stands in the receipt
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,
    /// How long to wait for the end of the action, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 60)]
    wait: u64,
}

const COLUMNS: [(&str, usize); 5] = [
    ("APPROVAL", 36),
    ("TOOL", 20),
    ("TIER", 4),
    ("EXPIRES", 20),
    ("SUBJECT", 24),
];

impl ApprovalsCommand {
    pub(super) fn main(self, common: &Common) -> Exit {
        let form = self.output;
        super::block_on(async {
            let done = match self.verb {
                Verb::List => list(common, form).await,
                Verb::Watch => watch::main(common).await,
                Verb::Show(which) => one(common, &which.id, form).await,
                Verb::Approve(yes) => say_yes(common, *yes, form).await,
                Verb::Deny { which, reason } => say_no(common, &which.id, reason, form).await,
            };
            match done {
                // That there is nothing of this name, or nothing to decide any more, is an answer.
                Err(Trouble::Refused(problem)) if matches!(problem.status, 404 | 409 | 410) => {
                    complain(&Trouble::Refused(problem));
                    Ok(Exit::Failed)
                }
                done => done,
            }
        })
    }
}

async fn list(common: &Common, form: Form) -> Result<Exit, Trouble> {
    let views = with_client(common, Depth::Policy, all).await?;
    let mut printer = Printer::new(form, true, &COLUMNS);
    if views.is_empty() {
        complain(&"nothing waits for a person");
    }
    for view in &views {
        let tier = view
            .prompt
            .as_ref()
            .map(|prompt| prompt.tier.as_str())
            .unwrap_or_default();
        let expires = view.expires_at.as_deref().unwrap_or_default();
        let expires = expires.split('.').next().unwrap_or_default();
        // Plain data with text keys, for which serde_json has no failure.
        let value = serde_json::to_value(view).unwrap_or_default();
        printer.row(
            &value,
            &[&view.approval_id, &view.tool_id, tier, expires, &view.subject_id],
        );
    }
    printer.finish();
    Ok(Exit::Done)
}

async fn all(client: &mut Client) -> Result<Vec<ApprovalView>, Trouble> {
    let split = |page: ApprovalList| (page.approvals, page.next);
    Ok(client.pages("/v1/approvals", split).await?)
}

async fn one(common: &Common, id: &ApprovalId, form: Form) -> Result<Exit, Trouble> {
    let view: ApprovalView =
        with_client(common, Depth::Policy, async |client| get(client, id, "").await).await?;
    if !for_programs(form, &view) {
        prompt::print(&prompt::of_approval(&view));
    }
    Ok(Exit::Done)
}

async fn get<T: serde::de::DeserializeOwned>(
    client: &mut Client,
    id: &ApprovalId,
    what: &str,
) -> Result<T, Trouble> {
    let path = format!("/v1/approvals/{}{what}", percent_encoded(id.as_str()));
    Ok(client.get(&path).await?)
}

async fn post<T: serde::de::DeserializeOwned>(
    client: &mut Client,
    id: &ApprovalId,
    what: &str,
    body: &impl Serialize,
) -> Result<T, Trouble> {
    let path = format!("/v1/approvals/{}/{what}", percent_encoded(id.as_str()));
    Ok(client.post(&path, body).await?)
}

async fn say_yes(common: &Common, yes: Yes, form: Form) -> Result<Exit, Trouble> {
    let id = &yes.which.id;
    let params = yes.edit.as_deref().map(read_params).transpose()?;
    let (mut agreed, mut edited_digest) = (true, None);
    if let Some(params) = &params {
        (agreed, edited_digest) = edited(common, &yes, params).await?;
    }
    if !agreed || (yes.always && !standing_agreed(common, &yes).await?) {
        complain(&"nothing was decided");
        return Ok(Exit::Usage);
    }
    let how = match (yes.grant, yes.always) {
        (true, _) => HowWord::Grant,
        (false, true) => HowWord::Always,
        (false, false) => HowWord::Once,
    };
    let body = ApproveBody {
        how,
        digest: yes.digest.clone(),
        params,
        edited_digest,
        reason: yes.reason.clone(),
        org: yes.org,
        calls_max: yes.calls,
        lasts_s: yes.lasts,
    };
    let wait = Duration::from_secs(yes.wait).as_millis();
    let decided = with_client(common, Depth::Sandbox, async |client| {
        let decided = post(client, id, &format!("approve?wait_ms={wait}"), &body).await?;
        if is_alone(client) {
            complain(&"approved; it is carried out when a daemon runs, or by `effectd wait`");
        }
        Ok(decided)
    });
    Ok(tell(&decided.await?, form))
}

/// Shows what a standing approval would change, and asks whether that is meant.
async fn standing_agreed(common: &Common, yes: &Yes) -> Result<bool, Trouble> {
    let id = &yes.which.id;
    let change: StandingView = with_client(common, Depth::Policy, async |client| {
        get(client, id, "/always").await
    })
    .await?;
    let StandingView {
        org,
        tool,
        asked,
        covered,
    } = change;
    complain(&format!(
        "the mode of {tool} in {org} becomes allow: nobody would have been asked {covered} of the last {asked} times"
    ));
    Ok(is_meant(yes))
}

/// Shows what the changed parameters would do, and asks whether that is meant. The digest is that of what was shown.
async fn edited(
    common: &Common,
    yes: &Yes,
    params: &serde_json::Map<String, serde_json::Value>,
) -> Result<(bool, Option<String>), Trouble> {
    let id = &yes.which.id;
    let body = EditBody {
        params: params.clone(),
    };
    let view: PreviewView = with_client(common, Depth::Sandbox, async |client| {
        post(client, id, "preview", &body).await
    })
    .await?;
    for row in prompt::of_request(&view) {
        complain(&row.text);
    }
    Ok((is_meant(yes), view.digest))
}

/// Asks whether what was shown is meant, unless that was said before.
fn is_meant(yes: &Yes) -> bool {
    if yes.yes {
        return true;
    }
    if !std::io::stdin().is_terminal() {
        complain(&"say --yes if that is meant");
        return false;
    }
    complain(&"is that meant? [y/N]");
    let mut answer = String::new();
    let read = std::io::stdin().read_line(&mut answer);
    read.is_ok() && matches!(answer.trim(), "y" | "Y" | "yes")
}

async fn say_no(
    common: &Common,
    id: &ApprovalId,
    reason: Option<String>,
    form: Form,
) -> Result<Exit, Trouble> {
    let body = DenyBody { reason };
    let decided = with_client(common, Depth::Policy, async |client| {
        post(client, id, "deny", &body).await
    });
    tell(&decided.await?, form);
    Ok(Exit::Done)
}

fn tell(view: &DecisionView, form: Form) -> Exit {
    if !for_programs(form, view) {
        match &view.action.receipt {
            Some(receipt) => line(show::receipt(receipt, false).trim_end()),
            None => line(&format!("{}: {}", view.approval.state, view.action.action_id)),
        }
        if let Some(grant) = &view.grant {
            line(&format!("  granted   {} for {}", grant.grant_id, grant.tool));
        }
    }
    view.action.outcome.map_or(Exit::Done, Exit::of)
}

fn read_params(file: &Path) -> Result<serde_json::Map<String, serde_json::Value>, Trouble> {
    let mut bytes = Vec::new();
    let most = REQUEST_BYTES_MAX as u64 + 1;
    let read = if file.as_os_str() == "-" {
        std::io::stdin().lock().take(most).read_to_end(&mut bytes)
    } else {
        std::fs::File::open(file).and_then(|file| file.take(most).read_to_end(&mut bytes))
    };
    let wrong = |why: String| {
        let what = format!("{}: {why}", file.display());
        Trouble::Refused(Box::new(Problem::of(Kind::DecisionInvalid, what)))
    };
    read.map_err(|error| wrong(error.to_string()))?;
    strict::parse(&bytes, REQUEST_BYTES_MAX).map_err(|error| wrong(error.to_string()))
}
