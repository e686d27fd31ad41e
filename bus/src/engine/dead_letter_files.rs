//! Dead letters as files for plain tools: `<topic>.jsonl`, one dead letter a line, without anything sensitive.
//!
//! The files are a copy: a thread appends new dead letters, and rewrites the files when a dead letter is removed and when
//! the store is opened. So they are correct again soon after a crash.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use serde_json::json;

use super::Shared;
use crate::error::StoreError;
use crate::files::{io_error, list, private, private_dir, remove_file, sync_dir};
use crate::names::TopicName;
use crate::reads::timestamp;
use crate::types::dead_letters::Fingerprint;
use crate::watch::Watch;

/// How long to wait for a change before the next pass.
const PASS_EVERY: Duration = Duration::from_secs(3_600);
/// Least time between two passes, so that many removals do not cause as many rewrites.
const PAUSE: Duration = Duration::from_millis(200);

pub(super) fn spawn(shared: Arc<Shared>, dir: PathBuf) -> Result<JoinHandle<()>, StoreError> {
    let mut watch = Watch::new(shared.letters.clone());
    super::spawn("store-dlq", move || {
        let mut files = LetterFiles { shared, dir, next: 0, ended: None };
        loop {
            let first = files.shared.reader().journal.first();
            if let Err(error) = files.follow() {
                files.shared.note_damage(first, Some(&error));
                tracing::warn!(%error, "the files of dead letters could not be written; they are written with the next dead letter");
                files.ended = None;
            }
            if watch.wait_changed(PASS_EVERY).is_err() {
                return;
            }
            files.shared.letters.pause(PAUSE);
        }
    })
}

struct LetterFiles {
    shared: Arc<Shared>,
    dir: PathBuf,
    /// Dead letters before this one are in the files.
    next: u64,
    /// `letters_ended` of the store at the last rewrite; `None` if the files must be rewritten.
    ended: Option<u64>,
}

impl LetterFiles {
    fn follow(&mut self) -> Result<(), StoreError> {
        // The count is read before the dead letters, so the next pass notices a removal in between.
        let ended = self.shared.reader().live.read().letters_ended;
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
                let file = private().append(true).create(true).open(&path);
                let file = file.map_err(|error| io_error(&path, error))?;
                files.insert(topic.clone(), file);
            }
            let file = files.get_mut(topic);
            // One write a line, so that a kill leaves whole lines.
            let written = file.map_or(Ok(()), |file| file.write_all(line.as_bytes()));
            written.map_err(|error| io_error(&path, error))
        })?;
        Ok(())
    }

    /// Rewrites every file, and removes those of topics without dead letters.
    fn rewrite(&mut self) -> Result<(), StoreError> {
        private_dir(&self.dir)?;
        let dir = self.dir.clone();
        let mut files: BTreeMap<TopicName, BufWriter<File>> = BTreeMap::new();
        self.next = self.each(0, |topic, line| {
            let path = partial_of(&dir, topic);
            if !files.contains_key(topic) {
                let file = private().write(true).create(true).truncate(true).open(&path);
                let file = file.map_err(|error| io_error(&path, error))?;
                files.insert(topic.clone(), BufWriter::new(file));
            }
            let file = files.get_mut(topic);
            let written = file.map_or(Ok(()), |file| file.write_all(line.as_bytes()));
            written.map_err(|error| io_error(&path, error))
        })?;
        let mut known = BTreeSet::new();
        for (topic, file) in files {
            let path = path_of(&dir, &topic);
            let end = || -> std::io::Result<()> {
                let file = file.into_inner().map_err(std::io::IntoInnerError::into_error)?;
                file.sync_data()?;
                std::fs::rename(partial_of(&dir, &topic), &path)
            };
            end().map_err(|error| io_error(&path, error))?;
            known.insert(path);
        }
        remove_others(&dir, &known)?;
        sync_dir(&dir)
    }

    /// Calls `line` for each dead letter from a number on; returns where to continue.
    fn each(
        &self,
        from: u64,
        mut line: impl FnMut(&TopicName, &str) -> Result<(), StoreError>,
    ) -> Result<u64, StoreError> {
        let reader = self.shared.alive()?;
        let mut at = from;
        while let Some((letter, found)) = reader.next_letter(at)? {
            let record = reader.letter_record(found)?;
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

/// A path that no topic's file has: no topic's name begins with a dot.
fn partial_of(dir: &Path, topic: &TopicName) -> PathBuf {
    dir.join(format!(".{topic}.partial"))
}

fn remove_others(dir: &Path, known: &BTreeSet<PathBuf>) -> Result<(), StoreError> {
    for path in list(dir)? {
        let ours = path.extension().is_some_and(|ending| ending == "jsonl" || ending == "partial");
        if ours && !known.contains(&path) {
            remove_file(&path)?;
        }
    }
    Ok(())
}
