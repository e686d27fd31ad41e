//! Errors as `application/problem+json` (RFC 9457): a stable `type` and `code` for programs, a line for people, and the
//! remediation.

use std::collections::BTreeMap;
use std::time::Duration;

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use effectd_bus::StoreError;
use effectd_contracts::{ActionId, Code, Failure, Gate, Phase, Receipt};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::{IntoResponses, ToSchema, openapi};

use crate::limits::RETRY_AFTER;
use crate::remediation::{self, Change};
use crate::schema;

pub const MEDIA_TYPE: &str = "application/problem+json";
/// The prefix of a problem's `type`; the code follows it.
pub const TYPE_PREFIX: &str = "urn:effectd:problem:";

/// Declares the gateway's own kinds of problems: variant, code, HTTP status, whether a retry may help, title.
macro_rules! kinds {
    ($($variant:ident = $code:literal, $status:literal, $retryable:literal, $title:literal;)*) => {
        /// The gateway's own problems, beside the failures of actions. Codes never change their meaning.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum Kind {
            $(#[doc = $title] $variant,)*
        }

        impl Kind {
            pub const ALL: &'static [Kind] = &[$(Kind::$variant,)*];

            pub const fn code(self) -> &'static str {
                match self { $(Kind::$variant => $code,)* }
            }

            const fn parts(self) -> (u16, bool, &'static str) {
                match self { $(Kind::$variant => ($status, $retryable, $title),)* }
            }
        }
    };
}

kinds! {
    NoSuchPath = "no_such_path", 404, false, "There is nothing at this path.";
    NotFound = "not_found", 404, false, "Nothing has this name.";
    MethodNotAllowed = "method_not_allowed", 405, false, "The path does not support this method.";
    QueryInvalid = "query_invalid", 400, false, "The query cannot be read.";
    Unauthenticated = "unauthenticated", 401, false, "The request has no valid token.";
    TokenForbidden = "token_forbidden", 403, false, "A token of this kind may not do this.";
    HeaderInvalid = "header_invalid", 400, false, "A header cannot be read.";
    CrossSite = "cross_site", 403, false, "The request comes from a page of another site.";
    Misdirected = "misdirected", 421, false, "The request names another host than this one.";
    BodyTooLarge = "body_too_large", 413, false, "The body exceeds the size limit of a request.";
    BodyTimeout = "body_timeout", 408, true, "The body did not arrive in time.";
    BodyBroken = "body_broken", 400, false, "The connection broke while the body was sent.";
    ActionUnknown = "action_unknown", 404, false, "No action with this id is visible to you.";
    ReceiptUnknown = "receipt_unknown", 404, false, "No receipt with this id is visible to you.";
    ArtifactUnknown = "artifact_unknown", 404, false, "The receipt has no such artifact, or it is no longer stored.";
    ArtifactQuarantined = "artifact_quarantined", 403, false, "An operator has quarantined the artifact.";
    NotificationUnknown = "notification_unknown", 404, false, "There is no stored notification for this receipt.";
    ToolUnknown = "tool_unknown", 404, false, "There is no tool with this name.";
    AlreadyFinished = "already_finished", 409, false, "The action has ended; it cannot be withdrawn.";
    CannotCancel = "cannot_cancel", 409, false, "The action has begun; it cannot be withdrawn.";
    LetterUnknown = "letter_unknown", 404, false, "There is no such dead letter.";
    Dropped = "dropped", 410, false, "The data has expired or was deleted.";
    BreakerUnknown = "breaker_unknown", 404, false, "No breaker can have this key.";
    AgentOnly = "agent_only", 403, false, "Only the agent of the session may do this.";
    OperatorsOnly = "operators_only", 403, false, "Only operators may do this.";
    StateConflict = "state_conflict", 409, false, "It does not fit what is stored now.";
    NoMoreKeys = "no_more_keys", 409, false, "The log has had the maximum number of signing keys.";
    PolicyInvalid = "policy_invalid", 422, false, "The policy is not valid; the current one stays in force.";
    DefinitionInvalid = "definition_invalid", 422, false, "The definition of the automation is not valid.";
    ChangeInvalid = "change_invalid", 400, false, "The body is not a valid policy change.";
    ApprovalUnknown = "approval_unknown", 404, false, "No approval with this id is pending.";
    AlreadyDecided = "already_decided", 409, false, "The approval is already decided.";
    AskChanged = "ask_changed", 409, false, "The approval has changed since it was shown.";
    MayNotDecide = "may_not_decide", 403, false, "You may not decide this approval.";
    DecisionInvalid = "decision_invalid", 400, false, "The body is not a valid decision or grant.";
    GrantUnknown = "grant_unknown", 404, false, "No grant with this id is visible to you.";
    GrantEnded = "grant_ended", 410, false, "The grant was revoked, has expired or is used up.";
    NotExplainable = "not_explainable", 404, false, "The action ended before the policy evaluated it.";
    NotReady = "not_ready", 503, true, "The daemon cannot accept work now.";
    Busy = "overloaded", 503, true, "The daemon has too many requests at once.";
    Internal = "internal", 500, true, "A fault of effectd itself.";
}

/// An error, and what has to change.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Problem {
    /// `urn:effectd:problem:<code>`; never changes its meaning.
    #[serde(rename = "type")]
    pub kind: String,
    /// One line, the same for all problems of this kind.
    pub title: String,
    pub status: u16,
    /// One line about this problem. It never holds parameter values.
    pub detail: String,
    /// The stable code: of a failure, or one of the gateway's own.
    pub code: String,
    /// Whether the same request may succeed later without being changed.
    pub retryable: bool,
    /// When to repeat the request, if that may help.
    pub retry_after_ms: Option<u64>,
    /// The phase in which the action failed.
    #[schema(schema_with = crate::schema::phase)]
    pub phase: Option<Phase>,
    /// The gate that refused, if one did.
    #[schema(schema_with = crate::schema::gate)]
    pub gate: Option<Gate>,
    /// The rule that decided: a file and line, or the id of a Cedar policy.
    pub rule: Option<String>,
    /// What has to change, and who can change it.
    pub change: Option<Change>,
    #[schema(value_type = Option<String>)]
    pub action_id: Option<ActionId>,
    /// The receipt, if the action has one.
    #[schema(schema_with = crate::schema::receipt)]
    pub receipt: Option<Box<Receipt>>,
    /// The same as `detail`, on the routes of one session.
    pub error: Option<String>,
    /// Where a policy has its faults, as far as they have a place in its files.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub faults: Vec<PolicyFault>,
    /// The invocation, if the request made one, on the routes of one session.
    #[schema(schema_with = crate::schema::invocation)]
    pub invocation: Option<Value>,
}

/// A fault in a file of a policy.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PolicyFault {
    pub file: String,
    /// From 1.
    pub line: u32,
    /// The character within the line, from 1; left out if only the line is known.
    pub column: Option<u32>,
    pub message: String,
}

impl Problem {
    /// A problem of the gateway's own.
    pub fn of(kind: Kind, detail: impl Into<String>) -> Self {
        let (status, retryable, title) = kind.parts();
        Self::new(kind.code(), status, retryable, title, detail.into())
    }

    /// An action that was not accepted, or that failed.
    pub fn failed(failure: &Failure) -> Self {
        let (code, detail) = (failure.code, failure.message.clone());
        let mut problem = Self::new(code.as_str(), status(code), failure.retryable, code.meaning(), detail);
        problem.phase = Some(failure.phase);
        problem.gate = failure.gate;
        problem.change = Some(remediation::of(failure));
        problem.retry_after_ms = failure.retry_after_ms.or(problem.retry_after_ms);
        problem
    }

    /// An action that failed with this receipt.
    pub fn recorded(receipt: &Receipt, failure: &Failure) -> Self {
        let mut problem = Self::failed(failure);
        // The receipt is final: only a new action may end otherwise.
        problem.retryable = false;
        problem.retry_after_ms = None;
        problem.rule = receipt.decision.as_ref().and_then(|decision| decision.rule.clone());
        problem.action_id = Some(receipt.action_id.clone());
        problem.receipt = Some(Box::new(receipt.clone()));
        problem
    }

    /// The store's refusals as operators see them.
    pub(crate) fn for_operator(error: &StoreError) -> Self {
        let kind = match error {
            StoreError::NotFound { .. } => Kind::LetterUnknown,
            StoreError::NoSuchName(_) => Kind::NotFound,
            StoreError::StateConflict(_) => Kind::StateConflict,
            StoreError::Dropped { .. } => Kind::Dropped,
            StoreError::Invalid(_) | StoreError::InvalidId(_) | StoreError::TooLarge { .. } => {
                Kind::QueryInvalid
            }
            StoreError::Overloaded { .. }
            | StoreError::LeaseLost
            | StoreError::StaleFence { .. }
            | StoreError::AlreadyReceipted { .. }
            | StoreError::Conflict { .. }
            | StoreError::VersionMismatch { .. }
            | StoreError::Full
            | StoreError::ReadOnly
            | StoreError::Unavailable { .. }
            | StoreError::Closed
            | StoreError::Locked { .. }
            | StoreError::Format { .. }
            | StoreError::Damaged { .. }
            | StoreError::Keys { .. } => return Self::unavailable(error),
        };
        Self::of(kind, error.to_string())
    }

    fn unavailable(error: &StoreError) -> Self {
        error.failure(Phase::Accept).into()
    }

    pub fn about(mut self, action: &ActionId) -> Self {
        self.action_id = Some(action.clone());
        self
    }

    fn new(code: &str, status: u16, retryable: bool, title: &str, detail: String) -> Self {
        Self {
            kind: format!("{TYPE_PREFIX}{code}"),
            title: title.to_owned(),
            status,
            detail,
            code: code.to_owned(),
            retryable,
            retry_after_ms: (retryable && status >= 429).then(|| millis(RETRY_AFTER)),
            ..Self::default()
        }
    }
}

impl From<Failure> for Problem {
    fn from(failure: Failure) -> Self {
        Self::failed(&failure)
    }
}

/// To everybody but operators, an error of the store is an outage, unless the caller sent something invalid.
impl From<StoreError> for Problem {
    fn from(error: StoreError) -> Self {
        let is_callers = matches!(
            error,
            StoreError::Invalid(_)
                | StoreError::InvalidId(_)
                | StoreError::TooLarge { .. }
                | StoreError::NoSuchName(_)
                | StoreError::StateConflict(_)
        );
        if is_callers { Self::for_operator(&error) } else { Self::unavailable(&error) }
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// The HTTP status of a failure. 502 and 503 invite a retry, so a failure that a retry does not mend has another one.
fn status(code: Code) -> u16 {
    match code {
        Code::Malformed | Code::ParamsInvalid => 400,
        Code::PolicyDenied
        | Code::SafetyQuarantined
        | Code::HumanDenied
        | Code::NetworkNotWhitelisted
        | Code::ToolDisabled
        | Code::ToolDrifted
        | Code::PluginCodeDisabled
        | Code::ScopeDenied
        | Code::PathDenied
        | Code::PermissionDenied
        | Code::NetworkDenied
        | Code::EgressRefused
        | Code::SyscallDenied => 403,
        Code::UnknownTool | Code::SessionUnknown | Code::FileNotFound => 404,
        Code::ActionConflict
        | Code::IdempotencyConflict
        | Code::StateChanged
        | Code::FileExists
        | Code::OutcomeUnknown
        | Code::NotStarted
        | Code::BatchRolledBack
        | Code::BatchIncomplete
        | Code::RollbackFailed
        | Code::Cancelled => 409,
        Code::ApprovalExpired | Code::UndoGone | Code::ResultGone => 410,
        Code::NotAFile
        | Code::NotAFolder
        | Code::NotText
        | Code::ArchiveInvalid
        | Code::CpuLimit
        | Code::MemoryLimit
        | Code::OutputLimit
        | Code::ProcessLimit
        | Code::FileLimit
        | Code::ConnectionMissing
        | Code::InterpreterMissing
        | Code::SecretMissing
        | Code::ServiceRefused
        | Code::VerificationFailed
        | Code::ToolFailed => 422,
        Code::RateLimited | Code::PendingLimit => 429,
        Code::Internal | Code::ResultInvalid | Code::EffectsUndeclared => 500,
        Code::BreakerOpen
        | Code::TimedOut
        | Code::SandboxFailed
        | Code::ToolBusy
        | Code::EgressFailed
        | Code::DiskFull => 502,
        Code::Overloaded | Code::ShuttingDown | Code::StoreUnavailable | Code::SandboxUnavailable => 503,
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let status = StatusCode::from_u16(self.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        // Plain data with text keys always serialises.
        let body = serde_json::to_vec(&self).unwrap_or_default();
        let mut response = (status, [(header::CONTENT_TYPE, MEDIA_TYPE)], body).into_response();
        if let Some(after) = self.retry_after_ms {
            let seconds = HeaderValue::from(after.div_ceil(1_000));
            response.headers_mut().insert(header::RETRY_AFTER, seconds);
        }
        if self.status == 401 {
            response.headers_mut().insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        if self.status == 408 || self.status == 413 {
            // The rest of the body must not be read as the next request.
            response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
        }
        response
    }
}

/// The statuses under which a route answers with a problem; 0 is none.
pub(crate) struct Problems<
    const A: u16,
    const B: u16 = 0,
    const C: u16 = 0,
    const D: u16 = 0,
    const E: u16 = 0,
    const F: u16 = 0,
    const G: u16 = 0,
    const H: u16 = 0,
>;

impl<
    const A: u16,
    const B: u16,
    const C: u16,
    const D: u16,
    const E: u16,
    const F: u16,
    const G: u16,
    const H: u16,
> IntoResponses for Problems<A, B, C, D, E, F, G, H>
{
    fn responses() -> BTreeMap<String, openapi::RefOr<openapi::Response>> {
        let statuses = [A, B, C, D, E, F, G, H].into_iter().filter(|status| *status != 0);
        statuses.map(|status| (status.to_string(), response(status).into())).collect()
    }
}

/// A problem with this status, in the OpenAPI document.
pub(crate) fn response(status: u16) -> openapi::Response {
    let content = openapi::ContentBuilder::new().schema(Some(schema::of("Problem"))).build();
    let response = openapi::ResponseBuilder::new().description(description(status));
    response.content(MEDIA_TYPE, content).build()
}

/// All statuses of failed actions.
pub(crate) fn failure_statuses() -> impl Iterator<Item = u16> {
    Code::ALL.iter().map(|code| status(*code))
}

fn description(status: u16) -> &'static str {
    match status {
        400 => "The request is not valid; `detail` says why",
        401 => "The request has no valid token",
        403 => "You lack the permission, or the policy denies it",
        404 => "It does not exist, or you may not see it",
        408 => "The body did not arrive in time",
        409 => {
            "It conflicts with the current state: already decided, begun or ended, changed since, or its outcome is unknown"
        }
        410 => "It has ended or expired, or is no longer stored",
        413 => "The body exceeds the size limit of a request",
        421 => "The request names another host than this one",
        422 => "The content, or the policy that was sent, is not valid; `detail` says why",
        429 => "Too many requests; Retry-After says when to retry",
        500 => "effectd or the tool has a fault; tell the operator",
        502 => "The action failed; a new action may succeed later",
        503 => "Temporarily unavailable; Retry-After says when to retry",
        _ => "A problem; `code` says which",
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn receipt() -> Receipt {
        serde_json::from_str(include_str!("../../contracts/tests/golden/receipt.json")).unwrap()
    }

    #[test]
    fn every_code_has_a_status_of_refusal_and_its_own_type() {
        for code in Code::ALL {
            let problem = Problem::failed(&Failure::new(*code, Phase::Accept, "why"));
            assert!((400..600).contains(&problem.status), "{code}: {}", problem.status);
            assert_eq!(problem.kind, format!("urn:effectd:problem:{code}"));
            assert!(problem.change.is_some());
        }
        let status = |code| Problem::failed(&Failure::new(code, Phase::Accept, "")).status;
        assert_eq!(status(Code::ActionConflict), 409);
        assert_eq!(status(Code::ApprovalExpired), 410);
        assert_eq!(status(Code::PendingLimit), 429);
        assert_eq!(status(Code::UnknownTool), 404);
        assert_eq!([Code::FileNotFound, Code::FileExists, Code::NotText].map(status), [404, 409, 422]);
    }

    #[test]
    fn only_what_a_retry_may_mend_invites_one() {
        for code in Code::ALL {
            let problem = Problem::failed(&Failure::new(*code, Phase::Dispatch, "why"));
            // No repeat mends a host without a sandbox, but no other request does, either.
            let invites = problem.status == 502 || problem.status == 503;
            assert!(!invites || code.retryable() || *code == Code::SandboxUnavailable, "{code}");
            // Under this action id, a receipt is final.
            let recorded = Problem::recorded(&receipt(), &Failure::new(*code, Phase::Dispatch, "why"));
            assert_eq!((recorded.retryable, recorded.retry_after_ms), (false, None), "{code}");
            assert_eq!(recorded.status, problem.status);
        }
        let invalid = Problem::from(StoreError::Invalid("no".to_owned()));
        assert_eq!((invalid.status, invalid.code.as_str()), (400, "query_invalid"));
    }

    #[test]
    fn damage_names_the_remedy_of_the_operator_alone() {
        let damaged = StoreError::Damaged { what: "block 7".to_owned(), advice: "restore the last backup" };
        let problem = Problem::for_operator(&damaged);
        assert_eq!(problem.detail, "the store is damaged: block 7");
        assert_eq!(problem.change, Some(remediation::By::Operator.can("restore the last backup")));
    }

    #[test]
    fn what_passes_says_when_to_try_again() {
        let full = Problem::failed(&Failure::new(Code::Overloaded, Phase::Accept, "full"));
        assert_eq!((full.status, full.retry_after_ms), (503, Some(1_000)));
        let response = full.into_response();
        assert_eq!(response.headers()[header::RETRY_AFTER], "1");
        assert_eq!(response.headers()[header::CONTENT_TYPE], MEDIA_TYPE);
        let nobody = Problem::of(Kind::Unauthenticated, "no token").into_response();
        assert_eq!(nobody.headers()[header::WWW_AUTHENTICATE], "Bearer");
        let denied = Problem::failed(&Failure::new(Code::PolicyDenied, Phase::Gate, "no"));
        assert_eq!((denied.status, denied.retry_after_ms), (403, None));
    }

    #[test]
    fn codes_of_the_gateway_do_not_collide_with_failure_codes() {
        for kind in Kind::ALL {
            let shared = Code::ALL.iter().any(|code| code.as_str() == kind.code());
            // Shared codes have the same meaning.
            assert_eq!(shared, matches!(kind, Kind::Busy | Kind::Internal), "{kind:?}");
        }
    }
}
