"""Prefix scores: one scan equals scoring every silence-completed prefix from nothing."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from turnwise_jax.kernels import RewardWeights, turn_increments

from . import reference
from .compiled import prefix_scores, score_trajectory
from .jaxprs import equations, work
from .trajectories import (
    WORKED_INCREMENTS,
    WORKED_PREFIX_SCORES,
    random_trajectory,
    simple,
    stack,
    worked_example,
)


def test_the_worked_example():
    scores = prefix_scores(*worked_example())
    np.testing.assert_allclose(scores, WORKED_PREFIX_SCORES, atol=1e-6)
    np.testing.assert_allclose(turn_increments(scores), WORKED_INCREMENTS, atol=1e-6)


@pytest.mark.parametrize(
    "setting",
    [
        reference.Setting(),
        reference.Setting(omega=0.0, top_score=2.0, start_score=0.25),
        reference.Setting(
            omega=1.0, weights={"quality": 1.0, "rep": 0.7, "out": 1.5, "prefix": 0.1}
        ),
    ],
    ids=["reward", "benchmark", "other weights"],
)
def test_scan_equals_rescoring_on_1000_random_trajectories(setting):
    pairs = [random_trajectory(seed, 12, 4) for seed in range(1000)]
    scores = jax.jit(
        jax.vmap(
            lambda turns, windows: prefix_scores(
                turns,
                windows,
                RewardWeights(*setting.weights.values()),
                omega=setting.omega,
                start_score=setting.start_score,
                top_score=setting.top_score,
            )
        )
    )(stack([pair.turns for pair in pairs]), stack([pair.windows for pair in pairs]))
    expected = np.full((1000, 13), np.nan)
    for i, pair in enumerate(pairs):
        real = reference.prefix_scores(pair.decisions, pair.spans, setting)
        # Padded index k + 1 holds the score after the decisions up to k.
        taken = np.searchsorted(pair.turn_index, np.arange(12), side="right")
        expected[i] = [real[0], *(real[n] for n in taken)]
    np.testing.assert_allclose(scores, expected, atol=1e-5, rtol=0)


def test_the_last_prefix_score_is_the_trajectory_score():
    pairs = [random_trajectory(seed, 20, 5) for seed in range(300)]
    turns = stack([pair.turns for pair in pairs])
    windows = stack([pair.windows for pair in pairs])
    last = jax.vmap(prefix_scores)(turns, windows)[:, -1]
    np.testing.assert_allclose(last, jax.vmap(score_trajectory)(turns, windows).reward, atol=2e-6)


def test_equation_g3_increments_sum_to_reward_minus_the_silent_reference():
    pairs = [random_trajectory(seed, 12, 4) for seed in range(300)]
    turns = stack([pair.turns for pair in pairs])
    windows = stack([pair.windows for pair in pairs])
    rewards = jax.jit(jax.vmap(lambda *pair: score_trajectory(*pair).reward))
    silent = rewards(turns._replace(replied=np.zeros_like(turns.replied)), windows)
    scores = jax.jit(jax.vmap(prefix_scores))(turns, windows)
    np.testing.assert_allclose(scores[:, 0], silent, atol=1e-5)
    total = jnp.sum(jax.vmap(turn_increments)(scores), axis=1)
    np.testing.assert_allclose(total, rewards(turns, windows) - silent, atol=1e-5)


def test_a_silent_turn_adds_nothing():
    turns, windows = worked_example()
    assert float(turn_increments(prefix_scores(turns, windows))[2]) == 0.0


def test_a_score_depends_on_no_later_reply():
    """Causality: changing reply k leaves U_0 .. U_k alone, and moves U_{k+1}."""
    turns, windows = simple([1.0, 3.0, 5.0, 7.0], quality=[1.0, 2.0, 3.0, 4.0])
    base = np.asarray(prefix_scores(turns, windows))
    for k in range(4):
        changed = turns._replace(
            quality=np.where(np.arange(4)[:, None] == k, 0.0, turns.quality).astype(np.float32),
            repetitive=np.where(np.arange(4) == k, 1.0, turns.repetitive).astype(np.float32),
        )
        scores = np.asarray(prefix_scores(changed, windows))
        np.testing.assert_array_equal(scores[: k + 1], base[: k + 1])
        assert scores[k + 1] != base[k + 1]


def test_causality_by_gradient():
    turns, windows = simple([1.0, 3.0, 5.0, 7.0], quality=[1.0, 2.0, 3.0, 4.0])
    jacobian = jax.jacobian(lambda q: prefix_scores(turns._replace(quality=q), windows))(
        jnp.asarray(turns.quality)
    )[:, :, 0]
    assert not np.any(np.triu(np.asarray(jacobian)))
    assert np.all(np.diag(np.asarray(jacobian)[1:]) > 0)


def test_past_the_last_real_turn_the_score_stays():
    turns, windows = simple([1.0, 3.0, 5.0, 7.0], quality=[1.0, 4.0, 3.0, 4.0])
    ended = turns._replace(mask=np.array([True, True, False, False]))
    scores = np.asarray(prefix_scores(ended, windows))
    assert scores[2] == scores[3] == scores[4]


@pytest.mark.parametrize("extra", [1, 64])
def test_fault_10_padding_changes_nothing(extra):
    pair = random_trajectory(5, 12, 4)
    base = np.asarray(prefix_scores(pair.turns, pair.windows))

    def pad(array, width, axis):
        widths = [(0, 0)] * array.ndim
        widths[axis] = (0, width)
        return np.pad(array, widths, constant_values=False if array.dtype == bool else np.nan)

    turns = pair.turns._replace(
        **{name: pad(array, extra, 0) for name, array in pair.turns._asdict().items()}
    )
    turns = turns._replace(quality=pad(turns.quality, extra, 1))
    windows = type(pair.windows)(*(pad(array, extra, 0) for array in pair.windows))
    padded = np.asarray(prefix_scores(turns, windows))
    np.testing.assert_allclose(padded[:13], base, atol=1e-6)
    np.testing.assert_array_equal(padded[13:], padded[12])


def test_no_turns_and_no_windows():
    turns, windows = simple([], quality=[])
    assert prefix_scores(turns, windows).shape == (1,)
    turns, windows = simple([1.0, 2.0], quality=[[], None], windows=())
    np.testing.assert_allclose(prefix_scores(turns, windows), [0.0, -0.25, -0.25])


def test_it_is_one_scan_of_the_turns_carrying_one_height_per_window():
    turns, windows = (jax.tree.map(jnp.asarray, part) for part in simple([1.0] * 32))
    jaxpr = jax.make_jaxpr(prefix_scores)(turns, windows)
    scans = [eqn for eqn, _ in equations(jaxpr) if eqn.primitive.name == "scan"]
    assert [scan.params["length"] for scan in scans] == [32]
    carried = scans[0].params["num_carry"]
    sizes = [var.aval.size for var in scans[0].outvars[:carried]]
    assert sorted(sizes) == [1, 1, 1, 1]  # one window here, and three scalars


def test_the_cost_grows_linearly_with_turns_and_windows():
    """Counted on the traced program: elements computed, scan bodies times their length."""

    def cost(num_turns, num_windows):
        spans = [(0.0, 1.0)] * num_windows
        example = simple([1.0] * num_turns, windows=spans)
        turns, windows = (jax.tree.map(jnp.asarray, part) for part in example)
        return work(jax.make_jaxpr(prefix_scores)(turns, windows))

    assert cost(256, 8) / cost(128, 8) == pytest.approx(2, rel=0.05)
    assert cost(64, 64) / cost(64, 32) == pytest.approx(2, rel=0.1)


def test_turn_increments_need_a_score():
    with pytest.raises(ValueError, match="needs at least U_0"):
        turn_increments(jnp.zeros(0))
