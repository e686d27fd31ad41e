"""The adapters in agents of the frameworks, with scripted models, against the real daemon. `.ci/clients/python` installs the
frameworks."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("langchain")
pytest.importorskip("pydantic_ai")

from conftest import SPACE, SUBJECT, Daemon
from langchain.agents import create_agent
from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
from langchain_core.messages import AIMessage, ToolMessage
from langchain_core.utils.function_calling import convert_to_openai_tool
from pydantic_ai import Agent
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart, ToolReturnPart
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.models.test import TestModel

from effectd import AsyncEffectd, AsyncTool, Effectd
from effectd.adapters import langchain, pydantic_ai

Call = tuple[str, dict[str, Any]]
# What the model was told about a call: the text, and whether it was a failure.
Told = tuple[str, bool]


class FakeModel(GenericFakeChatModel):
    """LangChain's fake knows no tools; the script calls them."""

    def bind_tools(self, tools: Sequence[Any], **_: Any) -> Any:
        return self


async def by_langchain(tools: list[Any], calls: list[Call]) -> list[Told]:
    said = [
        AIMessage("", tool_calls=[{"name": name, "args": params, "id": f"{place}"}]) for place, (name, params) in enumerate(calls)
    ]
    agent = create_agent(FakeModel(messages=iter([*said, AIMessage("The end.")])), tools)
    task: Any = {"messages": [("user", "Begin.")]}
    is_async = isinstance(tools[0].tool, AsyncTool)
    state = await agent.ainvoke(task) if is_async else agent.invoke(task)
    assert state["messages"][-1].text == "The end."
    return [(each.text, each.status == "error") for each in state["messages"] if isinstance(each, ToolMessage)]


def returns(messages: list[ModelMessage]) -> list[Told]:
    parts = [part for message in messages for part in message.parts if isinstance(part, ToolReturnPart)]
    return [(str(part.content), part.outcome == "failed") for part in parts]


async def by_pydantic_ai(tools: list[Any], calls: list[Call]) -> list[Told]:
    def script(messages: list[ModelMessage], _: AgentInfo) -> ModelResponse:
        turn = sum(isinstance(message, ModelResponse) for message in messages)
        return ModelResponse([ToolCallPart(*calls[turn]) if turn < len(calls) else TextPart("The end.")])

    run = await Agent(FunctionModel(script), tools=tools).run("Begin.")
    assert run.output == "The end."
    return returns(run.all_messages())


FRAMEWORKS = {"langchain": (langchain, by_langchain), "pydantic-ai": (pydantic_ai, by_pydantic_ai)}


@pytest.fixture
def effectd(own_daemon: Daemon) -> Iterator[Effectd]:
    with Effectd(state=own_daemon.state, subject_id=SUBJECT, space_id=SPACE) as effectd:
        yield effectd


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_each_call_is_one_effect_with_a_receipt(framework: str, effectd: Effectd, own_daemon: Daemon) -> None:
    adapter, converse = FRAMEWORKS[framework]
    write = ("files_write_text", {"path": "workspace/a.txt", "text": "hello"})
    told = asyncio.run(converse(adapter.tools(effectd), [write, ("files_read_text", {"path": "workspace/a.txt"})]))
    assert own_daemon.text("a.txt") == "hello"
    results = [json.loads(text) for text, failed in told if not failed]
    assert results[1]["text"] == "hello"
    receipts = list(effectd.receipts("tool:files.*"))
    assert [each["_receipt"] for each in results] == [receipt.receipt_id for receipt in receipts]


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_what_is_held_is_told_and_happens_only_after_a_person(framework: str, effectd: Effectd, own_daemon: Daemon) -> None:
    adapter, converse = FRAMEWORKS[framework]
    write = ("files_write_text", {"path": "workspace/b.txt", "text": "hello"})
    _, (held, failed) = asyncio.run(converse(adapter.tools(effectd), [write, ("files_delete", {"path": "workspace/b.txt"})]))
    (approval,) = effectd.approvals.list()
    assert held.startswith("held: ") and f"effectd approvals approve {approval.approval_id}" in held and not failed
    assert own_daemon.text("b.txt") == "hello"
    own_daemon.cli("approvals", "approve", approval.approval_id)
    assert not (own_daemon.folder / "workspace/b.txt").exists()


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_what_is_refused_says_what_would_have_to_change(framework: str, effectd: Effectd, own_daemon: Daemon) -> None:
    adapter, converse = FRAMEWORKS[framework]
    tools = adapter.tools(effectd)
    own_daemon.cli("policy", "set-mode", "--org", "home", "--tool", "files.make_dir", "deny", "--yes")
    calls: list[Call] = [
        ("files_make_dir", {"path": "workspace/folder"}),
        ("files_read_text", {"path": "workspace/none.txt"}),
        # Names that the frameworks use themselves must reach the validator, and not be lost or break the agent.
        *(
            ("files_write_text", {"path": "workspace/c.txt", "text": "x", name: 1})
            for name in ("self", "config", "run_manager", "ctx")
        ),
        ("files_stat", {"path": float("nan")}),
    ]
    denied, missing, *unknown, nan = asyncio.run(converse(tools, calls))
    assert denied[1] and denied[0].startswith("policy_denied: ") and "operator: " in denied[0]
    assert missing[1] and missing[0].startswith("file_not_found: ")
    assert all(failed and text.startswith("params_invalid: ") for text, failed in unknown), unknown
    assert nan[1] and nan[0].startswith("not sent")
    assert not list((own_daemon.folder / "workspace").iterdir())


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_the_async_tools_do_the_same(framework: str, own_daemon: Daemon) -> None:
    adapter, converse = FRAMEWORKS[framework]
    calls: list[Call] = [
        ("files_write_text", {"path": "workspace/d.txt", "text": "hello"}),
        ("files_delete", {"path": "workspace/d.txt"}),
        ("files_read_text", {"path": "workspace/none.txt"}),
    ]

    async def agent() -> list[Told]:
        async with AsyncEffectd(state=own_daemon.state, subject_id=SUBJECT, space_id=SPACE) as effectd:
            return await converse(await adapter.atools(effectd), calls)

    done, held, missing = asyncio.run(agent())
    assert "_receipt" in json.loads(done[0]) and not done[1]
    assert held[0].startswith("held: ") and not held[1]
    assert missing[0].startswith("file_not_found: ") and missing[1]
    assert own_daemon.text("d.txt") == "hello"


def test_a_model_that_calls_every_tool_blindly_harms_nothing(effectd: Effectd, own_daemon: Daemon) -> None:
    (own_daemon.folder / "workspace").mkdir(exist_ok=True)
    tools = [tool for tool in pydantic_ai.tools(effectd) if tool.name != "notify_local"]
    run = asyncio.run(Agent(TestModel(), tools=tools).run("Begin."))
    told = returns(run.all_messages())
    assert len(told) == len(tools)
    assert sum(failed for _, failed in told) > len(tools) / 2
    assert not list((own_daemon.folder / "workspace").iterdir())


def test_an_adapter_has_at_most_60_lines() -> None:
    for adapter in (langchain, pydantic_ai):
        assert adapter.__file__ and len(Path(adapter.__file__).read_text().splitlines()) <= 60


def test_the_schemas_are_those_that_models_accept(effectd: Effectd) -> None:
    for tool in langchain.tools(effectd):
        parameters = convert_to_openai_tool(tool)["function"]["parameters"]
        assert parameters["type"] == "object" and not {"oneOf", "anyOf", "allOf", "not", "enum"} & parameters.keys()
        assert "space_id" not in parameters["properties"]
