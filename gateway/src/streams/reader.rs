//! The reader: reads the topics of live events for all streams, and encodes each event once.

use std::convert::Infallible;
use std::sync::Arc;

use axum::body::Bytes;
use effectd_actors::Services;
use effectd_actors::approvals::invocation::Invocation;
use effectd_actors::approvals::live::LiveEvent;
use effectd_actors::services::sessions;
use effectd_bus::StoreError;
use effectd_contracts::Topic;
use serde_json::Map;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::position::{Position, page};
use super::{Streams, Told};
use crate::host::Stage;
use crate::limits::RETRY_AFTER;
use crate::views::session::{InvocationView, Words};

/// Reads until the daemon stops, then ends every stream.
pub(crate) fn start(
    services: Arc<Services>,
    streams: Arc<Streams>,
    mut stage: watch::Receiver<Stage>,
) -> JoinHandle<()> {
    streams.open.lock().is_reading = true;
    tokio::spawn(async move {
        tokio::select! {
            biased;
            _ = stage.wait_for(|stage| *stage != Stage::Open) => {}
            () = read(&services, &streams) => {}
        }
        streams.open.lock().is_reading = false;
        streams.end_all();
    })
}

async fn read(services: &Services, streams: &Streams) {
    loop {
        let Err(error) = follow(services, streams).await;
        // Nobody misses anything: each client comes back with its cursor.
        tracing::warn!(%error, "events cannot be read; all streams end");
        streams.end_all();
        tokio::time::sleep(RETRY_AFTER).await;
    }
}

async fn follow(services: &Services, streams: &Streams) -> Result<Infallible, StoreError> {
    let store = &*services.store;
    // Watch before reading, so that no later event is missed.
    let mut approvals = store.watch(&Topic::Approvals.into())?;
    let mut executed = store.watch(&Topic::ActionExecuted.into())?;
    loop {
        let at = streams.skip_unless_heard(Position::end_of(store)?);
        let events = page(store, at, Position::MAX)?;
        if events.is_empty() {
            tokio::select! {
                changed = approvals.changed() => changed?,
                changed = executed.changed() => changed?,
            }
        }
        for (next, event) in events {
            let told = match LiveEvent::of(services, &event) {
                Some(live) if streams.pass_by(live.org.as_ref(), next) => continue,
                Some(live) => encode(services, &live, next).await?,
                None => Vec::new(),
            };
            streams.hand_out(told, next);
        }
        tokio::task::yield_now().await;
    }
}

/// The event as clients get it, once for each invocation; nothing if it is about nothing that can be shown.
pub(super) async fn encode(
    services: &Services,
    live: &LiveEvent,
    next: Position,
) -> Result<Vec<Told>, StoreError> {
    let is_there = |session: &str| Ok(sessions::session(&*services.store, session)?.is_some());
    let invocations = live.invocations(services).await;
    match invocations.and_then(|invocations| tell(live.name, invocations, next, is_there)) {
        Err(error @ StoreError::Damaged { .. }) => {
            tracing::error!(%error, "an event is left out of the streams");
            Ok(Vec::new())
        }
        told => told,
    }
}

/// Equal requests that waited for one approval make several events; only the last has the cursor, so that a client which loses its
/// stream between them gets all of them again.
pub(super) fn tell(
    name: &str,
    invocations: Vec<Invocation>,
    next: Position,
    is_there: impl Fn(&str) -> Result<bool, StoreError>,
) -> Result<Vec<Told>, StoreError> {
    let count = invocations.len();
    let one = |(at, mut invocation): (usize, Invocation)| {
        let id = if at + 1 == count { format!("id: {}\n", next.cursor()) } else { String::new() };
        let bytes = |invocation: &Invocation| {
            // Plain data with text keys always serialises, and JSON has no line breaks outside of texts.
            let shown = InvocationView::of(invocation.clone(), Words::Full);
            let data = serde_json::to_string(&shown).unwrap_or_default();
            Bytes::from(format!("event: {name}\n{id}data: {data}\n\n"))
        };
        let (full, of_session) = (bytes(&invocation), is_there(&invocation.session_id)?);
        (invocation.params, invocation.error) = (Map::new(), None);
        let brief = bytes(&invocation);
        let Invocation { organization_id: org, session_id: session, .. } = invocation;
        Ok(Told { org, session, of_session, next, full, brief })
    };
    invocations.into_iter().enumerate().map(one).collect()
}
