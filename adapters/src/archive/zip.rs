//! The format `.zip`, without the features by which one archive could mean two things.
//!
//! The directory at the end lists the members, and each member's local header must agree with it. Overlapping members, by
//! which a small archive can contain a huge file many times, are refused; so are encryption, several volumes, and methods
//! other than stored and deflated. Zip64 is refused, because no archive that large is accepted here.

use std::io::{self, Read, Seek, SeekFrom, Write};

use crc32fast::Hasher;
use flate2::Compression;
use flate2::read::DeflateDecoder;
use flate2::write::DeflateEncoder;

use super::{Budget, Counted, Member, Problem, Visit, changed};
use crate::limits::PATH_BYTES_MAX;

const LOCAL: u32 = 0x0403_4b50;
const CENTRAL: u32 = 0x0201_4b50;
const END: u32 = 0x0605_4b50;
const DESCRIPTOR: u32 = 0x0807_4b50;
const END_BYTES: usize = 22;
const CENTRAL_BYTES: usize = 46;
const LOCAL_BYTES: usize = 30;
/// The longest comment after the end record.
const COMMENT_MAX: usize = 65_535;
const ENCRYPTED: u16 = 1;
/// The flag of a member whose lengths and checksum follow its content.
const LENGTHS_LATER: u16 = 1 << 3;
const UTF8: u16 = 1 << 11;
const STORED: u16 = 0;
const DEFLATED: u16 = 8;
const UNIX: u8 = 3;
/// The first of January 1980, midnight: the earliest time that the format has.
const NO_TIME: [u16; 2] = [0, 0x21];

struct Fields<'b>(&'b [u8]);

impl<'b> Fields<'b> {
    fn bytes(&mut self, count: usize) -> Result<&'b [u8], Problem> {
        let (bytes, rest) = self.0.split_at_checked(count).ok_or(CUT_OFF)?;
        self.0 = rest;
        Ok(bytes)
    }

    fn u16(&mut self) -> Result<u16, Problem> {
        let bytes = self.bytes(2)?;
        Ok(u16::from_le_bytes([bytes[0], bytes[1]]))
    }

    fn u32(&mut self) -> Result<u32, Problem> {
        Ok(u32::from(self.u16()?) | u32::from(self.u16()?) << 16)
    }
}

const ZIP64: &str = "it is a ZIP64 archive";
const CUT_OFF: Problem = Problem::Damaged("its directory is truncated");

/// A member in the directory at the end.
struct Listed {
    flags: u16,
    method: u16,
    checksum: u32,
    packed: u32,
    bytes: u32,
    at: u32,
    name: Vec<u8>,
    made_by: u8,
    mode: u32,
}

/// The end record: where the directory is, and how many members it has.
struct End {
    at: u64,
    bytes: u32,
    members: u16,
}

pub(super) fn read(
    mut source: impl Read + Seek,
    budget: &Budget,
    visit: &mut Visit<'_>,
) -> Result<(), Problem> {
    let end = find_end(&mut source)?;
    Budget::check_entries(usize::from(end.members))?;
    let mut directory = Vec::new();
    source.seek(SeekFrom::Start(end.at)).map_err(Problem::reading)?;
    // The most bytes that the directory entries of these members can have.
    let most = (usize::from(end.members) + 1) * (CENTRAL_BYTES + 3 * COMMENT_MAX);
    if end.bytes as usize > most {
        return Err(Problem::Damaged("its directory is longer than what it lists"));
    }
    let mut listing = source.by_ref().take(u64::from(end.bytes));
    listing.read_to_end(&mut directory).map_err(Problem::reading)?;
    let mut fields = Fields(&directory);
    let mut listed = Vec::new();
    for _ in 0..end.members {
        listed.push(list(&mut fields)?);
    }
    if !fields.0.is_empty() || directory.len() != end.bytes as usize {
        return Err(Problem::Damaged("the length of its directory is wrong"));
    }
    check_places(&mut source, &listed, end.at)?;
    for one in &listed {
        budget.entry()?;
        member(&mut source, one, budget, visit).map_err(|problem| budget.judge(problem))?;
    }
    Ok(())
}

/// Finds the end record: only its comment follows it.
fn find_end(source: &mut (impl Read + Seek)) -> Result<End, Problem> {
    let length = source.seek(SeekFrom::End(0)).map_err(Problem::reading)?;
    let tail = length.min((END_BYTES + COMMENT_MAX) as u64);
    source.seek(SeekFrom::Start(length - tail)).map_err(Problem::reading)?;
    let mut bytes = Vec::new();
    let mut end = source.by_ref().take(tail);
    end.read_to_end(&mut bytes).map_err(Problem::reading)?;
    let last = bytes.len().checked_sub(END_BYTES).ok_or(CUT_OFF)?;
    let is_end = |at: &usize| {
        let comment = bytes.len() - at - END_BYTES;
        bytes[*at..].starts_with(&END.to_le_bytes())
            && bytes[at + 20..at + 22] == u16::try_from(comment).unwrap_or(u16::MAX).to_le_bytes()
    };
    let at = (0..=last).rev().find(is_end).ok_or(Problem::Damaged("it has no end record"))?;
    let mut fields = Fields(&bytes[at + 4..]);
    let (disk, first_disk) = (fields.u16()?, fields.u16()?);
    let (here, members) = (fields.u16()?, fields.u16()?);
    let (directory_bytes, directory_at) = (fields.u32()?, fields.u32()?);
    if disk != 0 || first_disk != 0 || here != members {
        return Err(Problem::Refused("one volume of a split archive"));
    }
    if members == u16::MAX || directory_at == u32::MAX {
        return Err(Problem::TooMuch(ZIP64.to_owned()));
    }
    let stands_at = length - tail + at as u64;
    if u64::from(directory_at) + u64::from(directory_bytes) != stands_at {
        return Err(Problem::Damaged("its directory is not where it says"));
    }
    Ok(End { at: u64::from(directory_at), bytes: directory_bytes, members })
}

fn list(fields: &mut Fields<'_>) -> Result<Listed, Problem> {
    if fields.u32()? != CENTRAL {
        return Err(Problem::Damaged("its directory has an invalid entry"));
    }
    let made_by = fields.u16()?.to_be_bytes()[0];
    fields.u16()?;
    let (flags, method) = (fields.u16()?, fields.u16()?);
    fields.u32()?;
    let (checksum, packed, bytes) = (fields.u32()?, fields.u32()?, fields.u32()?);
    let lengths = [fields.u16()?, fields.u16()?, fields.u16()?].map(usize::from);
    let (disk, _) = (fields.u16()?, fields.u16()?);
    let (attributes, at) = (fields.u32()?, fields.u32()?);
    let name = fields.bytes(lengths[0])?.to_vec();
    fields.bytes(lengths[1] + lengths[2])?;
    if disk != 0 {
        return Err(Problem::Refused("one volume of a split archive"));
    }
    if flags & ENCRYPTED != 0 {
        return Err(Problem::Refused("an encrypted member"));
    }
    if ![STORED, DEFLATED].contains(&method) {
        return Err(Problem::Refused("a member with an unsupported compression"));
    }
    if [packed, bytes, at].contains(&u32::MAX) {
        return Err(Problem::TooMuch(ZIP64.to_owned()));
    }
    Ok(Listed { flags, method, checksum, packed, bytes, at, name, made_by, mode: attributes >> 16 })
}

/// Checks that no members overlap, with each other or with the directory.
fn check_places(
    source: &mut (impl Read + Seek),
    listed: &[Listed],
    directory_at: u64,
) -> Result<(), Problem> {
    let mut places = Vec::with_capacity(listed.len());
    for one in listed {
        let begin = content_at(source, one)?;
        places.push((u64::from(one.at), begin + u64::from(one.packed)));
    }
    places.sort_unstable();
    let overlap = places.windows(2).any(|two| two[0].1 > two[1].0);
    if overlap || places.last().is_some_and(|(_, end)| *end > directory_at) {
        return Err(Problem::Damaged("its members overlap, like in a decompression bomb"));
    }
    Ok(())
}

/// The offset of a member's content, by its local header, which must agree with the directory.
fn content_at(source: &mut (impl Read + Seek), listed: &Listed) -> Result<u64, Problem> {
    let mut head = [0; LOCAL_BYTES];
    source.seek(SeekFrom::Start(u64::from(listed.at))).map_err(Problem::reading)?;
    source.read_exact(&mut head).map_err(Problem::reading)?;
    let mut fields = Fields(&head);
    let signature = fields.u32()?;
    fields.u16()?;
    let (flags, method) = (fields.u16()?, fields.u16()?);
    fields.u32()?;
    let said = [fields.u32()?, fields.u32()?, fields.u32()?];
    let (name_bytes, extra_bytes) = (fields.u16()?, fields.u16()?);
    let mut name = vec![0; usize::from(name_bytes)];
    source.read_exact(&mut name).map_err(Problem::reading)?;
    if signature != LOCAL
        || name != listed.name
        || method != listed.method
        || flags & (ENCRYPTED | UTF8) != listed.flags & (ENCRYPTED | UTF8)
        || (said != [listed.checksum, listed.packed, listed.bytes]
            && (flags & LENGTHS_LATER == 0 || said != [0; 3]))
    {
        return Err(Problem::Damaged("a member does not match its directory entry"));
    }
    Ok(u64::from(listed.at) + (LOCAL_BYTES + name.len()) as u64 + u64::from(extra_bytes))
}

fn member(
    source: &mut (impl Read + Seek),
    listed: &Listed,
    budget: &Budget,
    visit: &mut Visit<'_>,
) -> Result<(), Problem> {
    let member = described(listed)?;
    let begin = content_at(source, listed)?;
    source.seek(SeekFrom::Start(begin)).map_err(Problem::reading)?;
    let packed = source.take(u64::from(listed.packed));
    let unpacked: Box<dyn Read + '_> = match listed.method {
        STORED => Box::new(packed),
        _ => Box::new(DeflateDecoder::new(packed)),
    };
    let mut content =
        Checked { from: Counted { from: unpacked, budget }, hasher: Hasher::new(), bytes: 0, listed };
    visit(&member, &mut content)?;
    // The part that the visitor does not read is checked, too.
    super::drain(&mut content, |_| Ok(())).map(drop)
}

fn described(listed: &Listed) -> Result<Member, Problem> {
    if listed.name.len() > PATH_BYTES_MAX {
        return Err(Problem::Refused("a name that is too long"));
    }
    let name = String::from_utf8(listed.name.clone());
    let name = name.map_err(|_| Problem::Refused("a name that is not UTF-8"))?;
    if listed.flags & UTF8 == 0 && !name.is_ascii() {
        return Err(Problem::Refused("a name that is not marked as UTF-8"));
    }
    let mut is_folder = name.ends_with('/');
    let mut is_program = false;
    if listed.made_by == UNIX {
        is_program = listed.mode & 0o100 != 0;
        match listed.mode & 0o170_000 {
            0 | 0o100_000 => {}
            0o040_000 => is_folder = true,
            0o120_000 => return Err(Problem::Refused("a link")),
            _ => return Err(Problem::Refused("a device or a pipe")),
        }
    }
    if is_folder && listed.bytes > 0 {
        return Err(Problem::Damaged("a folder has content"));
    }
    Ok(Member { name, is_folder, is_program })
}

/// A content that must have the length and the checksum in the directory.
struct Checked<'l, R> {
    from: R,
    hasher: Hasher,
    bytes: u64,
    listed: &'l Listed,
}

impl<R: Read> Read for Checked<'_, R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let count = self.from.read(into)?;
        self.hasher.update(&into[..count]);
        self.bytes += count as u64;
        let wrong = self.bytes > u64::from(self.listed.bytes)
            || (count == 0
                && !into.is_empty()
                && (self.bytes != u64::from(self.listed.bytes)
                    || self.hasher.clone().finalize() != self.listed.checksum));
        if wrong {
            return Err(io::Error::from(io::ErrorKind::InvalidData));
        }
        Ok(count)
    }
}

/// Writes a zip in one pass.
pub(crate) struct Writer<W: Write> {
    into: W,
    at: u64,
    directory: Vec<u8>,
    members: u16,
}

impl<W: Write> Writer<W> {
    pub(super) fn new(into: W) -> Self {
        Self { into, at: 0, directory: Vec::new(), members: 0 }
    }

    fn put(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.at += bytes.len() as u64;
        self.into.write_all(bytes)
    }

    pub(super) fn add(&mut self, member: &Member, bytes: u64, content: &mut dyn Read) -> io::Result<()> {
        let too_large = || io::Error::from(io::ErrorKind::FileTooLarge);
        let at = u32::try_from(self.at).map_err(|_| too_large())?;
        let members = self.members.checked_add(1).filter(|count| *count < u16::MAX);
        self.members = members.ok_or_else(too_large)?;
        let name = match member.is_folder {
            true => format!("{}/", member.name.trim_end_matches('/')),
            false => member.name.clone(),
        };
        let name_bytes = u16::try_from(name.len()).map_err(|_| too_large())?;
        let (method, flags) =
            if member.is_folder { (STORED, UTF8) } else { (DEFLATED, UTF8 | LENGTHS_LATER) };
        let mut head = Vec::with_capacity(LOCAL_BYTES + name.len());
        head.extend(LOCAL.to_le_bytes());
        put_u16s(&mut head, &[20, flags, method, NO_TIME[0], NO_TIME[1]]);
        put_u32s(&mut head, &[0, 0, 0]);
        put_u16s(&mut head, &[name_bytes, 0]);
        head.extend(name.as_bytes());
        self.put(&head)?;
        let (mut checksum, mut packed, mut length) = (0, 0, 0);
        if !member.is_folder {
            let begin = self.at;
            (checksum, length) = self.deflate(content)?;
            if length != bytes {
                return Err(changed());
            }
            packed = self.at - begin;
        }
        let [packed, length] = [packed, length].map(|size| u32::try_from(size).map_err(|_| too_large()));
        let sizes = [checksum, packed?, length?];
        if !member.is_folder {
            let mut behind = DESCRIPTOR.to_le_bytes().to_vec();
            put_u32s(&mut behind, &sizes);
            self.put(&behind)?;
        }
        let mode: u32 = match (member.is_folder, member.is_program) {
            (true, _) => 0o040_755,
            (false, true) => 0o100_755,
            (false, false) => 0o100_644,
        };
        self.directory.extend(CENTRAL.to_le_bytes());
        let made_by = u16::from(UNIX) << 8 | 20;
        put_u16s(&mut self.directory, &[made_by, 20, flags, method, NO_TIME[0], NO_TIME[1]]);
        put_u32s(&mut self.directory, &sizes);
        put_u16s(&mut self.directory, &[name_bytes, 0, 0, 0, 0]);
        put_u32s(&mut self.directory, &[mode << 16, at]);
        self.directory.extend(name.as_bytes());
        Ok(())
    }

    /// Compresses a content; returns its checksum and length.
    fn deflate(&mut self, content: &mut dyn Read) -> io::Result<(u32, u64)> {
        let mut encoder = DeflateEncoder::new(Vec::new(), Compression::default());
        let (mut hasher, mut length, mut piece) = (Hasher::new(), 0, vec![0; 65_536]);
        loop {
            let count = content.read(&mut piece)?;
            if count == 0 {
                break;
            }
            hasher.update(&piece[..count]);
            length += count as u64;
            encoder.write_all(&piece[..count])?;
            let ready = std::mem::take(encoder.get_mut());
            self.put(&ready)?;
        }
        let rest = encoder.finish()?;
        self.put(&rest)?;
        Ok((hasher.finalize(), length))
    }

    pub(super) fn finish(mut self) -> io::Result<W> {
        let too_large = |_| io::Error::from(io::ErrorKind::FileTooLarge);
        let at = u32::try_from(self.at).map_err(too_large)?;
        let bytes = u32::try_from(self.directory.len()).map_err(too_large)?;
        let mut end = std::mem::take(&mut self.directory);
        end.extend(END.to_le_bytes());
        put_u16s(&mut end, &[0, 0, self.members, self.members]);
        put_u32s(&mut end, &[bytes, at]);
        put_u16s(&mut end, &[0]);
        self.put(&end)?;
        self.into.flush()?;
        Ok(self.into)
    }
}

fn put_u16s(into: &mut Vec<u8>, numbers: &[u16]) {
    into.extend(numbers.iter().flat_map(|number| number.to_le_bytes()));
}

fn put_u32s(into: &mut Vec<u8>, numbers: &[u32]) {
    into.extend(numbers.iter().flat_map(|number| number.to_le_bytes()));
}
