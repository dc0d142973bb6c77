"""Advantages and weights of one batch of answers, fresh and replayed; each compiled once."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import numpy as np
from jax import Array

from turnwise_jax.algorithms import avatar
from turnwise_jax.rollout.prompt_stats import PromptStats
from turnwise_jax.rollout.replay import Sample


class Mixed(NamedTuple):
    """A batch of all processes: fresh samples in (b, g) order, then the replayed ones.

    ``fresh``, ``drawn``: the samples. ``advantages``, ``weights``, ``kl_weights``: f32 ``[N + R]``,
    N fresh samples and room for R replayed ones; 0 where fewer were drawn. ``trains``: bool
    ``[N + R]``, rows that hold a sample whose reward is known; the others count for nothing.
    """

    fresh: Sequence[Sample]
    drawn: Sequence[Sample]
    advantages: np.ndarray
    weights: np.ndarray
    kl_weights: np.ndarray
    trains: np.ndarray


def fresh_advantages(reward_BG: np.ndarray, settings: Any) -> np.ndarray:
    """f32[B, G] of every group (eq. 1)."""
    return np.asarray(_fresh(np.asarray(reward_BG, np.float32), settings=settings))


def mixed(
    fresh: Sequence[Sample],
    drawn: Sequence[Sample],
    stats: PromptStats,
    *,
    replayed: int,
    settings: Any,
) -> Mixed:
    """The batch of these samples.

    Args:
      fresh: with their advantages.
      drawn: at most ``replayed`` of them.
      stats: moving averages, which do not yet know of ``fresh``.
      replayed: R, room for drawn samples.
      settings: of ``algorithms.avatar``.
    """
    replayed_R = _replayed_advantages(drawn, stats, replayed, settings)
    advantages = np.concatenate([[sample.advantage for sample in fresh], replayed_R])
    old = np.arange(len(advantages)) >= len(fresh)
    rewards = np.full(len(advantages), np.nan)
    rewards[: len(fresh) + len(drawn)] = [sample.reward for sample in (*fresh, *drawn)]
    trains = np.isfinite(rewards)
    weights, kl_weights = avatar.sample_weights(trains, old, settings)
    return Mixed(fresh, drawn, advantages.astype(np.float32), weights, kl_weights, trains)


def _replayed_advantages(
    drawn: Sequence[Sample], stats: PromptStats, room: int, settings: Any
) -> np.ndarray:
    if not room:
        return np.zeros(0, np.float32)
    columns = np.zeros((3, room), np.float32)
    for n, sample in enumerate(drawn):
        columns[:, n] = sample.reward, stats.average(sample.prompt), sample.advantage
    mask = np.arange(room) < len(drawn)
    return np.asarray(_replayed(*columns, mask, settings=settings))


@partial(jax.jit, static_argnames="settings")
def _fresh(reward_BG: Array, *, settings: Any) -> Array:
    return jax.vmap(partial(avatar.fresh_advantages, settings=settings))(reward_BG)


_replayed = jax.jit(avatar.replayed_advantages, static_argnames="settings")
