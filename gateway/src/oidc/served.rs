//! The keys that an issuer serves over a connection.
//!
//! They are fetched when a token needs them: if they are old, or do not have the key that it names. A token waits for that a moment and no
//! longer, and the issuer is asked once a minute at most.

use std::sync::Arc;

use effectd_contracts::{Failure, Monotonic, OrgId};
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::time::timeout;

use super::{Key, parse};
use crate::limits::{JWKS_ASK_EVERY, JWKS_FRESH, JWKS_KEPT, JWKS_WAIT_MAX};

#[derive(Default)]
pub(super) struct Served(Mutex<State>);

#[derive(Default)]
struct State {
    /// The organisation and the source of its connection.
    from: Option<(OrgId, String)>,
    keys: Vec<Key>,
    /// When the issuer was asked for these keys.
    fetched_at: Option<Monotonic>,
    asked_at: Option<Monotonic>,
    /// The fetch that is under way; its sender is dropped at its end.
    flight: Option<watch::Receiver<()>>,
}

impl State {
    fn is_younger(&self, than: std::time::Duration, now: Monotonic) -> bool {
        self.fetched_at.is_some_and(|at| now.since(at) < than)
    }
}

impl Served {
    pub(super) async fn key<F>(
        self: &Arc<Self>,
        from: (OrgId, String),
        is_named: impl Fn(&&Key) -> bool,
        now: Monotonic,
        fetch: impl FnOnce(OrgId, String) -> F,
    ) -> Option<Key>
    where
        F: Future<Output = Result<Vec<u8>, Failure>> + Send + 'static,
    {
        let flight = {
            let mut state = self.0.lock();
            if state.from.as_ref() != Some(&from) {
                *state = State { from: Some(from.clone()), ..State::default() };
            }
            if state.is_younger(JWKS_FRESH, now)
                && let Some(key) = state.keys.iter().find(&is_named)
            {
                return Some(key.clone());
            }
            let under_way = state.flight.clone().filter(|flight| flight.has_changed().is_ok());
            let may_ask = state.asked_at.is_none_or(|at| now.since(at) >= JWKS_ASK_EVERY);
            if under_way.is_none() && may_ask {
                let (end, flight) = watch::channel(());
                (state.asked_at, state.flight) = (Some(now), Some(flight.clone()));
                let (served, fetched) = (self.clone(), fetch(from.0.clone(), from.1.clone()));
                tokio::spawn(async move {
                    served.keep(from, now, fetched.await);
                    drop(end);
                });
                Some(flight)
            } else {
                under_way
            }
        };
        if let Some(mut flight) = flight {
            let _ended_or_slow = timeout(JWKS_WAIT_MAX, flight.changed()).await;
        }
        let state = self.0.lock();
        let keys = state.is_younger(JWKS_KEPT, now).then_some(&state.keys);
        keys.into_iter().flatten().find(is_named).cloned()
    }

    fn keep(&self, from: (OrgId, String), asked_at: Monotonic, fetched: Result<Vec<u8>, Failure>) {
        let keys = fetched.map_err(|failure| failure.to_string());
        let keys = keys.and_then(|bytes| parse(&bytes).map_err(|error| error.to_string()));
        let mut state = self.0.lock();
        if state.from.as_ref() != Some(&from) {
            return;
        }
        match keys {
            Ok(keys) => (state.keys, state.fetched_at) = (keys, Some(asked_at)),
            Err(error) => {
                let (org, source) = (from.0.as_str(), from.1.as_str());
                tracing::warn!(
                    error,
                    org,
                    source,
                    "the issuer's keys cannot be fetched; the last ones count for an hour"
                );
            }
        }
    }
}
