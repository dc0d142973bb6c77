"""Averages over dialogues with confidence intervals over videos.

Every number of a report is a ratio of two sums over dialogues (window values over windows,
repetitive replies over judged replies, ...). Dialogues of one video are not independent, so whole
videos are drawn with replacement, and one set of draws serves all numbers of a report.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np


class Ratio(NamedTuple):
    """``scale * total_D.sum() / count_D.sum()``; 0 where the count is 0."""

    total_D: Sequence[float]
    count_D: Sequence[float]
    scale: float = 1.0

    @property
    def value(self) -> float:
        return float(_divide(np.sum(self.total_D), np.sum(self.count_D)) * self.scale)


def intervals(
    ratios: Mapping[str, Ratio],
    clusters: Sequence[str],
    *,
    resamples: int = 2000,
    level: float = 0.95,
    seed: int = 0,
) -> dict[str, tuple[float, float]]:
    """Percentile bootstrap over clusters.

    Args:
      ratios: what to report; each has one entry per dialogue.
      clusters: the cluster (video) of each dialogue.
      resamples: number of draws.
      level: share of the draws inside the interval.
      seed: of the draws; equal inputs give equal intervals.

    Returns:
      (low, high) for each name; nothing at all for fewer than two clusters, which say nothing
      about spread.
    """
    names, index_D = np.unique(np.asarray(clusters, dtype=str), return_inverse=True)
    size = len(names)
    if size < 2:
        return {}
    rng = np.random.default_rng(seed)
    draws_RV = rng.multinomial(size, np.full(size, 1.0 / size), size=resamples)
    edges = [50.0 * (1.0 - level), 50.0 * (1.0 + level)]
    found = {}
    for name, ratio in ratios.items():
        total_R = draws_RV @ np.bincount(index_D, np.asarray(ratio.total_D, float), size)
        count_R = draws_RV @ np.bincount(index_D, np.asarray(ratio.count_D, float), size)
        low, high = np.percentile(_divide(total_R, count_R) * ratio.scale, edges)
        found[name] = (float(low), float(high))
    return found


def _divide(total: np.ndarray, count: np.ndarray) -> np.ndarray:
    return np.where(count == 0, 0.0, total / np.where(count == 0, 1.0, count))
