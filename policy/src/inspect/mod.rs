//! Looking at raw parameters, once, so that the decision itself need not.
//!
//! The tool's schema says what fields mean: `"x-pii": "required"` (the tool cannot do without this personal data),
//! `"x-pii": "face"` (a picture or description of a face), `"x-space"`, `"x-host"` and `"x-command": true` (what the call
//! reaches for), `"x-resource": true` (another name of what the tool works on). What comes out are facts without content,
//! and the parameters as the tool may have them.

mod annotations;
pub mod safety;
mod walk;

use effectd_contracts::{Redaction, ToolSpec};
use serde_json::{Map, Value};

use crate::facts::InspectionFacts;
use crate::policy::Policy;

#[derive(Debug, Clone, PartialEq)]
pub struct Inspection {
    /// For the decision and the receipt.
    pub facts: InspectionFacts,
    /// The parameters as the tool may have them. Fields in [`InspectionFacts::personal_required`] are still as they were:
    /// the decision either exempts them or refuses the call.
    pub params: Map<String, Value>,
    /// What was removed where, for the planner and the receipt.
    pub redacted: Vec<Redaction>,
}

pub fn inspect(params: &Map<String, Value>, spec: &ToolSpec, policy: &Policy) -> Inspection {
    walk::inspect(params, spec, policy.content())
}

pub(crate) use walk::ContentRules;
pub(crate) use walk::inspect as inspect_with;
pub use walk::place;
