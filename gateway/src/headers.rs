//! The headers of an action: its idempotency key, its trace context, and whether a person waits at a terminal. And whether a page of
//! another origin made the request.

use axum::http::{HeaderMap, HeaderValue};
use effectd_contracts::{
    ActionId, ActionRequest, IdempotencyKey, Receipt, TraceContext, TraceId, TraceParent, TraceState,
};

use crate::problem::{Kind, Problem};

pub(crate) const IDEMPOTENCY_KEY: &str = "idempotency-key";
const TRACEPARENT: &str = "traceparent";
const TRACESTATE: &str = "tracestate";
pub(crate) const INTERACTIVE: &str = "effectd-interactive";
pub(crate) const FETCH_SITE: &str = "sec-fetch-site";

/// Whether a person waits at a terminal: an approval is then expected within minutes.
pub(crate) fn interactive(headers: &HeaderMap) -> bool {
    headers.get(INTERACTIVE).is_some_and(|value| value == "true")
}

/// Whether a page of another origin led here, be it of another port of this host, as a browser says.
pub(crate) fn is_from_elsewhere(headers: &HeaderMap) -> bool {
    !headers.get_all(FETCH_SITE).iter().all(|site| site == "same-origin" || site == "none")
}

/// Copies the headers into the request, and gives it a trace id if it has none. The body's trace wins over the header's; two
/// different idempotency keys are a problem.
pub(crate) fn apply(headers: &HeaderMap, request: &mut ActionRequest) -> Result<TraceId, Problem> {
    if let Some(key) = idempotency_key(headers)? {
        match &request.idempotency_key {
            None => request.idempotency_key = Some(key),
            Some(same) if *same == key => {}
            Some(_) => {
                return Err(Problem::of(
                    Kind::HeaderInvalid,
                    "Idempotency-Key and the body's idempotency_key differ; send one of them",
                )
                .about(&request.action_id));
            }
        }
    }
    if request.traceparent.is_none()
        && let Some((parent, state)) = trace_context(headers)
    {
        request.traceparent = Some(parent);
        request.tracestate = state;
    }
    let trace = request.trace().unwrap_or_else(TraceId::fresh);
    request.trace_id = Some(trace.clone());
    Ok(trace)
}

/// The key, bare or as a quoted string (the IETF draft asks for the latter).
fn idempotency_key(headers: &HeaderMap) -> Result<Option<IdempotencyKey>, Problem> {
    let mut values = headers.get_all(IDEMPOTENCY_KEY).iter();
    let Some(value) = values.next() else {
        return Ok(None);
    };
    let invalid = |why: &str| Problem::of(Kind::HeaderInvalid, format!("Idempotency-Key {why}"));
    if values.next().is_some() {
        return Err(invalid("appears more than once"));
    }
    let text = value.to_str().map_err(|_| invalid("must be printable ASCII"))?.trim();
    let bare = match text.strip_prefix('"') {
        Some(rest) => rest
            .strip_suffix('"')
            .filter(|inner| !inner.contains(['"', '\\']))
            .ok_or_else(|| invalid("begins with a quote and does not end with one"))?,
        None => text,
    };
    IdempotencyKey::new(bare).map(Some).map_err(|error| invalid(&format!("cannot be used: {error}")))
}

/// The planner's span by W3C Trace Context. As the standard demands, a malformed `traceparent` is ignored, and so is a
/// `tracestate` without a `traceparent`.
fn trace_context(headers: &HeaderMap) -> Option<(TraceParent, Option<TraceState>)> {
    let mut values = headers.get_all(TRACEPARENT).iter();
    let parent = TraceParent::new(values.next()?.to_str().ok()?).ok()?;
    if values.next().is_some() {
        return None;
    }
    let states = headers.get_all(TRACESTATE).iter().map(|value| value.to_str());
    let state = states.collect::<Result<Vec<_>, _>>().ok();
    let state = state.and_then(|states| TraceState::new(&states.join(",")).ok());
    Some((parent, state))
}

/// The trace context of an answer.
#[derive(Debug, Clone)]
pub(crate) struct AnswerTrace {
    pub(crate) trace: TraceId,
    span: Option<TraceParent>,
    state: Option<TraceState>,
}

impl AnswerTrace {
    /// For a request with the trace that [`apply`] returned.
    pub(crate) fn of_request(request: &ActionRequest, trace: TraceId) -> Self {
        let context = request.trace_context(&trace);
        Self::new(trace, &request.action_id, context)
    }

    pub(crate) fn of_receipt(receipt: &Receipt) -> Self {
        let context = receipt.trace_context.clone();
        Self::new(receipt.trace_id.clone(), &receipt.action_id, context)
    }

    fn new(trace: TraceId, action: &ActionId, context: Option<TraceContext>) -> Self {
        match context {
            Some(context) => Self { trace, span: Some(context.traceparent), state: context.tracestate },
            None => Self { span: TraceParent::of_action(&trace, action, None), trace, state: None },
        }
    }

    /// Writes `traceparent` and `tracestate`, if the trace id fits the standard.
    pub(crate) fn write_to(&self, headers: &mut HeaderMap) {
        let values = [
            (TRACEPARENT, self.span.as_ref().map(TraceParent::as_str)),
            (TRACESTATE, self.state.as_ref().map(TraceState::as_str)),
        ];
        for (name, value) in values {
            if let Some(Ok(value)) = value.map(HeaderValue::from_str) {
                headers.insert(name, value);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use axum::http::{HeaderName, HeaderValue};

    fn request() -> ActionRequest {
        ActionRequest::parse(
            br#"{"action_id":"a","subject_id":"s","space_id":"shared:h","tool_id":"files.write_text"}"#,
        )
        .unwrap()
    }

    fn with(pairs: &[(&'static str, &str)]) -> HeaderMap {
        pairs
            .iter()
            .map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_str(value).unwrap()))
            .collect()
    }

    #[test]
    fn a_trace_of_the_standard_is_taken_and_a_malformed_one_is_not() {
        let trace = "0af7651916cd43dd8448eb211c80319c";
        let good =
            [format!("00-{trace}-b7ad6b7169203331-01"), format!("01-{trace}-b7ad6b7169203331-01-more")];
        for value in &good {
            let mut request = request();
            let found = apply(&with(&[("traceparent", value)]), &mut request).unwrap();
            assert_eq!((found.as_str(), request.trace_id.as_ref().unwrap()), (trace, &found));
        }
        for value in ["nonsense", "00-00-00-00"] {
            let mut request = request();
            let pairs = [("traceparent", value), ("tracestate", "congo=1")];
            apply(&with(&pairs), &mut request).unwrap();
            assert_eq!((request.traceparent, request.tracestate), (None, None), "{value}");
        }
    }

    #[test]
    fn an_answer_hands_the_trace_on_with_the_action_as_its_span() {
        let trace = "0af7651916cd43dd8448eb211c80319c";
        let parent = format!("00-{trace}-b7ad6b7169203331-00");
        let told = |pairs: &[(&'static str, &str)], mut request: ActionRequest| {
            let mut came = with(pairs);
            came.append("tracestate", HeaderValue::from_static("rojo=2"));
            let trace = apply(&came, &mut request).unwrap();
            let mut headers = HeaderMap::new();
            AnswerTrace::of_request(&request, trace).write_to(&mut headers);
            let text = |name| headers.get(name).map(|value| value.to_str().unwrap().to_owned());
            (text(TRACEPARENT), text(TRACESTATE))
        };
        let pairs = [("traceparent", parent.as_str()), ("tracestate", "congo=1")];
        let (span, state) = told(&pairs, request());
        let span = TraceParent::new(&span.unwrap()).unwrap();
        assert_eq!((span.trace(), &span.as_str()[53..]), (trace, "00"));
        assert_ne!(span.span(), "b7ad6b7169203331");
        assert_eq!(state.as_deref(), Some("congo=1,rojo=2"));
        // Another trace in the body wins; the header's state belongs to the other trace and is dropped.
        let mut own = request();
        own.trace_id = Some(TraceId::new("1".repeat(32)).unwrap());
        let (span, state) = told(&pairs, own);
        assert!(span.unwrap().starts_with(&format!("00-{}-", "1".repeat(32))));
        assert_eq!(state, None);
        let mut own = request();
        own.trace_id = Some(TraceId::new("trace-123").unwrap());
        assert_eq!(told(&[], own), (None, None));
    }

    #[test]
    fn the_key_comes_from_header_or_body_but_not_from_both_at_odds() {
        for text in ["k-1", "\"k-1\""] {
            let mut request = request();
            apply(&with(&[("idempotency-key", text)]), &mut request).unwrap();
            assert_eq!(request.idempotency_key.unwrap().as_str(), "k-1");
        }
        let mut both = request();
        both.idempotency_key = Some(IdempotencyKey::new("k-2").unwrap());
        let refused = apply(&with(&[("idempotency-key", "k-1")]), &mut both).unwrap_err();
        assert_eq!((refused.status, refused.code.as_str()), (400, "header_invalid"));
        for bad in ["\"open", "\"a\"b\""] {
            assert!(apply(&with(&[("idempotency-key", bad)]), &mut request()).is_err(), "{bad}");
        }
        let mut twice = with(&[("idempotency-key", "a")]);
        twice.append("idempotency-key", HeaderValue::from_static("b"));
        assert!(apply(&twice, &mut request()).is_err());
    }
}
