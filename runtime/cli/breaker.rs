//! `effectd breaker …`: list circuit breakers, open and close them.

use clap::Subcommand;
use effectd_contracts::Operation;
use effectd_gateway::client::percent_encoded;
use effectd_gateway::views::BreakerView;

use super::mutation::{Reason, Terms};
use super::{CliError, Common, Confirm, Depth, get, mutation, print_one, print_rows};
use crate::exit::Exit;

/// List circuit breakers, open and close them
///
/// A tool that keeps failing is not called for a while: its breaker is open. Then one call tests whether the tool works again.
#[derive(Debug, Subcommand)]
#[command(after_help = "Examples:\n  effectd breaker list\n  effectd breaker show files.write_text")]
pub(super) enum BreakerCommand {
    /// List the breakers that have been used or opened
    ///
    /// Without a daemon, those that an earlier daemon left open.
    #[command(after_help = "Example:\n  effectd breaker list -o json")]
    List,
    /// Show one breaker
    #[command(after_help = "Example:\n  effectd breaker show files.write_text")]
    Show(Which),
    /// Open a breaker until it is reset, or for a while: the tool is not called
    ///
    /// After `--for`, one call tests whether the tool works again.
    #[command(
        after_help = "Examples:\n  effectd breaker trip files.write_text --yes\n  effectd breaker trip files.write_text --for 2h --yes"
    )]
    Trip {
        #[command(flatten)]
        change: Change,
        #[command(flatten)]
        terms: Terms,
    },
    /// Close a breaker and clear its counts
    #[command(after_help = "Example:\n  effectd breaker reset files.write_text --yes")]
    Reset {
        #[command(flatten)]
        change: Change,
        #[command(flatten)]
        why: Reason,
    },
}

#[derive(Debug, clap::Args)]
pub(super) struct Which {
    /// The breaker's key: a tool's id, or `<subject>/<key>` for the `qos.circuit_breaker_key` of a subject's requests
    #[arg(value_name = "KEY")]
    key: String,
}

#[derive(Debug, clap::Args)]
pub(super) struct Change {
    #[command(flatten)]
    which: Which,
    #[command(flatten)]
    confirm: Confirm,
}

const COLUMNS: [(&str, usize); 5] =
    [("STATE", 9), ("CAUSE", 11), ("AGAIN IN", 9), ("FAILED", 9), ("KEY", 32)];

impl BreakerCommand {
    pub(super) async fn main(self, common: &Common) -> Result<Exit, CliError> {
        let key = match &self {
            Self::List => None,
            Self::Show(which) => Some(which.key.clone()),
            Self::Trip { change, .. } | Self::Reset { change, .. } => Some(change.which.key.clone()),
        };
        let change = match (self, key.clone()) {
            (Self::Trip { change, terms }, Some(key)) => {
                Some((Operation::TripBreaker { key }, terms, change.confirm))
            }
            (Self::Reset { change, why }, Some(key)) => {
                Some((Operation::ResetBreaker { key }, why.into(), change.confirm))
            }
            (Self::List | Self::Show(_) | Self::Trip { .. } | Self::Reset { .. }, _) => None,
        };
        if let Some((operation, terms, confirm)) = change {
            let Some(done) = mutation::confirm_and_send_on(common, &operation, &terms, confirm).await? else {
                return Ok(confirm.declined());
            };
            mutation::report_done(&done);
        }
        let Some(key) = key else {
            let views: Vec<BreakerView> = get(common, Depth::Store, "/v1/breakers").await?;
            return Ok(print_rows(common.output, &COLUMNS, &views, cells));
        };
        let path = format!("/v1/breakers/{}", percent_encoded(&key));
        let view: BreakerView = get(common, Depth::Store, &path).await?;
        Ok(print_one(common.output, &COLUMNS, &view, cells))
    }
}

fn cells(view: &BreakerView) -> [String; 5] {
    let again = view.retry_after_ms.map(|ms| format!("{}.{} s", ms / 1_000, ms % 1_000 / 100));
    [
        view.state.clone(),
        view.cause.clone().unwrap_or_default(),
        again.unwrap_or_default(),
        format!("{}/{}", view.failures, view.calls),
        view.key.clone(),
    ]
}
