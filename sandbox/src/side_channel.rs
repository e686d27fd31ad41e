//! The side channel of a call: contents that are too long for the request or the answer travel in pieces while the call runs.
//!
//! Neither side holds more than a few pieces. A slow receiver makes the sender wait, and with it the program whose
//! output is sent.

use tokio::sync::mpsc;

/// A piece that a child sends while it runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Piece {
    /// The stream it belongs to; the child's answer says what each stream is.
    pub stream: u8,
    /// The bytes. The child chose them.
    pub bytes: Vec<u8>,
}

/// The side channel of one call, in both directions. By default both are closed, and a child that sends pieces fails.
#[derive(Debug, Default)]
pub struct SideChannel {
    /// What the child receives, in order. An empty piece ends one content. When the sender is dropped, the child reads
    /// the end of the channel, even within a content.
    pub inward: Option<mpsc::Receiver<Vec<u8>>>,
    /// Where the child's pieces go. If the receiver is gone, they are dropped and the child does not notice.
    pub outward: Option<Outward>,
}

/// The receiver of a child's pieces, and how much it takes.
#[derive(Debug)]
pub struct Outward {
    pub to: mpsc::Sender<Piece>,
    /// Most bytes of the whole call, headers included; a child that sends more ends with `output_limit`.
    pub bytes_max: u64,
}
