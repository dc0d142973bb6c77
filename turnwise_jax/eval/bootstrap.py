"""Averages over dialogues with confidence intervals over videos.

Every number of a report is a ratio of two sums over dialogues (window values over windows,
repetitive replies over judged replies, ...), or a mean of such ratios (categories). Dialogues of
one video are not independent, so whole videos are drawn with replacement, and one set of draws
serves all numbers of a report.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np


class Ratio(NamedTuple):
    """``scale * total_D.sum() / count_D.sum()``, the quotient's square root if ``root``.

    0 where the count is 0.
    """

    total_D: Sequence[float]
    count_D: Sequence[float]
    scale: float = 1.0
    root: bool = False

    @property
    def value(self) -> float:
        value, _ = self.of(np.sum(self.total_D), np.sum(self.count_D))
        return float(value)

    def of(self, total: np.ndarray, count: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(value, whether there is one) of sums of any shape."""
        quotient = _divide(total, count)
        return (np.sqrt(quotient) if self.root else quotient) * self.scale, np.asarray(count != 0)


class Mean(NamedTuple):
    """The mean of several ratios, those with a count of 0 left out; 0 if all are."""

    parts: Sequence[Ratio]

    @property
    def value(self) -> float:
        found = [part.value for part in self.parts if np.sum(part.count_D) != 0]
        return float(np.mean(found)) if found else 0.0


def intervals(
    ratios: Mapping[str, Ratio | Mean],
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
    draws_RV = rng.multinomial(size, np.full(size, 1.0 / size), size=resamples).astype(float)
    edges = [50.0 * (1.0 - level), 50.0 * (1.0 + level)]

    def resampled(ratio: Ratio) -> tuple[np.ndarray, np.ndarray]:
        total_R = draws_RV @ np.bincount(index_D, np.asarray(ratio.total_D, float), size)
        count_R = draws_RV @ np.bincount(index_D, np.asarray(ratio.count_D, float), size)
        return ratio.of(total_R, count_R)

    found = {}
    for name, ratio in ratios.items():
        parts = ratio.parts if isinstance(ratio, Mean) else [ratio]
        value_PR, real_PR = map(np.stack, zip(*map(resampled, parts), strict=True))
        low, high = np.percentile(_divide((value_PR * real_PR).sum(0), real_PR.sum(0)), edges)
        found[name] = (float(low), float(high))
    return found


def _divide(total: np.ndarray, count: np.ndarray) -> np.ndarray:
    return np.where(count == 0, 0.0, total / np.where(count == 0, 1.0, count))
