#!/usr/bin/env python3
"""Checks a bundle of receipts without effectd: a second implementation, written from docs/receipts.md alone.

Needs Python 3.9 and the package `cryptography`. Prints what it found; exits with 1 if anything is wrong.
"""

import hashlib
import json
import math
import sys

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey


def number(value):
    """A number as ECMAScript prints it, which is what RFC 8785 asks for."""
    value = float(value)
    if not math.isfinite(value):
        raise ValueError("no JSON number")
    if value == 0:
        return "0"
    sign, digits, exponent = ("-" if value < 0 else ""), *shortest(abs(value))
    count, point = len(digits), exponent
    if count <= point <= 21:
        return sign + digits + "0" * (point - count)
    if 0 < point <= 21:
        return sign + digits[:point] + "." + digits[point:]
    if -6 < point <= 0:
        return sign + "0." + "0" * -point + digits
    mantissa = digits[0] + ("." + digits[1:] if count > 1 else "")
    return sign + mantissa + "e" + ("+" if point > 0 else "-") + str(abs(point - 1))


def shortest(value):
    mantissa, _, exponent = repr(value).partition("e")
    whole, _, fraction = mantissa.partition(".")
    exponent = int(exponent or 0)
    digits = whole + fraction
    leading = len(digits) - len(digits.lstrip("0"))
    return digits.strip("0"), len(whole) + exponent - leading


def text(value):
    out = ['"']
    short = {'"': '\\"', "\\": "\\\\", "\b": "\\b", "\t": "\\t", "\n": "\\n", "\f": "\\f", "\r": "\\r"}
    for character in value:
        if character in short:
            out.append(short[character])
        elif character < " ":
            out.append("\\u%04x" % ord(character))
        else:
            out.append(character)
    return "".join(out) + '"'


def canonical(value):
    if value is None:
        return "null"
    if value is True or value is False:
        return "true" if value else "false"
    if isinstance(value, (int, float)):
        return number(value)
    if isinstance(value, str):
        return text(value)
    if isinstance(value, list):
        return "[" + ",".join(canonical(item) for item in value) + "]"
    names = sorted(value, key=lambda name: name.encode("utf-16-be"))
    return "{" + ",".join(text(name) + ":" + canonical(value[name]) for name in names) + "}"


def leaf(entry):
    return hashlib.sha256(b"\x00" + canonical(entry).encode()).digest()


def pair(left, right):
    return hashlib.sha256(b"\x01" + left + right).digest()


def digest(text_form):
    assert text_form.startswith("sha256:")
    return bytes.fromhex(text_form[7:])


class Tree:
    def __init__(self, size, peaks):
        assert len(peaks) == bin(size).count("1")
        self.size, self.peaks = size, list(peaks)

    def push(self, hash_):
        full = self.size
        while full & 1:
            hash_ = pair(self.peaks.pop(), hash_)
            full >>= 1
        self.peaks.append(hash_)
        self.size += 1

    def root(self):
        if not self.peaks:
            return hashlib.sha256(b"").digest()
        root = self.peaks[-1]
        for peak in reversed(self.peaks[:-1]):
            root = pair(peak, root)
        return root


def without(entry, name):
    return {key: value for key, value in entry.items() if key != name}


class Check:
    def __init__(self, first):
        self.head = first["head"]
        self.tree = Tree(first["from"], [digest(peak) for peak in first["frontier"]])
        self.whole_log = first["from"] == 0
        self.keys, self.wrong, self.open, self.receipts = [], [], {}, 0
        self.in_force, self.gone, self.told = 0, 0, first["keys"]
        if not self.whole_log:
            self.take_told()

    def take_told(self):
        """The keys of the first line, once the entries that named them are not in the bundle."""
        for key in self.told:
            self.key(key, "the bundle's first line")
        self.told = []

    def find(self, what):
        self.wrong.append(what)

    def signed(self, entry, signature):
        """The place among the keys of the one that signed; None if none did."""
        for place, (key_id, key) in enumerate(self.keys):
            if signature["key_id"] == key_id and signature["algorithm"] == "ed25519":
                try:
                    key.verify(bytes.fromhex(signature["value"]), canonical(entry).encode())
                    return place
                except InvalidSignature:
                    return None
        return None

    def key(self, entry, where):
        public = bytes.fromhex(entry["public_key"])
        key_id = hashlib.sha256(public).hexdigest()[:16]
        known = [place for place, (name, _) in enumerate(self.keys) if name == key_id]
        if known:
            return known[0]
        before = self.keys[-1][0] if self.keys else None
        self.keys.append((key_id, Ed25519PublicKey.from_public_bytes(public)))
        bare = without(entry, "signatures")
        bare["signatures"] = []
        signers = {self.keys[place][0] for signature in entry["signatures"] if (place := self.signed(bare, signature)) is not None}
        if entry["key_id"] != key_id or key_id not in signers or entry.get("previous") != before:
            self.find(f"{where}: a key that is not what it says")
        if before is not None and before not in signers:
            self.find(f"{where}: a key that the one before it did not sign")
        return len(self.keys) - 1

    def line(self, line):
        index, where = line["index"], f"entry {line['index']}"
        if index != self.tree.size:
            self.find(f"{where} stands where entry {self.tree.size} should")
        entry = line.get("entry")
        if entry is not None:
            if leaf(entry) != digest(line["hash"]):
                self.find(f"{where} does not match its hash")
            self.entry(index, where, entry)
        else:
            if index >= self.head["kept_from"]:
                self.find(f"{where} has no body, and the head says that it is kept")
            # What retention dropped may have named a key, or be the receipt of any intent before it.
            self.gone += 1
            self.take_told()
            self.open.clear()
        self.tree.push(digest(line["hash"]))

    def entry(self, index, where, entry):
        kind = entry.get("entry", "receipt")
        if kind == "key":
            self.in_force = self.key(entry, where)
        elif kind == "intent":
            self.open[entry["action_id"]] = index
        else:
            place = self.signed(without(entry, "signature"), entry["signature"])
            if place is None:
                self.find(f"{where}: nobody signed it as it is")
            elif place < self.in_force and kind != "head":
                self.find(f"{where}: signed by a key that had been replaced")
            if kind == "receipt":
                self.receipts += 1
                self.open.pop(entry["action_id"], None)

    def finish(self):
        head = self.head
        if self.signed(without(head, "signature"), head["signature"]) is None:
            self.find("the head is not signed")
        if head["size"] != self.tree.size:
            self.find(f"the head speaks of {head['size']} entries, and there are {self.tree.size}")
        elif digest(head["root"]) != self.tree.root():
            self.find("the tree is not the one that was signed")
        elif len(self.open) > head["open"] or (self.whole_log and not self.gone and len(self.open) < head["open"]):
            self.find(f"{len(self.open)} intents have no receipt; the head says {head['open']}")


def once(pairs):
    """An object in which no name appears twice: readers disagree about which of the two counts."""
    members = dict(pairs)
    if len(members) != len(pairs):
        raise ValueError("a name appears twice in one object")
    return members


def read(line):
    return json.loads(line, object_pairs_hook=once)


def main(path):
    with open(path, encoding="utf-8") as lines:
        check = Check(read(next(lines)))
        for line in lines:
            try:
                check.line(read(line))
            except (ValueError, KeyError, TypeError) as error:
                check.find(f"a line cannot be read: {error!r}")
    check.finish()
    for what in check.wrong:
        print(what, file=sys.stderr)
    print(json.dumps({"ok": not check.wrong, "size": check.tree.size, "receipts": check.receipts,
                      "root": "sha256:" + check.tree.root().hex()}))
    return 1 if check.wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
