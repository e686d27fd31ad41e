//! `effectd tools disable|enable|set-caps`: a tool is taken out of use while everything else goes on.

use effectd_contracts::{Capability, Operation, ToolId};

use super::KnownTool;
use crate::cli::Common;
use crate::cli::backend::Trouble;
use crate::cli::operate::{self, Confirm};
use crate::cli::output::Form;
use crate::exit::Exit;

/// Switch a tool off: every call of it gets a receipt that says so, and nothing happens
///
/// From the next call on, without a restart, and over one.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  effectd tools disable files.write_text --yes")]
pub(super) struct Disable {
    #[command(flatten)]
    which: Which,
}

/// Switch a tool on again
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  effectd tools enable files.write_text --yes")]
pub(super) struct Enable {
    #[command(flatten)]
    which: Which,
}

/// Ask for other capabilities than a tool's own description does
///
/// A capability that no role of the policy has turns every caller away, by the gate `rbac`, from the next call on. `--reset` goes back
/// to what the tool's description asks for.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  effectd tools set-caps files.write_text nobody.has_this --yes\n  \
    effectd tools set-caps files.write_text --reset --yes"
)]
pub(super) struct SetCaps {
    #[command(flatten)]
    which: Which,
    /// What callers need from now on
    #[arg(
        value_name = "CAPABILITY",
        required_unless_present = "reset",
        conflicts_with = "reset"
    )]
    caps: Vec<Capability>,
    /// Go back to what the tool's description asks for
    #[arg(long)]
    reset: bool,
}

#[derive(Debug, clap::Args)]
struct Which {
    /// Which tool
    #[arg(value_name = "TOOL", value_parser = KnownTool)]
    tool: ToolId,
    #[command(flatten)]
    confirm: Confirm,
    /// How the answer is shown
    #[arg(long, short, value_enum, default_value = "table", value_name = "FORM")]
    output: Form,
}

impl Which {
    async fn main(&self, common: &Common, operation: &Operation) -> Result<Exit, Trouble> {
        operate::main(common, operation, self.confirm, self.output).await
    }

    fn tool_id(&self) -> ToolId {
        self.tool.clone()
    }
}

impl Disable {
    pub(super) async fn main(&self, common: &Common) -> Result<Exit, Trouble> {
        let tool_id = self.which.tool_id();
        self.which.main(common, &Operation::DisableTool { tool_id }).await
    }
}

impl Enable {
    pub(super) async fn main(&self, common: &Common) -> Result<Exit, Trouble> {
        let tool_id = self.which.tool_id();
        self.which.main(common, &Operation::EnableTool { tool_id }).await
    }
}

impl SetCaps {
    pub(super) async fn main(&self, common: &Common) -> Result<Exit, Trouble> {
        let tool_id = self.which.tool_id();
        let operation = if self.reset {
            Operation::ResetCaps { tool_id }
        } else {
            let caps = self.caps.clone();
            Operation::SetCaps { tool_id, caps }
        };
        self.which.main(common, &operation).await
    }
}
