//! The program `effectd`.

use std::process::ExitCode;

fn main() -> ExitCode {
    effectd::init(&[]);
    effectd::cli::main()
}
