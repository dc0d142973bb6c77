"""Averages and intervals over videos."""

from __future__ import annotations

import numpy as np
import pytest

from turnwise_jax.eval.bootstrap import F1, Mean, Ratio, intervals


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


def test_a_harmonic_mean_and_a_mean_of_means():
    """Over draws made one by one; a draw without a group leaves that group out."""
    rng = np.random.default_rng(11)
    size, resamples = 9, 200
    precision, recall = rng.uniform(0, 1, (2, size))
    group = np.arange(size) % 3
    members = [group == g for g in range(3)]
    f1 = [
        F1(Ratio(precision * member, member, 100.0), Ratio(recall * member, member, 100.0))
        for member in members
    ]
    nested = Mean([Mean(f1[:2]), Mean(f1[2:])])
    means = [(precision[group == g].mean(), recall[group == g].mean()) for g in range(3)]
    harmonic = [100 * 2 * p * r / (p + r) for p, r in means]
    assert f1[0].value == pytest.approx(harmonic[0])
    assert nested.value == pytest.approx(((harmonic[0] + harmonic[1]) / 2 + harmonic[2]) / 2)
    assert F1(Ratio([0.0], [1]), Ratio([0.0], [1])).value == 0.0
    names = [f"v{i}" for i in range(size)]
    found = intervals({"x": nested}, names, resamples=resamples, seed=2)["x"]
    draws = np.random.default_rng(2).multinomial(size, np.full(size, 1 / size), size=resamples)
    values = []
    for times in draws:
        picked = np.repeat(np.arange(size), times)
        parts = []
        for groups in ((0, 1), (2,)):
            scores = []
            for g in groups:
                own = picked[group[picked] == g]
                if len(own):
                    p, r = precision[own].mean(), recall[own].mean()
                    scores.append(100 * 2 * p * r / (p + r))
            if scores:
                parts.append(np.mean(scores))
        values.append(np.mean(parts))
    np.testing.assert_allclose(found, np.percentile(values, [2.5, 97.5]))
