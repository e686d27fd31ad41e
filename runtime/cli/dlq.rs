//! `effectd dlq`: dead letters, which are actions that were given up.

mod drain;
mod requeue;

use std::collections::BTreeMap;

use clap::Subcommand;
use effectd_contracts::{Operation, SpaceId, SubjectId, ToolId};
use effectd_gateway::client::{Client, ClientError, percent_encoded};
use effectd_gateway::problem::Kind;
use effectd_gateway::views::dead_letters::{CauseView, LetterList, LetterNow, LetterView};

use super::completions::{self, complete};
use super::mutation::{ChangeArgs, RunMode, Terms};
use super::receipt_filter::{Since, since};
use super::short_id::Purpose;
use super::{
    CliError, Common, Confirm, Depth, Form, Printer, eprint_line, line, lines, mutation, print_rows, second,
    short_id, with_client,
};
use crate::exit::Exit;
use crate::tui::shown;

const LETTERS: [(&str, usize); 8] = [
    ("LETTER", 6),
    ("TIME", 24),
    ("CODE", 20),
    ("CAUSE", 16),
    ("TRIED", 5),
    ("TOOL", 20),
    ("SUBJECT", 24),
    ("ACTION", 0),
];
const CAUSES: [(&str, usize); 7] =
    [("CAUSE", 16), ("COUNT", 6), ("CODE", 18), ("TOOL", 20), ("FIRST", 20), ("LAST", 20), ("SAMPLE", 0)];
/// The length of a cause's id.
const CAUSE_CHARS: usize = 16;
/// In place of a tool, if letters of one cause have different ones.
const SEVERAL_TOOLS: &str = "several tools";
/// The number of letters that one request drops.
const CHUNK: usize = 500;

/// Manage dead letters: actions that were given up
///
/// Uses the daemon if one runs, otherwise the store directly. The files `bus/dlq/<topic>.jsonl` in the state directory list the same
/// letters. Quarantined actions are listed here, too, but only `effectd quarantine` and a letter's own number release or drop them. A
/// command that changes something shows what, asks (`--yes` confirms), and leaves a receipt with your name.
#[derive(Debug, Subcommand)]
#[command(
    after_help = "Examples:\n  effectd dlq causes\n  effectd dlq list --cause 3f2b5f0c9a36e1d0\n  effectd dlq drain --yes"
)]
pub(super) enum DlqCommand {
    /// List dead letters, oldest first
    #[command(after_help = "Example:\n  effectd dlq list -o jsonl")]
    List {
        #[command(flatten)]
        which: LetterFilter,
    },
    /// Show one dead letter: what was asked, by whom and with what approval, why it failed, and each attempt
    ///
    /// The parameters are shown without secrets and personal data.
    #[command(after_help = "Example:\n  effectd dlq show 0 -o json")]
    Show {
        /// The letter's number, or the id of its action or receipt
        #[arg(value_name = "LETTER", value_parser = letter_ref)]
        letter: LetterRef,
    },
    /// List the causes of letters, most frequent first, with a sample of each
    ///
    /// A cause is a tool, a code and the words of the error.
    #[command(after_help = "Example:\n  effectd dlq causes --since 2h")]
    Causes {
        #[command(flatten)]
        which: LetterFilter,
    },
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
        args: ChangeArgs,
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
        args: ChangeArgs,
    },
    /// Write letters as JSON lines, oldest first, without parameters
    #[command(after_help = "Example:\n  effectd dlq export --tool files.write_text")]
    Export {
        #[command(flatten)]
        which: LetterFilter,
    },
}

#[derive(Debug, Clone, Default, clap::Args)]
pub(super) struct LetterFilter {
    /// Only those of this topic
    #[arg(long, value_name = "TOPIC")]
    topic: Option<String>,
    /// Only those of this cause, as in `dlq causes`; the beginning of its id is enough
    #[arg(long, value_name = "CAUSE", add = complete(completions::causes))]
    cause: Option<String>,
    /// Only those of this tool
    #[arg(long, value_name = "TOOL", add = complete(completions::tools))]
    tool: Option<ToolId>,
    /// Only those of this subject
    #[arg(long, value_name = "SUBJECT")]
    subject: Option<SubjectId>,
    /// Only those of this space
    #[arg(long, value_name = "SPACE")]
    space: Option<SpaceId>,
    /// Only those with this code
    #[arg(long, value_name = "CODE")]
    code: Option<String>,
    /// Only those since this time, or not older than this: `2026-01-01T00:00:00Z`, `15m`, `2h`
    #[arg(long, value_name = "TIME", value_parser = since)]
    since: Option<Since>,
}

#[derive(Debug, clap::Args)]
pub(super) struct Chosen {
    /// The letters' numbers, or the ids of their actions or receipts
    #[arg(
        value_name = "LETTER",
        value_parser = letter_ref,
        required_unless_present_any = ["all", "topic", "cause", "tool", "subject", "space", "code", "since"],
        conflicts_with_all = ["all", "topic", "cause", "tool", "subject", "space", "code", "since"]
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
    tool: String,
}

impl DlqCommand {
    pub(super) async fn main(self, common: &Common) -> Result<Exit, CliError> {
        match self.run(common).await {
            // As for `dlq show`: a result of the command, not a mistake in its arguments.
            Err(CliError::Refused(problem)) if problem.code == Kind::LetterUnknown.code() => {
                Err(CliError::Refused(problem).exiting(Exit::Failed))
            }
            done => done,
        }
    }

    async fn run(self, common: &Common) -> Result<Exit, CliError> {
        match self {
            Self::List { which } => list(common, &which).await,
            Self::Show { letter } => show(common, &letter).await,
            Self::Causes { which } => causes(common, &which).await,
            Self::Export { which } => export(common, &which).await,
            Self::Requeue(requeue) => requeue.main(common).await,
            Self::Drain(drain) => drain.main(common).await,
            Self::Drop { chosen, args } => discard(common, &chosen, args.terms()).await,
            Self::Settle { letter, done, args, .. } => {
                let Some(number) = letter.find(common, Purpose::Decide).await? else {
                    return Err(letter.unknown());
                };
                let operation = Operation::SettleLetter { letter: number, done };
                args.run(common, &operation).await
            }
        }
    }
}

impl LetterFilter {
    /// This filter in a URL, after another part of the query.
    fn query(&self) -> String {
        // An age is counted from the start of the command, so that every page and step selects the same.
        let since = self.since.map(|since| since.0.to_string());
        let values = [
            ("topic", self.topic.as_deref()),
            ("cause", self.cause.as_deref()),
            ("tool", self.tool.as_ref().map(ToolId::as_str)),
            ("subject", self.subject.as_ref().map(SubjectId::as_str)),
            ("space", self.space.as_ref().map(SpaceId::as_str)),
            ("code", self.code.as_deref()),
            ("since", since.as_deref()),
        ];
        let given = values.into_iter().filter_map(|(name, value)| Some((name, value?)));
        given.map(|(name, value)| format!("&{name}={}", percent_encoded(value))).collect()
    }

    async fn page(&self, client: &mut Client, from: u64) -> Result<LetterList, CliError> {
        Ok(client.get(&format!("/v1/dlq?from={from}{}", self.query())).await?)
    }

    /// The causes of the selected letters.
    async fn causes(&self, client: &mut Client) -> Result<Vec<CauseView>, CliError> {
        let filter = self.with_full_cause(client).await?;
        filter.known_causes(client).await
    }

    async fn known_causes(&self, client: &mut Client) -> Result<Vec<CauseView>, CliError> {
        Ok(client.get(&format!("/v1/dlq/causes?from=0{}", self.query())).await?)
    }

    /// The causes of the selected letters but those of quarantined letters.
    async fn failed_causes(&self, client: &mut Client) -> Result<Vec<CauseView>, CliError> {
        let mut causes = self.causes(client).await?;
        causes.retain(|cause| !cause.is_quarantined());
        Ok(causes)
    }

    async fn with_full_cause(&self, client: &mut Client) -> Result<Self, CliError> {
        let mut filter = self.clone();
        if let Some(cause) = filter.cause.as_mut().filter(|cause| cause.len() < CAUSE_CHARS) {
            let causes = LetterFilter::default().known_causes(client).await?;
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
            // How the action ended says nothing about an event that a webhook sends again.
            action_id: view.action_id.clone().filter(|_| view.webhook_id.is_none()),
            cause: view.cause.clone(),
            code: view.code.clone(),
            tool: view.tool_id.clone().unwrap_or_default(),
        }
    }

    fn gone(letter: u64) -> Self {
        let (cause, code, tool) = (String::new(), String::new(), String::new());
        Self { letter, action_id: None, cause, code, tool }
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
        let is_same = picks.iter().all(|pick| pick.tool == first.tool);
        let tool = if is_same { first.tool.as_str() } else { SEVERAL_TOOLS };
        Some(format!("{verb} {} of cause {cause} ({tool}, {})", picks.len(), first.code))
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
        letter.tool_id.as_deref().unwrap_or_default(),
        letter.subject_id.as_deref().unwrap_or_default(),
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
    printer.finish_list();
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
        return Err(which.unknown().exiting(Exit::Failed));
    };
    let mut printer = Printer::new(common.output, false, &LETTERS);
    row(&mut printer, &letter);
    printer.finish();
    if common.output == Form::Table {
        describe(&letter);
    }
    Ok(Exit::Done)
}

/// Prints what a letter's action was, and how it failed.
fn describe(letter: &LetterView) {
    let say = |name: &str, text: &str| line(&format!("  {name:<9} {}", quoted(text)));
    if let (Some(tool), Some(space)) = (&letter.tool_id, &letter.space_id) {
        say("tool", &format!("{tool} in {space}"));
    }
    if let (Some(principal), Some(subject)) = (&letter.principal, &letter.subject_id) {
        say("asked by", &format!("{principal}, for {subject}"));
    }
    for (name, value) in letter.params.iter().flatten() {
        let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        say("with", &format!("{name} = {text}"));
    }
    if let Some(approval) = &letter.approval {
        let verdict = serde_json::to_value(approval.verdict).unwrap_or_default();
        let reason = approval.reason.as_deref().map(|reason| format!(": {reason}")).unwrap_or_default();
        let verdict = verdict.as_str().unwrap_or_default();
        say("approval", &format!("{verdict} by {} at {}{reason}", approval.by, approval.at));
    }
    say("why", letter.detail.as_deref().unwrap_or("it can no longer be read: its key was destroyed"));
    if let Some(receipt) = &letter.receipt_id {
        say("receipt", receipt);
    }
    for tried in &letter.tries {
        say("attempt", &format!("{}  {}", tried.at, tried.error));
    }
}

/// Text from a tool, without terminal commands.
fn quoted(text: &str) -> String {
    shown(text, usize::MAX)
}

/// Says that there is nothing to do, and how many letters are left to `effectd quarantine`.
async fn report_none(client: &mut Client) -> Result<(), CliError> {
    let all = LetterFilter::default().causes(client).await?;
    let quarantined: u64 = all.iter().map(|cause| cause.count).sum();
    eprint_line(&if quarantined == 0 {
        "there are no dead letters".to_owned()
    } else {
        format!(
            "there are no dead letters but {quarantined} in quarantine; `effectd quarantine list` shows them"
        )
    });
    Ok(())
}

async fn causes(common: &Common, which: &LetterFilter) -> Result<Exit, CliError> {
    let causes = with_client(common, Depth::Store, async |client| which.causes(client).await).await?;
    Ok(print_rows(common.output, &CAUSES, &causes, |cause| {
        [
            cause.cause.clone(),
            cause.count.to_string(),
            cause.code.clone(),
            tool_of(cause).unwrap_or_default().to_owned(),
            second(&cause.first),
            second(&cause.last),
            quoted(cause.sample.as_deref().unwrap_or_default()),
        ]
    }))
}

fn tool_of(cause: &CauseView) -> Option<&str> {
    if cause.several_tools { Some(SEVERAL_TOOLS) } else { cause.tool_id.as_deref() }
}

/// Drops letters, and prints the results.
async fn discard(
    common: &Common,
    chosen: &Chosen,
    (terms, confirm): (Terms, Confirm),
) -> Result<Exit, CliError> {
    let picks = with_client(common, Depth::Store, async |client| {
        let picks = chosen.picks(client, usize::MAX).await?;
        if picks.is_empty() {
            chosen.report_none(client).await?;
        }
        Ok(picks)
    })
    .await?;
    let says = summary("drop", &by_cause(picks.clone()));
    if (confirm.dry_run || !says.is_empty()) && !confirm.confirmed(&says) {
        return Ok(confirm.declined());
    }
    let (mut results, mut ended) = (Results::new(common.output), Ok(Exit::Done));
    for chunk in picks.chunks(CHUNK) {
        let operation = Operation::DropLetters { letters: chunk.iter().map(|pick| pick.letter).collect() };
        match mutation::send_on(common, &operation, &terms, RunMode::Execute).await {
            Ok(done) => results.add(chunk, &done.letters),
            Err(error) => {
                ended = Err(error);
                break;
            }
        }
    }
    // Report what was done, even after an error.
    results.finish();
    ended
}

const TOTALS: [(&str, usize); 5] = [("COUNT", 6), ("CAUSE", 16), ("TOOL", 20), ("CODE", 18), ("NOW", 0)];

/// What happened to letters: totals by cause in a table, each letter in JSON.
struct Results {
    form: Form,
    printer: Printer,
    /// By cause and the first word of the result: how many, and the first of them.
    totals: BTreeMap<(String, String), (usize, Pick, String)>,
}

impl Results {
    fn new(form: Form) -> Self {
        Self { form, printer: Printer::new(form, true, &TOTALS), totals: BTreeMap::new() }
    }

    fn add(&mut self, picks: &[Pick], letters: &[LetterNow]) {
        for now in letters {
            if self.form != Form::Table {
                self.printer.row(now, &[""; 0]);
                continue;
            }
            let pick = picks.iter().find(|pick| pick.letter == now.letter);
            let pick = pick.cloned().unwrap_or_else(|| Pick::gone(now.letter));
            let word = now.now.split(':').next().unwrap_or_default().to_owned();
            let total = self.totals.entry((pick.cause.clone(), word));
            let (count, first, _) = total.or_insert_with(|| (0, pick.clone(), now.now.clone()));
            *count += 1;
            if first.tool != pick.tool {
                SEVERAL_TOOLS.clone_into(&mut first.tool);
            }
        }
    }

    fn finish(mut self) {
        for (count, pick, now) in self.totals.values() {
            let cells = [&count.to_string(), &pick.cause, &pick.tool, &pick.code, now];
            self.printer.row(&(), &cells);
        }
        self.printer.finish();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cause_of_several_tools_names_none_of_them() {
        let pick = |letter, tool: &str| Pick {
            letter,
            action_id: None,
            cause: "c".to_owned(),
            code: "deliveries_exhausted".to_owned(),
            tool: tool.to_owned(),
        };
        let (one, other) = (pick(0, "t.x"), pick(1, "t.y"));
        let says = |picks: &[Pick]| summary("drop", &by_cause(picks.to_vec()));
        assert_eq!(says(&[one.clone(), one.clone()]), ["drop 2 of cause c (t.x, deliveries_exhausted)"]);
        let both = [one, other];
        assert_eq!(says(&both), ["drop 2 of cause c (several tools, deliveries_exhausted)"]);
        let mut results = Results::new(Form::Table);
        let now = [0, 1].map(|letter| LetterNow { letter, now: "purged".to_owned() });
        results.add(&both, &now);
        let totals: Vec<_> =
            results.totals.values().map(|(count, pick, _)| (*count, pick.tool.as_str())).collect();
        assert_eq!(totals, [(2, "several tools")]);
    }
}
