//! Calls of sled: errors, panics and hangs become store errors.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

use crate::error::StoreError;

/// Calls sled. A panic is damage: sled panics when a file is not what it expects.
pub(crate) fn guarded<T>(what: &str, call: impl FnOnce() -> sled::Result<T>) -> Result<T, StoreError> {
    match catch_unwind(AssertUnwindSafe(call)) {
        Ok(result) => result.map_err(|error| translate(what, error)),
        Err(panic) => {
            let message = panic.downcast_ref::<String>().map(String::as_str);
            let message = message.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no message");
            Err(StoreError::damaged(format!("sled panicked while {what}: {message}")))
        }
    }
}

/// Calls something that may hang. After `max` its thread is abandoned, and keeps its open files until the process ends.
pub(crate) fn bounded<T: Send + 'static>(
    what: &str,
    max: Duration,
    call: impl FnOnce() -> Result<T, StoreError> + Send + 'static,
) -> Result<T, StoreError> {
    let (sender, answer) = channel();
    let thread = std::thread::Builder::new().name("store-open".into());
    let spawned = thread.spawn(move || drop(sender.send(call())));
    spawned.map_err(|error| {
        StoreError::unavailable_by(format_args!("no thread can be started for {what}"), error)
    })?;
    match answer.recv_timeout(max) {
        Ok(result) => result,
        Err(RecvTimeoutError::Timeout) => {
            Err(StoreError::damaged(format!("{what} did not end within {max:?}")))
        }
        Err(RecvTimeoutError::Disconnected) => Err(StoreError::damaged(format!("a panic while {what}"))),
    }
}

fn translate(what: &str, error: sled::Error) -> StoreError {
    match error {
        sled::Error::Io(io) if io.kind() == std::io::ErrorKind::StorageFull => StoreError::Full,
        sled::Error::Io(io) if io.to_string().contains("could not acquire lock") => {
            StoreError::Locked { path: what.into() }
        }
        sled::Error::Io(io) => StoreError::unavailable_by(what, io),
        sled::Error::Corruption { .. } => {
            StoreError::damaged(format!("sled found damaged bytes while {what}"))
        }
        sled::Error::CollectionNotFound(_) | sled::Error::Unsupported(_) | sled::Error::ReportableBug(_) => {
            StoreError::damaged(format!("sled failed while {what}: {error}"))
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn what_never_ends_is_told_as_damage() {
        let (keep, never) = channel::<()>();
        let error = bounded("opening the journal", Duration::from_millis(20), move || {
            never.recv().map_err(|_| StoreError::Closed)
        });
        let words = error.unwrap_err().to_string();
        assert!(words.contains("opening the journal did not end within 20ms"), "{words}");
        drop(keep);
        assert_eq!(bounded("it", Duration::from_secs(60), || Ok(7)), Ok(7));
        let panicked = bounded::<()>("it", Duration::from_secs(60), || panic!("on purpose"));
        assert!(matches!(panicked, Err(StoreError::Damaged { .. })), "{panicked:?}");
    }
}
