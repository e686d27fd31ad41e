//! One request made on the command line: who asks, where, and how the answer is shown.

use std::time::Duration;

use effectd_contracts::limits::TIMEOUT_MS_MAX;
use effectd_contracts::{ActionRequest, SpaceId, SubjectId};
use effectd_gateway::client::Told;

use super::backend::{Trouble, patiently, with_client};
use super::output::{Form, line};
use super::{show, told as answers};
use crate::exit::Exit;
use crate::runtime::Depth;

/// Who asks, and where.
#[derive(Debug, Clone, clap::Args)]
pub(super) struct Asking {
    /// On whose behalf; the policy says for whom you may speak
    #[arg(long, value_name = "SUBJECT", default_value = "agent://planner@deviceA")]
    pub(super) subject: SubjectId,
    /// In which space
    #[arg(long, value_name = "SPACE", default_value = "shared:household")]
    pub(super) space: SpaceId,
    /// How the answer is shown
    #[arg(long, short, value_enum, default_value = "table", value_name = "FORM")]
    pub(super) output: Form,
}

/// Longest wait for the answer: that of the slowest tool, and some for what is before it.
const WAIT: Duration = Duration::from_millis(2 * TIMEOUT_MS_MAX);
/// How long a daemon that is overloaded is asked again.
const PATIENCE: Duration = Duration::from_secs(10);

/// Has a request carried out, by the daemon or here, and shows receipt and result.
pub(super) async fn have_done(
    common: &super::Common,
    request: ActionRequest,
    form: Form,
) -> Result<Exit, Trouble> {
    let told = with_client(common, Depth::Pipeline, async |client| {
        Ok(patiently(client, &request, Some(WAIT), PATIENCE).await?)
    })
    .await?;
    tell(&told, form);
    Ok(answers::exit_of(&told))
}

fn tell(told: &Told, form: Form) {
    let (receipt, before, result) = match told {
        Told::View(view) => (view.receipt.as_deref(), view.already_done, view.result.as_ref()),
        Told::Problem(problem) => (problem.receipt.as_deref(), false, None),
    };
    if form != Form::Table || receipt.is_none() {
        answers::explain(told);
        let mut printer = super::output::Printer::new(form, false, &answers::COLUMNS);
        let cells = answers::cells(told);
        printer.row(&answers::value(told), &cells.each_ref().map(String::as_str));
        printer.finish();
        return;
    }
    if let Some(receipt) = receipt {
        line(show::receipt(receipt, before).trim_end());
    }
    if let Some(result) = result.and_then(|result| serde_json::to_string_pretty(result).ok()) {
        line(&result);
    }
}
