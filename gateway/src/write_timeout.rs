//! A write timeout for connections.
//!
//! A client that sends requests and never reads the answers, or a byte now and then, would otherwise hold a task, its buffers and its
//! connection for ever; hyper bounds only how long a client may take to *send*.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep};

use crate::limits::UNREAD_BYTES_MIN;

/// A stream that fails when the peer has read nothing, or hardly anything, for a while.
pub(crate) struct WriteTimeout<S> {
    stream: S,
    time_max: Duration,
    /// In force only while a write waits.
    deadline: Pin<Box<Sleep>>,
    waiting: bool,
    /// Bytes that went out since the deadline was set.
    written: usize,
}

impl<S> WriteTimeout<S> {
    pub(crate) fn new(stream: S, time_max: Duration) -> Self {
        Self {
            stream,
            time_max,
            deadline: Box::pin(tokio::time::sleep(time_max)),
            waiting: false,
            written: 0,
        }
    }

    #[expect(clippy::disallowed_methods, reason = "how long a client may take to read")]
    fn bounded(
        &mut self,
        context: &mut Context<'_>,
        progress: Poll<io::Result<usize>>,
    ) -> Poll<io::Result<usize>> {
        if let Poll::Ready(written) = &progress {
            self.written = self.written.saturating_add(*written.as_ref().unwrap_or(&0));
            self.waiting &= self.written < UNREAD_BYTES_MIN;
            return progress;
        }
        if !self.waiting {
            (self.waiting, self.written) = (true, 0);
            self.deadline.as_mut().reset(Instant::now() + self.time_max);
        }
        ready!(self.deadline.as_mut().poll(context));
        Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "the client does not read its answer")))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for WriteTimeout<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for WriteTimeout<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let progress = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.bounded(context, progress)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.stream).poll_flush(context);
        // Everything is written: the next answer has its own time.
        self.waiting &= flushed.is_pending();
        flushed
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let progress = Pin::new(&mut self.stream).poll_write_vectored(context, slices);
        self.bounded(context, progress)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::UnixStream;

    #[tokio::test(start_paused = true)]
    async fn a_peer_that_reads_nothing_is_given_up() {
        let (ours, _theirs) = UnixStream::pair().unwrap();
        let mut ours = WriteTimeout::new(ours, Duration::from_secs(15));
        let error = ours.write_all(&vec![0; 64 << 20]).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    }

    #[tokio::test(start_paused = true)]
    async fn a_peer_that_reads_hardly_anything_is_given_up() {
        for (piece, lasts) in [(UNREAD_BYTES_MIN / 8, false), (UNREAD_BYTES_MIN, true)] {
            let (ours, mut theirs) = tokio::io::duplex(1_024);
            let mut ours = WriteTimeout::new(ours, Duration::from_secs(15));
            tokio::spawn(async move {
                let mut read = vec![0; piece];
                while theirs.read_exact(&mut read).await.is_ok() {
                    tokio::time::sleep(Duration::from_secs(10)).await;
                }
            });
            let written = ours.write_all(&vec![0; 1 << 20]).await;
            assert_eq!(
                written.map_err(|error| error.kind()).err(),
                (!lasts).then_some(io::ErrorKind::TimedOut)
            );
        }
    }
}
