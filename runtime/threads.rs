//! The threads that everything runs on.

use std::io;

use tokio::runtime::{Builder, Runtime};

/// Tasks that a thread goes on with before it looks at what has become readable: a child that has answered waits for it.
const EVENT_INTERVAL: u32 = 8;
/// Tasks of its own that a thread goes on with before it looks at what other threads have woken: whoever has waited for the disk is
/// among those.
const OTHERS_INTERVAL: u32 = 4;

/// Threads for a [`crate::Runtime`], as the program itself has them. Any others of tokio's with all drivers will do as well; these look
/// more often at what comes from outside of them, so that with much to do an answer does not wait behind many tasks.
pub fn threads() -> io::Result<Runtime> {
    Builder::new_multi_thread()
        .event_interval(EVENT_INTERVAL)
        .global_queue_interval(OTHERS_INTERVAL)
        .enable_all()
        .build()
}
