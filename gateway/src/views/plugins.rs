//! Plugins in JSON: a package as it is on disk, and how that compares with what an operator has added.

use std::collections::BTreeSet;

use effectd_actors::Services;
use effectd_actors::services::plugins::Known;
use effectd_contracts::plugin::PLUGIN_SOURCE;
use effectd_contracts::{Digest, Timestamp};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// A package, and what an operator has added of it.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct PluginView {
    pub name: String,
    pub tool_id: String,
    /// `added`, `changed` since, `gone` from the disk since, `new`, or `refused`: it cannot be a tool.
    pub state: String,
    /// Whether a call would run it: it is `added`, code of plugins may run, and its interpreters are there.
    pub runs: bool,
    /// Why it is refused, or what keeps it from running.
    pub fault: Option<String>,
    pub version: Option<String>,
    pub description: Option<String>,
    /// `R0` to `R4`.
    pub risk_tier: Option<String>,
    /// The files that its scripts see: `workspace` or `none`.
    pub filesystem: Option<String>,
    /// The commands by which its effect may be verified.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub commands: Vec<String>,
    /// The files that count.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub files: Vec<PluginFile>,
    /// What is accepted by adding it as it is now.
    pub digest: Option<String>,
    pub added_by: Option<String>,
    #[schema(value_type = Option<String>)]
    pub added_at: Option<Timestamp>,
}

/// A file of a package.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct PluginFile {
    pub name: String,
    /// `same` as when it was added, `changed`, `new` or `gone`.
    pub state: String,
    /// Its digest now.
    pub digest: Option<String>,
}

impl PluginView {
    pub fn of(services: &Services, known: &Known) -> Self {
        let Known { name, added, now } = known;
        let here = now.as_ref().ok().map(|package| &package.pinned);
        let state = match (added, now) {
            (Some(_), Ok(_)) if known.is_same() => "added",
            (Some(_), Err(_)) if !services.settings.plugins.folder(name).exists() => "gone",
            (Some(_), Ok(_) | Err(_)) => "changed",
            (None, Ok(_)) => "new",
            (None, Err(_)) => "refused",
        };
        let missing = now.as_ref().map(|package| package.missing.clone()).unwrap_or_default();
        let fault = match now {
            Err(why) => Some(why.to_string()),
            Ok(_) if !services.settings.plugins.allow_code_execution => {
                Some("the setting plugins.allow_code_execution is false".to_owned())
            }
            Ok(_) if !missing.is_empty() => Some(format!("this machine has no {}", missing.join(", "))),
            Ok(_) => None,
        };
        let of = |pinned: Option<&effectd_contracts::plugin::Pinned>| {
            pinned.map(|pinned| pinned.files.clone()).unwrap_or_default()
        };
        let (was, is) = (of(added.as_ref().map(|added| &*added.pinned)), of(here));
        let names: BTreeSet<&String> = was.keys().chain(is.keys()).collect();
        let file = |file: &String| {
            let state = match (was.get(file), is.get(file)) {
                (Some(was), Some(is)) if was == is => "same",
                (Some(_), Some(_)) => "changed",
                (None, _) => "new",
                (_, None) => "gone",
            };
            let digest = is.get(file).map(Digest::to_string);
            PluginFile { name: file.clone(), state: state.to_owned(), digest }
        };
        let declared = here.or(added.as_ref().map(|added| &*added.pinned)).map(|pinned| &pinned.manifest);
        Self {
            name: name.clone(),
            tool_id: format!("{PLUGIN_SOURCE}.{name}"),
            state: state.to_owned(),
            runs: state == "added" && fault.is_none(),
            fault,
            version: declared.map(|declared| declared.version.clone()),
            description: declared.map(|declared| declared.description.clone()),
            risk_tier: declared.map(|declared| declared.risk_tier.as_str().to_owned()),
            filesystem: declared.map(|declared| declared.permissions.filesystem.as_str().to_owned()),
            commands: declared.map(|declared| declared.permissions.commands.clone()).unwrap_or_default(),
            files: names.into_iter().map(file).collect(),
            digest: here.map(|here| here.digest().to_string()),
            added_by: added.as_ref().map(|added| added.by.to_string()),
            added_at: added.as_ref().map(|added| added.at),
        }
    }
}

/// What is accepted.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct AddBody {
    /// The plugin's `digest`, as it was shown.
    #[schema(value_type = String, pattern = "^sha256:[0-9a-f]{64}$")]
    pub digest: Digest,
}
