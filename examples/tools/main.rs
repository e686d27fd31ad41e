//! The program `effectd` with a tool of its own, `text.sort_lines`. `examples/tools/README.md` says how to try it.

mod sort_lines;

use std::process::ExitCode;

use sort_lines::SortLines;

fn main() -> ExitCode {
    // First in `main`: in a process that the sandbox started, this does not return, and the tool runs there.
    effectd::init(&[&SortLines]);
    effectd::cli::main()
}
