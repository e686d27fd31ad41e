"""The learner against the truth of its world: its mathematics in many worlds, and its receipts by the real daemon."""

import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import world
from bandit import Context, Decision, EpsilonGreedy, Model, estimates
from conftest import Daemon
from effectd import Effectd
from learn import Outcome, plot, run, table

SETTINGS = world.SETTINGS
SEED, COUNT, TRIES = 1, 1600, 400
# By how much the learned policy is truly better than habit, at least. The best policy is better by 0.207.
MARGIN = 0.12


def simulated(policy, count: int, seed: int) -> list[Decision]:
    """What the receipts of these decisions would say."""
    return [
        Decision(context, tool, chances[tool], world.CLUMSY if is_clumsy else world.GOOD if finds else world.WRONG)
        for context, chances, tool, finds, is_clumsy in world.draws(policy, count, seed)
    ]


def shuffled(decisions: list[Decision], seed: int) -> list[Decision]:
    propensities = [decision.propensity for decision in decisions]
    random.Random(seed).shuffle(propensities)
    return [replace(decision, propensity=propensity) for decision, propensity in zip(decisions, propensities, strict=True)]


class Ignorant:
    """A model that expects the same of every tool, and is wrong."""

    def __init__(self, tools: list[str]) -> None:
        self.tools = tools

    def rewards(self, contexts: list[Context]) -> np.ndarray:
        return np.full((len(contexts), len(self.tools)), 0.5)


def test_the_intervals_cover_the_truth_as_often_as_they_say() -> None:
    worlds = 100
    covered, off, robust = (dict.fromkeys(("IPS", "SNIPS", "DR"), 0) for _ in range(3))
    for seed in range(worlds):
        decisions = simulated(world.habit, COUNT, seed)
        to_learn, to_judge = decisions[: COUNT // 2], decisions[COUNT // 2 :]
        model = Model(to_learn, list(world.TOOLS))
        policy = EpsilonGreedy(model)
        truth = world.value(policy)
        assert truth > world.value(world.habit) + MARGIN / 2
        wrong, ignorant = shuffled(to_judge, seed), Ignorant(model.tools)
        for counts, found in (
            (covered, estimates(to_judge, policy, model)),
            (off, estimates(wrong, policy, ignorant)),
            (robust, {"DR": estimates(to_judge, policy, ignorant)["DR"], "IPS": estimates(wrong, policy, model)["DR"]}),
        ):
            for how, estimate in found.items():
                counts[how] += estimate.covers(truth)
    # An interval of 95 % that covers 88 times of 100 or less has a chance of 1 in 200.
    assert all(count > 88 for count in covered.values()), covered
    # With the propensities of other decisions, all three are off.
    assert off["IPS"] < 10 and off["SNIPS"] < 40 and off["DR"] < 30, off
    # DR needs only one of the two: a wrong model with the right propensities, or (counted as IPS) the other way round.
    assert robust["DR"] > 88 and robust["IPS"] > 75, robust


@pytest.fixture(scope="module")
def outcome(daemon: Daemon) -> Outcome:
    world.furnish(daemon.workspace)
    with Effectd(state=daemon.state) as effectd:
        return run(effectd, "test", SEED, COUNT, TRIES)


def test_the_receipts_say_what_the_world_decided(outcome: Outcome) -> None:
    for found, policy, count, seed in ((outcome.habit, world.habit, COUNT, SEED), (outcome.learned, outcome.policy, TRIES, SEED + 1)):
        expected = simulated(policy, count, seed)
        assert [replace(decision, reward=0.0) for decision in found] == [replace(decision, reward=0.0) for decision in expected]
        assert [decision.reward for decision in found] == pytest.approx([decision.reward for decision in expected])


def test_every_estimate_from_receipts_covers_the_truth(outcome: Outcome) -> None:
    assert list(outcome.rows) == ["habit", "learned, by IPS", "learned, by SNIPS", "learned, by DR", "learned, tried"]
    for name, (estimate, truth) in outcome.rows.items():
        assert estimate.covers(truth), (name, estimate, truth)
        assert estimate.high - estimate.low < 0.25, (name, estimate)


def test_the_learned_policy_is_truly_better_than_habit(outcome: Outcome) -> None:
    learned, habit = world.value(outcome.policy), world.value(world.habit)
    best = world.value(lambda context: {max(world.TOOLS, key=lambda tool: world.mean_reward(context, tool)): 1.0})
    assert habit + MARGIN < learned < best
    # The person would see it, too: the intervals of what both really earned do not meet.
    assert outcome.rows["learned, tried"][0].low > outcome.rows["habit"][0].high


def test_shuffled_propensities_give_a_wrong_estimate(outcome: Outcome) -> None:
    to_judge, truth = outcome.habit[COUNT // 2 :], world.value(outcome.policy)
    found = estimates(shuffled(to_judge, SEED), outcome.policy, outcome.policy.model)
    assert not found["IPS"].covers(truth) and not found["SNIPS"].covers(truth), found


def test_the_page_shows_these_figures(outcome: Outcome) -> None:
    assert table(outcome) in (Path(__file__).parent / "README.md").read_text()


def test_the_plot_is_drawn(outcome: Outcome, tmp_path: Path) -> None:
    plot(outcome, tmp_path / "learner.svg")
    drawn = (tmp_path / "learner.svg").read_text()
    assert "<svg" in drawn and len(drawn) < 200_000
