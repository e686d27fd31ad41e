//! Every message between the runtime, a zygote and a child.
//!
//! The runtime and its zygote trust each other; neither trusts a child. A child's frames are read by their header, and the
//! length in it is checked against the bound of the call before a byte is kept.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::call::{Denial, DenialSource, Narrowing};
use crate::confine::profile::{Ceilings, ChildNamespace, TreeEntry};
use crate::drill::Drill;
use crate::limits::{DENIAL_TEXT_BYTES_MAX, DENIALS_NAMED_MAX, PIECE_BYTES_MAX};
use crate::sys::process::Ended;
use crate::sys::seccomp::Program;
use crate::view::Mount;

/// The first argument that turns a program into a zygote.
pub const ZYGOTE_ARGUMENT: &str = "__zygote";

/// Exit codes of a child's own signal handlers. A child that lies with them can only claim another failure.
pub(crate) const EXIT_CPU_LIMIT: i32 = 241;
pub(crate) const EXIT_FILE_LIMIT: i32 = 242;
pub(crate) const EXIT_MEMORY_LIMIT: i32 = 243;
pub(crate) const EXIT_ABORTED: i32 = 244;

/// The first message to a zygote: all it will ever know.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Boot {
    /// The path of the space's root, for messages. The root itself is a descriptor in the same message.
    pub(crate) space_root: PathBuf,
    pub(crate) identity: Identity,
    pub(crate) tree: Vec<TreeEntry>,
    pub(crate) proc: bool,
    pub(crate) child_namespaces: Vec<ChildNamespace>,
    pub(crate) base_filter: Program,
    pub(crate) narrow_filter: Program,
    pub(crate) ceilings: Ceilings,
    /// The mounts of the call's view; with a view, the workspace is read-only.
    pub(crate) view: Option<Vec<Mount>>,
}

/// The user that the zygote becomes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(crate) struct Identity {
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    /// The owner on disk, if that is another user: the mount then translates owners.
    pub(crate) stands_in_for: Option<(u32, u32)>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) enum Booted {
    /// The zygote is confined and can fork children.
    Ready,
    /// The zygote could not confine itself, and has ended.
    Failed(SetupFailure),
}

/// A step of confinement that the kernel refused.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct SetupFailure {
    pub(crate) step: Step,
    pub(crate) errno: i32,
    pub(crate) detail: String,
}

/// The steps of confinement, in their order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Step {
    Start,
    Workspace,
    View,
    OwnerMapping,
    Identity,
    Namespaces,
    UserMapping,
    Tree,
    Proc,
    Capabilities,
    BaseFilter,
    ChildStart,
    ChildUserMapping,
    ChildMounts,
    ChildLimits,
    Landlock,
    NarrowFilter,
    Narrowing,
}

/// Largest message on the control socket.
pub(crate) const CONTROL_BYTES_MAX: usize = 128 * 1024;
/// Most children that one message asks the zygote for: the number is one byte.
pub(crate) const FORKS_MAX: usize = u8::MAX as usize;
/// A new child; the message carries its channel, its process handle and its status pipe.
pub(crate) const CONTROL_CHILD: u8 = b'C';
/// A child could not be forked; the errno follows.
pub(crate) const CONTROL_NO_CHILD: u8 = b'N';

/// The length of the header of every frame on a child's channel.
pub(crate) const HEADER_BYTES: usize = 12;
const MAGIC: u32 = 0x6566_6378;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// From a child: confined and waiting. The frame carries the listener of its filter.
    Ready = 1,
    /// From a child: it could not confine itself.
    Unconfined = 2,
    /// From the runtime: the one request.
    Request = 3,
    /// From a child: the one answer.
    Reply = 4,
    /// From a child: the tool's code panicked.
    Panicked = 5,
    /// In both directions: a piece of a stream; see [`crate::side_channel`].
    Piece = 6,
}

const KINDS: [Kind; 6] =
    [Kind::Ready, Kind::Unconfined, Kind::Request, Kind::Reply, Kind::Panicked, Kind::Piece];

pub(crate) fn header(kind: Kind, length: usize) -> [u8; HEADER_BYTES] {
    let mut bytes = [0; HEADER_BYTES];
    bytes[..4].copy_from_slice(&MAGIC.to_le_bytes());
    bytes[4..8].copy_from_slice(&(kind as u32).to_le_bytes());
    bytes[8..].copy_from_slice(&u32::try_from(length).unwrap_or(u32::MAX).to_le_bytes());
    bytes
}

/// Reads a header; `None` if it is not one.
pub(crate) fn parse_header(bytes: &[u8; HEADER_BYTES]) -> Option<(Kind, usize)> {
    let word = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
    let kind = KINDS.into_iter().find(|kind| *kind as u32 == word(4));
    kind.filter(|_| word(0) == MAGIC).map(|kind| (kind, word(8) as usize))
}

/// The header of a piece, and the number of its stream.
pub(crate) fn piece_head(stream: u8, length: usize) -> [u8; HEADER_BYTES + 1] {
    let mut bytes = [stream; HEADER_BYTES + 1];
    bytes[..HEADER_BYTES].copy_from_slice(&header(Kind::Piece, 1 + length));
    bytes
}

/// A content in chunks no larger than a piece; an empty content is one empty chunk.
pub(crate) fn chunks(bytes: &[u8]) -> impl Iterator<Item = &[u8]> {
    let empty = bytes.is_empty().then_some(bytes);
    empty.into_iter().chain(bytes.chunks(PIECE_BYTES_MAX))
}

/// A whole frame of two parts, in one buffer: the receiver wakes once.
pub(crate) fn frame(kind: Kind, first: &[u8], second: &[u8]) -> Vec<u8> {
    let length = 4 + first.len() + second.len();
    let mut bytes = Vec::with_capacity(HEADER_BYTES + length);
    bytes.extend_from_slice(&header(kind, length));
    bytes.extend_from_slice(&(first.len() as u32).to_le_bytes());
    bytes.extend_from_slice(first);
    bytes.extend_from_slice(second);
    bytes
}

/// The two parts of a payload that [`frame`] joined; `None` if the length is wrong.
pub(crate) fn split(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (length, rest) = bytes.split_first_chunk::<4>()?;
    rest.split_at_checked(u32::from_le_bytes(*length) as usize)
}

/// What the runtime tells a child with the request.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Orders {
    pub(crate) ceilings: Ceilings,
    pub(crate) narrowing: Narrowing,
    pub(crate) timeout_ms: u64,
    /// Whether each process has its own memory limit, because there is no cgroup.
    pub(crate) memory_by_process: bool,
    /// Whether a cgroup counts the processes; the limit on the user's processes is then only a backstop.
    pub(crate) processes_by_cgroup: bool,
    /// An attack to try instead of the request, when `doctor` examines the sandbox.
    pub(crate) drill: Option<Drill>,
}

/// Reads the payload of a request; `None` if it is not one.
pub(crate) fn unpack_request(payload: &[u8]) -> Option<(Orders, Vec<u8>)> {
    let (orders, request) = split(payload)?;
    Some((serde_json::from_slice(orders).ok()?, request.to_vec()))
}

/// Room in a reply for the child's own list of refused paths.
pub(crate) const NOTES_BYTES_MAX: usize = DENIALS_NAMED_MAX * (DENIAL_TEXT_BYTES_MAX * 6 + 128) + 64;

/// Reads the first part of a reply: the paths that the child says it was refused. `None` if it cannot be parsed.
pub(crate) fn unpack_notes(notes: &[u8]) -> Option<Vec<Denial>> {
    let mut denials: Vec<Denial> = serde_json::from_slice(notes).ok()?;
    denials.truncate(DENIALS_NAMED_MAX);
    for denial in &mut denials {
        // A child cannot claim that the kernel reported a denial.
        denial.source = DenialSource::Child;
    }
    Some(denials)
}

/// Reads why a child could not confine itself; `None` if it does not say.
pub(crate) fn unpack_failure(payload: &[u8]) -> Option<SetupFailure> {
    serde_json::from_slice(split(payload)?.0).ok()
}

pub(crate) const ENDED_BYTES: usize = 40;

/// The zygote's report about a reaped child.
pub(crate) fn pack_ended(ended: &Ended) -> [u8; ENDED_BYTES] {
    let mut bytes = [0; ENDED_BYTES];
    bytes[..4].copy_from_slice(&ended.pid.to_le_bytes());
    bytes[4..8].copy_from_slice(&ended.status.to_le_bytes());
    let words = [ended.user_us, ended.system_us, ended.resident_max_kib, ended.blocks_written];
    for (slot, word) in bytes[8..].chunks_exact_mut(8).zip(words) {
        slot.copy_from_slice(&word.to_le_bytes());
    }
    bytes
}

pub(crate) fn unpack_ended(bytes: &[u8; ENDED_BYTES]) -> Ended {
    let word = |at: usize| {
        let mut word = [0; 8];
        word.copy_from_slice(&bytes[at..at + 8]);
        u64::from_le_bytes(word)
    };
    let half = |at: usize| i32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
    Ended {
        pid: half(0),
        status: half(4),
        user_us: word(8),
        system_us: word(16),
        resident_max_kib: word(24),
        blocks_written: word(32),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reports_and_headers_read_back() {
        let ended = Ended {
            pid: 7,
            status: 9,
            user_us: 1,
            system_us: 2,
            resident_max_kib: 3,
            blocks_written: u64::MAX,
        };
        assert_eq!(unpack_ended(&pack_ended(&ended)), ended);
        for kind in KINDS {
            assert_eq!(parse_header(&header(kind, 77)), Some((kind, 77)));
        }
        assert_eq!(parse_header(&[0; HEADER_BYTES]), None);
    }

    #[test]
    fn a_lying_length_is_noticed() {
        let whole = frame(Kind::Reply, b"{}", b"abc");
        assert_eq!(split(&whole[HEADER_BYTES..]), Some((&b"{}"[..], &b"abc"[..])));
        assert_eq!(split(&[255, 255, 255, 255, 1]), None);
        assert_eq!(split(&[1]), None);
    }
}
