//! `effectd bus`: topics, their events, and consumer groups.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::time::Duration;

use clap::Subcommand;
use effectd_contracts::{Operation, Topic};
use effectd_gateway::client::{Client, ClientError, percent_encoded};
use effectd_gateway::views::store::{EventList, GroupView, Moved, StoreView};
use hyper::Method;
use serde::Serialize;
use serde_json::json;

use super::backend::{daemon_client, reconnected};
use super::event_command::{EventCommand, Handled, Stop};
use super::mutation::{ChangeArgs, Terms};
use super::{
    CliError, Common, Confirm, Depth, Printer, eprint_line, get, is_in_process, lines, mutation, print_rows,
    with_client,
};
use crate::exit::Exit;

/// List topics, replay their events, and manage consumer groups
///
/// Uses the daemon if one runs, otherwise the store directly. `effectd events` is the same command.
#[derive(Debug, Subcommand)]
#[command(after_help = "Examples:\n  effectd bus topics\n  effectd bus tail --group learner --once\n  \
    effectd bus seek learner --to start --yes")]
pub(super) enum BusCommand {
    /// List the topics with their first and last offsets
    #[command(after_help = "Example:\n  effectd bus topics -o json")]
    Topics,
    /// List the consumer groups with their topics and offsets
    #[command(
        after_help = "Examples:\n  effectd bus groups -o jsonl\n  effectd bus groups --topic APPROVALS"
    )]
    Groups {
        /// Only the groups of this topic
        #[arg(long, value_name = "TOPIC")]
        topic: Option<String>,
    },
    Tail(Tail),
    /// Print a range of a topic's events as JSON lines, without moving a group
    #[command(
        after_help = "Examples:\n  effectd bus replay --from 2h\n  effectd bus replay --from 0 --until 100 --topic ACTION_EXECUTED"
    )]
    Replay {
        /// The first event: start, an offset, 2026-01-01T00:00:00Z, or how long ago: 90s, 15m, 2h, 7d
        #[arg(long, value_name = "PLACE", default_value = "start")]
        from: String,
        /// The offset after the last event
        #[arg(long, value_name = "OFFSET")]
        until: Option<u64>,
        #[command(flatten)]
        topic: Which,
    },
    /// Move a group, and leave a receipt
    ///
    /// Shows first where it would be moved, and asks. A missing group is created. The group may read events again that it has read before: its consumers must expect that.
    #[command(
        after_help = "Examples:\n  effectd bus seek learner --to start --dry-run\n  effectd bus seek learner --to 2h --yes"
    )]
    Seek {
        /// The group's name
        #[arg(value_name = "GROUP")]
        group: String,
        /// The position: start, end, an offset, 2026-01-01T00:00:00Z, or how long ago: 90s, 15m, 2h, 7d
        #[arg(long, value_name = "PLACE")]
        to: String,
        #[command(flatten)]
        topic: Which,
        #[command(flatten)]
        args: ChangeArgs,
    },
    /// Write the events of a topic as JSON lines (CloudEvents with their offsets), in order
    ///
    /// Sealed events are not opened: they have no `data` here.
    #[command(after_help = "Example:\n  effectd bus export ACTION_EXECUTED")]
    Export {
        /// The topic
        #[arg(value_name = "TOPIC")]
        topic: String,
        /// The offset of the first event [default: the first that is kept]
        #[arg(long, value_name = "OFFSET")]
        from: Option<u64>,
    },
}

#[derive(Debug, Clone, clap::Args)]
pub(super) struct Which {
    /// The topic
    #[arg(long, value_name = "TOPIC", default_value = Topic::ActionExecuted.as_str())]
    topic: String,
}

/// Print events as JSON lines (CloudEvents with their offsets), in order, and then each new one
///
/// The store keeps the position of a group: a page of events counts as read when it is written out. After a crash some events may
/// repeat (with the same `id`), and none is missed. A group has one reader; there may be any number of groups. Without a daemon it ends,
/// since nothing new comes.
///
/// With `--exec`, a command runs for each event, one after another, with the event as a line of JSON on its standard input and
/// `EFFECTD_EVENT_TOPIC`, `_GROUP`, `_ID`, `_TYPE`, `_OFFSET` and `_ATTEMPT` in its environment. The event counts as read when the command exits
/// with 0. Otherwise the command runs again after a growing pause, and after the last attempt the event is skipped and named on standard
/// error. After a crash the command may run twice for one event: compare its id. SIGTERM lets the running command end first.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  effectd bus tail --group learner --once\n  effectd bus tail --once --from 2h\n  \
        effectd bus tail --topic APPROVALS --group desk --exec notify-send \"effectd asks\""
)]
pub(super) struct Tail {
    /// Continue at the position of this group, and store it
    #[arg(long, value_name = "GROUP")]
    group: Option<String>,
    /// Begin at: start, end, an offset, 2026-01-01T00:00:00Z, or how long ago: 2h [default: the position of the group, or start]
    ///
    /// A group is moved there first, as by `bus seek`: this is shown, confirmed, and leaves a receipt.
    #[arg(long, value_name = "PLACE")]
    from: Option<String>,
    #[command(flatten)]
    confirm: Confirm,
    /// End after the last event
    #[arg(long)]
    once: bool,
    #[command(flatten)]
    topic: Which,
    /// With --exec: how long the command may take for one event, in seconds; then it is killed, and has failed. If it cannot be killed,
    /// because it runs as another user (sudo), `bus tail` ends
    #[arg(long, value_name = "SECONDS", default_value_t = 60, requires = "exec", value_parser = clap::value_parser!(u64).range(1..=3_600))]
    timeout: u64,
    /// With --exec: how often the command is tried for one event
    #[arg(long, value_name = "NUMBER", default_value_t = 8, requires = "exec", value_parser = clap::value_parser!(u32).range(1..=1_000))]
    attempts: u32,
    /// Run this command for each event; needs a daemon. Everything after --exec belongs to the command
    #[arg(long, value_name = "CMD", num_args = 1.., allow_hyphen_values = true, requires = "group")]
    exec: Vec<OsString>,
}

const COLUMNS: [(&str, usize); 5] =
    [("TOPIC", 24), ("GROUP", 24), ("OFFSET", 10), ("BEHIND", 10), ("END", 0)];
/// How long one request waits for the next event.
const WAIT_STEP_MS: u64 = 60_000;
/// How long a position is stored after a signal: the daemon may be stopping, too.
const LAST_COMMIT_MAX: Duration = Duration::from_secs(5);

impl BusCommand {
    pub(super) async fn main(self, common: &Common) -> Result<Exit, CliError> {
        match self {
            Self::Topics => topics(common).await?,
            Self::Groups { topic } => groups(common, topic).await?,
            Self::Replay { from, until, topic } => {
                with_client(common, Depth::Store, async |client| replay(client, &topic, from, until).await)
                    .await?;
            }
            Self::Export { topic, from } => return export(common, &topic, from).await,
            Self::Tail(tail) => {
                if !tail.moved(common).await? {
                    return Ok(tail.confirm.declined());
                }
                if let Some(command) = tail.command() {
                    return tail.run_commands(&mut daemon_client(common)?, &command).await;
                }
                with_client(common, Depth::Store, async |client| tail.main(client).await).await?;
            }
            Self::Seek { group, to, topic, args } => {
                let topic = topic.topic;
                let operation = Operation::SeekGroup { topic, group, to };
                return args.run(common, &operation).await;
            }
        }
        Ok(Exit::Done)
    }
}

const TOPICS: [(&str, usize); 3] = [("TOPIC", 24), ("BEGIN", 10), ("END", 0)];

async fn topics(common: &Common) -> Result<(), CliError> {
    let store: StoreView = get(common, Depth::Store, "/v1/store").await?;
    let mut printer = Printer::new(common.output, true, &TOPICS);
    for (topic, end) in &store.events {
        let begin = store.begins.get(topic).copied().unwrap_or(0);
        let value = json!({ "topic": topic, "begin": begin, "end": end });
        printer.row(&value, &[topic, &begin.to_string(), &end.to_string()]);
    }
    printer.finish_list();
    Ok(())
}

async fn events(client: &mut Client, topic: &str, from: &str, wait_ms: u64) -> Result<EventList, CliError> {
    let path = format!(
        "/v1/store/topics/{}?from={}&wait_ms={wait_ms}",
        percent_encoded(topic),
        percent_encoded(from)
    );
    Ok(client.get(&path).await?)
}

async fn replay(
    client: &mut Client,
    which: &Which,
    mut from: String,
    until: Option<u64>,
) -> Result<(), CliError> {
    loop {
        let mut page = events(client, &which.topic, &from, 0).await?;
        let offset = |event: &serde_json::Value| event["offset"].as_u64().unwrap_or(0);
        page.events.retain(|event| until.is_none_or(|until| offset(event) < until));
        let over = page.events.is_empty() || page.next >= page.end;
        if !lines(page.events.iter().map(ToString::to_string)) || over {
            return Ok(());
        }
        from = page.next.to_string();
    }
}

/// Writes a topic page by page, so that memory does not grow with the topic.
pub(super) async fn export(common: &Common, topic: &str, from: Option<u64>) -> Result<Exit, CliError> {
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

/// A consumer group of a topic.
#[derive(Serialize)]
pub(super) struct TopicGroup {
    pub(super) topic: String,
    #[serde(flatten)]
    pub(super) group: GroupView,
}

async fn groups(common: &Common, topic: Option<String>) -> Result<(), CliError> {
    let found = async |client: &mut Client| match topic {
        Some(topic) => groups_of(client, [topic]).await,
        None => all_groups(client).await,
    };
    let groups = with_client(common, Depth::Store, found).await?;
    print_rows(common.output, &COLUMNS, &groups, |TopicGroup { topic, group }| {
        let [offset, behind, end] = [group.offset, group.behind, group.end].map(|number| number.to_string());
        [topic.clone(), group.group.clone(), offset, behind, end]
    });
    Ok(())
}

/// The groups of all topics; for one who may not look at the store, those of the topics that a learner reads.
pub(super) async fn all_groups(client: &mut Client) -> Result<Vec<TopicGroup>, CliError> {
    let names = |topics: &[Topic]| -> BTreeSet<String> {
        topics.iter().map(|topic| topic.as_str().to_owned()).collect()
    };
    let topics: BTreeSet<String> = match client.get::<StoreView>("/v1/store").await {
        Ok(store) => names(&Topic::ALL).into_iter().chain(store.events.into_keys()).collect(),
        Err(ClientError::Refused(problem)) if problem.status == 403 => {
            names(&[Topic::ActionExecuted, Topic::Amendments])
        }
        Err(error) => return Err(error.into()),
    };
    groups_of(client, topics).await
}

async fn groups_of(
    client: &mut Client,
    topics: impl IntoIterator<Item = String>,
) -> Result<Vec<TopicGroup>, CliError> {
    let mut all = Vec::new();
    for topic in topics {
        let path = format!("/v1/store/topics/{}/groups", percent_encoded(&topic));
        let groups: Vec<GroupView> = client.get(&path).await?;
        all.extend(groups.into_iter().map(|group| TopicGroup { topic: topic.clone(), group }));
    }
    Ok(all)
}

fn path_of(topic: &str, group: &str) -> String {
    let (topic, group) = (percent_encoded(topic), percent_encoded(group));
    format!("/v1/store/topics/{topic}/groups/{group}")
}

async fn seek(client: &mut Client, topic: &str, group: &str, to: &str) -> Result<Moved, CliError> {
    let path = format!("{}?to={}", path_of(topic, group), percent_encoded(to));
    Ok(client.call(Method::POST, &path, "").await?)
}

impl Tail {
    async fn main(&self, client: &mut Client) -> Result<(), CliError> {
        let once = self.once || is_in_process(client);
        let mut from = self.begin(client).await?;
        loop {
            let page = match self.page(client, &from, once).await {
                Err(error) if error.is_disconnect() && !once => {
                    reconnected(client, &error).await;
                    continue;
                }
                page => page?,
            };
            // The reader has closed the pipe: this page does not count as read.
            if !lines(page.events.iter().map(ToString::to_string)) {
                return Ok(());
            }
            from = page.next.to_string();
            if !page.events.is_empty() {
                self.commit(client, &from, once).await?;
            } else if once {
                return Ok(());
            }
        }
    }

    /// The command of `--exec`. A dry run prints the events instead.
    fn command(&self) -> Option<EventCommand> {
        let group = self.group.clone().filter(|_| !self.exec.is_empty() && !self.confirm.dry_run)?;
        Some(EventCommand {
            words: self.exec.clone(),
            topic: self.topic.topic.clone(),
            group,
            timeout: Duration::from_secs(self.timeout),
            attempts: self.attempts,
        })
    }

    /// Runs the command for each event, and stores the group's position after each.
    async fn run_commands(&self, client: &mut Client, command: &EventCommand) -> Result<Exit, CliError> {
        let (mut stop, mut exit) = (Stop::listen()?, Exit::Done);
        let mut from = self.begin(client).await?;
        loop {
            let Some(page) = stop.or(self.page(client, &from, self.once)).await else {
                return Ok(exit);
            };
            let page = match page {
                Err(error) if error.is_disconnect() && !self.once => {
                    if stop.or(reconnected(client, &error)).await.is_none() {
                        return Ok(exit);
                    }
                    continue;
                }
                page => page?,
            };
            if page.events.is_empty() && self.once {
                return Ok(exit);
            }
            from = page.next.to_string();
            for event in &page.events {
                match command.handle(event, &mut stop).await? {
                    Handled::Done => {}
                    Handled::GivenUp => {
                        exit = Exit::Failed;
                        self.report_skipped(event);
                    }
                    Handled::Stopped => return Ok(exit),
                }
                let reached = event["offset"].as_u64().map_or(page.next, |offset| offset + 1).to_string();
                if !self.commit_event(client, &reached, &mut stop).await? || stop.is_requested().await {
                    return Ok(exit);
                }
            }
        }
    }

    /// Stores the group's position, also if a signal has come. Returns `false` if that ends before the daemon answers: then the
    /// command runs again for this event at the next start.
    async fn commit_event(
        &self,
        client: &mut Client,
        reached: &str,
        stop: &mut Stop,
    ) -> Result<bool, CliError> {
        let kept = self.commit(client, reached, self.once);
        tokio::pin!(kept);
        tokio::select! {
            kept = &mut kept => return kept.map(|()| true),
            () = stop.wait() => {}
        }
        tokio::time::timeout(LAST_COMMIT_MAX, kept).await.map_or(Ok(false), |kept| kept.map(|()| true))
    }

    fn report_skipped(&self, event: &serde_json::Value) {
        let (id, offset) = (event["id"].as_str().unwrap_or_default(), event["offset"].as_u64().unwrap_or(0));
        let (topic, until) = (&self.topic.topic, offset + 1);
        eprint_line(&format!(
            "event {id} is skipped; `effectd bus replay --topic {topic} --from {offset} --until {until}` prints it again"
        ));
    }

    /// Moves the group to `--from`, if both are given. Returns `false` if the person did not confirm that.
    async fn moved(&self, common: &Common) -> Result<bool, CliError> {
        let (Some(group), Some(to)) = (self.group.clone(), self.from.clone()) else {
            return Ok(true);
        };
        let topic = self.topic.topic.clone();
        let operation = Operation::SeekGroup { topic, group, to };
        let moved =
            mutation::confirm_and_send_on(common, &operation, &Terms::default(), self.confirm).await?;
        moved.iter().for_each(mutation::report_done);
        Ok(moved.is_some())
    }

    async fn begin(&self, client: &mut Client) -> Result<String, CliError> {
        let topic = &self.topic.topic;
        let Some(group) = &self.group else {
            return Ok(self.from.clone().unwrap_or_else(|| "start".to_owned()));
        };
        let moved: Moved = client.get(&path_of(topic, group)).await?;
        Ok(moved.offset.to_string())
    }

    async fn page(&self, client: &mut Client, from: &str, once: bool) -> Result<EventList, CliError> {
        let wait = if once { 0 } else { WAIT_STEP_MS };
        events(client, &self.topic.topic, from, wait).await
    }

    /// Stores the group's position. Repeating this after a disconnect is harmless.
    async fn commit(&self, client: &mut Client, reached: &str, once: bool) -> Result<(), CliError> {
        let Some(group) = self.group.as_ref().filter(|_| !self.confirm.dry_run) else { return Ok(()) };
        loop {
            match seek(client, &self.topic.topic, group, reached).await {
                Err(error) if error.is_disconnect() && !once => reconnected(client, &error).await,
                kept => return kept.map(drop),
            }
        }
    }
}
