//! One request made on the command line: who asks, in which space, and how the reply is printed.

use std::time::Duration;

use effectd_contracts::limits::TIMEOUT_MS_MAX;
use effectd_contracts::{ActionId, ActionRequest, SpaceId, SubjectId, ToolId};
use serde_json::{Map, Value};

use super::backend::submit_with_retry;
use super::{CliError, Common, Depth, action_output, with_client};
use crate::exit::Exit;

pub(super) const DEFAULT_SUBJECT: &str = "agent://planner@deviceA";
pub(super) const DEFAULT_SPACE: &str = "shared:household";

#[derive(Debug, Clone, clap::Args)]
pub(super) struct RequestArgs {
    /// The subject to act for; the policy says which subjects you may name
    #[arg(long, value_name = "SUBJECT", default_value = DEFAULT_SUBJECT)]
    pub(super) subject: SubjectId,
    /// The space
    #[arg(long, value_name = "SPACE", default_value = DEFAULT_SPACE)]
    pub(super) space: SpaceId,
}

impl RequestArgs {
    /// A request with a new action id.
    pub(super) fn request(
        &self,
        tool_id: ToolId,
        params: Map<String, Value>,
        dry_run: bool,
    ) -> ActionRequest {
        let by = (self.subject.clone(), self.space.clone());
        ActionRequest { dry_run, ..ActionRequest::new(ActionId::fresh(), by, (tool_id, params)) }
    }
}

/// The longest wait for a reply: the longest time limit of a tool, and as much for what comes before the tool.
const WAIT: Duration = Duration::from_millis(2 * TIMEOUT_MS_MAX);
/// How long a request to an overloaded daemon is repeated.
const PATIENCE: Duration = Duration::from_secs(10);

/// Lets the daemon or this process carry out a request, and prints receipt and result.
pub(super) async fn execute_and_print(common: &Common, request: ActionRequest) -> Result<Exit, CliError> {
    let reply = with_client(common, Depth::Pipeline, async |client| {
        Ok(submit_with_retry(client, &request, Some(WAIT), PATIENCE).await?)
    })
    .await?;
    let (receipt, before) = action_output::receipt_of(&reply);
    action_output::print_reply(&reply, receipt, before, common.output);
    Ok(action_output::exit_of(&reply))
}
