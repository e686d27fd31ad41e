//! `effectd breaker …`: list circuit breakers, open and close them.

use clap::Subcommand;
use effectd_contracts::Operation;
use effectd_gateway::client::percent_encoded;
use effectd_gateway::views::BreakerView;

use super::mutation::{Reason, Terms};
use super::{CliError, Common, Confirm, Depth, Printer, get, mutation};
use crate::exit::Exit;

/// List circuit breakers, open and close them
///
/// A tool that keeps failing is not called for a while: its breaker is open. Then one call tests whether the tool works again.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  effectd breaker list\n  effectd breaker show files.write_text")]
pub(super) struct BreakerCommand {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
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
struct Which {
    /// The breaker's key: a tool's id, or `<subject>/<key>` for the `qos.circuit_breaker_key` of a subject's requests
    #[arg(value_name = "KEY")]
    key: String,
}

#[derive(Debug, clap::Args)]
struct Change {
    #[command(flatten)]
    which: Which,
    #[command(flatten)]
    confirm: Confirm,
}

const COLUMNS: [(&str, usize); 5] =
    [("STATE", 9), ("CAUSE", 11), ("AGAIN IN", 9), ("FAILED", 9), ("KEY", 32)];

impl BreakerCommand {
    pub(super) async fn main(self, common: &Common) -> Result<Exit, CliError> {
        let key = match &self.verb {
            Verb::List => None,
            Verb::Show(which) => Some(which.key.clone()),
            Verb::Trip { change, .. } | Verb::Reset { change, .. } => Some(change.which.key.clone()),
        };
        let change = match (self.verb, key.clone()) {
            (Verb::Trip { change, terms }, Some(key)) => {
                Some((Operation::TripBreaker { key }, terms, change.confirm))
            }
            (Verb::Reset { change, why }, Some(key)) => {
                Some((Operation::ResetBreaker { key }, why.into(), change.confirm))
            }
            (Verb::List | Verb::Show(_) | Verb::Trip { .. } | Verb::Reset { .. }, _) => None,
        };
        if let Some((operation, terms, confirm)) = change {
            let Some(done) = mutation::confirm_and_send_on(common, &operation, &terms, confirm).await? else {
                return Ok(confirm.declined());
            };
            mutation::report_done(&done);
        }
        let views: Vec<BreakerView> = match &key {
            None => get(common, Depth::Store, "/v1/breakers").await?,
            Some(key) => {
                let path = format!("/v1/breakers/{}", percent_encoded(key));
                vec![get(common, Depth::Store, &path).await?]
            }
        };
        let mut printer = Printer::new(common.output, key.is_none(), &COLUMNS);
        views.iter().for_each(|view| printer.row(view, &cells(view)));
        if key.is_none() {
            printer.finish_list()
        } else {
            printer.finish()
        }
        Ok(Exit::Done)
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
