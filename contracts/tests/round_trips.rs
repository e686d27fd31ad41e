//! Requests and failures survive being written and parsed again.
#![allow(clippy::unwrap_used)]

use effectd_contracts::json::INTEGER_MAX;
use effectd_contracts::limits::{RETRIES_MAX, TIMEOUT_MS_MAX};
use effectd_contracts::{
    ActionRequest, Candidate, Code, Failure, Feature, Gate, Phase, PolicyCtx, Qos, Timestamp, TraceParent,
    TraceState, canonical,
};
use proptest::prelude::*;
use serde_json::{Map, Value};

fn json_value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        (-INTEGER_MAX..=INTEGER_MAX).prop_map(Value::from),
        // A whole number is read as an integer, and beyond this there are only whole ones.
        (-4.5e15..4.5e15_f64).prop_filter("whole", |number| number.fract() != 0.0).prop_map(Value::from),
        prop::num::f64::SUBNORMAL.prop_map(Value::from),
        "\\PC{0,20}".prop_map(Value::from),
    ];
    leaf.prop_recursive(4, 32, 6, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..6).prop_map(Value::from),
            prop::collection::btree_map("\\PC{0,8}", inner, 0..6)
                .prop_map(|m| Value::Object(Map::from_iter(m))),
        ]
    })
}

fn id() -> impl Strategy<Value = String> {
    "[!-~]([ -~]{0,40}[!-~])?"
}

fn qos() -> impl Strategy<Value = Qos> {
    (prop::option::of(1..=TIMEOUT_MS_MAX), prop::option::of(0..=RETRIES_MAX), prop::option::of(id()))
        .prop_map(|(timeout_ms, max_retries, circuit_breaker_key)| Qos {
            timeout_ms,
            max_retries,
            circuit_breaker_key,
        })
}

fn policy_ctx() -> impl Strategy<Value = PolicyCtx> {
    (prop::option::of(id()), prop::option::of(id()), prop::option::of(-62_135_596_800..253_402_207_200i64))
        .prop_map(|(actor, device, second)| PolicyCtx {
            actor,
            device,
            time: second.map(|s| Timestamp::from_second(s).unwrap()),
        })
}

fn feature() -> impl Strategy<Value = Feature> {
    prop_oneof![(-9e15..9e15_f64).prop_map(Feature::Number), "[A-Za-z0-9_.-]{1,32}".prop_map(Feature::Word),]
}

prop_compose! {
    fn request()(
        ids in [id(), id(), id(), id()],
        params in prop::collection::btree_map("\\PC{0,8}", json_value(), 0..6),
        qos in qos(),
        policy_ctx in policy_ctx(),
        key in prop::option::of(id()),
        dry_run: bool,
        trace in prop::option::of(id()),
        traceparent in prop::option::of((1_u128.., 1_u64..)),
        tracestate in prop::option::of("[a-z]{1,9}=[a-z ]{0,9}[a-z](, ?[a-z]{1,9}=[!-+./-<>-~]{1,9}){0,4}"),
        propensity in prop::option::of(0.001..=1.0_f64),
        candidates in prop::collection::vec((id(), prop::option::of(0.0..=1.0_f64)), 0..4),
        context in prop::collection::btree_map("[A-Za-z0-9_.-]{1,32}", feature(), 0..4),
    ) -> ActionRequest {
        let [action_id, subject_id, space_id, tool_id] = ids;
        ActionRequest {
            action_id: action_id.parse().unwrap(),
            subject_id: subject_id.parse().unwrap(),
            space_id: space_id.parse().unwrap(),
            tool_id: tool_id.parse().unwrap(),
            params: Map::from_iter(params),
            qos,
            policy_ctx,
            idempotency_key: key.map(|k| k.parse().unwrap()),
            dry_run,
            candidates: candidates.into_iter().map(|(id, propensity)| Candidate { id, propensity }).collect(),
            rationale: None,
            propensity,
            chosen: None,
            context,
            trace_id: trace.map(|t| t.parse().unwrap()),
            traceparent: traceparent.map(|(t, s)| TraceParent::new(&format!("00-{t:032x}-{s:016x}-01")).unwrap()),
            tracestate: tracestate.map(|s| TraceState::new(&s).unwrap()),
        }
    }
}

proptest! {
    #[test]
    fn requests_survive_json(request in request()) {
        let text = serde_json::to_string(&request).unwrap();
        let back = ActionRequest::parse(text.as_bytes()).unwrap();
        prop_assert_eq!(&back, &request);
        prop_assert_eq!(back.digest(), request.digest());
        prop_assert_eq!(canonical::of(&back).unwrap(), canonical::of(&request).unwrap());
    }

    #[test]
    fn failures_survive_json(code in prop::sample::select(Code::ALL), message in "\\PC{0,60}", gate in prop::option::of(prop::sample::select(&Gate::ALL[..]))) {
        let mut failure = Failure::new(code, Phase::Gate, message);
        failure.gate = gate;
        let text = serde_json::to_string(&failure).unwrap();
        prop_assert_eq!(serde_json::from_str::<Failure>(&text).unwrap(), failure);
    }

    #[test]
    fn garbage_is_a_malformed_request_and_never_a_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        if let Err(failure) = ActionRequest::parse(&bytes) {
            prop_assert_eq!(failure.code, Code::Malformed);
        }
    }
}
