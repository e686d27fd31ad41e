//! The format `.tar.gz`.

use std::io::{self, Read, Seek, Write};

use flate2::Compression;
use flate2::read::MultiGzDecoder;
use flate2::write::GzEncoder;
use tar::{EntryType, Header};

use super::{Budget, Counted, Member, Problem, Visit, changed};

/// Reads a compressed tar. All decompressed bytes count, also those that are skipped.
pub(super) fn read(source: impl Read + Seek, budget: &Budget, visit: &mut Visit<'_>) -> Result<(), Problem> {
    let counted = Counted { from: MultiGzDecoder::new(source), budget };
    members(counted, budget, visit).map_err(|problem| budget.judge(problem))
}

fn members(from: impl Read, budget: &Budget, visit: &mut Visit<'_>) -> Result<(), Problem> {
    let mut archive = tar::Archive::new(from);
    for entry in archive.entries().map_err(Problem::reading)? {
        let mut entry = entry.map_err(Problem::reading)?;
        let kind = entry.header().entry_type();
        // A header for all following members; nothing in it is used.
        if kind == EntryType::XGlobalHeader {
            continue;
        }
        budget.entry()?;
        if kind.is_hard_link() || kind.is_symlink() {
            return Err(Problem::Refused("a link"));
        }
        if kind.is_character_special() || kind.is_block_special() || kind.is_fifo() {
            return Err(Problem::Refused("a device or a pipe"));
        }
        if !kind.is_file() && !kind.is_contiguous() && !kind.is_dir() {
            return Err(Problem::Refused("something that is neither a file nor a folder"));
        }
        if has_holes(&mut entry)? {
            return Err(Problem::Refused("a file with holes"));
        }
        let is_folder = kind.is_dir();
        let name = entry.path_bytes().into_owned();
        let name = String::from_utf8(name).map_err(|_| Problem::Refused("a name that is not UTF-8"))?;
        let mode = entry.header().mode().map_err(Problem::reading)?;
        let member = Member { name, is_folder, is_program: mode & 0o100 != 0 };
        visit(&member, &mut entry)?;
    }
    // Read to the end, where the checksum is.
    let mut rest = archive.into_inner();
    super::drain(&mut rest, |_| Ok(())).map(drop)
}

/// Whether extended headers mark the member as sparse. Older tars mark it by the kind of the entry.
fn has_holes(entry: &mut tar::Entry<'_, impl Read>) -> Result<bool, Problem> {
    let Some(notes) = entry.pax_extensions().map_err(Problem::reading)? else {
        return Ok(false);
    };
    for note in notes {
        let note = note.map_err(Problem::reading)?;
        if note.key_bytes().starts_with(b"GNU.sparse") {
            return Ok(true);
        }
    }
    Ok(false)
}

pub(crate) struct Writer<W: Write>(tar::Builder<GzEncoder<W>>);

impl<W: Write> Writer<W> {
    pub(super) fn new(into: W) -> Self {
        Self(tar::Builder::new(GzEncoder::new(into, Compression::default())))
    }

    pub(super) fn add(&mut self, member: &Member, bytes: u64, content: &mut dyn Read) -> io::Result<()> {
        let mut header = Header::new_gnu();
        header.set_entry_type(if member.is_folder { EntryType::Directory } else { EntryType::Regular });
        let open = member.is_folder || member.is_program;
        header.set_mode(if open { 0o755 } else { 0o644 });
        header.set_size(bytes);
        header.set_mtime(0);
        let mut exactly = Exactly { from: content, left: bytes };
        self.0.append_data(&mut header, &member.name, &mut exactly)?;
        exactly.end()
    }

    pub(super) fn finish(self) -> io::Result<W> {
        self.0.into_inner()?.finish()
    }
}

/// A reader of exactly the length in the header: another length would shift everything after it.
struct Exactly<'r> {
    from: &'r mut dyn Read,
    left: u64,
}

impl Exactly<'_> {
    fn end(self) -> io::Result<()> {
        if self.left > 0 || self.from.read(&mut [0])? > 0 {
            return Err(changed());
        }
        Ok(())
    }
}

impl Read for Exactly<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let count = self.from.take(self.left).read(into)?;
        if count == 0 && self.left > 0 && !into.is_empty() {
            return Err(changed());
        }
        self.left -= count as u64;
        Ok(count)
    }
}
