//! Whatever is stored or logged: no value under a secret's name survives, and redacting twice changes nothing.
#![no_main]

use effectd_policy::redact_secrets;
use serde_json::Value;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let Ok(mut value) = serde_json::from_slice::<Value>(bytes) else { return };
    redact_secrets(&mut value);
    let once = value.clone();
    redact_secrets(&mut value);
    assert_eq!(value, once);
});
