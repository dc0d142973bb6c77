"""Averages and intervals over videos."""

from __future__ import annotations

import numpy as np

from turnwise_jax.eval.bootstrap import Mean, Ratio, intervals


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


def test_a_mean_of_ratios_leaves_out_those_without_a_count():
    parts = [Ratio([1.0, 0.0], [1, 1]), Ratio([0.0, 0.9], [0, 1]), Ratio([0.0, 0.0], [0, 0])]
    assert Mean(parts).value == np.mean([0.5, 0.9])
    assert Mean(parts[2:]).value == 0.0


def test_a_root_is_taken_of_the_quotient():
    assert Ratio([9.0, 9.0], [1, 1], root=True).value == 3.0
    assert Ratio([18.0, 0.0], [1, 1], 10.0, root=True).value == 30.0


def test_intervals_of_means_and_roots_are_those_of_draws_made_one_by_one():
    """Every multinomial draw spelled out as a list of videos, the statistic taken from scratch."""
    rng = np.random.default_rng(5)
    size, resamples = 12, 300
    value, group = rng.uniform(0, 1, size), rng.integers(0, 3, size)
    error = rng.normal(size=size)
    parts = [Ratio(value * (group == g), group == g, 100.0) for g in range(3)]
    statistics = {"macro": Mean(parts), "rmse": Ratio(error**2, np.ones(size), root=True)}
    names = [f"v{i:02d}" for i in range(size)]
    found = intervals(statistics, names, resamples=resamples, seed=9)
    draws = np.random.default_rng(9).multinomial(size, np.full(size, 1 / size), size=resamples)
    macro, rmse = [], []
    for times in draws:
        picked = [i for i in range(size) for _ in range(times[i])]
        means = [
            np.mean([value[i] for i in picked if group[i] == g])
            for g in range(3)
            if any(group[i] == g for i in picked)
        ]
        macro.append(100 * np.mean(means))
        rmse.append(np.sqrt(np.mean([error[i] ** 2 for i in picked])))
    np.testing.assert_allclose(found["macro"], np.percentile(macro, [2.5, 97.5]))
    np.testing.assert_allclose(found["rmse"], np.percentile(rmse, [2.5, 97.5]))
