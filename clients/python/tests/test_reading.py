"""Receipts and events, page by page, and as a frame."""

from __future__ import annotations

import datetime
import json
import threading
import uuid
from pathlib import Path
from typing import Any

import pytest
from conftest import SPACE, SUBJECT, Clients, Daemon, write

from effectd import Effectd, _core, errors, frames


@pytest.fixture(autouse=True)
def small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_core, "PAGE", 3)


@pytest.fixture(scope="module")
def key(daemon: Daemon) -> str:
    """The subject's receipts of ten reads are found by the tool and this trace."""
    trace = uuid.uuid4().hex
    with Effectd(socket=daemon.socket, subject_id=SUBJECT, space_id=SPACE) as effectd:
        for number in range(10):
            candidates = [{"id": "a", "propensity": 0.25}, {"id": "b", "propensity": 0.75}]
            effectd.execute(
                "files.write_text",
                write(f"{trace}-{number}.txt"),
                trace_id=trace,
                candidates=candidates,
                chosen="b",
                context={"hour": number, "room": "hall"},
            )
    return trace


def test_receipts_come_in_order_and_continue_at_a_cursor(effectd: Any, key: str) -> None:
    every = [receipt.receipt_id for receipt in effectd.receipts(f"trace:{key}")]
    assert len(every) == len(set(every)) == 10
    newest = [receipt.receipt_id for receipt in effectd.receipts(f"trace:{key}", newest=True)]
    assert newest == every[::-1]
    assert [receipt.receipt_id for receipt in effectd.receipts(f"trace:{key}", limit=4)] == every[:4]
    assert list(effectd.receipts(f"trace:{key}", limit=0)) == []
    for stop in range(1, 11):
        receipts = effectd.receipts(f"trace:{key}")
        read = [next(iter(receipts)).receipt_id for _ in range(stop)]
        rest = [receipt.receipt_id for receipt in effectd.receipts(f"trace:{key}", cursor=receipts.cursor)]
        # None is missing, nor the one at hand, and at most a page repeats.
        assert list(dict.fromkeys(read + rest)) == every and read[-1] in rest and len(read + rest) <= 13


def test_new_receipts_are_followed(effectd: Any, daemon: Daemon) -> None:
    trace = uuid.uuid4().hex
    receipts = effectd.receipts(f"trace:{trace}", follow=True)
    with Effectd(socket=daemon.socket, subject_id=SUBJECT, space_id=SPACE) as other:
        writer = threading.Thread(target=lambda: other.execute("files.write_text", write(f"{trace}.txt"), trace_id=trace))
        writer.start()
        assert next(iter(receipts)).trace_id == trace
        writer.join()


def test_replay_acknowledges_what_was_consumed(effectd: Any, key: str) -> None:
    group = f"g-{uuid.uuid4().hex}"

    def offset() -> int:
        answer: int = effectd.call("GET", f"/v1/store/topics/ACTION_EXECUTED/groups/{group}")["offset"]
        return answer

    with effectd.replay(group) as events:
        read = [next(iter(events)) for _ in range(4)]
    # The caller was at the fourth, and may not have finished it.
    assert offset() == read[3].offset
    with pytest.raises(ZeroDivisionError), effectd.replay(group) as events:
        for event in events:
            assert event.id == read[3].id
            events.ack()
            assert offset() == event.offset + 1
            raise ZeroDivisionError
    with effectd.replay(group) as events:
        rest = list(events)
    assert rest[0].offset == read[3].offset + 1
    assert rest[-1].data["tool_id"] and offset() == rest[-1].offset + 1
    with effectd.replay(group) as events:
        assert list(events) == []


def test_a_learner_reads_only_in_its_own_group(clients: Clients, daemon: Daemon) -> None:
    token = daemon.token("service", "planner")
    with clients(url=daemon.url, token=token) as effectd, pytest.raises(errors.DaemonError) as refused:
        list(effectd.replay("theirs"))
    assert refused.value.status in (403, 404)


def test_a_frame_is_the_daemon_s_dataset(effectd: Any, daemon: Daemon, key: str, tmp_path: Path) -> None:
    found = next(iter(effectd.receipts(f"trace:{key}")))
    daemon.cli("receipts", "amend", found.receipt_id, "--quality", "0.9", "--yes")
    daemon.cli("receipts", "amend", found.receipt_id, "--success", "false", "--yes")
    with pytest.raises(errors.FileNotFound):
        effectd.execute("files.read_text", {"path": "workspace/none.txt", "space_id": SPACE})
    with pytest.raises(errors.PolicyDenied):
        effectd.execute("files.write_text", write("a.txt"), subject_id="agent://stranger@deviceA")
    until = datetime.datetime.now(datetime.UTC).isoformat().replace("+00:00", "Z")
    daemon.cli("receipts", "export", "--dataset", str(tmp_path / "set"), f"until:{until}")
    dataset = [json.loads(line) for line in (tmp_path / "set/frame.jsonl").read_text().splitlines()]
    rows = list(frames.rows(effectd.receipts(f"-space:effectd until:{until}")))
    assert rows == dataset
    # Later words count.
    amended = next(row for row in rows if row["receipt_id"] == found.receipt_id)
    assert (amended["amendments"] >= 2, amended["success"], amended["quality"]) == (True, False, 0.0)


def test_learners_get_their_own_frames(effectd: Any, key: str, tmp_path: Path) -> None:
    pandas, polars = pytest.importorskip("pandas"), pytest.importorskip("polars")
    frame = frames.to_pandas(effectd.receipts(f"trace:{key}"))
    assert (len(frame), set(frame["propensity"]), str(frame["ended_at"].dtype)) == (10, {0.75}, "datetime64[ns, UTC]")
    assert [json.loads(cell)["hour"] for cell in frame["context"]] == list(range(10))
    other = frames.to_polars(effectd.receipts(f"trace:{key}"))
    assert other["reward"].to_list() == frame["reward"].to_list()
    frames.to_parquet(effectd.receipts(f"trace:{key}"), tmp_path / "frame.parquet")
    assert polars.read_parquet(tmp_path / "frame.parquet")["receipt_id"].to_list() == list(frame["receipt_id"])
    assert pandas.read_parquet(tmp_path / "frame.parquet").shape == frame.shape
    assert len(frames.to_pandas(effectd.receipts("tool:none.none"))) == 0
