//! The files of the console, in the program: a browser keeps them for good, since another content has another name.

use std::sync::{Arc, LazyLock};

use axum::Router;
use axum::body::Bytes;
use axum::extract::Path;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use effectd_contracts::Digest;

use crate::app::App;
use crate::problem::{Kind, Problem};

/// Digits of the digest in a name.
const DIGITS: usize = 16;
const FOREVER: &str = "public, max-age=31536000, immutable";

pub(super) struct Asset {
    bytes: Bytes,
    media_type: &'static str,
    name: String,
    tag: String,
}

impl Asset {
    /// Without indentation and lines of comments, which a browser does not read.
    fn new(name: &str, media_type: &'static str, text: &str) -> Self {
        let is_comment =
            |line: &str| line.starts_with("//") || (line.starts_with("/*") && line.ends_with("*/"));
        let lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !is_comment(line));
        let bytes = Bytes::from(lines.collect::<Vec<_>>().join("\n"));
        let digest = Digest::of(&bytes);
        let name = format!("{}-{name}", &digest.hex()[..DIGITS]);
        Self { bytes, media_type, name, tag: format!("\"{digest}\"") }
    }

    pub(super) fn path(&self) -> String {
        format!("/console/assets/{}", self.name)
    }
}

pub(super) static STYLE: LazyLock<Asset> = LazyLock::new(|| {
    Asset::new("console.css", "text/css; charset=utf-8", include_str!("../../templates/console.css"))
});
pub(super) static SCRIPT: LazyLock<Asset> = LazyLock::new(|| {
    Asset::new("console.js", "text/javascript; charset=utf-8", include_str!("../../templates/console.js"))
});
pub(super) static ICON: LazyLock<Asset> =
    LazyLock::new(|| Asset::new("icon.svg", "image/svg+xml", include_str!("../../templates/icon.svg")));

pub(super) fn routes() -> Router<Arc<App>> {
    Router::new().route("/console/assets/{name}", get(show))
}

async fn show(Path(name): Path<String>, headers: HeaderMap) -> Response {
    let Some(asset) = [&STYLE, &SCRIPT, &ICON].into_iter().find(|asset| asset.name == name) else {
        return Problem::of(Kind::NoSuchPath, "the console has no such file").into_response();
    };
    let kept = [(header::CACHE_CONTROL, FOREVER), (header::ETAG, asset.tag.as_str())];
    if headers.get(header::IF_NONE_MATCH).is_some_and(|tag| tag == asset.tag.as_str()) {
        return (StatusCode::NOT_MODIFIED, kept).into_response();
    }
    (kept, [(header::CONTENT_TYPE, asset.media_type)], asset.bytes.clone()).into_response()
}
