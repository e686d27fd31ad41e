//! What keeps the pipeline upright under pressure: breakers, rates, budgets, turns.
//!
//! Each part is a plain struct that takes the time as a parameter or a clock; none of them is an actor, and none of them is
//! needed for correctness. What they refuse is told with a code, and what they delay keeps its place on the bus.

pub mod breaker;
pub mod breakers;

use std::sync::Arc;

use effectd_bus::Store;
use effectd_contracts::Clock;

pub use breakers::Breakers;

use crate::metrics::Metrics;
use crate::registry::Registry;

/// What an operator may set about control under pressure; the defaults are the constants of [`crate::limits`].
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Settings {
    /// When breakers open and how they close again.
    pub breaker: breaker::Rules,
}

/// All of it, for the stages.
#[derive(Debug, Clone)]
pub struct Control {
    /// Which tools are not called for now.
    pub breakers: Breakers,
}

impl Control {
    /// Takes up what an earlier process has left in the Store.
    pub fn new(
        settings: Settings,
        store: &Arc<dyn Store>,
        clock: &Arc<dyn Clock>,
        metrics: &Metrics,
        tools: &Arc<Registry>,
    ) -> Self {
        let breakers = Breakers::load(
            settings.breaker,
            store.clone(),
            clock.clone(),
            metrics.clone(),
            tools.clone(),
        );
        Self { breakers }
    }
}
