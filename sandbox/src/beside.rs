//! What is too long for a request or an answer goes beside them, in pieces, while the call runs.
//!
//! Neither side holds more than a few pieces: whoever does not take them makes the other one wait, down to the program whose
//! output it is.

use std::convert::Infallible;
use std::io;
use std::os::fd::AsRawFd;

use nix::sys::socket::{Shutdown, shutdown};
use tokio::sync::mpsc;

use crate::ending::Cause;
use crate::limits::PIECE_BYTES_MAX;
use crate::run::{Watched, read_up_to, write_all};
use crate::wire::{HEADER_BYTES, piece_head};

/// Something that a child hands out while it runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Piece {
    /// Which of the long things it belongs to; the child says in its answer what they are.
    pub stream: u8,
    /// The bytes. They are the child's own words.
    pub bytes: Vec<u8>,
}

/// The two ways beside a call. By default neither is open: a child that sends pieces then has sent garbage.
#[derive(Debug, Default)]
pub struct Beside {
    /// What the child is given, in order. An empty piece ends one content. When the sender is dropped, the child reads the
    /// end, wherever it was.
    pub inward: Option<mpsc::Receiver<Vec<u8>>>,
    /// What the child hands out. Should nobody take it any more, it is dropped: the child is not disturbed.
    pub outward: Option<Outward>,
}

/// Who takes what a child hands out, and how much of it.
#[derive(Debug)]
pub struct Outward {
    pub to: mpsc::Sender<Piece>,
    /// Most bytes of the whole call, heads of pieces counted; one that sends more is ended with `output_limit`.
    pub bytes_max: u64,
}

impl Outward {
    /// Takes one piece whose head has come; `Some` if that ends the call.
    pub(crate) async fn take(&mut self, channel: &Watched<'_>, length: usize) -> Option<Cause> {
        if !(1..=1 + PIECE_BYTES_MAX).contains(&length) {
            return Some(Cause::Garbage);
        }
        let Some(left) = self.bytes_max.checked_sub((HEADER_BYTES + length) as u64) else {
            return Some(Cause::OutputLimit);
        };
        self.bytes_max = left;
        let mut bytes = Vec::with_capacity(length);
        if read_up_to(channel, &mut bytes, length).await.is_err() {
            return Some(Cause::Silent);
        }
        let stream = bytes.remove(0);
        let _nobody_takes_it = self.to.send(Piece { stream, bytes }).await;
        // A child that does nothing but talk must not keep this task from its deadline.
        tokio::task::yield_now().await;
        None
    }
}

/// Sends the request and what goes beside it. It never ends: what the child has to say to it comes back on the same channel.
pub(crate) async fn tell(
    channel: &Watched<'_>,
    frame: &[u8],
    inward: &mut Option<mpsc::Receiver<Vec<u8>>>,
) -> Infallible {
    // A child that takes no more has answered or died; the channel tells which.
    let _gone = tell_all(channel, frame, inward).await;
    std::future::pending().await
}

async fn tell_all(
    channel: &Watched<'_>,
    frame: &[u8],
    inward: &mut Option<mpsc::Receiver<Vec<u8>>>,
) -> io::Result<()> {
    write_all(channel, frame).await?;
    let Some(inward) = inward else { return Ok(()) };
    while let Some(bytes) = inward.recv().await {
        for chunk in chunks(&bytes) {
            write_all(channel, &piece_head(0, chunk.len())).await?;
            write_all(channel, chunk).await?;
        }
    }
    Ok(shutdown(channel.get_ref().as_raw_fd(), Shutdown::Write)?)
}

/// No larger than a piece may be; an empty content is one empty chunk.
pub(crate) fn chunks(bytes: &[u8]) -> impl Iterator<Item = &[u8]> {
    let empty = bytes.is_empty().then_some(bytes);
    empty.into_iter().chain(bytes.chunks(PIECE_BYTES_MAX))
}
