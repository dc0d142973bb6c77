"""Learning curves of the exact problem: by expected updates and by sampled groups.

Every update moves the logits by the same length, so that curves compare directions and not the
sizes that reductions and divisors give them. R runs, each with its own start, go side by side.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from turnwise_jax.study.exact_estimators import Weights, advantages
from turnwise_jax.study.exact_policy import Tables, expected_reward, true_gradient
from turnwise_jax.study.exact_problem import Trajectories

Direction = Callable[[np.ndarray], np.ndarray]  # f64[R, S] logits of R runs -> f64[R, S] updates


class Behaviour(NamedTuple):
    """What a policy does on average.

    Attributes:
      reward: expected reward of eq. 1.
      repetitive: expected repetitive replies over expected replies, 0 without any.
      replies: expected share of decisions with a reply.
    """

    reward: float
    repetitive: float
    replies: float

    @classmethod
    def of(cls, tables: Tables, logits_S: np.ndarray) -> Behaviour:
        data = tables.trajectories
        prob_N = tables.probabilities(logits_S)
        replied = prob_N @ (data.reply_NK > 0).mean(axis=1)
        repeated = prob_N @ data.repetitive_NK.mean(axis=1)
        return cls(
            expected_reward(tables, logits_S), repeated / replied if replied else 0.0, replied
        )


def climb(
    tables: Tables, logits_RS: np.ndarray, direction: Direction, *, updates: int, length: float
) -> tuple[np.ndarray, np.ndarray]:
    """Follow ``direction`` with steps of ``length``; a direction of 0 stays where it is.

    Returns:
      (f64[R, U+1] expected rewards before and after each update, f64[R, S] last logits).
    """
    rewards = [_rewards(tables, logits_RS)]
    for _ in range(updates):
        step_RS = direction(logits_RS)
        size_R1 = np.linalg.norm(step_RS, axis=1, keepdims=True)
        logits_RS = logits_RS + length * step_RS / np.where(size_R1 > 0, size_R1, 1.0)
        rewards.append(_rewards(tables, logits_RS))
    return np.array(rewards).T, logits_RS


def along_truth(tables: Tables) -> Direction:
    """The true gradient of the expected reward."""
    return lambda logits_RS: np.array([true_gradient(tables, logits_S) for logits_S in logits_RS])


def along_pairs(tables: Tables, pairs_NNK: np.ndarray, weights: Weights) -> Direction:
    """The expected update of groups of two, over all pairs (``exact_estimators.all_pairs``)."""
    data = tables.trajectories
    num_trajectories, num_turns = data.reply_NK.shape
    count_NN = weights.count_N[:, None] + weights.count_N[None, :]
    credit_NNK = 2.0 * pairs_NNK / count_NN[:, :, None]  # either of a pair adds as much
    by_partner = np.ascontiguousarray(credit_NNK.swapaxes(0, 1)).reshape(num_trajectories, -1)

    def direction(logits_RS: np.ndarray) -> np.ndarray:
        prob_RN = np.array([tables.probabilities(logits_S) for logits_S in logits_RS])
        expected_RNK = (prob_RN @ by_partner).reshape(len(prob_RN), -1, num_turns)
        return _updates(tables, logits_RS, prob_RN[:, :, None] * expected_RNK, weights)

    return direction


def along_large_groups(tables: Tables, alpha: float, weights: Weights) -> Direction:
    """The update of an endless group: credit against exact means, divided by one number for all."""
    data = tables.trajectories
    accrued_NK = data.score_NK1[:, :-1] - data.score_NK1[:, :1]

    def credit(logits_S: np.ndarray) -> np.ndarray:
        prob_N = tables.probabilities(logits_S)
        reward_N1 = data.reward_N[:, None]
        credit_NK = (reward_N1 - prob_N @ reward_N1) - alpha * (accrued_NK - prob_N @ accrued_NK)
        return credit_NK * prob_N[:, None] / (prob_N @ weights.count_N)

    return lambda logits_RS: _updates(
        tables, logits_RS, [credit(logits_S) for logits_S in logits_RS], weights
    )


def along_samples(
    tables: Tables,
    alpha: float,
    weights: Weights,
    *,
    groups: int,
    group_size: int,
    seeds: Sequence[int],
) -> Direction:
    """Normalised credit of ``groups`` groups sampled anew for each update, a seed for each run."""
    data = tables.trajectories
    rngs = [np.random.default_rng(seed) for seed in seeds]

    def direction(logits_RS: np.ndarray) -> np.ndarray:
        index_RBG = np.array(
            [
                draw(tables.probabilities(logits_S), (groups, group_size), rng)
                for logits_S, rng in zip(logits_RS, rngs, strict=True)
            ]
        )
        score = data.score_NK1[index_RBG.reshape(-1, group_size)]
        credit = advantages(score, alpha, normalised=True)
        credit_RBK = credit.reshape(len(rngs), groups * group_size, -1)
        credit_RNK = np.zeros((len(rngs), *data.reply_NK.shape))
        for run, index_B in enumerate(index_RBG.reshape(len(rngs), -1)):
            np.add.at(credit_RNK[run], index_B, credit_RBK[run])
            credit_RNK[run] /= weights.count_N[index_B].sum()
        return _updates(tables, logits_RS, credit_RNK, weights)

    return direction


def draw(prob_N: np.ndarray, shape: tuple[int, ...], rng: np.random.Generator) -> np.ndarray:
    """i64[shape]: trajectories by their probability."""
    bounds = np.cumsum(prob_N)
    found = np.searchsorted(bounds, rng.random(shape) * bounds[-1], side="right")
    return np.minimum(found, len(prob_N) - 1)


def _rewards(tables: Tables, logits_RS: np.ndarray) -> list[float]:
    return [expected_reward(tables, logits_S) for logits_S in logits_RS]


def _updates(
    tables: Tables, logits_RS: np.ndarray, credit_RNK: Sequence[np.ndarray], weights: Weights
) -> np.ndarray:
    """f64[R, S]: the directions that these credits give, each summed over all trajectories."""
    data = tables.trajectories
    return np.array(
        [
            tables.gradient(_by_token(data, credit_NK, weights), logits_S)
            for logits_S, credit_NK in zip(logits_RS, credit_RNK, strict=True)
        ]
    )


def _by_token(data: Trajectories, credit_NK: np.ndarray, weights: Weights) -> np.ndarray:
    """f64[N, A]: each token's weight times its decision's credit."""
    return weights.token_NA * np.take_along_axis(credit_NK, data.turn_NA, axis=1)


class Learner(NamedTuple):
    """What updates follow: ``alpha`` None is the true gradient, whatever the reduction."""

    alpha: float | None
    reduction: str


def summary(reward_RU1: np.ndarray, best: float) -> dict[str, float]:
    """Mean over runs and its standard error: reward over the updates and at the end, speed.

    Args:
      reward_RU1: f64[R, U+1] curves of at least two runs.
      best: the highest reward of any trajectory.

    Returns:
      ``mean``, ``updates`` until 90 % of the way to the best is made (U for a run that does not get
      so far), ``final``, and each with ``_error``.
    """
    start = reward_RU1[:, :1]
    reached = reward_RU1 >= start + 0.9 * (best - start)
    last = reward_RU1.shape[1] - 1
    updates_R = np.where(reached.any(axis=1), reached.argmax(axis=1), last)
    found = {"mean": reward_RU1.mean(axis=1), "updates": updates_R, "final": reward_RU1[:, -1]}
    numbers = {}
    for name, value in found.items():
        numbers[name] = float(np.mean(value))
        numbers[f"{name}_error"] = float(np.std(value, ddof=1) / np.sqrt(len(value)))
    return numbers
