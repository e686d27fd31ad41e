//! `effectd dlq`: dead letters, which are actions that were given up.

mod drain;
mod requeue;

use std::collections::BTreeMap;

use clap::Subcommand;
use effectd_contracts::{Operation, ToolId};
use effectd_gateway::client::{Client, ClientError, percent_encoded};
use effectd_gateway::problem::Kind;
use effectd_gateway::views::dead_letters::{CauseView, LetterList, LetterNow, LetterView};

use super::mutation::RunMode;
use super::short_id::Purpose;
use super::{
    CliError, Common, Confirm, Depth, Form, Printer, eprint_line, get, line, lines, mutation, print_rows,
    short_id, with_client,
};
use crate::exit::Exit;
use crate::tui::shown;

const LETTERS: [(&str, usize); 6] =
    [("LETTER", 6), ("TIME", 24), ("CODE", 20), ("CAUSE", 16), ("TRIED", 5), ("ACTION", 0)];
const CAUSES: [(&str, usize); 7] =
    [("CAUSE", 16), ("COUNT", 6), ("CODE", 18), ("TOOL", 20), ("FIRST", 20), ("LAST", 20), ("SAMPLE", 0)];
/// The length of a cause's id.
const CAUSE_CHARS: usize = 16;
/// The number of letters that one request drops.
const CHUNK: usize = 500;

/// Manage dead letters: actions that were given up
///
/// Uses the daemon if one runs, otherwise the store directly. The files `bus/dlq/<topic>.jsonl` in the state directory list the same
/// letters. Quarantined actions are listed here, too, but only `effectd quarantine` and a letter's own number release or drop them. A
/// command that changes something shows what, asks (`--yes` confirms), and leaves a receipt with your name.
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
        which: LetterFilter,
    },
    /// Show one dead letter: the reason, the attempts and the receipt, without parameters
    #[command(after_help = "Example:\n  effectd dlq show 0 -o json")]
    Show {
        /// The letter's number, or the id of its action or receipt
        #[arg(value_name = "LETTER", value_parser = letter_ref)]
        letter: LetterRef,
    },
    /// List the causes of letters, most frequent first, with a sample of each
    #[command(after_help = "Example:\n  effectd dlq causes")]
    Causes,
    Requeue(requeue::Requeue),
    Drain(drain::Drain),
    /// Settle a letter of unknown outcome: say whether the effect happened
    ///
    /// Find out first. `--done` removes the letter, and the receipt says that the effect happened. `--not-done` puts its decision on the
    /// bus again.
    #[command(
        after_help = "Examples:\n  effectd dlq settle 0 --done --yes\n  effectd dlq settle 0 --not-done --yes"
    )]
    Settle {
        /// The letter's number, or the id of its action or receipt
        #[arg(value_name = "LETTER", value_parser = letter_ref)]
        letter: LetterRef,
        /// The effect happened
        #[arg(long, required_unless_present = "not_done", conflicts_with = "not_done")]
        done: bool,
        /// The effect did not happen
        #[arg(long)]
        not_done: bool,
        #[command(flatten)]
        confirm: Confirm,
    },
    /// Delete letters; their receipts stay
    #[command(
        visible_alias = "purge",
        after_help = "Examples:\n  effectd dlq drop 0 --yes\n  effectd dlq drop --cause 3f2b5f0c9a36e1d0 --yes"
    )]
    Drop {
        #[command(flatten)]
        chosen: Chosen,
        #[command(flatten)]
        confirm: Confirm,
    },
    /// Write letters as JSON lines, oldest first, without parameters
    #[command(after_help = "Example:\n  effectd dlq export --tool files.write_text")]
    Export {
        #[command(flatten)]
        which: LetterFilter,
    },
}

#[derive(Debug, Clone, Default, clap::Args)]
struct LetterFilter {
    /// Only those of this topic
    #[arg(long, value_name = "TOPIC")]
    topic: Option<String>,
    /// Only those of this cause, as in `dlq causes`; the beginning of its id is enough
    #[arg(long, value_name = "CAUSE")]
    cause: Option<String>,
    /// Only those of this tool
    #[arg(long, value_name = "TOOL")]
    tool: Option<ToolId>,
}

#[derive(Debug, clap::Args)]
struct Chosen {
    /// The letters' numbers, or the ids of their actions or receipts
    #[arg(
        value_name = "LETTER",
        value_parser = letter_ref,
        required_unless_present_any = ["all", "topic", "cause", "tool"],
        conflicts_with_all = ["all", "topic", "cause", "tool"]
    )]
    letters: Vec<LetterRef>,
    /// All letters
    #[arg(long)]
    all: bool,
    #[command(flatten)]
    which: LetterFilter,
}

/// How a letter is named.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum LetterRef {
    Number(u64),
    /// The id of its action or receipt, or the beginning of one.
    Id(String),
}

/// Numbers have no leading zero; ids that effectd makes have one.
pub(super) fn letter_ref(word: &str) -> Result<LetterRef, String> {
    match word.parse() {
        Ok(number) if word == "0" || !word.starts_with(['0', '+']) => Ok(LetterRef::Number(number)),
        Ok(_) | Err(_) if word.is_empty() => Err("write a number of `effectd dlq list`, or an id".to_owned()),
        Ok(_) | Err(_) => Ok(LetterRef::Id(word.to_owned())),
    }
}

impl LetterRef {
    /// The letter's number; `None` if no letter has the id.
    pub(super) async fn number(
        &self,
        client: &mut Client,
        purpose: Purpose,
    ) -> Result<Option<u64>, CliError> {
        let word = match self {
            LetterRef::Number(number) => return Ok(Some(*number)),
            LetterRef::Id(word) => word,
        };
        let mut found: Vec<(u64, String)> = Vec::new();
        let filter = LetterFilter::default();
        filter
            .each_page(client, |page| {
                for letter in page {
                    let ids = [&letter.action_id, &letter.receipt_id].into_iter().flatten();
                    let named = ids.filter(|id| short_id::is_named(word, id));
                    found.extend(named.cloned().map(|id| (letter.letter, id)));
                }
                true
            })
            .await?;
        purpose.check(word, found.iter().map(|(_, id)| id.as_str()))?;
        // The ids of one letter begin alike if its action was short.
        let first = found.first().map(|(letter, _)| *letter);
        if found.iter().all(|(letter, _)| Some(*letter) == first) {
            return Ok(first);
        }
        let id = short_id::pick(word, found.iter().map(|(_, id)| id.as_str()))?;
        Ok(found.iter().rev().find(|(_, other)| Some(other.as_str()) == id).map(|(letter, _)| *letter))
    }

    /// The same, with a client of its own.
    pub(super) async fn find(&self, common: &Common, purpose: Purpose) -> Result<Option<u64>, CliError> {
        match self {
            LetterRef::Number(number) => Ok(Some(*number)),
            LetterRef::Id(_) => {
                with_client(common, Depth::Store, async |client| self.number(client, purpose).await).await
            }
        }
    }

    fn unknown(&self) -> CliError {
        CliError::request(format!("there is no dead letter {self}; `effectd dlq list` lists them"))
    }
}

impl std::fmt::Display for LetterRef {
    fn fmt(&self, to: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            LetterRef::Number(number) => write!(to, "{number}"),
            LetterRef::Id(id) => write!(to, "{id}"),
        }
    }
}

/// A selected letter, reduced to what requeueing and dropping need.
#[derive(Debug, Clone)]
struct Pick {
    letter: u64,
    action_id: Option<String>,
    /// Empty if the letter does not exist any more.
    cause: String,
    code: String,
}

impl DlqCommand {
    pub(super) async fn main(self, common: &Common) -> Result<Exit, CliError> {
        match self.command {
            Command::List { which } => list(common, &which).await,
            Command::Show { letter } => show(common, &letter).await,
            Command::Causes => causes(common).await,
            Command::Export { which } => export(common, &which).await,
            Command::Requeue(requeue) => requeue.main(common).await,
            Command::Drain(drain) => drain.main(common).await,
            Command::Drop { chosen, confirm } => discard(common, &chosen, confirm).await,
            Command::Settle { letter, done, confirm, .. } => {
                let Some(number) = letter.find(common, Purpose::Decide).await? else {
                    return Err(letter.unknown());
                };
                let operation = Operation::SettleLetter { letter: number, done };
                mutation::run(common, &operation, confirm).await
            }
        }
    }
}

impl LetterFilter {
    async fn page(&self, client: &mut Client, from: u64) -> Result<LetterList, CliError> {
        let mut path = format!("/v1/dlq?from={from}");
        let tool = self.tool.as_ref().map(ToString::to_string);
        for (name, value) in [("topic", &self.topic), ("cause", &self.cause), ("tool", &tool)] {
            if let Some(value) = value {
                path.push_str(&format!("&{name}={}", percent_encoded(value)));
            }
        }
        Ok(client.get(&path).await?)
    }

    async fn with_full_cause(&self, client: &mut Client) -> Result<Self, CliError> {
        let mut filter = self.clone();
        if let Some(cause) = filter.cause.as_mut().filter(|cause| cause.len() < CAUSE_CHARS) {
            let causes = all_causes(client).await?;
            let (word, known) = (cause.as_str(), causes.iter().map(|known| known.cause.as_str()));
            let begins = known.filter(|known| short_id::is_short(word) && known.starts_with(word));
            if let Some(full) = short_id::only(word, begins)? {
                full.clone_into(cause);
            }
        }
        Ok(filter)
    }

    /// Visits the letters of this filter page by page, until `visit` returns `false`.
    async fn each_page(
        &self,
        client: &mut Client,
        mut visit: impl FnMut(&[LetterView]) -> bool,
    ) -> Result<(), CliError> {
        let filter = self.with_full_cause(client).await?;
        let mut from = Some(0);
        while let Some(at) = from {
            let page = filter.page(client, at).await?;
            let more = visit(&page.letters);
            from = page.next.filter(|_| more);
        }
        Ok(())
    }
}

impl Chosen {
    /// The selected letters, at most `max`. Those named by number may not exist any more.
    async fn picks(&self, client: &mut Client, max: usize) -> Result<Vec<Pick>, CliError> {
        let mut picks = Vec::new();
        for letter in &self.letters {
            let letter = letter.number(client, Purpose::Decide).await?.ok_or_else(|| letter.unknown())?;
            let found = one(client, letter).await?;
            picks.push(found.map_or_else(|| Pick::gone(letter), |found| Pick::of(&found)));
        }
        if self.letters.is_empty() && max > 0 {
            self.which
                .each_page(client, |page| {
                    // A filter never selects quarantined letters: each of them needs a review, with `effectd quarantine`.
                    let failed = page.iter().filter(|letter| !letter.is_quarantined());
                    picks.extend(failed.map(Pick::of));
                    picks.len() < max
                })
                .await?;
        }
        picks.truncate(max);
        Ok(picks)
    }

    async fn report_none(&self, client: &mut Client) -> Result<(), CliError> {
        if self.all {
            return report_none(client).await;
        }
        eprint_line(&"there are no such dead letters");
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
        Self { letter, action_id: None, cause: String::new(), code: String::new() }
    }

    fn is_gone(&self) -> bool {
        self.cause.is_empty()
    }
}

/// Groups letters by cause; within a cause the oldest comes first.
fn by_cause(picks: Vec<Pick>) -> BTreeMap<String, Vec<Pick>> {
    let mut causes: BTreeMap<String, Vec<Pick>> = BTreeMap::new();
    for pick in picks {
        causes.entry(pick.cause.clone()).or_default().push(pick);
    }
    causes
}

/// Says what would happen to the letters, in one line per cause.
fn summary(verb: &str, causes: &BTreeMap<String, Vec<Pick>>) -> Vec<String> {
    let lines = causes.iter().filter_map(|(cause, picks)| {
        let first = picks.first().filter(|pick| !pick.is_gone())?;
        Some(format!("{verb} {} of cause {cause} ({})", picks.len(), first.code))
    });
    lines.collect()
}

fn row(printer: &mut Printer, letter: &LetterView) {
    let cells = [
        &letter.letter.to_string(),
        &letter.time,
        &letter.code,
        &letter.cause,
        &letter.attempts.to_string(),
        letter.action_id.as_deref().unwrap_or_default(),
    ];
    printer.row(letter, &cells);
}

async fn list(common: &Common, which: &LetterFilter) -> Result<Exit, CliError> {
    let mut printer = Printer::new(common.output, true, &LETTERS);
    with_client(common, Depth::Store, async |client| {
        let mut print = |page: &[LetterView]| {
            page.iter().for_each(|letter| row(&mut printer, letter));
            true
        };
        which.each_page(client, &mut print).await
    })
    .await?;
    printer.finish();
    Ok(Exit::Done)
}

async fn export(common: &Common, which: &LetterFilter) -> Result<Exit, CliError> {
    let texts =
        |page: &[LetterView]| lines(page.iter().filter_map(|letter| serde_json::to_string(letter).ok()));
    with_client(common, Depth::Store, async |client| which.each_page(client, texts).await).await?;
    Ok(Exit::Done)
}

/// The letter with this number, if it exists.
async fn one(client: &mut Client, number: u64) -> Result<Option<LetterView>, CliError> {
    known(client.get(&format!("/v1/dlq/{number}")).await)
}

/// `None` if the letter is unknown.
pub(super) fn known<T>(found: Result<T, ClientError>) -> Result<Option<T>, CliError> {
    match found {
        Err(ClientError::Refused(problem)) if problem.code == Kind::LetterUnknown.code() => Ok(None),
        found => Ok(Some(found?)),
    }
}

async fn show(common: &Common, which: &LetterRef) -> Result<Exit, CliError> {
    let found =
        with_client(common, Depth::Store, async |client| match which.number(client, Purpose::Show).await? {
            Some(number) => one(client, number).await,
            None => Ok(None),
        });
    let Some(letter) = found.await? else {
        eprint_line(&format!("there is no dead letter {which}; `effectd dlq list` lists them"));
        return Ok(Exit::Failed);
    };
    let mut printer = Printer::new(common.output, false, &LETTERS);
    row(&mut printer, &letter);
    printer.finish();
    if common.output == Form::Table {
        match &letter.detail {
            Some(detail) => line(&format!("  why      {}", quoted(detail))),
            None => line("  why      it can no longer be read: its key was destroyed"),
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

/// Text from a tool, without terminal commands.
fn quoted(text: &str) -> String {
    shown(text, usize::MAX)
}

async fn all_causes(client: &mut Client) -> Result<Vec<CauseView>, CliError> {
    Ok(client.get("/v1/dlq/causes").await?)
}

/// Says that there is nothing to do, and how many letters are left to `effectd quarantine`.
async fn report_none(client: &mut Client) -> Result<(), CliError> {
    let quarantined: u64 = all_causes(client).await?.iter().map(|cause| cause.count).sum();
    eprint_line(&if quarantined == 0 {
        "there are no dead letters".to_owned()
    } else {
        format!(
            "there are no dead letters but {quarantined} in quarantine; `effectd quarantine list` shows them"
        )
    });
    Ok(())
}

/// All causes but those of quarantined letters.
async fn failed_causes(client: &mut Client) -> Result<Vec<CauseView>, CliError> {
    let mut causes = all_causes(client).await?;
    causes.retain(|cause| !cause.is_quarantined());
    Ok(causes)
}

async fn causes(common: &Common) -> Result<Exit, CliError> {
    let causes: Vec<CauseView> = get(common, Depth::Store, "/v1/dlq/causes").await?;
    let second = |time: &str| time.split('.').next().unwrap_or_default().to_owned();
    print_rows(common.output, &CAUSES, &causes, |cause| {
        [
            cause.cause.clone(),
            cause.count.to_string(),
            cause.code.clone(),
            cause.tool_id.clone().unwrap_or_default(),
            second(&cause.first),
            second(&cause.last),
            quoted(cause.sample.as_deref().unwrap_or_default()),
        ]
    });
    Ok(Exit::Done)
}

/// Drops letters, and prints the result for each.
async fn discard(common: &Common, chosen: &Chosen, confirm: Confirm) -> Result<Exit, CliError> {
    let picks = with_client(common, Depth::Store, async |client| {
        let picks = chosen.picks(client, usize::MAX).await?;
        if picks.is_empty() {
            chosen.report_none(client).await?;
        }
        Ok(picks)
    })
    .await?;
    let numbers: Vec<u64> = picks.iter().map(|pick| pick.letter).collect();
    let says = summary("drop", &by_cause(picks));
    if !says.is_empty() && !confirm.confirmed(&says) {
        return Ok(Exit::Usage);
    }
    let mut printer = Printer::new(common.output, true, &NOW);
    for chunk in numbers.chunks(CHUNK) {
        let letters = chunk.to_vec();
        let done = mutation::send(common, &Operation::DropLetters { letters }, RunMode::Execute).await?;
        print_results(&mut printer, &done.letters);
    }
    printer.finish();
    Ok(Exit::Done)
}

const NOW: [(&str, usize); 2] = [("LETTER", 6), ("NOW", 0)];

fn print_results(printer: &mut Printer, letters: &[LetterNow]) {
    for now in letters {
        printer.row(now, &[&now.letter.to_string(), &now.now]);
    }
}
