//! The routes in this process, as pages call them: for the person who is signed in, with all that the routes check.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::{FromRequestParts, Request};
use axum::http::request::Parts;
use axum::http::{Method, header};
use axum::response::{Html, IntoResponse, Redirect, Response};
use axum::{Extension, Router};
use http_body_util::{BodyExt, Limited};
use hyper::service::Service;
use hyper_util::service::TowerToHyperService;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::app::App;
use crate::client::percent_encoded;
use crate::headers;
use crate::peer::Peer;
use crate::problem::{Kind, Problem};
use crate::routes;

/// The largest answer that a page reads.
const ANSWER_BYTES_MAX: usize = 16 * 1_048_576;
/// Pages of a list that are read: hundreds of rows.
const PAGES_MAX: usize = 100;
/// Rows of them that are kept.
const ROWS_MAX: usize = 1_000;
/// Where a link of another page leads here, no cookie counts. The same page asks again, from here.
const AGAIN: &str = "<!doctype html><meta http-equiv=\"refresh\" content=\"0\"><title>effectd</title>";

#[derive(Clone)]
pub(super) struct Routes(TowerToHyperService<Router>);

impl Routes {
    pub(super) fn new(app: &Arc<App>) -> Self {
        Self(TowerToHyperService::new(routes::all(app.clone(), Router::new())))
    }
}

/// The routes, for the person who is signed in. Who is not is sent to sign in.
pub(super) struct Api {
    pub(super) peer: Peer,
    routes: Routes,
}

impl FromRequestParts<Arc<App>> for Api {
    type Rejection = Response;

    async fn from_request_parts(parts: &mut Parts, app: &Arc<App>) -> Result<Self, Response> {
        let routes = Extension::<Routes>::from_request_parts(parts, app).await;
        let Extension(routes) = routes.map_err(IntoResponse::into_response)?;
        if let Some(peer) = parts.extensions.get::<Peer>().cloned() {
            return Ok(Self { peer, routes });
        }
        let is_get = parts.method == Method::GET;
        if is_get && headers::is_from_elsewhere(&parts.headers) {
            return Err(Html(AGAIN).into_response());
        }
        // No page: a stream of events that is led to one would be an error to the browser.
        if parts.headers.get(header::ACCEPT).is_some_and(|accept| accept == "text/event-stream") {
            return Err(Problem::of(Kind::Unauthenticated, "nobody is signed in here").into_response());
        }
        let to = parts.uri.path_and_query().map_or("/", |path| path.as_str());
        let to = if is_get && to != "/" { format!("?to={}", percent_encoded(to)) } else { String::new() };
        Err(Redirect::to(&format!("/console/login{to}")).into_response())
    }
}

impl Api {
    pub(super) async fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, Problem> {
        read(self.send(Method::GET, path, Vec::new(), &[]).await?).await
    }

    pub(super) async fn post<T: DeserializeOwned>(
        &self,
        path: &str,
        body: &impl Serialize,
    ) -> Result<T, Problem> {
        let body = serde_json::to_vec(body).map_err(|error| internal(&error))?;
        read(self.send(Method::POST, path, body, &[]).await?).await
    }

    /// The last of what a list has, the newest first. The routes begin with the oldest.
    pub(super) async fn newest<P: DeserializeOwned, T>(
        &self,
        path: &str,
        split: fn(P) -> (Vec<T>, Option<String>),
    ) -> Result<Vec<T>, Problem> {
        let (mut all, mut next) = split(self.get(path).await?);
        let joint = if path.contains('?') { '&' } else { '?' };
        for _ in 1..PAGES_MAX {
            let Some(after) = next else { break };
            all.drain(..all.len().saturating_sub(ROWS_MAX));
            let page = format!("{path}{joint}after={}", percent_encoded(&after));
            let (more, later) = split(self.get(&page).await?);
            all.extend(more);
            next = later;
        }
        all.reverse();
        Ok(all)
    }

    /// The whole answer, whatever its status is.
    pub(super) async fn send(
        &self,
        method: Method,
        path: &str,
        body: Vec<u8>,
        headers: &[(&str, &str)],
    ) -> Result<Response, Problem> {
        let mut request = Request::builder().method(method).uri(path);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let request = request
            .header(header::CONTENT_TYPE, "application/json")
            .extension(self.peer.clone())
            .extension(routes::Inner);
        let request = request.body(Body::from(body)).map_err(|error| internal(&error))?;
        match self.routes.0.call(request).await {
            Ok(response) => Ok(response),
            Err(never) => match never {},
        }
    }
}

async fn read<T: DeserializeOwned>(response: Response) -> Result<T, Problem> {
    let status = response.status();
    let body = Limited::new(response.into_body(), ANSWER_BYTES_MAX).collect().await;
    let body = body.map_err(|error| Problem::of(Kind::Internal, error.to_string()))?.to_bytes();
    if status.as_u16() < 400 {
        return serde_json::from_slice(&body).map_err(|error| internal(&error));
    }
    Err(serde_json::from_slice(&body).unwrap_or_else(|error| internal(&error)))
}

fn internal(error: &dyn std::fmt::Display) -> Problem {
    Problem::of(Kind::Internal, error.to_string())
}
