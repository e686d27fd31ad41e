//! `effectd receipts amend|recompute-reward`: what an action was worth, seen from later or weighed differently.

use effectd_actors::reward::{inputs_of, reward};
use effectd_contracts::{AmendmentEntry, Clock, Receipt, ReceiptId, SystemClock};
use effectd_gateway::client::percent_encoded;
use effectd_gateway::views::Amending;
use serde_json::json;

use crate::cli::backend::{Trouble, with_client};
use crate::cli::listing::{Which, each_page};
use crate::cli::operate::Confirm;
use crate::cli::output::{Form, Printer, for_programs, line};
use crate::cli::{Common, complain, named};
use crate::config::{Config, local_principal};
use crate::error::Error;
use crate::exit::Exit;
use crate::runtime::Depth;

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
        let receipt = with_client(common, Depth::Store, async |client| {
            named::receipt(client, &self.receipt).await
        })
        .await?;
        let id = &receipt.receipt_id;
        let would = told.entry(&receipt, local_principal()?, SystemClock.now());
        let would = would.map_err(Error::Request)?.reward.scalar;
        let says = format!("its reward counts as {} -> {would}", receipt.reward.scalar);
        if !self.confirm.given(&[says]) {
            return Ok(Exit::Usage);
        }
        let path = format!("/v1/receipts/{}/amendments", percent_encoded(id.as_str()));
        let noted: AmendmentEntry = with_client(common, Depth::Store, async |client| {
            Ok(client.post(&path, &told).await?)
        })
        .await?;
        if !for_programs(self.output, &noted) {
            line(&format!(
                "amended: its reward counts as {} from now on",
                noted.reward.scalar
            ));
        }
        Ok(Exit::Done)
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
        let mut row = |receipt: &Receipt| match inputs_of(receipt) {
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
        with_client(common, Depth::Store, async |client| {
            each_page(client, &self.which, None, async |_, page| {
                page.iter().for_each(&mut row);
                Ok(true)
            })
            .await
        })
        .await?;
        printer.finish();
        Ok(if wrong == 0 { Exit::Done } else { Exit::Failed })
    }
}
