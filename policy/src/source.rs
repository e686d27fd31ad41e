//! The source text of a policy, and the lines of its values.

use std::ops::Range;

use effectd_contracts::Digest;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use toml::Spanned;
use toml::de::{DeTable, DeValue, Deserializer};

use crate::error::{Faults, Location, PolicyError};
use crate::limits::{FAULTS_MAX, NAME_BYTES_MAX};

/// The file that every policy has.
pub const POLICY_FILE: &str = "policy.toml";

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SourceFile {
    /// Its name inside the directory.
    pub name: String,
    pub text: String,
}

/// All files of a policy: `policy.toml`, and the Cedar rules in order of their names.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Source {
    /// `policy.toml`.
    pub policy: SourceFile,
    /// `*.cedar`, by name.
    pub rules: Vec<SourceFile>,
}

impl Source {
    /// A policy from texts, for tests and embedders.
    pub fn new(policy_toml: impl Into<String>, rules: impl IntoIterator<Item = (String, String)>) -> Self {
        let policy = SourceFile { name: POLICY_FILE.to_owned(), text: policy_toml.into() };
        let mut rules: Vec<_> = rules.into_iter().map(|(name, text)| SourceFile { name, text }).collect();
        rules.sort_by(|a, b| a.name.cmp(&b.name));
        Self { policy, rules }
    }

    /// A policy from its files.
    pub fn of_files(files: Vec<SourceFile>) -> Result<Self, PolicyError> {
        let (mut policy, mut rules): (Vec<_>, Vec<_>) =
            files.into_iter().partition(|file| file.name == POLICY_FILE);
        rules.sort_by(|a, b| a.name.cmp(&b.name));
        let is_rules = |file: &SourceFile| {
            let plain = !file.name.starts_with('.') && !file.name.contains('/');
            plain && file.name.len() <= NAME_BYTES_MAX && file.name.ends_with(".cedar")
        };
        let differ = rules.windows(2).all(|two| two[0].name != two[1].name);
        match (policy.pop(), policy.is_empty()) {
            (Some(policy), true) if differ && rules.iter().all(is_rules) => Ok(Self { policy, rules }),
            _ => {
                let message = "a policy has one policy.toml, and any number of *.cedar with different names";
                Err(PolicyError::invalid(Location::new(POLICY_FILE, 1), message))
            }
        }
    }

    pub fn files(&self) -> impl Iterator<Item = &SourceFile> {
        std::iter::once(&self.policy).chain(&self.rules)
    }

    /// The digest of names and texts, each with its length, so that different policies have different digests.
    pub fn digest(&self) -> Digest {
        let mut hash = Sha256::new();
        hash.update(b"effectd-policy-source-v1");
        for file in self.files() {
            for part in [&file.name, &file.text] {
                hash.update((part.len() as u64).to_be_bytes());
                hash.update(part.as_bytes());
            }
        }
        Digest::from_bytes(hash.finalize().into())
    }
}

/// The line of a byte offset, from 1.
pub(crate) fn line_of(text: &str, offset: usize) -> u32 {
    let before = text.bytes().take(offset).filter(|byte| *byte == b'\n');
    u32::try_from(before.count() + 1).unwrap_or(u32::MAX)
}

/// The lines of the values of a TOML document.
pub(crate) struct Lines<'i> {
    file: &'i SourceFile,
    starts: Vec<usize>,
    root: Spanned<DeTable<'i>>,
}

impl<'i> Lines<'i> {
    pub(crate) fn parse(file: &'i SourceFile) -> Result<Self, PolicyError> {
        let root = DeTable::parse(&file.text).map_err(|error| toml_error(file, &error))?;
        let breaks = file.text.bytes().enumerate().filter(|(_, byte)| *byte == b'\n');
        let starts = std::iter::once(0).chain(breaks.map(|(at, _)| at + 1)).collect();
        Ok(Self { file, starts, root })
    }

    /// The document, or every value in it that has a wrong form.
    pub(crate) fn deserialize<T: DeserializeOwned>(&self, file: &SourceFile) -> Result<T, PolicyError> {
        let (mut root, mut faults) = (self.root.clone(), Faults::default());
        let mut cut: Vec<String> = Vec::new();
        loop {
            let error = match T::deserialize(Deserializer::from(root.clone())) {
                Ok(document) => return faults.result().map(|()| document),
                Err(error) => error,
            };
            // A table that lacks only what was cut out has no fault of its own.
            let lacks = |key: &String| error.message().starts_with(&format!("missing field `{key}`"));
            if !cut.iter().any(lacks) {
                faults.keep(Err::<(), _>(toml_error(file, &error)));
            }
            // Without the value, the next fault comes to light.
            let at = error.span().filter(|at| !at.is_empty());
            let key = at.and_then(|at| cut_out(root.get_mut(), &at));
            match key.filter(|_| cut.len() < 2 * FAULTS_MAX) {
                Some(key) => cut.push(key),
                None => {
                    faults.result()?;
                    return Err(toml_error(file, &error));
                }
            }
        }
    }

    /// The line of the value at this path, or of the innermost value around it. A path has names and indexes.
    pub(crate) fn line(&self, path: &[&str]) -> u32 {
        let line = self.starts.partition_point(|start| *start <= self.offset(path));
        u32::try_from(line).unwrap_or(u32::MAX)
    }

    fn offset(&self, path: &[&str]) -> usize {
        offset_in_table(self.root.get_ref(), path).unwrap_or(0)
    }

    pub(crate) fn at(&self, path: &[&str]) -> Location {
        Location::in_file(self.file, self.offset(path))
    }

    /// The error that the value at this path is invalid.
    pub(crate) fn invalid(&self, path: &[&str], message: impl Into<String>) -> PolicyError {
        PolicyError::invalid(self.at(path), message)
    }
}

fn offset_in_table(table: &DeTable<'_>, path: &[&str]) -> Option<usize> {
    let (name, rest) = path.split_first()?;
    let (key, value) = table.get_key_value(*name)?;
    Some(offset_in_value(value.get_ref(), rest).unwrap_or(key.span().start))
}

/// Removes the innermost value that contains this part of the text. Returns its key, which is empty for an item of a list.
fn cut_out(table: &mut DeTable<'_>, at: &Range<usize>) -> Option<String> {
    if let Some(cut) = table.iter_mut().find_map(|(_, value)| cut_inside(value.get_mut(), at)) {
        return Some(cut);
    }
    let found = table.iter().find(|(key, value)| covers(&key.span(), at) || covers(&value.span(), at));
    let key = found.map(|(key, _)| key.get_ref().to_string())?;
    table.remove(key.as_str()).map(|_| key)
}

fn cut_inside(value: &mut DeValue<'_>, at: &Range<usize>) -> Option<String> {
    if let DeValue::Table(table) = value {
        return cut_out(table, at);
    }
    let DeValue::Array(items) = value else {
        return None;
    };
    if let Some(cut) = items.iter_mut().find_map(|item| cut_inside(item.get_mut(), at)) {
        return Some(cut);
    }
    let before = items.len();
    let kept = items.iter().filter(|item| !covers(&item.span(), at)).cloned();
    *items = kept.collect();
    (items.len() < before).then(String::new)
}

fn covers(span: &Range<usize>, at: &Range<usize>) -> bool {
    span.start <= at.start && at.end <= span.end
}

fn offset_in_value(value: &DeValue<'_>, path: &[&str]) -> Option<usize> {
    match (value, path.split_first()?) {
        (DeValue::Table(table), _) => offset_in_table(table, path),
        (DeValue::Array(items), (index, rest)) => {
            let item = items.get(index.parse::<usize>().ok()?)?;
            Some(offset_in_value(item.get_ref(), rest).unwrap_or(item.span().start))
        }
        _ => None,
    }
}

/// A TOML error with its place.
pub(crate) fn toml_error(file: &SourceFile, error: &toml::de::Error) -> PolicyError {
    let offset = error.span().map_or(0, |span| span.start);
    PolicyError::Syntax { at: Location::in_file(file, offset), message: error.message().trim().to_owned() }
}
