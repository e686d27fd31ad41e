//! Listening without sleeping, for a short time.
//!
//! A call that is answered soon need not be put to sleep and woken again. One that is alone, in a profile without processes
//! of its own, looks again and again for the time that the operator gives, and lets whatever else wants to run go first in
//! between. Whoever has company, or to whom nothing comes in time, sleeps; and on a machine with one processor nobody stays
//! awake, since the child would have to wait for it.

use std::num::NonZero;
use std::os::fd::AsRawFd;
use std::sync::LazyLock;
use std::time::{Duration, Instant};

use nix::poll::PollFlags;
use nix::sys::socket::{MsgFlags, recv};

use crate::call::Denial;
use crate::ending::Cause;
use crate::hear::{NOTES_BYTES_MAX, understand};
use crate::limits::{AWAKE_END_US_MAX, AWAKE_REPLY_US_MAX};
use crate::pool::{Pool, Ready};
use crate::run::events_now;
use crate::wire::{HEADER_BYTES, Kind, parse_header};

/// Most bytes of an answer that is taken here; a longer one takes its time anyway.
const ANSWER_BYTES_MAX: usize = 16 * 1_024;

/// Whether an answer can be expected soon, and nobody else needs the processor for a call.
pub(crate) fn is_worth_it(pool: &Pool) -> bool {
    AWAKE_REPLY_US_MAX.get() > 0
        && pool.profile.ceilings.processes == 1
        && pool.has_one_call()
        && has_a_processor_to_spare()
}

fn has_a_processor_to_spare() -> bool {
    static PROCESSORS: LazyLock<usize> =
        LazyLock::new(|| std::thread::available_parallelism().map_or(1, NonZero::get));
    *PROCESSORS > 1
}

/// The answer, if it comes whole and soon. Anything else is left as it is for those who wait.
pub(crate) fn hear(child: &Ready, output_max: usize, told: &mut Vec<Denial>) -> Option<Cause> {
    let length = look_until(AWAKE_REPLY_US_MAX.get(), || {
        // A refused call waits for its errno: that is for those who sleep.
        if events_now(&child.listener).contains(PollFlags::POLLIN) {
            return Some(None);
        }
        match events_now(&child.channel) {
            events if events.is_empty() => None,
            events if events.contains(PollFlags::POLLIN) => Some(whole(child, output_max)),
            _ => Some(None),
        }
    })??;
    let mut bytes = vec![0; length];
    let taken = recv(child.channel.as_raw_fd(), &mut bytes, MsgFlags::MSG_DONTWAIT);
    let (head, payload) = bytes.split_first_chunk::<HEADER_BYTES>()?;
    let (kind, _) = parse_header(head)?;
    (taken == Ok(length)).then(|| understand(kind, payload, output_max, told))
}

/// The length of the frame that has come, if all of it is there.
fn whole(child: &Ready, output_max: usize) -> Option<usize> {
    let mut bytes = [0; ANSWER_BYTES_MAX];
    let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_PEEK;
    let there = recv(child.channel.as_raw_fd(), &mut bytes, flags).ok()?;
    let (kind, length) = bytes[..there].first_chunk().and_then(parse_header)?;
    if kind == Kind::Piece {
        // Who says much takes its time.
        return None;
    }
    let fits = length <= output_max.saturating_add(NOTES_BYTES_MAX) && there >= HEADER_BYTES + length;
    fits.then_some(HEADER_BYTES + length)
}

/// Whether the last process that has the call's filter is on its way out; see [`crate::run`].
pub(crate) fn sees_the_end(child: &Ready) -> bool {
    look_until(AWAKE_END_US_MAX.get(), || {
        events_now(&child.listener)
            .contains(PollFlags::POLLHUP)
            .then_some(())
    })
    .is_some()
}

/// Whether the zygote has reported that the tree is reaped, or is gone itself.
pub(crate) fn sees_the_report(child: &Ready) -> bool {
    look_until(AWAKE_END_US_MAX.get(), || {
        (!events_now(&child.status).is_empty()).then_some(())
    })
    .is_some()
}

fn look_until<T>(time_us: u64, mut look: impl FnMut() -> Option<T>) -> Option<T> {
    let time = Duration::from_micros(time_us);
    let begun = Instant::now();
    loop {
        if let Some(seen) = look() {
            return Some(seen);
        }
        if begun.elapsed() >= time {
            return None;
        }
        std::thread::yield_now();
    }
}
