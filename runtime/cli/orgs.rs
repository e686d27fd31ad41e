//! `effectd orgs …`: the organisations of the policy.

use clap::Subcommand;
use effectd_gateway::views::sessions::{MemberView, OrgView};

use super::{CliError, Common, Depth, get, print_rows};
use crate::exit::Exit;

/// List organisations, with their spaces and members
///
/// The policy's files name them: `[orgs.<name>]`, the `org` of a space, and the `orgs` of a principal.
#[derive(Debug, Subcommand)]
#[command(after_help = "Example:\n  effectd orgs list")]
pub(super) enum OrgsCommand {
    /// List the organisations that you may see
    #[command(after_help = "Example:\n  effectd orgs list -o json")]
    List,
}

const COLUMNS: [(&str, usize); 3] = [("ORG", 16), ("SPACES", 40), ("MEMBERS", 48)];

impl OrgsCommand {
    pub(super) async fn main(self, common: &Common) -> Result<Exit, CliError> {
        let Self::List = self;
        let views: Vec<OrgView> = get(common, Depth::Policy, "/v1/orgs").await?;
        Ok(print_rows(common.output, &COLUMNS, &views, |view| {
            let member = |member: &MemberView| format!("{} ({})", member.principal, member.role);
            let members: Vec<String> = view.members.iter().map(member).collect();
            [view.org.clone(), view.spaces.join(", "), members.join(", ")]
        }))
    }
}
