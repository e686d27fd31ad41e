"""The second verifier: what `effectd receipts verify` accepts it accepts, and what either refuses both refuse."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import EFFECTD, Daemon, write

from effectd import Effectd, verify


@pytest.fixture(scope="module")
def daemon() -> Iterator[Daemon]:
    """A daemon with a short log of its own."""
    with tempfile.TemporaryDirectory() as folder:
        running = Daemon(Path(folder))
        yield running
        running.end(signal.SIGTERM)


@pytest.fixture(scope="module")
def bundle(daemon: Daemon) -> list[str]:
    """A log with receipts, an amendment, heads and a second key."""
    options = {"subject_id": "agent://planner@deviceA", "space_id": "shared:household"}
    with Effectd(socket=daemon.socket, subject_id=options["subject_id"], space_id=options["space_id"]) as effectd:
        for number in range(4):
            text = f"ä €𝄞 {number}\u2028"
            effectd.execute("files.write_text", write(f"bundle-{number}.txt", text), candidates=[{"id": "x", "propensity": 1e-7}])
        done = effectd.execute("files.write_text", write("bundle.txt"))
        daemon.cli("receipts", "amend", done.receipt.receipt_id, "--success", "false", "--yes")
        daemon.cli("receipts", "head")
        daemon.cli("keys", "rotate", "--yes")
        effectd.execute("files.write_text", write("bundle-last.txt"))
    path = daemon.folder / "log.jsonl"
    daemon.cli("receipts", "export", "--bundle", str(path))
    return path.read_text().splitlines()


def both(lines: list[str], path: Path, *arguments: str) -> tuple[bool, bool]:
    """What effectd says, and what this client says."""
    path.write_text("\n".join(lines) + "\n")
    theirs = subprocess.run([EFFECTD, "receipts", "verify", str(path), *arguments], capture_output=True, timeout=60)
    named: dict[str, Any] = {}
    for option, value in zip(arguments[::2], arguments[1::2], strict=True):
        named[option[2:]] = json.loads(Path(value).read_text()) if option == "--head" else value
    return theirs.returncode == 0, verify.bundle(path, **named).ok


def test_a_real_bundle_is_accepted_with_its_figures(bundle: list[str], tmp_path: Path, daemon: Daemon) -> None:
    assert both(bundle, tmp_path / "whole") == (True, True)
    said = json.loads(daemon.cli("receipts", "verify", str(tmp_path / "whole"), "-o", "json"))
    report = verify.bundle(tmp_path / "whole")
    for name in ("root", "size", "receipts", "amendments", "keys"):
        assert getattr(report, name) == said[name]
    assert report.receipts > 4 and report.amendments >= 1 and len(report.keys) == 2 and report.heads > 0
    assert both(bundle, tmp_path / "whole", "--key", report.keys[0]) == (True, True)
    assert both(bundle, tmp_path / "whole", "--key", "0" * 16) == (False, False)


def test_a_part_of_the_log_is_a_bundle_too(bundle: list[str], tmp_path: Path, daemon: Daemon) -> None:
    for start in (1, len(bundle) // 2, len(bundle) - 4):
        path = tmp_path / f"from-{start}"
        daemon.cli("receipts", "export", "--bundle", str(path), "--from", str(start))
        assert both(path.read_text().splitlines(), tmp_path / "part") == (True, True)


def test_an_earlier_head_must_be_continued(bundle: list[str], tmp_path: Path) -> None:
    heads = [line["entry"] for line in map(json.loads, bundle[1:]) if line.get("entry", {}).get("entry") == "head"]
    head, path = tmp_path / "head.json", tmp_path / "log"
    for known in heads:
        head.write_text(json.dumps(known))
        assert both(bundle, path, "--head", str(head)) == (True, True)
    head.write_text(json.dumps(heads[-1] | {"root": "sha256:" + "0" * 64}))
    assert both(bundle, path, "--head", str(head)) == (False, False)


def test_lines_that_are_missing_moved_or_repeated_are_refused(bundle: list[str], tmp_path: Path) -> None:
    path = tmp_path / "log"
    for at in range(1, len(bundle), 3):
        assert both(bundle[:at] + bundle[at + 1 :], path) == (False, False), f"without line {at}"
    for at in range(2, len(bundle) - 1, 3):
        moved = [*bundle[:at], bundle[at + 1], bundle[at], *bundle[at + 2 :]]
        assert both(moved, path) == (False, False), f"line {at} moved"
    assert both([*bundle, bundle[-1]], path) == (False, False)
    assert both(bundle[:-1], path) == (False, False)


def test_every_flipped_bit_is_refused(bundle: list[str], tmp_path: Path) -> None:
    path, chance = tmp_path / "log", random.Random(7)
    original = "\n".join(bundle).encode()
    # The keys of the first line count only where entries are missing: this verifier compares them all the same.
    after_first = len(bundle[0].encode()) + 1
    for _ in range(20):
        at, bit = chance.randrange(after_first, len(original)), 1 << chance.randrange(8)
        changed = bytearray(original)
        changed[at] ^= bit
        path.write_bytes(bytes(changed) + b"\n")
        theirs = subprocess.run([EFFECTD, "receipts", "verify", str(path)], capture_output=True, timeout=60)
        assert (theirs.returncode == 0, verify.bundle(path).ok) == (False, False), (at, bit, bytes(changed[at - 40 : at + 40]))
    for _ in range(100):
        at, bit = chance.randrange(len(original)), 1 << chance.randrange(8)
        changed = bytearray(original)
        changed[at] ^= bit
        path.write_bytes(bytes(changed) + b"\n")
        assert not verify.bundle(path).ok, (at, bit, bytes(changed[max(0, at - 40) : at + 40]))


def test_a_receipt_without_its_intent_s_end_is_refused(bundle: list[str], tmp_path: Path) -> None:
    """A body that is cut out, with its hash kept, is allowed only before `kept_from`."""
    for at in range(1, len(bundle), 6):
        line = json.loads(bundle[at])
        del line["entry"]
        assert both([*bundle[:at], json.dumps(line), *bundle[at + 1 :]], tmp_path / "log") == (False, False)


@pytest.mark.parametrize(
    "line",
    ["", "[]", "{}", "no", '{"index":1,"index":1}', "[" * 100_000, '{"index":1e400}', '{"a":NaN}', "9" * 10_000, "\ud800"],
)
def test_what_is_no_bundle_is_refused(bundle: list[str], tmp_path: Path, line: str) -> None:
    path = tmp_path / "log"
    for lines in ([line], [line, *bundle[1:]], [bundle[0], line, *bundle[2:]], [*bundle, line, ""]):
        path.write_bytes("\n".join(lines).encode(errors="surrogatepass"))
        assert not verify.bundle(path).ok
    path.write_text("\n".join(bundle), encoding="utf-8-sig")
    assert not verify.bundle(path).ok


def test_a_proof_holds_for_its_receipt_alone(bundle: list[str], daemon: Daemon, tmp_path: Path) -> None:
    with Effectd(socket=daemon.socket) as effectd:
        receipts = list(effectd.receipts())
        proofs = [effectd.call("GET", f"/v1/receipts/{receipt.receipt_id}/proof") for receipt in receipts]
    assert len(receipts) > 4
    for receipt, proof in zip(receipts, proofs, strict=True):
        report = verify.proof(proof, receipt=receipt, key=proof["keys"][0]["key_id"])
        assert report.ok, report.wrong
        assert not verify.proof(proof, key="0" * 16).ok
        assert not verify.proof(proof | {"proof": 2}).ok
        path = proof["path"]
        for change in ({"index": proof["index"] + 1}, {"path": path[1:]}, {"path": [*path, path[0]]}):
            assert not verify.proof(proof | change).ok, change
    for proof in proofs[:3]:
        changed = tmp_path / "proof.json"
        changed.write_text(json.dumps(proof | {"path": proof["path"][::-1]}))
        assert not verify.proof(json.loads(changed.read_text())).ok
        daemon.cli("receipts", "verify", str(changed), code=1)
    assert not verify.proof(proofs[0], receipt=receipts[1]).ok
    assert not verify.proof(proofs[0] | {"entry": proofs[1]["entry"]}).ok
