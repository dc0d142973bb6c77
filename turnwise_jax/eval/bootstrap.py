"""Averages over dialogues with confidence intervals over videos.

Every number of a report is a ratio of two sums over dialogues (window values over windows,
repetitive replies over judged replies, ...), or is made of such ratios: a mean (categories), a
harmonic mean (F1). Dialogues of one video are not independent, so whole videos are drawn with
replacement, and one set of draws serves all numbers of a report.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

Sums = Callable[[Sequence[float]], np.ndarray]  # one number per dialogue -> sums, of any shape


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

    def over(self, sums: Sums) -> tuple[np.ndarray, np.ndarray]:
        """(value, whether there is one) where the dialogues add up as ``sums`` says."""
        return self.of(sums(self.total_D), sums(self.count_D))


class F1(NamedTuple):
    """The harmonic mean of two ratios of one scale; 0 where both are 0."""

    precision: Ratio
    recall: Ratio

    @property
    def value(self) -> float:
        return float(self.over(np.sum)[0])

    def over(self, sums: Sums) -> tuple[np.ndarray, np.ndarray]:
        """As :meth:`Ratio.over`."""
        (precision, real), (recall, also) = self.precision.over(sums), self.recall.over(sums)
        return _divide(2.0 * precision * recall, precision + recall), real & also


class Mean(NamedTuple):
    """The mean of several measures, those without a value left out; 0 if all are."""

    parts: Sequence[Ratio | F1 | Mean]

    @property
    def value(self) -> float:
        found = [part.value for part in self.parts if part.over(np.sum)[1]]
        return float(np.mean(found)) if found else 0.0

    def over(self, sums: Sums) -> tuple[np.ndarray, np.ndarray]:
        """As :meth:`Ratio.over`."""
        pairs = [part.over(sums) for part in self.parts]
        value_P, real_P = (np.stack(arrays) for arrays in zip(*pairs, strict=True))
        return _divide((value_P * real_P).sum(0), real_P.sum(0)), real_P.any(0)


Measure = Ratio | F1 | Mean


def intervals(
    ratios: Mapping[str, Measure],
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
      (low, high) for each name, over the draws in which it has a value; none for a name without a
      value, and nothing at all for fewer than two clusters, which say nothing about spread.
    """
    names, index_D = np.unique(np.asarray(clusters, dtype=str), return_inverse=True)
    size = len(names)
    if size < 2:
        return {}
    rng = np.random.default_rng(seed)
    draws_RV = rng.multinomial(size, np.full(size, 1.0 / size), size=resamples).astype(float)
    edges = [50.0 * (1.0 - level), 50.0 * (1.0 + level)]

    def sums(value_D: Sequence[float]) -> np.ndarray:
        return draws_RV @ np.bincount(index_D, np.asarray(value_D, float), size)

    found = {}
    for name, ratio in ratios.items():
        value_R, real_R = ratio.over(sums)
        if real_R.any():
            low, high = np.percentile(value_R[real_R], edges)
            found[name] = (float(low), float(high))
    return found


def _divide(total: np.ndarray, count: np.ndarray) -> np.ndarray:
    return np.where(count == 0, 0.0, total / np.where(count == 0, 1.0, count))
