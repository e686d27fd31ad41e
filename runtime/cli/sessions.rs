//! `effectd sessions …`: sessions of subjects in the spaces of organisations.

use clap::Subcommand;
use effectd_contracts::{ConnectionId, Session, SessionId, SpaceId, SubjectId};
use effectd_gateway::views::sessions::{SessionBody, SessionList};
use hyper::Method;

use super::mutation::{ChangeArgs, json_body, no_body, run_at, unknown_fails};
use super::{CliError, Common, Depth, get, pages, print_one, print_rows, second, short_id};
use crate::exit::Exit;

/// List, create, end and delete sessions
///
/// A session is one subject that acts in one space, for a person who waits or unattended. Its approvals and grants belong to it.
/// Members of the space's organisation create sessions; its admins, and operators, manage all of them.
#[derive(Debug, Subcommand)]
#[command(after_help = "Example:\n  effectd sessions list")]
pub(super) enum SessionsCommand {
    /// List the sessions that you may see
    #[command(after_help = "Example:\n  effectd sessions list -o json")]
    List,
    /// Show one session
    #[command(after_help = "Example:\n  effectd sessions show 0199f6a2-5a4e-7c10-8d53-3f2b5f0c9a50")]
    Show {
        /// The session's id
        #[arg(value_name = "SESSION")]
        id: SessionId,
    },
    /// Create a session
    #[command(
        after_help = "Example:\n  effectd sessions create --space shared:household --subject agent://planner@deviceA --title \"Plan the week\" --yes"
    )]
    Create(Create),
    /// End a session: it takes no new action
    #[command(after_help = "Example:\n  effectd sessions end 0199f6a2-5a4e-7c10-8d53-3f2b5f0c9a50 --yes")]
    End(Change),
    /// Delete a session: its approvals are denied, its grants revoked, and what its actions left is destroyed
    ///
    /// Dead letters, results, pre-images and artifacts go. The receipts stay, for auditors.
    #[command(after_help = "Example:\n  effectd sessions delete 0199f6a2-5a4e-7c10-8d53-3f2b5f0c9a50 --yes")]
    Delete(Change),
}

#[derive(Debug, clap::Args)]
pub(super) struct Create {
    /// The space, which belongs to an organisation of the policy
    #[arg(long, value_name = "SPACE")]
    space: SpaceId,
    /// The subject that acts in it
    #[arg(long, value_name = "SUBJECT")]
    subject: SubjectId,
    /// What it is about, for people
    #[arg(long, value_name = "TEXT")]
    title: String,
    /// Nobody waits for its answers: approvals are open for longer
    #[arg(long)]
    unattended: bool,
    /// A connection that it may use; may be repeated
    #[arg(long = "connection", value_name = "CONNECTION")]
    connections: Vec<ConnectionId>,
    #[command(flatten)]
    args: ChangeArgs,
}

#[derive(Debug, clap::Args)]
pub(super) struct Change {
    /// The session's id
    #[arg(value_name = "SESSION")]
    id: SessionId,
    #[command(flatten)]
    args: ChangeArgs,
}

const COLUMNS: [(&str, usize); 6] =
    [("SESSION", 36), ("STATE", 7), ("CREATED", 20), ("SPACE", 20), ("SUBJECT", 28), ("TITLE", 32)];

impl SessionsCommand {
    pub(super) async fn main(self, common: &Common) -> Result<Exit, CliError> {
        match self {
            Self::List => Ok(print_rows(common.output, &COLUMNS, &all(common).await?, cells)),
            Self::Show { id } => {
                let view = get::<Session>(common, Depth::Policy, &path(common, &id).await?).await;
                Ok(print_one(common.output, &COLUMNS, &view.map_err(unknown_fails)?, cells))
            }
            Self::Create(Create { space, subject, title, unattended, connections, args }) => {
                let (space_id, subject_id) = (space, subject);
                let body = SessionBody { space_id, subject_id, title, unattended, connections };
                run_at(common, (Method::POST, "/v1/sessions"), json_body(&body), args).await
            }
            Self::End(Change { id, args }) => {
                let path = format!("{}/end", path(common, &id).await?);
                run_at(common, (Method::POST, &path), no_body, args).await
            }
            Self::Delete(Change { id, args }) => {
                let path = path(common, &id).await?;
                run_at(common, (Method::DELETE, &path), no_body, args).await
            }
        }
    }
}

fn cells(known: &Session) -> [String; 6] {
    let Session { session_id, space_id, subject_id, title, created_at, ended_at, .. } = known;
    let state = if ended_at.is_some() { "ended" } else { "open" };
    let (id, created) = (session_id.to_string(), second(&created_at.to_string()));
    [id, state.to_owned(), created, space_id.to_string(), subject_id.to_string(), title.clone()]
}

/// The path of the session that a word names, in full or by its beginning.
async fn path(common: &Common, word: &SessionId) -> Result<String, CliError> {
    short_id::path("/v1/sessions", word.as_str(), all(common), |known| known.session_id.as_str()).await
}

async fn all(common: &Common) -> Result<Vec<Session>, CliError> {
    pages(common, Depth::Policy, "/v1/sessions", |page: SessionList| (page.sessions, page.next)).await
}
