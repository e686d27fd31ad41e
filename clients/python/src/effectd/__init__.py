"""effectd for Python: actions of AI planners, carried out once, with a signed receipt each.

from effectd import Effectd

with Effectd(subject_id="agent://planner@deviceA", space_id="shared:household") as effectd:
    done = effectd.execute("files.write_text", {"path": "workspace/a.txt", "text": "x", "space_id": "shared:household"})
    print(done.receipt.receipt_id)
"""

from . import errors
from ._client import (
    Action,
    Approvals,
    AsyncAction,
    AsyncApprovals,
    AsyncEffectd,
    AsyncReceipts,
    AsyncReplay,
    AsyncTool,
    Effectd,
    Receipts,
    Replay,
    Tool,
)
from ._core import ActionOptions, BatchItem, BatchOptions
from .errors import ApprovalPending, EffectdError
from .models import (
    Approval,
    Batch,
    BatchItemResult,
    BatchResult,
    Decision,
    Done,
    Event,
    PlanResult,
    Preview,
    Problem,
    Receipt,
    Status,
)

__all__ = [
    "Action",
    "ActionOptions",
    "Approval",
    "ApprovalPending",
    "Approvals",
    "AsyncAction",
    "AsyncApprovals",
    "AsyncEffectd",
    "AsyncReceipts",
    "AsyncReplay",
    "AsyncTool",
    "Batch",
    "BatchItem",
    "BatchItemResult",
    "BatchOptions",
    "BatchResult",
    "Decision",
    "Done",
    "Effectd",
    "EffectdError",
    "Event",
    "PlanResult",
    "Preview",
    "Problem",
    "Receipt",
    "Receipts",
    "Replay",
    "Status",
    "Tool",
    "errors",
]
