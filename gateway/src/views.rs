//! What the gateway answers, and the bodies that it reads, as JSON types with their schemas.

pub mod actions;
pub mod approvals;
pub mod artifacts;
pub mod automations;
pub mod batches;
pub mod breakers;
pub mod budgets;
pub mod connections;
pub mod connectors;
pub mod console;
pub mod dead_letters;
pub mod grants;
pub mod health;
pub mod notifications;
pub mod operations;
pub mod plugins;
pub mod policy;
pub mod receipt_text;
pub mod receipts;
pub mod session;
pub mod sessions;
pub mod store;
pub mod tokens;
pub mod tools;
pub mod tree;
pub mod whoami;

pub use actions::{ActionView, State};
pub use batches::BatchView;
pub use breakers::BreakerView;
pub use health::Health;
pub use policy::{
    Explanation, PolicyChange, PolicyFile, PolicyFiles, PolicyView, ReplayChange, ReplayView, RootChange,
    ShadowFiles, ShadowFlip, ShadowGroup, ShadowView,
};
pub use receipts::{Amending, ReceiptList, RotatedView};
pub use tools::{tool_details, tool_summary};
pub use tree::ActorView;
