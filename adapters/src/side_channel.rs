//! The side channel of a call: contents that are too long for the call or its answer travel in pieces.

use std::fmt::Debug;
use std::io;

/// The side channel as the sandbox offers it to a tool.
pub trait ToolChannel: Sync + Debug {
    /// Sends bytes on a stream, and waits until there is room for them. The tool's answer names the stream under
    /// `artifacts`; a stream that the answer does not name is discarded.
    fn send_piece(&self, stream: u8, bytes: &[u8]) -> io::Result<()>;

    /// The next piece that the pipeline sends. An empty one ends one content.
    fn receive_piece(&self) -> io::Result<Vec<u8>>;
}

/// No side channel: every use fails.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Closed;

impl ToolChannel for Closed {
    fn send_piece(&self, _: u8, _: &[u8]) -> io::Result<()> {
        Err(io::Error::from(io::ErrorKind::Unsupported))
    }

    fn receive_piece(&self) -> io::Result<Vec<u8>> {
        Err(io::Error::from(io::ErrorKind::Unsupported))
    }
}
