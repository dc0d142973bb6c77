"""Learning curves of the exact problem: by expected updates and by sampled groups.

Every update moves the logits by the same length, so that curves compare directions and not the
sizes that reductions and divisors give them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from turnwise_jax.study.exact_estimators import Weights, advantages
from turnwise_jax.study.exact_policy import Tables, expected_reward, true_gradient
from turnwise_jax.study.exact_problem import Trajectories

Direction = Callable[[np.ndarray], np.ndarray]  # f64[S] logits -> f64[S] update


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


class Curve(NamedTuple):
    """f64[U+1] expected reward before and after each of U updates, and the last logits, f64[S]."""

    reward_U1: np.ndarray
    logits_S: np.ndarray


def climb(
    tables: Tables, logits_S: np.ndarray, direction: Direction, *, updates: int, length: float
) -> Curve:
    """Follow ``direction`` with steps of ``length``; a direction of 0 stays where it is."""
    rewards = [expected_reward(tables, logits_S)]
    for _ in range(updates):
        step_S = direction(logits_S)
        size = np.linalg.norm(step_S)
        if size > 0:
            logits_S = logits_S + length / size * step_S
        rewards.append(expected_reward(tables, logits_S))
    return Curve(np.array(rewards), logits_S)


def along_truth(tables: Tables) -> Direction:
    """The true gradient of the expected reward."""
    return lambda logits_S: true_gradient(tables, logits_S)


def along_pairs(tables: Tables, pairs_NNK: np.ndarray, weights: Weights) -> Direction:
    """The expected update of groups of two, over all pairs (``exact_estimators.all_pairs``)."""
    data = tables.trajectories
    count_NN = weights.count_N[:, None] + weights.count_N[None, :]
    credit_NNK = 2.0 * pairs_NNK / count_NN[:, :, None]  # either of a pair adds as much

    def direction(logits_S: np.ndarray) -> np.ndarray:
        prob_N = tables.probabilities(logits_S)
        expected_NK = np.tensordot(prob_N, credit_NNK, axes=(0, 1))
        return tables.gradient(_by_token(data, prob_N[:, None] * expected_NK, weights), logits_S)

    return direction


def along_large_groups(tables: Tables, alpha: float, weights: Weights) -> Direction:
    """The update of an endless group: credit against exact means, divided by one number for all."""
    data = tables.trajectories

    def direction(logits_S: np.ndarray) -> np.ndarray:
        prob_N = tables.probabilities(logits_S)
        reward_N1 = data.reward_N[:, None]
        accrued_NK = data.score_NK1[:, :-1] - data.score_NK1[:, :1]
        credit_NK = (reward_N1 - prob_N @ reward_N1) - alpha * (accrued_NK - prob_N @ accrued_NK)
        credit_NK *= prob_N[:, None] / (prob_N @ weights.count_N)
        return tables.gradient(_by_token(data, credit_NK, weights), logits_S)

    return direction


def sampled_rewards(
    tables: Tables,
    logits_S: np.ndarray,
    alpha: float,
    weights: Weights,
    *,
    updates: int,
    length: float,
    groups: int,
    group_size: int,
    seeds: Sequence[int],
    normalised: bool = True,
) -> np.ndarray:
    """f64[R, U+1]: runs that sample ``groups`` groups an update, one for each seed."""
    data = tables.trajectories
    rngs = [np.random.default_rng(seed) for seed in seeds]
    theta_RS = np.repeat(logits_S[None], len(seeds), axis=0)
    rewards = [[expected_reward(tables, theta_S) for theta_S in theta_RS]]
    for _ in range(updates):
        index_RBG = np.array(
            [
                draw(tables.probabilities(theta_S), (groups, group_size), rng)
                for theta_S, rng in zip(theta_RS, rngs, strict=True)
            ]
        )
        score = data.score_NK1[index_RBG.reshape(-1, group_size)]
        credit = advantages(score, alpha, normalised=normalised).reshape(*index_RBG.shape, -1)
        for run, theta_S in enumerate(theta_RS):
            step_S = _batch_update(tables, theta_S, index_RBG[run], credit[run], weights)
            size = np.linalg.norm(step_S)
            theta_RS[run] += length / size * step_S if size > 0 else 0.0
        rewards.append([expected_reward(tables, theta_S) for theta_S in theta_RS])
    return np.array(rewards).T


def draw(prob_N: np.ndarray, shape: tuple[int, ...], rng: np.random.Generator) -> np.ndarray:
    """i64[shape]: trajectories by their probability."""
    bounds = np.cumsum(prob_N)
    found = np.searchsorted(bounds, rng.random(shape) * bounds[-1], side="right")
    return np.minimum(found, len(prob_N) - 1)


def _batch_update(
    tables: Tables,
    logits_S: np.ndarray,
    index_BG: np.ndarray,
    credit_BGK: np.ndarray,
    weights: Weights,
) -> np.ndarray:
    """One batch's update: numerators over denominators, divided once."""
    data = tables.trajectories
    credit_NK = np.zeros(data.reply_NK.shape)
    np.add.at(credit_NK, index_BG.ravel(), credit_BGK.reshape(-1, credit_NK.shape[1]))
    credit_NK /= weights.count_N[index_BG].sum()
    return tables.gradient(_by_token(data, credit_NK, weights), logits_S)


def _by_token(data: Trajectories, credit_NK: np.ndarray, weights: Weights) -> np.ndarray:
    """f64[N, A]: each token's weight times its decision's credit."""
    return weights.token_NA * np.take_along_axis(credit_NK, data.turn_NA, axis=1)


class Learner(NamedTuple):
    """What updates follow: ``alpha`` None is the true gradient, whatever the reduction."""

    alpha: float | None
    reduction: str


def summary(reward_RU1: np.ndarray, best: float) -> dict[str, float]:
    """Mean reward over the updates, and updates until 90 % of the way to the best is made.

    Args:
      reward_RU1: f64[R, U+1] curves; with several also their standard errors.
      best: the highest reward of any trajectory. A curve that does not get so far counts as U.
    """
    start = reward_RU1[:, :1]
    reached = reward_RU1 >= start + 0.9 * (best - start)
    last = reward_RU1.shape[1] - 1
    updates_R = np.where(reached.any(axis=1), reached.argmax(axis=1), last)
    found = {"mean": reward_RU1.mean(axis=1), "updates": updates_R, "final": reward_RU1[:, -1]}
    numbers = {name: float(np.mean(value)) for name, value in found.items()}
    if len(reward_RU1) > 1:
        for name, value in found.items():
            numbers[f"{name}_error"] = float(np.std(value, ddof=1) / np.sqrt(len(value)))
    return numbers
