#!/usr/bin/env python3
"""A learner that needs nothing but Python: how often each tool succeeds, and what another planner would have earned.

    effectd receipts export --dataset data
    python3 examples/learner.py data/receipts.jsonl --amendments data/amendments.jsonl --target files.write_text=1

Or from the bus, by the topics AMENDMENTS and ACTION_EXECUTED:

    python3 examples/learner.py --from-bus .effectd/run/effectd.sock
    (effectd bus replay --topic AMENDMENTS; effectd bus replay) | python3 examples/learner.py --events -

Every receipt and every event counts once, by its id, however often it is replayed, so the same ones always give the same figures.
The estimate of another planner's reward uses the receipts whose planner said how likely its choice was. It weighs each by its candidate
(`choice.chosen`, or the tool if the planner named none) and normalises by the sum of the weights (SNIPS). `effective_n` is the
number of receipts that would say as much without weights.
"""

import argparse
import http.client
import itertools
import json
import math
import os
import socket
import sys

Z = 1.959963984540054  # 95 of 100


def wilson(successes, count):
    """The interval in which a share of successes lies, also when there are few of them."""
    share = successes / count
    spread = Z * math.sqrt(share * (1.0 - share) / count + Z * Z / (4.0 * count * count))
    middle = share + Z * Z / (2.0 * count)
    scale = 1.0 + Z * Z / count
    return (middle - spread) / scale, (middle + spread) / scale


class Effectd(http.client.HTTPConnection):
    def __init__(self, path):
        super().__init__("effectd")
        self.path = path

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.connect(self.path)


def read(path):
    with sys.stdin if path == "-" else open(path, encoding="utf-8") as lines:
        for line in lines:
            if line.strip():
                yield json.loads(line)


def replay(effectd, topic):
    """Every event of a topic that is kept, in order."""
    at = "start"
    while True:
        effectd.request("GET", f"/v1/store/topics/{topic}?from={at}")
        answer = effectd.getresponse()
        page = json.load(answer)
        if answer.status != 200:
            sys.exit(f"{page['code']}: {page['detail']}")
        yield from page["events"]
        if page["next"] >= page["end"]:
            return
        at = page["next"]


def of_amendment(amendment):
    later = {name: amendment[name] for name in ["success"] if name in amendment}
    return {"amends": amendment["receipt_id"], "later": {**later, "reward": amendment["reward"]["scalar"]}}


def of_receipt(receipt):
    choice = receipt.get("choice") or {}
    return {"id": receipt["receipt_id"], "receipt_id": receipt["receipt_id"], "tool_id": receipt["tool_id"],
            "status": receipt["status"], "reward": receipt["reward"]["scalar"],
            "chosen": choice.get("chosen"), "propensity": choice.get("propensity")}


def of_event(event):
    """What an event says; None for one that is not about an action: an operator's, or one that was lost."""
    data = event.get("data", {})
    if event["type"] == "effectd.receipt.amended.v1":
        return of_amendment({**data, "reward": {"scalar": data["reward"]}})
    if event["type"] != "effectd.action.executed.v1" or data["tool_id"].startswith("effectd."):
        return None
    return {**data, "id": event["id"]}


def learn(items, target):
    later, seen, tools, weighted = {}, set(), {}, []
    for item in items:
        if "amends" in item:  # of each field, the last word counts
            later.setdefault(item["amends"], {}).update(item["later"])
            continue
        if item["id"] in seen:
            continue
        seen.add(item["id"])
        amendment = later.get(item["receipt_id"], {})
        success = amendment.get("success", item["status"] == "ok")
        reward = float(amendment.get("reward", item["reward"]))
        known = tools.setdefault(item["tool_id"], [0, 0, 0.0])
        known[0] += 1
        known[1] += 1 if success else 0
        known[2] += reward
        propensity = item.get("propensity")
        if target and propensity is not None:
            candidate = item.get("chosen") or item["tool_id"]
            weighted.append((target.get(candidate, 0.0) / propensity, reward))
    return tools, weighted


def estimate(weighted):
    """The self-normalised estimate, its interval, and how many receipts it really rests on."""
    count, total = len(weighted), sum(weight for weight, _ in weighted)
    if total == 0.0:
        return f"off_policy n={count} effective_n=0.0: no receipt has a candidate of the target"
    mean = sum(weight * reward for weight, reward in weighted) / total
    effective = total * total / sum(weight * weight for weight, _ in weighted)
    spread = sum((weight * (reward - mean)) ** 2 for weight, reward in weighted)
    error = Z * math.sqrt(spread) / total if effective > 1.5 else math.inf
    return (f"off_policy n={count} effective_n={effective:.1f} estimate={mean:.6f} "
            f"low={mean - error:.6f} high={mean + error:.6f}")


def told(tools, weighted):
    for tool in sorted(tools):
        count, successes, reward = tools[tool]
        low, high = wilson(float(successes), float(count))
        yield (f"{tool} n={count} successes={successes} prior={successes / count:.6f} "
               f"low={low:.6f} high={high:.6f} reward={reward / count:.6f}")
    if weighted:
        yield estimate(weighted)


def main():
    parser = argparse.ArgumentParser(description="Success priors per tool, and an off-policy estimate.")
    parser.add_argument("receipts", nargs="?", help="a dataset of `effectd receipts export --dataset`, or JSON lines of `effectd receipts export`")
    parser.add_argument("--amendments", help="amendments.jsonl of a dataset")
    parser.add_argument("--events", metavar="FILE", help="JSON lines of `effectd bus replay`, amendments first; - for standard input")
    parser.add_argument("--from-bus", metavar="SOCKET", help="replay the events of the daemon on this socket")
    parser.add_argument("--target", action="append", default=[], metavar="CANDIDATE=PROBABILITY",
                        help="how likely another planner is to choose a candidate (or tool)")
    arguments = parser.parse_args()
    if [arguments.receipts, arguments.events, arguments.from_bus].count(None) != 2:
        parser.error("name one source: a file of receipts, --events or --from-bus")
    target = {}
    for pair in arguments.target:
        candidate, _, probability = pair.rpartition("=")
        target[candidate] = float(probability)
    if arguments.receipts and os.path.isdir(arguments.receipts):
        folder = arguments.receipts
        arguments.receipts, arguments.amendments = (os.path.join(folder, f"{name}.jsonl") for name in ("receipts", "amendments"))
    if arguments.receipts:
        amendments = read(arguments.amendments) if arguments.amendments else []
        items = itertools.chain(map(of_amendment, amendments), map(of_receipt, read(arguments.receipts)))
    elif arguments.events:
        items = filter(None, map(of_event, read(arguments.events)))
    else:
        effectd = Effectd(arguments.from_bus)
        events = itertools.chain(replay(effectd, "AMENDMENTS"), replay(effectd, "ACTION_EXECUTED"))
        items = filter(None, map(of_event, events))
    try:
        for line in told(*learn(items, target)):
            print(line)
    except (OSError, http.client.HTTPException) as error:
        if arguments.from_bus:
            sys.exit(f"no daemon answers on {arguments.from_bus} ({error}); start one with `effectd serve`, "
                     "or name the socket of its state")
        sys.exit(f"the input cannot be read: {error}")
    except (ValueError, KeyError, TypeError) as error:
        sys.exit(f"the input is not what effectd writes: {error!r}")


if __name__ == "__main__":
    main()
