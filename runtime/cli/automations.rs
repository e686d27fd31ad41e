//! `effectd automations …`: plans of steps that run by themselves.

use std::io::Write;
use std::path::PathBuf;

use clap::Subcommand;
use effectd_contracts::limits::REQUEST_BYTES_MAX;
use effectd_contracts::{AutomationId, SpaceId, json};
use effectd_gateway::client::percent_encoded;
use effectd_gateway::views::automations::{
    AutomationList, AutomationView, CheckedView, RenderBody, RenderView, RenderedView,
};
use hyper::Method;
use hyper::body::Bytes;
use serde_json::Value;

use super::actions::{object, refused};
use super::mutation::{ChangeArgs, RunMode, no_body, run_at, unknown_fails};
use super::output::Stdout;
use super::run::read_bounded;
use super::{
    CliError, Common, Depth, get, line, pages, post, print_json, print_one, print_rows, second, short_id,
    with_client,
};
use crate::exit::Exit;

const ROOT: &str = "/api/v1/automations";
/// A definition to begin with.
const STARTER: &str = include_str!("../../examples/automations/weekly_note.json");

/// Check, save, list, pause and export automations
///
/// An automation is a document: a plan of steps, each a tool or an action. Members of the space's organisation save automations, and
/// each acts as who saved it.
#[derive(Debug, Subcommand)]
#[command(after_help = "Example:\n  effectd automations list")]
pub(super) enum AutomationsCommand {
    /// Print a definition to begin with
    #[command(after_help = "Example:\n  effectd automations new > note.json")]
    New,
    /// Check a definition; exits with 1 if it cannot be saved
    #[command(after_help = "Example:\n  effectd automations check note.json")]
    Check {
        /// The definition, in JSON; `-` reads standard input
        #[arg(value_name = "FILE")]
        file: PathBuf,
    },
    /// Render the templates of a definition, as a run would; nothing is saved, and no action runs
    #[command(after_help = "Example:\n  effectd automations render note.json --inputs '{\"week\": \"w36\"}'")]
    Render(Render),
    /// Save a definition, as a new automation or as the next version of one
    #[command(
        after_help = "Examples:\n  effectd automations save note.json --space shared:household --yes\n  effectd automations save note.json --id 0199f6a2-5a4e-7c10-8d53-3f2b5f0c9a50 --yes"
    )]
    Save(Save),
    /// List the automations that you may see
    #[command(after_help = "Example:\n  effectd automations list -o json")]
    List,
    /// Show one automation
    #[command(after_help = "Example:\n  effectd automations show 0199f6a2-5a4e-7c10-8d53-3f2b5f0c9a50")]
    Show {
        /// The automation's id
        #[arg(value_name = "AUTOMATION")]
        id: AutomationId,
    },
    /// Pause an automation: it does not run until it is activated
    #[command(
        after_help = "Example:\n  effectd automations pause 0199f6a2-5a4e-7c10-8d53-3f2b5f0c9a50 --yes"
    )]
    Pause(Change),
    /// Let an automation run again
    #[command(
        after_help = "Example:\n  effectd automations activate 0199f6a2-5a4e-7c10-8d53-3f2b5f0c9a50 --yes"
    )]
    Activate(Change),
    /// Take an automation out of use
    #[command(
        after_help = "Example:\n  effectd automations archive 0199f6a2-5a4e-7c10-8d53-3f2b5f0c9a50 --yes"
    )]
    Archive(Change),
    /// Delete an archived automation; receipts stay
    #[command(
        after_help = "Example:\n  effectd automations delete 0199f6a2-5a4e-7c10-8d53-3f2b5f0c9a50 --yes"
    )]
    Delete(Change),
    /// Print the definition of an automation, byte for byte as it was saved
    #[command(
        after_help = "Example:\n  effectd automations export 0199f6a2-5a4e-7c10-8d53-3f2b5f0c9a50 > saved.json"
    )]
    Export {
        /// The automation's id
        #[arg(value_name = "AUTOMATION")]
        id: AutomationId,
    },
    /// Save somebody else's definition as an automation of yours, which is paused until you activate it
    #[command(after_help = "Example:\n  effectd automations import note.json --space shared:household --yes")]
    Import(Import),
}

#[derive(Debug, clap::Args)]
pub(super) struct Render {
    /// The definition, in JSON; `-` reads standard input
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// The inputs of the run, in JSON; `@FILE` reads a file
    #[arg(long, value_name = "JSON", default_value = "{}")]
    inputs: String,
    /// The results of steps by their `output_as`, in JSON; `@FILE` reads a file
    #[arg(long, value_name = "JSON", default_value = "{}")]
    outputs: String,
}

#[derive(Debug, clap::Args)]
pub(super) struct Save {
    /// The definition, in JSON; `-` reads standard input
    #[arg(value_name = "FILE")]
    file: PathBuf,
    #[command(flatten)]
    which: Which,
    #[command(flatten)]
    args: ChangeArgs,
}

#[derive(Debug, clap::Args)]
#[group(required = true, multiple = false)]
struct Which {
    /// The space in which a new automation acts; it belongs to an organisation of the policy
    #[arg(long, value_name = "SPACE")]
    space: Option<SpaceId>,
    /// The automation that gets another version
    #[arg(long, value_name = "AUTOMATION")]
    id: Option<AutomationId>,
}

#[derive(Debug, clap::Args)]
pub(super) struct Import {
    /// The definition, in JSON; `-` reads standard input
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// The space in which it acts; it belongs to an organisation of the policy
    #[arg(long, value_name = "SPACE")]
    space: SpaceId,
    #[command(flatten)]
    args: ChangeArgs,
}

#[derive(Debug, clap::Args)]
pub(super) struct Change {
    /// The automation's id
    #[arg(value_name = "AUTOMATION")]
    id: AutomationId,
    #[command(flatten)]
    args: ChangeArgs,
}

const COLUMNS: [(&str, usize); 6] =
    [("AUTOMATION", 36), ("STATUS", 8), ("VERSION", 7), ("UPDATED", 20), ("SPACE", 20), ("NAME", 32)];

impl AutomationsCommand {
    pub(super) async fn main(self, common: &Common) -> Result<Exit, CliError> {
        let (Change { id, args }, method, verb) = match self {
            Self::New => {
                // `output` remembers a failure.
                let _ = Stdout.write_all(STARTER.as_bytes());
                return Ok(Exit::Done);
            }
            Self::Check { file } => return check(common, &file).await,
            Self::Render(render) => return render.main(common).await,
            Self::Save(Save { file, which: Which { space, id }, args }) => {
                let at = match (space, id) {
                    (Some(space), _) => (Method::POST, new(&space, false)),
                    (None, Some(id)) => (Method::PUT, path(common, &id).await?),
                    // The arguments have one of the two.
                    (None, None) => return Err(CliError::request("name a --space or an --id")),
                };
                return save(common, &file, at, args).await;
            }
            Self::Import(Import { file, space, args }) => {
                return save(common, &file, (Method::POST, new(&space, true)), args).await;
            }
            Self::List => return Ok(print_rows(common.output, &COLUMNS, &all(common).await?, cells)),
            Self::Show { id } => {
                let view = get::<AutomationView>(common, Depth::Policy, &path(common, &id).await?).await;
                return Ok(print_one(common.output, &COLUMNS, &view.map_err(unknown_fails)?, cells));
            }
            Self::Export { id } => return export(common, &id).await,
            Self::Pause(change) => (change, Method::POST, "/pause"),
            Self::Activate(change) => (change, Method::POST, "/activate"),
            Self::Archive(change) => (change, Method::POST, "/archive"),
            Self::Delete(change) => (change, Method::DELETE, ""),
        };
        let path = path(common, &id).await? + verb;
        run_at(common, (method, &path), no_body, args).await
    }
}

/// The path by which a new automation is saved.
fn new(space: &SpaceId, paused: bool) -> String {
    format!("{ROOT}?space_id={}&paused={paused}", percent_encoded(space.as_str()))
}

fn read(file: &std::path::Path) -> Result<Vec<u8>, CliError> {
    read_bounded(file).map_err(|error| {
        let name = file.display();
        CliError::request(format!("{name} cannot be read: {error}; name a file that holds a definition"))
    })
}

async fn check(common: &Common, file: &std::path::Path) -> Result<Exit, CliError> {
    let definition = read(file)?;
    let view: CheckedView = with_client(common, Depth::Policy, async |client| {
        Ok(client.call(Method::POST, &format!("{ROOT}/check"), definition).await?)
    })
    .await?;
    if !print_json(common.output, &view) {
        for (kind, findings) in [("error", &view.errors), ("warning", &view.warnings)] {
            findings.iter().for_each(|one| line(&format!("{kind}: {}: {}", one.pointer, one.message)));
        }
        line(if view.valid { "the definition can be saved" } else { "the definition cannot be saved" });
    }
    Ok(if view.valid { Exit::Done } else { Exit::Failed })
}

const STEPS: [(&str, usize); 3] = [("STEP", 24), ("STATE", 8), ("CONFIG", 0)];

impl Render {
    async fn main(self, common: &Common) -> Result<Exit, CliError> {
        let invalid =
            |error: &dyn std::fmt::Display| CliError::request(format!("the definition is no JSON: {error}"));
        let definition =
            json::parse_value(&read(&self.file)?, REQUEST_BYTES_MAX).map_err(|error| invalid(&error))?;
        let (inputs, outputs) = (object("--inputs", &self.inputs)?, object("--outputs", &self.outputs)?);
        let body = RenderBody { definition, inputs, outputs, space_id: None };
        let RenderView { steps } = post(common, Depth::Sandbox, &format!("{ROOT}/render"), &body).await?;
        let failed = steps.iter().any(|step| step.error.is_some());
        print_rows(common.output, &STEPS, &steps, |step| {
            let RenderedView { step_id, state, config, pointer, error } = step;
            let config = config.as_ref().map(|config| Value::Object(config.clone()).to_string());
            let error =
                error.as_ref().map(|error| format!("{}: {error}", pointer.as_deref().unwrap_or_default()));
            [step_id.clone(), state.clone(), config.or(error).unwrap_or_default()]
        });
        Ok(if failed { Exit::Failed } else { Exit::Done })
    }
}

async fn save(
    common: &Common,
    file: &std::path::Path,
    (method, path): (Method, String),
    args: ChangeArgs,
) -> Result<Exit, CliError> {
    let definition = read(file)?;
    let body = move |_: RunMode| Ok(definition.clone());
    run_at(common, (method, &path), body, args).await
}

async fn export(common: &Common, id: &AutomationId) -> Result<Exit, CliError> {
    let path = path(common, id).await? + "/definition";
    let (status, body) = with_client(common, Depth::Policy, async |client| {
        Ok(client.ask(Method::GET, &path, Bytes::new()).await?)
    })
    .await?;
    if status >= 400 {
        return Err(unknown_fails(refused(&body)));
    }
    // `output` remembers a failure.
    let _ = Stdout.write_all(&body);
    Ok(Exit::Done)
}

fn cells(known: &AutomationView) -> [String; 6] {
    let AutomationView { automation_id, status, version, updated_at, space_id, name, .. } = known;
    let name = name.clone().unwrap_or_default();
    [automation_id.clone(), status.clone(), version.to_string(), second(updated_at), space_id.clone(), name]
}

/// The path of the automation that a word names, in full or by its beginning.
async fn path(common: &Common, word: &AutomationId) -> Result<String, CliError> {
    short_id::path(ROOT, word.as_str(), all(common), |known| known.automation_id.as_str()).await
}

async fn all(common: &Common) -> Result<Vec<AutomationView>, CliError> {
    pages(common, Depth::Policy, ROOT, |page: AutomationList| (page.automations, page.next)).await
}
