//! Actions whose client goes away. In MCP a closed connection is a cancellation, but it may also be a proxy that lost patience. So it
//! withdraws only what has not begun and waits for nobody: a person who looks at a question keeps it.

use std::pin::Pin;
use std::sync::Arc;

use effectd_actors::approvals::repository::hold_of;
use effectd_actors::{Decider, Incoming, Withdrawal};
use effectd_contracts::ActionId;
use tokio::runtime::Handle;

use crate::app::App;
use crate::host::Stage;
use crate::limits::MCP_WAIT_MAX;
use crate::peer::Peer;
use crate::problem::Problem;
use crate::routes::actions::{self, Reached};

type Execution = Pin<Box<dyn Future<Output = Result<Reached, Problem>> + Send>>;

/// An action that runs for a client. Dropped before its end, it is given up.
struct Running {
    execution: Option<Execution>,
    app: Arc<App>,
    action: ActionId,
    by: Decider,
}

/// Executes an action as `/v1/actions?wait` does, and answers before the client loses patience: a call without an answer is repeated.
pub(super) async fn execute(
    app: &Arc<App>,
    peer: &Peer,
    incoming: Incoming,
    bytes: u64,
) -> Result<Reached, Problem> {
    let (action, by) = (incoming.request.action_id.clone(), peer.decider());
    let execution = {
        let (app, peer, wait) = (app.clone(), peer.clone(), MCP_WAIT_MAX.min(app.wait_time(None)));
        Box::pin(async move { actions::execute(&app, &peer, incoming, bytes, wait).await }) as Execution
    };
    let mut running = Running { execution: None, app: app.clone(), action, by };
    let reached = running.execution.insert(execution).await;
    running.execution = None;
    reached
}

impl Drop for Running {
    fn drop(&mut self) {
        let (Some(execution), Ok(runtime)) = (self.execution.take(), Handle::try_current()) else { return };
        // What a closing daemon interrupts goes on after its next start.
        if *self.app.stage.borrow() != Stage::Open {
            return;
        }
        let (app, action, by) = (self.app.clone(), self.action.clone(), self.by.clone());
        runtime.spawn(async move {
            withdraw(&app, &action, &by).await;
            // Until then, the pipeline knows the action by who waits for it.
            drop(execution);
        });
    }
}

async fn withdraw(app: &App, action: &ActionId, by: &Decider) {
    // If nobody can say whether it waits for a person, it goes on.
    let is_free = matches!(hold_of(app.store(), action), Ok(None));
    let is_withdrawn = match app.pipeline() {
        // What has begun or ended meanwhile has, or gets, its own receipt.
        Ok(pipeline) if is_free => matches!(pipeline.cancel(action, by).await, Ok(Withdrawal::Now(_))),
        Ok(_) | Err(_) => false,
    };
    tracing::debug!(%action, is_withdrawn, "the client of an action went away");
}
