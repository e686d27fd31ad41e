//! What is too long for a call or its answer goes beside them, in pieces.

use std::fmt::Debug;
use std::io;

/// The two ways beside a call, as the sandbox gives them to a tool.
pub trait Beside: Sync + Debug {
    /// Hands out a piece of something long, and waits until there is room for it. The answer names the stream under
    /// `artifacts`; a stream that it does not name is forgotten.
    fn say(&self, stream: u8, bytes: &[u8]) -> io::Result<()>;

    /// The next piece of what was sent along. An empty one ends one content.
    fn hear(&self) -> io::Result<Vec<u8>>;
}

/// Nobody is there, as for a call that is only tried out.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Nobody;

impl Beside for Nobody {
    fn say(&self, _: u8, _: &[u8]) -> io::Result<()> {
        Err(io::Error::from(io::ErrorKind::Unsupported))
    }

    fn hear(&self) -> io::Result<Vec<u8>> {
        Err(io::Error::from(io::ErrorKind::Unsupported))
    }
}
