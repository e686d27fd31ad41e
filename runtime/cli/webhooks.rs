//! `effectd webhooks …`: events of organisations, sent to services.

use clap::Subcommand;
use effectd_contracts::{OrgId, Webhook, WebhookId, WebhookTopic};
use effectd_gateway::views::connections::WebhookBody;
use hyper::Method;

use super::mutation::{ChangeArgs, json_body, no_body, run_at};
use super::{CliError, Common, Depth, get, print_rows, short_id};
use crate::exit::Exit;

/// List, create, enable, disable and delete webhooks
///
/// A webhook posts each new event of an organisation to a service, signed, until the service answers 2xx. Operators and the
/// organisation's admins change it.
#[derive(Debug, Subcommand)]
#[command(after_help = "Example:\n  effectd webhooks list")]
pub(super) enum WebhooksCommand {
    /// List the webhooks that you may see
    #[command(after_help = "Example:\n  effectd webhooks list -o json")]
    List,
    /// Create a webhook: it sends what happens from now on
    #[command(
        visible_alias = "create",
        after_help = "Example:\n  effectd webhooks add --org home --source http.hooks --path /v1/events --topic ACTION_EXECUTED --secret hooks-signature --yes"
    )]
    Add(Create),
    /// Send events again, from the next one on
    #[command(after_help = "Example:\n  effectd webhooks enable 0199f6a2-5a4e-7c10-8d53-3f2b5f0c9a50 --yes")]
    Enable(Change),
    /// Stop sending events; those of the meantime are never sent
    #[command(after_help = "Example:\n  effectd webhooks disable 0199f6a2-5a4e-7c10-8d53-3f2b5f0c9a50 --yes")]
    Disable(Change),
    /// Delete a webhook
    #[command(after_help = "Example:\n  effectd webhooks delete 0199f6a2-5a4e-7c10-8d53-3f2b5f0c9a50 --yes")]
    Delete(Change),
}

#[derive(Debug, clap::Args)]
pub(super) struct Create {
    /// The organisation, as named in the policy
    #[arg(long, value_name = "NAME")]
    org: OrgId,
    /// The connection, by its source
    #[arg(long, value_name = "SOURCE")]
    source: String,
    /// The path of one of its POST routes, without a placeholder
    #[arg(long, value_name = "PATH")]
    path: String,
    /// A topic: ACTION_EXECUTED or AMENDMENTS; may be repeated
    #[arg(long = "topic", value_name = "TOPIC", required = true, value_parser = topic)]
    topics: Vec<WebhookTopic>,
    /// The name of the secret by which events are signed: `whsec_` and base64, or any text
    #[arg(long, value_name = "NAME")]
    secret: String,
    #[command(flatten)]
    args: ChangeArgs,
}

fn topic(text: &str) -> Result<WebhookTopic, String> {
    let known = WebhookTopic::ALL.into_iter().find(|topic| topic.as_str() == text);
    let names = WebhookTopic::ALL.map(WebhookTopic::as_str).join(", ");
    known.ok_or_else(|| format!("webhooks send {names}"))
}

#[derive(Debug, clap::Args)]
pub(super) struct Change {
    /// The webhook's id
    #[arg(value_name = "WEBHOOK")]
    id: WebhookId,
    #[command(flatten)]
    args: ChangeArgs,
}

const COLUMNS: [(&str, usize); 6] =
    [("WEBHOOK", 36), ("STATE", 8), ("ORG", 12), ("SOURCE", 20), ("PATH", 24), ("TOPICS", 28)];

impl WebhooksCommand {
    pub(super) async fn main(self, common: &Common) -> Result<Exit, CliError> {
        let (change, method, verb) = match self {
            Self::List => return Ok(print_rows(common.output, &COLUMNS, &all(common).await?, cells)),
            Self::Add(Create { org, source, path, topics, secret, args }) => {
                let body = WebhookBody { org, source, path, topics, signed_by: secret, slack: None };
                return run_at(common, (Method::POST, "/v1/webhooks"), json_body(&body), args).await;
            }
            Self::Enable(change) => (change, Method::POST, "/enable"),
            Self::Disable(change) => (change, Method::POST, "/disable"),
            Self::Delete(change) => (change, Method::DELETE, ""),
        };
        let (root, word) = ("/v1/webhooks", change.id.as_str());
        let path = short_id::path(root, word, all(common), |known| known.webhook_id.as_str()).await?;
        run_at(common, (method, &(path + verb)), no_body, change.args).await
    }
}

async fn all(common: &Common) -> Result<Vec<Webhook>, CliError> {
    get(common, Depth::Policy, "/v1/webhooks").await
}

fn cells(known: &Webhook) -> [String; 6] {
    let Webhook { webhook_id, org, source, path, topics, slack, enabled, .. } = known;
    let state = if *enabled { "enabled" } else { "disabled" };
    let topics = topics.iter().map(|topic| topic.as_str()).collect::<Vec<_>>().join(", ");
    let channel = slack.as_ref().map(|slack| format!("questions in {}/{}", slack.team, slack.channel));
    let topics = channel.unwrap_or(topics);
    [webhook_id.to_string(), state.to_owned(), org.to_string(), source.clone(), path.clone(), topics]
}
