//! `effectd receipts tail`: follow receipts as JSON lines, from a stored position.

use std::path::{Path, PathBuf};

use effectd_contracts::canonical;
use effectd_gateway::client::Client;

use super::WATCH_STEP_MS;
use crate::cli::backend::reconnected;
use crate::cli::receipt_filter::{PageQuery, ReceiptFilter, page};
use crate::cli::{CliError, Common, Depth, is_in_process, lines, with_client};
use crate::exit::Exit;

/// Print receipts as JSON lines, oldest first, and then each new one
///
/// With --cursor, the position is stored in a file and the next run continues there: after a crash some receipts may repeat, and none is
/// missed. Without a daemon it ends, since nothing new comes.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  effectd receipts tail --once 'tool:files.*'\n  effectd receipts tail --once --cursor learner.cursor"
)]
pub(in crate::cli) struct Tail {
    #[command(flatten)]
    which: ReceiptFilter,
    /// The file with the position; created if it is missing
    #[arg(long, value_name = "FILE")]
    cursor: Option<PathBuf>,
    /// End after the last receipt
    #[arg(long)]
    once: bool,
}

impl Tail {
    pub(super) async fn main(&self, common: &Common) -> Result<Exit, CliError> {
        let begin = self.cursor.as_deref().map(read_cursor).transpose()?.flatten();
        with_client(common, Depth::Store, async |client| {
            let once = self.once || is_in_process(client);
            self.follow(client, begin, once).await
        })
        .await
    }

    async fn follow(&self, client: &mut Client, begin: Option<u64>, once: bool) -> Result<Exit, CliError> {
        let mut after = begin;
        loop {
            let query = PageQuery { after, wait_ms: (!once).then_some(WATCH_STEP_MS), ..PageQuery::OLDEST };
            let page = match page(client, &self.which, query).await {
                Err(error) if error.is_disconnect() && !once && after != begin => {
                    reconnected(client, &error).await;
                    continue;
                }
                page => page?,
            };
            // Cannot fail: a receipt is plain data with text keys.
            let texts = page.receipts.iter().map(|receipt| canonical::of(receipt).unwrap_or_default());
            // The reader has closed the pipe without reading these receipts, so the cursor stays.
            if !lines(texts) {
                return Ok(Exit::Done);
            }
            let reached = page.next.or(page.follow).or(after);
            if reached != after
                && let (Some(path), Some(reached)) = (&self.cursor, reached)
            {
                write_cursor(path, reached)?;
            }
            after = reached;
            if once && page.next.is_none() {
                return Ok(Exit::Done);
            }
        }
    }
}

fn read_cursor(path: &Path) -> Result<Option<u64>, CliError> {
    let unusable = |why: &str| CliError::request(format!("the cursor {}: {why}", path.display()));
    match std::fs::read_to_string(path) {
        Ok(text) => {
            let number = text.trim().parse().map(Some);
            number.map_err(|_| unusable("it does not hold a position; remove it to start over"))
        }
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(unusable(&error.to_string())),
    }
}

/// Replaces the cursor's file atomically.
fn write_cursor(path: &Path, reached: u64) -> Result<(), CliError> {
    let draft = path.with_extension("draft");
    let written = std::fs::write(&draft, format!("{reached}\n"))
        .and_then(|()| std::fs::File::open(&draft)?.sync_all())
        .and_then(|()| std::fs::rename(&draft, path));
    written.map_err(|error| CliError::request(format!("the cursor {}: {error}", path.display())))
}
