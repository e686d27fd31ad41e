//! `effectd top`: the running daemon, live.

mod figures;
mod picture;

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use effectd_contracts::{Clock, SystemClock};
use effectd_gateway::client::{Client, ClientError, percent_encoded};
use effectd_gateway::letters::CauseView;
use effectd_gateway::views::approvals::{ApprovalList, ApprovalView};
use effectd_gateway::views::{BreakerView, Health};
use hyper::Method;
use hyper::body::Bytes;
use serde_json::json;

use super::Common;
use super::backend::{Trouble, client_state, socket};
use super::output::data;
use crate::exit::Exit;
use crate::tui::ratatui::crossterm::event::KeyCode;
use crate::tui::{Event, Events, Screen};
use figures::{Figures, Pace, StageRow, ToolRow};
use picture::{Focus, Picture};

/// Watch the running daemon: throughput, latency, stages and their queues, outcomes by tool, breakers, what waits for people, dead letters
///
/// Keys lead to one of the lists and back. `--once` prints the same as one JSON value, for programs and where there is no
/// terminal; rates are those of one second then.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  effectd top --once\n  effectd top --once --every-ms 200")]
pub(super) struct Top {
    /// How often is looked
    #[arg(long, value_name = "NUMBER", default_value = "1000", value_parser = clap::value_parser!(u64).range(100..=60_000))]
    every_ms: u64,
    /// Print what is to be seen as JSON, and end
    #[arg(long)]
    once: bool,
}

#[derive(Debug, Default)]
struct Seen {
    figures: Figures,
    at: Option<Instant>,
    pace: Pace,
    tools: Vec<ToolRow>,
    stages: Vec<StageRow>,
    breakers: Vec<BreakerView>,
    held: Vec<ApprovalView>,
    causes: Vec<CauseView>,
    counted: Option<Instant>,
    paused: bool,
}

/// How often the causes of dead letters are asked for although none came or went: all letters are looked at for it.
const COUNT_EVERY: Duration = Duration::from_secs(60);
/// The most questions that are looked at; beyond them it is said that there are more.
const HELD_SHOWN_MAX: usize = 1_000;
/// How long a daemon is waited for that does not answer.
const LOOK_MAX: Duration = Duration::from_secs(5);

impl Seen {
    /// Asks the daemon, and compares with what was seen before.
    async fn next(&self, client: &mut Client) -> Result<Self, Trouble> {
        let (status, text) = client.ask(Method::GET, "/metrics", Bytes::new()).await?;
        if status != 200 {
            return Err(ClientError::Strange(format!("/metrics answers {status}")).into());
        }
        let (figures, at) = (Figures::read(&String::from_utf8_lossy(&text)), Instant::now());
        let before = self.at.map(|before| (&self.figures, at - before));
        let held = held(client).await?;
        let health: Health = client.get("/healthz").await?;
        let same = self.figures.letters == figures.letters;
        let fresh = self.counted.filter(|counted| same && at - *counted < COUNT_EVERY);
        let causes = match fresh {
            Some(_) => self.causes.clone(),
            None => client.get("/v1/dlq/causes").await?,
        };
        Ok(Self {
            pace: before.map_or_else(Pace::default, |(before, time)| figures.pace(before, time)),
            tools: figures.tools(before),
            stages: figures.stages(before),
            breakers: client.get("/v1/breakers").await?,
            held,
            causes,
            counted: Some(fresh.unwrap_or(at)),
            paused: health.paused,
            figures,
            at: Some(at),
        })
    }

    /// [`Seen::next`], from a daemon that answers.
    async fn soon(&self, client: &mut Client) -> Result<Self, Trouble> {
        if let Ok(next) = tokio::time::timeout(LOOK_MAX, self.next(client)).await {
            return next;
        }
        // The answer may still come, and would be taken for that to the next question.
        *client = client.another();
        let why = format!("no answer within {} s", LOOK_MAX.as_secs());
        Err(ClientError::Broken(why).into())
    }

    fn told(&self) -> serde_json::Value {
        let figures = &self.figures;
        json!({
            "paused": self.paused, "pace": self.pace, "stages": self.stages, "tools": self.tools, "breakers": self.breakers, "dead_letters": self.causes,
            "held": self.held.iter().map(|held| json!({
                "approval_id": held.approval_id, "tool_id": held.tool_id, "expires_at": held.expires_at,
            })).collect::<Vec<_>>(),
            "dead_letters_all": figures.letters.0, "in_flight": figures.in_flight, "backlog": figures.backlog, "store_queued": figures.queued,
            "store_blocks_behind": figures.lag, "panics_and_stalls": figures.faults,
        })
    }
}

/// What waits for people, as much of it as is shown.
async fn held(client: &mut Client) -> Result<Vec<ApprovalView>, Trouble> {
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
    pub(super) fn main(&self, common: &Common) -> Exit {
        super::block_on(async {
            let state = client_state(common);
            let mut client = Client::new(socket(common, &state)?);
            let every = Duration::from_millis(self.every_ms);
            let first = Seen::default().soon(&mut client).await?;
            if self.once {
                tokio::time::sleep(every).await;
                let seen = first.soon(&mut client).await?;
                data(&serde_json::to_string_pretty(&seen.told()).unwrap_or_default());
                return Ok(Exit::Done);
            }
            watch(&mut client, first, every).await?;
            Ok(Exit::Done)
        })
    }
}

/// Draws and looks again, until somebody has seen enough.
async fn watch(client: &mut Client, mut seen: Seen, every: Duration) -> Result<(), Trouble> {
    let mut screen = Screen::take("`effectd top --once`")?;
    let mut events = Events::of_terminal(every)?;
    let (mut focus, mut from, mut trouble) = (Focus::All, 0_usize, None::<String>);
    let mut waiting = VecDeque::new();
    loop {
        let picture = Picture {
            seen: &seen,
            focus,
            from,
            now: SystemClock.now(),
            trouble: trouble.as_deref(),
        };
        screen.draw(|frame| picture.draw(frame))?;
        let last = picture.list(focus).1.len().saturating_sub(1);
        let event = match waiting.pop_front() {
            Some(event) => event,
            None => events.next().await,
        };
        match event {
            Event::Stop => return Ok(()),
            Event::Resized => {}
            Event::Tick => match look(client, &seen, &mut events, &mut waiting).await {
                None => return Ok(()),
                Some(Ok(next)) => (seen, trouble) = (next, None),
                // What was seen stays, and it is said that it is old: the daemon may come back.
                Some(Err(error)) => trouble = Some(error.to_string()),
            },
            Event::Key(key) if key.code == KeyCode::Char('q') => return Ok(()),
            Event::Key(key) => {
                if let Some(next) = led_to(key.code) {
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

/// Looks again; `None` if somebody has seen enough, also while nobody answers. What else happens meanwhile waits.
async fn look(
    client: &mut Client,
    seen: &Seen,
    events: &mut Events,
    waiting: &mut VecDeque<Event>,
) -> Option<Result<Seen, Trouble>> {
    let mut soon = std::pin::pin!(seen.soon(client));
    loop {
        let event = tokio::select! {
            next = &mut soon => return Some(next),
            event = events.next() => event,
        };
        match event {
            Event::Stop => return None,
            Event::Key(key) if key.code == KeyCode::Char('q') => return None,
            Event::Tick => {}
            // Those that are pressed while nobody answers are few; more than that are not keys of a person.
            Event::Resized | Event::Key(_) if waiting.len() >= WAITING_MAX => {}
            Event::Resized | Event::Key(_) => waiting.push_back(event),
        }
    }
}

/// How many keys are remembered that were pressed while the daemon was asked.
const WAITING_MAX: usize = 64;

fn led_to(code: KeyCode) -> Option<Focus> {
    let ways = [
        (KeyCode::Char('s'), Focus::Stages),
        (KeyCode::Char('t'), Focus::Tools),
        (KeyCode::Char('b'), Focus::Breakers),
        (KeyCode::Char('h'), Focus::Held),
        (KeyCode::Char('d'), Focus::Letters),
        (KeyCode::Esc, Focus::All),
    ];
    ways.into_iter()
        .find(|(key, _)| *key == code)
        .map(|(_, focus)| focus)
}
