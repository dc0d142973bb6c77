"""Advantages against the literal formulas, the appendix's identities and the edge cases."""

from __future__ import annotations

from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from turnwise_jax.kernels import alpha_warmup

from . import reference
from .compiled import (
    group_advantages,
    has_signal,
    prefix_scores,
    replay_advantages,
    turn_advantages,
)
from .trajectories import both_forms, simple, stack


def random_scores(seed, num_rollouts=4, num_turns=6):
    rng = np.random.default_rng(seed)
    scores = rng.normal(0, 2, (num_rollouts, num_turns + 1)).astype(np.float32)
    scores[:, 0] = 0.375  # the silent reference is shared
    return scores


# -- group-relative ------------------------------------------------------------------------------


@pytest.mark.parametrize(("eps", "ddof"), [(1e-6, 1), (1e-4, 1), (1e-6, 0), (0.5, 1)])
def test_group_advantages_equal_the_literal_formula(eps, ddof):
    for seed in range(50):
        rewards = np.random.default_rng(seed).normal(1, 3, 4).astype(np.float32)
        expected = reference.group_advantages([float(r) for r in rewards], eps, ddof)
        np.testing.assert_allclose(
            group_advantages(rewards, eps=eps, ddof=ddof), expected, rtol=2e-5, atol=1e-5
        )


@pytest.mark.parametrize("offset", [0.0, 1e4, -1e6])
def test_a_common_offset_cancels(offset):
    """Rewards far from 0 lose no more than their own rounding."""
    rewards = np.array([0.0, 1.0, 7.0], np.float32)  # their mean is no float32 near the offset
    shifted = group_advantages(rewards + np.float32(offset))
    np.testing.assert_allclose(shifted, group_advantages(rewards), atol=1e-5)


def test_fault_2_one_rollout_or_one_valid_one_left_gives_zero():
    assert group_advantages(jnp.array([3.0])).tolist() == [0.0]
    left = group_advantages([3.0, 1.0, np.nan], mask=[True, False, True])
    assert left.tolist() == [0.0, 0.0, 0.0]
    assert group_advantages([3.0, 1.0], mask=[False, False]).tolist() == [0.0, 0.0]
    assert group_advantages(jnp.zeros(0)).shape == (0,)


@pytest.mark.parametrize("ddof", [2, 3])
def test_fault_2_no_more_rollouts_than_ddof_gives_zero(ddof):
    assert group_advantages([3.0, 1.0], ddof=ddof).tolist() == [0.0, 0.0]


@pytest.mark.parametrize("missing", [np.nan, np.inf, -np.inf])
def test_fault_3_a_missing_reward_masks_that_rollout_only(missing):
    with_missing = group_advantages([1.0, missing, 4.0, 2.0])
    alone = group_advantages([1.0, 4.0, 2.0])
    np.testing.assert_allclose(np.delete(with_missing, 1), alone, rtol=1e-6)
    assert float(with_missing[1]) == 0.0


def test_fault_4_a_ragged_group_equals_a_separate_call():
    rewards = np.array([1.0, 5.0, 2.0, 9.0, -4.0], np.float32)
    for size in range(1, 6):
        mask = np.arange(5) < size
        padded = group_advantages(np.where(mask, rewards, 777.0), mask=mask)
        np.testing.assert_allclose(padded[:size], group_advantages(rewards[:size]), rtol=1e-6)
        assert not np.any(np.asarray(padded)[size:])


def test_fault_5_the_micro_batch_does_not_change_a_groups_advantages():
    rewards = np.random.default_rng(0).normal(size=(8, 4)).astype(np.float32)
    whole = jax.vmap(group_advantages)(rewards)
    for size in (1, 2, 4):
        parts = [jax.vmap(group_advantages)(rewards[i : i + size]) for i in range(0, 8, size)]
        np.testing.assert_array_equal(whole, np.concatenate(parts))


def test_fault_5_a_flat_batch_is_refused_instead_of_crossing_prompts():
    with pytest.raises(ValueError, match=r"reward_G should be \[G\]"):
        group_advantages(np.zeros((2, 4)))


@pytest.mark.parametrize(
    ("rewards", "signal"),
    [
        ([2.0, 2.0, 2.0], False),
        ([0.0, 9e-7, 0.0], False),
        ([0.0, 2e-6, 0.0], True),
        ([1e3, 1e3 + 5e-4, 1e3], False),  # 0.5 of the tolerance at this magnitude
        ([1e3, 1e3 + 5e-3, 1e3], True),
        ([1.0, np.nan, 1.0], False),
        ([1.0, np.nan, 2.0], True),
        ([1.0], False),
    ],
)
def test_fault_7_a_group_without_spread_has_no_signal_and_exactly_zero_advantages(rewards, signal):
    assert bool(has_signal(rewards)) == signal
    assert bool(np.any(np.asarray(group_advantages(rewards)))) == signal
    scores = np.array([[0.375, 0.1 * i, r] for i, r in enumerate(rewards)], np.float32)
    assert bool(np.any(np.asarray(turn_advantages(scores)))) == signal


def test_fault_7_signal_can_be_told_per_turn():
    advantages = turn_advantages([[0.0, 1.0, 1.0], [0.0, 2.0, 2.0]])
    per_turn = jax.vmap(has_signal, in_axes=1)(advantages)
    assert per_turn.tolist() == [True, False]


# -- turn-level ----------------------------------------------------------------------------------


@pytest.mark.parametrize("alpha", [0.0, 0.3, 1.0])
def test_turn_advantages_equal_the_literal_formula(alpha):
    for seed in range(50):
        scores = random_scores(seed)
        np.testing.assert_allclose(
            turn_advantages(scores, alpha=alpha),
            reference.turn_advantages(scores.astype(np.float64), alpha, 1e-6, 5.0),
            atol=2e-5,
        )


def test_equation_4_both_forms_agree():
    for seed in range(50):
        scores = random_scores(seed)
        np.testing.assert_allclose(
            turn_advantages(scores, alpha=1.0),
            reference.remaining_return_advantages(scores.astype(np.float64), 1e-6, 5.0),
            atol=2e-5,
        )


def test_equation_g7_alpha_interpolates_between_global_and_remaining_return():
    scores = random_scores(3)
    shared, full = (turn_advantages(scores, alpha=a, clip=None) for a in (0.0, 1.0))
    np.testing.assert_allclose(
        turn_advantages(scores, alpha=0.25, clip=None), 0.75 * shared + 0.25 * full, atol=1e-5
    )


def test_alpha_zero_is_clipped_grpo():
    for seed in range(20):
        scores = random_scores(seed)
        shared = np.clip(group_advantages(scores[:, -1]), -1.0, 1.0)
        np.testing.assert_allclose(
            turn_advantages(scores, alpha=0.0, clip=1.0),
            np.broadcast_to(shared[:, None], (4, 6)),
            atol=1e-6,
        )


def test_the_first_turn_has_the_global_advantage():
    scores = random_scores(1)
    np.testing.assert_allclose(
        turn_advantages(scores)[:, 0], group_advantages(scores[:, -1]), atol=1e-6
    )


def test_a_good_trajectory_can_hold_a_bad_turn():
    """Above the mean reward, yet its later turn loses what the others gain."""
    advantages = turn_advantages([[0.0, 3.0, 2.0], [0.0, 0.0, 0.5]])
    assert float(advantages[0, 0]) > 0 > float(advantages[0, 1])


def test_clip_comes_after_interpolation():
    """Unclipped at alpha = 1 the second turn is far out; half of it must not be clipped first."""
    scores = np.array([[0.0, 30.0, 1.0], [0.0, -30.0, -1.0]], np.float32)
    raw = turn_advantages(scores, alpha=0.1, clip=None)
    np.testing.assert_allclose(
        turn_advantages(scores, alpha=0.1, clip=2.0), np.clip(raw, -2, 2), atol=1e-6
    )
    assert float(jnp.max(jnp.abs(turn_advantages(scores)))) == 5.0


def test_fault_1_a_rollout_that_ended_early_holds_its_last_score():
    """It stays in the means with remaining return 0; its missing turns get 0; what stands in its
    scores after the end is not read."""
    scores = np.array([[0.0, 1.0, 3.0, 2.0], [0.0, 2.0, np.nan, -9.0]], np.float32)
    turn_mask = np.array([[True, True, True], [True, False, False]])
    held = np.array([[0.0, 1.0, 3.0, 2.5], [0.0, 2.0, 2.0, 2.0]], np.float32)
    scores[0, 3] = 2.5
    expected = reference.turn_advantages(held.astype(np.float64), 1.0, 1e-6, 5.0)
    actual = turn_advantages(scores, turn_mask=turn_mask)
    np.testing.assert_allclose(actual, np.where(turn_mask, expected, 0.0), atol=1e-5)


def test_a_turn_mask_may_be_shared_by_the_group():
    scores = random_scores(2)
    mask = np.array([True, True, True, True, False, False])
    shared = turn_advantages(scores, turn_mask=mask)
    np.testing.assert_array_equal(
        shared, turn_advantages(scores, turn_mask=np.broadcast_to(mask, (4, 6)))
    )
    np.testing.assert_allclose(shared[:, :4], turn_advantages(scores[:, :5]), atol=1e-6)


@pytest.mark.parametrize("where", [0, 3, 6])
def test_fault_3_a_rollout_with_a_missing_score_leaves_the_others_alone(where):
    scores = random_scores(4)
    broken = scores.copy()
    broken[1, where] = np.nan
    actual = np.asarray(turn_advantages(broken))
    alone = turn_advantages(np.delete(scores, 1, axis=0))
    np.testing.assert_allclose(np.delete(actual, 1, axis=0), alone, atol=1e-6)
    assert not np.any(actual[1])


def test_fault_4_masked_rollouts_equal_a_smaller_group():
    scores = random_scores(5)
    masked = turn_advantages(scores, rollout_mask=[True, False, True, True])
    alone = turn_advantages(np.delete(scores, 1, axis=0))
    np.testing.assert_allclose(np.delete(masked, 1, axis=0), alone, atol=1e-6)


def test_from_trajectories_to_credit():
    """Prefix scores and credit composed, against the reference from the trajectories on."""
    rng = np.random.default_rng(0)
    rollouts = []
    for _ in range(4):  # one observation plan, four rollouts
        quality = [None if silent else float(rng.integers(0, 5)) for silent in rng.random(5) < 0.4]
        rollouts.append(
            simple(
                [2.0, 5.0, 9.0, 12.0, 18.0],
                quality=quality,
                repetitive=(rng.random(5) < 0.3).astype(float),
                windows=((2.0, 6.0), (8.0, 15.0)),
            )
        )
    turns = stack([turns for turns, _ in rollouts])
    advantages = turn_advantages(jax.vmap(prefix_scores, (0, None))(turns, rollouts[0][1]))
    pairs = [both_forms(*rollout) for rollout in rollouts]
    setting = reference.Setting()
    scores = [reference.prefix_scores(p.decisions, p.spans, setting) for p in pairs]
    expected = reference.turn_advantages(np.array(scores), 1.0, 1e-6, 5.0)
    np.testing.assert_allclose(advantages, expected, atol=1e-5)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"alpha": 1.5}, "alpha must be between 0 and 1, got 1.5"),
        ({"clip": 0.0}, "clip must be positive"),
        ({"eps": -1.0}, "eps must not be negative"),
        ({"turn_mask": np.ones(3, bool)}, r"turn_mask should be \[K\] or \[G, K\]"),
        ({"rollout_mask": np.ones(3, bool)}, "rollout_mask has 3 entries on axis G"),
    ],
)
def test_turn_advantages_refuse_bad_arguments(arguments, message):
    with pytest.raises(ValueError, match=message):
        turn_advantages(random_scores(0), **arguments)


def test_turn_advantages_need_a_score():
    with pytest.raises(ValueError, match="needs at least U_0"):
        turn_advantages(jnp.zeros((4, 0)))
    assert turn_advantages(jnp.zeros((4, 1))).shape == (4, 0)


# -- alpha warm-up -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("total", "fraction", "warmup"),
    [(10, 0.1, 1), (11, 0.1, 2), (30, 0.1, 3), (497, 0.1, 50), (1, 0.1, 1), (1000, 0.1, 100),
     (30, 1 / 3, 10), (70, 0.7, 49), (123_457, 0.1, 12_346), (2_000_000_000, 0.3, 600_000_000),
     (90, Fraction(1, 9), 10), (5, 1.0, 5)],
)  # fmt: skip
def test_warmup_ends_at_the_integer_ceiling(total, fraction, warmup):
    assert float(alpha_warmup(warmup, total, fraction=fraction)) == 1.0
    if warmup < 2**24:
        below = float(alpha_warmup(warmup - 1, total, fraction=fraction))
        assert below == np.float32((warmup - 1) / warmup)


def test_warmup_starts_at_zero_counts_completed_updates_and_stays_at_one():
    curve = [float(alpha_warmup(step, 30)) for step in range(6)]
    assert curve == pytest.approx([0, 1 / 3, 2 / 3, 1, 1, 1])


def test_warmup_accepts_traced_steps_and_totals():
    traced = jax.jit(alpha_warmup)(jnp.int32(25), jnp.int32(497))
    assert float(traced) == 0.5


def test_no_warmup():
    assert float(alpha_warmup(0, 30, fraction=0.0)) == 1.0
    assert float(alpha_warmup(0, 0)) == 1.0


def test_warmup_refuses_bad_arguments():
    with pytest.raises(ValueError, match="fraction must be"):
        alpha_warmup(0, 10, fraction=1.5)
    with pytest.raises(ValueError, match="total_steps must not"):
        alpha_warmup(0, -1)
    with pytest.raises(ValueError, match="step should be a scalar"):
        alpha_warmup([0, 1], 10)


# -- replayed samples ----------------------------------------------------------------------------


def test_replay_baseline_equals_the_codes_formula():
    reward, average = np.array([1.0, 0.0, 1.5]), np.array([0.2, 0.2, 0.9])
    expected = (reward - average) / (np.std(reward, ddof=1) + 1e-4)
    np.testing.assert_allclose(replay_advantages(reward, average), expected, rtol=1e-5)


def test_replay_baseline_of_a_single_sample_has_scale_one():
    assert float(replay_advantages([1.0], [0.25])[0]) == pytest.approx(0.75 / 1.0001)


def test_replay_baseline_of_equal_rewards_is_not_divided_by_eps():
    """The literal formula would give 7,500."""
    values = replay_advantages([1.0, 1.0], [0.25, 1.0])
    assert values.tolist() == pytest.approx([0.75 / 1.0001, 0.0])


def test_replay_multiplicative_scales_the_group_advantage_by_the_reference():
    reward, average = np.array([1.0, 0.0, 1.5]), np.array([0.2, 0.2, 0.9])
    plain = np.asarray(group_advantages(reward, eps=1e-4))
    np.testing.assert_allclose(
        replay_advantages(reward, average, kind="multiplicative"), average * plain, rtol=1e-5
    )


@pytest.mark.parametrize("average", [0.0, -0.5])
def test_replay_multiplicative_floor_keeps_hard_prompts_alive_and_the_sign_right(average):
    reward = np.array([1.0, 0.0])
    plain = np.asarray(group_advantages(reward, eps=1e-4))
    actual = replay_advantages(reward, [average, average], kind="multiplicative")
    np.testing.assert_allclose(actual, 0.1 * plain, rtol=1e-5)


@pytest.mark.parametrize("kind", ["baseline", "multiplicative"])
@pytest.mark.parametrize("spoilt", ["reward", "reference", "mask"])
def test_fault_3_a_missing_replayed_reward_masks_that_sample_only(kind, spoilt):
    reward, average = np.array([1.0, 0.0, 1.5, 0.7]), np.array([0.2, 0.2, 0.9, 0.5])
    alone = replay_advantages(np.delete(reward, 1), np.delete(average, 1), kind=kind)
    mask = None
    if spoilt == "reward":
        reward[1] = np.nan
    elif spoilt == "reference":
        average[1] = np.inf
    else:
        reward[1], mask = np.nan, [True, False, True, True]
    actual = np.asarray(replay_advantages(reward, average, kind=kind, mask=mask))
    np.testing.assert_allclose(np.delete(actual, 1), alone, rtol=1e-5)
    assert actual[1] == 0.0


def test_replay_refuses_an_unknown_kind():
    with pytest.raises(ValueError, match="kind should be 'baseline' or 'multiplicative'"):
        replay_advantages([1.0], [1.0], kind="ratio")
