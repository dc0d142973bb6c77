"""Appendix G of the paper in float64, on every group of a small problem and on random scores."""

from __future__ import annotations

import numpy as np
import pytest

from turnwise_jax.study.exact_estimators import advantages, deviation
from turnwise_jax.study.exact_problem import Setting, enumerate_trajectories

TIGHT = {"rtol": 0, "atol": 1e-13}


def scores(seed: int, groups: int = 40, size: int = 4, turns: int = 6) -> np.ndarray:
    found = np.random.default_rng(seed).normal(0, 2, (groups, size, turns + 1))
    found[:, :, 0] = 0.375  # the all-silent reference is shared
    return found


@pytest.fixture(scope="module")
def U() -> np.ndarray:
    """f64[M, G, K+1]: random groups, and groups of real trajectories."""
    data = enumerate_trajectories(Setting(times=(2.0, 4.0, 8.0)))
    chosen = np.random.default_rng(1).integers(len(data.reward_N), size=(40, 4))
    return np.concatenate([scores(0, turns=3), data.score_NK1[chosen]])


def test_g1_and_g2_the_sums_telescope(U):
    increments = np.diff(U, axis=-1)
    for t in range(1, U.shape[-1]):
        np.testing.assert_allclose(
            increments[..., : t - 1].sum(-1), U[..., t - 1] - U[..., 0], **TIGHT
        )
        np.testing.assert_allclose(
            increments[..., t - 1 :].sum(-1), U[..., -1] - U[..., t - 1], **TIGHT
        )


def test_g3_accrued_and_remaining_are_a_partition(U):
    accrued, remaining = U[..., :-1] - U[..., :1], U[..., -1:] - U[..., :-1]
    whole = np.broadcast_to(U[..., -1:] - U[..., :1], accrued.shape)
    np.testing.assert_allclose(accrued + remaining, whole, **TIGHT)


def test_g4_the_means_of_a_group(U):
    accrued, remaining = U[..., :-1] - U[..., :1], U[..., -1:] - U[..., :-1]
    mean = U.mean(axis=1)
    np.testing.assert_allclose(accrued.mean(axis=1), mean[..., :-1] - U[:, 0, :1], **TIGHT)
    np.testing.assert_allclose(remaining.mean(axis=1), mean[..., -1:] - mean[..., :-1], **TIGHT)


def test_g5_centred_remaining_return_is_the_corrected_deviation(U):
    remaining = U[..., -1:] - U[..., :-1]
    centred = remaining - remaining.mean(axis=1, keepdims=True)
    np.testing.assert_allclose(deviation(U, 1.0), centred, **TIGHT)


def test_g6_dividing_by_the_rewards_deviation_gives_equation_4(U):
    scale = U[..., -1].std(axis=1, ddof=1)[:, None, None] + 1e-6
    accrued = U[..., :-1] - U[..., :1]
    correction = (accrued - accrued.mean(axis=1, keepdims=True)) / scale
    shared = (U[..., -1:] - U[..., -1:].mean(axis=1, keepdims=True)) / scale
    np.testing.assert_allclose(
        deviation(U, 1.0) / scale, shared - correction, rtol=1e-12, atol=1e-12
    )


@pytest.mark.parametrize("alpha", [0.0, 0.25, 0.5, 1.0])
def test_g7_alpha_interpolates(U, alpha):
    mixed = (1 - alpha) * deviation(U, 0.0) + alpha * deviation(U, 1.0)
    np.testing.assert_allclose(deviation(U, alpha), mixed, **TIGHT)


@pytest.mark.parametrize("alpha", [0.0, 0.5, 1.0])
def test_the_kernels_are_these_equations_divided_and_clipped(U, alpha):
    U = U[U[..., -1].std(axis=1) > 1e-3]  # elsewhere the kernels say: no signal
    scale = U[..., -1].std(axis=1, ddof=1)[:, None, None] + 1e-6
    expected = np.clip(deviation(U, alpha) / scale, -5, 5)
    np.testing.assert_allclose(advantages(U, alpha, normalised=True), expected, atol=1e-3)


def test_accrued_reward_says_nothing_of_the_reference(U):
    """A shared shift of U_0 alone, as from another initial dialogue, cancels at every turn."""
    shifted = U.copy()
    shifted[..., 0] += 7.0
    np.testing.assert_allclose(
        deviation(shifted, 1.0)[..., 1:], deviation(U, 1.0)[..., 1:], **TIGHT
    )
