//! `effectd policy …`: check, explain, replay and change what may happen.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::Subcommand;
use effectd_bus::{Cursor, ReceiptQuery, Store, StoreError, embedded};
use effectd_contracts::limits::REQUEST_BYTES_MAX;
use effectd_contracts::{ActionRequest, Clock, Mode, ReceiptId, SpaceId, SubjectId, SystemClock, Timestamp};
use effectd_policy::explain::explain;
use effectd_policy::replay::{Recorded, render, replay};
use effectd_policy::{Change, Facts, Overlay, Policy, PolicyDir, inspect};

use super::{Common, complain};
use crate::config::{Config, state_dir};
use crate::error::Error;
use crate::exit::Exit;
use crate::policy_store;
use crate::runtime::registry;
use crate::state::State;

/// Check, explain, replay and change what may happen
#[derive(Debug, clap::Args)]
pub(super) struct PolicyCommand {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Read a policy directory and try its examples
    #[command(after_help = "Example:\n  effectd policy check .effectd/policy")]
    Check {
        /// The directory [default: the state's own, with the changes made by commands]
        #[arg(value_name = "DIR")]
        directory: Option<PathBuf>,
    },
    /// Tell why a request would be, or was, permitted or refused: every gate, what it saw, what would have to change
    #[command(
        after_help = "Examples:\n  effectd policy explain examples/write_note.json\n  \
        effectd policy explain 0199f6a2-5a4e-7c10-8d53-3f2b5f0c9a12"
    )]
    Explain {
        /// A receipt's id, or the file of a request
        #[arg(value_name = "RECEIPT|FILE")]
        what: String,
    },
    /// Judge past decisions by another policy, and list every verdict that would flip
    #[command(
        after_help = "Example:\n  effectd policy replay --since 2026-01-01T00:00:00Z --with policy.new"
    )]
    Replay {
        /// The policy directory to judge by
        #[arg(long, value_name = "DIR")]
        with: PathBuf,
        /// Only decisions whose receipt is from this time or later
        #[arg(long, value_name = "TIME")]
        since: Option<Timestamp>,
    },
    /// Give a consent
    #[command(
        after_help = "Example:\n  effectd policy grant-consent --subject agent://planner@deviceA \
        --space shared:household --purpose tool:files.write_text"
    )]
    GrantConsent(Consent),
    /// Take a consent back, at once
    #[command(
        after_help = "Example:\n  effectd policy revoke-consent --subject agent://planner@deviceA \
        --space shared:household --purpose tool:files.write_text"
    )]
    RevokeConsent(Consent),
    /// Set an organisation's mode of a tool
    #[command(
        after_help = "Example:\n  effectd policy set-mode --org home --tool files.write_text require_approval"
    )]
    SetMode {
        /// The organisation, as the policy names it
        #[arg(long, value_name = "NAME")]
        org: String,
        /// The tool
        #[arg(long, value_name = "ID")]
        tool: String,
        /// allow, require_approval or deny; `files` goes back to what the files say
        #[arg(value_name = "MODE", value_parser = mode)]
        mode: ModeWord,
    },
}

#[derive(Debug, clap::Args)]
struct Consent {
    /// Whose
    #[arg(long, value_name = "ID")]
    subject: SubjectId,
    /// Where
    #[arg(long, value_name = "ID")]
    space: SpaceId,
    /// What for
    #[arg(long, value_name = "PURPOSE")]
    purpose: String,
}

/// A mode on the command line.
#[derive(Debug, Clone, Copy)]
struct ModeWord(Option<Mode>);

fn mode(text: &str) -> Result<ModeWord, String> {
    if text == "files" {
        return Ok(ModeWord(None));
    }
    serde_json::from_value(text.into())
        .map(|mode| ModeWord(Some(mode)))
        .map_err(|error| error.to_string())
}

impl PolicyCommand {
    pub(super) fn main(self, common: &Common) -> Exit {
        let done = match self.verb {
            Verb::Check {
                directory: Some(directory),
            } => check(&directory),
            Verb::Check { directory: None } => {
                Place::open(common).and_then(|place| tell_policy(&place.policy()?))
            }
            Verb::Explain { what } => explain_what(common, &what),
            Verb::Replay { with, since } => replay_all(common, &with, since),
            Verb::GrantConsent(Consent {
                subject,
                space,
                purpose,
            }) => change(
                common,
                Change::GrantConsent {
                    subject,
                    space,
                    purpose,
                },
            ),
            Verb::RevokeConsent(Consent {
                subject,
                space,
                purpose,
            }) => change(
                common,
                Change::RevokeConsent {
                    subject,
                    space,
                    purpose,
                },
            ),
            Verb::SetMode { org, tool, mode } => change(
                common,
                Change::SetOrgMode {
                    org,
                    tool,
                    mode: mode.0,
                },
            ),
        };
        done.unwrap_or_else(|error| {
            complain(&error);
            let asked_wrongly = matches!(error, Error::Policy(_) | Error::Request(_));
            if asked_wrongly { Exit::Usage } else { error.exit() }
        })
    }
}

/// A state directory that is there, with its store open.
struct Place {
    state: State,
    store: Box<dyn Store>,
}

impl Place {
    fn open(common: &Common) -> Result<Self, Error> {
        let path = state_dir(common.state.clone());
        let state = State::existing(&path)?;
        let store = embedded::open(embedded::EmbeddedConfig::new(state.path()), Arc::new(SystemClock))?;
        Ok(Self {
            state,
            store: Box::new(store),
        })
    }

    fn policy(&self) -> Result<Policy, Error> {
        policy_store::load(&self.state, &*self.store)
    }
}

#[expect(
    clippy::print_stdout,
    reason = "what the policy says is what the commands are for"
)]
fn say(text: &dyn std::fmt::Display) {
    println!("{text}");
}

fn check(directory: &Path) -> Result<Exit, Error> {
    let source = PolicyDir::load(directory).map_err(Box::new)?;
    tell_policy(&Policy::compile(&source, &Overlay::default()).map_err(Box::new)?)
}

fn tell_policy(policy: &Policy) -> Result<Exit, Error> {
    say(&format!("good: {}\n{}", policy.summary(), policy.digest()));
    for warning in policy.warnings() {
        complain(&format!("note: {warning}"));
    }
    Ok(Exit::Done)
}

fn change(common: &Common, change: Change) -> Result<Exit, Error> {
    let place = Place::open(common)?;
    let policy = policy_store::change(&place.state, &*place.store, change)?;
    place.store.close()?;
    tell_policy(&policy)
}

fn explain_what(common: &Common, what: &str) -> Result<Exit, Error> {
    let place = Place::open(common)?;
    let policy = place.policy()?;
    let facts = if Path::new(what).is_file() {
        facts_of_request(Path::new(what), &policy)?
    } else {
        facts_of_receipt(&place, what, &policy)?
    };
    say(&explain(&facts, &policy));
    Ok(Exit::Done)
}

fn facts_of_request(path: &Path, policy: &Policy) -> Result<Facts, Error> {
    let unreadable = |why: String| Error::Request(format!("{} is no request: {why}", path.display()));
    let size = std::fs::metadata(path)
        .map_err(|error| unreadable(error.to_string()))?
        .len();
    if size > REQUEST_BYTES_MAX as u64 {
        return Err(unreadable(format!(
            "at most {REQUEST_BYTES_MAX} bytes are allowed"
        )));
    }
    let bytes = std::fs::read(path).map_err(|error| unreadable(error.to_string()))?;
    let request = ActionRequest::parse(&bytes).map_err(|failure| unreadable(failure.message))?;
    let registry = registry()?;
    let tool = registry.get(&request.tool_id);
    let entry = tool.ok_or_else(|| Error::Request(format!("there is no tool {}", request.tool_id)))?;
    let inspection = inspect(&request.params, entry.spec(), policy);
    let principal = Config::embedded(".")?.principal;
    Ok(Facts::of(
        &request,
        entry.spec(),
        &principal,
        SystemClock.now(),
        &inspection,
    ))
}

fn facts_of_receipt(place: &Place, id: &str, policy: &Policy) -> Result<Facts, Error> {
    let none = || Error::Request(format!("{id} is neither a file nor the id of a receipt here"));
    let id = ReceiptId::new(id).map_err(|_| none())?;
    let receipt = place.store.receipt(&id)?.ok_or_else(none)?.parse()?;
    let record = receipt
        .decision
        .ok_or_else(|| Error::Request(format!("{id} ended before the policy was asked")))?;
    if record.policy_digest != policy.digest() {
        complain(&"note: the policy has changed since; this is how it judges now");
    }
    Facts::from_record(&record)
        .map_err(|error| Error::Request(format!("the facts of {id} cannot be read: {error}")))
}

fn replay_all(common: &Common, with: &Path, since: Option<Timestamp>) -> Result<Exit, Error> {
    let place = Place::open(common)?;
    let source = PolicyDir::load(with).map_err(Box::new)?;
    let policy = Policy::compile(&source, &Overlay::default()).map_err(Box::new)?;
    let mut history = History {
        store: &*place.store,
        since,
        page: Vec::new().into_iter(),
        next: Some(None),
        failed: None,
    };
    let summary = replay(&mut history, &policy, |record, replayed| {
        if let Some(line) = render(record, replayed) {
            say(&line);
        }
    });
    if let Some(error) = history.failed {
        return Err(error.into());
    }
    say(&summary);
    Ok(Exit::Done)
}

/// The decisions of the past, page by page, so that a long history needs no more memory than a short one.
struct History<'a> {
    store: &'a dyn Store,
    since: Option<Timestamp>,
    page: std::vec::IntoIter<Recorded>,
    next: Option<Option<Cursor>>,
    failed: Option<StoreError>,
}

impl History<'_> {
    fn turn_page(&mut self) -> Result<bool, StoreError> {
        let Some(cursor) = self.next.take() else {
            return Ok(false);
        };
        let query = ReceiptQuery {
            since: self.since,
            cursor,
            ..ReceiptQuery::default()
        };
        let page = self.store.receipts(&query)?;
        let receipts = page
            .receipts
            .iter()
            .map(|stored| stored.parse())
            .collect::<Result<Vec<_>, _>>()?;
        self.page = receipts
            .iter()
            .filter_map(Recorded::of)
            .collect::<Vec<_>>()
            .into_iter();
        self.next = page.cursor.map(Some);
        Ok(true)
    }
}

impl Iterator for History<'_> {
    type Item = Recorded;

    fn next(&mut self) -> Option<Recorded> {
        loop {
            if let Some(record) = self.page.next() {
                return Some(record);
            }
            match self.turn_page() {
                Ok(true) => {}
                Ok(false) => return None,
                Err(error) => {
                    self.failed = Some(error);
                    return None;
                }
            }
        }
    }
}
