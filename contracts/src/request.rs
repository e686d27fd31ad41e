//! What a planner asks for.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::canonical;
use crate::clock::Timestamp;
use crate::digest::Digest;
use crate::failure::{Code, Failure, Phase};
use crate::ids::{ActionId, IdempotencyKey, SpaceId, SubjectId, ToolId, TraceId};
use crate::json::{self, JsonInvalid};
use crate::limits::{
    CANDIDATES_MAX, ID_BYTES_MAX, RATIONALE_BYTES_MAX, REQUEST_BYTES_MAX, RETRIES_DEFAULT, RETRIES_MAX,
    TIMEOUT_MS_MAX,
};
use crate::text::is_unprintable;
use crate::trace::{TraceContext, TraceParent, TraceState};

/// One decision of a planner: do this, there, on this subject's behalf.
///
/// Unknown names are refused. A misspelt `dry_run` that is ignored would be an effect nobody wanted.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ActionRequest {
    /// Names the action for ever. Sending it again with the same content is harmless; with other content it is a conflict.
    pub action_id: ActionId,
    /// On whose behalf.
    pub subject_id: SubjectId,
    /// Where.
    pub space_id: SpaceId,
    /// With which tool.
    pub tool_id: ToolId,
    /// What the tool is told; its schema says what is allowed.
    #[serde(default)]
    pub params: Map<String, Value>,
    /// How patient the caller is; each part may be left out.
    #[serde(default, skip_serializing_if = "Qos::is_empty")]
    pub qos: Qos,
    /// Circumstances that policies look at.
    #[serde(default, skip_serializing_if = "PolicyCtx::is_empty")]
    pub policy_ctx: PolicyCtx,
    /// The caller's own idempotency key; left out, it is formed from the tool's key fields.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idempotency_key: Option<IdempotencyKey>,
    /// Go the whole way, but change nothing.
    #[serde(default)]
    pub dry_run: bool,
    /// What the planner chose among, for learners. It comes back in the receipt, in clear.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = CANDIDATES_MAX))]
    pub candidates: Vec<Candidate>,
    /// How likely the planner was to choose this, for learners. It comes back in the receipt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0.0, max = 1.0))]
    pub propensity: Option<f64>,
    /// Why the planner wants this and how sure it is, for the person who is asked. No receipt repeats it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rationale: Option<Rationale>,
    /// Follows the action through logs, receipt and event; left out, one is made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trace_id: Option<TraceId>,
    /// The planner's own span (W3C Trace Context), of which the action becomes a child; its trace is the action's, unless
    /// `trace_id` names another.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub traceparent: Option<TraceParent>,
    /// What the planner's vendors of tracing want handed on. It comes back in the receipt, in clear.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tracestate: Option<TraceState>,
}

/// Why a planner wants something, in its own words. Nobody has checked them.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Rationale {
    /// How sure it is that this is right, from 0 to 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0.0, max = 1.0))]
    pub confidence: Option<f64>,
    /// What for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = RATIONALE_BYTES_MAX))]
    pub reason: Option<String>,
}

/// Something that a planner could have done.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Candidate {
    /// What the planner calls it.
    #[schemars(length(min = 1, max = ID_BYTES_MAX))]
    pub id: String,
    /// How likely it was to choose this.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0.0, max = 1.0))]
    pub propensity: Option<f64>,
}

/// How patient the caller is.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Qos {
    /// Wall-clock bound of one run of the tool; the tool's own bound and its safety class may be tighter.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = TIMEOUT_MS_MAX))]
    pub timeout_ms: Option<u64>,
    /// How often a passing failure is tried again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = RETRIES_MAX))]
    pub max_retries: Option<u32>,
    /// Which circuit breaker counts the failures; the tool's id if left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = ID_BYTES_MAX))]
    pub circuit_breaker_key: Option<String>,
}

impl Qos {
    /// Nothing was asked for.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Retries asked for, or the default.
    pub fn retries(&self) -> u32 {
        self.max_retries.unwrap_or(RETRIES_DEFAULT)
    }
}

/// Circumstances of the request, as the planner tells them.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PolicyCtx {
    /// The person behind the request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = ID_BYTES_MAX))]
    pub actor: Option<String>,
    /// The device the person uses.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = ID_BYTES_MAX))]
    pub device: Option<String>,
    /// When the planner decided. It is compared with the runtime's clock, never used instead of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub time: Option<Timestamp>,
}

impl PolicyCtx {
    /// Nothing was told.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// Where a request came from, which decides how long it may wait for a person and what its keys are scoped by.
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
        /// Which session.
        session_id: String,
    },
    /// A step of an automation.
    Run {
        /// Which run.
        run_id: String,
        /// Which step.
        step_id: String,
    },
    /// An item of a batch.
    Batch {
        /// Which batch.
        batch_id: String,
        /// Which item, from zero.
        index: u32,
    },
}

/// What a plan promises beside the request itself.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Contract {
    /// How success is checked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub verification: Option<Verification>,
    /// How the effect is undone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rollback_plan: Option<Value>,
    /// Which files may be touched.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scope: Option<Scope>,
}

/// How success is checked.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub struct Verification {
    /// Whether the action counts as done only if the checks pass.
    pub required: bool,
    /// Commands to run, each on the operator's list.
    #[serde(default)]
    pub commands: Vec<String>,
}

/// Which files may be touched: listed ones, never the forbidden ones. An empty scope allows no write at all.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Scope {
    /// Single files.
    #[serde(default)]
    pub allowed_files: Vec<String>,
    /// Whole directories.
    #[serde(default)]
    pub allowed_dirs: Vec<String>,
    /// Files that stay untouched even inside an allowed directory.
    #[serde(default)]
    pub forbidden_files: Vec<String>,
}

impl ActionRequest {
    /// Reads a request from outside, with all its bounds. The failure says what is wrong and where.
    pub fn parse(bytes: &[u8]) -> Result<Self, Failure> {
        let request: Self = json::parse(bytes, REQUEST_BYTES_MAX).map_err(malformed)?;
        request.check()?;
        Ok(request)
    }

    /// The bounds that types alone do not hold.
    pub fn check(&self) -> Result<(), Failure> {
        for (name, value) in &self.params {
            if let Some(below) = json::inexact(value) {
                let dot = if below.is_empty() { "" } else { "." };
                let place = format!("params.{name}{dot}{below}");
                return Err(malformed(JsonInvalid::Number { place }));
            }
        }
        if let Some(timeout) = self.qos.timeout_ms
            && !(1..=TIMEOUT_MS_MAX).contains(&timeout)
        {
            return Err(out_of_bounds("qos.timeout_ms", timeout, 1, TIMEOUT_MS_MAX));
        }
        if self.qos.retries() > RETRIES_MAX {
            return Err(out_of_bounds(
                "qos.max_retries",
                self.qos.retries().into(),
                0,
                RETRIES_MAX.into(),
            ));
        }
        let names = [
            ("qos.circuit_breaker_key", &self.qos.circuit_breaker_key),
            ("policy_ctx.actor", &self.policy_ctx.actor),
            ("policy_ctx.device", &self.policy_ctx.device),
        ];
        for (name, text) in names {
            let Some(text) = text else { continue };
            if text.is_empty() || text.len() > ID_BYTES_MAX || text.chars().any(is_unprintable) {
                let message = format!("{name} must be printable text of 1 to {ID_BYTES_MAX} bytes");
                return Err(Failure::new(Code::Malformed, Phase::Accept, message));
            }
        }
        self.check_rationale()?;
        self.check_choice()
    }

    fn check_rationale(&self) -> Result<(), Failure> {
        let Some(Rationale { confidence, reason }) = &self.rationale else {
            return Ok(());
        };
        let wrong = |message: String| Err(Failure::new(Code::Malformed, Phase::Accept, message));
        if confidence.is_some_and(|sure| !(0.0..=1.0).contains(&sure)) {
            return wrong("rationale.confidence must be from 0 to 1".to_owned());
        }
        if reason
            .as_ref()
            .is_some_and(|reason| reason.len() > RATIONALE_BYTES_MAX)
        {
            return wrong(format!(
                "rationale.reason has at most {RATIONALE_BYTES_MAX} bytes"
            ));
        }
        Ok(())
    }

    /// A probability of zero would make an estimate divide by it: who chose something could have chosen it.
    fn check_choice(&self) -> Result<(), Failure> {
        let wrong = |message: String| Err(Failure::new(Code::Malformed, Phase::Accept, message));
        if self.candidates.len() > CANDIDATES_MAX {
            return wrong(format!(
                "{} candidates; at most {CANDIDATES_MAX} are allowed",
                self.candidates.len()
            ));
        }
        if self
            .propensity
            .is_some_and(|share| !(share > 0.0 && share <= 1.0))
        {
            return wrong("propensity must be above 0 and at most 1".to_owned());
        }
        for candidate in &self.candidates {
            let id = &candidate.id;
            if id.is_empty() || id.len() > ID_BYTES_MAX || id.chars().any(is_unprintable) {
                return wrong(format!(
                    "candidates.id must be printable text of 1 to {ID_BYTES_MAX} bytes"
                ));
            }
            if candidate
                .propensity
                .is_some_and(|share| !(0.0..=1.0).contains(&share))
            {
                return wrong("candidates.propensity must be from 0 to 1".to_owned());
            }
        }
        Ok(())
    }

    /// The digest of everything that makes this request what it is. The trace is left out: the same decision sent
    /// again under another trace is still the same decision.
    pub fn digest(&self) -> Digest {
        // A request is plain data with text keys, for which writing has no failure.
        let text = if self.trace_id.is_none() && self.traceparent.is_none() && self.tracestate.is_none() {
            canonical::of(self)
        } else {
            canonical::of(&Self {
                trace_id: None,
                traceparent: None,
                tracestate: None,
                ..self.clone()
            })
        };
        Digest::of(text.unwrap_or_default().as_bytes())
    }

    /// The trace that the request names, if it names one.
    pub fn trace(&self) -> Option<TraceId> {
        let parent = || TraceId::new(self.traceparent.as_ref()?.trace()).ok();
        self.trace_id.clone().or_else(parent)
    }

    /// The action's place in the trace that the planner sent; `None` if it sent none, or names another trace.
    pub fn trace_context(&self, trace: &TraceId) -> Option<TraceContext> {
        let came = self.traceparent.as_ref()?;
        if came.trace() != trace.as_str() {
            return None;
        }
        Some(TraceContext {
            traceparent: TraceParent::of_action(trace, &self.action_id, Some(came))?,
            parent_id: came.span().to_owned(),
            tracestate: self.tracestate.clone(),
        })
    }

    /// The digest of the parameters alone.
    pub fn params_digest(&self) -> Digest {
        canonical::digest(&self.params)
    }
}

fn malformed(error: JsonInvalid) -> Failure {
    Failure::new(Code::Malformed, Phase::Accept, error.to_string())
}

fn out_of_bounds(name: &str, value: u64, min: u64, max: u64) -> Failure {
    Failure::new(
        Code::Malformed,
        Phase::Accept,
        format!("{name} is {value}; it must be from {min} to {max}"),
    )
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
            (
                "dry_run",
                json!("no"),
                "dry_run: invalid type: string \"no\", expected a boolean",
            ),
            (
                "qos",
                json!({ "timeout_ms": 0 }),
                "qos.timeout_ms is 0; it must be from 1 to 600000",
            ),
            (
                "qos",
                json!({ "max_retries": 11 }),
                "qos.max_retries is 11; it must be from 0 to 10",
            ),
            ("qos", json!({ "timeout": 5 }), "unknown field `timeout`"),
            ("policy_ctx", json!({ "time": "yesterday" }), "policy_ctx.time: "),
            (
                "policy_ctx",
                json!({ "actor": "" }),
                "policy_ctx.actor must be printable text",
            ),
            ("propensity", json!(0), "propensity must be above 0"),
            ("propensity", json!(1.5), "propensity must be above 0"),
            (
                "candidates",
                json!([{ "id": "a", "propensity": -0.1 }]),
                "candidates.propensity must be from 0 to 1",
            ),
            (
                "candidates",
                json!([{ "id": "" }]),
                "candidates.id must be printable",
            ),
            (
                "candidates",
                json!(vec![json!({ "id": "a" }); CANDIDATES_MAX + 1]),
                "candidates; at most",
            ),
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
    fn numbers_that_are_not_exact_have_no_digest_to_share() {
        let with = |number: &str| {
            let request = minimal()
                .to_string()
                .replace('}', &format!(r#","params":{{"n":{number}}}}}"#));
            ActionRequest::parse(request.as_bytes())
        };
        for number in [
            "18446744073709551616",
            "18446744073709551617",
            "1152921504606846976.0",
            "1152921504606847000",
        ] {
            let failure = with(number).unwrap_err();
            assert_eq!(failure.code, Code::Malformed);
            assert!(failure.message.starts_with("params.n: "), "{}", failure.message);
        }
        let text = |number: &str| with(&format!("\"{number}\"")).unwrap().digest();
        assert_ne!(text("18446744073709551616"), text("18446744073709551617"));
        assert_eq!(with("1").unwrap(), with("1.0").unwrap());
        assert_ne!(with("1").unwrap().digest(), with("1.5").unwrap().digest());
        // What a program hands in without a text is held to the same.
        let mut request = with("1").unwrap();
        request
            .params
            .insert("deep".to_owned(), json!([{ "n": 1_u64 << 60 }]));
        let failure = request.check().unwrap_err();
        assert!(
            failure.message.starts_with("params.deep.0.n: "),
            "{}",
            failure.message
        );
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
}
