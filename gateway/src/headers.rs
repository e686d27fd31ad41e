//! The headers that say something about an action: its idempotency key, its trace, and whether somebody sits there.

use axum::http::HeaderMap;
use effectd_contracts::{ActionRequest, IdempotencyKey, TraceId};

use crate::problem::{Kind, Problem};

const IDEMPOTENCY_KEY: &str = "idempotency-key";
const TRACEPARENT: &str = "traceparent";
const INTERACTIVE: &str = "effectd-interactive";

/// Whether somebody sits at a terminal and waits. Then a person who must be asked is expected within minutes.
pub(crate) fn interactive(headers: &HeaderMap) -> bool {
    headers.get(INTERACTIVE).is_some_and(|value| value == "true")
}

/// Puts what the headers say into the request. The body wins where both say the same thing; where they differ about the
/// key, nobody knows what was meant. From here on the request has a trace.
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
    let trace = request
        .trace_id
        .get_or_insert_with(|| traceparent(headers).unwrap_or_else(TraceId::fresh));
    Ok(trace.clone())
}

/// The key, bare or as a quoted string, which is what the standard's draft asks for.
fn idempotency_key(headers: &HeaderMap) -> Result<Option<IdempotencyKey>, Problem> {
    let mut values = headers.get_all(IDEMPOTENCY_KEY).iter();
    let Some(value) = values.next() else {
        return Ok(None);
    };
    let invalid = |why: &str| Problem::of(Kind::HeaderInvalid, format!("Idempotency-Key {why}"));
    if values.next().is_some() {
        return Err(invalid("is there more than once"));
    }
    let text = value
        .to_str()
        .map_err(|_| invalid("must be printable ASCII"))?
        .trim();
    let bare = match text.strip_prefix('"') {
        Some(rest) => rest
            .strip_suffix('"')
            .filter(|inner| !inner.contains(['"', '\\']))
            .ok_or_else(|| invalid("begins with a quote and does not end with one"))?,
        None => text,
    };
    IdempotencyKey::new(bare)
        .map(Some)
        .map_err(|error| invalid(&format!("cannot be used: {error}")))
}

/// The trace of a W3C `traceparent`. One that is malformed is as good as none, as the standard demands.
fn traceparent(headers: &HeaderMap) -> Option<TraceId> {
    let mut values = headers.get_all(TRACEPARENT).iter();
    let value = values.next()?.to_str().ok()?;
    if values.next().is_some() {
        return None;
    }
    let hex = |text: &str, length: usize| {
        text.len() == length
            && text
                .bytes()
                .all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b))
    };
    let zero = |text: &str| text.bytes().all(|b| b == b'0');
    let parts: Vec<&str> = value.splitn(5, '-').collect();
    let &[version, trace, parent, flags, ref rest @ ..] = parts.as_slice() else {
        return None;
    };
    let well_formed = hex(version, 2) && hex(trace, 32) && hex(parent, 16) && hex(flags, 2);
    // Later versions may add fields; version 00 has none, and ff is forbidden.
    let version_fits = version != "ff" && (version != "00" || rest.is_empty());
    if !well_formed || !version_fits || zero(trace) || zero(parent) {
        return None;
    }
    TraceId::new(trace).ok()
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
            .map(|(name, value)| {
                (
                    HeaderName::from_static(name),
                    HeaderValue::from_str(value).unwrap(),
                )
            })
            .collect()
    }

    #[test]
    fn a_trace_of_the_standard_is_taken_and_a_malformed_one_is_not() {
        let trace = "0af7651916cd43dd8448eb211c80319c";
        let good = [
            format!("00-{trace}-b7ad6b7169203331-01"),
            format!("01-{trace}-b7ad6b7169203331-01-more"),
        ];
        for value in &good {
            let mut request = request();
            let found = apply(&with(&[("traceparent", value)]), &mut request).unwrap();
            assert_eq!(
                (found.as_str(), request.trace_id.as_ref().unwrap()),
                (trace, &found)
            );
        }
        let bad = [
            format!("00-{trace}-b7ad6b7169203331-01-more"),
            format!("ff-{trace}-b7ad6b7169203331-01"),
            format!("00-{}-b7ad6b7169203331-01", "0".repeat(32)),
            format!("00-{}-b7ad6b7169203331-01", trace.to_uppercase()),
            "nonsense".to_owned(),
        ];
        for value in &bad {
            let found = apply(&with(&[("traceparent", value)]), &mut request()).unwrap();
            assert_ne!(found.as_str(), trace, "{value}");
        }
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
            assert!(
                apply(&with(&[("idempotency-key", bad)]), &mut request()).is_err(),
                "{bad}"
            );
        }
        let mut twice = with(&[("idempotency-key", "a")]);
        twice.append("idempotency-key", HeaderValue::from_static("b"));
        assert!(apply(&twice, &mut request()).is_err());
    }
}
