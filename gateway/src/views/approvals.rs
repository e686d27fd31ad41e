//! Approvals in JSON: the question, what a person decides by, and the decision.

use effectd_actors::Services;
use effectd_actors::approvals::edit::Edited;
use effectd_actors::approvals::hold::{Past, keyed_digest};
use effectd_actors::approvals::{DecideError, Hold, view};
use effectd_actors::preview::{Foresight, Preview};
use effectd_actors::services::connections;
use effectd_contracts::{
    ActionRequest, Approval, ApprovalVerdict, Code, Failure, FolderListing, PathState, Phase, Rationale,
    Redaction, Timestamp,
};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::ToSchema;

use super::actions::ActionView;
use super::grants::GrantView;
use super::policy::is_zero;
use crate::problem::{Kind, Problem};
use crate::remediation::By;

/// An approval: a question to a person.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ApprovalView {
    pub approval_id: String,
    /// `pending`, `approved`, `denied` or `expired`.
    pub state: String,
    /// The actions that wait for it. The first one runs, the others get its receipt.
    pub action_ids: Vec<String>,
    pub tool_id: String,
    pub subject_id: String,
    pub space_id: String,
    /// The peer that asked for the action.
    pub principal: String,
    /// Covers what a yes approves: parameters, tool, rules, and the present state of the paths.
    pub digest: String,
    pub asked_at: String,
    pub expires_at: Option<String>,
    /// Seconds until it expires, while it is pending.
    pub time_left_s: Option<u64>,
    /// What a person decides by; left out once it is decided.
    pub prompt: Option<PromptView>,
    /// The decision, as in the receipt.
    #[schema(value_type = Option<Object>)]
    pub decided: Option<Approval>,
}

impl ApprovalView {
    /// Removes file contents, for a planner who may not decide: it must not read files by asking to change them.
    pub(crate) fn leave_texts_out(&mut self) {
        let preview = self.prompt.as_mut().and_then(|prompt| prompt.preview.as_mut());
        if let Some(preview) = preview {
            preview.leave_texts_out();
        }
    }

    /// Removes the rationale, the contract, and the parameters that are not public.
    pub(crate) fn leave_contents_out(&mut self, is_public: impl Fn(&str) -> bool) {
        if let Some(prompt) = &mut self.prompt {
            prompt.params.retain(|name, _| is_public(name));
            (prompt.rationale, prompt.contract) = (None, None);
        }
    }
}

/// What a person decides by.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct PromptView {
    /// What redaction removes from the parameters before the tool sees them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schema(schema_with = crate::schema::redactions)]
    pub redactions: Vec<Redaction>,
    /// Without personal data and secrets. The tool gets them as sent, except for `redactions`.
    #[schema(value_type = Object)]
    pub params: Map<String, Value>,
    /// What it is about: the path, or else the first public parameter, or else the first parameter.
    pub about: Option<String>,
    /// Personal data that is not shown here, and that the tool gets.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schema(schema_with = crate::schema::redactions)]
    pub hidden: Vec<Redaction>,
    /// What the plan requires beside the request, without personal data and secrets.
    #[schema(value_type = Option<Object>)]
    pub contract: Option<Value>,
    /// The connection that the tool uses.
    pub connection: Option<UsedConnection>,
    pub tool_version: String,
    /// Why the policy asks for an approval.
    pub reasons: Vec<String>,
    /// The rule that asks for it.
    pub rule: String,
    /// The risk tier: `R0` to `R4`.
    pub tier: String,
    pub dry_run: bool,
    /// What was at the paths of the action when it was asked: `workspace/x: a file`.
    pub stands: Vec<String>,
    /// Whether a grant can replace the approval.
    pub grant_allowed: bool,
    pub session: String,
    /// How often it has been asked, with this time.
    pub round: u32,
    /// Why it is asked again.
    pub because: Option<String>,
    /// The planner's own reason and confidence, unchecked.
    #[schema(value_type = Option<Object>)]
    pub rationale: Option<Rationale>,
    /// What the tool changed on a copy: `shown`, `would_fail`, or `unavailable` with the reason.
    #[schema(value_type = Option<Object>)]
    pub preview: Option<Preview>,
}

/// A connection that an action uses.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct UsedConnection {
    pub connection_id: String,
    /// Left out if the connection is deleted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Each change of the connection makes another version. A yes is for this one.
    pub version: u64,
}

/// The preview of a request.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct PreviewView {
    pub tool_id: String,
    pub space_id: String,
    /// The policy's verdict: `permit`, `needs_approval`, `deny` or `quarantine`.
    pub verdict: String,
    /// What redaction removes from the parameters before the tool sees them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schema(schema_with = crate::schema::redactions)]
    pub redactions: Vec<Redaction>,
    /// Why, if it is not simply permitted.
    pub reasons: Vec<String>,
    pub rule: String,
    /// The risk tier: `R0` to `R4`.
    pub tier: String,
    /// What the tool changed on a copy: `shown`, `would_fail`, or `unavailable` with the reason.
    #[schema(value_type = Object)]
    pub preview: Preview,
    /// For an approval with edited parameters: the `edited_digest` of a yes to this preview.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub digest: Option<String>,
}

impl PreviewView {
    pub(crate) fn edited(edited: Edited) -> Self {
        Self { digest: Some(edited.digest), ..Self::of(&edited.request, edited.foresight) }
    }

    pub(crate) fn of(request: &ActionRequest, foresight: Foresight) -> Self {
        let decision = &foresight.decision;
        let reasons = decision.verdict.reasons().iter();
        Self {
            tool_id: request.tool_id.to_string(),
            space_id: request.space_id.to_string(),
            verdict: decision.verdict.as_str().to_owned(),
            redactions: foresight.redactions,
            reasons: reasons.map(|reason| reason.text.clone()).collect(),
            rule: decision.rule.clone(),
            tier: format!("{:?}", decision.tier),
            preview: foresight.preview,
            digest: None,
        }
    }
}

/// A page of approvals.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ApprovalList {
    /// Oldest first.
    pub approvals: Vec<ApprovalView>,
    /// The `after` of the next page; left out on the last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
}

/// A decision and its action.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct DecisionView {
    pub approval: ApprovalView,
    pub action: ActionView,
    /// The grant that was created with it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub grant: Option<GrantView>,
    /// Other pending approvals that the grant or the mode made unnecessary: their actions start.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub released: u64,
}

/// An approval: yes.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ApproveBody {
    /// `once` (the default), `grant` or `always`.
    pub how: HowWord,
    /// The digest that was shown; if given, it must match.
    pub digest: Option<String>,
    /// Edited parameters. They pass validation and policy like any others.
    #[schema(value_type = Option<Object>)]
    pub params: Option<Map<String, Value>>,
    /// With `params`: the digest of their preview; if given, it must match.
    pub edited_digest: Option<String>,
    pub reason: Option<String>,
    /// For `grant`: covers the whole organisation, not only the session.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub org: bool,
    /// For `grant`: how many more calls it covers.
    pub calls_max: Option<u32>,
    /// For `grant`: how many seconds it lasts.
    pub lasts_s: Option<u64>,
}

/// What a yes covers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum HowWord {
    /// This action.
    #[default]
    Once,
    /// This action, and more calls of the tool.
    Grant,
    /// All calls of the tool: sets the organisation's mode of it.
    Always,
}

/// Edited parameters to preview.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct EditBody {
    #[schema(value_type = Object)]
    pub params: Map<String, Value>,
}

/// A denial: no.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct DenyBody {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// What a yes to all calls of the tool would change.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct StandingView {
    /// The organisation whose mode of the tool becomes `allow`.
    pub org: String,
    /// The tool, or one named command: `command.run <name>`.
    pub tool: String,
    /// Past approvals of the tool that were examined.
    pub asked: u64,
    /// How many of them would not have been needed.
    pub covered: u64,
    /// Other pending approvals that it makes unnecessary: their actions start.
    #[serde(default)]
    pub released: u64,
}

impl ApprovalView {
    pub(crate) fn of(services: &Services, hold: &Hold) -> Self {
        let request = &hold.decision.request;
        Self {
            approval_id: hold.approval_id.to_string(),
            state: state(hold.decided()).to_owned(),
            action_ids: hold.members.iter().map(|member| member.action_id.to_string()).collect(),
            tool_id: request.tool_id.to_string(),
            subject_id: request.subject_id.to_string(),
            space_id: request.space_id.to_string(),
            principal: hold.decision.principal.to_string(),
            digest: keyed_digest(&hold.digest),
            asked_at: hold.asked_at.to_string(),
            expires_at: Some(hold.expires_at.to_string()),
            time_left_s: hold.decided().is_none().then(|| left_s(services.clock.now(), hold)),
            // A decided approval shows no parameters, also while its action runs.
            prompt: hold.decided().is_none().then(|| PromptView::of(services, hold)),
            decided: hold.decided().cloned(),
        }
    }

    pub(crate) fn past(id: &str, past: &Past) -> Self {
        Self {
            approval_id: id.to_owned(),
            state: state(Some(&past.approval)).to_owned(),
            action_ids: past.action_ids.iter().map(ToString::to_string).collect(),
            tool_id: past.tool_id.to_string(),
            subject_id: past.subject_id.to_string(),
            space_id: past.space_id.to_string(),
            principal: past.principal.to_string(),
            digest: past.approval.digest.clone(),
            asked_at: past.approval.asked_at.to_string(),
            expires_at: None,
            time_left_s: None,
            prompt: None,
            decided: Some(past.approval.clone()),
        }
    }
}

impl PromptView {
    /// The parameters by their names, each item of a batch by itself.
    pub fn named_params(&self) -> Vec<(String, Value)> {
        let mut named = Vec::with_capacity(self.params.len());
        for (name, value) in &self.params {
            let items = value.as_array().filter(|items| items.iter().any(Value::is_object));
            match items {
                Some(items) => {
                    let items = items.iter().enumerate();
                    named.extend(items.map(|(index, item)| (format!("{name}[{index}]"), item.clone())));
                }
                None => named.push((name.clone(), value.clone())),
            }
        }
        named
    }

    fn of(services: &Services, hold: &Hold) -> Self {
        let decision = &hold.prompt.decision;
        let stands = hold.prompt.stands.iter().map(|seen| {
            let word = match &seen.standing {
                PathState::Absent => "nothing",
                PathState::Folder => match seen.inside {
                    Some(FolderListing::TooMuch) => {
                        "a folder that cannot be read or has too many files to compare: an approval covers whatever it holds when the action runs"
                    }
                    Some(FolderListing::Listed(_)) | None => "a folder",
                },
                PathState::File(_) => "a file",
                PathState::Other => "something else",
            };
            format!("{}: {word}", seen.path)
        });
        let facts = &hold.prompt.facts;
        let connection = facts.connection_id.as_ref().map(|id| UsedConnection {
            connection_id: id.to_string(),
            name: connections::name_of(&*services.store, id).ok().flatten(),
            version: facts.connection_version.unwrap_or_default(),
        });
        let registry = services.registry();
        let params = view::shown(&registry, &services.policy(), &hold.decision.request);
        Self {
            redactions: hold.prompt.redactions.clone(),
            about: view::about(&registry, hold, &params),
            params,
            hidden: hold.prompt.hidden.clone(),
            contract: view::contract(hold),
            connection,
            tool_version: hold.prompt.tool_version.clone(),
            reasons: hold.prompt.reasons(),
            rule: decision.rule.clone(),
            tier: format!("{:?}", decision.tier),
            dry_run: hold.decision.request.dry_run,
            stands: stands.collect(),
            grant_allowed: decision.grant_allowed,
            session: hold.session.clone(),
            round: hold.round,
            because: hold.because.clone(),
            rationale: view::rationale(hold),
            preview: hold.prompt.preview.as_deref().cloned(),
        }
    }
}

fn left_s(now: Timestamp, hold: &Hold) -> u64 {
    let left = hold.expires_at.as_millisecond() - now.as_millisecond();
    u64::try_from(left / 1_000).unwrap_or(0)
}

fn state(decided: Option<&Approval>) -> &'static str {
    match decided.map(|approval| approval.verdict) {
        None => "pending",
        Some(ApprovalVerdict::Once | ApprovalVerdict::Grant | ApprovalVerdict::Always) => "approved",
        Some(ApprovalVerdict::Denied | ApprovalVerdict::Revoked) => "denied",
        Some(ApprovalVerdict::Expired) => "expired",
    }
}

/// Why a decision was refused.
impl From<DecideError> for Problem {
    fn from(error: DecideError) -> Self {
        match &error {
            DecideError::Store(error) => error.clone().into(),
            DecideError::Unknown => Problem::of(Kind::ApprovalUnknown, error.to_string()),
            DecideError::Already(_) => Problem::of(Kind::AlreadyDecided, error.to_string()),
            DecideError::Changed | DecideError::Outdated => Problem::of(Kind::AskChanged, error.to_string()),
            DecideError::Expired(_) => {
                Failure::new(Code::ApprovalExpired, Phase::Hold, error.to_string()).into()
            }
            DecideError::Forbidden(reason) => {
                let mut problem = Problem::of(Kind::MayNotDecide, reason.text.clone());
                problem.change = Some(By::Operator.can(&reason.change));
                problem
            }
            DecideError::Invalid(failure) => Problem::failed(failure),
        }
    }
}
