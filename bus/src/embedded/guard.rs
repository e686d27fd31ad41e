//! sled under guard: its errors and panics as ours.

use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::error::StoreError;
use crate::journal::ADVICE;

/// Calls sled. A panic in it is damage: it panics where a file is not what it expects.
pub(crate) fn guarded<T>(what: &str, call: impl FnOnce() -> sled::Result<T>) -> Result<T, StoreError> {
    match catch_unwind(AssertUnwindSafe(call)) {
        Ok(result) => result.map_err(|error| translate(what, &error)),
        Err(panic) => {
            let message = panic.downcast_ref::<String>().map(String::as_str);
            let message = message
                .or_else(|| panic.downcast_ref::<&str>().copied())
                .unwrap_or("no message");
            Err(StoreError::Damaged {
                what: format!("sled panicked while {what}: {message}"),
                advice: ADVICE,
            })
        }
    }
}

fn translate(what: &str, error: &sled::Error) -> StoreError {
    match error {
        sled::Error::Io(io) if io.kind() == std::io::ErrorKind::StorageFull => StoreError::Full,
        sled::Error::Io(io) if io.to_string().contains("could not acquire lock") => {
            StoreError::Locked { path: what.into() }
        }
        sled::Error::Io(io) => StoreError::Unavailable {
            reason: format!("{what}: {io}"),
        },
        sled::Error::Corruption { .. } => StoreError::Damaged {
            what: format!("sled found damaged bytes while {what}"),
            advice: ADVICE,
        },
        sled::Error::CollectionNotFound(_) | sled::Error::Unsupported(_) | sled::Error::ReportableBug(_) => {
            StoreError::Damaged {
                what: format!("sled failed while {what}: {error}"),
                advice: ADVICE,
            }
        }
    }
}
