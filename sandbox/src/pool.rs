//! Children that wait, confined already, for one call each.
//!
//! A pool belongs to one (profile, space root) and one keeper thread, which starts the zygote and hands over its children.
//! Everything here works without an async runtime of its own, so that calls may come from any.

use std::collections::VecDeque;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Instant;

use effectd_contracts::Isolation;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use parking_lot::{Condvar, Mutex, MutexGuard};
use tokio::sync::oneshot;

use crate::cgroup::{Cgroups, Slot};
use crate::error::SandboxError;
use crate::limits::CHILD_WAIT_MAX;
use crate::profile::{Ceilings, Profile};
use crate::root::SpaceRoot;
use crate::sys::{process, socket};
use crate::wire::{Boot, FORKS_MAX};

/// How many children are kept ready.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PoolSize {
    /// Also when nothing is going on.
    pub ready_min: usize,
    /// At most, however much is going on.
    pub ready_max: usize,
}

/// A confined child for one call. Dropping it kills it.
pub(crate) struct Ready {
    pub(crate) channel: OwnedFd,
    pub(crate) pidfd: OwnedFd,
    pub(crate) status: OwnedFd,
    pub(crate) listener: OwnedFd,
    pub(crate) cgroup: Option<Slot>,
}

impl Ready {
    /// Whether it has died while it waited. Its status pipe speaks, or breaks, only then.
    fn is_dead(&self) -> bool {
        let mut fds = [PollFd::new(self.status.as_fd(), PollFlags::POLLIN)];
        poll(&mut fds, PollTimeout::ZERO).is_ok_and(|count| count > 0)
    }
}

impl Drop for Ready {
    fn drop(&mut self) {
        let _gone = process::kill(self.pidfd.as_fd());
    }
}

/// Used children whose remains wait for the keeper; what is more is taken down by whoever brings it.
const SPENT_MAX: usize = 16;

type Waiter = oneshot::Sender<Result<Ready, SandboxError>>;

/// One zygote's children, and those who wait for them.
pub(crate) struct Pool {
    pub(crate) profile: Arc<Profile>,
    pub(crate) boot: Boot,
    /// What the zygote mounts.
    pub(crate) root: SpaceRoot,
    pub(crate) cgroups: Option<Arc<Cgroups>>,
    pub(crate) size: PoolSize,
    state: Mutex<State>,
    wanted: Condvar,
    /// The receipt's account for the limits that were last asked for: it is the same for most calls.
    described: Mutex<Option<(Ceilings, Isolation)>>,
}

struct State {
    /// The zygote's control socket while it lives.
    control: Option<Arc<OwnedFd>>,
    /// The guard process while it lives.
    guard_pid: Option<u32>,
    ready: VecDeque<Ready>,
    waiters: VecDeque<Waiter>,
    /// Children that were asked for and have not come yet.
    asked: usize,
    /// How many are to be ready; it grows when a call finds none, and shrinks with time.
    target: usize,
    in_flight: usize,
    last_used: Instant,
    closed: bool,
    /// Children that were used, until the keeper takes down what is left of them.
    spent: Vec<Ready>,
}

impl Pool {
    pub(crate) fn new(
        profile: Arc<Profile>,
        (boot, root): (Boot, SpaceRoot),
        cgroups: Option<Arc<Cgroups>>,
        size: PoolSize,
    ) -> Self {
        let state = State {
            control: None,
            guard_pid: None,
            ready: VecDeque::new(),
            waiters: VecDeque::new(),
            asked: 0,
            target: size.ready_min,
            in_flight: 0,
            last_used: Instant::now(),
            closed: false,
            spent: Vec::new(),
        };
        Self {
            profile,
            boot,
            root,
            cgroups,
            size,
            state: Mutex::new(state),
            wanted: Condvar::new(),
            described: Mutex::default(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// The isolation that a call with these limits has here.
    pub(crate) fn isolation(&self, ceilings: &Ceilings) -> Isolation {
        let mut described = self.described.lock();
        match &*described {
            Some((known, isolation)) if known == ceilings => isolation.clone(),
            Some(_) | None => {
                let isolation = crate::isolation::describe(self, ceilings);
                *described = Some((*ceilings, isolation.clone()));
                isolation
            }
        }
    }

    /// A child of its own for one call.
    pub(crate) async fn take(&self) -> Result<Ready, SandboxError> {
        let receiver = {
            let mut state = self.lock();
            if state.closed {
                return Err(SandboxError::Closed);
            }
            state.last_used = Instant::now();
            while let Some(ready) = state.ready.pop_front() {
                if !ready.is_dead() {
                    return Ok(ready);
                }
            }
            state.target = (state.target * 2).clamp(1, self.size.ready_max.max(1));
            let (sender, receiver) = oneshot::channel();
            state.waiters.push_back(sender);
            state.ask();
            self.wanted.notify_one();
            receiver
        };
        match tokio::time::timeout(CHILD_WAIT_MAX, receiver).await {
            Ok(Ok(taken)) => taken,
            Ok(Err(_)) => Err(SandboxError::Closed),
            Err(_) => Err(SandboxError::Busy("no child became ready in time")),
        }
    }

    /// Counts a call for as long as the guard lives, so that a pool in use is not retired.
    pub(crate) fn enter(self: &Arc<Self>) -> InFlight {
        self.lock().in_flight += 1;
        InFlight(Arc::clone(self))
    }

    /// A child whose call is over. What is left of it is for the keeper, which is woken for the next child anyway:
    /// closing a filter's listener takes its time, and somebody waits for the call.
    pub(crate) fn leave(&self, child: Ready) {
        let mut state = self.lock();
        if state.spent.len() < SPENT_MAX && state.control.is_some() {
            state.spent.push(child);
        }
    }

    /// When it was last used; `None` while a call is under way.
    pub(crate) fn idle_since(&self) -> Option<Instant> {
        let state = self.lock();
        (state.in_flight == 0 && state.waiters.is_empty()).then_some(state.last_used)
    }

    pub(crate) fn guard_pid(&self) -> Option<u32> {
        self.lock().guard_pid
    }

    /// No more calls; the keeper ends the zygote and itself.
    pub(crate) fn close(&self) {
        let mut state = self.lock();
        state.closed = true;
        let children = state.take_children();
        state.waiters.clear();
        if let Some(control) = state.control.take() {
            let _gone = nix::sys::socket::shutdown(
                std::os::fd::AsRawFd::as_raw_fd(&control),
                nix::sys::socket::Shutdown::Both,
            );
        }
        drop(state);
        drop(children);
        self.wanted.notify_all();
    }

    /// Ends a zygote that does not reap its children; the keeper starts another.
    pub(crate) fn give_up_zygote(&self) {
        if let Some(control) = self.lock().control.take() {
            let raw = std::os::fd::AsRawFd::as_raw_fd(&control);
            let _gone = nix::sys::socket::shutdown(raw, nix::sys::socket::Shutdown::Both);
        }
    }

    // What follows is the keeper's side.

    /// Sleeps until somebody wants a child; `false` means that the pool is closed.
    pub(crate) fn wait_until_wanted(&self) -> bool {
        let mut state = self.lock();
        while !state.closed && state.waiters.is_empty() {
            self.wanted.wait(&mut state);
        }
        !state.closed
    }

    /// A zygote is up. `false` means that the pool was closed meanwhile.
    pub(crate) fn zygote_up(&self, control: Arc<OwnedFd>, guard_pid: u32) -> bool {
        let mut state = self.lock();
        if state.closed {
            return false;
        }
        state.control = Some(control);
        state.guard_pid = Some(guard_pid);
        state.asked = 0;
        state.ask();
        true
    }

    /// The zygote is gone, and with it all its children. `false` means that the pool is closed.
    pub(crate) fn zygote_down(&self) -> bool {
        let mut state = self.lock();
        state.control = None;
        state.guard_pid = None;
        state.asked = 0;
        let (children, go_on) = (state.take_children(), !state.closed);
        drop(state);
        drop(children);
        go_on
    }

    /// Nobody who waits now will get a child.
    pub(crate) fn fail_waiters(&self, error: &SandboxError) {
        let waiters = std::mem::take(&mut self.lock().waiters);
        for waiter in waiters {
            let _gone = waiter.send(Err(error.clone()));
        }
    }

    /// A child is there: for whoever waits longest, or for later.
    pub(crate) fn deliver(&self, ready: Ready) {
        let mut state = self.lock();
        state.asked = state.asked.saturating_sub(1);
        let mut ready = Ok(ready);
        while let Some(waiter) = state.waiters.pop_front() {
            match waiter.send(ready) {
                Ok(()) => return,
                // That caller has given up; the child is unused and good for the next.
                Err(back) => ready = back,
            }
        }
        if let (Ok(ready), false) = (ready, state.closed) {
            state.ready.push_back(ready);
        }
    }

    /// The children that were used since the last time.
    pub(crate) fn take_spent(&self) -> Vec<Ready> {
        std::mem::take(&mut self.lock().spent)
    }

    /// One that was asked for will not come.
    pub(crate) fn miss(&self) {
        let mut state = self.lock();
        state.asked = state.asked.saturating_sub(1);
    }

    /// Lets go of half of the children after a time without calls.
    pub(crate) fn decay(&self) {
        let mut state = self.lock();
        let is_idle = state.last_used.elapsed() >= crate::limits::READY_DECAY;
        if is_idle && state.target > self.size.ready_min {
            state.target = (state.target / 2).max(self.size.ready_min);
            let surplus = state.ready.len().saturating_sub(state.target);
            state.ready.drain(..surplus);
        }
        state.ask();
    }
}

impl State {
    fn take_children(&mut self) -> (VecDeque<Ready>, Vec<Ready>) {
        (std::mem::take(&mut self.ready), std::mem::take(&mut self.spent))
    }

    fn ask(&mut self) {
        let wanted = (self.target + self.waiters.len())
            .saturating_sub(self.ready.len() + self.asked)
            .min(FORKS_MAX);
        let (Some(control), true) = (&self.control, wanted > 0) else {
            return;
        };
        // A full queue means that enough has been asked for; a broken one is the keeper's to notice.
        if socket::try_send(control.as_fd(), &[wanted as u8]).is_ok() {
            self.asked += wanted;
        }
    }
}

pub(crate) struct InFlight(Arc<Pool>);

impl InFlight {
    pub(crate) fn pool(&self) -> &Pool {
        &self.0
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        state.in_flight = state.in_flight.saturating_sub(1);
        state.last_used = Instant::now();
        state.ask();
    }
}
