//! The way into the console, for the users of this machine.

use axum::extract::State;

use crate::app::AppState;
use crate::extract::{Json, Reply};
use crate::peer::Peer;
use crate::problem::{Kind, Problem, Problems};
use crate::views::console::ConsoleLink;

/// Make a one-time link to the console
///
/// It signs the first browser that opens it in as you, for twelve hours at most. It works for two minutes, and replaces your last one.
#[utoipa::path(post, path = "/v1/console/link", tag = "console",
    responses((status = 200, description = "The link", body = ConsoleLink), Problems<404, 503>))]
pub(crate) async fn link(State(app): AppState, peer: Peer) -> Reply<ConsoleLink> {
    let url = app.signed_in.url.get().ok_or_else(|| {
        let why = "the console is where the daemon listens on the network, and this one does not: `effectd serve --listen 127.0.0.1:7070`";
        Problem::of(Kind::NotFound, why)
    })?;
    let settings = app.settings();
    // A certificate is for a name, and a proxy knows no other.
    let named = settings.hosts.split(',').map(str::trim).find(|name| !name.is_empty());
    let url = match named {
        Some(name) if settings.behind_proxy => format!("https://{name}"),
        Some(name) if settings.is_tls() => match url.rsplit_once(':') {
            Some((_, port)) => format!("https://{name}:{port}"),
            None => url.clone(),
        },
        Some(_) | None => url.replace("//0.0.0.0:", "//localhost:").replace("//[::]:", "//localhost:"),
    };
    let principal = peer.principal.to_string();
    let (value, ends) = app.signed_in.link(peer, &*app.services().clock)?;
    Ok(Json(ConsoleLink {
        url: format!("{url}/console/link/{value}"),
        principal,
        expires_at: ends.to_string(),
    }))
}
