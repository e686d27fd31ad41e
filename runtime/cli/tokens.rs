//! `effectd tokens …`: tokens for those who reach effectd over TCP. A value is printed once, on standard output.

use clap::{Subcommand, ValueEnum};
use effectd_contracts::{OrgId, SessionId, Timestamp, TokenKind};
use effectd_gateway::views::tokens::{TokenBody, TokenList, TokenView};
use hyper::Method;

use super::mutation::{ChangeArgs, RunMode, confirm_at, json_body, no_body, report_done};
use super::{CliError, Common, Depth, eprint_line, line, pages, print_json, print_rows, second, short_id};
use crate::exit::Exit;

/// List, create, revoke and rotate tokens
///
/// A token is for the agent of one session (sandbox), for a person (user), or for an account without one, such as monitoring
/// (service). The policy says what the principal `account://<org>/<name>` may do; a service never decides. Only operators at the
/// daemon's socket use this.
#[derive(Debug, Subcommand)]
#[command(after_help = "Example:\n  effectd tokens list")]
pub(super) enum TokensCommand {
    /// List tokens, without their values
    #[command(after_help = "Example:\n  effectd tokens list -o json")]
    List,
    /// Create a token, and print its value this once
    ///
    /// The value alone is on standard output, so that it can be piped to where it is needed.
    #[command(
        after_help = "Examples:\n  effectd tokens create --kind user --org home --name ada --for 90d --yes\n  effectd tokens create --kind sandbox --session 0199f6a2-5a4e-7c10-8d53-3f2b5f0c9a50 --yes"
    )]
    Create(Create),
    /// Revoke a token: the next request with it is refused
    #[command(after_help = "Example:\n  effectd tokens revoke 0199f6a25a4e7c108d533f2b5f0c9a50 --yes")]
    Revoke(Change),
    /// Replace a token by another one, and print its value this once
    ///
    /// It has the same rights and the same end. The old one is revoked at once.
    #[command(after_help = "Example:\n  effectd tokens rotate 0199f6a25a4e7c108d533f2b5f0c9a50 --yes")]
    Rotate(Change),
}

#[derive(Debug, Clone, Copy, ValueEnum)]
pub(super) enum KindWord {
    /// The agent of one session
    Sandbox,
    /// A person
    User,
    /// An account without a person; it decides nothing
    Service,
}

#[derive(Debug, clap::Args)]
pub(super) struct Create {
    /// What it is for
    #[arg(long, value_enum)]
    kind: KindWord,
    /// The session of a sandbox
    #[arg(long, value_name = "SESSION", conflicts_with_all = ["org", "name"])]
    session: Option<SessionId>,
    /// The organisation of a user or a service, as named in the policy
    #[arg(long, value_name = "ORG")]
    org: Option<OrgId>,
    /// The account of a user or a service
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    /// How long it is valid: `12h`, `90d`; without this, until it is revoked
    #[arg(long = "for", value_name = "TIME")]
    lasts: Option<String>,
    /// Since when it is valid, as in 2026-01-01T00:00:00Z; without this, at once
    #[arg(long, value_name = "TIME")]
    not_before: Option<Timestamp>,
    #[command(flatten)]
    args: ChangeArgs,
}

#[derive(Debug, clap::Args)]
pub(super) struct Change {
    /// The token's id, which is the third part of its value
    #[arg(value_name = "TOKEN")]
    id: String,
    #[command(flatten)]
    args: ChangeArgs,
}

const COLUMNS: [(&str, usize); 6] =
    [("TOKEN", 32), ("KIND", 7), ("STATE", 7), ("PRINCIPAL", 32), ("EXPIRES", 20), ("LAST USED", 10)];

impl TokensCommand {
    pub(super) async fn main(self, common: &Common) -> Result<Exit, CliError> {
        match self {
            Self::List => Ok(print_rows(common.output, &COLUMNS, &all(common).await?, cells)),
            Self::Create(Create { kind, session, org, name, lasts, not_before, args }) => {
                let kind = match kind {
                    KindWord::Sandbox => TokenKind::Sandbox,
                    KindWord::User => TokenKind::User,
                    KindWord::Service => TokenKind::Service,
                };
                let body = TokenBody { kind, session_id: session, org, name, not_before, lasts };
                run(common, "/v1/tokens", json_body(&body), args).await
            }
            Self::Revoke(change) => run_on(common, change, "/revoke").await,
            Self::Rotate(change) => run_on(common, change, "/rotate").await,
        }
    }
}

async fn run_on(common: &Common, Change { id, args }: Change, verb: &str) -> Result<Exit, CliError> {
    if id.starts_with("efd_") {
        return Err(CliError::request("name the token by its id: its value belongs in no command line"));
    }
    let path = short_id::path("/v1/tokens", &id, all(common), |view| &view.token_id).await? + verb;
    run(common, &path, no_body, args).await
}

/// Does it, and prints the value of a new token alone on standard output.
async fn run(
    common: &Common,
    path: &str,
    body: impl Fn(RunMode) -> Result<Vec<u8>, CliError>,
    args: ChangeArgs,
) -> Result<Exit, CliError> {
    let confirm = args.confirm;
    let Some(done) = confirm_at(common, (Method::POST, path), body, args).await? else {
        return Ok(confirm.declined());
    };
    if print_json(common.output, &done) {
        return Ok(Exit::Done);
    }
    report_done(&done);
    if let Some(id) = &done.id {
        eprint_line(&format!("token {id}; its value is shown this once"));
    }
    if let Some(token) = &done.token {
        line(token.as_str());
    }
    Ok(Exit::Done)
}

fn cells(view: &TokenView) -> [String; 6] {
    [
        view.token_id.clone(),
        view.kind.clone(),
        view.state.clone(),
        view.principal.clone(),
        view.expires_at.as_deref().map(second).unwrap_or_default(),
        view.last_used.clone().unwrap_or_default(),
    ]
}

async fn all(common: &Common) -> Result<Vec<TokenView>, CliError> {
    pages(common, Depth::Policy, "/v1/tokens", |page: TokenList| (page.tokens, page.next)).await
}
