//! The sandbox: a fresh, fully confined process for every action.
//!
//! The runtime calls [`Sandbox::call`]. A *zygote*, a small process that is confined already, has a single-use child waiting;
//! the child takes the one request, narrows itself to it, runs the one tool, answers, and is killed with everything it
//! started. What the kernel cannot enforce does not run. Read the modules in this order:

mod error;
pub mod limits;

mod broker;

mod call;
mod root;
mod sandbox;
mod side_channel;
mod view;

mod confine;
mod host;
mod sys;
mod wire;
mod zygote;

pub mod doctor;
mod drill;

#[cfg(feature = "testing")]
pub mod layers;
#[cfg(feature = "testing")]
pub mod testing;

pub use broker::{close_inherited_files, confine_broker};
pub use call::{Answer, Call, Denial, DenialSource, Ending, Limits, Narrowing, Usage};
pub use error::SandboxError;
pub use host::cache::{CacheUsage, disk_room, empty_cache};
pub use host::outcome::CACHE_FULL;
pub use host::pool::PoolSize;
pub use host::reap::Reply;
pub use root::{Ancestor, RootId, SpaceRoot};
pub use sandbox::{Sandbox, SandboxConfig, ZygoteInfo};
pub use side_channel::{Outward, Piece, SideChannel};
pub use view::View;
pub use wire::ZYGOTE_ARGUMENT;
pub use zygote::{ChildCtx, Dispatch, init, init_with_warm_up};
