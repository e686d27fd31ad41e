//! `effectd dlq requeue`: requeue one letter as a canary, then ten, then the rest.

use std::io::IsTerminal;
use std::time::Duration;

use effectd_contracts::{ActionId, Operation, Outcome};
use effectd_gateway::client::Client;
use effectd_gateway::views::State as ActionState;
use effectd_gateway::views::dead_letters::LetterNow;
use tokio::sync::watch;
use tokio::time::Instant;

use super::{Chosen, Pick, Results, by_cause, summary};
use crate::cli::mutation::{self, ChangeArgs, RunMode, Terms};
use crate::cli::{ActionReply, CliError, Common, Depth, Session, TIME, eprint_line, is_in_process, span};
use crate::exit::Exit;

/// The number of letters in each step; the last number repeats.
const STEPS: [usize; 3] = [1, 10, 100];
/// The width of the progress bar.
const BAR: usize = 40;
/// How long one request waits for an action. Only then is a pending approval noticed.
const WAIT_STEP: Duration = Duration::from_secs(2);
/// The longest wait for a step.
const WAIT_MAX: Duration = Duration::from_secs(86_400);
/// The pause before a request to a busy daemon is repeated.
const RETRY_PAUSE: Duration = Duration::from_millis(200);

/// Put letters on the bus again, with their action ids and keys; they pass every gate again
///
/// Of each cause one letter goes first, then ten, then the rest, and each step waits for the one before. As soon as an action is not
/// done, or awaits approval, the rest of its cause stays. `--no-canary` requeues all at once. A requeued letter is gone, and requeueing
/// it again does nothing; an action that fails again becomes a dead letter again. Ctrl-C ends after the current step. Letters of unknown
/// outcome are left to `dlq settle`. Exits with 1 if any letter stays, with 75 if it was interrupted or an action did not end in time.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  effectd dlq requeue 0 --yes\n  effectd dlq requeue --cause 3f2b5f0c9a36e1d0 --yes\n  \
    effectd dlq requeue --all --tool files.write_text --rate 50 --max 1000 --yes"
)]
pub(in crate::cli) struct Requeue {
    #[command(flatten)]
    chosen: Chosen,
    #[command(flatten)]
    args: ChangeArgs,
    #[command(flatten)]
    pace: Pace,
}

#[derive(Debug, Clone, Copy, clap::Args)]
pub(in crate::cli) struct Pace {
    /// Maximum of letters per second
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u32).range(1..))]
    rate: Option<u32>,
    /// Maximum of letters
    #[arg(long, value_name = "NUMBER")]
    max: Option<usize>,
    /// How long to wait for a step, at most a day; then the rest stays: `90s`, `30m`, `2h`; a bare number is seconds
    #[arg(long, value_name = TIME, value_parser = span, default_value = "5m")]
    wait: Duration,
    /// Requeue all at once, without a canary
    #[arg(long)]
    no_canary: bool,
}

#[derive(Debug, Default)]
pub(super) struct Tally {
    pub(super) requeued: usize,
    pub(super) gone: usize,
    /// Letters that were not requeued.
    pub(super) left: usize,
    /// Requeued letters that failed again.
    pub(super) back: usize,
    /// Requeued letters that await approval.
    pub(super) held: usize,
    /// Requeued letters that did not end in time.
    pub(super) open: usize,
    /// Letters that were requeued without a canary: nobody waited for them.
    pub(super) unwatched: usize,
    /// Letters that were not tried, because another letter of their cause failed.
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

    pub(super) fn to_text(&self) -> String {
        let interrupted = if self.interrupted { "interrupted; the other dead letters stay: " } else { "" };
        let counts = [
            (self.back, "of them failed again"),
            (self.held, "awaiting approval"),
            (self.open, "not ended yet"),
            (
                self.unwatched,
                "not waited for (`effectd dlq list` lists those that fail again, `effectd approvals list` those that \
                 await approval)",
            ),
            (self.gone, "already gone"),
            (self.left, "left"),
            (self.spared, "not tried"),
        ];
        let counts = counts.into_iter().filter(|(count, _)| *count > 0);
        let more: String = counts.map(|(count, what)| format!(", {count} {what}")).collect();
        format!("{interrupted}{} requeued{more}", self.requeued)
    }
}

impl Requeue {
    pub(super) async fn main(&self, common: &Common) -> Result<Exit, CliError> {
        let mut session = Session::reach(common, Depth::Store).await?;
        let max = self.pace.max.unwrap_or(usize::MAX);
        let picks = self.chosen.picks(&mut session.client, max).await?;
        let causes = by_cause(picks);
        let says = summary("requeue", &causes);
        if (self.args.confirm.dry_run || !says.is_empty()) && !self.args.confirm.confirmed(&says) {
            session.close().await?;
            return Ok(self.args.confirm.declined());
        }
        let mut results = Results::new(common.output);
        let mut run = Run::begin(common, session, (self.pace, self.args.why.clone().into())).await?;
        let mut ended = Ok(());
        for picks in causes.into_values() {
            ended = run.cause(picks, &mut |picks, letters| results.add(picks, letters)).await;
            if ended.is_err() || run.is_interrupted() {
                break;
            }
        }
        // Report what was done, even after an error.
        results.finish();
        let tally = run.tally;
        eprint_line(&tally.to_text());
        ended.map(|()| tally.exit())
    }
}

/// Says how many letters of a cause were requeued: a bar of those tried on a terminal, otherwise a line.
#[expect(clippy::print_stderr, reason = "progress goes to standard error")]
fn progress(tried: usize, requeued: usize, all: usize) {
    if !std::io::stderr().is_terminal() {
        return eprint_line(&format!("{requeued}/{all} requeued"));
    }
    let full = BAR * tried / all.max(1);
    let end = if tried == all { "\n" } else { "" };
    eprint!("\r[{}{}] {requeued}/{all} requeued{end}", "#".repeat(full), ".".repeat(BAR - full));
}

pub(super) struct Run<'a> {
    common: &'a Common,
    /// A client of the daemon, which knows the outcomes of requeued letters; `None` if no daemon runs.
    daemon: Option<Client>,
    pace: Pace,
    terms: Terms,
    begun: Instant,
    sent: u32,
    stop: watch::Receiver<bool>,
    pub(super) tally: Tally,
}

impl<'a> Run<'a> {
    pub(super) async fn begin(
        common: &'a Common,
        session: Session,
        (pace, terms): (Pace, Terms),
    ) -> Result<Self, CliError> {
        let daemon = (!is_in_process(&session.client)).then(|| session.client.another());
        session.close().await?;
        let (interrupt, stop) = watch::channel(false);
        tokio::spawn(async move {
            if tokio::signal::ctrl_c().await.is_ok() {
                interrupt.send_replace(true);
            }
        });
        let (begun, tally) = (Instant::now(), Tally::default());
        Ok(Self { common, daemon, pace, terms, begun, sent: 0, stop, tally })
    }

    /// How many more letters may be requeued.
    pub(super) fn room(&self) -> usize {
        let sent = usize::try_from(self.sent).unwrap_or(usize::MAX);
        self.pace.max.map_or(usize::MAX, |max| max.saturating_sub(sent))
    }

    pub(super) fn is_interrupted(&self) -> bool {
        self.tally.interrupted
    }

    /// Ctrl-C sets it to `true`.
    pub(super) fn stopped(&self) -> watch::Receiver<bool> {
        self.stop.clone()
    }

    pub(super) fn interrupt(&mut self) {
        self.tally.interrupted = true;
    }

    /// Requeues the letters of one cause in steps, until one step does not go well.
    pub(super) async fn cause(
        &mut self,
        picks: Vec<Pick>,
        report: &mut impl FnMut(&[Pick], &[LetterNow]),
    ) -> Result<(), CliError> {
        let careful = !self.pace.no_canary;
        if careful && self.daemon.is_none() && picks.len() > 1 {
            let why = "no daemon runs, so the canary cannot be watched; start one (`effectd serve`), or use \
                       --no-canary";
            return Err(CliError::request(why));
        }
        let (all, before) = (picks.len(), self.tally.requeued);
        let (mut rest, mut step) = (picks.as_slice(), 0);
        while !rest.is_empty() {
            if *self.stop.borrow() {
                self.interrupt();
                return Ok(());
            }
            let size = self.size(step, careful).min(rest.len());
            let (chunk, after) = rest.split_at(size);
            let sent = self.tally.requeued;
            let requeued = self.chunk(chunk, report).await?;
            rest = after;
            if !careful {
                self.tally.unwatched += requeued.len();
            } else if self.daemon.is_some() && !self.went_well(&requeued, rest.len()).await? {
                self.tally.spared += rest.len();
                return Ok(());
            }
            progress(all - rest.len(), self.tally.requeued - before, all);
            // A step that requeued no letter proves nothing, so it is repeated.
            step += usize::from(self.tally.requeued > sent);
        }
        Ok(())
    }

    fn size(&self, step: usize, careful: bool) -> usize {
        let [.., most] = STEPS;
        let size = if careful { STEPS.get(step).copied().unwrap_or(most) } else { most };
        let rate = self.pace.rate.and_then(|rate| usize::try_from(rate).ok());
        size.min(rate.unwrap_or(usize::MAX))
    }

    /// Requeues some letters at the given rate. Returns the ids of their actions.
    async fn chunk(
        &mut self,
        picks: &[Pick],
        report: &mut impl FnMut(&[Pick], &[LetterNow]),
    ) -> Result<Vec<ActionId>, CliError> {
        if let Some(rate) = self.pace.rate {
            let due = Duration::from_secs_f64(f64::from(self.sent) / f64::from(rate));
            tokio::time::sleep(due.saturating_sub(self.begun.elapsed())).await;
        }
        self.sent = self.sent.saturating_add(u32::try_from(picks.len()).unwrap_or(u32::MAX));
        let letters = picks.iter().map(|pick| pick.letter).collect();
        let operation = Operation::RequeueLetters { letters };
        let done = mutation::send_on(self.common, &operation, &self.terms, RunMode::Execute).await?;
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
        report(picks, &done.letters);
        Ok(requeued)
    }

    /// Waits until all actions have ended, at most for `--wait`. Returns whether all succeeded.
    async fn went_well(&mut self, actions: &[ActionId], rest: usize) -> Result<bool, CliError> {
        let end = Instant::now() + self.pace.wait.min(WAIT_MAX);
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
                    format!("awaits approval: `effectd approvals show {approval}`")
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
        let words = if self.tally.held + self.tally.open == 0 { "failed again" } else { "not done" };
        eprint_line(&format!(
            "{failed} of {} {words} ({why}); {rest} of this cause not tried",
            actions.len()
        ));
        Ok(false)
    }

    async fn ended(&mut self, action: &ActionId, end: Instant) -> Result<Ended, CliError> {
        let Some(client) = &mut self.daemon else {
            return Ok(Ended::Open);
        };
        loop {
            let reply = tokio::select! {
                reply = client.wait(action, WAIT_STEP) => reply?,
                _ = self.stop.wait_for(|stop| *stop) => {
                    self.tally.interrupted = true;
                    return Ok(Ended::Open);
                }
            };
            match reply {
                ActionReply::View(view) => match (view.state, view.outcome) {
                    (ActionState::Accepted, _) => {}
                    (ActionState::Held, _) => {
                        let approval = view.approval.map(|held| held.approval_id);
                        return Ok(Ended::Held(approval.unwrap_or_default()));
                    }
                    // A requested dry run counts as done. A dry run because effects are paused does not.
                    (ActionState::Done, Some(Outcome::Executed | Outcome::CachedHit | Outcome::DryRun)) => {
                        return Ok(Ended::Done);
                    }
                    (ActionState::Done | ActionState::Ended, outcome) => {
                        let word = outcome.map_or("its outcome is unknown", Outcome::as_str);
                        return Ok(Ended::Otherwise(word.to_owned()));
                    }
                },
                ActionReply::Problem(problem) => match problem.receipt {
                    Some(receipt) => return Ok(Ended::Otherwise(receipt.outcome.as_str().to_owned())),
                    // The daemon is busy, which says nothing about the action.
                    None if [429, 503].contains(&problem.status) => tokio::time::sleep(RETRY_PAUSE).await,
                    None => return Ok(Ended::Otherwise(problem.code)),
                },
            }
            if Instant::now() >= end {
                return Ok(Ended::Open);
            }
        }
    }
}

enum Ended {
    Done,
    /// Ended with this outcome or code.
    Otherwise(String),
    Held(String),
    Open,
}
