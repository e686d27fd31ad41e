//! `effectd breaker …`: which tools are left alone for now, and a hand on the switch. Through the daemon if one runs.

use clap::Subcommand;
use effectd_contracts::Operation;
use effectd_gateway::client::{Client, percent_encoded};
use effectd_gateway::views::BreakerView;

use super::Common;
use super::backend::{Trouble, with_client};
use super::operate::{self, Confirm};
use super::output::{Form, Printer};
use crate::exit::Exit;
use crate::runtime::Depth;

/// Look at circuit breakers, open and close them
///
/// A tool that keeps failing is left alone for a while: its breaker is open. Then a call is let through to see whether it
/// works again.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  effectd breaker list\n  effectd breaker show files.write_text")]
pub(super) struct BreakerCommand {
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
    /// List the breakers that have been used or opened
    ///
    /// Without a daemon, those that an earlier one left open.
    #[command(after_help = "Example:\n  effectd breaker list -o json")]
    List,
    /// Show one breaker
    #[command(after_help = "Example:\n  effectd breaker show files.write_text")]
    Show(Which),
    /// Open a breaker, until it is reset: the tool is not called any more
    #[command(after_help = "Example:\n  effectd breaker trip files.write_text --yes")]
    Trip(Change),
    /// Close a breaker and forget what it counted
    #[command(after_help = "Example:\n  effectd breaker reset files.write_text --yes")]
    Reset(Change),
}

#[derive(Debug, clap::Args)]
struct Which {
    /// Its key: a tool's id, or what requests name in `qos.circuit_breaker_key`
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

const COLUMNS: [(&str, usize); 5] = [
    ("STATE", 9),
    ("CAUSE", 11),
    ("AGAIN IN", 9),
    ("FAILED", 9),
    ("KEY", 32),
];

impl BreakerCommand {
    pub(super) fn main(self, common: &Common) -> Exit {
        super::block_on(async {
            let many = matches!(self.verb, Verb::List);
            if let Some((operation, confirm)) = self.verb.operation() {
                let Some(done) = operate::perform(common, &operation, confirm).await? else {
                    return Ok(Exit::Usage);
                };
                operate::name_receipt(&done);
            }
            let views = with_client(common, Depth::Store, async |client| self.verb.ask(client).await).await?;
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

fn cells(view: &BreakerView) -> [String; 5] {
    let again = view
        .retry_after_ms
        .map(|ms| format!("{}.{} s", ms / 1_000, ms % 1_000 / 100));
    [
        view.state.clone(),
        view.cause.clone().unwrap_or_default(),
        again.unwrap_or_default(),
        format!("{}/{}", view.failures, view.calls),
        view.key.clone(),
    ]
}

impl Verb {
    /// What is to be done first; what is shown is how it stands then.
    fn operation(&self) -> Option<(Operation, Confirm)> {
        let key = |change: &Change| change.which.key.clone();
        match self {
            Verb::List | Verb::Show(_) => None,
            Verb::Trip(change) => Some((Operation::TripBreaker { key: key(change) }, change.confirm)),
            Verb::Reset(change) => Some((Operation::ResetBreaker { key: key(change) }, change.confirm)),
        }
    }

    fn which(&self) -> Option<&Which> {
        match self {
            Verb::List => None,
            Verb::Show(which) => Some(which),
            Verb::Trip(change) | Verb::Reset(change) => Some(&change.which),
        }
    }

    async fn ask(&self, client: &mut Client) -> Result<Vec<BreakerView>, Trouble> {
        let Some(which) = self.which() else {
            return Ok(client.get("/v1/breakers").await?);
        };
        let path = format!("/v1/breakers/{}", percent_encoded(&which.key));
        Ok(vec![client.get(&path).await?])
    }
}
