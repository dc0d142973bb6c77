"""Learning curves of the exact study: their directions, their steps, their summary."""

from __future__ import annotations

import numpy as np
import pytest

from turnwise_jax.study.exact_estimators import (
    WEIGHTINGS,
    Moments,
    Slopes,
    all_pairs,
    pair_advantages,
    token_weights,
)
from turnwise_jax.study.exact_learning import (
    Behaviour,
    along_large_groups,
    along_pairs,
    along_samples,
    along_truth,
    climb,
    draw,
    summary,
)
from turnwise_jax.study.exact_policy import Tables, true_gradient
from turnwise_jax.study.exact_problem import Setting, enumerate_trajectories


@pytest.fixture(scope="module")
def tables():
    return Tables(enumerate_trajectories(Setting(times=(2.0, 4.0), windows=((2.0, 5.0),))))


@pytest.fixture(scope="module")
def starts_RS(tables):
    return np.array([tables.logits({"silence": 1.0}, noise=0.5, seed=seed) for seed in range(3)])


@pytest.mark.parametrize("normalised", [False, True])
@pytest.mark.parametrize("reduction", WEIGHTINGS)
def test_the_expected_update_of_pairs_is_their_mean(tables, starts_RS, reduction, normalised):
    weights = token_weights(tables.trajectories, reduction)
    pairs = pair_advantages(tables.trajectories, 1.0, normalised=normalised)
    for logits_S, update_S in zip(
        starts_RS, along_pairs(tables, pairs, weights)(starts_RS), strict=True
    ):
        slopes = Slopes(tables, logits_S, weights, true_gradient(tables, logits_S))
        groups = all_pairs(pairs, tables.probabilities(logits_S))
        np.testing.assert_allclose(update_S, Moments.of(groups, slopes).mean_S, atol=1e-13)


@pytest.mark.parametrize("alpha", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("reduction", ["sum", "turn", "trajectory_token"])
def test_without_division_the_size_of_the_group_is_only_a_factor(
    tables, starts_RS, alpha, reduction
):
    weights = token_weights(tables.trajectories, reduction)
    pairs = pair_advantages(tables.trajectories, alpha, normalised=False)
    two = along_pairs(tables, pairs, weights)(starts_RS)
    np.testing.assert_allclose(
        two, 0.5 * along_large_groups(tables, alpha, weights)(starts_RS), atol=1e-13
    )


def test_many_sampled_groups_point_where_the_expected_update_does(tables, starts_RS):
    weights = token_weights(tables.trajectories, "turn")
    pairs = pair_advantages(tables.trajectories, 1.0, normalised=True)
    expected = along_pairs(tables, pairs, weights)(starts_RS)
    sampled = along_samples(tables, 1.0, weights, groups=60_000, group_size=2, seeds=range(3))
    largest = np.abs(expected).max()
    np.testing.assert_allclose(sampled(starts_RS) / largest, expected / largest, atol=0.15)


def test_steps_have_one_length_and_the_true_gradient_climbs(tables, starts_RS):
    rewards, last_RS = climb(tables, starts_RS, along_truth(tables), updates=40, length=0.2)
    assert rewards.shape == (3, 41)
    assert (np.diff(rewards, axis=1) > 0).all()
    assert rewards[:, -1].min() > 0.95 * tables.trajectories.reward_N.max()
    once, moved_RS = climb(tables, starts_RS, along_truth(tables), updates=1, length=0.2)
    np.testing.assert_allclose(np.linalg.norm(moved_RS - starts_RS, axis=1), 0.2, rtol=1e-12)
    np.testing.assert_array_equal(once, rewards[:, :2])
    assert not np.array_equal(last_RS, moved_RS)


def test_no_direction_is_no_step(tables, starts_RS):
    rewards, last_RS = climb(tables, starts_RS, np.zeros_like, updates=2, length=0.2)
    np.testing.assert_array_equal(last_RS, starts_RS)
    assert (rewards == rewards[:, :1]).all()


def test_runs_repeat_with_their_seeds(tables, starts_RS):
    def run(seeds):
        weights = token_weights(tables.trajectories, "turn")
        follow = along_samples(tables, 1.0, weights, groups=2, group_size=4, seeds=seeds)
        return climb(tables, starts_RS, follow, updates=4, length=0.2)[0]

    np.testing.assert_array_equal(run((1, 2, 3)), run((1, 2, 3)))
    assert not np.array_equal(run((1, 2, 3)), run((4, 5, 6)))


def test_trajectories_are_drawn_by_their_probability():
    drawn = draw(np.array([0.5, 0.0, 0.2, 0.3]), (200, 500), np.random.default_rng(0))
    assert drawn.shape == (200, 500)
    share = np.bincount(drawn.ravel(), minlength=4) / drawn.size
    np.testing.assert_allclose(share, [0.5, 0.0, 0.2, 0.3], atol=0.006)


def test_behaviour_in_words(tables):
    """A policy that tells the fact at length twice: one reply in two repeats."""
    talks = Behaviour.of(tables, tables.logits({"fact 1": 40.0, "long": 40.0}))
    assert talks.replies == pytest.approx(1.0)
    assert talks.repetitive == pytest.approx(0.5)
    assert talks.reward == pytest.approx(3 * 1.0 - 2 * 0.5 - 2 * 0.5)
    silent = Behaviour.of(tables, tables.logits({"silence": 800.0}))
    assert silent == (pytest.approx(0.375), 0.0, pytest.approx(0.0))


def test_summary_of_curves_by_hand():
    found = summary(np.array([[0.0, 0.5, 0.9, 1.0], [0.2, 0.2, 0.2, 0.6]]), best=1.0)
    assert found["mean"] == pytest.approx((0.6 + 0.3) / 2)
    assert found["mean_error"] == pytest.approx(0.15)
    assert found["updates"] == pytest.approx((2 + 3) / 2)  # the second never gets to 0.92
    assert found["final"] == pytest.approx(0.8)
    assert found["final_error"] == pytest.approx(0.2)
