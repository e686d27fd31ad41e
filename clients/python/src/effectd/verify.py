"""Verifies receipts without effectd, by docs/receipts.md alone: Ed25519, canonical JSON (RFC 8785), a Merkle tree (RFC 6962).

    report = verify.bundle("log.jsonl", key="<the id of the device's key>")
    assert report.ok, report.wrong

Needs the extra `verify`: `pip install effectd[verify]`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from hashlib import sha256
from os import PathLike
from pathlib import Path
from typing import Any, NoReturn

import rfc8785
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from .models import Receipt

LINE_BYTES_MAX = 20 * 1_048_576
"""The longest line of a bundle: the largest receipt fits several times."""
FINDINGS_MAX = 1_000
Json = dict[str, Any]
Unreadable = (KeyError, TypeError, ValueError, RecursionError, rfc8785.CanonicalizationError)


@dataclass(slots=True)
class Report:
    """What a check found. Without a key that you trust, it proves only that the log is consistent with itself."""

    size: int = 0
    root: str = ""
    receipts: int = 0
    amendments: int = 0
    heads: int = 0
    dropped: int = 0
    """Entries whose bodies retention has dropped: their hashes are proved."""
    keys: list[str] = field(default_factory=list[str])
    wrong: list[str] = field(default_factory=list[str])
    """The first thousand things that are wrong."""

    @property
    def ok(self) -> bool:
        return not self.wrong

    def find(self, what: str) -> None:
        if len(self.wrong) < FINDINGS_MAX:
            self.wrong.append(what)


def _once(pairs: list[tuple[str, Any]]) -> Json:
    """An object without a name that appears twice: readers disagree about which of the two counts."""
    members = dict(pairs)
    if len(members) != len(pairs):
        raise ValueError("a name appears twice in one object")
    return members


def _no_number(text: str) -> NoReturn:
    raise ValueError(f"{text} is no number in JSON")


def _parse(text: bytes) -> Json:
    value = json.loads(text.decode(), object_pairs_hook=_once, parse_constant=_no_number)
    if not isinstance(value, dict):
        raise ValueError("not an object")
    return value  # pyright: ignore[reportUnknownVariableType]


def _hash(text: str) -> bytes:
    if not re.fullmatch("sha256:[0-9a-f]{64}", text):
        raise ValueError("not a digest")
    return bytes.fromhex(text[7:])


def _unhex(text: str, length: int) -> bytes:
    if not re.fullmatch(f"[0-9a-f]{{{2 * length}}}", text):
        raise ValueError("not hexadecimal digits")
    return bytes.fromhex(text)


def _leaf(entry: Json) -> bytes:
    return sha256(b"\x00" + rfc8785.dumps(entry)).digest()


def _node(left: bytes, right: bytes) -> bytes:
    return sha256(b"\x01" + left + right).digest()


def _without(entry: Json, name: str) -> Json:
    return {key: value for key, value in entry.items() if key != name}


class _Tree:
    """The roots of the complete subtrees, the largest first."""

    def __init__(self, size: int, peaks: Iterable[bytes]) -> None:
        self.size, self.peaks = size, list(peaks)
        if size < 0 or len(self.peaks) != size.bit_count():
            raise ValueError("the frontier does not fit its size")

    def push(self, leaf: bytes) -> None:
        rest = self.size
        while rest & 1:
            leaf = _node(self.peaks.pop(), leaf)
            rest >>= 1
        self.peaks.append(leaf)
        self.size += 1

    def root(self) -> bytes:
        if not self.peaks:
            return sha256().digest()
        root = self.peaks[-1]
        for peak in self.peaks[-2::-1]:
            root = _node(peak, root)
        return root


class _Keys:
    """The keys of a log, each signed by the one before it."""

    def __init__(self, report: Report) -> None:
        self.report = report
        self.known: list[Ed25519PublicKey] = []

    def signer(self, entry: Json, signature: Json) -> int:
        """The place of the key that signed; an error if none did."""
        place = self.report.keys.index(signature["key_id"])
        if signature["algorithm"] != "ed25519" or set(signature) != {"algorithm", "key_id", "value"}:
            raise ValueError("another signature than Ed25519")
        try:
            self.known[place].verify(_unhex(signature["value"], 64), rfc8785.dumps(entry))
        except InvalidSignature:
            raise ValueError("the signature is not of this content") from None
        return place

    def admit(self, entry: Json) -> int:
        public = _unhex(entry["public_key"], 32)
        key_id = sha256(public).hexdigest()[:16]
        if entry["key_id"] != key_id:
            raise ValueError("a key with the id of another key")
        if key_id in self.report.keys:
            return self.report.keys.index(key_id)
        previous = self.report.keys[-1] if self.report.keys else None
        self.report.keys.append(key_id)
        self.known.append(Ed25519PublicKey.from_public_bytes(public))
        bare: Json = {**entry, "signatures": []}
        signers = {self.report.keys[self.signer(bare, signature)] for signature in entry["signatures"]}
        if key_id not in signers or entry.get("previous") != previous or not {previous} <= signers | {None}:
            raise ValueError("a key that it and the one before it did not sign")
        return len(self.known) - 1

    def trust(self, key: str | None) -> None:
        wholes = {public.public_bytes_raw().hex() for public in self.known}
        if key is not None and key not in wholes | set(self.report.keys):
            self.report.find(f"none of the keys is {key}")


class _Check:
    """Takes the lines of a bundle in order."""

    def __init__(self, first: Json, known: Json | None) -> None:
        if first["bundle"] != 1:
            raise ValueError("a bundle of another format")
        self.report = Report()
        self.keys = _Keys(self.report)
        self.head: Json = first["head"]
        self.first_keys: list[Json] = first["keys"]
        self.tree = _Tree(first["from"], map(_hash, first["frontier"]))
        self.start = self.tree.size
        self.roots = bytearray(self.tree.root())
        self.in_force, self.kept_from = 0, 0
        self.rotations: list[tuple[int, int]] = []
        """Where the log names a key, and the position of that key."""
        self.named: list[Json] = []
        self.open: set[str] = set()
        self.earlier = known
        if self.start > 0:
            self.admit_first_keys()

    def admit_first_keys(self) -> None:
        """The keys of the first line, where the entries that named them are missing."""
        for key in self.first_keys:
            self.keys.admit(key)

    def line(self, line: Json) -> None:
        index, leaf = line["index"], _hash(line["hash"])
        if index != self.tree.size or not set(line) <= {"index", "hash", "entry"}:
            self.report.find(f"entry {index} stands where entry {self.tree.size} should")
        try:
            if "entry" in line:
                if _leaf(line["entry"]) != leaf:
                    self.report.find(f"entry {index} does not match its hash")
                self.entry(line["entry"])
            elif index < self.head["kept_from"]:
                self.report.dropped += 1
                # It may have named a key, or be the receipt of any earlier intent.
                self.admit_first_keys()
                self.open.clear()
            else:
                self.report.find(f"entry {index} has no body, and the head says that it is kept")
        except Unreadable as error:
            self.report.find(f"entry {index}: {error}")
        self.tree.push(leaf)
        self.roots += self.tree.root()

    def entry(self, entry: Json) -> None:
        kind = entry.get("entry")
        if kind == "key":
            self.in_force = self.keys.admit(entry)
            self.rotations.append((self.tree.size, self.in_force))
            self.named.append(entry)
        elif kind == "intent":
            self.open.add(entry["action_id"])
        elif kind == "head":
            self.compare(entry)
        elif kind in (None, "amendment"):
            if self.keys.signer(_without(entry, "signature"), entry["signature"]) < self.in_force:
                raise ValueError("signed by a key that had been replaced")
            if kind is None:
                self.report.receipts += 1
                self.open.discard(entry["action_id"])
            else:
                self.report.amendments += 1
        else:
            raise ValueError("an entry of an unknown kind")

    def compare(self, head: Json) -> None:
        """Compares the tree with a head: every head says what the log was at its size."""
        size, kept_from = head["size"], head["kept_from"]
        in_force = max((position for index, position in self.rotations if index < size), default=0)
        if self.keys.signer(_without(head, "signature"), head["signature"]) < in_force:
            raise ValueError("the head was signed by a key that had been replaced")
        if not self.kept_from <= kept_from <= size <= self.tree.size:
            raise ValueError("the head does not fit the log and the heads before it")
        self.kept_from = kept_from
        if size >= self.start:
            at = 32 * (size - self.start)
            if bytes(self.roots[at : at + 32]) != _hash(head["root"]):
                raise ValueError(f"the tree of the first {size} entries is not the one that was signed")
            self.report.heads += 1

    def finish(self, key: str | None) -> Report:
        report, head, size = self.report, self.head, self.tree.size
        try:
            if self.earlier is not None:
                if self.earlier["size"] < self.start:
                    raise ValueError("the bundle begins after what the given head covers")
                self.kept_from, kept_from = 0, self.kept_from
                self.compare(self.earlier)
                self.kept_from = kept_from
            if self.start == 0 and not report.dropped and self.first_keys != self.named:
                raise ValueError("the keys of the first line are not those of the log")
            if head["size"] != size:
                raise ValueError(f"the head covers {head['size']} entries, and there are {size}")
            self.compare(head)
            is_whole = self.start == 0 and not report.dropped
            if report.ok and (len(self.open) > head["open"] or (is_whole and len(self.open) < head["open"])):
                raise ValueError(f"{len(self.open)} intents have no receipt, and it says {head['open']}")
        except Unreadable as error:
            report.find(f"the head: {error}")
        self.keys.trust(key)
        report.size, report.root = size, f"sha256:{self.tree.root().hex()}"
        return report


def _lines(path: str | PathLike[str]) -> Iterator[bytes]:
    with Path(path).open("rb") as file:
        while line := file.readline(LINE_BYTES_MAX + 1):
            if len(line) > LINE_BYTES_MAX:
                raise ValueError("a line is too long")
            yield line


def bundle(path: str | PathLike[str], *, head: Json | None = None, key: str | None = None) -> Report:
    """Verifies a bundle (`effectd receipts export --bundle`). `head` is an earlier head, which the log must continue; `key` one
    that you trust: its id, or the whole key in hexadecimal digits."""
    lines = _lines(path)
    try:
        check = _Check(_parse(next(lines, b"")), head)
    except (*Unreadable, AttributeError) as error:
        return Report(wrong=[f"the first line cannot be used: {error}"])
    try:
        for number, line in enumerate(lines, 2):
            try:
                check.line(_parse(line))
            except (*Unreadable, AttributeError) as error:
                check.report.find(f"line {number} cannot be read: {error}")
    except ValueError as error:
        check.report.find(str(error))
    return check.finish(key)


def proof(value: Json, *, receipt: Receipt | None = None, key: str | None = None) -> Report:
    """Verifies that a receipt is in the log of a signed head: `effectd receipts proof`, or `/v1/receipts/{id}/proof`."""
    report = Report(receipts=1)
    keys = _Keys(report)
    try:
        head, entry, index = value["head"], value["entry"], value["index"]
        for one in value["keys"]:
            keys.admit(one)
        keys.signer(_without(head, "signature"), head["signature"])
        keys.signer(_without(entry, "signature"), entry["signature"])
        report.size, report.root = head["size"], head["root"]
        if value["proof"] != 1 or not 0 <= index < report.size:
            raise ValueError("the proof is of another format, or of no entry")
        root, last = _leaf(entry), report.size - 1
        for sibling in map(_hash, value["path"]):
            if last == 0:
                raise ValueError("the path is too long")
            is_right = index & 1 or index == last
            root = _node(sibling, root) if is_right else _node(root, sibling)
            while is_right and not index & 1 and index:
                index, last = index >> 1, last >> 1
            index, last = index >> 1, last >> 1
        if last != 0 or root != _hash(report.root):
            raise ValueError("the entry is not in the log that was signed")
        if receipt is not None and rfc8785.dumps(entry) != rfc8785.dumps(receipt.raw):
            raise ValueError("the proof is of another receipt")
    except (*Unreadable, AttributeError) as error:
        report.find(str(error))
    keys.trust(key)
    return report
