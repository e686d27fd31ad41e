//! `effectd backup` and `effectd restore`: copies of a state that is in use, and states made from them.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use effectd_bus::embedded::forward::JournalWriter;
use effectd_contracts::{Clock, SystemClock};
use effectd_gateway::client::{Client, ClientError};
use serde_json::json;

use super::backend::{self, client_state};
use super::output::Form;
use super::store::show;
use super::{Common, complain};
use crate::backup::{self, Trouble};
use crate::config::local_principal;
use crate::error::Error;
use crate::exit::Exit;
use crate::state::State;

/// Copy the state while it is in use, its keys to a place of their own
///
/// Every block of the copy is read and checked before it gets its name: a directory of this name is a whole backup, whatever
/// happens. Journal, artifacts, policy and configuration are in it; the index is made anew by `restore`, and the files of spaces are
/// not effectd's. Nothing in it that is sensitive can be read without the keys: keep them elsewhere. A copy of keys still opens what an
/// erasure or the end of an epoch has made unreadable here since.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  effectd backup monday --keys monday-keys")]
pub(super) struct Backup {
    /// A directory that is not there yet
    #[arg(value_name = "DIR")]
    into: PathBuf,
    /// Where the keys go: a directory that is not there yet, best on another disk. Without it no keys are copied
    #[arg(long, value_name = "DIR")]
    keys: Option<PathBuf>,
    /// How the answer is shown
    #[arg(long, short, value_enum, default_value = "table", value_name = "FORM")]
    output: Form,
}

/// Make a state from a backup and its keys
///
/// Every file is compared with the manifest, the index is made anew, and the whole is checked, before it gets the name that `--state`
/// says. What happened after the backup is not in it: a head of the log that somebody kept tells (`receipts verify --head`). What was
/// open when the backup was made may have been done since by the original. So effects are paused in the new state, and nothing is taken
/// from its bus, until `effectd resume`: then what had not begun begins, and what had is a dead letter of unknown outcome, which
/// `dlq settle` is for. How much of each there is, is told.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  effectd restore monday --keys monday-keys --state restored")]
pub(super) struct Restore {
    /// The backup
    #[arg(value_name = "DIR")]
    from: PathBuf,
    /// Its keys
    #[arg(long, value_name = "DIR")]
    keys: PathBuf,
    /// How the answer is shown
    #[arg(long, short, value_enum, default_value = "table", value_name = "FORM")]
    output: Form,
}

impl Backup {
    pub(super) fn main(&self, common: &Common) -> Exit {
        ended(self.copy(common))
    }

    fn copy(&self, common: &Common) -> Result<(), Error> {
        let state = State::existing(&client_state(common))?;
        let in_use = |writer: &mut JournalWriter| from_daemon(common, writer);
        let made = backup::make(
            state.path(),
            &self.into,
            self.keys.as_deref(),
            &SystemClock,
            &in_use,
        )?;
        let bytes: u64 = made.files.values().map(|file| file.bytes).sum();
        show(
            &json!({
                "backup": self.into, "keys": self.keys, "made_at": made.made_at, "blocks": made.blocks,
                "files": made.files.len(), "bytes": bytes,
            }),
            self.output,
        );
        if self.keys.is_none() {
            complain(&"no keys were copied; without them nothing that is sealed can be read again");
        }
        Ok(())
    }
}

/// Asks the daemon for the journal that it has open; `false` if no daemon runs.
fn from_daemon(common: &Common, writer: &mut JournalWriter) -> Result<bool, Trouble> {
    let failed = |error: backend::Trouble| Trouble::Failed(Error::Request(error.to_string()));
    let socket = backend::socket(common, &client_state(common)).map_err(|error| failed(error.into()))?;
    let threads = tokio::runtime::Runtime::new()
        .map_err(|error| Trouble::Failed(Error::Internal(format!("no threads can be started: {error}"))))?;
    let mut refused = None;
    let fetched = threads.block_on(Client::new(socket).fetch("/v1/store/journal", |piece| {
        writer.write(piece).map_err(|error| {
            refused = Some(error);
            io::Error::other("the copy cannot be written")
        })
    }));
    if let Some(error) = refused {
        return Err(Trouble::Failed(error.into()));
    }
    match fetched {
        Ok(Ok(())) => Ok(true),
        Ok(Err(error)) => Err(Trouble::Failed(Error::Request(error.to_string()))),
        Err(ClientError::NoDaemon(_)) => Ok(false),
        Err(ClientError::Broken(_)) => Err(Trouble::Moved),
        Err(
            error @ (ClientError::NotPermitted(_)
            | ClientError::Failed(_)
            | ClientError::Strange(_)
            | ClientError::Refused(_)),
        ) => Err(failed(error.into())),
    }
}

impl Restore {
    pub(super) fn main(&self, common: &Common) -> Exit {
        ended(self.make(common))
    }

    fn make(&self, common: &Common) -> Result<(), Error> {
        let Some(state) = &common.state else {
            let why = "say with --state where the state is to be, a directory that is not there yet";
            return Err(Error::Request(why.to_owned()));
        };
        let (clock, by): (Arc<dyn Clock>, _) = (Arc::new(SystemClock), local_principal()?);
        let done = backup::restore(&self.from, &self.keys, state, &clock, &by)?;
        show(
            &json!({
                "state": state, "made_at": done.made_at, "blocks": done.checked.blocks,
                "records": done.checked.records, "index_entries": done.checked.entries, "paused": true, "open": done.open,
            }),
            self.output,
        );
        complain(
            &"effects are paused in this state, and what was open when the backup was made waits: look whether it was done since, \
              withdraw what was (`effectd cancel`), then `effectd resume`",
        );
        Ok(())
    }
}

fn ended(done: Result<(), Error>) -> Exit {
    match done {
        Ok(()) => Exit::Done,
        Err(error) => {
            complain(&error);
            error.exit()
        }
    }
}
