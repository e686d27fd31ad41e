//! Measured times: milliseconds in JSON, microseconds in memory.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::clock::Timestamp;
use crate::wire::schema_of;

/// A duration in whole microseconds, written as milliseconds, so that 0.41 ms stays 0.41 and sums stay exact.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Millis {
    micros: u64,
}

/// The largest number of microseconds that is exact as milliseconds in an `f64`: 35 years.
const MICROS_MAX: u64 = 1 << 50;

impl Millis {
    /// Zero.
    pub const ZERO: Millis = Millis { micros: 0 };

    /// From microseconds; values above 35 years are clamped.
    pub const fn from_micros(micros: u64) -> Self {
        Self { micros: if micros > MICROS_MAX { MICROS_MAX } else { micros } }
    }

    /// The microseconds.
    pub const fn micros(self) -> u64 {
        self.micros
    }

    /// The time between two moments; zero if they are in the other order.
    pub fn between(from: Timestamp, to: Timestamp) -> Self {
        Duration::try_from(to.duration_since(from)).map_or(Self::ZERO, Self::from)
    }

    /// This duration without a part of it; zero if the part is longer.
    #[must_use]
    pub const fn less(self, part: Self) -> Self {
        Self { micros: self.micros.saturating_sub(part.micros) }
    }

    /// As milliseconds, with a fraction.
    pub fn as_f64(self) -> f64 {
        self.micros as f64 / 1_000.0
    }
}

impl From<Duration> for Millis {
    fn from(duration: Duration) -> Self {
        Self::from_micros(u64::try_from(duration.as_micros()).unwrap_or(MICROS_MAX))
    }
}

impl Serialize for Millis {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if self.micros.is_multiple_of(1_000) {
            serializer.serialize_u64(self.micros / 1_000)
        } else {
            serializer.serialize_f64(self.as_f64())
        }
    }
}

impl<'de> Deserialize<'de> for Millis {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let millis = f64::deserialize(deserializer)?;
        if !(0.0..=MICROS_MAX as f64 / 1_000.0).contains(&millis) {
            return Err(serde::de::Error::custom("milliseconds are a number from 0 to 1125899906842"));
        }
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "the range was just checked"
        )]
        let micros = (millis * 1_000.0).round() as u64;
        Ok(Self::from_micros(micros))
    }
}

impl fmt::Display for Millis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.2} ms", self.as_f64())
    }
}

schema_of!(Millis, { "type": "number", "minimum": 0, "description": "milliseconds, to the microsecond" });

#[cfg(test)]
mod tests {
    use super::*;

    proptest::proptest! {
        #[test]
        fn every_microsecond_survives_json(micros in 0..=MICROS_MAX) {
            let text = serde_json::to_string(&Millis::from_micros(micros)).unwrap_or_default();
            let back: Millis = serde_json::from_str(&text).unwrap_or_default();
            proptest::prop_assert_eq!(back.micros(), micros);
        }
    }

    #[test]
    fn whole_milliseconds_are_integers() {
        assert_eq!(serde_json::to_string(&Millis::from_micros(3_000)).ok().as_deref(), Some("3"));
        assert_eq!(serde_json::to_string(&Millis::from_micros(412)).ok().as_deref(), Some("0.412"));
        assert!(serde_json::from_str::<Millis>("-1").is_err());
    }
}
