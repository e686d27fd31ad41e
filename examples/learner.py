#!/usr/bin/env python3
"""A learner that needs nothing but Python: how often each tool succeeds, and what another planner would have earned.

    effectd receipts export --dataset data
    python3 examples/learner.py data/receipts.jsonl --amendments data/amendments.jsonl --target files.write_text=1

Every receipt counts once, however often it is replayed, so the same receipts always give the same figures. The estimate of
another planner's reward (inverse propensity scoring) uses the receipts whose planner said how likely its choice was.
"""

import argparse
import json
import math

Z = 1.959963984540054  # 95 of 100


def wilson(successes, count):
    """The interval in which a share of successes lies, also when there are few of them."""
    share = successes / count
    spread = Z * math.sqrt(share * (1.0 - share) / count + Z * Z / (4.0 * count * count))
    middle = share + Z * Z / (2.0 * count)
    scale = 1.0 + Z * Z / count
    return (middle - spread) / scale, (middle + spread) / scale


def read(path):
    with open(path, encoding="utf-8") as lines:
        for line in lines:
            if line.strip():
                yield json.loads(line)


def learn(receipts, amendments, target):
    later = {amendment["receipt_id"]: amendment for amendment in amendments}
    seen, tools, weighted = set(), {}, []
    for receipt in receipts:
        if receipt["receipt_id"] in seen:
            continue
        seen.add(receipt["receipt_id"])
        amendment = later.get(receipt["receipt_id"], {})
        success = amendment.get("success", receipt["status"] == "ok")
        reward = float(amendment.get("reward", receipt["reward"])["scalar"])
        known = tools.setdefault(receipt["tool_id"], [0, 0, 0.0])
        known[0] += 1
        known[1] += 1 if success else 0
        known[2] += reward
        propensity = (receipt.get("choice") or {}).get("propensity")
        if target and propensity is not None:
            weighted.append(target.get(receipt["tool_id"], 0.0) / propensity * reward)
    return tools, weighted


def told(tools, weighted):
    for tool in sorted(tools):
        count, successes, reward = tools[tool]
        low, high = wilson(float(successes), float(count))
        yield (f"{tool} n={count} successes={successes} prior={successes / count:.6f} "
               f"low={low:.6f} high={high:.6f} reward={reward / count:.6f}")
    if weighted:
        count = float(len(weighted))
        mean = sum(weighted) / count
        spread = 0.0
        for value in weighted:
            spread += (value - mean) * (value - mean)
        error = Z * math.sqrt(spread / (count - 1.0) / count) if count > 1.0 else math.inf
        yield f"off_policy n={len(weighted)} estimate={mean:.6f} low={mean - error:.6f} high={mean + error:.6f}"


def main():
    parser = argparse.ArgumentParser(description="Success priors per tool, and an off-policy estimate.")
    parser.add_argument("receipts", help="JSON lines of `effectd receipts export`")
    parser.add_argument("--amendments", help="amendments.jsonl of a dataset")
    parser.add_argument("--target", action="append", default=[], metavar="TOOL=PROBABILITY",
                        help="how likely another planner is to choose a tool")
    arguments = parser.parse_args()
    target = {}
    for pair in arguments.target:
        tool, _, probability = pair.rpartition("=")
        target[tool] = float(probability)
    amendments = read(arguments.amendments) if arguments.amendments else []
    for line in told(*learn(read(arguments.receipts), amendments, target)):
        print(line)


if __name__ == "__main__":
    main()
