//! The program `effectd`.

use std::process::ExitCode;

#[global_allocator]
static MEMORY: effectd::Memory = effectd::Memory;

fn main() -> ExitCode {
    effectd::init();
    effectd::cli::main()
}
