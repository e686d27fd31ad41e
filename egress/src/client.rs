//! The daemon's side of the broker: it is started when it is first needed, started again when it has ended, and asked over one socket.
#![expect(clippy::disallowed_types, reason = "starts the broker, which is this program")]

use std::collections::{HashMap, VecDeque};
use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use effectd_contracts::limits::EXCHANGE_MS_MAX;
use effectd_contracts::{
    EgressRecord, ExchangeAnswer, ExchangeFailure, ExchangeFault, ExchangeReply, Millis,
};
use parking_lot::Mutex;
use tokio::io::AsyncWriteExt;
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot};
use tokio::time::{Instant, timeout};
use zeroize::Zeroizing;

use crate::broker::{BROKER_ARGUMENT, name_files};
use crate::limits::{
    EXCHANGES_IN_FLIGHT_MAX, RESTART_WINDOW, SMALL_ANSWER_BYTES_MAX, START_TIME_MAX, STARTS_MAX,
    WAITING_BYTES_MAX,
};
use crate::order::{FromBroker, Order, Report, Seen, Start, ToBroker, message, receive};

/// What is added to the time of an order before the daemon stops waiting for the broker itself.
const PATIENCE: Duration = Duration::from_secs(5);
/// The broker's variables: see `LOCALDOMAIN` below.
const RESOLVER_OPTIONS: &str = "ndots:0 timeout:2 attempts:2";

#[derive(Debug, Clone)]
pub struct BrokerConfig {
    /// The program that becomes the broker: it calls [`crate::init`] first in `main`. Usually this very program.
    pub exe: PathBuf,
    /// Where effectd listens itself.
    pub own: Vec<SocketAddr>,
}

impl BrokerConfig {
    /// For a program that is its own broker. It uses the running file itself, as the zygote does.
    pub fn this_program() -> Self {
        Self { exe: "/proc/self/exe".into(), own: Vec::new() }
    }
}

/// The egress broker, as the daemon sees it.
#[derive(Debug)]
pub struct Broker {
    config: BrokerConfig,
    running: Arc<tokio::sync::Mutex<Running>>,
    places: Arc<Semaphore>,
    /// Bytes of requests and answers that the daemon may hold.
    room: Arc<Semaphore>,
    ids: AtomicU64,
}

#[derive(Debug, Default)]
struct Running {
    process: Option<Arc<Process>>,
    /// When the last processes were started.
    starts: VecDeque<Instant>,
}

/// An exchange that was carried out.
#[derive(Debug)]
pub struct Carried {
    pub reply: ExchangeReply,
    pub record: EgressRecord,
    /// Whom the broker met, if it dialled for this exchange, also in vain.
    pub seen: Option<Seen>,
    /// The share of the daemon's memory that the reply has; drop both together.
    _share: Option<OwnedSemaphorePermit>,
}

impl Broker {
    pub fn new(config: BrokerConfig) -> Self {
        Self {
            config,
            running: Arc::default(),
            places: Arc::new(Semaphore::new(EXCHANGES_IN_FLIGHT_MAX)),
            room: Arc::new(Semaphore::new(WAITING_BYTES_MAX)),
            ids: AtomicU64::new(0),
        }
    }

    /// Room in the daemon's memory for the bytes of a request that is still being received.
    pub async fn room(&self, bytes: usize) -> Option<OwnedSemaphorePermit> {
        let bytes = u32::try_from(bytes.min(WAITING_BYTES_MAX)).unwrap_or(u32::MAX);
        self.room.clone().acquire_many_owned(bytes).await.ok()
    }

    /// The process id of the running broker.
    pub async fn pid(&self) -> Option<u32> {
        self.running.lock().await.process.as_ref().map(|process| process.pid)
    }

    /// Carries an order out; its id is given here. `request_room` is what [`Broker::room`] gave for it.
    ///
    /// Dropping the future ends the exchange, too. It always returns, soon after the order's time at the latest.
    pub async fn carry(&self, mut order: Order, request_room: Option<OwnedSemaphorePermit>) -> Carried {
        order.id = self.ids.fetch_add(1, Ordering::Relaxed);
        let asked = Asked { host: order.origin.host.clone(), method: order.exchange.method };
        let time = Duration::from_millis(order.time_ms.min(EXCHANGE_MS_MAX));
        let place = match timeout(time, self.places.clone().acquire_owned()).await {
            Ok(Ok(place)) => place,
            Ok(Err(_)) | Err(_) => {
                return asked.failed(ExchangeFault::Busy, "too many exchanges are under way", false);
            }
        };
        let process = match timeout(time, self.process()).await {
            Ok(Ok(process)) => process,
            Ok(Err(why)) => return asked.failed(ExchangeFault::Gone, &why, false),
            Err(_) => return asked.failed(ExchangeFault::Gone, "the broker does not start in time", false),
        };
        let carried =
            timeout(time + PATIENCE, self.carry_by(&process, order, (place, request_room), &asked)).await;
        carried.unwrap_or_else(|_| asked.failed(ExchangeFault::TimedOut, "the broker does not answer", true))
    }

    async fn carry_by(
        &self,
        process: &Arc<Process>,
        mut order: Order,
        (place, request_room): (OwnedSemaphorePermit, Option<OwnedSemaphorePermit>),
        asked: &Asked,
    ) -> Carried {
        let gone = |sent| asked.failed(ExchangeFault::Gone, "the broker ended", sent);
        let (id, bytes_max) = (order.id, order.bytes_max);
        let body = std::mem::take(&mut order.exchange.body);
        let waiting = process.wait(id);
        let mut open = Open { process: process.clone(), id, over: false, place: Some(place) };
        // A broker that has a part of an order does not know what to do.
        if process.say(&ToBroker::Order(Box::new(order)), &body).await.is_err() {
            open.over = true;
            return gone(false);
        }
        drop(body);
        let Some((FromBroker::Report(report), mut body)) = waiting.answer().await else {
            open.over = true;
            return gone(true);
        };
        // The broker had the request until now. Its room is given back before the answer asks for some: nobody waits with both.
        drop(request_room);
        let Report { reply, record, body_bytes, waits, seen, .. } = *report;
        open.over = !waits;
        let record = EgressRecord { host: asked.host.clone(), method: asked.method, ..record };
        if body_bytes > bytes_max {
            return gone(true);
        }
        let share = self.room(body_bytes).await;
        if waits {
            let waiting = process.wait(id);
            let asked = process.say(&ToBroker::Fetch(id), &[]).await;
            open.over = true;
            match (asked, waiting.answer().await) {
                (Ok(()), Some((FromBroker::Body(_), fetched))) => body = fetched,
                (_, _) => return gone(true),
            }
        }
        // Room was made for what was announced.
        if body.len() != body_bytes {
            return gone(true);
        }
        let reply = match reply {
            ExchangeReply::Answered(answer) => ExchangeReply::Answered(ExchangeAnswer { body, ..answer }),
            failed @ ExchangeReply::Failed(_) => failed,
        };
        Carried { reply, record, seen, _share: share }
    }

    /// The running broker, or another: if it has ended, or if names mean something else since it was started.
    async fn process(&self) -> Result<Arc<Process>, String> {
        if let Some(process) = self.running.lock().await.fit() {
            return Ok(process);
        }
        // A task of its own: who gives up while a broker starts must neither end it nor have it count as one that ended.
        let (running, config) = (self.running.clone(), self.config.clone());
        let started = tokio::spawn(async move { running.lock().await.start(&config).await });
        started.await.unwrap_or_else(|_| Err("the broker cannot be started".to_owned()))
    }
}

impl Running {
    fn fit(&self) -> Option<Arc<Process>> {
        let process = self.process.as_ref()?;
        // One that was killed a moment ago has not been heard of yet.
        let lives = matches!(process.child.lock().try_wait(), Ok(None));
        let is_fit = lives && !process.ended.load(Ordering::Acquire) && process.names == stamps();
        is_fit.then(|| process.clone())
    }

    async fn start(&mut self, config: &BrokerConfig) -> Result<Arc<Process>, String> {
        // Somebody else was faster.
        if let Some(process) = self.fit() {
            return Ok(process);
        }
        // The last exchange of the old one drops it.
        self.process = None;
        while self.starts.front().is_some_and(|start| start.elapsed() > RESTART_WINDOW) {
            self.starts.pop_front();
        }
        if self.starts.len() >= STARTS_MAX {
            return Err("the broker keeps ending; the log says why".to_owned());
        }
        self.starts.push_back(Instant::now());
        let started = timeout(START_TIME_MAX, Process::start(config)).await;
        let started = started.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()));
        match started {
            Ok(process) => {
                tracing::info!(pid = process.pid, "the egress broker is started");
                self.process = Some(process.clone());
                Ok(process)
            }
            Err(error) => {
                tracing::error!(%error, "the egress broker cannot be started");
                Err(format!("the broker cannot be started: {error}"))
            }
        }
    }
}

/// What a failure says of its order.
struct Asked {
    host: String,
    method: effectd_contracts::Method,
}

impl Asked {
    fn failed(&self, fault: ExchangeFault, message: &str, sent: bool) -> Carried {
        let reply = ExchangeReply::Failed(ExchangeFailure { fault, message: message.to_owned(), sent });
        let record = EgressRecord {
            host: self.host.clone(),
            address: None,
            method: self.method,
            status: None,
            fault: Some(fault),
            bytes_out: 0,
            bytes_in: 0,
            ms: Millis::ZERO,
            allowed_range: false,
        };
        Carried { reply, record, seen: None, _share: None }
    }
}

/// A file as it was: another inode or another time is another file.
type FileStamp = Option<(u64, u64, i64, i64)>;

fn stamps() -> Vec<FileStamp> {
    let stamp = |file: PathBuf| {
        let status = std::fs::metadata(file).ok()?;
        Some((status.dev(), status.ino(), status.mtime(), status.mtime_nsec()))
    };
    name_files().into_iter().map(stamp).collect()
}

type Message = (FromBroker, Vec<u8>);
type Waiting = Arc<Mutex<HashMap<u64, oneshot::Sender<Message>>>>;

/// A message for the broker, and whom to tell that it is written.
struct Outgoing {
    bytes: Zeroizing<Vec<u8>>,
    written: oneshot::Sender<()>,
}

/// Writes messages until the process is dropped or has ended.
async fn write(mut said: mpsc::Receiver<Outgoing>, mut to: OwnedWriteHalf) {
    while let Some(Outgoing { bytes, written }) = said.recv().await {
        if to.write_all(&bytes).await.is_err() {
            return;
        }
        let _nobody_waits = written.send(());
    }
}

/// One process of the broker. Dropping it ends it.
#[derive(Debug)]
struct Process {
    pid: u32,
    child: Mutex<Child>,
    to: mpsc::Sender<Outgoing>,
    waiting: Waiting,
    ended: Arc<AtomicBool>,
    names: Vec<FileStamp>,
    runtime: tokio::runtime::Handle,
}

impl Drop for Process {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::Release);
        let child = self.child.get_mut();
        let _ended = child.kill();
        let _ended = child.wait();
    }
}

impl Process {
    async fn start(config: &BrokerConfig) -> io::Result<Arc<Self>> {
        let names = stamps();
        let (ours, theirs) = std::os::unix::net::UnixStream::pair()?;
        ours.set_nonblocking(true)?;
        let mut command = Command::new(&config.exe);
        command
            .arg(BROKER_ARGUMENT)
            .env_clear()
            .envs(std::env::var_os("SSL_CERT_FILE").map(|file| ("SSL_CERT_FILE", file)))
            // No arenas: even the smallest is 64 MiB.
            .env("MIMALLOC_ARENA_RESERVE", "0")
            // A name is whole: without a list of domains to try, it cannot lead to another one. And a lookup has an end.
            .env("LOCALDOMAIN", "")
            .env("RES_OPTIONS", RESOLVER_OPTIONS)
            .current_dir("/")
            .stdin(Stdio::from(OwnedFd::from(theirs)))
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        let child = command.spawn()?;
        // Closes this process's copy of the broker's end.
        drop(command);
        let (from, to) = UnixStream::from_std(ours)?.into_split();
        let (say, said) = mpsc::channel(EXCHANGES_IN_FLIGHT_MAX);
        tokio::spawn(write(said, to));
        let mut process = Self {
            pid: child.id(),
            child: Mutex::new(child),
            to: say,
            waiting: Waiting::default(),
            ended: Arc::default(),
            names,
            runtime: tokio::runtime::Handle::current(),
        };
        let from = process.greet(from, config).await?;
        let process = Arc::new(process);
        tokio::spawn(listen(from, process.waiting.clone(), process.ended.clone()));
        Ok(process)
    }

    async fn greet(&mut self, mut from: OwnedReadHalf, config: &BrokerConfig) -> io::Result<OwnedReadHalf> {
        self.say(&ToBroker::Start(Start { own: config.own.clone() }), &[]).await?;
        match receive(&mut from).await? {
            Some((FromBroker::Ready, _)) => Ok(from),
            Some((FromBroker::Unfit(why), _)) => Err(io::Error::other(why)),
            Some(_) | None => {
                Err(io::Error::other("the program given as exe must call effectd's init first in main"))
            }
        }
    }

    /// Sends one message, and returns when it is written. Messages are written in this order, and whole even if their sender gives
    /// up meanwhile.
    async fn say(&self, head: &ToBroker, body: &[u8]) -> io::Result<()> {
        let gone = |_| io::Error::from(io::ErrorKind::BrokenPipe);
        let (written, is_written) = oneshot::channel();
        let outgoing = Outgoing { bytes: message(head, body)?, written };
        self.to.send(outgoing).await.map_err(|_| io::ErrorKind::BrokenPipe)?;
        is_written.await.map_err(gone)
    }

    fn wait(self: &Arc<Self>, id: u64) -> Wait {
        let (answer, answered) = oneshot::channel();
        self.waiting.lock().insert(id, answer);
        // A broker that ended before has nobody left who would end this wait.
        if self.ended.load(Ordering::Acquire) {
            self.waiting.lock().remove(&id);
        }
        Wait { process: self.clone(), id, answered }
    }
}

/// A wait for one message.
struct Wait {
    process: Arc<Process>,
    id: u64,
    answered: oneshot::Receiver<Message>,
}

impl Wait {
    async fn answer(mut self) -> Option<Message> {
        (&mut self.answered).await.ok()
    }
}

impl Drop for Wait {
    fn drop(&mut self) {
        self.process.waiting.lock().remove(&self.id);
    }
}

/// An order that the broker has, and its place. Dropping this tells the broker that nobody waits for it, unless it is over.
struct Open {
    process: Arc<Process>,
    id: u64,
    over: bool,
    place: Option<OwnedSemaphorePermit>,
}

impl Drop for Open {
    fn drop(&mut self) {
        if self.over {
            return;
        }
        let (process, id, place) = (self.process.clone(), self.id, self.place.take());
        self.process.runtime.spawn(async move {
            let _gone = process.say(&ToBroker::Drop(id), &[]).await;
            // Only now: the next order must not come to a broker that still has this one.
            drop(place);
        });
    }
}

/// Hands each message to whoever waits for it, until the broker ends.
async fn listen(mut from: OwnedReadHalf, waiting: Waiting, ended: Arc<AtomicBool>) {
    while let Ok(Some((head, body))) = receive::<FromBroker>(&mut from).await {
        let id = match &head {
            // More would be held before there is room for it.
            FromBroker::Report(report) if body.len() <= SMALL_ANSWER_BYTES_MAX => report.id,
            FromBroker::Body(id) => *id,
            FromBroker::Report(_) | FromBroker::Ready | FromBroker::Unfit(_) => break,
        };
        if let Some(answer) = waiting.lock().remove(&id) {
            let _nobody_waits = answer.send((head, body));
        }
    }
    // First this, then the waits: nobody starts to wait unnoticed in between.
    let is_expected = ended.swap(true, Ordering::AcqRel);
    waiting.lock().clear();
    if !is_expected {
        tracing::warn!("the egress broker ended");
    }
}
