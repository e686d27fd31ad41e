//! The time of day in rules.

use effectd_contracts::Timestamp;

/// The time zone of rules about the time of day.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Zone {
    /// The runtime's time zone; its offset is a recorded fact.
    Local,
    /// Minutes east of UTC.
    Fixed(i16),
}

impl Zone {
    pub(crate) fn parse(text: &str) -> Option<Self> {
        match text {
            "local" => Some(Self::Local),
            "utc" => Some(Self::Fixed(0)),
            _ => {
                let sign = match text.as_bytes().first()? {
                    b'+' => 1,
                    b'-' => -1,
                    _ => return None,
                };
                let minutes = i16::try_from(minute_of_day(&text[1..])?).ok()?;
                (minutes <= 14 * 60).then_some(Self::Fixed(sign * minutes))
            }
        }
    }
}

/// Parses `HH:MM`.
pub(crate) fn minute_of_day(text: &str) -> Option<u16> {
    let (hour, minute) = text.split_once(':')?;
    let two_digits = |text: &str| text.len() == 2 && text.bytes().all(|byte| byte.is_ascii_digit());
    if !two_digits(hour) || !two_digits(minute) {
        return None;
    }
    let (hour, minute): (u16, u16) = (hour.parse().ok()?, minute.parse().ok()?);
    (hour < 24 && minute < 60).then_some(hour * 60 + minute)
}

#[derive(Debug, Clone)]
pub(crate) struct ClockTable {
    pub(crate) skew_s_max: u64,
    pub(crate) zone: Zone,
    pub(crate) night_from: u16,
    pub(crate) night_until: u16,
    pub(crate) line: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct TimeOfDay {
    pub(crate) minute: i64,
    pub(crate) weekday: i64,
    pub(crate) night: bool,
    pub(crate) unix: i64,
}

impl ClockTable {
    pub(crate) fn time_of_day(&self, now: Timestamp, utc_offset_min: i16) -> TimeOfDay {
        let offset = match self.zone {
            Zone::Local => utc_offset_min,
            Zone::Fixed(offset) => offset,
        };
        let unix = now.as_second();
        let minutes = unix.div_euclid(60) + i64::from(offset);
        let minute = minutes.rem_euclid(24 * 60);
        // The first of January 1970 was a Thursday.
        let weekday = (minutes.div_euclid(24 * 60) + 3).rem_euclid(7) + 1;
        let (from, until) = (i64::from(self.night_from), i64::from(self.night_until));
        let night =
            if from <= until { (from..until).contains(&minute) } else { minute >= from || minute < until };
        TimeOfDay { minute, weekday, night, unix }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn at(zone: &str, now: &str, offset: i16) -> TimeOfDay {
        let zone = Zone::parse(zone).unwrap();
        let table = ClockTable { skew_s_max: 300, zone, night_from: 22 * 60, night_until: 6 * 60, line: 1 };
        table.time_of_day(now.parse().unwrap(), offset)
    }

    #[test]
    fn night_goes_over_midnight_and_follows_the_zone() {
        assert!(at("utc", "2026-01-07T23:00:00Z", 0).night);
        assert!(at("utc", "2026-01-07T05:59:59Z", 0).night);
        assert!(!at("utc", "2026-01-07T06:00:00Z", 0).night);
        assert!(!at("utc", "2026-01-07T12:00:00Z", 600).night, "a fixed zone ignores the machine's");
        assert!(at("local", "2026-01-07T12:00:00Z", 600).night);
        assert!(at("+10:30", "2026-01-07T12:00:00Z", 0).night);
    }

    #[test]
    fn days_of_the_week_are_right_also_before_1970() {
        assert_eq!(at("utc", "2026-01-07T12:00:00Z", 0).weekday, 3);
        assert_eq!(at("-02:00", "2026-01-05T01:00:00Z", 0).weekday, 7);
        assert_eq!(
            at("utc", "1969-12-31T23:59:59Z", 0),
            TimeOfDay { minute: 1439, weekday: 3, night: true, unix: -1 }
        );
    }

    #[test]
    fn other_spellings_are_refused() {
        for text in ["", "Local", "+2", "+25:00", "+15:00", "2:00", "+02:60", "Europe/Berlin", "+0€:00"] {
            assert_eq!(Zone::parse(text), None, "{text}");
        }
    }
}
