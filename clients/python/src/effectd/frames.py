"""Receipts as a table, for learners: the columns of a dataset (docs/receipts.md), one row a receipt, with its amendments.

    frame = frames.to_pandas(effectd.receipts("-space:effectd since:7d"))

Needs the extra `pandas`, `polars` or `parquet`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from importlib import import_module
from os import PathLike
from typing import TYPE_CHECKING, Any

from .models import Receipt

if TYPE_CHECKING:
    import pandas
    import polars

QUALITY_DEFAULT = 0.5
"""The quality of a success whose tool reports none."""

TIMES = ("started_at", "ended_at")


def rows(receipts: Iterable[Receipt]) -> Iterator[dict[str, Any]]:
    """One flat row for each receipt. Amendments add up: of each field the last word counts."""
    for receipt in receipts:
        raw, timing, cost = receipt.raw, receipt.raw["timing"], receipt.raw["cost"]
        words = [amendment.success for amendment in receipt.amendments if amendment.success is not None]
        success = words[-1] if words else receipt.status == "ok"
        reported: dict[str, Any] = raw["reward"].get("inputs") or {}
        known: list[float | None] = [reported.get("quality"), *(amendment.quality for amendment in receipt.amendments)]
        quality = next((word for word in reversed(known) if word is not None), QUALITY_DEFAULT)
        choice: dict[str, Any] = raw.get("choice") or {}
        yield {
            "receipt_id": receipt.receipt_id,
            "action_id": receipt.action_id,
            "tool_id": receipt.tool_id,
            "tool_version": receipt.tool_version,
            "space_id": receipt.space_id,
            "subject_id": receipt.subject_id,
            "principal": receipt.principal,
            "tier": (receipt.decision or {}).get("tier"),
            "status": receipt.status,
            "outcome": receipt.outcome,
            "code": receipt.error.code if receipt.error else None,
            "started_at": timing["started_at"],
            "ended_at": timing["ended_at"],
            "queued_ms": timing["queued_ms"],
            "exec_ms": timing["exec_ms"],
            "total_ms": timing["total_ms"],
            "cpu_ms": cost["cpu_ms"],
            "energy_mwh": cost["energy_mwh"],
            "peak_memory_bytes": cost.get("peak_memory_bytes"),
            "bytes_written": cost.get("bytes_written"),
            "attempts": len(raw.get("attempts", [])),
            "success": success,
            "quality": quality if success else 0.0,
            "reward": receipt.current_reward.scalar,
            "reward_v2": receipt.current_reward.v2,
            "amendments": len(receipt.amendments),
            "chosen": choice.get("chosen"),
            "propensity": choice.get("propensity"),
            "candidates": choice.get("candidates", [] if choice else None),
            "context": choice.get("context", {} if choice else None),
            "trace_id": receipt.trace_id,
        }


def _cells(receipts: Iterable[Receipt]) -> dict[str, list[Any]]:
    """The columns. Candidates and context are JSON, as in a dataset's CSV: each planner has its own."""
    table: dict[str, list[Any]] = {}
    for row in rows(receipts):
        for name in ("candidates", "context"):
            row[name] = None if row[name] is None else json.dumps(row[name], separators=(",", ":"), sort_keys=True)
        for name, cell in row.items():
            table.setdefault(name, []).append(cell)
    return table


def to_pandas(receipts: Iterable[Receipt]) -> pandas.DataFrame:
    import pandas

    cells = _cells(receipts)
    return pandas.DataFrame(cells).astype({name: "datetime64[ns, UTC]" for name in TIMES if name in cells})


def to_polars(receipts: Iterable[Receipt]) -> polars.DataFrame:
    import polars

    cells = _cells(receipts)
    times = [polars.col(name).str.to_datetime(time_zone="UTC", time_unit="ns") for name in TIMES if name in cells]
    return polars.DataFrame(cells, infer_schema_length=None).with_columns(times)


def to_parquet(receipts: Iterable[Receipt], path: str | PathLike[str]) -> None:
    # Neither has types.
    arrow: Any = import_module("pyarrow")
    parquet: Any = import_module("pyarrow.parquet")
    parquet.write_table(arrow.table(_cells(receipts)), path)
