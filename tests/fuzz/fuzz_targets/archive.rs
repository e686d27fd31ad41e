//! Any bytes as an archive, tar.gz or zip: read or refused, and no more is unpacked than allowed.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| {
    effectd_adapters::files::fuzz::archive(input);
    for head in [&b"PK\x03\x04"[..], &[0x1f, 0x8b, 8, 0]] {
        effectd_adapters::files::fuzz::archive(&[head, input].concat());
    }
});
