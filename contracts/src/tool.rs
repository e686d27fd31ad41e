//! What a tool says about itself. Everything else — gates, sandbox, keys, crash recovery — follows from it.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::fmt;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::digest::Digest;
use crate::ids::{Capability, SpaceId, ToolId};
use crate::limits::{SCHEMA_BYTES_MAX, SPEC_LIST_MAX, TIMEOUT_MS_DEFAULT, TIMEOUT_MS_MAX};
use crate::risk::{RiskLevel, RiskTier};

/// The description of one tool.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ToolSpec {
    /// `<source>.<action>`, in lower case.
    pub tool_id: ToolId,
    /// `major.minor.patch`.
    pub version: String,
    /// One sentence for people and planners.
    #[serde(default)]
    pub description: String,
    /// All of these the subject must hold.
    pub caps_required: Vec<Capability>,
    /// JSON Schema (2020-12) of the parameters. Fields are sensitive unless marked `"x-public": true`.
    pub params_schema: Value,
    /// JSON Schema (2020-12) of the result.
    pub result_schema: Value,
    /// Everything the tool does to the world.
    pub side_effects: BTreeSet<SideEffect>,
    /// Which set of precautions applies.
    pub safety_class: SafetyClass,
    /// What it does to the world, in one word.
    pub risk_level: RiskLevel,
    /// A tier that the author declares; it can only raise the derived one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub risk_tier: Option<RiskTier>,
    /// Whether the state before the effect is kept, so that it can be undone.
    #[serde(default)]
    pub reversible: bool,
    /// Wall-clock bound of one run.
    #[serde(default = "timeout_default")]
    pub timeout_ms: u64,
    /// What one run costs, in millionths of the currency that the operator counts in; nothing if left out. Budgets of money
    /// count by it.
    #[serde(default, skip_serializing_if = "is_free")]
    pub price_micros: u64,
    /// What makes two requests the same; none means that every request is its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idempotency_key_fields: Option<Vec<KeyField>>,
    /// What the tool changes, so that two actions on one thing run one after another.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resource: Option<ResourceTemplate>,
    /// What may be done when it is not known whether it already ran.
    #[serde(default)]
    pub repeat: Repeat,
    /// Where it runs.
    #[serde(default)]
    pub sandbox_profile: SandboxProfile,
}

fn is_free(price: &u64) -> bool {
    *price == 0
}

fn timeout_default() -> u64 {
    TIMEOUT_MS_DEFAULT
}

/// What a tool can do to the world.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum SideEffect {
    /// Looks only. A marker: it forbids every other effect beside it but `user_visible`.
    ReadOnly,
    /// Creates or changes files in the space.
    FilesystemWrite,
    /// Removes files from the space.
    FilesystemDelete,
    /// Runs programs.
    ProcessExec,
    /// Talks to another machine.
    NetworkCall,
    /// Shows something on this device; it cannot be unseen.
    DeviceNotification,
    /// Uses a camera or microphone.
    DeviceCapture,
    /// Reaches beyond the request's space.
    CrossSpace,
    /// A person will notice.
    UserVisible,
}

impl SideEffect {
    /// Whether the effect stays inside the sandbox's root or is a harmless marker.
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

/// How many precautions a tool needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "UPPERCASE")]
pub enum SafetyClass {
    /// The default sandbox and a short time.
    Low,
    /// Less time, and extra attribute rules.
    Medium,
    /// High isolation, explicit consent and a person's confirmation.
    High,
}

/// What may be done with an action of which it is not known whether it already happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Repeat {
    /// Run it again: the same input leads to the same state.
    Safe,
    /// Ask the tool's probe.
    Probe,
    /// Ask a person.
    #[default]
    Never,
}

/// What the confined process can see at all.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub enum BaseProfile {
    /// For native tools: the space and a scratch folder, nothing else even exists.
    #[default]
    Default,
    /// Adds the system's programs, readable and executable.
    Exec,
}

/// Where a tool runs: a base, and `high_isolation` on top of either.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct SandboxProfile {
    /// What exists.
    pub base: BaseProfile,
    /// A system-call allowlist, nothing writable that is not declared, and the smallest limits.
    pub high_isolation: bool,
}

impl SandboxProfile {
    /// All profiles.
    pub const ALL: [SandboxProfile; 4] = [
        SandboxProfile {
            base: BaseProfile::Default,
            high_isolation: false,
        },
        SandboxProfile {
            base: BaseProfile::Exec,
            high_isolation: false,
        },
        SandboxProfile {
            base: BaseProfile::Default,
            high_isolation: true,
        },
        SandboxProfile {
            base: BaseProfile::Exec,
            high_isolation: true,
        },
    ];

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

impl From<SandboxProfile> for String {
    fn from(profile: SandboxProfile) -> String {
        profile.as_str().to_owned()
    }
}

impl TryFrom<String> for SandboxProfile {
    type Error = SpecInvalid;
    fn try_from(text: String) -> Result<Self, SpecInvalid> {
        let found = Self::ALL.into_iter().find(|profile| profile.as_str() == text);
        found.ok_or(SpecInvalid::UnknownProfile(text))
    }
}

impl JsonSchema for SandboxProfile {
    fn schema_name() -> Cow<'static, str> {
        "SandboxProfile".into()
    }
    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "string", "enum": Self::ALL.map(Self::as_str) })
    }
}

/// One ingredient of an idempotency key: a parameter, or its digest: `path`, `sha256(text)`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum KeyField {
    /// The parameter's own text.
    Plain(String),
    /// The SHA-256 of its text.
    Sha256(String),
}

impl KeyField {
    /// The parameter it is made from.
    pub fn param(&self) -> &str {
        match self {
            Self::Plain(name) | Self::Sha256(name) => name,
        }
    }

    /// The ingredient for these parameters; `None` if the parameter is not there.
    pub fn resolve(&self, params: &Map<String, Value>) -> Option<String> {
        let value = params.get(self.param())?;
        let text = value
            .as_str()
            .map_or_else(|| crate::canonical::to_string(value), str::to_owned);
        Some(match self {
            Self::Plain(_) => text,
            Self::Sha256(_) => Digest::of(text.as_bytes()).hex(),
        })
    }
}

fn is_param_name(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_')
}

impl TryFrom<String> for KeyField {
    type Error = SpecInvalid;
    fn try_from(text: String) -> Result<Self, SpecInvalid> {
        let inner = text
            .strip_prefix("sha256(")
            .and_then(|rest| rest.strip_suffix(')'));
        match inner {
            Some(name) if is_param_name(name) => Ok(Self::Sha256(name.to_owned())),
            None if is_param_name(&text) => Ok(Self::Plain(text)),
            Some(_) | None => Err(SpecInvalid::KeyField(text)),
        }
    }
}

impl From<KeyField> for String {
    fn from(field: KeyField) -> String {
        match field {
            KeyField::Plain(name) => name,
            KeyField::Sha256(name) => format!("sha256({name})"),
        }
    }
}

impl JsonSchema for KeyField {
    fn schema_name() -> Cow<'static, str> {
        "KeyField".into()
    }
    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "string", "pattern": "^([A-Za-z0-9_]+|sha256\\([A-Za-z0-9_]+\\))$" })
    }
}

/// What a tool changes, with `{space_id}` and parameter names to be filled in: `file:{space_id}/{path}`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct ResourceTemplate(String);

impl ResourceTemplate {
    /// The parameters it names.
    pub fn params(&self) -> impl Iterator<Item = &str> {
        self.pieces()
            .filter_map(|(_, name)| name)
            .filter(|name| *name != "space_id")
    }

    /// The resource these parameters mean in this space; `None` if a parameter is missing or is not text.
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

    /// Literal text, each with the name that follows it.
    fn pieces(&self) -> impl Iterator<Item = (&str, Option<&str>)> {
        self.0.split('}').map(|piece| match piece.split_once('{') {
            Some((literal, name)) => (literal, Some(name)),
            None => (piece, None),
        })
    }
}

impl TryFrom<String> for ResourceTemplate {
    type Error = SpecInvalid;
    fn try_from(text: String) -> Result<Self, SpecInvalid> {
        let template = Self(text);
        let names_ok = template.pieces().filter_map(|(_, name)| name).all(is_param_name);
        let balanced = template.0.matches('{').count() == template.0.matches('}').count();
        let literals_ok = template
            .pieces()
            .all(|(literal, _)| !literal.contains(['{', '}']));
        if names_ok && balanced && literals_ok && template.0.contains(':') {
            Ok(template)
        } else {
            Err(SpecInvalid::Resource(template.0))
        }
    }
}

impl From<ResourceTemplate> for String {
    fn from(template: ResourceTemplate) -> String {
        template.0
    }
}

impl JsonSchema for ResourceTemplate {
    fn schema_name() -> Cow<'static, str> {
        "ResourceTemplate".into()
    }
    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "string", "pattern": "^[a-z_]+:" })
    }
}

/// A description that contradicts itself or breaks a rule; the tool is not registered.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SpecInvalid {
    /// Not `<source>.<action>` in lower case.
    #[error("tool id {0:?} must be <source>.<action> in lower-case letters, digits and underscores")]
    ToolId(String),
    /// Not `major.minor.patch`.
    #[error("version {0:?} must be major.minor.patch")]
    Version(String),
    /// No such profile.
    #[error("unknown sandbox profile {0:?}; known are default, exec, high_isolation, exec_high_isolation")]
    UnknownProfile(String),
    /// Not a parameter's name or `sha256(name)`.
    #[error("{0:?} is no key field; write a parameter's name or sha256(name)")]
    KeyField(String),
    /// Not `kind:text` with balanced `{names}`.
    #[error("{0:?} is no resource; write kind:text with {{space_id}} or parameter names in braces")]
    Resource(String),
    /// A name that the parameter schema does not require, so that it could be missing.
    #[error("{used_by} uses the parameter {name:?}, which params_schema does not require")]
    ParamNotRequired {
        /// What uses it.
        used_by: &'static str,
        /// The parameter.
        name: String,
    },
    /// A schema that is missing, no object schema, or too large.
    #[error("{which} must be an object schema of at most {SCHEMA_BYTES_MAX} bytes")]
    Schema {
        /// Which of the two.
        which: &'static str,
    },
    /// The time bound is out of range.
    #[error("timeout_ms is {0}; it must be from 1 to {TIMEOUT_MS_MAX}")]
    Timeout(u64),
    /// The effects contradict each other or the risk level.
    #[error("side effects and risk level contradict each other: {0}")]
    Effects(&'static str),
    /// More entries than a description may have.
    #[error("{0} has more than {SPEC_LIST_MAX} entries")]
    TooMany(&'static str),
}

impl ToolSpec {
    /// Whether the description makes sense on its own.
    pub fn check(&self) -> Result<(), SpecInvalid> {
        let word = |w: &str| {
            !w.is_empty()
                && w.bytes()
                    .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_')
        };
        let id = self.tool_id.as_str();
        if !id.contains('.') || !id.split('.').all(word) {
            return Err(SpecInvalid::ToolId(id.to_owned()));
        }
        let parts: Vec<_> = self.version.split('.').collect();
        if parts.len() != 3 || !parts.iter().all(|p| p.parse::<u32>().is_ok()) {
            return Err(SpecInvalid::Version(self.version.clone()));
        }
        if !(1..=TIMEOUT_MS_MAX).contains(&self.timeout_ms) {
            return Err(SpecInvalid::Timeout(self.timeout_ms));
        }
        for (which, schema) in [
            ("params_schema", &self.params_schema),
            ("result_schema", &self.result_schema),
        ] {
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
        let keys = fields
            .iter()
            .map(|field| ("idempotency_key_fields", field.param()));
        let resource = self
            .resource
            .iter()
            .flat_map(ResourceTemplate::params)
            .map(|name| ("resource", name));
        for (used_by, name) in keys.chain(resource) {
            if !self.requires_param(name) {
                return Err(SpecInvalid::ParamNotRequired {
                    used_by,
                    name: name.to_owned(),
                });
            }
        }
        Ok(())
    }

    fn requires_param(&self, name: &str) -> bool {
        let required = self.params_schema.get("required").and_then(Value::as_array);
        required.is_some_and(|names| names.iter().any(|n| n.as_str() == Some(name)))
    }

    fn check_effects(&self) -> Result<(), SpecInvalid> {
        let marks = [SideEffect::ReadOnly, SideEffect::UserVisible];
        let changes = self.side_effects.iter().any(|effect| !marks.contains(effect));
        if self.side_effects.contains(&SideEffect::ReadOnly) && changes {
            return Err(SpecInvalid::Effects("read_only stands beside an effect"));
        }
        if self.risk_level == RiskLevel::Read
            && changes
            && !self.side_effects.contains(&SideEffect::NetworkCall)
        {
            return Err(SpecInvalid::Effects("a tool of level read has effects"));
        }
        if self.risk_level != RiskLevel::Read && !changes {
            return Err(SpecInvalid::Effects(
                "a tool that changes something declares no effect",
            ));
        }
        if self.side_effects.contains(&SideEffect::FilesystemDelete) && self.risk_level != RiskLevel::Danger {
            return Err(SpecInvalid::Effects("a tool that deletes is of level danger"));
        }
        let far = [SideEffect::DeviceCapture, SideEffect::CrossSpace];
        if self.safety_class != SafetyClass::High
            && far.iter().any(|effect| self.side_effects.contains(effect))
        {
            return Err(SpecInvalid::Effects(
                "camera, microphone and other spaces are of class HIGH",
            ));
        }
        Ok(())
    }

    /// Whether all effects stay inside the sandbox's root.
    pub fn is_contained(&self) -> bool {
        self.side_effects.iter().all(|effect| effect.is_contained())
    }

    /// The tier that decides: what follows from the effects, raised by what the author declares.
    pub fn tier(&self) -> RiskTier {
        let changes = self.risk_level != RiskLevel::Read;
        let derived = match (self.risk_level, self.safety_class) {
            (RiskLevel::Danger, _) => RiskTier::R4,
            (RiskLevel::Read | RiskLevel::Write, SafetyClass::High) => RiskTier::R3,
            (RiskLevel::Read, SafetyClass::Low) if self.is_contained() => RiskTier::R0,
            (RiskLevel::Read, SafetyClass::Low | SafetyClass::Medium) => RiskTier::R1,
            (RiskLevel::Write, SafetyClass::Low) if self.is_contained() && self.is_undoable() => RiskTier::R1,
            (RiskLevel::Write, SafetyClass::Low | SafetyClass::Medium) => RiskTier::R2,
        };
        let irreversible = changes && !self.is_undoable() && !self.is_contained();
        let derived = if irreversible {
            derived.max(RiskTier::R3)
        } else {
            derived
        };
        self.risk_tier.map_or(derived, |declared| declared.max(derived))
    }

    /// Whether the effect can be taken back, or — for a notification — is too small to need it.
    fn is_undoable(&self) -> bool {
        let slight = [SideEffect::DeviceNotification, SideEffect::UserVisible];
        self.reversible || self.side_effects.iter().all(|effect| slight.contains(effect))
    }

    /// The profile the tool really runs in: class HIGH always gets high isolation.
    pub fn effective_profile(&self) -> SandboxProfile {
        let high_isolation = self.sandbox_profile.high_isolation || self.safety_class == SafetyClass::High;
        SandboxProfile {
            high_isolation,
            ..self.sandbox_profile
        }
    }

    /// Whether a parameter names what the tool works on: its resource, a path by its name, or the space.
    pub fn names_resource(&self, name: &str) -> bool {
        let resource = self.resource.as_ref();
        is_path_name(name)
            || name == "space_id"
            || resource.is_some_and(|resource| resource.params().any(|named| named == name))
    }

    /// Whether the schema of the parameters knows this name. Other names come from the caller, and may be content.
    pub fn declares_param(&self, name: &str) -> bool {
        property(&self.params_schema, name).is_some()
    }

    /// Whether the schema of the result knows this name.
    pub fn declares_result(&self, name: &str) -> bool {
        property(&self.result_schema, name).is_some()
    }

    /// Whether a parameter may stand in a receipt in clear.
    pub fn is_public_param(&self, name: &str) -> bool {
        is_public(&self.params_schema, name)
    }

    /// Whether a field of the result may stand in a receipt in clear.
    pub fn is_public_result(&self, name: &str) -> bool {
        is_public(&self.result_schema, name)
    }
}

/// Whether the name of a parameter says that it is a path: `path`, `to_path`.
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
