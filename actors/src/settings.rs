//! The pipeline's settings and their defaults.

use std::path::PathBuf;
use std::time::Duration;

use effectd_bus::Retention;
use effectd_contracts::reward::Weights;

use crate::control;

#[derive(Debug, Clone, PartialEq)]
pub struct Settings {
    /// Actions between acceptance and receipt at one time. Mailboxes are unbounded, so only this bounds memory.
    pub in_flight_max: usize,
    /// Deliveries of one decision before it becomes a dead letter.
    pub deliveries_max: u32,
    pub sweep_every: Duration,
    /// Power of one busy processor core, for the energy in receipts: a typical laptop core.
    pub core_watts: f64,
    /// Open holds of one session: people do not read more, and too many questions tire them into approving.
    pub held_per_session_max: usize,
    /// How long a hold waits if its caller sits at a terminal.
    pub held_interactive_max: Duration,
    /// How long any other hold waits: somebody looks once a day.
    pub held_unattended_max: Duration,
    pub preview_time_max: Duration,
    /// Most files and folders of a space that are scanned before and after a call of an embedder's tool, to find undeclared
    /// effects. If the space has more, only the folders that the call can write to are scanned; if those have more, none, and a
    /// metric counts the call. 0 scans nothing.
    pub scan_entries_max: usize,
    /// The same for effectd's own tools, whose tests scan in this way before each release. 0 by default, since a change that a
    /// person makes in the same space at the same time would count against them.
    pub scan_core_entries_max: usize,
    /// Quarantined requests of one subject that are kept for review; beyond it only the receipt is kept.
    pub quarantined_max: usize,
    /// Notifications that are listed; beyond it the oldest are removed. Their receipts are kept.
    pub notifications_max: usize,
    /// The weights of the reward in receipts.
    pub weights: Weights,
    pub plugins: PluginSettings,
    pub control: control::Settings,
    pub retention: Retention,
}

/// The operator's settings of plugins.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PluginSettings {
    /// The folder with the folder `actions`, in which each package is a folder. No space shares files with it.
    pub root: PathBuf,
    /// Whether code of packages runs.
    pub allow_code_execution: bool,
}

impl PluginSettings {
    /// The folder of a package.
    pub fn folder(&self, package: &str) -> PathBuf {
        self.root.join("actions").join(package)
    }
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
            weights: Weights::default(),
            plugins: PluginSettings::default(),
            control: control::Settings::default(),
            retention: Retention::default(),
        }
    }
}
