"""effectd's tools for agent frameworks. Here is what the adapters share: every end of a call is a text for the model."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from .._client import AsyncTool, Tool
from ..errors import ApprovalPending, EffectdError
from ..models import Done


@dataclass(frozen=True, slots=True)
class Answer:
    """What the model is told, and whether the call failed. What a person must decide has not failed."""

    text: str
    failed: bool = False


def schema(tool: Tool | AsyncTool) -> dict[str, Any]:
    """The schema of the parameters, without what the APIs of models refuse at its top; effectd checks the whole one."""
    return {name: value for name, value in tool.schema.items() if name not in ("allOf", "anyOf", "oneOf", "not")}


def call(tool: Tool, params: dict[str, Any]) -> Answer:
    try:
        return _done(tool.call(params))
    except (EffectdError, TypeError, ValueError) as error:
        return not_done(error)


async def acall(tool: AsyncTool, params: dict[str, Any]) -> Answer:
    try:
        return _done(await tool.acall(params))
    except (EffectdError, TypeError, ValueError) as error:
        return not_done(error)


def _done(done: Done) -> Answer:
    return Answer(json.dumps({**(done.result or {}), "_receipt": done.receipt.receipt_id}, ensure_ascii=False))


def not_done(error: EffectdError | TypeError | ValueError) -> Answer:
    """What the model is told of an error of a call."""
    if isinstance(error, ApprovalPending):
        decides = f"A person decides, with `effectd approvals approve {error.approval}`, and not you."
        return Answer(f"held: {error.detail}. Nothing has happened yet. {decides} Do not send it again; say that it waits.")
    if not isinstance(error, EffectdError):
        return Answer(f"not sent, because the parameters are no JSON object: {error}", failed=True)
    if error.outcome_unknown:
        return Answer(f"{error}. Nobody knows whether it happened. Do not send it again; say so.", failed=True)
    advice = "The same call may succeed later." if error.retryable else "The same call will end in the same way."
    return Answer(f"{error}. {advice}", failed=True)
