//! `effectd receipts`: list, show, export and verify receipts.

mod amend;
mod audit;
mod export;
mod log;
mod stats;
mod tail;
mod verify;

use clap::Subcommand;
use effectd_bus::Order;
use effectd_contracts::{AmendmentEntry, Receipt, ReceiptId};
use effectd_gateway::client::{Client, percent_encoded};

use super::backend::reconnected;
use super::receipt_filter::{PAGE, PageQuery, ReceiptFilter, page};
use super::{
    ActionReply, CliError, Common, Depth, Form, Printer, action_output, is_in_process, line, print_json,
    receipt_ref, receipt_view, with_client,
};
use crate::exit::Exit;

/// List, show, export and verify receipts
#[derive(Debug, Subcommand)]
#[command(
    after_help = "Examples:\n  effectd receipts list since:2h\n  effectd receipts show 0199f6a2-5a4e-7c10-8d53-3f2b5f0c9a12"
)]
pub(super) enum ReceiptsCommand {
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

/// List receipts, newest first
///
/// With --watch, the last receipts are shown in order of time, and then each new one; this needs a daemon.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  effectd receipts list --limit 5\n  effectd receipts list 'tool:files.*' status:ok since:2h -o jsonl"
)]
pub(super) struct List {
    #[command(flatten)]
    which: ReceiptFilter,
    /// Maximum of receipts
    #[arg(long, value_name = "NUMBER", default_value_t = 20)]
    limit: u64,
    /// Continue with each new receipt
    #[arg(long)]
    watch: bool,
}

/// Show one receipt: request, decision, changes, timing, the tool's result, and amendments
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  effectd receipts show 0199f6a2-5a4e-7c10-8d53-3f2b5f0c9a12")]
pub(super) struct Show {
    /// The receipt, by its own id or its action's
    #[arg(value_name = "RECEIPT")]
    receipt: ReceiptId,
}

/// How long one request waits for the next receipt.
const WATCH_STEP_MS: u64 = 60_000;

const COLUMNS: [(&str, usize); 7] = [
    ("ENDED", 24),
    ("OUTCOME", 13),
    ("CODE", 18),
    ("TOOL", 20),
    ("SPACE", 20),
    ("ACTION", 36),
    ("RECEIPT", 36),
];

impl ReceiptsCommand {
    pub(super) async fn main(self, common: &Common) -> Result<Exit, CliError> {
        match self {
            Self::List(list) => list.main(common).await,
            Self::Show(show) => show.main(common).await,
            Self::Tail(tail) => tail.main(common).await,
            Self::Export(export) => export.main(common).await,
            Self::Verify(verify) => verify.main(common).await,
            Self::Proof(proof) => proof.main(common).await,
            Self::Head(head) => head.main(common).await,
            Self::Audit(audit) => audit.main(common).await,
            Self::Stats(stats) => stats.main(common).await,
            Self::Amend(amend) => amend.main(common).await,
            Self::RecomputeReward(recompute) => recompute.main(common).await,
        }
    }
}

impl List {
    async fn main(&self, common: &Common) -> Result<Exit, CliError> {
        let mut printer = Printer::new(common.output, true, &COLUMNS);
        if self.watch {
            printer = printer.with_clock_times();
        }
        with_client(common, Depth::Store, async |client| {
            if !self.watch {
                self.list(client, &mut printer).await
            } else if is_in_process(client) {
                Err(CliError::request(
                    "--watch needs a daemon, since only a daemon adds receipts; start one with `effectd serve`",
                ))
            } else {
                self.watch(client, &mut printer).await
            }
        })
        .await?;
        printer.finish_list();
        Ok(Exit::Done)
    }

    async fn list(&self, client: &mut Client, printer: &mut Printer) -> Result<(), CliError> {
        let (mut after, mut left) = (None, usize::try_from(self.limit).unwrap_or(usize::MAX));
        while left > 0 {
            let newest = PageQuery { order: Order::NewestFirst, ..PageQuery::OLDEST };
            let query = PageQuery { after, limit: left.min(PAGE), ..newest };
            let page = page(client, &self.which, query).await?;
            left = left.saturating_sub(page.receipts.len());
            page.receipts.iter().for_each(|receipt| row(printer, receipt));
            after = page.next;
            if after.is_none() {
                break;
            }
        }
        Ok(())
    }

    /// Prints the last receipts in order of time, then each new one.
    async fn watch(&self, client: &mut Client, printer: &mut Printer) -> Result<(), CliError> {
        let limit = usize::try_from(self.limit).unwrap_or(usize::MAX);
        let newest = PageQuery { order: Order::NewestFirst, ..PageQuery::OLDEST };
        let mut query = PageQuery { limit: limit.clamp(1, PAGE), ..newest };
        let first = page(client, &self.which, query).await?;
        let last: Vec<_> = first.receipts.iter().take(limit).collect();
        last.into_iter().rev().for_each(|receipt| row(printer, receipt));
        query = PageQuery { after: first.follow, wait_ms: Some(WATCH_STEP_MS), ..PageQuery::OLDEST };
        loop {
            let page = match page(client, &self.which, query).await {
                // The daemon has restarted: continue at the same position.
                Err(error) if error.is_disconnect() => {
                    reconnected(client, &error).await;
                    continue;
                }
                page => page?,
            };
            page.receipts.iter().for_each(|receipt| row(printer, receipt));
            query.after = page.next.or(page.follow).or(query.after);
        }
    }
}

fn row(printer: &mut Printer, receipt: &Receipt) {
    let ended = format!("{:.3}", receipt.timing.ended_at);
    let cells = [
        ended.as_str(),
        receipt.outcome.as_str(),
        receipt.error.as_ref().map_or("-", |failure| failure.code.as_str()),
        receipt.tool_id.as_str(),
        receipt.space_id.as_str(),
        receipt.action_id.as_str(),
        receipt.receipt_id.as_str(),
    ];
    printer.row(receipt, &cells);
}

impl Show {
    async fn main(&self, common: &Common) -> Result<Exit, CliError> {
        let (receipt, action, amended) = with_client(common, Depth::Store, async |client| {
            let receipt = receipt_ref::receipt(client, &self.receipt).await?;
            let action = client.status(&receipt.action_id).await?;
            let amended = amendments(client, &receipt.receipt_id).await?;
            Ok((receipt, action, amended))
        })
        .await?;
        if common.output == Form::Table {
            receipt_view::print(&receipt, false, receipt_view::Detail::Full);
            match &action {
                ActionReply::View(view) if action_output::is_of(view, &receipt) => {
                    action_output::print_result(view);
                }
                ActionReply::Problem(problem) if action_output::hides_result(problem, &receipt) => {
                    action_output::explain(&action);
                }
                ActionReply::View(_) | ActionReply::Problem(_) => {}
            }
            if !amended.is_empty() {
                line(receipt_view::amendments(&amended).trim_end());
            }
        } else {
            print_json(common.output, &action_output::WithResult::new(&receipt, &action));
        }
        Ok(Exit::Done)
    }
}

/// The amendments of a receipt.
async fn amendments(client: &mut Client, receipt: &ReceiptId) -> Result<Vec<AmendmentEntry>, CliError> {
    let path = format!("/v1/receipts/{}/amendments", percent_encoded(receipt.as_str()));
    Ok(client.get(&path).await?)
}
