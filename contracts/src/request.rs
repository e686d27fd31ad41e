//! Requests: what a planner asks for.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::batch::{self, Batch};
use crate::canonical;
use crate::clock::Timestamp;
use crate::digest::Digest;
use crate::failure::{Code, Failure, Phase};
use crate::ids::{ActionId, IdempotencyKey, SessionId, SpaceId, SubjectId, ToolId, TraceId};
use crate::json::{self, JsonInvalid};
use crate::limits::{
    CANDIDATES_MAX, CONTEXT_FEATURES_MAX, CONTEXT_WORD_BYTES_MAX, CONTRACT_BYTES_MAX, CONTRACT_LIST_MAX,
    ID_BYTES_MAX, RATIONALE_BYTES_MAX, REQUEST_BYTES_MAX, RETRIES_DEFAULT, RETRIES_MAX, TIMEOUT_MS_MAX,
};
use crate::risk::RiskTier;
use crate::text::{PRINTABLE, is_unprintable};
use crate::trace::{TraceContext, TraceParent, TraceState};

/// One decision of a planner: run this tool, in this space, for this subject.
///
/// Unknown fields are refused: a misspelt `dry_run` that is ignored would be an effect that nobody wanted.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ActionRequest {
    /// The id of the action, for ever. Sending it again with the same content is harmless; with other content it is a conflict.
    pub action_id: ActionId,
    /// The subject that the planner acts for.
    pub subject_id: SubjectId,
    /// The space.
    pub space_id: SpaceId,
    /// The tool.
    pub tool_id: ToolId,
    /// The tool's parameters, by its schema.
    #[serde(default, deserialize_with = "json::object")]
    pub params: Map<String, Value>,
    /// Timeout, retries and circuit breaker; each may be left out.
    #[serde(default, skip_serializing_if = "Qos::is_empty")]
    pub qos: Qos,
    /// Circumstances that policy rules can use.
    #[serde(default, skip_serializing_if = "PolicyCtx::is_empty")]
    pub policy_ctx: PolicyCtx,
    /// The caller's own idempotency key. If left out, it is built from the tool's key fields.
    pub idempotency_key: Option<IdempotencyKey>,
    /// Check everything, change nothing.
    #[serde(default)]
    pub dry_run: bool,
    /// The planner's alternatives, for learners. The receipt holds them in clear, without personal data and secrets.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = CANDIDATES_MAX))]
    pub candidates: Vec<Candidate>,
    /// The probability with which the planner chose this, for learners. The receipt holds it.
    #[schemars(range(max = 1.0), extend("exclusiveMinimum" = 0.0))]
    pub propensity: Option<f64>,
    /// The id of the candidate that this action is, for learners. The receipt holds it like `candidates`.
    #[schemars(length(min = 1, max = ID_BYTES_MAX))]
    pub chosen: Option<String>,
    /// What the planner knew when it chose, for learners. The receipt holds it like `candidates`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("maxProperties" = CONTEXT_FEATURES_MAX, "propertyNames" = { "pattern": CONTEXT_WORD }))]
    pub context: BTreeMap<String, Feature>,
    /// Why the planner wants this, for the approver. The receipt does not hold it.
    pub rationale: Option<Rationale>,
    /// The trace that links logs, receipt and events. If left out, a new one is created.
    pub trace_id: Option<TraceId>,
    /// The planner's span (W3C Trace Context), which becomes the parent of the action's. Its trace is the action's, unless
    /// `trace_id` names another.
    pub traceparent: Option<TraceParent>,
    /// The tracing vendors' members (W3C Trace Context). The receipt holds them in clear.
    pub tracestate: Option<TraceState>,
}

/// Why a planner wants something, in its own, unchecked words.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Rationale {
    /// How sure it is, from 0 to 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0.0, max = 1.0))]
    pub confidence: Option<f64>,
    /// The reason.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = RATIONALE_BYTES_MAX))]
    pub reason: Option<String>,
}

/// One of the planner's alternatives.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Candidate {
    /// The planner's name for it.
    #[schemars(length(min = 1, max = ID_BYTES_MAX), regex(pattern = PRINTABLE))]
    pub id: String,
    /// The probability with which it would be chosen.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0.0, max = 1.0))]
    pub propensity: Option<f64>,
}

/// A name or a word in a context, as a regular expression.
const CONTEXT_WORD: &str = "^[A-Za-z0-9_.-]{1,32}$";

/// A feature of the context in which a planner chose.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged, expecting = "a feature of the context is a number or a short word")]
pub enum Feature {
    /// A number.
    Number(f64),
    /// A word of letters, digits, `_`, `.` and `-`.
    Word(#[schemars(regex(pattern = CONTEXT_WORD))] String),
}

/// Timeout, retries and circuit breaker of a request.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Qos {
    /// Timeout of one run. The tool's own timeout and its safety class may be stricter.
    #[schemars(range(min = 1, max = TIMEOUT_MS_MAX))]
    pub timeout_ms: Option<u64>,
    /// How often a transient failure is retried.
    #[schemars(range(min = 0, max = RETRIES_MAX))]
    pub max_retries: Option<u32>,
    /// A circuit breaker of the subject's own that counts the failures, beside the tool's.
    #[schemars(length(min = 1, max = ID_BYTES_MAX), regex(pattern = PRINTABLE))]
    pub circuit_breaker_key: Option<String>,
}

impl Qos {
    /// Whether everything is left out.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// The number of retries, or the default.
    pub fn retries(&self) -> u32 {
        self.max_retries.unwrap_or(RETRIES_DEFAULT)
    }
}

/// Circumstances of the request, as the planner claims them.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PolicyCtx {
    /// The person behind the request.
    #[schemars(length(min = 1, max = ID_BYTES_MAX), regex(pattern = PRINTABLE))]
    pub actor: Option<String>,
    /// The device the person uses.
    #[schemars(length(min = 1, max = ID_BYTES_MAX), regex(pattern = PRINTABLE))]
    pub device: Option<String>,
    /// When the planner decided. It is compared with effectd's clock, never used instead of it.
    pub time: Option<Timestamp>,
}

impl PolicyCtx {
    /// Whether everything is left out.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// Where a request came from. It decides how long the action may wait for an approval, and the scope of its keys.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case", tag = "kind", deny_unknown_fields)]
pub enum Origin {
    /// A planner's decision.
    #[default]
    Arbiter,
    /// A step of an agreed plan.
    Plan,
    /// An interactive or unattended session.
    Session {
        /// The session.
        session_id: SessionId,
    },
    /// A step of an automation.
    Run {
        /// The automation, as the policy names it.
        automation_id: String,
        /// The run.
        run_id: String,
        /// The step.
        step_id: String,
    },
    /// An item of a batch.
    Batch {
        /// The batch.
        batch_id: String,
        /// The item, from zero.
        index: u32,
        /// The session that the batch belongs to, if it has a record.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        session_id: Option<SessionId>,
        /// The automation that the batch is a step of.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        automation_id: Option<String>,
        /// Whether effectd derived the request, to undo the item.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        undo: bool,
    },
}

impl Origin {
    /// Whether it is a planner's decision, which most are: receipts leave that out.
    pub fn is_arbiter(&self) -> bool {
        *self == Self::Arbiter
    }

    /// The session that the request belongs to. A run and a batch are each a session; a planner's decision belongs to none.
    pub fn session(&self) -> Option<SessionId> {
        let name = match self {
            Self::Session { session_id } | Self::Batch { session_id: Some(session_id), .. } => {
                return Some(session_id.clone());
            }
            Self::Run { run_id, .. } => format!("run:{run_id}"),
            Self::Batch { batch_id, .. } => format!("batch:{batch_id}"),
            Self::Arbiter | Self::Plan => return None,
        };
        SessionId::new(name).ok()
    }

    /// The automation that the request is a step of.
    pub fn automation(&self) -> Option<&str> {
        match self {
            Self::Run { automation_id, .. } => Some(automation_id),
            Self::Batch { automation_id, .. } => automation_id.as_deref(),
            Self::Arbiter | Self::Plan | Self::Session { .. } => None,
        }
    }
}

/// What a plan requires beside the request itself.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Contract {
    /// The tier that the plan states; it can only raise the tool's.
    pub risk_tier: Option<RiskTier>,
    /// The verification of success.
    pub verification: Option<Verification>,
    /// The rollback.
    pub rollback_plan: Option<Value>,
    /// The files that may be touched.
    pub scope: Option<Scope>,
}

impl Contract {
    /// Checks the bounds that the types do not enforce.
    pub fn check(&self) -> Result<(), Failure> {
        let commands =
            self.verification.iter().map(|verification| ("verification.commands", &verification.commands));
        let paths = self.scope.iter().flat_map(|scope| {
            [
                ("scope.allowedFiles", &scope.allowed_files),
                ("scope.allowedDirs", &scope.allowed_dirs),
                ("scope.forbiddenFiles", &scope.forbidden_files),
            ]
        });
        if let Some((name, list)) = commands.chain(paths).find(|(_, list)| list.len() > CONTRACT_LIST_MAX) {
            let count = list.len();
            return Err(malformed(format!(
                "contract.{name} has {count} entries; at most {CONTRACT_LIST_MAX} are allowed"
            )));
        }
        if let Some(place) = self.rollback_plan.as_ref().and_then(json::inexact) {
            let place = format!("contract.rollbackPlan.{place}").trim_end_matches('.').to_owned();
            return Err(malformed(JsonInvalid::Number { place }.to_string()));
        }
        let bytes = canonical::of(self).unwrap_or_default().len();
        if bytes > CONTRACT_BYTES_MAX {
            return Err(malformed(format!(
                "contract is {bytes} bytes long; at most {CONTRACT_BYTES_MAX} are allowed"
            )));
        }
        Ok(())
    }

    /// Whether success must be verified by commands, and a rollback is planned.
    pub fn is_complete(&self) -> bool {
        let verifies =
            |verification: &Verification| verification.required && !verification.commands.is_empty();
        let plans = |plan: &Value| !plan.is_null();
        self.verification.as_ref().is_some_and(verifies) && self.rollback_plan.as_ref().is_some_and(plans)
    }
}

/// How success is verified.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Verification {
    /// Whether the action succeeds only if the commands do.
    pub required: bool,
    /// Commands to run; each must be on the operator's list.
    #[serde(default)]
    #[schemars(length(max = CONTRACT_LIST_MAX))]
    pub commands: Vec<String>,
}

/// The files that an action may touch. An empty scope allows no write.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Scope {
    /// Single files.
    #[serde(default)]
    #[schemars(length(max = CONTRACT_LIST_MAX))]
    pub allowed_files: Vec<String>,
    /// Whole directories.
    #[serde(default)]
    #[schemars(length(max = CONTRACT_LIST_MAX))]
    pub allowed_dirs: Vec<String>,
    /// Files that stay untouched even inside an allowed directory.
    #[serde(default)]
    #[schemars(length(max = CONTRACT_LIST_MAX))]
    pub forbidden_files: Vec<String>,
}

impl ActionRequest {
    /// A request for a subject in a space, with nothing that may be left out.
    pub fn new(
        action_id: ActionId,
        (subject_id, space_id): (SubjectId, SpaceId),
        (tool_id, params): (ToolId, Map<String, Value>),
    ) -> Self {
        Self {
            action_id,
            subject_id,
            space_id,
            tool_id,
            params,
            qos: Qos::default(),
            policy_ctx: PolicyCtx::default(),
            idempotency_key: None,
            dry_run: false,
            candidates: Vec::new(),
            propensity: None,
            chosen: None,
            context: BTreeMap::new(),
            rationale: None,
            trace_id: None,
            traceparent: None,
            tracestate: None,
        }
    }

    /// Parses and checks a request from outside. The failure says what is wrong and where.
    pub fn parse(bytes: &[u8]) -> Result<Self, Failure> {
        let request: Self = json::parse(bytes, REQUEST_BYTES_MAX)
            .map_err(|error: JsonInvalid| malformed(error.to_string()))?;
        request.check()?;
        Ok(request)
    }

    /// Checks the bounds that the types do not enforce.
    pub fn check(&self) -> Result<(), Failure> {
        for (name, value) in &self.params {
            if let Some(below) = json::inexact(value) {
                let dot = if below.is_empty() { "" } else { "." };
                let place = format!("params.{name}{dot}{below}");
                return Err(malformed(JsonInvalid::Number { place }.to_string()));
            }
        }
        if let Some(timeout) = self.qos.timeout_ms {
            check_range("qos.timeout_ms", timeout, 1, TIMEOUT_MS_MAX)?;
        }
        check_range("qos.max_retries", self.qos.retries().into(), 0, RETRIES_MAX.into())?;
        if batch::is_batch(&self.tool_id) {
            Batch::of_action(self)?;
        }
        let names = [
            ("qos.circuit_breaker_key", &self.qos.circuit_breaker_key),
            ("policy_ctx.actor", &self.policy_ctx.actor),
            ("policy_ctx.device", &self.policy_ctx.device),
        ];
        for (name, text) in names {
            text.iter().try_for_each(|text| check_name(name, text))?;
        }
        self.check_rationale()?;
        self.check_choice()
    }

    fn check_rationale(&self) -> Result<(), Failure> {
        let Some(Rationale { confidence, reason }) = &self.rationale else {
            return Ok(());
        };
        check_share("rationale.confidence", *confidence)?;
        let bytes = reason.as_ref().map_or(0, String::len);
        if bytes > RATIONALE_BYTES_MAX {
            let message = format!("rationale.reason has at most {RATIONALE_BYTES_MAX} bytes");
            return Err(malformed(message));
        }
        Ok(())
    }

    /// A chosen action has a probability above zero; estimates divide by it.
    fn check_choice(&self) -> Result<(), Failure> {
        let count = self.candidates.len();
        if count > CANDIDATES_MAX {
            let message = format!("{count} candidates; at most {CANDIDATES_MAX} are allowed");
            return Err(malformed(message));
        }
        if self.propensity.is_some_and(|share| !(share > 0.0 && share <= 1.0)) {
            return Err(malformed("propensity must be above 0 and at most 1"));
        }
        for candidate in &self.candidates {
            check_name("candidates.id", &candidate.id)?;
            check_share("candidates.propensity", candidate.propensity)?;
        }
        self.check_chosen()?;
        self.check_context()
    }

    fn check_chosen(&self) -> Result<(), Failure> {
        let Some(chosen) = &self.chosen else {
            return Ok(());
        };
        let mut named = self.candidates.iter().filter(|candidate| candidate.id == *chosen);
        let (Some(candidate), None) = (named.next(), named.next()) else {
            return Err(malformed("chosen must be the id of exactly one of the candidates"));
        };
        let own = candidate.propensity;
        let differs = |(one, other): (f64, f64)| (one - other).abs() > 1e-6;
        if own == Some(0.0) || own.zip(self.propensity).is_some_and(differs) {
            let message = "the propensity of the chosen candidate must be above 0 and equal to propensity";
            return Err(malformed(message));
        }
        Ok(())
    }

    fn check_context(&self) -> Result<(), Failure> {
        let count = self.context.len();
        if count > CONTEXT_FEATURES_MAX {
            let message = format!("context has {count} features; at most {CONTEXT_FEATURES_MAX} are allowed");
            return Err(malformed(message));
        }
        for (name, feature) in &self.context {
            let fits = match feature {
                Feature::Word(word) => is_word(word),
                // Beyond this, different integers are the same double.
                Feature::Number(number) => number.abs() <= json::INTEGER_MAX as f64,
            };
            if !fits || !is_word(name) {
                return Err(malformed(format!(
                    "names and words in context are 1 to {CONTEXT_WORD_BYTES_MAX} letters, digits, `_`, `.` and `-`, \
                     and its numbers are at most 2^53 - 1"
                )));
            }
        }
        Ok(())
    }

    /// The digest of the request without its trace: the same decision under another trace is the same decision.
    pub fn digest(&self) -> Digest {
        // A request is plain data with text keys, which serde_json always writes.
        let text = if self.trace_id.is_none() && self.traceparent.is_none() && self.tracestate.is_none() {
            canonical::of(self)
        } else {
            canonical::of(&Self { trace_id: None, traceparent: None, tracestate: None, ..self.clone() })
        };
        Digest::of(text.unwrap_or_default().as_bytes())
    }

    /// The digest of a decision: of the request, and of its contract if it has one. The origin is no part of it: the same
    /// decision may come in through another door.
    pub fn digest_under(&self, contract: Option<&Contract>) -> Digest {
        let request = self.digest();
        // A contract is plain data with text keys, which serde_json always writes.
        let with = |contract| canonical::of(&(request.hex(), contract)).unwrap_or_default();
        contract.map_or(request, |contract| Digest::of(with(contract).as_bytes()))
    }

    /// The trace of the request, if it has one.
    pub fn trace(&self) -> Option<TraceId> {
        let parent = || TraceId::new(self.traceparent.as_ref()?.trace()).ok();
        self.trace_id.clone().or_else(parent)
    }

    /// The action's span in the planner's trace; `None` without a `traceparent`, or if that is of another trace.
    pub fn trace_context(&self, trace: &TraceId) -> Option<TraceContext> {
        let parent = self.traceparent.as_ref()?;
        if parent.trace() != trace.as_str() {
            return None;
        }
        Some(TraceContext {
            traceparent: TraceParent::of_action(trace, &self.action_id, Some(parent))?,
            parent_id: parent.span().to_owned(),
            tracestate: self.tracestate.clone(),
        })
    }

    /// The digest of the parameters alone.
    pub fn params_digest(&self) -> Digest {
        canonical::digest(&self.params)
    }
}

fn malformed(message: impl Into<String>) -> Failure {
    Failure::new(Code::Malformed, Phase::Accept, message)
}

fn check_name(name: &str, text: &str) -> Result<(), Failure> {
    if text.is_empty() || text.len() > ID_BYTES_MAX || text.chars().any(is_unprintable) {
        let message = format!("{name} must be printable text of 1 to {ID_BYTES_MAX} bytes");
        return Err(malformed(message));
    }
    Ok(())
}

fn is_word(text: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_.-".contains(&byte);
    (1..=CONTEXT_WORD_BYTES_MAX).contains(&text.len()) && text.bytes().all(is_plain)
}

fn check_share(name: &str, share: Option<f64>) -> Result<(), Failure> {
    if share.is_some_and(|share| !(0.0..=1.0).contains(&share)) {
        return Err(malformed(format!("{name} must be from 0 to 1")));
    }
    Ok(())
}

fn check_range(name: &str, value: u64, min: u64, max: u64) -> Result<(), Failure> {
    if (min..=max).contains(&value) {
        return Ok(());
    }
    let message = format!("{name} is {value}; it must be from {min} to {max}");
    Err(malformed(message))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use serde_json::json;

    fn minimal() -> Value {
        json!({ "action_id": "a-1", "subject_id": "agent://p", "space_id": "shared:h", "tool_id": "files.write_text" })
    }

    fn with(name: &str, value: Value) -> Result<ActionRequest, Failure> {
        let mut request = minimal();
        request[name] = value;
        ActionRequest::parse(request.to_string().as_bytes())
    }

    #[test]
    fn each_mistake_is_told_in_its_own_words() {
        let cases = [
            ("dry_runn", json!(true), "unknown field `dry_runn`"),
            ("params", json!([1]), "expected a map"),
            ("params", json!(null), "expected a map"),
            ("dry_run", json!("no"), "dry_run: invalid type: string \"no\", expected a boolean"),
            ("qos", json!({ "timeout_ms": 0 }), "qos.timeout_ms is 0; it must be from 1 to 600000"),
            ("qos", json!({ "max_retries": 11 }), "qos.max_retries is 11; it must be from 0 to 10"),
            ("qos", json!({ "timeout": 5 }), "unknown field `timeout`"),
            ("policy_ctx", json!({ "time": "yesterday" }), "policy_ctx.time: "),
            ("policy_ctx", json!({ "actor": "" }), "policy_ctx.actor must be printable text"),
            ("propensity", json!(0), "propensity must be above 0"),
            ("propensity", json!(1.5), "propensity must be above 0"),
            ("chosen", json!("a"), "chosen must be the id of exactly one of the candidates"),
            ("context", json!({ "mood": true }), "a feature of the context is a number or a short word"),
            ("context", json!({ "who": "ann@home" }), "names and words in context are 1 to 32 letters"),
            ("context", json!({ "n": 1_u64 << 60 }), "context.n: numbers beyond 9007199254740991"),
            ("context", json!({ "": 1 }), "names and words in context are 1 to 32 letters"),
            (
                "candidates",
                json!([{ "id": "a", "propensity": -0.1 }]),
                "candidates.propensity must be from 0 to 1",
            ),
            ("candidates", json!([{ "id": "" }]), "candidates.id must be printable"),
            ("candidates", json!(vec![json!({ "id": "a" }); CANDIDATES_MAX + 1]), "candidates; at most"),
            ("action_id", json!(""), "action_id must not be empty"),
            ("action_id", json!(7), "expected a string"),
            ("traceparent", json!("00-1"), "traceparent must be"),
            ("tracestate", json!("A"), "tracestate must be"),
        ];
        for (name, value, expected) in cases {
            let failure = with(name, value).unwrap_err();
            assert_eq!(failure.code, Code::Malformed);
            assert!(failure.message.contains(expected), "{name}: {}", failure.message);
        }
    }

    #[test]
    fn what_was_chosen_is_one_of_the_candidates() {
        let chosen = |candidates: Value, chosen: &str, propensity: f64| {
            let mut request = minimal();
            request["candidates"] = candidates;
            request["chosen"] = json!(chosen);
            request["propensity"] = json!(propensity);
            ActionRequest::parse(request.to_string().as_bytes()).map_err(|failure| failure.message)
        };
        let two = json!([{ "id": "a", "propensity": 0.25 }, { "id": "b", "propensity": 0.75 }]);
        let mut request = chosen(two.clone(), "b", 0.75).unwrap();
        request.propensity = None;
        let choice = crate::Choice::of(&request).unwrap();
        assert_eq!((choice.chosen.as_deref(), choice.propensity), (Some("b"), Some(0.75)));
        assert!(chosen(two.clone(), "c", 0.75).unwrap_err().contains("exactly one of the candidates"));
        assert!(chosen(json!([{ "id": "a" }, { "id": "a" }]), "a", 0.5).is_err());
        assert!(chosen(two, "b", 0.25).unwrap_err().contains("equal to propensity"));
    }

    #[test]
    fn numbers_that_are_not_exact_have_no_digest_to_share() {
        let with = |number: &str| {
            let request = minimal().to_string().replace('}', &format!(r#","params":{{"n":{number}}}}}"#));
            ActionRequest::parse(request.as_bytes())
        };
        for number in
            ["18446744073709551616", "18446744073709551617", "1152921504606846976.0", "1152921504606847000"]
        {
            let failure = with(number).unwrap_err();
            assert_eq!(failure.code, Code::Malformed);
            assert!(failure.message.starts_with("params.n: "), "{}", failure.message);
        }
        let text = |number: &str| with(&format!("\"{number}\"")).unwrap().digest();
        assert_ne!(text("18446744073709551616"), text("18446744073709551617"));
        assert_eq!(with("1").unwrap(), with("1.0").unwrap());
        assert_ne!(with("1").unwrap().digest(), with("1.5").unwrap().digest());
        // A request that a program builds without JSON text has the same bounds.
        let mut request = with("1").unwrap();
        request.params.insert("deep".to_owned(), json!([{ "n": 1_u64 << 60 }]));
        let failure = request.check().unwrap_err();
        assert!(failure.message.starts_with("params.deep.0.n: "), "{}", failure.message);
    }

    #[test]
    fn the_digest_ignores_the_trace_and_nothing_else() {
        let base = with("trace_id", json!("t-1")).unwrap();
        assert_eq!(base.digest(), with("trace_id", json!("t-2")).unwrap().digest());
        let parent = json!("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01");
        assert_eq!(base.digest(), with("traceparent", parent).unwrap().digest());
        assert_eq!(base.digest(), with("tracestate", json!("a=1")).unwrap().digest());
        assert_ne!(base.digest(), with("dry_run", json!(true)).unwrap().digest());
        assert_ne!(base.digest(), with("params", json!({ "a": 1 })).unwrap().digest());
    }

    #[test]
    fn the_digest_of_a_decision_covers_its_contract() {
        let request = with("dry_run", json!(false)).unwrap();
        let under = |contract: Value| {
            let contract: Contract = serde_json::from_value(contract).unwrap();
            request.digest_under(Some(&contract))
        };
        let plan_a = json!({ "verification": { "required": true, "commands": ["make test"] } });
        let plan_b = json!({ "verification": { "required": true, "commands": ["make lint"] } });
        assert_eq!(request.digest_under(None), request.digest());
        assert_eq!(under(plan_a.clone()), under(plan_a.clone()));
        let all = [request.digest(), under(plan_a), under(plan_b), under(json!({}))];
        let different: std::collections::BTreeSet<_> = all.iter().map(|digest| digest.hex()).collect();
        assert_eq!(different.len(), all.len());
    }

    #[test]
    fn a_contract_has_bounds_and_no_unknown_members() {
        let check = |contract: Value| {
            let contract: Contract = serde_json::from_value(contract).map_err(|error| error.to_string())?;
            contract.check().map(|()| contract.is_complete()).map_err(|failure| failure.message)
        };
        let many = vec!["x"; CONTRACT_LIST_MAX + 1];
        let whole = json!({ "required": true, "commands": ["make"] });
        for (contract, expected) in [
            (
                json!({ "verification": { "required": true, "commands": many } }),
                "contract.verification.commands has 257",
            ),
            (json!({ "scope": { "allowedDirs": many } }), "contract.scope.allowedDirs has 257"),
            (json!({ "scope": { "forbiddenFiles": many } }), "contract.scope.forbiddenFiles has 257"),
            (json!({ "rollbackPlan": "x".repeat(CONTRACT_BYTES_MAX) }), "at most 65536 are allowed"),
            (json!({ "rollbackPlan": { "n": 1_u64 << 60 } }), "contract.rollbackPlan.n: numbers beyond"),
            (json!({ "rollback_plan": {} }), "unknown field `rollback_plan`"),
            (json!({ "scope": { "allowed_files": [] } }), "unknown field `allowed_files`"),
            (json!({ "verification": { "required": true, "command": [] } }), "unknown field `command`"),
        ] {
            let refused = check(contract).unwrap_err();
            assert!(refused.contains(expected), "{expected}: {refused}");
        }
        for (contract, complete) in [
            (json!({}), false),
            (json!({ "verification": whole, "rollbackPlan": { "steps": [] } }), true),
            (json!({ "verification": whole }), false),
            (json!({ "verification": whole, "rollbackPlan": null }), false),
            (json!({ "verification": { "required": true }, "rollbackPlan": {} }), false),
            (
                json!({ "verification": { "required": false, "commands": ["make"] }, "rollbackPlan": {} }),
                false,
            ),
        ] {
            assert_eq!(check(contract.clone()), Ok(complete), "{contract}");
        }
    }

    #[test]
    fn a_run_and_a_batch_are_sessions_of_their_own() {
        let origin = |value: Value| serde_json::from_value::<Origin>(value).unwrap();
        let run =
            origin(json!({ "kind": "run", "automation_id": "weekly", "run_id": "r-1", "step_id": "s-1" }));
        let batch = origin(json!({ "kind": "batch", "batch_id": "b-1", "index": 3 }));
        let session = origin(json!({ "kind": "session", "session_id": "s-9" }));
        let named = |origin: &Origin| origin.session().map(|session| session.to_string());
        assert_eq!(named(&run).as_deref(), Some("run:r-1"));
        assert_eq!(named(&batch).as_deref(), Some("batch:b-1"));
        assert_eq!(named(&session).as_deref(), Some("s-9"));
        assert_eq!((named(&Origin::Arbiter), named(&Origin::Plan)), (None, None));
        assert_eq!((run.automation(), session.automation()), (Some("weekly"), None));
    }
}
