//! Plans: one action with its verification, rollback and scope, and the result of carrying it out.
//!
//! The envelopes are those of the action API, in camelCase. A newer planner may add members, so unknown ones are kept.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::event::Topic;
use crate::failure::{Code, Failure, Phase};
use crate::ids::{ActionId, ApprovalId, ReceiptId, SpaceId, SubjectId, ToolId};
use crate::json;
use crate::limits::{CHECK_OUTPUT_BYTES_MAX, CONTRACT_LIST_MAX, RATIONALE_BYTES_MAX, REQUEST_BYTES_MAX};
use crate::outcome::PlanStatus;
use crate::receipt::Receipt;
use crate::request::{ActionRequest, Contract, Rationale, Scope, Verification};
use crate::risk::RiskTier;

/// The version of the action API: the plan envelope, the result envelope and the layout of packages.
pub const ACTION_API: &str = "v4.0.17 LTS";

/// A plan: one action, and what must hold for it to count as done.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Plan {
    /// The id of the action, for ever. If left out, effectd makes one.
    pub action_id: Option<ActionId>,
    /// The tool, by its id or alias.
    #[schemars(with = "ToolId")]
    pub action_type: String,
    /// `R0` to `R4`. It can only raise the tool's own tier; if it is missing or another word, the plan is at least `R3`.
    pub risk_tier: Option<Value>,
    /// How sure the planner is, from 0 to 1.
    #[schemars(range(min = 0.0, max = 1.0))]
    pub confidence: Option<f64>,
    /// Why the planner wants this, for the approver.
    #[schemars(length(max = RATIONALE_BYTES_MAX))]
    pub reason: Option<String>,
    /// The tool's parameters.
    #[serde(deserialize_with = "json::object")]
    pub input: Map<String, Value>,
    /// How the effect is rolled back, in the planner's words; a write of tier `R2` needs it.
    pub rollback_plan: Option<Value>,
    /// How success is verified; a write of tier `R2` needs `required`.
    pub verification: PlanVerification,
    /// The files that the action may change. If left out, the tool's own bounds hold; an empty one allows no change.
    pub scope: Option<PlanScope>,
    /// The space; left out where the caller has one.
    pub space_id: Option<SpaceId>,
    /// The subject; left out where the caller has one.
    pub subject_id: Option<SubjectId>,
    /// Members that this version does not know.
    #[serde(flatten)]
    pub other: Map<String, Value>,
}

/// How success is verified.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
pub struct PlanVerification {
    /// Whether the action succeeds only if the checks pass.
    #[serde(default)]
    pub required: bool,
    /// Commands, each a program and its arguments with a space between: `node --check src/file.js`. The policy must name each.
    #[serde(default)]
    #[schemars(length(max = CONTRACT_LIST_MAX))]
    pub commands: Vec<String>,
    /// Members that this version does not know.
    #[serde(flatten)]
    pub other: Map<String, Value>,
}

/// The files that an action may change.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PlanScope {
    /// Single files.
    #[serde(default)]
    #[schemars(length(max = CONTRACT_LIST_MAX))]
    pub allowed_files: Vec<String>,
    /// Whole folders.
    #[serde(default)]
    #[schemars(length(max = CONTRACT_LIST_MAX))]
    pub allowed_dirs: Vec<String>,
    /// Files that stay as they are even inside an allowed folder.
    #[serde(default)]
    #[schemars(length(max = CONTRACT_LIST_MAX))]
    pub forbidden_files: Vec<String>,
    /// Members that this version does not know.
    #[serde(flatten)]
    pub other: Map<String, Value>,
}

impl Plan {
    /// Parses a plan; the failure names the member that is wrong.
    pub fn parse(bytes: &[u8]) -> Result<Self, Failure> {
        json::parse(bytes, REQUEST_BYTES_MAX).map_err(|error| malformed(error.to_string()))
    }

    /// The tier that the plan states: a missing or unknown one counts as [`RiskTier::UNKNOWN`].
    pub fn tier(&self) -> RiskTier {
        let stated = self.risk_tier.clone().and_then(|tier| serde_json::from_value(tier).ok());
        stated.unwrap_or(RiskTier::UNKNOWN)
    }

    /// The request and the contract of the plan. The subject and the space of the caller stand in for those that the plan leaves out.
    pub fn compile(
        &self,
        subject: Option<SubjectId>,
        space: Option<SpaceId>,
    ) -> Result<(ActionRequest, Contract), Failure> {
        let missing = |name: &str| malformed(format!("{name} is missing: name it in the plan"));
        let subject = self.subject_id.clone().or(subject).ok_or_else(|| missing("subjectId"))?;
        let space = self.space_id.clone().or(space).ok_or_else(|| missing("spaceId"))?;
        let tool = ToolId::new(self.action_type.as_str());
        let tool = tool.map_err(|error| malformed(format!("actionType: {error}")))?;
        let id = self.action_id.clone().unwrap_or_else(ActionId::fresh);
        let mut request = ActionRequest::new(id, (subject, space), (tool, self.input.clone()));
        let (confidence, reason) = (self.confidence, self.reason.clone());
        let says_why = confidence.is_some() || reason.is_some();
        request.rationale = says_why.then_some(Rationale { confidence, reason });
        request.check()?;
        let PlanVerification { required, commands, .. } = self.verification.clone();
        let contract = Contract {
            risk_tier: Some(self.tier()),
            verification: Some(Verification { required, commands }),
            rollback_plan: self.rollback_plan.clone().filter(|plan| !plan.is_null()),
            scope: self.scope.clone().map(|scope| Scope {
                allowed_files: scope.allowed_files,
                allowed_dirs: scope.allowed_dirs,
                forbidden_files: scope.forbidden_files,
            }),
        };
        contract.check()?;
        Ok((request, contract))
    }
}

fn malformed(message: impl Into<String>) -> Failure {
    Failure::new(Code::Malformed, Phase::Accept, message)
}

/// One check of a verification.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Check {
    /// The command, or the name that the tool's package gives its check.
    pub name: String,
    /// Whether it passed.
    pub ok: bool,
    /// The exit code of the command, if it ran and was not killed.
    pub exit_code: Option<i32>,
    /// The end of what it wrote, or why it did not run. A receipt does not hold it.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub output: String,
}

impl Check {
    /// A check whose output is cut to its last bytes, where programs say what is wrong.
    pub fn new(name: impl Into<String>, ok: bool, exit_code: Option<i32>, mut output: String) -> Self {
        if output.len() > CHECK_OUTPUT_BYTES_MAX {
            let cut = output.ceil_char_boundary(output.len() - CHECK_OUTPUT_BYTES_MAX + '…'.len_utf8());
            output.replace_range(..cut, "…");
        }
        Self { name: name.into(), ok, exit_code, output }
    }
}

/// The checks that ran last.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub struct Verified {
    /// Whether the action was done and all checks passed.
    pub ok: bool,
    /// Each check, in order.
    #[serde(default)]
    pub checks: Vec<Check>,
}

/// A step that a plan may need.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub struct Tried {
    /// Whether it was tried.
    pub attempted: bool,
    /// Whether it succeeded.
    pub ok: bool,
}

crate::wire_enum! {
    /// A step in carrying out a plan.
    pub enum PlanStep {
        /// The tool ran.
        Execute = "execute",
        /// The checks ran.
        Verify = "verify",
        /// The tool ran once more.
        Repair = "repair",
        /// The pre-images were restored.
        Rollback = "rollback",
        /// The result was recorded.
        Feedback = "feedback",
    }
}

/// One line of the log of a plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Transition {
    /// The step.
    pub step: PlanStep,
    /// Whether it succeeded.
    pub ok: bool,
}

/// What the receipt of a plan says about its verification, repair and rollback.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PlanRecord {
    /// The status of the plan's result.
    pub result_status: PlanStatus,
    /// The tool, as the plan names it.
    pub action_type: String,
    /// The tier under which it was judged; absent if it was refused before that.
    pub risk_tier: Option<RiskTier>,
    /// How sure the planner was.
    pub confidence: Option<f64>,
    /// Why the planner wanted this, without personal data and secrets.
    pub reason: Option<String>,
    /// The checks, without their output.
    pub verification: Verified,
    /// The one further attempt.
    pub repair: Tried,
    /// The rollback.
    pub rollback: Tried,
    /// The steps in their order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub transitions: Vec<Transition>,
    /// Paths that the rollback could not restore.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub not_restored: Vec<String>,
}

/// The result of a plan.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PlanResult {
    /// How it ended.
    pub status: PlanStatus,
    /// The action.
    pub action_id: ActionId,
    /// The tool, as the plan names it.
    pub action_type: String,
    /// The tier under which it was judged: the plan's or the tool's, whichever is higher. The plan's if it was refused before that.
    pub risk_tier: RiskTier,
    /// How sure the planner was.
    pub confidence: Option<f64>,
    /// Why the planner wanted this.
    pub reason: Option<String>,
    /// The tool's result.
    pub output: Map<String, Value>,
    /// The checks.
    pub verification: Verified,
    /// The one further attempt.
    pub repair: Tried,
    /// The rollback.
    pub rollback: Tried,
    /// Where the result was recorded.
    pub feedback: Feedback,
    /// The steps in their order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub transitions: Vec<Transition>,
    /// Why it did not succeed.
    pub error: Option<Failure>,
}

/// Where the result of a plan was recorded.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Feedback {
    /// The topic of the event that says so.
    pub topic: Option<String>,
    /// The receipt.
    pub receipt_id: Option<ReceiptId>,
    /// The approval that the plan waits for.
    pub approval_id: Option<ApprovalId>,
}

impl PlanResult {
    /// The result of a plan that has ended, from its receipt. `kept` is what effectd keeps of it: the tool's result, or the checks of a plan
    /// that failed, with their output. `None` if the receipt is not one of a plan.
    pub fn of_receipt(receipt: &Receipt, kept: Option<&Value>) -> Option<Self> {
        let record = receipt.plan.as_ref()?;
        let mut verification = record.verification.clone();
        let has_failed = receipt.error.is_some();
        let checks = kept.filter(|_| has_failed).and_then(|kept| Vec::deserialize(&kept["checks"]).ok());
        verification.checks = checks.unwrap_or(verification.checks);
        let output = kept.filter(|_| !has_failed).and_then(Value::as_object);
        Some(Self {
            status: record.result_status,
            action_id: receipt.action_id.clone(),
            action_type: record.action_type.clone(),
            risk_tier: record.risk_tier.unwrap_or(RiskTier::UNKNOWN),
            confidence: record.confidence,
            reason: record.reason.clone(),
            output: output.unwrap_or(&receipt.outputs).clone(),
            verification,
            repair: record.repair,
            rollback: record.rollback,
            feedback: Feedback {
                topic: Some(Topic::ActionExecuted.as_str().to_owned()),
                receipt_id: Some(receipt.receipt_id.clone()),
                approval_id: None,
            },
            transitions: record.transitions.clone(),
            error: receipt.error.clone(),
        })
    }

    /// The result of a plan that waits for a person. Another one follows under the same id.
    pub fn queued(request: ActionRequest, tier: RiskTier, approval_id: ApprovalId) -> Self {
        let rationale = request.rationale.unwrap_or_default();
        Self {
            status: PlanStatus::Queued,
            action_id: request.action_id,
            action_type: request.tool_id.to_string(),
            risk_tier: tier,
            confidence: rationale.confidence,
            reason: rationale.reason,
            output: Map::new(),
            verification: Verified::default(),
            repair: Tried::default(),
            rollback: Tried::default(),
            feedback: Feedback { approval_id: Some(approval_id), ..Feedback::default() },
            transitions: Vec::new(),
            error: None,
        }
    }
}
