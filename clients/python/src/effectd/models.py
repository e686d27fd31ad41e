"""What people touch of effectd's answers. Members that a model does not name are kept, and `raw` is what the daemon sent."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, ModelWrapValidatorHandler, PrivateAttr, model_validator
from pydantic.alias_generators import to_camel


class Model(BaseModel):
    """A part of an answer. A newer daemon may send more members; they are attributes, too."""

    model_config = ConfigDict(extra="allow", frozen=True, protected_namespaces=())
    _raw: dict[str, Any] = PrivateAttr(default_factory=dict)

    @model_validator(mode="wrap")
    @classmethod
    def _keep(cls, value: Any, make: ModelWrapValidatorHandler[Self]) -> Self:
        made = make(value)
        if isinstance(value, dict):
            made._raw = value
        return made

    @property
    def raw(self) -> dict[str, Any]:
        """The JSON of the daemon, with times to the nanosecond."""
        return self._raw


class Change(Model):
    """What has to change."""

    by: str
    """`planner`, `operator` or `time`."""
    what: str


class Failure(Model):
    """Why an action failed."""

    code: str
    message: str
    retryable: bool
    phase: str
    gate: str | None = None
    change: str | None = None


class Redaction(Model):
    """A placeholder that replaced personal data."""

    field: str
    kind: str
    count: int


class Cost(Model):
    cpu_ms: float
    energy_mwh: float
    peak_memory_bytes: int | None = None
    bytes_written: int | None = None


class Timing(Model):
    queued_ms: float
    exec_ms: float
    total_ms: float
    started_at: datetime
    ended_at: datetime


class Reward(Model):
    scalar: float
    v2: float | None = None


class Amendment(Model):
    """A later judgement about a receipt."""

    amendment_id: str
    receipt_id: str
    at: datetime
    by: str
    source: str
    success: bool | None = None
    quality: float | None = None
    note: str | None = None
    reward: Reward


class Receipt(Model):
    """The signed record of how an action ended."""

    receipt_id: str
    action_id: str
    tool_id: str
    space_id: str
    subject_id: str
    principal: str
    status: str
    """`ok`, `error`, `skipped` or `quarantined`."""
    outcome: str
    error: Failure | None = None
    inputs: dict[str, Any]
    outputs: dict[str, Any]
    cost: Cost
    timing: Timing
    reward: Reward
    trace_id: str
    idempotency_key: str | None = None
    tool_version: str | None = None
    redactions: list[Redaction] = []
    effects: str | dict[str, Any]
    """`none`, `unobserved`, `possible`, or what was `observed` to change."""
    decision: dict[str, Any] | None = None
    choice: dict[str, Any] | None = None
    _amendments: list[Amendment] = PrivateAttr(default_factory=list[Amendment])

    @property
    def amendments(self) -> list[Amendment]:
        """Later judgements, oldest first; only in receipts that `receipts()` gives."""
        return self._amendments

    @property
    def current_reward(self) -> Reward:
        """The reward with all amendments."""
        return self._amendments[-1].reward if self._amendments else self.reward


class Held(Model):
    """The approval that an action waits for."""

    approval_id: str
    expires_at: datetime
    reasons: list[str]
    joined: bool


class _Action(Model):
    action_id: str
    state: str
    """`accepted`, `held`, `done` or `ended`."""
    already_done: bool = False
    """It was done earlier, by this action or an equal one; nothing ran now."""
    result: dict[str, Any] | None = None
    """What the tool returned; absent if it returned nothing, or `result_error` says why."""
    result_error: Failure | None = None
    redactions: list[Redaction] = []


class Status(_Action):
    """Where an action is."""

    outcome: str | None = None
    receipt: Receipt | None = None
    approval: Held | None = None


class Done(_Action):
    """An action that was done, now or earlier, with its receipt."""

    outcome: str
    """`executed`, `cached_hit` or `dry_run`."""
    receipt: Receipt


class BatchItemResult(Model):
    """What has become of an item of a batch."""

    action_id: str
    tool_id: str | None = None
    marker: str
    """`committed`, `rolled_back`, `rollback_failed` or `not_started`."""
    reason: str | None = None
    paths: list[str] = []
    """The paths that are not as they were before the batch."""
    paths_left_out: int = 0
    """How many more there are: the receipts of the item and of its undo have them."""
    receipt_id: str | None = None
    undo_receipt_id: str | None = None


class BatchResult(Model):
    """How a batch ended."""

    outcome: str
    """`executed`, `reverted` if nothing of it is left, or why not all of it is done."""
    partial: bool
    """Something could not be undone."""
    items: list[BatchItemResult]
    receipt_id: str
    error: Failure | None = None


class Batch(Model):
    """Where a batch is."""

    batch_id: str
    state: str
    """`accepted` while it goes on, `held`, `done` or `ended`."""
    already_done: bool = False
    approval: Held | None = None
    result: BatchResult | None = None


class _OfPlan(Model):
    """A part of a plan's answer, whose JSON has camelCase."""

    model_config = ConfigDict(alias_generator=to_camel, validate_by_name=True)


class Check(_OfPlan):
    """One check of a plan's verification."""

    name: str
    ok: bool
    exit_code: int | None = None
    output: str = ""


class Verification(_OfPlan):
    ok: bool
    checks: list[Check] = []


class Tried(_OfPlan):
    attempted: bool
    ok: bool


class PlanResult(_OfPlan):
    """What a plan came to, in the words of the action API."""

    status: str
    """`succeeded`, `reverted`, `queued`, `rejected` or `failed`."""
    action_id: str
    action_type: str
    risk_tier: str
    output: dict[str, Any] = {}
    verification: Verification
    repair: Tried
    rollback: Tried
    feedback: dict[str, Any] = {}
    """`receiptId` of a plan that has ended, or `approvalId` of one that is queued."""
    error: Failure | None = None


class Preview(Model):
    """What the policy says to a request, and what it would change."""

    verdict: str
    """`permit`, `needs_approval`, `deny` or `quarantine`."""
    reasons: list[str]
    rule: str
    tier: str
    preview: dict[str, Any]
    """What the tool changed on a copy: `shown`, `would_fail`, or `unavailable` with the reason."""
    redactions: list[Redaction] = []


class Approval(Model):
    """A question to a person."""

    approval_id: str
    state: str
    """`pending`, `approved`, `denied` or `expired`."""
    action_ids: list[str]
    tool_id: str
    subject_id: str
    space_id: str
    principal: str
    digest: str
    """Covers what a yes approves: parameters, tool, rules, and the present state of the paths."""
    asked_at: datetime
    expires_at: datetime | None = None
    prompt: dict[str, Any] | None = None
    """What a person decides by: parameters, preview, reasons, rule, tier."""
    decided: dict[str, Any] | None = None


class Decision(Model):
    """A decided approval and its action."""

    approval: Approval
    action: Status
    grant: dict[str, Any] | None = None
    released: int = 0
    """Other actions that start because of the grant or the mode."""


class Event(Model):
    """A CloudEvent of a topic."""

    id: str
    type: str
    source: str
    offset: int
    data: dict[str, Any] | None = None
    sealed: bool = False


class Problem(Model):
    """An error as the daemon sends it."""

    type: str
    title: str
    status: int
    detail: str
    code: str
    retryable: bool
    retry_after_ms: int | None = None
    phase: str | None = None
    gate: str | None = None
    rule: str | None = None
    change: Change | None = None
    action_id: str | None = None
    receipt: Receipt | None = None
