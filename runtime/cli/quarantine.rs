//! `effectd quarantine …`: content that a safety check found something in, held for review.
//!
//! A quarantined action is a dead letter: sealed, kept for as long as those, and forgotten with its subject. This is where
//! people look at what it holds, send it through the gates again, or destroy it. Artifacts that an operator or an audit has taken
//! aside are listed with them, and released by the same verb.

use clap::Subcommand;
use effectd_contracts::Operation;
use effectd_gateway::letters::{LetterList, ReviewView};
use effectd_gateway::views::artifacts::QuarantineView;

use super::backend::{Trouble, with_client};
use super::operate::{self, Confirm};
use super::output::{Form, Printer, for_programs, line};
use super::{Common, artifacts, complain};
use crate::exit::Exit;
use crate::runtime::Depth;
use crate::tui::shown;

const COLUMNS: [(&str, usize); 5] = [
    ("WHICH", 6),
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
/// and leave a receipt that names you. Of one subject only so much is held (`effectd config show control.quarantined`); of more there
/// is the receipt alone.
/// Artifacts that were taken aside, with `effectd artifacts quarantine` or by an audit, are listed, too; releasing one hands it out
/// again. Through the daemon if one runs, otherwise on the store itself.
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
    /// Send an action through the gates again, or hand out an artifact again
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
    /// Destroy what an action holds; its receipt stays
    ///
    /// An artifact belongs to the receipts that name it, and goes with their subject (`effectd erase`) or with time.
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
    /// Which one, by its number in the list, or the artifact's id
    #[arg(value_name = "WHICH", value_parser = which)]
    which: Held,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Held {
    /// An action, as the dead letter of this number.
    Letter(u64),
    Artifact(String),
}

fn which(word: &str) -> Result<Held, String> {
    // Ids of artifacts are as long as digests: no letter has such a number.
    if word.len() == ARTIFACT_CHARS && word.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return Ok(Held::Artifact(word.to_owned()));
    }
    let number = word.parse().map(Held::Letter);
    number.map_err(|_| "it is neither a number of the list nor an artifact's id".to_owned())
}

const ARTIFACT_CHARS: usize = 64;

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
        match self {
            Verb::List { output } => list(common, output.output).await,
            Verb::Show { which, output } => match &which.which {
                Held::Letter(number) => {
                    let found = find(common, *number).await?;
                    if let Some(view) = &found
                        && !for_programs(output.output, view)
                    {
                        tell(view);
                    }
                    Ok(if found.is_some() { Exit::Done } else { Exit::Failed })
                }
                Held::Artifact(id) => show_artifact(common, id, output.output).await,
            },
            Verb::Release {
                which,
                confirm,
                output,
            } => match which.which.clone() {
                Held::Letter(letter) => {
                    let letters = vec![letter];
                    let operation = Operation::RequeueLetters { letters };
                    rid(common, letter, &operation, *confirm, output.output).await
                }
                Held::Artifact(artifact_id) => {
                    if find_artifact(common, &artifact_id).await?.is_none() {
                        return Ok(Exit::Failed);
                    }
                    let operation = Operation::ReleaseArtifact { artifact_id };
                    operate::main(common, &operation, *confirm, output.output).await
                }
            },
            Verb::Shred {
                which,
                confirm,
                output,
            } => match which.which.clone() {
                Held::Letter(letter) => {
                    let letters = vec![letter];
                    let operation = Operation::DropLetters { letters };
                    rid(common, letter, &operation, *confirm, output.output).await
                }
                Held::Artifact(_) => {
                    complain(
                        &"an artifact belongs to the receipts that name it: it stays aside until it goes with their subject \
                         (`effectd erase`) or with time",
                    );
                    Ok(Exit::Usage)
                }
            },
        }
    }
}

async fn list(common: &Common, form: Form) -> Result<Exit, Trouble> {
    let mut printer = Printer::new(form, true, &COLUMNS);
    with_client(common, Depth::Store, async |client| {
        let mut from = Some(0);
        while let Some(at) = from {
            let page: LetterList = client.get(&format!("/v1/dlq?from={at}")).await?;
            for letter in page.letters.iter().filter(|letter| letter.is_quarantined()) {
                let why = shown(letter.detail.as_deref().unwrap_or_default(), COLUMNS_MAX);
                let cells = [
                    &letter.letter.to_string(),
                    &letter.time,
                    letter.tool_id.as_deref().unwrap_or_default(),
                    letter.action_id.as_deref().unwrap_or_default(),
                    &why,
                ];
                printer.row(&with_kind("action", letter), &cells);
            }
            from = page.next;
        }
        Ok(())
    })
    .await?;
    for artifact in artifacts::quarantine::all(common).await? {
        let why = shown(artifact.reason.as_deref().unwrap_or_default(), COLUMNS_MAX);
        let by = shown(&format!("aside, by {}", artifact.by), COLUMNS_MAX);
        let cells = [&artifact.artifact_id, &artifact.since, "(artifact)", &by, &why];
        printer.row(&with_kind("artifact", &artifact), &cells);
    }
    printer.finish();
    Ok(Exit::Done)
}

/// For programs, which of the two it is.
fn with_kind(kind: &str, view: &impl serde::Serialize) -> serde_json::Value {
    // Plain data with text keys, for which serde_json has no failure.
    let mut value = serde_json::to_value(view).unwrap_or_default();
    if let Some(fields) = value.as_object_mut() {
        fields.insert("kind".to_owned(), kind.into());
    }
    value
}

/// An artifact that is aside, if it is.
async fn find_artifact(common: &Common, id: &str) -> Result<Option<QuarantineView>, Trouble> {
    let aside = artifacts::quarantine::all(common).await?;
    let found = aside.into_iter().find(|artifact| artifact.artifact_id == id);
    if found.is_none() {
        complain(&"that artifact is not aside; `effectd quarantine list` tells which are");
    }
    Ok(found)
}

/// Who took it aside, when and why. What is in it is handed out to nobody.
async fn show_artifact(common: &Common, id: &str, form: Form) -> Result<Exit, Trouble> {
    let Some(artifact) = find_artifact(common, id).await? else {
        return Ok(Exit::Failed);
    };
    if !for_programs(form, &with_kind("artifact", &artifact)) {
        let say = |text: String| line(&shown(&text, COLUMNS_MAX));
        say(format!("aside: artifact {}", artifact.artifact_id));
        say(format!("  by        {}", artifact.by));
        say(format!("  why       {}", artifact.reason.unwrap_or_default()));
        say(format!("  since     {}", artifact.since));
    }
    Ok(Exit::Done)
}

/// One of them, if it is one.
async fn find(common: &Common, number: u64) -> Result<Option<ReviewView>, Trouble> {
    let path = format!("/v1/quarantine/{number}");
    let found = with_client(common, Depth::Store, async |client| {
        super::dlq::known(client.get(&path).await)
    })
    .await?;
    if found.is_none() {
        complain(&format!(
            "nothing of number {number} is quarantined; `effectd quarantine list` tells what is"
        ));
    }
    Ok(found)
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
    if find(common, number).await?.is_none() {
        return Ok(Exit::Failed);
    }
    operate::main(common, operation, confirm, form).await
}
