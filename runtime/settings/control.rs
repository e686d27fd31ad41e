//! What can be set about control under pressure, as the pipeline takes it.

use std::num::NonZeroU32;

use effectd_actors::control::Settings as ControlSettings;
use effectd_actors::control::breaker::Rules;
use effectd_actors::control::budgets::Rules as Budgets;
use effectd_actors::control::rates::Rules as Rates;

use super::Settings;

impl Settings {
    pub(super) fn control(&self) -> ControlSettings {
        ControlSettings {
            breaker: self.breaker(),
            rates: self.rates(),
            budgets: self.budgets(),
            session_actions_max: self.small("control.session_actions_max"),
            subject_in_flight_max: self.count("control.subject_in_flight_max"),
            tool_in_flight_max: self.count("control.tool_in_flight_max"),
            waiting_max: self.count("control.waiting_max"),
            admission_wait_max: self.millis("control.admission_wait_ms_max"),
            starts_per_core: self.count("control.starts_per_core"),
            starts_alone_per_core: self.count("control.starts_alone_per_core"),
            ..ControlSettings::default()
        }
    }

    fn budgets(&self) -> Budgets {
        let most = |name| Some(self.number(name)).filter(|most| *most > 0);
        Budgets {
            window: self.millis("control.budget_window_ms"),
            calls_max: most("control.budget_calls_max"),
            cpu_ms_max: most("control.budget_cpu_ms_max"),
            cost_micros_max: most("control.budget_cost_micros_max"),
        }
    }

    fn rates(&self) -> Rates {
        let rate = |name| NonZeroU32::new(self.small(name));
        Rates {
            tool: rate("control.tool_rate_max"),
            subject: rate("control.subject_rate_max"),
            space: rate("control.space_rate_max"),
            principal: rate("control.principal_rate_max"),
        }
    }

    fn breaker(&self) -> Rules {
        Rules {
            failures_max: self.small("control.breaker_failures_max"),
            error_share_max: self.decimal("control.breaker_error_share_max"),
            calls_min: self.small("control.breaker_calls_min"),
            window: self.millis("control.breaker_window_ms"),
            cool_down: self.millis("control.breaker_cool_down_ms"),
            cool_down_max: self.millis("control.breaker_cool_down_ms_max"),
            probes: self.small("control.breaker_probes"),
            release_max: self.small("control.breaker_release_max"),
        }
    }
}
