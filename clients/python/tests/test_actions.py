"""Every operation of the client, with and without asyncio, against the real daemon."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import time
import uuid
from pathlib import Path
from typing import Any

import pytest
from conftest import SPACE, SUBJECT, Clients, Daemon, write

from effectd import errors


def name() -> str:
    return f"{uuid.uuid4().hex}.txt"


def test_an_action_is_done_once_and_has_a_receipt(effectd: Any, daemon: Daemon) -> None:
    path = name()
    done = effectd.execute("files.write_text", write(path))
    assert (done.outcome, done.already_done, done.result["bytes_written"]) == ("executed", False, 5)
    assert daemon.text(path) == "hello"
    assert effectd.receipt(done.receipt.receipt_id) == done.receipt
    again = effectd.execute("files.write_text", write(path))
    assert again.already_done and again.receipt.receipt_id == done.receipt.receipt_id
    same = effectd.execute("files.write_text", write(path), action_id=done.action_id)
    assert same.receipt == done.receipt
    with pytest.raises(errors.ActionConflict):
        effectd.execute("files.write_text", write(path, "other"), action_id=done.action_id)


def test_a_key_of_the_caller_names_the_effect(effectd: Any, daemon: Daemon) -> None:
    path, key = name(), uuid.uuid4().hex
    first = effectd.execute("files.append_text", write(path), idempotency_key=key)
    second = effectd.execute("files.append_text", write(path), idempotency_key=key)
    assert (first.already_done, second.already_done) == (False, True)
    assert daemon.text(path) == "hello"


def test_what_a_newer_daemon_sends_is_kept(effectd: Any) -> None:
    done = effectd.execute("files.write_text", write(name()))
    # No model names these two.
    assert done.receipt.signature["algorithm"] == "ed25519"
    assert done.receipt.raw["timing"]["started_at"].endswith("Z")
    assert done.receipt.timing.ended_at >= done.receipt.timing.started_at


def test_a_submitted_action_is_waited_for_and_described(effectd: Any) -> None:
    action = effectd.submit("files.write_text", write(name()))
    done = action.wait(30)
    assert done.action_id == action.action_id
    assert (action.status().state, action.status().receipt) == ("done", done.receipt)
    with pytest.raises(errors.AlreadyFinished):
        action.cancel()


def test_a_preview_and_a_dry_run_change_nothing(effectd: Any, daemon: Daemon) -> None:
    path = name()
    preview = effectd.preview("files.write_text", write(path))
    assert (preview.verdict, list(preview.preview)) == ("permit", ["shown"])
    assert effectd.execute("files.write_text", write(path), dry_run=True).outcome == "dry_run"
    assert not (daemon.folder / "workspace" / path).exists()


def test_an_undo_takes_the_change_back(effectd: Any, daemon: Daemon) -> None:
    path = name()
    effectd.execute("files.write_text", write(path, "first"))
    second = effectd.execute("files.write_text", write(path, "second"))
    effectd.undo(second.receipt.receipt_id)
    assert daemon.text(path) == "first"


def test_a_batch_is_done_whole_or_leaves_nothing(effectd: Any, daemon: Daemon) -> None:
    one, two = name(), name()
    done = effectd.batch([{"tool_id": "files.write_text", "params": write(path)} for path in (one, two)])
    assert (done.state, [item.marker for item in done.result.items]) == ("done", ["committed", "committed"])
    assert (daemon.text(one), daemon.text(two)) == ("hello", "hello")
    assert effectd.batch_of(done.batch_id).result == done.result
    edit = {"path": f"workspace/{name()}", "find": "a", "replace": "b", "space_id": SPACE}
    items = [{"tool_id": "files.write_text", "params": write(one, "other")}, {"tool_id": "files.edit_text", "params": edit}]
    failed = effectd.batch(items)
    assert failed.result.error.code == "file_not_found" and daemon.text(one) == "hello"
    later = effectd.batch(items, batch_id=failed.batch_id, timeout=0)
    assert later.state in ("accepted", "ended")


def test_a_plan_says_how_it_ended(effectd: Any, daemon: Daemon) -> None:
    plan: dict[str, Any] = {"actionType": "diagnose_error", "riskTier": "R1", "input": {}, "verification": {"required": True}}
    done = effectd.plan(plan)
    assert (done.status, done.action_type, done.verification.ok, done.rollback.attempted) == (
        "succeeded",
        "diagnose_error",
        True,
        False,
    )
    assert effectd.receipt(done.feedback["receiptId"]).action_id == done.action_id
    refused = effectd.plan({**plan, "input": {"no_such": 1}})
    assert refused.status == "rejected" and refused.error.code == "params_invalid"


def test_a_person_approves_what_was_shown(effectd: Any, daemon: Daemon) -> None:
    path = name()
    effectd.execute("files.write_text", write(path))
    delete = {"path": f"workspace/{path}", "space_id": SPACE}
    with pytest.raises(errors.ApprovalPending) as held:
        effectd.execute("files.delete", delete)
    with pytest.raises(errors.ApprovalPending):
        effectd.wait(held.value.action_id, 0.2)
    shown = effectd.approvals.show(held.value.approval)
    # The time that is left goes on between the two.
    listed = [each.model_dump(exclude={"time_left_s"}) for each in effectd.approvals.list()]
    assert shown.model_dump(exclude={"time_left_s"}) in listed
    other = shown.model_copy(update={"digest": "hmac-sha256:" + "0" * 64})
    with pytest.raises(errors.AskChanged):
        effectd.approvals.approve(other)
    assert (daemon.folder / "workspace" / path).exists()
    decision = effectd.approvals.approve(shown, reason="as discussed")
    assert (decision.approval.state, decision.action.state) == ("approved", "done")
    assert effectd.wait(held.value.action_id).receipt == decision.action.receipt
    assert not (daemon.folder / "workspace" / path).exists()
    with pytest.raises(errors.AlreadyDecided):
        effectd.approvals.deny(shown)


def test_a_denial_and_a_withdrawal_end_an_action(effectd: Any) -> None:
    denied, withdrawn = name(), name()
    for path in (denied, withdrawn):
        effectd.execute("files.write_text", write(path))
    with pytest.raises(errors.ApprovalPending) as held:
        effectd.execute("files.delete", {"path": f"workspace/{denied}", "space_id": SPACE})
    effectd.approvals.deny(effectd.approvals.show(held.value.approval), reason="not this file")
    with pytest.raises(errors.HumanDenied) as refused:
        effectd.wait(held.value.action_id)
    assert refused.value.receipt is not None and refused.value.receipt.outcome == "denied_human"
    action = effectd.submit("files.delete", {"path": f"workspace/{withdrawn}", "space_id": SPACE})
    assert action.cancel().receipt.outcome == "cancelled"
    with pytest.raises(errors.Cancelled):
        action.wait()


def test_refusals_are_errors_of_their_code(effectd: Any) -> None:
    with pytest.raises(errors.PolicyDenied) as denied:
        effectd.execute("files.write_text", write("a.txt"), subject_id="agent://stranger@deviceA")
    assert (denied.value.status, denied.value.retryable) == (403, False)
    assert denied.value.change is not None and denied.value.change.by in ("planner", "operator")
    with pytest.raises(errors.FileNotFound) as missing:
        effectd.execute("files.read_text", {"path": "workspace/none.txt", "space_id": SPACE})
    assert missing.value.receipt is not None and missing.value.receipt.outcome == "failed"
    with pytest.raises(errors.ParamsInvalid):
        effectd.execute("files.read_text", {"path": 1, "space_id": SPACE})
    with pytest.raises(errors.UnknownTool):
        effectd.execute("files.none", {})
    with pytest.raises(errors.ActionUnknown):
        effectd.status("none")
    with pytest.raises(errors.QueryInvalid):
        list(effectd.receipts("nonsense:x"))


def test_paused_effects_are_not_taken_for_done(effectd: Any, daemon: Daemon) -> None:
    daemon.cli("pause", "--yes")
    try:
        with pytest.raises(errors.EffectsPaused) as paused:
            effectd.execute("files.write_text", write(name()))
    finally:
        daemon.cli("resume", "--yes")
    assert paused.value.receipt is not None and paused.value.receipt.outcome == "paused"


def test_tools_are_described_for_models_and_called(effectd: Any, daemon: Daemon) -> None:
    tools = effectd.tools()
    assert all(re.fullmatch("[A-Za-z0-9_-]{1,64}", tool.name) for tool in tools)
    assert "command.run" not in [tool.tool_id for tool in tools]
    by_name = {tool.name: tool for tool in tools}
    tool = by_name["files_write_text"]
    assert (tool.tool_id, tool.risk, tool.mode) == ("files.write_text", "R1", "allow")
    assert "space_id" not in tool.schema["properties"] and tool.schema["required"] == ["path", "text"]
    assert by_name["files_delete"].mode == "require_approval"
    path = name()
    done = tool.call({"path": f"workspace/{path}", "text": "by a model"}, rationale={"reason": "asked for"})
    assert daemon.text(path) == "by a model" and done.receipt.space_id == SPACE


def test_a_token_speaks_over_tcp(clients: Clients, daemon: Daemon) -> None:
    token = daemon.token("service", "planner")
    with clients(url=daemon.url, token=token) as effectd:
        assert effectd.call("GET", "/v1/whoami")["principal"] == "account://home/planner"
        done = effectd.execute("files.write_text", write(name()), action_id="mine-" + uuid.uuid4().hex)
        # Accounts have ids of their own.
        assert done.action_id.startswith("account://home/planner/mine-")
        assert effectd.wait(done.action_id).receipt == done.receipt
        assert token not in repr(vars(effectd)) and token not in repr(effectd._target)
    with clients(url=daemon.url, token="efd_user_wrong") as effectd, pytest.raises(errors.Unauthenticated):
        effectd.status("x")


def test_a_token_goes_over_tls_to_a_trusted_authority_alone(clients: Clients, tmp_path: Path) -> None:
    certificate, key, config = (tmp_path / name for name in ("tls.crt", "tls.key", "openssl.cnf"))
    config.write_text("[req]\ndistinguished_name=name\n[name]\n")
    make = f"openssl req -x509 -nodes -days 2 -subj /CN=effectd -config {config} -keyout {key} -out {certificate} -newkey rsa:2048"
    extensions = ["-addext", "basicConstraints=critical,CA:FALSE", "-addext", "subjectAltName=IP:127.0.0.1"]
    subprocess.run([*make.split(), *extensions], check=True, capture_output=True)
    settings = ["--set", f"gateway.tls_cert={certificate}", "--set", f"gateway.tls_key={key}"]
    daemon = Daemon(tmp_path, *settings)
    try:
        token = daemon.token("service", "planner")
        assert daemon.url.startswith("https://")
        with clients(url=daemon.url, token=token, ca=certificate) as effectd:
            assert effectd.execute("files.write_text", write("a.txt")).outcome == "executed"
        begun = time.monotonic()
        with clients(url=daemon.url, token=token) as effectd, pytest.raises(errors.ConnectionLost, match="not trusted"):
            effectd.status("x")
        assert time.monotonic() - begun < 10
    finally:
        daemon.end(signal.SIGTERM)


def test_an_agent_with_the_token_of_its_session_has_its_tools(clients: Clients, daemon: Daemon) -> None:
    made = json.loads(
        daemon.cli("sessions", "create", "--space", SPACE, "--subject", SUBJECT, "--title", "t", "--yes", "-o", "json")
    )
    with clients(url=daemon.url, token=made["token"]) as effectd:
        tool = next(tool for tool in effectd.tools() if tool.tool_id == "files.write_text")
        path = name()
        assert tool.call({"path": f"workspace/{path}", "text": "x"}).receipt.session_id == made["id"]


def test_a_trace_of_opentelemetry_reaches_the_receipt(effectd: Any) -> None:
    trace = pytest.importorskip("opentelemetry.trace")
    span = trace.NonRecordingSpan(
        trace.SpanContext(0x4BF92F3577B34DA6A3CE929D0E0E4736, 0x00F067AA0BA902B7, False, trace.TraceFlags(1))
    )
    with trace.use_span(span):
        done = effectd.execute("files.write_text", write(name()))
    assert done.receipt.trace_id == "4bf92f3577b34da6a3ce929d0e0e4736"
    assert done.receipt.raw["trace_context"]["parent_id"] == "00f067aa0ba902b7"


def test_a_subject_must_be_named(daemon: Daemon, clients: Clients) -> None:
    with clients(socket=daemon.socket, subject_id=None) as effectd, pytest.raises(ValueError, match="name subject_id"):
        effectd.execute("files.write_text", write("a.txt"))
