//! Plugins: the packages in the operator's folder, and those of them that an operator has added.
//!
//! What an operator adds is pinned in the Store: the description, and the digests of all files that count. Tools follow from the pins
//! alone. A call reads the files again and compares them before it hands one on, so what runs is what was added, and a package that has
//! changed is off until it is added again.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Read;
use std::path::Path;
use std::sync::{Arc, LazyLock};

use effectd_bus::{FamilyName, Store, StoreError};
use effectd_contracts::limits::PLUGIN_SCRIPT_BYTES_MAX;
use effectd_contracts::plugin::{
    Filesystem, MANIFEST, Manifest, PLUGIN_SOURCE, Pinned, PluginInvalid, Script, ScriptHead,
    is_package_name, words,
};
use effectd_contracts::{
    BaseProfile, Capability, Code, Compensation, Digest, Failure, PackageTerms, Phase, Principal, Repeat,
    ResourceTemplate, RiskLevel, RiskTier, SafetyClass, SandboxProfile, SideEffect, SpecInvalid, Timestamp,
    ToolId, ToolSpec,
};
use effectd_policy::Policy;
use effectd_sandbox::SpaceRoot;
use effectd_sandbox::limits::PIECE_BYTES_MAX;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::Services;
use super::files::FileInspector;
use crate::limits::{HELD_PAGE, PLUGINS_MAX};
use crate::registry::{Definition, ParamRule, RegisteredTool, Registry, Source};
use crate::settings::PluginSettings;
use crate::stored::{entries, json_bytes, read_json};

/// The packages that an operator has added, by name, in clear.
pub(crate) const PLUGINS: &str = "plugins";
/// Where interpreters are, as a confined process sees them.
const PROGRAMS: [&str; 5] = ["/usr/local/bin", "/usr/bin", "/bin", "/usr/sbin", "/sbin"];

/// A package that an operator has added.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Added {
    pub pinned: Arc<Pinned>,
    pub by: Principal,
    pub at: Timestamp,
}

/// A package as it is on disk.
#[derive(Debug, Clone, PartialEq)]
pub struct Package {
    pub pinned: Pinned,
    contents: BTreeMap<String, Vec<u8>>,
}

fn has(pinned: &Pinned, script: Script) -> bool {
    pinned.files.contains_key(&pinned.manifest.file(script).0)
}

/// The description of a package's tool for the pipeline.
fn definition(pinned: &Arc<Pinned>) -> Result<Definition, String> {
    let manifest = &pinned.manifest;
    let Manifest { name, risk_tier, permissions, .. } = manifest;
    let (writes, sees_files) = (manifest.writes(), permissions.filesystem == Filesystem::Workspace);
    let tool_id = ToolId::new(format!("{PLUGIN_SOURCE}.{name}")).map_err(|error| error.to_string())?;
    let alias = ToolId::new(name.clone()).map_err(|error| error.to_string())?;
    let resource = writes.then(|| ResourceTemplate::try_from("space:{space_id}".to_owned()));
    let caps = match (sees_files, writes) {
        (false, _) => &["plugin.run"][..],
        (true, false) => &["plugin.run", "workspace:shared:read"],
        (true, true) => &["plugin.run", "workspace:shared:write"],
    };
    // The sandbox keeps a package that declares no write from writing.
    let (effect, level, repeat) = match writes {
        true => (SideEffect::FilesystemWrite, RiskLevel::Write, Repeat::Never),
        false => (SideEffect::ReadOnly, RiskLevel::Read, Repeat::Safe),
    };
    let is_harmless = *risk_tier == RiskTier::R0;
    let spec = ToolSpec {
        tool_id,
        version: manifest.version.clone(),
        description: manifest.description.clone(),
        caps_required: caps.iter().filter_map(|cap| Capability::new(*cap).ok()).collect(),
        params_schema: manifest.input_schema.clone(),
        result_schema: manifest.output_schema.clone(),
        side_effects: BTreeSet::from([effect]),
        safety_class: if is_harmless { SafetyClass::Low } else { SafetyClass::Medium },
        risk_level: Some(level),
        risk_tier: Some(*risk_tier),
        // Which paths it changes, a plan's scope says.
        reversible: false,
        compensation: Compensation::None,
        timeout_ms: manifest.timeout_ms,
        price_micros: 0,
        idempotency_key_fields: None,
        resource: resource.transpose().map_err(|error: SpecInvalid| error.to_string())?,
        repeat,
        sandbox_profile: SandboxProfile { base: BaseProfile::Exec, high_isolation: false },
        package: Some(PackageTerms {
            verification: manifest.verification.clone(),
            rollback_required: manifest.rollback.required,
            verifies: has(pinned, Script::Verify),
            rolls_back: has(pinned, Script::Rollback),
            commands: permissions.commands.clone(),
        }),
    };
    Ok(Definition {
        aliases: vec![alias],
        plugin: Some(pinned.clone()),
        ..Definition::new(Source::Plugin, spec, ANY.clone())
    })
}

/// Why no tool of a package can be offered beside these under this policy.
pub(crate) fn check(pinned: &Arc<Pinned>, others: &Registry, policy: &Policy) -> Result<(), String> {
    let may_verify = |command: &&String| {
        let argv = words(command).map(|argv| argv.into_iter().map(str::to_owned).collect::<Vec<_>>());
        argv.is_ok_and(|argv| policy.command_of(&argv).is_some_and(|named| named.writes.is_empty()))
    };
    if let Some(command) = pinned.manifest.permissions.commands.iter().find(|one| !may_verify(one)) {
        let why = format!("the policy names no command {command:?} that only reads; name it in [commands]");
        return Err(why);
    }
    let definition = definition(pinned)?;
    let own = |tool: &RegisteredTool| tool.spec().tool_id == definition.spec.tool_id;
    let (_, refused) = others.replace(own, std::slice::from_ref(&definition));
    refused.into_iter().next().map_or(Ok(()), |error| Err(error.to_string()))
}

/// One for all, since the registry knows by it that a description is the same.
static ANY: LazyLock<ParamRule> = LazyLock::new(|| Arc::new(|_: &Map<String, Value>| Ok(())));

impl Package {
    /// Reads the package in a folder. No link leads to any part of it.
    pub fn read(inspector: &dyn FileInspector, folder: &Path) -> Result<Self, PluginInvalid> {
        let opened = SpaceRoot::open(folder);
        let opened = opened.map_err(|error| PluginInvalid::Manifest(error.to_string()))?;
        let missing =
            |file: &str| PluginInvalid::Script { file: file.to_owned(), why: "there is none".to_owned() };
        let bytes = read_file(inspector, &opened, MANIFEST)?.ok_or_else(|| missing(MANIFEST))?;
        let manifest = Manifest::parse(&bytes)?;
        if folder.file_name().and_then(|name| name.to_str()) != Some(&manifest.name) {
            let why = format!("its name is {:?}, and that of its folder is another", manifest.name);
            return Err(PluginInvalid::Manifest(why));
        }
        let mut contents = BTreeMap::from([(MANIFEST.to_owned(), bytes)]);
        for script in Script::ALL {
            let (file, is_needed) = manifest.file(script);
            match read_file(inspector, &opened, &file)? {
                Some(bytes) => {
                    interpreter(&file, &bytes)?;
                    contents.insert(file, bytes);
                }
                None if is_needed => return Err(missing(&file)),
                None => {}
            }
        }
        let files = contents.iter().map(|(name, bytes)| (name.clone(), Digest::of(bytes))).collect();
        Ok(Self { pinned: Pinned { manifest, files }, contents })
    }

    /// The interpreters of its scripts that this machine does not have.
    pub fn missing_interpreters(&self) -> Vec<String> {
        let scripts = self.contents.iter().filter(|(name, _)| *name != MANIFEST);
        let programs = scripts.filter_map(|(name, bytes)| interpreter(name, bytes).ok()?.into_iter().next());
        programs.filter(|program| !is_there(program)).collect::<BTreeSet<_>>().into_iter().collect()
    }
}

/// A file of a package; `None` if there is none.
fn read_file(
    inspector: &dyn FileInspector,
    folder: &SpaceRoot,
    name: &str,
) -> Result<Option<Vec<u8>>, PluginInvalid> {
    let refused = |why: String| PluginInvalid::Script { file: name.to_owned(), why };
    let file = match inspector.open(folder, &format!("workspace/{name}")) {
        Ok(file) => file,
        Err(failure) if failure.code == Code::FileNotFound => return Ok(None),
        Err(failure) => return Err(refused(failure.message)),
    };
    let mut bytes = Vec::new();
    let most = PLUGIN_SCRIPT_BYTES_MAX as u64;
    file.take(most + 1).read_to_end(&mut bytes).map_err(|error| refused(error.to_string()))?;
    if bytes.len() > PLUGIN_SCRIPT_BYTES_MAX {
        return Err(refused(format!("it has more than {most} bytes")));
    }
    Ok(Some(bytes))
}

/// The program that runs a script, and its arguments before the script: as its first line says, or by the end of its name.
fn interpreter(file: &str, script: &[u8]) -> Result<Vec<String>, PluginInvalid> {
    let refused = |why: &str| PluginInvalid::Script { file: file.to_owned(), why: why.to_owned() };
    let named = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect();
    if let Some(rest) = script.strip_prefix(b"#!") {
        let line = rest.split(|byte| *byte == b'\n').next().unwrap_or_default();
        let line = std::str::from_utf8(line).map_err(|_| refused("its first line is no text"))?;
        let words: Vec<_> = line.split_ascii_whitespace().collect();
        return match words.as_slice() {
            ["/usr/bin/env", program] if !program.contains(['/', '=']) => Ok(vec![found(program)]),
            [program, ..] if is_of_system(program) => Ok(named(&words)),
            _ => Err(refused("its first line names no program of the system, such as #!/bin/sh")),
        };
    }
    match file.rsplit_once('.').map(|(_, end)| end) {
        Some("js" | "cjs" | "mjs") => Ok(vec![found("node")]),
        // Nothing beside the script is imported, and nothing that the space could hold.
        Some("py") => Ok([found("python3")].into_iter().chain(named(&["-I"])).collect()),
        Some(_) | None => {
            Err(refused("name it .js or .py, or let its first line name a program, such as #!/bin/sh"))
        }
    }
}

/// Whether a path is one that every confined process has.
fn is_of_system(program: &str) -> bool {
    let is_plain = !program.split('/').any(|part| part == "..");
    is_plain && ["/usr/", "/bin/", "/sbin/"].iter().any(|folder| program.starts_with(folder))
}

/// The path of a program; one that is not there has the first that it could have.
fn found(program: &str) -> String {
    let mut places = PROGRAMS.iter().map(|folder| format!("{folder}/{program}"));
    let first = format!("{}/{program}", PROGRAMS[0]);
    places.find(|path| is_there(path)).unwrap_or(first)
}

/// A link leads to where a confined process finds it, too.
fn is_there(program: &str) -> bool {
    let real = std::fs::canonicalize(program).ok();
    real.is_some_and(|real| real.is_file() && real.to_str().is_some_and(is_of_system))
}

/// All packages that operators have added, by name.
pub fn added(store: &dyn Store) -> Result<BTreeMap<String, Added>, StoreError> {
    let mut all = BTreeMap::new();
    for entry in entries(store, &FamilyName::new(PLUGINS)?, HELD_PAGE) {
        let entry = entry?;
        match read_json::<Added>(&entry) {
            Some(added) => drop(all.insert(entry.key, added)),
            None => tracing::error!(key = entry.key, "a plugin cannot be read; add it again"),
        }
    }
    Ok(all)
}

/// A package that is in the operator's folder, or was added.
#[derive(Debug, Clone, PartialEq)]
pub struct Known {
    pub name: String,
    pub added: Option<Added>,
    /// As it is on disk; the error says why it cannot be used.
    pub now: Result<Found, PluginInvalid>,
}

/// A package on disk, without its contents.
#[derive(Debug, Clone, PartialEq)]
pub struct Found {
    pub pinned: Pinned,
    /// The interpreters of its scripts that this machine does not have.
    pub missing: Vec<String>,
}

impl Known {
    /// Whether it is on disk what an operator has added.
    pub fn is_same(&self) -> bool {
        let now = self.now.as_ref().ok().map(|package| &package.pinned.files);
        now.is_some() && now == self.added.as_ref().map(|added| &added.pinned.files)
    }
}

impl Services {
    /// A package, by its name.
    pub fn plugin(&self, name: &str) -> Result<Known, StoreError> {
        if !is_package_name(name) {
            return Err(StoreError::Invalid(PluginInvalid::Name(name.to_owned()).to_string()));
        }
        let (entry, folder) =
            (self.store.entry(&FamilyName::new(PLUGINS)?, name)?, self.settings.plugins.folder(name));
        if entry.is_none() && std::fs::symlink_metadata(&folder).is_err() {
            return Err(StoreError::NotFound { what: "the plugin" });
        }
        let now = Package::read(&*self.files.inspector, &folder)
            .map(|package| Found { missing: package.missing_interpreters(), pinned: package.pinned });
        Ok(Known { name: name.to_owned(), added: entry.as_ref().and_then(read_json), now })
    }

    /// All packages in the operator's folder, and all that were added.
    pub fn plugins(&self) -> Result<Vec<Known>, StoreError> {
        let mut names: BTreeSet<String> = added(&*self.store)?.into_keys().collect();
        // A folder that is not there has no packages.
        let on_disk = std::fs::read_dir(self.settings.plugins.folder("")).into_iter().flatten().flatten();
        let on_disk = on_disk.filter_map(|entry| entry.file_name().into_string().ok());
        names.extend(on_disk.filter(|name| is_package_name(name)).take(PLUGINS_MAX));
        // One that is removed meanwhile is not there.
        let all = names.iter().map(|name| self.plugin(name));
        all.filter(|known| !matches!(known, Err(StoreError::NotFound { .. }))).collect()
    }

    /// The tools of all packages that were added.
    pub(super) fn of_plugins(&self) -> Vec<Definition> {
        let all = added(&*self.store).unwrap_or_else(|error| {
            tracing::error!(%error, "plugins cannot be read; none has tools");
            BTreeMap::new()
        });
        let defined = all.into_iter().filter_map(|(name, Added { pinned, .. })| {
            definition(&pinned).inspect_err(|why| tracing::warn!(name, why, "a plugin is refused")).ok()
        });
        defined.collect()
    }
}

/// What a child gets that runs a script: first how, then the script in pieces, and an empty one. Refused unless every file of the package
/// is what was added.
pub(crate) fn script(
    inspector: &dyn FileInspector,
    settings: &PluginSettings,
    (pinned, script): (&Pinned, Script),
) -> Result<Vec<Vec<u8>>, Failure> {
    let name = &pinned.manifest.name;
    let failed = |code, why: String| Failure::new(code, Phase::Dispatch, why);
    let changed = |why: &str| {
        let why = format!("the package {name} is not the one that an operator has added: {why}");
        failed(Code::ToolDrifted, why).unless(format!("look at it, and run: effectd plugins add {name}"))
    };
    let package =
        Package::read(inspector, &settings.folder(name)).map_err(|why| changed(&why.to_string()))?;
    let is_other = |(file, digest): &(&String, &Digest)| package.pinned.files.get(*file) != Some(*digest);
    let (was, is) = (&pinned.files, &package.pinned.files);
    if let Some((file, _)) = was.iter().find(is_other) {
        return Err(changed(&format!("{file} has changed")));
    }
    if let Some(file) = is.keys().find(|file| !was.contains_key(*file)) {
        return Err(changed(&format!("{file} is new")));
    }
    let (file, _) = pinned.manifest.file(script);
    let bytes = package.contents.get(&file).ok_or_else(|| changed(&format!("it has no {file}")))?;
    let argv = interpreter(&file, bytes).map_err(|why| changed(&why.to_string()))?;
    if let Some(program) = argv.first().filter(|program| !is_there(program)) {
        let why = format!("{file} needs {program}, which this machine does not have");
        return Err(
            failed(Code::InterpreterMissing, why).unless("install it where the system's programs are")
        );
    }
    let head = json_bytes(&ScriptHead { file, argv });
    let pieces = bytes.chunks(PIECE_BYTES_MAX).map(<[u8]>::to_vec);
    Ok([head].into_iter().chain(pieces).chain([Vec::new()]).collect())
}
