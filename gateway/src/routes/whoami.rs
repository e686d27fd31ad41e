//! Who the caller is, and which state answers.

use axum::extract::State;

use crate::app::AppState;
use crate::extract::{Json, Reply};
use crate::peer::Peer;
use crate::problem::Problems;
use crate::views::whoami::WhoamiView;

/// Who you are
///
/// At the socket the user that the kernel names, over TCP the holder of the token. Clients ask this before they change something.
#[utoipa::path(get, path = "/v1/whoami", tag = "whoami",
    responses((status = 200, description = "You, and the state that answers", body = WhoamiView), Problems<503>))]
pub(crate) async fn show(State(app): AppState, peer: Peer) -> Reply<WhoamiView> {
    let claims = peer.claims();
    Ok(Json(WhoamiView {
        principal: peer.principal.to_string(),
        kind: claims.map(|claims| claims.kind.as_str().to_owned()),
        org: claims.map(|claims| claims.org.to_string()),
        session: claims.and_then(|claims| claims.session.as_ref()).map(ToString::to_string),
        expires_at: claims.and_then(|claims| claims.expires_at).map(|at| at.to_string()),
        state_id: app.host.state_id().to_owned(),
    }))
}
