//! Room for whoever asks: on which processors children are made and run.
//!
//! A runtime has about as much to do for a small call as the call itself. The kernel starts every new process where there is least to
//! do at that moment, which is where the runtime has just paused to wait for the disk; then both find the caches full of the other's
//! things, all the time. So where there are few processors, calls that ask for it ([`crate::Call::makes_room`]) keep to one half of
//! them and leave the other to the runtime, as long as they are short: children of a pool whose calls take long on average are made
//! anywhere, and a single call that takes long may go anywhere after a while. The runtime itself may always run everywhere, but for
//! the thread that takes children from their zygote: it goes where they are.

use std::convert::Infallible;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::{Pid, gettid};

use crate::limits::ROOM_CALL_US_MAX;
use crate::pool::Ready;
use crate::sys::process;

/// A call that takes longer may go anywhere: it is no short one.
const LONG_CALL: Duration = Duration::from_millis(10);
/// Of how many calls the average is, roughly.
const CALLS: u64 = 8;
/// On more processors than this everybody finds one that is free.
const PROCESSORS_MAX: usize = 4;

/// Where a zygote makes its children.
#[derive(Debug, Default)]
pub(crate) struct Room {
    /// The zygote, while it lives.
    zygote: Option<Arc<OwnedFd>>,
    /// The thread that takes its children.
    keeper: Option<Pid>,
    /// Whether it keeps to its half, and its keeper with it.
    is_aside: bool,
    /// Whether it ever did.
    was_aside: bool,
    /// Whether the last call asked for it.
    wanted: bool,
    /// Processor time of a call, smoothed.
    call_us: u64,
}

impl Room {
    /// Another zygote, or none. It begins where its keeper is, which has started it.
    pub(crate) fn zygote(&mut self, handle: Option<Arc<OwnedFd>>) {
        self.zygote = handle;
    }

    /// This thread takes the children.
    pub(crate) fn kept_by_this_thread(&mut self) {
        self.keeper = Some(gettid());
    }

    /// Whether a child may have been made on one half.
    pub(crate) fn was_aside(&self) -> bool {
        self.was_aside
    }

    /// What the next calls are likely to ask for.
    pub(crate) fn want(&mut self, wanted: bool) {
        self.wanted = wanted;
    }

    /// What a call has taken of a processor.
    pub(crate) fn took(&mut self, time_us: u64) {
        self.call_us = (self.call_us * (CALLS - 1) + time_us) / CALLS;
    }

    /// Whether the next children are to be made on one half. It takes less to stay there than to go there.
    fn is_wanted_aside(&self) -> bool {
        let limit = ROOM_CALL_US_MAX.get();
        let limit = if self.is_aside { limit } else { limit / 3 * 2 };
        self.wanted && self.call_us < limit
    }

    /// To be called before children are asked for: they run where their zygote does. Best effort, it is only slower otherwise.
    pub(crate) fn make(&mut self) {
        let aside = self.is_wanted_aside();
        let Some(zygote) = self.zygote.as_ref().filter(|_| aside != self.is_aside) else {
            return;
        };
        // Also if only half of it is done: who is there by mistake is let out.
        self.was_aside |= aside;
        let moved = processors(aside).and_then(|set| {
            self.move_keeper(&set)?;
            confine(zygote.as_fd(), &set)
        });
        match moved {
            Ok(()) => self.is_aside = aside,
            // Nor does it go there the next time. The next zygote begins where the keeper is.
            Err(_) if aside => {
                let _stays = processors(false).and_then(|set| self.move_keeper(&set));
                self.zygote = None;
            }
            Err(_) => {}
        }
    }

    fn move_keeper(&self, to: &CpuSet) -> io::Result<()> {
        match self.keeper {
            Some(keeper) => Ok(sched_setaffinity(keeper, to)?),
            None => Ok(()),
        }
    }
}

/// Lets a child go anywhere when it has taken long. Never ends.
pub(crate) async fn let_out(child: &Ready) -> Infallible {
    tokio::time::sleep(LONG_CALL).await;
    // Best effort: where it is it runs as well.
    let _slower = processors(false).and_then(|set| confine(child.pidfd.as_fd(), &set));
    std::future::pending().await
}

/// The processors that the runtime may use, or half of them.
fn processors(half: bool) -> io::Result<CpuSet> {
    let all = sched_getaffinity(own_pid())?;
    if !half {
        return Ok(all);
    }
    upper_half(&all).ok_or_else(|| io::Error::from(io::ErrorKind::Unsupported))
}

fn own_pid() -> Pid {
    Pid::from_raw(std::process::id().cast_signed())
}

/// The upper half, rounded down; `None` if there is only one, or there are many.
fn upper_half(all: &CpuSet) -> Option<CpuSet> {
    let is_in = |processor: &usize| all.is_set(*processor).unwrap_or(false);
    let processors: Vec<usize> = (0..CpuSet::count()).filter(is_in).collect();
    if processors.len() > PROCESSORS_MAX {
        return None;
    }
    let upper = &processors[processors.len().div_ceil(2)..];
    let mut half = CpuSet::new();
    for processor in upper {
        half.set(*processor).ok()?;
    }
    (!upper.is_empty()).then_some(half)
}

fn confine(handle: BorrowedFd<'_>, to: &CpuSet) -> io::Result<()> {
    // Asked for each time: a process that is gone has no number any more. Between this line and the next one it would have to end, be
    // reaped, and its number be given to another.
    let pid = process::pid_of(handle)?;
    sched_setaffinity(Pid::from_raw(pid), to)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn set(processors: &[usize]) -> CpuSet {
        let mut set = CpuSet::new();
        processors
            .iter()
            .for_each(|processor| set.set(*processor).unwrap());
        set
    }

    #[test]
    fn half_of_the_processors_is_never_all_and_never_none() {
        assert_eq!(upper_half(&set(&[])), None);
        assert_eq!(upper_half(&set(&[3])), None);
        assert_eq!(upper_half(&set(&[0, 1])), Some(set(&[1])));
        assert_eq!(upper_half(&set(&[0, 2, 5])), Some(set(&[5])));
        assert_eq!(upper_half(&set(&[1, 2, 64, 1_023])), Some(set(&[64, 1_023])));
        assert_eq!(upper_half(&set(&[0, 1, 2, 3, 4])), None);
    }

    #[test]
    fn one_long_call_is_not_the_average() {
        let mut room = Room::default();
        for _ in 0..100 {
            room.took(700);
        }
        assert!((600..=700).contains(&room.call_us), "{}", room.call_us);
        assert!(!room.is_wanted_aside());
        room.want(true);
        assert!(room.is_wanted_aside());
        room.is_aside = true;
        room.took(5_000);
        assert!(room.is_wanted_aside(), "{}", room.call_us);
        for _ in 0..3 {
            room.took(5_000);
        }
        assert!(!room.is_wanted_aside(), "{}", room.call_us);
        room.is_aside = false;
        room.call_us = ROOM_CALL_US_MAX.get() - 1;
        assert!(!room.is_wanted_aside());
    }
}
