//! `effectd context …`: the daemons at URLs that a user knows, and which of them a command speaks to.
//!
//! Contexts are in the user's configuration folder, each token in a file of its own. What a flag names counts before what the
//! environment names, and that before the current context.

use std::collections::BTreeMap;
use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::Subcommand;
use effectd_gateway::client::{Notice, Remote};
use effectd_gateway::socket::make_private;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use zeroize::Zeroizing;

use super::completions::{self, complete};
use super::{CliError, Common, eprint_line, print_one, print_rows, secrets};
use crate::error::AtPath;
use crate::exit::Exit;
use crate::settings::SOCKET_VARIABLE;
use crate::settings::config::{CONTEXT_VARIABLE, STATE_VARIABLE, TOKEN_VARIABLE, URL_VARIABLE};

/// The name that stands for this machine: its state directories and sockets.
const LOCAL: &str = "local";
const FILE: &str = "contexts.toml";
const NAME_BYTES_MAX: usize = 64;

/// Commands, or all below a name, that work on this machine alone.
const HERE: &str = "backup, caches, completions, config, connectors presets, context, doctor, init, man, mcp, restore, serve, \
    store check, store migrate, store rebuild, store salvage, support-bundle";
/// Commands, or all below a name, that destroy something or change who may do what. They take a context only if the same line
/// names it.
const NAMED: &str = "connections delete, connectors remove, connectors review, dlq drop, keys rotate, keys rotate-device, policy grant-consent, \
    policy overlay clear, policy reload, policy revoke-consent, policy set-band, \
    policy set-entry, policy set-mode, policy shadow, quarantine shred, restore, \
    secrets delete, sessions delete, slack map, slack unmap, store erase, store retain, tokens, webhooks delete";

/// Manage contexts: daemons at URLs, each with a token
///
/// A context is a name for a URL and a token. `effectd context use NAME` makes it the current one, and other commands speak to it.
/// What counts first: `--context` or `--url`, `--state` or `--socket`; then EFFECTD_CONTEXT, EFFECTD_URL with EFFECTD_TOKEN, EFFECTD_STATE or
/// EFFECTD_SOCKET; then the current context; then this machine, which is the context `local`. A command that changes something
/// names its target first. One that destroys something takes a context only by `--context` or `--url`.
#[derive(Debug, Subcommand)]
#[command(after_help = "Example:\n  effectd context list")]
pub(super) enum ContextCommand {
    /// Add a context
    ///
    /// The token is copied into a file that only you may read.
    #[command(
        after_help = "Example:\n  effectd context add home --url http://127.0.0.1:7070 --token-file token.txt"
    )]
    Add {
        /// A new name
        #[arg(value_name = "NAME", value_parser = new_name)]
        name: String,
        // A global option, too; here it is required, and in the help.
        /// The daemon's URL: https://, or http:// on this machine
        #[arg(long, value_name = "URL")]
        url: String,
        /// The file that has the token; `-` is standard input
        #[arg(long, value_name = "FILE")]
        token_file: PathBuf,
        /// The certificates of the authorities to trust, in PEM [default: the system's]
        #[arg(long, value_name = "FILE")]
        ca: Option<PathBuf>,
    },
    /// Make a context the current one; `local` is this machine
    #[command(after_help = "Examples:\n  effectd context use home\n  effectd context use local")]
    Use(Which),
    /// List contexts
    #[command(after_help = "Example:\n  effectd context list -o json")]
    List,
    /// Show a context, without its token
    #[command(after_help = "Example:\n  effectd context show")]
    Show {
        /// The context [default: the current one]
        #[arg(value_name = "NAME", add = complete(completions::contexts))]
        name: Option<String>,
    },
    /// Remove a context and its token
    #[command(after_help = "Example:\n  effectd context remove home")]
    Remove(Which),
}

#[derive(Debug, clap::Args)]
pub(super) struct Which {
    /// The context
    #[arg(value_name = "NAME", add = complete(completions::contexts))]
    name: String,
}

/// The file of contexts.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Contexts {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    current: Option<String>,
    #[serde(default)]
    contexts: BTreeMap<String, Context>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Context {
    url: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    ca: Option<PathBuf>,
}

const COLUMNS: [(&str, usize); 4] = [("CURRENT", 7), ("NAME", 16), ("URL", 40), ("TOKEN", 0)];

impl ContextCommand {
    pub(super) fn main(self, common: &Common) -> Result<Exit, CliError> {
        let mut all = Contexts::read()?;
        match self {
            Self::Add { name, url, token_file, ca } => {
                if all.contexts.contains_key(&name) {
                    return Err(CliError::request(format!(
                        "there is a context {name:?}; `effectd context remove {name}` removes it"
                    )));
                }
                let token = secrets::read(&token_file, "--token-file")?;
                let ca = ca.map(|file| std::path::absolute(&file).unwrap_or(file));
                let context = Context { url, ca };
                context.remote(&name, &token)?;
                write_private(&token_path(&name)?, token.as_bytes())?;
                all.contexts.insert(name.clone(), context);
                all.write()?;
                eprint_line(&format!(
                    "added {name}; `effectd context use {name}` makes it the current context"
                ));
            }
            Self::Use(Which { name }) => {
                all.find(&name)?;
                all.current = Some(name).filter(|name| name != LOCAL);
                all.write()?;
                eprint_line(&format!("the current context is {}", all.current()));
            }
            Self::List => {
                let names = [LOCAL].into_iter().chain(all.contexts.keys().map(String::as_str));
                let rows: Vec<Value> = names.map(|name| all.row(name, all.contexts.get(name))).collect();
                return Ok(print_rows(common.output, &COLUMNS, &rows, cells));
            }
            Self::Show { name } => {
                let name = name.as_deref().unwrap_or_else(|| all.current());
                let row = all.row(name, all.find(name)?);
                return Ok(print_one(common.output, &COLUMNS, &row, cells));
            }
            Self::Remove(Which { name }) => {
                if all.find(&name)?.is_none() {
                    return Err(CliError::request(format!("{LOCAL} is this machine; it stays")));
                }
                // The token first: a context without one can be removed again.
                let token = token_path(&name)?;
                match fs::remove_file(&token) {
                    Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error).at(&token)?,
                    Ok(()) | Err(_) => {}
                }
                all.contexts.remove(&name);
                all.current = all.current.take().filter(|current| *current != name);
                all.write()?;
                eprint_line(&format!("removed {name}; its token stays valid until an operator revokes it"));
            }
        }
        Ok(Exit::Done)
    }
}

fn cells(row: &Value) -> [String; 4] {
    let text = |name: &str| row[name].as_str().unwrap_or_default().to_owned();
    let current = if row["current"] == true { "*" } else { "" };
    let url = row["url"].as_str().unwrap_or("this machine");
    [current.to_owned(), text("name"), url.to_owned(), text("token")]
}

impl Contexts {
    /// The user's contexts; none if there is no file, or the user has no folder for it.
    fn read() -> Result<Self, CliError> {
        let Ok(file) = folder().map(|folder| folder.join(FILE)) else {
            return Ok(Self::default());
        };
        let text = match fs::read_to_string(&file) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Self::default()),
            text => text.at(&file)?,
        };
        let broken = |error: toml::de::Error| {
            CliError::request(format!("{} cannot be read: {}", file.display(), error.message()))
        };
        toml::from_str(&text).map_err(broken)
    }

    fn write(&self) -> Result<(), CliError> {
        let text = toml::to_string(self).map_err(|error| CliError::request(error.to_string()))?;
        write_private(&folder()?.join(FILE), text.as_bytes())
    }

    fn current(&self) -> &str {
        self.current.as_deref().unwrap_or(LOCAL)
    }

    /// A context; `None` for this machine.
    fn find(&self, name: &str) -> Result<Option<&Context>, CliError> {
        let found = self.contexts.get(name);
        if found.is_none() && name != LOCAL {
            let why = format!("there is no context {name:?}; `effectd context list` lists them");
            return Err(CliError::request(why));
        }
        Ok(found)
    }

    /// A context as commands print it. Of its token, only the id.
    fn row(&self, name: &str, context: Option<&Context>) -> Value {
        let token = context.and_then(|_| token(name).ok());
        json!({
            "name": name,
            "current": name == self.current(),
            "url": context.map(|context| &context.url),
            "ca": context.and_then(|context| context.ca.as_ref()),
            "token": token.map(|token| token_id(&token)),
        })
    }
}

impl Context {
    fn remote(&self, name: &str, token: &str) -> Result<Remote, CliError> {
        let named = (format!("context {name:?}"), self.url.as_str());
        Remote::new(named, token, self.ca.as_deref()).map_err(CliError::request)
    }
}

/// Names of contexts, for completions.
pub(super) fn names() -> Vec<(String, String)> {
    let all = Contexts::read().unwrap_or_default();
    let local = (LOCAL.to_owned(), "this machine".to_owned());
    [local].into_iter().chain(all.contexts.into_iter().map(|(name, context)| (name, context.url))).collect()
}

/// The daemon at a URL that a command speaks to; `None` for this machine. Refuses flags that the command would ignore, and two
/// that name different targets.
pub(super) fn resolve(common: &Common, command: &str) -> Result<Option<Arc<Remote>>, CliError> {
    let sets_socket =
        |pair: &String| pair.split('=').next().is_some_and(|key| key.trim() == "gateway.socket");
    let state = common.state.is_some() || common.socket.is_some() || common.set.iter().any(sets_socket);
    // `context add` has a `--url` of its own.
    let url = common.url.as_ref().filter(|_| command != "context add");
    let is_of = |list: &str| {
        list.split(", ")
            .any(|it| command.strip_prefix(it).is_some_and(|rest| rest.is_empty() || rest.starts_with(' ')))
    };
    let by_flag = one_of([
        ("--context", common.context.clone().map(Chosen::Context)),
        ("--url", url.cloned().map(Chosen::Url)),
        ("--state or --socket", state.then(Chosen::here)),
    ])?;
    let is_flag = by_flag.is_some();
    let (by, chosen) = match by_flag {
        Some(chosen) => chosen,
        None if is_of(HERE) && !is_of(NAMED) => return Ok(None),
        None => without_flag()?,
    };
    if chosen == Chosen::here() {
        return Ok(None);
    }
    if is_flag && is_of(HERE) {
        let why = format!("`effectd {command}` works on this machine; leave out {by}");
        return Err(CliError::request(why));
    }
    if !is_flag && is_of(NAMED) {
        return Err(CliError::request(format!(
            "`effectd {command}` does not go where only {by} leads; name it with --context, or this machine with --context {LOCAL}"
        )));
    }
    chosen.remote(by).map(|remote| remote.map(Arc::new))
}

/// The target that the environment names, or the current context.
fn without_flag() -> Result<(&'static str, Chosen), CliError> {
    let of_state = variable(STATE_VARIABLE).or_else(|| variable(SOCKET_VARIABLE));
    let named = one_of([
        (CONTEXT_VARIABLE, variable(CONTEXT_VARIABLE).map(Chosen::Context)),
        (URL_VARIABLE, variable(URL_VARIABLE).map(Chosen::Url)),
        ("EFFECTD_STATE or EFFECTD_SOCKET", of_state.map(|_| Chosen::here())),
    ])?;
    match named {
        Some(named) => Ok(named),
        None => Ok(("the current context", Chosen::Context(Contexts::read()?.current().to_owned()))),
    }
}

/// Where a command goes.
#[derive(PartialEq, Eq)]
enum Chosen {
    Context(String),
    Url(String),
}

impl Chosen {
    /// A state or a socket of this machine.
    fn here() -> Self {
        Self::Context(LOCAL.to_owned())
    }

    /// `None` for this machine.
    fn remote(self, by: &str) -> Result<Option<Remote>, CliError> {
        match self {
            Chosen::Context(name) => match Contexts::read()?.find(&name)? {
                Some(context) => context.remote(&name, &token(&name)?).map(Some),
                None => Ok(None),
            },
            Chosen::Url(url) => {
                let token = variable(TOKEN_VARIABLE).map(Zeroizing::new);
                let missing = || {
                    CliError::request(format!("{by} needs a token: set {TOKEN_VARIABLE}, or add a context"))
                };
                let named = (TOKEN_VARIABLE.to_owned(), url.as_str());
                let remote = Remote::new(named, &token.ok_or_else(missing)?, None);
                remote.map(Some).map_err(CliError::request)
            }
        }
    }
}

/// The one target that is given; two are refused.
fn one_of(given: [(&'static str, Option<Chosen>); 3]) -> Result<Option<(&'static str, Chosen)>, CliError> {
    let mut given = given.into_iter().filter_map(|(name, chosen)| Some((name, chosen?)));
    let first = given.next();
    if let (Some((first, _)), Some((second, _))) = (&first, given.next()) {
        let why = format!("{first} and {second} name two targets; leave one of them out");
        return Err(CliError::request(why));
    }
    Ok(first)
}

/// A variable of the environment; empty means unset. One that is not UTF-8 is set, too.
fn variable(name: &str) -> Option<String> {
    let value = std::env::var_os(name).filter(|value| !value.is_empty())?;
    Some(value.to_string_lossy().into_owned())
}

/// What a command says before it changes something, on standard error in every form of output. Behind `mcp` is an agent, which has no
/// use for it on this machine.
pub(super) fn notice(common: &Common, command: &str) -> Option<Arc<Notice>> {
    let is_needed = common.remote.is_some() || command != "mcp";
    is_needed.then(|| {
        Arc::new(Notice::new(|target, who| {
            eprint_line(&format!("target {target}, state {}, as {}", who.state_id, who.principal));
        }))
    })
}

/// The user's folder for effectd.
fn folder() -> Result<PathBuf, CliError> {
    let absolute = |name| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let config = absolute("XDG_CONFIG_HOME").or_else(|| Some(absolute("HOME")?.join(".config")));
    let none = || CliError::request("contexts need a folder: set HOME or XDG_CONFIG_HOME");
    Ok(config.ok_or_else(none)?.join("effectd"))
}

fn token_path(name: &str) -> Result<PathBuf, CliError> {
    Ok(folder()?.join("tokens").join(name))
}

/// The token of a context. A file that others may read is refused.
fn token(name: &str) -> Result<Zeroizing<String>, CliError> {
    let file = token_path(name)?;
    let mode = fs::metadata(&file).at(&file)?.permissions().mode();
    if mode & 0o077 != 0 {
        let why = format!("{} has a token, and others may read it: `chmod 600` it", file.display());
        return Err(CliError::request(why));
    }
    Ok(Zeroizing::new(fs::read_to_string(&file).at(&file)?))
}

/// What may be shown of a token: `efd_<kind>_<id>`, nothing of others.
fn token_id(token: &str) -> String {
    let parts: Vec<&str> = token.splitn(4, '_').collect();
    match parts[..] {
        ["efd", kind, id, _] => format!("efd_{kind}_{id}"),
        _ => "not one of effectd".to_owned(),
    }
}

fn write_private(path: &Path, bytes: &[u8]) -> Result<(), CliError> {
    Ok(write_whole(path, bytes, 0o600).at(path)?)
}

/// Writes a draft with this mode, and renames it. The draft has an extension of effectd's own, so that it replaces no file of the user.
pub(super) fn write_whole(path: &Path, bytes: &[u8], mode: u32) -> io::Result<()> {
    make_private(path.parent().unwrap_or(path))?;
    let draft = path.with_extension("effectd-draft");
    // What is there may be a link to another file. If it cannot be removed, the next line fails.
    let _ = fs::remove_file(&draft);
    let mut file = OpenOptions::new().write(true).create_new(true).mode(mode).open(&draft)?;
    // Whatever the umask.
    file.set_permissions(fs::Permissions::from_mode(mode))?;
    file.write_all(bytes)?;
    file.sync_all()?;
    fs::rename(&draft, path)
}

/// A name that can be a file's.
fn new_name(text: &str) -> Result<String, String> {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
    if text.is_empty() || text.len() > NAME_BYTES_MAX || !text.bytes().all(fits) {
        return Err(format!("a name has letters, digits, `-` and `_`, at most {NAME_BYTES_MAX}"));
    }
    if text == LOCAL { Err(format!("`{LOCAL}` is this machine")) } else { Ok(text.to_owned()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_of_a_token_but_its_id_is_shown() {
        assert_eq!(token_id("efd_sandbox_0199f6a2_secret_more"), "efd_sandbox_0199f6a2");
        for other in ["efd_user_secret", "eyJh.eyJz.c2ln", "", "a_b_c_d"] {
            assert_eq!(token_id(other), "not one of effectd");
        }
    }

    #[test]
    fn commands_that_are_listed_here_exist() {
        for line in HERE.split(", ").chain(NAMED.split(", ")) {
            let mut command = &crate::cli::command();
            for word in line.split(' ') {
                let below = command.get_subcommands().find(|below| below.get_name() == word);
                command = below.unwrap_or_else(|| panic!("{line} is no command"));
            }
        }
    }

    #[test]
    fn a_name_of_a_context_is_one_of_a_file() {
        assert!(["prod", "a-b_2"].iter().all(|name| new_name(name).is_ok()));
        for name in ["", "local", "..", "a/b", "a.draft", "a b", &"x".repeat(65)] {
            assert!(new_name(name).is_err(), "{name}");
        }
    }
}
