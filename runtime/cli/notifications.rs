//! `effectd notifications`: the notifications that tools sent, and whether they were delivered.

use clap::Subcommand;
use effectd_contracts::ReceiptId;
use effectd_gateway::client::{ClientError, percent_encoded};
use effectd_gateway::problem::Kind;
use effectd_gateway::views::notifications::{NotificationList, NotificationView};

use super::{CliError, Common, Depth, line, pages, print_json, print_rows, second, short_id, with_client};
use crate::exit::Exit;
use crate::tui::{shown, shown_lines};

const TITLE_COLUMNS: usize = 48;
/// The columns and lines of a body that are shown; `-o json` has the whole body.
const BODY_COLUMNS: usize = 200;
const BODY_LINES: usize = 200;

/// Read notifications and whether they were delivered
///
/// A notification is shown on the desktop of the daemon's session, if it has one, and can always be read here. It cannot be unsent. For
/// operators only.
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
    List,
    /// Show one, by the receipt of the action that sent it
    #[command(after_help = "Example:\n  effectd notifications show 0199f6a2-5a4e-7c10-8d53-3f2b5f0c9a12")]
    Show {
        /// The receipt of the action that sent it
        #[arg(value_name = "RECEIPT")]
        receipt: ReceiptId,
    },
}

const COLUMNS: [(&str, usize); 5] =
    [("RECEIPT", 36), ("SENT", 20), ("URGENCY", 8), ("DELIVERY", 11), ("TITLE", TITLE_COLUMNS)];

impl NotificationsCommand {
    pub(super) async fn main(self, common: &Common) -> Result<Exit, CliError> {
        match self.verb.unwrap_or(Verb::List) {
            Verb::List => list(common).await,
            Verb::Show { receipt } => show(common, &receipt).await,
        }
    }
}

async fn list(common: &Common) -> Result<Exit, CliError> {
    let split = |page: NotificationList| (page.notifications, page.next);
    let views = pages(common, Depth::Store, "/v1/notifications", split).await?;
    Ok(print_rows(common.output, &COLUMNS, &views, |view| {
        let title = view.title.as_deref().map(|title| shown(title, TITLE_COLUMNS));
        [
            view.receipt_id.clone(),
            second(&view.sent_at),
            view.urgency.clone().unwrap_or_default(),
            view.delivery.clone(),
            title.unwrap_or_else(|| "(no longer stored)".to_owned()),
        ]
    }))
}

async fn show(common: &Common, receipt: &ReceiptId) -> Result<Exit, CliError> {
    let view = with_client(common, Depth::Store, async |client| {
        let found = short_id::receipt(client, receipt.as_str()).await?;
        let receipt = found.map_or_else(|| receipt.clone(), |found| found.receipt_id);
        let path = format!("/v1/notifications/{}", percent_encoded(receipt.as_str()));
        match client.get::<NotificationView>(&path).await {
            Err(ClientError::Refused(problem)) if problem.code == Kind::NotificationUnknown.code() => {
                Ok(None)
            }
            found => Ok(Some(found?)),
        }
    })
    .await?;
    let Some(view) = view else {
        let why = "there is no stored notification for this receipt; `effectd notifications` lists them";
        return Err(CliError::request(why).exiting(Exit::Failed));
    };
    if !print_json(common.output, &view) {
        print(&view);
    }
    Ok(Exit::Done)
}

fn print(view: &NotificationView) {
    match (&view.title, &view.missing) {
        (Some(title), _) => line(&shown(title, BODY_COLUMNS)),
        (None, Some(why)) => line(&format!("(its text is not available: {})", shown(why, BODY_COLUMNS))),
        (None, None) => {}
    }
    let body = view.body.as_deref().unwrap_or_default();
    shown_lines(body, BODY_COLUMNS, BODY_LINES).iter().for_each(|text| line(text));
    line("");
    let why = view.why.as_deref();
    let why = why.map(|why| format!(": {}", shown(why, BODY_COLUMNS)));
    line(&format!("sent       {} by {}", view.sent_at, view.subject_id));
    line(&format!("space      {}", view.space_id));
    line(&format!("urgency    {}", view.urgency.as_deref().unwrap_or("not known")));
    line(&format!("delivery   {}{}", view.delivery, why.unwrap_or_default()));
    line(&format!("since      {}", view.since));
    line(&format!("receipt    {}; it cannot be unsent", view.receipt_id));
}
