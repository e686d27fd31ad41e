//! Who is at the door, by the kernel's word.

use effectd_contracts::{Principal, Receipt};
use nix::unistd::{Uid, User, geteuid};
use tokio::net::UnixStream;

#[derive(Debug, Clone)]
pub(crate) struct Peer {
    pub(crate) principal: Principal,
    /// Root, or the user that the daemon runs as: whoever can read the state directory anyway.
    pub(crate) operator: bool,
}

/// The uid of whoever opened the connection. It is what it was then, whatever the process has become since.
pub(crate) fn uid(stream: &UnixStream) -> std::io::Result<u32> {
    Ok(stream.peer_cred()?.uid())
}

/// Root, or the user that the daemon runs as.
pub(crate) fn is_operator(uid: u32) -> bool {
    uid == 0 || uid == geteuid().as_raw()
}

impl Peer {
    /// `user://<name>`; the number where there is no name. Names may come over a network, so this must not block a worker.
    pub(crate) async fn of(uid: u32) -> Option<Self> {
        let named = tokio::task::spawn_blocking(move || User::from_uid(Uid::from_raw(uid)));
        let name = match named.await {
            Ok(Ok(Some(user))) => user.name,
            Ok(Ok(None) | Err(_)) | Err(_) => uid.to_string(),
        };
        let principal = Principal::new(format!("user://{name}")).ok()?;
        Some(Self {
            principal,
            operator: is_operator(uid),
        })
    }

    pub(crate) fn may_see(&self, receipt: &Receipt) -> bool {
        self.operator || receipt.principal == self.principal
    }
}
