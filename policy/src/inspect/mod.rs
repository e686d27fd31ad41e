//! The inspection of parameters. It yields facts without private content, for the decision, and the redacted parameters, for the
//! tool.
//!
//! The tool's schema annotates fields: `"x-pii": "required"` (the tool needs this personal data), `"x-pii": "face"` (a picture
//! or description of a face), `"x-space"`, `"x-host"` and `"x-command": true` (what the call reaches), `"x-resource": true`
//! (another name of what the tool works on, or a text that must match what is there).

mod annotations;
mod choice;
pub(crate) mod public;
pub mod safety;
mod walk;

use effectd_contracts::Redaction;
use serde_json::{Map, Value};

use crate::facts::InspectionFacts;

#[derive(Debug, Clone, PartialEq)]
pub struct Inspection {
    /// For the decision and the receipt.
    pub facts: InspectionFacts,
    /// The parameters that the tool gets. Fields in [`InspectionFacts::personal_required`] are unchanged: the decision either
    /// allows them or refuses the call.
    pub params: Map<String, Value>,
    /// What was removed, for the planner and the receipt.
    pub redactions: Vec<Redaction>,
    /// Personal data that the tool gets as it was sent, if the call is not refused. The approver does not see it.
    pub passed: Vec<Redaction>,
}

pub use choice::redact_choice;
pub(crate) use walk::inspect as inspect_with;
pub(crate) use walk::inspect_for_people;
pub use walk::place;
pub(crate) use walk::{ContentRules, NOT_A_NAME, is_host, plain_name};
