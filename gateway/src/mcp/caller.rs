//! Who acts: the session of a token or of the URL, or a subject in a space. Other doors have them in each request; MCP has no place for
//! them, so they are in the URL, or follow from the policy if only one of them is possible.

use effectd_actors::services::sessions as records;
use effectd_contracts::{
    ActionId, ActionRequest, Digest, Origin, Phase, Principal, SessionId, SpaceId, SubjectId, TokenKind,
    ToolSpec,
};
use serde::Deserialize;
use serde_json::{Map, Value};

use super::Asked;
use crate::app::App;
use crate::headers;
use crate::peer::Peer;
use crate::problem::{Kind, Problem};
use crate::routes::sessions;

/// What the URL says.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct Place {
    session: Option<String>,
    subject: Option<SubjectId>,
    space: Option<SpaceId>,
}

#[derive(Debug, Clone)]
pub(super) struct Caller {
    pub(super) principal: Principal,
    pub(super) origin: Origin,
    pub(super) subject: SubjectId,
    pub(super) space: SpaceId,
    pub(super) interactive: bool,
    /// Whether it may ask beforehand what a call would change: as at `/v1/preview`, a sandbox may not, since nothing counts or records it.
    pub(super) previews: bool,
}

impl Caller {
    pub(super) fn of(asked: &Asked) -> Result<Self, Problem> {
        let Asked { app, peer, place, .. } = asked;
        // Only an answer to an action names it.
        let origin = sessions::origin(app, peer, place.session.as_deref(), &ActionId::fresh());
        let origin = origin.map_err(|problem| Problem { action_id: None, ..problem })?;
        let (subject, space) = match &origin {
            Origin::Session { session_id } => {
                let session = records::session(app.store(), session_id.as_str())?;
                let session = session.ok_or_else(|| records::unknown(Phase::Accept))?;
                (session.subject_id, session.space_id)
            }
            Origin::Arbiter | Origin::Plan | Origin::Run { .. } | Origin::Batch { .. } => {
                chosen(app, peer, place)?
            }
        };
        sessions::check_place(app, peer, &subject, &space)?;
        let interactive = headers::interactive(&asked.headers);
        let previews = peer.claims().is_none_or(|claims| claims.kind != TokenKind::Sandbox);
        Ok(Self { principal: peer.principal.clone(), origin, subject, space, interactive, previews })
    }

    /// The session, if it has one.
    pub(super) fn session(&self) -> Option<SessionId> {
        self.origin.session()
    }

    pub(super) fn by(&self) -> (&Principal, &Origin) {
        (&self.principal, &self.origin)
    }

    /// A request of the caller, with a new action id.
    pub(super) fn request(&self, spec: &ToolSpec, params: Map<String, Value>) -> ActionRequest {
        let params = records::with_space(&self.space, spec, params);
        let place = (self.subject.clone(), self.space.clone());
        ActionRequest::new(self.named(ActionId::fresh().as_str()), place, (spec.tool_id.clone(), params))
    }

    /// The action of a key: the same for the same caller and key, and nobody else can name it.
    pub(super) fn action_of(&self, app: &App, key: &str, turn: u32) -> ActionId {
        let Self { principal, subject, space, .. } = self;
        let all = format!("mcp action\n{principal}\n{subject}\n{space}\n{turn}\n{key}");
        let keyed = app.services().identity.keyed(&Digest::of(all.as_bytes()));
        self.named(&format!("mcp-{}", &keyed.hex()[..32]))
    }

    /// An action id with the session's before it, as all actions of a session have.
    pub(super) fn named(&self, name: &str) -> ActionId {
        let session = self.session().map(|session| format!("{session}/")).unwrap_or_default();
        let name = name.strip_prefix(session.as_str()).unwrap_or(name);
        ActionId::new(format!("{session}{name}")).unwrap_or_else(|_| ActionId::fresh())
    }
}

/// The subject and the space of who has no session.
fn chosen(app: &App, peer: &Peer, place: &Place) -> Result<(SubjectId, SpaceId), Problem> {
    let policy = app.services().policy();
    let none = || format!("the policy lets {} act for no subject", peer.principal);
    let subject = only("subject", place.subject.clone(), policy.subjects_of(&peer.principal), none)?;
    // What a subject of others sees is not told.
    let is_own = policy.speaks_for(&peer.principal, &subject);
    let mut spaces = if is_own { policy.spaces_shown_to(&subject) } else { Vec::new() };
    if let Some(claims) = peer.claims() {
        spaces.retain(|space| policy.org_of(space) == Some(claims.org.as_str()));
    }
    let none = || format!("the policy shows you no space of {subject}");
    let space = only("space", place.space.clone(), spaces, none)?;
    Ok((subject, space))
}

/// The one that is named, or the only one.
fn only<T: ToString>(
    what: &str,
    named: Option<T>,
    mut all: Vec<T>,
    none: impl FnOnce() -> String,
) -> Result<T, Problem> {
    match (named, all.pop()) {
        (Some(named), _) => Ok(named),
        (None, Some(only)) if all.is_empty() => Ok(only),
        (None, Some(last)) => {
            let names: Vec<_> = all.iter().chain([&last]).map(T::to_string).collect();
            let why = format!("name one in the URL, as /mcp?{what}=…: {}", names.join(", "));
            Err(Problem::of(Kind::QueryInvalid, why))
        }
        (None, None) => Err(Problem::of(Kind::NotFound, none())),
    }
}
