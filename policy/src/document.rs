//! What `policy.toml` may say. The JSON Schema for editors is made from these types.
//!
//! Unknown names are refused everywhere: a misspelt `revoked` that is ignored would be a grant.

use std::collections::{BTreeMap, BTreeSet};

use effectd_contracts::{
    Band, Capability, Mode, Predicted, RiskLevel, RiskTier, SafetyClass, SideEffect, Timestamp, ToolId,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::authority::PrincipalRole;
use crate::limits;

/// The version of this format that this program reads.
pub const DOCUMENT_VERSION: u32 = 1;

/// The whole of `policy.toml`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(title = "effectd policy")]
pub struct Document {
    /// The version of the format; 1.
    #[schemars(range(min = 1, max = DOCUMENT_VERSION))]
    pub version: u32,
    /// Whose clock counts, and when it is night.
    #[serde(default)]
    pub clock: ClockRules,
    /// Who the door may see (`user://alice`, `user://*`), and for whom each may speak. Anyone else is denied.
    #[serde(default)]
    pub principals: BTreeMap<String, PrincipalRule>,
    /// Named bundles of capabilities.
    #[serde(default)]
    pub roles: BTreeMap<String, RoleRule>,
    /// The subjects that may act at all, by their full id. Any other subject is denied.
    #[serde(default)]
    pub subjects: BTreeMap<String, SubjectRule>,
    /// The people that requests may name as their actor.
    #[serde(default)]
    pub actors: BTreeMap<String, ActorRule>,
    /// The devices that requests may name.
    #[serde(default)]
    pub devices: BTreeMap<String, DeviceRule>,
    /// Organisations, with the default modes of their spaces.
    #[serde(default)]
    pub orgs: BTreeMap<String, ModeRules>,
    /// Automations, with modes that go before those of the organisation.
    #[serde(default)]
    pub automations: BTreeMap<String, ModeRules>,
    /// The places where something may happen. Any other space is denied.
    #[serde(default)]
    pub spaces: BTreeMap<String, SpaceRule>,
    /// Who agreed to what, where.
    #[serde(default)]
    pub consents: Vec<ConsentRule>,
    /// What tools may reach beyond their space.
    #[serde(default)]
    pub allow: AllowRules,
    /// The longest time a tool of each class may take.
    #[serde(default)]
    pub timeouts: TimeoutRules,
    /// What content is held for review.
    #[serde(default)]
    pub safety: SafetyRules,
    /// What personal data is removed beside e-mail addresses and phone numbers.
    #[serde(default)]
    pub redaction: RedactionRules,
    /// Tools as the examples below assume them.
    #[serde(default)]
    pub example_tools: BTreeMap<String, ExampleTool>,
    /// Requests with the verdict they must get. A policy that fails one of them is refused.
    #[serde(default)]
    pub examples: Vec<Example>,
}

/// Whose clock counts, and when it is night.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ClockRules {
    /// Furthest that `policy_ctx.time` may be from the runtime's clock, in seconds.
    #[schemars(range(max = limits::SKEW_S_MAX))]
    pub skew_s_max: u32,
    /// The zone of time-of-day rules: `local` (the runtime's), `utc`, or an offset such as `+02:00`.
    pub zone: String,
    /// When the night begins, `HH:MM`.
    pub night_from: String,
    /// When the night ends, `HH:MM`.
    pub night_until: String,
}

impl Default for ClockRules {
    fn default() -> Self {
        let clock = |minute: u16| format!("{:02}:{:02}", minute / 60, minute % 60);
        Self {
            skew_s_max: limits::SKEW_S_DEFAULT,
            zone: "local".to_owned(),
            night_from: clock(limits::NIGHT_FROM_MINUTE_DEFAULT),
            night_until: clock(limits::NIGHT_UNTIL_MINUTE_DEFAULT),
        }
    }
}

/// For whom a principal may speak.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PrincipalRule {
    /// Subjects it may claim to act for; `*` stands for any text.
    pub subjects: Vec<String>,
    /// Actors it may name; `*` stands for any text. None unless listed.
    #[serde(default)]
    pub actors: Vec<String>,
    /// What it may do: submit for its subjects (`planner`, if nothing is said), decide about what waits for a person
    /// (`approver`), or also change what is asked at all (`admin`).
    #[serde(default = "planner")]
    pub roles: Vec<PrincipalRole>,
}

fn planner() -> Vec<PrincipalRole> {
    vec![PrincipalRole::Planner]
}

/// A named bundle of capabilities.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RoleRule {
    /// Capabilities; `*` stands for any text: `files.*`, `workspace:*:read`.
    #[serde(default)]
    pub caps: Vec<String>,
    /// Roles whose capabilities it has as well.
    #[serde(default)]
    pub inherits: Vec<String>,
}

/// What a subject is and holds.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SubjectRule {
    /// Its roles.
    #[serde(default)]
    pub roles: Vec<String>,
    /// Capabilities beyond those of its roles.
    #[serde(default)]
    pub caps: Vec<String>,
}

/// What a person is and holds. An automation has only what both it and its actor hold.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ActorRule {
    /// The person's roles.
    #[serde(default)]
    pub roles: Vec<String>,
    /// Capabilities beyond those of the roles.
    #[serde(default)]
    pub caps: Vec<String>,
}

/// What kind of device it is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct DeviceRule {
    /// The class that Cedar rules see as `context.device.class`: `phone`, `desktop` …
    #[schemars(length(min = 1, max = limits::NAME_BYTES_MAX))]
    pub class: String,
}

/// Modes by tool.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ModeRules {
    /// By tool, written as its id (`files.write_text`) or as `<source>:<action>` (`files:write_text`,
    /// `connector:<uuid>:search_docs`).
    #[serde(default)]
    pub modes: BTreeMap<String, Mode>,
}

/// A place where something may happen.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SpaceRule {
    /// Its directory; left out, it is `workspaces/<percent-encoded id>`.
    #[serde(default)]
    pub root: Option<String>,
    /// How careful it is.
    pub band: Band,
    /// Subjects that may see it, or `role:<name>`; `*` stands for any text. Nobody unless listed.
    pub visible_to: Vec<String>,
    /// The organisation it belongs to.
    #[serde(default)]
    pub org: Option<String>,
}

/// A person's agreement to a purpose.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ConsentRule {
    /// The subject that may act on it; `*` stands for any text.
    pub subject: String,
    /// Where; `*` stands for any text.
    pub space: String,
    /// What for: `tool:<tool id>`, or `pii:<tool id>` to let the tool have the personal data it needs. `*` stands for any
    /// text, except for tools of class HIGH, which need their own name here.
    pub purpose: String,
    /// Takes the agreement back. A revoked consent goes before every given one.
    #[serde(default)]
    pub revoked: bool,
    /// Until when it holds, RFC 3339.
    #[serde(default)]
    pub until: Option<Timestamp>,
}

/// What tools may reach beyond their space.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct AllowRules {
    /// Tools that may name another space than the request's.
    pub cross_space: Vec<String>,
    /// Hosts that tools may talk to: `api.example.org`, `*.example.org`.
    pub hosts: Vec<String>,
    /// Programs that tools may run, by name.
    pub commands: Vec<String>,
}

/// The longest time a tool of each class may take, in milliseconds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct TimeoutRules {
    /// Class LOW.
    pub low_ms: u64,
    /// Class MEDIUM; must be less than LOW's.
    pub medium_ms: u64,
    /// Class HIGH.
    pub high_ms: u64,
    /// Calls to other machines, of any class.
    pub egress_ms: u64,
}

impl Default for TimeoutRules {
    fn default() -> Self {
        Self {
            low_ms: limits::TIMEOUT_MS_LOW,
            medium_ms: limits::TIMEOUT_MS_MEDIUM,
            high_ms: limits::TIMEOUT_MS_HIGH,
            egress_ms: limits::TIMEOUT_MS_EGRESS,
        }
    }
}

/// What content is held for review.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct SafetyRules {
    /// For tools of class LOW.
    pub low: ClassRules,
    /// For tools of class MEDIUM.
    pub medium: ClassRules,
    /// For tools of class HIGH.
    pub high: ClassRules,
    /// Types of embedded content (`data:` URLs) that pass, such as `image/png`; `*` stands for any text.
    pub types: Vec<String>,
    /// Words that are held for review wherever they stand as a word, in any case.
    pub words: Vec<String>,
    /// Regular expressions that are held for review. Matching takes linear time; a pattern that is too large is refused.
    pub patterns: Vec<String>,
}

impl Default for SafetyRules {
    fn default() -> Self {
        Self {
            low: ClassRules {
                text_bytes_max: limits::TEXT_BYTES_MAX_LOW,
                checks: CheckName::ALL.to_vec(),
            },
            medium: ClassRules {
                text_bytes_max: limits::TEXT_BYTES_MAX_MEDIUM,
                checks: CheckName::ALL.to_vec(),
            },
            high: ClassRules {
                text_bytes_max: limits::TEXT_BYTES_MAX_HIGH,
                checks: CheckName::ALL.to_vec(),
            },
            types: vec![
                "text/*".to_owned(),
                "image/png".to_owned(),
                "image/jpeg".to_owned(),
            ],
            words: Vec::new(),
            patterns: Vec::new(),
        }
    }
}

/// The checks of one safety class.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ClassRules {
    /// Longest text in one parameter, in bytes.
    pub text_bytes_max: usize,
    /// Which checks run; all of them unless listed.
    #[serde(default = "all_checks")]
    pub checks: Vec<CheckName>,
}

fn all_checks() -> Vec<CheckName> {
    CheckName::ALL.to_vec()
}

/// The built-in checks of content.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum CheckName {
    /// Text longer than the class allows.
    Size,
    /// Binary content, or embedded content of a type that is not listed.
    Type,
    /// Private keys, tokens and passwords in content.
    Secrets,
    /// Programs and scripts.
    Executable,
    /// Text that tries to instruct the model which reads it.
    Injection,
    /// The operator's own words and patterns.
    Words,
}

impl CheckName {
    pub const ALL: [CheckName; 6] = [
        Self::Size,
        Self::Type,
        Self::Secrets,
        Self::Executable,
        Self::Injection,
        Self::Words,
    ];

    /// The wire form.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Size => "size",
            Self::Type => "type",
            Self::Secrets => "secrets",
            Self::Executable => "executable",
            Self::Injection => "injection",
            Self::Words => "words",
        }
    }
}

/// What personal data is removed beside e-mail addresses and phone numbers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct RedactionRules {
    /// Names of fields that hold faces, in any case, beside those that a schema marks `"x-pii": "face"`.
    pub face_fields: Vec<String>,
}

impl Default for RedactionRules {
    fn default() -> Self {
        let names = [
            "face",
            "faces",
            "face_box",
            "face_boxes",
            "face_encoding",
            "face_embedding",
            "face_image",
        ];
        Self {
            face_fields: names.map(str::to_owned).to_vec(),
        }
    }
}

/// A tool as the examples assume it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ExampleTool {
    /// Capabilities it requires.
    #[serde(default)]
    pub caps: Vec<Capability>,
    /// What it does to the world.
    #[serde(default)]
    pub side_effects: BTreeSet<SideEffect>,
    /// Its safety class.
    pub safety_class: SafetyClass,
    /// What it does, in one word.
    pub risk_level: RiskLevel,
    /// A tier that its author declares.
    #[serde(default)]
    pub risk_tier: Option<RiskTier>,
    /// Whether its effect can be undone.
    #[serde(default)]
    pub reversible: bool,
    /// The JSON Schema of its parameters, for annotations; left out, it has none.
    #[serde(default)]
    pub params_schema: serde_json::Map<String, serde_json::Value>,
}

/// A request with the verdict it must get.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Example {
    /// What it shows.
    pub name: String,
    /// `permit`, `deny`, `deny by <gate>`, `deny by mode`, `deny by reach`, `quarantine` or `needs approval`.
    pub expect: String,
    /// Who the door sees.
    pub principal: String,
    /// On whose behalf.
    pub subject: String,
    /// Where.
    pub space: String,
    /// With which tool of `example_tools`.
    pub tool: ToolId,
    /// The person named in the request.
    #[serde(default)]
    pub actor: Option<String>,
    /// The device named in the request.
    #[serde(default)]
    pub device: Option<String>,
    /// The runtime's clock; noon of a Wednesday in UTC unless given.
    #[serde(default)]
    pub now: Option<Timestamp>,
    /// The time that the request claims.
    #[serde(default)]
    pub time: Option<Timestamp>,
    /// The automation that asks, if one does.
    #[serde(default)]
    pub automation: Option<String>,
    /// The parameters.
    #[serde(default)]
    pub params: serde_json::Map<String, serde_json::Value>,
    /// Whether a connection to the tool's service exists.
    #[serde(default)]
    pub connection: bool,
    /// Whether success is verified and the effect can be rolled back.
    #[serde(default)]
    pub verified: bool,
    /// What would change, as rules see it; nobody knows if it is left out.
    #[serde(default)]
    pub predicted: Option<Predicted>,
}
