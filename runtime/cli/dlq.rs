//! `effectd dlq`: what could not be done, and what to do about it.

mod drain;
mod requeue;

use std::collections::BTreeMap;

use clap::Subcommand;
use effectd_contracts::{Operation, ToolId};
use effectd_gateway::client::{Client, ClientError, percent_encoded};
use effectd_gateway::letters::{CauseView, LetterList, LetterNow, LetterView};
use effectd_gateway::problem::Kind;

use super::backend::{Trouble, with_client};
use super::operate::{self, Confirm, Doing};
use super::output::{Form, Printer, line, lines};
use super::{Common, complain};
use crate::exit::Exit;
use crate::runtime::Depth;

const LETTERS: [(&str, usize); 6] = [
    ("LETTER", 6),
    ("TIME", 24),
    ("CODE", 20),
    ("CAUSE", 16),
    ("TRIED", 5),
    ("ACTION", 0),
];
const CAUSES: [(&str, usize); 7] = [
    ("CAUSE", 16),
    ("COUNT", 6),
    ("CODE", 18),
    ("TOOL", 20),
    ("FIRST", 20),
    ("LAST", 20),
    ("SAMPLE", 0),
];
/// Letters that are dropped in one go.
const CHUNK: usize = 500;

/// Look after dead letters: actions that were given up
///
/// Through the daemon if one runs, otherwise on the store itself. The files `bus/dlq/<topic>.jsonl` in the state directory
/// list the same letters at any time. What a safety check stopped is listed here, too, but only `effectd quarantine` and a letter's own
/// number release or drop it. Whatever changes something says first what, asks (`--yes` answers), and leaves a receipt
/// that names you.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  effectd dlq causes\n  effectd dlq list --cause 3f2b5f0c9a36e1d0\n  effectd dlq drain --yes"
)]
pub(super) struct DlqCommand {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// List dead letters, oldest first
    #[command(after_help = "Example:\n  effectd dlq list -o jsonl")]
    List {
        #[command(flatten)]
        which: Which,
        #[command(flatten)]
        shown: Shown,
    },
    /// Show one dead letter: why, how often it was tried, and its receipt. Its parameters are not shown
    #[command(after_help = "Example:\n  effectd dlq show 0 -o json")]
    Show {
        /// Which letter
        #[arg(value_name = "LETTER")]
        letter: u64,
        #[command(flatten)]
        shown: Shown,
    },
    /// List the causes that letters have in common, most frequent first, with a sample of each
    #[command(after_help = "Example:\n  effectd dlq causes")]
    Causes {
        #[command(flatten)]
        shown: Shown,
    },
    Requeue(requeue::Requeue),
    Drain(drain::Drain),
    /// Say of a letter whose outcome is not known whether it happened
    ///
    /// Look first. With `--done` the letter goes, and the receipt says that you know it happened. With `--not-done` its
    /// decision is put on the bus again.
    #[command(
        after_help = "Examples:\n  effectd dlq settle 0 --done --yes\n  effectd dlq settle 0 --not-done --yes"
    )]
    Settle {
        /// Which letter
        #[arg(value_name = "LETTER")]
        letter: u64,
        /// It happened
        #[arg(long, required_unless_present = "not_done", conflicts_with = "not_done")]
        done: bool,
        /// It did not happen
        #[arg(long)]
        not_done: bool,
        #[command(flatten)]
        confirm: Confirm,
        #[command(flatten)]
        shown: Shown,
    },
    /// Forget letters; their receipts stay, and one more names you
    #[command(
        visible_alias = "purge",
        after_help = "Examples:\n  effectd dlq drop 0 --yes\n  effectd dlq drop --cause 3f2b5f0c9a36e1d0 --yes"
    )]
    Drop {
        #[command(flatten)]
        chosen: Chosen,
        #[command(flatten)]
        confirm: Confirm,
        #[command(flatten)]
        shown: Shown,
    },
    /// Write letters as JSON lines, oldest first, without parameters
    #[command(after_help = "Example:\n  effectd dlq export --tool files.write_text")]
    Export {
        #[command(flatten)]
        which: Which,
    },
}

#[derive(Debug, clap::Args)]
struct Shown {
    /// How the answer is shown
    #[arg(long, short, value_enum, default_value = "table", value_name = "FORM")]
    output: Form,
}

/// Which letters are meant.
#[derive(Debug, Clone, Default, clap::Args)]
struct Which {
    /// Only those of this topic
    #[arg(long, value_name = "TOPIC")]
    topic: Option<String>,
    /// Only those of this cause, as `dlq causes` tells it
    #[arg(long, value_name = "CAUSE")]
    cause: Option<String>,
    /// Only those of this tool
    #[arg(long, value_name = "TOOL")]
    tool: Option<ToolId>,
}

#[derive(Debug, clap::Args)]
struct Chosen {
    /// Which letters
    #[arg(
        value_name = "LETTER",
        required_unless_present_any = ["all", "topic", "cause", "tool"],
        conflicts_with_all = ["all", "topic", "cause", "tool"]
    )]
    letters: Vec<u64>,
    /// All of them
    #[arg(long)]
    all: bool,
    #[command(flatten)]
    which: Which,
}

/// One letter of those that are meant, and no more of it than is needed.
#[derive(Debug, Clone)]
struct Pick {
    letter: u64,
    action_id: Option<String>,
    cause: String,
    code: String,
}

impl DlqCommand {
    pub(super) fn main(self, common: &Common) -> Exit {
        super::block_on(self.command.run(common))
    }
}

impl Command {
    async fn run(&self, common: &Common) -> Result<Exit, Trouble> {
        match self {
            Command::Requeue(requeue) => return requeue.main(common).await,
            Command::Drain(drain) => return drain.main(common).await,
            Command::Drop {
                chosen,
                confirm,
                shown,
            } => return discard(common, chosen, *confirm, shown.output).await,
            Command::Settle {
                letter,
                done,
                confirm,
                shown,
                ..
            } => {
                let (letter, done) = (*letter, *done);
                let operation = Operation::SettleLetter { letter, done };
                return operate::main(common, &operation, *confirm, shown.output).await;
            }
            Command::List { .. } | Command::Show { .. } | Command::Causes { .. } | Command::Export { .. } => {
            }
        }
        with_client(common, Depth::Store, async |client| self.look(client).await).await
    }

    /// What changes nothing.
    async fn look(&self, client: &mut Client) -> Result<Exit, Trouble> {
        match self {
            Command::List { which, shown } => list(client, which, shown.output).await,
            Command::Show { letter, shown } => show(client, *letter, shown.output).await,
            Command::Causes { shown } => causes(client, shown.output).await,
            Command::Export { which } => export(client, which).await,
            Command::Requeue(_) | Command::Drain(_) | Command::Drop { .. } | Command::Settle { .. } => {
                Ok(Exit::Usage)
            }
        }
    }
}

impl Which {
    /// One page of the letters that are meant.
    async fn page(&self, client: &mut Client, from: u64) -> Result<LetterList, Trouble> {
        let mut path = format!("/v1/dlq?from={from}");
        let tool = self.tool.as_ref().map(ToString::to_string);
        for (name, value) in [("topic", &self.topic), ("cause", &self.cause), ("tool", &tool)] {
            if let Some(value) = value {
                path.push_str(&format!("&{name}={}", percent_encoded(value)));
            }
        }
        Ok(client.get(&path).await?)
    }
}

impl Chosen {
    /// The letters that are meant, so many at most. Those that are named need not be there any more.
    async fn picks(&self, client: &mut Client, max: usize) -> Result<Vec<Pick>, Trouble> {
        let mut picks = Vec::new();
        for letter in &self.letters {
            let found = one(client, *letter).await?;
            picks.push(found.map_or_else(|| Pick::gone(*letter), |found| Pick::of(&found)));
        }
        let mut from = self.letters.is_empty().then_some(0);
        while let Some(at) = from.filter(|_| picks.len() < max) {
            let page = self.which.page(client, at).await?;
            // Nobody means what is held for review by a whole lot: each is looked at, with `effectd quarantine`.
            let failed = page.letters.iter().filter(|letter| !letter.is_quarantined());
            picks.extend(failed.map(Pick::of));
            from = page.next;
        }
        picks.truncate(max);
        Ok(picks)
    }

    async fn say_none(&self, client: &mut Client) -> Result<(), Trouble> {
        if self.all {
            return say_none(client).await;
        }
        complain(&"there are no such dead letters");
        Ok(())
    }
}

impl Pick {
    fn of(view: &LetterView) -> Self {
        Self {
            letter: view.letter,
            action_id: view.action_id.clone(),
            cause: view.cause.clone(),
            code: view.code.clone(),
        }
    }

    fn gone(letter: u64) -> Self {
        Self {
            letter,
            action_id: None,
            cause: String::new(),
            code: String::new(),
        }
    }

    fn is_gone(&self) -> bool {
        self.cause.is_empty()
    }
}

/// The letters of each cause, the oldest first.
fn by_cause(picks: Vec<Pick>) -> BTreeMap<String, Vec<Pick>> {
    let mut causes: BTreeMap<String, Vec<Pick>> = BTreeMap::new();
    for pick in picks {
        causes.entry(pick.cause.clone()).or_default().push(pick);
    }
    causes
}

/// What would happen to so many letters, a line for each cause.
fn summary(verb: &str, causes: &BTreeMap<String, Vec<Pick>>) -> Vec<String> {
    let told = causes.iter().filter_map(|(cause, picks)| {
        let first = picks.first().filter(|pick| !pick.is_gone())?;
        Some(format!(
            "{verb} {} of cause {cause} ({})",
            picks.len(),
            first.code
        ))
    });
    told.collect()
}

fn row(printer: &mut Printer, letter: &LetterView) {
    printer.row(
        // Plain data with text keys, for which serde_json has no failure.
        &serde_json::to_value(letter).unwrap_or_default(),
        &[
            &letter.letter.to_string(),
            &letter.time,
            &letter.code,
            &letter.cause,
            &letter.attempts.to_string(),
            letter.action_id.as_deref().unwrap_or_default(),
        ],
    );
}

async fn list(client: &mut Client, which: &Which, form: Form) -> Result<Exit, Trouble> {
    let mut printer = Printer::new(form, true, &LETTERS);
    let mut from = Some(0);
    while let Some(at) = from {
        let page = which.page(client, at).await?;
        page.letters.iter().for_each(|letter| row(&mut printer, letter));
        from = page.next;
    }
    printer.finish();
    Ok(Exit::Done)
}

/// The same for files: whoever cannot write them is told.
async fn export(client: &mut Client, which: &Which) -> Result<Exit, Trouble> {
    let mut from = Some(0);
    while let Some(at) = from {
        let page = which.page(client, at).await?;
        let texts = page
            .letters
            .iter()
            .filter_map(|letter| serde_json::to_string(letter).ok());
        if !lines(texts) {
            return Ok(Exit::Done);
        }
        from = page.next;
    }
    Ok(Exit::Done)
}

/// One letter; `None` if there is none of this number.
async fn one(client: &mut Client, number: u64) -> Result<Option<LetterView>, Trouble> {
    known(client.get(&format!("/v1/dlq/{number}")).await)
}

/// What was found; `None` if there is no such letter.
pub(super) fn known<T>(found: Result<T, ClientError>) -> Result<Option<T>, Trouble> {
    match found {
        Err(ClientError::Refused(problem)) if problem.code == Kind::LetterUnknown.code() => Ok(None),
        found => Ok(Some(found?)),
    }
}

async fn show(client: &mut Client, number: u64, form: Form) -> Result<Exit, Trouble> {
    let Some(letter) = one(client, number).await? else {
        complain(&format!(
            "there is no dead letter {number}; `effectd dlq list` tells which there are"
        ));
        return Ok(Exit::Failed);
    };
    let mut printer = Printer::new(form, false, &LETTERS);
    row(&mut printer, &letter);
    printer.finish();
    if form == Form::Table {
        if let Some(detail) = &letter.detail {
            line(&format!("  why      {}", quoted(detail)));
        } else {
            line("  why      it cannot be read any more: the key that it was sealed under is gone");
        }
        if let Some(receipt) = &letter.receipt_id {
            line(&format!("  receipt  {receipt}"));
        }
        for tried in &letter.tries {
            line(&format!("  {}  {}", tried.at, quoted(&tried.error)));
        }
    }
    Ok(Exit::Done)
}

/// What tools said, as it is told: it must not command the terminal.
fn quoted(text: &str) -> String {
    crate::tui::shown(text, usize::MAX)
}

async fn all_causes(client: &mut Client) -> Result<Vec<CauseView>, Trouble> {
    Ok(client.get("/v1/dlq/causes").await?)
}

/// Says that there is nothing to be done here, and what is left to another command.
async fn say_none(client: &mut Client) -> Result<(), Trouble> {
    let held: u64 = all_causes(client).await?.iter().map(|cause| cause.count).sum();
    complain(&if held == 0 {
        "there are no dead letters".to_owned()
    } else {
        format!(
            "there are no dead letters but {held} that a safety check stopped; `effectd quarantine list` shows them"
        )
    });
    Ok(())
}

/// The same without what is held for review.
async fn failed_causes(client: &mut Client) -> Result<Vec<CauseView>, Trouble> {
    let mut causes = all_causes(client).await?;
    causes.retain(|cause| !cause.is_quarantined());
    Ok(causes)
}

async fn causes(client: &mut Client, form: Form) -> Result<Exit, Trouble> {
    let mut printer = Printer::new(form, true, &CAUSES);
    for cause in all_causes(client).await? {
        let value = serde_json::to_value(&cause).unwrap_or_default();
        let count = cause.count.to_string();
        let second = |time: &str| time.split('.').next().unwrap_or_default().to_owned();
        let sample = quoted(&cause.sample.unwrap_or_default());
        printer.row(
            &value,
            &[
                &cause.cause,
                &count,
                &cause.code,
                cause.tool_id.as_deref().unwrap_or_default(),
                &second(&cause.first),
                &second(&cause.last),
                &sample,
            ],
        );
    }
    printer.finish();
    Ok(Exit::Done)
}

/// Forgets letters, and says of each what became of it.
async fn discard(common: &Common, chosen: &Chosen, confirm: Confirm, form: Form) -> Result<Exit, Trouble> {
    let picks = with_client(common, Depth::Store, async |client| {
        let picks = chosen.picks(client, usize::MAX).await?;
        if picks.is_empty() {
            chosen.say_none(client).await?;
        }
        Ok(picks)
    })
    .await?;
    let numbers: Vec<u64> = picks.iter().map(|pick| pick.letter).collect();
    let says = summary("drop", &by_cause(picks));
    if !says.is_empty() && !confirm.given(&says) {
        return Ok(Exit::Usage);
    }
    let mut printer = Printer::new(form, true, &NOW);
    for chunk in numbers.chunks(CHUNK) {
        let letters = chunk.to_vec();
        let done = operate::ask(common, &Operation::DropLetters { letters }, Doing::ForReal).await?;
        tell(&mut printer, &done.letters);
    }
    printer.finish();
    Ok(Exit::Done)
}

const NOW: [(&str, usize); 2] = [("LETTER", 6), ("NOW", 0)];

fn tell(printer: &mut Printer, letters: &[LetterNow]) {
    for now in letters {
        let value = serde_json::to_value(now).unwrap_or_default();
        printer.row(&value, &[&now.letter.to_string(), &now.now]);
    }
}
