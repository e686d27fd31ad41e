//! `effectd dlq drain`: go through all causes of dead letters.

use std::collections::BTreeSet;

use effectd_bus::OTHER_CAUSES;
use effectd_contracts::text::counted;
use effectd_contracts::{Code, Operation};
use effectd_gateway::views::dead_letters::{CauseView, LetterNow};
use tokio::sync::watch;

use super::requeue::{Pace, Run};
use super::{CHUNK, Chosen, LetterFilter, Pick, describe, one, quoted, report_none, tool_of};
use crate::cli::mutation::{self, Answer, ChangeArgs, RunMode, Terms, prompt_until};
use crate::cli::{CliError, Common, Depth, Session, eprint_line, line, with_client};
use crate::exit::Exit;

/// Go through all causes, most frequent first, and decide about each
///
/// Each cause is shown with a sample. You requeue it (one letter first, then ten, then the rest), drop it, settle it or leave it. With
/// `--yes` nobody is asked: every cause is requeued in the same steps, a cause that fails again is left, and letters of unknown outcome
/// are left to `dlq settle`. Running it again is harmless. Exits with 1 if any letter is left.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  effectd dlq drain --yes\n  effectd dlq drain --rate 20 --yes")]
pub(in crate::cli) struct Drain {
    #[command(flatten)]
    which: LetterFilter,
    #[command(flatten)]
    args: ChangeArgs,
    #[command(flatten)]
    pace: Pace,
}

enum Choice {
    Requeue,
    Drop,
    Settle,
    Leave,
    Quit,
}

impl Drain {
    pub(super) async fn main(&self, common: &Common) -> Result<Exit, CliError> {
        let mut session = Session::reach(common, Depth::Store).await?;
        let causes = self.which.failed_causes(&mut session.client).await?;
        if causes.is_empty() {
            match self.which.query().is_empty() {
                true => report_none(&mut session.client).await?,
                false => eprint_line(&"there are no such dead letters"),
            }
            session.close().await?;
            return Ok(Exit::Done);
        }
        let would = causes.iter().map(|cause| {
            let verb = if cause.code == Code::OutcomeUnknown.as_str() { "leave" } else { "requeue" };
            format!("{verb} {} of cause {} ({})", cause.count, cause.cause, cause.code)
        });
        if self.args.confirm.only_shows(&would.collect::<Vec<_>>()) {
            session.close().await?;
            return Ok(Exit::Done);
        }
        let mut run = Run::begin(common, session, (self.pace, self.args.why.clone().into())).await?;
        let ended = self.all(common, causes, &mut run).await;
        // Report what was done, even after an error.
        let tally = run.tally;
        eprint_line(&tally.to_text());
        if !ended? {
            return Ok(Exit::Usage);
        }
        let left = self.failed_causes(common).await?;
        let left: u64 = left.iter().map(|cause| cause.count).sum();
        eprint_line(&format!("left: {}", counted(left, "dead letter")));
        Ok(match (tally.interrupted || tally.open > 0, left) {
            (true, _) => Exit::TryAgain,
            (false, 0) => Exit::Done,
            (false, _) => Exit::Failed,
        })
    }

    async fn failed_causes(&self, common: &Common) -> Result<Vec<CauseView>, CliError> {
        with_client(common, Depth::Store, async |client| self.which.failed_causes(client).await).await
    }

    /// Goes through the listed causes. The list has a limit, so with `--yes` it is then fetched again, for the remaining causes.
    async fn all(
        &self,
        common: &Common,
        mut causes: Vec<CauseView>,
        run: &mut Run<'_>,
    ) -> Result<bool, CliError> {
        let mut seen = BTreeSet::new();
        loop {
            let listed = causes.len();
            causes.retain(|cause| cause.code != OTHER_CAUSES);
            let more = causes.len() < listed;
            causes.retain(|cause| seen.insert(cause.cause.clone()));
            if causes.is_empty() || !self.go_through(common, &causes, run).await? {
                return Ok(causes.is_empty());
            }
            if !more || run.is_interrupted() {
                return Ok(true);
            }
            if !self.args.confirm.yes {
                eprint_line(&"there are more causes than are listed at once; run this again for the others");
                return Ok(true);
            }
            causes = self.failed_causes(common).await?;
        }
    }

    /// Asks about each cause and acts on the choice. `false` without a terminal.
    async fn go_through(
        &self,
        common: &Common,
        causes: &[CauseView],
        run: &mut Run<'_>,
    ) -> Result<bool, CliError> {
        let mut stop = run.stopped();
        for cause in causes {
            show(cause);
            match self.choose(cause, &mut stop).await {
                None => return Ok(false),
                Some(Choice::Quit) => break,
                Some(Choice::Leave) => {}
                Some(Choice::Settle) => self.settle(common, cause, &mut stop).await?,
                Some(Choice::Drop) => {
                    let picks = self.picks(common, cause, usize::MAX).await?;
                    discard(common, &picks, &self.args.why.clone().into()).await?;
                }
                Some(Choice::Requeue) => {
                    let picks = self.picks(common, cause, run.room()).await?;
                    let mut left = |_: &[Pick], letters: &[LetterNow]| {
                        let left = letters.iter().filter(|letter| letter.is_left());
                        left.for_each(|letter| {
                            eprint_line(&format!("letter {}: {}", letter.letter, letter.now))
                        });
                    };
                    run.cause(picks, &mut left).await?;
                }
            }
            if *stop.borrow() {
                run.interrupt();
            }
            if run.is_interrupted() {
                return Ok(true);
            }
        }
        if *stop.borrow() {
            run.interrupt();
        }
        Ok(true)
    }

    /// What the person chose; `None` without a terminal.
    async fn choose(&self, cause: &CauseView, stop: &mut watch::Receiver<bool>) -> Option<Choice> {
        let unknown = cause.code == Code::OutcomeUnknown.as_str();
        if self.args.confirm.yes {
            if unknown {
                eprint_line(
                    &"the outcome of these is unknown: find out whether each happened, then run `effectd dlq settle`",
                );
            }
            return Some(if unknown { Choice::Leave } else { Choice::Requeue });
        }
        let question = if unknown {
            "[s]ettle one by one, [d]rop, [l]eave, [q]uit? "
        } else {
            "[r]equeue, [d]rop, [l]eave, [q]uit? "
        };
        loop {
            let word = match prompt_until(question, stop).await {
                Answer::Said(word) => word,
                Answer::Stopped => return Some(Choice::Quit),
                Answer::NoTerminal => {
                    eprint_line(&"nothing was changed; add --yes to requeue every cause");
                    return None;
                }
            };
            match word.as_str() {
                "r" if !unknown => return Some(Choice::Requeue),
                "s" if unknown => return Some(Choice::Settle),
                "d" => return Some(Choice::Drop),
                "l" | "" => return Some(Choice::Leave),
                "q" => return Some(Choice::Quit),
                _ => {}
            }
        }
    }
}

impl Drain {
    /// The selected letters that a cause has now.
    async fn picks(&self, common: &Common, cause: &CauseView, max: usize) -> Result<Vec<Pick>, CliError> {
        let which = LetterFilter { cause: Some(cause.cause.clone()), ..self.which.clone() };
        let chosen = Chosen { letters: Vec::new(), all: true, which };
        with_client(common, Depth::Store, async |client| chosen.picks(client, max).await).await
    }

    /// Asks for each letter whether its effect happened.
    async fn settle(
        &self,
        common: &Common,
        cause: &CauseView,
        stop: &mut watch::Receiver<bool>,
    ) -> Result<(), CliError> {
        for pick in self.picks(common, cause, usize::MAX).await? {
            let letter = pick.letter;
            let found = with_client(common, Depth::Store, async |client| one(client, letter).await).await?;
            let Some(view) = found else { continue };
            describe(&view);
            let action = view.action_id.unwrap_or_default();
            let question = format!("letter {letter}, action {action}: [y]es, it happened, [n]o, [l]eave? ");
            let done = match prompt_until(&question, stop).await {
                Answer::Said(word) if word == "y" => true,
                Answer::Said(word) if word == "n" => false,
                Answer::Said(_) => continue,
                Answer::Stopped | Answer::NoTerminal => return Ok(()),
            };
            let settle = Operation::SettleLetter { letter, done };
            let settled =
                mutation::send_on(common, &settle, &self.args.why.clone().into(), RunMode::Execute).await?;
            settled.says.iter().for_each(|says| eprint_line(says));
        }
        Ok(())
    }
}

fn show(cause: &CauseView) {
    let tool = tool_of(cause).unwrap_or("unknown tool");
    line(&format!(
        "{} of cause {}: {} by {tool}, first {}, last {}",
        cause.count, cause.cause, cause.code, cause.first, cause.last
    ));
    if let Some(sample) = &cause.sample {
        line(&format!("  {}", quoted(sample)));
    }
}

async fn discard(common: &Common, picks: &[Pick], terms: &Terms) -> Result<(), CliError> {
    for chunk in picks.chunks(CHUNK) {
        let letters = chunk.iter().map(|pick| pick.letter).collect();
        let operation = Operation::DropLetters { letters };
        let done = mutation::send_on(common, &operation, terms, RunMode::Execute).await?;
        done.says.iter().for_each(|says| eprint_line(says));
    }
    Ok(())
}
