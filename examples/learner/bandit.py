"""A contextual bandit that learns from receipts alone: which tool to choose in which context, and what that choice would earn.

The policy is epsilon-greedy over one ridge regression a tool. LinUCB would explore more cleverly, but it chooses without chance: its own
receipts would have the propensity 1, and nobody could estimate another policy from them. Here every tool keeps a known probability of at
least epsilon / tools, in every context, so the receipts of each round can judge the next one.
"""

from dataclasses import dataclass
from typing import Protocol

import numpy as np

Z = 1.959963984540054  # 95 of 100

Context = dict[str, float | str]


@dataclass(frozen=True)
class Decision:
    """What one receipt says about a choice. The reward is the one in force, with all amendments."""

    context: Context
    chosen: str
    propensity: float
    reward: float


def single_features(context: Context) -> dict[str, float]:
    """Numbers as they are, words one by one."""
    return {f"{name}={value}" if isinstance(value, str) else name: 1.0 if isinstance(value, str) else value for name, value in context.items()}


class Model:
    """The expected reward of each tool in a context: ridge regression on the features and the products of every two of them."""

    def __init__(self, decisions: list[Decision], tools: list[str], ridge: float = 1.0) -> None:
        self.tools = tools
        self.names = sorted({name for decision in decisions for name in single_features(decision.context)})
        rows = self.rows([decision.context for decision in decisions])
        weights = []
        for tool in tools:
            taken = np.array([decision.chosen == tool for decision in decisions])
            if not taken.any():
                raise ValueError(f"no receipt has chosen {tool}, so its reward cannot be learned")
            rewards = np.array([decision.reward for decision in decisions])[taken]
            weights.append(np.linalg.solve(rows[taken].T @ rows[taken] + ridge * np.eye(rows.shape[1]), rows[taken].T @ rewards))
        self.weights = np.array(weights).T

    def rows(self, contexts: list[Context]) -> np.ndarray:
        features = [single_features(context) for context in contexts]
        single = np.array([[feature.get(name, 0.0) for name in self.names] for feature in features])
        first, second = np.triu_indices(len(self.names), 1)
        return np.hstack([np.ones((len(contexts), 1)), single, single[:, first] * single[:, second]])

    def rewards(self, contexts: list[Context]) -> np.ndarray:
        """A row for each context, a column for each tool."""
        return self.rows(contexts) @ self.weights


class Policy(Protocol):
    def chances(self, contexts: list[Context]) -> np.ndarray: ...


class EpsilonGreedy:
    """Takes the tool that the model prefers, and with probability epsilon any tool."""

    def __init__(self, model: Model, epsilon: float = 0.1) -> None:
        self.model, self.epsilon = model, epsilon

    def chances(self, contexts: list[Context]) -> np.ndarray:
        rewards = self.model.rewards(contexts)
        best = np.eye(rewards.shape[1])[rewards.argmax(axis=1)]
        return self.epsilon / rewards.shape[1] + (1.0 - self.epsilon) * best

    def __call__(self, context: Context) -> dict[str, float]:
        return dict(zip(self.model.tools, self.chances([context])[0].tolist(), strict=True))


@dataclass(frozen=True)
class Estimate:
    value: float
    low: float
    high: float

    def covers(self, truth: float) -> bool:
        return self.low <= truth <= self.high


def around(middle: float, deviations: np.ndarray) -> Estimate:
    """The interval of a mean, by the deviations of its terms."""
    error = Z * float(deviations.std(ddof=1)) / len(deviations) ** 0.5
    return Estimate(middle, middle - error, middle + error)


def mean(decisions: list[Decision]) -> Estimate:
    """What the planner earned that made these decisions."""
    rewards = np.array([decision.reward for decision in decisions])
    return around(float(rewards.mean()), rewards)


def estimates(decisions: list[Decision], policy: Policy, model: Model) -> dict[str, Estimate]:
    """What a policy would earn, by the decisions of another one. Neither policy nor model may have learned from these decisions.

    IPS weighs each reward by how much likelier the policy makes the choice; SNIPS divides by the sum of these weights; DR (doubly robust)
    takes the model's rewards and corrects them by what the receipts say beyond it: it is right if the model or the propensities are.
    """
    contexts, every = [decision.context for decision in decisions], np.arange(len(decisions))
    chosen = np.array([model.tools.index(decision.chosen) for decision in decisions])
    rewards = np.array([decision.reward for decision in decisions])
    chances, guesses = policy.chances(contexts), model.rewards(contexts)
    weights = chances[every, chosen] / np.array([decision.propensity for decision in decisions])
    robust = (chances * guesses).sum(axis=1) + weights * (rewards - guesses[every, chosen])
    normalised = float((weights * rewards).sum() / weights.sum())
    return {
        "IPS": around(float((weights * rewards).mean()), weights * rewards),
        "SNIPS": around(normalised, weights * (rewards - normalised) / weights.mean()),
        "DR": around(float(robust.mean()), robust),
    }
