//! The proofs of an action's states: what each stage has found out, and what later stages rely on.
//!
//! The constructors are visible in this crate; `tests/tidy` checks that only the stage that earns a proof calls its constructor.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use effectd_bus::{Fence, Pins, ResourceName};
use effectd_contracts::{
    Attempt, Digest, Effects, EgressRecord, Failure, IdempotencyKey, Isolation, Millis, Outcome,
    PathSnapshot, ReceiptId, Redaction, Repeat, ToolOutput, Touch,
};
use effectd_policy::{Decision, Facts, NamedCommand};
use serde::Serialize;
use serde_json::{Map, Value, json};
use tokio::sync::watch;

use super::plan::{Area, PlanRun, PlanTerms};
use crate::claims::intent::Intent;
use crate::registry::RegisteredTool;

/// The tool exists, and the parameters fit its schema and its rules.
#[derive(Debug)]
pub struct Validated {
    tool: Arc<RegisteredTool>,
}

impl Validated {
    pub(crate) fn new(tool: Arc<RegisteredTool>) -> Self {
        Self { tool }
    }

    pub fn tool(&self) -> &Arc<RegisteredTool> {
        &self.tool
    }
}

/// The policy permits the action.
#[derive(Debug)]
pub struct Gated {
    tool: Arc<RegisteredTool>,
    ruling: Box<Ruling>,
    params: Arc<Map<String, Value>>,
    dry_run: Option<DryRun>,
    terms: Option<Arc<PlanTerms>>,
}

/// Why the tool must not change anything.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DryRun {
    Asked,
    /// The operator has paused effects.
    Paused,
}

impl DryRun {
    pub const fn outcome(self) -> Outcome {
        match self {
            DryRun::Asked => Outcome::DryRun,
            DryRun::Paused => Outcome::Paused,
        }
    }
}

#[derive(Debug, Clone)]
pub struct Ruling {
    pub decision: Decision,
    pub facts: Facts,
    /// What redaction removed from the parameters.
    pub redactions: Vec<Redaction>,
    /// Personal data that the tool gets and the approver does not see.
    pub hidden: Vec<Redaction>,
    /// For a batch: what the question about each item depends on, beside its parameters.
    pub items: Vec<Digest>,
}

impl Gated {
    pub(crate) fn new(
        validated: Validated,
        ruling: Ruling,
        params: Arc<Map<String, Value>>,
        (dry_run, terms): (Option<DryRun>, Option<Arc<PlanTerms>>),
    ) -> Self {
        Self { tool: validated.tool, ruling: Box::new(ruling), params, dry_run, terms }
    }

    pub fn tool(&self) -> &Arc<RegisteredTool> {
        &self.tool
    }

    pub fn ruling(&self) -> &Ruling {
        &self.ruling
    }

    /// The parameters after redaction: the tool gets them, and the idempotency key is derived from them.
    pub fn params(&self) -> &Arc<Map<String, Value>> {
        &self.params
    }

    pub fn dry_run(&self) -> Option<DryRun> {
        self.dry_run
    }

    /// What its plan and the package of its tool demand; `None` if there is neither.
    pub fn terms(&self) -> Option<&Arc<PlanTerms>> {
        self.terms.as_ref()
    }

    /// The files to which a plan confines a tool that does not declare its paths.
    pub(crate) fn area(&self) -> Option<&Area> {
        self.terms.as_ref()?.area.as_ref()
    }

    /// Whether an interrupted run is rolled back: it is that of a plan, and changes files.
    pub fn is_transaction(&self) -> bool {
        self.terms.is_some() && self.dry_run.is_none() && self.tool.spec().changes_files()
    }

    /// Whether the kernel confines the call to paths beneath which it may change everything.
    pub fn is_confined_to_paths(&self) -> bool {
        self.command().is_some() || self.area().is_some()
    }

    /// The named command that covers the call.
    pub fn command(&self) -> Option<&Arc<NamedCommand>> {
        self.ruling.decision.command.as_ref()
    }

    /// Whether the call is a named command that can change nothing in the space.
    pub fn is_reading_command(&self) -> bool {
        self.command().is_some_and(|command| command.writes.is_empty())
    }

    /// How an interrupted run is settled: a command that only reads may run again.
    pub fn repeat(&self) -> Repeat {
        if self.is_reading_command() { Repeat::Safe } else { self.tool.spec().repeat }
    }
}

/// The policy demands an approval; nothing else prevents the action.
#[derive(Debug)]
pub struct Asked(Gated);

impl std::ops::Deref for Asked {
    type Target = Gated;

    fn deref(&self) -> &Gated {
        &self.0
    }
}

/// Proof that an approver's decision or a grant covers exactly this action. Only the approval stage makes one.
#[derive(Debug)]
pub(crate) struct Evidence(());

impl Evidence {
    pub(crate) fn found() -> Self {
        Self(())
    }
}

impl Asked {
    pub(crate) fn new(gated: Gated) -> Self {
        Self(gated)
    }

    pub(crate) fn permitted(self, _: &Evidence) -> Gated {
        self.0
    }
}

/// This process may run the action; its claim and intent are on disk.
#[derive(Debug)]
pub struct Claimed {
    gated: Gated,
    terms: Terms,
    fence: Fence,
    earlier: Earlier,
}

/// Whether an earlier delivery began the action.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Earlier {
    No,
    /// Yes, and whether its effect happened is not known. `None` if the intent cannot be read any more.
    Interrupted(Option<Intent>),
}

/// What the claim of an action contains, and what is stored beside it.
#[derive(Debug, Clone)]
pub struct Terms {
    /// None for a dry run and for tools without key fields.
    pub key: Option<IdempotencyKey>,
    /// Digest of the parameters after redaction.
    pub params_digest: Digest,
    pub resources: Vec<ResourceName>,
    /// The resources whose change frees the key again, if the key is derived from the parameters. A key that the planner chose
    /// names one request and is never freed.
    pub depends: Vec<ResourceName>,
    /// A receipt of the key that no longer describes the touched paths.
    pub stale: Option<ReceiptId>,
    pub touched: Vec<Touch>,
    /// The snapshot of the touched paths just before the claim.
    pub before: Option<Vec<PathSnapshot>>,
    pub preimages: Preimages,
    /// Blobs that are sent with the call; quota and retention keep them until the action has ended.
    pub pinned: Option<Arc<Pins>>,
    /// Whether the effect may be repeated if nobody knows what its paths are like now.
    pub repeat: Repeat,
}

#[derive(Debug, Clone, Default)]
pub struct Preimages {
    pub(crate) names: Vec<String>,
    /// Blobs that may not be on disk yet; until they are, the intent holds their contents.
    pub(crate) storing: Option<Storing>,
}

#[derive(Debug, Clone)]
pub(crate) struct Storing {
    pub(crate) contents: Arc<Vec<(String, Vec<u8>)>>,
    /// Whether the blobs are on disk. The sender is dropped when writing has ended.
    pub(crate) stored: watch::Receiver<bool>,
}

impl Claimed {
    pub(crate) fn new(gated: Gated, terms: Terms, fence: Fence, earlier: Earlier) -> Self {
        Self { gated, terms, fence, earlier }
    }

    pub fn gated(&self) -> &Gated {
        &self.gated
    }

    pub fn terms(&self) -> &Terms {
        &self.terms
    }

    /// Releases the blobs that were sent with the call.
    pub(crate) fn take_pinned(&mut self) -> Option<Arc<Pins>> {
        self.terms.pinned.take()
    }

    pub fn fence(&self) -> Fence {
        self.fence
    }

    pub fn earlier(&self) -> &Earlier {
        &self.earlier
    }
}

/// The action ran, was found to have run, or could not run.
#[derive(Debug)]
pub struct Finished {
    claimed: Claimed,
    ended: Box<Ended>,
    timeout: Duration,
}

#[derive(Debug)]
pub struct Ended {
    pub result: Result<ToolOutput, Failure>,
    pub outcome: Outcome,
    pub effects: Effects,
    /// A dead letter is committed with the receipt.
    pub dead_letter: bool,
    pub runs: Runs,
    /// What has become of the items of a batch that failed.
    pub marks: Option<Value>,
}

impl Ended {
    /// What is kept for the asker: the tool's result, or the checks of a plan that failed, with what they wrote.
    pub(crate) fn kept(&self) -> Option<Cow<'_, Value>> {
        let plan = self.runs.plan.as_deref();
        match &self.result {
            Ok(output) => Some(Cow::Borrowed(&output.result)),
            Err(_) => {
                let checks = &plan?.verified.checks;
                (!checks.is_empty()).then(|| Cow::Owned(json!({ "checks": checks })))
            }
        }
    }
}

#[derive(Debug, Default)]
pub struct Runs {
    pub attempts: Vec<Attempt>,
    pub used: Used,
    pub isolation: Option<Isolation>,
    pub artifacts: Vec<KeptArtifact>,
    /// What went over the network.
    pub egress: Vec<EgressRecord>,
    /// The paths where a draft of a killed run was removed, or what it had set aside was put back.
    pub cleaned_up: BTreeSet<String>,
    /// What the plan came to, if there is one.
    pub plan: Option<Box<PlanRun>>,
    /// What the items of a batch have changed together, to be compared with its preview.
    pub of_items: Option<Box<Effects>>,
}

/// What all attempts together used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Used {
    pub cpu: Millis,
    /// Time in the sandbox.
    pub exec: Millis,
    pub peak_memory_bytes: u64,
    pub bytes_written: u64,
}

/// An artifact as the receipt names it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct KeptArtifact {
    /// The digest of the content, under the device's key.
    pub artifact_id: String,
    /// The tool's name for it.
    pub name: String,
    pub bytes: u64,
}

impl Finished {
    pub(crate) fn new(claimed: Claimed, ended: Box<Ended>, timeout: Duration) -> Self {
        Self { claimed, ended, timeout }
    }

    pub fn claimed(&self) -> &Claimed {
        &self.claimed
    }

    pub fn ended(&self) -> &Ended {
        &self.ended
    }

    pub fn timeout(&self) -> Duration {
        self.timeout
    }
}
