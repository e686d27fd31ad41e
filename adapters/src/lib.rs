//! The built-in tools: one file each, with its spec, its `run` and its tests.
//!
//! A tool's code runs only inside the confined child; the pipeline reads its spec and its rules for parameters outside. The
//! sandbox confines a tool whatever its code does; the code here is careful as well.

pub mod limits;
pub mod spacepath;
pub mod tool;
pub mod workspace;

mod archive;
mod batch;
mod dispatch;
mod exchange;
mod failpoint;
mod params;
mod prelude;
mod preview;
mod probe;
mod side_channel;

pub mod artifact;
pub mod command;
pub mod diagnose;
pub mod files;
pub mod http;
pub mod linear;
mod mcp;
pub mod notify;
mod plugin;
pub mod postgres;
pub mod sentry;
pub mod slack;
pub mod sqlite;

use effectd_contracts::ToolId;

pub use dispatch::{answer, dispatch};
pub use side_channel::ToolChannel;
pub use spacepath::{Base, PathInvalid, SpacePath};
pub use tool::Tool;
pub use workspace::{FileProblem, Inspected, Workspace, is_local};

/// The tool of this id: a built-in one, one of a service, or one that a connection, a connector or a plugin has under its own name.
pub fn find(id: &ToolId) -> Option<&'static dyn Tool> {
    if effectd_contracts::batch::is_batch(id) {
        return Some(&batch::Whole);
    }
    let of_services = services().iter().flat_map(|service| service.tools);
    let mut known = all().iter().chain(of_services).copied();
    let known = known.find(|tool| tool.id() == id.as_str());
    known
        .or_else(|| http::tool(id))
        .or_else(|| postgres::tool(id))
        .or_else(|| mcp::tool(id))
        .or_else(|| plugin::tool(id))
}

/// The tools of one service. They are offered where the organisation has a connection to it.
#[derive(Clone, Copy)]
pub struct Service {
    /// Their source.
    pub source: &'static str,
    pub tools: &'static [&'static dyn Tool],
    /// How to use them, in Markdown.
    pub guide: &'static str,
}

/// Every service. A new one is a file, a line here, and a preset in `contracts/src/access.rs`.
pub fn services() -> &'static [Service] {
    &[linear::SERVICE, sentry::SERVICE, slack::SERVICE]
}

/// Every built-in tool. A new one is a file, and a line here.
pub fn all() -> &'static [&'static dyn Tool] {
    &[
        &files::ReadText,
        &files::WriteText,
        &files::AppendText,
        &files::EditText,
        &files::ApplyPatch,
        &files::List,
        &files::Search,
        &files::Stat,
        &files::MakeDir,
        &files::Copy,
        &files::Move,
        &files::Delete,
        &files::Archive,
        &files::Extract,
        &files::Undo,
        &artifact::Put,
        &artifact::Get,
        &command::Run,
        &diagnose::DiagnoseError,
        &notify::Local,
        &sqlite::Query,
    ]
}

#[cfg(test)]
mod tests;
