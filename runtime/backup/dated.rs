//! Scheduled backups: each in a directory that is named by its time and its state, and only the newest ones of a state stay.

use std::fs;
use std::path::{Path, PathBuf};

use effectd_bus::Progress;
use effectd_contracts::{Clock, Timestamp};

use super::{InUse, make, refused};
use crate::error::{AtPath, Error};
use crate::state::id;

/// The ending of a draft's name.
const DRAFT: &str = ".partial";
/// How much of the state's id is in a name.
const ID_CHARS: usize = 8;

/// Where scheduled backups are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Dated {
    pub(crate) to: PathBuf,
    /// The directory of the keys; `None` to copy none.
    pub(crate) keys: Option<PathBuf>,
    /// How many are kept.
    pub(crate) keep: usize,
}

/// Makes a backup named by the present time, then removes all but the newest ones of this state. Several states may share the
/// directories. The caller has the state open.
pub(crate) fn make_dated(
    state: &Path,
    into: &Dated,
    clock: &dyn Clock,
    in_use: InUse<'_>,
) -> Result<(), Error> {
    let whose = id::ensure(state)?;
    let whose = format!("-{}", whose.get(..ID_CHARS).unwrap_or(&whose));
    for folder in [Some(&into.to), into.keys.as_ref()].into_iter().flatten() {
        // Not created: the disk that belongs there may be missing.
        if !folder.is_dir() {
            return Err(refused(format!("there is no directory {}; create it", folder.display())));
        }
        // What a killed process left behind, perhaps a copy of keys. Only this process makes backups of the state with this name.
        for draft in dated(folder, &format!("{whose}{DRAFT}"))? {
            let draft = folder.join(draft);
            fs::remove_dir_all(&draft).at(&draft)?;
        }
    }
    let name = format!("{}{whose}", name_of(clock.now()));
    let keys = into.keys.as_ref().map(|keys| keys.join(&name));
    make(state, &into.to.join(&name), keys.as_deref(), clock, in_use, &Progress::default())?;
    let mut others = dated(&into.to, &whose)?;
    // The new one stays, whatever the clock said when the others were made.
    others.retain(|other| *other != name);
    let old = (others.len() + 1).saturating_sub(into.keep.max(1));
    for other in others.iter().take(old) {
        // The keys first: as long as the backup exists, a removal that failed is tried again.
        for folder in [into.keys.as_ref(), Some(&into.to)].into_iter().flatten() {
            remove(&folder.join(other))?;
        }
    }
    Ok(())
}

/// `2026-11-17T10-05-33Z`: sorted by name, backups are sorted by time.
fn name_of(time: Timestamp) -> String {
    let text = time.to_string().replace(':', "-");
    format!("{}Z", text.get(..19).unwrap_or_default())
}

/// The names of the directories here that begin with a time and have this ending, oldest first.
fn dated(folder: &Path, ending: &str) -> Result<Vec<String>, Error> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).at(folder)? {
        let entry = entry.at(folder)?;
        let Ok(name) = entry.file_name().into_string() else {
            continue;
        };
        let time = name.strip_suffix(ending).unwrap_or_default();
        let is_dated = time_of(time).is_some_and(|parsed| name_of(parsed) == time);
        if is_dated && entry.file_type().at(folder)?.is_dir() {
            found.push(name);
        }
    }
    found.sort();
    Ok(found)
}

/// The time in the name of a scheduled backup.
fn time_of(name: &str) -> Option<Timestamp> {
    let (day, time) = name.split_once('T')?;
    format!("{day}T{}", time.replace('-', ":")).parse().ok()
}

/// Removes a backup, if it exists. It becomes a draft first: what has the name of a backup is always complete.
fn remove(path: &Path) -> Result<(), Error> {
    if !path.exists() {
        return Ok(());
    }
    let mut draft = path.as_os_str().to_owned();
    draft.push(DRAFT);
    let draft = PathBuf::from(draft);
    fs::rename(path, &draft).at(path)?;
    fs::remove_dir_all(&draft).at(&draft)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::sync::Arc;
    use std::time::Duration;

    use effectd_bus::Store;
    use effectd_bus::embedded::{self, EmbeddedConfig, JournalKind};
    use effectd_contracts::ManualClock;

    use super::*;

    #[test]
    fn only_the_newest_backups_stay_and_nothing_else_goes() {
        let folder = tempfile::tempdir().unwrap();
        let (state, to, keys) =
            (folder.path().join("state"), folder.path().join("to"), folder.path().join("keys"));
        let clock = Arc::new(ManualClock::at("2026-11-17T10:00:00.5Z".parse().unwrap()));
        let mut config = EmbeddedConfig::new(&state);
        config.journal = JournalKind::Files;
        let store = embedded::open(config, clock.clone()).unwrap();
        store.note("t", b"noted".to_vec()).wait().unwrap();
        let into = Dated { to: to.clone(), keys: Some(keys.clone()), keep: 2 };
        let id = id::ensure(&state).unwrap();
        let named = |time: &str| format!("{time}-{}", &id[..ID_CHARS]);
        let make = || make_dated(&state, &into, &*clock, &|_| Ok(false)).map_err(|error| error.to_string());
        assert!(make().unwrap_err().contains("there is no directory"));
        for folder in [&to, &keys] {
            fs::create_dir(folder).unwrap();
            // What a killed process left, half removed; and what other states and people have put there.
            let draft = folder.join(named("2026-11-16T10-00-00Z") + DRAFT);
            fs::create_dir_all(draft.join("journal")).unwrap();
            for other in ["2026-11-15T10-00-00Z-other", "2026-11-15T11-00-00Z-other.partial", "monday"] {
                fs::create_dir(folder.join(other)).unwrap();
            }
        }
        // Keys without a backup do not take the place of others.
        for time in ["2026-11-17T10-01-30Z", "2026-11-17T10-01-40Z"] {
            fs::create_dir(keys.join(named(time))).unwrap();
        }
        for _ in 0..3 {
            make().unwrap();
            clock.advance(Duration::from_secs(60));
        }
        let there = |folder: &Path| {
            let names = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name());
            let mut names: Vec<_> = names.map(|name| name.into_string().unwrap()).collect();
            names.sort();
            names
        };
        let others = ["2026-11-15T10-00-00Z-other", "2026-11-15T11-00-00Z-other.partial"].map(str::to_owned);
        let kept = ["2026-11-17T10-01-00Z", "2026-11-17T10-02-00Z"].map(named);
        let expected = [&others[..], &kept, &["monday".to_owned()]].concat();
        assert_eq!(there(&to), expected);
        assert!(kept.iter().all(|name| keys.join(name).is_dir()), "{:?}", there(&keys));
        assert!(!keys.join(named("2026-11-17T10-00-00Z")).exists());
        // A clock that is set back does not make the new backup the oldest.
        clock.jump_to("2026-11-16T10:00:00Z".parse().unwrap());
        make().unwrap();
        let kept = ["2026-11-16T10-00-00Z", "2026-11-17T10-02-00Z"].map(named);
        assert_eq!(there(&to), [&others[..], &kept, &["monday".to_owned()]].concat());
    }
}
