//! `effectd slack …`: people decide about held actions in a channel of Slack.

use clap::Subcommand;
use effectd_contracts::{Operation, OrgId, SlackChannel, SlackUser};
use effectd_gateway::views::connections::WebhookBody;
use hyper::Method;

use super::mutation::{ChangeArgs, json_body, run_at};
use super::{CliError, Common, Depth, get, print_rows, second};
use crate::exit::Exit;

/// Ask people in Slack, and say which accounts they are
///
/// A channel is a webhook: `effectd webhooks list|enable|disable|delete` work on it. Only users of this machine connect a channel and say
/// who somebody is.
#[derive(Debug, Subcommand)]
#[command(after_help = "Example:\n  effectd slack list")]
pub(super) enum SlackCommand {
    /// List the users of Slack that are accounts
    #[command(after_help = "Example:\n  effectd slack list -o json")]
    List,
    /// Ask in a channel about each action that is held from now on
    ///
    /// Planners with the capability slack.write may post over the same connection, also in this channel and below a question; what they
    /// post has no buttons.
    #[command(
        after_help = "Example:\n  effectd slack connect --org home --team T024BE7LD --channel C024BE91L --secret slack-signing --console https://effectd.example.org --yes"
    )]
    Connect(Connect),
    /// Say which account a user of Slack is
    ///
    /// The user then decides as this account, with the roles that the policy gives it at that time.
    #[command(after_help = "Example:\n  effectd slack map home T024BE7LD/U024BE7LH ada --yes")]
    Map {
        #[command(flatten)]
        who: Who,
        /// The name of the account: `ada` is `account://home/ada`
        #[arg(value_name = "ACCOUNT")]
        account: String,
        #[command(flatten)]
        args: ChangeArgs,
    },
    /// Say that a user of Slack is no account any more
    #[command(after_help = "Example:\n  effectd slack unmap home T024BE7LD/U024BE7LH --yes")]
    Unmap {
        #[command(flatten)]
        who: Who,
        #[command(flatten)]
        args: ChangeArgs,
    },
}

#[derive(Debug, clap::Args)]
pub(super) struct Connect {
    /// The organisation, as named in the policy
    #[arg(long, value_name = "NAME")]
    org: OrgId,
    /// The workspace
    #[arg(long, value_name = "ID")]
    team: String,
    /// The channel
    #[arg(long, value_name = "ID")]
    channel: String,
    /// The name of the secret with the app's signing secret
    #[arg(long, value_name = "NAME")]
    secret: String,
    /// Where these people find the console
    #[arg(long, value_name = "URL")]
    console: String,
    /// The connection, by its source: that of `connections add --preset slack`
    #[arg(long, value_name = "SOURCE", default_value = "slack")]
    source: String,
    /// Where messages are posted: the path of one of the connection's routes
    #[arg(long, value_name = "PATH", default_value = "/api/chat.postMessage")]
    path: String,
    #[command(flatten)]
    args: ChangeArgs,
}

#[derive(Debug, clap::Args)]
pub(super) struct Who {
    /// The organisation, as named in the policy
    #[arg(value_name = "ORG")]
    org: OrgId,
    /// The user, after the workspace that it belongs to
    #[arg(value_name = "TEAM/USER", value_parser = user)]
    user: (String, String),
}

fn user(text: &str) -> Result<(String, String), String> {
    let parts = text.split_once('/').ok_or("write the workspace and the user: T024BE7LD/U024BE7LH")?;
    Ok((parts.0.to_owned(), parts.1.to_owned()))
}

impl Who {
    fn is(self, account: Option<String>) -> Operation {
        let Self { org, user: (team, user) } = self;
        Operation::MapSlackUser { org, team, user, account }
    }
}

const COLUMNS: [(&str, usize); 5] =
    [("ORG", 16), ("USER", 24), ("ACCOUNT", 32), ("SET AT", 20), ("SET BY", 24)];

impl SlackCommand {
    pub(super) async fn main(self, common: &Common) -> Result<Exit, CliError> {
        match self {
            Self::List => {
                let all: Vec<SlackUser> = get(common, Depth::Policy, "/v1/slack/users").await?;
                Ok(print_rows(common.output, &COLUMNS, &all, cells))
            }
            Self::Connect(Connect { org, team, channel, secret, console, source, path, args }) => {
                let slack = Some(SlackChannel { team, channel, console });
                let body = WebhookBody { org, source, path, topics: Vec::new(), signed_by: secret, slack };
                run_at(common, (Method::POST, "/v1/webhooks"), json_body(&body), args).await
            }
            Self::Map { who, account, args } => args.run(common, &who.is(Some(account))).await,
            Self::Unmap { who, args } => args.run(common, &who.is(None)).await,
        }
    }
}

fn cells(known: &SlackUser) -> [String; 5] {
    let SlackUser { org, team, user, account, set_by, set_at } = known;
    let set_at = second(&set_at.to_string());
    [org.to_string(), format!("{team}/{user}"), account.to_string(), set_at, set_by.to_string()]
}
