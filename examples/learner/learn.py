#!/usr/bin/env python3
"""Lets a planner decide by habit, learns from its receipts which tool to choose, estimates what that would earn, and then tries it.

    effectd serve --state .effectd --set reward.weight_cost=0 --set reward.weight_latency=0
    python examples/learner/learn.py --folder workspace --plot learner.svg
"""

import argparse
import time
from dataclasses import dataclass
from pathlib import Path

import world
from bandit import Decision, EpsilonGreedy, Estimate, Model, estimates, mean
from effectd import Effectd


@dataclass(frozen=True)
class Outcome:
    """What was found, and the truth about it: the estimate and the true value, by name."""

    rows: dict[str, tuple[Estimate, float]]
    habit: list[Decision]
    learned: list[Decision]
    policy: EpsilonGreedy


def read(effectd: Effectd, run: str) -> list[Decision]:
    """The decisions of a run, from its receipts alone, in the order in which they were made."""
    receipts = sorted(effectd.receipts(f"action:{run}-*"), key=lambda receipt: receipt.action_id)
    return [
        Decision(receipt.choice["context"], receipt.choice["chosen"], receipt.choice["propensity"], receipt.current_reward.scalar)
        for receipt in receipts
        if receipt.choice
    ]


def run(effectd: Effectd, name: str, seed: int, count: int = 1600, tries: int = 400) -> Outcome:
    world.live(effectd, world.habit, f"{name}-habit", count, seed)
    habit = read(effectd, f"{name}-habit")
    # The half that the policy learns from cannot judge it.
    to_learn, to_judge = habit[: count // 2], habit[count // 2 :]
    model = Model(to_learn, list(world.TOOLS))
    policy = EpsilonGreedy(model)
    truth = world.value(policy)
    rows = {"habit": (mean(habit), world.value(world.habit))}
    rows |= {f"learned, by {how}": (estimate, truth) for how, estimate in estimates(to_judge, policy, model).items()}
    world.live(effectd, policy, f"{name}-learned", tries, seed + 1)
    learned = read(effectd, f"{name}-learned")
    rows["learned, tried"] = (mean(learned), truth)
    return Outcome(rows, habit, learned, policy)


def table(outcome: Outcome) -> str:
    rows = [f"{name:20} {found.value:8.3f} {found.low:7.3f} {found.high:7.3f} {truth:7.3f}" for name, (found, truth) in outcome.rows.items()]
    return "\n".join([f"{'':20} estimate     low    high   truth", *rows])


def plot(outcome: Outcome, file: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
    import numpy as np

    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4), constrained_layout=True)
    for place, (name, (estimate, truth)) in enumerate(outcome.rows.items()):
        left.errorbar(place, estimate.value, [[estimate.value - estimate.low], [estimate.high - estimate.value]], fmt="o", color="C0", capsize=4)
        left.hlines(truth, place - 0.3, place + 0.3, color="C1", label=None if place else "truth")
    left.set_xticks(range(len(outcome.rows)), [name.replace(", ", ",\n") for name in outcome.rows])
    left.set(ylabel="reward of a decision", title="Estimates, with intervals of 95 %")
    left.legend()
    rewards = np.array([decision.reward for decision in outcome.habit + outcome.learned])
    window = 100
    right.plot(np.arange(window, len(rewards) + 1), np.convolve(rewards, np.ones(window) / window, "valid"), color="C0")
    right.axvline(len(outcome.habit), color="0.6", linestyle="--")
    begun = 0
    for decisions, name in ((outcome.habit, "habit"), (outcome.learned, "learned, tried")):
        right.hlines(outcome.rows[name][1], begun, begun + len(decisions), color="C1")
        begun += len(decisions)
    right.set(xlabel="decision", title=f"Mean reward of the last {window} decisions")
    figure.savefig(file)


def main() -> None:
    parser = argparse.ArgumentParser(description="A bandit that learns from receipts which tool to choose.")
    parser.add_argument("--folder", type=Path, default=Path("workspace"), help="the folder of the space shared:household")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--plot", type=Path, help="draw the figures into this file (.svg, .png); needs matplotlib")
    arguments = parser.parse_args()
    world.furnish(arguments.folder)
    with Effectd() as effectd:
        # A decision is made once: a second run needs a name of its own.
        outcome = run(effectd, f"learner-{time.time_ns()}", arguments.seed)
    print(table(outcome))
    if arguments.plot:
        plot(outcome, arguments.plot)


if __name__ == "__main__":
    main()
