//! The doors: how planners and operators reach a running effectd.
//!
//! There is one so far, a unix socket that speaks HTTP and JSON. Whoever connects is known by the kernel's word alone: the
//! peer's uid becomes the principal, and no header can say otherwise. Behind the door stands the pipeline; this crate adds
//! nothing to what it promises, and takes nothing away.
//!
//! Everything that a client can do badly has a bound in [`limits`]: sending too much, too slowly, too often, not reading
//! what it asked for. One client's manners cost that client its connection, and nobody else anything.

#![expect(
    clippy::result_large_err,
    reason = "a problem is made once for a refused request, and is its answer"
)]

pub mod limits;

pub mod error;
pub mod settings;
pub mod socket;

mod advice;
mod body;
mod headers;
pub mod letters;
pub mod operations;
mod patience;
mod peer;
pub mod problem;
pub mod replay;
pub mod upkeep;
pub mod views;

pub mod client;
mod desk;
mod extract;
pub mod metrics;
mod pulse;
mod routes;

pub mod openapi;
pub mod server;

pub use error::GatewayError;
pub use server::{Gateway, Host};
pub use settings::{Dial, Settings};
pub use socket::Socket;
