//! `effectd top`: a live view of the running daemon.

mod metrics;
mod page;
mod view;

use std::collections::VecDeque;
use std::time::Duration;

use effectd_contracts::{Clock, Operation, SystemClock, Timestamp};
use effectd_gateway::client::{Client, ClientError, percent_encoded};
use effectd_gateway::views::approvals::{ApprovalList, ApprovalView};
use effectd_gateway::views::dead_letters::CauseView;
use effectd_gateway::views::operations::OperationView;
use effectd_gateway::views::{ActorView, BreakerView, Health};
use hyper::Method;
use hyper::body::Bytes;
use serde_json::json;
use tokio::time::Instant;

use super::backend::daemon_client;
use super::output::{Tone, toned};
use super::{CliError, Common, Form, approvals, line, print_json};
use crate::exit::Exit;
use crate::tui::ratatui::crossterm::event::KeyCode;
use crate::tui::{Event, Events, Screen};
use metrics::{Figures, Rates, StageRow, ToolRow};
use view::{Focus, View};

/// The part of a view that keys change.
#[derive(Debug)]
struct Cursor {
    focus: Focus,
    /// The index of the selected row of the focused list.
    row: usize,
    /// The name of the opened row.
    opened: Option<String>,
    /// The result of the last key.
    news: String,
}

/// Watch the running daemon: throughput, latency, stages and queues, outcomes by tool, breakers, pending approvals, dead letters
///
/// A letter opens one of the lists, Enter a row of it; there, `r` resets the breaker or requeues the newest letter of the cause. Enter on
/// an approval opens it as `approvals watch` does. `--once` prints a page, what is not normal first, and ends; so does `-o json`, with all
/// figures as one JSON value. Its rates are those of one second.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  effectd top --once\n  effectd top -o json --every-ms 200")]
pub(super) struct Top {
    /// Refresh interval in milliseconds
    #[arg(long, value_name = "NUMBER", default_value = "1000", value_parser = clap::value_parser!(u64).range(100..=60_000))]
    every_ms: u64,
    /// Print a page, and end; `-o json` prints the figures as JSON
    #[arg(long)]
    once: bool,
}

#[derive(Debug, Default)]
struct Snapshot {
    figures: Figures,
    at: Option<Instant>,
    rates: Rates,
    tools: Vec<ToolRow>,
    stages: Vec<StageRow>,
    breakers: Vec<BreakerView>,
    held: Vec<ApprovalView>,
    causes: Vec<CauseView>,
    counted: Option<Instant>,
    pause: Option<Pause>,
    policy_files_faulty: bool,
    failed_jobs: Vec<String>,
    store_damage: Option<String>,
}

/// Effects are paused.
#[derive(Debug)]
struct Pause {
    until: Option<Timestamp>,
    reason: Option<String>,
}

/// How often to fetch the causes of dead letters while the number of letters stays the same: the daemon reads all letters for it.
const COUNT_EVERY: Duration = Duration::from_secs(60);
/// The number of approvals that are fetched; the view says if there are more.
const HELD_SHOWN_MAX: usize = 1_000;
/// The time limit of one refresh.
const REPLY_MAX: Duration = Duration::from_secs(5);

impl Snapshot {
    /// Fetches the next snapshot, and compares it with this one.
    async fn next(&self, client: &mut Client) -> Result<Self, CliError> {
        let (status, text) = client.ask(Method::GET, "/metrics", Bytes::new()).await?;
        if status != 200 {
            return Err(ClientError::Strange(format!("/metrics answers {status}")).into());
        }
        let (figures, at) = (Figures::read(&String::from_utf8_lossy(&text)), Instant::now());
        let before = self.at.map(|before| (&self.figures, at - before));
        let held = held(client).await?;
        let health: Health = client.get("/healthz").await?;
        let letters = |figures: &Figures| (figures.letters, figures.letters_ever, figures.quarantined);
        let same = letters(&self.figures) == letters(&figures);
        let fresh = self.counted.filter(|counted| same && at - *counted < COUNT_EVERY);
        let causes = match fresh {
            Some(_) => self.causes.clone(),
            None => client.get("/v1/dlq/causes").await?,
        };
        let actors: Vec<ActorView> = client.get("/v1/tree").await?;
        let mut stages = figures.stages(before);
        for stage in &mut stages {
            if let Some(actor) = actors.iter().find(|actor| actor.name == stage.stage) {
                (stage.workers, stage.restarts) = (actor.workers, actor.restarts);
            }
        }
        Ok(Self {
            rates: before.map_or_else(Rates::default, |(before, time)| figures.rates(before, time)),
            tools: figures.tools(before),
            stages,
            breakers: client.get("/v1/breakers").await?,
            held,
            causes,
            counted: Some(fresh.unwrap_or(at)),
            failed_jobs: health.failed_jobs(),
            pause: health
                .paused
                .then_some(Pause { until: health.paused_until, reason: health.paused_reason }),
            policy_files_faulty: health.policy_files_faulty,
            store_damage: health.store_damage,
            figures,
            at: Some(at),
        })
    }

    /// [`Snapshot::next`] with a time limit.
    async fn next_in_time(&self, client: &mut Client) -> Result<Self, CliError> {
        if let Ok(next) = tokio::time::timeout(REPLY_MAX, self.next(client)).await {
            return next;
        }
        // A new connection, so that a late reply is not taken for the next one.
        *client = client.another();
        let why = format!("no answer within {} s", REPLY_MAX.as_secs());
        Err(ClientError::Broken(why).into())
    }

    fn to_json(&self) -> serde_json::Value {
        let (figures, pause) = (&self.figures, self.pause.as_ref());
        json!({
            "paused": pause.is_some(), "paused_until": pause.and_then(|pause| pause.until), "paused_reason": pause.and_then(|pause| pause.reason.as_ref()), "policy_files_faulty": self.policy_files_faulty, "failed_jobs": self.failed_jobs, "store_damage": self.store_damage, "pace": self.rates, "stages": self.stages, "tools": self.tools, "breakers": self.breakers, "dead_letters": self.causes,
            "held": self.held.iter().map(|held| json!({
                "approval_id": held.approval_id, "tool_id": held.tool_id, "expires_at": held.expires_at,
            })).collect::<Vec<_>>(),
            "dead_letters_all": figures.letters, "quarantined": figures.quarantined, "in_flight": figures.in_flight, "backlog": figures.backlog, "store_queued": figures.queued,
            "store_blocks_behind": figures.lag, "panics_and_stalls": figures.faults,
        })
    }
}

/// Pending approvals, up to [`HELD_SHOWN_MAX`] or a page more.
async fn held(client: &mut Client) -> Result<Vec<ApprovalView>, CliError> {
    let (mut path, mut held) = ("/v1/approvals".to_owned(), Vec::new());
    loop {
        let page: ApprovalList = client.get(&path).await?;
        held.extend(page.approvals);
        match page.next {
            Some(next) if held.len() < HELD_SHOWN_MAX => {
                path = format!("/v1/approvals?after={}", percent_encoded(&next));
            }
            Some(_) | None => return Ok(held),
        }
    }
}

impl Top {
    pub(super) async fn main(&self, common: &Common) -> Result<Exit, CliError> {
        let mut client = daemon_client(common)?;
        let every = Duration::from_millis(self.every_ms);
        let first = Snapshot::default().next_in_time(&mut client).await?;
        if !self.once && common.output == Form::Table {
            watch(&mut client, first, every).await?;
            return Ok(Exit::Done);
        }
        tokio::time::sleep(every).await;
        let snapshot = first.next_in_time(&mut client).await?;
        if !print_json(common.output, &snapshot.to_json()) {
            let page = snapshot.page(SystemClock.now());
            toned(&page.head, if page.is_normal { Tone::Good } else { Tone::Bad });
            page.lines.iter().for_each(|text| line(text));
        }
        Ok(Exit::Done)
    }
}

/// Draws and refreshes until an event ends the view.
async fn watch(client: &mut Client, mut snapshot: Snapshot, every: Duration) -> Result<(), CliError> {
    client.announce().await?;
    let mut screen = Screen::take("`effectd top --once`")?;
    let mut events = Events::of_terminal(every)?;
    let mut cursor = Cursor { focus: Focus::All, row: 0, opened: None, news: String::new() };
    let (mut error_shown, mut waiting) = (None::<String>, VecDeque::new());
    loop {
        cursor.keep_within(&snapshot);
        let view = View {
            snapshot: &snapshot,
            cursor: &cursor,
            now: SystemClock.now(),
            error: error_shown.as_deref(),
        };
        screen.draw(|frame| view.draw(frame))?;
        let event = match waiting.pop_front() {
            Some(event) => event,
            None => events.next().await,
        };
        let next = match event {
            Event::Stop => return Ok(()),
            Event::Resized => Next::Redraw,
            Event::Tick => match poll(client, &snapshot, &mut events, &mut waiting).await {
                None => return Ok(()),
                Some(Ok(next)) => {
                    (snapshot, error_shown) = (next, None);
                    Next::Redraw
                }
                // Keep the old figures, marked as old: the daemon may come back.
                Some(Err(error)) => {
                    error_shown = Some(error.to_string());
                    Next::Redraw
                }
            },
            Event::Key(key) => cursor.press(key.code, &snapshot),
        };
        match next {
            Next::Redraw => {}
            Next::Stop => return Ok(()),
            Next::Act(operation) => cursor.news = act(client, &operation).await,
            Next::Decide(approval) => {
                waiting.clear();
                match approvals::decide_on(client, &mut screen, &mut events, approval).await {
                    Ok(false) => {}
                    Ok(true) => return Ok(()),
                    Err(error) => cursor.news = error.to_string(),
                }
            }
        }
    }
}

/// What to do after a key.
enum Next {
    Redraw,
    Act(Operation),
    /// Show this approval in the inbox.
    Decide(String),
    Stop,
}

impl Cursor {
    /// Keeps the selection within its list, and closes a row that has gone.
    fn keep_within(&mut self, snapshot: &Snapshot) {
        let names = snapshot.names(self.focus);
        self.row = self.row.min(names.len().saturating_sub(1));
        if self.opened.as_ref().is_some_and(|name| !names.contains(name)) {
            self.opened = None;
        }
    }

    fn press(&mut self, key: KeyCode, snapshot: &Snapshot) -> Next {
        if let Some(focus) = focus_of(key) {
            let is_back = key == KeyCode::Esc && self.opened.is_some();
            let row = if is_back { self.row } else { 0 };
            let focus = if is_back { self.focus } else { focus };
            *self = Self { focus, row, opened: None, news: String::new() };
        } else if key == KeyCode::Char('q') {
            return Next::Stop;
        } else if let Some(name) = &self.opened {
            if key == KeyCode::Char('r') {
                match snapshot.remedy(self.focus, name) {
                    Ok(operation) => return Next::Act(operation),
                    Err(why) => why.clone_into(&mut self.news),
                }
            }
        } else if key == KeyCode::Down {
            self.row += 1;
        } else if key == KeyCode::Up {
            self.row = self.row.saturating_sub(1);
        } else if key == KeyCode::Enter {
            let name = snapshot.names(self.focus).into_iter().nth(self.row);
            match (name, self.focus) {
                (Some(approval), Focus::Held) => return Next::Decide(approval),
                (name, _) => self.opened = name,
            }
        }
        Next::Redraw
    }
}

impl Snapshot {
    /// The names of the rows of a list. The overview has no rows of its own.
    fn names(&self, focus: Focus) -> Vec<String> {
        match focus {
            Focus::All => Vec::new(),
            Focus::Stages => self.stages.iter().map(|row| row.stage.clone()).collect(),
            Focus::Tools => self.tools.iter().map(|row| row.tool.clone()).collect(),
            Focus::Breakers => self.breakers.iter().map(|row| row.key.clone()).collect(),
            Focus::Held => self.held.iter().map(|row| row.approval_id.clone()).collect(),
            Focus::Letters => self.causes.iter().map(|row| row.cause.clone()).collect(),
        }
    }

    /// What `r` does about an opened row.
    fn remedy(&self, focus: Focus, name: &str) -> Result<Operation, &'static str> {
        match focus {
            Focus::Breakers => Ok(Operation::ResetBreaker { key: name.to_owned() }),
            Focus::Letters => match self.causes.iter().find(|cause| cause.cause == name) {
                Some(cause) if cause.is_quarantined() => Err("quarantined: see `effectd quarantine list`"),
                Some(cause) => Ok(Operation::RequeueLetters { letters: vec![cause.newest] }),
                None => Err("it is gone"),
            },
            Focus::All | Focus::Stages | Focus::Tools | Focus::Held => Err("there is nothing to reset here"),
        }
    }
}

/// Carries out an operation, and says what it did.
async fn act(client: &mut Client, operation: &Operation) -> String {
    let sent = client.post("/v1/operations?preview=false", operation);
    let done: OperationView = match tokio::time::timeout(REPLY_MAX, sent).await {
        Ok(Ok(done)) => done,
        Ok(Err(error)) => return error.to_string(),
        Err(_) => {
            *client = client.another();
            return format!(
                "no answer within {} s; `effectd receipts list` shows whether it was done",
                REPLY_MAX.as_secs()
            );
        }
    };
    let letters = done.letters.iter().map(|letter| format!("letter {}: {}", letter.letter, letter.now));
    letters.chain(done.says.iter().cloned()).collect::<Vec<_>>().join("; ")
}

/// The next snapshot; `None` if an event ends the view. Other events are queued meanwhile.
async fn poll(
    client: &mut Client,
    snapshot: &Snapshot,
    events: &mut Events,
    waiting: &mut VecDeque<Event>,
) -> Option<Result<Snapshot, CliError>> {
    let mut soon = std::pin::pin!(snapshot.next_in_time(client));
    loop {
        let event = tokio::select! {
            next = &mut soon => return Some(next),
            event = events.next() => event,
        };
        match event {
            Event::Stop => return None,
            Event::Key(key) if key.code == KeyCode::Char('q') => return None,
            Event::Tick => {}
            Event::Resized | Event::Key(_) if waiting.len() >= WAITING_MAX => {}
            Event::Resized | Event::Key(_) => waiting.push_back(event),
        }
    }
}

/// The number of events that are queued during a refresh; a person does not press more keys.
const WAITING_MAX: usize = 64;

fn focus_of(code: KeyCode) -> Option<Focus> {
    let ways = [
        (KeyCode::Char('s'), Focus::Stages),
        (KeyCode::Char('t'), Focus::Tools),
        (KeyCode::Char('b'), Focus::Breakers),
        (KeyCode::Char('h'), Focus::Held),
        (KeyCode::Char('d'), Focus::Letters),
        (KeyCode::Esc, Focus::All),
    ];
    ways.into_iter().find(|(key, _)| *key == code).map(|(_, focus)| focus)
}
