//! Whatever bytes a planner sends: a request that survives being written again, or a clear refusal.
#![no_main]

use effectd_contracts::{ActionRequest, Code};

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    match ActionRequest::parse(bytes) {
        Ok(request) => {
            let text = serde_json::to_vec(&request).unwrap();
            let back = ActionRequest::parse(&text).unwrap();
            assert_eq!(back, request);
            assert_eq!(back.digest(), request.digest());
        }
        Err(failure) => assert_eq!(failure.code, Code::Malformed),
    }
});
