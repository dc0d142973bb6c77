"""Averages and intervals over videos."""

from __future__ import annotations

import numpy as np

from turnwise_jax.eval.bootstrap import Ratio, intervals


def test_the_value_divides_the_sums_once():
    assert Ratio([1.0, 2.0], [1, 3], 100.0).value == 75.0
    assert Ratio([0.0], [0]).value == 0.0


def test_a_constant_has_no_spread_and_a_single_video_no_interval():
    ratio = {"pauc": Ratio([0.25, 0.5, 0.25], [1, 2, 1], 100.0)}
    assert intervals(ratio, ["a", "b", "c"]) == {"pauc": (25.0, 25.0)}
    assert intervals(ratio, ["a", "a", "a"]) == {}


def test_the_interval_of_a_mean_is_that_of_the_normal_approximation():
    values = np.random.default_rng(1).normal(3.0, 2.0, size=400)
    names = [f"v{i}" for i in range(400)]
    low, high = intervals({"x": Ratio(values, np.ones(400))}, names, resamples=4000)["x"]
    half = 1.96 * values.std(ddof=1) / 20.0
    np.testing.assert_allclose([low, high], [values.mean() - half, values.mean() + half], atol=0.02)


def test_dialogues_of_one_video_count_as_one_draw():
    """Each dialogue listed five times under its video's name: no more certain than once."""
    values = np.random.default_rng(2).normal(size=60)
    names = [f"v{i}" for i in range(60)]
    once = intervals({"x": Ratio(values, np.ones(60))}, names)["x"]
    often = intervals({"x": Ratio(np.tile(values, 5), np.ones(300))}, names * 5)["x"]
    np.testing.assert_allclose(once, often)


def test_a_seed_fixes_the_interval():
    ratio = {"x": Ratio(np.arange(40) ** 1.5, np.ones(40))}
    names = [f"v{i}" for i in range(40)]
    assert intervals(ratio, names, seed=3) == intervals(ratio, names, seed=3)
    assert intervals(ratio, names, seed=3) != intervals(ratio, names, seed=4)
