"""From judged trajectories to advantages: the kernels over a batch of groups, compiled once."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import ModuleType
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from turnwise_jax import kernels
from turnwise_jax.kernels import RewardWeights, ScoredTurns, ScoreTerms, Windows
from turnwise_jax.rewards.judges import JudgeStats
from turnwise_jax.rewards.trajectory import Scores


class Credit(NamedTuple):
    """Scores and advantages of B groups of G rollouts, as NumPy arrays.

    ``terms``: a NamedTuple of ``[B, G]``, ``reward`` first. ``prefix_scores``: U, ``[B, G, K+1]``,
    None of a reward without. ``advantages``: ``[B, G, K]``, what the loss uses. ``shared``:
    ``[B, G]``, GRPO's advantage of the same group, for comparison in logs. Rollouts whose reward is
    not finite have advantage 0. ``schedule``: the method's settings at this step, for the logs.
    """

    terms: Any
    prefix_scores: np.ndarray | None
    advantages: np.ndarray
    shared: np.ndarray
    schedule: dict[str, np.ndarray]


def empty_scores(count: int, turns: int, windows: int) -> tuple[ScoredTurns, Windows]:
    """N trajectories without a turn: arguments of :func:`assign_credit` of that shape."""
    shape = (count, turns)
    return ScoredTurns(
        time=np.zeros(shape, np.float32),
        replied=np.zeros(shape, bool),
        quality=np.zeros((*shape, windows), np.float32),
        repetitive=np.zeros(shape, np.float32),
        shares_prefix=np.zeros(shape, bool),
        mask=np.zeros(shape, bool),
    ), Windows(
        start=np.zeros((count, windows), np.float32),
        end=np.zeros((count, windows), np.float32),
        mask=np.zeros((count, windows), bool),
    )


def empty(kind: ModuleType, count: int, turns: int, windows: int) -> Scores:
    """What a kind of reward gives for N trajectories without a turn, in shape."""
    blank, none = empty_scores(count, turns, windows)
    terms = None
    if not kind.PREFIX_SCORES:
        terms = kind.Terms(*(np.zeros(count, np.float32) for _ in kind.Terms._fields))
    return Scores(blank, none, terms, JudgeStats())


def credit_rule(kind: ModuleType, reward: Any, **fixed: Any) -> Callable[..., Credit]:
    """``(scores, step=) -> Credit`` of a run.

    Args:
      kind, reward: of ``STREAMING_REWARDS``, and its settings.
      fixed: the other arguments of :func:`assign_credit` and :func:`share_credit`.
    """
    if not kind.PREFIX_SCORES:
        return partial(share_credit, **fixed)

    def from_prefixes(scores: Scores, *, step: int) -> Credit:
        return assign_credit(
            scores.turns,
            scores.windows,
            scores.known,
            weights=reward.weights,
            omega=reward.omega,
            step=step,
            **fixed,
        )

    return from_prefixes


def assign_credit(
    turns: ScoredTurns,
    windows: Windows,
    known_N: np.ndarray | None = None,
    *,
    group_size: int,
    algorithm: ModuleType,
    settings: Any,
    weights: RewardWeights,
    omega: float,
    step: int,
    total_steps: int,
) -> Credit:
    """Score N = B x G trajectories, ``(b, g)`` order, and give each turn its advantage.

    Args:
      turns, windows: stacked over N, as ``rewards.score_trajectories`` returns them.
      known_N: bool, trajectories whose reward may be made of them, all by default; the quality,
        reward and prefix scores of the others are NaN.
      algorithm, settings: a method of ``ALGORITHMS`` and its checked settings.
      weights, omega: of eq. 1 and PAUC.
      step, total_steps: completed and scheduled optimizer updates, for alpha's warm-up; an update
        that was refused is not completed.
    """
    credit = _assign(
        turns,
        windows,
        np.ones(len(turns.mask), bool) if known_N is None else known_N,
        np.int32(step),
        group_size=group_size,
        algorithm=algorithm,
        settings=settings,
        weights=weights,
        omega=omega,
        total_steps=total_steps,
    )
    return jax.tree.map(np.asarray, credit)


@partial(
    jax.jit,
    static_argnames=(
        "group_size",
        "algorithm",
        "settings",
        "weights",
        "omega",
        "total_steps",
    ),
)
def _assign(
    turns: ScoredTurns,
    windows: Windows,
    known_N: Array,
    step: Array,
    *,
    group_size: int,
    algorithm: ModuleType,
    settings: Any,
    weights: RewardWeights,
    omega: float,
    total_steps: int,
) -> Credit:
    def grouped(x: Array) -> Array:
        return x.reshape(-1, group_size, *x.shape[1:])

    def score(turns: ScoredTurns, windows: Windows, known: Array) -> tuple[ScoreTerms, Array]:
        terms = kernels.score_trajectory(turns, windows, weights, omega=omega)
        prefix_K1 = kernels.prefix_scores(turns, windows, weights, omega=omega)
        reward, quality = (jnp.where(known, x, jnp.nan) for x in (terms.reward, terms.quality))
        terms = terms._replace(reward=reward, quality=quality)
        return terms, jnp.where(known, prefix_K1, jnp.nan)

    terms, prefix_NK1 = jax.vmap(score)(turns, windows, known_N)
    terms, prefix_BGK1, mask_BGK = jax.tree.map(grouped, (terms, prefix_NK1, turns.mask))
    valid_BG = jnp.isfinite(terms.reward)
    advantages = partial(
        algorithm.advantages, step=step, total_steps=total_steps, settings=settings
    )
    return Credit(
        terms,
        prefix_BGK1,
        jax.vmap(advantages)(prefix_BGK1, mask_BGK, valid_BG),
        jax.vmap(lambda r, m: kernels.group_advantages(r, mask=m))(terms.reward, valid_BG),
        algorithm.schedule(settings, step, total_steps),
    )


def share_credit(
    scores: Scores,
    *,
    group_size: int,
    algorithm: ModuleType,
    settings: Any,
    step: int,
    total_steps: int,
) -> Credit:
    """One advantage for each of N = B x G trajectories, of a reward without prefix scores.

    Args: as :func:`assign_credit`; ``scores`` hold the terms.
    """
    credit = _share(
        scores.terms,
        scores.turns.mask,
        np.int32(step),
        group_size=group_size,
        algorithm=algorithm,
        settings=settings,
        total_steps=total_steps,
    )
    return jax.tree.map(np.asarray, credit)


@partial(jax.jit, static_argnames=("group_size", "algorithm", "settings", "total_steps"))
def _share(
    terms: Any,
    mask_NK: Array,
    step: Array,
    *,
    group_size: int,
    algorithm: ModuleType,
    settings: Any,
    total_steps: int,
) -> Credit:
    def grouped(x: Array) -> Array:
        return x.reshape(-1, group_size, *x.shape[1:])

    terms, mask_BGK = jax.tree.map(grouped, (terms, mask_NK))
    valid_BG = jnp.isfinite(terms.reward)
    # A method that shares one advantage reads the last score alone, which is the reward.
    score_BGK1 = jnp.broadcast_to(
        terms.reward[..., None], (*terms.reward.shape, mask_BGK.shape[-1] + 1)
    )
    advantages = partial(
        algorithm.advantages, step=step, total_steps=total_steps, settings=settings
    )
    return Credit(
        terms,
        None,
        jax.vmap(advantages)(score_BGK1, mask_BGK, valid_BG),
        jax.vmap(lambda r, m: kernels.group_advantages(r, mask=m))(terms.reward, valid_BG),
        algorithm.schedule(settings, step, total_steps),
    )
