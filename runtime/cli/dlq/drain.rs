//! `effectd dlq drain`: the guided way through all causes.

use std::collections::BTreeSet;

use effectd_bus::OTHER_CAUSES;
use effectd_contracts::{Code, Operation};
use effectd_gateway::letters::{CauseView, LetterNow};
use tokio::sync::watch;

use super::requeue::{Pace, Run};
use super::{CHUNK, Chosen, Pick, Which, failed_causes, one, quoted, say_none};
use crate::cli::backend::{Session, Trouble, with_client};
use crate::cli::operate::{self, Answered, Confirm, Doing, answer_unless};
use crate::cli::output::line;
use crate::cli::{Common, complain};
use crate::exit::Exit;
use crate::runtime::Depth;

/// Go through all causes, most frequent first, and say of each what to do
///
/// Each cause is shown with a sample; then it is requeued (one first, then ten, then the rest), dropped, settled or left. With
/// `--yes` nobody is asked: every cause is requeued as carefully, one that fails again is left, and letters whose outcome is not known
/// are left to `dlq settle`. Doing it twice is doing it once. Exits with 1 if any letter is left.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  effectd dlq drain --yes\n  effectd dlq drain --rate 20 --yes")]
pub(super) struct Drain {
    #[command(flatten)]
    confirm: Confirm,
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
    pub(super) async fn main(&self, common: &Common) -> Result<Exit, Trouble> {
        let mut session = Session::reach(common, Depth::Store).await?;
        let causes = failed_causes(&mut session.client).await?;
        if causes.is_empty() {
            say_none(&mut session.client).await?;
            session.close().await?;
            return Ok(Exit::Done);
        }
        let mut run = Run::begin(common, session, self.pace).await?;
        let ended = self.all(common, causes, &mut run).await;
        // Whatever went wrong then, what was done is told.
        let tally = run.tally;
        complain(&tally.words());
        if !ended? {
            return Ok(Exit::Usage);
        }
        let left = with_client(common, Depth::Store, failed_causes).await?;
        let left: u64 = left.iter().map(|cause| cause.count).sum();
        complain(&format!("{left} dead letters are left"));
        Ok(match (tally.interrupted || tally.open > 0, left) {
            (true, _) => Exit::TryAgain,
            (false, 0) => Exit::Done,
            (false, _) => Exit::Failed,
        })
    }

    /// Goes through the causes, and through those that come into sight when others are gone: only so many are told one by one.
    async fn all(
        &self,
        common: &Common,
        mut causes: Vec<CauseView>,
        run: &mut Run<'_>,
    ) -> Result<bool, Trouble> {
        let mut seen = BTreeSet::new();
        loop {
            let told = causes.len();
            causes.retain(|cause| cause.code != OTHER_CAUSES);
            let more = causes.len() < told;
            causes.retain(|cause| seen.insert(cause.cause.clone()));
            if causes.is_empty() || !self.go_through(common, &causes, run).await? {
                return Ok(causes.is_empty());
            }
            if !more || run.is_interrupted() {
                return Ok(true);
            }
            if !self.confirm.yes {
                complain(&"there are more causes than are told at once; run this again for the others");
                return Ok(true);
            }
            causes = with_client(common, Depth::Store, failed_causes).await?;
        }
    }

    /// Does about each cause what somebody says. `false` if nobody can be asked.
    async fn go_through(
        &self,
        common: &Common,
        causes: &[CauseView],
        run: &mut Run<'_>,
    ) -> Result<bool, Trouble> {
        let mut stop = run.stopped();
        for cause in causes {
            show(cause);
            match self.choose(cause, &mut stop).await {
                None => return Ok(false),
                Some(Choice::Quit) => break,
                Some(Choice::Leave) => {}
                Some(Choice::Settle) => settle(common, cause, &mut stop).await?,
                Some(Choice::Drop) => discard(common, &picks(common, cause, usize::MAX).await?).await?,
                Some(Choice::Requeue) => {
                    let picks = picks(common, cause, run.room()).await?;
                    let mut left = |letters: &[LetterNow]| {
                        let left = letters.iter().filter(|letter| letter.is_left());
                        left.for_each(|letter| {
                            complain(&format!("letter {}: {}", letter.letter, letter.now))
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

    /// What to do; `None` if nobody can be asked.
    async fn choose(&self, cause: &CauseView, stop: &mut watch::Receiver<bool>) -> Option<Choice> {
        let unknown = cause.code == Code::OutcomeUnknown.as_str();
        if self.confirm.yes {
            if unknown {
                complain(&"whether these happened is not known: look, and say it with `effectd dlq settle`");
            }
            return Some(if unknown { Choice::Leave } else { Choice::Requeue });
        }
        let question = if unknown {
            "[s]ettle one by one, [d]rop, [l]eave, [q]uit? "
        } else {
            "[r]equeue, [d]rop, [l]eave, [q]uit? "
        };
        loop {
            let word = match answer_unless(question, stop).await {
                Answered::Said(word) => word,
                Answered::Stopped => return Some(Choice::Quit),
                Answered::Nobody => {
                    complain(&"nothing was changed; add --yes to requeue every cause");
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

fn show(cause: &CauseView) {
    let tool = cause.tool_id.as_deref().unwrap_or("unknown tool");
    line(&format!(
        "{} of cause {}: {} by {tool}, first {}, last {}",
        cause.count, cause.cause, cause.code, cause.first, cause.last
    ));
    if let Some(sample) = &cause.sample {
        line(&format!("  {}", quoted(sample)));
    }
}

/// The letters of a cause as they are now.
async fn picks(common: &Common, cause: &CauseView, max: usize) -> Result<Vec<Pick>, Trouble> {
    let chosen = Chosen {
        letters: Vec::new(),
        all: true,
        which: Which {
            cause: Some(cause.cause.clone()),
            ..Which::default()
        },
    };
    with_client(common, Depth::Store, async |client| {
        chosen.picks(client, max).await
    })
    .await
}

async fn discard(common: &Common, picks: &[Pick]) -> Result<(), Trouble> {
    for chunk in picks.chunks(CHUNK) {
        let letters = chunk.iter().map(|pick| pick.letter).collect();
        let done = operate::ask(common, &Operation::DropLetters { letters }, Doing::ForReal).await?;
        done.says.iter().for_each(|says| complain(says));
    }
    Ok(())
}

/// Asks of each letter whether it happened.
async fn settle(common: &Common, cause: &CauseView, stop: &mut watch::Receiver<bool>) -> Result<(), Trouble> {
    for pick in picks(common, cause, usize::MAX).await? {
        let found = with_client(common, Depth::Store, async |client| {
            one(client, pick.letter).await
        })
        .await?;
        let Some(letter) = found else { continue };
        let (action, tool) = (
            letter.action_id.unwrap_or_default(),
            letter.tool_id.unwrap_or_default(),
        );
        let question = format!(
            "letter {}, action {action}, {tool}: [y]es, it happened, [n]o, [l]eave? ",
            pick.letter
        );
        let done = match answer_unless(&question, stop).await {
            Answered::Said(word) if word == "y" => true,
            Answered::Said(word) if word == "n" => false,
            Answered::Said(_) => continue,
            Answered::Stopped | Answered::Nobody => return Ok(()),
        };
        let letter = pick.letter;
        let told = operate::ask(common, &Operation::SettleLetter { letter, done }, Doing::ForReal).await?;
        told.says.iter().for_each(|says| complain(says));
    }
    Ok(())
}
