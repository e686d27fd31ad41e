//! `effectd mcp install`: a policy for a project, and the lines in the configuration of an agent that name effectd.

use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use effectd_contracts::json::parse_value;
use effectd_policy::Preset;
use serde_json::{Value, json};
use similar::TextDiff;

use super::{Place, Project, absolute_state};
use crate::cli::context::write_whole;
use crate::cli::{CliError, Common, Confirm, data, eprint_line, line, print_json};
use crate::exit::Exit;
use crate::state::State;

/// The name under which agents know effectd.
const NAME: &str = "effectd";
/// The longest configuration of an agent.
const CONFIG_BYTES_MAX: usize = 1_048_576;
/// What the preset says about the folder of its space.
const PRESET_ROOT: &str = "root = \"./workspace\"";

/// Make a policy for this project, and tell an agent to use effectd
///
/// The policy is the preset `coding` with the project as its one space: the agent reads and writes files, and each write can be
/// undone; a person decides about deletions and about programs. An existing policy stays as it is. Without an agent, only the
/// policy is made.
/// claude-code: .mcp.json in the project. codex: ~/.codex/config.toml ($CODEX_HOME). gemini: ~/.gemini/settings.json. Other settings stay.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  effectd mcp install claude-code --dry-run\n  effectd mcp install claude-code --yes\n  \
    effectd mcp install codex --print\n  effectd mcp install --print -o json"
)]
pub(super) struct Install {
    /// The agent
    #[arg(value_name = "AGENT", value_enum)]
    agent: Option<Agent>,
    /// Only print the lines for the configuration of an agent
    #[arg(long, conflicts_with_all = ["yes", "dry_run"])]
    print: bool,
    #[command(flatten)]
    confirm: Confirm,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Agent {
    ClaudeCode,
    Codex,
    Gemini,
}

impl Install {
    pub(super) fn main(self, common: &Common, project: &Project, place: &Place) -> Result<Exit, CliError> {
        let mut server = Server::of(common, project, self.print)?;
        server.args.extend(place.named().flat_map(|(name, value)| [format!("--{name}"), value]));
        if self.print {
            let lines = server.lines(self.agent);
            let shown = json!({ "command": server.command, "args": server.args, "lines": lines });
            if !print_json(common.output, &shown) {
                data(lines.trim_end());
            }
            return Ok(Exit::Done);
        }
        let state = project.new_state(common)?;
        let policy = NewPolicy::of(project, &state)?;
        let edit = self.agent.map(|agent| Edit::of(agent, &server, project)).transpose()?;
        let edit = edit.filter(|edit| edit.old != edit.new);
        let says: Vec<String> =
            policy.iter().map(NewPolicy::says).chain(edit.iter().map(Edit::says)).collect();
        if says.is_empty() {
            eprint_line(&"there is nothing to change");
        } else if !self.confirm.confirmed(&says) {
            return Ok(self.confirm.declined());
        }
        if let Some(policy) = &policy {
            State::prepare(&state, None, Some(policy.files()))?;
        }
        if let Some(edit) = &edit {
            edit.write()?;
        }
        let shown = json!({
            "state": state,
            "policy": state.join("policy"),
            "policy_written": policy.is_some(),
            "file": edit.as_ref().map(|edit| &edit.file),
        });
        if !print_json(common.output, &shown) {
            line(&state.join("policy").display().to_string());
        }
        if self.agent.is_some() {
            eprint_line(&"an agent's own shell and editor go around effectd: turn them off (docs/mcp.md)");
        }
        eprint_line(&"`effectd mcp try` shows whether it works");
        Ok(Exit::Done)
    }
}

/// The policy of a project that has none.
struct NewPolicy {
    folder: PathBuf,
    project: PathBuf,
    text: String,
}

impl NewPolicy {
    fn of(project: &Project, state: &Path) -> Result<Option<Self>, CliError> {
        let folder = state.join("policy");
        if folder.exists() {
            return Ok(None);
        }
        let project = &project.folder;
        // The state may not exist yet, and a link may lead to it.
        let real = state.ancestors().find_map(|above| above.canonicalize().ok());
        if state.starts_with(project) || real.is_some_and(|real| real.starts_with(project)) {
            let (state, project) = (state.display(), project.display());
            return Err(CliError::request(format!(
                "the state {state} would be inside of the project {project}, where tools could change it; go to the project's own \
                 folder, or name another state with --state"
            )));
        }
        let root = project.to_str().ok_or_else(|| {
            CliError::request(format!("the path {} is not UTF-8; a policy cannot name it", project.display()))
        })?;
        let [(_, preset), _] = Preset::Coding.files();
        let text = preset.replacen(PRESET_ROOT, &format!("root = {}", toml::Value::from(root)), 1);
        Ok(Some(Self { folder, project: project.clone(), text }))
    }

    fn files(&self) -> [(&str, &str); 2] {
        let [(policy, _), rules] = Preset::Coding.files();
        [(policy, self.text.as_str()), rules]
    }

    fn says(&self) -> String {
        let (folder, project) = (self.folder.display(), self.project.display());
        let [(_, preset), _] = Preset::Coding.files();
        let to = self.folder.join("policy.toml").display().to_string();
        let diff = diff(preset, &self.text, "preset coding", &to);
        format!(
            "write the policy `coding` to {folder}: in {project} the agent reads and writes files, and each write can be undone; a \
             person decides about deletions, and about programs other than `git status`, `git diff` and `git log`\n{diff}"
        )
    }
}

fn diff(old: &str, new: &str, from: &str, to: &str) -> String {
    TextDiff::from_lines(old, new).unified_diff().header(from, to).to_string().trim_end().to_owned()
}

/// How an agent starts effectd.
struct Server {
    command: String,
    args: Vec<String>,
}

impl Server {
    /// Agents start it in the folder of their project; others need its name.
    fn of(common: &Common, project: &Project, for_others: bool) -> Result<Self, CliError> {
        let program = std::env::current_exe()
            .map_err(|error| CliError::request(format!("this program cannot be found on disk: {error}")))?;
        let text = |path: &Path| {
            let text = path.to_str().map(str::to_owned);
            text.ok_or_else(|| CliError::request(format!("the path {} is not UTF-8", path.display())))
        };
        let mut args = vec!["mcp".to_owned()];
        if project.is_named && for_others {
            args.extend(["--project".to_owned(), text(&project.folder)?]);
        }
        if let Some(state) = absolute_state(common) {
            args.extend(["--state".to_owned(), text(&state)?]);
        }
        Ok(Self { command: text(&program)?, args })
    }

    /// The lines for the configuration of an agent. Most have the same.
    fn lines(&self, agent: Option<Agent>) -> String {
        match agent {
            Some(Agent::Codex) => {
                let [command, args] = self.toml_lines();
                format!("[mcp_servers.{NAME}]\n{command}\n{args}\n")
            }
            Some(Agent::ClaudeCode | Agent::Gemini) | None => {
                let entry = json!({ "command": self.command, "args": self.args });
                pretty(&json!({ "mcpServers": { NAME: entry } }))
            }
        }
    }

    fn toml_lines(&self) -> [String; 2] {
        let command = toml::Value::from(self.command.as_str());
        let args = toml::Value::from(self.args.clone());
        [format!("command = {command}"), format!("args = {args}")]
    }

    /// The configuration with this server. An entry keeps what else it has. The error says why that cannot be done.
    fn in_json(&self, old: &str) -> Result<String, String> {
        let text = if old.trim().is_empty() { "{}" } else { old };
        // A name that stands twice, or a number that is not exact, would be lost.
        let mut all = parse_value(text.as_bytes(), CONFIG_BYTES_MAX)
            .map_err(|error| format!("is not plain JSON ({error}), perhaps because of comments"))?;
        let mut entry = all.as_object_mut().ok_or("has another shape")?;
        for name in ["mcpServers", NAME] {
            let below = entry.entry(name).or_insert_with(|| json!({}));
            entry = below.as_object_mut().ok_or_else(|| format!("has another shape at {name:?}"))?;
        }
        let wanted = [("command", json!(self.command)), ("args", json!(self.args))];
        if wanted.iter().all(|(name, value)| entry.get(*name) == Some(value)) {
            return Ok(old.to_owned());
        }
        entry.extend(wanted.map(|(name, value)| (name.to_owned(), value)));
        Ok(pretty(&all))
    }

    /// The same in a file that came with the project, perhaps from a stranger: more in the entry, such as `env` or `url`, could make
    /// something else of effectd.
    fn in_project_json(&self, old: &str) -> Result<String, String> {
        let new = self.in_json(old)?;
        let all: Value = serde_json::from_str(&new).map_err(|error| error.to_string())?;
        let is_plain = |name: &str, value: &Value| {
            ["command", "args"].contains(&name)
                || value.is_number()
                || *value == "stdio"
                || *value == json!({})
        };
        let mut entry = all["mcpServers"][NAME].as_object().into_iter().flatten();
        match entry.find(|(name, value)| !is_plain(name, value)) {
            Some((name, _)) => Err(format!("has {name:?} in its entry for effectd")),
            None => Ok(new),
        }
    }

    /// The same in TOML. The text is edited line by line, so that comments and order stay; then it is compared with what it should
    /// say.
    fn in_toml(&self, old: &str) -> Result<String, String> {
        let read = |text: &str| toml::from_str::<toml::Table>(text);
        let before = read(old).map_err(|error| format!("is not valid TOML ({})", error.message()))?;
        let mut wanted = before.clone();
        let mut entry = &mut wanted;
        for name in ["mcp_servers", NAME] {
            let below = entry.entry(name).or_insert_with(|| toml::Table::new().into());
            entry = below.as_table_mut().ok_or_else(|| format!("has another shape at {name:?}"))?;
        }
        entry.insert("command".to_owned(), self.command.as_str().into());
        entry.insert("args".to_owned(), self.args.clone().into());
        if wanted == before {
            return Ok(old.to_owned());
        }
        let header = format!("[mcp_servers.{NAME}]");
        let mut lines: Vec<String> = old.lines().map(str::to_owned).collect();
        let at = match lines.iter().position(|line| line.trim() == header) {
            Some(at) => at + 1,
            None => {
                if lines.last().is_some_and(|line| !line.trim().is_empty()) {
                    lines.push(String::new());
                }
                lines.push(header);
                lines.len()
            }
        };
        let end = lines[at..].iter().position(|line| line.trim_start().starts_with('['));
        let end = end.map_or(lines.len(), |end| at + end);
        let is_ours = |line: &String| {
            let name = line.split('=').next().unwrap_or_default().trim();
            line.contains('=') && (name == "command" || name == "args")
        };
        let kept: Vec<String> = lines[at..end].iter().filter(|line| !is_ours(line)).cloned().collect();
        lines.splice(at..end, self.toml_lines().into_iter().chain(kept));
        let new = lines.join("\n") + "\n";
        if read(&new).is_ok_and(|read| read == wanted) {
            Ok(new)
        } else {
            Err("has an entry in a form that this command does not edit".to_owned())
        }
    }
}

fn pretty(value: &Value) -> String {
    format!("{value:#}\n")
}

/// A change of an agent's configuration.
struct Edit {
    file: PathBuf,
    old: String,
    new: String,
}

impl Edit {
    fn of(agent: Agent, server: &Server, project: &Project) -> Result<Self, CliError> {
        let file = agent.config(project)?;
        // A link stays one. That of a project, perhaps made by a stranger, must not lead out of it.
        let file = file.canonicalize().unwrap_or(file);
        let shown = file.display();
        if agent == Agent::ClaudeCode && !file.starts_with(&project.folder) {
            let why = format!(".mcp.json is a link out of the project, to {shown}; remove it first");
            return Err(CliError::request(why));
        }
        let old = read_config(&file)
            .map_err(|error| CliError::request(format!("{shown} cannot be read: {error}")))?;
        let new = match agent {
            Agent::ClaudeCode => server.in_project_json(&old),
            Agent::Codex => server.in_toml(&old),
            Agent::Gemini => server.in_json(&old),
        };
        let new = new.map_err(|why| {
            let lines = server.lines(Some(agent));
            CliError::request(format!(
                "{shown} {why}; nothing was changed. Put this into it yourself:\n{lines}"
            ))
        })?;
        Ok(Self { file, old, new })
    }

    fn says(&self) -> String {
        let file = self.file.display().to_string();
        let from = if self.old.is_empty() { "/dev/null" } else { file.as_str() };
        format!("write {file}\n{}", diff(&self.old, &self.new, from, &file))
    }

    /// The agent may have changed the file while a person read what would change.
    fn write(&self) -> Result<(), CliError> {
        let before = fs::metadata(&self.file).ok().map(|metadata| metadata.permissions().mode() & 0o777);
        let written = match read_config(&self.file) {
            Ok(now) if now == self.old => {
                write_whole(&self.file, self.new.as_bytes(), before.unwrap_or(0o600))
            }
            Ok(_) => Err(io::Error::other("it has changed meanwhile; run this command again")),
            Err(error) => Err(error),
        };
        written
            .map_err(|error| CliError::request(format!("{} cannot be written: {error}", self.file.display())))
    }
}

/// The text of a configuration; empty if there is none.
fn read_config(file: &Path) -> io::Result<String> {
    match fs::metadata(file) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(String::new()),
        Ok(found) if !found.is_file() || found.len() > CONFIG_BYTES_MAX as u64 => {
            Err(io::Error::other(format!("it is not a file of at most {CONFIG_BYTES_MAX} bytes")))
        }
        found => found.and_then(|_| fs::read_to_string(file)),
    }
}

impl Agent {
    /// Where its configuration is.
    fn config(self, project: &Project) -> Result<PathBuf, CliError> {
        let folder = |name| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
        let unknown = || CliError::request("the agent's configuration is in your home: set HOME");
        let home = |file: &str| folder("HOME").map(|home| home.join(file)).ok_or_else(unknown);
        Ok(match self {
            Agent::ClaudeCode => project.folder.join(".mcp.json"),
            Agent::Codex => match folder("CODEX_HOME") {
                Some(folder) => folder.join("config.toml"),
                None => home(".codex/config.toml")?,
            },
            Agent::Gemini => home(".gemini/settings.json")?,
        })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use effectd_policy::{Overlay, Policy, Source};

    use super::*;

    fn server() -> Server {
        Server { command: "/usr/bin/effectd".to_owned(), args: vec!["mcp".to_owned()] }
    }

    #[test]
    fn other_settings_in_json_stay_in_their_order() {
        let old = r#"{ "theme": "dark", "mcpServers": { "git": { "command": "uvx" }, "effectd": { "trust": true, "args": [] } }, "a": 1 }"#;
        let new = server().in_json(old).unwrap();
        let expected = r#"{
  "theme": "dark",
  "mcpServers": {
    "git": {
      "command": "uvx"
    },
    "effectd": {
      "trust": true,
      "args": [
        "mcp"
      ],
      "command": "/usr/bin/effectd"
    }
  },
  "a": 1
}
"#;
        assert_eq!(new, expected);
        assert_eq!(server().in_json(&new).unwrap(), new, "the second time changes nothing");
        assert_eq!(server().in_json("").unwrap(), server().lines(None));
        let strange = [
            "// mine\n{}",
            "[]",
            "{ \"mcpServers\": [] }",
            "{ \"mcpServers\": { \"effectd\": 1 } }",
            "{ \"theme\": 1, \"theme\": 2 }",
            "{ \"id\": 12345678901234567890 }",
        ];
        for other in strange {
            assert!(server().in_json(other).is_err(), "{other}");
        }
    }

    #[test]
    fn an_entry_that_came_with_the_project_leads_nowhere_else() {
        let entry = |more: &str| {
            let file =
                r#"{ "mcpServers": { "effectd": { "command": "/usr/bin/effectd", "args": ["mcp"]MORE } } }"#;
            server().in_project_json(&file.replace("MORE", more))
        };
        for plain in ["", r#", "type": "stdio", "env": {}, "timeout": 9"#] {
            assert!(entry(plain).is_ok(), "{plain}");
        }
        for strange in
            [r#", "env": { "EFFECTD_STATE": "evil" }"#, r#", "type": "http", "url": "https://evil""#]
        {
            assert!(entry(strange).is_err(), "{strange}");
        }
    }

    #[test]
    fn a_configuration_that_changes_meanwhile_or_is_huge_stays() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("settings.json");
        let edit = Edit { file: file.clone(), old: String::new(), new: "{}".to_owned() };
        edit.write().unwrap();
        assert_eq!(read_config(&file).unwrap(), "{}");
        assert!(edit.write().is_err(), "it is no longer empty");
        fs::File::create(&file).unwrap().set_len(1 << 30).unwrap();
        assert!(read_config(&file).is_err() && read_config(folder.path()).is_err());
    }

    #[test]
    fn other_settings_in_toml_stay_with_their_comments() {
        let lines = server().lines(Some(Agent::Codex));
        assert_eq!(server().in_toml("").unwrap(), lines);
        let old = "model = \"o9\" # mine\n\n[mcp_servers.git]\ncommand = \"uvx\"\n";
        let new = server().in_toml(old).unwrap();
        assert_eq!(new, format!("{old}\n{lines}"));
        assert_eq!(server().in_toml(&new).unwrap(), new, "the second time changes nothing");
        let other = "[mcp_servers.effectd]\ncommand = \"old\"\n# slow\nstartup_timeout_sec = 20\n\n[mcp_servers.effectd.env]\nA = \"b\"\n";
        let [command, args] = server().toml_lines();
        let expected = other.replace("command = \"old\"", &format!("{command}\n{args}"));
        assert_eq!(server().in_toml(other).unwrap(), expected);
        for strange in ["a = ", "mcp_servers = 1", "mcp_servers = { git = { command = \"uvx\" } }"] {
            assert!(server().in_toml(strange).is_err(), "{strange}");
        }
        let many = "[mcp_servers.effectd]\nargs = [\n  \"x\",\n]\n";
        assert!(server().in_toml(many).is_err(), "it is not edited by half");
    }

    #[test]
    fn the_policy_of_a_project_names_its_folder() {
        let project = Project { folder: PathBuf::from("/srv/a \"b\""), is_named: false };
        let policy = NewPolicy::of(&project, Path::new("/srv/state")).unwrap().unwrap();
        let [(_, text), (name, rules)] = policy.files();
        let source = Source::new(text, [(name.to_owned(), rules.to_owned())]);
        let compiled = Policy::compile(&source, &Overlay::default()).unwrap();
        let roots: Vec<_> = compiled.spaces().filter_map(|space| compiled.space_root(space)).collect();
        assert_eq!(roots, std::slice::from_ref(&project.folder));
        assert!(policy.says().contains("-root = \"./workspace\"\n+root ="), "{}", policy.says());
        assert!(NewPolicy::of(&project, &project.folder.join("state")).is_err());
    }
}
