//! Time. effectd reads it only through [`Clock`], so that tests can set it.
//!
//! Wall time is for records: people read it, and it may jump. Deadlines, leases and back-off use the monotonic clock, which
//! also runs while the machine sleeps, so that neither a time change nor a suspended laptop revives a dead lease.

use std::sync::Mutex;
use std::time::Duration;

use nix::time::{ClockId, clock_gettime};

/// Wall time, written as RFC 3339 in UTC.
pub type Timestamp = jiff::Timestamp;

/// A time of the boot-time clock. Only differences matter, and only within one boot of one machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Monotonic(Duration);

impl Monotonic {
    /// From the time since the clock started.
    pub const fn from_start(since: Duration) -> Self {
        Self(since)
    }

    /// The time since the clock started.
    pub const fn since_start(self) -> Duration {
        self.0
    }

    /// The time since `earlier`; zero if `earlier` is later.
    pub fn since(self, earlier: Monotonic) -> Duration {
        self.0.saturating_sub(earlier.0)
    }

    /// This time plus `after`.
    pub fn plus(self, after: Duration) -> Monotonic {
        Monotonic(self.0.saturating_add(after))
    }
}

/// A source of time. Everything that expires or is time-stamped takes one; a wait itself is tokio's, which tests pause.
pub trait Clock: Send + Sync + 'static {
    /// Wall time, for records.
    fn now(&self) -> Timestamp;
    /// Monotonic time, for deadlines, leases and measurements.
    fn monotonic(&self) -> Monotonic;
    /// The offset of local time from UTC at a time, in minutes: it changes with daylight saving time. The default is UTC.
    fn utc_offset_min(&self, _at: Timestamp) -> i16 {
        0
    }
}

/// The machine's clocks.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    #[expect(clippy::disallowed_methods, reason = "this is where the machine's time comes in")]
    fn now(&self) -> Timestamp {
        Timestamp::now()
    }

    fn monotonic(&self) -> Monotonic {
        #[expect(
            clippy::expect_used,
            reason = "Linux has had CLOCK_BOOTTIME since 2.6.39, and the id is a constant"
        )]
        let time = clock_gettime(ClockId::CLOCK_BOOTTIME).expect("CLOCK_BOOTTIME is readable");
        Monotonic(Duration::from(time))
    }

    fn utc_offset_min(&self, at: Timestamp) -> i16 {
        let offset = jiff::tz::TimeZone::system().to_offset(at);
        i16::try_from(offset.seconds() / 60).unwrap_or(0)
    }
}

/// A clock for tests, which moves only when a test advances or sets it.
#[derive(Debug)]
pub struct ManualClock {
    state: Mutex<(Timestamp, Monotonic)>,
}

impl ManualClock {
    /// A clock that starts at `now`.
    pub fn at(now: Timestamp) -> Self {
        Self { state: Mutex::new((now, Monotonic(Duration::from_secs(1)))) }
    }

    /// Advances both clocks.
    pub fn advance(&self, by: Duration) {
        let mut state = self.lock();
        state.0 = state.0.checked_add(by).unwrap_or(Timestamp::MAX);
        state.1 = state.1.plus(by);
    }

    /// Sets wall time only, as an operator or a time server does.
    pub fn jump_to(&self, now: Timestamp) {
        self.lock().0 = now;
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, (Timestamp, Monotonic)> {
        self.state.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Timestamp {
        self.lock().0
    }

    fn monotonic(&self) -> Monotonic {
        self.lock().1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_jump_of_wall_time_moves_no_deadline() {
        let clock = ManualClock::at(Timestamp::UNIX_EPOCH);
        let before = clock.monotonic();
        clock.jump_to(Timestamp::from_second(1_000_000).unwrap_or_default());
        assert_eq!(clock.monotonic(), before);
        clock.advance(Duration::from_secs(5));
        assert_eq!(clock.monotonic().since(before), Duration::from_secs(5));
        assert_eq!(clock.now().as_second(), 1_000_005);
    }

    #[test]
    fn the_system_clock_goes_forward() {
        let first = SystemClock.monotonic();
        assert!(SystemClock.monotonic() >= first);
        assert!(SystemClock.now() > Timestamp::UNIX_EPOCH);
    }
}
