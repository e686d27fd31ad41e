//! Archives as the tools take and make them: `.tar.gz` and `.zip`, read with bounds on everything, written alike for alike.
//!
//! Whoever reads an archive reads what a stranger has written. So names are handed on as they are and judged by whoever
//! wants to make a path of them; links, devices and whatever else is neither a file nor a folder end the reading; and what
//! comes out is counted as it comes, not as the archive says.

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

/// The kinds of archives.
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
            // An empty archive has nothing but its end.
            [b'P', b'K', 3, 4] | [b'P', b'K', 5, 6] => Some(Format::Zip),
            _ => None,
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Member {
    /// Its name, as it stands there: nobody has looked whether it is a path.
    pub(crate) name: String,
    pub(crate) is_folder: bool,
    pub(crate) is_program: bool,
}

#[derive(Debug)]
pub(crate) enum Problem {
    /// It is not what its beginning says.
    Damaged(&'static str),
    /// It has something in it that is not unpacked.
    Refused(&'static str),
    /// It holds more than is unpacked.
    TooMuch(String),
    /// The file system said no, or whoever takes what is in it.
    Other(Failure),
}

impl Problem {
    /// An error of reading: the source is a file that was just opened, so it is the archive's fault.
    fn reading(_: io::Error) -> Self {
        Problem::Damaged("it is cut off, or its content does not decompress")
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
            Problem::Refused(why) => (
                Code::PathDenied,
                format!("the archive holds {why}, so that nothing of it is unpacked"),
            ),
            Problem::TooMuch(why) => (Code::FileLimit, format!("the archive is refused: {why}")),
            Problem::Other(failure) => return failure,
        };
        Failure::new(code, Phase::Dispatch, why)
    }
}

/// Who is shown what is in an archive, one after another. What it does not read is skipped.
pub(crate) type Visit<'v> = dyn FnMut(&Member, &mut dyn Read) -> Result<(), Problem> + 'v;

/// Reads an archive of any kind, by its content. The first problem ends it.
pub(crate) fn read(
    mut source: impl Read + Seek,
    budget: &Budget,
    visit: &mut Visit<'_>,
) -> Result<(), Problem> {
    let mut head = [0; 4];
    let begins = source.read_exact(&mut head).and_then(|()| source.rewind());
    begins.map_err(Problem::reading)?;
    match Format::of_bytes(&head) {
        Some(Format::TarGz) => tarball::read(source, budget, visit),
        Some(Format::Zip) => zip::read(source, budget, visit),
        None => Err(Problem::Damaged("it is neither a .tar.gz nor a .zip")),
    }
}

/// Reads all of one member; an error of the archive comes before one of whoever takes the bytes.
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

/// An archive that is being written. The same members in the same order give the same bytes: it tells neither times nor
/// owners.
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

    /// Adds a member of this length. A source that has another length meanwhile is an error.
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

/// A file that changes its length while it is archived.
fn changed() -> io::Error {
    io::Error::new(
        io::ErrorKind::InvalidData,
        "the file has changed while it was read",
    )
}

/// A small archive for the tests of all tools: a file, and one in a folder.
#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "it is written to memory")]
pub(crate) fn sample() -> Vec<u8> {
    let mut writer = Writer::new(Format::Zip, Vec::new());
    for name in ["inside", "deep/er/inside"] {
        let member = Member {
            name: name.to_owned(),
            is_folder: false,
            is_program: false,
        };
        writer.add(&member, 6, &mut &b"inside"[..]).unwrap();
    }
    writer.finish().unwrap()
}

#[cfg(test)]
mod tests;
