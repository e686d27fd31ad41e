//! `effectd store erase`: what was sealed for a subject can be opened by no key any more.

use std::time::{Duration, Instant};

use effectd_contracts::{Clock, SystemClock};
use effectd_gateway::upkeep::{self, EraseBody, ErasedView};
use hyper::Method;

use super::backend::Trouble;
use super::output::Form;
use super::store::show;
use super::stored::Keeper;
use super::{Common, complain};
use crate::error::Error;
use crate::exit::Exit;
use crate::runtime::blobs;

/// How long what is under way may take to end, and how often it is looked at.
const PATIENCE: Duration = Duration::from_secs(60);
const LOOK_AGAIN: Duration = Duration::from_millis(200);

/// See [`super::store`].
#[derive(Debug, clap::Args)]
pub(super) struct Erase {
    /// Whom; may be given several times
    #[arg(long, value_name = "SUBJECT", required = true)]
    subject: Vec<String>,
    /// Do it
    #[arg(long)]
    yes: bool,
    /// How the answer is shown
    #[arg(long, short, value_enum, default_value = "table", value_name = "FORM")]
    output: Form,
}

impl Erase {
    pub(super) async fn main(&self, common: &Common) -> Result<Exit, Trouble> {
        let mut keeper = Keeper::reach(common).await?;
        let told = self.erase(&mut keeper).await;
        keeper.close()?;
        let told = told?;
        show(&serde_json::to_value(&told).unwrap_or_default(), self.output);
        if !told.held.is_empty() {
            complain(&format!(
                "these questions wait for a person; decide them first (`effectd approvals deny ID`), then erase: {}",
                told.held.join(", ")
            ));
            return Ok(Exit::Failed);
        }
        if !self.yes {
            complain(&"nothing was erased; add --yes to do it");
            return Ok(Exit::Done);
        }
        if told.done {
            return Ok(Exit::Done);
        }
        complain(
            &"actions are still under way, or wait on the bus for a daemon; let them end and ask again. Until then it is not done",
        );
        Ok(Exit::TryAgain)
    }

    /// Asks until it is done, something else is needed first, or it takes too long.
    async fn erase(&self, keeper: &mut Keeper) -> Result<ErasedView, Trouble> {
        let end = Instant::now() + PATIENCE;
        let mut all = ErasedView::default();
        loop {
            let body = EraseBody {
                subjects: self.subject.clone(),
                preview: !self.yes,
                begun: all.begun,
                swept: all.swept,
            };
            let told: ErasedView = match keeper {
                Keeper::Daemon(client) => {
                    let body = serde_json::to_vec(&body).unwrap_or_default();
                    let told = client.call(Method::POST, "/v1/store/erase", body).await?;
                    told.map_err(Trouble::Refused)?
                }
                Keeper::Direct { store, state, .. } => {
                    upkeep::erase(&**store, &blobs(state)?, SystemClock.now(), &body).map_err(Error::from)?
                }
            };
            all = all.and(told);
            if all.done || all.waiting == 0 || matches!(keeper, Keeper::Direct { .. }) || Instant::now() > end
            {
                return Ok(all);
            }
            tokio::time::sleep(LOOK_AGAIN).await;
        }
    }
}
