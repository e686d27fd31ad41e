//! Any patch on any file: read or refused, inside the space, and an applied patch can be inverted.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: (&[u8], &[u8])| {
    effectd_adapters::files::fuzz::patch(input.0, input.1);
});
