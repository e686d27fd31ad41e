//! `effectd doctor`: what this machine can enforce.

use std::path::Path;

use effectd_policy::Overlay;
use effectd_sandbox::SandboxConfig;
use effectd_sandbox::doctor::{Finding, Verdict, examine};

use super::{CliError, Common, line, print_json, state_dir_of};
use crate::error::{Error, chain};
use crate::exit::Exit;
use crate::state::State;
use crate::state::spaces::Roots;
use crate::tool_registry;

/// Attack a sandbox, and show what this machine can enforce
///
/// Every line is tested in a real child. If there is a state directory, the roots of its spaces are checked, too. The exit code is 0 if
/// effectd can run here, otherwise 69; an unusable space does not prevent that.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  effectd doctor")]
pub(super) struct Doctor {}

impl Doctor {
    pub(super) fn main(self, common: &Common) -> Result<Exit, CliError> {
        let program = match std::env::current_exe() {
            Ok(program) => program,
            Err(error) => {
                let why = format!("this program cannot be found on disk: {error}");
                return Err(CliError::request(why).exiting(Exit::Unavailable));
            }
        };
        let mut report = examine(&SandboxConfig::new(program), &std::env::temp_dir());
        report.findings.extend(roots(&state_dir_of(common)));
        if !print_json(common.output, &report) {
            line(&report.to_string());
        }
        Ok(if report.may_serve() { Exit::Done } else { Exit::Unavailable })
    }
}

/// Findings about the roots of spaces. Empty if there is no readable state.
fn roots(state: &Path) -> Vec<Finding> {
    let Ok(state) = State::existing(state) else {
        return Vec::new();
    };
    let registry = tool_registry::registry(tool_registry::own()).map_err(Error::from);
    let found = registry.and_then(|registry| state.load_policy(&Overlay::default(), &registry));
    let found = found.and_then(|policy| {
        let roots = Roots::of(&state)?;
        Ok(roots.survey(&policy, &roots.pins()))
    });
    let finding =
        |verdict, what| Finding { promise: "space roots", verdict, what, fix: None, required: false };
    let found = match found {
        Ok(found) => found,
        Err(error) => return vec![finding(Verdict::Missing, chain(&error))],
    };
    let unusable = found.unusable.iter().map(|(space, error)| format!("{space}: {error}"));
    let changed = found.changes.iter().map(|change| {
        let space = &change.space_id;
        format!("{space}: its root is another folder than before; `effectd policy reload` shows the change and accepts it")
    });
    let wrong = unusable.chain(changed).map(|what| finding(Verdict::Missing, what));
    let mut findings: Vec<_> = wrong.collect();
    if findings.is_empty() {
        let what = "nobody else can replace them, and none has changed";
        findings.push(finding(Verdict::Enforced, what.to_owned()));
    }
    findings
}
