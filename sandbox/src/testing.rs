//! Helpers for tests, behind the feature `testing`: a host that cannot confine, the banned calls, and the wire for fuzzers.
#![expect(clippy::disallowed_types, reason = "prepares a program of a test")]
#![allow(
    unsafe_code,
    reason = "a filter has to be installed between fork and exec; the block states its argument"
)]

use std::os::unix::process::CommandExt;
use std::process::Command;

use effectd_contracts::SandboxProfile;

use crate::call::DenialSource;
use crate::confine::seccomp::{Verdict, compile};
use crate::confine::syscalls;
use crate::error::SandboxError;
use crate::host::outcome::Cause;
use crate::limits::{DENIALS_NAMED_MAX, OUTPUT_BYTES_MAX};
use crate::sys::seccomp;
use crate::wire::{
    Boot, Booted, ENDED_BYTES, HEADER_BYTES, Kind, NOTES_BYTES_MAX, frame, pack_ended, parse_header,
    piece_head, unpack_ended, unpack_failure, unpack_request,
};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Missing {
    /// The kernel was built without Landlock, or it is switched off.
    Landlock,
    /// Unprivileged user namespaces are forbidden.
    UserNamespaces,
}

/// Runs the command as on a kernel without the feature. The kernel itself refuses, through a filter that the command
/// inherits; nothing in effectd is switched off or replaced.
pub fn without(missing: Missing, command: &mut Command) -> &mut Command {
    let (refused, errno) = match missing {
        Missing::Landlock => (libc::SYS_landlock_create_ruleset, libc::ENOSYS),
        Missing::UserNamespaces => (libc::SYS_unshare, libc::EPERM),
    };
    let verdict = move |number: u32| match i64::from(number) == refused {
        true => Verdict::Errno(errno as u16),
        false => Verdict::Allow,
    };
    let program = compile(verdict, |_| Vec::new(), Verdict::Allow);
    let install = move || {
        nix::sys::prctl::set_no_new_privs()?;
        seccomp::install(&program)
    };
    // SAFETY: between fork and exec the closure makes two system calls and one small allocation. If another thread holds
    // the allocator's lock at the fork, the test hangs.
    unsafe { command.pre_exec(install) }
}

/// One system call that a profile bans, whatever its arguments.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Banned {
    pub name: String,
    pub number: u32,
    /// The errno, if the system call fails without being counted as a denial.
    pub quiet: Option<i32>,
}

pub fn banned(profile: SandboxProfile) -> Result<Vec<Banned>, SandboxError> {
    let banned = |(number, quiet): (u32, Option<u16>)| Banned {
        name: syscalls::name(number),
        number,
        quiet: quiet.map(i32::from),
    };
    Ok(crate::confine::profile::banned(profile)?.into_iter().map(banned).collect())
}

/// Reads arbitrary bytes as each side of the wire does: what a child sends to the runtime, what the runtime sends to a
/// child, and what runtime and zygote send to each other. It panics if it accepts what it should not, or if something
/// that it accepts does not survive being written and read again.
pub fn read_wire(bytes: &[u8]) {
    from_child(bytes);
    to_child(bytes);
    if let Some(report) = bytes.first_chunk::<ENDED_BYTES>() {
        assert_eq!(&pack_ended(&unpack_ended(report)), report);
    }
    if let Ok(boot) = serde_json::from_slice::<Boot>(bytes) {
        round_trip(&boot);
    }
    if let Ok(booted) = serde_json::from_slice::<Booted>(bytes) {
        round_trip(&booted);
    }
}

#[expect(
    clippy::expect_used,
    reason = "what was read from JSON can be written as JSON; if not, the fuzzer shall find it"
)]
fn round_trip<T: serde::Serialize + serde::de::DeserializeOwned>(what: &T) {
    let text = serde_json::to_vec(what).expect("writes");
    let back: T = serde_json::from_slice(&text).expect("reads back");
    assert_eq!(serde_json::to_vec(&back).expect("writes"), text);
}

fn from_child(bytes: &[u8]) {
    let Some((head, payload)) = bytes.split_first_chunk::<HEADER_BYTES>() else {
        return;
    };
    let Some((kind, length)) = parse_header(head) else {
        return;
    };
    let output_max = 1_024;
    let mut reported = Vec::new();
    // A length may lie: the reader then has only the bytes that came.
    let payload = &payload[..payload.len().min(length)];
    let cause = Cause::of_frame(kind, payload, output_max, &mut reported);
    assert!(reported.len() <= DENIALS_NAMED_MAX, "a child fills the list");
    assert!(
        reported.iter().all(|denial| denial.source == DenialSource::Child),
        "a child speaks for the kernel"
    );
    match cause {
        Cause::Replied(answer) => {
            assert!(kind == Kind::Reply && answer.len() <= output_max && answer.len() <= payload.len());
        }
        Cause::NotNarrowed(_) => assert!(unpack_failure(payload).is_some()),
        Cause::Panicked => assert_eq!(kind, Kind::Panicked),
        Cause::Garbage | Cause::OutputLimit => {}
        Cause::Denied { .. }
        | Cause::TimedOut
        | Cause::WroteTooMuch
        | Cause::CacheFull
        | Cause::DiskFull
        | Cause::Silent => {
            unreachable!("a frame of a child decides none of these")
        }
    }
    assert!(NOTES_BYTES_MAX < OUTPUT_BYTES_MAX as usize);
}

fn to_child(payload: &[u8]) {
    if let Some((orders, request)) = unpack_request(payload) {
        round_trip(&orders);
        let text = serde_json::to_vec(&orders).unwrap_or_default();
        let whole = frame(Kind::Request, &text, &request);
        let again = unpack_request(&whole[HEADER_BYTES..]).map(|(_, request)| request);
        assert_eq!(again, Some(request));
    }
}

/// Frames of every kind as they are really sent, for a fuzzer to begin with.
pub fn samples() -> Vec<Vec<u8>> {
    let notes = br#"[{"code":"path_denied","what":"x","count":1,"source":"child"}]"#;
    let failure = br#"{"step":"Landlock","errno":1,"detail":"x"}"#;
    let orders = br#"{"ceilings":{"cpu_ms":1,"memory_bytes":1,"processes":1,"open_files":1,"file_bytes":1,"written_bytes":1,"output_bytes":1,"tmp_bytes":1},"narrowing":{"readable":null,"writable":["a"],"tmp":true},"timeout_ms":5,"memory_by_process":false,"processes_by_cgroup":true,"drill":null}"#;
    vec![
        frame(Kind::Reply, notes, b"answer"),
        frame(Kind::Reply, b"[]", b""),
        frame(Kind::Unconfined, failure, b""),
        frame(Kind::Panicked, b"", b""),
        [&piece_head(1, 5)[..], b"piece"].concat(),
        frame(Kind::Request, orders, b"request"),
        frame(Kind::Request, orders, b"request")[HEADER_BYTES..].to_vec(),
        br#""Ready""#.to_vec(),
        [&b"{\"Failed\":"[..], failure, b"}"].concat(),
        vec![7; ENDED_BYTES],
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A short, deterministic run of the fuzz target: a small generator truncates, lengthens and splices samples, and
    /// changes some of their bytes.
    #[test]
    fn the_channel_survives_garbage_in_every_direction() {
        let samples = samples();
        for sample in &samples {
            read_wire(sample);
        }
        let mut state = 0x9E37_79B9_7F4A_7C15u64;
        let mut next = |below: usize| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state % below.max(1) as u64) as usize
        };
        for _ in 0..30_000 {
            let mut bytes = samples[next(samples.len())].clone();
            for _ in 0..next(6) {
                let at = next(bytes.len());
                match next(5) {
                    0 => bytes.truncate(at),
                    1 => bytes.extend_from_slice(&samples[next(samples.len())]),
                    2 if !bytes.is_empty() => bytes[at] = next(256) as u8,
                    3 if !bytes.is_empty() => bytes[at] ^= 1 << next(8),
                    _ => bytes.insert(at, b"{}[]\",:0n"[next(9)]),
                }
            }
            read_wire(&bytes);
        }
    }

    #[test]
    fn the_samples_are_understood() {
        let mut reported = Vec::new();
        let samples = samples();
        let reply = Cause::of_frame(Kind::Reply, &samples[0][HEADER_BYTES..], 100, &mut reported);
        assert_eq!((reply, reported.len()), (Cause::Replied(b"answer".to_vec()), 1));
        assert!(unpack_request(&samples[6]).is_some());
        assert!(unpack_failure(&samples[2][HEADER_BYTES..]).is_some());
        assert!(serde_json::from_slice::<Booted>(&samples[8]).is_ok());
    }
}
