//! `effectd dlq requeue`: the first one shows whether it works again, then ten, then the rest.

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use effectd_contracts::{ActionId, Operation, Outcome};
use effectd_gateway::client::{Client, Told};
use effectd_gateway::letters::LetterNow;
use effectd_gateway::views::State as Standing;
use tokio::sync::watch;

use super::{Chosen, NOW, Pick, by_cause, summary, tell};
use crate::cli::backend::{Session, Trouble, is_alone};
use crate::cli::operate::{self, Confirm, Doing};
use crate::cli::output::{Form, Printer};
use crate::cli::{Common, complain};
use crate::error::Error;
use crate::exit::Exit;
use crate::runtime::Depth;

/// How many go first, and then; whatever is left goes in pieces of the last.
const STEPS: [usize; 3] = [1, 10, 100];
/// How long the bar is.
const BAR: usize = 40;
/// How long one request waits. What waits for a person is told only after this.
const WAIT_STEP: Duration = Duration::from_secs(2);
/// The pause before a daemon that cannot answer now is asked again.
const RETRY_PAUSE: Duration = Duration::from_millis(200);

/// Put letters on the bus again, each with its action id and key; they pass every gate again
///
/// Of each cause one goes first, then ten, then the rest, and each step waits for the one before: as soon as one of them ends in any
/// other way than done, or waits for a person, the rest of that cause stays. `--no-canary` puts all on the bus at once. A letter
/// that was requeued is gone, and requeuing it again does nothing; what is not done then, for whatever reason, is a dead letter
/// again. Ctrl-C ends after the step that is under way, and what is left stays as it is. Letters whose outcome is not known are
/// left to `dlq settle`. Exits with 1 if any stays, with 75 if it was interrupted or one did not end in time.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  effectd dlq requeue 0 --yes\n  effectd dlq requeue --cause 3f2b5f0c9a36e1d0 --yes\n  \
    effectd dlq requeue --all --tool files.write_text --rate 50 --max 1000 --yes"
)]
pub(super) struct Requeue {
    #[command(flatten)]
    chosen: Chosen,
    #[command(flatten)]
    confirm: Confirm,
    #[command(flatten)]
    pace: Pace,
    /// How the answer is shown
    #[arg(long, short, value_enum, default_value = "table", value_name = "FORM")]
    output: Form,
}

/// How many, how fast, how carefully.
#[derive(Debug, Clone, Copy, clap::Args)]
pub(super) struct Pace {
    /// At most so many a second
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u32).range(1..))]
    rate: Option<u32>,
    /// At most so many in all
    #[arg(long, value_name = "NUMBER")]
    max: Option<usize>,
    /// How many seconds is waited for a step to end; then the rest stays
    #[arg(long, value_name = "NUMBER", default_value = "300", value_parser = clap::value_parser!(u64).range(1..=86_400))]
    wait: u64,
    /// All at once, whatever comes of the first
    #[arg(long)]
    no_canary: bool,
}

#[derive(Debug, Default)]
pub(super) struct Tally {
    pub(super) requeued: usize,
    pub(super) gone: usize,
    /// They could not be requeued.
    pub(super) left: usize,
    /// They were requeued, and were not done.
    pub(super) back: usize,
    /// They were requeued, and wait for a person.
    pub(super) held: usize,
    /// They were requeued, and had not ended when nobody wanted to wait any more.
    pub(super) open: usize,
    /// They were not tried, because another of their cause was not done.
    pub(super) spared: usize,
    pub(super) interrupted: bool,
}

impl Tally {
    pub(super) fn exit(&self) -> Exit {
        if self.interrupted || self.open > 0 {
            Exit::TryAgain
        } else if self.left + self.back + self.held + self.spared > 0 {
            Exit::Failed
        } else {
            Exit::Done
        }
    }

    pub(super) fn words(&self) -> String {
        let interrupted = if self.interrupted {
            "interrupted; what was not requeued stays: "
        } else {
            ""
        };
        let counts = [
            (self.held, "wait for a person"),
            (self.open, "have not ended yet"),
        ];
        let counts = counts.into_iter().filter(|(count, _)| *count > 0);
        let told: String = counts.map(|(count, what)| format!(", {count} {what}")).collect();
        format!(
            "{interrupted}{} requeued, {} of them failed again{told}, {} gone before, {} left, {} not tried",
            self.requeued, self.back, self.gone, self.left, self.spared
        )
    }
}

impl Requeue {
    pub(super) async fn main(&self, common: &Common) -> Result<Exit, Trouble> {
        let mut session = Session::reach(common, Depth::Store).await?;
        let max = self.pace.max.unwrap_or(usize::MAX);
        let picks = self.chosen.picks(&mut session.client, max).await?;
        let causes = by_cause(picks);
        let says = summary("requeue", &causes);
        if !says.is_empty() && !self.confirm.given(&says) {
            session.close().await?;
            return Ok(Exit::Usage);
        }
        let mut printer = Printer::new(self.output, true, &NOW);
        let mut run = Run::begin(common, session, self.pace).await?;
        let mut ended = Ok(());
        for picks in causes.into_values() {
            ended = run.cause(picks, &mut |letters| tell(&mut printer, letters)).await;
            if ended.is_err() || run.is_interrupted() {
                break;
            }
        }
        // Whatever went wrong then, what was done is told.
        printer.finish();
        let tally = run.tally;
        complain(&tally.words());
        ended.map(|()| tally.exit())
    }
}

/// Says how far it is: a bar where somebody looks on, a line where not.
#[expect(clippy::print_stderr, reason = "this is where the program talks to people")]
fn progress(done: usize, all: usize) {
    if !std::io::stderr().is_terminal() {
        return complain(&format!("{done}/{all} requeued"));
    }
    let full = BAR * done / all.max(1);
    let end = if done == all { "\n" } else { "" };
    eprint!(
        "\r[{}{}] {done}/{all} requeued{end}",
        "#".repeat(full),
        ".".repeat(BAR - full)
    );
}

pub(super) struct Run<'a> {
    common: &'a Common,
    /// Who can say what became of those that were requeued; nobody where no daemon runs.
    daemon: Option<Client>,
    pace: Pace,
    begun: Instant,
    sent: u32,
    stop: watch::Receiver<bool>,
    pub(super) tally: Tally,
}

impl<'a> Run<'a> {
    pub(super) async fn begin(common: &'a Common, session: Session, pace: Pace) -> Result<Self, Trouble> {
        let daemon = (!is_alone(&session.client)).then(|| session.client.another());
        session.close().await?;
        let (tell, stop) = watch::channel(false);
        tokio::spawn(async move {
            if tokio::signal::ctrl_c().await.is_ok() {
                tell.send_replace(true);
            }
        });
        Ok(Self {
            common,
            daemon,
            pace,
            begun: Instant::now(),
            sent: 0,
            stop,
            tally: Tally::default(),
        })
    }

    /// How many more may be requeued.
    pub(super) fn room(&self) -> usize {
        let sent = usize::try_from(self.sent).unwrap_or(usize::MAX);
        self.pace.max.map_or(usize::MAX, |max| max.saturating_sub(sent))
    }

    pub(super) fn is_interrupted(&self) -> bool {
        self.tally.interrupted
    }

    /// Says when somebody wants to end this.
    pub(super) fn stopped(&self) -> watch::Receiver<bool> {
        self.stop.clone()
    }

    pub(super) fn interrupt(&mut self) {
        self.tally.interrupted = true;
    }

    /// Requeues the letters of one cause, until one of them is not done.
    pub(super) async fn cause(
        &mut self,
        picks: Vec<Pick>,
        tell: &mut impl FnMut(&[LetterNow]),
    ) -> Result<(), Trouble> {
        let careful = !self.pace.no_canary;
        if careful && self.daemon.is_none() && picks.len() > 1 {
            let why = "no daemon runs, so nobody would see whether the first one works; start one (`effectd serve`), \
                       or say --no-canary";
            return Err(Error::Request(why.to_owned()).into());
        }
        let all = picks.len();
        let (mut rest, mut step) = (picks.as_slice(), 0);
        while !rest.is_empty() {
            if *self.stop.borrow() {
                self.interrupt();
                return Ok(());
            }
            let size = self.size(step, careful).min(rest.len());
            let (chunk, after) = rest.split_at(size);
            let requeued = self.chunk(chunk, tell).await?;
            rest = after;
            if careful && self.daemon.is_some() && !self.went_well(&requeued, rest.len()).await? {
                self.tally.spared += rest.len();
                return Ok(());
            }
            progress(all - rest.len(), all);
            // Those that were gone or stay show nothing.
            step += usize::from(!requeued.is_empty());
        }
        Ok(())
    }

    fn size(&self, step: usize, careful: bool) -> usize {
        let [.., most] = STEPS;
        let size = if careful {
            STEPS.get(step).copied().unwrap_or(most)
        } else {
            most
        };
        let rate = self.pace.rate.and_then(|rate| usize::try_from(rate).ok());
        size.min(rate.unwrap_or(usize::MAX))
    }

    /// Requeues some, not faster than asked for. Answers the actions that are on their way again.
    async fn chunk(
        &mut self,
        picks: &[Pick],
        tell: &mut impl FnMut(&[LetterNow]),
    ) -> Result<Vec<ActionId>, Trouble> {
        if let Some(rate) = self.pace.rate {
            let due = Duration::from_secs_f64(f64::from(self.sent) / f64::from(rate));
            tokio::time::sleep(due.saturating_sub(self.begun.elapsed())).await;
        }
        self.sent = self
            .sent
            .saturating_add(u32::try_from(picks.len()).unwrap_or(u32::MAX));
        let letters = picks.iter().map(|pick| pick.letter).collect();
        let done = operate::ask(
            self.common,
            &Operation::RequeueLetters { letters },
            Doing::ForReal,
        )
        .await?;
        let mut requeued = Vec::new();
        for letter in &done.letters {
            match letter.now.as_str() {
                "requeued" => {
                    self.tally.requeued += 1;
                    let pick = picks.iter().find(|pick| pick.letter == letter.letter);
                    let action = pick.and_then(|pick| pick.action_id.as_deref());
                    requeued.extend(action.and_then(|action| ActionId::new(action).ok()));
                }
                "gone" => self.tally.gone += 1,
                _ => self.tally.left += 1,
            }
        }
        tell(&done.letters);
        Ok(requeued)
    }

    /// Waits until all of them have ended, and says whether all were done. Only what is seen to be done counts.
    async fn went_well(&mut self, actions: &[ActionId], rest: usize) -> Result<bool, Trouble> {
        let end = Instant::now() + Duration::from_secs(self.pace.wait);
        let (before, mut why) = (self.tally.back + self.tally.held + self.tally.open, None);
        for (nth, action) in actions.iter().enumerate() {
            let word = match self.ended(action, end).await? {
                Ended::Done => continue,
                Ended::Otherwise(word) => {
                    self.tally.back += 1;
                    word
                }
                Ended::Held(approval) => {
                    self.tally.held += 1;
                    format!("waits for a person: `effectd approvals show {approval}`")
                }
                Ended::Open => {
                    self.tally.open += actions.len() - nth;
                    why.get_or_insert(format!("{action}: has not ended yet"));
                    break;
                }
            };
            why.get_or_insert(format!("{action}: {word}"));
        }
        let failed = self.tally.back + self.tally.held + self.tally.open - before;
        let Some(why) = why else { return Ok(true) };
        let words = if self.tally.held + self.tally.open == 0 {
            "failed again"
        } else {
            "are not done"
        };
        complain(&format!(
            "{failed} of {} {words} ({why}); {rest} of this cause are not tried",
            actions.len()
        ));
        Ok(false)
    }

    async fn ended(&mut self, action: &ActionId, end: Instant) -> Result<Ended, Trouble> {
        let Some(client) = &mut self.daemon else {
            return Ok(Ended::Open);
        };
        loop {
            let told = tokio::select! {
                told = client.wait(action, WAIT_STEP) => told?,
                _ = self.stop.wait_for(|stop| *stop) => {
                    self.tally.interrupted = true;
                    return Ok(Ended::Open);
                }
            };
            match told {
                Told::View(view) => match (view.state, view.outcome) {
                    (Standing::Accepted, _) => {}
                    (Standing::Held, _) => {
                        let approval = view.approval.map(|held| held.approval_id);
                        return Ok(Ended::Held(approval.unwrap_or_default()));
                    }
                    // Tried out only is done where that was asked for; where effects are paused it is not.
                    (Standing::Done, Some(Outcome::Executed | Outcome::CachedHit | Outcome::DryRun)) => {
                        return Ok(Ended::Done);
                    }
                    (Standing::Done, outcome) => {
                        let word = outcome.map_or("it is not known how it ended", Outcome::as_str);
                        return Ok(Ended::Otherwise(word.to_owned()));
                    }
                },
                // Not now: that says nothing about the action.
                Told::Problem(problem) if [429, 503].contains(&problem.status) => {
                    tokio::time::sleep(RETRY_PAUSE).await;
                }
                Told::Problem(problem) => return Ok(Ended::Otherwise(problem.code)),
            }
            if Instant::now() >= end {
                return Ok(Ended::Open);
            }
        }
    }
}

enum Ended {
    Done,
    /// It was not done, for this reason.
    Otherwise(String),
    Held(String),
    Open,
}
