//! `effectd receipts amend|recompute-reward`: correct a reward later, or compute rewards with other weights.

use effectd_contracts::reward::{inputs_of, reward};
use effectd_contracts::{AmendmentEntry, Clock, Receipt, ReceiptId, SystemClock};
use effectd_gateway::client::percent_encoded;
use effectd_gateway::views::Amending;
use serde_json::json;

use super::amendments;
use crate::cli::progress::Bar;
use crate::cli::receipt_filter::{PageQuery, ReceiptFilter, each_page};
use crate::cli::{
    CliError, Common, Confirm, Depth, Printer, eprint_line, line, post, print_json, receipt_ref,
    state_dir_of, with_client,
};
use crate::exit::Exit;
use crate::settings::config::local_principal;

/// Amend a receipt with what became known later: whether the effect lasted, or how good it was
///
/// The receipt does not change. The amendment is signed, names you, and is a separate entry of the log. Amendments add up field by
/// field; learners use the reward of the last one.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Example:\n  effectd receipts amend 0199f6a2-5a4e-7c10-8d53-3f2b5f0c9a12 --success false --note 'the file was empty' --yes"
)]
pub(in crate::cli) struct Amend {
    /// The receipt, by its own id or its action's
    #[arg(value_name = "RECEIPT")]
    receipt: ReceiptId,
    /// Whether the action counts as successful
    #[arg(long, value_name = "true|false")]
    success: Option<bool>,
    /// The quality, from 0 to 1
    #[arg(long, value_name = "SHARE")]
    quality: Option<f64>,
    /// Who found out, if not you, such as the name of a check
    #[arg(long, value_name = "NAME")]
    source: Option<String>,
    /// The reason, for people; it is stored in clear
    #[arg(long, value_name = "TEXT")]
    note: Option<String>,
    #[command(flatten)]
    confirm: Confirm,
}

impl Amend {
    pub(super) async fn main(&self, common: &Common) -> Result<Exit, CliError> {
        let amending = Amending {
            source: self.source.clone(),
            success: self.success,
            quality: self.quality,
            note: self.note.clone(),
        };
        let (receipt, earlier) = with_client(common, Depth::Store, async |client| {
            let receipt = receipt_ref::receipt(client, &self.receipt).await?;
            let earlier = amendments(client, &receipt.receipt_id).await?;
            Ok((receipt, earlier))
        })
        .await?;
        let id = &receipt.receipt_id;
        let would = amending.entry(&receipt, &earlier, local_principal()?, SystemClock.now());
        let would = would.map_err(CliError::request)?.reward.scalar;
        let before = earlier.last().map_or(&receipt.reward, |last| &last.reward).scalar;
        let says = format!("its reward: {before} -> {would}");
        if !self.confirm.confirmed(&[says]) {
            return Ok(self.confirm.declined());
        }
        let path = format!("/v1/receipts/{}/amendments", percent_encoded(id.as_str()));
        let noted: AmendmentEntry = post(common, Depth::Store, &path, &amending).await?;
        if !print_json(common.output, &noted) {
            line(&format!("amended: its reward was {before} and is now {}", noted.reward.scalar));
        }
        Ok(Exit::Done)
    }
}

/// Compute the rewards of receipts again, with the present weights
///
/// Nothing is changed: each receipt's own reward is shown beside the new one. The weights are those of the configuration;
/// `--set reward.weight_cost=0.2` tries another one. A receipt whose own reward does not follow from its own inputs is named, and the
/// command exits with 1.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  effectd receipts recompute-reward since:7d\n  effectd receipts recompute-reward --set reward.weight_cost=0.2 -o jsonl"
)]
pub(in crate::cli) struct Recompute {
    #[command(flatten)]
    which: ReceiptFilter,
}

const COLUMNS: [(&str, usize); 4] = [("RECEIPT", 36), ("TOOL", 20), ("REWARD", 10), ("RECOMPUTED", 10)];

impl Recompute {
    pub(super) async fn main(&self, common: &Common) -> Result<Exit, CliError> {
        let mut printer = Printer::new(common.output, true, &COLUMNS);
        let settings = common.settings(Some(&state_dir_of(common)))?;
        let weights = &settings.values().pipeline.weights;
        let mut wrong = 0_u64;
        let mut row = |receipt: &Receipt| match inputs_of(receipt) {
            Ok((inputs, own)) => {
                let (again, other) = (reward(&inputs, &own), reward(&inputs, weights));
                if again != receipt.reward {
                    wrong += 1;
                    eprint_line(&format!(
                        "receipt {}: its own inputs give {}",
                        receipt.receipt_id, again.scalar
                    ));
                }
                let value = json!({ "receipt_id": receipt.receipt_id, "tool_id": receipt.tool_id,
                    "reward": receipt.reward, "recomputed": other });
                let (old, new) = (receipt.reward.scalar.to_string(), other.scalar.to_string());
                printer.row(&value, &[receipt.receipt_id.as_str(), receipt.tool_id.as_str(), &old, &new]);
            }
            Err(why) => eprint_line(&format!("receipt {}: {why}", receipt.receipt_id)),
        };
        with_client(common, Depth::Store, async |client| {
            let bar = Bar::beside_output("recomputing rewards");
            each_page(client, &self.which, PageQuery::OLDEST, &bar, |page| {
                page.receipts.iter().for_each(&mut row);
                Ok(true)
            })
            .await
        })
        .await?;
        printer.finish();
        Ok(if wrong == 0 { Exit::Done } else { Exit::Failed })
    }
}
