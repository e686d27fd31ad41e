//! Where it happens: a fresh, fully confined process for every action.
//!
//! The runtime calls [`Sandbox::call`]; a *zygote* — a small process that is confined already — has a single-use child
//! waiting for it, which takes the one request, narrows itself to it, runs the one tool, answers, and is gone with
//! everything it started. What the kernel cannot enforce is not run. Read it in this order:

mod error;
pub mod limits;

mod call;
mod root;
mod sandbox;

mod filter;
mod profile;
mod rules;
mod syscalls;

mod beside;
mod cgroup;
mod denials;
mod ending;
mod hear;
mod isolation;
mod keeper;
mod pool;
mod run;
mod settle;
mod trouble;
mod wire;

mod sys;
mod zygote;

pub mod doctor;
mod drill;

#[cfg(feature = "testing")]
pub mod layers;
#[cfg(feature = "testing")]
pub mod testing;

pub use beside::{Beside, Outward, Piece};
pub use call::{Answer, Call, Denial, DenialSource, Ending, Limits, Narrowing, Usage};
pub use error::SandboxError;
pub use pool::PoolSize;
pub use root::{Above, RootId, SpaceRoot};
pub use sandbox::{Sandbox, SandboxConfig, ZygoteInfo};
pub use settle::Reply;
pub use zygote::{ChildCtx, Dispatch, ZYGOTE_ARGUMENT, init, init_with_warm_up};
