//! `effectd preview`: what would come of a request, before anybody makes it.

use std::path::PathBuf;

use effectd_actors::preview::Preview as Shown;
use effectd_contracts::ActionRequest;
use effectd_gateway::views::approvals::PreviewView;

use super::backend::{Trouble, with_client};
use super::output::{Form, for_programs};
use super::{Common, complain, prompt, run};
use crate::exit::Exit;
use crate::runtime::Depth;

/// Tell what would come of a request: the policy's word, and what would change
///
/// If the policy does not refuse it, its tool runs on a copy of what it may touch, in a sandbox that can change nothing.
/// Nothing is done, and nothing is recorded. The exit code is 0 if it would be done, 4 if a person would be asked, 3 if it
/// would be denied, 5 if quarantined, and 1 if the tool would fail.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  effectd preview examples/write_note.json\n  planner | effectd preview - -o json"
)]
pub(super) struct Preview {
    /// The request, in JSON; `-` reads standard input
    #[arg(value_name = "FILE")]
    request: PathBuf,
    /// How the answer is shown
    #[arg(long, short, value_enum, default_value = "table", value_name = "FORM")]
    output: Form,
}

impl Preview {
    pub(super) fn main(self, common: &Common) -> Exit {
        let request = match run::read(&self.request) {
            Ok(request) => request,
            Err(what) => {
                complain(&what);
                return Exit::Usage;
            }
        };
        super::block_on(async {
            let view = ask(common, &request).await?;
            if !for_programs(self.output, &view) {
                prompt::print(&prompt::of_request(&view));
            }
            Ok(exit_of(&view))
        })
    }
}

async fn ask(common: &Common, request: &ActionRequest) -> Result<PreviewView, Trouble> {
    with_client(common, Depth::Sandbox, async |client| {
        Ok(client.post("/v1/preview", request).await?)
    })
    .await
}

fn exit_of(view: &PreviewView) -> Exit {
    match (view.verdict.as_str(), &view.preview) {
        ("deny", _) => Exit::Denied,
        ("quarantine", _) => Exit::Quarantined,
        (_, Shown::WouldFail(_)) => Exit::Failed,
        ("needs_approval", Shown::Shown(_) | Shown::Unavailable(_)) => Exit::Held,
        (_, Shown::Shown(_) | Shown::Unavailable(_)) => Exit::Done,
    }
}
