//! Looking at raw parameters, once, so that the decision itself need not.
//!
//! The tool's schema says what fields mean: `"x-pii": "required"` (the tool cannot do without this personal data),
//! `"x-pii": "face"` (a picture or description of a face), `"x-space"`, `"x-host"` and `"x-command": true` (what the call
//! reaches for). What comes out are facts without content, and the parameters as the tool may have them.

mod annotations;
pub mod safety;
mod walk;

use effectd_contracts::ToolSpec;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::facts::InspectionFacts;
use crate::policy::Policy;

/// What looking at parameters brought to light.
#[derive(Debug, Clone, PartialEq)]
pub struct Inspection {
    /// For the decision and the receipt.
    pub facts: InspectionFacts,
    /// The parameters as the tool may have them. Fields in [`InspectionFacts::personal_required`] are still as they were:
    /// the decision either exempts them or refuses the call.
    pub params: Map<String, Value>,
    /// Where something was removed, up to a bound.
    pub removed: Vec<Removal>,
}

/// One place where something was removed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Removal {
    /// The field, as a JSON pointer.
    pub pointer: String,
    /// What it was.
    pub kind: RemovalKind,
}

/// What was removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum RemovalKind {
    /// E-mail addresses.
    Email,
    /// Phone numbers.
    Phone,
    /// A face.
    Face,
    /// Something nested too deep to be looked at.
    Depth,
}

/// Looks at the parameters of one call.
pub fn inspect(params: &Map<String, Value>, spec: &ToolSpec, policy: &Policy) -> Inspection {
    walk::inspect(params, &spec.params_schema, spec.safety_class, policy.content())
}

pub(crate) use walk::ContentRules;
pub(crate) use walk::inspect as inspect_with;
