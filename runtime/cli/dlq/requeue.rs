//! `effectd dlq requeue`: the first one shows whether it works again, then ten, then the rest.

use std::collections::HashSet;
use std::io::IsTerminal;
use std::time::{Duration, Instant};

use effectd_contracts::{ActionId, Operation};
use effectd_gateway::letters::{LetterNow, LetterView};
use effectd_gateway::views::State as Standing;
use tokio::sync::watch;

use super::{Chosen, NOW, Pick, Which, all_causes, by_cause, summary, tell};
use crate::cli::backend::Trouble;
use crate::cli::operate::{self, Confirm, Doing};
use crate::cli::output::{Form, Printer};
use crate::cli::stored::Keeper;
use crate::cli::{Common, complain};
use crate::client::Told;
use crate::error::Error;
use crate::exit::Exit;

/// How many go first, and then; whatever is left goes in pieces of the last.
const STEPS: [usize; 3] = [1, 10, 100];
/// How long is waited for what was requeued to end, before it is said that it takes too long to be seen.
const PATIENCE: Duration = Duration::from_secs(300);
/// How long the bar is.
const BAR: usize = 40;
/// How long one request waits.
const WAIT_STEP: Duration = Duration::from_secs(10);

/// Put letters on the bus again, each with its action id and key; they pass every gate again
///
/// Of each cause one goes first, then ten, then the rest, and each step waits for the one before: as soon as one of them comes
/// back as a dead letter, the rest of that cause stays. `--no-canary` puts all on the bus at once. A letter that was requeued
/// is gone, and requeuing it again does nothing. Ctrl-C ends after the step that is under way, and what is left stays as it is.
/// Letters whose outcome is not known are left to `dlq settle`. Exits with 1 if any stays, with 75 if it was interrupted.
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
    /// All at once, whatever comes of the first
    #[arg(long)]
    no_canary: bool,
}

/// What came of it all.
#[derive(Debug, Default)]
pub(super) struct Tally {
    pub(super) requeued: usize,
    pub(super) gone: usize,
    /// They could not be requeued.
    pub(super) left: usize,
    /// They were requeued and failed again.
    pub(super) back: usize,
    /// They were not tried, because another of their cause failed again.
    pub(super) spared: usize,
    pub(super) interrupted: bool,
}

impl Tally {
    pub(super) fn exit(&self) -> Exit {
        if self.interrupted {
            Exit::TryAgain
        } else if self.left + self.back + self.spared > 0 {
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
        format!(
            "{interrupted}{} requeued, {} of them failed again, {} gone before, {} left, {} not tried",
            self.requeued, self.back, self.gone, self.left, self.spared
        )
    }
}

impl Requeue {
    pub(super) async fn main(&self, common: &Common) -> Result<Exit, Trouble> {
        let mut keeper = Keeper::reach(common).await?;
        let max = self.pace.max.unwrap_or(usize::MAX);
        let picks = self.chosen.picks(&mut keeper, max).await?;
        let causes = by_cause(picks);
        let says = summary("requeue", &causes);
        if !says.is_empty() && !self.confirm.given(&says) {
            keeper.close()?;
            return Ok(Exit::Usage);
        }
        let mut printer = Printer::new(self.output, true, &NOW);
        let mut run = Run::begin(common, keeper, self.pace).await?;
        for picks in causes.into_values() {
            run.cause(picks, &mut |letters| tell(&mut printer, letters))
                .await?;
        }
        printer.finish();
        let tally = run.end()?;
        complain(&tally.words());
        Ok(tally.exit())
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

/// One run through some causes.
pub(super) struct Run<'a> {
    common: &'a Common,
    /// Who can say what became of those that were requeued; nobody where no daemon runs.
    daemon: Option<Keeper>,
    pace: Pace,
    begun: Instant,
    sent: u32,
    /// The first letter that was not there before.
    mark: u64,
    stop: watch::Receiver<bool>,
    tally: Tally,
}

impl<'a> Run<'a> {
    pub(super) async fn begin(common: &'a Common, mut keeper: Keeper, pace: Pace) -> Result<Self, Trouble> {
        let newest = all_causes(&mut keeper)
            .await?
            .iter()
            .map(|cause| cause.newest)
            .max();
        let daemon = match keeper {
            Keeper::Daemon(_) => Some(keeper),
            Keeper::Direct { .. } => {
                keeper.close()?;
                None
            }
        };
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
            mark: newest.map_or(0, |newest| newest + 1),
            stop,
            tally: Tally::default(),
        })
    }

    pub(super) fn end(self) -> Result<Tally, Trouble> {
        if let Some(keeper) = self.daemon {
            keeper.close()?;
        }
        Ok(self.tally)
    }

    /// How many more may be requeued.
    pub(super) fn room(&self) -> usize {
        let sent = usize::try_from(self.sent).unwrap_or(usize::MAX);
        self.pace.max.map_or(usize::MAX, |max| max.saturating_sub(sent))
    }

    pub(super) fn is_interrupted(&self) -> bool {
        self.tally.interrupted
    }

    /// Requeues the letters of one cause. Says whether all of them went well.
    pub(super) async fn cause(
        &mut self,
        picks: Vec<Pick>,
        tell: &mut impl FnMut(&[LetterNow]),
    ) -> Result<bool, Trouble> {
        let careful = !self.pace.no_canary;
        if careful && self.daemon.is_none() && picks.len() > 1 {
            let why = "no daemon runs, so nobody would see whether the first one works; start one (`effectd serve`), \
                       or say --no-canary";
            return Err(Error::Request(why.to_owned()).into());
        }
        let (all, before) = (picks.len(), self.tally.back + self.tally.left);
        let (mut rest, mut step) = (picks.as_slice(), 0);
        while !rest.is_empty() {
            if *self.stop.borrow() {
                self.tally.interrupted = true;
                return Ok(false);
            }
            let size = self.size(step, careful).min(rest.len());
            let (chunk, after) = rest.split_at(size);
            self.chunk(chunk, tell).await?;
            rest = after;
            if careful && self.daemon.is_some() {
                let back = self.came_back(chunk).await?;
                if back > 0 {
                    self.tally.spared += rest.len();
                    complain(&format!(
                        "{back} of {size} failed again; {} of this cause are not tried",
                        rest.len()
                    ));
                    return Ok(false);
                }
            }
            progress(all - rest.len(), all);
            step += 1;
        }
        Ok(self.tally.back + self.tally.left == before)
    }

    /// How many go in a step.
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

    /// Requeues some, not faster than asked for.
    async fn chunk(&mut self, picks: &[Pick], tell: &mut impl FnMut(&[LetterNow])) -> Result<(), Trouble> {
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
        for letter in &done.letters {
            match letter.now.as_str() {
                "requeued" => self.tally.requeued += 1,
                "gone" => self.tally.gone += 1,
                _ => self.tally.left += 1,
            }
        }
        tell(&done.letters);
        Ok(())
    }

    /// Waits until all of them have ended, and counts those that are dead letters again.
    async fn came_back(&mut self, picks: &[Pick]) -> Result<usize, Trouble> {
        let actions: HashSet<&str> = picks
            .iter()
            .filter_map(|pick| pick.action_id.as_deref())
            .collect();
        let end = Instant::now() + PATIENCE;
        for action in &actions {
            if let Ok(action) = ActionId::new(*action)
                && !self.ended(&action, end).await?
            {
                break;
            }
        }
        let mut back = 0;
        for letter in self.new_letters().await? {
            if letter.action_id.as_deref().is_some_and(|id| actions.contains(id)) {
                back += 1;
            }
        }
        self.tally.back += back;
        Ok(back)
    }

    /// Waits for one. `false` if somebody does not want to wait any more.
    async fn ended(&mut self, action: &ActionId, end: Instant) -> Result<bool, Trouble> {
        let Some(Keeper::Daemon(client)) = &mut self.daemon else {
            return Ok(false);
        };
        loop {
            let told = tokio::select! {
                told = client.wait(action, WAIT_STEP) => told?,
                _ = self.stop.wait_for(|stop| *stop) => return Ok(false),
            };
            let open = matches!(&told, Told::View(view) if view.state == Standing::Accepted);
            if !open {
                return Ok(true);
            }
            if Instant::now() >= end {
                let why =
                    format!("action {action} has not ended yet; look again later, and requeue the rest then");
                return Err(Error::Request(why).into());
            }
        }
    }

    /// Letters that were not there before.
    async fn new_letters(&mut self) -> Result<Vec<LetterView>, Trouble> {
        let Some(keeper) = &mut self.daemon else {
            return Ok(Vec::new());
        };
        let (mut new, mut from) = (Vec::new(), Some(self.mark));
        while let Some(at) = from {
            let page = Which::default().page(keeper, at).await?;
            new.extend(page.letters);
            from = page.next;
        }
        if let Some(last) = new.last() {
            self.mark = last.letter + 1;
        }
        Ok(new)
    }
}
