//! The desktop, where there is one: takes up what people are to be told, and hands it to the session bus.
//!
//! Tools cannot reach it from inside the sandbox, and nothing else of effectd speaks to it. `broker.rs` follows the receipts of
//! `notify.local`, `session.rs` speaks to the bus, `wire.rs` has its bytes, `words.rs` makes a text safe to be shown there.

mod broker;
pub mod session;
pub mod wire;
mod words;

pub(crate) use broker::Broker;
