//! `effectd batch`: run several actions, all or nothing or one after another.

use std::path::PathBuf;

use effectd_contracts::batch::{BatchItem, BatchMode, BatchRequest, BatchResult, ItemResult, Marker};
use effectd_contracts::limits::REQUEST_BYTES_MAX;
use effectd_contracts::{ActionId, SpaceId, SubjectId, json};
use effectd_gateway::views::{BatchView, State};
use serde_json::{Map, Value, json};

use super::request_args::{DEFAULT_SPACE, DEFAULT_SUBJECT};
use super::run::read_bounded;
use super::{CliError, Common, Depth, eprint_line, line, print_json, with_client};
use crate::exit::Exit;
use crate::tui::shown;

/// Run several actions, all or nothing or one after another
#[derive(Debug, clap::Subcommand)]
pub(super) enum BatchCommand {
    Run(Run),
    Show(Show),
}

/// Run a batch and show what has become of its items
///
/// The file is a batch in JSON, or has an item in JSON on each line: `tool_id` and `params`. All items are validated, judged and previewed
/// before the first one starts. If one fails, those before it are undone, in reverse; with `--mode ordered` they stay. The same batch id
/// again does not run again. The options say what the file leaves out, and nothing else than it says.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  effectd batch run examples/batches/two_notes.json\n  effectd batch run examples/batches/two_notes.json -o json"
)]
pub(super) struct Run {
    /// The batch; `-` reads standard input
    #[arg(value_name = "FILE")]
    batch: PathBuf,
    /// The id of the batch [default: a new one]
    #[arg(long, value_name = "ID")]
    id: Option<ActionId>,
    /// What a failure means: atomic or ordered [default: atomic]
    #[arg(long, value_name = "MODE", value_parser = mode)]
    mode: Option<BatchMode>,
    /// Judge and preview everything, start nothing
    #[arg(long)]
    dry_run: bool,
    /// The subject to act for; the policy says which subjects you may name [default: agent://planner@deviceA]
    #[arg(long, value_name = "SUBJECT")]
    subject: Option<SubjectId>,
    /// The space [default: shared:household]
    #[arg(long, value_name = "SPACE")]
    space: Option<SpaceId>,
}

/// Show what has become of a batch
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  effectd batch show notes-2026-w36 -o json")]
pub(super) struct Show {
    /// The batch
    #[arg(value_name = "BATCH")]
    batch_id: ActionId,
}

fn mode(text: &str) -> Result<BatchMode, String> {
    let known = BatchMode::ALL.into_iter().find(|mode| mode.as_str() == text);
    known.ok_or_else(|| "it is `atomic` or `ordered`".to_owned())
}

impl BatchCommand {
    pub(super) async fn main(self, common: &Common) -> Result<Exit, CliError> {
        let view = match self {
            Self::Run(run) => {
                let batch = run.read()?;
                with_client(common, Depth::Pipeline, async |client| Ok(client.batch(&batch).await?)).await?
            }
            Self::Show(Show { batch_id }) => {
                with_client(common, Depth::Store, async |client| Ok(client.batch_of(&batch_id).await?))
                    .await?
            }
        };
        Ok(print(&view, common))
    }
}

impl Run {
    fn read(&self) -> Result<BatchRequest, CliError> {
        let name = self.batch.display();
        let refused = |why: String| CliError::request(format!("{name} is not a batch: {why}"));
        let bytes = read_bounded(&self.batch).map_err(|error| {
            CliError::request(format!("{name} cannot be read: {error}; name a file that holds a batch"))
        })?;
        let is_whole = serde_json::from_slice::<Value>(&bytes)
            .is_ok_and(|value| value.get("items").is_some() || value.get("batch_id").is_some());
        let mut batch: Map<String, Value> = if is_whole {
            json::parse(&bytes, REQUEST_BYTES_MAX).map_err(|error| refused(error.to_string()))?
        } else {
            let text = str::from_utf8(&bytes).map_err(|error| refused(error.to_string()))?;
            let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
            let item = |(number, line): (usize, &str)| {
                let item = serde_json::from_str::<BatchItem>(line);
                item.map_err(|error| refused(format!("line {}: {error}", number + 1)))
            };
            let items = lines.map(item).collect::<Result<Vec<_>, _>>()?;
            Map::from_iter([("items".to_owned(), json!(items))])
        };
        self.complete(&mut batch, is_whole).map_err(refused)?;
        let whole = Value::Object(batch).to_string();
        let mut batch = BatchRequest::parse(whole.as_bytes()).map_err(|failure| refused(failure.message))?;
        batch.dry_run |= self.dry_run;
        Ok(batch)
    }

    /// Adds what the file leaves out. Only lines have defaults.
    fn complete(&self, batch: &mut Map<String, Value>, is_whole: bool) -> Result<(), String> {
        let options = [
            ("batch_id", "--id", json!(self.id), json!(ActionId::fresh())),
            ("subject_id", "--subject", json!(self.subject), json!(DEFAULT_SUBJECT)),
            ("space_id", "--space", json!(self.space), json!(DEFAULT_SPACE)),
            ("mode", "--mode", json!(self.mode), json!(BatchMode::default())),
        ];
        for (name, option, given, default) in options {
            match batch.get(name) {
                Some(said) if !given.is_null() && *said != given => {
                    return Err(format!("{option} says {given}, and the file {said}: leave one out"));
                }
                None if is_whole && given.is_null() => {}
                Some(_) => {}
                None => {
                    batch.insert(name.to_owned(), if given.is_null() { default } else { given });
                }
            }
        }
        Ok(())
    }
}

fn print(view: &BatchView, common: &Common) -> Exit {
    let is_json = print_json(common.output, view);
    match (&view.result, view.state) {
        (Some(result), _) => {
            if !is_json {
                print_result(result);
            }
            Exit::of(result.outcome)
        }
        (None, State::Held) => {
            if let Some(held) = view.approval.as_ref().filter(|_| !is_json) {
                eprint_line(&format!(
                    "{} waits for approval {}: {}",
                    view.batch_id,
                    held.approval_id,
                    held.reasons.join("; ")
                ));
            }
            Exit::Held
        }
        (None, State::Accepted | State::Done | State::Ended) => {
            if !is_json {
                eprint_line(&format!("{} has not ended yet: `effectd batch show` says more", view.batch_id));
            }
            Exit::TryAgain
        }
    }
}

fn print_result(result: &BatchResult) {
    for (index, item) in result.items.iter().enumerate() {
        let ItemResult { tool_id, marker, reason, paths, paths_left_out, .. } = item;
        let tool = tool_id.as_ref().map_or("", |tool| tool.as_str());
        let others = (*paths_left_out > 0).then(|| format!("and {paths_left_out} more"));
        let more =
            reason.iter().chain(paths).chain(&others).map(String::as_str).collect::<Vec<_>>().join("  ");
        let row =
            format!("{index:>2}  {:<15}  {:<20}  {}", marker.as_str(), shown(tool, 40), shown(&more, 400));
        line(row.trim_end());
    }
    let done = result.items.iter().filter(|item| item.marker == Marker::Committed).count();
    let partial = if result.partial { ", not everything could be undone" } else { "" };
    line(&format!("{} of {} committed{partial}; receipt {}", done, result.items.len(), result.receipt_id));
    if let Some(error) = &result.error {
        eprint_line(&error.message);
    }
}
