//! Whatever a person wrote: redaction ends, keeps the text valid, and finds nothing more the second time.
#![no_main]

use effectd_policy::redact::personal::redact_text;

libfuzzer_sys::fuzz_target!(|text: &str| {
    if let Some(redacted) = redact_text(text) {
        assert!(redacted.emails + redacted.phones > 0);
        assert!(redact_text(&redacted.text).is_none(), "{:?}", redacted.text);
    }
});
