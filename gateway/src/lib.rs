//! The gateway: how planners and operators reach a running effectd, over HTTP and JSON on a unix socket, and over TCP if the
//! operator gives an address. Figures and health are also shown at an address of their own.
//!
//! At the socket the kernel says who connects: the peer's uid becomes the principal, and no header can claim another. Over TCP a
//! token does. The pipeline behind the gateway makes the promises; this crate adds none and weakens none.
//!
//! Everything that a client can do badly has a bound in [`limits`] or the settings: sending too much, too slowly or too often,
//! and not reading its answers. A client that exceeds one is refused or disconnected; others notice nothing.

#![expect(
    clippy::result_large_err,
    reason = "a problem is made once for a refused request, and is its answer"
)]

pub mod limits;

pub mod error;
pub mod metrics;
pub mod settings;

pub mod problem;
mod remediation;
mod schema;

pub mod views;

pub mod client;

pub mod text;

pub mod socket;

mod authenticate;
mod body;
mod catalogue;
mod headers;
mod oidc;
mod peer;
mod signed_in;
mod slack;
mod slots;
mod tls;
mod write_timeout;

mod streams;

mod app;
mod extract;
mod health;
mod host;

mod console;
mod guard;
mod mcp;
mod routes;
mod scrape;
pub mod server;
mod tcp;

pub use error::GatewayError;
pub use health::Readiness;
pub use host::{Host, Receipts, Stage};
pub use routes::openapi;
pub use scrape::Scrape;
pub use server::Gateway;
pub use settings::{OidcSettings, Settings, SharedSettings};
pub use socket::Socket;
pub use tcp::Tcp;
