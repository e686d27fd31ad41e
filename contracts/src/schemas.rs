//! The JSON Schemas (2020-12) of all documents, generated from the types and published under `docs/schemas/`.

use schemars::{Schema, schema_for};

use crate::approval::ApprovalData;
use crate::batch::{BatchRequest, BatchResult};
use crate::event::{
    AmendedData, ArtifactData, ConnectionData, DeadLetterData, DecisionData, Event, ExecutedData,
    SessionData, ToolQuarantinedData,
};
use crate::failure::Failure;
use crate::plan::{Plan, PlanResult};
use crate::receipt::Receipt;
use crate::request::ActionRequest;
use crate::tool::ToolSpec;

/// All published schemas, with their file names.
pub fn all() -> Vec<(&'static str, Schema)> {
    vec![
        ("action-request.json", schema_for!(ActionRequest)),
        ("batch-request.json", schema_for!(BatchRequest)),
        ("batch-result.json", schema_for!(BatchResult)),
        ("tool-spec.json", schema_for!(ToolSpec)),
        ("receipt.json", schema_for!(Receipt)),
        ("failure.json", schema_for!(Failure)),
        ("plan.json", schema_for!(Plan)),
        ("plan-result.json", schema_for!(PlanResult)),
        ("action-decision-event.json", schema_for!(Event<DecisionData>)),
        ("action-executed-event.json", schema_for!(Event<ExecutedData>)),
        ("approval-event.json", schema_for!(Event<ApprovalData>)),
        ("artifact-event.json", schema_for!(Event<ArtifactData>)),
        ("dead-letter-event.json", schema_for!(Event<DeadLetterData>)),
        ("tool-event.json", schema_for!(Event<ToolQuarantinedData>)),
        ("amendment-event.json", schema_for!(Event<AmendedData>)),
        ("session-event.json", schema_for!(Event<SessionData>)),
        ("connection-event.json", schema_for!(Event<ConnectionData>)),
    ]
}
