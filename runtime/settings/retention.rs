//! What can be set about how long things are kept.

use std::collections::BTreeMap;

use effectd_bus::limits::RECEIPT_BYTES_MIN;
use effectd_bus::{Keep, Retention, TopicKeep};
use effectd_contracts::Topic;

use super::{Settings, SettingsError};

const RECEIPTS: &str = "store.retention.receipt_days";
const RECEIPT_BYTES: &str = "store.retention.receipt_bytes_max";
const LETTERS: &str = "store.retention.letter_days";

impl Settings {
    pub(super) fn retention(&self) -> Retention {
        let keep = |days: &str, bytes: &str| Keep {
            age: self.days(days),
            bytes: Some(self.number(bytes)).filter(|bytes| *bytes > 0),
        };
        let decisions = TopicKeep {
            keep: keep(
                "store.retention.decision_days",
                "store.retention.decision_bytes_max",
            ),
            unsettled: true,
        };
        Retention {
            receipts: keep(RECEIPTS, RECEIPT_BYTES),
            letters: self.days(LETTERS),
            topics: BTreeMap::from([(Topic::ActionDecision.into(), decisions)]),
            others: TopicKeep {
                keep: keep(
                    "store.retention.executed_days",
                    "store.retention.executed_bytes_max",
                ),
                unsettled: false,
            },
        }
    }

    fn days(&self, name: &str) -> Option<std::time::Duration> {
        let days = self.small(name);
        if days == 0 { None } else { Keep::days(days).age }
    }

    /// A receipt answers who asks again, and must not go moments after it was written.
    fn check_receipt_bytes(&self) -> Result<(), SettingsError> {
        let bytes = self.number(RECEIPT_BYTES);
        if bytes == 0 || bytes >= RECEIPT_BYTES_MIN {
            return Ok(());
        }
        let Some((value, origin)) = self.values.get(RECEIPT_BYTES).cloned() else {
            return Ok(());
        };
        Err(SettingsError::Value {
            origin,
            key: RECEIPT_BYTES,
            value,
            expected: format!("0 (any number) or at least {RECEIPT_BYTES_MIN}"),
        })
    }

    /// A dead letter is what is left of a failure when its receipt is gone, so it must be kept longer.
    pub(super) fn check_retention(&self) -> Result<(), SettingsError> {
        self.check_receipt_bytes()?;
        let for_ever = |days: u64| if days == 0 { u64::MAX } else { days };
        let (receipts, letters) = (for_ever(self.number(RECEIPTS)), for_ever(self.number(LETTERS)));
        if letters > receipts || letters == u64::MAX {
            return Ok(());
        }
        Err(SettingsError::Longer {
            longer: LETTERS,
            longer_value: self.text(LETTERS).to_owned(),
            shorter: RECEIPTS,
            shorter_value: self.text(RECEIPTS).to_owned(),
        })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::super::{Above, pair};
    use super::*;

    fn load(flags: &[&str]) -> Result<Settings, SettingsError> {
        let above = Above {
            environment: Vec::new(),
            flags: flags.iter().map(|flag| pair(flag).unwrap()).collect(),
        };
        Settings::load(None, &above)
    }

    #[test]
    fn the_default_is_what_the_store_says() {
        assert_eq!(load(&[]).unwrap().retention(), Retention::default());
    }

    #[test]
    fn so_few_bytes_of_receipts_that_none_would_stay_are_refused() {
        let flag = |bytes: u64| format!("store.retention.receipt_bytes_max={bytes}");
        for bytes in [1, RECEIPT_BYTES_MIN - 1] {
            let told = load(&[&flag(bytes)]).unwrap_err().to_string();
            assert!(told.contains("at least 16777216"), "{told}");
        }
        let kept = |bytes| load(&[&flag(bytes)]).unwrap().retention().receipts.bytes;
        assert_eq!(
            (kept(0), kept(RECEIPT_BYTES_MIN)),
            (None, Some(RECEIPT_BYTES_MIN))
        );
    }

    #[test]
    fn letters_that_go_before_receipts_are_refused_with_both_keys() {
        for letters in ["179", "180"] {
            let told = load(&[&format!("store.retention.letter_days={letters}")]).unwrap_err();
            let told = told.to_string();
            assert!(told.contains("`store.retention.letter_days`"), "{told}");
            assert!(told.contains("`store.retention.receipt_days` is 180"), "{told}");
        }
        assert!(load(&["store.retention.letter_days=181"]).is_ok());
        assert!(
            load(&["store.retention.receipt_days=0"]).is_err(),
            "for ever is longer"
        );
        let for_ever = ["store.retention.receipt_days=0", "store.retention.letter_days=0"];
        assert_eq!(load(&for_ever).unwrap().retention().receipts, Keep::default());
    }
}
