//! What all pages share: their frame, their headers, how foreign text is shown, and the page of a problem.

use std::sync::Arc;

use askama::Template;
use axum::extract::{FromRequest, FromRequestParts, Request, State};
use axum::http::request::Parts;
use axum::http::{HeaderName, HeaderValue, StatusCode, header};
use axum::response::{Html, IntoResponse, Response};
use effectd_contracts::Timestamp;
use serde::de::DeserializeOwned;

use super::api::Api;
use super::assets;
use crate::app::{App, AppState};
use crate::body::BodyBytes;
use crate::extract::{self, Payload};
use crate::problem::{Kind, Problem};

/// Nothing but the own files, and no text becomes HTML in the browser. A form names its origin under this referrer policy, and other
/// sites learn nothing.
const HEADERS: [(HeaderName, HeaderValue); 5] = [
    (
        header::CONTENT_SECURITY_POLICY,
        HeaderValue::from_static(
            "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; form-action 'self'; \
             frame-ancestors 'none'; base-uri 'none'; require-trusted-types-for 'script'; trusted-types 'none'",
        ),
    ),
    (header::REFERRER_POLICY, HeaderValue::from_static("same-origin")),
    (header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff")),
    (HeaderName::from_static("cross-origin-opener-policy"), HeaderValue::from_static("same-origin")),
    (HeaderName::from_static("cross-origin-resource-policy"), HeaderValue::from_static("same-origin")),
];

/// How long a browser that came over TLS comes over nothing else: a year.
const ONLY_TLS: HeaderValue = HeaderValue::from_static("max-age=31536000");

/// Every answer of the console has these headers, and only its files are kept.
pub(super) async fn secured(State(app): AppState, mut response: Response) -> Response {
    let headers = response.headers_mut();
    headers.extend(HEADERS);
    if app.settings().is_tls() {
        headers.insert(header::STRICT_TRANSPORT_SECURITY, ONLY_TLS);
    }
    headers.entry(header::CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
    response
}

/// The frame around a page.
pub(super) struct Shell {
    pub(super) title: String,
    /// The entry of the navigation: `inbox`, `actions` or `operations`.
    pub(super) tab: &'static str,
    /// Who is signed in; empty for nobody.
    pub(super) who: String,
}

impl Shell {
    pub(super) fn new(title: impl Into<String>, tab: &'static str, api: &Api) -> Self {
        Self { title: title.into(), tab, who: api.peer.principal.to_string() }
    }

    /// The frame for somebody who is not signed in.
    pub(super) fn bare(title: impl Into<String>) -> Self {
        Self { title: title.into(), tab: "", who: String::new() }
    }

    pub(super) fn style(&self) -> String {
        assets::STYLE.path()
    }

    pub(super) fn script(&self) -> String {
        assets::SCRIPT.path()
    }

    pub(super) fn icon(&self) -> String {
        assets::ICON.path()
    }
}

/// A page with this status.
pub(super) fn page(status: StatusCode, template: &impl Template) -> Response {
    match template.render() {
        Ok(html) => (status, Html(html)).into_response(),
        Err(error) => Problem::of(Kind::Internal, error.to_string()).into_response(),
    }
}

/// What a handler answers; a problem becomes a page, too.
pub(super) type Page = Result<Response, Failed>;

pub(super) struct Failed(pub(super) Problem);

impl<E: Into<Problem>> From<E> for Failed {
    fn from(error: E) -> Self {
        Self(error.into())
    }
}

#[derive(Template)]
#[template(path = "problem.html")]
struct ProblemPage {
    shell: Shell,
    problem: Problem,
}

impl IntoResponse for Failed {
    fn into_response(self) -> Response {
        let Self(problem) = self;
        let status = StatusCode::from_u16(problem.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        // The headers say when to come again, and whether the connection closes.
        let (mut head, _) = problem.clone().into_response().into_parts();
        head.headers.remove(header::CONTENT_TYPE);
        head.headers.remove(header::CONTENT_LENGTH);
        let mut response = page(status, &ProblemPage { shell: Shell::bare(problem.title.clone()), problem });
        head.headers.extend(std::mem::take(response.headers_mut()));
        *response.headers_mut() = head.headers;
        response
    }
}

/// Fields of a form: a page of the queue has 100 rows, and a tool some dozens of parameters. In memory each takes many times its bytes.
const FIELDS_MAX: usize = 1_000;

/// The fields of a form. A field that is sent twice has its last value, except for those in [`Form::all`].
pub(super) struct Form {
    fields: Vec<(String, String)>,
}

impl Form {
    pub(super) fn of(body: &[u8]) -> Result<Self, Problem> {
        let fields: Vec<_> = form_urlencoded::parse(body).into_owned().take(FIELDS_MAX + 1).collect();
        if fields.len() > FIELDS_MAX {
            return Err(Problem::of(Kind::QueryInvalid, "the form has too many fields"));
        }
        Ok(Self { fields })
    }

    pub(super) fn get<'a>(&'a self, name: &'a str) -> Option<&'a str> {
        self.all(name).last()
    }

    /// A field that is not empty.
    pub(super) fn text(&self, name: &str) -> Option<String> {
        self.get(name).map(str::trim).filter(|text| !text.is_empty()).map(str::to_owned)
    }

    pub(super) fn all<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a str> {
        self.fields.iter().filter(move |(key, _)| key == name).map(|(_, value)| value.as_str())
    }
}

impl FromRequest<Arc<App>> for Form {
    type Rejection = Failed;

    async fn from_request(request: Request, app: &Arc<App>) -> Result<Self, Failed> {
        let body = Payload::from_request(request, app).await?;
        let BodyBytes { bytes, share: _share } = app.body(body).await?;
        Ok(Self::of(&bytes)?)
    }
}

/// The query of a page; one that is wrong gets a page, too.
pub(super) struct Query<T>(pub(super) T);

impl<T: DeserializeOwned + Send> FromRequestParts<Arc<App>> for Query<T> {
    type Rejection = Failed;

    async fn from_request_parts(parts: &mut Parts, app: &Arc<App>) -> Result<Self, Failed> {
        let extract::Query(query) = extract::Query::from_request_parts(parts, app).await?;
        Ok(Self(query))
    }
}

/// Browsers send line breaks as two characters, whatever they were.
pub(super) fn plain_breaks(text: &str) -> String {
    text.replace("\r\n", "\n").replace('\r', "\n")
}

/// A time to the minute: `2026-11-18 12:00 UTC`.
pub(super) fn moment(at: &str) -> String {
    let parsed: Result<Timestamp, _> = at.parse();
    parsed.map_or_else(|_| at.to_owned(), |at| at.strftime("%Y-%m-%d %H:%M UTC").to_string())
}

/// Filters of templates.
#[expect(unreachable_pub, reason = "what the macro makes of a filter is public")]
pub(super) mod filters {
    use std::fmt::Display;

    use askama::Values;

    use crate::client::percent_encoded;
    use crate::text;

    /// A line of foreign text, as in the terminal: nothing hidden, no change of direction, and not too long.
    #[askama::filter_fn]
    pub(in crate::console) fn shown<T: Display>(
        text: T,
        _: &dyn Values,
        #[optional(400)] columns_max: usize,
    ) -> askama::Result<String> {
        Ok(text::shown(&text.to_string(), columns_max))
    }

    /// See [`super::moment`].
    #[askama::filter_fn]
    pub(in crate::console) fn moment<T: Display>(at: T, _: &dyn Values) -> askama::Result<String> {
        Ok(super::moment(&at.to_string()))
    }

    /// What a risk tier means.
    #[askama::filter_fn]
    pub(in crate::console) fn risk<T: Display>(tier: T, _: &dyn Values) -> askama::Result<&'static str> {
        Ok(match &*tier.to_string() {
            "R0" => "no side effects, local",
            "R1" => "a contained write that can be undone",
            "R2" => "another write that can be undone",
            "R3" => "irreversible, far-reaching, into another space, or unknown",
            "R4" => "destructive",
            _ => "",
        })
    }

    /// A text as one part of a path or a query.
    #[askama::filter_fn]
    pub(in crate::console) fn urlencoded<T: Display>(text: T, _: &dyn Values) -> askama::Result<String> {
        Ok(percent_encoded(&text.to_string()))
    }
}
