//! Retries: when a transient failure is tried again, within the requested attempts and the time left.

use std::time::Duration;

use backoff::ExponentialBackoff;
use backoff::backoff::Backoff;

use crate::limits::{BACKOFF_FACTOR, BACKOFF_FIRST, BACKOFF_MAX, BACKOFF_SPREAD};

/// The retries that an action has left.
#[derive(Debug)]
pub struct Budget {
    retries_left: u32,
    backoff: ExponentialBackoff,
}

impl Budget {
    pub fn new(retries: u32) -> Self {
        let backoff = ExponentialBackoff {
            current_interval: BACKOFF_FIRST,
            initial_interval: BACKOFF_FIRST,
            randomization_factor: BACKOFF_SPREAD,
            multiplier: BACKOFF_FACTOR,
            max_interval: BACKOFF_MAX,
            max_elapsed_time: None,
            ..ExponentialBackoff::default()
        };
        Self { retries_left: retries, backoff }
    }

    /// The pause before the next attempt, at least as long as the failure asks for; `None` if no retry is left, or if an attempt as
    /// long as the last one would not end within `time_left`.
    pub fn next_pause(
        &mut self,
        last_took: Duration,
        time_left: Duration,
        at_least: Option<Duration>,
    ) -> Option<Duration> {
        self.retries_left = self.retries_left.checked_sub(1)?;
        let pause = self.backoff.next_backoff()?.max(at_least.unwrap_or_default());
        (pause + last_took <= time_left).then_some(pause)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn budget(retries: u32) -> Budget {
        Budget::new(retries)
    }

    const PLENTY: Duration = Duration::from_secs(3_600);

    #[test]
    fn pauses_grow_with_spread_and_end_with_the_attempts() {
        let mut budget = budget(10);
        let mut expected = BACKOFF_FIRST;
        for attempt in 0..10 {
            let Some(pause) = budget.next_pause(Duration::ZERO, PLENTY, None) else {
                panic!("no pause {attempt}")
            };
            let (low, high) =
                (expected.mul_f64(1.0 - BACKOFF_SPREAD), expected.mul_f64(1.0 + BACKOFF_SPREAD));
            assert!(low <= pause && pause <= high, "{attempt}: {pause:?} not within {low:?}..{high:?}");
            expected = expected.mul_f64(BACKOFF_FACTOR).min(BACKOFF_MAX);
        }
        assert_eq!(budget.next_pause(Duration::ZERO, PLENTY, None), None);
    }

    #[test]
    fn no_attempt_begins_that_cannot_end_in_time() {
        let took = Duration::from_millis(400);
        assert_eq!(budget(5).next_pause(took, Duration::from_millis(300), None), None);
        assert!(budget(5).next_pause(took, Duration::from_secs(1), None).is_some());
        let asked = Some(Duration::from_secs(7));
        assert_eq!(budget(5).next_pause(took, Duration::from_secs(7), asked), None);
        assert_eq!(budget(5).next_pause(took, Duration::from_secs(8), asked), asked);
        assert_eq!(budget(0).next_pause(Duration::ZERO, PLENTY, None), None);
    }
}
