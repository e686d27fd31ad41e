//! Who sends a request: at the socket the user that the kernel names, over TCP the holder of a token.

use std::sync::Arc;

use effectd_actors::Decider;
use effectd_actors::services::tokens::Claims;
use effectd_contracts::{ActionId, Code, Failure, Phase, Principal, Receipt, SessionId};
use nix::unistd::{Uid, User, geteuid};
use tokio::net::UnixStream;

use crate::slots::Holder;

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

    /// The whole id of an action that this peer submits. Over the network it begins with the session or the principal, so that nobody
    /// takes the id of another's action, or learns that there is one. At the socket, it is not that of an account.
    pub(crate) fn whole_id(&self, id: &ActionId) -> Result<ActionId, Failure> {
        let Some(claims) = self.claims() else {
            if id.as_str().starts_with("account://") {
                let message = "an action_id that begins with account:// is for the account's own actions";
                return Err(Failure::new(Code::Malformed, Phase::Accept, message));
            }
            return Ok(id.clone());
        };
        let owner = claims.session.as_ref().map_or(claims.principal.as_str(), SessionId::as_str);
        if id.as_str().strip_prefix(owner).is_some_and(|rest| rest.starts_with('/')) {
            return Ok(id.clone());
        }
        ActionId::new(format!("{owner}/{id}")).map_err(|error| {
            let message = format!("{error}; it is stored with {owner}/ before it");
            Failure::new(Code::Malformed, Phase::Accept, message)
        })
    }

    /// The whole ids that this peer may mean by an id: that of its own action, then that of one which it may see. An agent sees its own
    /// only, so another's is not even looked up.
    pub(crate) fn meant_ids(&self, id: &ActionId) -> Vec<ActionId> {
        let own = self.whole_id(id).ok();
        let is_agent = self.claims().is_some_and(|claims| claims.session.is_some());
        let other = (!is_agent && own.as_ref() != Some(id)).then(|| id.clone());
        own.into_iter().chain(other).collect()
    }

    /// Whose bounds count what this peer takes.
    pub(crate) fn holder(&self) -> Holder {
        match &self.caller {
            Caller::User(uid) => Holder::User(*uid),
            Caller::Token(claims) => Holder::Account(claims.account.clone()),
        }
    }

    pub(crate) fn decider(&self) -> Decider {
        let (principal, operator, claims) = (self.principal.clone(), self.operator, self.claims());
        let (kind, org) = claims.map(|claims| (claims.kind, claims.org.clone())).unzip();
        let claims = claims.map_or_else(Vec::new, |claims| claims.roles.clone());
        Decider { principal, operator, kind, org, claims }
    }

    pub(crate) fn may_see(&self, receipt: &Receipt) -> bool {
        self.operator || receipt.principal == self.principal
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn nobody_at_the_socket_takes_an_id_of_an_account() {
        let principal = Principal::new("user://alice").unwrap();
        let peer = Peer { caller: Caller::User(1), principal, operator: false };
        let [own, other] = ["a/b", "account://home/ada/x"].map(|id| ActionId::new(id).unwrap());
        assert_eq!(peer.whole_id(&own).unwrap(), own);
        assert_eq!(peer.whole_id(&other).unwrap_err().code, Code::Malformed);
        // Who may see it asks for it by this id.
        assert_eq!(peer.meant_ids(&other), std::slice::from_ref(&other));
    }
}
