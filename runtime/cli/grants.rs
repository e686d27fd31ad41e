//! `effectd grants …`: pre-approvals with a budget. Through the daemon if one runs.

use clap::Subcommand;
use effectd_contracts::GrantId;
use effectd_gateway::client::{Client, percent_encoded};
use effectd_gateway::views::approvals::{GrantBody, GrantList, GrantView, GrantWould};
use hyper::Method;

use super::backend::{Trouble, with_client};
use super::operate::Confirm;
use super::output::{Form, Printer};
use super::{Common, complain};
use crate::exit::Exit;
use crate::runtime::Depth;

/// List, ask for, make and take back grants: pre-approvals with a budget
///
/// A grant spares a person the same question again. It never stands in for actions of the tiers R3 and R4, for spaces that
/// are not GREEN, or for a tool whose description has changed. One tool for one session is an approver's to grant,
/// everything wider an administrator's; planners can only ask.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  effectd grants list")]
pub(super) struct GrantsCommand {
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
    /// List grants: those that are asked for, in force, or over since not long ago
    #[command(after_help = "Example:\n  effectd grants list -o json")]
    List,
    /// Ask for a grant; somebody who may puts it in force
    ///
    /// If you may make it yourself, it would be in force at once: what that means is said first, and you are asked.
    #[command(
        after_help = "Example:\n  effectd grants request --org home --tool files.copy --calls 5 --reason \"the weekly backup\" --yes"
    )]
    Request {
        #[command(flatten)]
        new: New,
        #[command(flatten)]
        confirm: Confirm,
    },
    /// Make a grant, or put one in force that somebody asked for
    #[command(
        after_help = "Examples:\n  effectd grants create --org home --tool files.copy --calls 5 --for 3600 --yes\n  \
        effectd grants create --from 0199f6a2-5a4e-7c10-8d53-3f2b5f0c9a50 --yes"
    )]
    Create(Create),
    /// Take a grant back, at once
    #[command(after_help = "Example:\n  effectd grants revoke 0199f6a2-5a4e-7c10-8d53-3f2b5f0c9a50 --yes")]
    Revoke {
        /// Which grant
        #[arg(value_name = "GRANT")]
        id: GrantId,
        #[command(flatten)]
        confirm: Confirm,
    },
}

#[derive(Debug, clap::Args)]
struct New {
    /// The organisation, as the policy names it
    #[arg(long, value_name = "NAME")]
    org: String,
    /// The tools: an id, `<source>.*`, or `*`
    #[arg(long, value_name = "TOOL")]
    tool: String,
    /// The session: `agent:<subject>` for a planner without one; needs no administrator then
    #[arg(long, value_name = "ID")]
    session: Option<String>,
    /// For so many calls
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u32).range(1..))]
    calls: Option<u32>,
    /// For so long, in seconds
    #[arg(long = "for", value_name = "SECONDS")]
    lasts: Option<u64>,
    /// What for
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,
}

#[derive(Debug, clap::Args)]
struct Create {
    /// The one that somebody asked for
    #[arg(long, value_name = "GRANT", conflicts_with_all = ["org", "tool", "session", "calls", "lasts", "reason"])]
    from: Option<GrantId>,
    #[command(flatten)]
    new: Option<New>,
    #[command(flatten)]
    confirm: Confirm,
}

const COLUMNS: [(&str, usize); 6] = [
    ("GRANT", 36),
    ("STATE", 9),
    ("TOOL", 20),
    ("CALLS", 9),
    ("EXPIRES", 20),
    ("FOR", 24),
];

impl GrantsCommand {
    pub(super) fn main(self, common: &Common) -> Exit {
        super::block_on(async {
            let many = matches!(self.verb, Verb::List);
            if let Some((confirm, says)) = self.verb.preview(common).await?
                && !confirm.given(&says)
            {
                return Ok(Exit::Usage);
            }
            let answer = with_client(common, Depth::Policy, async |client| self.verb.ask(client).await).await;
            let views = match answer {
                Err(Trouble::Refused(problem)) if problem.status == 404 => {
                    complain(&Trouble::Refused(problem));
                    return Ok(Exit::Failed);
                }
                answer => answer?,
            };
            let mut printer = Printer::new(self.output, many, &COLUMNS);
            for view in &views {
                let cells = cells(view);
                // Plain data with text keys, for which serde_json has no failure.
                let value = serde_json::to_value(view).unwrap_or_default();
                printer.row(&value, &cells.each_ref().map(String::as_str));
            }
            printer.finish();
            Ok(Exit::Done)
        })
    }
}

fn cells(view: &GrantView) -> [String; 6] {
    let most = view
        .calls_max
        .map_or_else(|| "-".to_owned(), |most| most.to_string());
    let expires = view.expires_at.as_deref().unwrap_or("-");
    [
        view.grant_id.clone(),
        view.state.clone(),
        view.tool.clone(),
        format!("{}/{most}", view.calls_used),
        expires.split('.').next().unwrap_or_default().to_owned(),
        view.session
            .clone()
            .unwrap_or_else(|| format!("all of {}", view.org)),
    ]
}

/// A grant in words, if it is there and may be looked at.
async fn known(common: &Common, id: &GrantId) -> Result<String, Trouble> {
    let views = with_client(common, Depth::Policy, all).await?;
    let found = views.iter().find(|view| view.grant_id == id.as_str());
    Ok(found.map_or_else(|| format!("grant {id}"), |view| cells(view).join("  ")))
}

impl New {
    fn says(&self) -> String {
        let whom = self.session.as_ref().map_or_else(
            || format!("everybody of {}", self.org),
            |session| format!("the session {session} of {}", self.org),
        );
        let calls = self.calls.map_or_else(
            || "any number of calls".to_owned(),
            |calls| format!("{calls} calls"),
        );
        let lasts = self
            .lasts
            .map_or_else(String::new, |seconds| format!(" within {seconds} s"));
        format!("nobody is asked about {} for {whom}: {calls}{lasts}", self.tool)
    }

    /// Whether asking for it would put it in force, since whoever asks may make it.
    async fn would_be_in_force(&self, common: &Common) -> Result<bool, Trouble> {
        let would: GrantWould = with_client(common, Depth::Policy, async |client| {
            Ok(client.post("/v1/grants/requests/preview", &self.body()).await?)
        })
        .await?;
        Ok(would.in_force)
    }

    fn body(&self) -> GrantBody {
        GrantBody {
            org: self.org.clone(),
            session: self.session.clone(),
            tool: self.tool.clone(),
            calls_max: self.calls,
            lasts_s: self.lasts,
            reason: self.reason.clone(),
        }
    }
}

enum One<'a> {
    Request(&'a New),
    Create(&'a New),
    Activate(&'a GrantId),
    Revoke(&'a GrantId),
}

impl Verb {
    fn one(&self) -> Option<One<'_>> {
        match self {
            Verb::List => None,
            Verb::Request { new, .. } => Some(One::Request(new)),
            Verb::Create(Create { from: Some(id), .. }) => Some(One::Activate(id)),
            // One of the two is there: clap has seen to it that what is not `--from` is a whole grant.
            Verb::Create(Create { from: None, new, .. }) => new.as_ref().map(One::Create),
            Verb::Revoke { id, .. } => Some(One::Revoke(id)),
        }
    }

    /// What would change, for those who change something.
    async fn preview(&self, common: &Common) -> Result<Option<(Confirm, Vec<String>)>, Trouble> {
        let confirm = match self {
            Verb::List => return Ok(None),
            Verb::Request { confirm, .. }
            | Verb::Create(Create { confirm, .. })
            | Verb::Revoke { confirm, .. } => *confirm,
        };
        let says = match self.one() {
            None => return Ok(None),
            Some(One::Request(new)) if new.would_be_in_force(common).await? => {
                vec![format!("you may grant this yourself; at once, {}", new.says())]
            }
            // Asking for one that somebody else must grant puts nothing in force.
            Some(One::Request(_)) => return Ok(None),
            Some(One::Create(new)) => vec![new.says()],
            Some(One::Activate(id)) => vec![format!("in force from now on: {}", known(common, id).await?)],
            Some(One::Revoke(id)) => vec![format!("taken back: {}", known(common, id).await?)],
        };
        Ok(Some((confirm, says)))
    }

    async fn ask(&self, client: &mut Client) -> Result<Vec<GrantView>, Trouble> {
        let path = |id: &GrantId, verb: &str| format!("/v1/grants/{}/{verb}", percent_encoded(id.as_str()));
        let one = match self.one() {
            None => return all(client).await,
            Some(One::Request(new)) => client.post("/v1/grants/requests", &new.body()).await,
            Some(One::Create(new)) => client.post("/v1/grants", &new.body()).await,
            Some(One::Activate(id)) => client.call(Method::POST, &path(id, "activate"), "").await,
            Some(One::Revoke(id)) => client.call(Method::POST, &path(id, "revoke"), "").await,
        };
        Ok(vec![one?])
    }
}

async fn all(client: &mut Client) -> Result<Vec<GrantView>, Trouble> {
    let split = |page: GrantList| (page.grants, page.next);
    Ok(client.pages("/v1/grants", split).await?)
}
