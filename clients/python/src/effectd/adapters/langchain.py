"""effectd's tools as LangChain's. Held, denied and failed calls are messages to the model; none of them is an approval.

agent = create_agent(model, langchain.tools(effectd))
"""

from __future__ import annotations

from typing import Any, Unpack

from langchain_core.tools import BaseTool, ToolException
from pydantic import Field

from .. import adapters
from .._client import AsyncEffectd, AsyncTool, Effectd, Tool
from .._core import ActionOptions


class EffectdTool(BaseTool):
    """A tool of effectd."""

    tool: Any = Field(exclude=True)
    """A `Tool`, or an `AsyncTool`."""
    handle_tool_error: Any = True

    def _to_args_and_kwargs(self, tool_input: Any, tool_call_id: str | None) -> tuple[tuple[Any], dict[str, Any]]:
        # As keywords, parameters that LangChain itself uses, such as `config`, would be lost.
        return (tool_input,), {}

    def _run(self, params: dict[str, Any]) -> str:
        if isinstance(self.tool, AsyncTool):
            raise TypeError("the tool of an AsyncEffectd has no `invoke`; use `ainvoke`")
        return _told(adapters.call(self.tool, params))

    async def _arun(self, params: dict[str, Any]) -> str:
        if isinstance(self.tool, Tool):
            told: str = await super()._arun(params)
            return told
        return _told(await adapters.acall(self.tool, params))


def _told(answer: adapters.Answer) -> str:
    if answer.failed:
        raise ToolException(answer.text)
    return answer.text


def _made(tool: Tool | AsyncTool) -> EffectdTool:
    return EffectdTool(tool=tool, name=tool.name, description=tool.description, args_schema=adapters.schema(tool))


def tools(effectd: Effectd, **options: Unpack[ActionOptions]) -> list[EffectdTool]:
    """The tools that the policy could allow."""
    return [_made(tool) for tool in effectd.tools(**options)]


async def atools(effectd: AsyncEffectd, **options: Unpack[ActionOptions]) -> list[EffectdTool]:
    """The same, for `ainvoke`."""
    return [_made(tool) for tool in await effectd.tools(**options)]
