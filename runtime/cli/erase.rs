//! `effectd store erase`: destroy the keys of everything that was sealed for a subject.

use std::time::Duration;

use effectd_bus::RetentionMode;
use effectd_contracts::text::counted;
use effectd_gateway::views::store::{EraseBody, ErasedView};
use tokio::time::Instant;

use super::mutation::ChangeArgs;
use super::{CliError, Common, Depth, Form, eprint_line, is_in_process, line, print_json, with_client};
use crate::exit::Exit;

/// How long to wait for running actions, and how often to check whether they have ended.
const PATIENCE: Duration = Duration::from_secs(60);
const CHECK_EVERY: Duration = Duration::from_millis(200);

/// See [`super::store`].
#[derive(Debug, clap::Args)]
pub(super) struct Erase {
    /// The subject; may be given several times
    #[arg(long, value_name = "SUBJECT", required = true)]
    subject: Vec<String>,
    /// Erase also a subject that no receipt, dead letter, approval, session or open action names
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    args: ChangeArgs,
}

impl Erase {
    pub(super) async fn main(&self, common: &Common) -> Result<Exit, CliError> {
        if !self.args.confirm.yes {
            let would = self.erase(common, RetentionMode::Preview).await?;
            self.show(&would, RetentionMode::Preview, common.output);
            if !would.held.is_empty() {
                return Ok(self.undecided(&would));
            }
            let says = format!("erases {}", self.subject.join(", "));
            if self.args.confirm.dry_run || !self.args.confirm.confirmed(&[says]) {
                return Ok(self.args.confirm.declined());
            }
        }
        let erased = self.erase(common, RetentionMode::Apply).await?;
        self.show(&erased, RetentionMode::Apply, common.output);
        if !erased.held.is_empty() {
            return Ok(self.undecided(&erased));
        }
        if erased.done {
            return Ok(Exit::Done);
        }
        eprint_line(
            &"actions are still running, or wait on the bus for a daemon; let them end and run this again. Until then the erasure is not complete",
        );
        Ok(Exit::TryAgain)
    }

    /// Prints what an erasure destroyed, or would. While approvals are pending, that is nothing.
    fn show(&self, erased: &ErasedView, turn: RetentionMode, form: Form) {
        if print_json(form, erased) || !erased.held.is_empty() {
            return;
        }
        let verb = match turn {
            RetentionMode::Preview => "would destroy",
            RetentionMode::Apply if erased.done => "destroyed",
            RetentionMode::Apply => "has destroyed so far",
        };
        line(&format!(
            "the erasure {verb} the keys of {}, {} and {}; sealed again for other subjects: {}",
            self.subject.join(", "),
            counted(erased.dead_letters, "dead letter"),
            counted(erased.blobs, "blob"),
            counted(erased.resealed, "entry")
        ));
    }

    fn undecided(&self, erased: &ErasedView) -> Exit {
        eprint_line(&format!(
            "these approvals of {} are pending; decide them first (`effectd approvals deny ID`), then erase: {}",
            self.subject.join(", "),
            erased.held.join(", ")
        ));
        Exit::Failed
    }

    /// Repeats the request until the erasure is done, something other than waiting is needed, or [`PATIENCE`] is over.
    async fn erase(&self, common: &Common, turn: RetentionMode) -> Result<ErasedView, CliError> {
        let end = Instant::now() + PATIENCE;
        let mut all = ErasedView::default();
        loop {
            let body = EraseBody {
                subjects: self.subject.clone(),
                preview: turn == RetentionMode::Preview,
                force: self.force,
                reason: self.args.why.reason.clone(),
                begun: all.begun,
                swept: all.swept,
            };
            let mut alone = false;
            let erased: ErasedView = with_client(common, Depth::Policy, async |client| {
                alone = is_in_process(client);
                Ok(client.post("/v1/store/erase", &body).await?)
            })
            .await?;
            all = all.and(erased);
            // Without a daemon, waiting does not end any action.
            if all.done || all.waiting == 0 || alone || Instant::now() > end {
                return Ok(all);
            }
            tokio::time::sleep(CHECK_EVERY).await;
        }
    }
}
