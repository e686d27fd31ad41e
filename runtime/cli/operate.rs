//! What every command that changes effectd itself does: say what would change, ask, do it, and name the receipt.

use std::io::{BufRead, IsTerminal, Write};

use effectd_contracts::Operation;
use effectd_gateway::operations::OperationView;
use tokio::sync::{oneshot, watch};

use super::backend::{Trouble, with_client};
use super::output::{Form, for_programs, line};
use super::{Common, complain};
use crate::exit::Exit;
use crate::runtime::Depth;

/// Whether somebody has said yes.
#[derive(Debug, Clone, Copy, clap::Args)]
pub(super) struct Confirm {
    /// Do it without asking
    #[arg(long, short)]
    pub(super) yes: bool,
}

impl Confirm {
    /// Shows what would change, and asks. Where nobody can be asked, the answer is no.
    pub(super) fn given(self, says: &[String]) -> bool {
        says.iter().for_each(|says| complain(says));
        if self.yes {
            return true;
        }
        match answer("Do it? [y/N] ") {
            Some(answer) if ["y", "yes"].contains(&answer.to_lowercase().as_str()) => true,
            Some(_) => false,
            None => {
                complain(&"nothing was changed; add --yes to do it");
                false
            }
        }
    }
}

/// Asks somebody at the terminal; `None` if there is nobody.
#[expect(clippy::print_stderr, reason = "this is where the program talks to people")]
fn answer(question: &str) -> Option<String> {
    if !std::io::stdin().is_terminal() {
        return None;
    }
    eprint!("{}", crate::tui::shown_text(question));
    // A terminal that shows nothing is asked nevertheless.
    let _ = std::io::stderr().flush();
    let mut text = String::new();
    let read = std::io::stdin().lock().read_line(&mut text).unwrap_or(0);
    (read > 0).then(|| text.trim().to_owned())
}

/// What came of a question that somebody may not want to answer any more.
pub(super) enum Answered {
    Said(String),
    /// Ctrl-C, which a program that listens for it does not end by.
    Stopped,
    /// There is nobody to be asked.
    Nobody,
}

/// [`answer`], unless somebody stops it: what is typed after that is no answer.
pub(super) async fn answer_unless(question: &str, stop: &mut watch::Receiver<bool>) -> Answered {
    let (tell, told) = oneshot::channel();
    let question = question.to_owned();
    // A thread of its own: it may wait for ever, and the program ends without it.
    std::thread::spawn(move || drop(tell.send(answer(&question))));
    tokio::select! {
        biased;
        _ = stop.wait_for(|stop| *stop) => Answered::Stopped,
        said = told => match said {
            Ok(Some(word)) => Answered::Said(word),
            Ok(None) | Err(_) => Answered::Nobody,
        },
    }
}

/// Says what would change, asks, and does it. `None` if nobody said yes.
pub(super) async fn perform(
    common: &Common,
    operation: &Operation,
    confirm: Confirm,
) -> Result<Option<OperationView>, Trouble> {
    let before = ask(common, operation, Doing::Preview).await?;
    if !before.changed {
        before.says.iter().for_each(|says| complain(says));
        complain(&"there is nothing to change");
        return Ok(Some(before));
    }
    if !confirm.given(&before.says) {
        return Ok(None);
    }
    ask(common, operation, Doing::ForReal).await.map(Some)
}

/// [`perform`], and shows what came of it.
pub(super) async fn main(
    common: &Common,
    operation: &Operation,
    confirm: Confirm,
    form: Form,
) -> Result<Exit, Trouble> {
    let Some(done) = perform(common, operation, confirm).await? else {
        return Ok(Exit::Usage);
    };
    tell(&done, form);
    let left = done
        .letters
        .iter()
        .any(effectd_gateway::letters::LetterNow::is_left);
    Ok(if left { Exit::Failed } else { Exit::Done })
}

pub(super) fn tell(done: &OperationView, form: Form) {
    if for_programs(form, done) {
        return;
    }
    done.says.iter().for_each(|says| line(says));
    for letter in &done.letters {
        line(&format!("  {:<8} {}", letter.letter, letter.now));
    }
    if let Some(receipt) = &done.receipt_id {
        line(&format!("  receipt  {receipt}"));
    }
}

/// Whether it is done, or only looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Doing {
    Preview,
    ForReal,
}

/// Has it done, or says what it would change.
pub(super) async fn ask(
    common: &Common,
    operation: &Operation,
    doing: Doing,
) -> Result<OperationView, Trouble> {
    let path = format!("/v1/operations?preview={}", doing == Doing::Preview);
    with_client(common, Depth::Policy, async |client| {
        Ok(client.post(&path, operation).await?)
    })
    .await
}

/// Names the receipt of what was done by [`perform`], which has said it already if nothing was.
pub(super) fn name_receipt(done: &OperationView) {
    if let Some(id) = &done.receipt_id {
        complain(&format!("receipt {id}"));
    }
}

pub(super) fn tell_receipt(receipt_id: Option<&str>) {
    match receipt_id {
        Some(id) => complain(&format!("receipt {id}")),
        None => complain(&"there was nothing to change"),
    }
}
