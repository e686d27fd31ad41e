//! The dead letters as files that plain tools can read: `<topic>.jsonl`, one letter a line, without anything sensitive.
//!
//! The files follow the Store, they are no part of it: a thread of its own appends what comes and writes them anew when
//! something goes, and whenever a store is opened. So whatever a crash has left of them is right again before long.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{File, OpenOptions};
use std::io::{BufWriter, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use serde_json::json;

use super::{Shared, timestamp};
use crate::error::StoreError;
use crate::names::TopicName;
use crate::types::letters::Fingerprint;
use crate::vault::keyring::{failed, private_dir, sync_dir};
use crate::watch::Watch;

/// How long to wait for news before looking whether the store is still there.
const PATIENCE: Duration = Duration::from_secs(3_600);
/// Least time between two passes, so that many letters that go one by one do not mean as many files written anew.
const PAUSE: Duration = Duration::from_millis(200);

pub(crate) fn spawn(shared: Arc<Shared>, dir: PathBuf) -> Result<JoinHandle<()>, StoreError> {
    let mut watch = Watch::new(shared.letters.clone());
    std::thread::Builder::new()
        .name("store-dlq".into())
        .spawn(move || {
            let mut mirror = Mirror {
                shared,
                dir,
                next: 0,
                ended: None,
            };
            loop {
                if let Err(error) = mirror.follow() {
                    tracing::warn!(%error, "the files of dead letters could not be written; they will be with the next");
                    mirror.ended = None;
                }
                match watch.wait_changed(PATIENCE) {
                    Ok(_) => {}
                    Err(_) => return,
                }
                mirror.shared.letters.pause(PAUSE);
            }
        })
        .map_err(|error| StoreError::Unavailable {
            reason: format!("no thread for the files of dead letters: {error}"),
        })
}

struct Mirror {
    shared: Arc<Shared>,
    dir: PathBuf,
    /// Letters before this one are in the files.
    next: u64,
    /// How many letters had gone when the files were last written anew; `None` if they must be.
    ended: Option<u64>,
}

impl Mirror {
    fn follow(&mut self) -> Result<(), StoreError> {
        // Counted before the letters are read: what goes meanwhile is seen in the next pass.
        let ended = self.shared.served().live().letters_ended;
        if self.ended == Some(ended) {
            self.append()
        } else {
            self.rewrite()?;
            self.ended = Some(ended);
            Ok(())
        }
    }

    fn append(&mut self) -> Result<(), StoreError> {
        let dir = self.dir.clone();
        let mut files = BTreeMap::new();
        self.next = self.each(self.next, |topic, line| {
            let path = path_of(&dir, topic);
            if !files.contains_key(topic) {
                let mut options = OpenOptions::new();
                let options = options.append(true).create(true).mode(0o600);
                let file = options.open(&path).map_err(|error| failed(&path, &error))?;
                files.insert(topic.clone(), file);
            }
            let file = files.get_mut(topic);
            // One call a line, so that a kill leaves whole lines.
            let written = file.map_or(Ok(()), |file| file.write_all(line.as_bytes()));
            written.map_err(|error| failed(&path, &error))
        })?;
        Ok(())
    }

    /// Writes every file anew, and removes those of topics without letters.
    fn rewrite(&mut self) -> Result<(), StoreError> {
        private_dir(&self.dir)?;
        let dir = self.dir.clone();
        let mut files: BTreeMap<TopicName, BufWriter<File>> = BTreeMap::new();
        self.next = self.each(0, |topic, line| {
            let path = partial_of(&dir, topic);
            if !files.contains_key(topic) {
                let mut options = OpenOptions::new();
                let options = options.write(true).create(true).truncate(true).mode(0o600);
                let file = options.open(&path).map_err(|error| failed(&path, &error))?;
                files.insert(topic.clone(), BufWriter::new(file));
            }
            let file = files.get_mut(topic);
            let written = file.map_or(Ok(()), |file| file.write_all(line.as_bytes()));
            written.map_err(|error| failed(&path, &error))
        })?;
        let mut known = BTreeSet::new();
        for (topic, file) in files {
            let path = path_of(&dir, &topic);
            let end = || -> std::io::Result<()> {
                let file = file.into_inner().map_err(std::io::IntoInnerError::into_error)?;
                file.sync_data()?;
                std::fs::rename(partial_of(&dir, &topic), &path)
            };
            end().map_err(|error| failed(&path, &error))?;
            known.insert(path);
        }
        remove_others(&dir, &known).map_err(|error| failed(&dir, &error))?;
        sync_dir(&dir)
    }

    /// Goes through the letters from a number on; where to go on later.
    fn each(
        &self,
        from: u64,
        mut line: impl FnMut(&TopicName, &str) -> Result<(), StoreError>,
    ) -> Result<u64, StoreError> {
        let served = self.shared.served();
        served.alive()?;
        let mut at = from;
        while let Some((letter, found)) = self.shared.next_letter_at(&served, at)? {
            let record = self.shared.read_letter_record(&served, found)?;
            let text = json!({
                "letter": letter,
                "time": timestamp(found.at_ms).to_string(),
                "topic": record.topic.as_str(),
                "group": record.delivery.as_ref().map(|(group, _)| group.as_str()),
                "offset": record.delivery.as_ref().map(|(_, offset)| *offset),
                "receipt_id": record.receipt_id.as_ref().map(|id| id.as_str()),
                "action_id": record.action_id.as_ref().map(|id| id.as_str()),
                "code": record.code,
                "fingerprint": Fingerprint(found.fingerprint).to_string(),
                "attempts": record.attempts,
            });
            line(&record.topic, &format!("{text}\n"))?;
            at = letter + 1;
        }
        Ok(at)
    }
}

fn path_of(dir: &Path, topic: &TopicName) -> PathBuf {
    dir.join(format!("{topic}.jsonl"))
}

/// A topic's name never begins with a dot, so this is no topic's file.
fn partial_of(dir: &Path, topic: &TopicName) -> PathBuf {
    dir.join(format!(".{topic}.partial"))
}

fn remove_others(dir: &Path, known: &BTreeSet<PathBuf>) -> std::io::Result<()> {
    for entry in std::fs::read_dir(dir)? {
        let path = entry?.path();
        let ours = path
            .extension()
            .is_some_and(|ending| ending == "jsonl" || ending == "partial");
        if ours && !known.contains(&path) {
            std::fs::remove_file(path)?;
        }
    }
    Ok(())
}
