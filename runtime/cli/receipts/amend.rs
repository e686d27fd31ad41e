//! `effectd receipts amend|recompute-reward`: what an action was worth, seen from later or weighed differently.

use std::cell::RefCell;

use effectd_actors::log;
use effectd_actors::reward::{inputs_of, reward};
use effectd_bus::Order;
use effectd_contracts::{AmendmentEntry, Clock, Receipt, ReceiptId, SystemClock};
use effectd_gateway::views::Amending;
use hyper::Method;
use serde_json::json;

use super::PAGE;
use crate::cli::backend::{Trouble, ask_or};
use crate::cli::listing::{Source, Turn, Which};
use crate::cli::operate::Confirm;
use crate::cli::output::{Form, Printer, for_programs, line};
use crate::cli::{Common, complain, named, stored};
use crate::client::percent_encoded;
use crate::config::{Config, local_principal};
use crate::error::Error;
use crate::exit::Exit;
use crate::keys;

/// Say what became known later about a receipt: that it did not last after all, or how good it was
///
/// The receipt stays as it is. What you say is signed, with your name, and stands beside it in the log; learners take its reward
/// instead.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Example:\n  effectd receipts amend 0199f6a2-5a4e-7c10-8d53-3f2b5f0c9a12 --success false --note 'the file was empty' --yes"
)]
pub(super) struct Amend {
    /// Which receipt, by its own id or its action's
    #[arg(value_name = "RECEIPT")]
    receipt: ReceiptId,
    /// Whether it counts as done
    #[arg(long, value_name = "true|false")]
    success: Option<bool>,
    /// How well, from 0 to 1
    #[arg(long, value_name = "SHARE")]
    quality: Option<f64>,
    /// Who found out, if not you: the name of whatever checks
    #[arg(long, value_name = "NAME")]
    source: Option<String>,
    /// Why, for people; it is stored in clear
    #[arg(long, value_name = "TEXT")]
    note: Option<String>,
    #[command(flatten)]
    confirm: Confirm,
    /// How the answer is shown
    #[arg(long, short, value_enum, default_value = "table", value_name = "FORM")]
    output: Form,
}

impl Amend {
    pub(super) async fn main(&self, common: &Common) -> Result<Exit, Trouble> {
        let told = Amending {
            source: self.source.clone(),
            success: self.success,
            quality: self.quality,
            note: self.note.clone(),
        };
        let receipt = self.named(common).await?;
        let id = &receipt.receipt_id;
        let would = told.entry(&receipt, local_principal()?, SystemClock.now());
        let would = would.map_err(Error::Request)?.reward.scalar;
        let says = format!("its reward counts as {} -> {would}", receipt.reward.scalar);
        if !self.confirm.given(&[says]) {
            return Ok(Exit::Usage);
        }
        let noted: AmendmentEntry = ask_or(
            common,
            async |client| {
                let path = format!("/v1/receipts/{}/amendments", percent_encoded(id.as_str()));
                // Plain data with text keys, for which serde_json has no failure.
                let body = serde_json::to_vec(&told).unwrap_or_default();
                client
                    .call(Method::POST, &path, body)
                    .await?
                    .map_err(Trouble::Refused)
            },
            async |path| {
                let (state, store) = stored::open(common, path)?;
                let receipt = named::of_store(&*store, id)?.ok_or_else(|| named::unknown(id))?;
                let by = Config::embedded(path)?.principal;
                let entry = told
                    .entry(&receipt, by, SystemClock.now())
                    .map_err(Error::Request)?;
                let identity = keys::current(&state.keys_dir(), &*store)?;
                Ok(log::amend(&*store, &identity, entry).await.map_err(Error::from)?)
            },
        )
        .await?;
        if !for_programs(self.output, &noted) {
            line(&format!(
                "amended: its reward counts as {} from now on",
                noted.reward.scalar
            ));
        }
        Ok(Exit::Done)
    }

    async fn named(&self, common: &Common) -> Result<Receipt, Trouble> {
        let found = ask_or(
            common,
            async |client| named::of_daemon(client, &self.receipt).await,
            async |path| {
                let (_, store) = stored::open(common, path)?;
                named::of_store(&*store, &self.receipt)
            },
        )
        .await?;
        Ok(found.ok_or_else(|| named::unknown(&self.receipt))?)
    }
}

/// Compute rewards again, by what their receipts hold, under the weights that are set now
///
/// Nothing is changed: each receipt's own reward and the other one stand beside each other. Weights and budget are those of
/// the configuration; `--set reward.weight_cost=0.2` tries another one. A receipt whose own reward does not come out from its
/// own inputs is named, and makes the command exit with 1.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  effectd receipts recompute-reward since:7d\n  effectd receipts recompute-reward --set reward.weight_cost=0.2 -o jsonl"
)]
pub(super) struct Recompute {
    #[command(flatten)]
    which: Which,
    /// How rewards are shown
    #[arg(long, short, value_enum, default_value = "table", value_name = "FORM")]
    output: Form,
}

const COLUMNS: [(&str, usize); 4] = [("RECEIPT", 36), ("TOOL", 20), ("REWARD", 10), ("RECOMPUTED", 10)];

impl Recompute {
    pub(super) async fn main(&self, common: &Common) -> Result<Exit, Trouble> {
        let mut printer = Printer::new(self.output, true, &COLUMNS);
        let state = crate::cli::backend::client_state(common);
        let mut config = Config::embedded(&state)?;
        common.settings(Some(&state))?.apply(&mut config);
        let mut wrong = 0_u64;
        let row = |receipt: &Receipt| match inputs_of(receipt) {
            Ok((inputs, own)) => {
                let (again, other) = (reward(&inputs, &own), reward(&inputs, &config.weights));
                if again != receipt.reward {
                    wrong += 1;
                    complain(&format!(
                        "receipt {}: its own inputs give {}",
                        receipt.receipt_id, again.scalar
                    ));
                }
                let value = json!({ "receipt_id": receipt.receipt_id, "tool_id": receipt.tool_id,
                    "reward": receipt.reward, "recomputed": other });
                let (old, new) = (receipt.reward.scalar.to_string(), other.scalar.to_string());
                printer.row(
                    &value,
                    &[receipt.receipt_id.as_str(), receipt.tool_id.as_str(), &old, &new],
                );
            }
            Err(why) => complain(&format!("receipt {}: {why}", receipt.receipt_id)),
        };
        let row = RefCell::new(row);
        let gone_through = ask_or(
            common,
            async |client| all(Source::Daemon(client), &self.which, &row).await,
            async |state| {
                let (_, store) = stored::open(common, state)?;
                all(Source::Direct(&*store), &self.which, &row).await
            },
        )
        .await;
        gone_through?;
        printer.finish();
        Ok(if wrong == 0 { Exit::Done } else { Exit::Failed })
    }
}

async fn all(
    mut source: Source<'_>,
    which: &Which,
    row: &RefCell<impl FnMut(&Receipt)>,
) -> Result<(), Trouble> {
    let mut after = None;
    loop {
        let turn = Turn {
            order: Order::OldestFirst,
            after,
            limit: usize::try_from(PAGE).unwrap_or(1),
            wait_ms: None,
        };
        let page = source.page(which, turn).await?;
        page.receipts.iter().for_each(|receipt| row.borrow_mut()(receipt));
        after = page.next;
        if after.is_none() {
            return Ok(());
        }
    }
}
