//! `effectd top`: a live view of the running daemon.

mod metrics;
mod view;

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use effectd_contracts::{Clock, SystemClock};
use effectd_gateway::client::{Client, ClientError, percent_encoded};
use effectd_gateway::views::approvals::{ApprovalList, ApprovalView};
use effectd_gateway::views::dead_letters::CauseView;
use effectd_gateway::views::{ActorView, BreakerView, Health};
use hyper::Method;
use hyper::body::Bytes;
use serde_json::json;

use super::backend::daemon_client;
use super::{CliError, Common, data};
use crate::exit::Exit;
use crate::tui::ratatui::crossterm::event::KeyCode;
use crate::tui::{Event, Events, Screen};
use metrics::{Figures, Rates, StageRow, ToolRow};
use view::{Focus, View};

/// Watch the running daemon: throughput, latency, stages and queues, outcomes by tool, breakers, pending approvals, dead letters
///
/// Keys select one of the lists. `--once` prints the same as one JSON value, for programs and without a terminal; its rates are those of
/// one second.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  effectd top --once\n  effectd top --once --every-ms 200")]
pub(super) struct Top {
    /// Refresh interval in milliseconds
    #[arg(long, value_name = "NUMBER", default_value = "1000", value_parser = clap::value_parser!(u64).range(100..=60_000))]
    every_ms: u64,
    /// Print the figures as JSON, and end
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
    paused: bool,
    policy_files_faulty: bool,
    store_damage: Option<String>,
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
            paused: health.paused,
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
        let figures = &self.figures;
        json!({
            "paused": self.paused, "policy_files_faulty": self.policy_files_faulty, "store_damage": self.store_damage, "pace": self.rates, "stages": self.stages, "tools": self.tools, "breakers": self.breakers, "dead_letters": self.causes,
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
        if self.once {
            tokio::time::sleep(every).await;
            let snapshot = first.next_in_time(&mut client).await?;
            data(&serde_json::to_string_pretty(&snapshot.to_json()).unwrap_or_default());
        } else {
            watch(&mut client, first, every).await?;
        }
        Ok(Exit::Done)
    }
}

/// Draws and refreshes until an event ends the view.
async fn watch(client: &mut Client, mut snapshot: Snapshot, every: Duration) -> Result<(), CliError> {
    let mut screen = Screen::take("`effectd top --once`")?;
    let mut events = Events::of_terminal(every)?;
    let (mut focus, mut from, mut error_shown) = (Focus::All, 0_usize, None::<String>);
    let mut waiting = VecDeque::new();
    loop {
        let view =
            View { snapshot: &snapshot, focus, from, now: SystemClock.now(), error: error_shown.as_deref() };
        screen.draw(|frame| view.draw(frame))?;
        let last = view.list(focus).1.len().saturating_sub(1);
        let event = match waiting.pop_front() {
            Some(event) => event,
            None => events.next().await,
        };
        match event {
            Event::Stop => return Ok(()),
            Event::Resized => {}
            Event::Tick => match poll(client, &snapshot, &mut events, &mut waiting).await {
                None => return Ok(()),
                Some(Ok(next)) => (snapshot, error_shown) = (next, None),
                // Keep the old figures, marked as old: the daemon may come back.
                Some(Err(error)) => error_shown = Some(error.to_string()),
            },
            Event::Key(key) if key.code == KeyCode::Char('q') => return Ok(()),
            Event::Key(key) => {
                if let Some(next) = focus_of(key.code) {
                    (focus, from) = (next, 0);
                } else if key.code == KeyCode::Down {
                    from = (from + 1).min(last);
                } else if key.code == KeyCode::Up {
                    from = from.saturating_sub(1);
                }
            }
        }
    }
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
