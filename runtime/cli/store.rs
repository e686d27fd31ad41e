//! `effectd store`: looking after what is on disk while nobody uses it.

use std::path::PathBuf;

use clap::Subcommand;
use effectd_bus::embedded::rescue::{self, Checked, Migrated, Rebuilt};
use effectd_bus::embedded::salvage::{Salvaged, salvage};
use effectd_bus::embedded::{EmbeddedConfig, JournalKind};
use effectd_bus::{Blobs, BlobsChecked, StoreError};
use effectd_contracts::SystemClock;
use effectd_gateway::upkeep::{RetainedView, StoreView};
use hyper::Method;
use serde_json::{Value, json};

use super::backend::{Trouble, client_state, with_client};
use super::operate::Confirm;
use super::output::{Form, Printer};
use super::{Common, complain};
use crate::error::Error;
use crate::exit::Exit;
use crate::keys;
use crate::runtime::Depth;
use crate::state::State;

const COLUMNS: [(&str, usize); 2] = [("WHAT", 16), ("FOUND", 0)];

/// Check the store, make its index anew, save what a damaged one still has, count what is in it
///
/// `stats`, `export`, `retain` and `erase` go through the daemon if one runs. `check`, `rebuild`, `salvage` and `migrate` need the store
/// for themselves: while a daemon runs on it, they say so and exit with 75.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  effectd store check\n  effectd store stats -o json")]
pub(super) struct StoreCommand {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Read everything and change nothing: checksums, order, that index and journal agree, and every blob
    ///
    /// Exits with 1 if anything is wrong, and says what.
    #[command(after_help = "Example:\n  effectd store check")]
    Check {
        /// How the answer is shown
        #[arg(long, short, value_enum, default_value = "table", value_name = "FORM")]
        output: Form,
    },
    /// Make the index anew from the journal, and say whether it is the same as before
    #[command(after_help = "Example:\n  effectd store rebuild")]
    Rebuild {
        /// How the answer is shown
        #[arg(long, short, value_enum, default_value = "table", value_name = "FORM")]
        output: Form,
    },
    /// Write what can be read of a damaged store into a new directory, as JSON lines, and say what cannot
    ///
    /// The damaged store is left as it is. What is sealed stays sealed. Exits with 1 if something could not be read.
    #[command(after_help = "Example:\n  effectd store salvage salvaged")]
    Salvage {
        /// A directory that is not there yet
        #[arg(value_name = "DIR")]
        into: PathBuf,
        /// How the answer is shown
        #[arg(long, short, value_enum, default_value = "table", value_name = "FORM")]
        output: Form,
    },
    /// Write the journal into another engine: plain files, or a sled database
    ///
    /// The new one is written beside the old one, compared with it block by block, and put in its place in one step: whatever ends
    /// the command, one of the two is there and whole. Needs room on disk for both.
    #[command(after_help = "Example:\n  effectd store migrate --journal sled")]
    Migrate {
        /// What carries the journal from then on
        #[arg(long, value_name = "KIND", value_parser = ["files", "sled"])]
        journal: String,
        /// How the answer is shown
        #[arg(long, short, value_enum, default_value = "table", value_name = "FORM")]
        output: Form,
    },
    /// Write the events of a topic as JSON lines, in order
    ///
    /// What is sealed is not opened: such an event has no body here.
    #[command(after_help = "Example:\n  effectd store export ACTION_EXECUTED")]
    Export {
        /// Which topic
        #[arg(value_name = "TOPIC")]
        topic: String,
        /// The first event; without it, the first that is kept
        #[arg(long, value_name = "OFFSET")]
        from: Option<u64>,
    },
    /// Let go of what is kept no longer, and give the disk its room back
    ///
    /// A daemon does this by itself every hour. How long things are kept is set by `store.retention.*`. Says first what would go, and asks.
    #[command(
        after_help = "Examples:\n  effectd store retain --dry-run\n  effectd store retain --yes -o json"
    )]
    Retain {
        /// Only say what would go
        #[arg(long, conflicts_with = "yes")]
        dry_run: bool,
        #[command(flatten)]
        confirm: Confirm,
        /// How the answer is shown
        #[arg(long, short, value_enum, default_value = "table", value_name = "FORM")]
        output: Form,
    },
    /// Erase subjects: no key opens what was sealed for them until now
    ///
    /// Says first what would go, and asks. Dead letters of the subjects are forgotten, what their actions replaced,
    /// wrote or said at length is destroyed, and all keys of payloads so far are, after what is alive of others was sealed
    /// anew. Receipts stay, in clear as they are, with their signatures and proofs. Questions of the subjects that wait for a
    /// person have to be decided first; what is under way has to end, for which it waits a minute. Exits with 75 if that was
    /// not enough. Take the subject out of the policy first: what it sends meanwhile is not part of this.
    #[command(after_help = "Example:\n  effectd store erase --subject agent://planner --yes")]
    Erase(super::erase::Erase),
    /// Count what is in the store
    #[command(after_help = "Example:\n  effectd store stats -o json")]
    Stats {
        /// How the answer is shown
        #[arg(long, short, value_enum, default_value = "table", value_name = "FORM")]
        output: Form,
    },
}

impl StoreCommand {
    pub(super) fn main(self, common: &Common) -> Exit {
        let outcome = match &self.command {
            Command::Check { output } => check(common, *output),
            Command::Rebuild { output } => rebuild(common, *output),
            Command::Migrate { journal, output } => migrate(common, journal, *output),
            Command::Salvage { into, output } => save(common, into, *output),
            Command::Export { topic, from } => {
                return super::block_on(super::bus::export(common, topic, *from));
            }
            Command::Stats { output } => return super::block_on(stats(common, *output)),
            Command::Erase(erase) => return super::block_on(erase.main(common)),
            Command::Retain {
                dry_run,
                confirm,
                output,
            } => return super::block_on(retain(common, *dry_run, *confirm, *output)),
        };
        outcome.unwrap_or_else(|error| {
            complain(&error);
            error.exit()
        })
    }
}

fn config(common: &Common) -> Result<EmbeddedConfig, Error> {
    let state = State::existing(&client_state(common))?;
    Ok(EmbeddedConfig::new(state.path()))
}

/// A value as people read it: nothing is a dash, and lists are on one line.
pub(super) fn words(value: &Value) -> String {
    let all: Vec<String> = match value {
        Value::String(text) => return text.clone(),
        Value::Null => Vec::new(),
        Value::Array(items) => items.iter().map(words).collect(),
        Value::Object(fields) => fields
            .iter()
            .map(|(name, value)| format!("{name} {}", words(value)))
            .collect(),
        Value::Bool(_) | Value::Number(_) => return value.to_string(),
    };
    if all.is_empty() {
        "-".to_owned()
    } else {
        all.join(", ")
    }
}

/// One value for programs, a line for each of its fields for people.
pub(super) fn show(value: &Value, form: Form) {
    let mut printer = Printer::new(form, false, &COLUMNS);
    match (form, value.as_object()) {
        (Form::Table, Some(fields)) => {
            for (name, value) in fields {
                printer.row(value, &[&name.replace('_', " "), &words(value)]);
            }
        }
        (Form::Table | Form::Json | Form::Jsonl, _) => printer.row(value, &[]),
    }
    printer.finish();
}

fn check(common: &Common, form: Form) -> Result<Exit, Error> {
    let Checked {
        blocks,
        records,
        bytes,
        entries,
        behind,
        mut problems,
    } = rescue::check(&config(common)?, &SystemClock)?;
    let blobs = match check_blobs(common) {
        Ok(blobs) => blobs,
        Err(error @ Error::Store(StoreError::Locked { .. })) => return Err(error),
        Err(error) => {
            problems.push(format!("the blobs were not read: {error}"));
            BlobsChecked::default()
        }
    };
    problems.extend(blobs.problems);
    problems.iter().for_each(|problem| complain(problem));
    show(
        &json!({
            "ok": problems.is_empty(),
            "blocks": blocks,
            "records": records,
            "bytes": bytes,
            "index_entries": entries,
            "index_behind": behind,
            "blobs": blobs.blobs,
            "blob_bytes": blobs.bytes,
            "notes": blobs.notes,
            "problems": problems,
        }),
        form,
    );
    Ok(if problems.is_empty() {
        Exit::Done
    } else {
        Exit::Failed
    })
}

fn check_blobs(common: &Common) -> Result<BlobsChecked, Error> {
    let (config, root) = (config(common)?, client_state(common).join("blobs"));
    let key = keys::blobs_there(&State::existing(&client_state(common))?.keys_dir())?;
    match key {
        // The quota counts only where something is stored.
        Some(key) => Ok(rescue::check_blobs(&config, &Blobs::new(root, &key, 0))?),
        None if root.exists() => Err(Error::Request(
            "there is no keys/blobs.key; restore it from your backup".to_owned(),
        )),
        None => Ok(BlobsChecked::default()),
    }
}

fn rebuild(common: &Common, form: Form) -> Result<Exit, Error> {
    let Rebuilt { blocks, same } = rescue::rebuild(&config(common)?, &SystemClock)?;
    show(&json!({ "blocks": blocks, "same_as_before": same }), form);
    Ok(Exit::Done)
}

fn migrate(common: &Common, journal: &str, form: Form) -> Result<Exit, Error> {
    let to = JournalKind::named(journal).unwrap_or_default();
    let Migrated { blocks, changed } = rescue::migrate(&config(common)?, to)?;
    show(
        &json!({ "journal": journal, "blocks": blocks, "changed": changed }),
        form,
    );
    Ok(Exit::Done)
}

fn save(common: &Common, into: &std::path::Path, form: Form) -> Result<Exit, Error> {
    let Salvaged {
        opened,
        trouble,
        blocks,
        missing,
        missing_blocks,
        receipts,
        events,
        letters,
    } = salvage(&config(common)?, into)?;
    let whole = opened && trouble.is_none() && missing_blocks == 0;
    show(
        &json!({
            "journal_opened": opened,
            "trouble": trouble,
            "blocks": blocks,
            "missing_blocks": missing_blocks,
            "missing": missing.iter().map(|(first, last)| json!({"first": first, "last": last})).collect::<Vec<_>>(),
            "receipts": receipts,
            "events": events,
            "letters": letters,
        }),
        form,
    );
    Ok(if whole { Exit::Done } else { Exit::Failed })
}

async fn stats(common: &Common, form: Form) -> Result<Exit, Trouble> {
    let told: StoreView = with_client(common, Depth::Store, async |client| {
        Ok(client.get("/v1/store").await?)
    })
    .await?;
    let mut value = serde_json::to_value(&told).unwrap_or_default();
    // Whoever may look into the state directory sees what it takes on disk.
    let state = client_state(common);
    for (name, field) in [
        ("journal", "journal_bytes"),
        ("index", "index_bytes"),
        ("blobs", "blob_bytes"),
    ] {
        if let Ok(bytes) = size_of(&state.join(name)) {
            value[field] = json!(bytes);
        }
    }
    show(&value, form);
    Ok(Exit::Done)
}

/// Says what would go, asks, and lets it go.
async fn retain(common: &Common, dry_run: bool, confirm: Confirm, form: Form) -> Result<Exit, Trouble> {
    let preview = turns(common, true).await?;
    let would = serde_json::to_value(&preview).unwrap_or_default();
    if dry_run {
        show(&would, form);
        return Ok(Exit::Done);
    }
    if !confirm.given(&[format!("what would go: {}", words(&would))]) {
        return Ok(Exit::Usage);
    }
    let went = turns(common, false).await?;
    show(&serde_json::to_value(&went).unwrap_or_default(), form);
    Ok(Exit::Done)
}

/// Takes turns until there is no more to let go.
async fn turns(common: &Common, dry_run: bool) -> Result<Option<RetainedView>, Trouble> {
    let mut all: Option<RetainedView> = None;
    loop {
        let path = format!("/v1/store/retain?preview={dry_run}");
        let told: RetainedView = with_client(common, Depth::Policy, async |client| {
            Ok(client.call(Method::POST, &path, "").await?)
        })
        .await?;
        let more = told.more;
        all = Some(match all {
            None => told,
            Some(before) => before.and(told),
        });
        if !more {
            return Ok(all);
        }
    }
}

/// What the files of a directory take on disk.
fn size_of(path: &std::path::Path) -> std::io::Result<u64> {
    use std::os::unix::fs::MetadataExt;
    let mut bytes = 0;
    for entry in std::fs::read_dir(path)? {
        let entry = entry?;
        let metadata = entry.metadata()?;
        bytes += if metadata.is_dir() {
            size_of(&entry.path())?
        } else {
            metadata.blocks() * 512
        };
    }
    Ok(bytes)
}
