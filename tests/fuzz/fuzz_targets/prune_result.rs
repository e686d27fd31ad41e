//! Whatever a tool answers: what is stored is small and JSON.
#![no_main]

use effectd_policy::prune_to;
use serde_json::Value;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    const BYTES_MAX: usize = 256;
    let Ok(value) = serde_json::from_slice::<Value>(bytes) else { return };
    let small = value.to_string().len() <= BYTES_MAX;
    let pruned = prune_to(value.clone(), BYTES_MAX);
    let text = pruned.to_string();
    assert!(text.len() <= BYTES_MAX, "{} bytes", text.len());
    assert_eq!(serde_json::from_str::<Value>(&text).unwrap(), pruned);
    assert_eq!(small, pruned == value);
});
