//! `effectd store`: check, repair, shrink and count the store.

use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::Subcommand;
use effectd_bus::embedded::{EmbeddedConfig, JournalKind};
use effectd_bus::offline::{self, Checked, Migrated, Rebuilt};
use effectd_bus::{Blobs, BlobsChecked, StoreError};
use effectd_contracts::{Clock, SystemClock};
use effectd_gateway::views::store::{RetainedView, StoreView};
use hyper::Method;
use serde::Serialize;
use serde_json::{Value, json};

use super::progress::Bar;
use super::{
    CliError, Common, Confirm, Depth, Form, Printer, block_on, bus, eprint_line, erase, get, print_json,
    state_dir_of, with_client,
};
use crate::backup;
use crate::error::{Error, chain};
use crate::exit::Exit;
use crate::settings::config::local_principal;
use crate::state::{State, keys};

const COLUMNS: [(&str, usize); 2] = [("WHAT", 16), ("FOUND", 0)];

/// Check the store, rebuild its index, salvage a damaged store, count its contents
///
/// `stats`, `export`, `retain` and `erase` use the daemon if one runs. `check`, `rebuild`, `salvage` and `migrate` need the store for
/// themselves: while a daemon uses it, they exit with 75.
#[derive(Debug, Subcommand)]
#[command(after_help = "Examples:\n  effectd store check\n  effectd store stats -o json")]
pub(super) enum StoreCommand {
    /// Check everything and change nothing: checksums, order, index against journal, and every blob
    ///
    /// Exits with 1 if anything is wrong, and says what.
    #[command(after_help = "Example:\n  effectd store check")]
    Check,
    /// Rebuild the index from the journal, and report whether it is the same as before
    #[command(after_help = "Example:\n  effectd store rebuild")]
    Rebuild {
        #[command(flatten)]
        confirm: Confirm,
    },
    /// Write a new state of what is readable in a damaged one, and name what is lost
    ///
    /// The damaged state is not changed. The new one has its own id, the same keys, blobs, policy and configuration (without
    /// `gateway.socket`, `gateway.listen` and `telemetry.listen`), and everything keeps its number: offsets, receipts, entries of the log. A lost event is one of the type
    /// `effectd.lost.v1`; `receipts verify` names each lost entry of the log. What is lost may be the end of an action, so effects are
    /// paused, as after `effectd restore`, until `effectd resume`. Exits with 1 if something is lost.
    #[command(after_help = "Example:\n  effectd store salvage --to salvaged")]
    Salvage {
        /// The new state directory
        #[arg(long = "to", value_name = "DIR")]
        into: PathBuf,
        #[command(flatten)]
        confirm: Confirm,
    },
    /// Move the journal to another engine: plain files, or a sled database
    ///
    /// The new journal is written beside the old one, compared block by block, and replaces it in one step: whatever interrupts the
    /// command, one of the two is complete. Needs disk space for both.
    #[command(after_help = "Example:\n  effectd store migrate --journal sled")]
    Migrate {
        /// The new engine
        #[arg(long, value_name = "KIND", value_parser = ["files", "sled"])]
        journal: String,
        #[command(flatten)]
        confirm: Confirm,
    },
    /// Write the events of a topic as JSON lines, in order
    ///
    /// Sealed events are not opened: they have no body here.
    #[command(after_help = "Example:\n  effectd store export ACTION_EXECUTED")]
    Export {
        /// The topic
        #[arg(value_name = "TOPIC")]
        topic: String,
        /// The offset of the first event [default: the first that is kept]
        #[arg(long, value_name = "OFFSET")]
        from: Option<u64>,
    },
    /// Apply retention: delete what is past its time, and free disk space
    ///
    /// A daemon does this every hour. The settings `store.retention.*` say how long things are kept. Shows first what would be deleted,
    /// and asks.
    #[command(
        after_help = "Examples:\n  effectd store retain --dry-run\n  effectd store retain --yes -o json"
    )]
    Retain {
        #[command(flatten)]
        confirm: Confirm,
    },
    /// Erase subjects: destroy the keys of everything that was sealed for them
    ///
    /// Shows first what would be deleted, and asks. Deletes the subjects' dead letters, pre-images, artifacts and results, and destroys
    /// all payload keys so far, after sealing the live data of others again. Receipts stay, with their signatures and proofs. Pending
    /// approvals of the subjects must be decided first. Running actions must end, for which it waits a minute; exits with 75 if they do
    /// not. Remove the subject from the policy first: what it sends meanwhile is not erased.
    #[command(after_help = "Example:\n  effectd store erase --subject agent://planner@deviceA --yes")]
    Erase(erase::Erase),
    /// Count the contents of the store
    #[command(after_help = "Example:\n  effectd store stats -o json")]
    Stats,
}

impl StoreCommand {
    pub(super) fn main(self, common: &Common) -> Result<Exit, CliError> {
        match &self {
            Self::Check => Ok(check(common)?),
            Self::Rebuild { confirm } => Ok(rebuild(common, *confirm)?),
            Self::Migrate { journal, confirm } => Ok(migrate(common, journal, *confirm)?),
            Self::Salvage { into, confirm } => Ok(save(common, into, *confirm)?),
            Self::Export { topic, from } => block_on(bus::export(common, topic, *from)),
            Self::Stats => block_on(stats(common)),
            Self::Erase(erase) => block_on(erase.main(common)),
            Self::Retain { confirm } => block_on(retain(common, *confirm)),
        }
    }
}

fn config(common: &Common) -> Result<EmbeddedConfig, Error> {
    let state = State::existing(&state_dir_of(common))?;
    Ok(EmbeddedConfig::new(state.path()))
}

/// A JSON value as text on one line; a dash for an empty one.
pub(super) fn words(value: &Value) -> String {
    let all: Vec<String> = match value {
        Value::String(text) => return text.clone(),
        Value::Null => Vec::new(),
        Value::Array(items) => items.iter().map(words).collect(),
        Value::Object(fields) => {
            fields.iter().map(|(name, value)| format!("{name} {}", words(value))).collect()
        }
        Value::Bool(_) | Value::Number(_) => return value.to_string(),
    };
    if all.is_empty() { "-".to_owned() } else { all.join(", ") }
}

/// Prints one value: as JSON, or a line for each of its fields.
pub(super) fn show(value: &impl Serialize, form: Form) {
    // Cannot fail: the value is plain data with text keys.
    let value = serde_json::to_value(value).unwrap_or_default();
    if print_json(form, &value) {
        return;
    }
    let mut printer = Printer::new(form, false, &COLUMNS);
    for (name, value) in value.as_object().into_iter().flatten() {
        printer.row(value, &[name.replace('_', " "), words(value)]);
    }
    printer.finish();
}

fn check(common: &Common) -> Result<Exit, Error> {
    let bar = Bar::new("checking the store");
    let config = EmbeddedConfig { progress: bar.hook(), ..config(common)? };
    let Checked { blocks, records, bytes, entries, behind, mut problems } =
        offline::check(&config, &SystemClock)?;
    let blobs = match check_blobs(common, &config) {
        Ok(blobs) => blobs,
        Err(error @ Error::Store(StoreError::Locked { .. })) => return Err(error),
        Err(error) => {
            problems.push(format!("the blobs were not read: {}", chain(&error)));
            BlobsChecked::default()
        }
    };
    drop(bar);
    problems.extend(blobs.problems);
    problems.iter().for_each(|problem| eprint_line(problem));
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
        common.output,
    );
    Ok(if problems.is_empty() { Exit::Done } else { Exit::Failed })
}

fn check_blobs(common: &Common, config: &EmbeddedConfig) -> Result<BlobsChecked, Error> {
    let root = state_dir_of(common).join("blobs");
    let key = keys::blobs_there(&State::existing(&state_dir_of(common))?.keys_dir())?;
    match key {
        // The quota does not matter here: it limits only writes.
        Some(key) => Ok(offline::check_blobs(config, &Blobs::new(root, &key, 0))?),
        None if root.exists() => {
            Err(Error::Request("there is no keys/blobs.key; restore it from your backup".to_owned()))
        }
        None => Ok(BlobsChecked::default()),
    }
}

fn rebuild(common: &Common, confirm: Confirm) -> Result<Exit, Error> {
    let config = config(common)?;
    if confirm.only_shows(&[format!("rebuild the index of {} from its journal", config.state.display())]) {
        return Ok(Exit::Done);
    }
    let bar = Bar::new("rebuilding the index");
    let config = EmbeddedConfig { progress: bar.hook(), ..config };
    let Rebuilt { blocks, same } = offline::rebuild(&config, &SystemClock)?;
    drop(bar);
    show(&json!({ "blocks": blocks, "same_as_before": same }), common.output);
    Ok(Exit::Done)
}

fn migrate(common: &Common, journal: &str, confirm: Confirm) -> Result<Exit, Error> {
    let config = config(common)?;
    if confirm.only_shows(&[format!("move the journal of {} to {journal}", config.state.display())]) {
        return Ok(Exit::Done);
    }
    let to = JournalKind::named(journal).unwrap_or_default();
    let bar = Bar::new("moving the journal");
    let config = EmbeddedConfig { progress: bar.hook(), ..config };
    let Migrated { blocks, changed } = offline::migrate(&config, to)?;
    drop(bar);
    show(&json!({ "journal": journal, "blocks": blocks, "changed": changed }), common.output);
    Ok(Exit::Done)
}

fn save(common: &Common, into: &Path, confirm: Confirm) -> Result<Exit, Error> {
    let from = config(common)?.state;
    backup::check_salvage(&from, into)?;
    let says =
        format!("write a state of what is readable in {} to {}, paused", from.display(), into.display());
    if confirm.only_shows(&[says]) {
        return Ok(Exit::Done);
    }
    let clock: Arc<dyn Clock> = Arc::new(SystemClock);
    let bar = Bar::new("salvaging the store");
    let done = backup::salvage(&from, into, &clock, &local_principal()?, &bar.hook())?;
    drop(bar);
    let (found, open) = (done.found, done.open);
    let ranges = |ranges: &[(u64, u64)]| -> Vec<Value> {
        ranges.iter().map(|(first, last)| json!({ "first": first, "last": last })).collect()
    };
    let events_lost: BTreeMap<_, _> =
        found.events_lost.iter().map(|(topic, lost)| (topic, ranges(lost))).collect();
    show(
        &json!({
            "state": into,
            "journal_opened": found.opened,
            "trouble": found.trouble,
            "blocks": found.blocks,
            "missing_blocks": found.missing_blocks,
            "missing": ranges(&found.missing),
            "receipts": found.receipts,
            "receipts_lost": found.receipts_lost,
            "log_entries_lost": ranges(&found.log_lost),
            "events": found.events,
            "events_lost": events_lost,
            "letters": found.letters,
            "left_out": found.left_out,
            "paused": true,
            "open": open,
        }),
        common.output,
    );
    for cleared in done.cleared {
        eprint_line(&format!(
            "{} was {} and is empty in the new state; set it again when that state replaces the damaged one",
            cleared.setting, cleared.was
        ));
    }
    eprint_line(
        &"effects are paused in the new state: serve it, check which of its open actions were done (`effectd cancel` withdraws one), \
          then run `effectd resume`",
    );
    Ok(if found.is_whole() { Exit::Done } else { Exit::Failed })
}

async fn stats(common: &Common) -> Result<Exit, CliError> {
    let view: StoreView = get(common, Depth::Store, "/v1/store").await?;
    let mut value = serde_json::to_value(&view).unwrap_or_default();
    // If the state is on this machine and this user can read its directory, add the sizes on disk.
    let state = common.remote.is_none().then(|| state_dir_of(common));
    for (name, field) in [("journal", "journal_bytes"), ("index", "index_bytes"), ("blobs", "blob_bytes")] {
        if let Some(Ok(bytes)) = state.as_ref().map(|state| size_of(&state.join(name))) {
            value[field] = json!(bytes);
        }
    }
    show(&value, common.output);
    Ok(Exit::Done)
}

/// Shows what retention would delete, asks, and applies it.
async fn retain(common: &Common, confirm: Confirm) -> Result<Exit, CliError> {
    let preview = run_retention(common, true).await?;
    let would = serde_json::to_value(&preview).unwrap_or_default();
    if confirm.dry_run {
        show(&would, common.output);
        return Ok(Exit::Done);
    }
    let (mut counts, mut lines) = (would, Vec::new());
    for (name, what) in [("receipts_since", "receipts"), ("dead_letters_since", "dead letters")] {
        if let Some(since) = counts.as_object_mut().and_then(|counts| counts.remove(name)) {
            lines.push(format!("{what} are kept from {} on", words(&since)));
        }
    }
    lines.insert(0, format!("retention would delete: {}", words(&counts)));
    if !confirm.confirmed(&lines) {
        return Ok(Exit::Usage);
    }
    let went = run_retention(common, false).await?;
    show(&went, common.output);
    Ok(Exit::Done)
}

/// Repeats the request until nothing is left to delete.
async fn run_retention(common: &Common, dry_run: bool) -> Result<Option<RetainedView>, CliError> {
    let mut all: Option<RetainedView> = None;
    loop {
        let path = format!("/v1/store/retain?preview={dry_run}");
        let retained: RetainedView = with_client(common, Depth::Policy, async |client| {
            Ok(client.call(Method::POST, &path, "").await?)
        })
        .await?;
        let more = retained.more;
        all = Some(match all {
            None => retained,
            Some(before) => before.and(retained),
        });
        if !more {
            return Ok(all);
        }
    }
}

/// The disk usage of a directory.
fn size_of(path: &Path) -> std::io::Result<u64> {
    let mut bytes = 0;
    for entry in std::fs::read_dir(path)? {
        let entry = entry?;
        let metadata = entry.metadata()?;
        bytes += if metadata.is_dir() { size_of(&entry.path())? } else { metadata.blocks() * 512 };
    }
    Ok(bytes)
}
