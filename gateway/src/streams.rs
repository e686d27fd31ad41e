//! Streams of live events: who listens to what.
//!
//! One task ([`reader`]) reads the topics for all streams, encodes each event once, and hands the same bytes to all who listen to its
//! organisation or its session. Events of others cost a client nothing. A client that does not read loses its stream when its queue is
//! full; it comes back with the cursor of the last event that it has ([`position`]) and first gets what it missed ([`body`]).

pub(crate) mod body;
pub(crate) mod position;
pub(crate) mod reader;

use std::collections::HashMap;
use std::sync::Arc;

use axum::body::Bytes;
use effectd_bus::Store;
use effectd_contracts::{Code, Failure, OrgId, Phase, SessionId};
use parking_lot::Mutex;
use prometheus::IntGauge;
use tokio::runtime::Handle;
use tokio::sync::{Semaphore, broadcast};

use crate::limits::{
    STREAM_EVENTS_MAX, STREAM_PAGES_MAX, STREAM_SESSION_EVENTS_MAX, STREAMS_MAX, STREAMS_PER_ACCOUNT_MAX,
    STREAMS_RESERVE,
};
use crate::peer::{Caller, Peer};
use crate::problem::{Kind, Problem};
use crate::slots::{Slot, Slots};
use position::Position;

/// How much of an organisation's invocations a client sees, here and in the inbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Detail {
    Full,
    /// All of sessions; of deleted ones and of planners without one, neither parameters nor error messages.
    Sessions,
    /// Without parameters and error messages: for those who only look.
    Brief,
}

impl Detail {
    /// Whether it shows what is in an invocation. `of_session` says whether its session is there.
    pub(crate) const fn has_contents(self, of_session: bool) -> bool {
        match self {
            Self::Full => true,
            Self::Sessions => of_session,
            Self::Brief => false,
        }
    }
}

/// What a client hears.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Scope {
    pub(crate) orgs: Vec<(OrgId, Detail)>,
    /// Of these organisations, only this session.
    pub(crate) session: Option<SessionId>,
    /// Everything else.
    pub(crate) others: Option<Detail>,
}

impl Scope {
    /// How much it hears of this organisation, if anything.
    fn of_org(&self, org: Option<&OrgId>) -> Option<Detail> {
        let own = self.orgs.iter().find(|(own, _)| Some(own) == org).map(|(_, detail)| *detail);
        own.or(self.others)
    }

    /// What it hears of this event, if anything.
    fn bytes<'a>(&self, told: &'a Told) -> Option<&'a Bytes> {
        if self.session.as_ref().is_some_and(|own| own.as_str() != told.session) {
            return None;
        }
        let detail = self.of_org(told.org.as_ref())?;
        Some(if detail.has_contents(told.of_session) { &told.full } else { &told.brief })
    }

    /// The narrowest channel that has all it hears.
    fn channel(&self) -> Channel {
        match (&self.orgs[..], self.others) {
            ([(org, _)], None) => (Some(org.clone()), self.session.as_ref().map(ToString::to_string)),
            _ => (None, None),
        }
    }
}

/// An event as clients get it.
#[derive(Debug)]
pub(crate) struct Told {
    org: Option<OrgId>,
    session: String,
    /// Whether the session was there when the event was encoded.
    of_session: bool,
    /// The position after it.
    next: Position,
    full: Bytes,
    brief: Bytes,
}

/// A session of an organisation, the whole organisation, or everything.
type Channel = (Option<OrgId>, Option<String>);

/// All streams of this process.
pub(crate) struct Streams {
    open: Mutex<Open>,
    slots: Slots,
    /// For reading what clients missed.
    pages: Arc<Semaphore>,
    /// For their lists of tools.
    lists: Arc<Semaphore>,
}

#[derive(Default)]
struct Open {
    /// Whether the reader runs.
    is_reading: bool,
    /// Everything before it was handed out.
    position: Position,
    channels: HashMap<Channel, broadcast::Sender<Arc<Told>>>,
}

async fn on_thread<T: Send + 'static>(
    permits: &Arc<Semaphore>,
    read: impl Future<Output = T> + Send + 'static,
) -> Option<T> {
    let (permit, runtime) = (permits.clone().acquire_owned().await.ok()?, Handle::current());
    let read = move || {
        let _permit = permit;
        runtime.block_on(read)
    };
    tokio::task::spawn_blocking(read).await.ok()
}

impl Streams {
    pub(crate) fn new(store: &dyn Store, gauge: &IntGauge) -> Arc<Self> {
        // If the store cannot say where it ends, the reader finds it.
        let position = Position::end_of(store).unwrap_or_default();
        let open = Mutex::new(Open { position, ..Open::default() });
        let [pages, lists] = [(); 2].map(|()| Arc::new(Semaphore::new(STREAM_PAGES_MAX)));
        Arc::new(Self { open, slots: Slots::shown_by(gauge), pages, lists })
    }

    /// Reads what a client missed, on a thread of its own, a few at a time for all clients. A client that goes away meanwhile makes no
    /// room for another one before its page is read.
    pub(crate) async fn read_page<T: Send + 'static>(
        &self,
        read: impl Future<Output = T> + Send + 'static,
    ) -> Option<T> {
        on_thread(&self.pages, read).await
    }

    /// The same for a client's list of tools.
    pub(crate) async fn read_list<T: Send + 'static>(
        &self,
        read: impl Future<Output = T> + Send + 'static,
    ) -> Option<T> {
        on_thread(&self.lists, read).await
    }

    /// Takes a slot for one more stream. At the socket, connections bound the streams of one user.
    pub(crate) fn enter(&self, peer: &Peer) -> Result<Slot, Problem> {
        if !self.open.lock().is_reading {
            let message = "no events are read here; `effectd serve` starts a daemon";
            return Err(Failure::new(Code::ShuttingDown, Phase::Accept, message).into());
        }
        let holder = peer.holder();
        let most = match &peer.caller {
            Caller::User(_) => (STREAMS_MAX, STREAMS_MAX),
            Caller::Token(_) => (STREAMS_MAX - STREAMS_RESERVE, STREAMS_PER_ACCOUNT_MAX),
        };
        self.slots.take(holder.clone(), most).ok_or_else(|| {
            let own = self.slots.of(&holder);
            if own < most.1 {
                return Problem::of(Kind::Busy, "there are too many streams; try again shortly");
            }
            let message = format!("{own} streams are open, the most of one account; close one first");
            Failure::new(Code::RateLimited, Phase::Accept, message).into()
        })
    }

    /// Up to where events were handed out; `None` when the daemon stops.
    fn position(&self) -> Option<Position> {
        let open = self.open.lock();
        open.is_reading.then_some(open.position)
    }

    /// Listens from the position that is returned on; `None` when the daemon stops.
    fn join(&self, scope: &Scope) -> Option<(Position, broadcast::Receiver<Arc<Told>>)> {
        let mut open = self.open.lock();
        if !open.is_reading {
            return None;
        }
        let channel = scope.channel();
        let most = if channel.1.is_some() { STREAM_SESSION_EVENTS_MAX } else { STREAM_EVENTS_MAX };
        let channel = open.channels.entry(channel).or_insert_with(|| broadcast::Sender::new(most));
        let live = channel.subscribe();
        Some((open.position, live))
    }

    /// Where the reader goes on: at the end if nobody listens.
    fn skip_unless_heard(&self, end: Position) -> Position {
        let mut open = self.open.lock();
        open.channels.retain(|_, channel| channel.receiver_count() > 0);
        if open.channels.is_empty() {
            open.position = end;
        }
        open.position
    }

    /// Moves on after an event that nobody hears. Returns whether nobody does.
    fn pass_by(&self, org: Option<&OrgId>, next: Position) -> bool {
        let mut open = self.open.lock();
        let is_heard = open.channels.keys().any(|(own, _)| own.is_none() || own.as_ref() == org);
        if !is_heard {
            open.position = next;
        }
        !is_heard
    }

    /// Hands an event to all who may hear it, and moves on. A client that has a full queue loses its stream.
    fn hand_out(&self, told: Vec<Told>, next: Position) {
        let mut open = self.open.lock();
        for told in told.into_iter().map(Arc::new) {
            let channels = match &told.org {
                Some(org) => vec![
                    (None, None),
                    (Some(org.clone()), None),
                    (Some(org.clone()), Some(told.session.clone())),
                ],
                None => vec![(None, None)],
            };
            for channel in channels.iter().filter_map(|channel| open.channels.get(channel)) {
                // It fails if all of its clients have gone.
                let _ = channel.send(told.clone());
            }
        }
        open.position = next;
    }

    /// Ends every stream.
    fn end_all(&self) {
        self.open.lock().channels.clear();
    }
}

#[cfg(test)]
mod tests;
