//! `effectd notifications`: what people were told, and what became of it.

use clap::Subcommand;
use effectd_contracts::ReceiptId;
use effectd_gateway::client::{ClientError, percent_encoded};
use effectd_gateway::problem::{Kind, Problem};
use effectd_gateway::views::notifications::{NotificationList, NotificationView};

use super::backend::{Trouble, with_client};
use super::output::{self, Form, Printer};
use super::{Common, complain};
use crate::exit::Exit;
use crate::runtime::Depth;
use crate::tui::{shown, shown_lines};

const TITLE_COLUMNS: usize = 48;
/// Columns and lines of a body; `-o json` has all of it.
const BODY_COLUMNS: usize = 200;
const BODY_LINES: usize = 200;

/// Read what people were told, and what became of it
///
/// A notification is shown on the desktop of the session that the daemon runs in, if it has one, and can be read here in any case.
/// It cannot be unsent. For operators: what notifications say is not told to others.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  effectd notifications\n  effectd notifications list -o jsonl")]
pub(super) struct NotificationsCommand {
    #[command(subcommand)]
    verb: Option<Verb>,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// List them, oldest first
    #[command(after_help = "Example:\n  effectd notifications list -o json")]
    List(List),
    /// Show one, by the receipt of the action that sent it
    #[command(after_help = "Example:\n  effectd notifications show 0199f6a2-5a4e-7c10-8d53-3f2b5f0c9a12")]
    Show(Show),
}

#[derive(Debug, clap::Args)]
struct List {
    /// How they are shown
    #[arg(long, short, value_enum, default_value = "table", value_name = "FORM")]
    output: Form,
}

#[derive(Debug, clap::Args)]
struct Show {
    /// Whose notification
    #[arg(value_name = "RECEIPT")]
    receipt: ReceiptId,
    /// How it is shown
    #[arg(long, short, value_enum, default_value = "table", value_name = "FORM")]
    output: Form,
}

impl NotificationsCommand {
    pub(super) fn main(self, common: &Common) -> Exit {
        let verb = self.verb.unwrap_or(Verb::List(List { output: Form::Table }));
        super::block_on(async {
            match verb {
                Verb::List(list) => list.list(common).await,
                Verb::Show(show) => show.show(common).await,
            }
        })
    }
}

impl List {
    async fn list(&self, common: &Common) -> Result<Exit, Trouble> {
        let views = with_client(common, Depth::Store, async |client| {
            let split = |page: NotificationList| (page.notifications, page.next);
            Ok(client.pages("/v1/notifications", split).await?)
        })
        .await?;
        self.print(&views);
        Ok(Exit::Done)
    }

    fn print(&self, views: &[NotificationView]) {
        const COLUMNS: &[(&str, usize)] = &[
            ("RECEIPT", 36),
            ("SENT", 20),
            ("URGENCY", 8),
            ("DELIVERY", 11),
            ("TITLE", TITLE_COLUMNS),
        ];
        let mut printer = Printer::new(self.output, true, COLUMNS);
        for view in views {
            let value = serde_json::to_value(view).unwrap_or_default();
            let title = view.title.as_deref().map(|title| shown(title, TITLE_COLUMNS));
            let title = title.unwrap_or_else(|| "(not kept any more)".to_owned());
            // To the second.
            let sent = view.sent_at.split('.').next().unwrap_or_default();
            let urgency = view.urgency.as_deref().unwrap_or_default();
            let cells = [&view.receipt_id, sent, urgency, &view.delivery, &title];
            printer.row(&value, &cells);
        }
        printer.finish();
    }
}

impl Show {
    async fn show(&self, common: &Common) -> Result<Exit, Trouble> {
        let path = format!("/v1/notifications/{}", percent_encoded(self.receipt.as_str()));
        let view = with_client(common, Depth::Store, async |client| {
            match client.get::<NotificationView>(&path).await {
                Err(ClientError::Refused(problem)) if is_unknown(&problem) => Ok(None),
                found => Ok(Some(found?)),
            }
        })
        .await?;
        let Some(view) = view else {
            complain(
                &"that receipt sent no notification, or none that is remembered; `effectd notifications` lists them",
            );
            return Ok(Exit::Failed);
        };
        if !output::for_programs(self.output, &view) {
            print(&view);
        }
        Ok(Exit::Done)
    }
}

fn is_unknown(problem: &Problem) -> bool {
    problem.code == Kind::NotificationUnknown.code()
}

/// For people. What it says is somebody else's text, and commands no terminal.
fn print(view: &NotificationView) {
    match (&view.title, &view.missing) {
        (Some(title), _) => output::line(&shown(title, BODY_COLUMNS)),
        (None, Some(why)) => output::line(&format!(
            "(its text cannot be told: {})",
            shown(why, BODY_COLUMNS)
        )),
        (None, None) => {}
    }
    for line in shown_lines(view.body.as_deref().unwrap_or_default(), BODY_COLUMNS, BODY_LINES) {
        output::line(&line);
    }
    output::line("");
    let why = view
        .why
        .as_deref()
        .map(|why| format!(": {}", shown(why, BODY_COLUMNS)));
    output::line(&format!("sent       {} by {}", view.sent_at, view.subject_id));
    output::line(&format!("space      {}", view.space_id));
    output::line(&format!(
        "urgency    {}",
        view.urgency.as_deref().unwrap_or("not known")
    ));
    output::line(&format!(
        "delivery   {}{}",
        view.delivery,
        why.unwrap_or_default()
    ));
    output::line(&format!("since      {}", view.since));
    output::line(&format!("receipt    {}; it cannot be unsent", view.receipt_id));
}
