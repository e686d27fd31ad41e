//! `effectd approvals …`: pending approvals and the decisions about them.

mod watch;

pub(super) use watch::open as decide_on;

use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Subcommand;
use effectd_contracts::limits::REQUEST_BYTES_MAX;
use effectd_contracts::text::counted;
use effectd_contracts::{ApprovalId, Operation, SpaceId, SubjectId, ToolId, json as strict};
use effectd_gateway::client::{Client, ClientError, percent_encoded};
use effectd_gateway::problem::{Kind, Problem};
use effectd_gateway::views::approvals::{
    ApprovalList, ApprovalView, ApproveBody, DecisionView, DenyBody, EditBody, HowWord, PreviewView,
    StandingView,
};
use effectd_gateway::views::grants::GrantWould;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use super::completions::{approvals, complete, tools};
use super::mutation::ChangeArgs;
use super::receipt_view::{self, Detail};
use super::short_id::Purpose;
use super::{
    CliError, Common, Confirm, Depth, Form, Printer, TIME, action_output, approval_view, eprint_line,
    is_in_process, line, print_json, print_rows, run, second, short_id, span, span_text, with_client,
};
use crate::exit::Exit;
use crate::tui::shown;

/// The columns for what an approval is about, in a list to confirm.
const ABOUT_COLUMNS: usize = 80;

/// List pending approvals, approve or deny them
///
/// The policy says who may decide, and nobody decides about their own requests; if the policy names no approvers, the user who runs
/// effectd decides. An approval is for exactly what was shown: if the tool, a rule or a file changes before the action runs, a person is
/// asked again.
#[derive(Debug, Subcommand)]
#[command(
    after_help = "Examples:\n  effectd approvals list\n  effectd approvals show 0199f6a2-5a4e-7c10-8d53-3f2b5f0c9a40"
)]
pub(super) enum ApprovalsCommand {
    /// List pending approvals, oldest first
    #[command(after_help = "Example:\n  effectd approvals list --tool files.write_text")]
    List {
        #[command(flatten)]
        filter: Filter,
    },
    /// Show pending approvals in the terminal as they come, and decide with one key
    ///
    /// Needs a terminal and a daemon. `a` approves once, `g` grants, `A` approves always, `d` denies with a reason, `m` marks
    /// one for `a` and `d`. Enter gives the selected one the whole screen. After your decision the next one is selected.
    #[command(after_help = "Example:\n  effectd approvals watch")]
    Watch,
    /// Show one approval: what would happen, why a person is asked, and the decision
    #[command(after_help = "Example:\n  effectd approvals show 0199f6a2-5a4e-7c10-8d53-3f2b5f0c9a40")]
    Show(Which),
    /// Approve one, or several at once
    ///
    /// The exit code is that of the action's outcome, 0 if it has not ended yet, 3 if you may not decide, 1 if somebody else has
    /// decided, and 2 if --always, --edit or --grant was not confirmed. Several are shown first; exactly those are approved, and only
    /// as they were shown. Those of tier R4 are left: each needs a command of its own. The exit code is then 0 if all are approved and
    /// succeeded, otherwise 1.
    #[command(after_help = "Examples:\n  effectd approvals approve 0199f6a2-5a4e-7c10-8d53-3f2b5f0c9a40\n  \
        effectd approvals approve 0199f6a2-5a4e-7c10-8d53-3f2b5f0c9a41 --grant --calls 5 --for 1h\n  \
        effectd approvals approve 0199f6a2-5a4e-7c10-8d53-3f2b5f0c9a42 --always --yes\n  \
        effectd approvals approve --tool files.write_text --space shared:household")]
    Approve(Box<Approve>),
    /// Deny one, or several at once
    ///
    /// Several are shown first, and exactly those are denied.
    #[command(
        after_help = "Examples:\n  effectd approvals deny 0199f6a2-5a4e-7c10-8d53-3f2b5f0c9a43 --reason \"not today\"\n  \
        effectd approvals deny --subject agent://planner@deviceA --yes"
    )]
    Deny {
        #[command(flatten)]
        several: Several,
        /// The reason, which goes into the receipt
        #[arg(long, value_name = "TEXT")]
        reason: Option<String>,
        #[command(flatten)]
        confirm: Confirm,
    },
    /// Judge pending approvals again by the policy and the grants that are in force now
    ///
    /// After the policy's files have changed, what is denied now ends by itself; what needs no person any more stays pending until this
    /// command starts it. The numbers are shown first.
    #[command(
        after_help = "Example:\n  effectd approvals rejudge --reason \"the new policy permits them\" --yes"
    )]
    Rejudge {
        #[command(flatten)]
        args: ChangeArgs,
    },
}

#[derive(Debug, clap::Args)]
pub(super) struct Which {
    /// The approval's id
    #[arg(value_name = "APPROVAL", add = complete(approvals))]
    id: ApprovalId,
}

#[derive(Debug, clap::Args)]
pub(super) struct Several {
    /// The approvals' ids
    #[arg(
        value_name = "APPROVAL",
        add = complete(approvals),
        required_unless_present_any = ["tool", "subject", "space"],
        conflicts_with_all = ["tool", "subject", "space"]
    )]
    ids: Vec<ApprovalId>,
    #[command(flatten)]
    filter: Filter,
}

#[derive(Debug, clap::Args)]
pub(super) struct Filter {
    /// Only those of this tool
    #[arg(long, value_name = "TOOL", add = complete(tools))]
    tool: Option<ToolId>,
    /// Only those of this subject
    #[arg(long, value_name = "SUBJECT")]
    subject: Option<SubjectId>,
    /// Only those of this space
    #[arg(long, value_name = "SPACE")]
    space: Option<SpaceId>,
}

#[derive(Debug, clap::Args)]
pub(super) struct Approve {
    #[command(flatten)]
    several: Several,
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
    /// With --grant: how long it lasts: `90s`, `30m`, `2h`, `7d`; a bare number is seconds
    #[arg(long = "for", value_name = TIME, value_parser = span, requires = "grant")]
    lasts: Option<Duration>,
    /// Approve this action and all later calls of the tool: sets the organisation's mode to `allow`; needs an administrator
    ///
    /// The change is shown first, with the number of past approvals that it would have made unnecessary.
    #[arg(long)]
    always: bool,
    #[command(flatten)]
    confirm: Confirm,
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
    /// How long to wait for the action's end: `90s`, `30m`, `2h`; a bare number is seconds
    #[arg(long, value_name = TIME, value_parser = span, default_value = "1m")]
    wait: Duration,
}

const COLUMNS: [(&str, usize); 8] = [
    ("APPROVAL", 36),
    ("TOOL", 20),
    ("TIER", 4),
    ("SINCE", 20),
    ("EXPIRES", 20),
    ("SUBJECT", 24),
    ("SPACE", 18),
    ("ABOUT", 0),
];
const DECIDED: [(&str, usize); 2] = [("APPROVAL", 36), ("NOW", 0)];
/// The tier whose actions are approved one by one.
const ONE_BY_ONE: &str = "R4";

impl ApprovalsCommand {
    pub(super) async fn main(self, common: &Common) -> Result<Exit, CliError> {
        let done = match self {
            Self::List { filter } => list(common, &filter).await,
            Self::Watch => watch::main(common).await,
            Self::Show(which) => show(common, &which.id).await,
            Self::Approve(args) => approve(common, *args).await,
            Self::Deny { several, reason, confirm } => deny(common, several, confirm, reason).await,
            Self::Rejudge { args } => args.run(common, &Operation::Rejudge {}).await,
        };
        match done {
            // The approval is unknown or already decided: a result of the command, not an error.
            Err(CliError::Refused(problem)) if matches!(problem.status, 404 | 409 | 410) => {
                Err(CliError::Refused(problem).exiting(Exit::Failed))
            }
            done => done,
        }
    }
}

async fn list(common: &Common, filter: &Filter) -> Result<Exit, CliError> {
    let mut views = with_client(common, Depth::Policy, all).await?;
    views.retain(|view| filter.takes(view));
    Ok(print_rows(common.output, &COLUMNS, &views, |view| {
        [
            view.approval_id.clone(),
            view.tool_id.clone(),
            tier(view).to_owned(),
            second(&view.asked_at),
            second(view.expires_at.as_deref().unwrap_or_default()),
            view.subject_id.clone(),
            view.space_id.clone(),
            about(view).to_owned(),
        ]
    }))
}

fn tier(view: &ApprovalView) -> &str {
    view.prompt.as_ref().map(|prompt| prompt.tier.as_str()).unwrap_or_default()
}

pub(super) fn about(view: &ApprovalView) -> &str {
    view.prompt.as_ref().and_then(|prompt| prompt.about.as_deref()).unwrap_or_default()
}

impl Filter {
    fn takes(&self, view: &ApprovalView) -> bool {
        let tool = self.tool.as_ref().is_none_or(|tool| tool.as_str() == view.tool_id);
        let subject = self.subject.as_ref().is_none_or(|subject| subject.as_str() == view.subject_id);
        tool && subject && self.space.as_ref().is_none_or(|space| space.as_str() == view.space_id)
    }
}

impl Several {
    /// The named or selected pending approvals. Each id must name one.
    async fn pending(&self, client: &mut Client) -> Result<Vec<ApprovalView>, CliError> {
        let mut views = all(client).await?;
        let mut named = Vec::new();
        for word in self.ids.iter().map(ApprovalId::as_str) {
            let found = short_id::pick(word, views.iter().map(|view| view.approval_id.as_str()))?;
            Purpose::Decide.check(word, found)?;
            let gone =
                || CliError::request(format!("no pending approval has the id {word}; nothing was decided"));
            named.push(found.ok_or_else(gone)?.to_owned());
        }
        views.retain(|view| match self.ids.is_empty() {
            true => self.filter.takes(view),
            false => named.contains(&view.approval_id),
        });
        Ok(views)
    }
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

async fn approve(common: &Common, args: Approve) -> Result<Exit, CliError> {
    let [id] = args.several.ids.as_slice() else {
        if args.grant || args.always || args.edit.is_some() || args.digest.is_some() {
            return Err(CliError::request(
                "--grant, --always, --edit and --digest are for one approval, by its id",
            ));
        }
        let Approve { several, confirm, reason, wait, .. } = args;
        return decide_all(common, &several, confirm, Verdict::Approve { wait }, reason).await;
    };
    let mut id = id.clone();
    // Once, so that what is shown is what is approved.
    if short_id::is_short(id.as_str()) {
        let find = async |client: &mut Client| short_id::approval(client, &id, Purpose::Decide).await;
        id = with_client(common, Depth::Policy, find).await?;
    }
    let id = &id;
    let params = args.edit.as_deref().map(read_params).transpose()?;
    let (mut agreed, mut edited_digest) = (true, None);
    if let Some(params) = &params {
        (agreed, edited_digest) = edited(common, (id, &args), params).await?;
    }
    if !agreed
        || (args.always && !standing_agreed(common, (id, &args)).await?)
        || (args.grant && !grant_agreed(common, (id, &args)).await?)
    {
        return Err(CliError::request("nothing was decided"));
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
        lasts_s: args.lasts.map(|lasts| lasts.as_secs()),
    };
    if args.confirm.dry_run {
        let preview = async |client: &mut Client| post(client, id, "approve?preview=true", &body).await;
        let _: DecisionView = with_client(common, Depth::Sandbox, preview).await?;
        let how = how_it_approves(common, (id, &args)).await?;
        only_shows(common, id, ("approve", &how), args.confirm).await?;
        return Ok(Exit::Done);
    }
    let wait = args.wait.as_millis();
    let decided = with_client(common, Depth::Sandbox, async |client| {
        let decided = post(client, id, &format!("approve?wait_ms={wait}"), &body).await?;
        if is_in_process(client) {
            eprint_line(&"approved; a running daemon or `effectd wait` carries it out");
        }
        Ok(decided)
    });
    Ok(print(&decided.await?, common.output))
}

/// What an approval covers, in words for a dry run.
async fn how_it_approves(common: &Common, (id, args): (&ApprovalId, &Approve)) -> Result<String, CliError> {
    let mut how = if args.always {
        let change: StandingView =
            with_client(common, Depth::Policy, async |client| get(client, id, "/always").await).await?;
        format!(", always in {}", change.org)
    } else if args.grant {
        let calls = args
            .calls
            .map_or_else(|| "further calls".to_owned(), |calls| counted(calls.into(), "further call"));
        let lasts = args.lasts.map_or_else(String::new, |lasts| format!(" for {}", span_text(lasts)));
        let whose = if args.org { "the organisation" } else { "the session" };
        format!(", and grant {whose} {calls}{lasts}")
    } else {
        ", once".to_owned()
    };
    if args.edit.is_some() {
        how.push_str(", with the edited parameters");
    }
    Ok(how)
}

/// Shows what a standing approval would change, and asks for confirmation.
async fn standing_agreed(common: &Common, (id, args): (&ApprovalId, &Approve)) -> Result<bool, CliError> {
    let change: StandingView =
        with_client(common, Depth::Policy, async |client| get(client, id, "/always").await).await?;
    let StandingView { org, tool, asked, covered, released } = change;
    eprint_line(&format!(
        "the mode of {tool} in {org} becomes allow: it would have made {covered} of the last {asked} approvals unnecessary"
    ));
    report_released(released);
    Ok(is_meant(args))
}

/// Asks for confirmation if the grant would start other pending actions, too.
async fn grant_agreed(common: &Common, (id, args): (&ApprovalId, &Approve)) -> Result<bool, CliError> {
    let calls = args.calls.map_or_else(String::new, |calls| format!("&calls_max={calls}"));
    let what = format!("/grant?org={}{calls}", args.org);
    let would: GrantWould =
        with_client(common, Depth::Policy, async |client| get(client, id, &what).await).await?;
    report_released(would.released);
    Ok(would.released == 0 || is_meant(args))
}

fn report_released(released: u64) {
    if released > 0 {
        eprint_line(&format!("other pending approvals that start at once: {released}"));
    }
}

/// Shows the preview of the edited parameters, and asks for confirmation. Returns the digest of the preview.
async fn edited(
    common: &Common,
    (id, args): (&ApprovalId, &Approve),
    params: &Map<String, Value>,
) -> Result<(bool, Option<String>), CliError> {
    let body = EditBody { params: params.clone() };
    let view: PreviewView =
        with_client(common, Depth::Sandbox, async |client| post(client, id, "preview", &body).await).await?;
    for row in approval_view::of_request(&view) {
        eprint_line(&row.text);
    }
    Ok((is_meant(args), view.digest))
}

/// Asks for confirmation, unless `--yes` was given or nothing is decided.
fn is_meant(args: &Approve) -> bool {
    if args.confirm.yes || args.confirm.dry_run {
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

/// For a dry run, prints what would be decided and returns `true`.
async fn only_shows(
    common: &Common,
    id: &ApprovalId,
    (verb, how): (&str, &str),
    confirm: Confirm,
) -> Result<bool, CliError> {
    if !confirm.dry_run {
        return Ok(false);
    }
    let view: ApprovalView = with_client(common, Depth::Policy, async |client| {
        let id = short_id::approval(client, id, Purpose::Decide).await?;
        get(client, &id, "").await
    })
    .await?;
    let ApprovalView { approval_id, state, tool_id, subject_id, .. } = view;
    if state != "pending" {
        let why = format!("{approval_id} is not pending: {state}");
        return Err(CliError::request(why).exiting(Exit::Failed));
    }
    Ok(confirm.only_shows(&[format!("{verb} {approval_id}: {tool_id} for {subject_id}{how}")]))
}

async fn deny(
    common: &Common,
    several: Several,
    confirm: Confirm,
    reason: Option<String>,
) -> Result<Exit, CliError> {
    let [id] = several.ids.as_slice() else {
        return decide_all(common, &several, confirm, Verdict::Deny, reason).await;
    };
    if only_shows(common, id, ("deny", ""), confirm).await? {
        return Ok(Exit::Done);
    }
    let body = DenyBody { reason };
    let decided = with_client(common, Depth::Policy, async |client| {
        let id = short_id::approval(client, id, Purpose::Decide).await?;
        post(client, &id, "deny", &body).await
    });
    print(&decided.await?, common.output);
    Ok(Exit::Done)
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Verdict {
    Approve { wait: Duration },
    Deny,
}

/// Shows several approvals, asks, and decides exactly those, each for the digest that was shown.
async fn decide_all(
    common: &Common,
    several: &Several,
    confirm: Confirm,
    verdict: Verdict,
    reason: Option<String>,
) -> Result<Exit, CliError> {
    let mut views = with_client(common, Depth::Policy, async |client| several.pending(client).await).await?;
    let listed = views.len();
    if verdict != Verdict::Deny {
        views.retain(|view| tier(view) != ONE_BY_ONE);
    }
    let left = listed - views.len();
    if left > 0 {
        eprint_line(&format!("{left} of tier {ONE_BY_ONE} left: approve each by its id"));
    }
    if views.is_empty() {
        return Err(CliError::request("there is no such approval to decide").exiting(Exit::Failed));
    }
    let verb = if verdict == Verdict::Deny { "deny" } else { "approve" };
    let says = views.iter().map(|view| format!("{verb} {}", in_one_line(view)));
    if !confirm.confirmed(&says.collect::<Vec<_>>()) {
        return Ok(confirm.declined());
    }
    let mut printer = Printer::new(common.output, true, &DECIDED);
    let ended = with_client(common, Depth::Sandbox, async |client| {
        let mut exit = if left > 0 { Exit::Failed } else { Exit::Done };
        if is_in_process(client) && verdict != Verdict::Deny {
            eprint_line(&"a running daemon or `effectd wait` carries out what is approved");
        }
        for view in &views {
            match decide_one(client, view, verdict, reason.clone()).await {
                Ok(decision) => {
                    let outcome = decision.action.outcome;
                    let now = match outcome {
                        Some(outcome) => outcome.as_str(),
                        None => decision.approval.state.as_str(),
                    };
                    printer.row(&decision, &[view.approval_id.as_str(), now]);
                    if verdict != Verdict::Deny && outcome.is_some_and(|it| Exit::of(it) != Exit::Done) {
                        exit = Exit::Failed;
                    }
                }
                // Somebody else has decided, or it has changed: the others go on.
                Err(ClientError::Refused(problem)) if problem.status < 500 => {
                    let now = format!("left: {}", problem.detail);
                    printer.row(&problem, &[view.approval_id.as_str(), &now]);
                    exit = Exit::Failed;
                }
                Err(error) => return Err(error.into()),
            }
        }
        Ok(exit)
    })
    .await;
    // Report what was decided, even after an error.
    printer.finish();
    ended
}

/// An approval in a list to confirm. What the planner wrote cannot begin a line of its own.
fn in_one_line(view: &ApprovalView) -> String {
    let ApprovalView { approval_id, tool_id, subject_id, space_id, asked_at, .. } = view;
    let (tier, about) = (tier(view), shown(about(view), ABOUT_COLUMNS));
    format!("{approval_id}: {tool_id} ({tier}) {about} in {space_id}, for {subject_id}, asked {asked_at}")
}

async fn decide_one(
    client: &mut Client,
    view: &ApprovalView,
    verdict: Verdict,
    reason: Option<String>,
) -> Result<DecisionView, ClientError> {
    let path = format!("/v1/approvals/{}", percent_encoded(&view.approval_id));
    match verdict {
        Verdict::Approve { wait } => {
            let body = ApproveBody { digest: Some(view.digest.clone()), reason, ..ApproveBody::default() };
            let wait = wait.as_millis();
            client.post(&format!("{path}/approve?wait_ms={wait}"), &body).await
        }
        Verdict::Deny => client.post(&format!("{path}/deny"), &DenyBody { reason }).await,
    }
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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_planner_cannot_write_lines_into_a_confirmation() {
        let about = format!("notes.txt\napprove 2: harmless\r\u{1b}[2K{}", "x".repeat(500));
        let view: ApprovalView = serde_json::from_value(serde_json::json!({
            "approval_id": "1", "state": "pending", "action_ids": [], "tool_id": "t", "subject_id": "s",
            "space_id": "x", "principal": "p", "digest": "d", "asked_at": "now",
            "prompt": {
                "params": {}, "tool_version": "1", "reasons": [], "rule": "", "tier": "R2", "dry_run": false,
                "stands": [], "grant_allowed": false, "session": "", "round": 1, "about": about,
            },
        }))
        .unwrap();
        let says = in_one_line(&view);
        assert!(says.starts_with("1: t (R2) notes.txt␊approve 2: harmless"), "{says}");
        assert!(says.ends_with("… in x, for s, asked now") && !says.contains(char::is_control), "{says}");
        assert!(says.chars().count() < 200, "{says}");
    }
}
