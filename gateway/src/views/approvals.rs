//! What the door tells about what waits for people, and about grants.

use effectd_actors::held::edit::Edited;
use effectd_actors::held::entries::At;
use effectd_actors::held::hold::{Past, written};
use effectd_actors::held::{DecideError, Hold, look};
use effectd_actors::preview::{Foresight, Preview};
use effectd_actors::{Grant, Parts};
use effectd_contracts::{
    ActionRequest, Approval, ApprovalVerdict, Code, Failure, Inside, Phase, Rationale, Standing, Timestamp,
};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::ToSchema;

use super::ActionView;
use crate::advice::{By, Change};
use crate::problem::{Kind, Problem};

/// A question to a person.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ApprovalView {
    /// Its handle.
    pub approval_id: String,
    /// `pending`, `approved`, `denied` or `expired`.
    pub state: String,
    /// The actions that wait for the answer. The first one is carried out, the others get its receipt.
    pub action_ids: Vec<String>,
    /// The tool.
    pub tool_id: String,
    /// On whose behalf.
    pub subject_id: String,
    /// Where.
    pub space_id: String,
    /// Who asked, as the door saw them.
    pub principal: String,
    /// What a yes is to: parameters, tool, rules, and what stands where it will work.
    pub digest: String,
    /// When it was asked.
    pub asked_at: String,
    /// Until when somebody can decide.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<String>,
    /// How many seconds that is from now, while nobody has decided.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub time_left_s: Option<u64>,
    /// What is to happen and why a person is asked; gone when it is settled.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prompt: Option<PromptView>,
    /// What was decided, as the receipt has it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub decided: Option<Approval>,
}

impl ApprovalView {
    /// For whoever asked and does not decide: what stands in files is not theirs to read by asking to change it.
    pub(crate) fn leave_texts_out(&mut self) {
        let preview = self.prompt.as_mut().and_then(|prompt| prompt.preview.as_mut());
        if let Some(preview) = preview {
            preview.leave_texts_out();
        }
    }
}

/// What a person decides by.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct PromptView {
    /// The parameters, without personal data and secrets.
    #[schema(value_type = Object)]
    pub params: Map<String, Value>,
    /// The version of the tool.
    pub tool_version: String,
    /// Why a person is asked.
    pub reasons: Vec<String>,
    /// The rule that asks.
    pub rule: String,
    /// How dangerous it is: `R0` to `R4`.
    pub tier: String,
    /// Nothing is to be changed.
    pub dry_run: bool,
    /// What stood where it will work when it was asked: `workspace/x: a file`.
    pub stands: Vec<String>,
    /// Whether a grant could stand in for a person.
    pub grant_allowed: bool,
    /// The session that it belongs to.
    pub session: String,
    /// Which time this is asked, from 1.
    pub round: u32,
    /// Why it is asked again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub because: Option<String>,
    /// Why the planner wants it and how sure it is, if it said so. Nobody has checked that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub rationale: Option<Rationale>,
    /// What would change, by running the tool on a copy: `shown`, `would_fail`, or `unavailable` with the reason.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub preview: Option<Preview>,
}

/// What would come of a request.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct PreviewView {
    /// The tool.
    pub tool_id: String,
    /// Where.
    pub space_id: String,
    /// What the policy says: `permit`, `needs_approval`, `deny` or `quarantine`.
    pub verdict: String,
    /// Why, if it does not simply permit it.
    pub reasons: Vec<String>,
    /// The rule that decides.
    pub rule: String,
    /// How dangerous it is: `R0` to `R4`.
    pub tier: String,
    /// What would change, by running the tool on a copy: `shown`, `would_fail`, or `unavailable` with the reason.
    #[schema(value_type = Object)]
    pub preview: Preview,
    /// For a question with other parameters: its digest, which `edited_digest` of a yes says was seen.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub digest: Option<String>,
}

impl PreviewView {
    /// What would come of a question with other parameters.
    pub fn edited(edited: Edited) -> Self {
        Self {
            digest: Some(edited.digest),
            ..Self::of(&edited.request, edited.foresight)
        }
    }

    pub fn of(request: &ActionRequest, foresight: Foresight) -> Self {
        let decision = &foresight.decision;
        let reasons = decision.verdict.reasons().iter();
        Self {
            tool_id: request.tool_id.to_string(),
            space_id: request.space_id.to_string(),
            verdict: decision.verdict.as_str().to_owned(),
            reasons: reasons.map(|reason| reason.text.clone()).collect(),
            rule: decision.rule.clone(),
            tier: format!("{:?}", decision.tier),
            preview: foresight.preview,
            digest: None,
        }
    }
}

/// Some questions to people.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ApprovalList {
    /// The questions, the oldest first.
    pub approvals: Vec<ApprovalView>,
    /// Where to go on; nothing when there are no more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
}

/// What was decided, and what came of it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct DecisionView {
    /// The question, decided.
    pub approval: ApprovalView,
    /// How the action stands.
    pub action: ActionView,
    /// The grant that was made with it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub grant: Option<GrantView>,
}

/// How somebody says yes.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ApproveBody {
    /// `once` (if nothing is said), `grant` or `always`.
    pub how: HowWord,
    /// The digest of what was looked at; if it is given, it must be that of the question.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub digest: Option<String>,
    /// Other parameters than the planner's. They pass validation and policy like any others.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub params: Option<Map<String, Value>>,
    /// With `params`: the digest that their preview told; if it is given, it must still be that.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub edited_digest: Option<String>,
    /// Why.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// For `grant`: the whole organisation, not only the session.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub org: bool,
    /// For `grant`: so many calls more.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub calls_max: Option<u32>,
    /// For `grant`: for so long, in seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lasts_s: Option<u64>,
}

/// To what else somebody says yes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum HowWord {
    /// To nothing else.
    #[default]
    Once,
    /// To some more calls of the tool.
    Grant,
    /// To all calls of the tool: sets the organisation's mode of it.
    Always,
}

/// Other parameters than the planner's, to be looked at before anybody says yes to them.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct EditBody {
    /// The parameters.
    #[schema(value_type = Object)]
    pub params: Map<String, Value>,
}

/// How somebody says no.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct DenyBody {
    /// Why.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// What a yes to all calls of the tool would change.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct StandingView {
    /// Whose mode would be `allow`.
    pub org: String,
    /// Of which tool.
    pub tool: String,
    /// Past questions about the tool that were looked at.
    pub asked: u64,
    /// Those of them that nobody would have been asked.
    pub covered: u64,
}

/// A pre-approval.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct GrantView {
    /// Names it.
    pub grant_id: String,
    /// `requested`, `active`, `revoked`, `expired` or `used_up`.
    pub state: String,
    /// In whose spaces it holds.
    pub org: String,
    /// The session that it is for; nothing is the whole organisation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session: Option<String>,
    /// The tools: an id, `<source>.*`, or `*`.
    pub tool: String,
    /// How many calls it is good for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub calls_max: Option<u32>,
    /// How many it has been used for.
    pub calls_used: u32,
    /// Until when it holds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<String>,
    /// When it was made or asked for.
    pub created_at: String,
    /// Who asked for it, or made it.
    pub created_by: String,
    /// Who put it in force, if that was somebody else.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub activated_by: Option<String>,
    /// What for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// Some grants.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct GrantList {
    /// The grants, the oldest first.
    pub grants: Vec<GrantView>,
    /// Where to go on; nothing when there are no more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
}

/// What asking for a grant would make of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct GrantWould {
    /// It would be in force at once, since you may make it; otherwise it waits for somebody who may.
    pub in_force: bool,
}

/// A grant to be made or asked for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct GrantBody {
    /// In whose spaces.
    pub org: String,
    /// For which session; nothing is the whole organisation. A planner without a session has `agent:<subject>`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session: Option<String>,
    /// For which tools: an id, `<source>.*`, or `*`.
    pub tool: String,
    /// For how many calls.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub calls_max: Option<u32>,
    /// For how long, in seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lasts_s: Option<u64>,
    /// What for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

impl ApprovalView {
    /// A question, as those who may see it do.
    pub fn of(parts: &Parts, hold: &Hold) -> Self {
        let request = &hold.decision.request;
        Self {
            approval_id: hold.approval_id.to_string(),
            state: state(hold.decided()).to_owned(),
            action_ids: hold
                .members
                .iter()
                .map(|member| member.action_id.to_string())
                .collect(),
            tool_id: request.tool_id.to_string(),
            subject_id: request.subject_id.to_string(),
            space_id: request.space_id.to_string(),
            principal: hold.decision.principal.to_string(),
            digest: written(&hold.digest),
            asked_at: hold.asked_at.to_string(),
            expires_at: Some(hold.expires_at.to_string()),
            time_left_s: hold.decided().is_none().then(|| left_s(parts, hold)),
            // What is decided is shown to nobody any more, also while it is on its way.
            prompt: hold.decided().is_none().then(|| PromptView::of(parts, hold)),
            decided: hold.decided().cloned(),
        }
    }

    pub fn past(id: &str, past: &Past) -> Self {
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

    pub fn all(parts: &Parts, holds: &[At<Hold>]) -> Vec<Self> {
        holds.iter().map(|hold| Self::of(parts, &hold.value)).collect()
    }
}

impl PromptView {
    fn of(parts: &Parts, hold: &Hold) -> Self {
        let decision = &hold.prompt.decision;
        let stands = hold.prompt.stands.iter().map(|seen| {
            let word = match &seen.standing {
                Standing::Absent => "nothing",
                Standing::Folder => match seen.inside {
                    Some(Inside::TooMuch) => {
                        "a folder; what is in it is too much to be compared, or cannot be read: whatever is there then goes along"
                    }
                    Some(Inside::Listed(_)) | None => "a folder",
                },
                Standing::File(_) => "a file",
                Standing::Other => "something else",
            };
            format!("{}: {word}", seen.path)
        });
        Self {
            params: look::shown(parts, hold),
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
            rationale: look::rationale(hold),
            preview: hold.prompt.preview.as_deref().cloned(),
        }
    }
}

fn left_s(parts: &Parts, hold: &Hold) -> u64 {
    let left = hold.expires_at.as_millisecond() - parts.clock.now().as_millisecond();
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

impl GrantView {
    /// A grant, as it stands at this time.
    pub fn of(grant: &Grant, now: Timestamp) -> Self {
        // A state is one word of JSON.
        let word = serde_json::to_value(grant.state).unwrap_or_default();
        let state = if grant.revoked_at.is_some() {
            "revoked"
        } else if grant.expires_at.is_some_and(|end| end <= now) {
            "expired"
        } else if grant.is_over(now) {
            "used_up"
        } else {
            word.as_str().unwrap_or_default()
        };
        Self {
            grant_id: grant.grant_id.to_string(),
            state: state.to_owned(),
            org: grant.org.clone(),
            session: grant.session.clone(),
            tool: grant.tool.clone(),
            calls_max: grant.calls_max,
            calls_used: grant.calls_used,
            expires_at: grant.expires_at.map(|end| end.to_string()),
            created_at: grant.created_at.to_string(),
            created_by: grant.created_by.to_string(),
            activated_by: grant.activated_by.as_ref().map(ToString::to_string),
            reason: grant.reason.clone(),
        }
    }
}

/// Why nothing was decided, as whoever wanted to is told.
pub fn undecided(error: &DecideError, unknown: Kind) -> Problem {
    match error {
        DecideError::Unknown if unknown == Kind::GrantUnknown => {
            Problem::of(unknown, "there is no such grant, or it is over")
        }
        DecideError::Unknown => Problem::of(unknown, error.to_string()),
        DecideError::Already(_) => Problem::of(Kind::AlreadyDecided, error.to_string()),
        DecideError::Changed | DecideError::Outdated => Problem::of(Kind::AskChanged, error.to_string()),
        DecideError::Expired(_) => Problem::failed(&Failure::new(
            Code::ApprovalExpired,
            Phase::Hold,
            error.to_string(),
        )),
        DecideError::Forbidden(reason) => {
            let mut problem = Problem::of(Kind::MayNotDecide, reason.text.clone());
            problem.change = Some(Change {
                by: By::Operator,
                what: reason.change.clone(),
            });
            problem
        }
        DecideError::Invalid(failure) => Problem::failed(failure),
        DecideError::Store(_) => Problem::failed(&Failure::new(
            Code::StoreUnavailable,
            Phase::Hold,
            error.to_string(),
        )),
    }
}
