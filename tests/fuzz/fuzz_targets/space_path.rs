//! Any path: refused, or inside the space and the same when it is read again.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| {
    effectd_adapters::files::fuzz::path(input);
});
