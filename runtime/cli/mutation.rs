//! Operations that change effectd itself: show what would change, ask, carry it out, and name the receipt.

use std::io::{BufRead, IsTerminal, Write};

use effectd_contracts::Operation;
use effectd_gateway::client::percent_encoded;
use effectd_gateway::views::operations::OperationView;
use hyper::Method;
use serde::Serialize;
use serde_json::json;
use tokio::sync::{oneshot, watch};

use super::{
    CliError, Common, Depth, Form, eprint_line, line, output, post, print_json, report_error, with_client,
};
use crate::exit::Exit;

/// The confirmation of a change. Commands that never ask take the same flags.
#[derive(Debug, Clone, Copy, clap::Args)]
pub(super) struct Confirm {
    /// Do not ask for confirmation
    #[arg(long, short)]
    pub(super) yes: bool,
    /// Only show what would change
    #[arg(long, conflicts_with = "yes")]
    pub(super) dry_run: bool,
}

/// The reason of a change.
#[derive(Debug, Clone, Default, clap::Args)]
pub(super) struct Reason {
    /// The reason, which goes into the receipt
    #[arg(long, value_name = "TEXT")]
    pub(super) reason: Option<String>,
}

/// The reason of a change, and its confirmation.
#[derive(Debug, Clone, clap::Args)]
pub(super) struct ChangeArgs {
    #[command(flatten)]
    pub(super) why: Reason,
    #[command(flatten)]
    pub(super) confirm: Confirm,
}

impl ChangeArgs {
    pub(super) fn terms(self) -> (Terms, Confirm) {
        (self.why.into(), self.confirm)
    }

    /// [`run_on`] with these.
    pub(super) async fn run(self, common: &Common, operation: &Operation) -> Result<Exit, CliError> {
        run_on(common, operation, &self.why.into(), self.confirm).await
    }
}

/// The reason of a change, and how long it lasts.
#[derive(Debug, Clone, Default, clap::Args)]
pub(super) struct Terms {
    #[command(flatten)]
    why: Reason,
    /// How long it lasts: `90s`, `30m`, `2h`, `7d`; without this, until you end it
    #[arg(long = "for", value_name = "TIME")]
    pub(super) lasts: Option<String>,
}

impl From<Reason> for Terms {
    fn from(why: Reason) -> Self {
        Self { why, lasts: None }
    }
}

impl Terms {
    /// These terms in a URL, after another part of the query.
    pub(super) fn query(&self) -> String {
        let values = [("reason", self.why.reason.as_deref()), ("lasts", self.lasts.as_deref())];
        let given = values.into_iter().filter_map(|(name, value)| Some((name, value?)));
        given.map(|(name, value)| format!("&{name}={}", percent_encoded(value))).collect()
    }

    /// These terms as the whole query of a URL.
    pub(super) fn first_query(&self) -> String {
        self.query().replacen('&', "?", 1)
    }
}

impl Confirm {
    /// Shows what would change, and asks unless `--yes` is given. Without a terminal, and for a dry run, the answer is no.
    pub(super) fn confirmed(self, says: &[String]) -> bool {
        if self.only_shows(says) {
            return false;
        }
        says.iter().for_each(|says| eprint_line(says));
        if self.yes {
            return true;
        }
        match prompt("Do it? [y/N] ") {
            Some(answer) if ["y", "yes"].contains(&answer.to_lowercase().as_str()) => true,
            Some(_) => false,
            None => {
                report_error(&CliError::request("nothing was changed; add --yes to do it"));
                false
            }
        }
    }

    /// For a dry run, prints what would change and returns `true`.
    pub(super) fn only_shows(self, says: &[String]) -> bool {
        if self.dry_run && !print_json(output::form(), &json!({ "dry_run": true, "would": says })) {
            says.iter().for_each(|says| line(says));
            eprint_line(&"a dry run: nothing was changed");
        }
        self.dry_run
    }

    /// The exit code after [`Confirm::confirmed`] returned `false`.
    pub(super) const fn declined(self) -> Exit {
        if self.dry_run { Exit::Done } else { Exit::Usage }
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

/// Shows what would change, asks, and carries it out. `None` if it was not confirmed. The answer has the lines that nobody has seen
/// yet: with `--yes`, all of them.
pub(super) async fn confirm_and_send_on(
    common: &Common,
    operation: &Operation,
    terms: &Terms,
    confirm: Confirm,
) -> Result<Option<OperationView>, CliError> {
    let send = async |mode| send_on(common, operation, terms, mode).await;
    confirm_and_call(common.output, send, confirm).await
}

async fn confirm_and_call(
    form: Form,
    send: impl AsyncFn(RunMode) -> Result<OperationView, CliError>,
    confirm: Confirm,
) -> Result<Option<OperationView>, CliError> {
    let before = send(RunMode::Preview).await?;
    if !before.changed {
        eprint_line(&"there is nothing to change");
        return Ok(Some(before));
    }
    if !confirm.yes && !confirm.confirmed(&before.says) {
        return Ok(None);
    }
    let mut done = send(RunMode::Execute).await?;
    if !confirm.yes && form == Form::Table {
        done.says.retain(|says| !before.says.contains(says));
    }
    Ok(Some(done))
}

/// [`confirm_and_send_on`], then prints the result.
pub(super) async fn run_on(
    common: &Common,
    operation: &Operation,
    terms: &Terms,
    confirm: Confirm,
) -> Result<Exit, CliError> {
    let Some(done) = confirm_and_send_on(common, operation, terms, confirm).await? else {
        return Ok(confirm.declined());
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
    if let Some(id) = &done.id {
        line(&format!("  id       {id}"));
    }
    if let Some(token) = &done.token {
        line(&format!("  token    {}", token.as_str()));
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

/// The body of a request without one.
pub(super) fn no_body(_: RunMode) -> Result<Vec<u8>, CliError> {
    Ok(Vec::new())
}

/// This value as the body of a request.
pub(super) fn json_body(value: &impl Serialize) -> impl Fn(RunMode) -> Result<Vec<u8>, CliError> {
    move |_| serde_json::to_vec(value).map_err(|error| CliError::request(error.to_string()))
}

/// What does not exist is a failure: the words themselves may be right.
pub(super) fn unknown_fails(error: CliError) -> CliError {
    let is_unknown = matches!(&error, CliError::Refused(problem) if problem.status == 404);
    if is_unknown { error.exiting(Exit::Failed) } else { error }
}

/// [`run_on`] for a change that has a route of its own.
pub(super) async fn run_at(
    common: &Common,
    at: (Method, &str),
    body: impl Fn(RunMode) -> Result<Vec<u8>, CliError>,
    args: ChangeArgs,
) -> Result<Exit, CliError> {
    let confirm = args.confirm;
    let Some(done) = confirm_at(common, at, body, args).await? else {
        return Ok(confirm.declined());
    };
    render(&done, common.output);
    Ok(Exit::Done)
}

/// [`confirm_and_send_on`] for a change that has a route of its own.
pub(super) async fn confirm_at(
    common: &Common,
    (method, path): (Method, &str),
    body: impl Fn(RunMode) -> Result<Vec<u8>, CliError>,
    args: ChangeArgs,
) -> Result<Option<OperationView>, CliError> {
    let (terms, confirm) = args.terms();
    let query = terms.query();
    let send = async |mode: RunMode| -> Result<OperationView, CliError> {
        let mark = if path.contains('?') { '&' } else { '?' };
        let path = format!("{path}{mark}preview={}{query}", mode == RunMode::Preview);
        let (method, body) = (method.clone(), body(mode)?);
        let sent =
            with_client(common, Depth::Policy, async |client| Ok(client.call(method, &path, body).await?));
        sent.await.map_err(unknown_fails)
    };
    confirm_and_call(common.output, send, confirm).await
}

/// Carries out an operation or, as a preview, returns what it would change.
pub(super) async fn send_on(
    common: &Common,
    operation: &Operation,
    terms: &Terms,
    mode: RunMode,
) -> Result<OperationView, CliError> {
    let path = format!("/v1/operations?preview={}{}", mode == RunMode::Preview, terms.query());
    post(common, Depth::Policy, &path, operation).await
}

/// Prints what an operation says, and the id of its receipt; an operation that changed nothing has none.
pub(super) fn report_done(done: &OperationView) {
    done.says.iter().for_each(|says| eprint_line(says));
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
