//! `effectd grants …`: pre-approvals with a budget. Through the daemon if one runs.

use std::path::Path;
use std::sync::Arc;

use clap::Subcommand;
use effectd_actors::Parts;
use effectd_actors::held::DecideError;
use effectd_actors::held::grants;
use effectd_contracts::GrantId;
use effectd_gateway::views::approvals::{GrantBody, GrantList, GrantView, GrantWould};
use hyper::Method;

use super::approvals::{local, on_stored};
use super::backend::{Trouble, ask_or};
use super::operate::Confirm;
use super::output::{Form, Printer};
use super::{Common, complain};
use crate::client::{Client, percent_encoded};
use crate::exit::Exit;
use crate::state::State;

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
            let answer = ask_or(
                common,
                async |client| self.verb.ask(client).await,
                async |state| self.verb.directly(common, state).await,
            )
            .await;
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
    let views = ask_or(
        common,
        async |client| all(client).await,
        async |state| on_stored(common, state, async |parts: &Arc<Parts>, _: &State| stored(parts)).await,
    );
    let views = views.await?;
    let found = views.iter().find(|view| view.grant_id == id.as_str());
    Ok(found.map_or_else(|| format!("grant {id}"), |view| cells(view).join("  ")))
}

impl New {
    /// What would be granted.
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
        let would: GrantWould = ask_or(
            common,
            async |client| {
                // Plain data with text keys, for which serde_json has no failure.
                let body = serde_json::to_vec(&self.body()).unwrap_or_default();
                let would = client
                    .call(Method::POST, "/v1/grants/requests/preview", body)
                    .await?;
                would.map_err(Trouble::Refused)
            },
            async |state| {
                let by = local(common, state)?;
                on_stored(common, state, async |parts: &Arc<Parts>, _: &State| {
                    let new = effectd_gateway::new_grant(self.body(), parts);
                    let in_force = grants::would_be_in_force(parts, &new, &by);
                    Ok(GrantWould { in_force })
                })
                .await
            },
        )
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

/// What is to be done about one grant.
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
        // Plain data with text keys, for which serde_json has no failure.
        let body = |new: &New| serde_json::to_vec(&new.body()).unwrap_or_default();
        let (path, body) = match self.one() {
            None => return all(client).await,
            Some(One::Request(new)) => ("/v1/grants/requests".to_owned(), body(new)),
            Some(One::Create(new)) => ("/v1/grants".to_owned(), body(new)),
            Some(One::Activate(id)) => (path(id, "activate"), Vec::new()),
            Some(One::Revoke(id)) => (path(id, "revoke"), Vec::new()),
        };
        let one = client.call(Method::POST, &path, body).await?;
        one.map(|view| vec![view]).map_err(Trouble::Refused)
    }

    async fn directly(&self, common: &Common, state: &Path) -> Result<Vec<GrantView>, Trouble> {
        let by = local(common, state)?;
        on_stored(common, state, async |parts: &Arc<Parts>, _: &State| {
            let now = parts.clock.now();
            let grant = match self.one() {
                None => return stored(parts),
                Some(One::Request(new)) => {
                    grants::request(parts, effectd_gateway::new_grant(new.body(), parts), &by).await?
                }
                Some(One::Create(new)) => {
                    grants::create(parts, effectd_gateway::new_grant(new.body(), parts), &by).await?
                }
                Some(One::Activate(id)) => grants::activate(parts, id, &by).await?,
                Some(One::Revoke(id)) => grants::revoke(parts, id, &by).await?,
            };
            Ok(vec![GrantView::of(&grant, now)])
        })
        .await
    }
}

fn stored(parts: &Parts) -> Result<Vec<GrantView>, DecideError> {
    let (mut after, mut views) = (None, Vec::new());
    loop {
        let (page, next) = grants::list(&*parts.store, after.as_deref(), PAGE)?;
        views.extend(page.iter().map(|grant| GrantView::of(grant, parts.clock.now())));
        match next {
            Some(next) => after = Some(next),
            None => return Ok(views),
        }
    }
}

/// Grants that are read in one go.
const PAGE: usize = 100;

async fn all(client: &mut Client) -> Result<Vec<GrantView>, Trouble> {
    let (mut path, mut views) = ("/v1/grants".to_owned(), Vec::new());
    loop {
        let page: Result<GrantList, _> = client.call(Method::GET, &path, "").await?;
        let page = page.map_err(Trouble::Refused)?;
        views.extend(page.grants);
        match page.next {
            Some(next) => path = format!("/v1/grants?after={}", percent_encoded(&next)),
            None => return Ok(views),
        }
    }
}
