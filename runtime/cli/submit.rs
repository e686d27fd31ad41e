//! `effectd submit`: submit one request or many.

use std::fs::File;
use std::io::{BufRead, BufReader, IsTerminal, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use effectd_contracts::limits::REQUEST_BYTES_MAX;
use effectd_contracts::{ActionRequest, Code, Failure, Phase};
use effectd_gateway::client::Client;
use effectd_gateway::problem::Problem;
use tokio::sync::{Mutex, mpsc};
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior};

use super::action_output::{COLUMNS, exit_of, explain, print_receipt, print_row, receipt_of};
use super::backend::{daemon_client, submit_with_retry, wait_on};
use super::receipt_view::Detail;
use super::{
    ActionReply, CliError, Common, Depth, Form, Printer, Session, TIME, eprint_line, is_in_process, run,
    span, trace_context,
};
use crate::exit::Exit;

/// Submit requests to the daemon
///
/// Without --wait, an accepted request is on disk and ends in a receipt, even after a crash. Submitting it again is harmless. With
/// --jsonl, every line is a request, and every reply is printed as it comes. Without a daemon this process carries the requests out.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  effectd submit examples/write_note.json\n  effectd submit --wait -o json examples/write_note.json\n  \
    planner | effectd submit --wait -\n  planner --many | effectd submit --jsonl --patience 60s -o jsonl -"
)]
pub(super) struct Submit {
    /// The requests, in JSON; `-` reads standard input
    #[arg(value_name = "FILE", required = true)]
    files: Vec<PathBuf>,
    /// Every line is a request of its own
    #[arg(long)]
    jsonl: bool,
    /// Wait for the receipts
    #[arg(long)]
    wait: bool,
    /// How long to wait for each receipt: `90s`, `30m`, `2h`; a bare number is seconds
    #[arg(long, value_name = TIME, value_parser = span, default_value = "1h", requires = "wait")]
    timeout: Duration,
    /// How long to retry when the daemon is away or overloaded: `90s`, `30m`; a bare number is seconds. Never work without a daemon
    #[arg(long, value_name = TIME, value_parser = span)]
    patience: Option<Duration>,
    /// How many requests of a stream are submitted at the same time
    #[arg(long, value_name = "NUMBER", default_value_t = 16, value_parser = clap::value_parser!(u16).range(1..=256))]
    in_flight: u16,
}

/// One request, or why the input is not a request.
type Item = Result<Box<ActionRequest>, Box<Problem>>;
/// The pause before a request to an overloaded pipeline in this process is repeated.
const OVERLOAD_PAUSE: Duration = Duration::from_millis(100);
const PROGRESS_EVERY: Duration = Duration::from_secs(1);

impl Submit {
    pub(super) async fn main(self, common: &Common) -> Result<Exit, CliError> {
        let session = match self.patience {
            None => Session::reach(common, Depth::Pipeline).await?,
            // With `--patience`, never work without a daemon.
            Some(_) => Session::of_daemon(daemon_client(common)?),
        };
        let exit = self.all(&session.client, common.output).await;
        session.close().await?;
        exit
    }

    async fn all(&self, client: &Client, form: Form) -> Result<Exit, CliError> {
        let (give, items) = mpsc::channel::<Item>(usize::from(self.in_flight));
        let (files, jsonl) = (self.files.clone(), self.jsonl);
        // A thread of its own, since reading blocks and standard input may never end.
        std::thread::spawn(move || read_all(&files, jsonl, &give));
        let single = self.files.len() == 1 && !self.jsonl;
        let mut printer = Printer::new(form, !single, &COLUMNS);
        let (answer, mut answers) = mpsc::channel(usize::from(self.in_flight));
        let mut workers = JoinSet::new();
        let items = Arc::new(Mutex::new(items));
        let number = if single { 1 } else { self.in_flight };
        for _ in 0..number {
            let work = Worker {
                client: client.another(),
                wait: self.wait.then_some(self.timeout),
                patience: self.patience.unwrap_or_default(),
            };
            workers.spawn(work.run(items.clone(), answer.clone()));
        }
        drop(answer);
        let mut tally = Tally::new();
        let mut tick = tokio::time::interval(PROGRESS_EVERY);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let ended = loop {
            tokio::select! {
                reply = answers.recv() => match reply {
                    None => break Ok(()),
                    Some(Err(error)) => break Err(error),
                    Some(Ok(reply)) => {
                        tally.count(&reply);
                        print(&reply, single, form, &mut printer);
                    }
                },
                _ = tick.tick(), if !single => tally.progress(),
            }
        };
        workers.shutdown().await;
        printer.finish();
        if !single {
            eprint_line(&tally.to_text());
        }
        ended.map(|()| tally.exit)
    }
}

fn print(reply: &ActionReply, single: bool, form: Form, printer: &mut Printer) {
    if single {
        if let (Some(receipt), before) = receipt_of(reply)
            && form == Form::Table
        {
            print_receipt(reply, receipt, before, Detail::Short);
            return;
        }
        explain(reply);
    }
    print_row(printer, reply);
}

struct Worker {
    client: Client,
    wait: Option<Duration>,
    patience: Duration,
}

type Items = Arc<Mutex<mpsc::Receiver<Item>>>;

impl Worker {
    async fn submit(&mut self, request: &ActionRequest) -> Result<ActionReply, CliError> {
        let mut reply = submit_with_retry(&mut self.client, request, self.wait, self.patience).await?;
        // This process carries out the accepted actions, so it will not stay overloaded.
        while is_in_process(&self.client) && is_overloaded(&reply) {
            tokio::time::sleep(OVERLOAD_PAUSE).await;
            reply = submit_with_retry(&mut self.client, request, self.wait, self.patience).await?;
        }
        match self.wait {
            Some(wait) => wait_on(&mut self.client, reply, wait).await,
            None => Ok(reply),
        }
    }

    async fn run(mut self, items: Items, replies: mpsc::Sender<Result<ActionReply, CliError>>) {
        loop {
            let item = items.lock().await.recv().await;
            let reply = match item {
                None => return,
                Some(Err(problem)) => Ok(ActionReply::Problem(*problem)),
                Some(Ok(request)) => self.submit(&request).await,
            };
            if replies.send(reply).await.is_err() {
                return;
            }
        }
    }
}

fn is_overloaded(reply: &ActionReply) -> bool {
    match reply {
        ActionReply::Problem(problem) => {
            problem.code == Code::Overloaded.as_str() && problem.receipt.is_none()
        }
        ActionReply::View(_) => false,
    }
}

struct Tally {
    begun: Instant,
    accepted: u64,
    done: u64,
    refused: u64,
    /// The exit code of the first reply that is not a success.
    exit: Exit,
    shown: bool,
}

impl Tally {
    fn new() -> Self {
        Self {
            begun: Instant::now(),
            accepted: 0,
            done: 0,
            refused: 0,
            exit: Exit::Done,
            shown: std::io::stderr().is_terminal(),
        }
    }

    fn count(&mut self, reply: &ActionReply) {
        match reply {
            ActionReply::View(view) if view.receipt.is_some() => self.done += 1,
            ActionReply::View(_) => self.accepted += 1,
            ActionReply::Problem(_) => self.refused += 1,
        }
        if self.exit == Exit::Done {
            self.exit = exit_of(reply);
        }
    }

    fn to_text(&self) -> String {
        format!(
            "{} accepted, {} done, {} refused in {:.1} s",
            self.accepted,
            self.done,
            self.refused,
            self.begun.elapsed().as_secs_f64()
        )
    }

    fn progress(&self) {
        if self.shown && self.accepted + self.done + self.refused > 0 {
            eprint_line(&self.to_text());
        }
    }
}

/// Reads all files in turn, until the receiver is dropped.
fn read_all(files: &[PathBuf], jsonl: bool, give: &mpsc::Sender<Item>) {
    for file in files {
        let gone = if jsonl { read_lines(file, give) } else { give.blocking_send(read_one(file)).is_err() };
        if gone {
            return;
        }
    }
}

fn read_one(file: &Path) -> Item {
    let bytes = run::read_bounded(file).map_err(|error| unreadable(file, &error))?;
    parse(&bytes, &file.display().to_string())
}

/// Reads requests line by line. Returns whether the receiver is dropped.
fn read_lines(file: &Path, give: &mpsc::Sender<Item>) -> bool {
    let input: Box<dyn Read> = if file.as_os_str() == "-" {
        Box::new(std::io::stdin())
    } else {
        match File::open(file) {
            Ok(file) => Box::new(file),
            Err(error) => return give.blocking_send(Err(unreadable(file, &error))).is_err(),
        }
    };
    let mut input = BufReader::new(input);
    for number in 1_u64.. {
        let mut bytes = Vec::new();
        let read = input.by_ref().take(REQUEST_BYTES_MAX as u64 + 2).read_until(b'\n', &mut bytes);
        let item = match read {
            Ok(0) => return false,
            Ok(_) if bytes.trim_ascii().is_empty() => continue,
            Ok(_) => parse(bytes.trim_ascii(), &format!("{}:{number}", file.display())),
            Err(error) => Err(unreadable(file, &error)),
        };
        // Stop at a line that is too long: its rest is not a line of its own.
        let too_long = item.is_err() && !bytes.ends_with(b"\n") && bytes.len() > REQUEST_BYTES_MAX;
        if give.blocking_send(item).is_err() {
            return true;
        }
        if too_long {
            return false;
        }
    }
    false
}

fn parse(bytes: &[u8], place: &str) -> Item {
    let mut request = ActionRequest::parse(bytes).map(Box::new).map_err(|failure| {
        let mut problem = Problem::failed(&failure);
        problem.detail = format!("{place}: {}", problem.detail);
        Box::new(problem)
    })?;
    trace_context::adopt(&mut request);
    Ok(request)
}

fn unreadable(file: &Path, error: &std::io::Error) -> Box<Problem> {
    let message = if error.kind() == std::io::ErrorKind::NotFound {
        format!("there is no file {}; `-` reads standard input", file.display())
    } else {
        format!("{} cannot be read: {error}", file.display())
    };
    let failure = Failure::new(Code::Malformed, Phase::Accept, message);
    let mut problem = Problem::failed(&failure);
    // There is no request that the caller could change.
    problem.change = None;
    Box::new(problem)
}
