//! What handlers take from a request and answer: extractors whose failures are problems, and JSON.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::{FromRequest, FromRequestParts, Request};
use axum::http::request::Parts;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use effectd_actors::PrincipalRole;
use effectd_actors::approvals::DecideError;
use effectd_contracts::{Digest, Topic};
use serde::de::{DeserializeOwned, Error as _};
use serde::{Deserialize, Deserializer, Serialize};

use crate::app::App;
use crate::body::BodyShare;
use crate::peer::{Caller, Peer};
use crate::problem::{Kind, Problem};

/// A handler's answer: JSON with status 200, or a problem.
pub(crate) type Reply<T> = Result<Json<T>, Problem>;

/// An answer in JSON.
pub(crate) struct Json<T>(pub(crate) T);

impl<T: Serialize> IntoResponse for Json<T> {
    fn into_response(self) -> Response {
        json(StatusCode::OK, &self.0)
    }
}

/// An answer in JSON with this status; a problem if the value cannot be written as JSON.
pub(crate) fn json(status: StatusCode, value: &impl Serialize) -> Response {
    match serde_json::to_vec(value) {
        Ok(bytes) => (status, [(header::CONTENT_TYPE, "application/json")], bytes).into_response(),
        Err(error) => Problem::of(Kind::Internal, error.to_string()).into_response(),
    }
}

/// [`json`], which holds its share of memory until it is written or given up: see [`App::holding`].
pub(crate) fn json_holding(status: StatusCode, value: &impl Serialize, share: BodyShare) -> Response {
    let mut response = json(status, value);
    response.extensions_mut().insert(Arc::new(share));
    response
}

/// The query string.
pub(crate) struct Query<T>(pub(crate) T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequestParts<S> for Query<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        let query = axum::extract::Query::from_request_parts(parts, state).await;
        let query = query.map_err(|error| Problem::of(Kind::QueryInvalid, error.body_text()))?;
        Ok(Self(query.0))
    }
}

/// An integer of a query; `60055.0` is one, as in JSON.
pub(crate) fn integer<'de, D, T>(query: D) -> Result<Option<T>, D::Error>
where
    D: Deserializer<'de>,
    T: TryFrom<u64>,
{
    let text = String::deserialize(query)?;
    let number = whole(&text).and_then(|number| T::try_from(number).ok());
    number.map(Some).ok_or_else(|| D::Error::custom(format!("{text:?} is not a whole number")))
}

/// A number without a fraction, or with one of zeros.
pub(crate) fn whole(text: &str) -> Option<u64> {
    let (number, fraction) = text.split_once('.').unwrap_or((text, "0"));
    let is_whole = !fraction.is_empty() && fraction.bytes().all(|digit| digit == b'0');
    number.parse().ok().filter(|_| is_whole)
}

/// The query of a list in pages.
#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct After {
    /// The `next` of the page before.
    pub(crate) after: Option<String>,
}

/// The variables in the path.
pub(crate) struct Path<T>(pub(crate) T);

impl<T: DeserializeOwned + Send, S: Send + Sync> FromRequestParts<S> for Path<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        let path = axum::extract::Path::from_request_parts(parts, state).await;
        let path = path.map_err(|error| Problem::of(Kind::NoSuchPath, error.body_text()))?;
        Ok(Self(path.0))
    }
}

impl<S: Send + Sync> FromRequestParts<S> for Peer {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Problem> {
        let peer = parts.extensions.get::<Peer>().cloned();
        peer.ok_or_else(|| Problem::of(Kind::Unauthenticated, "nobody knows who sent this request"))
    }
}

/// A request's body, unread, and who sends it.
pub(crate) struct Payload {
    pub(crate) peer: Peer,
    pub(crate) body: Body,
}

impl<S: Send + Sync> FromRequest<S> for Payload {
    type Rejection = Problem;

    async fn from_request(request: Request, state: &S) -> Result<Self, Problem> {
        let (mut parts, body) = request.into_parts();
        Ok(Self { peer: Peer::from_request_parts(&mut parts, state).await?, body })
    }
}

/// A peer that may operate; everybody else gets a problem.
pub(crate) struct Operator(pub(crate) Peer);

/// A peer that may look at what operators see.
pub(crate) struct Viewer {
    pub(crate) peer: Peer,
    /// Whether it may also operate: error messages, which may quote contents, are only for operators.
    pub(crate) operates: bool,
}

/// A peer that may erase subjects.
pub(crate) struct Eraser(pub(crate) Peer);

/// The peer, if it is root or the daemon's user, or has this part of an operator's work by the policy.
async fn with_part(parts: &mut Parts, app: &Arc<App>, part: PrincipalRole) -> Result<Peer, Problem> {
    let peer = Peer::from_request_parts(parts, app).await?;
    if app.may_operate(&peer, part) {
        return Ok(peer);
    }
    let why = format!(
        "only root, the user that the daemon runs as, and principals with the role `{}` may do this",
        part.as_str()
    );
    Err(Problem::of(Kind::OperatorsOnly, why))
}

impl FromRequestParts<Arc<App>> for Operator {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, app: &Arc<App>) -> Result<Self, Problem> {
        with_part(parts, app, PrincipalRole::Operate).await.map(Self)
    }
}

impl FromRequestParts<Arc<App>> for Viewer {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, app: &Arc<App>) -> Result<Self, Problem> {
        let peer = with_part(parts, app, PrincipalRole::Look).await?;
        Ok(Self { operates: app.may_operate(&peer, PrincipalRole::Operate), peer })
    }
}

impl FromRequestParts<Arc<App>> for Eraser {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, app: &Arc<App>) -> Result<Self, Problem> {
        with_part(parts, app, PrincipalRole::Erase).await.map(Self)
    }
}

impl Operator {
    /// Fails unless this peer may also change what the policy requires: root and the daemon's user may, others as administrators.
    pub(crate) fn check_administers(&self, app: &App) -> Result<(), Problem> {
        if self.0.operator {
            return Ok(());
        }
        let may = app.services().policy().may_administer(&self.0.decider(), None);
        Ok(may.map(drop).map_err(DecideError::Forbidden)?)
    }
}

/// The number of consumer groups that a learner may have for each topic. The store has a limit for all of them together.
const LEARNER_GROUPS_MAX: usize = 8;

/// A peer that reads events: one that may look, or a learner by the policy.
pub(crate) struct Reader {
    peer: Peer,
    looks: bool,
    operates: bool,
}

impl FromRequestParts<Arc<App>> for Reader {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, app: &Arc<App>) -> Result<Self, Problem> {
        Self::of(app, Peer::from_request_parts(parts, app).await?)
    }
}

impl Reader {
    /// This peer, if it may read events.
    pub(crate) fn of(app: &App, peer: Peer) -> Result<Self, Problem> {
        if app.may_operate(&peer, PrincipalRole::Learner) {
            let [looks, operates] =
                [PrincipalRole::Look, PrincipalRole::Operate].map(|part| app.may_operate(&peer, part));
            // What is on the other topics need not be of the token's organisation.
            let looks = looks && peer.claims().is_none();
            return Ok(Self { peer, looks, operates });
        }
        let why = "only operators and principals with the role `learner` or `look` may read events";
        Err(Problem::of(Kind::OperatorsOnly, why))
    }

    pub(crate) fn peer(&self) -> &Peer {
        &self.peer
    }

    /// Fails if a learner, or a token, may not read this topic.
    pub(crate) fn check_topic(&self, topic: &str) -> Result<(), Problem> {
        let learned = [Topic::ActionExecuted, Topic::Amendments].map(Topic::as_str);
        if self.looks || learned.contains(&topic) {
            return Ok(());
        }
        let why = format!(
            "learners and tokens read the topics {}; the others are for operators at the socket",
            learned.join(", ")
        );
        Err(Problem::of(Kind::OperatorsOnly, why))
    }

    /// This peer as an operator, if it is one.
    pub(crate) fn operator(&self) -> Option<Operator> {
        self.operates.then(|| Operator(self.peer.clone()))
    }

    /// Fails unless a learner may move this group, or create it beside these.
    pub(crate) fn check_group<'a>(
        &self,
        group: &str,
        known: impl Iterator<Item = &'a str> + Clone,
    ) -> Result<(), Problem> {
        // By uid: a user name may contain every character that a group may. An account keeps its groups when its token is replaced.
        let name = match &self.peer.caller {
            Caller::User(uid) => format!("u{uid}"),
            Caller::Token(claims) => {
                format!("a{}", &Digest::of(claims.principal.as_str().as_bytes()).hex()[..32])
            }
        };
        let is_own = |group: &str| {
            group.strip_prefix(&name).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
        };
        if !is_own(group) {
            let why = format!("a learner's groups begin with a name of its own: use `{name}` or `{name}.…`");
            return Err(Problem::of(Kind::OperatorsOnly, why));
        }
        let is_new = known.clone().all(|known| known != group);
        if is_new && known.filter(|known| is_own(known)).count() >= LEARNER_GROUPS_MAX {
            let why =
                format!("a learner has at most {LEARNER_GROUPS_MAX} groups for each topic: use one of them");
            return Err(Problem::of(Kind::OperatorsOnly, why));
        }
        Ok(())
    }
}
