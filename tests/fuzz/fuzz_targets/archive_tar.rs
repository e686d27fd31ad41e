//! Any bytes as a tar, correctly compressed: every fault is in the tar itself.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| effectd_adapters::files::fuzz::tar(input));
