"""Bucket choice against a search over all choices, and the odds of a batch against counting."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest

from turnwise_jax.rollout.buckets import (
    Choice,
    best_choices,
    enough,
    range_costs,
    reach_of_batches,
    reach_of_draws,
)

BATCH = 3


def histogram(seed: int, candidates: int = 7) -> tuple[list[int], np.ndarray]:
    """Records of each length, and the slots of a batch of each length, in rising order."""
    rng = np.random.default_rng(seed)
    slots = np.cumsum(rng.integers(1, 40, candidates)).astype(float)
    return rng.integers(3, 6, candidates).tolist(), slots


def batches_of(counts: list[int]) -> list[int]:
    """The longest member of every batch that can be drawn."""
    lengths = [m for m, count in enumerate(counts) for _ in range(count)]
    return [max(batch) for batch in combinations(lengths, BATCH)]


def searched(longest: list[int], slots: np.ndarray, buckets: int) -> float:
    """Fewest mean slots of these batches over all choices of so many buckets."""
    last = len(slots) - 1
    means = []
    for cuts in combinations(range(last), buckets - 1):
        rooms = [next(c for c in (*cuts, last) if m <= c) for m in longest]
        means.append(slots[rooms].mean())
    return min(means)


@pytest.mark.parametrize("seed", range(6))
def test_no_choice_of_buckets_takes_fewer_slots(seed):
    counts, slots = histogram(seed)
    longest = batches_of(counts)
    reach = reach_of_draws(counts, BATCH)
    found = best_choices(range_costs(np.outer(reach, slots)), 6)
    assert len(found) == 6
    for buckets, choice in enumerate(found, 1):
        assert len(choice.cuts) == buckets
        assert choice.cuts[-1] == len(slots) - 1
        assert choice.slots == pytest.approx(searched(longest, slots, buckets), rel=1e-12)


@pytest.mark.parametrize("seed", range(3))
def test_slots_may_differ_from_batch_to_batch(seed):
    """Rows of a step cost what their rollouts' bucket makes them cost."""
    rng = np.random.default_rng(seed)
    levels = np.sort(rng.integers(0, 6, 20))
    slots = rng.integers(10, 50, (20, 1)) + np.cumsum(rng.integers(1, 9, 6))[None]
    below = np.array([slots[levels <= m].sum(axis=0) for m in range(6)]) / 20
    found = best_choices(range_costs(below), 6)
    for buckets, choice in enumerate(found, 1):
        means = []
        for cuts in combinations(range(5), buckets - 1):
            rooms = [next(c for c in (*cuts, 5) if m <= c) for m in levels]
            means.append(slots[np.arange(20), rooms].mean())
        assert choice.slots == pytest.approx(min(means), rel=1e-12)


@pytest.mark.parametrize("seed", range(3))
def test_the_odds_of_a_batch_are_those_of_all_draws(seed):
    counts, slots = histogram(seed)
    longest = np.array(batches_of(counts))
    expected = [np.mean(longest <= m) for m in range(len(slots))]
    np.testing.assert_allclose(reach_of_draws(counts, BATCH), expected, rtol=1e-12)
    np.testing.assert_allclose(reach_of_batches(longest, len(slots)), expected, rtol=1e-12)


def test_buckets_that_save_nothing_are_not_made():
    reach = reach_of_draws([2, 1, 9], 3)  # a batch within the first two lengths: 1 of 220
    found = best_choices(range_costs(np.outer(reach, [10.0, 20.0, 20.0])), 6)
    assert [choice.cuts for choice in found] == [(2,)]
    reach = reach_of_draws([2, 1, 9], 3)
    found = best_choices(range_costs(np.outer(reach, [10.0, 20.0, 30.0])), 6)
    assert [choice.cuts for choice in found] == [(2,), (1, 2)]  # no batch has room in the first
    assert found[1].slots == pytest.approx(30 - 10 / 220)


def test_enough_buckets():
    choices = [Choice((9,), 100.0), Choice((4, 9), 80.0), Choice((4, 6, 9), 79.5)]
    assert enough(choices, 0.01).cuts == (4, 9)
    assert enough(choices, 0.001).cuts == (4, 6, 9)
    assert enough(choices[:1], 0.01).cuts == (9,)
