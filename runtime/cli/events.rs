//! `effectd events`: a topic as learners replay it, in groups that keep their place.

use clap::Subcommand;
use effectd_bus::Store;
use effectd_contracts::{Clock, SystemClock, Topic};
use effectd_gateway::replay::{self, GroupView, Moved};
use effectd_gateway::upkeep::{self, EventList};
use hyper::Method;

use super::backend::Trouble;
use super::output::{Form, Printer, line, lines};
use super::stored::Keeper;
use super::{Common, complain};
use crate::client::{ClientError, percent_encoded};
use crate::exit::Exit;

/// Replay events, in groups that keep their place in the store
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  effectd events tail --group learner --once\n  effectd events seek learner --to start\n  effectd events groups"
)]
pub(super) struct EventsCommand {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    Tail(Tail),
    /// List the groups of a topic, and how far each has come
    #[command(after_help = "Example:\n  effectd events groups -o jsonl")]
    Groups {
        #[command(flatten)]
        topic: Which,
        /// How they are shown
        #[arg(long, short, value_enum, default_value = "table", value_name = "FORM")]
        output: Form,
    },
    /// Move a group to another place, and make it if there is none
    #[command(
        after_help = "Examples:\n  effectd events seek learner --to start\n  effectd events seek learner --to 2h"
    )]
    Seek {
        /// Which group
        #[arg(value_name = "GROUP")]
        group: String,
        /// start, end, an offset, 2026-01-01T00:00:00Z, or how long ago: 90s, 15m, 2h, 7d
        #[arg(long, value_name = "PLACE")]
        to: String,
        #[command(flatten)]
        topic: Which,
    },
}

#[derive(Debug, Clone, clap::Args)]
struct Which {
    /// Which topic
    #[arg(long, value_name = "TOPIC", default_value = Topic::ActionExecuted.as_str())]
    topic: String,
}

/// Print events as JSON lines (CloudEvents), in order, and each new one as it comes
///
/// A group keeps its place in the store: each page of events counts as read when it is written out, so that after a crash
/// some may come twice, and none is missed; tell them apart by their `id`. One reader a group; any number of groups. Without a
/// daemon nothing new comes, and it ends.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  effectd events tail --group learner --once\n  effectd events tail --once --from 2h"
)]
struct Tail {
    /// Go on where this group was, and keep its place
    #[arg(long, value_name = "GROUP")]
    group: Option<String>,
    /// Begin there: start, end, an offset, 2026-01-01T00:00:00Z, or how long ago: 2h [default: where the group was, or start]
    #[arg(long, value_name = "PLACE")]
    from: Option<String>,
    /// End when there are no more
    #[arg(long)]
    once: bool,
    #[command(flatten)]
    topic: Which,
}

const COLUMNS: [(&str, usize); 4] = [("GROUP", 24), ("OFFSET", 10), ("BEHIND", 10), ("END", 0)];
/// How long one request waits for the next event; then it is asked again.
const WAIT_STEP_MS: u64 = 60_000;
/// The pause before a daemon that is away is asked again.
const LOOK: std::time::Duration = std::time::Duration::from_millis(200);

impl EventsCommand {
    pub(super) fn main(self, common: &Common) -> Exit {
        super::block_on(async {
            let mut keeper = Keeper::reach(common).await?;
            let done = match &self.verb {
                Verb::Tail(tail) => tail.main(&mut keeper).await,
                Verb::Groups { topic, output } => groups(&mut keeper, topic, *output).await,
                Verb::Seek { group, to, topic } => {
                    let moved = seek(&mut keeper, &topic.topic, group, to).await;
                    moved.map(|moved| line(&format!("{group} reads from {} on", moved.offset)))
                }
            };
            done?;
            keeper.close()?;
            Ok(Exit::Done)
        })
    }
}

async fn groups(keeper: &mut Keeper, which: &Which, form: Form) -> Result<(), Trouble> {
    let path = format!("/v1/store/topics/{}/groups", percent_encoded(&which.topic));
    let groups: Vec<GroupView> = keeper
        .ask(Method::GET, &path, |store| replay::groups(store, &which.topic))
        .await?;
    let mut printer = Printer::new(form, true, &COLUMNS);
    for group in &groups {
        // Plain data with text keys, for which serde_json has no failure.
        let value = serde_json::to_value(group).unwrap_or_default();
        let numbers = [group.offset, group.behind, group.end].map(|number| number.to_string());
        printer.row(&value, &[&group.group, &numbers[0], &numbers[1], &numbers[2]]);
    }
    printer.finish();
    Ok(())
}

fn path_of(topic: &str, group: &str) -> String {
    let (topic, group) = (percent_encoded(topic), percent_encoded(group));
    format!("/v1/store/topics/{topic}/groups/{group}")
}

async fn seek(keeper: &mut Keeper, topic: &str, group: &str, to: &str) -> Result<Moved, Trouble> {
    let path = format!("{}?to={}", path_of(topic, group), percent_encoded(to));
    let directly = |store: &dyn Store| {
        let to = replay::place(to, SystemClock.now())?;
        replay::move_to(store, topic, group, to)
    };
    keeper.ask(Method::POST, &path, directly).await
}

impl Tail {
    async fn main(&self, keeper: &mut Keeper) -> Result<(), Trouble> {
        let once = self.once || matches!(keeper, Keeper::Direct { .. });
        let mut from = self.begin(keeper).await?;
        loop {
            let page = match self.page(keeper, &from, once).await {
                Err(Trouble::Client(error @ (ClientError::NoDaemon(_) | ClientError::Broken(_))))
                    if !once =>
                {
                    complain(&format!("{error}; waiting for it to come back"));
                    back(keeper).await;
                    continue;
                }
                page => page?,
            };
            // Whoever has closed the other end has not read it.
            if !lines(texts(&page))? {
                return Ok(());
            }
            from = page.next.to_string();
            if !page.events.is_empty() {
                self.keep(keeper, &from, once).await?;
            } else if once {
                return Ok(());
            }
        }
    }

    /// Where to begin, as a place.
    async fn begin(&self, keeper: &mut Keeper) -> Result<String, Trouble> {
        let topic = &self.topic.topic;
        let moved = match (&self.group, &self.from) {
            (None, from) => return Ok(from.clone().unwrap_or_else(|| "start".to_owned())),
            (Some(group), Some(from)) => seek(keeper, topic, group, from).await?,
            (Some(group), None) => {
                let path = path_of(topic, group);
                keeper
                    .ask(Method::GET, &path, |store| replay::standing(store, topic, group))
                    .await?
            }
        };
        Ok(moved.offset.to_string())
    }

    async fn page(&self, keeper: &mut Keeper, from: &str, once: bool) -> Result<EventList, Trouble> {
        let topic = &self.topic.topic;
        let wait = if once { 0 } else { WAIT_STEP_MS };
        let path = format!(
            "/v1/store/topics/{}?from={}&wait_ms={wait}",
            percent_encoded(topic),
            percent_encoded(from)
        );
        let directly = |store: &dyn Store| {
            let place = replay::place(from, SystemClock.now())?;
            upkeep::events(store, topic, Some(replay::offset_of(store, topic, place)?))
        };
        keeper.ask(Method::GET, &path, directly).await
    }

    /// What was written out counts as read. Asked again after a break, it does the same once more.
    async fn keep(&self, keeper: &mut Keeper, reached: &str, once: bool) -> Result<(), Trouble> {
        let Some(group) = &self.group else { return Ok(()) };
        loop {
            match seek(keeper, &self.topic.topic, group, reached).await {
                Err(Trouble::Client(ClientError::NoDaemon(_) | ClientError::Broken(_))) if !once => {
                    back(keeper).await;
                }
                kept => return kept.map(drop),
            }
        }
    }
}

async fn back(keeper: &mut Keeper) {
    if let Keeper::Daemon(client) = keeper {
        while client.is_there().await.is_err() {
            tokio::time::sleep(LOOK).await;
        }
    }
}

/// Each event as it is; what is sealed has only its envelope.
fn texts(page: &EventList) -> impl Iterator<Item = String> {
    page.events.iter().map(|event| {
        let body = event.get("body").filter(|body| !body.is_null());
        body.unwrap_or(event).to_string()
    })
}
