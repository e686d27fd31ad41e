//! Operations that change effectd itself: show what would change, ask, carry it out, and name the receipt.

use std::io::{BufRead, IsTerminal, Write};

use effectd_contracts::Operation;
use effectd_gateway::views::operations::OperationView;
use tokio::sync::{oneshot, watch};

use super::{CliError, Common, Depth, Form, eprint_line, line, post, print_json};
use crate::exit::Exit;

/// The confirmation of a change.
#[derive(Debug, Clone, Copy, clap::Args)]
pub(super) struct Confirm {
    /// Do not ask for confirmation
    #[arg(long, short)]
    pub(super) yes: bool,
}

impl Confirm {
    /// Shows what would change, and asks unless `--yes` is given. Without a terminal the answer is no.
    pub(super) fn confirmed(self, says: &[String]) -> bool {
        says.iter().for_each(|says| eprint_line(says));
        if self.yes {
            return true;
        }
        match prompt("Do it? [y/N] ") {
            Some(answer) if ["y", "yes"].contains(&answer.to_lowercase().as_str()) => true,
            Some(_) => false,
            None => {
                eprint_line(&"nothing was changed; add --yes to do it");
                false
            }
        }
    }
}

/// Asks at the terminal; `None` without a terminal or at the end of its input.
#[expect(clippy::print_stderr, reason = "questions for people go to standard error")]
fn prompt(question: &str) -> Option<String> {
    if !std::io::stdin().is_terminal() {
        return None;
    }
    eprint!("{}", crate::tui::shown_text(question));
    // Ask even if this fails and the question is not shown.
    let _ = std::io::stderr().flush();
    let mut text = String::new();
    let read = std::io::stdin().lock().read_line(&mut text).unwrap_or(0);
    (read > 0).then(|| text.trim().to_owned())
}

/// The answer to a question that Ctrl-C may interrupt.
pub(super) enum Answer {
    Said(String),
    Stopped,
    NoTerminal,
}

/// [`prompt`] that `stop` interrupts.
pub(super) async fn prompt_until(question: &str, stop: &mut watch::Receiver<bool>) -> Answer {
    let (send, reply) = oneshot::channel();
    let question = question.to_owned();
    // A thread of its own, since reading may block for ever; the program can end without it.
    std::thread::spawn(move || drop(send.send(prompt(&question))));
    tokio::select! {
        biased;
        _ = stop.wait_for(|stop| *stop) => Answer::Stopped,
        answer = reply => match answer {
            Ok(Some(word)) => Answer::Said(word),
            Ok(None) | Err(_) => Answer::NoTerminal,
        },
    }
}

/// Shows what would change, asks, and carries it out. `None` if it was not confirmed.
pub(super) async fn confirm_and_send(
    common: &Common,
    operation: &Operation,
    confirm: Confirm,
) -> Result<Option<OperationView>, CliError> {
    let before = send(common, operation, RunMode::Preview).await?;
    if !before.changed {
        before.says.iter().for_each(|says| eprint_line(says));
        eprint_line(&"there is nothing to change");
        return Ok(Some(before));
    }
    if !confirm.confirmed(&before.says) {
        return Ok(None);
    }
    send(common, operation, RunMode::Execute).await.map(Some)
}

/// [`confirm_and_send`], then prints the result.
pub(super) async fn run(common: &Common, operation: &Operation, confirm: Confirm) -> Result<Exit, CliError> {
    let Some(done) = confirm_and_send(common, operation, confirm).await? else {
        return Ok(Exit::Usage);
    };
    render(&done, common.output);
    let left = done.letters.iter().any(effectd_gateway::views::dead_letters::LetterNow::is_left);
    Ok(if left { Exit::Failed } else { Exit::Done })
}

pub(super) fn render(done: &OperationView, form: Form) {
    if print_json(form, done) {
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

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RunMode {
    Preview,
    Execute,
}

/// Carries out an operation or, as a preview, returns what it would change.
pub(super) async fn send(
    common: &Common,
    operation: &Operation,
    mode: RunMode,
) -> Result<OperationView, CliError> {
    let path = format!("/v1/operations?preview={}", mode == RunMode::Preview);
    post(common, Depth::Policy, &path, operation).await
}

/// Prints the id of an operation's receipt; an operation that changed nothing has none.
pub(super) fn report_receipt(done: &OperationView) {
    if let Some(id) = &done.receipt_id {
        eprint_line(&format!("receipt {id}"));
    }
}

pub(super) fn report_receipt_id(receipt_id: Option<&str>) {
    match receipt_id {
        Some(id) => eprint_line(&format!("receipt {id}")),
        None => eprint_line(&"there was nothing to change"),
    }
}
