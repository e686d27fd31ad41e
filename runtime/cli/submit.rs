//! `effectd submit`: hand decisions over, one or many.

use std::fs::File;
use std::io::{BufRead, BufReader, IsTerminal, Read};
use std::path::{Path, PathBuf};
use std::time::Duration;

use effectd_contracts::limits::REQUEST_BYTES_MAX;
use effectd_contracts::{ActionRequest, Code};
use effectd_gateway::client::{Client, Told};
use effectd_gateway::problem::Problem;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior};

use super::backend::{Session, Trouble, client_state, is_alone, patiently, socket, wait_on};
use super::output::{Form, Printer};
use super::told::{COLUMNS, cells, exit_of, explain, value};
use super::{Common, complain, context, show};
use crate::exit::Exit;
use crate::runtime::Depth;

/// Hand decisions over to the daemon
///
/// Without --wait, a decision that is accepted is on disk and will be carried out or refused, whatever dies. Handing the
/// same one over again is harmless. With --jsonl, every line is a decision, and every answer is shown as it comes. Without
/// a daemon the decisions are carried out by this process.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  effectd submit examples/write_note.json\n  effectd submit --wait -o json examples/write_note.json\n  \
    planner | effectd submit --wait -\n  planner --many | effectd submit --jsonl --patience 60 -o jsonl -"
)]
pub(super) struct Submit {
    /// The decisions, in JSON; `-` reads standard input
    #[arg(value_name = "FILE", required = true)]
    files: Vec<PathBuf>,
    /// Every line is a decision of its own
    #[arg(long)]
    jsonl: bool,
    /// Wait for the receipts
    #[arg(long)]
    wait: bool,
    /// How long to wait for each, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 3_600, requires = "wait")]
    timeout: u64,
    /// Keep asking for so long when the daemon is away or overloaded, in seconds; never work without it
    #[arg(long, value_name = "SECONDS")]
    patience: Option<u64>,
    /// How many decisions of a stream are handed over at one time
    #[arg(long, value_name = "NUMBER", default_value_t = 16, value_parser = clap::value_parser!(u16).range(1..=256))]
    in_flight: u16,
    /// How answers are shown
    #[arg(long, short, value_enum, default_value = "table", value_name = "FORM")]
    output: Form,
}

/// One decision to hand over, or why it is none.
type Item = Result<Box<ActionRequest>, Box<Problem>>;
/// The pause before this process is asked again whether it has room.
const ROOM_PAUSE: Duration = Duration::from_millis(100);
const PROGRESS_EVERY: Duration = Duration::from_secs(1);

impl Submit {
    pub(super) fn main(self, common: &Common) -> Exit {
        let work = async {
            let session = match self.patience {
                None => Session::reach(common, Depth::Pipeline).await?,
                // Who waits for a daemon never works without one.
                Some(_) => Session::of_daemon(Client::new(socket(common, &client_state(common))?)),
            };
            let exit = self.all(&session.client).await;
            session.close().await?;
            exit
        };
        super::block_on(work)
    }

    async fn all(&self, client: &Client) -> Result<Exit, Trouble> {
        let (give, items) = mpsc::channel::<Item>(usize::from(self.in_flight));
        let (files, jsonl) = (self.files.clone(), self.jsonl);
        // Reading blocks, and standard input may never end.
        std::thread::spawn(move || read_all(&files, jsonl, &give));
        let single = self.files.len() == 1 && !self.jsonl;
        let mut printer = Printer::new(self.output, !single, &COLUMNS);
        let (answer, mut answers) = mpsc::channel(usize::from(self.in_flight));
        let mut workers = JoinSet::new();
        let items = std::sync::Arc::new(tokio::sync::Mutex::new(items));
        let hands = if single { 1 } else { self.in_flight };
        for _ in 0..hands {
            let work = Worker {
                client: client.another(),
                wait: self.wait.then_some(Duration::from_secs(self.timeout)),
                patience: Duration::from_secs(self.patience.unwrap_or(0)),
            };
            workers.spawn(work.run(items.clone(), answer.clone()));
        }
        drop(answer);
        let mut tally = Tally::new();
        let mut tick = tokio::time::interval(PROGRESS_EVERY);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let ended = loop {
            tokio::select! {
                told = answers.recv() => match told {
                    None => break Ok(()),
                    Some(Err(trouble)) => break Err(trouble),
                    Some(Ok(told)) => {
                        tally.count(&told);
                        self.show(&told, single, &mut printer);
                    }
                },
                _ = tick.tick(), if !single => tally.progress(),
            }
        };
        workers.shutdown().await;
        printer.finish();
        if !single {
            tally.summary();
        }
        ended.map(|()| tally.exit)
    }

    fn show(&self, told: &Told, single: bool, printer: &mut Printer) {
        if single && self.output == Form::Table {
            let (receipt, before) = match told {
                Told::View(view) => (view.receipt.as_deref(), view.already_done),
                Told::Problem(problem) => (problem.receipt.as_deref(), false),
            };
            if let Some(receipt) = receipt {
                super::output::line(show::receipt(receipt, before).trim_end());
                return;
            }
        }
        if single {
            explain(told);
        }
        let cells = cells(told);
        printer.row(&value(told), &cells.each_ref().map(String::as_str));
    }
}

struct Worker {
    client: Client,
    wait: Option<Duration>,
    patience: Duration,
}

type Items = std::sync::Arc<tokio::sync::Mutex<mpsc::Receiver<Item>>>;

impl Worker {
    async fn hand_over(&mut self, request: &ActionRequest) -> Result<Told, Trouble> {
        let mut told = patiently(&mut self.client, request, self.wait, self.patience).await?;
        // What is accepted is carried out by this process, and then there is room again. No other refusal ends by waiting here.
        while is_alone(&self.client) && is_overloaded(&told) {
            tokio::time::sleep(ROOM_PAUSE).await;
            told = patiently(&mut self.client, request, self.wait, self.patience).await?;
        }
        match self.wait {
            Some(wait) => wait_on(&mut self.client, told, wait).await,
            None => Ok(told),
        }
    }

    async fn run(mut self, items: Items, answer: mpsc::Sender<Result<Told, Trouble>>) {
        loop {
            let item = items.lock().await.recv().await;
            let told = match item {
                None => return,
                Some(Err(problem)) => Ok(Told::Problem(*problem)),
                Some(Ok(request)) => self.hand_over(&request).await,
            };
            if answer.send(told).await.is_err() {
                return;
            }
        }
    }
}

fn is_overloaded(told: &Told) -> bool {
    match told {
        Told::Problem(problem) => problem.code == Code::Overloaded.as_str() && problem.receipt.is_none(),
        Told::View(_) => false,
    }
}

struct Tally {
    begun: Instant,
    accepted: u64,
    done: u64,
    refused: u64,
    /// Of the first that was not well.
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

    fn count(&mut self, told: &Told) {
        match told {
            Told::View(view) if view.receipt.is_some() => self.done += 1,
            Told::View(_) => self.accepted += 1,
            Told::Problem(_) => self.refused += 1,
        }
        if self.exit == Exit::Done {
            self.exit = exit_of(told);
        }
    }

    fn words(&self) -> String {
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
            complain(&self.words());
        }
    }

    fn summary(&self) {
        complain(&self.words());
    }
}

/// Reads all files in turn. Ends early when nobody listens any more.
fn read_all(files: &[PathBuf], jsonl: bool, give: &mpsc::Sender<Item>) {
    for file in files {
        let opened: std::io::Result<Box<dyn Read>> = if file.as_os_str() == "-" {
            Ok(Box::new(std::io::stdin()))
        } else {
            File::open(file).map(|file| Box::new(file) as Box<dyn Read>)
        };
        let gone = match opened {
            Err(error) => give.blocking_send(Err(unreadable(file, &error))).is_err(),
            Ok(input) if jsonl => read_lines(file, input, give),
            Ok(input) => give.blocking_send(read_one(file, input)).is_err(),
        };
        if gone {
            return;
        }
    }
}

fn read_one(file: &Path, input: Box<dyn Read>) -> Item {
    let mut bytes = Vec::new();
    // One byte more than is allowed, so that what is too large is refused and not cut.
    match input.take(REQUEST_BYTES_MAX as u64 + 1).read_to_end(&mut bytes) {
        Ok(_) => parse(&bytes, &file.display().to_string()),
        Err(error) => Err(unreadable(file, &error)),
    }
}

/// Says whether nobody listens any more.
fn read_lines(file: &Path, input: Box<dyn Read>, give: &mpsc::Sender<Item>) -> bool {
    let mut input = BufReader::new(input);
    for number in 1_u64.. {
        let mut bytes = Vec::new();
        let read = input
            .by_ref()
            .take(REQUEST_BYTES_MAX as u64 + 2)
            .read_until(b'\n', &mut bytes);
        let item = match read {
            Ok(0) => return false,
            Ok(_) if bytes.trim_ascii().is_empty() => continue,
            Ok(_) => parse(bytes.trim_ascii(), &format!("{}:{number}", file.display())),
            Err(error) => Err(unreadable(file, &error)),
        };
        let broken = item.is_err() && !bytes.ends_with(b"\n") && bytes.len() > REQUEST_BYTES_MAX;
        if give.blocking_send(item).is_err() {
            return true;
        }
        if broken {
            // The rest of a line that is too long would be taken for lines of its own.
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
    context::adopt(&mut request);
    Ok(request)
}

fn unreadable(file: &Path, error: &std::io::Error) -> Box<Problem> {
    let message = if error.kind() == std::io::ErrorKind::NotFound {
        format!("there is no file {}; `-` reads standard input", file.display())
    } else {
        format!("{} cannot be read: {error}", file.display())
    };
    let failure = effectd_contracts::Failure::new(Code::Malformed, effectd_contracts::Phase::Accept, message);
    let mut problem = Problem::failed(&failure);
    // What to change about a request is no help where there is none.
    problem.change = None;
    Box::new(problem)
}
