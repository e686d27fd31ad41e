//! The pool of ready children of one zygote: each is confined already and waits for one call.
//!
//! A pool belongs to one (profile, space root) and to one owner thread, which starts the zygote and delivers its children.
//! Nothing here needs an async runtime of its own, so calls may come from any.
#![expect(clippy::disallowed_methods, reason = "how long real children idle; no rule depends on it")]

use std::collections::VecDeque;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::Arc;
use std::time::Instant;

use effectd_contracts::Isolation;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{Shutdown, shutdown};
use parking_lot::{Condvar, Mutex};
use tokio::sync::oneshot;

use super::cgroup::{Cgroups, Slot};
use crate::confine::profile::{Ceilings, Profile};
use crate::error::SandboxError;
use crate::limits::CHILD_WAIT_MAX;
use crate::root::SpaceRoot;
use crate::sys::{process, socket};
use crate::wire::{Boot, FORKS_MAX};

/// How many children are kept ready.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PoolSize {
    /// The fewest ready children, also without calls.
    pub ready_min: usize,
    /// The most ready children, also under load.
    pub ready_max: usize,
}

/// A confined child for one call. Dropping it kills it.
pub(crate) struct ReadyChild {
    pub(crate) channel: OwnedFd,
    pub(crate) pidfd: OwnedFd,
    pub(crate) status: OwnedFd,
    pub(crate) listener: OwnedFd,
    pub(crate) cgroup: Option<Slot>,
}

impl ReadyChild {
    /// Whether it died while it waited. Its status pipe becomes readable only then.
    fn is_dead(&self) -> bool {
        let mut fds = [PollFd::new(self.status.as_fd(), PollFlags::POLLIN)];
        poll(&mut fds, PollTimeout::ZERO).is_ok_and(|count| count > 0)
    }
}

impl Drop for ReadyChild {
    fn drop(&mut self) {
        let _gone = process::kill(self.pidfd.as_fd());
    }
}

/// Most used children that wait for the owner thread to clean up after them; beyond that, the caller cleans up itself.
const SPENT_MAX: usize = 16;

type Waiter = oneshot::Sender<Result<ReadyChild, SandboxError>>;

/// One zygote's children, and the calls that wait for one.
pub(crate) struct Pool {
    pub(crate) profile: Arc<Profile>,
    pub(crate) boot: Boot,
    /// The folder that the zygote mounts as the workspace.
    pub(crate) root: SpaceRoot,
    pub(crate) cgroups: Option<Arc<Cgroups>>,
    pub(crate) size: PoolSize,
    state: Mutex<State>,
    wanted: Condvar,
    /// The limits and the isolation of the last call: most calls have the same limits.
    described: Mutex<Option<(Ceilings, Isolation)>>,
}

struct State {
    /// The zygote's control socket while it lives.
    control: Option<Arc<OwnedFd>>,
    /// The guard process while it lives.
    guard_pid: Option<u32>,
    ready: VecDeque<ReadyChild>,
    waiters: VecDeque<Waiter>,
    /// Children that were requested and have not arrived.
    asked: usize,
    /// How many children should be ready; the number grows when a call finds none, and shrinks with time.
    target: usize,
    in_flight: usize,
    last_used: Instant,
    closed: bool,
    /// Used children, until the owner thread cleans up after them.
    spent: Vec<ReadyChild>,
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

    /// The isolation that a call with these limits has here.
    pub(crate) fn isolation(&self, ceilings: &Ceilings) -> Isolation {
        let mut described = self.described.lock();
        match &*described {
            Some((known, isolation)) if known == ceilings => isolation.clone(),
            Some(_) | None => {
                let isolation = super::isolation::describe(self, ceilings);
                *described = Some((*ceilings, isolation.clone()));
                isolation
            }
        }
    }

    /// Takes a ready child for one call, or waits for one.
    pub(crate) async fn take(&self) -> Result<ReadyChild, SandboxError> {
        let receiver = {
            let mut state = self.state.lock();
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
        self.state.lock().in_flight += 1;
        InFlight(Arc::clone(self))
    }

    /// Returns a child whose call is over. The owner thread, which wakes for the next child anyway, cleans up after it:
    /// closing a filter's listener takes time, for which the caller need not wait.
    pub(crate) fn leave(&self, child: ReadyChild) {
        let mut state = self.state.lock();
        if state.spent.len() < SPENT_MAX && state.control.is_some() {
            state.spent.push(child);
        }
    }

    /// When the pool was last used; `None` while a call runs or waits for a child.
    pub(crate) fn idle_since(&self) -> Option<Instant> {
        let state = self.state.lock();
        (state.in_flight == 0 && state.waiters.is_empty()).then_some(state.last_used)
    }

    pub(crate) fn guard_pid(&self) -> Option<u32> {
        self.state.lock().guard_pid
    }

    /// Accepts no more calls; the owner thread kills the zygote and ends.
    pub(crate) fn close(&self) {
        let mut state = self.state.lock();
        state.closed = true;
        let children = state.take_children();
        state.waiters.clear();
        if let Some(control) = state.control.take() {
            let _gone = shutdown(control.as_raw_fd(), Shutdown::Both);
        }
        drop(state);
        drop(children);
        self.wanted.notify_all();
    }

    /// Ends a zygote that does not reap its children; the owner thread starts another.
    pub(crate) fn give_up_zygote(&self) {
        if let Some(control) = self.state.lock().control.take() {
            let _gone = shutdown(control.as_raw_fd(), Shutdown::Both);
        }
    }

    // The functions below are for the owner thread; `Sandbox::warm` uses `deliver`, too.

    /// Sleeps until a call wants a child; `false` means that the pool is closed.
    pub(crate) fn wait_until_wanted(&self) -> bool {
        let mut state = self.state.lock();
        while !state.closed && state.waiters.is_empty() {
            self.wanted.wait(&mut state);
        }
        !state.closed
    }

    /// A zygote has started. `false` means that the pool is closed.
    pub(crate) fn zygote_up(&self, control: Arc<OwnedFd>, guard_pid: u32) -> bool {
        let mut state = self.state.lock();
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
        let mut state = self.state.lock();
        state.control = None;
        state.guard_pid = None;
        state.asked = 0;
        let (children, go_on) = (state.take_children(), !state.closed);
        drop(state);
        drop(children);
        go_on
    }

    /// Fails every call that waits now.
    pub(crate) fn fail_waiters(&self, error: &SandboxError) {
        let waiters = std::mem::take(&mut self.state.lock().waiters);
        for waiter in waiters {
            let _gone = waiter.send(Err(error.clone()));
        }
    }

    /// Gives a child to the call that waits longest, or keeps it ready.
    pub(crate) fn deliver(&self, ready: ReadyChild) {
        let mut state = self.state.lock();
        state.asked = state.asked.saturating_sub(1);
        let mut ready = Ok(ready);
        while let Some(waiter) = state.waiters.pop_front() {
            match waiter.send(ready) {
                Ok(()) => return,
                // That caller has given up; the next one gets the unused child.
                Err(back) => ready = back,
            }
        }
        if let (Ok(ready), false) = (ready, state.closed) {
            state.ready.push_back(ready);
        }
    }

    /// Takes the used children that wait for the owner thread to clean up after them.
    pub(crate) fn take_spent(&self) -> Vec<ReadyChild> {
        std::mem::take(&mut self.state.lock().spent)
    }

    /// Records that a requested child will not arrive.
    pub(crate) fn miss(&self) {
        let mut state = self.state.lock();
        state.asked = state.asked.saturating_sub(1);
    }

    /// Drops half of the ready children after a time without calls.
    pub(crate) fn decay(&self) {
        let mut state = self.state.lock();
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
    fn take_children(&mut self) -> (VecDeque<ReadyChild>, Vec<ReadyChild>) {
        (std::mem::take(&mut self.ready), std::mem::take(&mut self.spent))
    }

    fn ask(&mut self) {
        let wanted =
            (self.target + self.waiters.len()).saturating_sub(self.ready.len() + self.asked).min(FORKS_MAX);
        let (Some(control), true) = (&self.control, wanted > 0) else {
            return;
        };
        // A full socket means that enough children are requested; the owner thread notices a broken socket.
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
        let mut state = self.0.state.lock();
        state.in_flight = state.in_flight.saturating_sub(1);
        state.last_used = Instant::now();
        state.ask();
    }
}
