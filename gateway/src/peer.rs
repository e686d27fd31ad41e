//! Who sends a request: at the socket the user that the kernel names, over TCP the holder of a token.

use std::sync::Arc;

use effectd_actors::Decider;
use effectd_actors::services::tokens::Claims;
use effectd_contracts::{Principal, Receipt};
use nix::unistd::{Uid, User, geteuid};
use tokio::net::UnixStream;

#[derive(Debug, Clone)]
pub(crate) struct Peer {
    pub(crate) caller: Caller,
    pub(crate) principal: Principal,
    /// Root, or the user that the daemon runs as: both can read the state directory anyway. No token makes an operator.
    pub(crate) operator: bool,
}

/// How a peer is known.
#[derive(Debug, Clone)]
pub(crate) enum Caller {
    /// By its uid, at the socket or in this process.
    User(u32),
    /// By its token, over TCP.
    Token(Arc<Claims>),
}

/// The uid that the peer had when it opened the connection.
pub(crate) fn uid(stream: &UnixStream) -> std::io::Result<u32> {
    Ok(stream.peer_cred()?.uid())
}

pub(crate) fn is_operator(uid: u32) -> bool {
    uid == 0 || uid == geteuid().as_raw()
}

impl Peer {
    /// `user://<name>`, or `user://<uid>` if the uid has no name. The lookup may take a network round trip, so it runs on a
    /// thread of its own.
    pub(crate) async fn of(uid: u32) -> Option<Self> {
        let named = tokio::task::spawn_blocking(move || User::from_uid(Uid::from_raw(uid)));
        let name = match named.await {
            Ok(Ok(Some(user))) => user.name,
            Ok(Ok(None) | Err(_)) | Err(_) => uid.to_string(),
        };
        let principal = Principal::new(format!("user://{name}")).ok()?;
        Some(Self { caller: Caller::User(uid), principal, operator: is_operator(uid) })
    }

    /// The token's claims; `None` at the socket.
    pub(crate) fn claims(&self) -> Option<&Claims> {
        match &self.caller {
            Caller::User(_) => None,
            Caller::Token(claims) => Some(claims),
        }
    }

    pub(crate) fn decider(&self) -> Decider {
        let (principal, operator, claims) = (self.principal.clone(), self.operator, self.claims());
        let kind = claims.map(|claims| claims.kind);
        let claims = claims.map_or_else(Vec::new, |claims| claims.roles.clone());
        Decider { principal, operator, kind, claims }
    }

    pub(crate) fn may_see(&self, receipt: &Receipt) -> bool {
        self.operator || receipt.principal == self.principal
    }
}
