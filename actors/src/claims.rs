//! Claims: which action may change which resource, and the intent that is durable before it does.

pub mod intent;
pub mod key;
pub mod pending;
pub(crate) mod resources;
pub(crate) mod takeover;
