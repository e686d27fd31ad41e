//! Unix sockets and messages that carry descriptors: the only way to pass a handle to another process.
#![allow(
    unsafe_code,
    reason = "descriptors that arrive as numbers are given an owner; the block states its argument"
)]

use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

use nix::sys::socket::{
    AddressFamily, ControlMessage, ControlMessageOwned, MsgFlags, SockFlag, SockType, recvmsg, sendmsg,
    socketpair,
};

/// Most descriptors in one message: a child's channel, its handle and its status pipe.
const FDS_MAX: usize = 3;

/// A connected pair of unix sockets; `SeqPacket` keeps the boundaries of messages.
pub(crate) fn pair(kind: SockType) -> io::Result<(OwnedFd, OwnedFd)> {
    Ok(socketpair(AddressFamily::Unix, kind, None, SockFlag::SOCK_CLOEXEC)?)
}

/// Sends one message with descriptors.
pub(crate) fn send(to: BorrowedFd<'_>, bytes: &[u8], fds: &[RawFd]) -> io::Result<usize> {
    let rights = [ControlMessage::ScmRights(fds)];
    let control: &[ControlMessage<'_>] = if fds.is_empty() { &[] } else { &rights };
    loop {
        match sendmsg::<()>(to.as_raw_fd(), &[IoSlice::new(bytes)], control, MsgFlags::MSG_NOSIGNAL, None) {
            Err(nix::errno::Errno::EINTR) => {}
            sent => return Ok(sent?),
        }
    }
}

/// Sends one short message, or fails if there is no room for it now.
pub(crate) fn try_send(to: BorrowedFd<'_>, bytes: &[u8]) -> io::Result<()> {
    let flags = MsgFlags::MSG_NOSIGNAL | MsgFlags::MSG_DONTWAIT;
    Ok(nix::sys::socket::send(to.as_raw_fd(), bytes, flags).map(drop)?)
}

/// Receives one message; an empty one means that the other side is gone.
pub(crate) fn receive(from: BorrowedFd<'_>, into: &mut [u8]) -> io::Result<(usize, Vec<OwnedFd>)> {
    let mut space = nix::cmsg_space!([RawFd; FDS_MAX]);
    let mut slices = [IoSliceMut::new(into)];
    let message = loop {
        match recvmsg::<()>(from.as_raw_fd(), &mut slices, Some(&mut space), MsgFlags::MSG_CMSG_CLOEXEC) {
            Err(nix::errno::Errno::EINTR) => {}
            received => break received?,
        }
    };
    let mut fds = Vec::new();
    for control in message.cmsgs()? {
        if let ControlMessageOwned::ScmRights(received) = control {
            // SAFETY: the kernel has just installed these descriptors for this process; nobody else owns them.
            fds.extend(received.into_iter().map(|fd| unsafe { OwnedFd::from_raw_fd(fd) }));
        }
    }
    Ok((message.bytes, fds))
}
