//! The program `effectd`.

use std::process::ExitCode;

/// Actions make many small allocations in many threads, which cost the C library's allocator a quarter of the throughput.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    effectd::init(&[]);
    effectd::cli::main()
}
