//! A grant in the inbox: an approval in advance. Somebody asks for it, or it is in force.

use effectd_contracts::Digest;
use serde_json::{Value, json};

use super::Access;
use crate::client::percent_encoded;
use crate::console::api::Api;
use crate::console::page::Form;
use crate::problem::{Kind, Problem};
use crate::views::grants::{GrantList, GrantView, GrantWould};

/// A grant as it is shown, with what this person may do about it.
pub(super) struct Grant {
    pub(super) view: GrantView,
    pub(super) url: String,
    /// Of what it would cover, as it was shown.
    pub(super) digest: String,
    /// For who may activate it: waiting questions that it would release.
    pub(super) would: Option<u64>,
    pub(super) may_revoke: bool,
}

/// All that this person sees, the newest first.
pub(in crate::console) async fn all(api: &Api) -> Result<Vec<GrantView>, Problem> {
    api.newest("/v1/grants", |list: GrantList| (list.grants, list.next)).await
}

/// Those that wait for somebody to activate them, the newest first.
pub(super) async fn waiting(api: &Api) -> Result<Vec<GrantView>, Problem> {
    api.newest("/v1/grants?state=requested", |list: GrantList| (list.grants, list.next)).await
}

async fn one(api: &Api, id: &str) -> Result<GrantView, Problem> {
    let found = all(api).await?.into_iter().find(|grant| grant.grant_id == id);
    found.ok_or_else(|| Problem::of(Kind::GrantUnknown, "there is no such grant"))
}

fn digest(view: &GrantView) -> Result<String, Problem> {
    let shown = GrantView { state: String::new(), calls_used: 0, activated_by: None, ..view.clone() };
    let text = serde_json::to_vec(&shown).map_err(|error| Problem::of(Kind::Internal, error.to_string()))?;
    Ok(Digest::of(&text).to_string())
}

pub(super) fn url(id: &str) -> String {
    format!("/console/grants/{}", percent_encoded(id))
}

impl Grant {
    pub(super) async fn load(api: &Api, access: &Access<'_>, id: &str) -> Result<Self, Problem> {
        let view = one(api, id).await?;
        let is_open = matches!(&*view.state, "requested" | "active");
        // Who may not make it may not activate it.
        let same = json!({
            "org": view.org, "session": view.session, "tool": view.tool, "command": view.command, "calls_max": view.calls_max,
        });
        let would: Result<GrantWould, Problem> = api.post("/v1/grants/requests/preview", &same).await;
        let would = would.ok().filter(|would| would.in_force && view.state == "requested");
        Ok(Self {
            url: url(id),
            digest: digest(&view)?,
            would: would.map(|would| would.released),
            may_revoke: is_open && access.may_revoke(&view),
            view,
        })
    }

    pub(super) fn stamp(&self) -> String {
        format!("{} {} {}", self.view.grant_id, self.view.state, self.view.calls_used)
    }

    /// How many calls, and until when.
    pub(super) fn bounds(&self) -> String {
        bounds(&self.view)
    }
}

pub(super) fn bounds(view: &GrantView) -> String {
    let calls =
        view.calls_max.map_or_else(|| "any number of calls".to_owned(), |most| format!("{most} calls"));
    match &view.session {
        Some(session) => format!("{calls} in session {session}"),
        None => format!("{calls} in all of {}", view.org),
    }
}

/// Activates or revokes a grant, if it still covers what was shown.
pub(super) async fn decide(api: &Api, id: &str, form: &Form) -> Result<(), Problem> {
    if form.get("digest") != Some(&*digest(&one(api, id).await?)?) {
        return Err(Problem::of(
            Kind::AskChanged,
            "the form has no digest of the grant as it is; read it again",
        ));
    }
    let verb = match form.get("verb") {
        Some("activate") => "activate",
        Some("revoke") => "revoke",
        _ => return Err(Problem::of(Kind::DecisionInvalid, "the form has no `verb` that the console knows")),
    };
    let path = format!("/v1/grants/{}/{verb}", percent_encoded(id));
    api.post::<Value>(&path, &json!({})).await.map(drop)
}
