//! A program that embeds effectd: it carries out one request and submits another.
//!
//! ```sh
//! cargo run --example embed
//! ```

use effectd::contracts::{ActionId, ActionRequest};
use effectd::{Effectd, Executed};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

async fn run(request: ActionRequest) -> Result<()> {
    let folder = tempfile::tempdir()?;
    let effectd = Effectd::builder(folder.path().join(".effectd"))
        .policy_dir("policy/presets/household")
        .setting("pipeline.in_flight_max", 8)
        .start()
        .await?;
    let carried_out = carry_out(&effectd, request).await;
    // Also after an error: only this stops the pipeline and unlocks the state.
    effectd.shutdown().await;
    carried_out
}

#[expect(clippy::print_stdout, reason = "this is what the example is for")]
async fn carry_out(effectd: &Effectd, request: ActionRequest) -> Result<()> {
    // Wait for the receipt. A refusal by the policy and a failure have one, too.
    match effectd.execute(request.clone()).await? {
        Executed::Done(done) => println!("{}: {}", done.receipt.receipt_id, done.receipt.status.as_str()),
        Executed::AwaitingApproval(approval) => {
            println!("a person must decide about {}", approval.approval_id)
        }
    }

    // Or submit it: it is on disk when this returns, and ends in a receipt even after a crash. Without an idempotency key an equal
    // request is not carried out again; its receipt is the first one.
    let request = ActionRequest { action_id: ActionId::fresh(), ..request };
    let action = effectd.submit(request).await?;
    println!("{}: {:?}", action.action_id(), action.receipt().await?.receipt.outcome);
    Ok(())
}

fn main() -> Result<()> {
    effectd::init(&[]); // first in `main`: tools run in this program, started again by the sandbox
    let request = ActionRequest::parse(&std::fs::read("examples/write_note.json")?)?;
    tokio::runtime::Runtime::new()?.block_on(run(request))
}
