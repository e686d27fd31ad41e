//! `effectd grants …`: pre-approvals with a budget.

use std::time::Duration;

use clap::Subcommand;
use effectd_contracts::GrantId;
use effectd_contracts::text::counted;
use effectd_gateway::client::percent_encoded;
use effectd_gateway::views::grants::{GrantBody, GrantList, GrantView, GrantWould};
use hyper::Method;

use super::mutation::unknown_fails;
use super::{
    CliError, Common, Confirm, Depth, TIME, pages, post, print_one, print_rows, second, short_id, span,
    span_text, with_client,
};
use crate::exit::Exit;

/// List, request, create and revoke grants: pre-approvals with a budget
///
/// A grant replaces the same approval for further calls. It never covers actions of the risk tiers R3 and R4, or spaces that are not
/// GREEN. Pending approvals that it covers start, and their number is shown first. An approver may grant one tool for one session; everything wider needs an
/// administrator. Planners can only request. A grant for command.run names one command of the policy.
#[derive(Debug, Subcommand)]
#[command(after_help = "Example:\n  effectd grants list")]
pub(super) enum GrantsCommand {
    /// List grants: requested, in force, or ended recently
    #[command(after_help = "Example:\n  effectd grants list -o json")]
    List,
    /// Request a grant, which somebody with the authority puts in force
    ///
    /// If you have the authority yourself, it would be in force at once: effectd shows what that means and asks first.
    #[command(
        after_help = "Example:\n  effectd grants request --org home --tool files.copy --calls 5 --reason \"the weekly backup\" --yes"
    )]
    Request {
        #[command(flatten)]
        new: New,
        #[command(flatten)]
        confirm: Confirm,
    },
    /// Create a grant, or put a requested one in force
    #[command(
        after_help = "Examples:\n  effectd grants create --org home --tool files.copy --calls 5 --for 1h --yes\n  \
        effectd grants create --from 0199f6a2-5a4e-7c10-8d53-3f2b5f0c9a50 --yes"
    )]
    Create(Create),
    /// Revoke a grant at once
    #[command(after_help = "Example:\n  effectd grants revoke 0199f6a2-5a4e-7c10-8d53-3f2b5f0c9a50 --yes")]
    Revoke {
        /// The grant's id
        #[arg(value_name = "GRANT")]
        id: GrantId,
        #[command(flatten)]
        confirm: Confirm,
    },
}

#[derive(Debug, clap::Args)]
pub(super) struct New {
    /// The organisation, as named in the policy
    #[arg(long, value_name = "NAME")]
    org: String,
    /// The tools: an id, `<source>.*`, `*.<action>`, or `*`
    #[arg(long, value_name = "TOOL")]
    tool: String,
    /// The named command, for the tool `command.run`
    #[arg(long, value_name = "NAME")]
    command: Option<String>,
    /// The session, `agent:<subject>` for a planner without one; a grant for a session needs no administrator
    #[arg(long, value_name = "ID")]
    session: Option<String>,
    /// Number of calls
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u32).range(1..))]
    calls: Option<u32>,
    /// How long it lasts: `90s`, `30m`, `2h`, `7d`; a bare number is seconds
    #[arg(long = "for", value_name = TIME, value_parser = span)]
    lasts: Option<Duration>,
    /// The reason
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,
}

#[derive(Debug, clap::Args)]
pub(super) struct Create {
    /// The id of a requested grant
    #[arg(long, value_name = "GRANT", conflicts_with_all = ["org", "tool", "command", "session", "calls", "lasts", "reason"])]
    from: Option<GrantId>,
    #[command(flatten)]
    new: Option<New>,
    #[command(flatten)]
    confirm: Confirm,
}

const COLUMNS: [(&str, usize); 6] =
    [("GRANT", 36), ("STATE", 9), ("TOOL", 20), ("CALLS", 9), ("EXPIRES", 20), ("FOR", 24)];

impl GrantsCommand {
    pub(super) async fn main(self, common: &Common) -> Result<Exit, CliError> {
        let path = |id: &GrantId, verb: &str| format!("/v1/grants/{}/{verb}", percent_encoded(id.as_str()));
        let (path, body, confirm, says) = match self {
            Self::List => return Ok(print_rows(common.output, &COLUMNS, &all(common).await?, cells)),
            Self::Request { new, confirm } => {
                let preview = "/v1/grants/requests/preview";
                let would: GrantWould = post(common, Depth::Policy, preview, &new.body()).await?;
                // A request that somebody else must grant changes nothing yet, so no confirmation is needed.
                let says = format!("you may grant this yourself: {}{}", new.says(), starts(would));
                let says = would.in_force.then_some(says);
                ("/v1/grants/requests".to_owned(), Some(new.body()), confirm, says)
            }
            Self::Create(Create { from: Some(id), confirm, .. }) => {
                let (id, text) = describe(common, &id).await?;
                let requested = all(common).await?;
                let body = requested.iter().find(|view| view.grant_id == id.as_str()).map(body_of);
                let starts = match body {
                    Some(body) => would(common, &body).await?,
                    None => String::new(),
                };
                (path(&id, "activate"), None, confirm, Some(format!("active from now on: {text}{starts}")))
            }
            Self::Create(Create { new, confirm, .. }) => {
                // clap makes sure that there is either `--from` or a new grant.
                let new = new.ok_or_else(|| CliError::request("give the id of a grant"))?;
                let says = Some(format!("{}{}", new.says(), would(common, &new.body()).await?));
                ("/v1/grants".to_owned(), Some(new.body()), confirm, says)
            }
            Self::Revoke { id, confirm } => {
                let (id, text) = describe(common, &id).await?;
                (path(&id, "revoke"), None, confirm, Some(format!("revoked: {text}")))
            }
        };
        let request = || "a request, which somebody with the authority puts in force".to_owned();
        let says = says.or_else(|| confirm.dry_run.then(request));
        if says.is_some_and(|says| !confirm.confirmed(&[says])) {
            return Ok(confirm.declined());
        }
        let sent = with_client(common, Depth::Policy, async |client| match &body {
            Some(body) => Ok(client.post(&path, body).await?),
            None => Ok(client.call::<GrantView>(Method::POST, &path, "").await?),
        });
        let view = sent.await.map_err(unknown_fails)?;
        Ok(print_one(common.output, &COLUMNS, &view, cells))
    }
}

fn cells(view: &GrantView) -> [String; 6] {
    let most = view.calls_max.map_or_else(|| "-".to_owned(), |most| most.to_string());
    let expires = view.expires_at.as_deref().unwrap_or("-");
    [
        view.grant_id.clone(),
        view.state.clone(),
        named(&view.tool, view.command.as_deref()),
        format!("{}/{most}", view.calls_used),
        second(expires),
        view.session.clone().unwrap_or_else(|| format!("all of {}", view.org)),
    ]
}

/// How many pending approvals a grant makes unnecessary.
async fn would(common: &Common, body: &GrantBody) -> Result<String, CliError> {
    Ok(starts(post(common, Depth::Policy, "/v1/grants/requests/preview", body).await?))
}

fn starts(would: GrantWould) -> String {
    match would.released {
        0 => String::new(),
        released => format!("; pending approvals that start at once: {released}"),
    }
}

fn body_of(view: &GrantView) -> GrantBody {
    GrantBody {
        org: view.org.clone(),
        session: view.session.clone(),
        tool: view.tool.clone(),
        command: view.command.clone(),
        calls_max: view.calls_max,
        lasts_s: None,
        reason: None,
    }
}

fn named(tool: &str, command: Option<&str>) -> String {
    effectd_policy::mode_key(tool, command)
}

/// The id that a grant is named by, in full, and the grant as text; only its id if the caller may not see it.
async fn describe(common: &Common, word: &GrantId) -> Result<(GrantId, String), CliError> {
    let views = all(common).await?;
    let id = short_id::pick(word.as_str(), views.iter().map(|view| view.grant_id.as_str()))?;
    let id = id.and_then(|id| GrantId::new(id).ok()).unwrap_or_else(|| word.clone());
    let found = views.iter().find(|view| view.grant_id == id.as_str());
    let text = found.map_or_else(|| format!("grant {id}"), |view| cells(view).join("  "));
    Ok((id, text))
}

impl New {
    fn says(&self) -> String {
        let whom = self.session.as_ref().map_or_else(
            || format!("everybody in {}", self.org),
            |session| format!("the session {session} of {}", self.org),
        );
        let calls = self
            .calls
            .map_or_else(|| "any number of calls".to_owned(), |calls| counted(calls.into(), "call"));
        let lasts = self.lasts.map_or_else(String::new, |lasts| format!(" within {}", span_text(lasts)));
        let what = named(&self.tool, self.command.as_deref());
        format!("{what} needs no approval for {whom}: {calls}{lasts}")
    }

    fn body(&self) -> GrantBody {
        GrantBody {
            org: self.org.clone(),
            session: self.session.clone(),
            tool: self.tool.clone(),
            command: self.command.clone(),
            calls_max: self.calls,
            lasts_s: self.lasts.map(|lasts| lasts.as_secs()),
            reason: self.reason.clone(),
        }
    }
}

async fn all(common: &Common) -> Result<Vec<GrantView>, CliError> {
    pages(common, Depth::Policy, "/v1/grants", |page: GrantList| (page.grants, page.next)).await
}
