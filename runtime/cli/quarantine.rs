//! `effectd quarantine …`: content that a safety check found something in, held for review.
//!
//! A quarantined action is a dead letter: sealed, kept for as long as those, and forgotten with its subject. This is where
//! people look at what it holds, send it through the gates again, or destroy it.

use clap::Subcommand;
use effectd_bus::StoreError;
use effectd_contracts::{Code, Operation};
use effectd_gateway::letters::{self, LetterList, LetterQuery, LetterView, ReviewView};
use hyper::Method;

use super::backend::Trouble;
use super::operate::{self, Confirm};
use super::output::{Form, Printer, for_programs, line};
use super::stored::Keeper;
use super::{Common, complain};
use crate::exit::Exit;
use crate::tui::shown;

const COLUMNS: [(&str, usize); 5] = [
    ("LETTER", 6),
    ("TIME", 24),
    ("TOOL", 20),
    ("ACTION", 36),
    ("WHY", 0),
];
/// Longest line that is printed.
const COLUMNS_MAX: usize = 512;

/// Review quarantined content: list, show, release or shred it
///
/// What a safety check finds something in has no effect and is held here, sealed. Releasing sends it through every gate
/// again, under the policy of then, and it ends in a receipt of its own; shredding destroys what it holds. Both ask first
/// and leave a receipt that names you. Through the daemon if one runs, otherwise on the store itself. Artifacts are taken aside with `effectd artifacts quarantine`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  effectd quarantine list\n  effectd quarantine list -o json")]
pub(super) struct QuarantineCommand {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// List what is held for review, the oldest first
    #[command(after_help = "Example:\n  effectd quarantine list -o jsonl")]
    List {
        #[command(flatten)]
        output: Output,
    },
    /// Show what one of them holds and why it was stopped, without secrets and personal data
    #[command(after_help = "Example:\n  effectd quarantine show 0 -o json")]
    Show {
        #[command(flatten)]
        which: Which,
        #[command(flatten)]
        output: Output,
    },
    /// Send one through the gates again
    ///
    /// Nothing is waved through: if the policy still finds something in it, it is quarantined again. Change the rule first.
    #[command(after_help = "Example:\n  effectd quarantine release 0 --yes")]
    Release {
        #[command(flatten)]
        which: Which,
        #[command(flatten)]
        confirm: Confirm,
        #[command(flatten)]
        output: Output,
    },
    /// Destroy what one holds; its receipt stays
    #[command(after_help = "Example:\n  effectd quarantine shred 0 --yes")]
    Shred {
        #[command(flatten)]
        which: Which,
        #[command(flatten)]
        confirm: Confirm,
        #[command(flatten)]
        output: Output,
    },
}

#[derive(Debug, clap::Args)]
struct Which {
    /// Which one, by its number in the list
    #[arg(value_name = "LETTER")]
    letter: u64,
}

#[derive(Debug, clap::Args)]
struct Output {
    /// How the answer is shown
    #[arg(long, short, value_enum, default_value = "table", value_name = "FORM")]
    output: Form,
}

impl QuarantineCommand {
    pub(super) fn main(self, common: &Common) -> Exit {
        super::block_on(self.verb.run(common))
    }
}

impl Verb {
    async fn run(&self, common: &Common) -> Result<Exit, Trouble> {
        let (which, operation, confirm, output) = match self {
            Verb::List { output } => {
                let mut keeper = Keeper::reach(common).await?;
                let exit = list(&mut keeper, output.output).await?;
                keeper.close()?;
                return Ok(exit);
            }
            Verb::Show { which, output } => {
                let mut keeper = Keeper::reach(common).await?;
                let exit = show(&mut keeper, which.letter, output.output).await?;
                keeper.close()?;
                return Ok(exit);
            }
            Verb::Release {
                which,
                confirm,
                output,
            } => {
                let letters = vec![which.letter];
                (which, Operation::RequeueLetters { letters }, confirm, output)
            }
            Verb::Shred {
                which,
                confirm,
                output,
            } => {
                let letters = vec![which.letter];
                (which, Operation::DropLetters { letters }, confirm, output)
            }
        };
        rid(common, which.letter, &operation, *confirm, output.output).await
    }
}

fn is_quarantined(letter: &LetterView) -> bool {
    letter.code == Code::SafetyQuarantined.as_str()
}

async fn list(keeper: &mut Keeper, form: Form) -> Result<Exit, Trouble> {
    let mut printer = Printer::new(form, true, &COLUMNS);
    let mut from = Some(0);
    while let Some(at) = from {
        let query = LetterQuery {
            from: at,
            ..LetterQuery::default()
        };
        let page: LetterList = keeper
            .ask(Method::GET, &format!("/v1/dlq?from={at}"), |store| {
                letters::list(store, &query)
            })
            .await?;
        for letter in page.letters.iter().filter(|letter| is_quarantined(letter)) {
            let value = serde_json::to_value(letter).unwrap_or_default();
            let why = shown(letter.detail.as_deref().unwrap_or_default(), COLUMNS_MAX);
            let cells = [
                &letter.letter.to_string(),
                &letter.time,
                letter.tool_id.as_deref().unwrap_or_default(),
                letter.action_id.as_deref().unwrap_or_default(),
                &why,
            ];
            printer.row(&value, &cells);
        }
        from = page.next;
    }
    printer.finish();
    Ok(Exit::Done)
}

/// One of them, if it is one.
async fn find(keeper: &mut Keeper, number: u64) -> Result<Option<ReviewView>, Trouble> {
    let unknown = StoreError::NotFound {
        what: "the quarantined action",
    };
    let found = keeper
        .ask(Method::GET, &format!("/v1/quarantine/{number}"), |store| {
            letters::review(store, number)?.ok_or(unknown)
        })
        .await;
    match found {
        Err(trouble) if super::dlq::is_unknown(&trouble) => {
            complain(&format!(
                "nothing of number {number} is quarantined; `effectd quarantine list` tells what is"
            ));
            Ok(None)
        }
        found => found.map(Some),
    }
}

async fn show(keeper: &mut Keeper, number: u64, form: Form) -> Result<Exit, Trouble> {
    let Some(view) = find(keeper, number).await? else {
        return Ok(Exit::Failed);
    };
    if !for_programs(form, &view) {
        tell(&view);
    }
    Ok(Exit::Done)
}

fn tell(view: &ReviewView) {
    let say = |text: String| line(&shown(&text, COLUMNS_MAX));
    say(format!("quarantined: {} in {}", view.tool_id, view.space_id));
    say(format!("  asked by  {}, for {}", view.principal, view.subject_id));
    say(format!(
        "  why       {}",
        view.letter.detail.as_deref().unwrap_or_default()
    ));
    for (name, value) in &view.params {
        let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        say(format!("  with      {name} = {text}"));
    }
    say(format!("  since     {}", view.letter.time));
    say(format!(
        "  action    {}",
        view.letter.action_id.as_deref().unwrap_or_default()
    ));
    say(format!(
        "  receipt   {}",
        view.letter.receipt_id.as_deref().unwrap_or_default()
    ));
}

/// Releases or shreds one, if that is meant; a receipt names whoever did it.
async fn rid(
    common: &Common,
    number: u64,
    operation: &Operation,
    confirm: Confirm,
    form: Form,
) -> Result<Exit, Trouble> {
    let mut keeper = Keeper::reach(common).await?;
    let found = find(&mut keeper, number).await?;
    keeper.close()?;
    if found.is_none() {
        return Ok(Exit::Failed);
    }
    operate::main(common, operation, confirm, form).await
}
