//! `effectd artifacts quarantine|release|quarantined`: what operators take aside.

use effectd_contracts::Operation;
use effectd_gateway::views::artifacts::{QuarantineList, QuarantineView};

use crate::cli::backend::{Trouble, with_client};
use crate::cli::operate::{self, Confirm};
use crate::cli::output::{Form, Printer};
use crate::cli::{Common, complain};
use crate::exit::Exit;
use crate::runtime::Depth;

#[derive(Debug, clap::Args)]
pub(super) struct Quarantine {
    /// Which artifact
    #[arg(value_name = "ARTIFACT")]
    artifact: String,
    /// Why, for people; it is stored in clear
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,
    #[command(flatten)]
    confirm: Confirm,
    /// How the answer is shown
    #[arg(long, short, value_enum, default_value = "table", value_name = "FORM")]
    output: Form,
}

#[derive(Debug, clap::Args)]
pub(super) struct Release {
    /// Which artifact
    #[arg(value_name = "ARTIFACT")]
    artifact: String,
    #[command(flatten)]
    confirm: Confirm,
}

#[derive(Debug, clap::Args)]
pub(super) struct Quarantined {
    /// How they are shown
    #[arg(long, short, value_enum, default_value = "table", value_name = "FORM")]
    output: Form,
}

const COLUMNS: &[(&str, usize)] = &[("ARTIFACT", 64), ("BY", 16), ("SINCE", 24), ("REASON", 32)];

fn show(form: Form, many: bool, views: &[QuarantineView]) {
    let mut printer = Printer::new(form, many, COLUMNS);
    for view in views {
        let value = serde_json::to_value(view).unwrap_or_default();
        let reason = view.reason.as_deref().unwrap_or_default();
        printer.row(&value, &[&view.artifact_id, &view.by, &view.since, reason]);
    }
    printer.finish();
}

impl Quarantine {
    pub(super) async fn main(&self, common: &Common) -> Result<Exit, Trouble> {
        let (artifact_id, reason) = (self.artifact.clone(), self.reason.clone());
        let operation = Operation::QuarantineArtifact { artifact_id, reason };
        let Some(done) = operate::perform(common, &operation, self.confirm).await? else {
            return Ok(Exit::Usage);
        };
        operate::name_receipt(&done);
        let mut views = all(common).await?;
        views.retain(|view| view.artifact_id == self.artifact);
        show(self.output, false, &views);
        Ok(Exit::Done)
    }
}

impl Release {
    pub(super) async fn main(&self, common: &Common) -> Result<Exit, Trouble> {
        let artifact_id = self.artifact.clone();
        let done =
            operate::perform(common, &Operation::ReleaseArtifact { artifact_id }, self.confirm).await?;
        let Some(done) = done else {
            return Ok(Exit::Usage);
        };
        if done.changed {
            operate::name_receipt(&done);
            return Ok(Exit::Done);
        }
        complain(&"that artifact was not quarantined; `effectd artifacts quarantined` lists those that are");
        Ok(Exit::Failed)
    }
}

impl Quarantined {
    pub(super) async fn main(&self, common: &Common) -> Result<Exit, Trouble> {
        show(self.output, true, &all(common).await?);
        Ok(Exit::Done)
    }
}

/// All artifacts that are aside.
pub(in crate::cli) async fn all(common: &Common) -> Result<Vec<QuarantineView>, Trouble> {
    with_client(common, Depth::Store, async |client| {
        let split = |page: QuarantineList| (page.artifacts, page.next);
        Ok(client.pages("/v1/artifacts/quarantined", split).await?)
    })
    .await
}
