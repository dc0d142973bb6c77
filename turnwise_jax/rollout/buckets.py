"""Which lengths to make buckets for: the fewest token slots in expectation, exactly.

Candidates are lengths in rising order, 0..M-1. A batch is as long as its longest member and runs in
the first bucket that holds it. How often each bucket comes follows from how batches are drawn, and
with it the slots that a choice of buckets costs; tokens are what they are, so that the fewest slots
are the least padding.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np


class Choice(NamedTuple):
    """Buckets chosen among the candidates.

    ``cuts``: their candidates, rising; the last one is the longest. ``slots``: token slots of a
    batch in expectation.
    """

    cuts: tuple[int, ...]
    slots: float


def reach_of_draws(counts_M: Sequence[int], batch_size: int) -> np.ndarray:
    """P(no member of a batch is longer than candidate m), f64 ``[M]``.

    Args:
      counts_M: records with the length of each candidate. A batch is any ``batch_size`` of them,
        none twice, all equally likely, as in a shuffled epoch.
    """
    within_M, total = np.cumsum(counts_M), sum(counts_M)
    ways = math.comb(total, batch_size)
    return np.array([math.comb(int(n), batch_size) / ways for n in within_M])


def reach_of_batches(levels: Sequence[int], candidates: int) -> np.ndarray:
    """Share of batches that are no longer than candidate m, f64 ``[M]``.

    Args:
      levels: each batch's longest member, as a candidate.
    """
    counts_M = np.bincount(np.asarray(levels, int), minlength=candidates)
    return np.cumsum(counts_M) / len(levels)


def range_costs(below_MM: np.ndarray) -> np.ndarray:
    """Slots of the batches between two candidates, f64 ``[M, M]``.

    Args:
      below_MM: ``[l, j]``, slots of all batches up to candidate l, each in a bucket of candidate j,
        times how often they come.

    Returns:
      ``[i, j]``: of the batches from candidate i to candidate j, both included, in bucket j;
      infinite where i is above j.
    """
    upto_M = np.diagonal(below_MM)
    before_MM = np.vstack([np.zeros(len(upto_M)), below_MM[:-1]])
    return np.where(np.tri(len(upto_M), k=-1, dtype=bool), np.inf, upto_M[None] - before_MM)


def best_choices(cost_MM: np.ndarray, most: int) -> list[Choice]:
    """The best choice of one bucket, of two, and so on, as long as one more takes fewer slots.

    Dynamic programming over the longest candidate: the best k buckets up to j are the best k - 1 up
    to some i and one that holds the rest.

    Args:
      cost_MM: as from :func:`range_costs`.
      most: buckets at most.
    """
    count = len(cost_MM)
    best_M, cuts_M = cost_MM[0], [(j,) for j in range(count)]
    found = [Choice(cuts_M[-1], float(best_M[-1]))]
    for _ in range(1, min(most, count)):
        # [i, j]: the last bucket holds candidates i..j, those below i have the buckets before.
        total_MM = np.concatenate([np.full(1, np.inf), best_M[:-1]])[:, None] + cost_MM
        start_M = np.argmin(total_MM, axis=0)
        best_M = total_MM[start_M, np.arange(count)]
        cuts_M = [
            (*cuts_M[start - 1], j) if start else (j,) for j, start in enumerate(start_M.tolist())
        ]
        if not best_M[-1] < found[-1].slots * (1 - 1e-12):
            break
        found.append(Choice(cuts_M[-1], float(best_M[-1])))
    return found


def enough(choices: Sequence[Choice], worth: float) -> Choice:
    """The first choice after which one more bucket saves less than a share ``worth`` of slots."""
    for choice, following in pairwise(choices):
        if choice.slots - following.slots < worth * choice.slots:
            return choice
    return choices[-1]
