"""A collected batch: rows under the names that the training step uses, and what to log of it."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import numpy as np

from turnwise_jax.algorithms.types import Mixture
from turnwise_jax.models.base import TokenRows
from turnwise_jax.rollout.rows import TrainRows
from turnwise_jax.train.state import Batch


@dataclass
class Collected:
    """A batch, the numbers that describe it, and one log record per rollout.

    ``prepared``: whether the batch comes from ``Update.prepare``.
    """

    batch: Batch
    metrics: dict[str, Any]
    timing: dict[str, float | None]
    groups: list[dict[str, Any]]
    tokens: int
    prepared: bool = False


def as_batch(
    media: Any, rows: TrainRows, advantage_NK: np.ndarray, context: TokenRows | None = None
) -> Batch:
    """Rows, advantages and what the rows share, under the names that the training step uses."""
    return Batch(
        media=media,
        tokens_NT=rows.tokens,
        positions_N3T=rows.positions,
        media_index_NT=rows.media_index,
        valid_NT=rows.valid,
        action_pos_NA=rows.action_pos,
        action_target_NA=rows.action_target,
        action_mask_NA=rows.action_mask,
        turn_id_NA=rows.turn_id,
        sampler_logp_NA=rows.sampler_logp,
        old_logp_NA=np.zeros_like(rows.sampler_logp),
        advantage_NK=np.asarray(advantage_NK, np.float32),
        context=context,
    )


def credited(
    batch: Batch, action_mask_NA: np.ndarray, advantage_BGK: np.ndarray, reward_BG: np.ndarray
) -> Batch:
    """The rows of B groups with their advantages; a rollout without a reward trains nothing.

    Its actions are masked, so that means and KL terms are those of a batch without that row.

    Args:
      batch: N = B x G rows; may be on the devices already.
      action_mask_NA: bool, their actions.
      reward_BG: NaN where it is not known.
    """
    return batch._replace(
        advantage_NK=np.asarray(advantage_BGK, np.float32).reshape(-1, advantage_BGK.shape[-1]),
        action_mask_NA=action_mask_NA & np.isfinite(reward_BG).reshape(-1, 1),
    )


def with_reference(batch: Batch) -> Batch:
    """A batch of fresh rows with room for log-probs under a reference policy."""
    count = len(batch.tokens_NT)
    fresh, one = np.zeros(count, bool), np.ones(count, np.float32)
    return batch._replace(mixture=Mixture(np.zeros_like(batch.sampler_logp_NA), fresh, one, one))


class Clock:
    """Seconds between laps; those of one name add."""

    def __init__(self) -> None:
        self.laps: dict[str, float] = {}
        self.now = time.perf_counter()  # of the last lap

    def lap(self, name: str) -> None:
        now = time.perf_counter()
        self.laps[name] = self.laps.get(name, 0.0) + now - self.now
        self.now = now
