//! The text of a policy, before anyone has understood it, and the way from a value back to its line.

use effectd_contracts::Digest;
use sha2::{Digest as _, Sha256};
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use crate::error::{Location, PolicyError};

/// The name of the one file that every policy has.
pub const POLICY_FILE: &str = "policy.toml";

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SourceFile {
    /// Its name inside the directory.
    pub name: String,
    pub text: String,
}

/// All files of a policy: `policy.toml`, and the Cedar rules in order of their names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Source {
    /// `policy.toml`.
    pub policy: SourceFile,
    /// `*.cedar`, by name.
    pub rules: Vec<SourceFile>,
}

impl Source {
    /// A policy from texts at hand, for tests and embedders.
    pub fn new(policy_toml: impl Into<String>, rules: impl IntoIterator<Item = (String, String)>) -> Self {
        let policy = SourceFile {
            name: POLICY_FILE.to_owned(),
            text: policy_toml.into(),
        };
        let mut rules: Vec<_> = rules
            .into_iter()
            .map(|(name, text)| SourceFile { name, text })
            .collect();
        rules.sort_by(|a, b| a.name.cmp(&b.name));
        Self { policy, rules }
    }

    pub fn files(&self) -> impl Iterator<Item = &SourceFile> {
        std::iter::once(&self.policy).chain(&self.rules)
    }

    /// The digest of names and texts. Lengths go first, so that no two policies read alike.
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

/// The line of a byte offset, from one.
pub(crate) fn line_of(text: &str, offset: usize) -> u32 {
    let before = text
        .as_bytes()
        .iter()
        .take(offset)
        .filter(|byte| **byte == b'\n')
        .count();
    u32::try_from(before + 1).unwrap_or(u32::MAX)
}

/// One step on the way to a value in a TOML document.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Step<'a> {
    Name(&'a str),
    Index(usize),
}

/// Finds the line of any value of a TOML document.
pub(crate) struct Lines<'i> {
    file: &'i str,
    starts: Vec<usize>,
    root: Spanned<DeTable<'i>>,
}

impl<'i> Lines<'i> {
    pub(crate) fn parse(file: &'i SourceFile) -> Result<Self, PolicyError> {
        let root = DeTable::parse(&file.text).map_err(|error| toml_error(file, &error))?;
        let breaks = file.text.bytes().enumerate().filter(|(_, byte)| *byte == b'\n');
        let starts = std::iter::once(0).chain(breaks.map(|(at, _)| at + 1)).collect();
        Ok(Self {
            file: &file.name,
            starts,
            root,
        })
    }

    /// The line of the value at this path, or of the nearest thing around it.
    pub(crate) fn line(&self, path: &[Step<'_>]) -> u32 {
        let offset = offset_in_table(self.root.get_ref(), path).unwrap_or(0);
        let line = self.starts.partition_point(|start| *start <= offset);
        u32::try_from(line).unwrap_or(u32::MAX)
    }

    pub(crate) fn at(&self, path: &[Step<'_>]) -> Location {
        Location::new(self.file, self.line(path))
    }

    pub(crate) fn entry(&self, table: &str, name: &str) -> u32 {
        self.line(&[Step::Name(table), Step::Name(name)])
    }
}

fn offset_in_table(table: &DeTable<'_>, path: &[Step<'_>]) -> Option<usize> {
    let Some((Step::Name(name), rest)) = path.split_first() else {
        return None;
    };
    let (key, value) = table.get_key_value(*name)?;
    Some(offset_in_value(value.get_ref(), rest).unwrap_or(key.span().start))
}

fn offset_in_value(value: &DeValue<'_>, path: &[Step<'_>]) -> Option<usize> {
    match (path.split_first()?, value) {
        ((Step::Name(_), _), DeValue::Table(table)) => offset_in_table(table, path),
        ((Step::Index(index), rest), DeValue::Array(items)) => {
            let item = items.get(*index)?;
            Some(offset_in_value(item.get_ref(), rest).unwrap_or(item.span().start))
        }
        _ => None,
    }
}

/// A fault of TOML syntax or shape, with its line.
pub(crate) fn toml_error(file: &SourceFile, error: &toml::de::Error) -> PolicyError {
    let offset = error.span().map_or(0, |span| span.start);
    let at = Location::new(&file.name, line_of(&file.text, offset));
    PolicyError::Syntax {
        at,
        message: error.message().trim().to_owned(),
    }
}
