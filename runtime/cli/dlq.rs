//! `effectd dlq`: what could not be done, and what to do about it.

use clap::Subcommand;
use effectd_bus::Store;
use effectd_contracts::{Timestamp, ToolId};
use effectd_gateway::problem::Problem;
use effectd_gateway::upkeep::{self, CauseView, LetterList, LetterNow, LetterQuery, LetterView};
use hyper::Method;

use super::backend::Trouble;
use super::output::{Form, Printer};
use super::stored::Keeper;
use super::{Common, complain};
use crate::client::percent_encoded;
use crate::error::Error;
use crate::exit::Exit;

const LETTERS: [(&str, usize); 6] = [
    ("LETTER", 6),
    ("TIME", 24),
    ("CODE", 20),
    ("CAUSE", 16),
    ("TRIED", 5),
    ("ACTION", 0),
];
const CAUSES: [(&str, usize); 5] = [
    ("CAUSE", 16),
    ("CODE", 20),
    ("COUNT", 6),
    ("FIRST", 24),
    ("LAST", 24),
];

/// List, show, requeue and purge dead letters: actions that were given up
///
/// Through the daemon if one runs, otherwise on the store itself. The files `bus/dlq/<topic>.jsonl` in the state directory
/// list the same letters at any time.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  effectd dlq causes\n  effectd dlq list --cause 3f2b5f0c9a36e1d0\n  effectd dlq requeue --all"
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
    /// List the causes that letters have in common, most frequent first
    #[command(after_help = "Example:\n  effectd dlq causes")]
    Causes {
        #[command(flatten)]
        shown: Shown,
    },
    /// Put letters on the bus again, each with its action id and key; they pass every gate again
    ///
    /// A letter that was requeued is gone, and requeuing it again does nothing. They are carried out when a daemon runs.
    #[command(
        after_help = "Examples:\n  effectd dlq requeue 0\n  effectd dlq requeue --all --tool files.write_text"
    )]
    Requeue {
        #[command(flatten)]
        chosen: Chosen,
        #[command(flatten)]
        shown: Shown,
    },
    /// Forget letters; their receipts stay
    #[command(
        after_help = "Examples:\n  effectd dlq purge 0\n  effectd dlq purge --all --cause 3f2b5f0c9a36e1d0"
    )]
    Purge {
        #[command(flatten)]
        chosen: Chosen,
        #[command(flatten)]
        shown: Shown,
    },
}

#[derive(Debug, clap::Args)]
struct Shown {
    /// How the answer is shown
    #[arg(long, short, value_enum, default_value = "table", value_name = "FORM")]
    output: Form,
}

/// Which letters are meant.
#[derive(Debug, Default, clap::Args)]
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
        required_unless_present = "all",
        conflicts_with = "all"
    )]
    letters: Vec<u64>,
    /// All of them, or all that the conditions leave
    #[arg(long)]
    all: bool,
    #[command(flatten)]
    which: Which,
}

impl DlqCommand {
    pub(super) fn main(self, common: &Common) -> Exit {
        super::block_on(async {
            let mut keeper = Keeper::reach(common).await?;
            let exit = self.command.run(&mut keeper).await?;
            keeper.close()?;
            Ok(exit)
        })
    }
}

impl Command {
    async fn run(&self, keeper: &mut Keeper) -> Result<Exit, Trouble> {
        match self {
            Command::List { which, shown } => list(keeper, which, shown.output).await,
            Command::Show { letter, shown } => show(keeper, *letter, shown.output).await,
            Command::Causes { shown } => causes(keeper, shown.output).await,
            Command::Requeue { chosen, shown } => {
                let verb = |store: &dyn Store, letter| upkeep::requeue(store, letter, Timestamp::now());
                rid(keeper, chosen, shown.output, "requeue", verb).await
            }
            Command::Purge { chosen, shown } => {
                rid(keeper, chosen, shown.output, "purge", upkeep::purge).await
            }
        }
    }
}

impl Which {
    /// One page of the letters that are meant.
    async fn page(&self, keeper: &mut Keeper, from: u64) -> Result<LetterList, Trouble> {
        let query = LetterQuery {
            topic: self.topic.clone(),
            cause: self.cause.clone(),
            tool: self.tool.as_ref().map(ToString::to_string),
            from,
        };
        let mut path = format!("/v1/dlq?from={from}");
        for (name, value) in [
            ("topic", &query.topic),
            ("cause", &query.cause),
            ("tool", &query.tool),
        ] {
            if let Some(value) = value {
                path.push_str(&format!("&{name}={}", percent_encoded(value)));
            }
        }
        keeper
            .ask(Method::GET, &path, |store| upkeep::letters(store, &query))
            .await
    }
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

async fn list(keeper: &mut Keeper, which: &Which, form: Form) -> Result<Exit, Trouble> {
    let mut printer = Printer::new(form, true, &LETTERS);
    let mut from = Some(0);
    while let Some(at) = from {
        let page = which.page(keeper, at).await?;
        page.letters.iter().for_each(|letter| row(&mut printer, letter));
        from = page.next;
    }
    printer.finish();
    Ok(Exit::Done)
}

async fn show(keeper: &mut Keeper, number: u64, form: Form) -> Result<Exit, Trouble> {
    let unknown = effectd_bus::StoreError::NotFound {
        what: "the dead letter",
    };
    let found = keeper
        .ask(Method::GET, &format!("/v1/dlq/{number}"), |store| {
            upkeep::letter(store, number)?.ok_or(unknown)
        })
        .await;
    let letter: LetterView = match found {
        Err(trouble) if is_unknown(&trouble) => {
            complain(&format!(
                "there is no dead letter {number}; `effectd dlq list` tells which there are"
            ));
            return Ok(Exit::Failed);
        }
        found => found?,
    };
    let mut printer = Printer::new(form, false, &LETTERS);
    row(&mut printer, &letter);
    printer.finish();
    if form == Form::Table {
        for tried in &letter.tries {
            super::output::line(&format!("  {}  {}", tried.at, tried.error));
        }
    }
    Ok(Exit::Done)
}

fn is_unknown(trouble: &Trouble) -> bool {
    match trouble {
        Trouble::Refused(problem) => {
            let Problem { code, .. } = &**problem;
            code == "letter_unknown"
        }
        Trouble::Runtime(error) => matches!(error, Error::Store(effectd_bus::StoreError::NotFound { .. })),
        Trouble::Client(_) | Trouble::Settings(_) => false,
    }
}

async fn causes(keeper: &mut Keeper, form: Form) -> Result<Exit, Trouble> {
    let mut printer = Printer::new(form, true, &CAUSES);
    let all: Vec<CauseView> = keeper.ask(Method::GET, "/v1/dlq/causes", upkeep::causes).await?;
    for cause in all {
        let value = serde_json::to_value(&cause).unwrap_or_default();
        let count = cause.count.to_string();
        printer.row(
            &value,
            &[&cause.cause, &cause.code, &count, &cause.first, &cause.last],
        );
    }
    printer.finish();
    Ok(Exit::Done)
}

/// Requeues or purges letters, and says of each what became of it.
async fn rid(
    keeper: &mut Keeper,
    chosen: &Chosen,
    form: Form,
    verb: &str,
    directly: impl Fn(&dyn Store, u64) -> Result<LetterNow, effectd_bus::StoreError>,
) -> Result<Exit, Trouble> {
    let mut printer = Printer::new(form, true, &[("LETTER", 6), ("NOW", 0)]);
    let mut left = 0;
    let (mut letters, mut next) = (chosen.letters.clone(), chosen.all.then_some(0));
    while !letters.is_empty() || next.is_some() {
        for letter in std::mem::take(&mut letters) {
            let path = format!("/v1/dlq/{letter}/{verb}");
            let told = keeper
                .ask(Method::POST, &path, |store| directly(store, letter))
                .await?;
            left += u32::from(told.is_left());
            let value = serde_json::to_value(&told).unwrap_or_default();
            printer.row(&value, &[&told.letter.to_string(), &told.now]);
        }
        if let Some(from) = next {
            let page = chosen.which.page(keeper, from).await?;
            letters = page.letters.iter().map(|letter| letter.letter).collect();
            next = page.next;
        }
    }
    printer.finish();
    Ok(if left == 0 { Exit::Done } else { Exit::Failed })
}
