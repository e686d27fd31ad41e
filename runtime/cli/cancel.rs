//! `effectd cancel`: withdraw an action that has not started.

use effectd_contracts::ActionId;
use effectd_gateway::problem::{Kind, Problem};
use effectd_gateway::views::State;

use super::Common;
use super::backend::{Trouble, client_state, say_direct, socket, stored};
use super::output::Form;
use crate::client::{Client, ClientError, Told};
use crate::exit::Exit;

/// Withdraw an action that has not started
///
/// What has ended, or is on its way, cannot be withdrawn; the answer says which, and the exit code is 1.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  effectd cancel 0199f6a2-5a4e-7c10-8d53-3f2b5f0c9a36")]
pub(super) struct Cancel {
    /// Which action
    #[arg(value_name = "ACTION")]
    action: ActionId,
    /// How the answer is shown
    #[arg(long, short, value_enum, default_value = "table", value_name = "FORM")]
    output: Form,
}

impl Cancel {
    pub(super) fn main(self, common: &Common) -> Exit {
        super::block_on(async {
            let told = ask(common, &self.action).await?;
            Ok(super::show_one(&told, self.output))
        })
    }
}

async fn ask(common: &Common, action: &ActionId) -> Result<Told, Trouble> {
    let state = client_state(common);
    let socket = socket(common, &state)?;
    match Client::new(&socket).cancel(action).await {
        Err(ClientError::NoDaemon(_)) => {
            say_direct(&socket, &state);
            Ok(match stored(&state, action)? {
                Told::View(view) => Told::Problem(refusal(view.state).about(action)),
                unknown @ Told::Problem(_) => unknown,
            })
        }
        told => Ok(told?),
    }
}

fn refusal(state: State) -> Problem {
    match state {
        State::Done => Problem::of(
            Kind::AlreadyFinished,
            "the action has ended; it cannot be withdrawn",
        ),
        State::Accepted => Problem::of(
            Kind::CannotCancel,
            "the action is accepted, and this version cannot withdraw what is accepted",
        ),
    }
}
