//! The trace of the process that started this one, which OpenTelemetry passes on in the environment.

use effectd_contracts::{ActionRequest, TraceParent, TraceState};

/// Makes the request part of that trace, unless the request names one. Ignores malformed values.
pub(super) fn adopt(request: &mut ActionRequest) {
    let parent = std::env::var("TRACEPARENT").ok();
    let Some(parent) = parent.and_then(|text| TraceParent::new(&text).ok()) else {
        return;
    };
    if request.trace_id.is_none() && request.traceparent.is_none() {
        let state = std::env::var("TRACESTATE").ok();
        request.traceparent = Some(parent);
        request.tracestate = state.and_then(|text| TraceState::new(&text).ok());
    }
}
