//! `effectd approvals …`: what waits for a person, and that person's word. Through the daemon if one runs.

mod watch;

use std::io::{IsTerminal, Read};
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Subcommand;
use effectd_actors::held::decide::{Standing, approve, deny, standing_approval};
use effectd_actors::held::edit::preview_edited;
use effectd_actors::held::{DecideError, Decided, entries};
use effectd_actors::{Decider, Parts};
use effectd_contracts::limits::REQUEST_BYTES_MAX;
use effectd_contracts::{ApprovalId, json as strict};
use effectd_gateway::problem::{Kind, Problem};
use effectd_gateway::views::ActionView;
use effectd_gateway::views::approvals::{
    ApprovalList, ApprovalView, ApproveBody, DecisionView, DenyBody, EditBody, GrantView, HowWord,
    PreviewView, StandingView, undecided,
};
use hyper::Method;
use serde::Serialize;

use super::backend::{Trouble, ask_or};
use super::output::{Form, Printer, for_programs, line};
use super::{Common, complain, prompt, show, stored};
use crate::client::{Client, percent_encoded};
use crate::error::Error;
use crate::exit::Exit;
use crate::judge;
use crate::policy_store;
use crate::runtime::Runtime;
use crate::state::State;

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
    let views = ask_or(
        common,
        async |client| all(client).await,
        async |state| {
            on_stored(common, state, async |parts: &std::sync::Arc<Parts>, _: &State| {
                let (mut after, mut views) = (None, Vec::new());
                loop {
                    let (holds, next) = entries::holds(&*parts.store, after.as_deref())?;
                    let now = parts.clock.now();
                    let open: Vec<_> = holds.into_iter().filter(|hold| hold.value.is_open(now)).collect();
                    views.extend(ApprovalView::all(parts, &open));
                    match next {
                        Some(next) => after = Some(next),
                        None => return Ok(views),
                    }
                }
            })
            .await
        },
    );
    let mut printer = Printer::new(form, true, &COLUMNS);
    let views = views.await?;
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
    let (mut path, mut views) = ("/v1/approvals".to_owned(), Vec::new());
    loop {
        let page: Result<ApprovalList, _> = client.call(Method::GET, &path, "").await?;
        let page = page.map_err(Trouble::Refused)?;
        views.extend(page.approvals);
        match page.next {
            Some(next) => path = format!("/v1/approvals?after={}", percent_encoded(&next)),
            None => return Ok(views),
        }
    }
}

async fn one(common: &Common, id: &ApprovalId, form: Form) -> Result<Exit, Trouble> {
    let view = ask_or(
        common,
        async |client| get(client, id, "").await,
        async |state| {
            on_stored(common, state, async |parts: &std::sync::Arc<Parts>, _: &State| {
                find(parts, id)
            })
            .await
        },
    );
    let view = view.await?;
    if !for_programs(form, &view) {
        prompt::print(&prompt::of_approval(&view));
    }
    Ok(Exit::Done)
}

fn find(parts: &Parts, id: &ApprovalId) -> Result<ApprovalView, DecideError> {
    if let Some(hold) = entries::hold(&*parts.store, id)? {
        return Ok(ApprovalView::of(parts, &hold.value));
    }
    let past = entries::past(&*parts.store, id)?.ok_or(DecideError::Unknown)?;
    Ok(ApprovalView::past(id.as_str(), &past))
}

async fn get<T: serde::de::DeserializeOwned>(
    client: &mut Client,
    id: &ApprovalId,
    what: &str,
) -> Result<T, Trouble> {
    let path = format!("/v1/approvals/{}{what}", percent_encoded(id.as_str()));
    let answer = client.call(Method::GET, &path, "").await?;
    answer.map_err(Trouble::Refused)
}

async fn post<T: serde::de::DeserializeOwned>(
    client: &mut Client,
    id: &ApprovalId,
    what: &str,
    body: &impl Serialize,
) -> Result<T, Trouble> {
    let path = format!("/v1/approvals/{}/{what}", percent_encoded(id.as_str()));
    // Plain data with text keys, for which serde_json has no failure.
    let body = serde_json::to_vec(body).unwrap_or_default();
    let answer = client.call(Method::POST, &path, body).await?;
    answer.map_err(Trouble::Refused)
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
    let decided = ask_or(
        common,
        async |client| {
            let wait = Duration::from_secs(yes.wait).as_millis();
            post(client, id, &format!("approve?wait_ms={wait}"), &body).await
        },
        async |state| {
            let by = local(common, state)?;
            let view = on_stored(
                common,
                state,
                async |parts: &std::sync::Arc<Parts>, place: &State| {
                    let mut wish = effectd_gateway::wish(body.clone());
                    wish.with = match how {
                        HowWord::Always => {
                            let change = judge::change(effectd_gateway::mode(standing(parts, id)?));
                            Some(policy_store::prepare(place, &*parts.store, change).map_err(not_set)?)
                        }
                        HowWord::Once | HowWord::Grant => None,
                    };
                    let decided = approve(parts, id, &by, wish).await?;
                    Ok(decision_view(parts, &decided))
                },
            );
            let view = view.await?;
            complain(&"approved; it is carried out when a daemon runs, or by `effectd wait`");
            Ok(view)
        },
    );
    Ok(tell(&decided.await?, form))
}

fn not_set(error: Error) -> DecideError {
    let message = format!("nothing is approved, since the mode cannot be set: {error}");
    let code = effectd_contracts::Code::PolicyDenied;
    DecideError::Invalid(effectd_contracts::Failure::new(
        code,
        effectd_contracts::Phase::Hold,
        message,
    ))
}

fn standing(parts: &Parts, id: &ApprovalId) -> Result<Standing, DecideError> {
    let hold = entries::hold(&*parts.store, id)?.ok_or(DecideError::Unknown)?;
    standing_approval(parts, &hold.value)
}

/// Shows what a standing approval would change, and asks whether that is meant.
async fn standing_agreed(common: &Common, yes: &Yes) -> Result<bool, Trouble> {
    let id = &yes.which.id;
    let change: StandingView = ask_or(
        common,
        async |client| get(client, id, "/always").await,
        async |state| {
            on_stored(common, state, async |parts: &std::sync::Arc<Parts>, _: &State| {
                standing(parts, id).map(StandingView::from)
            })
            .await
        },
    )
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
    let view: PreviewView = ask_or(
        common,
        async |client| post(client, id, "preview", &body).await,
        async |state| {
            let by = local(common, state)?;
            on_stored(common, state, async |parts: &std::sync::Arc<Parts>, _: &State| {
                let edited = preview_edited(parts, id, &by, params.clone()).await?;
                Ok(PreviewView::edited(edited))
            })
            .await
        },
    )
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
    let decided = ask_or(
        common,
        async |client| post(client, id, "deny", &body).await,
        async |state| {
            let by = local(common, state)?;
            on_stored(common, state, async |parts: &std::sync::Arc<Parts>, _: &State| {
                let decided = deny(parts, id, &by, body.reason.clone()).await?;
                Ok(decision_view(parts, &decided))
            })
            .await
        },
    );
    tell(&decided.await?, form);
    Ok(Exit::Done)
}

/// Who decides where no daemon runs: whoever can open the state directory.
pub(super) fn local(common: &Common, state: &Path) -> Result<Decider, Trouble> {
    Ok(Decider {
        principal: stored::direct_config(common, state)?.principal,
        operator: true,
    })
}

/// Works on the store of a state directory that nobody else uses, without starting anything.
pub(super) async fn on_stored<T>(
    common: &Common,
    state: &Path,
    work: impl AsyncFnOnce(&std::sync::Arc<Parts>, &State) -> Result<T, DecideError>,
) -> Result<T, Trouble> {
    State::existing(state)?;
    let config = stored::direct_config(common, state)?;
    let done = Runtime::on_stored(config, work).await?;
    done.map_err(|error| Trouble::Refused(Box::new(undecided(&error, Kind::ApprovalUnknown))))
}

fn decision_view(parts: &Parts, decided: &Decided) -> DecisionView {
    let lead = decided.hold.lead().map(|lead| lead.action_id.clone());
    let done = lead.clone().and_then(|lead| {
        let stored = parts.store.receipt_of(&lead).ok().flatten()?;
        let done = effectd_actors::Done {
            receipt: std::sync::Arc::new(stored.parse().ok()?),
            before: false,
            result: None,
        };
        Some(ActionView::done(lead, &done))
    });
    let lead = lead.unwrap_or_else(effectd_contracts::ActionId::fresh);
    DecisionView {
        approval: ApprovalView::of(parts, &decided.hold),
        action: done.unwrap_or_else(|| ActionView::accepted(lead)),
        grant: decided
            .grant
            .as_ref()
            .map(|grant| GrantView::of(grant, parts.clock.now())),
    }
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
