"""effectd's tools as those of pydantic-ai. Held, denied and failed calls are answers to the model; none of them is an approval.

agent = Agent(model, tools=pydantic_ai.tools(effectd))
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Unpack

from pydantic_ai import Tool as AgentTool
from pydantic_ai import ToolFailed

from .. import adapters
from .._client import AsyncEffectd, AsyncTool, Effectd, Tool
from .._core import ActionOptions


def _told(answer: adapters.Answer) -> str:
    if answer.failed:
        raise ToolFailed(answer.text)
    return answer.text


def _made(tool: Tool | AsyncTool, function: Callable[..., Any]) -> AgentTool[None]:
    return AgentTool.from_schema(function, tool.name, tool.description, adapters.schema(tool))


def _call(tool: Tool) -> AgentTool[None]:
    def call(**params: Any) -> str:
        return _told(adapters.call(tool, params))

    return _made(tool, call)


def _acall(tool: AsyncTool) -> AgentTool[None]:
    async def acall(**params: Any) -> str:
        return _told(await adapters.acall(tool, params))

    return _made(tool, acall)


def tools(effectd: Effectd, **options: Unpack[ActionOptions]) -> list[AgentTool[None]]:
    """The tools that the policy could allow."""
    return [_call(tool) for tool in effectd.tools(**options)]


async def atools(effectd: AsyncEffectd, **options: Unpack[ActionOptions]) -> list[AgentTool[None]]:
    """The same, without threads."""
    return [_acall(tool) for tool in await effectd.tools(**options)]
