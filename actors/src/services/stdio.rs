//! The programs of connectors by stdio: confined like a command, without network, each for one principal, subject and
//! space.
//!
//! Starting a program takes far longer than a call, so one that has answered stays for the next call of the same connection, principal,
//! subject and space. Nothing else is shared, and receipts say when a process was. What a program writes is only handed on: a call's child parses it.

#![expect(clippy::disallowed_methods, reason = "how long a program has run and been idle, which tests pause")]

use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use effectd_contracts::connector::NO_SPACE;
use effectd_contracts::exchange::{STDIO_NOTE_STREAM, STDIO_STREAM};
use effectd_contracts::limits::EXCHANGE_BODY_BYTES_MAX;
use effectd_contracts::{
    BaseProfile, CallMode, Code, ConnectionId, Failure, OrgId, Phase, Principal, SandboxProfile, SpaceId,
    SubjectId, ToolCall, ToolId, TraceId,
};
use effectd_sandbox::limits::CALL_TIME_MAX;
use effectd_sandbox::{
    Call, Ending, Limits, Narrowing, Outward, Piece, Sandbox, SideChannel, SpaceRoot, View,
};
use parking_lot::Mutex;
use serde_json::json;
use tokio::sync::{OwnedMutexGuard, mpsc, watch};
use tokio::task::JoinHandle;
use tokio::time::Instant;

use crate::limits::{
    OVERLOAD_RETRY, STDIO_BYTES_MAX, STDIO_IDLE_MAX, STDIO_NOTE_BYTES_MAX, STDIO_PROGRAMS_MAX,
    STDIO_PROGRAMS_OF_ORG, STDIO_STOP_TIME_MAX, STREAM_PIECES_WAITING,
};

/// How often an idle program is looked at, within [`STDIO_IDLE_MAX`].
const LOOKS: u32 = 10;

/// Whose program it is. A changed connection is another one.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Key {
    pub(crate) connection: ConnectionId,
    pub(crate) version: u64,
    pub(crate) org: OrgId,
    pub(crate) principal: Principal,
    pub(crate) subject: SubjectId,
    pub(crate) space: SpaceId,
}

/// What is started.
pub(crate) struct Program {
    pub(crate) argv: Vec<String>,
    /// What it sees as its workspace, and whether that is a folder that it may change. Otherwise it is empty.
    pub(crate) root: SpaceRoot,
    pub(crate) has_folder: bool,
    pub(crate) view: View,
}

type Lent = tokio::sync::Mutex<Option<Running>>;
type Slot = Arc<Lent>;

/// The programs that run. Whoever speaks with one, or starts it, holds its slot.
pub(crate) struct Programs {
    sandbox: Arc<Sandbox>,
    halt: watch::Receiver<bool>,
    slots: Mutex<HashMap<Key, Slot>>,
}

/// A program in the sandbox. Dropping it kills every process of it.
struct Running {
    stdin: Option<mpsc::Sender<Vec<u8>>>,
    stdout: mpsc::Receiver<Piece>,
    task: JoinHandle<()>,
    /// How many calls it has had.
    uses: u64,
    begun: Instant,
    /// When its last call ended.
    used: Instant,
    /// What the last call noted for the next.
    note: Vec<u8>,
    /// Bytes that it has written.
    written: u64,
    /// Whether all that it has written was handed on, to the end of a line.
    is_even: bool,
}

impl Drop for Running {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// The right to speak with a program: one call at a time. Unless it is settled, the program ends with it.
pub(crate) struct Lease {
    slot: OwnedMutexGuard<Option<Running>>,
    noted: Option<Vec<u8>>,
    is_settled: bool,
    /// How many calls the process has had before.
    pub(crate) earlier: u64,
}

fn busy(why: &str) -> Failure {
    Failure::new(Code::ToolBusy, Phase::Dispatch, why).retry_after(OVERLOAD_RETRY)
}

impl Programs {
    pub(crate) fn new(sandbox: Arc<Sandbox>, halt: watch::Receiver<bool>) -> Self {
        Self { sandbox, halt, slots: Mutex::default() }
    }

    /// The program of this key: the one that runs, or a new one. Waits while another call speaks with it.
    pub(crate) async fn lease(
        &self,
        key: &Key,
        program: impl Future<Output = Result<Program, Failure>>,
        left: Duration,
    ) -> Result<Lease, Failure> {
        let of_key = self.slot(key)?;
        let slot = of_key.clone().lock_owned();
        let late = |_| busy("another call has this connector's program for too long");
        let mut slot = tokio::time::timeout(left, slot).await.map_err(late)?;
        // One that would reach a limit of its life during the call would end it.
        let is_good = |running: &Running| {
            !running.task.is_finished()
                && running.begun.elapsed() + left < CALL_TIME_MAX
                && running.written < STDIO_BYTES_MAX / 2
        };
        if !slot.as_ref().is_some_and(is_good) {
            stop(slot.take()).await;
            *slot = Some(self.start(program.await?, Arc::downgrade(&of_key))?);
        }
        let earlier = slot.as_mut().map_or(0, |running| {
            running.uses += 1;
            running.uses - 1
        });
        Ok(Lease { slot, noted: None, is_settled: false, earlier })
    }

    /// A program for one call.
    pub(crate) fn once(&self, program: Program) -> Result<Lease, Failure> {
        let slot = Slot::default().try_lock_owned();
        let mut slot = slot.map_err(|_| busy("the program's slot is taken"))?;
        *slot = Some(self.start(program, Weak::new())?);
        Ok(Lease { slot, noted: None, is_settled: false, earlier: 0 })
    }

    /// Ends the programs of a connection; one that is spoken with, when its call ends.
    pub(crate) fn forget(&self, connection: &ConnectionId) {
        self.slots.lock().retain(|key, _| &key.connection != connection);
    }

    /// Makes room by ending the program that was idle longest.
    fn slot(&self, key: &Key) -> Result<Slot, Failure> {
        let mut slots = self.slots.lock();
        let is_own = |known: &Key| known.org == key.org;
        let has_its_share = slots.keys().filter(|known| is_own(known)).count() >= STDIO_PROGRAMS_OF_ORG;
        if !slots.contains_key(key) && (has_its_share || slots.len() >= STDIO_PROGRAMS_MAX) {
            // Others get a hold on a slot only here, so nobody speaks with one that has no other hold.
            let idle = slots.iter().filter(|(_, slot)| Arc::strong_count(slot) == 1);
            let idle = idle.filter(|(known, _)| !has_its_share || is_own(known));
            let used = |slot: &Slot| slot.try_lock().ok()?.as_ref().map(|running| running.used);
            let longest = idle.min_by_key(|(_, slot)| used(slot)).map(|(key, _)| key.clone());
            let longest = longest.ok_or_else(|| busy("all programs of connectors are in use"))?;
            slots.remove(&longest);
        }
        Ok(slots.entry(key.clone()).or_default().clone())
    }

    fn start(&self, program: Program, slot: Weak<Lent>) -> Result<Running, Failure> {
        let (stdin, inward) = mpsc::channel(STREAM_PIECES_WAITING);
        let (to, stdout) = mpsc::channel(STREAM_PIECES_WAITING);
        let outward = Outward { to: to.clone(), bytes_max: STDIO_BYTES_MAX };
        let channel = SideChannel { inward: Some(inward), outward: Some(outward) };
        let (call, sandbox, mut halt) = (call_of(program)?, self.sandbox.clone(), self.halt.clone());
        let task = tokio::spawn(async move {
            let ended = async {
                match sandbox.ask_with(call, channel).await {
                    Ok(reply) => match reply.reap().await.ending {
                        Ending::Killed { code, detail, .. } => Some(format!("{}: {detail}", code.as_str())),
                        // It has said why on its stream.
                        Ending::Replied(_) => None,
                    },
                    Err(error) => Some(error.to_string()),
                }
            };
            // Dropping the call kills its processes.
            let words = tokio::select! {
                biased;
                _ = halt.wait_for(|halted| *halted) => None,
                words = ended => words,
                () = idle(slot) => None,
            };
            if let Some(words) = words {
                let last = Piece { stream: STDIO_NOTE_STREAM, bytes: words.into_bytes() };
                let _nobody_hears = to.send(last).await;
            }
        });
        let now = Instant::now();
        let (note, uses, written, is_even) = (b"{}".to_vec(), 0, 0, true);
        Ok(Running { stdin: Some(stdin), stdout, task, uses, begun: now, used: now, note, written, is_even })
    }
}

/// Ends the program of a slot when it has had no call for long: it is taken out while nobody can lease it. Never ends one without a slot.
async fn idle(slot: Weak<Lent>) {
    loop {
        tokio::time::sleep(STDIO_IDLE_MAX / LOOKS).await;
        let Some(slot) = slot.upgrade() else { break };
        if let Ok(mut running) = slot.try_lock()
            && running.as_ref().is_some_and(|running| running.used.elapsed() >= STDIO_IDLE_MAX)
        {
            // This task is a part of it, and is aborted.
            *running = None;
        }
    }
    std::future::pending().await
}

/// Ends a program: by the end of its input, and soon after by force.
async fn stop(running: Option<Running>) {
    if let Some(mut running) = running {
        running.stdin = None;
        running.stdout.close();
        let _late = tokio::time::timeout(STDIO_STOP_TIME_MAX, &mut running.task).await;
    }
}

fn call_of(program: Program) -> Result<Call, Failure> {
    let internal =
        |error: &dyn std::fmt::Display| Failure::new(Code::Internal, Phase::Dispatch, error.to_string());
    let Program { argv, root, has_folder, view } = program;
    let (tool_id, trace_id) =
        (ToolId::new("connector.serve").map_err(|error| internal(&error))?, TraceId::fresh());
    let params = [("argv", json!(argv)), ("has_folder", json!(has_folder))];
    let request = ToolCall {
        tool_id: tool_id.clone(),
        mode: CallMode::Run,
        space_id: SpaceId::new(NO_SPACE).map_err(|error| internal(&error))?,
        params: params.map(|(name, value)| (name.to_owned(), value)).into_iter().collect(),
        timeout_ms: u64::try_from(CALL_TIME_MAX.as_millis()).unwrap_or(u64::MAX),
        trace_id: trace_id.clone(),
        before: None,
        restore: Vec::new(),
        expect: Vec::new(),
        upstream: None,
        failed_checks: Vec::new(),
        mark: None,
        undoes: None,
    };
    Ok(Call {
        tool_id,
        profile: SandboxProfile { base: BaseProfile::Exec, high_isolation: false },
        high_isolation: false,
        space_root: root,
        request: serde_json::to_vec(&request).map_err(|error| internal(&error))?,
        limits: Limits::default(),
        timeout: CALL_TIME_MAX,
        trace_id,
        narrowing: Narrowing::default(),
        view: Some(view),
    })
}

impl Lease {
    /// Hands on what the call's child and the program say to each other, until this is dropped or one of them ends. `check` sees each
    /// line of the child before it leaves; an error refuses it. Pieces of other streams go on to `others`.
    pub(crate) async fn serve(
        &mut self,
        mut pieces: mpsc::Receiver<Piece>,
        to_child: mpsc::Sender<Vec<u8>>,
        others: mpsc::Sender<Piece>,
        mut check: impl FnMut(&[u8]) -> Result<(), String>,
    ) {
        let Some(running) = self.slot.as_mut() else { return };
        let Running { stdin: Some(stdin), stdout, note, written, is_even, .. } = running else { return };
        if to_child.send(note.clone()).await.is_err() {
            return;
        }
        let noted = &mut self.noted;
        let asking = async {
            let mut line = Vec::new();
            while let Some(piece) = pieces.recv().await {
                match piece.stream {
                    STDIO_STREAM => {
                        line.extend_from_slice(&piece.bytes);
                        if line.last() != Some(&b'\n') && line.len() <= EXCHANGE_BODY_BYTES_MAX {
                            continue;
                        }
                        let message = line.strip_suffix(b"\n").unwrap_or(&line);
                        // Else the program would read several messages, and not the one that is looked at.
                        let is_one = !message.iter().any(|byte| b"\r\n".contains(byte));
                        let checked =
                            if is_one { check(message) } else { Err("it has several lines".to_owned()) };
                        if let Err(why) = checked {
                            return Some(format!("a message was not let out: {why}"));
                        }
                        let whole = std::mem::take(&mut line);
                        // A program that takes nothing any more has ended, and its last words are on their way.
                        let _ended = stdin.send(whole).await;
                    }
                    STDIO_NOTE_STREAM => *noted = Some(piece.bytes),
                    _ => drop(others.send(piece).await),
                }
            }
            None
        };
        let answering = async {
            loop {
                let Some(Piece { stream, bytes }) = stdout.recv().await else {
                    return Some("the server's program was stopped".to_owned());
                };
                *written += bytes.len() as u64;
                *is_even = false;
                if stream == STDIO_NOTE_STREAM {
                    return Some(format!(
                        "the server's program has ended: {}",
                        String::from_utf8_lossy(&bytes)
                    ));
                }
                let ends = bytes.last() == Some(&b'\n');
                if to_child.send(bytes).await.is_err() {
                    return None;
                }
                *is_even = ends;
            }
        };
        let words = tokio::select! {
            words = asking => words,
            words = answering => words,
        };
        if let Some(words) = words {
            let _gone = to_child.send(Vec::new()).await;
            let _gone = to_child.send(words.into_bytes()).await;
        }
        // The child has what it can get, and says what that means.
        std::future::pending::<()>().await;
    }

    /// Ends the conversation. The program stays for the next call only if this one has ended well: then its child has noted so.
    pub(crate) async fn settle(mut self) {
        let note = self.noted.take().filter(|note| note.len() <= STDIO_NOTE_BYTES_MAX);
        match (self.slot.as_mut(), note) {
            (Some(running), Some(note)) if running.is_even && !running.task.is_finished() => {
                running.note = note;
                running.used = Instant::now();
                self.is_settled = true;
            }
            _ => stop(self.slot.take()).await,
        }
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        if !self.is_settled {
            *self.slot = None;
        }
    }
}
