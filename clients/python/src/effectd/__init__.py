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
from ._core import ActionOptions
from .errors import ApprovalPending, EffectdError
from .models import Approval, Decision, Done, Event, Preview, Problem, Receipt, Status

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
    "Decision",
    "Done",
    "Effectd",
    "EffectdError",
    "Event",
    "Preview",
    "Problem",
    "Receipt",
    "Receipts",
    "Replay",
    "Status",
    "Tool",
    "errors",
]
