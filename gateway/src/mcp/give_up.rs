//! Actions whose client goes away. In MCP a closed connection is a cancellation, but it may also be a proxy that lost patience. So it
//! withdraws only what has not begun and waits for nobody: a person who looks at a question keeps it.

use std::sync::Arc;

use effectd_actors::{Incoming, Withdrawal};
use tokio::sync::oneshot;
use tracing::Instrument;

use crate::app::App;
use crate::host::Stage;
use crate::limits::MCP_WAIT_MAX;
use crate::peer::Peer;
use crate::problem::{Kind, Problem};
use crate::routes::actions::{self, Reached};

/// Executes an action as `/v1/actions?wait` does, and answers before the client loses patience: a call without an answer is repeated.
/// If this is dropped first, the action is given up.
pub(super) async fn execute(
    app: &Arc<App>,
    peer: &Peer,
    incoming: Incoming,
    bytes: u64,
) -> Result<Reached, Problem> {
    let (app, peer, wait) = (app.clone(), peer.clone(), MCP_WAIT_MAX.min(app.wait_time(None)));
    let (mut answer, reached) = oneshot::channel();
    let work = async move {
        let action = incoming.request.action_id.clone();
        // Until it is given up, the pipeline knows the action by who waits for it.
        let mut execution = std::pin::pin!(actions::execute(&app, &peer, incoming, bytes, wait));
        tokio::select! {
            reached = &mut execution => {
                let _ = answer.send(reached);
                return;
            }
            () = answer.closed() => {}
        }
        // What a closing daemon interrupts goes on after its next start.
        let pipeline = app.pipeline().ok().filter(|_| *app.stage.borrow() == Stage::Open);
        let Some(pipeline) = pipeline else { return };
        // What has begun or ended meanwhile has, or gets, its own receipt.
        let given_up = pipeline.give_up(&action, &peer.decider()).await;
        let is_withdrawn = matches!(given_up, Ok(Some(Withdrawal::Now(_))));
        tracing::debug!(%action, is_withdrawn, "the client of an action went away");
    };
    tokio::spawn(work.in_current_span());
    reached.await.unwrap_or_else(|_| Err(Problem::of(Kind::Internal, "the action was interrupted")))
}
