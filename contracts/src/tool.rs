//! Tool specs: what a tool declares. Gates, sandbox, idempotency keys and crash recovery follow from it.

use std::collections::BTreeSet;
use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::connector::CONNECTOR_SOURCE;
use crate::digest::Digest;
use crate::ids::{Capability, SpaceId, ToolId};
use crate::limits::{
    REMOTE_ACTION_BYTES_MAX, SCHEMA_BYTES_MAX, SPEC_LIST_MAX, TIMEOUT_MS_DEFAULT, TIMEOUT_MS_MAX,
};
use crate::request::Verification;
use crate::risk::{RiskLevel, RiskTier};
use crate::wire::text_type;

/// The spec of one tool.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ToolSpec {
    /// `<source>.<action>`, in lower case. The source `connector:<uuid>` or `db:<uuid>` has actions of either case.
    pub tool_id: ToolId,
    /// `major.minor.patch`.
    pub version: String,
    /// One sentence for people and planners.
    #[serde(default)]
    pub description: String,
    /// Capabilities that the subject must hold, all of them.
    pub caps_required: Vec<Capability>,
    /// JSON Schema (2020-12) of the parameters. Fields are sensitive unless marked `"x-public": true`.
    pub params_schema: Value,
    /// JSON Schema (2020-12) of the result.
    pub result_schema: Value,
    /// All side effects.
    pub side_effects: BTreeSet<SideEffect>,
    /// The safety class, which decides the precautions.
    pub safety_class: SafetyClass,
    /// What the tool does to the world, in one word. If left out, it follows from the side effects.
    pub risk_level: Option<RiskLevel>,
    /// The tier that the author declares. It can only raise the derived one.
    pub risk_tier: Option<RiskTier>,
    /// Whether pre-images are kept, so that the effect can be undone.
    #[serde(default)]
    pub reversible: bool,
    /// Whether another call can make up for the effect, such as deleting a message that was sent. People may have seen it.
    #[serde(default, skip_serializing_if = "Compensation::is_none")]
    pub compensation: Compensation,
    /// Timeout of one run.
    #[serde(default = "timeout_default")]
    pub timeout_ms: u64,
    /// The price of one run, in millionths of the operator's currency, which budgets count; free if left out.
    #[serde(default, skip_serializing_if = "is_free")]
    pub price_micros: u64,
    /// What makes two requests the same. If left out, no two requests are the same.
    pub idempotency_key_fields: Option<Vec<KeyField>>,
    /// The resource that the tool changes: actions on one resource run one after another.
    pub resource: Option<ResourceTemplate>,
    /// How an interrupted run is settled.
    #[serde(default)]
    pub repeat: Repeat,
    /// The sandbox profile.
    #[serde(default)]
    pub sandbox_profile: SandboxProfile,
    /// What the tool's package declares; only for tools of packages.
    pub package: Option<PackageTerms>,
}

/// What the package of a tool declares about verification and rollback.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PackageTerms {
    /// How success is verified, whatever else a plan adds.
    pub verification: Verification,
    /// Whether the tool runs only if its effect can be undone.
    pub rollback_required: bool,
    /// Whether the package has a script that verifies.
    pub verifies: bool,
    /// Whether the package has a script that undoes what is not files.
    pub rolls_back: bool,
    /// The commands that its own verification may name, each a program with its arguments.
    pub commands: Vec<String>,
}

fn is_free(price: &u64) -> bool {
    *price == 0
}

fn timeout_default() -> u64 {
    TIMEOUT_MS_DEFAULT
}

crate::wire_enum! {
    /// What a tool can do to the world.
    pub enum SideEffect {
        /// Only reads. A marker: no other effect but `user_visible` may be declared with it.
        ReadOnly = "read_only",
        /// Creates or changes files in the space.
        FilesystemWrite = "filesystem_write",
        /// Removes files from the space.
        FilesystemDelete = "filesystem_delete",
        /// Runs programs.
        ProcessExec = "process_exec",
        /// Talks to another machine.
        NetworkCall = "network_call",
        /// Shows something on this device; it cannot be unseen.
        DeviceNotification = "device_notification",
        /// Uses a camera or microphone.
        DeviceCapture = "device_capture",
        /// Reaches beyond the request's space.
        CrossSpace = "cross_space",
        /// A person will notice.
        UserVisible = "user_visible",
    }
}

impl SideEffect {
    /// Whether the effect stays inside the space, or is a harmless marker.
    pub const fn is_contained(self) -> bool {
        match self {
            Self::ReadOnly | Self::FilesystemWrite | Self::DeviceNotification | Self::UserVisible => true,
            Self::FilesystemDelete
            | Self::ProcessExec
            | Self::NetworkCall
            | Self::DeviceCapture
            | Self::CrossSpace => false,
        }
    }
}

crate::wire_enum! {
    /// How many precautions a tool needs.
    pub enum SafetyClass {
        /// The default sandbox and a short timeout.
        Low = "LOW",
        /// A shorter timeout and extra attribute rules.
        Medium = "MEDIUM",
        /// High isolation, explicit consent and an approval.
        High = "HIGH",
    }
}

crate::wire_enum! {
    /// Whether another call can make up for an effect outside of the space, where no pre-image is kept.
    #[derive(Default)]
    pub enum Compensation {
        /// Nothing can.
        #[default]
        None = "none",
        /// The tool's author says that one can.
        Declared = "declared",
    }
}

impl Compensation {
    /// Whether nothing can make up for the effect.
    pub fn is_none(&self) -> bool {
        *self == Self::None
    }
}

crate::wire_enum! {
    /// How an interrupted run is settled.
    #[derive(Default)]
    pub enum Repeat {
        /// Run again: the same input leads to the same state.
        Safe = "safe",
        /// Ask the tool's probe.
        Probe = "probe",
        /// Ask a person.
        #[default]
        Never = "never",
    }
}

/// What the sandboxed process can see.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub enum BaseProfile {
    /// The space and a scratch folder, for native tools.
    #[default]
    Default,
    /// The system's programs as well, readable and executable.
    Exec,
}

/// A sandbox profile: a base, with or without high isolation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct SandboxProfile {
    /// What the process can see.
    pub base: BaseProfile,
    /// A system-call allowlist, only declared paths writable, and the smallest limits.
    pub high_isolation: bool,
}

impl SandboxProfile {
    /// All profiles.
    pub const ALL: [SandboxProfile; 4] = [
        Self::new(BaseProfile::Default, false),
        Self::new(BaseProfile::Exec, false),
        Self::new(BaseProfile::Default, true),
        Self::new(BaseProfile::Exec, true),
    ];

    const fn new(base: BaseProfile, high_isolation: bool) -> Self {
        Self { base, high_isolation }
    }

    /// The wire form.
    pub const fn as_str(self) -> &'static str {
        match (self.base, self.high_isolation) {
            (BaseProfile::Default, false) => "default",
            (BaseProfile::Exec, false) => "exec",
            (BaseProfile::Default, true) => "high_isolation",
            (BaseProfile::Exec, true) => "exec_high_isolation",
        }
    }
}

impl fmt::Display for SandboxProfile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl SandboxProfile {
    fn parse(text: &str) -> Result<Self, SpecInvalid> {
        let found = Self::ALL.into_iter().find(|profile| profile.as_str() == text);
        found.ok_or_else(|| SpecInvalid::UnknownProfile(text.to_owned()))
    }
}

text_type!(SandboxProfile, SandboxProfile::parse, SpecInvalid, {
    "type": "string", "enum": SandboxProfile::ALL.map(SandboxProfile::as_str)
});

/// One part of an idempotency key, a parameter or its digest: `path`, `sha256(text)`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum KeyField {
    /// The parameter's own text.
    Plain(String),
    /// The SHA-256 of its text.
    Sha256(String),
}

impl KeyField {
    /// The name of the parameter.
    pub fn param(&self) -> &str {
        match self {
            Self::Plain(name) | Self::Sha256(name) => name,
        }
    }

    /// The part for these parameters; `None` if the parameter is missing.
    pub fn resolve(&self, params: &Map<String, Value>) -> Option<String> {
        let value = params.get(self.param())?;
        let text = value.as_str().map_or_else(|| crate::canonical::to_string(value), str::to_owned);
        Some(match self {
            Self::Plain(_) => text,
            Self::Sha256(_) => Digest::of(text.as_bytes()).hex(),
        })
    }
}

fn is_param_name(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_')
}

impl KeyField {
    fn parse(text: &str) -> Result<Self, SpecInvalid> {
        let inner = text.strip_prefix("sha256(").and_then(|rest| rest.strip_suffix(')'));
        match inner {
            Some(name) if is_param_name(name) => Ok(Self::Sha256(name.to_owned())),
            None if is_param_name(text) => Ok(Self::Plain(text.to_owned())),
            Some(_) | None => Err(SpecInvalid::KeyField(text.to_owned())),
        }
    }
}

impl fmt::Display for KeyField {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Plain(name) => f.write_str(name),
            Self::Sha256(name) => write!(f, "sha256({name})"),
        }
    }
}

text_type!(KeyField, KeyField::parse, SpecInvalid, {
    "type": "string", "pattern": "^([A-Za-z0-9_]+|sha256\\([A-Za-z0-9_]+\\))$"
});

/// The resource that a tool changes, with `{space_id}` and parameter names as placeholders: `file:{space_id}/{path}`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct ResourceTemplate(String);

impl ResourceTemplate {
    /// The parameters that it names.
    pub fn params(&self) -> impl Iterator<Item = &str> {
        self.pieces().filter_map(|(_, name)| name).filter(|name| *name != "space_id")
    }

    /// The resource for these parameters in this space; `None` if a parameter is missing or is not text.
    pub fn resolve(&self, space: &SpaceId, params: &Map<String, Value>) -> Option<String> {
        let mut text = String::new();
        for (literal, name) in self.pieces() {
            text.push_str(literal);
            match name {
                Some("space_id") => text.push_str(space.as_str()),
                Some(name) => text.push_str(params.get(name)?.as_str()?),
                None => {}
            }
        }
        Some(text)
    }

    /// Literal texts, each with the placeholder's name after it.
    fn pieces(&self) -> impl Iterator<Item = (&str, Option<&str>)> {
        self.0.split('}').map(|piece| match piece.split_once('{') {
            Some((literal, name)) => (literal, Some(name)),
            None => (piece, None),
        })
    }
}

impl ResourceTemplate {
    fn parse(text: &str) -> Result<Self, SpecInvalid> {
        let template = Self(text.to_owned());
        let names_ok = template.pieces().filter_map(|(_, name)| name).all(is_param_name);
        let balanced = text.matches('{').count() == text.matches('}').count();
        let literals_ok = template.pieces().all(|(literal, _)| !literal.contains(['{', '}']));
        if names_ok && balanced && literals_ok && text.contains(':') {
            Ok(template)
        } else {
            Err(SpecInvalid::Resource(template.0))
        }
    }
}

impl fmt::Display for ResourceTemplate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

text_type!(ResourceTemplate, ResourceTemplate::parse, SpecInvalid, { "type": "string", "pattern": "^[a-z_]+:" });

/// An invalid spec. The tool is not registered.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SpecInvalid {
    /// Not `<source>.<action>`.
    #[error(
        "tool id {0:?} must be <source>.<action> in lower-case letters, digits and underscores; after connector:<uuid> or db:<uuid>, \
         the action is 1 to {REMOTE_ACTION_BYTES_MAX} letters of either case, digits, underscores, dots and hyphens"
    )]
    ToolId(String),
    /// Not `major.minor.patch`.
    #[error("version {0:?} must be major.minor.patch")]
    Version(String),
    /// An unknown profile.
    #[error("unknown sandbox profile {0:?}; known are default, exec, high_isolation, exec_high_isolation")]
    UnknownProfile(String),
    /// Neither a parameter nor `sha256(name)`.
    #[error("{0:?} is not a key field; write a parameter's name or sha256(name)")]
    KeyField(String),
    /// Not `kind:text` with balanced `{names}`.
    #[error("{0:?} is not a resource; write kind:text with {{space_id}} or parameter names in braces")]
    Resource(String),
    /// A parameter that the schema does not require, so that it could be missing.
    #[error("{used_by} uses the parameter {name:?}, which params_schema does not require")]
    ParamNotRequired {
        /// The field of the spec that uses it.
        used_by: &'static str,
        /// The parameter.
        name: String,
    },
    /// A schema that is not an object schema, or is too large.
    #[error("{which} must be an object schema of at most {SCHEMA_BYTES_MAX} bytes")]
    Schema {
        /// `params_schema` or `result_schema`.
        which: &'static str,
    },
    /// The timeout is out of range.
    #[error("timeout_ms is {0}; it must be from 1 to {TIMEOUT_MS_MAX}")]
    Timeout(u64),
    /// The effects contradict each other or the risk level.
    #[error("side effects and risk level contradict each other: {0}")]
    Effects(&'static str),
    /// A list with too many entries.
    #[error("{0} has more than {SPEC_LIST_MAX} entries")]
    TooMany(&'static str),
}

impl ToolSpec {
    /// Checks that the spec is consistent.
    pub fn check(&self) -> Result<(), SpecInvalid> {
        if !self.tool_id.is_registrable() {
            return Err(SpecInvalid::ToolId(self.tool_id.to_string()));
        }
        let parts: Vec<_> = self.version.split('.').collect();
        if parts.len() != 3 || !parts.iter().all(|part| part.parse::<u32>().is_ok()) {
            return Err(SpecInvalid::Version(self.version.clone()));
        }
        if !(1..=TIMEOUT_MS_MAX).contains(&self.timeout_ms) {
            return Err(SpecInvalid::Timeout(self.timeout_ms));
        }
        for (which, schema) in
            [("params_schema", &self.params_schema), ("result_schema", &self.result_schema)]
        {
            let is_object = schema.get("type").and_then(Value::as_str) == Some("object");
            if !is_object || schema.to_string().len() > SCHEMA_BYTES_MAX {
                return Err(SpecInvalid::Schema { which });
            }
        }
        self.check_lists()?;
        self.check_effects()
    }

    fn check_lists(&self) -> Result<(), SpecInvalid> {
        if self.caps_required.len() > SPEC_LIST_MAX {
            return Err(SpecInvalid::TooMany("caps_required"));
        }
        let fields = self.idempotency_key_fields.as_deref().unwrap_or_default();
        if fields.len() > SPEC_LIST_MAX {
            return Err(SpecInvalid::TooMany("idempotency_key_fields"));
        }
        let keys = fields.iter().map(|field| ("idempotency_key_fields", field.param()));
        let resource = self.resource.iter().flat_map(ResourceTemplate::params).map(|name| ("resource", name));
        for (used_by, name) in keys.chain(resource) {
            if !self.requires_param(name) {
                return Err(SpecInvalid::ParamNotRequired { used_by, name: name.to_owned() });
            }
        }
        Ok(())
    }

    fn requires_param(&self, name: &str) -> bool {
        let required = self.params_schema.get("required").and_then(Value::as_array);
        required.is_some_and(|names| names.iter().any(|n| n.as_str() == Some(name)))
    }

    fn check_effects(&self) -> Result<(), SpecInvalid> {
        let has = |effect| self.side_effects.contains(&effect);
        let changes = self.declares_change();
        let far = has(SideEffect::DeviceCapture) || has(SideEffect::CrossSpace);
        let level = self.level();
        let contradictions = [
            (has(SideEffect::ReadOnly) && changes, "read_only is declared with another effect"),
            (
                level == RiskLevel::Read
                    && changes
                    && !has(SideEffect::NetworkCall)
                    // A program of a server that only reads is started by effectd, and not by the tool.
                    && !(has(SideEffect::ProcessExec) && self.tool_id.source().starts_with(CONNECTOR_SOURCE)),
                "a tool of level read has effects",
            ),
            (level != RiskLevel::Read && !changes, "a tool that changes something declares no effect"),
            (
                has(SideEffect::FilesystemDelete) && level != RiskLevel::Danger,
                "a tool that deletes is of level danger",
            ),
            (
                far && self.safety_class != SafetyClass::High,
                "camera, microphone and other spaces are of class HIGH",
            ),
            (
                !self.compensation.is_none() && (level == RiskLevel::Read || self.is_contained()),
                "compensation is declared, but no effect outside of the space",
            ),
        ];
        match contradictions.into_iter().find(|(is_so, _)| *is_so) {
            Some((_, what)) => Err(SpecInvalid::Effects(what)),
            None => Ok(()),
        }
    }

    /// Whether an effect is declared that is more than a mark.
    fn declares_change(&self) -> bool {
        let marks = [SideEffect::ReadOnly, SideEffect::UserVisible];
        self.side_effects.iter().any(|effect| !marks.contains(effect))
    }

    /// The declared level; without one, a tool that deletes is a danger, and one with any other effect writes.
    pub fn level(&self) -> RiskLevel {
        let deletes = self.side_effects.contains(&SideEffect::FilesystemDelete);
        self.risk_level.unwrap_or(match (deletes, self.declares_change()) {
            (true, _) => RiskLevel::Danger,
            (false, true) => RiskLevel::Write,
            (false, false) => RiskLevel::Read,
        })
    }

    /// Whether it writes or deletes files of its space.
    pub fn changes_files(&self) -> bool {
        let writing = [SideEffect::FilesystemWrite, SideEffect::FilesystemDelete];
        writing.iter().any(|effect| self.side_effects.contains(effect))
    }

    /// Whether all effects stay inside the space.
    pub fn is_contained(&self) -> bool {
        self.side_effects.iter().all(|effect| effect.is_contained())
    }

    /// The risk tier: derived from the effects, or the declared one if that is higher.
    pub fn tier(&self) -> RiskTier {
        let level = self.level();
        let changes = level != RiskLevel::Read;
        let derived = match (level, self.safety_class) {
            (RiskLevel::Danger, _) => RiskTier::R4,
            (RiskLevel::Read | RiskLevel::Write, SafetyClass::High) => RiskTier::R3,
            (RiskLevel::Read, SafetyClass::Low) if self.is_contained() => RiskTier::R0,
            (RiskLevel::Read, SafetyClass::Low | SafetyClass::Medium) => RiskTier::R1,
            (RiskLevel::Write, SafetyClass::Low) if self.is_contained() && self.is_undoable() => RiskTier::R1,
            (RiskLevel::Write, SafetyClass::Low | SafetyClass::Medium) => RiskTier::R2,
        };
        let can_make_up = self.is_undoable() || !self.compensation.is_none();
        let irreversible = changes && !can_make_up && !self.is_contained();
        let derived = if irreversible { derived.max(RiskTier::R3) } else { derived };
        self.risk_tier.map_or(derived, |declared| declared.max(derived))
    }

    /// Whether the effect can be undone, or is only a notification, which needs no undo.
    fn is_undoable(&self) -> bool {
        let slight = [SideEffect::DeviceNotification, SideEffect::UserVisible];
        self.reversible || self.side_effects.iter().all(|effect| slight.contains(effect))
    }

    /// The profile that the tool runs in: class HIGH always has high isolation.
    pub fn effective_profile(&self) -> SandboxProfile {
        let high_isolation = self.sandbox_profile.high_isolation || self.safety_class == SafetyClass::High;
        SandboxProfile { high_isolation, ..self.sandbox_profile }
    }

    /// Whether a parameter names what the tool works on: its resource, a path, or the space.
    pub fn names_resource(&self, name: &str) -> bool {
        let resource = self.resource.as_ref();
        is_path_name(name)
            || name == "space_id"
            || resource.is_some_and(|resource| resource.params().any(|named| named == name))
    }

    /// Whether the schema declares this parameter. Other names come from the caller, and may be content.
    pub fn declares_param(&self, name: &str) -> bool {
        property(&self.params_schema, name).is_some()
    }

    /// Whether the schema declares this field of the result.
    pub fn declares_result(&self, name: &str) -> bool {
        property(&self.result_schema, name).is_some()
    }

    /// Whether a receipt may hold this parameter in clear.
    pub fn is_public_param(&self, name: &str) -> bool {
        is_public(&self.params_schema, name)
    }

    /// Whether a receipt may hold this field of the result in clear.
    pub fn is_public_result(&self, name: &str) -> bool {
        is_public(&self.result_schema, name)
    }
}

/// Whether a parameter is a path, by its name: `path`, `to_path`.
pub fn is_path_name(name: &str) -> bool {
    name == "path" || name.ends_with("_path")
}

fn is_public(schema: &Value, name: &str) -> bool {
    let mark = property(schema, name).and_then(|field| field.get("x-public"));
    mark == Some(&Value::Bool(true))
}

fn property<'s>(schema: &'s Value, name: &str) -> Option<&'s Value> {
    schema.get("properties")?.get(name)
}

#[cfg(test)]
mod tests;
