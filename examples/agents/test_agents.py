"""Both agents, as programs of their own, with a scripted model, the real daemon, and a person at the command line."""

import json
import os
import subprocess
import sys
from pathlib import Path

import openai
import pytest
from conftest import Daemon, until
from scripted_model import ScriptedModel

HERE = Path(__file__).parent
AGENTS = ["openai_loop.py", "langgraph_agent.py"]


def start(agent: str, daemon: Daemon, model: ScriptedModel) -> subprocess.Popen:
    told = {"OPENAI_BASE_URL": model.url, "OPENAI_API_KEY": "none", "EFFECTD_STATE": str(daemon.state), "LANGSMITH_TRACING": "false"}
    command = [sys.executable, str(HERE / agent), "--model", "scripted", "Tidy up."]
    return subprocess.Popen(command, env={**os.environ, **told}, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)


def ended(process: subprocess.Popen) -> str:
    out, _ = process.communicate(timeout=240)
    assert process.returncode == 0, out
    return out


def answers(model: ScriptedModel) -> list[str]:
    """What the model was told, in the last request."""
    return [message["content"] for message in model.heard[-1]["messages"] if message["role"] == "tool"]


def outcomes(daemon: Daemon, file: str) -> list[tuple[str, str]]:
    """How the actions about a file ended, oldest first."""
    receipts = reversed(daemon.json("receipts", "list", "--limit", "100"))
    return [(each["tool_id"], each["outcome"]) for each in receipts if each["inputs"].get("path") == file]


def test_the_scripted_model_speaks_as_the_sdk_expects() -> None:
    function = {"type": "function", "function": {"name": "a", "parameters": {"type": "object", "properties": {}}}}
    with ScriptedModel([[("a", {"b": 1})], "the end"]) as model, openai.OpenAI(base_url=model.url, api_key="none") as client:
        messages = [{"role": "user", "content": "begin"}]
        first = client.chat.completions.create(model="m", messages=messages, tools=[function]).choices[0]
        assert first.finish_reason == "tool_calls"
        call = first.message.tool_calls[0]
        assert (call.function.name, json.loads(call.function.arguments)) == ("a", {"b": 1})
        messages.append(first.message.model_dump(exclude_none=True))
        with pytest.raises(openai.BadRequestError, match="without an answer"):
            client.chat.completions.create(model="m", messages=messages)
        messages.append({"role": "tool", "tool_call_id": call.id, "content": "c"})
        last = client.chat.completions.create(model="m", messages=messages).choices[0]
        assert (last.finish_reason, last.message.content) == ("stop", "the end")
        function["function"]["parameters"]["anyOf"] = [{"required": ["b"]}]
        with pytest.raises(openai.BadRequestError, match="at the top level"):
            client.chat.completions.create(model="m", messages=messages, tools=[function])


def test_the_loop_has_60_lines() -> None:
    assert len((HERE / AGENTS[0]).read_text().splitlines()) <= 60


@pytest.mark.parametrize("agent", AGENTS)
def test_what_is_held_happens_once_a_person_approves(agent: str, daemon: Daemon) -> None:
    file = f"workspace/{agent}.txt"
    write, delete = ("files_write_text", {"path": file, "text": "old"}), ("files_delete", {"path": file})
    with ScriptedModel([[write], [delete], "All is tidy."]) as model:
        process = start(agent, daemon, model)
        (asked,) = until(daemon.pending)
        # Nothing has happened, and the model has not been told anything.
        assert (daemon.workspace / f"{agent}.txt").read_text() == "old"
        assert len(model.heard) == 2
        daemon.effectd("approvals", "approve", asked["approval_id"])
        out = ended(process)
    assert f"effectd approvals approve {asked['approval_id']}" in out and out.endswith("All is tidy.\n")
    assert not (daemon.workspace / f"{agent}.txt").exists()
    assert outcomes(daemon, file) == [("files.write_text", "executed"), ("files.delete", "executed")]
    assert all("_receipt" in json.loads(answer) for answer in answers(model))


@pytest.mark.parametrize("agent", AGENTS)
def test_what_a_person_denies_does_not_happen(agent: str, daemon: Daemon) -> None:
    file = f"workspace/denied-{agent}.txt"
    (daemon.workspace / f"denied-{agent}.txt").write_text("kept")
    with ScriptedModel([[("files_delete", {"path": file})], "I leave it."]) as model:
        process = start(agent, daemon, model)
        (asked,) = until(daemon.pending)
        daemon.effectd("approvals", "deny", asked["approval_id"], "--reason", "not that one")
        assert ended(process).endswith("I leave it.\n")
    assert (daemon.workspace / f"denied-{agent}.txt").read_text() == "kept"
    (answer,) = answers(model)
    assert answer.startswith("human_denied") and "not that one" in answer


@pytest.mark.parametrize("agent", AGENTS)
def test_no_word_of_the_model_stops_the_agent(agent: str, daemon: Daemon) -> None:
    turn = [
        ("files_write_text", {"path": "../outside.txt", "text": "x"}),
        ("files_read_text", {"path": "workspace/none.txt"}),
        ("files_write_text", {"path": "workspace/x.txt", "colour": "red"}),
        ("rm_rf", {"path": "/"}),
        ("files_stat", '{"path": "workspace'),
    ]
    with ScriptedModel([turn, "I give up."]) as model:
        assert ended(start(agent, daemon, model)).endswith("I give up.\n")
    outside, missing, invalid, unknown, cut = answers(model)
    assert outside.startswith(("params_invalid", "path_denied"))
    assert missing.startswith("file_not_found")
    assert invalid.startswith("params_invalid")
    assert "no such tool" in unknown
    assert cut and "_receipt" not in cut
    assert not (daemon.folder / "outside.txt").exists()
    assert not (daemon.workspace / "x.txt").exists()


def test_two_held_calls_of_one_turn_wait_each_for_their_own_approval(daemon: Daemon) -> None:
    names = ["first.txt", "second.txt"]
    for name in names:
        (daemon.workspace / name).write_text("old")
    with ScriptedModel([[("files_delete", {"path": f"workspace/{name}"}) for name in names], "Done."]) as model:
        process = start("langgraph_agent.py", daemon, model)
        until(lambda: len(daemon.pending()) == 2)
        by_path = {each["prompt"]["params"]["path"]: each["approval_id"] for each in daemon.pending()}
        daemon.effectd("approvals", "approve", by_path["workspace/first.txt"])
        # The graph waits for the other one.
        until(lambda: not (daemon.workspace / "first.txt").exists())
        assert process.poll() is None and (daemon.workspace / "second.txt").exists()
        daemon.effectd("approvals", "deny", by_path["workspace/second.txt"], "--reason", "keep it")
        assert ended(process).endswith("Done.\n")
    assert (daemon.workspace / "second.txt").exists()
    first, second = answers(model)
    assert "_receipt" in json.loads(first) and second.startswith("human_denied")
