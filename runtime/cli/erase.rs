//! `effectd store erase`: what was sealed for a subject can be opened by no key any more.

use std::time::{Duration, Instant};

use effectd_bus::Turn;
use effectd_gateway::upkeep::{EraseBody, ErasedView};

use super::backend::{Trouble, is_alone, with_client};
use super::operate::Confirm;
use super::output::Form;
use super::store::show;
use super::{Common, complain};
use crate::exit::Exit;
use crate::runtime::Depth;

/// How long what is under way may take to end, and how often it is looked at.
const PATIENCE: Duration = Duration::from_secs(60);
const LOOK_AGAIN: Duration = Duration::from_millis(200);

/// See [`super::store`].
#[derive(Debug, clap::Args)]
pub(super) struct Erase {
    /// Whom; may be given several times
    #[arg(long, value_name = "SUBJECT", required = true)]
    subject: Vec<String>,
    #[command(flatten)]
    confirm: Confirm,
    /// How the answer is shown
    #[arg(long, short, value_enum, default_value = "table", value_name = "FORM")]
    output: Form,
}

impl Erase {
    pub(super) async fn main(&self, common: &Common) -> Result<Exit, Trouble> {
        if !self.confirm.yes {
            let would = self.erase(common, Turn::Preview).await?;
            show(&serde_json::to_value(&would).unwrap_or_default(), self.output);
            if !would.held.is_empty() {
                return Ok(self.undecided(&would));
            }
            if !self
                .confirm
                .given(&[format!("erases {}", self.subject.join(", "))])
            {
                return Ok(Exit::Usage);
            }
        }
        let told = self.erase(common, Turn::LetGo).await?;
        show(&serde_json::to_value(&told).unwrap_or_default(), self.output);
        if !told.held.is_empty() {
            return Ok(self.undecided(&told));
        }
        if told.done {
            return Ok(Exit::Done);
        }
        complain(
            &"actions are still under way, or wait on the bus for a daemon; let them end and ask again. Until then it is not done",
        );
        Ok(Exit::TryAgain)
    }

    /// Somebody has to decide first.
    fn undecided(&self, told: &ErasedView) -> Exit {
        complain(&format!(
            "these questions of {} wait for a person; decide them first (`effectd approvals deny ID`), then erase: {}",
            self.subject.join(", "),
            told.held.join(", ")
        ));
        Exit::Failed
    }

    /// Asks until it is done, something else is needed first, or it takes too long.
    async fn erase(&self, common: &Common, turn: Turn) -> Result<ErasedView, Trouble> {
        let end = Instant::now() + PATIENCE;
        let mut all = ErasedView::default();
        loop {
            let body = EraseBody {
                subjects: self.subject.clone(),
                preview: turn == Turn::Preview,
                begun: all.begun,
                swept: all.swept,
            };
            let mut alone = false;
            let told: ErasedView = with_client(common, Depth::Policy, async |client| {
                alone = is_alone(client);
                Ok(client.post("/v1/store/erase", &body).await?)
            })
            .await?;
            all = all.and(told);
            // Where nobody else is, nothing ends by waiting.
            if all.done || all.waiting == 0 || alone || Instant::now() > end {
                return Ok(all);
            }
            tokio::time::sleep(LOOK_AGAIN).await;
        }
    }
}
