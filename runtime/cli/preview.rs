//! `effectd preview`: what a request would do, without doing it.

use std::path::PathBuf;

use effectd_actors::preview::Preview as Shown;
use effectd_gateway::views::approvals::PreviewView;

use super::{CliError, Common, Depth, approval_view, post, print_json, run};
use crate::exit::Exit;

/// Show what a request would do: the policy's decision, and what would change
///
/// If the policy does not refuse it, its tool runs on a copy of the files that it may touch, in a sandbox. Nothing is changed and
/// nothing is recorded. The exit code is 0 if the request would be carried out, 4 if a person would be asked, 3 if it would be denied,
/// 5 if quarantined, and 1 if the tool would fail.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  effectd preview examples/write_note.json\n  planner | effectd preview - -o json"
)]
pub(super) struct Preview {
    /// The request, in JSON; `-` reads standard input
    #[arg(value_name = "FILE")]
    request: PathBuf,
}

impl Preview {
    pub(super) async fn main(self, common: &Common) -> Result<Exit, CliError> {
        let request = run::read(&self.request)?;
        let view: PreviewView = post(common, Depth::Sandbox, "/v1/preview", &request).await?;
        if !print_json(common.output, &view) {
            approval_view::print(&approval_view::of_request(&view));
        }
        Ok(match (view.verdict.as_str(), &view.preview) {
            ("deny", _) => Exit::Denied,
            ("quarantine", _) => Exit::Quarantined,
            (_, Shown::WouldFail(failure)) => Exit::of(failure.code.outcome()),
            ("needs_approval", Shown::Shown(_) | Shown::Request(_) | Shown::Unavailable(_)) => Exit::Held,
            (_, Shown::Shown(_) | Shown::Request(_) | Shown::Unavailable(_)) => Exit::Done,
        })
    }
}
