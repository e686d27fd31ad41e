//! `effectd artifacts quarantine|release|quarantined`: what operators take aside.

use effectd_actors::quarantine;
use effectd_bus::StoreError;
use effectd_contracts::SystemClock;
use effectd_gateway::views::artifacts::{QuarantineBody, QuarantineList, QuarantineView, ReleaseView};
use hyper::Method;

use crate::cli::backend::{Trouble, ask_or};
use crate::cli::output::{Form, Printer};
use crate::cli::{Common, complain, stored};
use crate::client::percent_encoded;
use crate::config::Config;
use crate::error::Error;
use crate::exit::Exit;

/// Entries that are read at a time where no daemon runs.
const PAGE: usize = 1_000;

#[derive(Debug, clap::Args)]
pub(super) struct Quarantine {
    /// Which artifact
    #[arg(value_name = "ARTIFACT")]
    artifact: String,
    /// Why, for people; it is stored in clear
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,
    /// How the answer is shown
    #[arg(long, short, value_enum, default_value = "table", value_name = "FORM")]
    output: Form,
}

#[derive(Debug, clap::Args)]
pub(super) struct Release {
    /// Which artifact
    #[arg(value_name = "ARTIFACT")]
    artifact: String,
}

#[derive(Debug, clap::Args)]
pub(super) struct Quarantined {
    /// How they are shown
    #[arg(long, short, value_enum, default_value = "table", value_name = "FORM")]
    output: Form,
}

/// What was named cannot be used, or the store cannot.
fn told(error: StoreError) -> Error {
    if let StoreError::Invalid(why) = &error {
        return Error::Request(why.clone());
    }
    Error::from(error)
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
        let body = QuarantineBody {
            reason: self.reason.clone(),
        };
        let view: QuarantineView = ask_or(
            common,
            async |client| {
                let path = format!("/v1/artifacts/{}/quarantine", percent_encoded(&self.artifact));
                let body = serde_json::to_vec(&body).unwrap_or_default();
                let answer = client.call(Method::POST, &path, body).await?;
                answer.map_err(Trouble::Refused)
            },
            async |path| {
                let (_, store) = stored::open(common, path)?;
                let by = Config::embedded(path)?.principal;
                let reason = self.reason.clone();
                let done =
                    quarantine::quarantine(&*store, &SystemClock, &self.artifact, by.as_str(), reason).await;
                let done = done.map_err(told)?;
                store.close().map_err(Error::from)?;
                Ok(done.into())
            },
        )
        .await?;
        show(self.output, false, &[view]);
        Ok(Exit::Done)
    }
}

impl Release {
    pub(super) async fn main(&self, common: &Common) -> Result<Exit, Trouble> {
        let view: ReleaseView = ask_or(
            common,
            async |client| {
                let path = format!("/v1/artifacts/{}/release", percent_encoded(&self.artifact));
                let answer = client.call(Method::POST, &path, "").await?;
                answer.map_err(Trouble::Refused)
            },
            async |path| {
                let (_, store) = stored::open(common, path)?;
                let by = Config::embedded(path)?.principal;
                let done = quarantine::release(&*store, &SystemClock, &self.artifact, by.as_str()).await;
                let released = done.map_err(told)?;
                store.close().map_err(Error::from)?;
                Ok(ReleaseView {
                    artifact_id: self.artifact.clone(),
                    released,
                })
            },
        )
        .await?;
        if view.released {
            return Ok(Exit::Done);
        }
        complain(&"that artifact was not quarantined; `effectd artifacts quarantined` lists those that are");
        Ok(Exit::Failed)
    }
}

impl Quarantined {
    pub(super) async fn main(&self, common: &Common) -> Result<Exit, Trouble> {
        let mut after: Option<String> = None;
        let mut views = Vec::new();
        loop {
            let page: QuarantineList = ask_or(
                common,
                async |client| {
                    let query = after
                        .as_deref()
                        .map(|id| format!("?after={}", percent_encoded(id)));
                    let path = format!("/v1/artifacts/quarantined{}", query.unwrap_or_default());
                    let answer = client.call(Method::GET, &path, "").await?;
                    answer.map_err(Trouble::Refused)
                },
                async |path| {
                    let (_, store) = stored::open(common, path)?;
                    let page = quarantine::list(&*store, after.as_deref(), PAGE).map_err(Error::from)?;
                    store.close().map_err(Error::from)?;
                    Ok(page.into())
                },
            )
            .await?;
            views.extend(page.artifacts);
            after = page.next;
            if after.is_none() {
                break;
            }
        }
        show(self.output, true, &views);
        Ok(Exit::Done)
    }
}
