//! One child: it confines itself, waits for its request, narrows itself to it, runs the tool, and answers.
#![expect(clippy::disallowed_methods, reason = "it is a process of its own, and has only the kernel's clock")]

use std::io::{self, Read, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use effectd_contracts::Code;
use nix::sys::prctl;
use nix::sys::resource::{Resource, setrlimit};
use nix::sys::signal::{SigSet, SigmaskHow, sigprocmask};
use parking_lot::Mutex;

use super::At;
use super::identity::write_maps;
use super::tree::{TMP, World};
use crate::call::{Denial, DenialSource, Denials, Narrowing};
use crate::confine::profile::ChildNamespace;
use crate::confine::rules::{self, Scope};
use crate::limits::{CPU_GRACE_S, DENIAL_TEXT_BYTES_MAX, PIECE_BYTES_MAX, REQUEST_BYTES_MAX, TMP_FILES_MAX};
use crate::sys::{mount, process, seccomp, socket};
use crate::view::{TreeAccess, WORKSPACE};
use crate::wire::{
    Boot, EXIT_ABORTED, EXIT_CPU_LIMIT, EXIT_FILE_LIMIT, EXIT_MEMORY_LIMIT, HEADER_BYTES, Kind, Orders,
    SetupFailure, Step, chunks, frame, header, parse_header, piece_head, unpack_request,
};

/// Runs one request inside the confined process and returns the bytes of the answer. The embedding program provides it,
/// because it knows the tools. A panic in it is caught and ends the call.
pub type Dispatch = fn(&ChildCtx, &[u8]) -> Vec<u8>;

pub(super) struct ZygoteState {
    pub(super) boot: Boot,
    pub(super) world: World,
    pub(super) dispatch: Dispatch,
    /// See [`super::init_with_warm_up`].
    pub(super) warm_up: Option<&'static [u8]>,
    pub(super) address_space_bytes: u64,
}

/// How far the limit on the user's processes is above that of the cgroup.
const PROCESSES_SLACK: u64 = 4;

/// The size of the first read: most requests fit into it.
const FIRST_READ_BYTES: usize = 8 * 1_024;
/// How much stack and heap a small call touches.
const WARM_STACK_BYTES: usize = 16 * 1_024;
const WARM_HEAP_BYTES: usize = 32 * 1_024;

const CHANNEL: i32 = 3;
const WORKSPACE_SLOT: i32 = 4;
const TMP_SLOT: i32 = 5;

/// What a tool inside the sandbox can use.
#[derive(Debug)]
pub struct ChildCtx {
    deadline: Instant,
    denials: Mutex<Denials>,
    /// Held while a thread sends, so that the pieces of several threads are not mixed.
    sending: Mutex<()>,
    receiving: Mutex<Channel>,
    /// Whether this is the warm-up, during which the runtime does not listen.
    is_warming_up: bool,
    programs: Vec<PathBuf>,
}

impl ChildCtx {
    fn new(timeout: Duration, channel: Channel) -> Self {
        Self {
            deadline: Instant::now() + timeout,
            denials: Mutex::default(),
            sending: Mutex::default(),
            receiving: Mutex::new(channel),
            is_warming_up: false,
            programs: Vec::new(),
        }
    }

    fn check_connected(&self) -> io::Result<()> {
        if self.is_warming_up {
            return Err(io::Error::from(io::ErrorKind::NotConnected));
        }
        Ok(())
    }

    /// The space's root. Open files with `openat2` and `RESOLVE_BENEATH`; never check a path first and use it later.
    pub fn workspace(&self) -> BorrowedFd<'_> {
        process::slot(WORKSPACE_SLOT)
    }

    /// The scratch folder: only this call sees it, and it vanishes with the call.
    pub fn tmp(&self) -> BorrowedFd<'_> {
        process::slot(TMP_SLOT)
    }

    /// The path of the space's root, for programs that start there.
    pub fn workspace_path(&self) -> &'static Path {
        Path::new(WORKSPACE)
    }

    /// The folders beyond the system's whose programs the call may execute.
    pub fn programs(&self) -> &[PathBuf] {
        &self.programs
    }

    /// When the call is killed, for tools that can stop by themselves.
    pub fn deadline(&self) -> Instant {
        self.deadline
    }

    /// The time until the deadline.
    pub fn remaining(&self) -> Duration {
        self.deadline.saturating_duration_since(Instant::now())
    }

    /// Sends bytes on a stream of the side channel, and waits until the runtime has room for them. The tool's answer names
    /// the stream.
    pub fn send_piece(&self, stream: u8, bytes: &[u8]) -> io::Result<()> {
        self.check_connected()?;
        let _alone = self.sending.lock();
        let mut channel = Channel::default();
        for chunk in chunks(bytes) {
            channel.write_all(&piece_head(stream, chunk.len()))?;
            channel.write_all(chunk)?;
        }
        Ok(())
    }

    /// The next piece that the runtime sends on the side channel; an empty one ends one content. An error means that there
    /// are no more.
    pub fn receive_piece(&self) -> io::Result<Vec<u8>> {
        self.check_connected()?;
        let mut channel = self.receiving.lock();
        let mut head = [0; HEADER_BYTES];
        channel.read_exact(&mut head)?;
        match parse_header(&head) {
            Some((Kind::Piece, length)) if (1..=1 + PIECE_BYTES_MAX).contains(&length) => {
                let mut bytes = vec![0; length];
                channel.read_exact(&mut bytes)?;
                bytes.remove(0);
                Ok(bytes)
            }
            Some(_) | None => Err(io::Error::from(io::ErrorKind::InvalidData)),
        }
    }

    /// Records a path that the kernel refused. Only the child sees these refusals, so they are marked as reported by it.
    pub fn report_denied_path(&self, path: &str) {
        let what = &path[..path.floor_char_boundary(DENIAL_TEXT_BYTES_MAX)];
        let mut denials = self.denials.lock();
        denials.count(Code::PathDenied, what, DenialSource::Child);
    }
}

/// Runs the child to its end. If it cannot confine itself, it reports that, and no tool runs.
pub(super) fn run(zygote: &ZygoteState, channel: &OwnedFd, scratch: Option<&OwnedFd>) -> ! {
    if let Err(failure) = confine(zygote, channel, scratch) {
        let text = serde_json::to_vec(&failure).unwrap_or_default();
        let _gone = nix::unistd::write(channel, &frame(Kind::Unconfined, &text, &[]));
        process::exit_now(1);
    }
    let frame = match serve(zygote) {
        // The runtime closed the channel and does not need this child.
        Err(_) => process::exit_now(0),
        Ok(frame) => frame,
    };
    process::exit_now(i32::from(Channel::default().write_all(&frame).is_err()))
}

/// The channel, with plain reads and writes: the socket calls are banned.
#[derive(Debug, Default)]
struct Channel {
    /// Bytes after the request that the same read returned.
    early: Vec<u8>,
}

impl Read for Channel {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        if !self.early.is_empty() {
            let count = self.early.len().min(into.len());
            into[..count].copy_from_slice(&self.early[..count]);
            self.early.drain(..count);
            return Ok(count);
        }
        Ok(nix::unistd::read(process::slot(CHANNEL), into)?)
    }
}

impl Write for Channel {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        Ok(nix::unistd::write(process::slot(CHANNEL), bytes)?)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn confine(zygote: &ZygoteState, channel: &OwnedFd, scratch: Option<&OwnedFd>) -> Result<(), SetupFailure> {
    let boot = &zygote.boot;
    nix::unistd::setsid().at(Step::ChildStart)?;
    reset_signals().at(Step::ChildStart)?;
    let channel = super::high(channel.as_fd()).at(Step::ChildStart)?;
    process::place_fd(channel.as_fd(), CHANNEL, false).at(Step::ChildStart)?;
    process::place_fd(zygote.world.workspace.as_fd(), WORKSPACE_SLOT, false).at(Step::ChildStart)?;

    if boot.child_namespaces.contains(&ChildNamespace::User) {
        prctl::set_dumpable(true).at(Step::ChildUserMapping)?;
        write_maps("/proc/self", boot.identity).at(Step::ChildUserMapping)?;
    }
    if boot.child_namespaces.contains(&ChildNamespace::Mount) {
        // The zygote's descriptor belongs to the zygote's mounts; the child needs one of its own mounts.
        let own = super::tree::open_workspace().at(Step::ChildMounts)?;
        process::place_fd(own.as_fd(), WORKSPACE_SLOT, false).at(Step::ChildMounts)?;
    }
    let mounts = own_mounts(boot, scratch)?;
    nix::unistd::fchdir(process::slot(WORKSPACE_SLOT)).at(Step::ChildMounts)?;
    limit_processes(boot).at(Step::ChildLimits)?;

    let scope = Scope {
        workspace: process::slot(WORKSPACE_SLOT),
        read_only: boot.view.is_some(),
        tmp: process::slot(TMP_SLOT),
        entries: &zygote.world.entries,
        proc: mounts.as_ref(),
    };
    rules::restrict_to_profile(&scope).map_err(io::Error::other).at(Step::Landlock)?;
    process::drop_capabilities().at(Step::Capabilities)?;
    prctl::set_dumpable(false).at(Step::Capabilities)?;
    drop(mounts);
    drop(channel);
    process::close_from(TMP_SLOT as u32 + 1).at(Step::ChildStart)?;
    let listener = seccomp::install_with_listener(&boot.narrow_filter).at(Step::NarrowFilter)?;
    warm_up(zygote);
    socket::send(process::slot(CHANNEL), &header(Kind::Ready, 0), &[listener.as_raw_fd()])
        .at(Step::NarrowFilter)?;
    Ok(())
}

/// The zygote blocks SIGCHLD; a tool that waits for its own children must not inherit that. The init of a PID namespace
/// ignores signals without a handler, so the signals of limits get one.
fn reset_signals() -> io::Result<()> {
    sigprocmask(SigmaskHow::SIG_SETMASK, Some(&SigSet::empty()), None)?;
    process::exit_on(libc::SIGXCPU, on_cpu_limit)?;
    process::exit_on(libc::SIGXFSZ, on_file_limit)?;
    process::exit_on(libc::SIGABRT, on_abort)
}

extern "C" fn on_cpu_limit(_: libc::c_int) {
    process::exit_now(EXIT_CPU_LIMIT)
}

extern "C" fn on_file_limit(_: libc::c_int) {
    process::exit_now(EXIT_FILE_LIMIT)
}

/// Rust aborts when an allocation fails. Another allocation tells whether that was the reason.
extern "C" fn on_abort(_: libc::c_int) {
    const LITTLE: usize = 8 << 20;
    process::exit_now(if process::can_map(LITTLE) { EXIT_ABORTED } else { EXIT_MEMORY_LIMIT })
}

/// A scratch folder that is mounted nowhere. If the zygote makes it for a child, the zygote keeps it open:
/// removing it takes time, and the child's end would wait for that.
pub(super) fn scratch(boot: &Boot) -> io::Result<OwnedFd> {
    let text = |number: u64| std::ffi::CString::new(number.to_string()).unwrap_or_default();
    let (size, files) = (text(boot.ceilings.tmp_bytes), text(TMP_FILES_MAX));
    let options = [(c"size", Some(size.as_c_str())), (c"nr_inodes", Some(&files)), (c"mode", Some(c"700"))];
    mount::fresh(c"tmpfs", &options, SCRATCH_ATTRIBUTES)
}

const SCRATCH_ATTRIBUTES: u64 = mount::NO_SUID | mount::NO_DEV | mount::NO_EXEC;

/// Mounts the child's scratch folder and, in profiles with /proc, a /proc that shows only its own processes.
fn own_mounts(boot: &Boot, given: Option<&OwnedFd>) -> Result<Option<OwnedFd>, SetupFailure> {
    if let Some(tmp) = given {
        process::place_fd(tmp.as_fd(), TMP_SLOT, false).at(Step::ChildMounts)?;
        return Ok(None);
    }
    let tmp = scratch(boot).at(Step::ChildMounts)?;
    let mut proc = None;
    if boot.child_namespaces.contains(&ChildNamespace::Mount) {
        mount::attach(tmp.as_fd(), &super::tree::c_path(Path::new(TMP)).at(Step::ChildMounts)?)
            .at(Step::ChildMounts)?;
        if boot.proc {
            let own =
                mount::fresh(c"proc", &[(c"subset", Some(c"pid"))], SCRATCH_ATTRIBUTES | mount::READ_ONLY);
            let own = own.at(Step::Proc)?;
            mount::attach(own.as_fd(), c"/proc").at(Step::Proc)?;
            proc = Some(super::high(own.as_fd()).at(Step::Proc)?);
        }
    }
    process::place_fd(tmp.as_fd(), TMP_SLOT, false).at(Step::ChildMounts)?;
    Ok(proc)
}

/// Sets the limits that do not depend on the request.
fn limit_processes(boot: &Boot) -> nix::Result<()> {
    setrlimit(Resource::RLIMIT_CORE, 0, 0)?;
    setrlimit(Resource::RLIMIT_MEMLOCK, 0, 0)?;
    setrlimit(Resource::RLIMIT_MSGQUEUE, 0, 0)?;
    setrlimit(Resource::RLIMIT_SIGPENDING, 64, 64)?;
    let processes = boot.ceilings.processes + PROCESSES_SLACK;
    setrlimit(Resource::RLIMIT_NPROC, processes, processes)
}

/// Runs once through the steps of a call and discards the answer: a forked process takes a page fault for each page that it
/// first touches, and here they happen before a call waits.
fn warm_up(zygote: &ZygoteState) {
    let boot = &zygote.boot;
    let stack = std::hint::black_box([1u8; WARM_STACK_BYTES]);
    let heap = std::hint::black_box(vec![stack[0]; WARM_HEAP_BYTES]);
    let orders = Orders {
        ceilings: boot.ceilings,
        narrowing: Narrowing::default(),
        timeout_ms: 1,
        memory_by_process: false,
        processes_by_cgroup: false,
        drill: None,
    };
    let request = serde_json::to_vec(&orders).map(|orders| frame(Kind::Request, &orders, &heap[..1]));
    let understood = request.ok().and_then(|request| {
        let (head, payload) = request.split_first_chunk()?;
        (parse_header(head)?.1 == payload.len()).then_some(())?;
        let (orders, request) = unpack_request(payload)?;
        let denials = serde_json::to_vec(&Vec::<Denial>::new()).ok()?;
        std::hint::black_box(orders.timeout_ms);
        Some(frame(Kind::Reply, &denials, &request))
    });
    std::hint::black_box(understood);
    if let Some(request) = zygote.warm_up {
        let ctx = ChildCtx { is_warming_up: true, ..ChildCtx::new(Duration::ZERO, Channel::default()) };
        // Ignore a panic: it happens again in the call, which reports it.
        let _answer = catch_unwind(AssertUnwindSafe(|| (zygote.dispatch)(&ctx, request)));
    }
}

fn serve(zygote: &ZygoteState) -> io::Result<Vec<u8>> {
    let mut channel = Channel::default();
    let (orders, request) = receive(&mut channel)?;
    let mut ctx = ChildCtx::new(Duration::from_millis(orders.timeout_ms), channel);
    let mounts = zygote.boot.view.iter().flatten();
    ctx.programs = mounts.filter(|one| one.access == TreeAccess::Execute).map(|one| one.at.clone()).collect();
    if let Err(failure) = narrow(zygote, &orders) {
        return Ok(frame(Kind::Unconfined, &serde_json::to_vec(&failure)?, &[]));
    }
    let answer = catch_unwind(AssertUnwindSafe(|| match &orders.drill {
        Some(drill) => drill.run(),
        None => (zygote.dispatch)(&ctx, &request),
    }));
    let denials = serde_json::to_vec(&ctx.denials.lock().0)?;
    Ok(match answer {
        Ok(answer) => frame(Kind::Reply, &denials, &answer),
        Err(_) => frame(Kind::Panicked, &[], &[]),
    })
}

fn receive(channel: &mut Channel) -> io::Result<(Orders, Vec<u8>)> {
    let mut bytes = vec![0; FIRST_READ_BYTES];
    let mut there = 0;
    while there < HEADER_BYTES {
        match channel.read(&mut bytes[there..])? {
            0 => return Err(io::Error::from(io::ErrorKind::UnexpectedEof)),
            count => there += count,
        }
    }
    let invalid = || io::Error::from(io::ErrorKind::InvalidData);
    let head = bytes.first_chunk().ok_or_else(invalid)?;
    let (kind, length) = parse_header(head).ok_or_else(invalid)?;
    let whole = HEADER_BYTES + length;
    if kind != Kind::Request || length > 2 * REQUEST_BYTES_MAX {
        return Err(invalid());
    }
    if there > whole {
        channel.early = bytes[whole..there].to_vec();
    }
    bytes.resize(whole, 0);
    channel.read_exact(&mut bytes[there.min(whole)..])?;
    unpack_request(&bytes[HEADER_BYTES..]).ok_or_else(invalid)
}

/// Narrows the process to what this one request needs.
fn narrow(zygote: &ZygoteState, orders: &Orders) -> Result<(), SetupFailure> {
    let limits = &orders.ceilings;
    let set = |resource, soft, hard| setrlimit(resource, soft, hard).at(Step::ChildLimits);
    let cpu_s = limits.cpu_ms.div_ceil(1_000).max(1);
    set(Resource::RLIMIT_CPU, cpu_s, cpu_s + CPU_GRACE_S)?;
    set(Resource::RLIMIT_FSIZE, limits.file_bytes, limits.file_bytes)?;
    set(Resource::RLIMIT_NOFILE, limits.open_files, limits.open_files)?;
    // The cgroup must refuse first, because only its refusals are counted.
    let slack = if orders.processes_by_cgroup { PROCESSES_SLACK } else { 0 };
    let processes = limits.processes + slack;
    set(Resource::RLIMIT_NPROC, processes, processes)?;
    if orders.memory_by_process {
        let bytes = zygote.address_space_bytes.saturating_add(limits.memory_bytes);
        let resource = if limits.processes == 1 { Resource::RLIMIT_AS } else { Resource::RLIMIT_DATA };
        set(resource, bytes, bytes)?;
    }
    rules::restrict_to_request(process::slot(WORKSPACE_SLOT), process::slot(TMP_SLOT), &orders.narrowing)
        .map_err(io::Error::other)
        .at(Step::Narrowing)
}
