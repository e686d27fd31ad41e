//! Restores a state from a backup.
//!
//! The original may have carried out actions that were open when the backup was made. So a restored state carries out nothing by
//! itself: effects are paused, and nothing is taken from its bus, until an operator resumes it.

use std::fs::{self, File};
use std::io::{ErrorKind, Read, Write};
use std::path::{Component, Path};
use std::sync::Arc;

use effectd_actors::approvals::repository;
use effectd_actors::claims::pending::{OpenDecision, last_fence, open_decisions};
use effectd_actors::control::switches::{self, Switches};
use effectd_actors::execution::log;
use effectd_actors::limits::OPEN_TOLD_MAX;
use effectd_actors::operator::tokens;
use effectd_bus::embedded::{self, EmbeddedConfig, JournalKind};
use effectd_bus::offline::{self, Checked};
use effectd_bus::{LocalStore, Progress, Store, StoreError};
use effectd_contracts::{Clock, Principal, Timestamp, Topic};
use serde::{Deserialize, Serialize};

use super::{Draft, FORMAT, MANIFEST, MANIFEST_BYTES_MAX, Manifest, digest, refused};
use crate::error::{AtPath, Error};
use crate::state::{id, keys};

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Restored {
    /// When the backup began.
    pub(crate) made_at: Timestamp,
    pub(crate) checked: Checked,
    pub(crate) open: Open,
    pub(crate) cleared: Vec<Cleared>,
}

/// What was unfinished at the time of the backup, and waits for an operator.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Open {
    /// The number of unfinished decisions.
    decisions: u64,
    /// How many of these decisions had started; their outcome is unknown.
    begun: u64,
    /// The number of pending approvals.
    questions: u64,
    dead_letters: u64,
    /// The first unfinished decisions.
    first: Vec<OpenDecision>,
}

/// Checks every file of a backup and its keys, and that there is no such state yet. Changes nothing.
pub(crate) fn check_restore(
    from: &Path,
    keys: &Path,
    state: &Path,
    progress: &Progress,
) -> Result<(Manifest, Manifest), Error> {
    if state.exists() {
        return Err(refused(format!("{} already exists; move it away first", state.display())));
    }
    let (manifest, key_manifest) = (verify(from, "state", progress)?, verify(keys, "keys", progress)?);
    // A backup and the keys copied with it have the same time.
    if manifest.made_at != key_manifest.made_at {
        return Err(refused(format!(
            "{} has the keys of a backup of {}, but {} is a backup of {}; only its own keys decrypt it",
            keys.display(),
            key_manifest.made_at,
            from.display(),
            manifest.made_at
        )));
    }
    Ok((manifest, key_manifest))
}

/// Makes a state from a backup and its keys: checks the copy, rebuilds its index, pauses it, and then renames it to `state`.
pub(crate) fn restore(
    from: &Path,
    keys: &Path,
    state: &Path,
    clock: &Arc<dyn Clock>,
    by: &Principal,
    progress: &Progress,
) -> Result<Restored, Error> {
    let (manifest, key_manifest) = check_restore(from, keys, state, progress)?;
    let mut draft = Draft::begin(from, state, progress)?;
    draft.all_of(&manifest)?;
    let cleared = clear_addresses(&draft.path.join("config.toml"))?;
    id::ensure(&draft.path)?;
    let mut key_files = Draft::inside(keys, draft.path.join("keys"), progress);
    key_files.all_of(&key_manifest)?;
    let config = EmbeddedConfig { progress: progress.clone(), ..EmbeddedConfig::new(&draft.path) };
    if let Some(journal) = manifest.journal.as_deref().and_then(JournalKind::named) {
        offline::migrate(&config, journal)?;
    }
    offline::rebuild(&config, &**clock)?;
    let checked = offline::check(&config, &**clock)?;
    if let Some(problem) = checked.problems.first() {
        return Err(refused(format!("the restored state is not complete: {problem}")));
    }
    let store = open_store(&draft.path, clock)?;
    if signs_with_other_key(&draft.path, &store)? {
        return Err(refused(
            "the backup of the keys has another signing key than this log; use the keys that were copied with this backup",
        ));
    }
    let open = pause(&store, manifest.made_at, clock, by)?;
    draft.put_in_place(state)?;
    Ok(Restored { made_at: manifest.made_at, checked, open, cleared })
}

/// An address of the original that the new state does not keep, since a daemon may serve the original there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Cleared {
    pub(crate) setting: &'static str,
    pub(crate) was: String,
}

/// The parts of the configuration that have addresses.
#[derive(Deserialize)]
struct Addresses {
    gateway: Option<Gateway>,
    telemetry: Option<Telemetry>,
}

#[derive(Deserialize)]
struct Gateway {
    socket: Option<toml::Spanned<String>>,
    listen: Option<toml::Spanned<String>>,
}

#[derive(Deserialize)]
struct Telemetry {
    listen: Option<toml::Spanned<String>>,
}

/// Empties the addresses in a configuration file: then the socket is that in the state directory, and there is no TCP address.
pub(super) fn clear_addresses(path: &Path) -> Result<Vec<Cleared>, Error> {
    let mut text = match fs::read_to_string(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        text => text.at(path)?,
    };
    // Nobody can use a file that is not valid, so it stays as it is.
    let Ok(Addresses { gateway, telemetry }) = toml::from_str(&text) else {
        return Ok(Vec::new());
    };
    let (socket, listen) = gateway.map_or((None, None), |gateway| (gateway.socket, gateway.listen));
    let found = [
        ("gateway.socket", socket),
        ("gateway.listen", listen),
        ("telemetry.listen", telemetry.and_then(|telemetry| telemetry.listen)),
    ];
    let found = found.into_iter().filter_map(|(setting, address)| Some((setting, address?)));
    let mut found: Vec<_> = found.filter(|(_, address)| !address.as_ref().is_empty()).collect();
    if found.is_empty() {
        return Ok(Vec::new());
    }
    // The last one first, so that the places of the others stay right.
    found.sort_by_key(|(_, address)| std::cmp::Reverse(address.span().start));
    found.iter().for_each(|(_, address)| text.replace_range(address.span(), "\"\""));
    let written = File::create(path)
        .and_then(|mut file| file.write_all(text.as_bytes()).and_then(|()| file.sync_all()));
    written.at(path)?;
    Ok(found.into_iter().map(|(setting, was)| Cleared { setting, was: was.into_inner() }).collect())
}

/// Opens a new store with its keys.
pub(super) fn open_store(state: &Path, clock: &Arc<dyn Clock>) -> Result<LocalStore, Error> {
    let mut config = EmbeddedConfig::new(state);
    // The pause is a small write, so a nearly full disk must not prevent it.
    config.disk_free_bytes_min = 0;
    Ok(embedded::open(config, clock.clone())?)
}

/// Whether the last key in the log is another one than the state's signing key.
pub(super) fn signs_with_other_key(state: &Path, store: &LocalStore) -> Result<bool, Error> {
    let signing = keys::current(&state.join("keys"), store)?.key_id();
    Ok(log::keys(store)?.pop().is_some_and(|last| last.key_id != signing))
}

/// Pauses a new store, forgets its tokens and closes it. Both are durable when this returns.
pub(super) fn pause(
    store: &LocalStore,
    backup_made_at: Timestamp,
    clock: &Arc<dyn Clock>,
    by: &Principal,
) -> Result<Open, Error> {
    let topics = store.topics()?;
    let decisions = topics.iter().find(|(topic, _)| topic.as_str() == Topic::ActionDecision.as_str());
    let restored = switches::Restored {
        by: by.clone(),
        at: clock.now(),
        backup_made_at,
        decisions: decisions.map_or(0, |(_, end)| *end),
        fence: last_fence(store)?.map_or(0, |fence| fence.0),
        waits: true,
    };
    Switches::new(store).hold_back(&restored)?.wait()?;
    tokens::remove(store, None)?;
    let open = open(store, restored.decisions)?;
    store.close()?;
    Ok(open)
}

fn open(store: &dyn Store, before: u64) -> Result<Open, StoreError> {
    let groups = store.groups(&Topic::ActionDecision.into()).wait()?;
    let decisions = groups.iter().map(|group| group.undelivered + group.waiting + group.leased);
    let (mut questions, mut after) = (0, None::<String>);
    loop {
        let (page, next) = repository::holds(store, after.as_deref())?;
        questions += page.iter().filter(|hold| hold.value.decided().is_none()).count() as u64;
        match next {
            Some(next) => after = Some(next),
            None => break,
        }
    }
    let stats = store.stats();
    Ok(Open {
        decisions: decisions.max().unwrap_or(0),
        begun: stats.intents_open,
        questions,
        dead_letters: stats.letters,
        first: open_decisions(store, (before, OPEN_TOLD_MAX), |_| true)?,
    })
}

/// Reads a manifest and checks every file against it.
fn verify(copy: &Path, of: &str, progress: &Progress) -> Result<Manifest, Error> {
    let path = copy.join(MANIFEST);
    let mut text = Vec::new();
    File::open(&path).and_then(|file| file.take(MANIFEST_BYTES_MAX).read_to_end(&mut text)).map_err(
        |error| {
            if error.kind() == ErrorKind::NotFound {
                return refused(format!("{} is not a finished backup: it has no manifest", copy.display()));
            }
            Error::State { path: path.clone(), source: error }
        },
    )?;
    let manifest: Manifest =
        serde_json::from_slice(&text).map_err(|error| refused(format!("{}: {error}", path.display())))?;
    if manifest.backup != FORMAT || manifest.of != of {
        let why = format!("{} is a backup of {:?}, version {}", copy.display(), manifest.of, manifest.backup);
        return Err(refused(format!("{why}; expected one of {of:?}, version {FORMAT}")));
    }
    let (mut read, all) = (0_u64, manifest.bytes());
    for (name, expected) in &manifest.files {
        progress.at("checking the backup", read, all);
        read = read.saturating_add(expected.bytes);
        let plain = Path::new(name).components().all(|part| matches!(part, Component::Normal(_)));
        if !plain || name.is_empty() {
            return Err(refused(format!("{} names a file outside of it: {name:?}", path.display())));
        }
        let file = copy.join(name);
        let found = File::open(&file).and_then(|file| digest(file, |_| Ok(())));
        if found.at(&file)? != *expected {
            return Err(refused(format!(
                "{} does not match the manifest; this backup is damaged",
                file.display()
            )));
        }
    }
    Ok(manifest)
}
