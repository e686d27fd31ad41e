//! `effectd top`: the running daemon, live.

mod figures;
mod picture;

use std::time::{Duration, Instant};

use effectd_contracts::{Clock, SystemClock};
use effectd_gateway::letters::CauseView;
use effectd_gateway::views::approvals::{ApprovalList, ApprovalView};
use effectd_gateway::views::{BreakerView, Health};
use hyper::Method;
use hyper::body::Bytes;
use serde::de::DeserializeOwned;
use serde_json::json;

use super::Common;
use super::backend::{Trouble, client_state, socket};
use super::output::line;
use crate::client::{Client, ClientError};
use crate::exit::Exit;
use crate::tui::ratatui::crossterm::event::KeyCode;
use crate::tui::{Event, Events, Screen};
use figures::{Figures, Pace, ToolRow};
use picture::{Focus, Picture};

/// Watch the running daemon: throughput, latency, queues, outcomes by tool, breakers, what waits for people, dead letters
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

/// What was seen last.
#[derive(Debug, Default)]
struct Seen {
    figures: Figures,
    at: Option<Instant>,
    pace: Pace,
    tools: Vec<ToolRow>,
    breakers: Vec<BreakerView>,
    held: Vec<ApprovalView>,
    causes: Vec<CauseView>,
    counted: Option<Instant>,
    paused: bool,
}

/// How often dead letters are counted: all of them are looked at for it.
const COUNT_EVERY: Duration = Duration::from_secs(3);

impl Seen {
    /// Asks the daemon, and compares with what was seen before.
    async fn next(&self, client: &mut Client) -> Result<Self, Trouble> {
        let (status, text) = client.ask(Method::GET, "/metrics", Bytes::new()).await?;
        if status != 200 {
            return Err(ClientError::Strange(format!("/metrics answers {status}")).into());
        }
        let (figures, at) = (Figures::read(&String::from_utf8_lossy(&text)), Instant::now());
        let before = self.at.map(|before| (&self.figures, at - before));
        let held: ApprovalList = get(client, "/v1/approvals").await?;
        let health: Health = get(client, "/healthz").await?;
        let fresh = self.counted.filter(|counted| at - *counted < COUNT_EVERY);
        let causes = match fresh {
            Some(_) => self.causes.clone(),
            None => get(client, "/v1/dlq/causes").await?,
        };
        Ok(Self {
            pace: before.map_or_else(Pace::default, |(before, time)| figures.pace(before, time)),
            tools: figures.tools(before),
            breakers: get(client, "/v1/breakers").await?,
            held: held.approvals,
            causes,
            counted: Some(fresh.unwrap_or(at)),
            paused: health.paused,
            figures,
            at: Some(at),
        })
    }

    fn told(&self) -> serde_json::Value {
        let figures = &self.figures;
        json!({
            "paused": self.paused, "pace": self.pace, "tools": self.tools, "breakers": self.breakers, "dead_letters": self.causes,
            "held": self.held.iter().map(|held| json!({
                "approval_id": held.approval_id, "tool_id": held.tool_id, "expires_at": held.expires_at,
            })).collect::<Vec<_>>(),
            "in_flight": figures.in_flight, "backlog": figures.backlog, "store_queued": figures.queued,
            "store_blocks_behind": figures.lag, "panics_and_stalls": figures.faults,
        })
    }
}

async fn get<T: DeserializeOwned>(client: &mut Client, path: &str) -> Result<T, Trouble> {
    client
        .call(Method::GET, path, "")
        .await?
        .map_err(Trouble::Refused)
}

impl Top {
    pub(super) fn main(&self, common: &Common) -> Exit {
        super::block_on(async {
            let state = client_state(common);
            let mut client = Client::new(socket(common, &state)?);
            let every = Duration::from_millis(self.every_ms);
            let first = Seen::default().next(&mut client).await?;
            if self.once {
                tokio::time::sleep(every).await;
                let seen = first.next(&mut client).await?;
                line(&serde_json::to_string_pretty(&seen.told()).unwrap_or_default());
                return Ok(Exit::Done);
            }
            watch(&mut client, first, every).await?;
            Ok(Exit::Done)
        })
    }
}

/// Draws and looks again, until somebody has seen enough.
async fn watch(client: &mut Client, mut seen: Seen, every: Duration) -> Result<(), Trouble> {
    let mut screen = Screen::take()?;
    let mut events = Events::of_terminal(every)?;
    let (mut focus, mut from, mut trouble) = (Focus::All, 0_usize, None::<String>);
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
        match events.next().await {
            Event::Stop => return Ok(()),
            Event::Resized => {}
            Event::Tick => match seen.next(client).await {
                Ok(next) => (seen, trouble) = (next, None),
                // What was seen stays, and it is said that it is old: the daemon may come back.
                Err(error) => trouble = Some(error.to_string()),
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

/// The list that a key leads to.
fn led_to(code: KeyCode) -> Option<Focus> {
    let ways = [
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
