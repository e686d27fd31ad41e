//! What an operator may set about a door; the defaults are the constants of [`crate::limits`].

use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use crate::limits;

/// What an operator may set about a door.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// See [`limits::CONNECTIONS_MAX`].
    pub connections_max: usize,
    /// See [`limits::CONNECTIONS_PER_USER_MAX`].
    pub connections_per_user_max: usize,
    /// See [`limits::HEADERS_MAX`].
    pub headers_max: usize,
    /// See [`limits::HEADER_BYTES_MAX`].
    pub header_bytes_max: usize,
    /// See [`limits::HEADER_TIME_MAX`].
    pub header_time_max: Duration,
    /// See [`limits::BODY_TIME_MAX`].
    pub body_time_max: Duration,
    /// See [`limits::BODIES_BYTES_MAX`]. Read when the door is made.
    pub bodies_bytes_max: usize,
    /// See [`limits::WRITE_TIME_MAX`].
    pub write_time_max: Duration,
    /// See [`limits::WAIT_TIME_MAX`].
    pub wait_time_max: Duration,
    /// See [`limits::BACKLOG_MAX`].
    pub backlog_max: u64,
    /// See [`limits::BACKLOG_BYTES_MAX`].
    pub backlog_bytes_max: u64,
    /// See [`limits::PULSE_EVERY`]. Read when the door is made.
    pub pulse_every: Duration,
    /// See [`limits::PULSE_AGE_MAX`]. Read when the door is made.
    pub pulse_age_max: Duration,
    /// See [`limits::CLOSE_TIME_MAX`].
    pub close_time_max: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            connections_max: limits::CONNECTIONS_MAX,
            connections_per_user_max: limits::CONNECTIONS_PER_USER_MAX,
            headers_max: limits::HEADERS_MAX,
            header_bytes_max: limits::HEADER_BYTES_MAX,
            header_time_max: limits::HEADER_TIME_MAX,
            body_time_max: limits::BODY_TIME_MAX,
            bodies_bytes_max: limits::BODIES_BYTES_MAX,
            write_time_max: limits::WRITE_TIME_MAX,
            wait_time_max: limits::WAIT_TIME_MAX,
            backlog_max: limits::BACKLOG_MAX,
            backlog_bytes_max: limits::BACKLOG_BYTES_MAX,
            pulse_every: limits::PULSE_EVERY,
            pulse_age_max: limits::PULSE_AGE_MAX,
            close_time_max: limits::CLOSE_TIME_MAX,
        }
    }
}

/// The settings of a door that is open: turned by whoever holds it, and looked at for every connection and request.
#[derive(Debug, Clone)]
pub struct Dial(Arc<RwLock<Arc<Settings>>>);

impl Dial {
    /// At these settings.
    pub fn new(settings: Settings) -> Self {
        Self(Arc::new(RwLock::new(Arc::new(settings))))
    }

    /// As it stands.
    pub fn settings(&self) -> Arc<Settings> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Turns it: whatever begins from now on goes by these settings.
    pub fn turn(&self, settings: Settings) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(settings);
    }
}
