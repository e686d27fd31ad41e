//! What an operator may set about the pipeline; the defaults are the constants of [`crate::limits`].

use std::time::Duration;

use effectd_bus::Retention;

use crate::control;
use crate::limits;

/// What an operator may set about the pipeline.
#[derive(Debug, Clone, PartialEq)]
pub struct Settings {
    /// See [`limits::IN_FLIGHT_MAX`].
    pub in_flight_max: usize,
    /// See [`limits::WAITING_WORKERS`].
    pub waiting_workers: usize,
    /// See [`limits::COMPUTING_WORKERS`].
    pub computing_workers: usize,
    /// See [`limits::DELIVERIES_MAX`].
    pub deliveries_max: u32,
    /// See [`limits::RESTARTS_MAX`].
    pub restarts_max: usize,
    /// See [`limits::RESTART_WINDOW`].
    pub restart_window: Duration,
    /// See [`limits::BACKOFF_FIRST`].
    pub backoff_first: Duration,
    /// See [`limits::BACKOFF_FACTOR`].
    pub backoff_factor: f64,
    /// See [`limits::BACKOFF_SPREAD`].
    pub backoff_spread: f64,
    /// See [`limits::BACKOFF_MAX`].
    pub backoff_max: Duration,
    /// See [`limits::PROBE_TIME_MIN`].
    pub probe_time_min: Duration,
    /// See [`limits::COMMIT_TRIES`].
    pub commit_tries: u32,
    /// See [`limits::SWEEP_EVERY`].
    pub sweep_every: Duration,
    /// See [`limits::CORE_WATTS`].
    pub core_watts: f64,
    /// See [`limits::HELD_PER_SESSION_MAX`].
    pub held_per_session_max: usize,
    /// See [`limits::HELD_INTERACTIVE_MAX`].
    pub held_interactive_max: Duration,
    /// See [`limits::HELD_UNATTENDED_MAX`].
    pub held_unattended_max: Duration,
    /// Breakers, rates, budgets and turns.
    pub control: control::Settings,
    /// How long everything is kept.
    pub retention: Retention,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            in_flight_max: limits::IN_FLIGHT_MAX,
            waiting_workers: limits::WAITING_WORKERS,
            computing_workers: limits::COMPUTING_WORKERS,
            deliveries_max: limits::DELIVERIES_MAX,
            restarts_max: limits::RESTARTS_MAX,
            restart_window: limits::RESTART_WINDOW,
            backoff_first: limits::BACKOFF_FIRST,
            backoff_factor: limits::BACKOFF_FACTOR,
            backoff_spread: limits::BACKOFF_SPREAD,
            backoff_max: limits::BACKOFF_MAX,
            probe_time_min: limits::PROBE_TIME_MIN,
            commit_tries: limits::COMMIT_TRIES,
            sweep_every: limits::SWEEP_EVERY,
            core_watts: limits::CORE_WATTS,
            held_per_session_max: limits::HELD_PER_SESSION_MAX,
            held_interactive_max: limits::HELD_INTERACTIVE_MAX,
            held_unattended_max: limits::HELD_UNATTENDED_MAX,
            control: control::Settings::default(),
            retention: Retention::default(),
        }
    }
}
