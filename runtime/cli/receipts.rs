//! `effectd receipts`: what has happened, what happens next, and the proof of it.

mod amend;
mod audit;
mod export;
mod log;
mod stats;
mod tail;
mod verify;

use std::collections::VecDeque;

use clap::Subcommand;
use effectd_bus::Order;
use effectd_contracts::{AmendmentEntry, Receipt, ReceiptId};
use effectd_gateway::client::{Client, ClientError, percent_encoded};

use super::backend::{Trouble, is_alone, with_client};
use super::listing::{Turn, Which, page};
use super::output::{Form, Printer, line};
use super::{Common, named, show};
use crate::error::Error;
use crate::exit::Exit;
use crate::runtime::Depth;

/// Look at receipts
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  effectd receipts list since:2h\n  effectd receipts show 0199f6a2-5a4e-7c10-8d53-3f2b5f0c9a12"
)]
pub(super) struct ReceiptsCommand {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    List(List),
    Show(Show),
    Tail(tail::Tail),
    Export(export::Export),
    Verify(verify::Verify),
    Proof(verify::Proof),
    Head(verify::Head),
    Audit(audit::Audit),
    Stats(stats::Stats),
    Amend(amend::Amend),
    RecomputeReward(amend::Recompute),
}

/// List receipts, the last ones first
///
/// With --watch, the last ones are shown in the order of time, and then each new one as it is made, until you stop it; that
/// needs a daemon.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  effectd receipts list --limit 5\n  effectd receipts list 'tool:files.*' status:ok since:2h -o jsonl"
)]
struct List {
    #[command(flatten)]
    which: Which,
    /// At most so many
    #[arg(long, value_name = "NUMBER", default_value_t = 20)]
    limit: u64,
    /// Go on with each new one
    #[arg(long)]
    watch: bool,
    /// How they are shown
    #[arg(long, short, value_enum, default_value = "table", value_name = "FORM")]
    output: Form,
}

/// Show one receipt: what was asked, decided, done and changed, where the time went, and what became known later
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  effectd receipts show 0199f6a2-5a4e-7c10-8d53-3f2b5f0c9a12")]
struct Show {
    /// Which receipt, by its own id or its action's
    #[arg(value_name = "RECEIPT")]
    receipt: ReceiptId,
    /// How it is shown
    #[arg(long, short, value_enum, default_value = "table", value_name = "FORM")]
    output: Form,
}

/// Receipts asked for at once.
const PAGE: u64 = 100;
/// How long one request waits for the next receipt; then it is asked again.
const WATCH_STEP_MS: u64 = 60_000;

const COLUMNS: [(&str, usize); 6] = [
    ("ENDED", 24),
    ("STATUS", 11),
    ("TOOL", 20),
    ("SPACE", 20),
    ("ACTION", 36),
    ("RECEIPT", 36),
];

impl ReceiptsCommand {
    pub(super) fn main(self, common: &Common) -> Exit {
        super::block_on(async {
            match self.verb {
                Verb::List(list) => list.main(common).await,
                Verb::Show(show) => show.main(common).await,
                Verb::Tail(tail) => tail.main(common).await,
                Verb::Export(export) => export.main(common).await,
                Verb::Verify(verify) => verify.main(common).await,
                Verb::Proof(proof) => proof.main(common).await,
                Verb::Head(head) => head.main(common).await,
                Verb::Audit(audit) => audit.main(common).await,
                Verb::Stats(stats) => stats.main(common).await,
                Verb::Amend(amend) => amend.main(common).await,
                Verb::RecomputeReward(recompute) => recompute.main(common).await,
            }
        })
    }
}

impl List {
    async fn main(&self, common: &Common) -> Result<Exit, Trouble> {
        with_client(common, Depth::Store, async |client| {
            if !self.watch {
                self.list(client).await
            } else if is_alone(client) {
                let why =
                    "--watch needs a daemon: without one nothing new is made; `effectd serve` starts one";
                Err(Error::Request(why.to_owned()).into())
            } else {
                self.watch(client).await
            }
        })
        .await
    }

    fn printer(&self) -> Printer {
        Printer::new(self.output, true, &COLUMNS)
    }

    async fn list(&self, client: &mut Client) -> Result<Exit, Trouble> {
        let mut printer = self.printer();
        let (mut after, mut left) = (None, self.limit);
        while left > 0 {
            let turn = Turn {
                order: Order::NewestFirst,
                after,
                limit: usize::try_from(left.min(PAGE)).unwrap_or(1),
                wait_ms: None,
            };
            let page = page(client, &self.which, turn).await?;
            left = left.saturating_sub(page.receipts.len() as u64);
            page.receipts
                .iter()
                .for_each(|receipt| row(&mut printer, receipt));
            after = page.next;
            if after.is_none() {
                break;
            }
        }
        printer.finish();
        Ok(Exit::Done)
    }

    /// The last ones in the order of time, then whatever comes.
    async fn watch(&self, client: &mut Client) -> Result<Exit, Trouble> {
        let mut printer = self.printer();
        let mut turn = Turn {
            order: Order::NewestFirst,
            after: None,
            limit: usize::try_from(self.limit.clamp(1, PAGE)).unwrap_or(1),
            wait_ms: None,
        };
        let first = page(client, &self.which, turn).await?;
        let last: VecDeque<_> = first.receipts.iter().take(self.limit as usize).collect();
        last.iter().rev().for_each(|receipt| row(&mut printer, receipt));
        turn = Turn {
            order: Order::OldestFirst,
            after: first.follow,
            limit: usize::try_from(PAGE).unwrap_or(1),
            wait_ms: Some(WATCH_STEP_MS),
        };
        loop {
            let page = match page(client, &self.which, turn).await {
                // The daemon is restarted: nothing is missed by asking it again where we were.
                Err(Trouble::Client(error @ (ClientError::NoDaemon(_) | ClientError::Broken(_)))) => {
                    super::complain(&format!("{error}; waiting for it to come back"));
                    until_back(client).await;
                    continue;
                }
                page => page?,
            };
            page.receipts
                .iter()
                .for_each(|receipt| row(&mut printer, receipt));
            turn.after = page.next.or(page.follow).or(turn.after);
        }
    }
}

/// The pause before a daemon that is away is asked again.
const BACK_LOOK: std::time::Duration = std::time::Duration::from_millis(200);

async fn until_back(client: &mut Client) {
    while client.is_there().await.is_err() {
        tokio::time::sleep(BACK_LOOK).await;
    }
}

fn row(printer: &mut Printer, receipt: &Receipt) {
    // A receipt is plain data with text keys, for which serde_json has no failure.
    let value = serde_json::to_value(receipt).unwrap_or_default();
    let ended = format!("{:.3}", receipt.timing.ended_at);
    let cells = [
        ended.as_str(),
        receipt.status.as_str(),
        receipt.tool_id.as_str(),
        receipt.space_id.as_str(),
        receipt.action_id.as_str(),
        receipt.receipt_id.as_str(),
    ];
    printer.row(&value, &cells);
}

impl Show {
    async fn main(&self, common: &Common) -> Result<Exit, Trouble> {
        let (receipt, amended) = with_client(common, Depth::Store, async |client| {
            let receipt = named::receipt(client, &self.receipt).await?;
            let amended = amendments(client, &receipt.receipt_id).await?;
            Ok((receipt, amended))
        })
        .await?;
        if self.output == Form::Table {
            line(show::receipt(&receipt, false).trim_end());
            if !amended.is_empty() {
                line(show::amendments(&amended).trim_end());
            }
        } else {
            let mut printer = Printer::new(self.output, false, &COLUMNS);
            row(&mut printer, &receipt);
            printer.finish();
        }
        Ok(Exit::Done)
    }
}

/// What became known later about a receipt.
async fn amendments(client: &mut Client, receipt: &ReceiptId) -> Result<Vec<AmendmentEntry>, Trouble> {
    let path = format!("/v1/receipts/{}/amendments", percent_encoded(receipt.as_str()));
    Ok(client.get(&path).await?)
}
