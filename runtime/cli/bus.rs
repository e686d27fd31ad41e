//! `effectd bus`: topics as learners replay them and operators look after them, and the groups that keep their place in them.

use clap::Subcommand;
use effectd_contracts::{Operation, Topic};
use effectd_gateway::client::{Client, ClientError, percent_encoded};
use effectd_gateway::replay::{GroupView, Moved};
use effectd_gateway::upkeep::{EventList, StoreView};
use hyper::Method;

use super::backend::{Trouble, is_alone, with_client};
use super::operate::{self, Confirm, Doing};
use super::output::{Form, Printer, lines};
use super::{Common, complain};
use crate::exit::Exit;
use crate::runtime::Depth;

/// Look at topics, replay their events, and look after the groups that keep their place in them
///
/// Through the daemon if one runs, otherwise on the store itself. `effectd events` is the same command.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  effectd bus topics\n  effectd bus tail --group learner --once\n  \
    effectd bus seek learner --to start --execute"
)]
pub(super) struct BusCommand {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// List the topics, and where each begins and ends
    #[command(after_help = "Example:\n  effectd bus topics -o json")]
    Topics {
        /// How they are shown
        #[arg(long, short, value_enum, default_value = "table", value_name = "FORM")]
        output: Form,
    },
    /// List the groups of a topic, and how far each has come
    #[command(after_help = "Example:\n  effectd bus groups -o jsonl")]
    Groups {
        #[command(flatten)]
        topic: Which,
        /// How they are shown
        #[arg(long, short, value_enum, default_value = "table", value_name = "FORM")]
        output: Form,
    },
    Tail(Tail),
    /// Print the events of a part of a topic as JSON lines, in order, and move no group
    #[command(
        after_help = "Examples:\n  effectd bus replay --from 2h\n  effectd bus replay --from 0 --until 100 --topic ACTION_EXECUTED"
    )]
    Replay {
        /// The first: start, an offset, 2026-01-01T00:00:00Z, or how long ago: 90s, 15m, 2h, 7d
        #[arg(long, value_name = "PLACE", default_value = "start")]
        from: String,
        /// The first that is not printed: an offset
        #[arg(long, value_name = "OFFSET")]
        until: Option<u64>,
        #[command(flatten)]
        topic: Which,
    },
    /// Say where a group would be moved to; with --execute, move it, on record
    ///
    /// A group that there is none of is made. What it reads again it has read before: whoever works on it has to know.
    #[command(
        after_help = "Examples:\n  effectd bus seek learner --to start\n  effectd bus seek learner --to 2h --execute"
    )]
    Seek {
        /// Which group
        #[arg(value_name = "GROUP")]
        group: String,
        /// start, end, an offset, 2026-01-01T00:00:00Z, or how long ago: 90s, 15m, 2h, 7d
        #[arg(long, value_name = "PLACE")]
        to: String,
        /// Move it
        #[arg(long)]
        execute: bool,
        #[command(flatten)]
        topic: Which,
        /// How the answer is shown
        #[arg(long, short, value_enum, default_value = "table", value_name = "FORM")]
        output: Form,
    },
    /// Write the events of a topic with their envelopes as JSON lines, in order
    ///
    /// What is sealed is not opened: such an event has no body here.
    #[command(after_help = "Example:\n  effectd bus export ACTION_EXECUTED")]
    Export {
        /// Which topic
        #[arg(value_name = "TOPIC")]
        topic: String,
        /// The first event; without it, the first that is kept
        #[arg(long, value_name = "OFFSET")]
        from: Option<u64>,
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
    after_help = "Examples:\n  effectd bus tail --group learner --once\n  effectd bus tail --once --from 2h"
)]
struct Tail {
    /// Go on where this group was, and keep its place
    #[arg(long, value_name = "GROUP")]
    group: Option<String>,
    /// Begin there: start, end, an offset, 2026-01-01T00:00:00Z, or how long ago: 2h [default: where the group was, or start]
    ///
    /// A group is moved there first, as by `bus seek`: that is said, asked, and on record.
    #[arg(long, value_name = "PLACE")]
    from: Option<String>,
    #[command(flatten)]
    confirm: Confirm,
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

impl BusCommand {
    pub(super) fn main(self, common: &Common) -> Exit {
        super::block_on(async {
            match &self.verb {
                Verb::Seek {
                    group,
                    to,
                    execute,
                    topic,
                    output,
                } => {
                    let operation = Operation::SeekGroup {
                        topic: topic.topic.clone(),
                        group: group.clone(),
                        to: to.clone(),
                    };
                    return move_group(common, &operation, *execute, *output).await;
                }
                Verb::Export { topic, from } => return export(common, topic, *from).await,
                Verb::Tail(tail) => {
                    if !tail.moved(common).await? {
                        return Ok(Exit::Usage);
                    }
                }
                Verb::Topics { .. } | Verb::Groups { .. } | Verb::Replay { .. } => {}
            }
            with_client(common, Depth::Store, async |client| match &self.verb {
                Verb::Topics { output } => topics(client, *output).await,
                Verb::Groups { topic, output } => groups(client, topic, *output).await,
                Verb::Tail(tail) => tail.main(client).await,
                Verb::Replay { from, until, topic } => replayed(client, topic, from, *until).await,
                Verb::Seek { .. } | Verb::Export { .. } => Ok(()),
            })
            .await?;
            Ok(Exit::Done)
        })
    }
}

async fn move_group(
    common: &Common,
    operation: &Operation,
    execute: bool,
    form: Form,
) -> Result<Exit, Trouble> {
    let doing = if execute { Doing::ForReal } else { Doing::Preview };
    let told = operate::ask(common, operation, doing).await?;
    operate::tell(&told, form);
    if !execute {
        complain(&"nothing was moved; add --execute to do it");
    }
    Ok(Exit::Done)
}

const TOPICS: [(&str, usize); 3] = [("TOPIC", 24), ("BEGIN", 10), ("END", 0)];

async fn topics(client: &mut Client, form: Form) -> Result<(), Trouble> {
    let told: StoreView = client.get("/v1/store").await?;
    let mut printer = Printer::new(form, true, &TOPICS);
    for (topic, end) in &told.events {
        let begin = told.begins.get(topic).copied().unwrap_or(0);
        let value = serde_json::json!({ "topic": topic, "begin": begin, "end": end });
        printer.row(&value, &[topic, &begin.to_string(), &end.to_string()]);
    }
    printer.finish();
    Ok(())
}

async fn events(client: &mut Client, topic: &str, from: &str, wait_ms: u64) -> Result<EventList, Trouble> {
    let path = format!(
        "/v1/store/topics/{}?from={}&wait_ms={wait_ms}",
        percent_encoded(topic),
        percent_encoded(from)
    );
    Ok(client.get(&path).await?)
}

async fn replayed(client: &mut Client, which: &Which, from: &str, until: Option<u64>) -> Result<(), Trouble> {
    let mut from = from.to_owned();
    loop {
        let mut page = events(client, &which.topic, &from, 0).await?;
        let offset = |event: &serde_json::Value| event["offset"].as_u64().unwrap_or(0);
        page.events
            .retain(|event| until.is_none_or(|until| offset(event) < until));
        let over = page.events.is_empty() || page.next >= page.end;
        if !lines(texts(&page)) || over {
            return Ok(());
        }
        from = page.next.to_string();
    }
}

/// Writes a topic with its envelopes, page by page, so that any length takes the same memory.
pub(super) async fn export(common: &Common, topic: &str, from: Option<u64>) -> Result<Exit, Trouble> {
    with_client(common, Depth::Store, async |client| {
        let mut from = from.map_or_else(|| "start".to_owned(), |from| from.to_string());
        loop {
            let page = events(client, topic, &from, 0).await?;
            let over = page.events.is_empty() || page.next >= page.end;
            if !lines(page.events.iter().map(ToString::to_string)) || over {
                return Ok(Exit::Done);
            }
            from = page.next.to_string();
        }
    })
    .await
}

async fn groups(client: &mut Client, which: &Which, form: Form) -> Result<(), Trouble> {
    let path = format!("/v1/store/topics/{}/groups", percent_encoded(&which.topic));
    let groups: Vec<GroupView> = client.get(&path).await?;
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

async fn seek(client: &mut Client, topic: &str, group: &str, to: &str) -> Result<Moved, Trouble> {
    let path = format!("{}?to={}", path_of(topic, group), percent_encoded(to));
    Ok(client.call(Method::POST, &path, "").await?)
}

impl Tail {
    async fn main(&self, client: &mut Client) -> Result<(), Trouble> {
        let once = self.once || is_alone(client);
        let mut from = self.begin(client).await?;
        loop {
            let page = match self.page(client, &from, once).await {
                Err(Trouble::Client(error @ (ClientError::NoDaemon(_) | ClientError::Broken(_))))
                    if !once =>
                {
                    complain(&format!("{error}; waiting for it to come back"));
                    back(client).await;
                    continue;
                }
                page => page?,
            };
            // Whoever has closed the other end has not read it.
            if !lines(texts(&page)) {
                return Ok(());
            }
            from = page.next.to_string();
            if !page.events.is_empty() {
                self.keep(client, &from, once).await?;
            } else if once {
                return Ok(());
            }
        }
    }

    /// Moves the group to where it is to begin, if it was said; `false` if nobody said yes to that.
    async fn moved(&self, common: &Common) -> Result<bool, Trouble> {
        let (Some(group), Some(to)) = (self.group.clone(), self.from.clone()) else {
            return Ok(true);
        };
        let topic = self.topic.topic.clone();
        let operation = Operation::SeekGroup { topic, group, to };
        Ok(operate::perform(common, &operation, self.confirm)
            .await?
            .is_some())
    }

    async fn begin(&self, client: &mut Client) -> Result<String, Trouble> {
        let topic = &self.topic.topic;
        let Some(group) = &self.group else {
            return Ok(self.from.clone().unwrap_or_else(|| "start".to_owned()));
        };
        let moved: Moved = client.get(&path_of(topic, group)).await?;
        Ok(moved.offset.to_string())
    }

    async fn page(&self, client: &mut Client, from: &str, once: bool) -> Result<EventList, Trouble> {
        let wait = if once { 0 } else { WAIT_STEP_MS };
        events(client, &self.topic.topic, from, wait).await
    }

    /// What was written out counts as read. Asked again after a break, it does the same once more.
    async fn keep(&self, client: &mut Client, reached: &str, once: bool) -> Result<(), Trouble> {
        let Some(group) = &self.group else { return Ok(()) };
        loop {
            match seek(client, &self.topic.topic, group, reached).await {
                Err(Trouble::Client(ClientError::NoDaemon(_) | ClientError::Broken(_))) if !once => {
                    back(client).await;
                }
                kept => return kept.map(drop),
            }
        }
    }
}

async fn back(client: &mut Client) {
    while client.is_there().await.is_err() {
        tokio::time::sleep(LOOK).await;
    }
}

/// Each event as it is; what is sealed has only its envelope.
fn texts(page: &EventList) -> impl Iterator<Item = String> {
    page.events.iter().map(|event| {
        let body = event.get("body").filter(|body| !body.is_null());
        body.unwrap_or(event).to_string()
    })
}
