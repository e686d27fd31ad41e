//! Who is at the other end of a connection, as the kernel says: no header can claim another principal.

use effectd_actors::Decider;
use effectd_contracts::{Principal, Receipt};
use nix::unistd::{Uid, User, geteuid};
use tokio::net::UnixStream;

#[derive(Debug, Clone)]
pub(crate) struct Peer {
    pub(crate) uid: u32,
    pub(crate) principal: Principal,
    /// Root, or the user that the daemon runs as: both can read the state directory anyway.
    pub(crate) operator: bool,
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
        Some(Self { uid, principal, operator: is_operator(uid) })
    }

    pub(crate) fn decider(&self) -> Decider {
        Decider { principal: self.principal.clone(), operator: self.operator }
    }

    pub(crate) fn may_see(&self, receipt: &Receipt) -> bool {
        self.operator || receipt.principal == self.principal
    }
}
