#!/usr/bin/env python3
"""A learner that needs nothing but Python: how often each tool succeeds, and what another planner would have earned.

    effectd receipts export --dataset data
    python3 examples/learner.py data/receipts.jsonl --amendments data/amendments.jsonl --target files.write_text=1

Every receipt counts once, however often it is replayed, so the same receipts always give the same figures. The estimate of
another planner's reward uses the receipts whose planner said how likely its choice was. It weighs each by its candidate
(`choice.chosen`, or the tool if the planner named none) and normalises by the sum of the weights (SNIPS). `effective_n` is the
number of receipts that would say as much without weights.
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
    later = {}
    for amendment in amendments:  # of each field, the last word counts
        later.setdefault(amendment["receipt_id"], {}).update(amendment)
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
        choice = receipt.get("choice") or {}
        propensity = choice.get("propensity")
        if target and propensity is not None:
            candidate = choice.get("chosen", receipt["tool_id"])
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
    parser.add_argument("receipts", help="JSON lines of `effectd receipts export`")
    parser.add_argument("--amendments", help="amendments.jsonl of a dataset")
    parser.add_argument("--target", action="append", default=[], metavar="CANDIDATE=PROBABILITY",
                        help="how likely another planner is to choose a candidate (or tool)")
    arguments = parser.parse_args()
    target = {}
    for pair in arguments.target:
        candidate, _, probability = pair.rpartition("=")
        target[candidate] = float(probability)
    amendments = read(arguments.amendments) if arguments.amendments else []
    for line in told(*learn(read(arguments.receipts), amendments, target)):
        print(line)


if __name__ == "__main__":
    main()
