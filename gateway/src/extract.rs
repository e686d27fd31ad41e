//! What handlers take from a request. Whatever cannot be taken is a problem.

use std::sync::Arc;

use axum::extract::{FromRequestParts, State};
use axum::http::request::Parts;
use serde::de::DeserializeOwned;

use crate::desk::Desk;
use crate::peer::Peer;
use crate::problem::{Kind, Problem};

pub(crate) type App = State<Arc<Desk>>;

/// What stands behind the `?`.
pub(crate) struct Query<T>(pub(crate) T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequestParts<S> for Query<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        let query = axum::extract::Query::from_request_parts(parts, state).await;
        let query = query.map_err(|error| Problem::of(Kind::QueryInvalid, error.body_text()))?;
        Ok(Self(query.0))
    }
}

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
        peer.ok_or_else(|| Problem::of(Kind::Internal, "nobody is at the other end"))
    }
}

/// Root, or the user that the daemon runs as; nobody else passes.
pub(crate) struct Operator(pub(crate) Peer);

impl<S: Send + Sync> FromRequestParts<S> for Operator {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        let peer = Peer::from_request_parts(parts, state).await?;
        if peer.operator {
            return Ok(Self(peer));
        }
        let why = "this is for root and the user that the daemon runs as; ask one of them";
        Err(Problem::of(Kind::OperatorsOnly, why))
    }
}
