//! `effectd plugins …`: packages of scripts that an operator adds as tools.

use std::fs;
use std::path::PathBuf;

use clap::{Subcommand, ValueEnum};
use effectd_actors::services::plugins::Package;
use effectd_contracts::Digest;
use effectd_contracts::plugin::{MANIFEST, PLUGIN_SOURCE, PluginInvalid, is_package_name};
use effectd_gateway::client::percent_encoded;
use effectd_gateway::views::plugins::{AddBody, PluginView};
use hyper::Method;
use serde_json::json;

use super::mutation::{ChangeArgs, json_body, no_body, run_at};
use super::output::{Tone, line, toned};
use super::{CliError, Common, Depth, Form, eprint_line, get, print_json, print_rows, state_dir_of};
use crate::error::AtPath;
use crate::exit::Exit;
use crate::host::file_inspector::WorkspaceInspector;
use crate::state::plugins_in;

/// Make, check, add and remove plugins: packages of scripts that become tools
///
/// A package is a folder with action.json and its scripts, in the folder `actions` of the setting plugins.root. It becomes a tool when an
/// operator adds it, as it is then: a package that changes afterwards does not run. No code of plugins runs unless the setting
/// plugins.allow_code_execution is true.
#[derive(Debug, Subcommand)]
#[command(after_help = "Example:\n  effectd plugins list")]
pub(super) enum PluginsCommand {
    /// List the packages in the operator's folder, and those that were added
    #[command(after_help = "Example:\n  effectd plugins list -o json")]
    List,
    /// Write a new package that sorts the lines of a file, to begin with, and has a test
    #[command(
        after_help = "Examples:\n  effectd plugins new sort_lines\n  effectd plugins new sort_lines --language python --dir ."
    )]
    New {
        #[command(flatten)]
        at: At,
        /// The language of its scripts
        #[arg(long, value_enum, default_value = "javascript")]
        language: Language,
    },
    /// Look whether a package can be added, and say what is wrong if not; nothing of it runs
    #[command(after_help = "Example:\n  effectd plugins check sort_lines")]
    Check(At),
    /// Show a package, and let it be a tool as it is now
    #[command(after_help = "Example:\n  effectd plugins add sort_lines --yes")]
    Add {
        /// The name of the package
        #[arg(value_name = "NAME")]
        name: String,
        /// Adds the package only if this is its digest, instead of what is shown now
        #[arg(long, value_name = "DIGEST")]
        digest: Option<String>,
        #[command(flatten)]
        args: ChangeArgs,
    },
    /// Take the tool of a plugin away; its package stays on disk
    #[command(visible_alias = "delete", after_help = "Example:\n  effectd plugins remove sort_lines --yes")]
    Remove {
        /// The name of the package
        #[arg(value_name = "NAME")]
        name: String,
        #[command(flatten)]
        args: ChangeArgs,
    },
}

/// A package on this machine.
#[derive(Debug, clap::Args)]
pub(super) struct At {
    /// The name of the package
    #[arg(value_name = "NAME")]
    name: String,
    /// The folder that the package is in [default: that of the packages that can be added]
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
pub(super) enum Language {
    Javascript,
    Python,
}

const COLUMNS: [(&str, usize); 6] =
    [("PLUGIN", 24), ("STATE", 8), ("RUNS", 5), ("TIER", 4), ("TOOL", 32), ("WHAT", 48)];
const ROOT: &str = "/v1/plugins";

/// The files of a new package.
macro_rules! template {
    ($end:literal) => {
        [
            (MANIFEST, include_str!("plugins/action.json")),
            (concat!("execute.", $end), include_str!(concat!("plugins/execute.", $end))),
            (concat!("verify.", $end), include_str!(concat!("plugins/verify.", $end))),
            (concat!("rollback.", $end), include_str!(concat!("plugins/rollback.", $end))),
            (concat!("test.", $end), include_str!(concat!("plugins/test.", $end))),
        ]
    };
}

impl Language {
    fn files(self) -> (&'static str, [(&'static str, &'static str); 5]) {
        match self {
            Self::Javascript => ("js", template!("js")),
            Self::Python => ("py", template!("py")),
        }
    }
}

impl PluginsCommand {
    pub(super) async fn main(self, common: &Common) -> Result<Exit, CliError> {
        match self {
            Self::List => {
                let all: Vec<PluginView> = get(common, Depth::Policy, ROOT).await?;
                print_rows(common.output, &COLUMNS, &all, cells);
                Ok(Exit::Done)
            }
            Self::New { at, language } => new(common, &at, language),
            Self::Check(at) => check(common, &at),
            Self::Add { name, digest, args } => add(common, &name, digest, args).await,
            Self::Remove { name, args } => {
                let path = format!("{ROOT}/{}", percent_encoded(&name));
                run_at(common, (Method::DELETE, &path), no_body, args).await
            }
        }
    }
}

impl At {
    fn folder(&self, common: &Common) -> Result<PathBuf, CliError> {
        if !is_package_name(&self.name) {
            return Err(CliError::request(PluginInvalid::Name(self.name.clone()).to_string()));
        }
        let state = state_dir_of(common);
        let packages = || -> Result<PathBuf, CliError> {
            let settings = common.settings(Some(&state))?;
            Ok(plugins_in(&state, &settings.values().plugins_root).join("actions"))
        };
        let folder = self.dir.clone().map_or_else(packages, Ok)?.join(&self.name);
        // The package itself must be no link; where it is, the operator says.
        let parent = folder.parent().map(|parent| parent.canonicalize().unwrap_or(parent.to_owned()));
        Ok(parent.unwrap_or_default().join(&self.name))
    }
}

fn cells(known: &PluginView) -> [String; 6] {
    let PluginView { name, state, runs, risk_tier, tool_id, .. } = known;
    let what = known.fault.clone().or_else(|| known.description.clone()).unwrap_or_default();
    let runs = if *runs { "yes" } else { "no" };
    [
        name.clone(),
        state.clone(),
        runs.to_owned(),
        risk_tier.clone().unwrap_or_default(),
        tool_id.clone(),
        what,
    ]
}

fn new(common: &Common, at: &At, language: Language) -> Result<Exit, CliError> {
    let folder = at.folder(common)?;
    if folder.exists() {
        return Err(CliError::request(format!("{} is there already", folder.display())).exiting(Exit::Failed));
    }
    fs::create_dir_all(&folder).at(&folder)?;
    let (end, files) = language.files();
    for (name, text) in files {
        let text = if name == MANIFEST {
            text.replace("NAME", &at.name).replace("EXT", end)
        } else {
            text.to_owned()
        };
        fs::write(folder.join(name), text).at(&folder)?;
    }
    if !print_json(common.output, &json!({ "name": at.name, "folder": folder })) {
        line(&folder.display().to_string());
        eprint_line(&format!("now change it, run its test.{end}, and then: effectd plugins add {}", at.name));
    }
    Ok(Exit::Done)
}

fn check(common: &Common, at: &At) -> Result<Exit, CliError> {
    let found = Package::read(&WorkspaceInspector, &at.folder(common)?);
    let missing = found.as_ref().map(Package::missing_interpreters).unwrap_or_default();
    let pinned = found.as_ref().ok().map(|package| &package.pinned);
    let said = json!({
        "name": at.name,
        "tool_id": format!("{PLUGIN_SOURCE}.{}", at.name),
        "files": pinned.map(|pinned| &pinned.files),
        "digest": pinned.map(effectd_contracts::plugin::Pinned::digest),
        "fault": found.as_ref().err().map(ToString::to_string),
        "missing": missing,
    });
    if !print_json(common.output, &said) {
        for (name, digest) in pinned.iter().flat_map(|pinned| &pinned.files) {
            toned(&format!("ok    {name} {digest}"), Tone::Good);
        }
        missing.iter().for_each(|program| toned(&format!("fault this machine has no {program}"), Tone::Bad));
        if let Err(why) = &found {
            toned(&format!("fault {why}"), Tone::Bad);
        }
    }
    Ok(if found.is_ok() && missing.is_empty() { Exit::Done } else { Exit::Failed })
}

/// Shows a package, and adds exactly that.
async fn add(
    common: &Common,
    name: &str,
    digest: Option<String>,
    args: ChangeArgs,
) -> Result<Exit, CliError> {
    let path = format!("{ROOT}/{}", percent_encoded(name));
    let view: PluginView = get(common, Depth::Policy, &path).await?;
    if common.output == Form::Table {
        print(&view);
    }
    let refused = || CliError::request(view.fault.clone().unwrap_or_default()).exiting(Exit::Failed);
    let shown = digest.or(view.digest.clone()).ok_or_else(refused)?;
    let digest = Digest::try_from(shown).map_err(|error| CliError::request(error.to_string()))?;
    run_at(common, (Method::POST, &format!("{path}/add")), json_body(&AddBody { digest }), args).await
}

fn print(view: &PluginView) {
    let PluginView { name, tool_id, state, .. } = view;
    toned(&format!("{name} ({state}) becomes the tool {tool_id}"), Tone::Heading);
    let said = [
        ("tier", &view.risk_tier),
        ("what it does", &view.description),
        ("sees", &view.filesystem),
        ("digest", &view.digest),
        ("added by", &view.added_by),
    ];
    for (what, value) in said {
        value.iter().for_each(|value| line(&format!("  {what:<12} {value}")));
    }
    view.commands.iter().for_each(|command| line(&format!("  {:<12} {command}", "verified by")));
    for file in &view.files {
        let tone = if file.state == "same" { Tone::Good } else { Tone::Waiting };
        let digest = file.digest.as_deref().unwrap_or_default();
        toned(&format!("  {:<12} {} {digest}", file.state, file.name), tone);
    }
    view.fault.iter().for_each(|fault| toned(&format!("  ! {fault}"), Tone::Bad));
}
