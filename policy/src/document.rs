//! The format of `policy.toml`. The JSON Schema for editors is generated from these types.
//!
//! Unknown fields are refused: if a misspelt `revoked` were ignored, a revoked consent would count as given.

use std::collections::{BTreeMap, BTreeSet};

use effectd_contracts::{
    Band, Capability, Compensation, Mode, Predicted, RiskLevel, RiskTier, SafetyClass, SideEffect, Timestamp,
    ToolId, wire_enum,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::limits;

/// The version of the format.
pub const DOCUMENT_VERSION: u32 = 1;

/// The content of `policy.toml`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(title = "effectd policy")]
pub struct Document {
    /// The version of the format; 1.
    #[schemars(range(min = 1, max = DOCUMENT_VERSION))]
    pub version: u32,
    /// The clock of rules about time.
    #[serde(default)]
    pub clock: ClockRules,
    /// The principals that may submit (`user://alice`, `user://*`), and for whom each may act. All others are denied.
    #[serde(default)]
    pub principals: BTreeMap<String, PrincipalRule>,
    /// What the values of a JWT's claim give to the account that has them. A value that is not here gives nothing.
    #[serde(default)]
    pub claims: BTreeMap<String, ClaimRule>,
    /// Named sets of capabilities.
    #[serde(default)]
    pub roles: BTreeMap<String, RoleRule>,
    /// The subjects that may act, by their full id. All others are denied.
    #[serde(default)]
    pub subjects: BTreeMap<String, HolderRule>,
    /// The people that requests may name as their actor. An automation has only the capabilities that both it and its actor
    /// hold.
    #[serde(default)]
    pub actors: BTreeMap<String, HolderRule>,
    /// The devices that requests may name.
    #[serde(default)]
    pub devices: BTreeMap<String, DeviceRule>,
    /// Organisations, with the modes of tools in their spaces.
    #[serde(default)]
    pub orgs: BTreeMap<String, ModeRules>,
    /// Automations, with modes that override the organisation's. No request names one yet.
    #[serde(default)]
    pub automations: BTreeMap<String, ModeRules>,
    /// The spaces in which actions may happen. All others are denied.
    #[serde(default)]
    pub spaces: BTreeMap<String, SpaceRule>,
    /// Consents, given and revoked.
    #[serde(default)]
    pub consents: Vec<ConsentRule>,
    /// What tools may reach outside their space.
    #[serde(default)]
    pub allow: AllowRules,
    /// Commands that `command.run` may run without a person, by name.
    #[serde(default)]
    pub commands: BTreeMap<String, CommandRule>,
    /// The timeouts of each safety class.
    #[serde(default)]
    pub timeouts: TimeoutRules,
    /// Which content is quarantined.
    #[serde(default)]
    pub safety: SafetyRules,
    /// What happens to personal data in the parameters of tools.
    #[serde(default)]
    pub redaction: RedactionRules,
    /// Tools of the examples that are not registered in the program.
    #[serde(default)]
    pub example_tools: BTreeMap<String, ExampleTool>,
    /// Requests with the verdict that they must get. A policy that fails one of them is refused.
    #[serde(default)]
    pub examples: Vec<Example>,
}

/// The clock of rules about time.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ClockRules {
    /// The largest difference between `policy_ctx.time` and the runtime's clock, in seconds.
    #[schemars(range(max = limits::SKEW_S_MAX))]
    pub skew_s_max: u32,
    /// The time zone of rules about the time of day: `local` (the runtime's), `utc`, or an offset such as `+02:00`.
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

/// For whom a principal may act.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PrincipalRule {
    /// Subjects that it may act for; `*` stands for any text.
    pub subjects: Vec<String>,
    /// Actors that it may name; `*` stands for any text. None unless listed.
    #[serde(default)]
    pub actors: Vec<String>,
    /// What it may do: submit for its subjects (`planner`, the default), decide about approvals (`approver`), or also change
    /// what needs an approval (`admin`). A `learner` reads the receipts of everybody. The parts of an operator are `look`,
    /// `operate` and `erase`.
    #[serde(default = "planner")]
    pub roles: Vec<PrincipalRole>,
    /// The organisations that it belongs to, each with its role there: `home = "admin"`.
    #[serde(default)]
    pub orgs: BTreeMap<String, OrgRole>,
}

/// What a value of a JWT's claim gives.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ClaimRule {
    /// `approver`, `admin`, `learner`, `look` or `operate`, as for a principal.
    #[serde(default)]
    pub roles: Vec<PrincipalRole>,
    /// The organisations that it makes a member of, each with the role there.
    #[serde(default)]
    pub orgs: BTreeMap<String, OrgRole>,
}

wire_enum! {
    /// What a principal may do in an organisation.
    pub enum OrgRole {
        /// Create sessions for its own subjects, and see the organisation's connections.
        Member = "member",
        /// Decide and administer as a principal with the role `admin` does, but in this organisation alone; manage its sessions,
        /// connections and secrets.
        Admin = "admin",
        /// The same.
        Owner = "owner",
    }
}

wire_enum! {
    /// What a principal may do.
    pub enum PrincipalRole {
        /// See what operators see: figures, lists, all receipts and the policy. No contents, and no changes.
        Look = "look",
        /// Look, see contents without secrets and personal data, and operate effectd: tools, breakers, dead letters, quarantine.
        Operate = "operate",
        /// Look, and erase subjects.
        Erase = "erase",
        /// Read all receipts, amendments and their events; no contents, and nothing else.
        Learner = "learner",
        /// Submit for its subjects, and read their actions.
        Planner = "planner",
        /// Decide about approvals, but not for a subject that it may act for.
        Approver = "approver",
        /// Decide like an approver, and change what needs an approval: any grant, standing approvals.
        Admin = "admin",
    }
}

fn planner() -> Vec<PrincipalRole> {
    vec![PrincipalRole::Planner]
}

/// A named set of capabilities.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RoleRule {
    /// Capabilities; `*` stands for any text: `files.*`, `workspace:*:read`.
    #[serde(default)]
    pub caps: Vec<String>,
    /// Roles whose capabilities it includes.
    #[serde(default)]
    pub inherits: Vec<String>,
}

/// The roles and capabilities of a subject or an actor.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct HolderRule {
    /// Its roles.
    #[serde(default)]
    pub roles: Vec<String>,
    /// Capabilities in addition to those of its roles.
    #[serde(default)]
    pub caps: Vec<String>,
}

/// A device.
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
    /// By tool: its id (`files.write_text`) or `<source>:<action>` (`files:write_text`,
    /// `connector:<uuid>:search_docs`). `command.run <name>` is one named command.
    #[serde(default)]
    pub modes: BTreeMap<String, Mode>,
}

/// A space in which actions may happen.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SpaceRule {
    /// Its directory; `workspaces/<percent-encoded id>` if left out.
    #[serde(default)]
    pub root: Option<String>,
    /// How careful it is.
    pub band: Band,
    /// Subjects that may use it, or `role:<name>`; `*` stands for any text. Nobody unless listed.
    pub visible_to: Vec<String>,
    /// The organisation it belongs to.
    #[serde(default)]
    pub org: Option<String>,
    /// Paths that no file tool and no named command may change, in any folder of the space: `.git`. If `files.extract` or a named
    /// command makes one, the action fails after the run, and a person must remove the path.
    #[serde(default)]
    pub protected: Vec<String>,
    /// Whether questions about actions here may show parameters and diffs in services of others, such as Slack. Without it, they
    /// show neither: whoever runs such a service, and whoever it lets in, would read them.
    #[serde(default)]
    pub contents_may_leave: bool,
}

/// A consent to a purpose, or to tools.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ConsentRule {
    /// The subject; `*` stands for any text.
    pub subject: String,
    /// The space; `*` stands for any text.
    pub space: String,
    /// The purpose: `tool:<tool id>`, or `pii:<tool id>` to let the tool have the personal data that it needs. `*` stands for
    /// any text, but tools of class HIGH need a consent that names them.
    pub purpose: Option<String>,
    /// Instead of a purpose: the tools, as ids or patterns.
    #[serde(default)]
    pub tools: Vec<String>,
    /// Revokes the consent. A revoked consent overrides every given one.
    #[serde(default)]
    pub revoked: bool,
    /// Until when it holds, RFC 3339.
    #[serde(default)]
    pub until: Option<Timestamp>,
}

/// What tools may reach outside their space.
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

/// A command that runs with nothing writable but what it declares.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CommandRule {
    /// Its words, each exactly as written. `*` stands for one word that is no option, no absolute path and leads to no parent
    /// folder; `**`, as the last word, for any number of such words.
    #[schemars(length(min = 1, max = limits::COMMAND_WORDS_MAX))]
    pub argv: Vec<String>,
    /// Files and folders of the space that it may change. Left out: none, and the command only reads.
    #[serde(default)]
    pub writes: Vec<String>,
    /// Folders of the space that effectd keeps outside of the space, for build results: writable and executable, without
    /// pre-image and undo.
    #[serde(default)]
    pub caches: Vec<String>,
    /// Folders beyond the system's whose programs it may read and execute, by absolute path.
    #[serde(default)]
    pub programs: Vec<String>,
    /// The longest time that it may take, in seconds.
    #[serde(default = "command_timeout_s")]
    #[schemars(range(min = 1, max = limits::COMMAND_TIMEOUT_S_MAX))]
    pub timeout_s: u64,
    /// The memory of all its processes together, in MiB.
    #[serde(default = "command_memory_mib")]
    #[schemars(range(min = limits::COMMAND_MEMORY_MIB_MIN, max = limits::COMMAND_MEMORY_MIB_MAX))]
    pub memory_mib: u64,
    /// What it may reach: nothing.
    #[serde(default)]
    pub network: CommandNetwork,
}

fn command_timeout_s() -> u64 {
    limits::COMMAND_TIMEOUT_S_DEFAULT
}

fn command_memory_mib() -> u64 {
    limits::COMMAND_MEMORY_MIB_DEFAULT
}

wire_enum! {
    /// What a command may reach.
    #[derive(Default)]
    pub enum CommandNetwork {
        /// No socket but connected pairs between the processes of the command.
        #[default]
        None = "none",
    }
}

/// The longest time that a tool of each class may take, in milliseconds. Where the policy sets none, effectd's own tools have the
/// time that they declare, and other tools the default of their class.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct TimeoutRules {
    /// Class LOW; 4000 by default.
    pub low_ms: Option<u64>,
    /// Class MEDIUM, less than LOW's; 3000 by default.
    pub medium_ms: Option<u64>,
    /// Class HIGH; 2000 by default.
    pub high_ms: Option<u64>,
    /// Calls to other machines, of any class; 30000 by default.
    pub egress_ms: Option<u64>,
}

/// Which content is quarantined.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct SafetyRules {
    /// For tools of class LOW.
    pub low: ClassRules,
    /// For tools of class MEDIUM.
    pub medium: ClassRules,
    /// For tools of class HIGH.
    pub high: ClassRules,
    /// Types of embedded content (`data:` URLs) that are allowed, such as `image/png`; `*` stands for any text.
    pub types: Vec<String>,
    /// Words that are quarantined, as whole words in any case.
    pub words: Vec<String>,
    /// Regular expressions whose matches are quarantined. Matching takes linear time; a pattern that is too large is refused.
    pub patterns: Vec<String>,
}

impl Default for SafetyRules {
    fn default() -> Self {
        Self {
            low: ClassRules::all(limits::TEXT_BYTES_MAX_LOW),
            medium: ClassRules::all(limits::TEXT_BYTES_MAX_MEDIUM),
            high: ClassRules::all(limits::TEXT_BYTES_MAX_HIGH),
            types: ["text/*", "image/png", "image/jpeg"].map(str::to_owned).to_vec(),
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
    /// The checks; all of them if left out.
    #[serde(default = "all_checks")]
    pub checks: Vec<CheckName>,
}

impl ClassRules {
    fn all(text_bytes_max: usize) -> Self {
        Self { text_bytes_max, checks: all_checks() }
    }
}

fn all_checks() -> Vec<CheckName> {
    CheckName::ALL.to_vec()
}

wire_enum! {
    /// The checks of content.
    pub enum CheckName {
        /// Text that is longer than the class allows.
        Size = "size",
        /// Binary content, or embedded content of a type that is not listed.
        Type = "type",
        /// Private keys, tokens and passwords.
        Secrets = "secrets",
        /// Programs and scripts.
        Executable = "executable",
        /// Text that tries to instruct the model which reads it.
        Injection = "injection",
        /// The operator's own words and patterns.
        Words = "words",
    }
}

/// What happens to personal data in the parameters of tools: e-mail addresses, phone numbers and faces.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct RedactionRules {
    /// Names of fields with faces, in any case, in addition to those that a schema marks `"x-pii": "face"`.
    pub face_fields: Vec<String>,
    /// By space, tool and field. The first rule that matches decides; `redact` if none does. A tool that calls the network gets
    /// personal data only in fields that its schema marks `"x-pii": "required"`, whatever the rules say.
    pub rules: Vec<RedactionRule>,
}

/// What happens to personal data in some fields.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RedactionRule {
    /// The space; `*` stands for any text. Any space if left out.
    #[serde(default = "any")]
    pub space: String,
    /// The tool; `*` stands for any text. Any tool if left out.
    #[serde(default = "any")]
    pub tool: String,
    /// The field, as a JSON pointer: `/text`, `/argv/*`. `*` stands for any text. Any field if left out.
    #[serde(default = "any")]
    pub field: String,
    /// What happens.
    pub then: Treatment,
}

fn any() -> String {
    "*".to_owned()
}

wire_enum! {
    /// What happens to personal data in a field.
    pub enum Treatment {
        /// A placeholder replaces it before the tool sees it. A field that names what the tool works on is refused instead.
        Redact = "redact",
        /// The call is refused.
        Refuse = "refuse",
        /// The tool gets it unchanged.
        Pass = "pass",
    }
}

impl Default for RedactionRules {
    fn default() -> Self {
        let names =
            ["face", "faces", "face_box", "face_boxes", "face_encoding", "face_embedding", "face_image"];
        Self { face_fields: names.map(str::to_owned).to_vec(), rules: Vec::new() }
    }
}

/// A tool of the examples.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ExampleTool {
    /// The capabilities that it requires.
    #[serde(default)]
    pub caps: Vec<Capability>,
    /// Its side effects.
    #[serde(default)]
    pub side_effects: BTreeSet<SideEffect>,
    /// Its safety class.
    pub safety_class: SafetyClass,
    /// What it does to the world, in one word.
    pub risk_level: RiskLevel,
    /// The tier that its author declares.
    #[serde(default)]
    pub risk_tier: Option<RiskTier>,
    /// Whether its effect can be undone.
    #[serde(default)]
    pub reversible: bool,
    /// Whether another call can make up for its effect.
    #[serde(default)]
    pub compensation: Compensation,
    /// The JSON Schema of its parameters, with annotations; none if left out.
    #[serde(default)]
    pub params_schema: serde_json::Map<String, serde_json::Value>,
}

/// A request with the verdict that it must get.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Example {
    /// What it shows.
    pub name: String,
    /// `permit`, `deny`, `deny by <gate>`, `deny by mode`, `deny by reach`, `quarantine` or `needs approval`.
    pub expect: String,
    /// The principal.
    pub principal: String,
    /// The subject.
    pub subject: String,
    /// The space.
    pub space: String,
    /// The tool: a registered one, or else one of `example_tools`.
    pub tool: ToolId,
    /// The actor that the request names.
    #[serde(default)]
    pub actor: Option<String>,
    /// The device that the request names.
    #[serde(default)]
    pub device: Option<String>,
    /// The runtime's clock; noon of a Wednesday in UTC unless given.
    #[serde(default)]
    pub now: Option<Timestamp>,
    /// The time that the request names.
    #[serde(default)]
    pub time: Option<Timestamp>,
    /// The automation whose run it is a step of.
    #[serde(default)]
    pub automation: Option<String>,
    /// The parameters.
    #[serde(default)]
    pub params: serde_json::Map<String, serde_json::Value>,
    /// Whether the space's organisation has a connection to the tool's source.
    #[serde(default)]
    pub connection: bool,
    /// Whether success is verified and the effect can be rolled back.
    #[serde(default)]
    pub verified: bool,
    /// What a preview predicts; unknown if left out.
    #[serde(default)]
    pub predicted: Option<Predicted>,
}
