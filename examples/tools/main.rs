//! effectd with a tool of its own: the whole program, and `text.sort_lines` beside the tools that effectd brings.
//!
//! How to try it stands in `examples/tools/README.md`.

mod sort_lines;

use std::process::ExitCode;

use sort_lines::SortLines;

fn main() -> ExitCode {
    // First of all: where the sandbox has started this program, this does not return, and the tool runs there.
    effectd::init_with(&[&SortLines]);
    effectd::cli::main()
}
