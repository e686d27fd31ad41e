"""The client against docs/openapi.json, and docs/python.md against the real daemon."""

from __future__ import annotations

import json
import os
import re
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from conftest import EFFECTD, ROOT, Daemon

from effectd import errors, models

SCHEMAS: dict[str, Any] = json.loads((ROOT / "docs/openapi.json").read_text())["components"]["schemas"]


def test_every_code_of_the_document_has_a_class() -> None:
    codes = SCHEMAS["Problem"]["properties"]["code"]["enum"]
    assert sorted(errors.DaemonError.of) == sorted(codes)
    for code in codes:
        problem = {"type": "", "title": "", "status": 500, "detail": "why", "code": code, "retryable": True}
        problem |= {"retry_after_ms": 1500, "change": {"by": "time", "what": "wait"}}
        error = errors.of_answer(500, {}, json.dumps(problem).encode())
        assert type(error).__name__ == "".join(word.capitalize() for word in code.split("_"))
        assert (error.code, error.retryable, error.retry_after) == (code, True, 1.5)
        assert str(error) == f"{code}: why (time: wait)"


def test_a_code_of_a_newer_daemon_is_an_error_all_the_same() -> None:
    problem = {"type": "", "title": "", "status": 418, "detail": "why", "code": "new_code", "retryable": False}
    error = errors.of_answer(418, {}, json.dumps(problem).encode())
    assert (type(error), error.code, error.status) == (errors.DaemonError, "new_code", 418)
    for body in (b"", b"<html>", b"[]", b'{"code":1}'):
        proxy = errors.of_answer(503, {"retry-after": "7"}, body)
        assert (type(proxy), proxy.retryable, proxy.retry_after) == (errors.UnexpectedAnswer, True, 7.0)


@pytest.mark.parametrize(
    ("model", "schema"),
    [
        (models.Receipt, "Receipt"),
        (models.Status, "ActionView"),
        (models.Held, "HeldView"),
        (models.Batch, "BatchView"),
        (models.BatchResult, "BatchResult"),
        (models.BatchItemResult, "ItemResult"),
        (models.Preview, "PreviewView"),
        (models.Approval, "ApprovalView"),
        (models.Decision, "DecisionView"),
        (models.Problem, "Problem"),
        (models.Change, "Change"),
        (models.Failure, "Failure"),
        (models.Redaction, "Redaction"),
        (models.Cost, "Cost"),
        (models.Timing, "Timing"),
        (models.Reward, "Reward"),
        (models.Amendment, "AmendmentEntry"),
    ],
)
def test_a_model_demands_only_what_the_document_promises(model: type[models.Model], schema: str) -> None:
    described = SCHEMAS[schema]
    assert set(model.model_fields) <= set(described["properties"])
    demanded = {name for name, field in model.model_fields.items() if field.is_required()}
    assert demanded <= set(described["required"])


class Model(BaseHTTPRequestHandler):
    """A scripted model: it writes the file, and then says so."""

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
        assert "files_write_text" in [tool["function"]["name"] for tool in asked["tools"]]
        message: dict[str, Any] = {"role": "assistant", "content": "It is written: " + str(asked["messages"][-1]["content"])}
        if asked["messages"][-1]["role"] == "user":
            arguments = json.dumps({"path": "workspace/beach.txt", "text": "towel\n"})
            call = {"id": "call_1", "type": "function", "function": {"name": "files_write_text", "arguments": arguments}}
            message = {"role": "assistant", "content": None, "tool_calls": [call]}
        body = json.dumps({"choices": [{"message": message}]}).encode()
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 the name of the base class
        """Nothing is logged."""


def test_every_block_of_the_page_runs(
    own_daemon: Daemon, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pages = [(ROOT / page).read_text() for page in ("docs/python.md", "README.md", "clients/python/README.md")]
    blocks = [block for page in pages for block in re.findall(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL)]
    assert len(blocks) > 12
    assert len(blocks[0].splitlines()) <= 20, "the agent at the top has 20 lines"
    server = HTTPServer(("127.0.0.1", 0), Model)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.chdir(own_daemon.folder)
    for name, value in {
        "EFFECTD_STATE": str(own_daemon.state),
        "OPENAI_BASE_URL": f"http://127.0.0.1:{server.server_port}",
        "OPENAI_API_KEY": "none",
        "OPENAI_MODEL": "scripted",
        "PATH": f"{Path(EFFECTD).parent}{os.pathsep}{os.environ['PATH']}",
    }.items():
        monkeypatch.setenv(name, value)
    page: dict[str, Any] = {"__name__": "page"}
    try:
        for number, block in enumerate(blocks):
            exec(compile(block, f"block {number + 1} of the pages", "exec"), page)
    finally:
        server.shutdown()
        server.server_close()
    said = capsys.readouterr().out
    assert own_daemon.text("beach.txt") == "towel\n"
    for expected in (
        "It is written: {",
        "user://root",
        "5 False ",
        "done executed",
        "permit",
        "files_write_text R1 allow",
        "False check what",
    ):
        assert expected in said, (expected, said)
    # The blocks about undo took these back.
    assert not (own_daemon.folder / "workspace/b.txt").exists()
    assert not (own_daemon.folder / "workspace/notes/w37.txt").exists()
