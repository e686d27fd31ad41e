//! Room for whoever asks: on which processors children are made and run.
//!
//! A runtime has about as much to do for a small call as the call itself. The kernel starts every new process where there is least to
//! do at that moment, which is where the runtime has just paused to wait for the disk; then both find the caches full of the other's
//! things, all the time. So where there are few processors, calls that ask for it ([`crate::Call::makes_room`]) keep to one half of
//! them and leave the other to the runtime, as long as they are short: children of a pool whose calls take long on average are made
//! anywhere, and a single call that takes long may go anywhere after a while. The runtime itself may run everywhere, but for two
//! kinds of threads: the one that takes children from their zygote goes where they are; and those that everybody waits for
//! ([`crate::Sandbox::leave_room_for`]) keep to the other half meanwhile, since a child that is being confined keeps its processor
//! for longer than a sync takes.

use std::convert::Infallible;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
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
    /// Whom it leaves the other half to.
    others: Arc<Others>,
}

/// Threads of the runtime that everybody waits for.
#[derive(Debug, Default)]
pub(crate) struct Others(Mutex<Kept>);

#[derive(Debug, Default)]
struct Kept {
    /// Each with where it was before, while it keeps to its half.
    threads: Vec<(Pid, Option<CpuSet>)>,
    /// Zygotes that keep to their half. While there is one, the threads keep to the other.
    zygotes: usize,
}

impl Others {
    fn lock(&self) -> MutexGuard<'_, Kept> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One more of them. Those that have ended are forgotten.
    pub(crate) fn add(&self, thread: Pid) {
        let mut kept = self.lock();
        kept.threads.retain(|(known, _)| is_alive(*known));
        if kept.threads.iter().all(|(known, _)| *known != thread) {
            kept.threads.push((thread, None));
        }
        if kept.zygotes > 0 {
            kept.confine();
        }
    }

    fn zygote_went_aside(&self) {
        let mut kept = self.lock();
        kept.zygotes += 1;
        if kept.zygotes == 1 {
            kept.confine();
        }
    }

    fn zygote_came_back(&self) {
        let mut kept = self.lock();
        kept.zygotes = kept.zygotes.saturating_sub(1);
        if kept.zygotes == 0 {
            kept.let_go();
        }
    }
}

/// Both best effort, it is only slower otherwise.
impl Kept {
    fn confine(&mut self) {
        let Ok(half) = all_processors().and_then(|all| half_of(&all, Half::Lower)) else {
            return;
        };
        for (thread, before) in &mut self.threads {
            if before.is_none()
                && is_alive(*thread)
                && let Ok(now) = sched_getaffinity(*thread)
                && sched_setaffinity(*thread, &half).is_ok()
            {
                *before = Some(now);
            }
        }
    }

    fn let_go(&mut self) {
        for (thread, before) in &mut self.threads {
            if let Some(before) = before.take()
                && is_alive(*thread)
            {
                let _slower = sched_setaffinity(*thread, &before);
            }
        }
    }
}

/// Whether it is a thread of this process. The number of one that has ended may be anybody's.
fn is_alive(thread: Pid) -> bool {
    Path::new("/proc/self/task").join(thread.to_string()).exists()
}

impl Drop for Room {
    fn drop(&mut self) {
        if self.is_aside {
            self.others.zygote_came_back();
        }
    }
}

impl Room {
    /// One that leaves the other half to these.
    pub(crate) fn new(others: Arc<Others>) -> Self {
        let mut room = Self::default();
        room.others = others;
        room
    }

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
        let set = all_processors().and_then(|all| {
            if aside {
                half_of(&all, Half::Upper)
            } else {
                Ok(all)
            }
        });
        let moved = set.and_then(|set| {
            self.move_keeper(&set)?;
            confine(zygote.as_fd(), &set)
        });
        match moved {
            Ok(()) => {
                self.is_aside = aside;
                if aside {
                    self.others.zygote_went_aside();
                } else {
                    self.others.zygote_came_back();
                }
            }
            // Nor does it go there the next time. The next zygote begins where the keeper is.
            Err(_) if aside => {
                let _stays = all_processors().and_then(|all| self.move_keeper(&all));
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
    let _slower = all_processors().and_then(|all| confine(child.pidfd.as_fd(), &all));
    std::future::pending().await
}

/// The processors that the runtime may use.
fn all_processors() -> io::Result<CpuSet> {
    // Those of the first thread: nobody here moves it.
    Ok(sched_getaffinity(Pid::from_raw(
        std::process::id().cast_signed(),
    ))?)
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Half {
    /// The runtime's.
    Lower,
    /// The children's, the smaller one.
    Upper,
}

fn half_of(all: &CpuSet, half: Half) -> io::Result<CpuSet> {
    split(all, half).ok_or_else(|| io::Error::from(io::ErrorKind::Unsupported))
}

/// One half; `None` if there is only one processor, or there are many.
fn split(all: &CpuSet, which: Half) -> Option<CpuSet> {
    let is_in = |processor: &usize| all.is_set(*processor).unwrap_or(false);
    let processors: Vec<usize> = (0..CpuSet::count()).filter(is_in).collect();
    if !(2..=PROCESSORS_MAX).contains(&processors.len()) {
        return None;
    }
    let (lower, upper) = processors.split_at(processors.len().div_ceil(2));
    let mut half = CpuSet::new();
    for processor in if which == Half::Lower { lower } else { upper } {
        half.set(*processor).ok()?;
    }
    Some(half)
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
        let halves = |of: &[usize]| (split(&set(of), Half::Lower), split(&set(of), Half::Upper));
        assert_eq!(halves(&[]), (None, None));
        assert_eq!(halves(&[3]), (None, None));
        assert_eq!(halves(&[0, 1]), (Some(set(&[0])), Some(set(&[1]))));
        assert_eq!(halves(&[0, 2, 5]), (Some(set(&[0, 2])), Some(set(&[5]))));
        assert_eq!(
            halves(&[1, 2, 64, 1_023]),
            (Some(set(&[1, 2])), Some(set(&[64, 1_023])))
        );
        assert_eq!(halves(&[0, 1, 2, 3, 4]), (None, None));
    }

    #[test]
    fn threads_that_everybody_waits_for_keep_clear_of_children_while_any_zygote_is_aside() {
        let all = all_processors().unwrap();
        let (tell, told) = std::sync::mpsc::channel();
        let (end, ends) = std::sync::mpsc::channel::<()>();
        let thread = std::thread::spawn(move || {
            tell.send(gettid()).unwrap();
            ends.recv().unwrap();
        });
        let tid = told.recv().unwrap();
        let others = Others::default();
        others.add(tid);
        assert_eq!(sched_getaffinity(tid).unwrap(), all);
        others.zygote_went_aside();
        others.zygote_went_aside();
        // On a machine that has no halves it stays where it is.
        let half = split(&all, Half::Lower).unwrap_or(all);
        assert_eq!(sched_getaffinity(tid).unwrap(), half);
        others.zygote_came_back();
        assert_eq!(sched_getaffinity(tid).unwrap(), half);
        others.zygote_came_back();
        assert_eq!(sched_getaffinity(tid).unwrap(), all);
        // Where somebody has put it before, it is put again.
        sched_setaffinity(tid, &half).unwrap();
        others.zygote_went_aside();
        others.zygote_came_back();
        assert_eq!(sched_getaffinity(tid).unwrap(), half);
        end.send(()).unwrap();
        thread.join().unwrap();
    }

    #[test]
    fn threads_that_have_ended_are_forgotten_and_none_is_there_twice() {
        let others = Others::default();
        let nobody = Pid::from_raw(i32::MAX);
        for thread in [nobody, gettid(), gettid()] {
            others.add(thread);
        }
        assert_eq!(others.lock().threads, [(gettid(), None)]);
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
