//! What handlers take from a request and answer: extractors whose failures are problems, and JSON.

use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::peer::Peer;
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
        peer.ok_or_else(|| Problem::of(Kind::Internal, "the connection has no peer"))
    }
}

/// A peer that is an operator; everybody else gets a problem.
pub(crate) struct Operator(pub(crate) Peer);

impl<S: Send + Sync> FromRequestParts<S> for Operator {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        let peer = Peer::from_request_parts(parts, state).await?;
        if peer.operator {
            return Ok(Self(peer));
        }
        let why = "only root and the user that the daemon runs as may do this";
        Err(Problem::of(Kind::OperatorsOnly, why))
    }
}
