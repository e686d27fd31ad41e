//! `effectd quarantine …`: review actions that a safety check stopped, and quarantined artifacts.
//!
//! A quarantined action is a dead letter: sealed, kept as long as other dead letters, and erased with its subject.

use clap::Subcommand;
use effectd_contracts::Operation;
use effectd_gateway::views::artifacts::QuarantineView;
use effectd_gateway::views::dead_letters::{LetterList, ReviewView};
use serde::Serialize;

use super::dlq::{LetterRef, letter_ref};
use super::mutation::ChangeArgs;
use super::short_id::Purpose;
use super::{CliError, Common, Depth, Printer, artifacts, line, print_json, short_id, with_client};
use crate::exit::Exit;
use crate::tui::shown;

const COLUMNS: [(&str, usize); 5] = [("WHICH", 6), ("TIME", 24), ("TOOL", 20), ("ACTION", 36), ("WHY", 0)];
/// The longest line, in columns.
const COLUMNS_MAX: usize = 512;

/// Review quarantined content: list, show, release or shred it
///
/// An action that a safety check stops has no effect and is kept here, sealed. Releasing it sends it through every gate again under the
/// current policy, and it gets a receipt of its own; shredding it destroys its content. Both ask first and leave a receipt with your
/// name. Actions kept per subject are limited (`effectd config show control.quarantined`); beyond it only the receipt is kept.
/// Quarantined artifacts (`artifacts quarantine`, `receipts audit`) are listed, too; releasing one makes it available again. Uses
/// the daemon if one runs, otherwise the store directly.
#[derive(Debug, Subcommand)]
#[command(after_help = "Examples:\n  effectd quarantine list\n  effectd quarantine list -o json")]
pub(super) enum QuarantineCommand {
    /// List quarantined actions and artifacts, oldest first
    #[command(after_help = "Example:\n  effectd quarantine list -o jsonl")]
    List,
    /// Show the content of one and why it was stopped, without secrets and personal data
    #[command(after_help = "Example:\n  effectd quarantine show 0 -o json")]
    Show {
        #[command(flatten)]
        which: Which,
    },
    /// Send an action through the gates again, or make an artifact available again
    ///
    /// The gates apply: an action that the policy still objects to is quarantined again. Change the rule first.
    #[command(after_help = "Example:\n  effectd quarantine release 0 --yes")]
    Release {
        #[command(flatten)]
        which: Which,
        #[command(flatten)]
        args: ChangeArgs,
    },
    /// Destroy the content of an action; its receipt stays
    ///
    /// An artifact belongs to the receipts that name it, and is deleted by an erasure of their subject (`effectd store erase`) or by retention.
    #[command(after_help = "Example:\n  effectd quarantine shred 0 --yes")]
    Shred {
        #[command(flatten)]
        which: Which,
        #[command(flatten)]
        args: ChangeArgs,
    },
}

#[derive(Debug, clap::Args)]
pub(super) struct Which {
    /// The number in the list, or the id of the action, of its receipt or of the artifact
    #[arg(value_name = "WHICH", value_parser = letter_ref)]
    which: LetterRef,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Held {
    /// An action, by the number of its dead letter.
    Letter(u64),
    Artifact(String),
}

impl Which {
    /// The quarantined action or artifact. An id that nothing has counts as an artifact's.
    async fn held(&self, common: &Common, purpose: Purpose) -> Result<Held, CliError> {
        if let Some(number) = self.which.find(common, purpose).await? {
            return Ok(Held::Letter(number));
        }
        let (word, artifacts) = (self.which.to_string(), artifacts::quarantined(common).await?);
        let id = short_id::pick(&word, artifacts.iter().map(|artifact| artifact.artifact_id.as_str()))?;
        purpose.check(&word, id)?;
        Ok(Held::Artifact(id.unwrap_or(&word).to_owned()))
    }
}

impl QuarantineCommand {
    pub(super) async fn main(self, common: &Common) -> Result<Exit, CliError> {
        match self {
            Self::List => list(common).await,
            Self::Show { which } => match which.held(common, Purpose::Show).await? {
                Held::Letter(number) => show_action(common, number).await,
                Held::Artifact(id) => show_artifact(common, &id).await,
            },
            Self::Release { which, args } => match which.held(common, Purpose::Decide).await? {
                Held::Letter(letter) => {
                    find(common, letter).await?;
                    args.run(common, &Operation::RequeueLetters { letters: vec![letter] }).await
                }
                Held::Artifact(artifact_id) => {
                    find_artifact(common, &artifact_id).await?;
                    args.run(common, &Operation::ReleaseArtifact { artifact_id }).await
                }
            },
            Self::Shred { which, args } => match which.held(common, Purpose::Decide).await? {
                Held::Letter(letter) => {
                    find(common, letter).await?;
                    args.run(common, &Operation::DropLetters { letters: vec![letter] }).await
                }
                Held::Artifact(id) => {
                    find_artifact(common, &id).await?;
                    Err(CliError::request(
                        "an artifact belongs to the receipts that name it: it stays quarantined until an erasure of their \
                         subject (`effectd store erase`) or retention deletes it",
                    ))
                }
            },
        }
    }
}

async fn list(common: &Common) -> Result<Exit, CliError> {
    let mut printer = Printer::new(common.output, true, &COLUMNS);
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
    for artifact in artifacts::quarantined(common).await? {
        let why = shown(artifact.reason.as_deref().unwrap_or_default(), COLUMNS_MAX);
        let by = shown(&format!("quarantined by {}", artifact.by), COLUMNS_MAX);
        let cells = [&artifact.artifact_id, &artifact.since, "(artifact)", &by, &why];
        printer.row(&with_kind("artifact", &artifact), &cells);
    }
    printer.finish_list();
    Ok(Exit::Done)
}

/// Adds `kind`, which tells actions and artifacts apart.
fn with_kind(kind: &str, view: &impl Serialize) -> serde_json::Value {
    // Cannot fail: views are plain data with text keys.
    let mut value = serde_json::to_value(view).unwrap_or_default();
    if let Some(fields) = value.as_object_mut() {
        fields.insert("kind".to_owned(), kind.into());
    }
    value
}

/// The quarantined artifact with this id.
async fn find_artifact(common: &Common, id: &str) -> Result<QuarantineView, CliError> {
    let quarantined = artifacts::quarantined(common).await?;
    let found = quarantined.into_iter().find(|artifact| artifact.artifact_id == id);
    found.ok_or_else(|| {
        let why = "no such action or artifact is quarantined; `effectd quarantine list` lists those that are";
        CliError::request(why).exiting(Exit::Failed)
    })
}

/// Shows who quarantined an artifact, when and why. Its content is available to nobody.
async fn show_artifact(common: &Common, id: &str) -> Result<Exit, CliError> {
    let artifact = find_artifact(common, id).await?;
    if !print_json(common.output, &with_kind("artifact", &artifact)) {
        let say = |text: String| line(&shown(&text, COLUMNS_MAX));
        say(format!("quarantined: artifact {}", artifact.artifact_id));
        say(format!("  by        {}", artifact.by));
        say(format!("  why       {}", artifact.reason.unwrap_or_default()));
        say(format!("  since     {}", artifact.since));
    }
    Ok(Exit::Done)
}

/// The quarantined action with this number.
async fn find(common: &Common, number: u64) -> Result<ReviewView, CliError> {
    let path = format!("/v1/quarantine/{number}");
    let found =
        with_client(common, Depth::Store, async |client| super::dlq::known(client.get(&path).await)).await?;
    found.ok_or_else(|| {
        let why =
            format!("no quarantined action has the number {number}; `effectd quarantine list` lists them");
        CliError::request(why).exiting(Exit::Failed)
    })
}

async fn show_action(common: &Common, number: u64) -> Result<Exit, CliError> {
    let view = find(common, number).await?;
    if !print_json(common.output, &view) {
        print(&view);
    }
    Ok(Exit::Done)
}

fn print(view: &ReviewView) {
    let say = |text: String| line(&shown(&text, COLUMNS_MAX));
    say(format!("quarantined: {} in {}", view.tool_id, view.space_id));
    say(format!("  asked by  {}, for {}", view.principal, view.subject_id));
    say(format!("  why       {}", view.letter.detail.as_deref().unwrap_or_default()));
    for (name, value) in &view.params {
        let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        say(format!("  with      {name} = {text}"));
    }
    say(format!("  since     {}", view.letter.time));
    say(format!("  action    {}", view.letter.action_id.as_deref().unwrap_or_default()));
    say(format!("  receipt   {}", view.letter.receipt_id.as_deref().unwrap_or_default()));
}
