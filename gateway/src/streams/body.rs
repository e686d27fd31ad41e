//! The body of one stream: first what its client missed, then what happens. In between, comments show that the connection lives.

use std::convert::Infallible;
use std::sync::Arc;

use axum::body::{Body, Bytes};
use effectd_actors::Services;
use effectd_actors::approvals::live::LiveEvent;
use futures_util::StreamExt;
use futures_util::stream::unfold;
use tokio::sync::broadcast;
use tokio::time::timeout;

use super::position::{Position, page};
use super::reader::encode;
use super::{Scope, Streams, Told};
use crate::limits::{STREAM_BATCH_BYTES, STREAM_HEARTBEAT, STREAM_PAGE};
use crate::slots::Slot;

/// A comment.
pub(crate) const HEARTBEAT: Bytes = Bytes::from_static(b":\n\n");

/// Whether the client may still hear what its stream is about. It is asked before anything is sent.
pub(crate) type Guard = Box<dyn FnMut() -> bool + Send>;

pub(crate) struct Stream {
    pub(crate) services: Arc<Services>,
    pub(crate) streams: Arc<Streams>,
    pub(crate) scope: Scope,
    pub(crate) guard: Guard,
    pub(crate) _slot: Slot,
    /// Where what is sent begins.
    pub(crate) at: Position,
    /// What happens, and where it begins; `None` while the client has missed more than a page.
    pub(crate) live: Option<(Position, broadcast::Receiver<Arc<Told>>)>,
    /// Whether the first comment was sent.
    pub(crate) is_open: bool,
}

impl Stream {
    pub(crate) async fn next(mut self) -> Option<(Bytes, Self)> {
        let bytes = self.bytes().await?;
        (self.guard)().then_some((bytes, self))
    }

    async fn bytes(&mut self) -> Option<Bytes> {
        if !std::mem::replace(&mut self.is_open, true) {
            return Some(HEARTBEAT);
        }
        let position = self.streams.position()?;
        if self.live.is_none() && self.at.until(position) <= STREAM_PAGE as u64 {
            self.live = Some(self.streams.join(&self.scope)?);
        }
        let to = self.live.as_ref().map_or(position, |(to, _)| *to);
        if !self.at.covers(to) {
            let (services, scope) = (self.services.clone(), self.scope.clone());
            // Boxed, so that a stream that missed nothing has no room for it.
            let page = Box::pin(self.streams.read_page(missed(services, scope, self.at, to)));
            let (at, bytes) = page.await??;
            self.at = at;
            return Some(bytes);
        }
        let (_, live) = self.live.as_mut()?;
        hear(live, &self.scope, self.at).await
    }
}

/// The next of the events that a client missed, or a comment if none of them is for it, and where they end.
async fn missed(
    services: Arc<Services>,
    scope: Scope,
    mut at: Position,
    to: Position,
) -> Option<(Position, Bytes)> {
    let read = page(&*services.store, at, to);
    let events = read.inspect_err(|error| tracing::debug!(%error, "missed events cannot be read")).ok()?;
    if events.is_empty() {
        return None;
    }
    let mut bytes = Vec::new();
    for (next, event) in events {
        at = next;
        let live = LiveEvent::of(&services, &event);
        let Some(live) = live.filter(|live| scope.of_org(live.org.as_ref()).is_some()) else {
            continue;
        };
        for told in encode(&services, &live, next).await.ok()? {
            bytes.extend(scope.bytes(&told).into_iter().flatten());
        }
        if bytes.len() >= STREAM_BATCH_BYTES {
            break;
        }
    }
    Some((at, if bytes.is_empty() { HEARTBEAT } else { bytes.into() }))
}

/// The next event that is for this client, or a comment if there is none for a while; `None` if the client is too slow, and when the
/// daemon stops. A new stream begins at the end, and the reader may be behind it.
pub(super) async fn hear(
    live: &mut broadcast::Receiver<Arc<Told>>,
    scope: &Scope,
    at: Position,
) -> Option<Bytes> {
    let heard = async {
        loop {
            let told = live.recv().await.ok()?;
            if !at.covers(told.next)
                && let Some(bytes) = scope.bytes(&told)
            {
                return Some(bytes.clone());
            }
        }
    };
    timeout(STREAM_HEARTBEAT, heard).await.unwrap_or(Some(HEARTBEAT))
}

/// The body of an answer: what `next` returns, until it returns `None`.
pub(crate) fn streamed<S, F>(first: S, next: impl FnMut(S) -> F + Send + 'static) -> Body
where
    S: Send + 'static,
    F: Future<Output = Option<(Bytes, S)>> + Send + 'static,
{
    Body::from_stream(unfold(first, next).map(Ok::<_, Infallible>))
}
