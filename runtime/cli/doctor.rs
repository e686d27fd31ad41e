//! `effectd doctor`: what this host can enforce.

use effectd_sandbox::SandboxConfig;
use effectd_sandbox::doctor::examine;

use super::output::{Form, for_programs, line};
use super::{Common, complain};
use crate::exit::Exit;

/// Attack a sandbox of one's own, and tell what this host can enforce
///
/// Every line is proved by trying it in a real child. The exit code is 0 if effectd may serve here, otherwise 69.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  effectd doctor")]
pub(super) struct Doctor {
    /// How the report is shown
    #[arg(long, short, value_enum, default_value = "table", value_name = "FORM")]
    output: Form,
}

impl Doctor {
    pub(super) fn main(self, _: &Common) -> Exit {
        let program = match std::env::current_exe() {
            Ok(program) => program,
            Err(error) => {
                complain(&format!("this program cannot be found on disk: {error}"));
                return Exit::Unavailable;
            }
        };
        let report = examine(&SandboxConfig::new(program), &std::env::temp_dir());
        if !for_programs(self.output, &report) {
            line(&report.to_string());
        }
        if report.may_serve() {
            Exit::Done
        } else {
            Exit::Unavailable
        }
    }
}
