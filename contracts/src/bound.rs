//! Limits that an operator may set.
//!
//! A limit that is read in many places, and is the same for the whole process, is a [`Bound`]: a named number with a
//! default, and with the range in which any value is sound. It is set when the process begins, before anything else looks
//! at it, and read wherever it is needed. What a caller chooses for one part of a process is a parameter instead.

use std::fmt;
use std::marker::PhantomData;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// A limit that an operator may set; see [`crate::bounds`].
pub struct Bound<T> {
    key: &'static str,
    about: &'static str,
    default: u64,
    least: u64,
    most: u64,
    now: AtomicU64,
    kind: PhantomData<fn() -> T>,
}

/// A value that a bound cannot have.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{key}` must be a number from {least} to {most}, not {value}")]
pub struct OutOfBounds {
    /// Which bound.
    pub key: &'static str,
    /// What was asked for.
    pub value: u64,
    /// The least that is sound.
    pub least: u64,
    /// The most that is sound.
    pub most: u64,
}

impl<T> Bound<T> {
    /// A bound at its default. Times are in milliseconds. Refuses at compile time what could not be set.
    pub const fn new(key: &'static str, about: &'static str, default: u64, least: u64, most: u64) -> Self {
        assert!(least <= default && default <= most, "the default is in the range");
        Self {
            key,
            about,
            default,
            least,
            most,
            now: AtomicU64::new(default),
            kind: PhantomData,
        }
    }

    fn raw(&self) -> u64 {
        // Nothing else is published with it: it is one number that was set before anybody read it.
        self.now.load(Ordering::Relaxed)
    }
}

impl Bound<usize> {
    /// What it is.
    pub fn get(&self) -> usize {
        usize::try_from(self.raw()).unwrap_or(usize::MAX)
    }
}

impl Bound<u64> {
    /// What it is.
    pub fn get(&self) -> u64 {
        self.raw()
    }
}

impl Bound<u32> {
    /// What it is.
    pub fn get(&self) -> u32 {
        u32::try_from(self.raw()).unwrap_or(u32::MAX)
    }
}

impl Bound<Duration> {
    /// What it is.
    pub fn get(&self) -> Duration {
        Duration::from_millis(self.raw())
    }
}

impl<T> fmt::Debug for Bound<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} = {}", self.key, self.raw())
    }
}

/// A bound of any kind, for whoever reads the configuration.
pub trait Tunable: fmt::Debug + Sync {
    /// Its name in the configuration.
    fn key(&self) -> &'static str;
    /// What it is for, and why it has its default.
    fn about(&self) -> &'static str;
    /// What it is unless somebody sets it.
    fn default(&self) -> u64;
    /// From where to where it may be set.
    fn range(&self) -> (u64, u64);
    /// What it is now.
    fn value(&self) -> u64;
    /// Sets it. To be called before anything looks at it.
    fn set(&self, value: u64) -> Result<(), OutOfBounds>;
}

impl<T> Tunable for Bound<T> {
    fn key(&self) -> &'static str {
        self.key
    }

    fn about(&self) -> &'static str {
        self.about
    }

    fn default(&self) -> u64 {
        self.default
    }

    fn range(&self) -> (u64, u64) {
        (self.least, self.most)
    }

    fn value(&self) -> u64 {
        self.raw()
    }

    fn set(&self, value: u64) -> Result<(), OutOfBounds> {
        if !(self.least..=self.most).contains(&value) {
            return Err(OutOfBounds {
                key: self.key,
                value,
                least: self.least,
                most: self.most,
            });
        }
        self.now.store(value, Ordering::Relaxed);
        Ok(())
    }
}

/// Makes the bounds of a crate and `BOUNDS`, the list of them:
///
/// ```
/// effectd_contracts::bounds! {
///     /// Callers that may wait: each holds a kilobyte.
///     WAITING_MAX: usize = 1_024, "door.waiting_max", 1 ..= 65_536;
///     /// How long each of them waits, in milliseconds: longer than that, people ask again.
///     WAIT_MAX: std::time::Duration = 5_000, "door.wait_ms_max", 1 ..= 60_000;
/// }
/// assert_eq!(WAITING_MAX.get(), 1_024);
/// assert_eq!(WAIT_MAX.get().as_secs(), 5);
/// assert_eq!(BOUNDS.len(), 2);
/// ```
#[macro_export]
macro_rules! bounds {
    ($($(#[doc = $about:literal])+ $name:ident: $kind:ty = $default:expr, $key:literal, $least:literal ..= $most:expr;)+) => {
        $(
            $(#[doc = $about])+
            pub static $name: $crate::bound::Bound<$kind> =
                $crate::bound::Bound::new($key, concat!($($about),+), $default, $least, $most);
        )+
        /// Every one of them.
        pub static BOUNDS: &[&dyn $crate::bound::Tunable] = &[$(&$name),+];
    };
}

#[cfg(test)]
mod tests {
    #![expect(unreachable_pub, reason = "the macro makes them for the head of a crate")]
    use super::*;

    crate::bounds! {
        /// Things
        /// that are counted.
        THINGS_MAX: usize = 8, "test.things_max", 2 ..= 16;
        /// A time.
        WAIT_MAX: Duration = 1_500, "test.wait_ms_max", 1 ..= 60_000;
    }

    #[test]
    fn a_bound_is_what_it_was_set_to_and_never_out_of_its_range() {
        assert_eq!(THINGS_MAX.get(), 8);
        assert_eq!(THINGS_MAX.set(16), Ok(()));
        assert_eq!(THINGS_MAX.get(), 16);
        for wrong in [0, 1, 17, u64::MAX] {
            let refused = THINGS_MAX.set(wrong).map_err(|error| error.to_string());
            let said = format!("`test.things_max` must be a number from 2 to 16, not {wrong}");
            assert_eq!(refused, Err(said));
        }
        assert_eq!(THINGS_MAX.get(), 16, "what was refused changed nothing");
        assert_eq!(THINGS_MAX.default(), 8);
    }

    #[test]
    fn a_bound_knows_what_it_is_for() {
        assert_eq!(THINGS_MAX.about(), " Things that are counted.");
        assert_eq!(WAIT_MAX.get(), Duration::from_millis(1_500));
        assert_eq!(
            BOUNDS.iter().map(|bound| bound.key()).collect::<Vec<_>>(),
            ["test.things_max", "test.wait_ms_max"]
        );
    }
}
