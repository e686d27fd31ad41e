//! Any bytes as a tar, compressed without a fault: what is wrong lies within.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| effectd_adapters::files::fuzz::tar(input));
