//! Drills: attacks on our own sandbox for `doctor`. Each runs in a real child.
#![expect(clippy::disallowed_types, reason = "attacks from within a child")]

use std::fs;
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::time::Duration;

use nix::errno::Errno;
use nix::sched::{CloneFlags, unshare};
use nix::sys::signal::kill;
use nix::unistd::Pid;
use serde::{Deserialize, Serialize};

/// What a child tries instead of running a tool.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Drill {
    /// Nothing: an answer proves that a child can run.
    Answer,
    /// To read a file outside of the workspace.
    Read(PathBuf),
    /// To write a file in the workspace, which it may.
    Create(PathBuf),
    /// To connect to a live listener.
    Connect(SocketAddr),
    /// To make a namespace.
    Unshare,
    /// To signal a process outside of the sandbox.
    Signal(i32),
    /// To run past its deadline.
    Stay,
    /// To exceed its processor time limit.
    Burn,
    Eat(usize),
    Execute(PathBuf),
}

impl Drill {
    /// Tries the attack; returns the text of its error, or nothing if the attack succeeded.
    pub(crate) fn run(&self) -> Vec<u8> {
        let errno = |error: std::io::Error| error.to_string();
        let result: Result<(), String> = match self {
            Self::Answer => Ok(()),
            Self::Read(path) => fs::read(path).map(drop).map_err(errno),
            Self::Create(path) => fs::write(path, "").map_err(errno),
            Self::Connect(to) => TcpStream::connect(to).map(drop).map_err(errno),
            Self::Unshare => unshare(CloneFlags::CLONE_NEWUSER).map_err(|errno| errno.to_string()),
            Self::Signal(pid) => kill(Pid::from_raw(*pid), None).map_err(|errno: Errno| errno.to_string()),
            Self::Stay => loop {
                std::thread::sleep(Duration::from_secs(60));
            },
            Self::Burn => loop {
                std::hint::black_box(0);
            },
            Self::Eat(bytes) => {
                let mut eaten = Vec::new();
                for _ in 0..bytes.div_ceil(1 << 20) {
                    eaten.push(std::hint::black_box(vec![1u8; 1 << 20]));
                }
                Ok(())
            }
            Self::Execute(path) => std::process::Command::new(path).status().map(drop).map_err(errno),
        };
        result.err().unwrap_or_default().into_bytes()
    }
}
