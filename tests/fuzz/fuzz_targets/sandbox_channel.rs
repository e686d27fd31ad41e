//! Whatever is said on the channel between runtime, zygote and child, in any direction: understood exactly, or not at all.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| effectd_sandbox::testing::read_wire(bytes));
