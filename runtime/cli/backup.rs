//! `effectd backup` and `effectd restore`: back up a state in use, and restore it.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use effectd_bus::journal_copy::JournalWriter;
use effectd_contracts::{Clock, SystemClock};
use effectd_gateway::client::ClientError;
use serde_json::json;

use super::backend::daemon_client;
use super::progress::Bar;
use super::store::show;
use super::{CliError, Common, Confirm, eprint_line, state_dir_of};
use crate::backup::{self, BackupError};
use crate::error::{Error, chain};
use crate::exit::Exit;
use crate::settings::config::local_principal;
use crate::state::State;

/// Back up the state while it is in use, and its keys to another directory
///
/// Every block is checked before the backup gets its name, so a directory of this name is always complete. It holds journal, artifacts,
/// policy and configuration. `restore` rebuilds the index; files of spaces are not included. Sensitive data cannot be read without the
/// keys: keep them elsewhere. A backup of keys still opens what an erasure or the end of an epoch has made unreadable since.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  effectd backup monday --keys monday-keys")]
pub(super) struct Backup {
    /// The new directory
    #[arg(value_name = "DIR")]
    into: PathBuf,
    /// A new directory for the keys, best on another disk. Without it no keys are copied
    #[arg(long, value_name = "DIR")]
    keys: Option<PathBuf>,
    #[command(flatten)]
    confirm: Confirm,
}

/// Restore a state from a backup and its keys
///
/// Every file is compared with the manifest, the index is rebuilt, and the store is checked, before the state gets the name given by
/// `--state`. It has an id of its own, and none of `gateway.socket`, `gateway.listen` and `telemetry.listen` of the original. What happened after the backup is missing; a head of the log kept elsewhere shows that (`receipts verify --head`). The
/// original may have carried out what was open at the time of the backup. So effects are paused in the restored state, and nothing is
/// taken from its bus, until `effectd resume`. Then actions that had not started run, and started ones become dead letters of unknown
/// outcome, for `dlq settle`. The command prints the numbers of both.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  effectd restore monday --keys monday-keys --state restored")]
pub(super) struct Restore {
    /// The backup
    #[arg(value_name = "DIR")]
    from: PathBuf,
    /// Its keys
    #[arg(long, value_name = "DIR")]
    keys: PathBuf,
    #[command(flatten)]
    confirm: Confirm,
}

impl Backup {
    pub(super) fn main(&self, common: &Common) -> Result<Exit, CliError> {
        let state = State::existing(&state_dir_of(common))?;
        let in_use = |writer: &mut JournalWriter| from_daemon(common, writer);
        let (into, keys) = (&self.into, self.keys.as_deref());
        if self.confirm.dry_run {
            backup::check_backup(state.path(), into, keys)?;
            let keys = keys.map(|keys| format!("copy its keys to {}", keys.display()));
            let says = format!("copy {} to {}", state.path().display(), into.display());
            self.confirm.only_shows(&[says].into_iter().chain(keys).collect::<Vec<_>>());
            return Ok(Exit::Done);
        }
        let bar = Bar::new("backing up");
        let made = backup::make(state.path(), into, keys, &SystemClock, &in_use, &bar.hook())?;
        drop(bar);
        show(
            &json!({
                "backup": self.into, "keys": self.keys, "made_at": made.made_at, "blocks": made.blocks,
                "files": made.files.len(), "bytes": made.bytes(),
            }),
            common.output,
        );
        if !state.policy_dir().is_dir() {
            eprint_line(&"the state has no policy of its own, so none was copied");
        }
        if self.keys.is_none() {
            eprint_line(&"no keys were copied; without them, sealed data cannot be decrypted");
        }
        Ok(Exit::Done)
    }
}

/// Copies the journal that a daemon has open. Returns `false` if no daemon runs.
fn from_daemon(common: &Common, writer: &mut JournalWriter) -> Result<bool, BackupError> {
    let failed = |error: CliError| BackupError::Failed(Error::Request(chain(&error)));
    let mut client = daemon_client(common).map_err(failed)?;
    let threads = tokio::runtime::Runtime::new().map_err(|error| {
        BackupError::Failed(Error::Internal(format!("no threads can be started: {error}")))
    })?;
    let mut refused = None;
    let fetched = threads.block_on(client.fetch("/v1/store/journal", |piece| {
        writer.write(piece).map_err(|error| {
            refused = Some(error);
            io::Error::other("the copy cannot be written")
        })
    }));
    if let Some(error) = refused {
        return Err(BackupError::Failed(error.into()));
    }
    match fetched {
        Ok(Ok(())) => Ok(true),
        Ok(Err(error)) => Err(BackupError::Failed(Error::Request(error.to_string()))),
        Err(ClientError::NoDaemon(_)) => Ok(false),
        Err(ClientError::Broken(_)) => Err(BackupError::Moved),
        Err(error) => Err(failed(error.into())),
    }
}

impl Restore {
    pub(super) fn main(&self, common: &Common) -> Result<Exit, CliError> {
        let Some(state) = &common.state else {
            return Err(CliError::request("name a new directory for the state with --state"));
        };
        let bar = Bar::new("restoring");
        if self.confirm.dry_run {
            let (manifest, _) = backup::check_restore(&self.from, &self.keys, state, &bar.hook())?;
            drop(bar);
            let (from, made_at) = (self.from.display(), manifest.made_at);
            let says = format!("restore {from}, whole and of {made_at}, to {}, paused", state.display());
            self.confirm.only_shows(&[says]);
            return Ok(Exit::Done);
        }
        let (clock, by): (Arc<dyn Clock>, _) = (Arc::new(SystemClock), local_principal()?);
        let done = backup::restore(&self.from, &self.keys, state, &clock, &by, &bar.hook())?;
        drop(bar);
        show(
            &json!({
                "state": state, "made_at": done.made_at, "blocks": done.checked.blocks,
                "records": done.checked.records, "index_entries": done.checked.entries, "paused": true, "open": done.open,
            }),
            common.output,
        );
        for cleared in done.cleared {
            eprint_line(&format!(
                "{} was {} and is empty in this state; set it again when this state replaces the original",
                cleared.setting, cleared.was
            ));
        }
        eprint_line(
            &"effects are paused in this state, and the actions that were open at the time of the backup wait: check which of them were done \
              since, withdraw those (`effectd cancel`), then run `effectd resume`",
        );
        Ok(Exit::Done)
    }
}
