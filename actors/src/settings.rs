//! What an operator may set about the pipeline, with the defaults.

use std::time::Duration;

use effectd_bus::Retention;

use crate::control;

#[derive(Debug, Clone, PartialEq)]
pub struct Settings {
    /// Actions between acceptance and receipt at one time. Mailboxes are unbounded, so this bound keeps memory flat.
    pub in_flight_max: usize,
    /// Deliveries of one decision before it is recorded as poison.
    pub deliveries_max: u32,
    /// How often the sweeper looks for what has expired.
    pub sweep_every: Duration,
    /// Power of one busy processor core, for the energy figure of receipts: a typical laptop core.
    pub core_watts: f64,
    /// Actions of one session that may wait for a person at once: people do not read more, and a flood of questions tires
    /// them into saying yes.
    pub held_per_session_max: usize,
    /// How long an action waits for a person at a terminal.
    pub held_interactive_max: Duration,
    /// How long an action waits for a person otherwise: somebody looks once a day.
    pub held_unattended_max: Duration,
    pub preview_time_max: Duration,
    /// Most files and folders of a space that are compared before and after a tool of another program runs, to see whether
    /// it does more than it declares. If there are more, only the folders that it can write to are compared; if there are
    /// more in those, or this is 0, nothing is, which a metric counts.
    pub scan_entries_max: usize,
    /// The same for the tools that effectd brings, which are tested in this way before each release. Off, since a person who
    /// works in the space at the same time would have them suspected.
    pub scan_core_entries_max: usize,
    /// Actions of one subject in quarantine; of more there is only the receipt.
    pub quarantined_max: usize,
    /// Notifications that are remembered; the oldest are forgotten first. Their receipts stay.
    pub notifications_max: usize,
    pub control: control::Settings,
    pub retention: Retention,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            in_flight_max: 256,
            deliveries_max: 5,
            sweep_every: Duration::from_secs(60),
            core_watts: 15.0,
            held_per_session_max: 10,
            held_interactive_max: Duration::from_secs(300),
            held_unattended_max: Duration::from_secs(86_400),
            preview_time_max: Duration::from_secs(5),
            scan_entries_max: 4_096,
            scan_core_entries_max: 0,
            quarantined_max: 100,
            notifications_max: 1_000,
            control: control::Settings::default(),
            retention: Retention::default(),
        }
    }
}
