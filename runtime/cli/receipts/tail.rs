//! `effectd receipts tail`: every receipt as it comes, for programs, from where they were last time.

use std::path::{Path, PathBuf};

use effectd_bus::Order;
use effectd_contracts::canonical;
use effectd_gateway::client::{Client, ClientError};

use super::{PAGE, WATCH_STEP_MS, until_back};
use crate::cli::backend::{Trouble, is_alone, with_client};
use crate::cli::listing::{Turn, Which, page};
use crate::cli::output::lines;
use crate::cli::{Common, complain};
use crate::error::Error;
use crate::exit::Exit;
use crate::runtime::Depth;

/// Print receipts as JSON lines, the oldest first, and each new one as it is made
///
/// With --cursor, the place that was reached is kept in a file, and the next time it goes on there: after a crash some may
/// come twice, none is missed. Without a daemon nothing new comes, and it ends.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  effectd receipts tail --once 'tool:files.*'\n  effectd receipts tail --once --cursor learner.cursor"
)]
pub(super) struct Tail {
    #[command(flatten)]
    which: Which,
    /// Where the place is kept; made if it is not there
    #[arg(long, value_name = "FILE")]
    cursor: Option<PathBuf>,
    /// End when there are no more
    #[arg(long)]
    once: bool,
}

impl Tail {
    pub(super) async fn main(&self, common: &Common) -> Result<Exit, Trouble> {
        let begin = self.cursor.as_deref().map(Cursor::read).transpose()?.flatten();
        with_client(common, Depth::Store, async |client| {
            let once = self.once || is_alone(client);
            self.follow(client, begin, once).await
        })
        .await
    }

    async fn follow(&self, client: &mut Client, begin: Option<u64>, once: bool) -> Result<Exit, Trouble> {
        let mut after = begin;
        loop {
            let turn = Turn {
                order: Order::OldestFirst,
                after,
                limit: usize::try_from(PAGE).unwrap_or(1),
                wait_ms: (!once).then_some(WATCH_STEP_MS),
            };
            let page = match page(client, &self.which, turn).await {
                Err(Trouble::Client(error @ (ClientError::NoDaemon(_) | ClientError::Broken(_))))
                    if !once && after != begin =>
                {
                    complain(&format!("{error}; waiting for it to come back"));
                    until_back(client).await;
                    continue;
                }
                page => page?,
            };
            // A receipt is plain data with text keys, for which serde_json has no failure.
            let texts = page
                .receipts
                .iter()
                .map(|receipt| canonical::of(receipt).unwrap_or_default());
            // Whoever has closed the other end has not read them.
            if !lines(texts) {
                return Ok(Exit::Done);
            }
            let reached = page.next.or(page.follow).or(after);
            if reached != after
                && let (Some(path), Some(reached)) = (&self.cursor, reached)
            {
                Cursor::write(path, reached)?;
            }
            after = reached;
            if once && page.next.is_none() {
                return Ok(Exit::Done);
            }
        }
    }
}

/// The place that was reached, in a file that is replaced as a whole.
pub(super) struct Cursor;

impl Cursor {
    pub(super) fn read(path: &Path) -> Result<Option<u64>, Error> {
        let unusable = |why: String| Error::Request(format!("the cursor {}: {why}", path.display()));
        match std::fs::read_to_string(path) {
            Ok(text) => {
                let number = text.trim().parse();
                number
                    .map(Some)
                    .map_err(|_| unusable("it does not hold a place; remove it to begin anew".to_owned()))
            }
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(unusable(error.to_string())),
        }
    }

    fn write(path: &Path, reached: u64) -> Result<(), Error> {
        let draft = path.with_extension("draft");
        let written = std::fs::write(&draft, format!("{reached}\n"))
            .and_then(|()| std::fs::File::open(&draft)?.sync_all())
            .and_then(|()| std::fs::rename(&draft, path));
        written.map_err(|error| Error::Request(format!("the cursor {}: {error}", path.display())))
    }
}
