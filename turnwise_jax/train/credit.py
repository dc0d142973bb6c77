"""From judged trajectories to advantages: the kernels over a batch of groups, compiled once."""

from __future__ import annotations

from functools import partial
from types import ModuleType
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from turnwise_jax import kernels
from turnwise_jax.kernels import RewardWeights, ScoredTurns, ScoreTerms, Windows


class Credit(NamedTuple):
    """Scores and advantages of B groups of G rollouts, as NumPy arrays.

    ``terms``: fields ``[B, G]``. ``prefix_scores``: U, ``[B, G, K+1]``. ``advantages``:
    ``[B, G, K]``, what the loss uses. ``shared``: ``[B, G]``, GRPO's advantage of the same group,
    for comparison in logs. Rollouts whose reward is not finite have advantage 0. ``schedule``: the
    method's settings at this step, for the logs.
    """

    terms: ScoreTerms
    prefix_scores: np.ndarray
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


def assign_credit(
    turns: ScoredTurns,
    windows: Windows,
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
      algorithm, settings: a method of ``ALGORITHMS`` and its checked settings.
      weights, omega: of eq. 1 and PAUC.
      step, total_steps: completed and scheduled optimizer updates, for alpha's warm-up.
    """
    credit = _assign(
        turns,
        windows,
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

    def score(turns: ScoredTurns, windows: Windows) -> tuple[ScoreTerms, Array]:
        return (
            kernels.score_trajectory(turns, windows, weights, omega=omega),
            kernels.prefix_scores(turns, windows, weights, omega=omega),
        )

    terms, prefix_NK1 = jax.vmap(score)(turns, windows)
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
