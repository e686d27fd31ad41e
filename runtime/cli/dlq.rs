//! `effectd dlq`: what could not be done, and what to do about it.

use std::sync::Arc;

use clap::Subcommand;
use effectd_actors::decisions;
use effectd_actors::limits::REQUEUES_MAX;
use effectd_bus::embedded::{self, EmbeddedConfig};
use effectd_bus::{
    Body, LocalStore, NewBody, NewEvent, Requeued, Store, StoreError, StoredLetter, TopicName,
};
use effectd_contracts::{
    DecisionData, Event, SystemClock, Timestamp, ToolId, TraceId, json, limits as bounds,
};
use serde_json::{Value, json};

use super::backend::client_state;
use super::output::{Form, Printer};
use super::{Common, complain};
use crate::error::Error;
use crate::exit::Exit;
use crate::state::State;

const LETTERS: [(&str, usize); 6] = [
    ("LETTER", 6),
    ("TIME", 24),
    ("CODE", 20),
    ("CAUSE", 16),
    ("TRIED", 5),
    ("ACTION", 0),
];
const CAUSES: [(&str, usize); 5] = [
    ("CAUSE", 16),
    ("CODE", 20),
    ("COUNT", 6),
    ("FIRST", 24),
    ("LAST", 24),
];
/// Letters that are read, and forgotten, at once.
const PAGE: usize = 200;

/// List, show, requeue and purge dead letters: actions that were given up
///
/// Works on the store itself: while a daemon runs on it, the commands say so and exit with 75. The files
/// `bus/dlq/<topic>.jsonl` in the state directory list the same letters at any time.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  effectd dlq causes\n  effectd dlq list --cause 3f2b5f0c9a36e1d0\n  effectd dlq requeue --all"
)]
pub(super) struct DlqCommand {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// List dead letters, oldest first
    #[command(after_help = "Example:\n  effectd dlq list -o jsonl")]
    List {
        #[command(flatten)]
        which: Which,
        #[command(flatten)]
        shown: Shown,
    },
    /// Show one dead letter: why, how often it was tried, and its receipt. Its parameters are not shown
    #[command(after_help = "Example:\n  effectd dlq show 0 -o json")]
    Show {
        /// Which letter
        #[arg(value_name = "LETTER")]
        letter: u64,
        #[command(flatten)]
        shown: Shown,
    },
    /// List the causes that letters have in common, most frequent first
    #[command(after_help = "Example:\n  effectd dlq causes")]
    Causes {
        #[command(flatten)]
        shown: Shown,
    },
    /// Put letters on the bus again, each with its action id and key; they pass every gate again
    ///
    /// A letter that was requeued is gone, and requeuing it again does nothing. They are carried out when a daemon runs.
    #[command(
        after_help = "Examples:\n  effectd dlq requeue 0\n  effectd dlq requeue --all --tool files.write_text"
    )]
    Requeue {
        #[command(flatten)]
        chosen: Chosen,
        #[command(flatten)]
        shown: Shown,
    },
    /// Forget letters; their receipts stay
    #[command(
        after_help = "Examples:\n  effectd dlq purge 0\n  effectd dlq purge --all --cause 3f2b5f0c9a36e1d0"
    )]
    Purge {
        #[command(flatten)]
        chosen: Chosen,
        #[command(flatten)]
        shown: Shown,
    },
}

#[derive(Debug, clap::Args)]
struct Shown {
    /// How the answer is shown
    #[arg(long, short, value_enum, default_value = "table", value_name = "FORM")]
    output: Form,
}

/// Which letters are meant.
#[derive(Debug, Default, clap::Args)]
struct Which {
    /// Only those of this topic
    #[arg(long, value_name = "TOPIC")]
    topic: Option<String>,
    /// Only those of this cause, as `dlq causes` tells it
    #[arg(long, value_name = "CAUSE")]
    cause: Option<String>,
    /// Only those of this tool
    #[arg(long, value_name = "TOOL")]
    tool: Option<ToolId>,
}

#[derive(Debug, clap::Args)]
struct Chosen {
    /// Which letters
    #[arg(
        value_name = "LETTER",
        required_unless_present = "all",
        conflicts_with = "all"
    )]
    letters: Vec<u64>,
    /// All of them, or all that the conditions leave
    #[arg(long)]
    all: bool,
    #[command(flatten)]
    which: Which,
}

impl DlqCommand {
    pub(super) fn main(self, common: &Common) -> Exit {
        let outcome = open(common).and_then(|store| {
            let exit = self.command.run(&store)?;
            store.close()?;
            Ok(exit)
        });
        outcome.unwrap_or_else(|error| {
            complain(&error);
            error.exit()
        })
    }
}

impl Command {
    fn run(&self, store: &LocalStore) -> Result<Exit, Error> {
        match self {
            Command::List { which, shown } => list(store, which, shown.output),
            Command::Show { letter, shown } => show(store, *letter, shown.output),
            Command::Causes { shown } => causes(store, shown.output),
            Command::Requeue { chosen, shown } => requeue(store, chosen, shown.output),
            Command::Purge { chosen, shown } => purge(store, chosen, shown.output),
        }
    }
}

fn open(common: &Common) -> Result<LocalStore, Error> {
    let state = State::existing(&client_state(common))?;
    let config = EmbeddedConfig::new(state.path());
    Ok(embedded::open(config, Arc::new(SystemClock))?)
}

/// The decision that a letter was about, if it can still be read and was one.
fn decision(letter: &StoredLetter) -> Option<DecisionData> {
    let bytes = letter.payload.bytes()?;
    let max = 2 * bounds::REQUEST_BYTES_MAX;
    let event = json::parse::<Event<DecisionData>>(bytes, max).map(|event| event.data);
    event.or_else(|_| json::parse(bytes, max)).ok()
}

impl Which {
    fn has(&self, letter: &StoredLetter) -> bool {
        let cause = self
            .cause
            .as_ref()
            .is_none_or(|cause| *cause == letter.fingerprint.to_string());
        let tool = self
            .tool
            .as_ref()
            .is_none_or(|tool| decision(letter).is_some_and(|decision| decision.request.tool_id == *tool));
        cause && tool
    }

    /// Goes through the letters, a page at a time.
    fn each(
        &self,
        store: &LocalStore,
        mut each: impl FnMut(StoredLetter) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let topic = self.topic.as_deref().map(TopicName::new).transpose()?;
        let mut from = Some(0);
        while let Some(at) = from {
            let page = store.letters(topic.as_ref(), at, PAGE)?;
            page.letters
                .into_iter()
                .filter(|letter| self.has(letter))
                .try_for_each(&mut each)?;
            from = page.next;
        }
        Ok(())
    }
}

impl Chosen {
    /// The letters, a page at a time; what was named and is not there is passed on too.
    fn each(
        &self,
        store: &LocalStore,
        mut each: impl FnMut(u64, Option<StoredLetter>) -> Result<(), Error>,
    ) -> Result<(), Error> {
        if self.all {
            return self.which.each(store, |letter| each(letter.letter, Some(letter)));
        }
        self.letters
            .iter()
            .try_for_each(|number| each(*number, store.letter(*number)?))
    }
}

/// Everything about a letter that may be shown.
fn value(letter: &StoredLetter) -> Value {
    let receipt = match &letter.origin {
        effectd_bus::LetterOrigin::Completion { receipt_id } => Some(receipt_id.as_str()),
        effectd_bus::LetterOrigin::Delivery { .. } => None,
    };
    let detail = match &letter.detail {
        Body::Clear(bytes) | Body::Opened(bytes) => Some(String::from_utf8_lossy(bytes).into_owned()),
        Body::Shredded => None,
    };
    json!({
        "letter": letter.letter,
        "time": letter.time.to_string(),
        "topic": letter.topic.as_str(),
        "action_id": letter.action_id.as_ref().map(|id| id.as_str()),
        "receipt_id": receipt,
        "tool_id": decision(letter).map(|decision| decision.request.tool_id.to_string()),
        "code": letter.code,
        "cause": letter.fingerprint.to_string(),
        "attempts": letter.attempts,
        "detail": detail,
    })
}

fn row(printer: &mut Printer, letter: &StoredLetter) {
    printer.row(
        &value(letter),
        &[
            &letter.letter.to_string(),
            &letter.time.to_string(),
            &letter.code,
            &letter.fingerprint.to_string(),
            &letter.attempts.to_string(),
            letter.action_id.as_ref().map_or("", |id| id.as_str()),
        ],
    );
}

fn list(store: &LocalStore, which: &Which, form: Form) -> Result<Exit, Error> {
    let mut printer = Printer::new(form, true, &LETTERS);
    which.each(store, |letter| {
        row(&mut printer, &letter);
        Ok(())
    })?;
    printer.finish();
    Ok(Exit::Done)
}

fn show(store: &LocalStore, number: u64, form: Form) -> Result<Exit, Error> {
    let Some(letter) = store.letter(number)? else {
        complain(&format!(
            "there is no dead letter {number}; `effectd dlq list` tells which there are"
        ));
        return Ok(Exit::Failed);
    };
    let mut printer = Printer::new(form, false, &LETTERS);
    row(&mut printer, &letter);
    printer.finish();
    Ok(Exit::Done)
}

fn causes(store: &LocalStore, form: Form) -> Result<Exit, Error> {
    let mut printer = Printer::new(form, true, &CAUSES);
    for group in store.letter_groups(None)? {
        let (cause, count) = (group.fingerprint.to_string(), group.count.to_string());
        let (first, last) = (group.first.to_string(), group.last.to_string());
        let value = json!({
            "cause": cause,
            "code": group.code,
            "count": group.count,
            "first": first,
            "last": last,
            "newest": group.newest,
        });
        printer.row(&value, &[&cause, &group.code, &count, &first, &last]);
    }
    printer.finish();
    Ok(Exit::Done)
}

fn requeue(store: &LocalStore, chosen: &Chosen, form: Form) -> Result<Exit, Error> {
    let mut printer = Printer::new(form, true, &[("LETTER", 6), ("NOW", 0)]);
    let mut left = 0;
    chosen.each(store, |number, letter| {
        let now = match letter.map(|letter| again(store, &letter)).transpose()? {
            None => "gone".to_owned(),
            Some(None) => {
                left += 1;
                "left: its decision cannot be read any more, or was requeued too often".to_owned()
            }
            Some(Some(event)) => match store.requeue(number, event).wait() {
                Ok(Requeued::Published { .. }) => "requeued".to_owned(),
                Ok(Requeued::Gone) => "gone".to_owned(),
                Err(error @ (StoreError::AlreadyReceipted { .. } | StoreError::StaleFence { .. })) => {
                    left += 1;
                    format!("left: {error}")
                }
                Err(error) => return Err(error.into()),
            },
        };
        printer.row(
            &json!({ "letter": number, "now": now }),
            &[&number.to_string(), &now],
        );
        Ok(())
    })?;
    printer.finish();
    Ok(if left == 0 { Exit::Done } else { Exit::Failed })
}

/// The event that puts a letter's decision on the bus again; `None` if it cannot be read any more, or was put there too often.
fn again(store: &LocalStore, letter: &StoredLetter) -> Result<Option<NewEvent>, Error> {
    let Some(decision) = decision(letter) else {
        return Ok(None);
    };
    let (times, _) = decisions::requeued(store, &decision.request.action_id)?;
    Ok((times < REQUEUES_MAX.get())
        .then(|| event_again(decision, times + 1))
        .flatten())
}

fn event_again(decision: DecisionData, n: u32) -> Option<NewEvent> {
    let trace = decision.request.trace_id.clone().unwrap_or_else(TraceId::fresh);
    let action_id = decision.request.action_id.clone();
    let mut event = Event::decision(decision, trace, Timestamp::now());
    event.id = Event::<DecisionData>::id_for_requeue(&action_id, n);
    Some(NewEvent {
        event_id: event.id.clone(),
        time: event.time,
        trace_id: event.traceid.clone(),
        action_id: Some(action_id),
        body: NewBody::Sealed(serde_json::to_vec(&event).ok()?),
    })
}

fn purge(store: &LocalStore, chosen: &Chosen, form: Form) -> Result<Exit, Error> {
    let mut printer = Printer::new(form, true, &[("LETTER", 6), ("NOW", 0)]);
    chosen.each(store, |number, _| {
        let now = if store.purge(vec![number]).wait()? == 1 {
            "purged"
        } else {
            "gone"
        };
        printer.row(
            &json!({ "letter": number, "now": now }),
            &[&number.to_string(), now],
        );
        Ok(())
    })?;
    printer.finish();
    Ok(Exit::Done)
}
