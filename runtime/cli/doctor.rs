//! `effectd doctor`: what this host can enforce.

use std::path::Path;

use effectd_policy::Overlay;
use effectd_sandbox::SandboxConfig;
use effectd_sandbox::doctor::{Finding, Verdict, examine};

use super::backend::client_state;
use super::output::{Form, for_programs, line};
use super::{Common, complain};
use crate::exit::Exit;
use crate::spaces::Roots;
use crate::state::State;

/// Attack a sandbox of one's own, and tell what this host can enforce
///
/// Every line is proved by trying it in a real child. Where there is a state directory, the roots of its spaces are looked at as well. The
/// exit code is 0 if effectd may serve here, otherwise 69; a space that cannot be used does not keep it from serving.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  effectd doctor")]
pub(super) struct Doctor {
    /// How the report is shown
    #[arg(long, short, value_enum, default_value = "table", value_name = "FORM")]
    output: Form,
}

impl Doctor {
    pub(super) fn main(self, common: &Common) -> Exit {
        let program = match std::env::current_exe() {
            Ok(program) => program,
            Err(error) => {
                complain(&format!("this program cannot be found on disk: {error}"));
                return Exit::Unavailable;
            }
        };
        let mut report = examine(&SandboxConfig::new(program), &std::env::temp_dir());
        report.findings.extend(roots(&client_state(common)));
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

/// What stands at the roots of the spaces. A state that is not there, or not to be read, has nothing to be said about.
fn roots(state: &Path) -> Vec<Finding> {
    let Ok(state) = State::existing(state) else {
        return Vec::new();
    };
    let found = state.load_policy(&Overlay::default()).and_then(|policy| {
        let roots = Roots::of(&state)?;
        Ok(roots.survey(&policy, &roots.pins()))
    });
    let finding = |verdict, what| Finding {
        promise: "space roots",
        verdict,
        what,
        fix: None,
        required: false,
    };
    let found = match found {
        Ok(found) => found,
        Err(error) => return vec![finding(Verdict::Missing, error.to_string())],
    };
    let unusable = found
        .unusable
        .iter()
        .map(|(space, error)| format!("{space}: {error}"));
    let changed = found.changes.iter().map(|change| {
        let space = &change.space_id;
        format!("{space}: its root is another folder than before; `effectd policy reload` shows the change and takes it over")
    });
    let wrong = unusable
        .chain(changed)
        .map(|what| finding(Verdict::Missing, what));
    let mut findings: Vec<_> = wrong.collect();
    if findings.is_empty() {
        let what = "nobody else can replace them, and each is the folder that it was";
        findings.push(finding(Verdict::Enforced, what.to_owned()));
    }
    findings
}
