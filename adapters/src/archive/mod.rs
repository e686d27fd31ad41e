//! Archives, `.tar.gz` and `.zip`: read within a budget, and written reproducibly.
//!
//! An archive may be hostile. Names are passed on unchanged, and the caller checks them before it makes a path of one; a
//! link, a device or anything else that is neither a file nor a folder is an error; and bytes are counted as they come, not
//! as the archive declares them.

mod budget;
mod tarball;
mod zip;

use std::io::{self, Read, Seek, Write};

use effectd_contracts::{Code, Failure, Phase};
use schemars::JsonSchema;
use serde::Deserialize;

use crate::workspace::FileProblem;
pub(crate) use budget::Budget;
use budget::Counted;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
pub(crate) enum Format {
    #[serde(rename = "tar.gz")]
    TarGz,
    #[serde(rename = "zip")]
    Zip,
}

impl Format {
    pub(crate) fn of_name(name: &str) -> Option<Self> {
        let name = name.to_ascii_lowercase();
        if name.ends_with(".tar.gz") || name.ends_with(".tgz") {
            Some(Format::TarGz)
        } else if name.ends_with(".zip") {
            Some(Format::Zip)
        } else {
            None
        }
    }

    fn of_bytes(bytes: &[u8]) -> Option<Self> {
        match bytes {
            [0x1f, 0x8b, ..] => Some(Format::TarGz),
            // An empty archive has only its end record.
            [b'P', b'K', 3, 4] | [b'P', b'K', 5, 6] => Some(Format::Zip),
            _ => None,
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Member {
    /// The unchecked name in the archive.
    pub(crate) name: String,
    pub(crate) is_folder: bool,
    pub(crate) is_program: bool,
}

#[derive(Debug)]
pub(crate) enum Problem {
    /// It is not a valid archive.
    Damaged(&'static str),
    /// It contains something that is not unpacked.
    Refused(&'static str),
    /// It exceeds the budget.
    TooMuch(String),
    /// An error of the file system or of the visitor.
    Other(Failure),
}

impl Problem {
    /// An error while the archive is read: its source is an open file, so the archive is damaged.
    fn reading(_: io::Error) -> Self {
        Problem::Damaged("it is truncated, or its content does not decompress")
    }
}

impl From<Failure> for Problem {
    fn from(failure: Failure) -> Self {
        Problem::Other(failure)
    }
}

impl From<FileProblem> for Problem {
    fn from(problem: FileProblem) -> Self {
        Problem::Other(problem.into())
    }
}

impl From<Problem> for Failure {
    fn from(problem: Problem) -> Failure {
        let (code, why) = match problem {
            Problem::Damaged(why) => (Code::ArchiveInvalid, format!("the archive cannot be read: {why}")),
            Problem::Refused(why) => {
                (Code::PathDenied, format!("the archive holds {why}; nothing was unpacked"))
            }
            Problem::TooMuch(why) => (Code::FileLimit, format!("the archive is refused: {why}")),
            Problem::Other(failure) => return failure,
        };
        Failure::new(code, Phase::Dispatch, why)
    }
}

/// Called for each member, with its content. Content that it does not read is skipped.
pub(crate) type Visit<'v> = dyn FnMut(&Member, &mut dyn Read) -> Result<(), Problem> + 'v;

/// Reads an archive; its first bytes tell the format. The first problem ends it.
pub(crate) fn read(
    mut source: impl Read + Seek,
    budget: &Budget,
    visit: &mut Visit<'_>,
) -> Result<(), Problem> {
    let mut head = [0; 4];
    source.read_exact(&mut head).map_err(Problem::reading)?;
    source.rewind().map_err(Problem::reading)?;
    match Format::of_bytes(&head) {
        Some(Format::TarGz) => tarball::read(source, budget, visit),
        Some(Format::Zip) => zip::read(source, budget, visit),
        None => Err(Problem::Damaged("it is neither a .tar.gz nor a .zip")),
    }
}

/// Reads a whole member, and passes its bytes to `take`.
pub(crate) fn drain(
    content: &mut dyn Read,
    mut take: impl FnMut(&[u8]) -> Result<(), Problem>,
) -> Result<u64, Problem> {
    let mut piece = vec![0; 65_536];
    let mut bytes = 0;
    loop {
        match content.read(&mut piece).map_err(Problem::reading)? {
            0 => return Ok(bytes),
            count => {
                bytes += count as u64;
                take(&piece[..count])?;
            }
        }
    }
}

/// An archive that is being written. The same members in the same order give the same bytes: it has no times and owners.
pub(crate) enum Writer<W: Write> {
    TarGz(tarball::Writer<W>),
    Zip(zip::Writer<W>),
}

impl<W: Write> Writer<W> {
    pub(crate) fn new(format: Format, into: W) -> Self {
        match format {
            Format::TarGz => Writer::TarGz(tarball::Writer::new(into)),
            Format::Zip => Writer::Zip(zip::Writer::new(into)),
        }
    }

    /// Adds a member of this length. A source with another length is an error.
    pub(crate) fn add(&mut self, member: &Member, bytes: u64, content: &mut dyn Read) -> io::Result<()> {
        match self {
            Writer::TarGz(writer) => writer.add(member, bytes, content),
            Writer::Zip(writer) => writer.add(member, bytes, content),
        }
    }

    pub(crate) fn finish(self) -> io::Result<W> {
        match self {
            Writer::TarGz(writer) => writer.finish(),
            Writer::Zip(writer) => writer.finish(),
        }
    }
}

/// The error for a file whose length changed while it was read.
fn changed() -> io::Error {
    io::Error::from(io::ErrorKind::InvalidData)
}

#[cfg(test)]
pub(crate) mod tests;
