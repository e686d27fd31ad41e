//! What an operator may set about a door; the defaults are the constants of [`crate::limits`].

use std::time::Duration;

use crate::limits;

/// What an operator may set about a door.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// See [`limits::CONNECTIONS_MAX`].
    pub connections_max: usize,
    /// See [`limits::CONNECTIONS_PER_USER_MAX`].
    pub connections_per_user_max: usize,
    /// See [`limits::HEADER_TIME_MAX`].
    pub header_time_max: Duration,
    /// See [`limits::BODY_TIME_MAX`].
    pub body_time_max: Duration,
    /// See [`limits::WRITE_TIME_MAX`].
    pub write_time_max: Duration,
    /// See [`limits::WAIT_TIME_MAX`].
    pub wait_time_max: Duration,
    /// See [`limits::BACKLOG_MAX`].
    pub backlog_max: u64,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            connections_max: limits::CONNECTIONS_MAX,
            connections_per_user_max: limits::CONNECTIONS_PER_USER_MAX,
            header_time_max: limits::HEADER_TIME_MAX,
            body_time_max: limits::BODY_TIME_MAX,
            write_time_max: limits::WRITE_TIME_MAX,
            wait_time_max: limits::WAIT_TIME_MAX,
            backlog_max: limits::BACKLOG_MAX,
        }
    }
}
