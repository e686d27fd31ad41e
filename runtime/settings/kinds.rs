//! What values a key takes.

use tracing_subscriber::EnvFilter;

/// What values a key takes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Kind {
    /// Any text.
    Text,
    /// One of these words.
    Word(&'static [&'static str]),
    /// A whole number within these bounds.
    Number { min: u64, max: u64 },
    /// A number within these bounds.
    Decimal { min: f64, max: f64 },
    /// Permissions, in octal.
    Mode,
    /// An ordinary user, or nothing.
    Uid,
    /// What is logged.
    Log,
}

/// A time: from a millisecond to a day.
pub(super) const MILLIS: Kind = Kind::Number {
    min: 1,
    max: 86_400_000,
};
/// A number of things that take little each.
pub(super) const COUNT: Kind = Kind::Number {
    min: 1,
    max: 1_000_000_000,
};
/// A number of things that take a thread, a descriptor or a megabyte each.
pub(super) const FEW: Kind = Kind::Number { min: 1, max: 10_000 };
/// A number of days: up to a hundred years, or 0 for ever.
pub(super) const DAYS: Kind = Kind::Number { min: 0, max: 36_500 };
/// A size: from a mebibyte to a pebibyte.
pub(super) const BYTES: Kind = Kind::Number {
    min: 1_048_576,
    max: 1_125_899_906_842_624,
};

impl Kind {
    /// Whether the value is one; if not, what would be.
    pub(super) fn check(self, value: &str) -> Result<(), String> {
        let fits = match self {
            Kind::Text => true,
            Kind::Word(words) => words.contains(&value),
            Kind::Number { min, max } => value
                .parse::<u64>()
                .is_ok_and(|number| (min..=max).contains(&number)),
            Kind::Decimal { min, max } => value
                .parse::<f64>()
                .is_ok_and(|number| (min..=max).contains(&number)),
            // Without write permission nobody can connect; others are never let in.
            Kind::Mode => matches!(u32::from_str_radix(value, 8), Ok(0o600 | 0o660)),
            Kind::Uid => value.is_empty() || value.parse::<u32>().is_ok_and(|uid| uid > 0 && uid < u32::MAX),
            Kind::Log => EnvFilter::try_new(value).is_ok(),
        };
        if fits { Ok(()) } else { Err(self.expected()) }
    }

    pub(super) fn expected(self) -> String {
        match self {
            Kind::Text => "a text".to_owned(),
            Kind::Word(words) => format!("one of {}", words.join(", ")),
            Kind::Number { min, max } => format!("a number from {min} to {max}"),
            Kind::Decimal { min, max } => format!("a number from {min} to {max}"),
            Kind::Mode => "\"0600\" or \"0660\"".to_owned(),
            Kind::Uid => "the number of an ordinary user, or empty".to_owned(),
            Kind::Log => "a level (`info`) or levels of parts (`warn,effectd_actors=debug`)".to_owned(),
        }
    }
}
